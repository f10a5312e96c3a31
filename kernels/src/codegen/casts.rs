//! Casts between times, and casts that give null where a value does not fit.

use super::dates::ticks_per_day;
use super::emit::{Emitter, Value, ValueRegister, full_register, wide_literal};
use super::error::Unsupported;
use crate::ir::{Expr, Range, Type};

/// What a cast does with a value that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Misfit {
    /// The row is a fault.
    Fault,
    /// Null.
    Null,
}

impl Emitter {
    /// A cast between dates and timestamps of any unit. What is lost is cut off: from a
    /// timestamp to a date downwards, between units towards zero, as on the CPU.
    pub(super) fn cast_time(
        &mut self,
        arg: &Expr,
        ty: Type,
        misfit: Misfit,
    ) -> Result<Value, Unsupported> {
        let refused = || Unsupported::expression(format!("a cast from {} to {ty}", arg.ty));
        let (from, to) = match (ticks_per_day(arg.ty), ticks_per_day(ty)) {
            (Some(from), Some(to)) => (from, to),
            _ => return Err(refused()),
        };
        let value = self.emit(arg)?;
        let (_, range) = value.integer()?;
        let wide = if to >= from {
            let factor = to / from;
            let exact = range.product(Range::point(i128::from(factor)));
            let exact = exact.ok_or_else(refused)?;
            let register = exact.register().name();
            let call = format!("multiply<{register}>({}, {factor}LL)", value.text);
            self.define(
                ValueRegister::Integer(exact.register(), exact),
                value.nullable,
                &call,
            )
        } else {
            let divisor = from / to;
            let (min, max) = (
                range.min / i128::from(divisor),
                range.max / i128::from(divisor),
            );
            let smaller = Range::new(min - 1, max + 1);
            let register = smaller.register();
            let call = match ty {
                Type::Date32 => {
                    format!("floored<{}>({}, {divisor}LL)", register.name(), value.text)
                }
                _ => format!("divide<i64>(thread, {}, {divisor}LL)", value.text),
            };
            let register = match ty {
                Type::Date32 => register,
                _ => crate::ir::Register::I64,
            };
            self.define(
                ValueRegister::Integer(register, smaller),
                value.nullable,
                &call,
            )
        };
        self.within(wide, ty, misfit)
    }

    /// A cast that gives null where the value does not fit.
    pub(super) fn try_cast(&mut self, arg: &Expr, ty: Type) -> Result<Value, Unsupported> {
        let never_fails = match (arg.ty, ty) {
            (from, to) if from == to => true,
            // Every number has a float next to it.
            (from, to) => to.is_float() && (from.is_integral() || from.is_float()),
        };
        if never_fails {
            return self.cast(arg, ty);
        }
        if ticks_per_day(arg.ty).is_some() && ticks_per_day(ty).is_some() {
            return self.cast_time(arg, ty, Misfit::Null);
        }
        let is_plain = |ty: Type| matches!(ty, Type::Int(_) | Type::UInt(_));
        if !is_plain(arg.ty) || !is_plain(ty) {
            let message = format!("a TRY_CAST from {} to {ty}", arg.ty);
            return Err(Unsupported::expression(message));
        }
        let value = self.emit(arg)?;
        self.within(value, ty, Misfit::Null)
    }

    /// The value, if it is one of its type.
    fn within(&mut self, value: Value, ty: Type, misfit: Misfit) -> Result<Value, Unsupported> {
        let (_, range) = value.integer()?;
        let bounds = ty.full_range().ok_or_else(|| Unsupported::data_type(ty))?;
        if range.min >= bounds.min && range.max <= bounds.max {
            return Ok(value);
        }
        let (min, max) = (wide_literal(bounds.min), wide_literal(bounds.max));
        let inside = range.intersect(bounds);
        let register = match misfit {
            Misfit::Fault => ValueRegister::Integer(inside.register(), inside),
            Misfit::Null => full_register(ty)?,
        };
        let (name, text) = (register.name(), &value.text);
        let call = match misfit {
            Misfit::Fault => {
                format!("narrow<{name}>(thread, {text}, {min}, {max}, FAULT_CAST_OVERFLOW)")
            }
            Misfit::Null => format!("narrow_or_null<{name}>({text}, {min}, {max})"),
        };
        Ok(self.define(register, value.nullable || misfit == Misfit::Null, &call))
    }
}
