//! Adds metadata to a module whose compiler cannot.

use crate::abi;
use crate::error::{Error, Result};

/// The module with a metadata section of these JSON records. Any that it has goes.
pub fn pack(wasm: &[u8], records: &[serde_json::Value]) -> Result<Vec<u8>> {
    let mut packed = without_metadata(wasm)?;
    let mut content = Vec::new();
    for record in records {
        let record = record.to_string();
        content.extend((record.len() as u32).to_le_bytes());
        content.extend(record.bytes());
    }
    let mut section = Vec::new();
    leb128(&mut section, abi::METADATA_SECTION.len());
    section.extend(abi::METADATA_SECTION.bytes());
    section.extend(content);
    packed.push(0);
    leb128(&mut packed, section.len());
    packed.extend(section);
    Ok(packed)
}

/// The module without its metadata sections.
fn without_metadata(wasm: &[u8]) -> Result<Vec<u8>> {
    let not_a_module = |error: wasmparser::BinaryReaderError| Error::NotAModule {
        problem: format!("{} (at byte {})", error.message(), error.offset()),
    };
    let mut kept = Vec::with_capacity(wasm.len());
    let mut from = 0;
    for payload in wasmparser::Parser::new(0).parse_all(wasm) {
        let payload = payload.map_err(not_a_module)?;
        let end = match &payload {
            wasmparser::Payload::Version { range, .. } => range.end,
            wasmparser::Payload::CodeSectionEntry(_) | wasmparser::Payload::End(_) => continue,
            other => match other.as_section() {
                Some((_, range)) => range.end,
                None => continue,
            },
        };
        let is_metadata = matches!(&payload, wasmparser::Payload::CustomSection(section)
            if section.name() == abi::METADATA_SECTION);
        if !is_metadata {
            kept.extend_from_slice(wasm.get(from..end).unwrap_or_default());
        }
        from = end;
    }
    Ok(kept)
}

fn leb128(into: &mut Vec<u8>, mut value: usize) {
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        into.push(if value == 0 { low } else { low | 0x80 });
        if value == 0 {
            return;
        }
    }
}
