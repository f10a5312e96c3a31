//! Compressed bodies of pages, decompressed on the device.
//!
//! ```text
//!   bodies as the file has them ─ headers walked here ── Packing
//!   snappy, lz4   a block of threads a page
//!   zstd          a warp a block: literals, and sequences; a block of threads a page: output
//! ```
//!
//! Pages of many columns and row groups go in one launch: a device wants thousands of them.
//! What a page says is checked against its bytes and the size that its header declares; the
//! first fault by page becomes [`Error::MalformedPage`].

mod packing;
mod zstd;

use std::collections::HashMap;
use std::ops::Range as Bytes;
use std::sync::Arc;

pub use packing::{Codec, Packing, Refused};

use self::packing::Form;
use self::zstd::{BLOCK_WORDS, Block, STATE_BYTES};
use super::fault::{NO_FAULT, unpack_fault};
use super::pages::launch;
use super::{ColumnChunk, Page};
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, Event, Gpu, Kernel, LaunchShape, Stream};
use crate::jit::Jit;
use crate::launch::RunCounts;
use crate::launch::context::Context;

/// Kernels may read so many bytes before a body: the first one starts that far in its buffer.
pub const FRONT_BYTES: usize = 64;

/// Scratch memory of one launch at most.
const SCRATCH_BYTES: usize = 1 << 30;

/// Bytes of a stored body that a warp copies.
const STORED_BYTES: usize = 32 << 10;

/// Threads a block of kernels that make tiles, and of those whose warps go alone.
const TILE_THREADS: u32 = 256;
const WARP_THREADS: u32 = 32;

/// The body of a page as the file has it.
#[derive(Debug, Clone)]
pub struct PackedBody {
    /// Where it is in its chunk's buffer.
    pub source: Bytes<usize>,
    /// Bytes of levels in front of what is compressed.
    pub n_levels: usize,
    /// How the rest is compressed.
    pub packing: Packing,
}

/// A row group's part of a column, whose bodies are as the file has them.
#[derive(Debug)]
pub struct PackedChunk {
    /// Its column's name, for messages.
    pub column: String,
    /// What becomes of it. The ranges of its pages are in the buffer that it will have; its
    /// buffer has the packed bodies, the first one [`FRONT_BYTES`] or more from the start.
    pub chunk: ColumnChunk,
    /// For each page its packed body.
    pub bodies: Vec<PackedBody>,
    /// Bytes of the buffer that it will have.
    pub n_bytes: usize,
}

/// Bodies that were decompressed.
#[derive(Debug)]
pub struct Unpacked {
    /// The chunks, in their order.
    pub chunks: Vec<ColumnChunk>,
    /// Time on the device, milliseconds, by device events.
    pub device_ms: f64,
}

/// Decompresses bodies, on a stream of its own.
#[derive(Debug)]
pub struct Unpacker {
    context: Context,
    first_fault: DeviceBuffer,
    /// The kernels that were used so far: a look-up hashes every header.
    kernels: HashMap<&'static str, Kernel>,
    /// What was enqueued since the last wait, each between two events.
    launches: Vec<(&'static str, Event, Event)>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct UnpackPass {
    n: u64,
    pages: u64,
    blocks: u64,
    states: u64,
    first_fault: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct StoredPass {
    n_pieces: u64,
    pieces: u64,
}

/// Words of 64 bits of a `PackedPage` of `cuda/unpack/page.h`.
const PAGE_WORDS: usize = 5;

/// What one kernel takes.
#[derive(Default)]
struct Work<'a> {
    stored: Vec<u64>,
    snappy: Vec<u64>,
    lz4: Vec<u64>,
    zstd: Vec<ZstdPage<'a>>,
    /// For each number of a page its chunk, and its place there.
    numbers: Vec<(usize, usize)>,
}

struct ZstdPage<'a> {
    source: u64,
    out: u64,
    n_source: usize,
    n_out: usize,
    number: usize,
    blocks: &'a [Block],
}

impl ZstdPage<'_> {
    fn literal_bytes(&self) -> usize {
        let each = self
            .blocks
            .iter()
            .map(|block| aligned(block.literal_bytes()));
        each.sum()
    }

    fn n_elements(&self) -> usize {
        self.blocks.iter().map(Block::n_elements).sum()
    }

    fn scratch_bytes(&self) -> usize {
        self.literal_bytes() + self.n_elements() * 8
    }
}

/// Literals of a block start at a multiple of 16 bytes.
fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

fn page_words(
    source: u64,
    out: u64,
    sizes: (usize, usize),
    blocks: (usize, usize),
    number: usize,
) -> [u64; PAGE_WORDS] {
    let pair = |low: usize, high: usize| low as u64 | (high as u64) << 32;
    [
        source,
        out,
        pair(sizes.0, sizes.1),
        pair(blocks.0, blocks.1),
        number as u64,
    ]
}

