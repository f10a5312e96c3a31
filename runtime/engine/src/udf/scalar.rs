//! A guest's function as a scalar function.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, new_empty_array};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};
use sandbox::{Argument, Function, Module, Nulls, OnError};

use super::{arguments, failed};

/// Which function of which module, and how it is called.
#[derive(Debug, Clone)]
pub(super) struct Guest {
    pub(super) module: Arc<Module>,
    pub(super) at: usize,
    pub(super) on_error: OnError,
    /// The start of the batch, microseconds since 1970.
    pub(super) query_time: i64,
}

impl Guest {
    pub(super) fn function(&self) -> &Function {
        self.module.function(self.at)
    }

    pub(super) fn signature(&self) -> Signature {
        let volatility = match self.function().volatility {
            sandbox::Volatility::Immutable => Volatility::Immutable,
            sandbox::Volatility::Stable => Volatility::Stable,
            sandbox::Volatility::Volatile => Volatility::Volatile,
        };
        match self.function().args.is_empty() {
            true => Signature::nullary(volatility),
            false => Signature::user_defined(volatility),
        }
    }
}

impl PartialEq for Guest {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.module, &other.module) && self.at == other.at
    }
}

impl Eq for Guest {}

impl Hash for Guest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.module.facts().sha256.hash(state);
        self.at.hash(state);
    }
}

/// A scalar function of a module. It runs on the CPU, a record batch a call.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct GuestFunction {
    guest: Guest,
    signature: Signature,
}

impl GuestFunction {
    pub(super) fn new(guest: Guest) -> Self {
        GuestFunction {
            signature: guest.signature(),
            guest,
        }
    }
}

impl ScalarUDFImpl for GuestFunction {
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

    fn is_strict(&self) -> bool {
        self.guest.function().nulls == Nulls::Strict
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let function = self.guest.function();
        let returns = function.returns.arrow();
        let is_constant = !args.args.is_empty()
            && args
                .args
                .iter()
                .all(|arg| matches!(arg, ColumnarValue::Scalar(_)))
            && function.volatility != sandbox::Volatility::Volatile;
        let n_rows = if is_constant { 1 } else { args.number_rows };
        if n_rows == 0 {
            return Ok(ColumnarValue::Array(new_empty_array(&returns)));
        }
        let inputs = args
            .args
            .iter()
            .map(|arg| {
                Ok(match arg {
                    ColumnarValue::Array(array) => Argument::Column(ArrayRef::clone(array)),
                    ColumnarValue::Scalar(value) => Argument::Constant(value.to_array()?),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let guest = &self.guest;
        let made = guest
            .module
            .call(guest.at, &inputs, n_rows, guest.query_time, guest.on_error)
            .map_err(|error| failed(error).into_datafusion())?;
        debug_assert_eq!(made.len(), n_rows);
        Ok(if is_constant {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&made, 0)?)
        } else {
            ColumnarValue::Array(made)
        })
    }
}
