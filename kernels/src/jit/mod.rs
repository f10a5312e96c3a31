//! From a kernel's text to loaded code: compilers, and a cache in memory and on
//! disk.
//!
//! A key hashes every input (text, headers, options, architecture, compiler), so a
//! stale hit cannot happen and nothing is ever invalidated. This module does not
//! know what a kernel computes.

mod cache;
mod headers;
mod key;
pub(crate) mod nvrtc;
mod source;

pub use cache::{Jit, JitStats, KernelTime, Loaded, Origin};
pub use headers::headers;
pub use key::Key;
pub use nvrtc::{Nvrtc, compile_cubin};
pub use source::{CompiledImage, Header, KernelUsage, Source};
