//! A guest's aggregate function. Groups live in an instance of their own until DataFusion
//! takes them, in binary form between two parts of a plan.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::arrow::compute;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, not_impl_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature,
};
use sandbox::{Argument, Groups};

use super::scalar::Guest;
use super::{arguments, failed};

/// An aggregate function of a module. It runs on the CPU.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct GuestAggregate {
    guest: Guest,
    signature: Signature,
}

impl GuestAggregate {
    pub(super) fn new(guest: Guest) -> Self {
        GuestAggregate {
            signature: guest.signature(),
            guest,
        }
    }
}

impl AggregateUDFImpl for GuestAggregate {
    fn name(&self) -> &str {
        &self.guest.function().name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.guest.function().returns.arrow())
    }

    fn coerce_types(&self, found: &[DataType]) -> Result<Vec<DataType>> {
        arguments::coerce(self.guest.function(), found)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if args.is_distinct {
            return not_impl_err!(
                "DISTINCT in the user function `{}`; take the distinct values in a subquery",
                self.name()
            );
        }
        Ok(Box::new(OneGroup(GuestGroups::new(&self.guest))))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        if args.is_distinct {
            return plan_err!(
                "DISTINCT does not go with the user function `{}`; take the distinct values in a \
                 subquery",
                self.name()
            );
        }
        let name = format_state_name(args.name, "state");
        Ok(vec![Arc::new(Field::new(name, DataType::Binary, true))])
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !args.is_distinct
    }

    fn create_groups_accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(GuestGroups::new(&self.guest)))
    }
}

/// The groups of one part of a plan.
struct GuestGroups {
    guest: Guest,
    groups: Groups,
    n_groups: usize,
}

impl fmt::Debug for GuestGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.groups.fmt(f)
    }
}

impl GuestGroups {
    fn new(guest: &Guest) -> Self {
        GuestGroups {
            groups: Groups::new(&guest.module, guest.at, guest.query_time),
            guest: guest.clone(),
            n_groups: 0,
        }
    }

    fn take(&mut self, emit_to: EmitTo) -> usize {
        let n = match emit_to {
            EmitTo::All => self.n_groups,
            EmitTo::First(n) => n.min(self.n_groups),
        };
        self.n_groups -= n;
        n
    }
}

impl GroupsAccumulator for GuestGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.n_groups = total_num_groups;
        let (values, kept) = filtered(values, group_indices, opt_filter)?;
        self.groups
            .update(&columns(&values), &kept, total_num_groups)
            .map_err(|error| failed(error).into_datafusion())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let n = self.take(emit_to);
        self.groups
            .finish(n)
            .map_err(|error| failed(error).into_datafusion())
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let n = self.take(emit_to);
        let states = self.groups.take_states(n);
        Ok(vec![
            states.map_err(|error| failed(error).into_datafusion())?,
        ])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.n_groups = total_num_groups;
        for states in values {
            self.groups
                .merge(states, group_indices, total_num_groups)
                .map_err(|error| failed(error).into_datafusion())?;
        }
        Ok(())
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        // Each row is a group of its own.
        let n_rows = values.first().map_or(0, |array| array.len());
        let mut rows = GuestGroups::new(&self.guest);
        let each: Vec<usize> = (0..n_rows).collect();
        rows.update_batch(values, &each, opt_filter, n_rows)?;
        rows.state(EmitTo::All)
    }

    fn size(&self) -> usize {
        // The guest's own memory is charged to the batch as it grows.
        size_of_val(self)
    }
}

/// The rows that a FILTER keeps.
fn filtered(
    values: &[ArrayRef],
    groups: &[usize],
    filter: Option<&BooleanArray>,
) -> Result<(Vec<ArrayRef>, Vec<usize>)> {
    let Some(filter) = filter else {
        return Ok((values.to_vec(), groups.to_vec()));
    };
    let kept = values
        .iter()
        .map(|array| compute::filter(array, filter))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let is_kept = |row: &usize| filter.is_valid(*row) && filter.value(*row);
    let groups = (0..groups.len())
        .filter(is_kept)
        .map(|row| groups[row])
        .collect();
    Ok((kept, groups))
}

fn columns(values: &[ArrayRef]) -> Vec<Argument> {
    values.iter().cloned().map(Argument::Column).collect()
}

/// The one group of a window frame or of a query without GROUP BY.
#[derive(Debug)]
struct OneGroup(GuestGroups);

impl Accumulator for OneGroup {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let n_rows = values.first().map_or(0, |array| array.len());
        self.0.update_batch(values, &vec![0; n_rows], None, 1)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        // A running frame goes on after its value was taken.
        let states = self.state()?;
        let made = self.merged(&states)?.0.evaluate(EmitTo::All)?;
        self.0 = self.merged(&states)?.0;
        ScalarValue::try_from_array(&made, 0)
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.0.n_groups = 1;
        let states = self.0.state(EmitTo::All)?;
        states
            .iter()
            .map(|array| ScalarValue::try_from_array(array, 0))
            .collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let n_rows = states.first().map_or(0, |array| array.len());
        self.0.merge_batch(states, &vec![0; n_rows], 1)
    }
}

impl OneGroup {
    /// A group with this state alone.
    fn merged(&self, states: &[ScalarValue]) -> Result<OneGroup> {
        let mut other = OneGroup(GuestGroups::new(&self.0.guest));
        let states = states
            .iter()
            .map(ScalarValue::to_array)
            .collect::<Result<Vec<_>>>()?;
        other.merge_batch(&states)?;
        Ok(other)
    }
}
