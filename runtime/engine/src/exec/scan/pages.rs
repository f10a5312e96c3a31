//! A column chunk's bytes to page bodies on the device.
//!
//! Where kernels decompress its codec, the bytes go as the file has them and only the headers
//! of pages are read here (`unpack.rs` has the rest). Otherwise the `parquet` crate
//! decompresses, and the bodies go.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::StringArray;
use bytes::Bytes;
use kernels::error::{Error, MalformedPage, Result};
use kernels::gpu::{DeviceBuffer, Gpu, PinnedPool, Stream};
use kernels::parquet::{
    Codec, ColumnChunk, Encoding, FRONT_BYTES, PackedBody, PackedChunk, Packing, Page, PageKind,
    Refused,
};
use parquet::basic::{Compression, Encoding as FileEncoding};
use parquet::column::page::{Page as FilePage, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::footers::Piece;
use super::headers::{Header, Kind};
use crate::report::CodecReport;

/// Bodies start at multiples of this.
const ALIGNMENT: usize = 8;

/// Bodies that kernels decompress: they write so many bytes at a time.
const TARGET_ALIGNMENT: usize = 16;

/// Page-locked memory that one copy takes at most.
const PINNED_BYTES: usize = 64 << 20;

/// How long a copy waits for page-locked memory that others hold.
const PINNED_WAIT: Duration = Duration::from_secs(60);

/// Where pages go.
#[derive(Debug, Clone)]
pub struct Target {
    /// The device.
    pub gpu: Arc<dyn Gpu>,
    /// What copies go through.
    pub pinned: PinnedPool,
    /// What copies are enqueued on.
    pub stream: Arc<Stream>,
}

/// A column chunk that is on its way to the device.
#[derive(Debug)]
pub struct Sent {
    /// Its pages.
    pub bodies: Bodies,
    /// Whether the texts of its dictionary are wanted and not there yet.
    pub wants_dictionary: bool,
    /// The texts of its dictionary, if that was asked for and all its pages use it.
    pub dictionary: Option<StringArray>,
    /// How it was or will be decompressed; `None` if it is not compressed.
    pub unpacked: Option<CodecReport>,
    /// Bytes that were copied to the device.
    pub copied_bytes: u64,
}

/// The bodies of pages.
#[derive(Debug)]
pub enum Bodies {
    /// As the decoder takes them.
    Ready(ColumnChunk),
    /// As the file has them.
    Packed(PackedChunk),
}

/// A column chunk whose pages are on the device.
#[derive(Debug)]
pub struct Loaded {
    /// Its pages.
    pub chunk: ColumnChunk,
    /// The texts of its dictionary, if that was asked for and all its pages use it.
    pub dictionary: Option<StringArray>,
}

/// The codec that kernels decompress; otherwise why the CPU does, if it has to.
pub fn codec_of(
    compression: Compression,
    is_on_host: bool,
) -> std::result::Result<Codec, Option<String>> {
    let codec = match compression {
        Compression::UNCOMPRESSED => return Err(None),
        Compression::SNAPPY => Codec::Snappy,
        Compression::LZ4_RAW => Codec::Lz4,
        Compression::ZSTD(_) => Codec::Zstd,
        _ => return Err(Some("no kernel decompresses it".to_string())),
    };
    match is_on_host {
        true => Err(Some(
            "the device is told to leave it to the CPU".to_string(),
        )),
        false => Ok(codec),
    }
}

/// The bytes of a column chunk at their place in the file.
struct Slice {
    start: u64,
    bytes: Bytes,
}

impl Length for Slice {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl Slice {
    fn from(&self, start: u64) -> ParquetResult<Bytes> {
        let at = start
            .checked_sub(self.start)
            .and_then(|at| usize::try_from(at).ok());
        match at.filter(|at| *at <= self.bytes.len()) {
            Some(at) => Ok(self.bytes.slice(at..)),
            None => Err(ParquetError::EOF(
                "a page outside of its column chunk".into(),
            )),
        }
    }
}

impl ChunkReader for Slice {
    type T = Cursor<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Cursor<Bytes>> {
        self.from(start).map(Cursor::new)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let bytes = self.from(start)?;
        match length <= bytes.len() {
            true => Ok(bytes.slice(..length)),
            false => Err(ParquetError::EOF(
                "a page past the end of its column chunk".into(),
            )),
        }
    }
}

/// Which column chunk, and how it is read.
pub struct Chunk {
    /// The row group.
    pub piece: Piece,
    /// Which of the wanted columns.
    pub column: usize,
    /// Where its bytes start in the file.
    pub start: u64,
    /// Its bytes.
    pub bytes: Bytes,
    /// Whether the texts of its dictionary are wanted.
    pub wants_dictionary: bool,
}

impl Chunk {
    fn meta(&self) -> &ColumnChunkMetaData {
        let group = self.piece.file.metadata.row_group(self.piece.row_group);
        group.column(self.piece.file.leaves[self.column])
    }

    fn is_optional(&self) -> bool {
        self.meta().column_descr().max_def_level() > 0
    }

    fn name(&self) -> String {
        self.meta().column_path().string()
    }

    fn malformed(&self, place: String, reason: String) -> Error {
        Error::from(MalformedPage {
            file: self.piece.file.name.to_string(),
            column: self.name(),
            row_group: self.piece.row_group,
            place,
            reason,
        })
    }

    fn unsupported(&self, what: String) -> Error {
        let (file, name) = (&self.piece.file.name, self.name());
        Error::Unsupported(format!("{file}: column {name}: {what}"))
    }

    /// Sends the pages to the device, decompressed if kernels do not do that. Blocks the
    /// thread.
    pub fn send(self, target: &Target, is_on_host: bool) -> Result<Sent> {
        let compression = self.meta().compression();
        let reason = match codec_of(compression, is_on_host) {
            Ok(codec) => match self.packed(codec)? {
                Ok(pages) => return self.send_packed(target, pages),
                Err(what) => Some(what),
            },
            Err(reason) => reason,
        };
        let mut sent = self.send_bodies(target)?;
        if compression != Compression::UNCOMPRESSED {
            sent.unpacked = Some(CodecReport {
                codec: codec_name(compression),
                on_device: false,
                reason,
                bytes_packed: self.bytes.len() as u64,
                bytes: sent.copied_bytes,
            });
        }
        Ok(sent)
    }

    /// The pages as the file has them, or what no kernel decompresses.
    fn packed(&self, codec: Codec) -> Result<std::result::Result<PackedPages, String>> {
        let mut all = PackedPages::default();
        let (mut at, mut n_data) = (0, 0);
        while at < self.bytes.len() {
            let place = || format!("data page {n_data}, or the dictionary page");
            let malformed = |reason: &str| self.malformed(place(), reason.to_string());
            let (header, n_header) = Header::read(&self.bytes[at..]).map_err(malformed)?;
            let start = at + n_header;
            if header.n_packed > self.bytes.len() - start {
                return Err(malformed("it reaches past the end of its column chunk"));
            }
            at = start + header.n_packed;
            let Some(read) =
                packed_page(&header, self.is_optional()).map_err(|what| self.unsupported(what))?
            else {
                continue;
            };
            let (page, layout) = read;
            let body = start + layout.n_skipped..at;
            if layout.n_skipped + layout.n_levels > header.n_packed.min(header.n_bytes) {
                return Err(malformed("the levels reach past the end of the page"));
            }
            let n_out = match layout.is_packed {
                true => header.n_bytes - layout.n_skipped,
                false => body.len(),
            };
            let values = &self.bytes[body.start + layout.n_levels..at];
            let n_values = n_out - layout.n_levels;
            let (packing, n_source) = match (layout.is_packed, n_values) {
                (false, _) => (Ok(Packing::stored()), body.len()),
                // Nothing but nulls: whatever stands there is nothing.
                (true, 0) => (Ok(Packing::stored()), layout.n_levels),
                (true, n) => (Packing::of(codec, values, n), body.len()),
            };
            let packing = match packing {
                Ok(packing) => packing,
                Err(Refused::Malformed(reason)) => return Err(malformed(&reason)),
                Err(Refused::Unsupported(what)) => return Ok(Err(what)),
            };
            n_data += usize::from(page.kind != PageKind::Dictionary);
            let target = all.n_bytes.next_multiple_of(TARGET_ALIGNMENT);
            all.n_bytes = target + n_out;
            let source = FRONT_BYTES + body.start;
            all.bodies.push(PackedBody {
                source: source..source + n_source,
                n_levels: layout.n_levels,
                packing,
            });
            all.pages.push(Page {
                bytes: target..all.n_bytes,
                ..page
            });
        }
        Ok(Ok(all))
    }

    /// Sends the bytes as they are.
    fn send_packed(self, target: &Target, all: PackedPages) -> Result<Sent> {
        let n_bytes = FRONT_BYTES + self.bytes.len();
        let whole = [(FRONT_BYTES, self.bytes.clone())];
        let bytes = send(target, &whole, n_bytes)?;
        let unpacked = CodecReport {
            codec: codec_name(self.meta().compression()),
            on_device: true,
            reason: None,
            bytes_packed: self.bytes.len() as u64,
            bytes: all.n_bytes as u64,
        };
        Ok(Sent {
            wants_dictionary: self.wants_dictionary,
            dictionary: None,
            unpacked: Some(unpacked),
            copied_bytes: n_bytes as u64,
            bodies: Bodies::Packed(PackedChunk {
                column: self.name(),
                chunk: ColumnChunk {
                    file: Arc::clone(&self.piece.file.name),
                    row_group: self.piece.row_group,
                    n_rows: self.piece.n_rows(),
                    bytes,
                    pages: all.pages,
                },
                bodies: all.bodies,
                n_bytes: all.n_bytes,
            }),
        })
    }

    /// Decompresses the pages and sends them.
    fn send_bodies(&self, target: &Target) -> Result<Sent> {
        let (meta, is_optional) = (self.meta(), self.is_optional());
        let slice = Arc::new(Slice {
            start: self.start,
            bytes: self.bytes.clone(),
        });
        let n_rows = self.piece.n_rows();
        let mut reader = SerializedPageReader::new(slice, meta, n_rows, None)
            .map_err(|e| self.malformed("all pages".into(), e.to_string()))?;
        let (mut pages, mut bodies) = (Vec::new(), Vec::new());
        let (mut end, mut n_data) = (0usize, 0);
        loop {
            let place = || format!("data page {n_data}, or the dictionary page");
            let page = reader
                .get_next_page()
                .map_err(|e| self.malformed(place(), e.to_string()))?;
            let Some(page) = page else { break };
            let read = read_page(&page, is_optional).map_err(|what| self.unsupported(what))?;
            let body = body(&page).ok_or_else(|| {
                self.malformed(place(), "the levels reach past the end of the page".into())
            })?;
            n_data += usize::from(read.kind != PageKind::Dictionary);
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + body.len();
            pages.push(Page {
                bytes: start..end,
                ..read
            });
            bodies.push((start, body));
        }
        let dictionary = match self.wants_dictionary {
            true => match texts_in(&pages) {
                Texts::Some(page) => {
                    // The first page has the first body.
                    let texts = dictionary(page, &bodies[0].1);
                    let malformed = |reason| self.malformed("dictionary page".into(), reason);
                    Some(texts.map_err(malformed)?)
                }
                Texts::OfNoPages => Some(StringArray::new_null(0)),
                Texts::None => None,
            },
            false => None,
        };
        Ok(Sent {
            wants_dictionary: false,
            dictionary,
            unpacked: None,
            copied_bytes: end as u64,
            bodies: Bodies::Ready(ColumnChunk {
                file: Arc::clone(&self.piece.file.name),
                row_group: self.piece.row_group,
                n_rows,
                bytes: send(target, &bodies, end)?,
                pages,
            }),
        })
    }
}

/// What the file calls a codec, without its level.
fn codec_name(compression: Compression) -> String {
    let name = compression.to_string();
    let name = name.split('(').next().unwrap_or_default();
    name.to_lowercase()
}

/// The pages of a column chunk as the file has them.
#[derive(Default)]
struct PackedPages {
    pages: Vec<Page>,
    bodies: Vec<PackedBody>,
    /// Bytes of all bodies, decompressed.
    n_bytes: usize,
}

/// What stands in front of a body's values.
struct Layout {
    /// Repetition levels, which say nothing.
    n_skipped: usize,
    /// Levels that are not compressed.
    n_levels: usize,
    /// Whether the values are compressed.
    is_packed: bool,
}

/// A page as the decoder takes it, without its place, and its layout; `None` for one that is
/// not read. Or what no decoder reads.
fn packed_page(
    header: &Header,
    is_optional: bool,
) -> std::result::Result<Option<(Page, Layout)>, String> {
    let plain = Layout {
        n_skipped: 0,
        n_levels: 0,
        is_packed: true,
    };
    let (kind, values, layout) = match &header.kind {
        Kind::Index => return Ok(None),
        Kind::Dictionary(values) => (PageKind::Dictionary, values, plain),
        Kind::DataV1 { values, levels } => {
            check_levels(is_optional, *levels)?;
            (PageKind::DataV1, values, plain)
        }
        Kind::DataV2 {
            values,
            n_repetition,
            n_definition,
            is_compressed,
        } => {
            let layout = Layout {
                n_skipped: *n_repetition,
                n_levels: *n_definition,
                is_packed: *is_compressed,
            };
            // A number of 31 bits.
            let level_bytes = *n_definition as u32;
            (PageKind::DataV2 { level_bytes }, values, layout)
        }
    };
    let page = Page {
        kind,
        encoding: encoding_of(values.encoding, kind)?,
        n_values: values.n,
        bytes: 0..0,
    };
    Ok(Some((page, layout)))
}

/// The body of a page. Some writers give repetition levels to columns that are not nested:
/// they say nothing.
fn body(page: &FilePage) -> Option<Bytes> {
    let n_skipped = match page {
        FilePage::DataPageV2 {
            rep_levels_byte_len,
            ..
        } => *rep_levels_byte_len as usize,
        _ => 0,
    };
    let body = page.buffer();
    (n_skipped <= body.len()).then(|| body.slice(n_skipped..))
}

/// A page as the decoder takes it, without its place; or what no decoder reads.
fn read_page(page: &FilePage, is_optional: bool) -> std::result::Result<Page, String> {
    let kind = match page {
        FilePage::DictionaryPage { .. } => PageKind::Dictionary,
        FilePage::DataPage {
            def_level_encoding, ..
        } => {
            check_levels(is_optional, *def_level_encoding)?;
            PageKind::DataV1
        }
        FilePage::DataPageV2 {
            def_levels_byte_len,
            ..
        } => PageKind::DataV2 {
            level_bytes: *def_levels_byte_len,
        },
    };
    Ok(Page {
        kind,
        encoding: encoding_of(page.encoding(), kind)?,
        n_values: page.num_values(),
        bytes: 0..0,
    })
}

fn check_levels(is_optional: bool, encoding: FileEncoding) -> std::result::Result<(), String> {
    match is_optional && encoding != FileEncoding::RLE {
        true => Err(format!("definition levels in {encoding} encoding")),
        false => Ok(()),
    }
}

/// The decoder's name of an encoding, or what no decoder reads.
fn encoding_of(encoding: FileEncoding, kind: PageKind) -> std::result::Result<Encoding, String> {
    Ok(match encoding {
        // What a dictionary says of itself is PLAIN, in words of two versions.
        FileEncoding::PLAIN_DICTIONARY if kind == PageKind::Dictionary => Encoding::Plain,
        FileEncoding::PLAIN => Encoding::Plain,
        FileEncoding::PLAIN_DICTIONARY | FileEncoding::RLE_DICTIONARY => Encoding::Dictionary,
        FileEncoding::RLE => Encoding::Rle,
        FileEncoding::DELTA_BINARY_PACKED => Encoding::DeltaBinaryPacked,
        FileEncoding::DELTA_LENGTH_BYTE_ARRAY => Encoding::DeltaLengthByteArray,
        FileEncoding::DELTA_BYTE_ARRAY => Encoding::DeltaByteArray,
        FileEncoding::BYTE_STREAM_SPLIT => Encoding::ByteStreamSplit,
        other => return Err(format!("values in {other} encoding")),
    })
}

/// Where the texts of a column chunk's rows are.
pub enum Texts<'a> {
    /// In this dictionary, the first page.
    Some(&'a Page),
    /// There are none: no pages, no rows.
    OfNoPages,
    /// Not all in a dictionary.
    None,
}

/// Finds the dictionary that all pages use.
pub fn texts_in(pages: &[Page]) -> Texts<'_> {
    let mut data = pages
        .iter()
        .filter(|page| page.kind != PageKind::Dictionary);
    if data.any(|page| page.encoding != Encoding::Dictionary) {
        return Texts::None;
    }
    match pages.first() {
        None => Texts::OfNoPages,
        Some(page) if page.kind == PageKind::Dictionary && page.encoding == Encoding::Plain => {
            Texts::Some(page)
        }
        Some(_) => Texts::None,
    }
}

/// The texts of a dictionary.
///
/// # Errors
/// What is wrong with it.
pub fn dictionary(page: &Page, body: &[u8]) -> std::result::Result<StringArray, String> {
    let mut rest = body;
    // The number of values is only a claim until the bytes were seen.
    let mut texts = Vec::with_capacity((page.n_values as usize).min(body.len() / 4));
    for number in 0..page.n_values {
        let text = rest.split_first_chunk::<4>().and_then(|(length, after)| {
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            let (text, after) = after.split_at_checked(length)?;
            rest = after;
            Some(text)
        });
        let text = text.ok_or_else(|| format!("it ends in text {number}"))?;
        let text = std::str::from_utf8(text).map_err(|_| "text is not UTF-8".to_string())?;
        texts.push(text);
    }
    Ok(StringArray::from_iter_values(texts))
}

/// Sends bodies, each with its place, to a buffer of so many bytes on the device, through
/// page-locked memory.
fn send(target: &Target, bodies: &[(usize, Bytes)], n_bytes: usize) -> Result<DeviceBuffer> {
    let buffer = DeviceBuffer::allocate(&target.gpu, n_bytes)?;
    let mut pieces = bodies.iter().peekable();
    // A body is cut where page-locked memory ends.
    let mut from = 0;
    for start in (0..n_bytes).step_by(PINNED_BYTES) {
        let end = (start + PINNED_BYTES).min(n_bytes);
        let mut pinned = target.pinned.take_or_wait(end - start, PINNED_WAIT)?;
        let to = pinned.as_mut_slice();
        while let Some((place, body)) = pieces.peek() {
            let at = place + from;
            if at >= end {
                break;
            }
            let n = (body.len() - from).min(end - at);
            to[at - start..at - start + n].copy_from_slice(&body[from..from + n]);
            from += n;
            if from < body.len() {
                break;
            }
            from = 0;
            pieces.next();
        }
        buffer.upload(&target.stream, start, &pinned, 0..end - start)?;
    }
    Ok(buffer)
}
