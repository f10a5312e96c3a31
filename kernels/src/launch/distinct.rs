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

    /// Makes room for what so many rows may put into each set.
    pub(super) fn make_room(&mut self, context: &mut Context, n_rows: usize) -> Result<()> {
        let mut sets = self.0.iter_mut();
        sets.try_for_each(|set| set.make_room(context, n_rows))
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
