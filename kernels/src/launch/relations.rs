//! What a pipeline reads: the rows of its source, and the relations that they probe.

use std::collections::HashMap;

use super::context::Context;
use super::join::JoinTable;
use super::parameters::ParameterBytes;
use crate::codegen::{ColumnShape, Parameter, TableShape};
use crate::columns::{DeviceChunk, DeviceColumn};
use crate::error::{Error, Result};
use crate::ir::{RELATION_COLUMNS, Step};

/// Relation 0 is a chunk of the source, relation `i` is `tables[i - 1]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Relations<'a> {
    pub(super) source: &'a DeviceChunk,
    pub(super) tables: &'a [JoinTable],
}

impl<'a> Relations<'a> {
    /// Number of rows of the source.
    pub(super) fn n_rows(&self) -> usize {
        self.source.n_rows
    }

    /// How every column is read, by its number in the pipeline.
    pub(super) fn shapes(&self) -> HashMap<usize, ColumnShape> {
        let mut shapes = self.source.shapes();
        for (number, table) in self.tables.iter().enumerate() {
            let first = (number + 1) * RELATION_COLUMNS;
            let own = table.rows().shapes().into_iter();
            shapes.extend(own.map(|(index, shape)| (first + index, shape)));
        }
        shapes
    }

    /// How every table is probed.
    pub(super) fn table_shapes(&self) -> Vec<TableShape> {
        self.tables.iter().map(JoinTable::shape).collect()
    }

    /// Whether a row of the source may come through these steps several times.
    pub(super) fn may_expand(&self, steps: &[Step]) -> bool {
        self.expanding(steps).next().is_some()
    }

    /// The most rows that can come through.
    pub(super) fn rows_max(&self, steps: &[Step]) -> u64 {
        let many = self
            .expanding(steps)
            .map(|table| table.rows().n_rows as u64);
        many.fold(self.source.n_rows as u64, u64::saturating_mul)
    }

    /// The tables in which a row may find several that it goes on with.
    fn expanding(&self, steps: &[Step]) -> impl Iterator<Item = &'a JoinTable> {
        let tables = self.tables;
        let found = steps.iter().filter_map(move |step| match step {
            Step::Probe(probe) if probe.kind.has_columns() => {
                tables.get(probe.relation.checked_sub(1)?)
            }
            _ => None,
        });
        found.filter(|table| !table.shape().is_unique)
    }

    /// The column of this number in the pipeline.
    pub(super) fn column(&self, index: usize) -> Result<&'a DeviceColumn> {
        let (relation, own) = (index / RELATION_COLUMNS, index % RELATION_COLUMNS);
        match relation.checked_sub(1) {
            None => self.source.column(own),
            Some(number) => match self.tables.get(number) {
                Some(table) => table.rows().column(own),
                None => Err(Error::Internal(format!("relation {relation} is missing"))),
            },
        }
    }

    /// Appends the fields of tables, columns and constants, in this order.
    pub(super) fn push(
        &self,
        params: &mut ParameterBytes,
        context: &mut Context,
        columns: &[usize],
        constants: &[Parameter],
    ) -> Result<()> {
        for table in self.tables {
            table.push_reference(params);
        }
        for index in columns {
            let column = self.column(*index)?;
            params.column(column);
            context.counts.bytes_read += column.bytes() as u64;
        }
        params.constants(constants, &context.gpu, &context.stream)
    }
}

/// The columns that belong to the source.
pub(super) fn source_columns(columns: Vec<usize>) -> Vec<usize> {
    let own = columns.into_iter();
    own.filter(|index| *index < RELATION_COLUMNS).collect()
}
