//! Generated kernels compile to an sm_90 cubin, without spills. Needs NVRTC but no
//! GPU; without NVRTC it says that it could not run, or fails if
//! `WARPLINE_REQUIRE_NVRTC` is set.

use std::collections::HashMap;
use std::sync::Arc;

use kernels::codegen::{
    ColumnShape, RADIX_TEXT, ValueRegister, WINDOW_GROUPS_TEXT, generate, generate_collect,
    generate_many, generate_sort_keys, generate_window, rehash_kernel,
};
use kernels::ir::{
    Aggregate, BinaryOp, Bound, Call, Collect, Expr, Frame, FrameUnit, Function, Kind, Literal,
    Range, Sort, SortKey, Step, Type, Window, WindowCall, WindowFunction,
};
use kernels::jit::{Nvrtc, Source, compile_cubin, headers};

fn nvrtc_is_here() -> bool {
    match Nvrtc::get() {
        Ok(_) => true,
        Err(error) => {
            assert!(
                std::env::var_os("WARPLINE_REQUIRE_NVRTC").is_none(),
                "NVRTC is required: {error}"
            );
            eprintln!("not run, NVRTC is not here: {error}");
            false
        }
    }
}

fn integers(min: i128, max: i128, stored: &'static str, nullable: bool) -> ColumnShape {
    let range = Range::new(min, max);
    ColumnShape {
        register: ValueRegister::Integer(range.register(), range),
        stored,
        nullable,
    }
}

fn binary(op: BinaryOp, a: Expr, b: Expr, ty: Type) -> Expr {
    Expr {
        kind: Kind::Binary(op, Arc::new(a), Arc::new(b)),
        ty,
        nullable: false,
    }
}

/// TPC-H Q1's shape: two coded keys, sums of products, a date filter.
fn pricing_summary(nullable: bool) -> (Aggregate, HashMap<usize, ColumnShape>) {
    let money = Type::Decimal {
        precision: 15,
        scale: 2,
    };
    let product = Type::Decimal {
        precision: 38,
        scale: 4,
    };
    let columns = HashMap::from([
        (0, integers(0, 8191, "i16", nullable)),
        (1, integers(0, (1 << 24) - 1, "i32", nullable)),
        (2, integers(0, 15, "i8", nullable)),
        (3, integers(0, 15, "i8", nullable)),
        (4, integers(0, 3, "i8", false)),
        (5, integers(0, 1, "i8", false)),
        (6, integers(0, 16383, "i16", nullable)),
    ]);
    let column = |i, ty| Expr::column(i, ty, nullable);
    let one = Expr::literal(Literal::Integer(100), money);
    let less = binary(BinaryOp::Subtract, one.clone(), column(2, money), money);
    let discounted = binary(BinaryOp::Multiply, column(1, money), less, product);
    let more = binary(BinaryOp::Add, one, column(3, money), money);
    let taxed = Type::Decimal {
        precision: 38,
        scale: 6,
    };
    let charge = binary(BinaryOp::Multiply, discounted.clone(), more, taxed);
    let sum = |arg| Call {
        function: Function::Sum,
        arg: Some(arg),
        filter: None,
    };
    let date = Expr::literal(Literal::Integer(10471), Type::Date32);
    let aggregate = Aggregate {
        steps: vec![Step::Filter(binary(
            BinaryOp::LessOrEqual,
            column(6, Type::Date32),
            date,
            Type::Bool,
        ))],
        keys: vec![
            Expr::column(4, Type::I64, false),
            Expr::column(5, Type::I64, false),
        ],
        calls: vec![
            sum(column(0, money)),
            sum(column(1, money)),
            sum(discounted),
            sum(charge),
            sum(column(2, money)),
            Call {
                function: Function::Count,
                arg: None,
                filter: None,
            },
        ],
    };
    (aggregate, columns)
}

