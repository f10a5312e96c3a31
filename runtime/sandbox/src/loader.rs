//! From bytes to a module that is fit to compile, or the reason why not.
//!
//! Everything that a hostile file could make expensive is counted before anything costs
//! time, and nothing of the file runs here.

use std::collections::HashMap;

use sha2::{Digest, Sha256};
use wasmparser::{
    CompositeInnerType, Encoding, ExternalKind, Parser, Payload, TypeRef, ValType, Validator,
    WasmFeatures,
};

use crate::abi;
use crate::error::{Error, Result};
use crate::metadata::{self, Function};

/// The largest module.
pub const MODULE_BYTES_MAX: usize = 8 << 20;
/// Functions with a body.
const BODIES_MAX: u64 = 10_000;
/// One function's body.
const BODY_BYTES_MAX: u64 = 256 << 10;
/// Locals of one function: each may take a register or a stack slot.
const LOCALS_MAX: u64 = 1_000;
/// Initial contents of the memory.
const DATA_BYTES_MAX: u64 = 10 << 20;
/// Elements of the function table.
const TABLE_MAX: u64 = 10_000;
/// How many imports a refusal lists.
const IMPORTS_SHOWN: usize = 8;

/// A module that passed every check.
#[derive(Debug, Clone)]
pub struct Checked {
    /// Its SHA-256.
    pub sha256: [u8; 32],
    /// Its functions, in the order of their records.
    pub functions: Vec<Function>,
    /// The size of its memory when it starts, in pages.
    pub memory_pages_min: u64,
    /// The size that it limits its memory to, in pages.
    pub memory_pages_max: Option<u64>,
    /// Whether there is something to run before the first call.
    pub has_init: bool,
    /// Its size.
    pub n_bytes: usize,
}

