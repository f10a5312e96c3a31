//! What happens to a row between a pipeline's source and its sink.

use std::fmt;
use std::sync::Arc;

use super::expr::{Expr, Kind, Literal};

/// Relation 0 of a pipeline is its source, the others are what it probes. Column `i` of
/// relation `r` has number `r * RELATION_COLUMNS + i`.
pub const RELATION_COLUMNS: usize = 1 << 20;

/// One step; a row that it drops meets no later one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// Rows for which this is not true are dropped.
    Filter(Expr),
    /// Rows meet those of another relation that have equal keys.
    Probe(Probe),
    /// Rows meet one row of another relation, by its number; none where that is null.
    Lookup {
        /// The relation, numbered as for a probe.
        relation: usize,
        /// The number of its row.
        row: Expr,
    },
    /// Each row goes on this many times, once for each grouping set: [`Kind::SetNumber`].
    /// At most once in a pipeline.
    EachSet(u32),
}

/// A join, seen from the side whose rows flow through the pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Probe {
    /// The relation that is probed. The probes of a pipeline have 1, 2 and so on.
    pub relation: usize,
    /// What has to be equal; nothing where each row meets every row of the relation.
    pub keys: Vec<JoinKey>,
    /// What else has to be true of a pair of rows.
    pub residual: Option<Expr>,
    /// What becomes of the row.
    pub kind: ProbeKind,
}

/// One pair of values that a join compares.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JoinKey {
    /// The value of the row that probes.
    pub probe: Expr,
    /// The value of the row that is probed, over its relation's columns.
    pub build: Expr,
    /// Whether null equals null; otherwise null equals nothing.
    pub null_equal: bool,
}

/// What a join table is made of: the rows of one relation, by number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Build {
    /// Rows for which this is not true are not in the table.
    pub filter: Option<Expr>,
    /// The values that are looked up. Without any there is no table: every row of the
    /// relation is looked at, and `filter` has to be part of the probe's residual.
    pub keys: Vec<BuildKey>,
    /// Whether nothing is asked of the rows but that there is one with some keys.
    pub only_exists: bool,
}

/// One value that a join table is looked up by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BuildKey {
    /// The value, over the relation's columns numbered from 0.
    pub value: Expr,
    /// Whether null equals null; otherwise rows with null are not in the table.
    pub null_equal: bool,
}

impl Build {
    /// The build with every expression replaced by what `map` gives for it.
    pub fn map(&self, map: &dyn Fn(&Expr) -> Expr) -> Build {
        Build {
            filter: self.filter.as_ref().map(map),
            keys: self
                .keys
                .iter()
                .map(|key| BuildKey {
                    value: map(&key.value),
                    null_equal: key.null_equal,
                })
                .collect(),
            only_exists: self.only_exists,
        }
    }

    /// The columns that are read, in order.
    pub fn columns(&self) -> Vec<usize> {
        columns_read(
            self.filter
                .iter()
                .chain(self.keys.iter().map(|key| &key.value)),
        )
    }
}

/// What becomes of a row that probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    /// It goes on once with each row that it matches.
    Matches,
    /// So it does, but once with nulls if it matches none.
    MatchesOrNull,
    /// So it does, and after all rows come those of the relation that none matched, with
    /// nulls for everything else. Only as the last step of a collect.
    Full,
    /// It goes on once, with whether it matches any: [`Kind::Matched`].
    Mark,
    /// It goes on if it matches any.
    IfAny,
    /// It goes on if it matches none.
    IfNone,
    /// It goes on if its key is in no row, as `NOT IN` means it: a null on either side
    /// could be equal, so the row does not go on, but nothing is in no row at all.
    NotIn,
}

impl Step {
    /// A filter as the only step, or no step.
    pub fn filter(condition: Option<Expr>) -> Vec<Step> {
        condition.map(Step::Filter).into_iter().collect()
    }

    /// The step with every expression replaced by what `map` gives for it.
    pub fn map(&self, map: &dyn Fn(&Expr) -> Expr) -> Step {
        match self {
            Step::Filter(condition) => Step::Filter(map(condition)),
            Step::EachSet(n) => Step::EachSet(*n),
            Step::Lookup { relation, row } => Step::Lookup {
                relation: *relation,
                row: map(row),
            },
            Step::Probe(probe) => Step::Probe(Probe {
                relation: probe.relation,
                keys: probe
                    .keys
                    .iter()
                    .map(|key| JoinKey {
                        probe: map(&key.probe),
                        build: map(&key.build),
                        null_equal: key.null_equal,
                    })
                    .collect(),
                residual: probe.residual.as_ref().map(map),
                kind: probe.kind,
            }),
        }
    }

