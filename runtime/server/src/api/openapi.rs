//! The service's description in OpenAPI, made from the handlers themselves.

use axum::response::Response;
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};

use super::{batches, error, health, json_text, logs, plan, resource, triggers};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Warpline",
        description = "SQL batches on GPUs: submit, watch, cancel, retry. Errors have one form, `ErrorBody`."
    ),
    paths(
        batches::create, batches::list, batches::get, batches::act, batches::delete,
        batches::report, batches::spec, logs::logs, plan::of_batch, plan::of_submission, triggers::create_trigger, triggers::list, triggers::get, triggers::delete, triggers::act, triggers::events,
        health::healthz, health::readyz, health::metrics,
    ),
    components(schemas(resource::BatchResource, error::ErrorBody)),
    security(("token" = []))
)]
struct Description;

/// The description as text.
pub fn text() -> String {
    let mut description = Description::openapi();
    if let Some(components) = &mut description.components {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("token", scheme);
    }
    // It is made of text alone, all of which JSON has.
    let mut text = description.to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// `/openapi.json`
pub async fn serve() -> Response {
    json_text(text())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checked_in_description_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
        let text = super::text();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(path, &text).expect("it is written");
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept == text,
            "run with UPDATE_GOLDEN=1 and read the difference of openapi.json"
        );
    }
}
