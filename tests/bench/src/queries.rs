//! Q1 and Q6 with the specification's parameters, as pipelines.

use std::sync::Arc;

use kernels::ir::{Aggregate, BinaryOp, Call, Expr, Function, IntWidth, Kind, Literal, Step, Type};

use crate::data::column;

/// One query.
pub struct Query {
    /// Its name.
    pub name: &'static str,
    /// What it computes.
    pub aggregate: Aggregate,
    /// The columns it reads.
    pub columns: Vec<usize>,
    /// Bytes a row when decimals take 8, dates 4 and flags 1.
    pub plain_bytes: usize,
}

const MONEY: Type = Type::Decimal {
    precision: 15,
    scale: 2,
};

fn money(index: usize) -> Expr {
    Expr::column(index, MONEY, false)
}

fn cents(value: i128) -> Expr {
    Expr::literal(Literal::Integer(value), MONEY)
}

fn day(value: i128) -> Expr {
    Expr::literal(Literal::Integer(value), Type::Date32)
}

fn shipdate() -> Expr {
    Expr::column(column::SHIPDATE, Type::Date32, false)
}

fn binary(op: BinaryOp, a: Expr, b: Expr, ty: Type) -> Expr {
    Expr {
        kind: Kind::Binary(op, Arc::new(a), Arc::new(b)),
        ty,
        nullable: false,
    }
}

fn is(op: BinaryOp, a: Expr, b: Expr) -> Expr {
    binary(op, a, b, Type::Bool)
}

fn and(all: Vec<Expr>) -> Expr {
    all.into_iter()
        .reduce(|a, b| is(BinaryOp::And, a, b))
        .expect("conditions")
}

fn sum(arg: Expr) -> Call {
    Call {
        function: Function::Sum,
        arg: Some(arg),
        filter: None,
    }
}

/// Revenue of 1994 at a discount of 5 to 7 % and a quantity below 24.
pub fn q6() -> Query {
    let filter = and(vec![
        is(BinaryOp::GreaterOrEqual, shipdate(), day(8766)),
        is(BinaryOp::Less, shipdate(), day(9131)),
        is(BinaryOp::GreaterOrEqual, money(column::DISCOUNT), cents(5)),
        is(BinaryOp::LessOrEqual, money(column::DISCOUNT), cents(7)),
        is(BinaryOp::Less, money(column::QUANTITY), cents(2400)),
    ]);
    let product = Type::Decimal {
        precision: 31,
        scale: 4,
    };
    let revenue = binary(
        BinaryOp::Multiply,
        money(column::PRICE),
        money(column::DISCOUNT),
        product,
    );
    Query {
        name: "Q6",
        aggregate: Aggregate {
            steps: Step::filter(Some(filter)),
            keys: vec![],
            calls: vec![sum(revenue)],
        },
        columns: vec![
            column::QUANTITY,
            column::PRICE,
            column::DISCOUNT,
            column::SHIPDATE,
        ],
        plain_bytes: 28,
    }
}

/// The pricing summary up to 1998-09-02.
pub fn q1() -> Query {
    let flag = Type::Int(IntWidth::W8);
    let net = Type::Decimal {
        precision: 38,
        scale: 4,
    };
    let taxed = Type::Decimal {
        precision: 38,
        scale: 6,
    };
    let less = binary(
        BinaryOp::Subtract,
        cents(100),
        money(column::DISCOUNT),
        MONEY,
    );
    let more = binary(BinaryOp::Add, cents(100), money(column::TAX), MONEY);
    let discounted = binary(BinaryOp::Multiply, money(column::PRICE), less, net);
    let charge = binary(BinaryOp::Multiply, discounted.clone(), more, taxed);
    Query {
        name: "Q1",
        aggregate: Aggregate {
            steps: vec![Step::Filter(is(
                BinaryOp::LessOrEqual,
                shipdate(),
                day(10471),
            ))],
            keys: vec![
                Expr::column(column::FLAG, flag, false),
                Expr::column(column::STATUS, flag, false),
            ],
            calls: vec![
                sum(money(column::QUANTITY)),
                sum(money(column::PRICE)),
                sum(discounted),
                sum(charge),
                sum(money(column::DISCOUNT)),
                Call {
                    function: Function::Count,
                    arg: None,
                    filter: None,
                },
            ],
        },
        columns: (column::QUANTITY..=column::SHIPDATE).collect(),
        plain_bytes: 38,
    }
}

/// The sum of prices of each order from 1995 on: many groups.
pub fn orders() -> Query {
    Query {
        name: "orders",
        aggregate: Aggregate {
            steps: vec![Step::Filter(is(
                BinaryOp::GreaterOrEqual,
                shipdate(),
                day(9131),
            ))],
            keys: vec![Expr::column(column::ORDERKEY, Type::I64, false)],
            calls: vec![sum(money(column::PRICE))],
        },
        columns: vec![column::PRICE, column::SHIPDATE, column::ORDERKEY],
        plain_bytes: 20,
    }
}
