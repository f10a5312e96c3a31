//! Headers of pages, where their bodies stay compressed until they are on the device.
//!
//! They are structs of Thrift's compact protocol, as `parquet.thrift` has them. The
//! `parquet` crate reads them too, but gives pages only with their bodies decompressed.

use parquet::basic::Encoding;

/// What stands in front of a page's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the body in the file.
    pub n_packed: usize,
    /// Bytes of the body, decompressed.
    pub n_bytes: usize,
    /// What the body is.
    pub kind: Kind,
}

/// Kinds of pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Entries of the dictionary.
    Dictionary(Values),
    /// Values behind levels that say their length.
    DataV1 {
        /// The values.
        values: Values,
        /// How definition levels are encoded.
        levels: Encoding,
    },
    /// Values behind levels that are not compressed.
    DataV2 {
        /// The values.
        values: Values,
        /// Bytes of repetition levels, which come first.
        n_repetition: usize,
        /// Bytes of definition levels.
        n_definition: usize,
        /// Whether the values are compressed.
        is_compressed: bool,
    },
    /// Nothing that is read.
    Index,
}

/// How many values, nulls too, and their encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Values {
    /// How many.
    pub n: u32,
    /// How they are encoded.
    pub encoding: Encoding,
}

/// Structs within structs, and lists, that are passed over.
const DEPTH_MAX: u32 = 16;

const CUT_OFF: &str = "the page header is cut off or not well-formed";

type Read<T> = Result<T, &'static str>;

impl Header {
    /// Reads a header at the start of `bytes`; gives its own length too.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(bytes: &[u8]) -> Result<(Header, usize), &'static str> {
        let mut reader = Compact { bytes, at: 0 };
        let (mut page_type, mut n_bytes, mut n_packed) = (None, None, None);
        let (mut v1, mut v2, mut dictionary) = (None, None, None);
        reader.fields(|reader, id, kind| {
            match (id, kind) {
                (1, I32) => page_type = Some(reader.i32()?),
                (2, I32) => n_bytes = Some(reader.i32()?),
                (3, I32) => n_packed = Some(reader.i32()?),
                (5, STRUCT) => v1 = Some(of_numbers(reader)?),
                (7, STRUCT) => dictionary = Some(of_numbers(reader)?),
                (8, STRUCT) => v2 = Some(of_numbers(reader)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let size = |n: Option<i32>| n.and_then(|n| usize::try_from(n).ok()).ok_or(CUT_OFF);
        let kind = match page_type.ok_or(CUT_OFF)? {
            0 => {
                let own = v1.ok_or(CUT_OFF)?;
                Kind::DataV1 {
                    values: values(own[1], own[2])?,
                    levels: encoding(own[3].ok_or(CUT_OFF)?)?,
                }
            }
            1 => Kind::Index,
            2 => {
                let own = dictionary.ok_or(CUT_OFF)?;
                Kind::Dictionary(values(own[1], own[2])?)
            }
            3 => {
                let own = v2.ok_or(CUT_OFF)?;
                Kind::DataV2 {
                    values: values(own[1], own[4])?,
                    n_definition: size(own[5])?,
                    n_repetition: size(own[6])?,
                    // Unless it says otherwise.
                    is_compressed: own[7] != Some(0),
                }
            }
            _ => return Err("a page of a type that is not known"),
        };
        let header = Header {
            n_packed: size(n_packed)?,
            n_bytes: size(n_bytes)?,
            kind,
        };
        Ok((header, reader.at))
    }
}

fn values(n: Option<i32>, of: Option<i32>) -> Read<Values> {
    let n = n.and_then(|n| u32::try_from(n).ok()).ok_or(CUT_OFF)?;
    let encoding = encoding(of.ok_or(CUT_OFF)?)?;
    Ok(Values { n, encoding })
}

fn encoding(number: i32) -> Read<Encoding> {
    Ok(match number {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        #[allow(deprecated)] // old files have such levels
        4 => Encoding::BIT_PACKED,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        _ => return Err("an encoding that is not known"),
    })
}

/// The numbers and flags of a header's own struct, by their fields; flags are 0 or 1.
type Numbers = [Option<i32>; 8];

fn of_numbers(reader: &mut Compact<'_>) -> Read<Numbers> {
    let mut numbers = Numbers::default();
    reader.fields(|reader, id, kind| {
        let place = usize::try_from(id).ok().and_then(|id| numbers.get_mut(id));
        match (place, kind) {
            (Some(place), I32) => *place = Some(reader.i32()?),
            (Some(place), TRUE | FALSE) => *place = Some(i32::from(kind == TRUE)),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(numbers)
}

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I32: u8 = 5;
const STRUCT: u8 = 12;

/// A reader of the compact protocol; nothing is read past the end.
struct Compact<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Compact<'_> {
    fn byte(&mut self) -> Read<u8> {
        let byte = self.bytes.get(self.at).copied().ok_or(CUT_OFF)?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Read<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(CUT_OFF)
    }

    fn zigzag(&mut self) -> Read<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn i32(&mut self) -> Read<i32> {
        i32::try_from(self.zigzag()?).map_err(|_| CUT_OFF)
    }

    /// Gives each field of a struct to `take`, by number and type; what it does not take is
    /// passed over.
    fn fields(&mut self, mut take: impl FnMut(&mut Self, i16, u8) -> Read<bool>) -> Read<()> {
        let mut id = 0i16;
        while let Some(kind) = self.field(&mut id)? {
            if !take(self, id, kind)? {
                self.skip(kind, 0)?;
            }
        }
        Ok(())
    }

    /// The type of the next field; `None` at the end of the struct.
    fn field(&mut self, id: &mut i16) -> Read<Option<u8>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Ok(None);
        }
        let step = i16::from(byte >> 4);
        *id = match step {
            0 => i16::try_from(self.zigzag()?).map_err(|_| CUT_OFF)?,
            step => id.checked_add(step).ok_or(CUT_OFF)?,
        };
        Ok(Some(byte & 15))
    }

    fn skip_bytes(&mut self, n: u64) -> Read<()> {
        let left = self.bytes.len() - self.at;
        match usize::try_from(n) {
            Ok(n) if n <= left => {
                self.at += n;
                Ok(())
            }
            _ => Err(CUT_OFF),
        }
    }

    /// Passes over a field's value.
    fn skip(&mut self, kind: u8, depth: u32) -> Read<()> {
        if depth > DEPTH_MAX {
            return Err(CUT_OFF);
        }
        match kind {
            TRUE | FALSE => Ok(()),
            3 => self.skip_bytes(1),
            4..=6 => self.varint().map(|_| ()),
            7 => self.skip_bytes(8),
            8 => {
                let n = self.varint()?;
                self.skip_bytes(n)
            }
            9 | 10 => {
                let byte = self.byte()?;
                let n = match byte >> 4 {
                    15 => self.varint()?,
                    n => u64::from(n),
                };
                self.skip_elements(n, &[byte & 15], depth)
            }
            11 => match self.varint()? {
                0 => Ok(()),
                n => {
                    let byte = self.byte()?;
                    self.skip_elements(n, &[byte >> 4, byte & 15], depth)
                }
            },
            STRUCT => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth + 1)?;
                }
                Ok(())
            }
            13 => self.skip_bytes(16),
            _ => Err(CUT_OFF),
        }
    }

