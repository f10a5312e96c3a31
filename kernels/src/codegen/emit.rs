//! Expressions to statements: one named call a line, each subexpression once.
//!
//! ```text
//! filter  (c0:i32? < 24:i32)          const auto v0 = load_optional<i32>(p.c0, row);
//!                                      const auto v1 = less<i32>(v0, p.k0);
//! ```
//!
//! Every value carries the range that is proved for it. The range picks the
//! register, and an operation whose result may leave its SQL type is followed by a
//! check; one that cannot is not.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::casts::Misfit;
use super::error::Unsupported;
use super::steps::hash_of;
use crate::ir::{
    BinaryOp, Expr, HASH_BITS, Kind, Literal, RELATION_COLUMNS, Range, Register, Type, UnaryOp,
};

/// How a value is held in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueRegister {
    /// `bool`.
    Bool,
    /// An integer register with the range proved for it.
    Integer(Register, Range),
    /// `f32`.
    F32,
    /// `f64`.
    F64,
    /// `Text`: a view of UTF-8 bytes.
    Text,
}

impl ValueRegister {
    /// The type's name in device code.
    pub fn name(self) -> &'static str {
        match self {
            ValueRegister::Bool => "bool",
            ValueRegister::Integer(register, _) => register.name(),
            ValueRegister::F32 => "f32",
            ValueRegister::F64 => "f64",
            ValueRegister::Text => "Text",
        }
    }
}

/// An emitted value: the text that names it and what is known about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// A variable or a parameter, such as `v3` or `p.k0`.
    pub text: String,
    /// How it is held.
    pub register: ValueRegister,
    /// Whether it is an `Opt`.
    pub nullable: bool,
}

impl Value {
    /// The register and range of an integral value.
    pub fn integer(&self) -> Result<(Register, Range), Unsupported> {
        match self.register {
            ValueRegister::Integer(register, range) => Ok((register, range)),
            other => Err(Unsupported::expression(format!(
                "integer arithmetic on {}",
                other.name()
            ))),
        }
    }
}

/// A constant of the query in the kernel's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Field name, such as `k0`.
    pub name: String,
    /// The value.
    pub literal: Literal,
    /// How the field is held.
    pub register: ValueRegister,
}

/// A column as the emitter sees it: what is stored and what is proved about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnShape {
    /// The value's register; the range is what statistics or staging proved.
    pub register: ValueRegister,
    /// The C name of the stored element, such as `i16`.
    pub stored: &'static str,
    /// Whether the column has nulls.
    pub nullable: bool,
}

impl ColumnShape {
    /// The type of a loaded value in device code.
    pub fn value_name(&self) -> String {
        let register = self.register.name();
        if self.nullable {
            format!("Opt<{register}>")
        } else {
            register.to_string()
        }
    }

    /// The call that loads column `index` at `row`.
    pub fn load_call(&self, index: usize, row: &str) -> String {
        if self.register == ValueRegister::Text {
            let load = if self.nullable {
                "load_text_optional"
            } else {
                "load_text"
            };
            let offset = if self.stored == "long_text" {
                "i64"
            } else {
                "i32"
            };
            return format!("{load}<{offset}>(p.c{index}, {row})");
        }
        let load = if self.nullable {
            "load_optional"
        } else {
            "load"
        };
        format!(
            "{load}<{}, {}>(p.c{index}, {row})",
            self.register.name(),
            self.stored
        )
    }

    /// Whether the column is text, which has offsets beside its bytes.
    pub fn is_text(&self) -> bool {
        self.register == ValueRegister::Text
    }

    /// Bytes of a stored element; of text, what a row takes beside its bytes.
    pub fn stored_bytes(&self) -> usize {
        match self.stored {
            "i8" | "u8" => 1,
            "i16" => 2,
            "i32" | "f32" => 4,
            "i64" | "f64" => 8,
            _ => 16,
        }
    }
}

/// Emits the statements of one kernel body.
#[derive(Debug, Default)]
pub struct Emitter {
    body: String,
    depth: usize,
    n_values: usize,
    columns: HashMap<usize, ColumnShape>,
    parameters: Vec<Parameter>,
    /// Columns that stand in the tile `t<column>[r]` already.
    preloaded: HashSet<usize>,
    /// What is already computed, innermost block last.
    scopes: Vec<HashMap<Expr, Value>>,
    /// How a row leaves, innermost loop or function last.
    exits: Vec<&'static str>,
    /// Relations whose row may be missing: their columns are then null.
    outer: HashSet<usize>,
}

