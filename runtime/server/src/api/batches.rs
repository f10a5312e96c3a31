//! `/v1/batches`.

use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use indexmap::IndexMap;
use lifecycle::batch::{Batch, Submission};
use lifecycle::filter::Filter;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use utoipa::{IntoParams, ToSchema};

use super::error::{ApiError, ErrorBody, Status};
use super::extract::{Body, Named, Parameters};
use super::resource::{BatchList, BatchResource};
use super::{App, json, json_text, visible};
use crate::serve::submit::{self, Checked, Names};
use crate::serve::tokens::{Caller, Scope};

/// Batches on a page unless asked for more or fewer.
const PAGE_SIZE: usize = 20;
const PAGE_SIZE_MAX: usize = 1_000;
/// The longest wait for a change.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How often a store that others change is asked while somebody waits.
const SHARED_LOOK: Duration = Duration::from_millis(500);

/// Parameters of a submit.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
pub struct CreateParameters {
    /// The id; one is made of the spec's name unless given.
    pub batch_id: Option<String>,
    /// Makes a repeated submit harmless: up to 40 letters, digits, `_` and `-`.
    pub request_id: Option<String>,
    /// Check everything and submit nothing.
    pub validate_only: bool,
}

/// What is submitted.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateBody {
    /// The text of the spec, YAML.
    pub spec: String,
    /// Texts of the files that its stages name in `sql_file`.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub sql_files: IndexMap<String, String>,
    /// Overrides, `path=value`.
    #[serde(default)]
    pub sets: Vec<String>,
    /// Values of variables, `name=value`.
    #[serde(default)]
    pub variables: Vec<String>,
}

/// The submission in a body: JSON, or the bare text of a spec.
pub fn submission(headers: &HeaderMap, body: &Bytes) -> Result<Submission, ApiError> {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let kind = kind
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    let text = std::str::from_utf8(body)
        .map_err(|_| ApiError::parameter("spec", "not-utf8", "the body is not UTF-8 text"))?;
    match kind.as_str() {
        "application/json" => {
            let body: CreateBody = serde_json::from_str(text)
                .map_err(|error| ApiError::parameter("", "body", format!("the body: {error}")))?;
            Ok(Submission {
                spec: body.spec,
                sql_files: body.sql_files,
                sets: body.sets,
                variables: body.variables,
                ..Submission::default()
            })
        }
        "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(Submission {
            spec: text.to_owned(),
            ..Submission::default()
        }),
        _ => Err(ApiError::new(
            Status::UnsupportedMediaType,
            "send `Content-Type: application/json` with a `spec`, or a bare spec as application/yaml",
        )),
    }
}

/// Checks a submission where it holds up nobody else.
pub async fn checked(app: &App, submission: Submission) -> Result<Checked, ApiError> {
    let (machine, policy) = (app.machine.clone(), app.host.policy.clone());
    tokio::task::spawn_blocking(move || submit::check(submission, machine, &policy))
        .await
        .map_err(|error| {
            tracing::error!(%error, "checking a spec failed");
            ApiError::new(Status::Internal, "the spec could not be checked")
        })
}

/// Submit a batch.
#[utoipa::path(
    post, path = "/v1/batches", params(CreateParameters), request_body = CreateBody,
    responses(
        (status = 200, description = "it was submitted before, or only checked", body = BatchResource),
        (status = 201, description = "it is submitted", body = BatchResource),
        (status = 400, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody),
    )
)]
pub async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Parameters(parameters): Parameters<CreateParameters>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let checked = checked(&app, submission(&headers, &body)?).await?;
    if !checked.violations.is_empty() {
        return Err(ApiError::fields(checked.violations));
    }
    let names = Names {
        owner: caller.owner,
        batch_id: parameters.batch_id,
        request_id: parameters.request_id,
    };
    let retention_ms = i64::try_from(app.retention.as_millis()).unwrap_or(i64::MAX);
    let new = submit::new_batch(&checked.loaded, names, &app.fair_label, retention_ms)
        .map_err(|violation| ApiError::fields(vec![violation]))?;
    if parameters.validate_only {
        return Ok(json(json!({
            "valid": true,
            "effective": lifecycle::effective_json(&checked.loaded),
            "problems": checked.loaded.problems,
        })));
    }
    let submitted = app.batches.create(new, &checked.submission).await?;
    let code = match submitted.is_new {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    // Why it waits is told when it is asked for: a long queue makes no submit slow.
    Ok((code, json(BatchResource::of(&submitted.batch, None))).into_response())
}

