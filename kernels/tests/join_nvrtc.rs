//! Every kind of probe compiles to an sm_90 cubin with next to no spills, over every shape of a
//! table. Needs NVRTC but no GPU; without it it says that it could not run, or fails if
//! `WARPLINE_REQUIRE_NVRTC` is set.

use std::collections::HashMap;

use kernels::codegen::{ColumnShape, TableShape, ValueRegister, generate_collect, generate_count};
use kernels::ir::{
    BinaryOp, Collect, Expr, JoinKey, Kind, Probe, ProbeKind, RELATION_COLUMNS, Range, Step, Type,
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

const KINDS: [ProbeKind; 6] = [
    ProbeKind::Matches,
    ProbeKind::MatchesOrNull,
    ProbeKind::Full,
    ProbeKind::IfAny,
    ProbeKind::IfNone,
    ProbeKind::NotIn,
];

fn compiles(name: &str, text: &str) {
    let image = compile_cubin(&Source::new(name, text), headers(), "sm_90").unwrap();
    let usage = image.usage();
    assert!(!usage.is_empty(), "{name}: {}", image.log);
    for used in usage {
        // The rounds of a tile may park a value or two; memory waits hide them.
        assert!(
            used.spill_store_bytes <= 16,
            "{}: {}",
            used.kernel,
            image.log
        );
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
                is_empty: false,
                has_null_keys: true,
            };
            let mut outputs = vec![column(1)];
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
        }
    }
}
