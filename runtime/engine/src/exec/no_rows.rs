//! The groups of an aggregate over no rows: those of grouping sets without keys.

use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::datatypes::SchemaRef;
use datafusion::error::Result;
use kernels::launch::Number;

use super::aggregate::{AggregatePipeline, Output};
use super::finish;

/// One row for each such set: its keys are null, counts are 0, and all else is null.
pub fn of_no_rows(pipeline: &AggregatePipeline, schema: &SchemaRef) -> Result<RecordBatch> {
    let ids = &pipeline.sets_without_keys;
    let n_keys = pipeline.aggregate.keys.len();
    let mut columns: Vec<ArrayRef> = Vec::new();
    for (index, field) in schema.fields().iter().enumerate() {
        let data_type = field.data_type();
        // The grouping id is the last key.
        if index + 1 == n_keys {
            let ids = ids.iter().map(|id| Ok(Some(Number::Integer(*id))));
            columns.push(finish::column(ids, data_type)?);
            continue;
        }
        let output = index.checked_sub(n_keys).map(|at| &pipeline.outputs[at]);
        let is_count = match output {
            Some(Output::Value(call)) => pipeline.aggregate.calls[*call].function.is_count(),
            _ => false,
        };
        columns.push(match is_count {
            true => {
                let zeros = ids.iter().map(|_| Ok(Some(Number::Integer(0))));
                finish::column(zeros, data_type)?
            }
            false => new_null_array(data_type, ids.len()),
        });
    }
    Ok(RecordBatch::try_new(SchemaRef::clone(schema), columns)?)
}
