//! The right answers, by a plain loop over the Arrow arrays.

use std::collections::BTreeMap;

use arrow::array::types::{Date32Type, Decimal128Type, Int8Type, Int64Type};
use arrow::array::{AsArray, RecordBatch};
use kernels::launch::{Groups, Number};

use crate::data::column;
use crate::queries::Query;

/// Totals by group key.
pub type Expected = BTreeMap<Vec<Option<i128>>, Vec<i128>>;

/// What the query must give.
pub fn totals(query: &Query, chunks: &[RecordBatch]) -> Expected {
    let mut totals = Expected::new();
    for chunk in chunks {
        let money = |index: usize| {
            chunk
                .column(index)
                .as_primitive::<Decimal128Type>()
                .values()
        };
        let flags = |index: usize| chunk.column(index).as_primitive::<Int8Type>().values();
        let (quantity, price) = (money(column::QUANTITY), money(column::PRICE));
        let (discount, tax) = (money(column::DISCOUNT), money(column::TAX));
        let (flag, status) = (flags(column::FLAG), flags(column::STATUS));
        let date = chunk
            .column(column::SHIPDATE)
            .as_primitive::<Date32Type>()
            .values();
        let order = chunk
            .column(column::ORDERKEY)
            .as_primitive::<Int64Type>()
            .values();
        for row in 0..chunk.num_rows() {
            if query.name == "Q6" {
                let total = totals.entry(vec![]).or_insert_with(|| vec![0]);
                let kept = (8766..9131).contains(&date[row])
                    && (5..=7).contains(&discount[row])
                    && quantity[row] < 2400;
                if kept {
                    total[0] += price[row] * discount[row];
                }
            } else if query.name == "orders" {
                if date[row] >= 9131 {
                    let total = totals
                        .entry(vec![Some(i128::from(order[row]))])
                        .or_insert_with(|| vec![0]);
                    total[0] += price[row];
                }
            } else if date[row] <= 10471 {
                let key = vec![Some(i128::from(flag[row])), Some(i128::from(status[row]))];
                let total = totals.entry(key).or_insert_with(|| vec![0; 6]);
                let net = price[row] * (100 - discount[row]);
                total[0] += quantity[row];
                total[1] += price[row];
                total[2] += net;
                total[3] += net * (100 + tax[row]);
                total[4] += discount[row];
                total[5] += 1;
            }
        }
    }
    totals
}

/// Fails with the first group that differs.
pub fn compare(query: &Query, expected: &Expected, got: &Groups) -> Result<(), String> {
    if expected.len() != got.len() {
        return Err(format!(
            "{}: {} groups, not {}",
            query.name,
            got.len(),
            expected.len()
        ));
    }
    for group in 0..got.len() {
        let key: Vec<Option<i128>> = (0..query.aggregate.keys.len())
            .map(|key| match got.key(key, group) {
                Some(Number::Integer(value)) => Some(value),
                _ => None,
            })
            .collect();
        let found: Result<Vec<Option<Number>>, String> = (0..query.aggregate.calls.len())
            .map(|call| got.value(call, group).map_err(|error| error.to_string()))
            .collect();
        let found = found?;
        let wanted = expected.get(&key).map(|totals| -> Vec<Option<Number>> {
            totals.iter().map(|v| Some(Number::Integer(*v))).collect()
        });
        if wanted.as_ref() != Some(&found) {
            return Err(format!(
                "{} group {key:?}: {found:?}, not {wanted:?}",
                query.name
            ));
        }
    }
    Ok(())
}
