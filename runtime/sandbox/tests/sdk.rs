//! Functions written with `udf-sdk`, as its fixture module has them.

mod support;

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Date32Array, Decimal128Array,
    Float64Array, Int64Array, StringArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{Float64Type, Int64Type};
use sandbox::{Argument, Module, OnError};

fn fixture() -> Arc<Module> {
    support::fixture(1 << 20)
}

fn call(module: &Module, name: &str, args: &[ArrayRef]) -> sandbox::Result<ArrayRef> {
    call_with(module, name, args, OnError::Fail)
}

fn call_with(
    module: &Module,
    name: &str,
    args: &[ArrayRef],
    on_error: OnError,
) -> sandbox::Result<ArrayRef> {
    let at = module.find(name).expect("the function");
    let n_rows = args.first().map_or(0, |array| array.len());
    let args: Vec<Argument> = args.iter().cloned().map(Argument::Column).collect();
    module.call(at, &args, n_rows, 0, on_error)
}

/// What a function makes of these columns.
fn made(module: &Module, name: &str, args: &[ArrayRef]) -> ArrayRef {
    call(module, name, args).unwrap_or_else(|error| panic!("{error}"))
}

fn ints(values: impl IntoIterator<Item = impl Into<Option<i64>>>) -> ArrayRef {
    Arc::new(values.into_iter().map(Into::into).collect::<Int64Array>())
}

fn texts(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

#[test]
fn numbers_go_through_in_every_size() {
    let module = fixture();
    for n in [0, 1, 31, 32, 33, 1_000, 200_000_i64] {
        let sum = made(&module, "add", &[ints(0..n), ints((0..n).map(|i| i * 10))]);
        assert_eq!(&sum, &ints((0..n).map(|i| i * 11)), "{n} rows");
        let holes = |by: i64| ints((0..n).map(|i| (i % by != 1).then_some(i)));
        let sum = made(&module, "add", &[holes(3), holes(5)]);
        let expected = ints((0..n).map(|i| (i % 3 != 1 && i % 5 != 1).then_some(2 * i)));
        assert_eq!(&sum, &expected, "{n} rows with nulls");
    }
}

#[test]
fn floats_are_those_of_the_same_function_outside() {
    let module = fixture();
    let x: Vec<f64> = (0..1_000).map(|i| f64::from(i) / 7.0 - 50.0).collect();
    let column = |of: fn(f64) -> f64| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(x.iter().map(|x| of(*x))))
    };
    let k: ArrayRef = Arc::new(Float64Array::from(vec![3.0; 1_000]));
    assert_eq!(
        &made(&module, "scale", &[column(|x| x), k]),
        &column(|x| x * 3.0)
    );
}

#[test]
fn a_constant_goes_with_a_column() {
    let module = fixture();
    let at = module.find("scale").expect("the function");
    let x: ArrayRef = Arc::new(Float64Array::from_iter_values((0..100).map(f64::from)));
    let two: ArrayRef = Arc::new(Float64Array::from(vec![2.0]));
    let args = [Argument::Column(x), Argument::Constant(two)];
    let doubled = module
        .call(at, &args, 100, 0, OnError::Fail)
        .expect("a result");
    assert_eq!(doubled.as_primitive::<Float64Type>().value(99), 198.0);
    let at = module.find("add").expect("the function");
    let args = [
        Argument::Constant(ints([7])),
        Argument::Column(ints([1, 2])),
    ];
    let sum = module
        .call(at, &args, 2, 0, OnError::Fail)
        .expect("a result");
    assert_eq!(&sum, &ints([8, 9]));
}

#[test]
fn text_is_written_cut_and_made() {
    let module = fixture();
    let column = texts(&[
        Some("hello world"),
        None,
        Some(""),
        Some("zwölf Bären"),
        Some("x"),
    ]);
    let first = texts(&[Some("hello"), None, Some(""), Some("zwölf"), Some("x")]);
    assert_eq!(&made(&module, "first_word", &[Arc::clone(&column)]), &first);
    assert_eq!(
        &made(&module, "first_piece", &[Arc::clone(&column)]),
        &first
    );
    let twice = texts(&[
        Some("hello worldhello world"),
        None,
        Some(""),
        Some("zwölf Bärenzwölf Bären"),
        Some("xx"),
    ]);
    assert_eq!(&made(&module, "twice", &[column]), &twice);
    // More text than the arena has room for: it goes on in the guest's own memory, or the
    // record batch is cut.
    let long = "ß".repeat(2_000);
    let many: Vec<Option<&str>> = (0..3_000).map(|_| Some(long.as_str())).collect();
    let twice = made(&module, "twice", &[texts(&many)]);
    assert_eq!(twice.as_string::<i32>().value(2_999), "ß".repeat(4_000));
}

#[test]
fn bytes_booleans_decimals_dates_and_times_go_through() {
    let module = fixture();
    let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![Some(&b"abc"[..]), None, Some(b"")]));
    let n = made(&module, "n_bytes", &[bytes]);
    assert_eq!(
        format!("{n:?}"),
        "PrimitiveArray<Int32>\n[\n  3,\n  null,\n  0,\n]"
    );
    let flags =
        |values: [Option<bool>; 4]| -> ArrayRef { Arc::new(BooleanArray::from(values.to_vec())) };
    let (t, f) = (Some(true), Some(false));
    let both = made(
        &module,
        "both",
        &[flags([t, t, f, None]), flags([t, f, f, t])],
    );
    assert_eq!(&both, &flags([t, f, f, None]));
    let prices = |cents: [i128; 3]| -> ArrayRef {
        let prices = Decimal128Array::from_iter_values(cents);
        Arc::new(prices.with_precision_and_scale(15, 2).expect("a decimal"))
    };
    let taxed = made(&module, "with_tax", &[prices([1_000, 1, -250])]);
    assert_eq!(&taxed, &prices([1_190, 1, -297]));
    let day = |days: i32| -> ArrayRef { Arc::new(Date32Array::from(vec![days])) };
    let words = made(&module, "in_words", &[day(19_782)]);
    assert_eq!(&words, &texts(&[Some("day 29 of month 2 of 2024")]));
    let time: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![-1]));
    assert_eq!(&made(&module, "day_of", &[time]), &day(-1));
}