impl<'a> Work<'a> {
    fn of(chunks: &'a [PackedChunk], outputs: &[DeviceBuffer]) -> Result<Work<'a>> {
        let mut work = Work::default();
        for (at, (packed, output)) in chunks.iter().zip(outputs).enumerate() {
            let (pages, buffer) = (&packed.chunk.pages, &packed.chunk.bytes);
            if pages.len() != packed.bodies.len() {
                return Err(Error::Internal("pages without bodies".into()));
            }
            for (place, (page, body)) in pages.iter().zip(&packed.bodies).enumerate() {
                check(page, body, buffer.bytes(), output.bytes())?;
                work.numbers.push((at, place));
                work.add(page, body, buffer, output);
            }
        }
        Ok(work)
    }

    /// Adds the last page of `numbers`.
    fn add(
        &mut self,
        page: &Page,
        body: &'a PackedBody,
        buffer: &DeviceBuffer,
        output: &DeviceBuffer,
    ) {
        let number = self.numbers.len() - 1;
        let n_levels = body.n_levels;
        let source = buffer.at(body.source.start + n_levels).0;
        let out = output.at(page.bytes.start + n_levels).0;
        let sizes = (body.source.len() - n_levels, page.bytes.len() - n_levels);
        let levels = buffer.at(body.source.start).0;
        self.add_stored(levels, output.at(page.bytes.start).0, n_levels);
        match &body.packing.0 {
            Form::Stored => self.add_stored(source, out, sizes.1),
            Form::Snappy(at) => {
                let sizes = (sizes.0 - *at as usize, sizes.1);
                let words = page_words(source + u64::from(*at), out, sizes, (0, 0), number);
                self.snappy.extend(words);
            }
            Form::Lz4 => {
                let words = page_words(source, out, sizes, (0, 0), number);
                self.lz4.extend(words);
            }
            Form::Zstd(blocks) => self.zstd.push(ZstdPage {
                source,
                out,
                n_source: sizes.0,
                n_out: sizes.1,
                number,
                blocks,
            }),
        }
    }

    fn add_stored(&mut self, from: u64, to: u64, n: usize) {
        for start in (0..n).step_by(STORED_BYTES) {
            let n = STORED_BYTES.min(n - start);
            let start = start as u64;
            self.stored.extend([from + start, to + start, n as u64]);
        }
    }
}

/// What the kernels rely on.
fn check(page: &Page, body: &PackedBody, n_packed: usize, n_bytes: usize) -> Result<()> {
    let (source, target) = (&body.source, &page.bytes);
    let is_inside = source.start >= FRONT_BYTES
        && source.start <= source.end
        && source.end <= n_packed
        && target.start <= target.end
        && target.end <= n_bytes
        && body.n_levels <= source.len()
        && body.n_levels <= target.len();
    let is_right = match &body.packing.0 {
        Form::Stored => source.len() == target.len(),
        Form::Snappy(at) => *at as usize <= source.len() - body.n_levels.min(source.len()),
        _ => true,
    };
    match is_inside && is_right {
        true => Ok(()),
        false => Err(Error::Internal(
            "a packed page outside of its buffer".into(),
        )),
    }
}

impl Unpacker {
    /// An unpacker.
    pub fn new(gpu: &Arc<dyn Gpu>, jit: &Arc<Jit>) -> Result<Unpacker> {
        let context = Context::new(Arc::clone(gpu), Arc::clone(jit))?;
        let first_fault = DeviceBuffer::filled(gpu, &context.stream, 8, 0xff)?;
        Ok(Unpacker {
            context,
            first_fault,
            kernels: HashMap::new(),
            launches: Vec::new(),
        })
    }

    /// The stream that everything is enqueued on: packed bodies must be there for it.
    pub fn stream(&self) -> &Stream {
        &self.context.stream
    }

    /// What was done so far.
    pub fn counts(&self) -> RunCounts {
        self.context.counts
    }