impl Emitter {
    /// An emitter over these columns, by their number in the source.
    pub fn new(columns: HashMap<usize, ColumnShape>) -> Emitter {
        Emitter {
            columns,
            depth: 1,
            scopes: vec![HashMap::new()],
            ..Emitter::default()
        }
    }

    /// These columns are in tiles when the body runs: column 3 of row `r` is `t3[r]`.
    pub fn preload(&mut self, columns: impl IntoIterator<Item = usize>) {
        self.preloaded.extend(columns);
    }

    /// Takes the statements so far. What comes next runs elsewhere: nothing that was
    /// computed is known there, and no column is in a tile.
    pub fn next_phase(&mut self) -> String {
        self.scopes = vec![HashMap::new(); self.scopes.len()];
        self.preloaded.clear();
        std::mem::take(&mut self.body)
    }

    /// The statements so far.
    pub fn body(&self) -> &str {
        &self.body
    }

    /// How each column is read.
    pub fn columns(&self) -> &HashMap<usize, ColumnShape> {
        &self.columns
    }

    /// The constants used so far, in the order of their fields.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Appends one line at the current depth.
    pub fn line(&mut self, text: &str) {
        for _ in 0..self.depth {
            self.body.push_str("  ");
        }
        self.body.push_str(text);
        self.body.push('\n');
    }

    /// Opens a block: what it computes is not known outside of it.
    pub fn open(&mut self, head: &str) {
        self.line(&format!("{head} {{"));
        self.depth += 1;
        self.scopes.push(HashMap::new());
    }

    /// Closes the innermost block.
    pub fn close(&mut self) {
        self.scopes.pop();
        self.depth -= 1;
        self.line("}");
    }

    /// Opens a loop that a row stays in for each of its matches.
    pub fn open_loop(&mut self, head: &str) {
        self.open(head);
        self.exits.push("continue");
    }

    /// Closes the innermost loop.
    pub fn close_loop(&mut self) {
        self.exits.pop();
        self.close();
    }

    /// From here on a row leaves by this statement.
    pub fn push_exit(&mut self, exit: &'static str) {
        self.exits.push(exit);
    }

    /// Ends what the last [`Emitter::push_exit`] began.
    pub fn pop_exit(&mut self) {
        self.exits.pop();
    }

