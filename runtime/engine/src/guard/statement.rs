//! What the planner would drop or read differently from what is written.
//!
//! | written | planner | here |
//! |---|---|---|
//! | `GROUP BY a WITH ROLLUP` | drops the modifier | rewritten to `ROLLUP (a)` |
//! | `1.5D`, `10S` | a number with an alias | refused |
//! | `a IS NOT DISTINCT FROM b AND c` | `... FROM (b AND c)` | regrouped, or refused |
//! | `INTERSECT ALL`, `EXCEPT ALL` | does not count | refused |
//! | `PREWHERE`, `CONNECT BY`, `TABLESAMPLE` | dropped | refused |
//! | INSERT, COPY, DDL that writes | would run | refused, names the output block |

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, GroupByExpr, GroupByWithModifier, Query, Select, SetExpr, SetOperator,
    SetQuantifier, Statement, TableFactor, VisitMut, VisitorMut,
};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::error::{Error, Result};

/// What a statement is for, once it has been found acceptable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A SELECT (or VALUES, or WITH).
    Query,
    /// CREATE VIEW or CREATE TABLE AS: a name for later statements.
    Definition,
}

fn refused(what: impl Into<String>, why: &str, instead: &str) -> Error {
    Error::Refused {
        what: what.into(),
        why: why.into(),
        instead: instead.into(),
    }
}

/// Refuses numbers with a suffix that would silently become an alias.
pub fn check_tokens(tokens: &[TokenWithSpan]) -> Result<()> {
    for pair in tokens.windows(2) {
        let [number, word] = pair else { continue };
        if let (Token::Number(digits, _), Token::Word(suffix)) = (&number.token, &word.token)
            && suffix.quote_style.is_none()
        {
            let at = number.span.start;
            return Err(refused(
                format!(
                    "`{digits}{}` at line {}, column {}",
                    suffix.value, at.line, at.column
                ),
                "the suffix would be taken as the name of the column, not as the type of the number",
                &format!("write CAST({digits} AS DOUBLE) or another type, or put AS before a name"),
            ));
        }
    }
    Ok(())
}

/// Repairs or refuses a parsed statement, and says what it is for.
pub fn check(statement: &mut DfStatement) -> Result<Role> {
    let writes = |what: &str| {
        refused(
            what,
            "a stage writes only through its output, which becomes visible as a whole or not at all",
            "SELECT the rows and put their location in the stage's `output` block",
        )
    };
    let statement = match statement {
        DfStatement::Statement(statement) => statement,
        DfStatement::CopyTo(_) => return Err(writes("COPY")),
        DfStatement::CreateExternalTable(_) => {
            return Err(refused(
                "CREATE EXTERNAL TABLE",
                "a batch reads only the tables that it names",
                "put the table in the batch's `tables` block",
            ));
        }
        DfStatement::Explain(_) | DfStatement::Reset(_) => {
            return Err(not_a_query("EXPLAIN or RESET"));
        }
    };
    let role = match statement.as_ref() {
        Statement::Query(_) => Role::Query,
        Statement::CreateView(_) => Role::Definition,
        Statement::CreateTable(create)
            if create.query.is_some() && create.location.is_none() && !create.external =>
        {
            Role::Definition
        }
        Statement::CreateTable(_) => {
            return Err(refused(
                "CREATE TABLE without AS SELECT",
                "an empty table is of no use in a batch",
                "write CREATE TABLE name AS SELECT ..., or put the table in the batch's `tables` block",
            ));
        }
        Statement::Insert(_) => return Err(writes("INSERT")),
        Statement::Update(_) => return Err(writes("UPDATE")),
        Statement::Delete(_) => return Err(writes("DELETE")),
        Statement::Merge(_) => return Err(writes("MERGE")),
        Statement::Copy { .. } => return Err(writes("COPY")),
        other => {
            let text = other.to_string();
            let verb: Vec<&str> = text.split_whitespace().take(2).collect();
            return Err(not_a_query(&verb.join(" ")));
        }
    };
    let mut repair = Repair;
    match VisitMut::visit(statement.as_mut(), &mut repair) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(role),
    }
}

fn not_a_query(what: &str) -> Error {
    refused(
        what,
        "a stage holds queries and the views and in-memory tables that they use",
        "write SELECT, CREATE VIEW or CREATE TABLE ... AS SELECT",
    )
}

struct Repair;

