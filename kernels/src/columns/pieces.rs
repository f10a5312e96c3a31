//! Some of the rows of a column that is laid out in host memory, and columns that come home
//! as they are on the device.

use arrow::array::BooleanBufferBuilder;
use arrow::buffer::Buffer;

use super::{DeviceColumn, StagedColumn};
use crate::error::{Error, Result};
use crate::gpu::Stream;

/// Rows of a piece start at a multiple of this, so that validity bits need no shift.
pub const PIECE_ROWS: usize = 64;

impl StagedColumn {
    /// A copy of a column's first `n_rows` rows.
    pub fn of_device(
        stream: &Stream,
        column: &DeviceColumn,
        n_rows: usize,
    ) -> Result<StagedColumn> {
        let (values, validity) = column.buffers();
        let offsets = match column.offsets() {
            None => None,
            Some(offsets) => {
                let width = offset_bytes(column.shape.stored);
                Some(offsets.read::<u8>(stream, 0, (n_rows + 1) * width)?)
            }
        };
        let n_bytes = match &offsets {
            None => n_rows * column.shape.stored_bytes(),
            Some(offsets) => offset_at(offsets, column.shape.stored, n_rows),
        };
        let values = values.read::<u8>(stream, 0, n_bytes)?;
        let validity = match validity {
            None => None,
            Some(bits) => Some(bits.read::<u8>(stream, 0, n_rows.div_ceil(8))?),
        };
        Ok(StagedColumn {
            shape: column.shape,
            range: column.range,
            values: values.into(),
            validity: validity.map(Buffer::from),
            offsets: offsets.map(Buffer::from),
        })
    }

    /// `n_rows` rows from row `first` on, which is a multiple of [`PIECE_ROWS`].
    pub fn piece(&self, first: usize, n_rows: usize) -> StagedColumn {
        debug_assert_eq!(first % PIECE_ROWS, 0);
        let stored = self.shape.stored;
        let (values, offsets) = match &self.offsets {
            None => {
                let width = self.shape.stored_bytes();
                let values = self.values.slice_with_length(first * width, n_rows * width);
                (values, None)
            }
            Some(offsets) => {
                let at = |row: usize| offset_at(offsets, stored, row);
                let (from, to) = (at(first), at(first + n_rows));
                let own = (first..=first + n_rows).map(|row| at(row) - from);
                let values = self.values.slice_with_length(from, to - from);
                (values, Some(offsets_of(own, stored)))
            }
        };
        let validity = self.validity.as_ref();
        StagedColumn {
            shape: self.shape,
            range: self.range,
            values,
            validity: validity.map(|bits| bits.slice_with_length(first / 8, n_rows.div_ceil(8))),
            offsets,
        }
    }

    /// The rows of these numbers.
    pub fn select(&self, rows: &[u32]) -> StagedColumn {
        let stored = self.shape.stored;
        let bytes = self.values.as_slice();
        let (values, offsets) = match &self.offsets {
            None => {
                let values = match self.shape.stored_bytes() {
                    1 => picked::<1>(bytes, rows),
                    2 => picked::<2>(bytes, rows),
                    4 => picked::<4>(bytes, rows),
                    8 => picked::<8>(bytes, rows),
                    _ => picked::<16>(bytes, rows),
                };
                (values, None)
            }
            Some(offsets) => {
                let at = |row: usize| offset_at(offsets, stored, row);
                let mut values = Vec::new();
                let mut own = vec![0];
                for row in rows {
                    let row = *row as usize;
                    values.extend_from_slice(&bytes[at(row)..at(row + 1)]);
                    own.push(values.len());
                }
                (values, Some(offsets_of(own.into_iter(), stored)))
            }
        };
        let validity = self.validity.as_ref().map(|bits| {
            let mut own = BooleanBufferBuilder::new(rows.len());
            for row in rows {
                own.append(bits[*row as usize / 8] >> (row % 8) & 1 == 1);
            }
            own.finish().into_inner()
        });
        StagedColumn {
            shape: self.shape,
            range: self.range,
            values: values.into(),
            validity,
            offsets,
        }
    }

    /// The column with each of its buffers replaced by what `map` gives for it, which holds
    /// the same bytes.
    pub fn map_buffers<E>(
        self,
        map: &mut dyn FnMut(Buffer) -> std::result::Result<Buffer, E>,
    ) -> std::result::Result<StagedColumn, E> {
        Ok(StagedColumn {
            shape: self.shape,
            range: self.range,
            values: map(self.values)?,
            validity: self.validity.map(&mut *map).transpose()?,
            offsets: self.offsets.map(&mut *map).transpose()?,
        })
    }

