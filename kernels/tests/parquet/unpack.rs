//! Bodies that other compressors wrote, decompressed by kernels and by the crates that the
//! `parquet` crate uses: the same bytes, and for bodies that were changed at random an error
//! or what the reference makes of them.

use std::io::Read;
use std::sync::Arc;

use kernels::error::Error;
use kernels::gpu::{DeviceBuffer, Gpu, HostOptions, open_host};
use kernels::jit::Jit;
use kernels::parquet::{
    Codec, ColumnChunk, Encoding, FRONT_BYTES, PackedBody, PackedChunk, Packing, Page, PageKind,
    Refused, Unpacker,
};

use crate::files::Device;
use crate::malformed::Random;

/// A compressed body.
#[derive(Clone)]
struct Packed {
    what: String,
    codec: Codec,
    bytes: Vec<u8>,
    n_out: usize,
}

/// Bytes around every body that the kernels must not touch.
const FENCE: [u8; 24] = [0xa5; 24];

/// What the kernels make of bodies, all in one launch. Each stands between stored bodies at
/// an odd address.
fn unpacked(
    gpu: &Arc<dyn Gpu>,
    unpacker: &mut Unpacker,
    all: &[Packed],
) -> Result<Vec<Vec<u8>>, Error> {
    let malformed = |packed: &Packed, refused: Refused| match refused {
        Refused::Malformed(reason) => Error::Internal(format!("{}: {reason}", packed.what)),
        Refused::Unsupported(what) => Error::Unsupported(what),
    };
    let mut chunks = Vec::new();
    for packed in all {
        let packing = Packing::of(packed.codec, &packed.bytes, packed.n_out);
        let packing = packing.map_err(|refused| malformed(packed, refused))?;
        let (mut source, mut target) = (vec![0xee; FRONT_BYTES + 1], 3);
        let (mut pages, mut bodies) = (Vec::new(), Vec::new());
        let fence = (FENCE.as_slice(), Packing::stored(), FENCE.len());
        let own = (packed.bytes.as_slice(), packing, packed.n_out);
        for (bytes, packing, n_out) in [fence.clone(), own, fence] {
            let start = source.len();
            source.extend_from_slice(bytes);
            bodies.push(PackedBody {
                source: start..source.len(),
                n_levels: 0,
                packing,
            });
            pages.push(Page {
                kind: PageKind::DataV1,
                encoding: Encoding::Plain,
                n_values: 1,
                bytes: target..target + n_out,
            });
            target += n_out;
        }
        chunks.push(PackedChunk {
            column: "c".into(),
            chunk: ColumnChunk {
                file: "memory.parquet".into(),
                row_group: chunks.len(),
                n_rows: 3,
                pages,
                bytes: DeviceBuffer::from_slice(gpu, unpacker.stream(), &source)?,
            },
            bodies,
            n_bytes: target,
        });
    }
    let unpacked = unpacker.unpack(chunks)?;
    let bodies = unpacked.chunks.iter().map(|chunk| {
        let bytes: Vec<u8> = chunk.bytes.to_vec(unpacker.stream())?;
        let [before, own, after] = &chunk.pages[..] else {
            panic!("{} pages", chunk.pages.len());
        };
        assert_eq!(bytes[before.bytes.clone()], FENCE);
        assert_eq!(bytes[after.bytes.clone()], FENCE);
        Ok(bytes[own.bytes.clone()].to_vec())
    });
    bodies.collect()
}

/// What the crates of the `parquet` crate make of a body, as that crate calls them.
fn reference(packed: &Packed) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match packed.codec {
        Codec::Snappy => {
            if snap::raw::decompress_len(&packed.bytes).ok()? != packed.n_out {
                return None;
            }
            out = snap::raw::Decoder::new()
                .decompress_vec(&packed.bytes)
                .ok()?;
        }
        Codec::Lz4 => out = lz4_flex::block::decompress(&packed.bytes, packed.n_out).ok()?,
        Codec::Zstd => {
            let decoder = zstd::Decoder::new(packed.bytes.as_slice()).ok()?;
            // One more byte than there may be shows that there are more.
            let mut decoder = decoder.take(packed.n_out as u64 + 1);
            decoder.read_to_end(&mut out).ok()?;
        }
    }
    (out.len() == packed.n_out).then_some(out)
}