impl Checked {
    /// The hash as hexadecimal digits.
    pub fn sha256_hex(&self) -> String {
        hex(&self.sha256)
    }
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What WebAssembly a module may use: what compilers emit for plain code. Threads, exceptions,
/// tail calls, 64-bit or several memories and garbage collection are refused.
fn features() -> WasmFeatures {
    WasmFeatures::MUTABLE_GLOBAL
        | WasmFeatures::SATURATING_FLOAT_TO_INT
        | WasmFeatures::SIGN_EXTENSION
        | WasmFeatures::REFERENCE_TYPES
        | WasmFeatures::MULTI_VALUE
        | WasmFeatures::BULK_MEMORY
        | WasmFeatures::BULK_MEMORY_OPT
        | WasmFeatures::CALL_INDIRECT_OVERLONG
        | WasmFeatures::EXTENDED_CONST
        | WasmFeatures::SIMD
        | WasmFeatures::FLOATS
        // What `externref` in a table's type would be; no instruction makes one.
        | WasmFeatures::GC_TYPES
}

/// Checks a module.
pub fn check(wasm: &[u8]) -> Result<Checked> {
    limit(
        "bytes of the module",
        wasm.len() as u64,
        MODULE_BYTES_MAX as u64,
    )?;
    let mut parts = Parts::default();
    for payload in Parser::new(0).parse_all(wasm) {
        parts.take(payload.map_err(|error| not_a_module(&error))?)?;
    }
    parts.imports.refuse()?;
    Validator::new_with_features(features())
        .validate_all(wasm)
        .map_err(|error| not_a_module(&error))?;
    let (memory_pages_min, memory_pages_max) = parts.memory()?;
    let functions = parts.functions()?;
    Ok(Checked {
        sha256: Sha256::digest(wasm).into(),
        functions,
        memory_pages_min,
        memory_pages_max,
        has_init: parts.exports.contains_key("udf1_init"),
        n_bytes: wasm.len(),
    })
}

fn limit(what: &str, found: u64, limit: u64) -> Result<()> {
    if found > limit {
        return Err(Error::TooLarge {
            what: what.to_string(),
            found,
            limit,
        });
    }
    Ok(())
}

fn not_a_module(error: &wasmparser::BinaryReaderError) -> Error {
    Error::NotAModule {
        problem: format!("{} (at byte {})", error.message(), error.offset()),
    }
}

/// What the sections said so far.
#[derive(Default)]
struct Parts {
    /// Parameters and results of each type; absent for what is not a function.
    types: Vec<Option<(Vec<ValType>, Vec<ValType>)>>,
    /// The type of each function with a body.
    functions: Vec<u32>,
    memories: Vec<wasmparser::MemoryType>,
    exports: HashMap<String, (ExternalKind, u32)>,
    imports: Imports,
    metadata: Vec<u8>,
    has_metadata: bool,
    n_bodies: u64,
    n_data_bytes: u64,
    n_table_elements: u64,
}

impl Parts {
    fn take(&mut self, payload: Payload<'_>) -> Result<()> {
        let bad = |error: wasmparser::BinaryReaderError| not_a_module(&error);
        match payload {
            Payload::Version {
                encoding: Encoding::Component,
                ..
            } => {
                return Err(Error::NotAModule {
                    problem: "it is a component; build a core module, for \
                              wasm32-unknown-unknown and not for a WASI target"
                        .into(),
                });
            }
            Payload::TypeSection(section) => {
                for group in section {
                    for kind in group.map_err(bad)?.types() {
                        limit("number of types", self.types.len() as u64 + 1, BODIES_MAX)?;
                        self.types.push(match &kind.composite_type.inner {
                            CompositeInnerType::Func(f) => {
                                Some((f.params().to_vec(), f.results().to_vec()))
                            }
                            _ => None,
                        });
                    }
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import.map_err(bad)?;
                    self.imports.add(import.module, import.name, import.ty);
                }
            }
            Payload::FunctionSection(section) => {
                limit(
                    "number of functions with a body",
                    u64::from(section.count()),
                    BODIES_MAX,
                )?;
                for kind in section {
                    self.functions.push(kind.map_err(bad)?);
                }
            }
            Payload::TableSection(section) => {
                for table in section {
                    self.n_table_elements += table.map_err(bad)?.ty.initial;
                    limit("elements of tables", self.n_table_elements, TABLE_MAX)?;
                }
            }
            Payload::MemorySection(section) => {
                for memory in section {
                    self.memories.push(memory.map_err(bad)?);
                }
            }
            Payload::ExportSection(section) => {
                limit("number of exports", u64::from(section.count()), BODIES_MAX)?;
                for export in section {
                    let export = export.map_err(bad)?;
                    self.exports
                        .insert(export.name.to_string(), (export.kind, export.index));
                }
            }
            Payload::StartSection { .. } => return Err(Error::StartFunction),
            Payload::DataSection(section) => {
                for data in section {
                    self.n_data_bytes += data.map_err(bad)?.data.len() as u64;
                    limit("bytes of initial data", self.n_data_bytes, DATA_BYTES_MAX)?;
                }
            }
            Payload::CodeSectionEntry(body) => {
                self.n_bodies += 1;
                limit("number of functions with a body", self.n_bodies, BODIES_MAX)?;
                limit(
                    "bytes of one function",
                    body.range().len() as u64,
                    BODY_BYTES_MAX,
                )?;
                let mut n_locals = 0_u64;
                for locals in body.get_locals_reader().map_err(bad)? {
                    n_locals += u64::from(locals.map_err(bad)?.0);
                    limit("locals of one function", n_locals, LOCALS_MAX)?;
                }
            }
            Payload::CustomSection(section) if section.name() == abi::METADATA_SECTION => {
                self.has_metadata = true;
                limit(
                    "bytes of metadata",
                    (self.metadata.len() + section.data().len()) as u64,
                    metadata::BYTES_MAX as u64,
                )?;
                self.metadata.extend_from_slice(section.data());
            }
            _ => {}
        }
        Ok(())
    }