    /// The value of an integral column in a row, whether it is null or not.
    pub fn integer(&self, row: usize) -> Result<i128> {
        let width = self.shape.stored_bytes();
        let bytes = self.values.get(row * width..(row + 1) * width);
        let bytes = bytes.ok_or_else(|| Error::Internal(format!("a column without row {row}")))?;
        // The sign is in the last byte.
        let mut wide = match bytes.last() {
            Some(last) if last >> 7 == 1 => [0xff; 16],
            _ => [0; 16],
        };
        wide[..width].copy_from_slice(bytes);
        Ok(i128::from_le_bytes(wide))
    }
}

fn picked<const N: usize>(bytes: &[u8], rows: &[u32]) -> Vec<u8> {
    let (elements, _) = bytes.as_chunks::<N>();
    let mut picked = Vec::with_capacity(rows.len() * N);
    for row in rows {
        picked.extend_from_slice(&elements[*row as usize]);
    }
    picked
}

fn offset_bytes(stored: &str) -> usize {
    match stored {
        "long_text" => size_of::<i64>(),
        _ => size_of::<i32>(),
    }
}

/// Where the text of a row starts. Offsets are never negative.
fn offset_at(offsets: &[u8], stored: &str, row: usize) -> usize {
    match offset_bytes(stored) {
        8 => i64::from_ne_bytes(offsets.as_chunks().0[row]) as usize,
        _ => i32::from_ne_bytes(offsets.as_chunks().0[row]) as usize,
    }
}

fn offsets_of(offsets: impl Iterator<Item = usize>, stored: &str) -> Buffer {
    match offset_bytes(stored) {
        8 => Buffer::from_vec(offsets.map(|at| at as i64).collect()),
        _ => Buffer::from_vec(offsets.map(|at| at as i32).collect()),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, Decimal128Array, Int64Array, StringArray};

    use crate::columns::{stage, unstage::staged_array};
    use crate::ir::{IntWidth, Type};

    fn numbers(n: i64) -> Int64Array {
        (0..n)
            .map(|i| (i % 5 != 0).then_some(i * 7 - 300))
            .collect()
    }

    #[test]
    fn a_piece_has_the_rows_of_the_slice() {
        let (all, texts) = (numbers(200), texts(200));
        let (first, n_rows) = (128, 51);
        let piece = stage(&all, None).unwrap().piece(first, n_rows);
        let got = staged_array(&piece, n_rows, Type::Int(IntWidth::W64)).unwrap();
        assert_eq!(got.as_ref(), &all.slice(first, n_rows) as &dyn Array);

        let piece = stage(&texts, None).unwrap().piece(first, n_rows);
        let same = stage(&texts.slice(first, n_rows), None).unwrap();
        assert_eq!(piece.values, same.values);
        assert_eq!(piece.offsets, same.offsets);
        assert_eq!(piece.validity.unwrap()[..6], same.validity.unwrap()[..6]);
    }

    #[test]
    fn selected_rows_are_those_that_were_named() {
        let rows = [199, 0, 5, 5, 64];
        let expected: Int64Array = rows.iter().map(|row| value(&numbers(200), *row)).collect();
        let got = stage(&numbers(200), None).unwrap().select(&rows);
        let got = staged_array(&got, rows.len(), Type::Int(IntWidth::W64)).unwrap();
        assert_eq!(got.as_ref(), &expected as &dyn Array);

        let texts = texts(200);
        let expected: StringArray = rows
            .iter()
            .map(|row| {
                texts
                    .is_valid(*row as usize)
                    .then(|| texts.value(*row as usize))
            })
            .collect();
        let (got, same) = (
            stage(&texts, None).unwrap().select(&rows),
            stage(&expected, None).unwrap(),
        );
        assert_eq!((got.values, got.offsets), (same.values, same.offsets));
        assert_eq!(got.validity, same.validity);
    }

    #[test]
    fn integers_of_every_width_keep_their_sign() {
        for value in [
            0,
            1,
            -1,
            127,
            -128,
            300,
            -70_000,
            1 << 40,
            -(1 << 90),
            1 << 100,
        ] {
            let array = Decimal128Array::from(vec![0, value]);
            let column = stage(&array, None).unwrap();
            assert_eq!(column.integer(1).unwrap(), value, "{}", column.shape.stored);
            assert_eq!(column.integer(0).unwrap(), 0);
            assert!(column.integer(2).is_err());
        }
    }

    fn texts(n: usize) -> StringArray {
        (0..n)
            .map(|i| (i % 7 != 0).then(|| "x".repeat(i % 4)))
            .collect()
    }

    fn value(array: &Int64Array, row: u32) -> Option<i64> {
        let row = row as usize;
        array.is_valid(row).then(|| array.value(row))
    }
}
