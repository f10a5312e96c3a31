//! Random tables and random queries over them, the same for the same seed.
//!
//! A query has one answer: where it cuts rows off it orders by all its columns, sums of
//! floats are exact, and what could overflow is not computed. So two paths that differ
//! are not both right.

mod dice;
mod expressions;
mod queries;
mod tables;
mod windows;

pub use dice::Dice;
pub use queries::{Query, query};
pub use tables::{Class, Column, Table, tables};

/// Seeds that have their tables in common: fewer tables are made, and kernels over
/// columns of the same shape are compiled once.
pub const SEEDS_PER_TABLES: u64 = 10;

/// The tables of a seed, and its query over them.
pub fn case(seed: u64) -> (Vec<Table>, Query) {
    let tables = tables(&mut Dice::new(seed / SEEDS_PER_TABLES));
    let query = query(&mut Dice::new(!seed), &tables);
    (tables, query)
}
