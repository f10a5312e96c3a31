//! The pages of a column to a device column, or to codes of its texts.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::datatypes::Int32Type;
use kernels::columns::{DeviceColumn, read_column};
use kernels::ir::{Range, Type};
use kernels::parquet::{ColumnPages, Decoder};

use super::footers::{File, physical};
use super::pages::Loaded;
use super::plan::WantedColumn;
use crate::exec::codes::encode;
use crate::exec::dictionary::Encoder;
use crate::exec::failure::Failure;
use crate::lower::DerivedText;

/// The pages of a wanted column, of some row groups.
pub struct ColumnOfPages {
    /// The pages.
    pub pages: ColumnPages,
    /// The texts of each row group's dictionary, if all pages use one.
    pub dictionaries: Option<Vec<StringArray>>,
}

impl ColumnOfPages {
    /// Gathers the column chunks of one column. `file` is any of its files.
    pub fn of(wanted: &WantedColumn, index: usize, file: &File, loaded: Vec<Loaded>) -> Self {
        let described = file.metadata.file_metadata().schema_descr();
        let column = described.column(file.leaves[index]);
        let (mut chunks, mut dictionaries) = (Vec::new(), Some(Vec::new()));
        for one in loaded {
            chunks.push(one.chunk);
            match (&mut dictionaries, one.dictionary) {
                (Some(all), Some(own)) => all.push(own),
                _ => dictionaries = None,
            }
        }
        ColumnOfPages {
            pages: ColumnPages {
                name: wanted.name.clone(),
                physical: physical(column.physical_type(), column.type_length()),
                ty: wanted.ty,
                is_optional: column.max_def_level() > 0,
                chunks,
            },
            dictionaries,
        }
    }

    /// The column as it is.
    pub fn decode(
        &self,
        decoder: &mut Decoder,
        known: Option<Range>,
    ) -> Result<Arc<DeviceColumn>, Failure> {
        Ok(decoder.decode(&self.pages, known)?.column)
    }

    /// The codes of a text of the column, if each entry of its dictionaries has one.
    pub fn decode_codes(
        &self,
        decoder: &mut Decoder,
        text: &DerivedText,
        encoder: &mut Encoder,
    ) -> Result<Option<Arc<DeviceColumn>>, Failure> {
        let Some(tables) = self.code_tables(text, encoder)? else {
            return Ok(None);
        };
        Ok(Some(decoder.decode_codes(&self.pages, &tables)?.column))
    }

    /// For each row group the codes of its dictionary's entries.
    pub fn code_tables(
        &self,
        text: &DerivedText,
        encoder: &mut Encoder,
    ) -> Result<Option<Vec<Vec<i32>>>, Failure> {
        let Some(dictionaries) = &self.dictionaries else {
            return Ok(None);
        };
        // A row that is null has no entry, so what stands for it must be null too; unless
        // whoever reads the codes puts its text there.
        let none: ArrayRef = Arc::new(StringArray::new_null(1));
        if !text.of_missing && text.of(&none)?.is_valid(0) {
            return Ok(None);
        }
        let mut tables = Vec::with_capacity(dictionaries.len());
        for own in dictionaries {
            let own: ArrayRef = Arc::new(own.clone());
            let codes = encode(encoder, text, &own)?;
            if codes.null_count() > 0 {
                return Ok(None);
            }
            tables.push(codes.as_primitive::<Int32Type>().values().to_vec());
        }
        Ok(Some(tables))
    }

    /// The texts of all rows, on the host.
    pub fn texts(&self, decoder: &mut Decoder) -> Result<ArrayRef, Failure> {
        let column = decoder.decode(&self.pages, None)?.column;
        let n_rows = self.pages.n_rows();
        let texts = read_column(decoder.stream(), &column, n_rows, Type::Utf8)?;
        Ok(texts)
    }
}
