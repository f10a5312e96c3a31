//! Aggregate calls to accumulators: which states a group has, and the statements that
//! update them.

use std::collections::HashMap;

use super::distinct::Sets;
use super::emit::{Emitter, Value, ValueRegister};
use super::error::Unsupported;
use crate::ir::{Call, Expr, Function, Range, Register, Type};

/// How an aggregate's state is held. The names are those of
/// `cuda/table/accumulators.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each variant is its own documentation
pub enum AccumulatorKind {
    Count,
    SumI64,
    SumI128,
    SumI192,
    SumF64,
    Min,
    Max,
    MinI128,
    MaxI128,
    Moments,
}

impl AccumulatorKind {
    /// Number of 64-bit words.
    pub fn words(self) -> usize {
        match self {
            AccumulatorKind::SumI128 => 2,
            AccumulatorKind::SumI192 | AccumulatorKind::MinI128 | AccumulatorKind::MaxI128 => 3,
            AccumulatorKind::Moments => 4,
            _ => 1,
        }
    }

    /// What every word starts as.
    pub fn initial(self) -> u64 {
        match self {
            AccumulatorKind::Min | AccumulatorKind::MinI128 => u64::MAX,
            _ => 0,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            AccumulatorKind::Count => "Count",
            AccumulatorKind::SumI64 => "SumI64",
            AccumulatorKind::SumI128 => "SumI128",
            AccumulatorKind::SumI192 => "SumI192",
            AccumulatorKind::SumF64 => "SumF64",
            AccumulatorKind::Min => "Min",
            AccumulatorKind::Max => "Max",
            AccumulatorKind::MinI128 => "MinI128",
            AccumulatorKind::MaxI128 => "MaxI128",
            AccumulatorKind::Moments => "Moments",
        }
    }
}

/// Where one accumulator's words stand in a group's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// How the state is held.
    pub kind: AccumulatorKind,
    /// Its first word.
    pub at: usize,
}

/// How the state of one call is read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallState {
    /// The value's accumulator.
    pub value: Slot,
    /// The number of rows that went in, where a group may have had none: the result
    /// is null then. Absent when every row of a group goes in.
    pub rows: Option<Slot>,
    /// How the argument was held, which says how `Min` and `Max` words decode.
    pub register: Option<ValueRegister>,
}

/// What decides how wide a sum is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lifetime {
    /// The states hold one chunk of this many rows: its values' ranges bound them.
    Chunk(u64),
    /// The states outlive the chunk, so only the types bound them, and every chunk
    /// must agree on how they are laid out.
    Run,
}

/// More rows than this are never added to one state: 2^40 rows of 16 bytes are
/// 16 TiB.
const ROWS_MAX: i128 = 1 << 40;

/// The states of one group, laid out as calls ask for them.
pub(super) struct Accumulators {
    lifetime: Lifetime,
    slots: Vec<Slot>,
    n_words: usize,
    /// What is already accumulated: the same sum is kept once.
    known: HashMap<(AccumulatorKind, Option<Expr>, Option<Expr>), Slot>,
    /// What calls with DISTINCT have seen.
    sets: Sets,
}

impl Accumulators {
    pub(super) fn new(lifetime: Lifetime) -> Accumulators {
        Accumulators {
            lifetime,
            slots: Vec::new(),
            n_words: 0,
            known: HashMap::new(),
            sets: Sets::default(),
        }
    }

    /// The same for groups of these keys, which calls with DISTINCT have to know.
    pub(super) fn with_keys(self, keys: &[Expr]) -> Accumulators {
        Accumulators {
            sets: Sets::of_groups(keys),
            ..self
        }
    }

    /// Words of a member of each set that calls with DISTINCT keep.
    pub(super) fn sets(&self) -> &[usize] {
        self.sets.n_words()
    }

    pub(super) fn n_words(&self) -> usize {
        self.n_words
    }

    pub(super) fn into_slots(self) -> Vec<Slot> {
        self.slots
    }

    /// Makes the first slot count the group's rows, and emits the count.
    pub(super) fn count_rows(&mut self, emitter: &mut Emitter) {
        let (slot, _) = self.slot(AccumulatorKind::Count, None, None);
        emitter.line(&format!("Count::update(words, {});", slot.at));
    }

    /// The slot of this state, and whether it is new.
    fn slot(
        &mut self,
        kind: AccumulatorKind,
        arg: Option<&Expr>,
        filter: Option<&Expr>,
    ) -> (Slot, bool) {
        let key = (kind, arg.cloned(), filter.cloned());
        if let Some(slot) = self.known.get(&key) {
            return (*slot, false);
        }
        let slot = self.new_slot(kind);
        self.known.insert(key, slot);
        (slot, true)
    }

    fn new_slot(&mut self, kind: AccumulatorKind) -> Slot {
        let slot = Slot {
            kind,
            at: self.n_words,
        };
        self.n_words += kind.words();
        self.slots.push(slot);
        slot
    }

    /// Emits the updates of one call, inside a block that tests its filter.
    pub(super) fn emit_call(
        &mut self,
        emitter: &mut Emitter,
        call: &Call,
    ) -> Result<CallState, Unsupported> {
        let Some(filter) = &call.filter else {
            return self.emit_unfiltered(emitter, call);
        };
        let condition = emitter.emit(filter)?;
        emitter.open(&format!("if (is_true({}))", condition.text));
        let state = self.emit_unfiltered(emitter, call);
        emitter.close();
        state
    }

