//! The columns of a row in window order: what is passed, and what each function gives.

use super::emit::{Emitter, Value, ValueRegister, full_register, overflow_fault, wide_literal};
use super::error::Unsupported;
use super::rows::OutputShape;
use super::window_totals::{CallTotals, Total, TotalKind, WINDOW_ROWS_MAX, holds_own_row, read};
use crate::ir::{
    Bound, Expr, Frame, FrameUnit, Kind, Literal, Range, SortKey, Type, Window, WindowCall,
    WindowFunction,
};

/// Emits the function that gives the value of the row at a place. It must come before
/// anything is computed for one row.
pub(super) fn emit_value(
    emitter: &mut Emitter,
    name: &str,
    expr: &Expr,
) -> Result<Value, Unsupported> {
    emitter.open(&format!("const auto {name} = [&](u64 at)"));
    emitter.line("thread.row = row_at(groups.order, at);");
    let value = emitter.emit(expr)?;
    emitter.line(&format!("return {};", value.text));
    emitter.close();
    emitter.line(";");
    if value.register == ValueRegister::Text {
        let what = format!("a window function of the text {expr}");
        return Err(Unsupported::expression(what));
    }
    Ok(value)
}

/// The last kernel: every column of a row.
pub(super) struct Calls<'a> {
    pub(super) emitter: &'a mut Emitter,
    pub(super) window: &'a Window,
    pub(super) running: &'a [TotalKind],
    pub(super) trees: &'a [TotalKind],
    /// Frames that have a name already.
    pub(super) frames: Vec<Frame>,
}

