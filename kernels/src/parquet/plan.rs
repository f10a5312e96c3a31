//! Which kernel reads which physical type as which type.

use std::fmt::Write as _;

use super::{Encoding, Physical};
use crate::codegen::Unsupported;
use crate::ir::{IntWidth, Type};

/// What the bytes of values become: a kind of `cuda/parquet/kinds.h`, or text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Bool,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
    F16,
    Decimal,
    Int96,
    /// Bytes that are a value of their own, or a decimal of as many bytes as it needs.
    Bytes,
}

impl Kind {
    /// The kind for a column, if there is one.
    pub(super) fn of(physical: Physical, ty: Type) -> Option<Kind> {
        use IntWidth::{W32, W64};
        let decimal =
            |digits: u8| matches!(ty, Type::Decimal { precision, .. } if precision <= digits);
        Some(match (physical, ty) {
            (Physical::Boolean, Type::Bool) => Kind::Bool,
            (Physical::Int32, Type::UInt(W32)) => Kind::U32,
            (Physical::Int32, Type::Int(width) | Type::UInt(width)) if width <= W32 => Kind::I32,
            (Physical::Int32, Type::Date32) => Kind::I32,
            (Physical::Int32, _) if decimal(38) => Kind::I32,
            (Physical::Int64, Type::Int(W64) | Type::Timestamp(_)) => Kind::I64,
            (Physical::Int64, Type::UInt(W64)) => Kind::U64,
            (Physical::Int64, _) if decimal(38) => Kind::I64,
            (Physical::Int96, Type::Timestamp(_)) => Kind::Int96,
            (Physical::Float, Type::Float32) => Kind::F32,
            (Physical::Double, Type::Float64) => Kind::F64,
            (Physical::FixedLenByteArray(2), Type::Float32) => Kind::F16,
            (Physical::FixedLenByteArray(1..=16), _) if decimal(38) => Kind::Decimal,
            (Physical::ByteArray, Type::Utf8) => Kind::Bytes,
            (Physical::ByteArray, _) if decimal(38) => Kind::Bytes,
            _ => return None,
        })
    }

    /// Its name in `cuda/parquet/kinds.h`, and of its kernel.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Kind::Bool => ("KindBool", "parquet_values_bool"),
            Kind::I32 => ("KindI32", "parquet_values_i32"),
            Kind::U32 => ("KindU32", "parquet_values_u32"),
            Kind::I64 => ("KindI64", "parquet_values_i64"),
            Kind::U64 => ("KindU64", "parquet_values_u64"),
            Kind::F32 => ("KindF32", "parquet_values_f32"),
            Kind::F64 => ("KindF64", "parquet_values_f64"),
            Kind::F16 => ("KindF16", "parquet_values_f16"),
            Kind::Int96 => ("KindInt96", "parquet_values_int96"),
            // Text has kernels of its own; its decimals are made of the same bytes.
            Kind::Decimal | Kind::Bytes => ("KindDecimal", "parquet_values_decimal"),
        }
    }

    /// Bytes of the element that the values are decoded to, and its name when it is one
    /// that can be made narrower.
    pub(super) fn element(self) -> (usize, Option<&'static str>) {
        match self {
            Kind::Bool => (1, None),
            Kind::F32 | Kind::F16 => (4, None),
            Kind::F64 => (8, None),
            Kind::I32 => (4, Some("i32")),
            Kind::U32 | Kind::I64 | Kind::Int96 => (8, Some("i64")),
            Kind::U64 | Kind::Decimal | Kind::Bytes => (16, Some("i128")),
        }
    }
}

/// Whether columns like this can be decoded here, and if not, why.
pub fn check(physical: Physical, ty: Type) -> Result<(), Unsupported> {
    match Kind::of(physical, ty) {
        Some(_) => Ok(()),
        None => Err(Unsupported {
            code: "parquet-type",
            message: format!("a column of {ty} stored as {physical:?}"),
        }),
    }
}