    /// The least and the most pages of the one memory.
    fn memory(&self) -> Result<(u64, Option<u64>)> {
        let abi = |problem: &str| Error::Abi {
            problem: problem.into(),
        };
        let [memory] = self.memories.as_slice() else {
            return Err(abi("it needs exactly one memory of its own"));
        };
        match self.exports.get("memory") {
            Some((ExternalKind::Memory, _)) => {}
            _ => return Err(abi("it does not export its memory as `memory`")),
        }
        if memory.memory64 || memory.shared {
            return Err(abi("its memory has to be 32-bit and not shared"));
        }
        Ok((memory.initial, memory.maximum))
    }

    fn functions(&self) -> Result<Vec<Function>> {
        if !self.has_metadata {
            return Err(Error::Metadata {
                problem: format!(
                    "it has no `{}` section: in Rust, put #[udf] on the functions; in other \
                     languages, add the metadata with `warpline udf pack`",
                    abi::METADATA_SECTION
                ),
            });
        }
        let functions = metadata::read(&self.metadata)?;
        if functions.is_empty() {
            return Err(Error::Metadata {
                problem: "its metadata describes no function".into(),
            });
        }
        let i32s = |n| vec![ValType::I32; n];
        if self.exports.contains_key("udf1_init") {
            self.signature("udf1_init", &[], &i32s(1), "ABI 1")?;
        }
        for function in &functions {
            let whom = format!("function `{}`", function.name);
            for entry in function.entry_points() {
                self.signature(&entry, &i32s(1), &i32s(1), &whom)?;
            }
        }
        Ok(functions)
    }

    /// Checks that an export is a function of this type.
    fn signature(
        &self,
        name: &str,
        params: &[ValType],
        results: &[ValType],
        whom: &str,
    ) -> Result<()> {
        let words = |types: &[ValType]| {
            let names: Vec<String> = types.iter().map(ToString::to_string).collect();
            format!("({})", names.join(", "))
        };
        let wanted = format!("{} -> {}", words(params), words(results));
        let Some((kind, index)) = self.exports.get(name) else {
            return Err(Error::Abi {
                problem: format!("{whom} needs the export `{name}` {wanted}, which is absent"),
            });
        };
        let found = (*kind == ExternalKind::Func)
            .then(|| self.functions.get(*index as usize))
            .flatten()
            .and_then(|kind| self.types.get(*kind as usize))
            .and_then(Option::as_ref);
        match found {
            Some((p, r)) if p == params && r == results => Ok(()),
            Some((p, r)) => Err(Error::Abi {
                problem: format!(
                    "the export `{name}` is {} -> {}, and {wanted} is wanted",
                    words(p),
                    words(r)
                ),
            }),
            None => Err(Error::Abi {
                problem: format!("the export `{name}` is not a function"),
            }),
        }
    }
}

/// What the module wants of its host.
#[derive(Default)]
struct Imports {
    shown: Vec<String>,
    n: usize,
    has_wasi: bool,
    has_bindgen: bool,
}

impl Imports {
    fn add(&mut self, module: &str, name: &str, kind: TypeRef) {
        self.n += 1;
        self.has_wasi |= module.starts_with("wasi");
        self.has_bindgen |= module.starts_with("__wbindgen") || module == "wbg";
        if self.shown.len() < IMPORTS_SHOWN {
            let what = match kind {
                TypeRef::Memory(_) => "memory ",
                TypeRef::Table(_) => "table ",
                TypeRef::Global(_) => "global ",
                _ => "",
            };
            let cut = |text: &str| text.chars().take(60).collect::<String>();
            self.shown
                .push(format!("{what}{}::{}", cut(module), cut(name)));
        }
    }

    fn refuse(&self) -> Result<()> {
        if self.n == 0 {
            return Ok(());
        }
        let mut list = self.shown.join(", ");
        if self.n > self.shown.len() {
            list += &format!(" and {} more", self.n - self.shown.len());
        }
        let hint = if self.has_wasi {
            "; build it for wasm32-unknown-unknown instead of a WASI target, and leave out \
             files, clocks and printing"
        } else if self.has_bindgen {
            "; a dependency was built for browsers: switch off its `js` or `wasm-bindgen` feature"
        } else {
            ""
        };
        Err(Error::Imports { list, hint })
    }
}
