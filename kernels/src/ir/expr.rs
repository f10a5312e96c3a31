//! Typed expressions over the columns of a pipeline's source.

use std::fmt;
use std::sync::Arc;

use super::types::{IntWidth, Type};

/// How many bits a [`Kind::Hash`] has.
pub const HASH_BITS: u32 = 31;

/// An expression: what it computes, its type, and whether it can be null.
///
/// Nodes are shared by reference, and structurally equal nodes are computed once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Expr {
    /// What it computes.
    pub kind: Kind,
    /// The type of the result.
    pub ty: Type,
    /// Whether the result can be null. Code for one that cannot carries no null
    /// checks.
    pub nullable: bool,
}

/// A constant of the query. Its value becomes a kernel parameter, so that one
/// compiled kernel serves every constant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Literal {
    /// The null of the node's type.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer, date, timestamp, or the unscaled value of a decimal.
    Integer(i128),
    /// A float, as the bits of an IEEE 754 binary64.
    Float(u64),
    /// Text.
    Text(Arc<str>),
    /// A constant that is known only when the pipeline starts, by its number: the
    /// answer of a subquery. It is replaced before code is generated.
    Late(usize),
}

/// What a node computes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Column number in the pipeline's source.
    Column(usize),
    /// A constant.
    Literal(Literal),
    /// One operand.
    Unary(UnaryOp, Arc<Expr>),
    /// Two operands.
    Binary(BinaryOp, Arc<Expr>, Arc<Expr>),
    /// Conversion to the node's type; one that does not fit is a fault, or null
    /// when `try_cast`.
    Cast {
        /// The value to convert.
        arg: Arc<Expr>,
        /// Null instead of a fault.
        try_cast: bool,
    },
    /// The first branch whose condition is true, else the last value (or null).
    /// Branches that are not taken are not computed, so they cannot fail.
    Case {
        /// Conditions and their values.
        branches: Vec<(Expr, Expr)>,
        /// The value when no condition holds.
        otherwise: Option<Arc<Expr>>,
    },
    /// The first argument that is not null.
    Coalesce(Vec<Expr>),
    /// Equal to one of the items, with three-valued logic; the items are literals.
    InList {
        /// The value to look for.
        arg: Arc<Expr>,
        /// What it is compared with.
        items: Vec<Expr>,
        /// `NOT IN`.
        negated: bool,
    },
    /// A field of a date or timestamp.
    Extract(DatePart, Arc<Expr>),
    /// The start of the period that holds the date or timestamp.
    Truncate(DatePart, Arc<Expr>),
    /// A date plus a number of calendar months.
    AddMonths(Arc<Expr>, Arc<Expr>),
    /// A function of text.
    Text(TextOp, Vec<Expr>),
    /// Whether the row found one of this relation, which was probed for a mark.
    Matched(usize),
    /// Which of the grouping sets the row goes on for, from 0.
    SetNumber,
    /// [`HASH_BITS`] bits that equal values have alike, whatever registers they are in; nulls
    /// equal one another.
    Hash(Vec<Expr>),
}

/// Operators of one operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each variant is its own documentation
pub enum UnaryOp {
    Not,
    Negate,
    IsNull,
    IsNotNull,
    /// The float with one zero and one NaN.
    FloatKey,
}

/// Operators of two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each variant is its own documentation
pub enum BinaryOp {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    IsDistinctFrom,
    IsNotDistinctFrom,
    And,
    Or,
}

/// Fields and periods of dates and timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each variant is its own documentation
pub enum DatePart {
    Year,
    Quarter,
    Month,
    Week,
    Day,
    DayOfWeek,
    DayOfYear,
    Hour,
    Minute,
    Second,
}

/// Functions of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each variant is its own documentation
pub enum TextOp {
    Like,
    NotLike,
    Substring,
    CharacterLength,
    ByteLength,
    Upper,
    Lower,
    Position,
    Contains,
    StartsWith,
    EndsWith,
    Left,
    Right,
    TrimLeft,
    TrimRight,
    Trim,
    SplitPart,
}

impl Expr {
    /// Column `index` of the source.
    pub fn column(index: usize, ty: Type, nullable: bool) -> Expr {
        Expr {
            kind: Kind::Column(index),
            ty,
            nullable,
        }
    }

    /// A constant; the null literal is nullable.
    pub fn literal(value: Literal, ty: Type) -> Expr {
        let nullable = value == Literal::Null;
        Expr {
            kind: Kind::Literal(value),
            ty,
            nullable,
        }
    }

    /// The hash of some values.
    pub fn hash(values: Vec<Expr>) -> Expr {
        Expr {
            kind: Kind::Hash(values),
            ty: Type::Int(IntWidth::W32),
            nullable: false,
        }
    }