    /// Decompresses the bodies of some chunks. What is enqueued is done when this returns.
    ///
    /// # Errors
    /// [`Error::MalformedPage`] of the first page that is not what its codec allows, and
    /// [`Error::OutOfMemory`] when the decompressed bodies or what one page needs beside them
    /// do not fit the device; where fewer pages at a time do, they go so.
    pub fn unpack(&mut self, chunks: Vec<PackedChunk>) -> Result<Unpacked> {
        let gpu = Arc::clone(&self.context.gpu);
        let outputs = chunks
            .iter()
            .map(|chunk| DeviceBuffer::allocate(&gpu, chunk.n_bytes));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        self.first_fault.fill(&self.context.stream, 0xff)?;
        self.launches.clear();
        let numbers = {
            let work = Work::of(&chunks, &outputs)?;
            self.enqueue(&work)?;
            work.numbers
        };
        let faults: Vec<u64> = self.first_fault.to_vec(&self.context.stream)?;
        if let Some(word) = faults.first().filter(|word| **word != NO_FAULT) {
            return Err(match numbers.get((word >> 8) as usize) {
                Some((at, place)) => {
                    let packed = &chunks[*at];
                    unpack_fault(&packed.chunk, &packed.column, *place, *word)
                }
                None => Error::Internal(format!("a kernel reported page fault {word:#x}")),
            });
        }
        let mut device_ms = 0.0;
        for (name, before, after) in std::mem::take(&mut self.launches) {
            let own = f64::from(after.ms_since(&before)?);
            self.context.note(name, own);
            device_ms += own;
        }
        let chunks = chunks.into_iter().zip(outputs).map(|(packed, bytes)| {
            self.context.counts.bytes_read += packed.chunk.bytes.bytes() as u64;
            ColumnChunk {
                bytes,
                ..packed.chunk
            }
        });
        Ok(Unpacked {
            chunks: chunks.collect(),
            device_ms,
        })
    }

    fn enqueue(&mut self, work: &Work<'_>) -> Result<()> {
        let gpu = Arc::clone(&self.context.gpu);
        if !work.stored.is_empty() {
            let pieces = DeviceBuffer::from_slice(&gpu, &self.context.stream, &work.stored)?;
            let n_pieces = work.stored.len() / 3;
            let params = StoredPass {
                n_pieces: n_pieces as u64,
                pieces: pieces.ptr().0,
            };
            let n_blocks = n_pieces.div_ceil((TILE_THREADS / WARP_THREADS) as usize);
            // SAFETY: the struct is that of `cuda/unpack/page.h`; its buffers, and those that
            // the pieces name, are not handed out before the stream has passed.
            unsafe { self.launch("unpack_stored", n_blocks, TILE_THREADS, &params)? };
        }
        for (name, pages) in [("unpack_snappy", &work.snappy), ("unpack_lz4", &work.lz4)] {
            if pages.is_empty() {
                continue;
            }
            let refs = DeviceBuffer::from_slice(&gpu, &self.context.stream, pages)?;
            let n = pages.len() / PAGE_WORDS;
            let params = UnpackPass {
                n: n as u64,
                pages: refs.ptr().0,
                blocks: 0,
                states: 0,
                first_fault: self.first_fault.ptr().0,
            };
            // SAFETY: as above.
            unsafe { self.launch(name, n, TILE_THREADS, &params)? };
        }
        self.enqueue_zstd(&work.zstd)
    }