    fn emit_unfiltered(
        &mut self,
        emitter: &mut Emitter,
        call: &Call,
    ) -> Result<CallState, Unsupported> {
        let filter = call.filter.as_ref();
        let Some(arg) = &call.arg else {
            let (slot, is_new) = self.slot(AccumulatorKind::Count, None, filter);
            if is_new {
                emitter.line(&format!("Count::update(words, {});", slot.at));
            }
            return Ok(CallState {
                value: slot,
                rows: Some(slot),
                register: None,
            });
        };
        if call.function.is_distinct() {
            return self.emit_distinct(emitter, call.function, arg);
        }
        let value = emitter.emit(arg)?;
        let mut updates = Vec::new();
        // Whether a row can stay out is a matter of the schema, not of this chunk.
        let all_rows_count = !arg.nullable && filter.is_none();
        let rows = if all_rows_count && call.function != Function::Count {
            None
        } else {
            let counted = if all_rows_count { None } else { Some(arg) };
            let (slot, is_new) = self.slot(AccumulatorKind::Count, counted, filter);
            if is_new {
                updates.push(format!("Count::update(words, {});", slot.at));
            }
            Some(slot)
        };
        let slot = match (call.function, rows) {
            (Function::Count, Some(rows)) => rows,
            (function, _) => {
                let kind = self.kind(function, arg, &value)?;
                let (slot, is_new) = self.slot(kind, Some(arg), filter);
                if is_new {
                    updates.push(format!(
                        "{}::update(words, {}, value_of({}));",
                        kind.name(),
                        slot.at,
                        value.text
                    ));
                }
                slot
            }
        };
        if !updates.is_empty() {
            if value.nullable {
                emitter.open(&format!("if (is_valid({}))", value.text));
            }
            for update in &updates {
                emitter.line(update);
            }
            if value.nullable {
                emitter.close();
            }
        }
        Ok(CallState {
            value: slot,
            rows,
            register: Some(value.register),
        })
    }

    /// Emits a call that takes one of equal values. Its states are its own: what another
    /// call with the same argument counts is not what this one does.
    fn emit_distinct(
        &mut self,
        emitter: &mut Emitter,
        function: Function,
        arg: &Expr,
    ) -> Result<CallState, Unsupported> {
        let value = emitter.emit(arg)?;
        if value.nullable {
            emitter.open(&format!("if (is_valid({}))", value.text));
        }
        self.sets.open(emitter, arg)?;
        let rows = self.new_slot(AccumulatorKind::Count);
        emitter.line(&format!("Count::update(words, {});", rows.at));
        let slot = match function {
            Function::CountDistinct => rows,
            _ => {
                let kind = self.kind(Function::Sum, arg, &value)?;
                let slot = self.new_slot(kind);
                let (name, at, text) = (kind.name(), slot.at, &value.text);
                emitter.line(&format!("{name}::update(words, {at}, value_of({text}));"));
                slot
            }
        };
        emitter.close();
        if value.nullable {
            emitter.close();
        }
        Ok(CallState {
            value: slot,
            rows: Some(rows),
            register: Some(value.register),
        })
    }

    fn kind(
        &self,
        function: Function,
        arg: &Expr,
        value: &Value,
    ) -> Result<AccumulatorKind, Unsupported> {
        Ok(match (function, value.register) {
            (Function::Sum, ValueRegister::Integer(_, range)) => self.sum_kind(arg.ty, range),
            (Function::Sum, ValueRegister::F32 | ValueRegister::F64) => AccumulatorKind::SumF64,
            (Function::Moments, ValueRegister::F32 | ValueRegister::F64) => {
                AccumulatorKind::Moments
            }
            (Function::Min | Function::Max, ValueRegister::Text) => {
                return Err(Unsupported::expression("min or max of text"));
            }
            // By the type, not the values: every chunk must agree on the layout.
            (Function::Min, _) if self.is_wide(arg.ty, &value.register) => AccumulatorKind::MinI128,
            (Function::Max, _) if self.is_wide(arg.ty, &value.register) => AccumulatorKind::MaxI128,
            (Function::Min, _) => AccumulatorKind::Min,
            (Function::Max, _) => AccumulatorKind::Max,
            (function, register) => {
                return Err(Unsupported::expression(format!(
                    "{function:?} of {}",
                    register.name()
                )));
            }
        })
    }

    /// Whether values may need more than 64 bits: by what is proved about the only chunk,
    /// or by their type.
    fn is_wide(&self, ty: Type, register: &ValueRegister) -> bool {
        match (self.lifetime, register) {
            (Lifetime::Chunk(_), ValueRegister::Integer(held, _)) => *held == Register::I128,
            (_, ValueRegister::Integer(..)) => is_wide(ty),
            _ => false,
        }
    }

    fn sum_kind(&self, ty: Type, range: Range) -> AccumulatorKind {
        let total =
            |range: Range, rows: i128| range.union(Range::point(0)).product(Range::new(0, rows));
        match self.lifetime {
            Lifetime::Chunk(rows) => match total(range, i128::from(rows)) {
                Some(total) if total.fits(64) => AccumulatorKind::SumI64,
                _ => AccumulatorKind::SumI192,
            },
            Lifetime::Run => match ty.full_range().and_then(|range| total(range, ROWS_MAX)) {
                Some(_) => AccumulatorKind::SumI128,
                None => AccumulatorKind::SumI192,
            },
        }
    }
}

/// Whether values of the type may need more than 64 bits.
fn is_wide(ty: Type) -> bool {
    ty.full_range().is_some_and(|range| !range.fits(64))
}
