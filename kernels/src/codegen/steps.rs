//! The steps between source and sink.
//!
//! ```text
//! filter  (c0 < 24)                    if (!is_true(v1)) continue;
//! probe   one row at most              const u32 r1 = ...; if (r1 == NO_ROW) continue;
//! probe   any number of rows           for (Matches<...> m1{...}; m1.next(p.j1, match1);) {
//!                                        const u32 r1 = m1.row;
//! ```
//!
//! What follows a loop stands inside it, and leaving a row there means going on to the
//! next match.

use super::emit::{Emitter, Value, ValueRegister};
use super::error::Unsupported;
use super::loops;
use crate::ir::{JoinKey, Probe, ProbeKind, Step};

/// How a finished join table is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableShape {
    /// Whether a bucket belongs to one key value.
    pub is_dense: bool,
    /// Whether keys find one row at most.
    pub is_unique: bool,
    /// Whether a bucket may have several rows, if only of other keys.
    pub has_chains: bool,
    /// Whether a bucket tells no more than that there is a row; then it is dense.
    pub is_flags: bool,
    /// Whether there is no row, with or without null keys.
    pub is_empty: bool,
    /// Whether rows were left out because their key is null.
    pub has_null_keys: bool,
    /// How many of a hundred keys are likely to find a row; 100 when nothing is known.
    pub match_percent: u8,
}

/// Emits the steps and returns how many loops are open after them; [`close`] them when
/// the sink stands. `tables` has the shape of relation 1 first.
pub(super) fn emit_steps(
    emitter: &mut Emitter,
    steps: &[Step],
    tables: &[TableShape],
) -> Result<usize, Unsupported> {
    let mut n_loops = 0;
    for step in steps {
        match step {
            Step::Filter(condition) => emitter.filter(condition)?,
            Step::EachSet(n) => {
                emitter.open_loop(&format!("for (u32 set = 0; set < {n}; ++set)"));
                n_loops += 1;
            }
            Step::Lookup { relation, row } => emit_lookup(emitter, *relation, row)?,
            Step::Probe(probe) => {
                let shape = probe
                    .relation
                    .checked_sub(1)
                    .and_then(|at| tables.get(at))
                    .ok_or_else(|| {
                        Unsupported::expression(format!("relation {} has no table", probe.relation))
                    })?;
                n_loops += usize::from(emit_probe(emitter, probe, *shape)?);
            }
        }
    }
    Ok(n_loops)
}

/// Closes the loops that [`emit_steps`] left open.
pub(super) fn close(emitter: &mut Emitter, n_loops: usize) {
    for _ in 0..n_loops {
        emitter.close_loop();
    }
}

/// Emits a row that is known by its number.
fn emit_lookup(emitter: &mut Emitter, n: usize, row: &crate::ir::Expr) -> Result<(), Unsupported> {
    let value = emitter.emit(row)?;
    if !matches!(value.register, ValueRegister::Integer(..)) {
        return Err(Unsupported::expression("a row number that is no integer"));
    }
    emitter.relation(n, value.nullable);
    let number = format!("static_cast<u32>(value_of({}))", value.text);
    let row = match value.nullable {
        true => format!("is_valid({}) ? {number} : NO_ROW", value.text),
        false => number,
    };
    emitter.line(&format!("const u32 r{n} = {row};"));
    Ok(())
}

