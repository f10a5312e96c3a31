//! Aggregates written with `udf-sdk`: split, merged and taken in parts, they give the same.

mod support;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, StringArray};
use arrow::datatypes::Float64Type;
use sandbox::{Argument, Groups, Module};

fn fixture() -> Arc<Module> {
    // So small that record batches are cut.
    support::fixture(1 << 16)
}

const N_ROWS: usize = 50_000;
const N_GROUPS: usize = 1_000;

fn value(row: usize) -> Option<f64> {
    (row % 11 != 4).then_some((row * 7_919 % 1_000) as f64 / 8.0)
}

fn group(row: usize) -> usize {
    // The last group has no row with a value.
    if row % 11 == 4 {
        N_GROUPS - 1
    } else {
        row % (N_GROUPS - 1)
    }
}

fn column(rows: std::ops::Range<usize>) -> [Argument; 1] {
    let values: Float64Array = rows.map(value).collect();
    [Argument::Column(Arc::new(values) as ArrayRef)]
}

fn expected() -> Vec<Option<f64>> {
    let mut groups: Vec<Vec<f64>> = vec![Vec::new(); N_GROUPS];
    for row in 0..N_ROWS {
        groups[group(row)].extend(value(row));
    }
    groups
        .iter()
        .map(|values| {
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            (!values.is_empty()).then_some(squares / n)
        })
        .collect()
}

#[track_caller]
fn check(found: &ArrayRef, expected: &[Option<f64>]) {
    let found = found.as_primitive::<Float64Type>();
    assert_eq!(found.len(), expected.len());
    for (group, (found, expected)) in found.iter().zip(expected).enumerate() {
        let is_near = match (found, expected) {
            (Some(found), Some(expected)) => (found - expected).abs() < 1e-6,
            (found, expected) => found.is_none() && expected.is_none(),
        };
        assert!(is_near, "group {group}: {found:?} and {expected:?}");
    }
}

#[test]
fn whole_split_and_merged_give_the_same() {
    let module = fixture();
    let at = module.find("population_variance").expect("the function");
    let expected = expected();

    let mut whole = Groups::new(&module, at, 0);
    let groups: Vec<usize> = (0..N_ROWS).map(group).collect();
    whole
        .update(&column(0..N_ROWS), &groups, N_GROUPS)
        .expect("an update");
    check(&whole.finish(N_GROUPS).expect("results"), &expected);

    // In parts of their own, whose states are merged.
    let mut merged = Groups::new(&module, at, 0);
    for start in (0..N_ROWS).step_by(7_001) {
        let rows = start..(start + 7_001).min(N_ROWS);
        let mut part = Groups::new(&module, at, 0);
        let groups: Vec<usize> = rows.clone().map(group).collect();
        part.update(&column(rows), &groups, N_GROUPS)
            .expect("an update");
        let states = part.take_states(N_GROUPS).expect("states");
        let all: Vec<usize> = (0..N_GROUPS).collect();
        merged.merge(&states, &all, N_GROUPS).expect("a merge");
    }
    // The first groups leave first; what is left is numbered anew.
    let first = merged.finish(300).expect("results");
    check(&first, &expected[..300]);
    check(
        &merged.finish(N_GROUPS - 300).expect("results"),
        &expected[300..],
    );
}

#[test]
fn states_that_grow_are_counted_and_survive() {
    let module = fixture();
    let at = module.find("longest_text").expect("the function");
    let mut groups = Groups::new(&module, at, 0);
    let before = groups.bytes();
    for n in 1..=20 {
        let text = "x".repeat(n * 1_000);
        let texts: ArrayRef = Arc::new(StringArray::from(vec![text.as_str(), "y", "z"]));
        groups
            .update(&[Argument::Column(texts)], &[0, 1, 0], 3)
            .expect("an update");
    }
    assert!(groups.bytes() > before + 20_000);
    let states = groups.take_states(3).expect("states");
    let mut other = Groups::new(&module, at, 0);
    other.merge(&states, &[2, 1, 0], 3).expect("a merge");
    let longest = other.finish(3).expect("results");
    let longest = longest.as_string::<i32>();
    assert_eq!((longest.is_null(0), longest.value(1)), (true, "y"));
    assert_eq!(longest.value(2).len(), 20_000);
}

#[test]
fn a_damaged_state_is_refused_and_the_groups_are_void() {
    let module = fixture();
    let at = module.find("population_variance").expect("the function");
    let mut groups = Groups::new(&module, at, 0);
    groups
        .update(&column(0..4), &[0, 0, 1, 1], 2)
        .expect("an update");
    let damaged: ArrayRef = Arc::new(arrow::array::BinaryArray::from(vec![&b"short"[..]]));
    let refusal = groups
        .merge(&damaged, &[0], 2)
        .expect_err("a refusal")
        .to_string();
    assert!(
        refusal.ends_with("row 0 of 1: a saved state is damaged"),
        "{refusal}"
    );
    let refusal = groups.finish(2).expect_err("a refusal").to_string();
    assert!(refusal.ends_with("its states are lost"), "{refusal}");
}
