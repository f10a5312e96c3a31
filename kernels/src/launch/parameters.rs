//! The bytes of a kernel's parameter struct, and the fault word it leaves.

use std::sync::Arc;

use crate::codegen::{Parameter, ValueRegister};
use crate::columns::DeviceColumn;
use crate::error::{DataFault, Error, Fault, Result};
use crate::gpu::{DeviceBuffer, Gpu, Stream};
use crate::ir::{Literal, Register};

/// `FAULT_NOT_ASCII` and `FAULT_NEGATIVE_LENGTH` of `cuda/thread/arithmetic.h`.
const NOT_ASCII: u32 = 6;
const NEGATIVE_LENGTH: u32 = 7;

/// Row in the upper 56 bits, code in the lower 8, as `raise` packs them.
pub(super) fn fault(word: u64) -> Error {
    let code = (word & 0xff) as u32;
    match code {
        NOT_ASCII => {
            return Error::Unsupported("upper or lower case of text that is not ASCII".into());
        }
        NEGATIVE_LENGTH => {
            let message = "substring with a negative length".to_string();
            return Error::Arrow(arrow::error::ArrowError::ComputeError(message));
        }
        _ => {}
    }
    match Fault::from_code(code) {
        Some(fault) => Error::DataFault(DataFault {
            fault,
            row: word >> 8,
            expression: 0,
        }),
        None => Error::Internal(format!(
            "a kernel reported fault {word:#x}, which does not exist"
        )),
    }
}

/// The parameter struct's bytes: every field has 16 bytes of its own.
#[derive(Default)]
pub(super) struct ParameterBytes {
    bytes: Vec<u8>,
    texts: Vec<DeviceBuffer>,
}

impl ParameterBytes {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn word(&mut self, value: u64) {
        self.pair(value, 0);
    }

    pub(super) fn pair(&mut self, first: u64, second: u64) {
        self.bytes.extend(first.to_ne_bytes());
        self.bytes.extend(second.to_ne_bytes());
    }

    /// The fields of others, after these. Their texts must outlive these bytes.
    pub(super) fn append(&mut self, others: &ParameterBytes) {
        self.bytes.extend_from_slice(&others.bytes);
    }

    /// The reference of a column.
    pub(super) fn column(&mut self, column: &DeviceColumn) {
        for (first, second) in column.reference() {
            self.pair(first, second);
        }
    }

    /// The constants of the query; texts are copied to the device and live as long as
    /// these bytes.
    pub(super) fn constants(
        &mut self,
        parameters: &[Parameter],
        gpu: &Arc<dyn Gpu>,
        stream: &Stream,
    ) -> Result<()> {
        for parameter in parameters {
            if let Literal::Text(text) = &parameter.literal {
                let bytes = DeviceBuffer::from_slice(gpu, stream, text.as_bytes())?;
                self.pair(bytes.ptr().0, text.len() as u64);
                self.texts.push(bytes);
            } else {
                self.constant(parameter)?;
            }
        }
        Ok(())
    }

    fn constant(&mut self, parameter: &Parameter) -> Result<()> {
        let field: [u8; 16] = match (&parameter.literal, parameter.register) {
            // A little-endian integer reads the same at every narrower width.
            (
                Literal::Integer(value),
                ValueRegister::Integer(Register::I32 | Register::I64 | Register::I128, _),
            ) => value.to_le_bytes(),
            (Literal::Bool(value), ValueRegister::Bool) => i128::from(*value).to_le_bytes(),
            (Literal::Float(bits), ValueRegister::F64) => u128::from(*bits).to_le_bytes(),
            (Literal::Float(bits), ValueRegister::F32) => {
                u128::from((f64::from_bits(*bits) as f32).to_bits()).to_le_bytes()
            }
            (literal, register) => {
                return Err(Error::Internal(format!(
                    "constant {literal:?} held as {}",
                    register.name()
                )));
            }
        };
        self.bytes.extend(field);
        Ok(())
    }
}