#[test]
fn a_pricing_summary_compiles_without_spills() {
    if !nvrtc_is_here() {
        return;
    }
    for nullable in [false, true] {
        let (aggregate, columns) = pricing_summary(nullable);
        let kernel = generate(&aggregate, &columns, &[], 1 << 20).unwrap();
        let source = Source::new(kernel.name.clone(), kernel.text.clone());
        let image = compile_cubin(&source, headers(), "sm_90").unwrap();
        let usage = image.usage();
        let used = usage
            .iter()
            .find(|used| used.kernel == kernel.name)
            .unwrap();
        assert_eq!(used.spill_store_bytes, 0, "{}", image.log);
        assert!(used.registers <= 128, "{} registers", used.registers);
    }
}

#[test]
fn a_group_table_compiles_with_next_to_no_spills() {
    if !nvrtc_is_here() {
        return;
    }
    for nullable in [false, true] {
        let (mut aggregate, columns) = pricing_summary(nullable);
        aggregate.keys = vec![
            Expr::column(0, Type::I64, nullable),
            Expr::column(
                1,
                Type::Decimal {
                    precision: 38,
                    scale: 2,
                },
                nullable,
            ),
        ];
        let kernel = generate_many(&aggregate, &columns, &[], None, false).unwrap();
        let (rehash, rehash_text) = rehash_kernel();
        for (name, text) in [(kernel.name.as_str(), kernel.text), (rehash, rehash_text)] {
            let image = compile_cubin(&Source::new(name, text), headers(), "sm_90").unwrap();
            let usage = image.usage();
            let used = usage.iter().find(|used| used.kernel == name).unwrap();
            // The probe loop may park one 64-bit value; memory waits hide it.
            assert!(used.spill_store_bytes <= 8, "{}", image.log);
        }
    }
}

#[test]
fn one_group_keeps_its_states_in_registers() {
    if !nvrtc_is_here() {
        return;
    }
    let (mut aggregate, columns) = pricing_summary(false);
    aggregate.keys.clear();
    let kernel = generate(&aggregate, &columns, &[], 1 << 20).unwrap();
    let source = Source::new(kernel.name.clone(), kernel.text.clone());
    let image = compile_cubin(&source, headers(), "sm_90").unwrap();
    let usage = image.usage();
    let used = usage
        .iter()
        .find(|used| used.kernel == kernel.name)
        .unwrap();
    assert_eq!(
        used.stack_bytes, 0,
        "the states are in local memory: {}",
        image.log
    );
}

/// Every kernel of the text compiles, and none of them spills.
fn compiles_without_spills(name: &str, text: &str) {
    let image = compile_cubin(&Source::new(name, text), headers(), "sm_90").unwrap();
    let usage = image.usage();
    assert!(!usage.is_empty(), "{name}: {}", image.log);
    for used in usage {
        assert_eq!(used.spill_store_bytes, 0, "{}: {}", used.kernel, image.log);
        assert_eq!(used.stack_bytes, 0, "{}: {}", used.kernel, image.log);
    }
}

#[test]
fn rows_are_collected_and_sorted_without_spills() {
    if !nvrtc_is_here() {
        return;
    }
    for nullable in [false, true] {
        let (aggregate, columns) = pricing_summary(nullable);
        let outputs: Vec<Expr> = aggregate
            .calls
            .iter()
            .filter_map(|call| call.arg.clone())
            .collect();
        for steps in [Vec::new(), aggregate.steps.clone()] {
            let collect = Collect {
                steps,
                outputs: outputs.clone(),
            };
            let kernel = generate_collect(&collect, &columns, &[]).unwrap();
            compiles_without_spills(&kernel.name, &kernel.text);
        }
        let keys = outputs.into_iter().map(|value| SortKey {
            value,
            descending: true,
            nulls_first: false,
        });
        let sort = Sort {
            keys: keys.collect(),
        };
        let kernel = generate_sort_keys(&sort, &columns).unwrap();
        compiles_without_spills(&kernel.name, &kernel.text);
    }
    compiles_without_spills("radix_sort", RADIX_TEXT);
}

