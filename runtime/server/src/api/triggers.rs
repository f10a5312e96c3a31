//! `/v1/triggers`.

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lifecycle::store::ledger::EventState;
use lifecycle::trigger::{Source, Trigger, TriggerSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use utoipa::{IntoParams, ToSchema};

use super::error::{ApiError, ErrorBody, Status};
use super::extract::{Body, Named, Parameters};
use super::resource::time;
use super::{App, json as answer};
use crate::serve::submit::FieldViolation;
use crate::serve::tokens::{Caller, Scope, create};

/// Events that a trigger shows.
const EVENTS_SHOWN: usize = 20;
/// How often a record that others change at the same time is read again.
const TRIES: usize = 10;

/// A trigger.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct TriggerResource {
    /// Its name.
    pub name: String,
    /// Whose its batches are.
    pub owner: String,
    /// When it was made.
    pub create_time: String,
    /// Why it submits nothing; absent while it works.
    pub paused: Option<String>,
    /// What was written.
    #[schema(value_type = Object)]
    pub spec: Value,
    /// Its events by state.
    pub events: Vec<EventCount>,
    /// The events that came last and lead to nothing, and why.
    pub dead: Vec<DeadEvent>,
    /// Where notifications are posted, for a webhook.
    pub webhook: Option<String>,
    /// The token for that; shown once, when the trigger is made.
    pub webhook_token: Option<String>,
}

/// How many events are in a state.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct EventCount {
    /// `PENDING`, `GROUPED`, `SUBMITTED` or `DEAD`.
    pub state: String,
    /// How many.
    pub count: u64,
    /// How often one of them came again.
    pub repeated: u64,
}

/// An event that leads to nothing.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadEvent {
    /// The object; absent for a record that cannot be read.
    pub location: Option<String>,
    /// When it came.
    pub receive_time: String,
    /// Why.
    pub reason: String,
}

async fn find(app: &App, name: &str) -> Result<Trigger, ApiError> {
    let all = app.batches.store().triggers().await?;
    let found = all.into_iter().find(|trigger| trigger.name == name);
    found.ok_or_else(|| {
        let name: String = name
            .chars()
            .take(80)
            .flat_map(char::escape_default)
            .collect();
        ApiError::new(Status::NotFound, format!("there is no trigger `{name}`"))
    })
}

async fn visible(app: &App, caller: &Caller, name: &str) -> Result<Trigger, ApiError> {
    match find(app, name).await {
        Ok(trigger) if !caller.sees(&trigger.owner) => Err(ApiError::new(
            Status::NotFound,
            format!("there is no trigger `{name}`"),
        )),
        other => other,
    }
}

/// Triggers submit in their owner's name for as long as they are there, so making and
/// changing them is the operator's.
fn needs_admin(caller: &Caller) -> Result<(), ApiError> {
    if caller.may(Scope::Admin) {
        return Ok(());
    }
    let message = "the token's scopes do not include `admin`, which triggers need";
    Err(ApiError::new(Status::PermissionDenied, message))
}

async fn shown(app: &App, trigger: &Trigger) -> Result<TriggerResource, ApiError> {
    let store = app.batches.store();
    let counts = store.event_counts(&trigger.name).await?;
    let dead = store
        .events(&trigger.name, EventState::Dead, EVENTS_SHOWN)
        .await?;
    let is_webhook = matches!(trigger.spec.source, Source::Webhook {});
    Ok(TriggerResource {
        name: trigger.name.clone(),
        owner: trigger.owner.clone(),
        create_time: time(trigger.created_ms),
        paused: trigger.paused.clone(),
        spec: json!(trigger.spec),
        events: counts
            .into_iter()
            .map(|(state, count, repeated)| EventCount {
                state: state.name().into(),
                count,
                repeated,
            })
            .collect(),
        dead: dead
            .into_iter()
            .map(|entry| DeadEvent {
                location: entry.event.map(|event| event.location()),
                receive_time: time(entry.received_ms),
                reason: entry.detail.unwrap_or_default(),
            })
            .collect(),
        webhook: is_webhook.then(|| format!("/v1/triggers/{}/events", trigger.name)),
        webhook_token: None,
    })
}