    /// The statement by which a row leaves here.
    pub fn exit(&self) -> &'static str {
        self.exits.last().copied().unwrap_or("continue")
    }

    /// Row `r<relation>` can be read from here on; it may be missing when `is_outer`.
    pub fn relation(&mut self, relation: usize, is_outer: bool) {
        if is_outer {
            self.outer.insert(relation);
        }
    }

    /// Emits a condition as WHERE reads it: rows for which it is not true leave, one
    /// test a conjunct, so that columns of later conjuncts are read only for rows that
    /// passed the earlier ones.
    pub fn filter(&mut self, condition: &Expr) -> Result<(), Unsupported> {
        if let Kind::Binary(BinaryOp::And, left, right) = &condition.kind {
            self.filter(left)?;
            return self.filter(right);
        }
        let value = self.emit(condition)?;
        let exit = self.exit();
        self.line(&format!("if (!is_true({})) {exit};", value.text));
        Ok(())
    }

    /// Emits whether two values are equal or both null.
    pub fn not_distinct(&mut self, left: &Expr, right: &Expr) -> Result<Value, Unsupported> {
        let (a, b) = (self.emit(left)?, self.emit(right)?);
        let (a, b, register) = self.common(a, left.ty, b, right.ty)?;
        let call = format!("not_distinct<{register}>({}, {})", a.text, b.text);
        Ok(self.define(ValueRegister::Bool, false, &call))
    }

    /// Emits an expression and returns the value that holds it.
    pub fn emit(&mut self, expr: &Expr) -> Result<Value, Unsupported> {
        if let Some(known) = self.scopes.iter().rev().find_map(|scope| scope.get(expr)) {
            return Ok(known.clone());
        }
        let value = self.emit_new(expr)?;
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(expr.clone(), value.clone());
        }
        Ok(value)
    }

    fn emit_new(&mut self, expr: &Expr) -> Result<Value, Unsupported> {
        match &expr.kind {
            Kind::Column(index) => self.column(*index, expr),
            Kind::Literal(literal) => self.literal(literal, expr.ty),
            Kind::Unary(op, arg) => self.unary(*op, arg, expr.ty),
            Kind::Binary(op, left, right) => self.binary(*op, left, right, expr),
            Kind::Cast {
                arg,
                try_cast: false,
            } => self.cast(arg, expr.ty),
            Kind::Case {
                branches,
                otherwise,
            } => self.case(branches, otherwise.as_deref(), expr),
            Kind::Coalesce(args) => self.coalesce(args, expr),
            Kind::InList {
                arg,
                items,
                negated,
            } => self.in_list(arg, items, *negated),
            Kind::Text(op, args) => self.text(*op, args),
            Kind::Hash(args) => self.hash(args),
            Kind::SetNumber => {
                let range = Range::new(0, i128::from(i32::MAX));
                let register = ValueRegister::Integer(range.register(), range);
                Ok(self.define(register, false, "static_cast<i32>(set)"))
            }
            Kind::Matched(relation) => {
                let call = format!("r{relation} != NO_ROW");
                Ok(self.define(ValueRegister::Bool, false, &call))
            }
            Kind::Extract(part, arg) => self.extract(*part, arg),
            Kind::Truncate(part, arg) => self.truncate(*part, arg, expr.ty),
            Kind::Cast {
                arg,
                try_cast: true,
            } => self.try_cast(arg, expr.ty),
            Kind::AddMonths(..) => Err(Unsupported::expression(expr)),
        }
    }

    pub(super) fn define(&mut self, register: ValueRegister, nullable: bool, call: &str) -> Value {
        let text = format!("v{}", self.n_values);
        self.n_values += 1;
        self.line(&format!("const auto {text} = {call};"));
        Value {
            text,
            register,
            nullable,
        }
    }

    fn column(&mut self, index: usize, expr: &Expr) -> Result<Value, Unsupported> {
        let shape = *self
            .columns
            .get(&index)
            .ok_or_else(|| Unsupported::data_type(expr.ty))?;
        if self.preloaded.contains(&index) {
            return Ok(Value {
                text: format!("t{index}[r]"),
                register: shape.register,
                nullable: shape.nullable,
            });
        }
        let relation = index / RELATION_COLUMNS;
        if relation == 0 {
            let call = shape.load_call(index, "thread.row");
            return Ok(self.define(shape.register, shape.nullable, &call));
        }
        let row = format!("r{relation}");
        let call = shape.load_call(index, &row);
        if !self.outer.contains(&relation) {
            return Ok(self.define(shape.register, shape.nullable, &call));
        }
        let missing = format!("null<{}>()", shape.register.name());
        let call = format!("{row} == NO_ROW ? {missing} : as_opt({call})");
        Ok(self.define(shape.register, true, &call))
    }

    fn literal(&mut self, literal: &Literal, ty: Type) -> Result<Value, Unsupported> {
        let register = match literal {
            Literal::Null => {
                let register = full_register(ty)?;
                return Ok(Value {
                    text: format!("null<{}>()", register.name()),
                    register,
                    nullable: true,
                });
            }
            Literal::Late(_) => {
                return Err(Unsupported::expression("a constant that is not known yet"));
            }
            Literal::Bool(_) => ValueRegister::Bool,
            Literal::Integer(value) => {
                // Rounded, so that one kernel serves other constants of that size.
                let range = Range::point(*value).rounded();
                ValueRegister::Integer(range.register(), range)
            }
            Literal::Float(_) if ty == Type::Float32 => ValueRegister::F32,
            Literal::Float(_) => ValueRegister::F64,
            Literal::Text(_) => ValueRegister::Text,
        };
        let name = format!("k{}", self.parameters.len());
        let text = match register {
            ValueRegister::Text => format!("text_of(p.{name})"),
            _ => format!("p.{name}"),
        };
        self.parameters.push(Parameter {
            name,
            literal: literal.clone(),
            register,
        });
        Ok(Value {
            text,
            register,
            nullable: false,
        })
    }

    fn unary(&mut self, op: UnaryOp, arg: &Expr, ty: Type) -> Result<Value, Unsupported> {
        let value = self.emit(arg)?;
        let text = value.text.as_str();
        Ok(match op {
            UnaryOp::Not => self.define(
                ValueRegister::Bool,
                value.nullable,
                &format!("not3({text})"),
            ),
            UnaryOp::IsNull => {
                self.define(ValueRegister::Bool, false, &format!("!is_valid({text})"))
            }
            UnaryOp::IsNotNull => {
                self.define(ValueRegister::Bool, false, &format!("is_valid({text})"))
            }
            UnaryOp::FloatKey if !ty.is_float() => value,
            UnaryOp::FloatKey => {
                let call = format!("float_key<{}>({text})", value.register.name());
                self.define(value.register, value.nullable, &call)
            }
            UnaryOp::Negate if ty.is_float() => {
                let call = format!("negate<{}>({text})", value.register.name());
                self.define(value.register, value.nullable, &call)
            }
            UnaryOp::Negate => {
                let (_, range) = value.integer()?;
                let exact = range
                    .negated()
                    .ok_or_else(|| Unsupported::expression("negation past 128 bits"))?;
                let call = format!("negate<{}>({text})", exact.register().name());
                let wide = self.define(
                    ValueRegister::Integer(exact.register(), exact),
                    value.nullable,
                    &call,
                );
                self.checked(wide, ty)?
            }
        })
    }

    fn binary(
        &mut self,
        op: BinaryOp,
        left: &Expr,
        right: &Expr,
        expr: &Expr,
    ) -> Result<Value, Unsupported> {
        use BinaryOp::*;
        let a = self.emit(left)?;
        let b = self.emit(right)?;
        let nullable = a.nullable || b.nullable;
        match op {
            And | Or => {
                let call = if op == And { "and3" } else { "or3" };
                let call = format!("{call}({}, {})", a.text, b.text);
                Ok(self.define(ValueRegister::Bool, nullable, &call))
            }
            IsDistinctFrom | IsNotDistinctFrom => {
                let (a, b, register) = self.common(a, left.ty, b, right.ty)?;
                let not = if op == IsDistinctFrom { "!" } else { "" };
                let call = format!("{not}not_distinct<{}>({}, {})", register, a.text, b.text);
                Ok(self.define(ValueRegister::Bool, false, &call))
            }
            _ if op.is_comparison() => {
                let (a, b, register) = self.common(a, left.ty, b, right.ty)?;
                let (name, x, y) = match op {
                    Equal => ("equal", &a, &b),
                    NotEqual => ("not_equal", &a, &b),
                    Less => ("less", &a, &b),
                    LessOrEqual => ("less_or_equal", &a, &b),
                    Greater => ("less", &b, &a),
                    _ => ("less_or_equal", &b, &a),
                };
                let call = format!("{name}<{register}>({}, {})", x.text, y.text);
                Ok(self.define(ValueRegister::Bool, nullable, &call))
            }
            _ if expr.ty.is_float() => {
                let name = match op {
                    Add => "add",
                    Subtract => "subtract",
                    Multiply => "multiply",
                    // By IEEE 754, as on the CPU: division by zero is no error.
                    Divide => "divide_float",
                    _ => return Err(Unsupported::expression(expr)),
                };
                let register = full_register(expr.ty)?;
                let call = format!("{name}<{}>({}, {})", register.name(), a.text, b.text);
                Ok(self.define(register, nullable, &call))
            }
            _ => self.integer_arithmetic(op, a, left.ty, b, right.ty, expr),
        }
    }

    fn integer_arithmetic(
        &mut self,
        op: BinaryOp,
        a: Value,
        a_type: Type,
        b: Value,
        b_type: Type,
        expr: &Expr,
    ) -> Result<Value, Unsupported> {
        let nullable = a.nullable || b.nullable;
        let (a, b) = match (op, expr.ty) {
            // The scale of a product is the sum of the scales already.
            (BinaryOp::Multiply, Type::Decimal { scale, .. }) => {
                if scale_of(a_type) + scale_of(b_type) != scale {
                    return Err(Unsupported::expression(expr));
                }
                (a, b)
            }
            (BinaryOp::Divide, Type::Decimal { scale, .. }) => {
                // a / 10^sa divided by b / 10^sb, in units of 10^-scale.
                let shift = scale - scale_of(a_type) + scale_of(b_type);
                if shift < 0 {
                    return Err(Unsupported::expression(expr));
                }
                (self.shift_up(a, shift)?, b)
            }
            (_, Type::Decimal { scale, .. }) => (
                self.shift_up(a, scale - scale_of(a_type))?,
                self.shift_up(b, scale - scale_of(b_type))?,
            ),
            _ => (a, b),
        };
        let ((_, x), (_, y)) = (a.integer()?, b.integer()?);
        let fault = overflow_fault(expr.ty);
        let (name, exact) = match op {
            BinaryOp::Add => ("add", x.sum(y)),
            BinaryOp::Subtract => ("subtract", x.difference(y)),
            BinaryOp::Multiply => ("multiply", x.product(y)),
            BinaryOp::Divide => {
                let bound = x.union(x.negated().unwrap_or(x));
                let register = bound.register();
                let call = format!(
                    "divide<{}>(thread, {}, {})",
                    register.name(),
                    a.text,
                    b.text
                );
                let quotient =
                    self.define(ValueRegister::Integer(register, bound), nullable, &call);
                return self.checked(quotient, expr.ty);
            }
            _ => {
                let bound = x.union(y).union(Range::point(0));
                let bound = bound.union(bound.negated().unwrap_or(bound));
                let register = bound.register();
                let call = format!(
                    "modulo<{}>(thread, {}, {})",
                    register.name(),
                    a.text,
                    b.text
                );
                return Ok(self.define(ValueRegister::Integer(register, bound), nullable, &call));
            }
        };
        match exact {
            Some(range) => {
                let register = range.register();
                let call = format!("{name}<{}>({}, {})", register.name(), a.text, b.text);
                let wide = self.define(ValueRegister::Integer(register, range), nullable, &call);
                self.checked(wide, expr.ty)
            }
            None => {
                let call = format!("{name}_checked(thread, {}, {}, {fault})", a.text, b.text);
                let range = Range::new(i128::MIN, i128::MAX);
                let wide = self.define(
                    ValueRegister::Integer(Register::I128, range),
                    nullable,
                    &call,
                );
                self.checked(wide, expr.ty)
            }
        }
    }

    /// Checks a value against the bounds of its SQL type, when its range does not
    /// prove them, and holds it in the register of those bounds.
    pub(super) fn checked(&mut self, value: Value, ty: Type) -> Result<Value, Unsupported> {
        let (_, range) = value.integer()?;
        let Some(bounds) = ty.full_range() else {
            return Err(Unsupported::data_type(ty));
        };
        // Decimal results may use all of 128 bits on the CPU path too; the digits
        // are checked where a value is stored or summed.
        if range.min >= bounds.min && range.max <= bounds.max {
            return Ok(value);
        }
        let inside = range.intersect(bounds);
        let register = inside.register();
        let call = format!(
            "narrow<{}>(thread, {}, {}, {}, {})",
            register.name(),
            value.text,
            wide_literal(bounds.min),
            wide_literal(bounds.max),
            overflow_fault(ty)
        );
        Ok(self.define(
            ValueRegister::Integer(register, inside),
            value.nullable,
            &call,
        ))
    }

    /// Multiplies by a power of ten.
    fn shift_up(&mut self, value: Value, digits: i8) -> Result<Value, Unsupported> {
        if digits == 0 {
            return Ok(value);
        }
        let digits =
            u32::try_from(digits).map_err(|_| Unsupported::expression("a negative rescale"))?;
        let power = 10i128
            .checked_pow(digits)
            .ok_or_else(|| Unsupported::expression("a rescale past 38 digits"))?;
        let (_, range) = value.integer()?;
        match range.product(Range::point(power)) {
            Some(range) => {
                let register = range.register();
                let call = format!(
                    "multiply<{}>({}, {})",
                    register.name(),
                    value.text,
                    wide_literal(power)
                );
                Ok(self.define(
                    ValueRegister::Integer(register, range),
                    value.nullable,
                    &call,
                ))
            }
            None => {
                let call = format!(
                    "multiply_checked(thread, {}, {}, FAULT_DECIMAL_OVERFLOW)",
                    value.text,
                    wide_literal(power)
                );
                let range = Range::new(i128::MIN, i128::MAX);
                Ok(self.define(
                    ValueRegister::Integer(Register::I128, range),
                    value.nullable,
                    &call,
                ))
            }
        }
    }

    /// Brings two values to one scale and names the register that holds both.
    fn common(
        &mut self,
        a: Value,
        a_type: Type,
        b: Value,
        b_type: Type,
    ) -> Result<(Value, Value, &'static str), Unsupported> {
        match (a.register, b.register) {
            (ValueRegister::Integer(..), ValueRegister::Integer(..)) => {
                let scale = scale_of(a_type).max(scale_of(b_type));
                let a = self.shift_up(a, scale - scale_of(a_type))?;
                let b = self.shift_up(b, scale - scale_of(b_type))?;
                let register = a.integer()?.0.max(b.integer()?.0);
                Ok((a, b, register.name()))
            }
            (x, y) if x.name() == y.name() => Ok((a, b, x.name())),
            (ValueRegister::F32 | ValueRegister::F64, ValueRegister::F32 | ValueRegister::F64) => {
                Ok((a, b, "f64"))
            }
            (x, y) => Err(Unsupported::expression(format!(
                "a comparison of {} with {}",
                x.name(),
                y.name()
            ))),
        }
    }

    pub(super) fn cast(&mut self, arg: &Expr, ty: Type) -> Result<Value, Unsupported> {
        if arg.ty != ty && is_time(arg.ty) && is_time(ty) {
            return self.cast_time(arg, ty, Misfit::Fault);
        }
        let value = self.emit(arg)?;
        match (arg.ty, ty) {
            (from, to) if from == to => Ok(value),
            (from, Type::Float64 | Type::Float32) if scale_of(from) == 0 && from != Type::Utf8 => {
                let register = full_register(ty)?;
                let call = format!("convert<{}>({})", register.name(), value.text);
                Ok(self.define(register, value.nullable, &call))
            }
            (Type::Decimal { scale, .. }, Type::Float64 | Type::Float32) => {
                let register = full_register(ty)?;
                let power = format!("1e{scale}");
                let call = format!("unscaled<{}>({}, {power})", register.name(), value.text);
                Ok(self.define(register, value.nullable, &call))
            }
            (from, to) if from.is_float() && to.is_integral() && !is_time(to) => {
                let bounds = to.full_range().ok_or_else(|| Unsupported::data_type(to))?;
                let register = bounds.register();
                let (name, power) = match to {
                    Type::Decimal { scale, .. } => ("rounded", scale),
                    _ => ("truncated", 0),
                };
                let call = format!(
                    "{name}<{}>(thread, {}, 1e{power}, {}, {}, FAULT_CAST_OVERFLOW)",
                    register.name(),
                    value.text,
                    wide_literal(bounds.min),
                    wide_literal(bounds.max)
                );
                let register = ValueRegister::Integer(register, bounds);
                Ok(self.define(register, value.nullable, &call))
            }
            (from, to)
                if from.is_integral() && to.is_integral() && !is_time(from) && !is_time(to) =>
            {
                let shift = scale_of(to) - scale_of(from);
                let value = if shift >= 0 {
                    self.shift_up(value, shift)?
                } else {
                    self.shift_down(value, -shift, matches!(to, Type::Decimal { .. }))?
                };
                self.checked(value, to)
            }
            _ => Err(Unsupported::expression(format!(
                "a cast from {} to {ty}",
                arg.ty
            ))),
        }
    }

    /// Divides by a power of ten: half away from zero between decimals, towards
    /// zero when the result is an integer.
    fn shift_down(
        &mut self,
        value: Value,
        digits: i8,
        half_up: bool,
    ) -> Result<Value, Unsupported> {
        let digits =
            u32::try_from(digits).map_err(|_| Unsupported::expression("a negative rescale"))?;
        let power = 10i128
            .checked_pow(digits)
            .ok_or_else(|| Unsupported::expression("a rescale past 38 digits"))?;
        let (register, range) = value.integer()?;
        // Adding half a unit must stay inside 128 bits.
        if half_up && (range.max > i128::MAX - power / 2 || range.min < i128::MIN + power / 2) {
            return Err(Unsupported::expression(
                "rounding a decimal of unbounded size",
            ));
        }
        let smaller = Range::new(range.min / power - 1, range.max / power + 1);
        let call = if half_up {
            format!(
                "divide_half_up<{}>({}, {})",
                smaller.register().name(),
                value.text,
                wide_literal(power)
            )
        } else if range.fits(64) {
            format!(
                "divide<{}>(thread, {}, {}LL)",
                register.name(),
                value.text,
                power
            )
        } else {
            format!(
                "divide<i128>(thread, {}, {})",
                value.text,
                wide_literal(power)
            )
        };
        let register = if half_up {
            smaller.register()
        } else if range.fits(64) {
            register
        } else {
            Register::I128
        };
        Ok(self.define(
            ValueRegister::Integer(register, smaller),
            value.nullable,
            &call,
        ))
    }

    fn case(
        &mut self,
        branches: &[(Expr, Expr)],
        otherwise: Option<&Expr>,
        expr: &Expr,
    ) -> Result<Value, Unsupported> {
        // The widest register of the type: branches are known only when emitted.
        let register = full_register(expr.ty)?;
        let text = format!("v{}", self.n_values);
        self.n_values += 1;
        let ctype = if expr.nullable {
            format!("Opt<{}>", register.name())
        } else {
            register.name().to_string()
        };
        self.line(&format!("{ctype} {text}{{}};"));
        for (condition, value) in branches {
            let condition = self.emit(condition)?;
            self.line(&format!("if (is_true({})) {{", condition.text));
            self.assign(&text, value, register, expr.nullable)?;
            self.line("} else {");
            // What an else branch computes is not known to the branches beside it.
            self.depth += 1;
            self.scopes.push(HashMap::new());
        }
        match otherwise {
            Some(value) => self.assign(&text, value, register, expr.nullable)?,
            None => self.line(&format!("{text} = null<{}>();", register.name())),
        }
        for _ in branches {
            self.depth -= 1;
            self.scopes.pop();
            self.line("}");
        }
        Ok(Value {
            text,
            register,
            nullable: expr.nullable,
        })
    }

    fn assign(
        &mut self,
        target: &str,
        expr: &Expr,
        register: ValueRegister,
        nullable: bool,
    ) -> Result<(), Unsupported> {
        self.depth += 1;
        self.scopes.push(HashMap::new());
        let value = self.emit(expr)?;
        let converted = format!("convert<{}>({})", register.name(), value.text);
        if nullable {
            self.line(&format!("{target} = as_opt({converted});"));
        } else {
            self.line(&format!("{target} = {converted};"));
        }
        self.scopes.pop();
        self.depth -= 1;
        Ok(())
    }

    fn coalesce(&mut self, args: &[Expr], expr: &Expr) -> Result<Value, Unsupported> {
        let mut branches = Vec::new();
        let (last, firsts) = args
            .split_last()
            .ok_or_else(|| Unsupported::expression("coalesce without arguments"))?;
        for arg in firsts {
            let condition = Expr {
                kind: Kind::Unary(UnaryOp::IsNotNull, std::sync::Arc::new(arg.clone())),
                ty: Type::Bool,
                nullable: false,
            };
            branches.push((condition, arg.clone()));
        }
        // A branch is taken only when its value is not null, yet the value's type
        // stays optional; so the result is too.
        let expr = Expr {
            nullable: true,
            ..expr.clone()
        };
        self.case(&branches, Some(last), &expr)
    }

    /// The upper bits of the hash that join tables use the lower ones of.
    fn hash(&mut self, args: &[Expr]) -> Result<Value, Unsupported> {
        let values = args.iter().map(|arg| self.emit(arg));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let range = Range::new(0, (1 << HASH_BITS) - 1);
        let register = ValueRegister::Integer(range.register(), range);
        let shift = 64 - HASH_BITS;
        let call = format!("static_cast<i32>({} >> {shift})", hash_of(&values));
        Ok(self.define(register, false, &call))
    }

    fn in_list(&mut self, arg: &Expr, items: &[Expr], negated: bool) -> Result<Value, Unsupported> {
        let value = self.emit(arg)?;
        let mut found: Option<Value> = None;
        for item in items {
            let literal = self.emit(item)?;
            let (a, b, register) = self.common(value.clone(), arg.ty, literal, item.ty)?;
            let call = format!("equal<{register}>({}, {})", a.text, b.text);
            let same = self.define(ValueRegister::Bool, a.nullable || b.nullable, &call);
            found = Some(match found {
                None => same,
                Some(before) => {
                    let call = format!("or3({}, {})", before.text, same.text);
                    self.define(ValueRegister::Bool, before.nullable || same.nullable, &call)
                }
            });
        }
        let found = found.ok_or_else(|| Unsupported::expression("IN with an empty list"))?;
        if !negated {
            return Ok(found);
        }
        let call = format!("not3({})", found.text);
        Ok(self.define(ValueRegister::Bool, found.nullable, &call))
    }
}

