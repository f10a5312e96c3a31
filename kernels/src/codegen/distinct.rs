//! Calls that take one of equal values: for each a set on the device of what it took, each
//! member a group's key and a value.
//!
//! ```text
//! if (is_valid(v3)) {
//!   u64 seen0[2]{};  seen0[0] = <key>;  seen0[1] = <value>;
//!   if (insert_new(p.d0, seen0)) {
//!     Count::update(words, 1);
//!   }
//! }
//! ```
//!
//! The set decides once on the device who is first, so it does not matter where the group's
//! state is: in a thread, or in a table. Its members are laid out by their types alone, as
//! the keys of a table of groups are, so every chunk of a run can use it.

use std::fmt::Write as _;

use super::emit::Emitter;
use super::error::Unsupported;
use super::many_groups::{emit_words, key_layout};
use crate::ir::Expr;

/// The sets of one kernel.
#[derive(Debug, Default)]
pub(super) struct Sets {
    /// The keys of a group.
    keys: Vec<Expr>,
    /// Words of a member of each set.
    n_words: Vec<usize>,
}

impl Sets {
    pub(super) fn of_groups(keys: &[Expr]) -> Sets {
        Sets {
            keys: keys.to_vec(),
            n_words: Vec::new(),
        }
    }

    /// Words of a member of each set.
    pub(super) fn n_words(&self) -> &[usize] {
        &self.n_words
    }

    /// Opens a block that only the first row of a group with this value enters. The value is
    /// known to be there.
    pub(super) fn open(&mut self, emitter: &mut Emitter, value: &Expr) -> Result<(), Unsupported> {
        let number = self.n_words.len();
        let name = format!("seen{number}");
        let mut members = self.keys.clone();
        members.push(value.clone());
        let (layout, n_words) = key_layout(&members)?;
        emit_words(emitter, &name, &members, &layout, n_words)?;
        emitter.open(&format!("if (insert_new(p.d{number}, {name}))"));
        self.n_words.push(n_words);
        Ok(())
    }
}

/// The fields of sets in a kernel's parameters.
pub(super) fn set_fields(sets: &[usize]) -> String {
    let mut text = String::new();
    for number in 0..sets.len() {
        let _ = writeln!(text, "  alignas(16) GroupTableRef d{number};");
    }
    text
}
