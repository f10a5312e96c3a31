//! The headers of a Zstandard page: frames, blocks, and the sections of blocks (RFC 8878, 3).
//!
//! What stands between them is the device's. All sizes that kernels allocate or index by are
//! checked here: the literals and sequences of a block are as many as a block may have, and
//! every section lies within the page.

/// Bytes of output of a block at most.
const BLOCK_BYTES_MAX: u32 = 128 << 10;

/// Windows of up to so many bytes are read everywhere.
const WINDOW_MAX: u64 = 1 << 27;

/// Values of `ZstdBlock::kind` of `cuda/unpack/zstd.h`.
const RAW: u32 = 0;
const RLE: u32 = 1;
const COMPRESSED: u32 = 2;

/// Values of `ZstdBlock::literals_kind`.
const LITERALS_STORED: u32 = 0;
const LITERALS_RLE: u32 = 1;
const LITERALS_PACKED: u32 = 2;

/// Bits of `ZstdBlock::frame`.
const FRAME_FIRST: u32 = 1;
const FRAME_LAST: u32 = 2;
const HAS_CONTENT_SIZE: u32 = 4;
const HAS_CHECKSUM: u32 = 8;

/// A block, as `ZstdBlock` of `cuda/unpack/zstd.h` without addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Block {
    kind: u32,
    n_out: u32,
    body_at: u32,
    literals_kind: u32,
    n_literals: u32,
    literals_at: u32,
    tree: (u32, u32),
    n_streams: u32,
    stream_at: [u32; 5],
    n_sequences: u32,
    sequences: (u32, u32),
    modes: u32,
    tables: [Table; 3],
    block_max: u32,
    window: u32,
    frame: u32,
    content_size: u32,
    checksum_at: u32,
}

/// Where a table is described: behind the modes of some block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Table {
    at: u32,
    end: u32,
    modes: u32,
}

/// Words of 32 bits of a `ZstdBlock`.
pub(super) const BLOCK_WORDS: usize = 40;

/// Bytes of a `ZstdState`.
pub(super) const STATE_BYTES: usize = 24;

impl Block {
    /// Bytes of literals that a kernel writes.
    pub(super) fn literal_bytes(&self) -> usize {
        match (self.kind, self.literals_kind) {
            (COMPRESSED, LITERALS_RLE | LITERALS_PACKED) => self.n_literals as usize,
            _ => 0,
        }
    }

    /// Elements that a kernel writes at most.
    pub(super) fn n_elements(&self) -> usize {
        match self.kind {
            COMPRESSED => 2 * self.n_sequences as usize + 1,
            _ => 0,
        }
    }

    /// The block as kernels read it. `literals` and `elements` are where it may write them.
    pub(super) fn words(
        &self,
        source: u64,
        literals: u64,
        elements: u64,
        number: u32,
    ) -> [u32; BLOCK_WORDS] {
        let literals = match self.literal_bytes() {
            0 => source + u64::from(self.literals_at),
            _ => literals,
        };
        let halves = |word: u64| [word as u32, (word >> 32) as u32];
        let tables = &self.tables;
        let mut words = Vec::with_capacity(BLOCK_WORDS);
        words.extend([source, literals, elements].into_iter().flat_map(halves));
        words.extend([number, self.kind, self.n_out, self.body_at]);
        words.extend([self.literals_kind, self.n_literals, self.literals_at]);
        words.extend([self.tree.0, self.tree.1, self.n_streams]);
        words.extend(self.stream_at);
        words.extend([self.n_sequences, self.sequences.0, self.sequences.1]);
        words.push(self.modes);
        words.extend(tables.iter().map(|table| table.at));
        words.extend(tables.iter().map(|table| table.end));
        words.extend(tables.iter().map(|table| table.modes));
        words.extend([self.block_max, self.window, self.frame]);
        words.extend([self.content_size, self.checksum_at]);
        let mut all = [0; BLOCK_WORDS];
        all[..words.len()].copy_from_slice(&words);
        all
    }
}

/// Why the headers cannot be walked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop {
    /// The format does not allow it.
    Malformed(&'static str),
    /// No kernel reads it.
    Unsupported(&'static str),
}

const CUT_OFF: Stop = Stop::Malformed("its zstd compression is cut off");

type Walked<T> = Result<T, Stop>;

/// A place in the page; nothing is read past its end.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// A number of up to eight bytes, the lowest first.
    fn number(&mut self, n: usize) -> Walked<u64> {
        let end = self.at.checked_add(n).ok_or(CUT_OFF)?;
        let bytes = self.bytes.get(self.at..end).ok_or(CUT_OFF)?;
        self.at = end;
        let add = |sum, byte: &u8| sum << 8 | u64::from(*byte);
        Ok(bytes.iter().rev().fold(0, add))
    }

    fn skip(&mut self, n: usize) -> Walked<()> {
        let end = self.at.checked_add(n).ok_or(CUT_OFF)?;
        if end > self.bytes.len() {
            return Err(CUT_OFF);
        }
        self.at = end;
        Ok(())
    }

    /// The place; pages are shorter than 2^27 bytes.
    fn place(&self) -> u32 {
        self.at as u32
    }

    fn is_end(&self) -> bool {
        self.at == self.bytes.len()
    }
}

