//! Every type in and out of a guest that gives back what it got: with nulls, empty, sliced
//! and constant columns, and of sizes around the edges of bitmaps and of the arena.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray, DictionaryArray, Int32Array, Int64Array,
    LargeStringArray, PrimitiveArray, StringArray, StringViewArray,
};
use arrow::compute::{cast, take};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use sandbox::{Argument, Compiler, Limits, Module, OnError, Runtime, Setup, Stop, Type, Unbounded};

const SIZES: [usize; 6] = [0, 1, 31, 33, 8_192, 100_000];

/// Copies the values of its argument, of `width` bytes (0: bits), and its validity.
const FIXED: &str = r#"(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (local $arg i32) (local $ret i32)
    (local.set $arg (i32.load offset=16 (local.get $call)))
    (local.set $ret (i32.load offset=20 (local.get $call)))
    (memory.copy (i32.load offset=24 (local.get $ret)) (i32.load offset=24 (local.get $arg))
      (i32.load offset=28 (local.get $arg)))
    (memory.copy (i32.load offset=16 (local.get $ret)) (i32.load offset=16 (local.get $arg))
      (i32.load offset=20 (local.get $arg)))
    i32.const 0))"#;

/// Copies offsets and validity, and gives out the bytes of its argument where they lie.
const VARIABLE: &str = r#"(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (local $arg i32) (local $ret i32)
    (local.set $arg (i32.load offset=16 (local.get $call)))
    (local.set $ret (i32.load offset=20 (local.get $call)))
    (memory.copy (i32.load offset=24 (local.get $ret)) (i32.load offset=24 (local.get $arg))
      (i32.load offset=28 (local.get $arg)))
    (memory.copy (i32.load offset=16 (local.get $ret)) (i32.load offset=16 (local.get $arg))
      (i32.load offset=20 (local.get $arg)))
    (i64.store offset=32 (local.get $ret) (i64.load offset=32 (local.get $arg)))
    (i64.store offset=40 (local.get $ret) (i64.load offset=40 (local.get $arg)))
    i32.const 0))"#;

fn module(runtime: &Arc<Runtime>, text: &str, kind: &str, nulls: &str) -> Arc<Module> {
    let meta = serde_json::json!({
        "abi": 1, "name": "f", "kind": "scalar", "nulls": nulls,
        "args": [{"name": "x", "type": kind}], "returns": kind,
    });
    let wasm = sandbox::pack(&wat::parse_str(text).expect("a module"), &[meta]).expect("packed");
    // Small, so that large columns are cut in pieces.
    let limits = Limits {
        arena_bytes: 1 << 20,
        ..Limits::default()
    };
    runtime
        .load(&wasm, limits, Arc::new(Unbounded), Stop::default())
        .expect("a module")
}

fn runtime() -> Arc<Runtime> {
    Runtime::new(Setup {
        compiler: Compiler::InProcess,
        cache: None,
        deterministic: false,
    })
    .expect("a sandbox")
}

/// Whether the guest gives back what it gets, in all the ways to hand it over.
fn check(runtime: &Arc<Runtime>, text: &str, array: &ArrayRef, kind: &str) {
    let n_rows = array.len();
    let wanted = kind.parse::<Type>().expect("a type").arrow();
    for nulls in ["strict", "called"] {
        let module = module(runtime, text, kind, nulls);
        let call = |arg: Argument, n: usize| {
            module
                .call(0, &[arg], n, 0, OnError::Fail)
                .unwrap_or_else(|error| panic!("{kind}, {n} rows, {nulls}: {error}"))
        };
        let whole = call(Argument::Column(ArrayRef::clone(array)), n_rows);
        let expected = cast(array, &wanted).expect("the type's layout");
        assert_eq!(&whole, &expected, "{kind}, {n_rows} rows, {nulls}");
        if n_rows > 3 {
            let slice = array.slice(3, n_rows - 3);
            let sliced = call(Argument::Column(slice), n_rows - 3);
            assert_eq!(sliced.to_data(), expected.slice(3, n_rows - 3).to_data());
        }
    }
}