/// Bytes of many shapes, by name.
fn shapes() -> Vec<(String, Vec<u8>)> {
    let mut random = Random(0x0dd_ba11_5eed);
    let mut shapes: Vec<(String, Vec<u8>)> = Vec::new();
    let mut add = |name: &str, bytes: Vec<u8>| shapes.push((name.to_string(), bytes));
    for n in [0, 1, 2, 3, 15, 16, 17, 255, 4095, 4096, 4097] {
        add(&format!("{n} of one byte"), vec![7; n]);
        add(
            &format!("{n} of noise"),
            (0..n).map(|_| random.next(256) as u8).collect(),
        );
    }
    for n in [131_071, 131_073, 280_000] {
        add(&format!("{n} of one byte"), vec![b'x'; n]);
        add(
            &format!("{n} of noise"),
            (0..n).map(|_| random.next(256) as u8).collect(),
        );
        add(
            &format!("{n} of four bits"),
            (0..n).map(|_| random.next(16) as u8).collect(),
        );
        // A long tail of rare bytes: codes of many lengths.
        let skewed = (0..n).map(|_| {
            let rare = u8::from(random.next(50) == 0) * random.next(256) as u8;
            random.next(1 << 16).leading_zeros() as u8 ^ rare
        });
        add(&format!("{n} skewed"), skewed.collect());
    }
    for period in [1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 100, 5000] {
        let bytes = (0..70_000).map(|i| ((i % period) * 37 + i % period / 256) as u8);
        add(&format!("period {period}"), bytes.collect());
    }
    let longs = |f: &mut dyn FnMut(u64) -> u64, n: u64| -> Vec<u8> {
        (0..n).flat_map(|i| f(i).to_le_bytes()).collect()
    };
    add("counting longs", longs(&mut |i| i, 30_000));
    add("slow longs", longs(&mut |i| 1_000_000 + i / 7, 30_000));
    add(
        "prices",
        longs(&mut |_| random.next(10_000_000) as u64, 30_000),
    );
    let mut ints = Vec::new();
    for _ in 0..60_000 {
        ints.extend((random.next(200_000) as u32).to_le_bytes());
    }
    add("keys", ints);
    let words = [
        "carefully ",
        "final ",
        "deposits ",
        "sleep ",
        "furiously ",
        "even ",
        "accounts. ",
    ];
    let mut text = Vec::new();
    while text.len() < 300_000 {
        text.extend(words[random.next(words.len())].as_bytes());
        if random.next(9) == 0 {
            text.extend(random.next(1 << 30).to_string().into_bytes());
        }
    }
    add("text", text.clone());
    // What repeats from far away, in pieces of many lengths.
    let mut far: Vec<u8> = (0..200_000).map(|_| random.next(256) as u8).collect();
    while far.len() < 500_000 {
        let at = random.next(far.len() - 2000);
        let n = 1 + random.next(1999);
        far.extend_from_within(at..at + n);
        if random.next(3) == 0 {
            far.push(random.next(256) as u8);
        }
    }
    add("far", far);
    // Everything by turns.
    let mut mixed = Vec::new();
    for round in 0..60 {
        let n = random.next(9000);
        match round % 4 {
            0 => mixed.extend((0..n).map(|_| random.next(256) as u8)),
            1 => mixed.extend(std::iter::repeat_n(random.next(256) as u8, n)),
            2 => mixed.extend_from_slice(&text[..n]),
            _ => mixed.extend((0..n).map(|i| (i / 4) as u8)),
        }
    }
    add("mixed", mixed);
    shapes
}

