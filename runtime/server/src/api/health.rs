//! Whether the service lives, whether it can serve, and its figures for Prometheus.

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use lifecycle::store::ledger::EventState;

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
    triggers(&app, now, &mut text).await?;
    FIGURES.write(&mut text);
    let kind = HeaderValue::from_static("text/plain; version=0.0.4");
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// Events of each trigger, and how far it lags behind. Names of triggers hold nothing that
/// would have to be escaped.
async fn triggers(app: &App, now: i64, text: &mut String) -> Result<(), ApiError> {
    let store = app.batches.store();
    let (mut events, mut repeated, mut lags) = (String::new(), String::new(), String::new());
    for trigger in store.triggers().await? {
        let name = &trigger.name;
        let mut n_repeated = 0;
        for (state, n, again) in store.event_counts(name).await? {
            let state = state.name();
            let _ = writeln!(
                events,
                "warpline_trigger_events{{trigger=\"{name}\",state=\"{state}\"}} {n}"
            );
            n_repeated += again;
        }
        let _ = writeln!(
            repeated,
            "warpline_trigger_events_repeated{{trigger=\"{name}\"}} {n_repeated}"
        );
        let oldest = store.events(name, EventState::Pending, 1).await?;
        let lag = oldest
            .first()
            .map_or(0, |entry| (now - entry.received_ms).max(0));
        let _ = writeln!(
            lags,
            "warpline_trigger_lag_seconds{{trigger=\"{name}\"}} {}",
            lag as f64 / 1e3
        );
    }
    for (name, about, lines) in [
        (
            "warpline_trigger_events",
            "Events of a trigger by state.",
            events,
        ),
        (
            "warpline_trigger_events_repeated",
            "Deliveries of events that were known.",
            repeated,
        ),
        (
            "warpline_trigger_lag_seconds",
            "Age of the oldest event that waits.",
            lags,
        ),
    ] {
        head(text, name, "gauge", about);
        text.push_str(&lines);
    }
    Ok(())
}

/// The two lines before a figure.
pub fn head(text: &mut String, name: &str, kind: &str, about: &str) {
    let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} {kind}");
}
