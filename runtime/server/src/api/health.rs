//! Whether the service lives, whether it can serve, and its figures for Prometheus.

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use super::App;
use super::error::{ApiError, Status};
use crate::serve::figures::FIGURES;

/// The process answers.
#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "it lives", body = String)))]
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// The store answers, and the server is not about to stop.
#[utoipa::path(get, path = "/readyz", responses((status = 200, description = "it can serve", body = String), (status = 503, body = super::error::ErrorBody)))]
pub async fn readyz(State(app): State<App>) -> Result<&'static str, ApiError> {
    if *app.stop.borrow() {
        return Err(ApiError::new(Status::Unavailable, "the server is stopping"));
    }
    app.batches.store().counts().await?;
    Ok("ready\n")
}

/// Figures in Prometheus' text form.
#[utoipa::path(get, path = "/metrics", responses((status = 200, description = "figures", body = String)))]
pub async fn metrics(State(app): State<App>) -> Result<Response, ApiError> {
    let mut text = String::new();
    let counts = app.batches.store().counts().await?;
    head(
        &mut text,
        "warpline_batches",
        "gauge",
        "Batches in the store by state.",
    );
    for (state, n) in counts {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "warpline_batches{{state=\"{}\"}} {n}", state.name());
    }
    let open = app.batches.store().open().await?;
    let now = app.batches.store().now().await?;
    let waiting = open.iter().filter(|batch| batch.lease.is_none());
    let oldest = waiting
        .clone()
        .map(|batch| now - batch.queued_ms)
        .max()
        .unwrap_or(0);
    head(
        &mut text,
        "warpline_queue_depth",
        "gauge",
        "Batches that wait.",
    );
    let _ = writeln!(text, "warpline_queue_depth {}", waiting.count());
    let about = "Time that the batch waits that has waited longest.";
    head(&mut text, "warpline_queue_oldest_seconds", "gauge", about);
    let _ = writeln!(
        text,
        "warpline_queue_oldest_seconds {}",
        oldest as f64 / 1e3
    );
    FIGURES.write(&mut text);
    let kind = HeaderValue::from_static("text/plain; version=0.0.4");
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// The two lines before a figure.
pub fn head(text: &mut String, name: &str, kind: &str, about: &str) {
    let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} {kind}");
}