/// The register that holds every value of a type.
pub(super) fn full_register(ty: Type) -> Result<ValueRegister, Unsupported> {
    Ok(match ty {
        Type::Bool => ValueRegister::Bool,
        Type::Float32 => ValueRegister::F32,
        Type::Float64 => ValueRegister::F64,
        Type::Utf8 => ValueRegister::Text,
        _ => {
            let range = ty.full_range().ok_or_else(|| Unsupported::data_type(ty))?;
            ValueRegister::Integer(range.register(), range)
        }
    })
}

fn scale_of(ty: Type) -> i8 {
    match ty {
        Type::Decimal { scale, .. } => scale,
        _ => 0,
    }
}

fn is_time(ty: Type) -> bool {
    matches!(ty, Type::Date32 | Type::Timestamp(_))
}

pub(super) fn overflow_fault(ty: Type) -> &'static str {
    match ty {
        Type::Decimal { .. } => "FAULT_DECIMAL_OVERFLOW",
        _ => "FAULT_INTEGER_OVERFLOW",
    }
}

/// A 128-bit constant: C++ has no literal for one.
pub(super) fn wide_literal(value: i128) -> String {
    if i64::try_from(value).is_ok() && value != i128::from(i64::MIN) {
        return format!("static_cast<i128>({value}LL)");
    }
    let bits = value as u128;
    let mut text = String::new();
    let _ = write!(
        text,
        "static_cast<i128>((static_cast<u128>(0x{:x}ULL) << 64) | 0x{:x}ULL)",
        (bits >> 64) as u64,
        bits as u64
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::IntWidth;
    use std::sync::Arc;

    fn shape(bits: u32, min: i128, max: i128, nullable: bool) -> ColumnShape {
        let range = Range::new(min, max);
        ColumnShape {
            register: ValueRegister::Integer(range.register(), range),
            stored: match bits {
                8 => "i8",
                16 => "i16",
                32 => "i32",
                _ => "i64",
            },
            nullable,
        }
    }

    fn binary(op: BinaryOp, a: Expr, b: Expr, ty: Type) -> Expr {
        let nullable = a.nullable || b.nullable;
        Expr {
            kind: Kind::Binary(op, Arc::new(a), Arc::new(b)),
            ty,
            nullable,
        }
    }

    #[test]
    fn a_proved_product_carries_no_check() {
        let money = Type::Decimal {
            precision: 15,
            scale: 2,
        };
        let product = Type::Decimal {
            precision: 31,
            scale: 4,
        };
        let columns = HashMap::from([
            (0, shape(32, 0, (1 << 24) - 1, false)),
            (1, shape(8, 0, 15, false)),
        ]);
        let mut emitter = Emitter::new(columns);
        let expr = binary(
            BinaryOp::Multiply,
            Expr::column(0, money, false),
            Expr::column(1, money, false),
            product,
        );
        let value = emitter.emit(&expr).unwrap();
        assert_eq!(value.register.name(), "i32");
        assert_eq!(
            emitter.body(),
            "  const auto v0 = load<i32, i32>(p.c0, thread.row);\n  \
               const auto v1 = load<i32, i8>(p.c1, thread.row);\n  \
               const auto v2 = multiply<i32>(v0, v1);\n"
        );
    }

    #[test]
    fn an_unproved_sum_is_checked_against_its_type() {
        let int = Type::Int(IntWidth::W32);
        let full = int.full_range().unwrap();
        let columns = HashMap::from([(0, shape(32, full.min, full.max, true))]);
        let mut emitter = Emitter::new(columns);
        let one = Expr::literal(Literal::Integer(1), int);
        let expr = binary(BinaryOp::Add, Expr::column(0, int, true), one, int);
        let value = emitter.emit(&expr).unwrap();
        assert_eq!(value.register.name(), "i32");
        assert!(
            emitter.body().contains("add<i64>(v0, p.k0)"),
            "{}",
            emitter.body()
        );
        assert!(
            emitter.body().contains("narrow<i32>(thread, v1"),
            "{}",
            emitter.body()
        );
    }

    #[test]
    fn equal_subexpressions_are_computed_once() {
        let int = Type::Int(IntWidth::W32);
        let columns = HashMap::from([(0, shape(32, 0, 100, false))]);
        let mut emitter = Emitter::new(columns);
        let column = Expr::column(0, int, false);
        let square = binary(BinaryOp::Multiply, column.clone(), column, int);
        let sum = binary(BinaryOp::Add, square.clone(), square, int);
        emitter.emit(&sum).unwrap();
        assert_eq!(emitter.body().matches("load<").count(), 1);
        assert_eq!(emitter.body().matches("multiply<").count(), 1);
    }

    #[test]
    fn a_sum_of_text_is_refused_with_a_reason() {
        let mut emitter = Emitter::new(HashMap::new());
        let text = Expr::literal(Literal::Text("x".into()), Type::Utf8);
        let expr = binary(BinaryOp::Add, text.clone(), text, Type::I64);
        let refused = emitter.emit(&expr).unwrap_err();
        assert_eq!(refused.code, "unsupported-expression");
    }
}
