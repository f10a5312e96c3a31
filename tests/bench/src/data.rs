//! TPC-H lineitem in memory, with the two flags as small integers: what a dictionary
//! makes of them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int8Array, RecordBatch};
use arrow::compute::concat_batches;
use tpchgen::generators::LineItemGenerator;
use tpchgen_arrow::LineItemArrow;

/// Numbers of the columns in the record batches made here.
pub mod column {
    pub const QUANTITY: usize = 0;
    pub const PRICE: usize = 1;
    pub const DISCOUNT: usize = 2;
    pub const TAX: usize = 3;
    pub const FLAG: usize = 4;
    pub const STATUS: usize = 5;
    pub const SHIPDATE: usize = 6;
    pub const ORDERKEY: usize = 7;
}

/// The columns that Q1 and Q6 read, in chunks of this many rows; parts are generated
/// on all cores.
pub fn lineitem(scale: f64, chunk_rows: usize) -> Vec<RecordBatch> {
    let n_parts = std::thread::available_parallelism().map_or(1, usize::from) as i32;
    let parts: Vec<Vec<RecordBatch>> = std::thread::scope(|scope| {
        let running: Vec<_> = (1..=n_parts)
            .map(|part| scope.spawn(move || generate(scale, part, n_parts)))
            .collect();
        running
            .into_iter()
            .map(|part| part.join().expect("the generator does not panic"))
            .collect()
    });
    let batches: Vec<RecordBatch> = parts.into_iter().flatten().collect();
    let schema = batches[0].schema();
    let mut chunks = Vec::new();
    let mut pending: Vec<RecordBatch> = Vec::new();
    let mut n_pending = 0;
    for batch in batches {
        n_pending += batch.num_rows();
        pending.push(batch);
        if n_pending >= chunk_rows {
            chunks.push(concat_batches(&schema, &pending).expect("one schema"));
            pending.clear();
            n_pending = 0;
        }
    }
    if !pending.is_empty() {
        chunks.push(concat_batches(&schema, &pending).expect("one schema"));
    }
    chunks
}

fn generate(scale: f64, part: i32, n_parts: i32) -> Vec<RecordBatch> {
    LineItemArrow::new(LineItemGenerator::new(scale, part, n_parts))
        .with_batch_size(1 << 16)
        .map(|batch| select(&batch.expect("the generator makes valid columns")))
        .collect()
}

fn select(batch: &RecordBatch) -> RecordBatch {
    let column = |name: &str| Arc::clone(batch.column_by_name(name).expect("a TPC-H column"));
    let code = |name: &str, of: &[&str]| -> ArrayRef {
        let texts = arrow::compute::cast(&column(name), &arrow::datatypes::DataType::Utf8)
            .expect("flags are text");
        let codes: Int8Array = texts
            .as_string::<i32>()
            .iter()
            .map(|text| {
                of.iter()
                    .position(|flag| Some(*flag) == text)
                    .map(|code| code as i8)
            })
            .collect();
        assert_eq!(
            codes.null_count(),
            0,
            "{name} has a value that TPC-H does not have"
        );
        Arc::new(codes)
    };
    RecordBatch::try_from_iter([
        ("quantity", column("l_quantity")),
        ("price", column("l_extendedprice")),
        ("discount", column("l_discount")),
        ("tax", column("l_tax")),
        ("flag", code("l_returnflag", &["A", "N", "R"])),
        ("status", code("l_linestatus", &["F", "O"])),
        ("shipdate", column("l_shipdate")),
        ("orderkey", column("l_orderkey")),
    ])
    .expect("columns of one length")
}