    /// Whether it is a full join.
    pub fn is_full(&self) -> bool {
        matches!(self, Step::Probe(probe) if probe.kind == ProbeKind::Full)
    }

    /// The expressions that the step computes.
    pub fn expressions(&self) -> Vec<&Expr> {
        match self {
            Step::Filter(condition) => vec![condition],
            Step::Probe(probe) => {
                let keys = probe.keys.iter().flat_map(|key| [&key.probe, &key.build]);
                keys.chain(&probe.residual).collect()
            }
            Step::Lookup { row, .. } => vec![row],
            Step::EachSet(_) => vec![],
        }
    }
}

impl ProbeKind {
    /// Whether the columns of the row that is probed can be read later.
    pub fn has_columns(self) -> bool {
        matches!(
            self,
            ProbeKind::Matches | ProbeKind::MatchesOrNull | ProbeKind::Full
        )
    }

    /// Whether the row that is probed may be missing: its columns are then null.
    pub fn may_miss(self) -> bool {
        matches!(self, ProbeKind::MatchesOrNull | ProbeKind::Full)
    }
}

impl Expr {
    /// This expression with every column and constant replaced by what `leaf` gives
    /// for it.
    pub fn map_leaves(&self, leaf: &dyn Fn(&Expr) -> Expr) -> Expr {
        let map = |e: &Expr| e.map_leaves(leaf);
        let shared = |e: &Arc<Expr>| Arc::new(e.map_leaves(leaf));
        let kind = match &self.kind {
            Kind::Column(_) | Kind::Literal(_) | Kind::Matched(_) | Kind::SetNumber => {
                return leaf(self);
            }
            Kind::Unary(op, a) => Kind::Unary(*op, shared(a)),
            Kind::Binary(op, a, b) => Kind::Binary(*op, shared(a), shared(b)),
            Kind::Cast { arg, try_cast } => Kind::Cast {
                arg: shared(arg),
                try_cast: *try_cast,
            },
            Kind::Case {
                branches,
                otherwise,
            } => Kind::Case {
                branches: branches.iter().map(|(c, v)| (map(c), map(v))).collect(),
                otherwise: otherwise.as_ref().map(shared),
            },
            Kind::Coalesce(args) => Kind::Coalesce(args.iter().map(map).collect()),
            Kind::Hash(args) => Kind::Hash(args.iter().map(map).collect()),
            Kind::InList {
                arg,
                items,
                negated,
            } => Kind::InList {
                arg: shared(arg),
                items: items.iter().map(map).collect(),
                negated: *negated,
            },
            Kind::Extract(part, a) => Kind::Extract(*part, shared(a)),
            Kind::Truncate(part, a) => Kind::Truncate(*part, shared(a)),
            Kind::AddMonths(a, b) => Kind::AddMonths(shared(a), shared(b)),
            Kind::Text(op, args) => Kind::Text(*op, args.iter().map(map).collect()),
        };
        Expr {
            kind,
            ty: self.ty,
            nullable: self.nullable,
        }
    }

    /// This expression over the same columns of another relation.
    pub fn of_relation(&self, relation: usize) -> Expr {
        self.map_leaves(&|e| match e.kind {
            Kind::Column(index) => {
                Expr::column(index + relation * RELATION_COLUMNS, e.ty, e.nullable)
            }
            _ => e.clone(),
        })
    }

    /// This expression with late constants replaced by their values, by number.
    pub fn with_late(&self, values: &[Expr]) -> Expr {
        self.map_leaves(&|e| match e.kind {
            Kind::Literal(Literal::Late(number)) => values.get(number).unwrap_or(e).clone(),
            _ => e.clone(),
        })
    }
}

/// The columns that expressions read, in order, each once.
pub fn columns_read<'a>(exprs: impl IntoIterator<Item = &'a Expr>) -> Vec<usize> {
    let mut used = Vec::new();
    for expr in exprs {
        expr.walk(&mut |e| {
            if let Kind::Column(index) = e.kind {
                used.push(index);
            }
        });
    }
    used.sort_unstable();
    used.dedup();
    used
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Filter(condition) => writeln!(f, "filter {condition}"),
            Step::EachSet(n) => writeln!(f, "each of {n} sets"),
            Step::Lookup { relation, row } => {
                writeln!(f, "lookup row {row} of relation {relation}")
            }
            Step::Probe(probe) => {
                write!(f, "probe  {:?} of relation {}", probe.kind, probe.relation)?;
                for key in &probe.keys {
                    let equals = if key.null_equal { "is" } else { "=" };
                    write!(f, " {} {equals} {}", key.probe, key.build)?;
                }
                if let Some(residual) = &probe.residual {
                    write!(f, " where {residual}")?;
                }
                writeln!(f)
            }
        }
    }
}