/// Make a trigger. The body is its YAML.
#[utoipa::path(
    post, path = "/v1/triggers", request_body(content = String, content_type = "application/yaml"),
    responses((status = 201, body = TriggerResource), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody))
)]
pub async fn create_trigger(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, ApiError> {
    needs_admin(&caller)?;
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    if !kind.is_some_and(|kind| kind.contains("yaml") || kind.contains("json")) {
        let message = "send the trigger as application/yaml";
        return Err(ApiError::new(Status::UnsupportedMediaType, message));
    }
    let text = std::str::from_utf8(&body)
        .map_err(|_| ApiError::parameter("", "not-utf8", "the body is not UTF-8 text"))?;
    let spec: TriggerSpec = serde_saphyr::from_str(text)
        .map_err(|error| ApiError::parameter("", "trigger", error.to_string().trim().to_owned()))?;
    let store = app.batches.store();
    let all = store.triggers().await?;
    let others: Vec<TriggerSpec> = all.into_iter().map(|trigger| trigger.spec).collect();
    let violations: Vec<FieldViolation> = app.acceptor.check(&spec, &others);
    if !violations.is_empty() {
        return Err(ApiError::fields(violations));
    }
    let mut token = None;
    if matches!(spec.source, Source::Webhook {}) {
        let made =
            create(&spec.name, &[]).map_err(|error| ApiError::new(Status::Internal, error))?;
        token = Some(made);
    }
    let now = store.now().await?;
    let mut trigger = Trigger {
        name: spec.name.clone(),
        version: 0,
        owner: caller.owner,
        spec,
        created_ms: now,
        paused: None,
        resumed_ms: now,
        webhook_sha256: token.as_ref().map(|(_, entry)| entry.sha256.clone()),
        polled_ms: None,
    };
    if !store.put_trigger(&mut trigger).await? {
        let message = format!("there is a trigger `{}`; delete it first", trigger.name);
        return Err(ApiError::new(Status::AlreadyExists, message));
    }
    app.batches.announce();
    let mut resource = shown(&app, &trigger).await?;
    resource.webhook_token = token.map(|(token, _)| token);
    Ok((StatusCode::CREATED, answer(resource)).into_response())
}

/// List triggers.
#[utoipa::path(get, path = "/v1/triggers", responses((status = 200, body = [TriggerResource])))]
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let mut resources = Vec::new();
    for trigger in app.batches.store().triggers().await? {
        if caller.sees(&trigger.owner) {
            resources.push(shown(&app, &trigger).await?);
        }
    }
    Ok(answer(json!({ "triggers": resources })))
}

/// Look at a trigger.
#[utoipa::path(
    get, path = "/v1/triggers/{name}", params(("name" = String, Path)),
    responses((status = 200, body = TriggerResource), (status = 404, body = ErrorBody))
)]
pub async fn get(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Named(name): Named,
) -> Result<Response, ApiError> {
    let trigger = visible(&app, &caller, &name).await?;
    Ok(answer(shown(&app, &trigger).await?))
}