impl VisitorMut for Repair {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        check_set_operations(&query.body)
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        let dropped = [
            (select.prewhere.is_some(), "PREWHERE", "write WHERE"),
            (
                !select.connect_by.is_empty(),
                "CONNECT BY",
                "write WITH RECURSIVE",
            ),
            (
                select.into.is_some(),
                "SELECT INTO",
                "write CREATE TABLE ... AS SELECT",
            ),
            (
                select.value_table_mode.is_some(),
                "SELECT AS STRUCT or AS VALUE",
                "select the columns",
            ),
        ];
        for (present, what, instead) in dropped {
            if present {
                return ControlFlow::Break(refused(what, "it would have no effect", instead));
            }
        }
        repair_group_by(&mut select.group_by)
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        match factor {
            TableFactor::Table {
                sample: Some(_), ..
            }
            | TableFactor::Derived {
                sample: Some(_), ..
            } => ControlFlow::Break(refused(
                "TABLESAMPLE",
                "it would have no effect",
                "filter on random() or on a hash of a key",
            )),
            TableFactor::Table {
                version: Some(_), ..
            } => ControlFlow::Break(refused(
                "a table version (FOR SYSTEM_TIME AS OF)",
                "files have no versions",
                "name the location of that version",
            )),
            _ => ControlFlow::Continue(()),
        }
    }

    // Before the children: a chain that moves up is visited again as a child.
    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        match expr {
            // NOT binds looser than IS, so the chain would have to leave it too.
            Expr::UnaryOp { expr: inner, .. } => match inner.as_ref() {
                Expr::IsDistinctFrom(_, right) | Expr::IsNotDistinctFrom(_, right)
                    if is_logical(right) =>
                {
                    ControlFlow::Break(ambiguous_distinct(inner))
                }
                _ => ControlFlow::Continue(()),
            },
            // `z OR a IS ... b AND c` is fine; `z AND a IS ... b OR c` would have to be
            // regrouped around `z` as well.
            Expr::BinaryOp { op, right, .. } => match right.as_ref() {
                Expr::IsDistinctFrom(_, chain) | Expr::IsNotDistinctFrom(_, chain)
                    if is_logical(chain) && !(is_and_or(op) && is_and_chain(chain)) =>
                {
                    ControlFlow::Break(ambiguous_distinct(right))
                }
                _ => ControlFlow::Continue(()),
            },
            Expr::IsDistinctFrom(_, right) | Expr::IsNotDistinctFrom(_, right)
                if is_logical(right) =>
            {
                regroup(expr);
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

fn is_and_or(op: &BinaryOperator) -> bool {
    matches!(op, BinaryOperator::And | BinaryOperator::Or)
}

fn is_logical(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::BinaryOp {
            op: BinaryOperator::And | BinaryOperator::Or | BinaryOperator::Xor,
            ..
        }
    )
}

/// Whether the leftmost operand is reached through AND alone.
fn is_and_chain(expr: &Expr) -> bool {
    match expr {
        Expr::BinaryOp {
            op: BinaryOperator::And,
            left,
            ..
        } => is_and_chain(left),
        other => !is_logical(other),
    }
}

fn ambiguous_distinct(expr: &Expr) -> Error {
    refused(
        format!("`{expr}`"),
        "IS [NOT] DISTINCT FROM would be read as taking everything to its right",
        "put parentheses around the comparison: `(a IS NOT DISTINCT FROM b) AND c`",
    )
}

/// `a IS NOT DISTINCT FROM ((b AND c) OR d)` becomes `((a IS NOT DISTINCT FROM b) AND c) OR d`:
/// the right side was parsed with the right precedences among its own operators, so
/// the comparison belongs to its leftmost operand.
fn regroup(expr: &mut Expr) {
    let placeholder = Expr::Value(datafusion::sql::sqlparser::ast::Value::Null.into());
    let (left, mut chain, negated) = match std::mem::replace(expr, placeholder.clone()) {
        Expr::IsNotDistinctFrom(left, right) => (left, right, true),
        Expr::IsDistinctFrom(left, right) => (left, right, false),
        other => {
            *expr = other;
            return;
        }
    };
    let mut leaf: &mut Expr = &mut chain;
    while is_logical(leaf) {
        match leaf {
            Expr::BinaryOp { left, .. } => leaf = left.as_mut(),
            _ => unreachable!("only binary operators are logical"),
        }
    }
    let right = Box::new(std::mem::replace(leaf, placeholder));
    *leaf = if negated {
        Expr::IsNotDistinctFrom(left, right)
    } else {
        Expr::IsDistinctFrom(left, right)
    };
    *expr = *chain;
}

fn check_set_operations(body: &SetExpr) -> ControlFlow<Error> {
    if let SetExpr::SetOperation {
        op,
        set_quantifier,
        left,
        right,
    } = body
    {
        let all = matches!(
            set_quantifier,
            SetQuantifier::All | SetQuantifier::AllByName
        );
        if all && *op != SetOperator::Union {
            return ControlFlow::Break(refused(
                format!("{op} ALL"),
                "it would not count how often a row occurs on each side",
                &format!(
                    "write {op} without ALL, or number equal rows with row_number() on both sides first"
                ),
            ));
        }
        check_set_operations(left)?;
        check_set_operations(right)?;
    }
    ControlFlow::Continue(())
}

fn repair_group_by(group_by: &mut GroupByExpr) -> ControlFlow<Error> {
    let (what, instead) = match group_by {
        GroupByExpr::All(modifiers) if modifiers.is_empty() => return ControlFlow::Continue(()),
        GroupByExpr::Expressions(_, modifiers) if modifiers.is_empty() => {
            return ControlFlow::Continue(());
        }
        GroupByExpr::Expressions(exprs, modifiers) if !exprs.is_empty() => {
            let sets: Vec<Vec<Expr>> = exprs.iter().map(|expr| vec![expr.clone()]).collect();
            match modifiers.as_slice() {
                [GroupByWithModifier::Rollup] => {
                    *group_by = GroupByExpr::Expressions(vec![Expr::Rollup(sets)], vec![]);
                    return ControlFlow::Continue(());
                }
                [GroupByWithModifier::Cube] => {
                    *group_by = GroupByExpr::Expressions(vec![Expr::Cube(sets)], vec![]);
                    return ControlFlow::Continue(());
                }
                other => (
                    other
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join(" "),
                    "write GROUP BY GROUPING SETS ((a), (b), ())",
                ),
            }
        }
        GroupByExpr::All(modifiers) | GroupByExpr::Expressions(_, modifiers) => (
            format!(
                "GROUP BY ALL {}",
                modifiers
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(" ")
            ),
            "name the columns: GROUP BY ROLLUP (a, b)",
        ),
    };
    ControlFlow::Break(refused(
        what,
        "the modifier would have no effect and the subtotals would be missing",
        instead,
    ))
}