/// A zstd frame with these settings.
fn zstd_frame(bytes: &[u8], level: i32, set: impl Fn(&mut zstd::Encoder<'_, Vec<u8>>)) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = zstd::Encoder::new(Vec::new(), level).unwrap();
    set(&mut encoder);
    // Pieces make blocks of many sizes where the size is not pledged.
    for piece in bytes.chunks(50_000) {
        encoder.write_all(piece).unwrap();
    }
    encoder.finish().unwrap()
}

/// Every shape by every codec and setting.
fn all_packed() -> Vec<Packed> {
    let mut all = Vec::new();
    for (name, bytes) in shapes() {
        let mut add = |what: &str, codec, packed: Vec<u8>, n_out| {
            all.push(Packed {
                what: format!("{name}, {what}"),
                codec,
                bytes: packed,
                n_out,
            });
        };
        let n = bytes.len();
        add(
            "snappy",
            Codec::Snappy,
            snap::raw::Encoder::new().compress_vec(&bytes).unwrap(),
            n,
        );
        add("lz4", Codec::Lz4, lz4_flex::block::compress(&bytes), n);
        for level in [-20, -1, 1, 3, 5, 9, 13, 19] {
            // The thorough ones take their time.
            if level > 5 && n > 150_000 {
                continue;
            }
            let packed = zstd::bulk::compress(&bytes, level).unwrap();
            add(&format!("zstd {level}"), Codec::Zstd, packed, n);
        }
        add(
            "zstd in a stream",
            Codec::Zstd,
            zstd_frame(&bytes, 1, |_| {}),
            n,
        );
        add(
            "zstd with a checksum",
            Codec::Zstd,
            zstd_frame(&bytes, 3, |encoder| encoder.include_checksum(true).unwrap()),
            n,
        );
        add(
            "zstd with a small window",
            Codec::Zstd,
            zstd_frame(&bytes, 5, |encoder| {
                encoder.window_log(10).unwrap();
                encoder.include_contentsize(false).unwrap();
            }),
            n,
        );
        let mut frames = vec![0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        frames.extend(zstd_frame(&bytes, 1, |encoder| {
            encoder.include_checksum(true).unwrap()
        }));
        frames.extend(zstd::bulk::compress(&bytes, 4).unwrap());
        add("zstd in two frames", Codec::Zstd, frames, 2 * n);
    }
    all
}

fn unpacker(gpu: &Arc<dyn Gpu>) -> Unpacker {
    Unpacker::new(gpu, &Arc::new(Jit::new(None))).unwrap()
}

pub fn bodies_are_what_was_compressed(device: &mut Device) {
    let mut unpacker = unpacker(&device.gpu);
    let mut all = all_packed();
    if device.is_slow() {
        // Some of them in more than one block of zstd.
        let mut n = 0;
        all.retain(|packed| {
            n += 1;
            packed.n_out < 75_000 || n % 23 == 0
        });
    }
    for some in all.chunks(100) {
        let made = unpacked(&device.gpu, &mut unpacker, some).unwrap();
        for (packed, made) in some.iter().zip(made) {
            let wanted = reference(packed).unwrap_or_else(|| panic!("{}", packed.what));
            let differs = made.iter().zip(&wanted).position(|(a, b)| a != b);
            assert!(
                differs.is_none() && made.len() == wanted.len(),
                "{}: byte {differs:?} of {}",
                packed.what,
                wanted.len()
            );
        }
    }
}

pub fn changed_bodies_are_errors_or_what_the_reference_makes_of_them(device: &mut Device) {
    let mut unpacker = unpacker(&device.gpu);
    let seeds: Vec<Packed> = all_packed()
        .into_iter()
        .filter(|packed| packed.n_out < 80_000 && packed.n_out > 0)
        .collect();
    // More rounds, and others, for whoever has the time.
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let n_default = if device.is_slow() { 600 } else { 6000 };
    let n_rounds = number("WARPLINE_FUZZ_ROUNDS").unwrap_or(n_default) as usize;
    let seed = number("WARPLINE_FUZZ_SEED").unwrap_or(0x0bad_beef_u64);
    let mut random = Random(0xfee1_600d_0000_0000 | seed);
    let (mut n_errors, mut n_same) = (0, 0);
    for round in 0..n_rounds {
        let mut packed = seeds[round % seeds.len()].clone();
        for _ in 0..1 + random.next(3) {
            let n = packed.bytes.len();
            // Headers are in front.
            let at = match random.next(3) {
                0 => random.next(n),
                1 => random.next(n.min(40)),
                _ => n - 1 - random.next(n.min(20)),
            };
            match random.next(9) {
                0 => packed.bytes.truncate(at.max(1)),
                1 => packed.bytes.extend((0..random.next(9)).map(|b| b as u8)),
                2 => packed.n_out = (packed.n_out + random.next(5)).saturating_sub(2),
                3 => packed.bytes[at] = random.next(256) as u8,
                4 => packed.bytes[at] = 0xff,
                _ => packed.bytes[at] ^= 1 << random.next(8),
            }
        }
        let one = std::slice::from_ref(&packed);
        match unpacked(&device.gpu, &mut unpacker, one) {
            Ok(made) => {
                let wanted = reference(&packed);
                let same = wanted.as_ref() == Some(&made[0]);
                assert!(
                    same,
                    "round {round}: {}: {:?}",
                    packed.what,
                    wanted.map(|w| w.len())
                );
                n_same += 1;
            }
            Err(Error::MalformedPage(error)) => {
                assert_eq!(
                    (error.file.as_str(), error.row_group),
                    ("memory.parquet", 0)
                );
                assert_eq!(error.place, "data page 1");
                n_errors += 1;
            }
            Err(Error::Internal(_) | Error::Unsupported(_)) => n_errors += 1,
            Err(error) => panic!("round {round}: {}: {error}", packed.what),
        }
    }
    assert!(
        n_errors > n_rounds / 3 && n_same > n_rounds / 20,
        "{n_errors} errors, {n_same} the same"
    );
}

/// The page that is at fault is named, among many that are not.
pub fn the_first_page_at_fault_is_named(device: &mut Device) {
    let mut unpacker = unpacker(&device.gpu);
    let text = b"a line of text, a line of text, another line of text. ".repeat(900);
    let body = |codec, bytes| Packed {
        what: "text".into(),
        codec,
        bytes,
        n_out: text.len(),
    };
    let zstd = zstd_frame(&text, 1, |encoder| encoder.include_checksum(true).unwrap());
    let good = [
        body(Codec::Zstd, zstd.clone()),
        body(
            Codec::Snappy,
            snap::raw::Encoder::new().compress_vec(&text).unwrap(),
        ),
        body(Codec::Lz4, lz4_flex::block::compress(&text)),
    ];
    let cases = [
        (0, "the checksum of its zstd compression", {
            let mut bytes = zstd;
            *bytes.last_mut().unwrap() ^= 1;
            bytes
        }),
        (1, "its snappy compression", good[1].bytes[..60].to_vec()),
        (2, "its lz4 compression", {
            let n = good[2].bytes.len();
            good[2].bytes[..n - 1].to_vec()
        }),
    ];
    for (which, reason, bytes) in cases {
        let mut all: Vec<Packed> = (0..30).map(|i| good[i % 3].clone()).collect();
        all[12 + which].bytes = bytes.clone();
        all[18 + which].bytes = bytes;
        let error = unpacked(&device.gpu, &mut unpacker, &all).expect_err(reason);
        let message = error.to_string();
        let wanted = format!(
            "memory.parquet: column c, row group {}, data page 1: {reason}",
            12 + which
        );
        assert!(message.starts_with(&wanted), "{message}, not {wanted}");
        // The unpacker goes on.
        unpacked(&device.gpu, &mut unpacker, &good).unwrap();
    }
}

#[test]
fn pages_go_in_smaller_groups_when_memory_is_short() {
    let text = b"a line of text, a line of text, another line of text. ".repeat(9000);
    let packed = Packed {
        what: "text".into(),
        codec: Codec::Zstd,
        bytes: zstd::bulk::compress(&text, 1).unwrap(),
        n_out: text.len(),
    };
    let noise: Vec<u8> = shapes()
        .into_iter()
        .find(|(name, _)| name == "text")
        .unwrap()
        .1;
    let noisy = Packed {
        what: "words".into(),
        codec: Codec::Zstd,
        bytes: zstd::bulk::compress(&noise, 1).unwrap(),
        n_out: noise.len(),
    };
    let all: Vec<Packed> = (0..16).map(|i| [&packed, &noisy][i % 2].clone()).collect();
    let bytes: usize = all
        .iter()
        .map(|packed| packed.n_out + packed.bytes.len())
        .sum();
    // Room for what comes out, and for what three pages need beside it.
    let gpu = open_host(HostOptions {
        memory_bytes: bytes + (3 << 20),
        ..HostOptions::default()
    });
    let made = unpacked(&gpu, &mut unpacker(&gpu), &all).unwrap();
    for (packed, made) in all.iter().zip(made) {
        assert!(reference(packed).as_ref() == Some(&made), "{}", packed.what);
    }
    // Not even for what comes out.
    let gpu = open_host(HostOptions {
        memory_bytes: bytes / 2,
        ..HostOptions::default()
    });
    let error = unpacked(&gpu, &mut unpacker(&gpu), &all).expect_err("half of what is needed");
    assert!(error.out_of_memory().is_some(), "{error}");
}