/// The descriptions that later blocks of a frame may refer to.
#[derive(Default)]
struct Described {
    tree: Option<(u32, u32)>,
    tables: [Option<Table>; 3],
}

/// The blocks of all frames of a page that decompresses to `n_out` bytes.
pub(super) fn blocks(bytes: &[u8], n_out: u32) -> Walked<Vec<Block>> {
    let mut reader = Reader { bytes, at: 0 };
    let mut blocks = Vec::new();
    while !reader.is_end() {
        match reader.number(4)? {
            0xFD2F_B528 => frame(&mut reader, n_out, &mut blocks)?,
            magic if magic & !15 == 0x184D_2A50 => {
                let n = reader.number(4)?;
                reader.skip(n as usize)?;
            }
            _ => return Err(Stop::Malformed("its zstd compression has no frame")),
        }
    }
    // What cannot be must not become an allocation.
    let most = |block: &Block| match block.kind {
        COMPRESSED => u64::from(block.block_max),
        _ => u64::from(block.n_out),
    };
    if blocks.iter().map(most).sum::<u64>() < u64::from(n_out) {
        return Err(Stop::Malformed(
            "it decompresses to more or fewer bytes than its header says",
        ));
    }
    Ok(blocks)
}

fn frame(reader: &mut Reader<'_>, n_out: u32, blocks: &mut Vec<Block>) -> Walked<()> {
    let descriptor = reader.number(1)?;
    let (is_single, has_checksum) = (descriptor >> 5 & 1 == 1, descriptor >> 2 & 1 == 1);
    if descriptor >> 3 & 1 == 1 {
        return Err(Stop::Malformed("its zstd frame has a reserved bit"));
    }
    let mut window = match is_single {
        true => 0,
        false => {
            let byte = reader.number(1)?;
            let base = 1u64 << (10 + (byte >> 3));
            base + base / 8 * (byte & 7)
        }
    };
    let dictionary = reader.number([0, 1, 2, 4][(descriptor & 3) as usize])?;
    if dictionary != 0 {
        return Err(Stop::Malformed("its zstd compression needs a dictionary"));
    }
    let content_size = match (descriptor >> 6, is_single) {
        (0, false) => None,
        (0, true) => Some(reader.number(1)?),
        (1, _) => Some(reader.number(2)? + 256),
        (2, _) => Some(reader.number(4)?),
        _ => Some(reader.number(8)?),
    };
    // Also what is allocated is bounded by the page's size, whatever the frame says.
    if content_size.is_some_and(|size| size > u64::from(n_out)) {
        return Err(Stop::Malformed(
            "its zstd frame has more bytes than its header says",
        ));
    }
    if is_single {
        window = content_size.unwrap_or(0);
    }
    if window > WINDOW_MAX {
        return Err(Stop::Unsupported("a zstd window of more than 128 MiB"));
    }
    let block_max = (window as u32).min(BLOCK_BYTES_MAX);
    let mut described = Described::default();
    let first = blocks.len();
    let mut n_least = 0u64;
    loop {
        let header = reader.number(3)?;
        let (is_last, size) = (header & 1 == 1, (header >> 3) as u32);
        if size > block_max {
            return Err(Stop::Malformed("a zstd block is larger than its window"));
        }
        let mut block = Block {
            block_max,
            window: window as u32,
            body_at: reader.place(),
            ..Block::default()
        };
        match header >> 1 & 3 {
            0 => {
                block.kind = RAW;
                block.n_out = size;
                reader.skip(size as usize)?;
            }
            1 => {
                block.kind = RLE;
                block.n_out = size;
                reader.skip(1)?;
            }
            2 => {
                block.kind = COMPRESSED;
                let start = reader.at;
                reader.skip(size as usize)?;
                let within = Reader {
                    bytes: &reader.bytes[..reader.at],
                    at: start,
                };
                sections(within, &mut block, &mut described)?;
            }
            _ => return Err(Stop::Malformed("a zstd block has a reserved type")),
        }
        // What a block makes at least: its literals, and three bytes of each sequence.
        n_least += match block.kind {
            COMPRESSED => u64::from(block.n_literals) + 3 * u64::from(block.n_sequences),
            _ => u64::from(block.n_out),
        };
        if n_least > u64::from(n_out) {
            return Err(Stop::Malformed(
                "its zstd frame has more bytes than its header says",
            ));
        }
        blocks.push(block);
        if is_last {
            break;
        }
    }
    blocks[first].frame |= FRAME_FIRST;
    let checksum_at = reader.place();
    if has_checksum {
        reader.skip(4)?;
    }
    // The loop pushed one block at least.
    if let Some(last) = blocks.last_mut() {
        last.frame |= FRAME_LAST;
        if let Some(size) = content_size {
            last.frame |= HAS_CONTENT_SIZE;
            // Not more than `n_out`.
            last.content_size = size as u32;
        }
        if has_checksum {
            last.frame |= HAS_CHECKSUM;
            last.checksum_at = checksum_at;
        }
    }
    Ok(())
}

