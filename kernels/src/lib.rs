//! Runs a pipeline on one GPU. Knows Arrow and CUDA, and nothing of SQL.

pub mod admission;
pub mod codegen;
pub mod columns;
pub mod error;
pub mod gpu;
pub mod ir;
pub mod jit;
pub mod launch;
pub mod parquet;
pub mod threads;