/// Emits one probe; true when it opened a loop.
fn emit_probe(
    emitter: &mut Emitter,
    probe: &Probe,
    shape: TableShape,
) -> Result<bool, Unsupported> {
    let n = probe.relation;
    if probe.kind == ProbeKind::NotIn {
        if shape.is_empty {
            return Ok(false);
        }
        if probe.residual.is_some() || probe.keys.iter().any(|key| key.null_equal) {
            return Err(Unsupported::expression("NOT IN with another condition"));
        }
    }
    emitter.relation(n, probe.kind.may_miss());
    if probe.keys.is_empty() {
        return loops::emit_all(emitter, probe);
    }
    let bucket = emit_bucket(
        emitter,
        n,
        shape.is_dense,
        probe.keys.iter().map(|key| (&key.probe, key.null_equal)),
    )?;
    let first = match &bucket.valid {
        Some(valid) => format!("{valid} ? first_row_of(p.j{n}, {}) : NO_ROW", bucket.text),
        None => format!("first_row_of(p.j{n}, {})", bucket.text),
    };
    if probe.kind == ProbeKind::NotIn {
        let leave = emitter.exit();
        if shape.has_null_keys {
            emitter.line(&format!("if (true) {leave};"));
        }
        if let Some(valid) = &bucket.valid {
            emitter.line(&format!("if (!({valid})) {leave};"));
        }
    }
    let leave = emitter.exit().to_string();
    if shape.is_flags {
        let has = format!("has_row(p.j{n}, {})", bucket.text);
        let has = match &bucket.valid {
            Some(valid) => format!("({valid} && {has})"),
            None => has,
        };
        match probe.kind {
            ProbeKind::IfAny => emitter.line(&format!("if (!{has}) {leave};")),
            ProbeKind::IfNone | ProbeKind::NotIn => emitter.line(&format!("if ({has}) {leave};")),
            _ => return Err(Unsupported::expression("rows of a table without rows")),
        }
        return Ok(false);
    }
    emitter.line(&format!("const u32 first{n} = {first};"));
    emit_match(emitter, probe, !shape.is_dense)?;

    // The only row of a bucket, or the only one of its chain that matches.
    let single = !shape.has_chains;
    let match_of = match single {
        true => format!("first{n} != NO_ROW && match{n}(first{n}) ? first{n} : NO_ROW"),
        false => format!("any_match_of<false>(p.j{n}, first{n}, match{n})"),
    };
    let unique = shape.is_unique;
    match probe.kind {
        ProbeKind::IfAny => {
            emitter.line(&format!(
                "if (!any_match<{single}>(p.j{n}, first{n}, match{n})) {leave};"
            ));
            Ok(false)
        }
        ProbeKind::IfNone | ProbeKind::NotIn => {
            emitter.line(&format!(
                "if (any_match<{single}>(p.j{n}, first{n}, match{n})) {leave};"
            ));
            Ok(false)
        }
        ProbeKind::Mark => {
            emitter.line(&format!("const u32 r{n} = {match_of};"));
            Ok(false)
        }
        ProbeKind::Matches if unique => {
            emitter.line(&format!("const u32 r{n} = {match_of};"));
            emitter.line(&format!("if (r{n} == NO_ROW) {leave};"));
            Ok(false)
        }
        ProbeKind::MatchesOrNull | ProbeKind::Full if unique => {
            emitter.line(&format!("const u32 r{n} = {match_of};"));
            emit_mark(emitter, probe);
            Ok(false)
        }
        ProbeKind::Matches | ProbeKind::MatchesOrNull | ProbeKind::Full => {
            let or_null = probe.kind.may_miss();
            emitter.open_loop(&format!(
                "for (Matches<false, {or_null}> m{n}{{NO_ROW, first{n}, false}}; \
                 m{n}.next(p.j{n}, match{n});)"
            ));
            emitter.line(&format!("const u32 r{n} = m{n}.row;"));
            emit_mark(emitter, probe);
            Ok(true)
        }
    }
}

/// Emits, for a full join, that the row of the relation was matched.
pub(super) fn emit_mark(emitter: &mut Emitter, probe: &Probe) {
    if probe.kind == ProbeKind::Full {
        let n = probe.relation;
        emitter.line(&format!("if (r{n} != NO_ROW) mark_matched(p.j{n}, r{n});"));
    }
}

/// The test of a row of the bucket: keys where the bucket alone does not tell, then the
/// residual.
pub(super) fn emit_match(
    emitter: &mut Emitter,
    probe: &Probe,
    compares_keys: bool,
) -> Result<(), Unsupported> {
    let n = probe.relation;
    emitter.open(&format!("const auto match{n} = [&](u32 r{n}) -> bool"));
    emitter.line(&format!("static_cast<void>(r{n});"));
    emitter.push_exit("return false");
    if compares_keys {
        for JoinKey { probe, build, .. } in &probe.keys {
            // Null keys that equal nothing are in no bucket, so this is right for both.
            let same = emitter.not_distinct(probe, build)?;
            emitter.line(&format!("if (!{}) return false;", same.text));
        }
    }
    if let Some(residual) = &probe.residual {
        emitter.filter(residual)?;
    }
    emitter.line("return true;");
    emitter.pop_exit();
    emitter.close();
    emitter.line(";");
    Ok(())
}

/// The bucket of some keys.
pub(super) struct Bucket {
    /// Its number.
    pub(super) text: String,
    /// When there is one; without this, always.
    pub(super) valid: Option<String>,
}

/// Emits the bucket of these keys, each with whether null is a value like any other.
pub(super) fn emit_bucket<'a>(
    emitter: &mut Emitter,
    table: usize,
    is_dense: bool,
    keys: impl Iterator<Item = (&'a crate::ir::Expr, bool)>,
) -> Result<Bucket, Unsupported> {
    let keys: Vec<_> = keys.collect();
    let mut valid = Vec::new();
    let mut values: Vec<Value> = Vec::new();
    for (key, null_equal) in &keys {
        let value = emitter.emit(key)?;
        if value.nullable && (!null_equal || is_dense) {
            valid.push(format!("is_valid({})", value.text));
        }
        values.push(value);
    }
    let valid = (!valid.is_empty()).then(|| valid.join(" && "));
    if is_dense {
        let [value] = values.as_slice() else {
            return Err(Unsupported::expression("a dense table of several keys"));
        };
        if !matches!(value.register, ValueRegister::Integer(..)) {
            return Err(Unsupported::expression(
                "a dense table of keys that are no integers",
            ));
        }
        return Ok(Bucket {
            text: format!("dense_bucket(p.j{table}, value_of({}))", value.text),
            valid,
        });
    }
    let hash = hash_of(&values);
    Ok(Bucket {
        text: format!("hashed_bucket(p.j{table}, {hash})"),
        valid,
    })
}

/// The text of the 64-bit hash of some values.
pub(super) fn hash_of(values: &[Value]) -> String {
    let start = "0x9e3779b97f4a7c15ULL".to_string();
    let next = |hash, value: &Value| format!("join_hash({hash}, {})", value.text);
    values.iter().fold(start, next)
}