fn fixed<T: ArrowPrimitiveType>(
    runtime: &Arc<Runtime>,
    kind: &str,
    of: impl Fn(usize) -> T::Native,
) {
    for n in SIZES {
        let wanted = kind.parse::<Type>().expect("a type").arrow();
        let with_nulls: PrimitiveArray<T> = (0..n).map(|i| (i % 7 != 3).then(|| of(i))).collect();
        let without: PrimitiveArray<T> = (0..n).map(|i| Some(of(i))).collect();
        for array in [with_nulls, without] {
            let array: ArrayRef = Arc::new(array.with_data_type(wanted.clone()));
            check(runtime, FIXED, &array, kind);
        }
    }
}

#[test]
fn fixed_width_values_come_back() {
    let r = runtime();
    fixed::<Int8Type>(&r, "i8", |i| i as i8);
    fixed::<Int16Type>(&r, "i16", |i| i as i16);
    fixed::<Int32Type>(&r, "i32", |i| i as i32 - 5);
    fixed::<Int64Type>(&r, "i64", |i| i64::MIN + i as i64);
    fixed::<UInt8Type>(&r, "u8", |i| i as u8);
    fixed::<UInt16Type>(&r, "u16", |i| i as u16);
    fixed::<UInt32Type>(&r, "u32", |i| u32::MAX - i as u32);
    fixed::<UInt64Type>(&r, "u64", |i| u64::MAX - i as u64);
    fixed::<Float32Type>(&r, "f32", |i| i as f32 / 3.0);
    fixed::<Float64Type>(&r, "f64", |i| i as f64 / -3.0);
    fixed::<Decimal128Type>(&r, "decimal128(38,2)", |i| i as i128 * -(1 << 90));
    fixed::<Date32Type>(&r, "date32", |i| i as i32);
    fixed::<TimestampMicrosecondType>(&r, "timestamp(us)", |i| i as i64);
}

#[test]
fn booleans_come_back() {
    let r = runtime();
    for n in SIZES {
        let some: BooleanArray = (0..n).map(|i| (i % 5 != 2).then_some(i % 3 == 0)).collect();
        let all: BooleanArray = (0..n).map(|i| Some(i % 3 == 0)).collect();
        check(&r, FIXED, &(Arc::new(some) as ArrayRef), "bool");
        check(&r, FIXED, &(Arc::new(all) as ArrayRef), "bool");
    }
}

#[test]
fn text_and_bytes_come_back_from_every_layout() {
    let r = runtime();
    for n in SIZES {
        let texts: Vec<Option<String>> = (0..n)
            .map(|i| (i % 7 != 3).then(|| "wörp".repeat(i % 6) + &i.to_string()))
            .collect();
        let plain: ArrayRef = Arc::new(StringArray::from(texts.clone()));
        let large: ArrayRef = Arc::new(LargeStringArray::from(texts.clone()));
        let views: ArrayRef = Arc::new(StringViewArray::from(texts));
        for array in [&plain, &large, &views] {
            check(&r, VARIABLE, array, "utf8");
        }
        let bytes = cast(&plain, &DataType::Binary).expect("bytes");
        check(&r, VARIABLE, &bytes, "binary");
    }
}

#[test]
fn a_dictionary_is_called_on_its_values() {
    let r = runtime();
    let values: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("ccc")]));
    let keys: Int32Array = (0..1_000).map(|i| (i % 11 != 0).then_some(i % 3)).collect();
    let plain = take(&values, &keys, None).expect("the rows");
    let array: ArrayRef = Arc::new(DictionaryArray::new(keys, values));
    let module = module(&r, VARIABLE, "utf8", "strict");
    let made = module
        .call(0, &[Argument::Column(array)], 1_000, 0, OnError::Fail)
        .expect("a result");
    assert_eq!(&made, &plain);
    let metered = module.meter(0).read();
    assert!(
        metered.bytes_in < 100,
        "only the values are handed over: {metered:?}"
    );
}

