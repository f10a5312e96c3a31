//! Text that a pipeline groups by or gives out: on the device numbers stand for it.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, RecordBatch, StringArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::expressions::Column;
use kernels::ir::{Expr, IntWidth, Kind, Literal, RELATION_COLUMNS, Type};

use super::dictionary::Encoder;
use super::sort::ranks_of;
use crate::lower::DerivedText;

/// Code columns of a relation are numbered from here on.
const CODES_FROM: usize = RELATION_COLUMNS / 2;

/// The text columns of one pipeline that have codes, by number.
#[derive(Debug, Clone, Default)]
pub struct Codes(Vec<Coded>);

/// Text that has codes.
#[derive(Debug, Clone)]
enum Coded {
    /// That of a column.
    Column {
        text: DerivedText,
        /// Whether codes have the order of their texts.
        is_ordered: bool,
    },
    /// One of these texts, by their codes.
    Fixed(Arc<Vec<String>>),
}

/// The code of the text that a function gives for null, where rows may be missing.
const MISSING: i128 = 0;

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
        self.add(text, false)
    }

    /// As [`Codes::column`], with codes that have the order of their texts: they are known
    /// only when all rows are there.
    pub fn ordered_column(&mut self, text: &DerivedText) -> (usize, Expr) {
        self.add(text, true)
    }

    /// Whether some codes have the order of their texts.
    pub fn any_ordered(&self) -> bool {
        (0..self.0.len()).any(|number| self.is_ordered(number))
    }

    /// Whether the codes of this number have the order of their texts.
    pub fn is_ordered(&self, number: usize) -> bool {
        let is_ordered = |coded: &Coded| match coded {
            Coded::Column { is_ordered, .. } => *is_ordered,
            Coded::Fixed(_) => false,
        };
        self.0.get(number).is_some_and(is_ordered)
    }

    /// The number of these texts, which are their own codes.
    pub fn fixed(&mut self, texts: &Arc<Vec<String>>) -> usize {
        self.0.push(Coded::Fixed(Arc::clone(texts)));
        self.0.len() - 1
    }

    /// The texts that are known before there are rows.
    pub fn fixed_texts(&self) -> Texts {
        let all = self.0.iter().enumerate();
        let fixed = all.filter_map(|(number, coded)| match coded {
            Coded::Fixed(texts) => Some((number, StringArray::from_iter_values(texts.iter()))),
            Coded::Column { .. } => None,
        });
        fixed.collect()
    }

    fn add(&mut self, text: &DerivedText, is_ordered: bool) -> (usize, Expr) {
        let is_it = |coded: &Coded| match coded {
            Coded::Column {
                text: known,
                is_ordered: known_order,
            } => {
                known.column == text.column
                    && known.function.as_ref() == text.function.as_ref()
                    && known.of_missing == text.of_missing
                    && *known_order == is_ordered
            }
            Coded::Fixed(_) => false,
        };
        let number = self.0.iter().position(is_it).unwrap_or_else(|| {
            self.0.push(Coded::Column {
                text: text.clone(),
                is_ordered,
            });
            self.0.len() - 1
        });
        let relation = text.column / RELATION_COLUMNS;
        let column = relation * RELATION_COLUMNS + CODES_FROM + number;
        let int = Type::Int(IntWidth::W32);
        let codes = Expr::column(column, int, true);
        if !text.of_missing {
            return (number, codes);
        }
        let missing = Expr::literal(Literal::Integer(MISSING), int);
        let expr = Expr {
            kind: Kind::Coalesce(vec![codes, missing]),
            ty: int,
            nullable: true,
        };
        (number, expr)
    }

    /// The text that these codes stand for, over its relation's own columns.
    pub fn text(&self, number: usize) -> Result<DerivedText> {
        let text = self.0.get(number).and_then(|coded| match coded {
            Coded::Column { text, .. } => Some(text),
            Coded::Fixed(_) => None,
        });
        let text = text.ok_or_else(|| internal(format!("codes {number} do not exist")))?;
        Ok(DerivedText {
            column: text.column % RELATION_COLUMNS,
            function: Arc::clone(&text.function),
            of_missing: text.of_missing,
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

impl DerivedText {
    /// The text that stands for null where rows may be missing.
    pub fn text_of_missing(&self) -> Result<Option<String>> {
        if !self.of_missing {
            return Ok(None);
        }
        let null: ArrayRef = Arc::new(StringArray::new_null(1));
        let texts = self.of(&null)?;
        let texts = texts.as_string_opt::<i32>();
        let texts = texts.ok_or_else(|| internal("text of another type".to_string()))?;
        Ok(texts.is_valid(0).then(|| texts.value(0).to_owned()))
    }
}

/// The codes of texts, through an encoder that knows those before.
pub fn encode(encoder: &mut Encoder, text: &DerivedText, values: &ArrayRef) -> Result<ArrayRef> {
    if let Some(missing) = text.text_of_missing()? {
        // The first text has the first code: `MISSING`.
        encoder.encode(&StringArray::from(vec![missing]));
    }
    Ok(encoder.encode(text.of(values)?.as_ref()))
}

/// The texts that codes stand for; null stays null.
pub fn decode(codes: &dyn Array, texts: &StringArray) -> Result<ArrayRef> {
    let codes: &Int32Array = codes
        .as_primitive_opt::<Int32Type>()
        .ok_or_else(|| internal(format!("codes of type {}", codes.data_type())))?;
    Ok(take(texts, codes, None)?)
}

/// The same codes and texts with the codes in the order of the texts.
pub fn in_order(codes: &ArrayRef, texts: &StringArray) -> Result<(ArrayRef, StringArray)> {
    let ranks = ranks_of(texts);
    let mut order: Vec<u32> = vec![0; texts.len()];
    for (code, rank) in ranks.values().iter().enumerate() {
        order[*rank as usize] = code as u32;
    }
    let codes = codes
        .as_primitive_opt::<Int32Type>()
        .ok_or_else(|| internal(format!("codes of type {}", codes.data_type())))?;
    let sorted = take(texts, &UInt32Array::from(order), None)?;
    Ok((
        take(&ranks, codes, None)?,
        sorted.as_string::<i32>().clone(),
    ))
}

pub(super) fn internal(message: String) -> DataFusionError {
    DataFusionError::Internal(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_codes_stand_for_the_same_texts() {
        let codes: ArrayRef = Arc::new(Int32Array::from(vec![Some(0), None, Some(2), Some(1)]));
        let texts = StringArray::from(vec!["b", "", "a"]);
        let (ordered, sorted) = in_order(&codes, &texts).unwrap();
        assert_eq!(sorted, StringArray::from(vec!["", "a", "b"]));
        assert_eq!(
            decode(ordered.as_ref(), &sorted)
                .unwrap()
                .as_string::<i32>(),
            decode(codes.as_ref(), &texts).unwrap().as_string::<i32>()
        );
        let expected = Int32Array::from(vec![Some(2), None, Some(1), Some(0)]);
        assert_eq!(ordered.as_primitive::<Int32Type>(), &expected);
    }
}
