//! Functions of text.

use super::emit::{Emitter, Value, ValueRegister};
use super::error::Unsupported;
use crate::ir::{Expr, Range, Register, TextOp};

impl Emitter {
    /// A function of text; arguments are checked by the planner that lowered them.
    pub(super) fn text(&mut self, op: TextOp, args: &[Expr]) -> Result<Value, Unsupported> {
        let values = args
            .iter()
            .map(|arg| self.emit(arg))
            .collect::<Result<Vec<_>, _>>()?;
        let nullable = values.iter().any(|value| value.nullable);
        let text = |i: usize| -> Result<&str, Unsupported> {
            match values.get(i) {
                Some(value) if value.register == ValueRegister::Text => Ok(&value.text),
                _ => Err(Unsupported::expression(format!(
                    "{op:?} of what is no text"
                ))),
            }
        };
        let number = |i: usize| -> Result<&str, Unsupported> {
            let value = values
                .get(i)
                .ok_or_else(|| Unsupported::expression(format!("{op:?} with too few arguments")))?;
            let (register, _) = value.integer()?;
            if register == Register::I128 {
                return Err(Unsupported::expression(format!(
                    "{op:?} with a 128-bit position"
                )));
            }
            Ok(&value.text)
        };
        // Neither is longer than a chunk's bytes, which 31 bits number.
        let length = ValueRegister::Integer(Register::I32, Range::new(0, i128::from(i32::MAX)));
        let (call, register) = match op {
            TextOp::Like => (
                format!("like({}, {})", text(0)?, text(1)?),
                ValueRegister::Bool,
            ),
            TextOp::NotLike => (
                format!("not3(like({}, {}))", text(0)?, text(1)?),
                ValueRegister::Bool,
            ),
            TextOp::CharacterLength => (format!("character_length({})", text(0)?), length),
            TextOp::ByteLength => (format!("byte_length({})", text(0)?), length),
            TextOp::Upper => (
                format!("fold_case<FOLD_UPPER>(thread, {})", text(0)?),
                ValueRegister::Text,
            ),
            TextOp::Lower => (
                format!("fold_case<FOLD_LOWER>(thread, {})", text(0)?),
                ValueRegister::Text,
            ),
            TextOp::Substring if values.len() == 2 => (
                format!("substring({}, {})", text(0)?, number(1)?),
                ValueRegister::Text,
            ),
            TextOp::Substring => (
                format!(
                    "substring(thread, {}, {}, {})",
                    text(0)?,
                    number(1)?,
                    number(2)?
                ),
                ValueRegister::Text,
            ),
            TextOp::Position => (format!("text_position({}, {})", text(0)?, text(1)?), length),
            TextOp::Contains | TextOp::StartsWith | TextOp::EndsWith => {
                let name = match op {
                    TextOp::Contains => "text_contains",
                    TextOp::StartsWith => "text_starts_with",
                    _ => "text_ends_with",
                };
                (
                    format!("{name}({}, {})", text(0)?, text(1)?),
                    ValueRegister::Bool,
                )
            }
            TextOp::Left | TextOp::Right => {
                let name = match op {
                    TextOp::Left => "text_left",
                    _ => "text_right",
                };
                (
                    format!("{name}({}, {})", text(0)?, number(1)?),
                    ValueRegister::Text,
                )
            }
            TextOp::TrimLeft | TextOp::TrimRight | TextOp::Trim => {
                let sides = match op {
                    TextOp::TrimLeft => "SIDE_LEFT",
                    TextOp::TrimRight => "SIDE_RIGHT",
                    _ => "SIDE_BOTH",
                };
                (
                    format!("text_trim<{sides}>({}, {})", text(0)?, text(1)?),
                    ValueRegister::Text,
                )
            }
            TextOp::SplitPart => (
                format!("split_part({}, {}, {})", text(0)?, text(1)?, number(2)?),
                ValueRegister::Text,
            ),
        };
        Ok(self.define(register, nullable, &call))
    }
}