    /// As many pages at a time as scratch memory allows.
    fn enqueue_zstd(&mut self, pages: &[ZstdPage<'_>]) -> Result<()> {
        let mut most = SCRATCH_BYTES;
        let mut rest = pages;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|page| {
                bytes += page.scratch_bytes();
                bytes <= most
            });
            let n = fits.count().max(1);
            match self.enqueue_zstd_group(&rest[..n]) {
                Ok(()) => rest = &rest[n..],
                Err(error) if error.out_of_memory().is_some() && n > 1 => {
                    let own: usize = rest[..n].iter().map(ZstdPage::scratch_bytes).sum();
                    most = own / 2;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn enqueue_zstd_group(&mut self, pages: &[ZstdPage<'_>]) -> Result<()> {
        let gpu = &Arc::clone(&self.context.gpu);
        let literal_bytes = pages.iter().map(ZstdPage::literal_bytes).sum();
        let n_elements = pages.iter().map(ZstdPage::n_elements).sum();
        let literals = DeviceBuffer::allocate(gpu, literal_bytes)?;
        let elements = DeviceBuffer::for_values::<u64>(gpu, n_elements)?;
        let (mut page_refs, mut block_refs) = (Vec::new(), Vec::new());
        let (mut literals_at, mut elements_at) = (0, 0);
        for page in pages {
            let blocks = (block_refs.len() / BLOCK_WORDS, page.blocks.len());
            let sizes = (page.n_source, page.n_out);
            page_refs.extend(page_words(
                page.source,
                page.out,
                sizes,
                blocks,
                page.number,
            ));
            for block in page.blocks {
                block_refs.extend(block.words(
                    page.source,
                    literals.at(literals_at).0,
                    elements.at(elements_at).0,
                    page.number as u32,
                ));
                literals_at += aligned(block.literal_bytes());
                elements_at += block.n_elements() * 8;
            }
        }
        let n_blocks = block_refs.len() / BLOCK_WORDS;
        let page_refs = DeviceBuffer::from_slice(gpu, &self.context.stream, &page_refs)?;
        let block_refs = DeviceBuffer::from_slice(gpu, &self.context.stream, &block_refs)?;
        let states = DeviceBuffer::allocate(gpu, n_blocks * STATE_BYTES)?;
        let of_blocks = UnpackPass {
            n: n_blocks as u64,
            pages: page_refs.ptr().0,
            blocks: block_refs.ptr().0,
            states: states.ptr().0,
            first_fault: self.first_fault.ptr().0,
        };
        let of_pages = UnpackPass {
            n: pages.len() as u64,
            ..of_blocks
        };
        for (name, params, threads) in [
            ("unpack_zstd_literals", of_blocks, WARP_THREADS),
            ("unpack_zstd_sequences", of_blocks, WARP_THREADS),
            ("unpack_zstd_pages", of_pages, TILE_THREADS),
        ] {
            // SAFETY: the struct is that of `cuda/unpack/page.h`; its buffers, and those that
            // pages and blocks name, are not handed out before the stream has passed.
            unsafe { self.launch(name, params.n as usize, threads, &params)? };
        }
        Ok(())
    }

    /// Enqueues a kernel of so many blocks, and what tells its time.
    ///
    /// # Safety
    /// As for [`Stream::launch`].
    unsafe fn launch<P: Copy>(
        &mut self,
        name: &'static str,
        n_blocks: usize,
        threads: u32,
        params: &P,
    ) -> Result<()> {
        let kernel = self.kernel(name)?;
        let threads = threads.min(self.context.gpu.info().max_block_threads);
        let shape = LaunchShape::new(u32::try_from(n_blocks).unwrap_or(u32::MAX), threads);
        let before = Event::record_timing(&self.context.stream)?;
        // SAFETY: the caller's.
        unsafe { launch(&self.context, &kernel, shape, params)? };
        let after = Event::record_timing(&self.context.stream)?;
        self.launches.push((name, before, after));
        Ok(())
    }

    fn kernel(&mut self, name: &'static str) -> Result<Kernel> {
        if let Some(kernel) = self.kernels.get(name) {
            return Ok(kernel.clone());
        }
        let text = match name {
            "unpack_zstd_literals" | "unpack_zstd_sequences" => "unpack_zstd_blocks",
            other => other,
        };
        let texts = kernel_texts();
        let found = texts.into_iter().find(|(own, _)| *own == text);
        let (text_name, text) =
            found.ok_or_else(|| Error::Internal(format!("no kernel {name}")))?;
        let kernel = self.context.load(text_name, &text)?.kernel(name)?;
        self.kernels.insert(name, kernel.clone());
        Ok(kernel)
    }
}

fn text(threads: u32, headers: &[&str], kernels: &str) -> String {
    let mut text = format!("#define WL_BLOCK_THREADS {threads}\n");
    if threads == TILE_THREADS {
        // What a thread holds of a tile stays in registers.
        text += "#define WL_BLOCKS_MIN 4\n";
    }
    text += "#include \"prelude.h\"\n#include \"parquet/page.h\"\n";
    for header in ["page"].iter().chain(headers) {
        text += &format!("#include \"unpack/{header}.h\"\n");
    }
    text + "\n" + kernels
}

/// Every kernel text of this module, by its name.
pub(super) fn kernel_texts() -> Vec<(&'static str, String)> {
    vec![
        (
            "unpack_stored",
            text(
                TILE_THREADS,
                &[],
                "WL_KERNEL(unpack_stored, StoredPass, p) { copy_stored(p); }\n",
            ),
        ),
        (
            "unpack_snappy",
            text(
                TILE_THREADS,
                &["tile", "tags", "snappy"],
                "WL_KERNEL(unpack_snappy, UnpackPass, p) { unpack_snappy_pages(p); }\n",
            ),
        ),
        (
            "unpack_lz4",
            text(
                TILE_THREADS,
                &["tile", "tags", "lz4"],
                "WL_KERNEL(unpack_lz4, UnpackPass, p) { unpack_lz4_pages(p); }\n",
            ),
        ),
        (
            "unpack_zstd_blocks",
            text(
                WARP_THREADS,
                &[
                    "tile",
                    "zstd",
                    "backward_bits",
                    "fse",
                    "zstd_literals",
                    "zstd_sequences",
                ],
                "WL_KERNEL(unpack_zstd_literals, UnpackPass, p) { read_all_literals(p); }
WL_KERNEL(unpack_zstd_sequences, UnpackPass, p) { read_all_sequences(p); }\n",
            ),
        ),
        (
            "unpack_zstd_pages",
            text(
                TILE_THREADS,
                &[
                    "tile",
                    "zstd",
                    "backward_bits",
                    "fse",
                    "zstd_sequences",
                    "checksum",
                    "zstd_pages",
                ],
                "WL_KERNEL(unpack_zstd_pages, UnpackPass, p) { make_all_zstd_pages(p); }\n",
            ),
        ),
    ]
}