#[test]
fn null_is_seen_where_the_function_asks_for_it() {
    let module = fixture();
    let (a, b) = (
        ints([Some(1), None, None, Some(4)]),
        ints([None, Some(2), None, Some(5)]),
    );
    let either = made(&module, "either", &[Arc::clone(&a), Arc::clone(&b)]);
    assert_eq!(&either, &ints([Some(1), Some(2), None, Some(4)]));
    let sum = made(&module, "plus_or_zero", &[a, b]);
    assert_eq!(&sum, &ints([Some(1), None, None, Some(9)]));
}

/// The message without the module's hash.
fn message(outcome: sandbox::Result<ArrayRef>) -> String {
    let text = outcome.expect_err("an error").to_string();
    let (before, after) = text.split_once(" (sha256:").expect("a hash");
    format!("{before}{}", &after[13..])
}

#[test]
fn an_error_names_the_row_and_says_what_the_function_said() {
    let module = fixture();
    let ports = texts(&[Some("80"), None, Some("70000"), Some("x")]);
    assert_eq!(
        message(call(&module, "parse_port", &[Arc::clone(&ports)])),
        "user function `parse_port`, record batch 0, row 2 of 4: \"70000\": number too large to \
         fit in target type"
    );
    // The same function under the other policy, and one that says so itself.
    for name in ["parse_port", "port_or_null"] {
        let nulled = call_with(&module, name, &[Arc::clone(&ports)], OnError::Null);
        let nulled = nulled.expect("a result");
        assert_eq!(
            format!("{nulled:?}").matches("null").count(),
            3,
            "{nulled:?}"
        );
    }
    let at = module.find("parse_port").expect("the function");
    assert_eq!(module.meter(at).read().nulled_rows, 2);
}

#[test]
fn a_panic_names_its_place_and_its_row() {
    let module = fixture();
    let by_zero = [ints([1, 2, 3, 4]), ints([1, 1, 0, 1])];
    assert_eq!(
        message(call(&module, "divide", &by_zero)),
        "user function `divide`, record batch 0, row 2 of 4: it panicked: attempt to divide by \
         zero (udf-sdk/fixture/src/lib.rs:116)"
    );
    // NULL is not asked, whatever lies there.
    let zero_is_null = [ints([Some(6), Some(7)]), ints([Some(2), None])];
    assert_eq!(
        &made(&module, "divide", &zero_is_null),
        &ints([Some(3), None])
    );
    let nulled = call_with(&module, "divide", &by_zero, OnError::Null).expect("a result");
    assert_eq!(&nulled, &ints([Some(1), Some(2), None, Some(4)]));
    // A volatile function is not called again to find the row.
    assert_eq!(
        message(call(&module, "look_up", &[ints([0, 9])])),
        "user function `look_up`, record batch 0 of 2 rows: it panicked: index out of bounds: \
         the len is 3 but the index is 9 (udf-sdk/fixture/src/lib.rs:122)"
    );
}

#[test]
fn doc_comments_and_signatures_are_in_the_metadata() {
    let module = fixture();
    let function = module.function(module.find("add").expect("the function"));
    assert_eq!(function.doc, "The sum.");
    assert_eq!(function.signature(), "add(a i64, b i64) -> i64");
    assert_eq!(function.examples[0].call, "add(1, 2)");
    assert_eq!(function.examples[0].result, "3");
    let taxed = module.function(module.find("with_tax").expect("the function"));
    assert_eq!(
        taxed.signature(),
        "with_tax(price decimal128(15,2)) -> decimal128(15,2)"
    );
}

#[test]
fn many_threads_call_at_once() {
    let module = fixture();
    std::thread::scope(|scope| {
        for t in 0..8_i64 {
            let module = &module;
            scope.spawn(move || {
                for n in 0..50 {
                    let sum = made(
                        module,
                        "add",
                        &[ints(0..500), ints((0..500).map(|i| i * t + n))],
                    );
                    let last = sum.as_primitive::<Int64Type>().value(499);
                    assert_eq!(last, 499 + 499 * t + n);
                }
            });
        }
    });
    let metered = module
        .meter(module.find("add").expect("the function"))
        .read();
    assert_eq!((metered.calls, metered.traps), (400, 0));
    assert!(
        metered.instances <= 16,
        "instances are used again: {metered:?}"
    );
}

#[test]
fn the_properties_hold_for_every_function_of_the_fixture() {
    let module = fixture();
    for (at, function) in module.facts().functions.iter().enumerate() {
        let findings = sandbox::properties::check(&module, at).expect("it can be tried");
        // Two are there to panic; tax on the largest price has one digit more than a price.
        let expected = match function.name.as_str() {
            "divide" => "it panicked: attempt to divide by zero",
            "look_up" => "it panicked: index out of bounds",
            "with_tax" => "has more digits than decimal128(15,2)",
            _ => "",
        };
        let messages: Vec<&str> = findings.iter().map(|f| f.message.as_str()).collect();
        match expected {
            "" => assert!(messages.is_empty(), "{}: {messages:?}", function.name),
            words => assert!(
                messages[0].contains(words),
                "{}: {messages:?}",
                function.name
            ),
        }
    }
}