async fn shown(app: &App, batch: &Batch) -> Result<Response, ApiError> {
    let wait = match batch.state {
        lifecycle::state::BatchState::Queued => {
            app.batches.wait_of(&batch.id, &app.capacity).await?
        }
        _ => None,
    };
    Ok(json(BatchResource::of(batch, wait)))
}

/// Parameters of a look at a batch.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
pub struct GetParameters {
    /// Answer only when the batch has ended, or after this time, such as `30s`; a minute at
    /// most.
    pub wait: Option<String>,
    /// With `wait`: answer also when the batch's `etag` is no longer this.
    pub etag: Option<String>,
}

/// Look at a batch, or wait for its end.
#[utoipa::path(
    get, path = "/v1/batches/{batch_id}", params(("batch_id" = String, Path), GetParameters),
    responses((status = 200, body = BatchResource), (status = 404, body = ErrorBody))
)]
pub async fn get(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
    Parameters(parameters): Parameters<GetParameters>,
) -> Result<Response, ApiError> {
    let wait = match &parameters.wait {
        None => Duration::ZERO,
        Some(text) => {
            let wait: batch_specs::Duration = text.parse().map_err(|_| {
                ApiError::parameter("wait", "wait", "it is not a duration such as `30s`")
            })?;
            Duration::from_secs(wait.seconds()).min(WAIT_MAX)
        }
    };
    let deadline = tokio::time::Instant::now() + wait;
    let mut changes = app.batches.moves();
    let mut stop = app.stop.clone();
    loop {
        changes.mark_unchanged();
        let batch = visible(&app, &caller, &id).await?;
        let is_news = parameters
            .etag
            .as_ref()
            .is_some_and(|etag| *etag != batch.version.to_string());
        let now = tokio::time::Instant::now();
        if batch.state.is_terminal() || is_news || now >= deadline || *stop.borrow() {
            return shown(&app, &batch).await;
        }
        let look = match app.batches.store().is_shared() {
            true => SHARED_LOOK,
            false => WAIT_MAX,
        };
        tokio::select! {
            _ = changes.changed() => {}
            _ = stop.changed() => {}
            () = tokio::time::sleep_until(deadline.min(now + look)) => {}
        }
    }
}

/// Parameters of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
pub struct ListParameters {
    /// Such as `state = RUNNING AND labels.env = prod`; OR binds tighter than AND.
    pub filter: Option<String>,
    /// Batches on a page, 1000 at most.
    pub page_size: Option<usize>,
    /// The `next_page_token` of the page before, with the same filter.
    pub page_token: Option<String>,
}

/// List batches, the newest first.
#[utoipa::path(
    get, path = "/v1/batches", params(ListParameters),
    responses((status = 200, body = BatchList), (status = 400, body = ErrorBody))
)]
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Parameters(parameters): Parameters<ListParameters>,
) -> Result<Response, ApiError> {
    let text = parameters.filter.unwrap_or_default();
    let filter = Filter::parse(&text)?;
    let size = match parameters.page_size {
        None | Some(0) => PAGE_SIZE,
        Some(size) => size.min(PAGE_SIZE_MAX),
    };
    let after = match parameters.page_token.as_deref() {
        None | Some("") => None,
        Some(token) => Some(read_token(token, &text).ok_or_else(|| {
            let told = "it is not the token of a page with this filter; begin without one";
            ApiError::parameter("page_token", "page-token", told)
        })?),
    };
    let query = lifecycle::store::Query {
        filter,
        owner: (!caller.may(Scope::Admin)).then_some(caller.owner),
        after,
        limit: size + 1,
    };
    let mut found = app.batches.store().list(&query).await?;
    let is_last = found.len() <= size;
    found.truncate(size);
    let next = found.last().filter(|_| !is_last);
    let next_page_token = next.map(|batch| page_token(batch.created_ms, &batch.uid, &text));
    let batches = found.iter().map(|batch| BatchResource::of(batch, None));
    Ok(json(BatchList {
        batches: batches.collect(),
        next_page_token,
    }))
}

