//! Pages that came compressed, decompressed on the device: those of many columns and row
//! groups at once.

use std::sync::Arc;

use arrow::array::StringArray;
use kernels::error::{MalformedPage, Result};
use kernels::gpu::Stream;
use kernels::launch::RunCounts;
use kernels::parquet::{ColumnChunk, PackedChunk, Unpacker};

use super::pages::{Bodies, Loaded, Sent, Target, Texts, dictionary, texts_in};
use crate::exec::Device;

/// Decompresses what is packed; gives all chunks in their order, what kernels did, and how
/// many milliseconds they took. Blocks the thread.
pub fn unpack(
    sent: Vec<Sent>,
    device: &Device,
    target: &Target,
) -> Result<(Vec<Loaded>, RunCounts, f64)> {
    let mut packed: Vec<PackedChunk> = Vec::new();
    let mut places = Vec::with_capacity(sent.len());
    for one in sent {
        let ready = match one.bodies {
            Bodies::Ready(chunk) => Some(chunk),
            Bodies::Packed(chunk) => {
                packed.push(chunk);
                None
            }
        };
        places.push((ready, one.dictionary, one.wants_dictionary));
    }
    if packed.is_empty() {
        let all = places.into_iter().filter_map(|(chunk, dictionary, _)| {
            let chunk = chunk?;
            Some(Loaded { chunk, dictionary })
        });
        return Ok((all.collect(), RunCounts::default(), 0.0));
    }
    let mut unpacker = Unpacker::new(&device.gpu, &device.jit)?;
    unpacker.stream().wait_for_stream(&target.stream)?;
    let columns: Vec<String> = packed.iter().map(|chunk| chunk.column.clone()).collect();
    let unpacked = unpacker.unpack(packed)?;
    let mut unpacked_chunks = columns.into_iter().zip(unpacked.chunks);
    let mut all = Vec::with_capacity(places.len());
    for (ready, own, wants_dictionary) in places {
        let (chunk, dictionary) = match ready {
            Some(chunk) => (chunk, own),
            None => {
                // As many were packed as are not ready.
                let Some((column, chunk)) = unpacked_chunks.next() else {
                    break;
                };
                let texts = match wants_dictionary {
                    true => texts_of(&chunk, &column, unpacker.stream())?,
                    false => None,
                };
                (chunk, texts)
            }
        };
        all.push(Loaded { chunk, dictionary });
    }
    Ok((all, unpacker.counts(), unpacked.device_ms))
}

/// The texts of a chunk's dictionary, if all pages use one.
fn texts_of(chunk: &ColumnChunk, column: &str, stream: &Stream) -> Result<Option<StringArray>> {
    let page = match texts_in(&chunk.pages) {
        Texts::Some(page) => page,
        Texts::OfNoPages => return Ok(Some(StringArray::new_null(0))),
        Texts::None => return Ok(None),
    };
    let body: Vec<u8> = chunk
        .bytes
        .read(stream, page.bytes.start, page.bytes.len())?;
    let texts = dictionary(page, &body).map_err(|reason| MalformedPage {
        file: Arc::clone(&chunk.file).to_string(),
        column: column.to_string(),
        row_group: chunk.row_group,
        place: "dictionary page".to_string(),
        reason,
    })?;
    Ok(Some(texts))
}
