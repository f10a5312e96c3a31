//! The REST service: a file for each resource.
//!
//! A handler reads the request, asks `lifecycle` or `serve`, and shows the answer. Status
//! codes are chosen in [`error`] alone.

pub mod batches;
pub mod error;
pub mod extract;
pub mod health;
pub mod logs;
pub mod openapi;
pub mod page;
pub mod plan;
pub mod resource;
pub mod triggers;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use lifecycle::batches::Batches;
use lifecycle::queue::Capacity;
use lifecycle::trigger::Triggers;
use tokio::sync::{Semaphore, watch};

use crate::serve::supervisor::Host;
use crate::serve::tokens::{Caller, Scope, Tokens};
use crate::serve::triggers::Acceptor;
use error::{ApiError, Status};

/// Specs and their SQL files are smaller; what is larger is data by mistake.
const BODY_BYTES_MAX: usize = 4 << 20;

/// What every handler can ask.
#[derive(Clone)]
pub struct App {
    inner: Arc<Inner>,
}

/// The parts of [`App`].
pub struct Inner {
    /// The batches.
    pub batches: Batches,
    /// What objects start.
    pub triggers: Arc<Triggers>,
    /// How batches of triggers are accepted.
    pub acceptor: Arc<Acceptor>,
    /// What this server can run.
    pub capacity: Capacity,
    /// The machine that specs are derived for.
    pub machine: batch_specs::Machine,
    /// How attempts run here.
    pub host: Arc<Host>,
    /// Who may do what.
    pub tokens: Tokens,
    /// The label by which batches take turns.
    pub fair_label: String,
    /// How long an ended batch is kept.
    pub retention: Duration,
    /// Becomes true when the server is to stop.
    pub stop: watch::Receiver<bool>,
    /// Plans are made one at a time for each core.
    pub planners: Semaphore,
}

impl std::ops::Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

/// Everything that is served.
pub fn router(inner: Inner) -> Router {
    let app = App {
        inner: Arc::new(inner),
    };
    let guarded = Router::new()
        .route("/v1/batches", get(batches::list).post(batches::create))
        .route(
            "/v1/batches/{batch_id}",
            get(batches::get).delete(batches::delete).post(batches::act),
        )
        .route("/v1/batches/{batch_id}/logs", get(logs::logs))
        .route("/v1/batches/{batch_id}/report", get(batches::report))
        .route("/v1/batches/{batch_id}/spec", get(batches::spec))
        .route("/v1/batches/{batch_id}/plan", get(plan::of_batch))
        .route(
            "/v1/triggers",
            get(triggers::list).post(triggers::create_trigger),
        )
        .route(
            "/v1/triggers/{name}",
            get(triggers::get)
                .delete(triggers::delete)
                .post(triggers::act),
        )
        .route("/v1/plan", post(plan::of_submission))
        .route("/metrics", get(health::metrics))
        .route_layer(middleware::from_fn_with_state(app.clone(), admit));
    Router::new()
        .route("/", get(page::index))
        .route("/page.js", get(page::script))
        .route("/page.css", get(page::style))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/openapi.json", get(openapi::serve))
        // It has a token of its own.
        .route("/v1/triggers/{name}/events", post(triggers::events))
        .merge(guarded)
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(app.clone(), guard_browser))
        .with_state(app)
}

async fn unknown() -> ApiError {
    ApiError::new(
        Status::NotFound,
        "there is nothing at this path; see /openapi.json",
    )
}

async fn wrong_method() -> ApiError {
    ApiError::new(
        Status::InvalidArgument,
        "this path does not take this method; see /openapi.json",
    )
}

/// Lets in who has a token that is known, and what its scopes allow.
async fn admit(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let token = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme
                .eq_ignore_ascii_case("bearer")
                .then_some(token.trim())
        });
    let Some(caller) = app.tokens.caller(token) else {
        let message = match token {
            None => "give a token: `Authorization: Bearer wl_...`",
            Some(_) => "the token is not known here",
        };
        return ApiError::new(Status::Unauthenticated, message).into_response();
    };
    let needed = match *request.method() {
        Method::GET | Method::HEAD => Scope::Read,
        // A plan changes nothing.
        _ if request.uri().path() == "/v1/plan" => Scope::Read,
        _ => Scope::Write,
    };
    if !caller.may(needed) {
        let message = match needed {
            Scope::Read => "the token's scopes do not include `read`",
            Scope::Write | Scope::Admin => "the token's scopes do not include `write`",
        };
        return ApiError::new(Status::PermissionDenied, message).into_response();
    }
    if needed != Scope::Read {
        tracing::info!(
            owner = caller.owner,
            method = %request.method(),
            path = request.uri().path(),
            "a change is asked for"
        );
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// Keeps web pages of others from acting through a browser on this machine: without tokens
/// nothing else would stop them. A name that leads here by a trick is not ours.
async fn guard_browser(State(app): State<App>, request: Request, next: Next) -> Response {
    if is_foreign(&app, request.headers()) {
        let message = "requests of other sites are refused";
        return ApiError::new(Status::PermissionDenied, message).into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Whether a browser sends a request on behalf of another site, or by another name.
fn is_foreign(app: &App, headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let is_of_other_site = text(HeaderName::from_static("sec-fetch-site"))
        .is_some_and(|site| !matches!(site, "same-origin" | "none"));
    let has_other_name =
        !app.tokens.are_required() && text(header::HOST).is_some_and(|host| !is_loopback(host));
    is_of_other_site || has_other_name
}

/// Whether the host of a request is this machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let address: Option<std::net::IpAddr> = name.parse().ok();
    name.eq_ignore_ascii_case("localhost") || address.is_some_and(|ip| ip.is_loopback())
}

/// A batch that the caller may see.
async fn visible(
    app: &App,
    caller: &Caller,
    id: &str,
) -> Result<lifecycle::batch::Batch, ApiError> {
    // What cannot be an id is not asked for.
    if !crate::serve::submit::is_batch_id(id) {
        return Err(ApiError::no_batch(id));
    }
    let batch = app.batches.get(id).await?;
    if !caller.sees(&batch.owner) {
        return Err(ApiError::no_batch(id));
    }
    Ok(batch)
}

/// The answer as JSON that is text already.
fn json_text(text: String) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// The answer as JSON.
fn json(value: impl serde::Serialize) -> Response {
    Json(value).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_ours() {
        for host in [
            "localhost",
            "LOCALHOST:8470",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:8470",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "127.0.0.1.evil.example",
            "[::2]",
            "10.0.0.1:80",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
