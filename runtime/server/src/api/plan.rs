//! What a spec means here: the plan of each stage, made in a process of its own.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use lifecycle::batch::Submission;

use super::batches::{self, checked, submission_of};
use super::error::{ApiError, ErrorBody, Status};
use super::extract::{Body, Named};
use super::{App, json};
use crate::serve::outcome::read_report;
use crate::serve::process;
use crate::serve::tokens::Caller;
use crate::serve::worker::{start, write_job};
use crate::worker_protocol::{Job, REPORT_FILE, boot_time_ns};

/// Planning reads footers and listings; what takes longer does not answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The plan of a submission that is not submitted.
#[utoipa::path(
    post, path = "/v1/plan", request_body = super::batches::CreateBody,
    responses((status = 200, description = "effective configuration and the plan of each stage", body = Object), (status = 400, body = ErrorBody))
)]
pub async fn of_submission(
    State(app): State<App>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let checked = checked(&app, batches::submission(&headers, &body)?).await?;
    if !checked.violations.is_empty() {
        return Err(ApiError::fields(checked.violations));
    }
    plan(&app, checked.submission).await
}

/// The plan of a batch, as things are now.
#[utoipa::path(
    get, path = "/v1/batches/{batch_id}/plan", params(("batch_id" = String, Path)),
    responses((status = 200, description = "effective configuration and the plan of each stage", body = Object), (status = 404, body = ErrorBody))
)]
pub async fn of_batch(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
) -> Result<Response, ApiError> {
    plan(&app, submission_of(&app, &caller, &id).await?).await
}

async fn plan(app: &App, submission: Submission) -> Result<Response, ApiError> {
    let Ok(_turn) = app.planners.try_acquire() else {
        let message = "other plans are being made; try again";
        return Err(ApiError::new(Status::ResourceExhausted, message));
    };
    let failed = |error: std::io::Error| {
        tracing::error!(%error, "a plan cannot be made");
        ApiError::new(
            Status::Unavailable,
            "the plan cannot be made now; try again",
        )
    };
    let folder = app.host.scratch.join(format!("plan-{:x}", boot_time_ns()));
    let job = Job {
        batch_id: String::new(),
        batch_uid: String::new(),
        attempt: 0,
        submission,
        is_reduced: false,
        policy: app.host.policy.clone(),
        plan_only: true,
    };
    write_job(&folder, &job).map_err(failed)?;
    let planned = async {
        let child = start(&app.host.program, &folder, None)?;
        let pid = child.id();
        let waited = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
        if let Some(pid) = pid {
            process::kill_group(pid);
        }
        waited.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
        Ok(read_report(&folder.join(REPORT_FILE)))
    };
    let planned = planned.await;
    let _ = tokio::fs::remove_dir_all(&folder).await;
    match planned.map_err(failed)? {
        Some(plan) => Ok(json(plan)),
        None => Err(ApiError::new(
            Status::Internal,
            "planning ended without a plan",
        )),
    }
}
