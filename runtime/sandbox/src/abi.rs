//! The numbers of ABI 1: what a module exports, and how structs lie in its memory.
//!
//! All numbers are little endian. Structs are 8-byte aligned, buffers 64-byte aligned and
//! padded to 64 bytes, so that vector code may read to the end of the pad.

/// The version that modules built against this header carry in their export names.
pub const VERSION: u32 = 1;

/// The custom section of the metadata records: for each function a `u32` length and JSON.
pub const METADATA_SECTION: &str = "udf1.meta";

/// Every buffer's alignment.
pub const ALIGN: usize = 64;

/// The size of a page of guest memory.
pub const PAGE: usize = 1 << 16;

/// Size of [`call`]'s struct.
pub const CALL_BYTES: usize = 64;
/// Size of [`column`]'s struct.
pub const COLUMN_BYTES: usize = 64;
/// Size of [`error`]'s struct.
pub const ERROR_BYTES: usize = 512;
/// Bytes of a message in it.
pub const MESSAGE_BYTES: usize = 500;

/// No value: an unknown count of nulls, an error of no row.
pub const NONE: u32 = u32::MAX;

/// Where the fields of `Call` lie: the one argument of every entry point points to it.
pub mod call {
    /// `u32`: the version.
    pub const ABI: usize = 0;
    /// `u32`: the flags below.
    pub const FLAGS: usize = 4;
    /// `u32`: rows of the arguments; groups for an aggregate's `init`, `state`, `finish`.
    pub const ROWS: usize = 8;
    /// `u32`: number of arguments.
    pub const N_ARGS: usize = 12;
    /// `u32`: pointer to as many `Column`s.
    pub const ARGS: usize = 16;
    /// `u32`: pointer to the result's `Column`.
    pub const RET: usize = 20;
    /// `u32`: pointer to `Error`.
    pub const ERROR: usize = 24;
    /// `u32`: the handle of an aggregate's or a table function's state; the guest sets it.
    pub const STATE: usize = 28;
    /// `u32`: space that the guest may fill with output.
    pub const SCRATCH: usize = 32;
    /// `u32`: its length.
    pub const SCRATCH_LEN: usize = 36;
    /// `u64`: number of the record batch.
    pub const BATCH: usize = 40;
    /// `u64`: for volatile functions, another one for each call.
    pub const SEED: usize = 48;
    /// `i64`: start of the query, microseconds since 1970.
    pub const QUERY_TIME: usize = 56;

    /// Flag: the host has joined the arguments' validity into the result's.
    pub const STRICT: u32 = 1;
    /// Flag: the same input has to give the same bits.
    pub const DETERMINISTIC: u32 = 2;
    /// Flag: a row that fails becomes NULL; `Error` then counts such rows in `code`, and
    /// holds the first one's row and message.
    pub const NULL_ON_ERROR: u32 = 8;
}

/// Where the fields of `Column` lie.
pub mod column {
    /// `u16`: the type's number.
    pub const TYPE: usize = 0;
    /// `u16`: the flags below.
    pub const FLAGS: usize = 2;
    /// `u8`: a decimal's precision.
    pub const PRECISION: usize = 4;
    /// `i8`: a decimal's scale.
    pub const SCALE: usize = 5;
    /// `u16`: byte width of a value, or a timestamp's unit.
    pub const UNIT: usize = 6;
    /// `u32`: number of elements.
    pub const LENGTH: usize = 8;
    /// `u32`: number of nulls, all ones when unknown.
    pub const NULLS: usize = 12;
    /// `u32` pointer and `u32` length of the validity bitmap.
    pub const VALIDITY: usize = 16;
    /// `u32` pointer and `u32` length of the values or offsets.
    pub const BUF0: usize = 24;
    /// `u32` pointer and `u32` length of the bytes of values of variable width.
    pub const BUF1: usize = 32;
    /// `u32` pointer and `u32` count of child `Column`s.
    pub const CHILDREN: usize = 40;

    /// Flag: the column may have nulls.
    pub const NULLABLE: u16 = 1;
    /// Flag: there is a validity bitmap.
    pub const HAS_VALIDITY: u16 = 2;
    /// Flag: one element stands for all rows.
    pub const CONSTANT: u16 = 4;
    /// Flag: the host has checked that the text is UTF-8.
    pub const UTF8_CHECKED: u16 = 8;
}

/// Where the fields of `Error` lie; the message follows.
pub mod error {
    /// `u32`: the row, all ones when it is not about a row.
    pub const ROW: usize = 0;
    /// `u32`: see below.
    pub const CODE: usize = 4;
    /// `u32`: length of the message.
    pub const MESSAGE_LEN: usize = 8;
    /// The message, UTF-8.
    pub const MESSAGE: usize = 12;

    /// Code: the function returned an error.
    pub const FAILED: u32 = 1;
    /// Code: the function panicked; a trap follows.
    pub const PANICKED: u32 = 2;
}

/// Status of an entry point: all is well.
pub const OK: u32 = 0;
/// Status of an entry point: `Error` says what is wrong.
pub const FAILED: u32 = 1;

/// The entry point of a scalar function.
pub fn scalar_entry(name: &str) -> String {
    format!("udf1_call_{name}")
}

/// The entry points of an aggregate function, in the order of `aggregate::Entry`.
pub const AGGREGATE_ENTRIES: [&str; 6] = ["init", "update", "merge", "state", "finish", "drop"];

/// An entry point of an aggregate function.
pub fn aggregate_entry(name: &str, which: &str) -> String {
    format!("udf1_agg_{which}_{name}")
}

/// The entry points of a table function.
pub const TABLE_ENTRIES: [&str; 3] = ["open", "next", "close"];

/// An entry point of a table function.
pub fn table_entry(name: &str, which: &str) -> String {
    format!("udf1_table_{which}_{name}")
}

/// Rounds up to the next multiple of [`ALIGN`].
pub const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}
