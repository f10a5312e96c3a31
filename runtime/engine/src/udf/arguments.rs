//! What a user function's arguments may be in SQL.
//!
//! A value is widened or looked at anew where nothing of it is lost. What literals are is
//! taken too, so that they need no CAST: a BIGINT for any integer and a decimal of fewer
//! digits before the point, checked for each value; a DOUBLE for a decimal, rounded to its
//! scale; a timestamp in nanoseconds, cut to the function's unit. Everything else takes a
//! CAST of the author's.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, plan_err};
use sandbox::{Function, Type};

use crate::words::sql_types;

/// The types that the arguments are cast to, or why the call makes no sense.
pub(super) fn coerce(function: &Function, found: &[DataType]) -> Result<Vec<DataType>> {
    if found.len() != function.args.len() {
        return plan_err!(
            "{} takes {} arguments and got {}",
            signature(function),
            function.args.len(),
            found.len()
        );
    }
    found
        .iter()
        .zip(&function.args)
        .map(|(found, declared)| match accepted(found, &declared.kind) {
            Some(kind) => Ok(kind),
            None => plan_err!(
                "{} got {} for `{}`; CAST it to {}",
                signature(function),
                sql_name(found),
                declared.name,
                sql_name(&declared.kind.arrow())
            ),
        })
        .collect()
}

/// A function's signature in SQL's types.
pub(super) fn signature(function: &Function) -> String {
    let args: Vec<String> = function
        .args
        .iter()
        .map(|arg| format!("{} {}", arg.name, sql_name(&arg.kind.arrow())))
        .collect();
    format!("`{}({})`", function.name, args.join(", "))
}

fn sql_name(kind: &DataType) -> String {
    sql_types(&kind.to_string())
}

/// The type that a value is handed over in; none where it does not fit.
fn accepted(found: &DataType, declared: &Type) -> Option<DataType> {
    use DataType::{
        Binary, BinaryView, Decimal128, Dictionary, Float32, Float64, LargeBinary, LargeUtf8, Null,
        Timestamp, Utf8, Utf8View,
    };
    let wanted = declared.arrow();
    let fits = match (found, &wanted) {
        (Null, _) => true,
        // The sandbox looks at these as they are, and calls a function on a dictionary's
        // values where that is less work.
        (Utf8 | LargeUtf8 | Utf8View, Utf8) | (Binary | LargeBinary | BinaryView, Binary) => {
            return Some(found.clone());
        }
        (Dictionary(_, values), _) => {
            return match accepted(values, declared)? == **values {
                true => Some(found.clone()),
                false => Some(wanted),
            };
        }
        (Float32, Float64) => true,
        // A literal with a point is a float here.
        (Float64 | Float32, Decimal128(..)) => true,
        (Decimal128(_, scale), Decimal128(_, other)) => scale <= other,
        (Decimal128(..), Float64) => true,
        (integer, Decimal128(..)) if integer.is_integer() => true,
        (integer, Float64) if integer.is_integer() => true,
        (integer, other) if integer.is_integer() && other.is_integer() => {
            let (from, to) = (bits(integer), bits(other));
            integer == other || from < to && (other.is_signed_integer() || !integer.is_signed_integer())
                // A literal is BIGINT, whatever its size.
                || *integer == DataType::Int64
        }
        (Timestamp(_, None), Timestamp(_, None)) => true,
        (DataType::Date32, Timestamp(..)) => true,
        (DataType::List(_) | DataType::LargeList(_), DataType::List(_))
        | (DataType::Struct(_), DataType::Struct(_)) => {
            let same = found == &wanted || found.equals_datatype(&wanted);
            return same.then(|| found.clone());
        }
        (found, wanted) => found == wanted,
    };
    fits.then_some(wanted)
}

fn bits(integer: &DataType) -> usize {
    integer.primitive_width().unwrap_or(0)
}
