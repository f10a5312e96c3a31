//! The page at `/`: three files inside the binary. It asks for nothing of other sites.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// Scripts and styles of this server and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; form-action 'none'; base-uri 'none'; \
                      frame-ancestors 'none'";

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, HeaderValue); 3] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(POLICY),
        ),
    ];
    (headers, text).into_response()
}

/// `/`
pub async fn index() -> Response {
    file(
        "text/html; charset=utf-8",
        include_str!("../../page/index.html"),
    )
}

/// `/page.js`
pub async fn script() -> Response {
    file(
        "text/javascript; charset=utf-8",
        include_str!("../../page/page.js"),
    )
}

/// `/page.css`
pub async fn style() -> Response {
    file(
        "text/css; charset=utf-8",
        include_str!("../../page/page.css"),
    )
}