    /// The expressions this one is computed from.
    pub fn children(&self) -> Vec<&Expr> {
        match &self.kind {
            Kind::Column(_) | Kind::Literal(_) | Kind::Matched(_) | Kind::SetNumber => vec![],
            Kind::Unary(_, a) | Kind::Extract(_, a) | Kind::Truncate(_, a) => vec![a],
            Kind::Cast { arg, .. } => vec![arg],
            Kind::Binary(_, a, b) | Kind::AddMonths(a, b) => vec![a, b],
            Kind::Case {
                branches,
                otherwise,
            } => {
                let mut all: Vec<&Expr> = Vec::new();
                for (condition, value) in branches {
                    all.extend([condition, value]);
                }
                all.extend(otherwise.as_deref());
                all
            }
            Kind::Coalesce(args) | Kind::Text(_, args) | Kind::Hash(args) => args.iter().collect(),
            Kind::InList { arg, items, .. } => {
                let mut all: Vec<&Expr> = vec![arg];
                all.extend(items);
                all
            }
        }
    }

    /// Calls `visit` on this expression and everything below it.
    pub fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        visit(self);
        for child in self.children() {
            child.walk(visit);
        }
    }
}

impl BinaryOp {
    /// The operator as SQL writes it.
    pub fn symbol(self) -> &'static str {
        match self {
            BinaryOp::Add => "+",
            BinaryOp::Subtract => "-",
            BinaryOp::Multiply => "*",
            BinaryOp::Divide => "/",
            BinaryOp::Modulo => "%",
            BinaryOp::Equal => "=",
            BinaryOp::NotEqual => "<>",
            BinaryOp::Less => "<",
            BinaryOp::LessOrEqual => "<=",
            BinaryOp::Greater => ">",
            BinaryOp::GreaterOrEqual => ">=",
            BinaryOp::IsDistinctFrom => "is distinct from",
            BinaryOp::IsNotDistinctFrom => "is not distinct from",
            BinaryOp::And => "and",
            BinaryOp::Or => "or",
        }
    }

    /// Whether this operator compares its operands and gives a boolean.
    pub fn is_comparison(self) -> bool {
        use BinaryOp::*;
        matches!(
            self,
            Equal | NotEqual | Less | LessOrEqual | Greater | GreaterOrEqual
        )
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Column(i) => write!(
                f,
                "c{i}:{}{}",
                self.ty,
                if self.nullable { "?" } else { "" }
            ),
            Kind::Literal(Literal::Null) => write!(f, "null:{}", self.ty),
            Kind::Literal(Literal::Bool(v)) => write!(f, "{v}"),
            Kind::Literal(Literal::Integer(v)) => write!(f, "{v}:{}", self.ty),
            Kind::Literal(Literal::Float(bits)) => {
                write!(f, "{:?}:{}", f64::from_bits(*bits), self.ty)
            }
            Kind::Literal(Literal::Text(text)) => write!(f, "{text:?}"),
            Kind::Literal(Literal::Late(number)) => write!(f, "late{number}:{}", self.ty),
            Kind::Unary(UnaryOp::Not, a) => write!(f, "not {a}"),
            Kind::Unary(UnaryOp::Negate, a) => write!(f, "-{a}"),
            Kind::Unary(UnaryOp::IsNull, a) => write!(f, "({a} is null)"),
            Kind::Unary(UnaryOp::IsNotNull, a) => write!(f, "({a} is not null)"),
            Kind::Unary(UnaryOp::FloatKey, a) => write!(f, "float_key({a})"),
            Kind::Binary(op, a, b) => write!(f, "({a} {} {b})", op.symbol()),
            Kind::Cast { arg, try_cast } => {
                write!(
                    f,
                    "{}({arg} as {})",
                    if *try_cast { "try_cast" } else { "cast" },
                    self.ty
                )
            }
            Kind::Case {
                branches,
                otherwise,
            } => {
                f.write_str("case")?;
                for (condition, value) in branches {
                    write!(f, " when {condition} then {value}")?;
                }
                if let Some(value) = otherwise {
                    write!(f, " else {value}")?;
                }
                f.write_str(" end")
            }
            Kind::Coalesce(args) => list(f, "coalesce", args),
            Kind::Hash(args) => list(f, "hash", args),
            Kind::InList {
                arg,
                items,
                negated,
            } => {
                write!(f, "({arg} {}", if *negated { "not " } else { "" })?;
                list(f, "in ", items)?;
                f.write_str(")")
            }
            Kind::Extract(part, a) => write!(f, "extract({part:?} from {a})"),
            Kind::Truncate(part, a) => write!(f, "truncate({a} to {part:?})"),
            Kind::AddMonths(a, b) => write!(f, "add_months({a}, {b})"),
            Kind::SetNumber => f.write_str("set"),
            Kind::Matched(relation) => write!(f, "matched({relation})"),
            Kind::Text(op, args) => list(f, &format!("{op:?}").to_lowercase(), args),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, name: &str, items: &[Expr]) -> fmt::Result {
    write!(f, "{name}(")?;
    for (i, item) in items.iter().enumerate() {
        write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
    }
    f.write_str(")")
}