    /// Elements take a byte at least, so there are not more than bytes.
    fn skip_elements(&mut self, n: u64, kinds: &[u8], depth: u32) -> Read<()> {
        if n > (self.bytes.len() - self.at) as u64 {
            return Err(CUT_OFF);
        }
        for _ in 0..n {
            for kind in kinds {
                match *kind {
                    // In a list a flag is a byte.
                    TRUE | FALSE => self.skip_bytes(1)?,
                    kind => self.skip(kind, depth + 1)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data page of version 2 as writers make it, with statistics to pass over.
    const V2: &[u8] = &[
        0x15, 6, // type: DATA_PAGE_V2
        0x15, 0xa0, 0x1f, // 2000 bytes
        0x15, 0x90, 0x0c, // 776 of them in the file
        0x5c, // data_page_header_v2, field 8
        0x15, 0x90, 0x4e, // 5000 values
        0x15, 8, // 4 nulls
        0x15, 0x90, 0x4e, // 5000 rows
        0x15, 16, // RLE_DICTIONARY
        0x15, 18, // 9 bytes of definition levels
        0x15, 0,    // none of repetition levels
        0x12, // not compressed
        0x1c, // statistics
        0x36, 4, // null count
        0x28, 2, b'a', b'b', // max_value
        0x18, 1, b'a', // min_value
        0x11, // is_max_value_exact
        0, 0, 0, 0xee,
    ];

    #[test]
    fn a_header_is_read_and_statistics_are_passed_over() {
        let (header, n) = Header::read(V2).unwrap();
        assert_eq!(n, V2.len() - 1);
        let values = Values {
            n: 5000,
            encoding: Encoding::RLE_DICTIONARY,
        };
        let kind = Kind::DataV2 {
            values,
            n_repetition: 0,
            n_definition: 9,
            is_compressed: false,
        };
        assert_eq!(
            header,
            Header {
                n_packed: 776,
                n_bytes: 2000,
                kind
            }
        );
    }

    #[test]
    fn a_header_that_is_cut_off_is_an_error_and_changed_ones_end() {
        for n in 0..V2.len() - 1 {
            assert_eq!(Header::read(&V2[..n]), Err(CUT_OFF), "{n} bytes");
        }
        let mut n_read = 0;
        for at in 0..V2.len() - 1 {
            for byte in 0..=255 {
                let mut bytes = V2.to_vec();
                bytes[at] = byte;
                if let Ok((_, n)) = Header::read(&bytes) {
                    assert!(n <= bytes.len());
                    n_read += 1;
                }
            }
        }
        assert!(n_read > V2.len(), "{n_read}");
        // Lists within lists do not take the stack, nor long ones the time.
        let deep: Vec<u8> = std::iter::once(0x19).chain([0x19; 100_000]).collect();
        assert_eq!(Header::read(&deep), Err(CUT_OFF));
        let long = [0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 1];
        assert_eq!(Header::read(&long), Err(CUT_OFF));
    }
}