/// The place after a batch; it fits one filter only.
fn page_token(created_ms: i64, uid: &str, filter: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("{created_ms} {uid} {}", filter_mark(filter)))
}

fn read_token(token: &str, filter: &str) -> Option<(i64, String)> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    let mut parts = text.split(' ');
    let (created, uid, mark) = (parts.next()?, parts.next()?, parts.next()?);
    (mark == filter_mark(filter)).then_some((created.parse().ok()?, uid.to_owned()))
}

fn filter_mark(filter: &str) -> String {
    let hash = Sha256::digest(filter.as_bytes());
    hash.iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Stop a batch (`:cancel`), or try one again that has failed (`:retry`).
#[utoipa::path(
    post, path = "/v1/batches/{batch_id}:{verb}",
    params(("batch_id" = String, Path), ("verb" = String, Path, description = "`cancel` or `retry`")),
    responses((status = 200, body = BatchResource), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub async fn act(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Named(target): Named,
) -> Result<Response, ApiError> {
    let (id, verb) = target.split_once(':').unwrap_or((&target, ""));
    visible(&app, &caller, id).await?;
    let batch = match verb {
        "cancel" => app.batches.cancel(id, &caller.owner).await?,
        "retry" => app.batches.retry(id, &caller.owner).await?,
        _ => {
            let message = "a batch can be told `:cancel` and `:retry`";
            return Err(ApiError::new(Status::InvalidArgument, message));
        }
    };
    shown(&app, &batch).await
}

/// Forget a batch that has ended.
#[utoipa::path(
    delete, path = "/v1/batches/{batch_id}", params(("batch_id" = String, Path)),
    responses((status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub async fn delete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
) -> Result<Response, ApiError> {
    visible(&app, &caller, &id).await?;
    app.batches.delete(&id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Which attempt; the last unless given.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
pub struct AttemptParameters {
    /// The attempt's number.
    pub attempt: Option<u32>,
}

/// The run report of an attempt.
#[utoipa::path(
    get, path = "/v1/batches/{batch_id}/report", params(("batch_id" = String, Path), AttemptParameters),
    responses((status = 200, description = "the run report", body = Object), (status = 404, body = ErrorBody))
)]
pub async fn report(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
    Parameters(parameters): Parameters<AttemptParameters>,
) -> Result<Response, ApiError> {
    let batch = visible(&app, &caller, &id).await?;
    let last = batch.last_attempt().map_or(0, |attempt| attempt.number);
    let attempt = parameters.attempt.unwrap_or(last);
    let report = app.batches.store().report(&batch.uid, attempt).await?;
    report.map(json_text).ok_or_else(|| {
        let message = match attempt {
            0 => format!("`{id}` has not started, so there is no report yet"),
            n => format!("attempt {n} of `{id}` has left no report"),
        };
        ApiError::new(Status::NotFound, message)
    })
}

/// What was submitted as a batch that the caller may see.
pub async fn submission_of(app: &App, caller: &Caller, id: &str) -> Result<Submission, ApiError> {
    let batch = visible(app, caller, id).await?;
    let submission = app.batches.store().submission(&batch.uid).await?;
    submission.ok_or_else(|| ApiError::no_batch(id))
}

/// What was submitted.
#[utoipa::path(
    get, path = "/v1/batches/{batch_id}/spec", params(("batch_id" = String, Path)),
    responses((status = 200, body = CreateBody), (status = 404, body = ErrorBody))
)]
pub async fn spec(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
) -> Result<Response, ApiError> {
    let submission = submission_of(&app, &caller, &id).await?;
    Ok(json(CreateBody {
        spec: submission.spec,
        sql_files: submission.sql_files,
        sets: submission.sets,
        variables: submission.variables,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_token_fits_its_filter_only() {
        let token = page_token(-5, "uid", "state = RUNNING");
        assert_eq!(
            read_token(&token, "state = RUNNING"),
            Some((-5, "uid".to_owned()))
        );
        for (token, filter) in [(token.as_str(), ""), ("", ""), ("%%", ""), ("AAAA", "")] {
            assert_eq!(read_token(token, filter), None, "{token} {filter}");
        }
    }
}
