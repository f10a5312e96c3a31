//! Parquet files read straight into device columns.
//!
//! ```text
//!   footers (cached) ── pruned ── row groups, gathered to chunks
//!     | byte ranges of the touched columns, many requests at once
//!   compressed column chunks, through page-locked memory
//!     | pages decompressed by kernels; by all cores on their way where no kernel does
//!   page bodies on the device
//!     | decoded by kernels
//!   device columns, codes for text that has them
//! ```
//!
//! A scan that cannot be read so is left to DataFusion's reader, and the report says why
//! ([`ScanReport`]). What is found out before the first row is a reason; a page that is not
//! what the format allows is an error of the file.

mod chunks;
mod columns;
mod constants;
mod fetch;
mod footers;
mod headers;
mod load;
mod pages;
mod plan;
mod unpack;

pub use chunks::{ChunkSink, Opened};

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;

use super::Device;
use super::codes::{Codes, Wanted};
use super::failure::Failure;
use crate::lower::without_exchange;
use crate::report::{Reason, ScanReport};

/// The accounts of all scans since they were last taken. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Scans(Arc<Mutex<Vec<ScanReport>>>);

impl Scans {
    /// Adds the account of a scan that the device read.
    pub fn add(&self, report: ScanReport) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(report);
    }

    /// Notes that DataFusion's reader read a scan, and why.
    pub fn left_to_cpu(&self, table: String, reason: Reason) {
        let report = ScanReport {
            location: table,
            reason: Some(reason),
            ..ScanReport::default()
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A scan of many partitions asks once for each.
        if !all.contains(&report) {
            all.push(report);
        }
    }

    /// Takes all accounts.
    pub fn take(&self) -> Vec<ScanReport> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Why a scan is left to DataFusion's reader.
fn reason(code: &str, message: String) -> Reason {
    Reason {
        code: code.to_string(),
        message,
        fix: String::new(),
    }
}

/// The plan as a scan that the device reads, with its row groups; `None` when it is left to
/// the CPU, which is noted if it is a scan of files.
pub async fn open(
    plan: &Arc<dyn ExecutionPlan>,
    wanted: &[(usize, Wanted)],
    codes: &Codes,
    device: &Device,
    context: &Arc<TaskContext>,
) -> Result<Option<Opened>, Failure> {
    let Some(scan) = plan::Scan::of(plan, wanted, codes) else {
        return Ok(None);
    };
    let reason = match scan {
        Ok(scan) => match footers::pieces(&scan, context).await? {
            Ok(pieces) => return Ok(Some(Opened { scan, pieces })),
            Err(reason) => reason,
        },
        Err(reason) => reason,
    };
    device.scans.left_to_cpu(plan::location(plan), reason);
    Ok(None)
}

/// Notes that a pipeline reads its source through DataFusion's reader because it streams
/// rows through the host, if the source is a scan of files.
pub fn streamed(source: &Arc<dyn ExecutionPlan>, device: &Device) {
    let source = without_exchange(source);
    if source.is::<DataSourceExec>() && !plan::location(source).is_empty() {
        let message = "rows that go on to the host are read there".to_string();
        let reason = reason("scan-streams", message);
        device.scans.left_to_cpu(plan::location(source), reason);
    }
}

#[cfg(test)]
mod tests;
