//! Random queries.

use super::expressions::Scope;
use super::windows;
use super::{Class, Column, Dice, Table};

/// A query.
#[derive(Debug, Clone)]
pub struct Query {
    /// The text.
    pub sql: String,
    /// Whether the order of its rows is told, up to rows that are the same.
    pub ordered: bool,
}

/// A source of rows in FROM.
struct Source {
    /// What stands in FROM, without its alias.
    sql: String,
    columns: Vec<Column>,
}

/// A random query over these tables.
pub fn query(dice: &mut Dice, tables: &[Table]) -> Query {
    let mut columns = Vec::new();
    let mut from = String::new();
    let n_joins = *dice.pick(&[0, 0, 0, 1, 1, 1, 1, 2, 2, 3]);
    for number in 0..=n_joins {
        let source = source(dice, tables);
        let alias = format!("t{number}");
        let own = qualified(&alias, &source.columns);
        if number == 0 {
            from = format!("{} {alias}", source.sql);
        } else {
            let kind = match dice.below(20) {
                0..8 => "join",
                8..13 => "left join",
                13..17 => "right join",
                _ => "full join",
            };
            from = match dice.chance(4) {
                true => format!("{from} cross join {} {alias}", source.sql),
                false => {
                    let on = on(dice, &columns, &own);
                    format!("{from} {kind} {} {alias} on {on}", source.sql)
                }
            };
        }
        columns.extend(own);
    }
    let mut conditions = Vec::new();
    if dice.chance(40) {
        conditions.push(Scope { columns: &columns }.condition(2, dice));
    }
    if dice.chance(15) {
        let member = membership(dice, tables, &columns);
        conditions.push(match dice.chance(20) {
            true => format!(
                "({} or {member})",
                Scope { columns: &columns }.condition(1, dice)
            ),
            false => member,
        });
    }
    let mut tail = match conditions.is_empty() {
        true => String::new(),
        false => format!(" where {}", conditions.join(" and ")),
    };
    let scope = Scope { columns: &columns };
    let mut outputs = Vec::new();
    let mut distinct = "";
    match dice.chance(50) {
        true => {
            let keys: Vec<String> = (0..dice.below(4))
                .map(|_| any_value(&scope, 1, dice))
                .collect();
            outputs.extend(keys.iter().cloned());
            for _ in 0..dice.within(1, 4) {
                outputs.push(aggregate(&scope, dice));
            }
            if !keys.is_empty() {
                let places: Vec<String> = (1..=keys.len()).map(|key| key.to_string()).collect();
                // What is computed inside a grouping set the CPU path does not guard: NaN of
                // two signs are two groups there, and an order by a constant key is dropped.
                let is_column = |key: &String| columns.iter().any(|column| column.name == *key);
                tail = match keys.iter().all(is_column) && dice.chance(40) {
                    true => {
                        let kind = *dice.pick(&["rollup", "cube"]);
                        format!("{tail} group by {kind} ({})", keys.join(", "))
                    }
                    false => format!("{tail} group by {}", places.join(", ")),
                };
                if dice.chance(20) {
                    tail = format!("{tail} having count(*) > {}", dice.below(4));
                }
            }
        }
        false => {
            for _ in 0..dice.within(1, 5) {
                outputs.push(any_value(&scope, 2, dice));
            }
            if dice.chance(15) {
                distinct = "distinct ";
            }
            if dice.chance(30) {
                outputs.extend(windows::calls(&scope, dice));
            }
        }
    }
    let named: Vec<String> = outputs
        .iter()
        .enumerate()
        .map(|(number, output)| format!("{output} as o{number}"))
        .collect();
    let mut sql = format!("select {distinct}{} from {from}{tail}", named.join(", "));
    // Variances differ in their last digits, so rows with about the same have no order.
    let is_rough = ["var_", "stddev_"].iter().any(|rough| sql.contains(rough));
    let ordered = dice.chance(40) && !is_rough;
    if ordered {
        sql = format!("{sql} order by {}", total_order(dice, outputs.len()));
        if dice.chance(60) {
            sql = format!("{sql} limit {}", dice.below(30));
        }
        if dice.chance(20) {
            sql = format!("{sql} offset {}", dice.below(5));
        }
    }
    Query { sql, ordered }
}

/// An order by all outputs, in some sequence.
fn total_order(dice: &mut Dice, n: usize) -> String {
    let first = dice.below(n);
    let places = (0..n).map(|at| (first + at) % n + 1).map(|place| {
        let way = *dice.pick(&["", " desc", " desc nulls last", " nulls first"]);
        format!("{place}{way}")
    });
    places.collect::<Vec<_>>().join(", ")
}

fn qualified(alias: &str, columns: &[Column]) -> Vec<Column> {
    let columns = columns.iter().map(|column| Column {
        name: format!("{alias}.{}", column.name),
        ..column.clone()
    });
    columns.collect()
}

fn any_value(scope: &Scope, depth: usize, dice: &mut Dice) -> String {
    let class = scope.any(dice).class;
    scope.value(class, depth, dice)
}

