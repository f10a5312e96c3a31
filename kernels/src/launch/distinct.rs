//! The sets of what calls with DISTINCT have seen, kept over all chunks of a run.

use super::context::Context;
use super::hash_rows::HashRows;
use super::parameters::ParameterBytes;
use crate::error::{Error, Result};

/// One set a call: see `codegen/distinct.rs`.
#[derive(Debug, Default)]
pub(super) struct DistinctSets(Vec<HashRows>);

impl DistinctSets {
    /// Makes the sets of a kernel if they are not there yet; every kernel of a run has the
    /// same.
    pub(super) fn start(&mut self, context: &Context, n_words: &[usize]) -> Result<()> {
        if self.0.is_empty() {
            let sets = n_words.iter().map(|n| HashRows::new(context, *n, *n));
            self.0 = sets.collect::<Result<_>>()?;
        }
        match self
            .0
            .iter()
            .map(HashRows::row_words)
            .eq(n_words.iter().copied())
        {
            true => Ok(()),
            false => Err(Error::Internal("two chunks keep other sets".into())),
        }
    }

    /// Makes room for what `n_rows` more rows may put into each set, or for what all rows
    /// may if some come through several times: `expanded`. How many rows can be added.
    pub(super) fn make_room(
        &mut self,
        context: &mut Context,
        n_rows: usize,
        expanded: Option<usize>,
    ) -> Result<usize> {
        for set in &mut self.0 {
            let wanted = expanded.unwrap_or(n_rows);
            set.make_room(context, wanted)?;
        }
        let room = self.0.iter().map(HashRows::room).min();
        Ok(match (room, expanded) {
            (Some(room), None) => room.min(n_rows),
            _ => n_rows,
        })
    }

    /// Reads how much is in them after a launch.
    pub(super) fn read_lens(&mut self, context: &Context) -> Result<()> {
        self.0.iter_mut().try_for_each(|set| set.read_len(context))
    }

    pub(super) fn push_references(&self, params: &mut ParameterBytes) {
        for set in &self.0 {
            set.push_reference(params);
        }
    }
}
