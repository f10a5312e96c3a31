//! Why a pipeline did not finish, and what follows from it.

use arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use kernels::error::Fault;
use kernels::launch::RunCounts;
use parquet::errors::ParquetError;

use super::Device;
use super::slices::SlicesReport;
use super::spill::Spill;
use crate::report::{PipelineReport, Reason};

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

impl From<ArrowError> for Failure {
    fn from(error: ArrowError) -> Failure {
        Failure::User(error.into())
    }
}

impl From<kernels::error::Error> for Failure {
    fn from(error: kernels::error::Error) -> Failure {
        use kernels::error::Error;
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
            Error::MalformedPage(page) => {
                let message = ParquetError::General(page.to_string());
                return Failure::User(DataFusionError::ParquetError(Box::new(message)));
            }
            Error::OutOfMemory(_) | Error::OutOfMemoryInside(_) => OUT_OF_MEMORY,
            Error::Unsupported(_) => "unsupported-at-run-time",
            _ => "device-error",
        };
        Failure::device(code, error.to_string())
    }
}

impl Failure {
    /// A failure that the CPU subtree can make up for.
    pub fn device(code: &str, message: String) -> Failure {
        Failure::Device(Reason {
            code: code.to_string(),
            message,
            fix: String::new(),
        })
    }
}

/// Why a pipeline stopped whose device ran out of memory.
const OUT_OF_MEMORY: &str = "out-of-device-memory";

/// The failure of a pipeline for which the device has too little memory.
pub fn out_of_memory(message: String) -> Failure {
    Failure::device(OUT_OF_MEMORY, message)
}

/// Whether the device's memory was short.
pub fn is_out_of_memory(failure: &Failure) -> bool {
    matches!(failure, Failure::Device(reason) if reason.code == OUT_OF_MEMORY)
}

/// What running in slices adds to the report.
pub fn add_slices(
    report: &mut PipelineReport,
    slices: &SlicesReport,
    spill: &Spill,
    device: &Device,
) {
    add_counts(report, slices.counts, device);
    report.retries += slices.retries;
    report.passes += slices.n_passes;
    report.spilled_bytes += spill.moved_bytes();
    report.disk_bytes += spill.disk_bytes();
}

/// What a run's counts say in the report.
pub fn add_counts(report: &mut PipelineReport, counts: RunCounts, device: &Device) {
    report.rows_in += counts.rows;
    report.chunks += counts.chunks;
    report.bytes_read += counts.bytes_read;
    report.device_ms += counts.device_ms;
    report.jit_compiled += counts.jit_compiled;
    report.jit_cached += counts.jit_cached;
    report.jit_ms += counts.jit_ms;
    report.bytes_to_device += counts.bytes_to_device;
    report.bytes_to_host += counts.bytes_to_host;
    if let Some(bandwidth) = device.gpu.info().bandwidth_bytes_per_s {
        report.ideal_ms += counts.bytes_read as f64 / bandwidth * 1e3;
    }
}
