//! Every kind of probe, over every shape of a table, and every aggregate function, over every
//! way to keep groups, compile to an sm_90 cubin with next to no spills. Needs NVRTC but no GPU; without it it says that it could not run, or fails if
//! `WARPLINE_REQUIRE_NVRTC` is set.

use std::collections::HashMap;

use kernels::codegen::{
    ColumnShape, GroupKeys, GroupLayout, GroupOutput, TableShape, ValueRegister, generate,
    generate_collect, generate_count, generate_dense, generate_group_values, generate_many,
};
use kernels::ir::{
    Aggregate, BinaryOp, Call, Collect, Expr, Function, JoinKey, Kind, Probe, ProbeKind,
    RELATION_COLUMNS, Range, Spread, Step, Type,
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

const KINDS: [ProbeKind; 7] = [
    ProbeKind::Matches,
    ProbeKind::MatchesOrNull,
    ProbeKind::Full,
    ProbeKind::Mark,
    ProbeKind::IfAny,
    ProbeKind::IfNone,
    ProbeKind::NotIn,
];

fn compiles(name: &str, text: &str) {
    // The rounds of a tile may park a value or two; memory waits hide them.
    compiles_within(name, text, 16);
}

fn compiles_within(name: &str, text: &str, spill_bytes: u32) {
    let image = compile_cubin(&Source::new(name, text), headers(), "sm_90").unwrap();
    let usage = image.usage();
    assert!(!usage.is_empty(), "{name}: {}", image.log);
    for used in usage {
        let spilled = used.spill_store_bytes;
        assert!(spilled <= spill_bytes, "{}: {}", used.kernel, image.log);
    }
}

#[test]
fn every_kind_of_probe_compiles_with_next_to_no_spills() {
    if !nvrtc_is_here() {
        return;
    }
    let range = Range::new(0, 1 << 20);
    let shape = ColumnShape {
        register: ValueRegister::Integer(range.register(), range),
        stored: "i32",
        nullable: true,
    };
    let numbers = [0, 1, RELATION_COLUMNS, RELATION_COLUMNS + 1];
    let columns: HashMap<usize, ColumnShape> = numbers.map(|number| (number, shape)).into();
    let column = |number| Expr::column(number, Type::I64, true);
    let less = Expr {
        kind: Kind::Binary(
            BinaryOp::Less,
            column(1).into(),
            column(RELATION_COLUMNS + 1).into(),
        ),
        ty: Type::Bool,
        nullable: true,
    };
    for kind in KINDS {
        for (is_dense, is_unique) in [(true, true), (true, false), (false, true), (false, false)] {
            let table = TableShape {
                is_dense,
                is_unique,
                has_chains: !is_unique,
                is_flags: false,
                is_empty: false,
                has_null_keys: true,
                match_percent: 100,
            };
            let mut outputs = vec![column(1)];
            if kind == ProbeKind::Mark {
                outputs.push(Expr {
                    kind: Kind::Matched(1),
                    ty: Type::Bool,
                    nullable: false,
                });
            }
            if kind.has_columns() {
                outputs.push(column(RELATION_COLUMNS + 1));
            }
            let collect = Collect {
                steps: vec![Step::Probe(Probe {
                    relation: 1,
                    keys: vec![JoinKey {
                        probe: column(0),
                        build: column(RELATION_COLUMNS),
                        null_equal: false,
                    }],
                    residual: (kind != ProbeKind::NotIn).then(|| less.clone()),
                    kind,
                })],
                outputs,
            };
            let kernel = generate_collect(&collect, &columns, &[table]).unwrap();
            compiles(&kernel.name, &kernel.text);
            let kernel = generate_count(&collect.steps, &columns, &[table]).unwrap();
            compiles(&kernel.name, &kernel.text);
            if kind == ProbeKind::NotIn || !is_dense {
                continue;
            }
            // Without keys: each row meets every other.
            let mut all = collect;
            if let Some(Step::Probe(probe)) = all.steps.first_mut() {
                probe.keys.clear();
            }
            let kernel = generate_collect(&all, &columns, &[table]).unwrap();
            compiles(&kernel.name, &kernel.text);
        }
    }
}

#[test]
fn every_aggregate_function_compiles_with_next_to_no_spills() {
    if !nvrtc_is_here() {
        return;
    }
    let shape = |register, stored| ColumnShape {
        register,
        stored,
        nullable: true,
    };
    let integers = |max| {
        let range = Range::new(0, max);
        shape(ValueRegister::Integer(range.register(), range), "i32")
    };
    let columns = HashMap::from([
        (0, integers(3)),
        (1, integers(1 << 20)),
        (2, shape(ValueRegister::F64, "f64")),
        (3, shape(ValueRegister::Bool, "u8")),
    ]);
    let (long, float, bool) = (
        Expr::column(1, Type::I64, true),
        Expr::column(2, Type::Float64, true),
        Expr::column(3, Type::Bool, true),
    );
    let call = |function, arg: &Expr| Call {
        function,
        arg: Some(arg.clone()),
        filter: None,
    };
    let calls = vec![
        call(Function::Moments, &float),
        call(Function::Min, &bool),
        call(Function::Max, &bool),
        call(Function::Sum, &long),
    ];
    let functions: Vec<Function> = calls.iter().map(|call| call.function).collect();
    let aggregate = |keys: &[usize]| Aggregate {
        steps: Vec::new(),
        keys: keys
            .iter()
            .map(|key| Expr::column(*key, Type::I64, true))
            .collect(),
        calls: calls.clone(),
    };
    for keys in [vec![], vec![0]] {
        let kernel = generate(&aggregate(&keys), &columns, &[], 1 << 20).unwrap();
        compiles(&kernel.name, &kernel.text);
    }
    // Sets of what DISTINCT has seen, for a thread's own groups and for a table's.
    for keys in [vec![], vec![0], vec![1, 2]] {
        let mut distinct = aggregate(&keys);
        distinct.calls.extend([
            call(Function::CountDistinct, &long),
            call(Function::CountDistinct, &float),
            call(Function::SumDistinct, &long),
        ]);
        // For each of three sets.
        distinct.steps.push(Step::EachSet(3));
        let (name, text) = match keys.len() {
            2 => {
                distinct.keys.push(Expr {
                    kind: Kind::SetNumber,
                    ty: Type::I64,
                    nullable: false,
                });
                let kernel = generate_many(&distinct, &columns, &[], None, true).unwrap();
                (kernel.name, kernel.text)
            }
            _ => {
                let kernel = generate(&distinct, &columns, &[], 1 << 20).unwrap();
                (kernel.name, kernel.text)
            }
        };
        // Three sets, and the moments, of one thread: the sets' memory waits hide it.
        compiles_within(&name, &text, 80);
    }
    let kernel = generate_dense(&aggregate(&[1]), &columns, &[], 1 << 20).unwrap();
    compiles(&kernel.name, &kernel.text);
    let kernel = generate_many(&aggregate(&[1, 2]), &columns, &[], None, false).unwrap();
    compiles(&kernel.name, &kernel.text);
    let layout = GroupLayout {
        keys: GroupKeys::Words {
            keys: &kernel.keys,
            n_words: kernel.key_words,
        },
        calls: &kernel.calls,
        functions: &functions,
    };
    let spreads = [(false, false), (false, true), (true, false), (true, true)];
    let spreads = spreads.map(|(is_sample, is_root)| {
        let spread = Spread { is_sample, is_root };
        (GroupOutput::Spread { call: 0, spread }, Type::Float64)
    });
    let others = [
        (GroupOutput::Call(1), Type::Bool),
        (GroupOutput::Call(3), Type::I64),
    ];
    let outputs = [spreads.as_slice(), others.as_slice()].concat();
    let kernel = generate_group_values(layout, &outputs).unwrap();
    compiles(&kernel.name, &kernel.text);
}
