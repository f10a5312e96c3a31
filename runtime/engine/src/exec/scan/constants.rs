//! Columns that stand in the names of directories: one value for all rows of a file.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::concat;
use kernels::columns::StagedColumn;

use super::chunks::{Columns, Job, staged};
use super::footers::Piece;
use super::plan::ConstantColumn;
use crate::exec::codes::{Texts, Wanted, encode, internal};
use crate::exec::dictionary::{Dictionary, Encoder};
use crate::exec::failure::Failure;
use crate::exec::relation::encoded;

impl ConstantColumn {
    /// The values of all rows.
    fn array(&self, pieces: &[Piece]) -> Result<ArrayRef, Failure> {
        let parts = pieces.iter().map(|piece| {
            let value = piece.file.partition_values.get(self.partition);
            let value = value.ok_or_else(|| internal("a file without its partition".into()))?;
            Ok(value.to_array_of_size(piece.n_rows())?)
        });
        let parts = parts.collect::<Result<Vec<ArrayRef>, Failure>>()?;
        let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        Ok(concat(&parts)?)
    }
}

impl Job {
    /// Lays them out for a chunk.
    pub(super) fn constants_of_chunk(
        &self,
        pieces: &[Piece],
        dictionaries: &BTreeMap<usize, Arc<Dictionary>>,
        at_home: &mut HashMap<usize, StagedColumn>,
    ) -> Result<(), Failure> {
        for constant in self.scan.constants.iter() {
            let values = constant.array(pieces)?;
            let values = match constant.wanted {
                Wanted::Own(_) => values,
                Wanted::Codes(of) => {
                    let dictionary = dictionaries.get(&of);
                    let dictionary =
                        dictionary.ok_or_else(|| internal(format!("codes {of} have no texts")))?;
                    let mut encoder = Encoder::new(dictionary);
                    encode(&mut encoder, &self.codes.text(of)?, &values)?
                }
            };
            at_home.insert(constant.number, staged(values.as_ref())?);
        }
        Ok(())
    }

    /// Brings them to the device for all rows, with the texts of codes.
    pub(super) fn constants_of_relation(&self, pieces: &[Piece]) -> Result<Columns, Failure> {
        let (mut at_home, mut texts) = (HashMap::new(), Texts::new());
        for constant in self.scan.constants.iter() {
            let mut values = constant.array(pieces)?;
            if let Wanted::Codes(of) = constant.wanted {
                let (codes, own) = encoded(&[values.as_ref()], &self.codes, of)?;
                texts.insert(of, own);
                values = codes;
            }
            at_home.insert(constant.number, staged(values.as_ref())?);
        }
        let n_rows = pieces.iter().map(Piece::n_rows).sum();
        let mut columns = HashMap::new();
        self.upload(at_home, n_rows, &mut columns)?;
        Ok((columns, texts))
    }
}