/// Forget a trigger and its events. Its batches stay.
#[utoipa::path(
    delete, path = "/v1/triggers/{name}", params(("name" = String, Path)),
    responses((status = 204), (status = 404, body = ErrorBody))
)]
pub async fn delete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Named(name): Named,
) -> Result<Response, ApiError> {
    visible(&app, &caller, &name).await?;
    needs_admin(&caller)?;
    app.batches.store().delete_trigger(&name).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// What a backfill takes in.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
pub struct ActParameters {
    /// For `:backfill`: the folder to list, such as `s3://lake/in/`.
    pub location: Option<String>,
}

/// `:pause` and `:resume` a trigger, `:replay` its dead events, `:backfill` what lies in a
/// folder already.
#[utoipa::path(
    post, path = "/v1/triggers/{name}:{verb}",
    params(("name" = String, Path), ("verb" = String, Path, description = "`pause`, `resume`, `replay` or `backfill`"), ActParameters),
    responses((status = 200, body = TriggerResource), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub async fn act(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Named(target): Named,
    Parameters(parameters): Parameters<ActParameters>,
) -> Result<Response, ApiError> {
    let (name, verb) = target.split_once(':').unwrap_or((&target, ""));
    let trigger = visible(&app, &caller, name).await?;
    needs_admin(&caller)?;
    match verb {
        "pause" => set_paused(&app, name, Some(format!("{} paused it", caller.owner))).await?,
        "resume" => set_paused(&app, name, None).await?,
        "replay" => {
            app.triggers.replay(&trigger).await?;
        }
        "backfill" => {
            let location = parameters.location.ok_or_else(|| {
                ApiError::parameter("location", "location", "name the folder to list")
            })?;
            let listed = app.triggers.backfill(&trigger, &location).await;
            listed.map_err(|problem| ApiError::parameter("location", "location", problem))?;
        }
        _ => {
            let message = "a trigger can be told `:pause`, `:resume`, `:replay` and `:backfill`";
            return Err(ApiError::new(Status::InvalidArgument, message));
        }
    }
    let trigger = find(&app, name).await?;
    Ok(answer(shown(&app, &trigger).await?))
}

async fn set_paused(app: &App, name: &str, paused: Option<String>) -> Result<(), ApiError> {
    let store = app.batches.store();
    for _ in 0..TRIES {
        let mut trigger = find(app, name).await?;
        if paused.is_none() {
            trigger.resumed_ms = store.now().await?;
        }
        trigger.paused.clone_from(&paused);
        if store.put_trigger(&mut trigger).await? {
            app.batches.announce();
            return Ok(());
        }
    }
    Err(ApiError::new(
        Status::Unavailable,
        "others change the trigger; try again",
    ))
}

/// The token of a webhook where headers cannot be set.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
pub struct EventParameters {
    /// The webhook's token, unless the `Authorization` header has it.
    pub token: Option<String>,
}

/// Post notifications of object stores: S3's shape, also behind SNS and as MinIO sends it,
/// EventBridge's, and Pub/Sub push of Google Cloud Storage. What is answered is durable.
#[utoipa::path(
    post, path = "/v1/triggers/{name}/events", params(("name" = String, Path), EventParameters),
    request_body(content = Object),
    responses((status = 200, description = "how many events are new, known, passed over and unreadable", body = Object), (status = 401, body = ErrorBody))
)]
pub async fn events(
    State(app): State<App>,
    Named(name): Named,
    Parameters(parameters): Parameters<EventParameters>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let given = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .map(|value| {
            value
                .strip_prefix("Bearer ")
                .unwrap_or(value)
                .trim()
                .to_owned()
        });
    let given = given.or(parameters.token).unwrap_or_default();
    let given: String = Sha256::digest(given.as_bytes())
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let trigger = find(&app, &name).await.ok();
    let wanted = trigger
        .as_ref()
        .and_then(|trigger| trigger.webhook_sha256.clone());
    // A trigger that is not there takes as long as one with another token, and says the same.
    let wanted_or_none = wanted.clone().unwrap_or_else(|| "-".repeat(64));
    let is_right = bool::from(wanted_or_none.as_bytes().ct_eq(given.as_bytes()));
    let (Some(trigger), true, true) = (trigger, wanted.is_some(), is_right) else {
        let message = "give the trigger's own token: `Authorization: Bearer wl_...`";
        return Err(ApiError::new(Status::Unauthenticated, message));
    };
    let message: Value = serde_json::from_slice(&body).map_err(|error| {
        ApiError::parameter("", "body", format!("the body is not JSON: {error}"))
    })?;
    Ok(answer(app.triggers.intake(&trigger, &message).await?))
}
