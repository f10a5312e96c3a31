//! Pages that the `parquet` crate wrote, decoded on the host target and by that crate.

mod files;
mod malformed;
mod parity;
mod physical;
