//! Text that a pipeline groups by or gives out: on the device numbers stand for it.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, RecordBatch, StringArray};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::expressions::Column;
use kernels::ir::{Expr, IntWidth, RELATION_COLUMNS, Type};

use super::dictionary::Encoder;
use crate::lower::DerivedText;

/// Code columns of a relation are numbered from here on.
const CODES_FROM: usize = RELATION_COLUMNS / 2;

/// The text columns of one pipeline that have codes, by number.
#[derive(Debug, Clone, Default)]
pub struct Codes(Vec<DerivedText>);

/// A column that a relation must have on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A column of the plan.
    Own(usize),
    /// The codes of this number.
    Codes(usize),
}

/// The texts of each code, by the number of the codes.
pub type Texts = HashMap<usize, StringArray>;

impl Codes {
    /// The column that holds the codes of this text, new if it has none yet.
    pub fn column(&mut self, text: &DerivedText) -> (usize, Expr) {
        let known = self.0.iter().position(|known| {
            known.column == text.column && known.function.as_ref() == text.function.as_ref()
        });
        let number = known.unwrap_or_else(|| {
            self.0.push(text.clone());
            self.0.len() - 1
        });
        let relation = text.column / RELATION_COLUMNS;
        let column = relation * RELATION_COLUMNS + CODES_FROM + number;
        (number, Expr::column(column, Type::Int(IntWidth::W32), true))
    }

    /// The text that these codes stand for, over its relation's own columns.
    pub fn text(&self, number: usize) -> Result<DerivedText> {
        let text = self.0.get(number);
        let text = text.ok_or_else(|| internal(format!("codes {number} do not exist")))?;
        Ok(DerivedText {
            column: text.column % RELATION_COLUMNS,
            function: Arc::clone(&text.function),
        })
    }

    /// What a relation must have for the columns that a pipeline reads of it, each with
    /// its number on the device.
    pub fn wanted(columns: &[usize], relation: usize) -> Vec<(usize, Wanted)> {
        let own = columns
            .iter()
            .filter(|c| **c / RELATION_COLUMNS == relation);
        own.map(|column| {
            let column = column % RELATION_COLUMNS;
            let wanted = match column.checked_sub(CODES_FROM) {
                Some(number) => Wanted::Codes(number),
                None => Wanted::Own(column),
            };
            (column, wanted)
        })
        .collect()
    }
}

impl DerivedText {
    /// Whether it is the column itself.
    pub fn is_column(&self) -> bool {
        self.function.is::<Column>()
    }

    /// The text for these values of the column.
    pub fn of(&self, values: &ArrayRef) -> Result<ArrayRef> {
        if self.is_column() {
            return Ok(Arc::clone(values));
        }
        let schema = Schema::new(vec![Field::new("text", DataType::Utf8, true)]);
        let rows = RecordBatch::try_new(Arc::new(schema), vec![Arc::clone(values)])?;
        self.function.evaluate(&rows)?.into_array(values.len())
    }
}

/// The codes of texts, through an encoder that knows those before.
pub fn encode(encoder: &mut Encoder, text: &DerivedText, values: &ArrayRef) -> Result<ArrayRef> {
    Ok(encoder.encode(text.of(values)?.as_ref()))
}

/// The texts that codes stand for; null stays null.
pub fn decode(codes: &dyn Array, texts: &StringArray) -> Result<ArrayRef> {
    let codes: &Int32Array = codes
        .as_primitive_opt::<Int32Type>()
        .ok_or_else(|| internal(format!("codes of type {}", codes.data_type())))?;
    Ok(take(texts, codes, None)?)
}

pub(super) fn internal(message: String) -> DataFusionError {
    DataFusionError::Internal(message)
}
