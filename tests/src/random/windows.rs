//! Random window functions.
//!
//! What depends on which of two peers comes first is asked of one window only, whose order
//! tells all rows apart that differ: rows that are the same may then change places.

use super::expressions::{Scope, literal};
use super::{Class, Column, Dice};

/// Calls over some windows, one of which orders by all columns.
pub(super) fn calls(scope: &Scope, dice: &mut Dice) -> Vec<String> {
    let total = format!(
        "{}order by {}",
        partition(scope, dice),
        order(scope.columns, dice)
    );
    let n = dice.within(1, 3);
    (0..n)
        .map(|_| match dice.chance(50) {
            true => of_rows(scope, &total, dice),
            false => of_peers(scope, dice),
        })
        .collect()
}

/// The number of each row of a partition, for those that pick the first ones.
pub(super) fn row_number(scope: &Scope, dice: &mut Dice) -> String {
    let (partition, order) = (partition(scope, dice), order(scope.columns, dice));
    format!("row_number() over ({partition}order by {order})")
}

fn partition(scope: &Scope, dice: &mut Dice) -> String {
    let keys: Vec<String> = (0..*dice.pick(&[0, 1, 1, 1, 2]))
        .map(|_| {
            let class = scope.any(dice).class;
            scope.value(class, dice.below(2), dice)
        })
        .collect();
    match keys.is_empty() {
        true => String::new(),
        false => format!("partition by {} ", keys.join(", ")),
    }
}

fn way(dice: &mut Dice) -> &'static str {
    dice.pick::<&str>(&["", " desc", " desc nulls last", " nulls first"])
}

/// All columns, in some sequence.
fn order(columns: &[Column], dice: &mut Dice) -> String {
    let first = dice.below(columns.len());
    let keys = (0..columns.len()).map(|at| {
        let column = &columns[(first + at) % columns.len()];
        format!("{}{}", column.name, way(dice))
    });
    keys.collect::<Vec<_>>().join(", ")
}

/// A function that tells peers apart.
fn of_rows(scope: &Scope, window: &str, dice: &mut Dice) -> String {
    let column = scope.any(dice);
    let name = &column.name;
    let whole = dice.below(4);
    let call = match dice.below(8) {
        0 => "row_number()".to_string(),
        1 => format!("ntile({})", whole + 1),
        2 | 3 => {
            let function = *dice.pick(&["lag", "lead"]);
            let has_default = column.class != Class::Text && dice.chance(40);
            match has_default {
                true => format!(
                    "{function}({name}, {whole}, {})",
                    literal(column.class, dice)
                ),
                false => format!("{function}({name}, {whole})"),
            }
        }
        4 => {
            let nth = format!("nth_value({name}, {})", whole + 1);
            let first = format!("first_value({name})");
            let last = format!("last_value({name})");
            let call = dice.pick(&[nth, first, last]).clone();
            return format!("{call} over ({window} {})", frame("rows", "", dice));
        }
        _ => {
            let call = aggregate(scope, dice);
            let frame = frame("rows", "", dice);
            return format!("{call} over ({window} {frame})");
        }
    };
    format!("{call} over ({window})")
}

/// A function that gives peers the same.
fn of_peers(scope: &Scope, dice: &mut Dice) -> String {
    let partition = partition(scope, dice);
    let key = scope.any(dice);
    let order = format!("order by {}{}", key.name, way(dice));
    match dice.below(6) {
        0 | 1 => {
            let call = *dice.pick(&["rank", "dense_rank", "percent_rank", "cume_dist"]);
            format!("{call}() over ({partition}{order})")
        }
        2 => {
            let call = aggregate(scope, dice);
            format!("{call} over ({partition}{order})")
        }
        3 => {
            let call = aggregate(scope, dice);
            format!("{call} over ({})", partition.trim_end())
        }
        4 => {
            let frame = frame("groups", "", dice);
            let call = aggregate(scope, dice);
            format!("{call} over ({partition}{order} {frame})")
        }
        _ => {
            // Keys at the ends of their type have no neighbours there.
            let moves = matches!(key.class, Class::Integer | Class::Float) && key.is_small;
            let digits = if key.class == Class::Float { ".5" } else { "" };
            let frame = match moves {
                true => frame("range", digits, dice),
                false => "range between current row and unbounded following".to_string(),
            };
            let call = aggregate(scope, dice);
            format!("{call} over ({partition}{order} {frame})")
        }
    }
}

fn frame(unit: &str, digits: &str, dice: &mut Dice) -> String {
    let (near, far) = (dice.below(3), dice.within(3, 9));
    let (near, far) = (format!("{near}{digits}"), format!("{far}{digits}"));
    let (start, end) = match dice.below(7) {
        0 => ("unbounded preceding".to_string(), "current row".to_string()),
        1 => (
            "unbounded preceding".to_string(),
            format!("{near} following"),
        ),
        2 => ("current row".to_string(), "unbounded following".to_string()),
        3 => (format!("{far} preceding"), format!("{near} preceding")),
        4 => (format!("{near} following"), format!("{far} following")),
        _ => (format!("{near} preceding"), format!("{far} following")),
    };
    format!("{unit} between {start} and {end}")
}

fn aggregate(scope: &Scope, dice: &mut Dice) -> String {
    let call = match (dice.below(6), scope.summable(dice)) {
        (0 | 1, Some(column)) => format!("sum({})", column.name),
        (2, Some(column)) => format!("avg({})", column.name),
        (3, _) => format!("min({})", scope.any(dice).name),
        (4, _) => format!("max({})", scope.any(dice).name),
        (5, _) => format!("count({})", scope.any(dice).name),
        _ => "count(*)".to_string(),
    };
    match dice.chance(15) {
        true => format!("{call} filter (where {})", scope.condition(0, dice)),
        false => call,
    }
}
