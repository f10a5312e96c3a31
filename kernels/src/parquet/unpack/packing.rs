//! How a page's body is compressed, and what of it the host reads.

use super::zstd::{Block, Stop, blocks};

/// Codecs that kernels decompress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Snappy without frames.
    Snappy,
    /// LZ4 blocks without frames.
    Lz4,
    /// Zstandard.
    Zstd,
}

/// A body that kernels can decompress: what its headers say was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packing(pub(super) Form);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Form {
    /// As it is.
    Stored,
    /// Tags from this place on.
    Snappy(u32),
    Lz4,
    Zstd(Vec<Block>),
}

/// Why a body is not decompressed on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// It is not what its format allows: what is wrong.
    Malformed(String),
    /// It may be decompressed elsewhere: what no kernel reads.
    Unsupported(String),
}

/// Places in a body, and distances, take 27 bits.
const BYTES_MAX: usize = 1 << 27;

impl Packing {
    /// A body that is not compressed.
    pub fn stored() -> Packing {
        Packing(Form::Stored)
    }

    /// A body of this codec that decompresses to `n_out` bytes.
    ///
    /// # Errors
    /// [`Refused`], if its headers are not well-formed or no kernel reads such a body.
    pub fn of(codec: Codec, bytes: &[u8], n_out: usize) -> Result<Packing, Refused> {
        if bytes.len() >= BYTES_MAX || n_out >= BYTES_MAX {
            let message = "a page of 128 MiB or more".to_string();
            return Err(Refused::Unsupported(message));
        }
        let form = match codec {
            Codec::Snappy => Form::Snappy(tags_at(bytes, n_out)?),
            // A byte stands for 255 at most: what cannot be must not become an allocation.
            Codec::Lz4 if n_out / 256 > bytes.len() => {
                let reason = "its lz4 compression is cut off or not well-formed";
                return Err(Refused::Malformed(reason.into()));
            }
            Codec::Lz4 => Form::Lz4,
            Codec::Zstd => match blocks(bytes, n_out as u32) {
                Ok(blocks) => Form::Zstd(blocks),
                Err(Stop::Malformed(reason)) => return Err(Refused::Malformed(reason.into())),
                Err(Stop::Unsupported(what)) => return Err(Refused::Unsupported(what.into())),
            },
        };
        Ok(Packing(form))
    }
}

/// Where the tags of a snappy body start: behind its length, which must be `n_out`.
fn tags_at(bytes: &[u8], n_out: usize) -> Result<u32, Refused> {
    let malformed = |reason: &str| Refused::Malformed(reason.to_string());
    let mut length = 0u64;
    for (at, byte) in bytes.iter().take(5).enumerate() {
        length |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 != 0 {
            continue;
        }
        if length != n_out as u64 {
            return Err(malformed(
                "it decompresses to more or fewer bytes than its header says",
            ));
        }
        return Ok(at as u32 + 1);
    }
    Err(malformed(
        "its snappy compression is cut off or not well-formed",
    ))
}