#[test]
fn windows_compile_without_spills() {
    if !nvrtc_is_here() {
        return;
    }
    compiles_without_spills("window_groups", WINDOW_GROUPS_TEXT);
    let wide = Type::Decimal {
        precision: 38,
        scale: 2,
    };
    let long = 10i128.pow(38) - 1;
    let columns = HashMap::from([
        (0, integers(0, 1 << 20, "i32", true)),
        (1, integers(-long, long, "i128", true)),
        (
            2,
            ColumnShape {
                register: ValueRegister::F64,
                stored: "f64",
                nullable: true,
            },
        ),
    ]);
    let column = |index| Expr::column(index, [Type::I64, wide, Type::Float64][index], true);
    let key = |index| SortKey {
        value: column(index),
        descending: true,
        nulls_first: false,
    };
    let whole = |n: i128| Expr::literal(Literal::Integer(n), Type::I64);
    let float = |n: f64| Expr::literal(Literal::Float(n.to_bits()), Type::Float64);
    let sliding = [
        (FrameUnit::Rows, whole(3), whole(1)),
        (FrameUnit::Groups, whole(3), whole(1)),
        (FrameUnit::Range, float(0.5), float(1.5)),
    ];
    let mut frames = vec![Frame::WHOLE];
    frames.extend(sliding.map(|(unit, before, after)| Frame {
        unit,
        start: Bound::Before(before),
        end: Bound::After(after),
    }));
    for frame in frames {
        let call = |function, ty| WindowCall {
            function,
            frame: frame.clone(),
            ty,
        };
        let value = column(0);
        let calls = [
            vec![
                call(WindowFunction::RowNumber, Type::I64),
                call(WindowFunction::DenseRank, Type::I64),
                call(WindowFunction::PercentRank, Type::Float64),
                call(WindowFunction::CumeDist, Type::Float64),
                call(WindowFunction::Ntile(4), Type::I64),
                call(
                    WindowFunction::Shift {
                        value: column(1),
                        distance: -1,
                        otherwise: Expr::literal(Literal::Null, wide),
                        over_nulls: false,
                    },
                    wide,
                ),
                call(
                    WindowFunction::Nth {
                        value,
                        n: -2,
                        over_nulls: true,
                    },
                    Type::I64,
                ),
            ],
            vec![
                call(WindowFunction::Count(Some(column(0))), Type::I64),
                call(WindowFunction::Sum(column(0)), Type::I64),
                call(WindowFunction::Sum(column(2)), Type::Float64),
                call(WindowFunction::Min(column(2)), Type::Float64),
            ],
            vec![call(WindowFunction::Max(column(1)), wide)],
            vec![call(WindowFunction::Sum(column(1)), wide)],
        ];
        for calls in calls {
            let window = Window {
                sort: Sort {
                    keys: vec![key(0), key(2)],
                },
                n_partition: 1,
                n_peers: 2,
                passed: vec![column(0), column(1)],
                calls,
            };
            let kernel = generate_window(&window, &columns).unwrap();
            let source = Source::new(kernel.name.clone(), kernel.text.clone());
            let image = compile_cubin(&source, headers(), "sm_90").unwrap();
            let usage = image.usage();
            assert!(!usage.is_empty(), "{}: {}", kernel.name, image.log);
            for used in usage {
                // A few words may be parked; arrays of a tile's rows are in registers.
                let parked = used.spill_store_bytes.max(used.stack_bytes);
                assert!(parked <= 32, "{}: {}", used.kernel, image.log);
            }
        }
    }
}

#[test]
fn parquet_kernels_compile_without_spills() {
    if !nvrtc_is_here() {
        return;
    }
    for (name, text) in kernels::parquet::kernel_texts() {
        compiles_without_spills(name, &text);
    }
}