fn aggregate(scope: &Scope, dice: &mut Dice) -> String {
    let call = match dice.below(10) {
        9 => format!("count(distinct {})", scope.any(dice).name),
        0 => "count(*)".to_string(),
        1 => format!("count({})", scope.any(dice).name),
        2 | 3 => match scope.summable(dice) {
            Some(column) => format!("sum({})", column.name),
            None => "count(*)".to_string(),
        },
        4 => match scope.summable(dice) {
            Some(column) => format!("avg({})", column.name),
            None => "count(*)".to_string(),
        },
        5 => format!("min({})", scope.any(dice).name),
        6 => match scope.summable(dice) {
            Some(column) => {
                let function = *dice.pick(&["var_samp", "var_pop", "stddev_samp", "stddev_pop"]);
                format!("{function}({})", column.name)
            }
            None => "count(*)".to_string(),
        },
        7 => {
            let function = *dice.pick(&["bool_and", "bool_or"]);
            format!("{function}({})", scope.condition(1, dice))
        }
        _ => format!("max({})", scope.any(dice).name),
    };
    match dice.chance(15) {
        true => format!("{call} filter (where {})", scope.condition(1, dice)),
        false => call,
    }
}

/// A condition that matches rows of two sides.
fn on(dice: &mut Dice, left: &[Column], right: &[Column]) -> String {
    let mut conditions = Vec::new();
    for _ in 0..*dice.pick(&[1, 1, 1, 2]) {
        let class = left[dice.below(left.len())].class;
        let class = match right.iter().any(|column| column.class == class) {
            true => class,
            false => Class::Integer,
        };
        let left = Scope { columns: left }.column(class, dice);
        let right = Scope { columns: right }.column(class, dice);
        if let (Some(left), Some(right)) = (left, right) {
            let op = if dice.chance(20) {
                "is not distinct from"
            } else {
                "="
            };
            conditions.push(format!("({} {op} {})", left.name, right.name));
        }
    }
    let all = [left, right].concat();
    if dice.chance(5) {
        // By any condition.
        conditions.clear();
    }
    if conditions.is_empty() || dice.chance(20) {
        conditions.push(format!("({})", Scope { columns: &all }.condition(1, dice)));
    }
    conditions.join(" and ")
}

/// A condition on what another query has.
fn membership(dice: &mut Dice, tables: &[Table], columns: &[Column]) -> String {
    let other = dice.pick(tables);
    let inner = qualified("s", &other.columns);
    let column = columns[dice.below(columns.len())].clone();
    let Some(same) = (Scope { columns: &inner }).column(column.class, dice) else {
        return "true".to_string();
    };
    let condition = match dice.chance(50) {
        true => format!(" and {}", Scope { columns: &inner }.condition(1, dice)),
        false => String::new(),
    };
    let (name, other) = (&column.name, &other.name);
    if dice.chance(25) {
        let op = *dice.pick(&["=", "<", ">=", "<>"]);
        let answer = *dice.pick(&["min", "max"]);
        let same = &same.name;
        return format!(
            "{name} {op} (select {answer}({same}) from {other} s where true{condition})"
        );
    }
    let not = if dice.chance(40) { "not " } else { "" };
    match dice.chance(50) {
        true => format!(
            "{name} {not}in (select {} from {other} s where true{condition})",
            same.name
        ),
        false => format!(
            "{not}exists (select 1 from {other} s where s.{} = {name}{condition})",
            same.name.trim_start_matches("s.")
        ),
    }
}

/// A table, or a query over one.
fn source(dice: &mut Dice, tables: &[Table]) -> Source {
    let table = dice.pick(tables);
    let scope = Scope {
        columns: &table.columns,
    };
    let name = &table.name;
    let (list, columns) = renamed(&table.columns);
    match dice.below(10) {
        9 => {
            // The rows that come first in their partitions.
            let number = windows::row_number(&scope, dice);
            let numbered = format!("select {list}, {number} as number from {name}");
            let condition = match dice.chance(60) {
                true => format!(" where number <= {}", dice.within(1, 4)),
                false => String::new(),
            };
            let mut columns = columns;
            columns.push(Column {
                name: "number".to_string(),
                class: Class::Integer,
                is_small: true,
            });
            Source {
                sql: format!("(select * from ({numbered}){condition})"),
                columns,
            }
        }
        0 => Source {
            sql: format!(
                "(select {list} from {name} where {})",
                scope.condition(1, dice)
            ),
            columns,
        },
        1 => {
            // Something computed beside what is passed on.
            let class = scope.any(dice).class;
            let value = scope.value(class, 2, dice);
            let mut columns = columns;
            columns.push(Column {
                name: "made".to_string(),
                class,
                is_small: false,
            });
            Source {
                sql: format!("(select {list}, {value} as made from {name})"),
                columns,
            }
        }
        2 => {
            let key = scope.any(dice).clone();
            let counted = Column {
                name: "n".to_string(),
                class: Class::Integer,
                is_small: true,
            };
            let of = &key.name;
            Source {
                sql: format!("(select {of} as k, count(*) as n from {name} group by {of})"),
                columns: vec![
                    Column {
                        name: "k".to_string(),
                        ..key.clone()
                    },
                    counted,
                ],
            }
        }
        3 => Source {
            sql: format!(
                "(select {list} from {name} where {} union all select {list} from {name} where {})",
                scope.condition(0, dice),
                scope.condition(0, dice)
            ),
            columns,
        },
        4 => Source {
            sql: format!(
                "(select {list} from {name} order by {} limit {})",
                total_order(dice, columns.len()),
                dice.below(40)
            ),
            columns,
        },
        _ => Source {
            sql: name.clone(),
            columns: table.columns.clone(),
        },
    }
}

/// A select list that names each column `x0`, `x1`, ..., and those columns.
fn renamed(columns: &[Column]) -> (String, Vec<Column>) {
    let renamed = columns.iter().enumerate().map(|(number, column)| {
        let name = format!("x{number}");
        let item = format!("{} as {name}", column.name);
        let column = Column {
            name,
            ..column.clone()
        };
        (item, column)
    });
    let (items, columns): (Vec<String>, Vec<Column>) = renamed.unzip();
    (items.join(", "), columns)
}