#[test]
fn lists_and_structs_come_back() {
    let r = runtime();
    let mut builder = arrow::array::ListBuilder::new(arrow::array::Int64Builder::new());
    for i in 0..1_000_i64 {
        if i % 5 == 4 {
            builder.append_null();
        } else {
            builder.append_value((0..i % 4).map(|j| (j != 1).then_some(i + j)));
        }
    }
    let list: ArrayRef = Arc::new(builder.finish());
    // The item's descriptor lies where the host put it; its buffers are the guest's to give.
    let text = VARIABLE.replace(
        "(i64.store offset=40 (local.get $ret) (i64.load offset=40 (local.get $arg)))",
        "(memory.copy (i32.load offset=40 (local.get $ret))
           (i32.load offset=40 (local.get $arg)) (i32.const 64))",
    );
    check(&r, &text, &list, "list(i64)");
    check(&r, &text, &list.slice(0, 0), "list(i64)");
    // A struct's fields: the guest copies both columns' values.
    let text = FIXED.replace(
        "i32.const 0))",
        r#"(local.set $arg (i32.load offset=40 (local.get $arg)))
           (local.set $ret (i32.load offset=40 (local.get $ret)))
           (memory.copy (i32.load offset=24 (local.get $ret)) (i32.load offset=24 (local.get $arg))
             (i32.load offset=28 (local.get $arg)))
           (memory.copy (i32.load offset=88 (local.get $ret)) (i32.load offset=88 (local.get $arg))
             (i32.load offset=92 (local.get $arg)))
           i32.const 0))"#,
    );
    let a: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
    let b: ArrayRef = Arc::new(Int32Array::from_iter_values(-100..0));
    let kind = "struct(a i64, b i32)";
    let DataType::Struct(fields) = kind.parse::<Type>().expect("a type").arrow() else {
        panic!("not a struct");
    };
    let both: ArrayRef = Arc::new(arrow::array::StructArray::new(fields, vec![a, b], None));
    check(&r, &text, &both, kind);
}

#[test]
fn a_constant_stands_for_all_rows() {
    let r = runtime();
    // Writes the constant's one value to every row.
    let text = r#"(module
      (memory (export "memory") 1)
      (func (export "udf1_call_f") (param $call i32) (result i32)
        (local $row i32)
        (block $done (loop $next
          (br_if $done (i32.ge_u (local.get $row) (i32.load offset=8 (local.get $call))))
          (i64.store
            (i32.add (i32.load offset=24 (i32.load offset=20 (local.get $call)))
              (i32.mul (local.get $row) (i32.const 8)))
            (i64.load (i32.load offset=24 (i32.load offset=16 (local.get $call)))))
          (local.set $row (i32.add (local.get $row) (i32.const 1)))
          (br $next)))
        i32.const 0))"#;
    let module = module(&r, text, "i64", "strict");
    let call = |value: Option<i64>| {
        let constant = Argument::Constant(Arc::new(Int64Array::from(vec![value])));
        module
            .call(0, &[constant], 40, 0, OnError::Fail)
            .expect("a result")
    };
    assert_eq!(
        call(Some(7)).as_ref(),
        &Int64Array::from(vec![7; 40]) as &dyn Array
    );
    assert_eq!(
        call(None).null_count(),
        40,
        "NULL in, NULL out, without a call"
    );
}

#[test]
fn arguments_that_do_not_fit_are_told() {
    let r = runtime();
    let module = module(&r, VARIABLE, "utf8", "strict");
    let call = |array: ArrayRef| {
        let n = array.len();
        let outcome = module.call(0, &[Argument::Column(array)], n, 0, OnError::Fail);
        outcome.expect_err("a refusal").to_string()
    };
    let numbers = call(Arc::new(Int64Array::from(vec![1])));
    assert!(
        numbers.ends_with("argument `x`: Int64 is not utf8"),
        "{numbers}"
    );
    let long = call(Arc::new(StringArray::from(vec![
        "short".into(),
        "x".repeat(2 << 20),
    ])));
    assert!(
        long.contains("row 1 of 2: the arguments and the result of one row do not fit"),
        "{long}"
    );
}