const LITERALS: Stop = Stop::Malformed("the literals of its zstd compression are not well-formed");
const SEQUENCES: Stop =
    Stop::Malformed("the sequences of its zstd compression are not well-formed");

/// The sections of a compressed block, which `reader` has to its end.
fn sections(mut reader: Reader<'_>, block: &mut Block, described: &mut Described) -> Walked<()> {
    literals(&mut reader, block, described)?;
    if block.n_literals > block.block_max {
        return Err(LITERALS);
    }
    let n = reader.number(1)?;
    let n = match n {
        0..128 => n,
        128..255 => ((n - 128) << 8) + reader.number(1)?,
        _ => reader.number(2)? + 0x7f00,
    };
    block.n_sequences = n as u32;
    let end = reader.bytes.len() as u32;
    if n == 0 {
        return match reader.is_end() {
            true => Ok(()),
            false => Err(SEQUENCES),
        };
    }
    // A sequence makes three bytes at least.
    if block.n_sequences > block.block_max / 3 {
        return Err(SEQUENCES);
    }
    let modes = reader.number(1)? as u32;
    if modes & 3 != 0 {
        return Err(SEQUENCES);
    }
    // Of literal lengths, offsets and match lengths, from the lowest bits on.
    block.modes = modes >> 6 | (modes >> 4 & 3) << 2 | (modes >> 2 & 3) << 4;
    block.sequences = (reader.place(), end);
    let own = Table {
        at: reader.place(),
        end,
        modes: block.modes,
    };
    for (number, (table, last)) in block
        .tables
        .iter_mut()
        .zip(&mut described.tables)
        .enumerate()
    {
        let is_repeated = block.modes >> (2 * number) & 3 == 3;
        *table = match is_repeated {
            true => last.ok_or(SEQUENCES)?,
            false => own,
        };
        *last = Some(*table);
    }
    Ok(())
}

fn literals(reader: &mut Reader<'_>, block: &mut Block, described: &mut Described) -> Walked<()> {
    let start = reader.at;
    let first = reader.number(1)?;
    reader.at = start;
    let (kind, format) = (first & 3, first >> 2 & 3);
    if kind < 2 {
        let (n_header, shift) = match format {
            0 | 2 => (1, 3),
            1 => (2, 4),
            _ => (3, 4),
        };
        block.n_literals = (reader.number(n_header)? >> shift) as u32;
        block.literals_at = reader.place();
        block.literals_kind = match kind {
            0 => LITERALS_STORED,
            _ => LITERALS_RLE,
        };
        return reader.skip(match kind {
            0 => block.n_literals as usize,
            _ => 1,
        });
    }
    let (n_header, n_bits) = match format {
        0 | 1 => (3, 10),
        2 => (4, 14),
        _ => (5, 18),
    };
    let header = reader.number(n_header)? >> 4;
    let mask = (1u64 << n_bits) - 1;
    block.literals_kind = LITERALS_PACKED;
    block.n_literals = (header & mask) as u32;
    block.n_streams = if format == 0 { 1 } else { 4 };
    let n_packed = (header >> n_bits & mask) as usize;
    let end = reader.at + n_packed;
    if block.n_literals == 0 || (block.n_streams == 4 && block.n_literals < 6) {
        return Err(LITERALS);
    }
    if kind == 2 {
        let at = reader.place();
        let n_tree = match reader.number(1)? {
            header @ 0..128 => header as usize,
            // So many weights of four bits.
            header => (header as usize - 127).div_ceil(2),
        };
        reader.skip(n_tree)?;
        described.tree = Some((at, reader.place()));
    }
    block.tree = described.tree.ok_or(LITERALS)?;
    let mut sizes = [0; 3];
    if block.n_streams == 4 {
        for size in &mut sizes {
            *size = reader.number(2)? as usize;
        }
    }
    let mut at = reader.at;
    for (place, size) in block.stream_at.iter_mut().zip(sizes) {
        *place = at as u32;
        at += size;
    }
    let last = match block.n_streams {
        1 => {
            at = reader.at;
            1
        }
        _ => {
            block.stream_at[3] = at as u32;
            4
        }
    };
    block.stream_at[last] = end as u32;
    if at > end || end > reader.bytes.len() {
        return Err(LITERALS);
    }
    reader.at = end;
    Ok(())
}