/// Its number in `cuda/parquet/page.h`.
pub(super) fn number_of(encoding: Encoding) -> u32 {
    match encoding {
        Encoding::Plain => 0,
        Encoding::Dictionary => 1,
        Encoding::Rle => 2,
        Encoding::DeltaBinaryPacked => 3,
        Encoding::DeltaLengthByteArray => 4,
        Encoding::DeltaByteArray => 5,
        Encoding::ByteStreamSplit => 6,
    }
}

/// Threads a block of every kernel here.
pub(super) const THREADS: u32 = 128;

/// The text of these kernels.
fn text(kernels: &str) -> String {
    format!(
        r#"#define WL_BLOCK_THREADS {THREADS}
#include "prelude.h"
#include "rows/tiles.h"
#include "parquet/page.h"
#include "parquet/runs.h"
#include "parquet/levels.h"
#include "parquet/delta.h"
#include "parquet/kinds.h"
#include "parquet/elements.h"
#include "parquet/values.h"
#include "parquet/texts.h"
#include "parquet/text_column.h"

{kernels}"#
    )
}

/// The kernel that reads values of a kind.
pub(super) fn values_text(kind: Kind) -> String {
    let (kind, name) = kind.names();
    text(&format!(
        "WL_KERNEL({name}, ValuesPass, p) {{ read_all_values<{kind}>(p); }}\n"
    ))
}

/// The kernel that reads levels, and those that make elements narrower.
pub(super) fn columns_text() -> String {
    let mut kernels =
        String::from("WL_KERNEL(parquet_levels, LevelsPass, p) { read_all_levels(p); }\n");
    for (at, from) in WIDTHS.iter().enumerate() {
        for to in &WIDTHS[..at] {
            let name = narrow_name(from, to);
            let _ = writeln!(
                kernels,
                "WL_KERNEL({name}, NarrowPass, p) {{ narrow<{to}, {from}>(p); }}"
            );
        }
    }
    text(&kernels)
}

const WIDTHS: [&str; 5] = ["i8", "i16", "i32", "i64", "i128"];

/// The kernel that stores elements of one width in another.
pub(super) fn narrow_name(from: &str, to: &str) -> String {
    format!("parquet_narrow_{from}_{to}")
}

/// The kernels of text.
pub(super) fn texts_text() -> String {
    // A warp that walks two delta encodings keeps all of both in registers.
    let bounds = "#define WL_BLOCKS_MIN 4\n";
    let kernels = text(
        "WL_KERNEL(parquet_texts, TextsPass, p) { read_all_texts(p); }
WL_KERNEL(parquet_text_offsets, TextOffsetsPass, p) { text_offsets(p); }
WL_KERNEL(parquet_copy_texts, TextCopyPass, p) { copy_texts(p); }
WL_KERNEL(parquet_copy_prefixes, TextCopyPass, p) { copy_prefixes(p); }
WL_KERNEL(parquet_check_utf8, TextCheckPass, p) { check_utf8(p); }
WL_KERNEL(parquet_decimals_of_texts, TextDecimalsPass, p) { decimals_of_texts(p); }
",
    );
    format!("{bounds}{kernels}")
}

/// Every kernel text of this module, by its name: all there is to compile ahead.
pub fn kernel_texts() -> Vec<(&'static str, String)> {
    let kinds = [
        Kind::Bool,
        Kind::I32,
        Kind::U32,
        Kind::I64,
        Kind::U64,
        Kind::F32,
        Kind::F64,
        Kind::F16,
        Kind::Decimal,
        Kind::Int96,
    ];
    let mut texts = vec![
        ("parquet_columns", columns_text()),
        ("parquet_texts", texts_text()),
    ];
    texts.extend(kinds.map(|kind| (kind.names().1, values_text(kind))));
    texts.extend(super::unpack::kernel_texts());
    texts
}