impl Calls<'_> {
    /// Emits the loop over rows; gives the columns that it writes.
    pub(super) fn emit(mut self, totals: &[CallTotals]) -> Result<Vec<OutputShape>, Unsupported> {
        let mut values = Vec::new();
        for (at, call) in self.window.calls.iter().enumerate() {
            values.push(match &call.function {
                WindowFunction::Shift { value, .. } | WindowFunction::Nth { value, .. } => {
                    Some(emit_value(self.emitter, &format!("a{at}"), value)?)
                }
                _ => None,
            });
        }
        let has_offset = |bound: &Bound| matches!(bound, Bound::Before(_) | Bound::After(_));
        let moves_keys = self.window.calls.iter().any(|call| {
            let frame = &call.frame;
            frame.unit == FrameUnit::Range && (has_offset(&frame.start) || has_offset(&frame.end))
        });
        let key = match (moves_keys, order_key(self.window)) {
            (false, _) => None,
            (true, Some(key)) => Some((key, emit_value(self.emitter, "key", &key.value)?)),
            (true, None) => {
                let what = "a frame of RANGE with an offset over other than one key";
                return Err(Unsupported::expression(what));
            }
        };
        let head = "for (u64 at = first_row(); at < p.n_rows; at += row_step())";
        self.emitter.open(head);
        self.emitter.line("thread.row = row_at(groups.order, at);");
        self.emitter
            .line("const Place place = place_of(groups, at);");
        let mut outputs = Vec::new();
        for passed in &self.window.passed {
            let value = self.emitter.emit(passed)?;
            if value.register == ValueRegister::Text {
                return Err(Unsupported::expression(format!(
                    "a computed text ({passed})"
                )));
            }
            self.store(&mut outputs, value.register, value.nullable, &value.text);
        }
        for (at, call) in self.window.calls.iter().enumerate() {
            let frame = self.frame(&call.frame, key.as_ref())?;
            let of_call = totals[at];
            let (register, nullable, text) = match &values[at] {
                Some(value) => {
                    self.of_other_row(call, value, &format!("a{at}"), of_call, &frame)?
                }
                None => self.of_groups_or_totals(call, at, of_call, &frame)?,
            };
            self.store(&mut outputs, register, nullable, &text);
        }
        self.emitter.close();
        Ok(outputs)
    }

    fn store(
        &mut self,
        outputs: &mut Vec<OutputShape>,
        register: ValueRegister,
        nullable: bool,
        text: &str,
    ) {
        let shape = OutputShape { register, nullable };
        self.emitter.line(&format!(
            "store<{}>(p.o{}, at, {text});",
            shape.stored(),
            outputs.len()
        ));
        outputs.push(shape);
    }

    fn constant(&mut self, value: i64) -> Result<String, Unsupported> {
        let literal = Expr::literal(Literal::Integer(value.into()), Type::I64);
        Ok(self.emitter.emit(&literal)?.text)
    }

    /// The name of a frame, which is worked out when it is new.
    fn frame(
        &mut self,
        frame: &Frame,
        key: Option<&(&SortKey, Value)>,
    ) -> Result<String, Unsupported> {
        if let Some(known) = self.frames.iter().position(|known| known == frame) {
            return Ok(format!("f{known}"));
        }
        let start = self.bound(frame.unit, &frame.start, false, key)?;
        let end = self.bound(frame.unit, &frame.end, true, key)?;
        let name = format!("f{}", self.frames.len());
        self.emitter
            .line(&format!("const Span {name}{{{start}, {end}}};"));
        // Not every function looks at its frame.
        self.emitter.line(&format!("static_cast<void>({name});"));
        self.frames.push(frame.clone());
        Ok(name)
    }

    fn bound(
        &mut self,
        unit: FrameUnit,
        bound: &Bound,
        is_end: bool,
        key: Option<&(&SortKey, Value)>,
    ) -> Result<String, Unsupported> {
        let side = if is_end { "end" } else { "start" };
        let (offset, way) = match (bound, unit) {
            (Bound::Unbounded, _) if is_end => return Ok("place.end".to_string()),
            (Bound::Unbounded, _) => return Ok("place.first".to_string()),
            (Bound::Current, FrameUnit::Rows) if is_end => return Ok("place.at + 1".to_string()),
            (Bound::Current, FrameUnit::Rows) => return Ok("place.at".to_string()),
            (Bound::Current, _) if is_end => return Ok("place.peers_end".to_string()),
            (Bound::Current, _) => return Ok("place.peers_first".to_string()),
            (Bound::Before(offset), _) => (offset, "before"),
            (Bound::After(offset), _) => (offset, "after"),
        };
        let n = self.emitter.emit(offset)?;
        Ok(match (unit, key) {
            (FrameUnit::Rows, _) => format!("rows_{side}_{way}(place, {})", n.text),
            (FrameUnit::Groups, _) => format!("groups_{side}_{way}(groups, place, {})", n.text),
            (FrameUnit::Range, Some((key, value))) => {
                let same = match (value.register, n.register) {
                    (ValueRegister::Integer(..), ValueRegister::Integer(..)) => true,
                    (a, b) => a == b && key.value.ty.is_float(),
                };
                if !same || key.value.ty != offset.ty {
                    let what = format!("a frame of RANGE by {offset} over {}", key.value);
                    return Err(Unsupported::expression(what));
                }
                let held = match value.register {
                    ValueRegister::Integer(..) => "i128",
                    other => other.name(),
                };
                format!(
                    "range_bound<{held}, {}, {}, {is_end}>(place, key, {}, {})",
                    key.descending,
                    key.nulls_first,
                    n.text,
                    way == "after"
                )
            }
            (FrameUnit::Range, None) => {
                return Err(Unsupported::expression("a frame of RANGE without a key"));
            }
        })
    }

    /// What a function gives that looks at the value of one other row.
    fn of_other_row(
        &mut self,
        call: &WindowCall,
        value: &Value,
        name: &str,
        totals: CallTotals,
        frame: &str,
    ) -> Result<(ValueRegister, bool, String), Unsupported> {
        // What counts the values that are there, when only those count.
        let values = match totals.rows {
            Some(Total::Between(at) | Total::FromStart(at)) => Some(format!("p.r{at}")),
            _ => None,
        };
        Ok(match &call.function {
            WindowFunction::Shift {
                distance,
                otherwise,
                ..
            } => {
                let is_null = otherwise.kind == Kind::Literal(Literal::Null);
                let distance = self.constant(*distance)?;
                let (register, otherwise) = if is_null {
                    let null = format!("null<{}>()", value.register.name());
                    (value.register, null)
                } else {
                    let constant = self.emitter.emit(otherwise)?;
                    let register = match (value.register, constant.register) {
                        (ValueRegister::Integer(_, a), ValueRegister::Integer(_, b)) => {
                            let range = a.union(b);
                            ValueRegister::Integer(range.register(), range)
                        }
                        (a, b) if a == b => a,
                        _ => return Err(Unsupported::expression(otherwise)),
                    };
                    (register, constant.text)
                };
                let held = register.name();
                let rest = format!("place, {distance}, {name}, {otherwise})");
                let text = match values {
                    Some(values) => {
                        format!("value_at_distance_of_values<{held}>({values}, {rest}")
                    }
                    None => format!("value_at_distance<{held}>({rest}"),
                };
                (register, true, text)
            }
            WindowFunction::Nth { n, .. } => {
                let n = self.constant(*n)?;
                let held = value.register.name();
                let text = match values {
                    Some(values) => format!(
                        "value_in_frame_of_values<{held}>({values}, place, {frame}, {n}, {name})"
                    ),
                    None => format!("value_in_frame<{held}>({frame}, {n}, {name})"),
                };
                (value.register, true, text)
            }
            other => return Err(Unsupported::expression(other)),
        })
    }

    /// What a function gives that looks at groups of rows or at totals.
    fn of_groups_or_totals(
        &mut self,
        call: &WindowCall,
        at: usize,
        totals: CallTotals,
        frame: &str,
    ) -> Result<(ValueRegister, bool, String), Unsupported> {
        let rows = Range::new(0, WINDOW_ROWS_MAX as i128);
        let number = ValueRegister::Integer(rows.register(), rows);
        let is_whole = |text: &str| (number, false, text.to_string());
        let is_part = |text: &str| (ValueRegister::F64, false, text.to_string());
        Ok(match &call.function {
            WindowFunction::RowNumber => is_whole("row_number(place)"),
            WindowFunction::Rank => is_whole("rank_of(place)"),
            WindowFunction::DenseRank => is_whole("dense_rank_of(groups, place)"),
            WindowFunction::PercentRank => is_part("percent_rank_of(place)"),
            WindowFunction::CumeDist => is_part("cume_dist_of(place)"),
            WindowFunction::Ntile(n) => {
                let n = self.constant(*n)?;
                is_whole(&format!("ntile_of(place, {n})"))
            }
            WindowFunction::Count(_) => is_whole(&format!(
                "static_cast<i32>({})",
                self.rows_of(totals, frame)
            )),
            WindowFunction::Min(_) | WindowFunction::Max(_) => {
                let (kind, total) = self.total(totals, frame)?;
                let TotalKind::Extreme { register, .. } = kind else {
                    return Err(Unsupported::expression(&call.function));
                };
                let text = format!("extreme_value<{}>({total})", register.name());
                (register, true, text)
            }
            WindowFunction::Sum(arg) => {
                let (kind, total) = self.total(totals, frame)?;
                let is_there = !arg.nullable && holds_own_row(&call.frame);
                let register = sum_register(kind, call.ty)?;
                let value = match register {
                    ValueRegister::Integer(held, range) => {
                        let fault = overflow_fault(call.ty);
                        narrowed(&whole(&total, fault), held.name(), range, fault)
                    }
                    ValueRegister::F64 if kind == TotalKind::F64 => total,
                    _ => return Err(Unsupported::data_type(call.ty)),
                };
                self.if_there(at, register, is_there, totals, frame, &value)
            }
            WindowFunction::Average { value: arg, scale } => {
                let (kind, total) = self.total(totals, frame)?;
                let is_there = !arg.nullable && holds_own_row(&call.frame);
                let register = full_register(call.ty)?;
                // A frame without values has no average; the divisor is then anything
                // but 0.
                let n = format!(
                    "max_of<i64>(1, static_cast<i64>({}))",
                    self.rows_of(totals, frame)
                );
                let fault = overflow_fault(call.ty);
                let value = match (register, call.ty, kind) {
                    (ValueRegister::F64, _, TotalKind::F64) => {
                        format!("{total} / static_cast<f64>({n})")
                    }
                    (ValueRegister::F64, ..) => format!(
                        "static_cast<f64>({}) / 1e{scale} / static_cast<f64>({n})",
                        whole(&total, fault)
                    ),
                    (ValueRegister::Integer(held, range), Type::Decimal { scale: to, .. }, _) => {
                        let power = u32::try_from(to - scale)
                            .ok()
                            .and_then(|digits| 10i128.checked_pow(digits))
                            .ok_or_else(|| Unsupported::expression("an average of fewer digits"))?;
                        let scaled = format!(
                            "multiply_checked(thread, {}, {}, {fault}) / static_cast<i128>({n})",
                            whole(&total, fault),
                            wide_literal(power)
                        );
                        narrowed(&scaled, held.name(), range, fault)
                    }
                    _ => return Err(Unsupported::data_type(call.ty)),
                };
                self.if_there(at, register, is_there, totals, frame, &value)
            }
            other => return Err(Unsupported::expression(other)),
        })
    }

    fn total(&self, totals: CallTotals, frame: &str) -> Result<(TotalKind, String), Unsupported> {
        let total = totals
            .value
            .ok_or_else(|| Unsupported::expression("a total of nothing"))?;
        let kind = match total {
            Total::Between(at) | Total::FromStart(at) => self.running[at],
            Total::Tree(at) => self.trees[at],
        };
        Ok((kind, read(total, self.running, self.trees, frame)))
    }

    /// How many values of the frame are there.
    fn rows_of(&self, totals: CallTotals, frame: &str) -> String {
        match totals.rows {
            Some(rows) => read(rows, self.running, self.trees, frame),
            None => format!("rows_in({frame})"),
        }
    }

    /// A value that is there only when values went in.
    fn if_there(
        &mut self,
        at: usize,
        register: ValueRegister,
        is_there: bool,
        totals: CallTotals,
        frame: &str,
        value: &str,
    ) -> (ValueRegister, bool, String) {
        let held = register.name();
        self.emitter.line(&format!("const {held} w{at} = {value};"));
        if is_there {
            return (register, false, format!("w{at}"));
        }
        let rows = self.rows_of(totals, frame);
        (register, true, format!("if_rows<{held}>({rows}, w{at})"))
    }
}

/// The only key of the order inside partitions.
fn order_key(window: &Window) -> Option<&SortKey> {
    match window.sort.keys.get(window.n_partition..window.n_peers)? {
        [key] => Some(key),
        _ => None,
    }
}

fn sum_register(kind: TotalKind, ty: Type) -> Result<ValueRegister, Unsupported> {
    Ok(match (kind, full_register(ty)?) {
        // What 64 bits hold needs no more, whatever its type could.
        (TotalKind::I64, ValueRegister::Integer(_, all)) => {
            let range = Range::new(i128::from(i64::MIN), i128::from(i64::MAX)).intersect(all);
            ValueRegister::Integer(range.register(), range)
        }
        (_, register) => register,
    })
}

fn whole(total: &str, fault: &str) -> String {
    format!("whole_total(thread, {total}, {fault})")
}

fn narrowed(value: &str, held: &str, range: Range, fault: &str) -> String {
    let (min, max) = (wide_literal(range.min), wide_literal(range.max));
    format!("narrow<{held}>(thread, {value}, {min}, {max}, {fault})")
}
