//! Why a pipeline did not finish, by who can answer instead.

use datafusion::error::DataFusionError;

use crate::report::Reason;

/// Why a pipeline did not finish.
#[derive(Debug)]
pub enum Failure {
    /// The data or the source is at fault: the CPU would fail too.
    User(DataFusionError),
    /// The device is: the CPU subtree can answer.
    Device(Reason),
}

impl From<DataFusionError> for Failure {
    fn from(error: DataFusionError) -> Failure {
        Failure::User(error)
    }
}

impl From<kernels::error::Error> for Failure {
    fn from(error: kernels::error::Error) -> Failure {
        use arrow::error::ArrowError;
        use kernels::error::{Error, Fault};
        let user = |error| Failure::User(DataFusionError::ArrowError(Box::new(error), None));
        let code = match &error {
            Error::DataFault(data) => {
                return user(match data.fault {
                    Fault::DivisionByZero => ArrowError::DivideByZero,
                    Fault::IntegerOverflow | Fault::DecimalOverflow | Fault::CastOverflow => {
                        ArrowError::ArithmeticOverflow(data.fault.to_string())
                    }
                    _ => ArrowError::ComputeError(data.fault.to_string()),
                });
            }
            Error::Arrow(ArrowError::ArithmeticOverflow(detail)) => {
                return user(ArrowError::ArithmeticOverflow(detail.clone()));
            }
            Error::OutOfMemory(_) => "out-of-device-memory",
            Error::Unsupported(_) => "unsupported-at-run-time",
            _ => "device-error",
        };
        Failure::Device(Reason {
            code: code.to_string(),
            message: error.to_string(),
            fix: String::new(),
        })
    }
}
