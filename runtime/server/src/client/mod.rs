//! The service, as the command line reaches it.

pub mod context;
pub mod events;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::exit::Exit;
use context::Target;

/// How long a server that does not answer is asked again, as while it restarts.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two such questions.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest answer; logs and reports come in parts.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Why the service did not do what it was asked.
#[derive(Debug)]
pub struct ClientError {
    /// What the command exits with.
    pub exit: Exit,
    /// The words for the user, problems of a spec included.
    pub message: String,
    /// What an error of the service was about.
    pub body: Value,
}

impl ClientError {
    /// A failure of this command itself.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        ClientError {
            exit,
            message: message.into(),
            body: Value::Null,
        }
    }
}

/// A service.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    target: Target,
    /// Whether it has answered before; only then its silence may be a restart.
    has_answered: Arc<AtomicBool>,
}

type Result<T> = std::result::Result<T, ClientError>;

impl Client {
    /// Prepares to ask; nothing is sent.
    pub fn new(target: Target) -> Result<Client> {
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(10))
            .user_agent(concat!("warpline/", env!("CARGO_PKG_VERSION")));
        if let Some(path) = &target.ca_certificate {
            let told = |problem: String| {
                ClientError::new(
                    Exit::Usage,
                    format!("the certificate `{}`: {problem}", path.display()),
                )
            };
            let text = std::fs::read(path).map_err(|e| told(engine::words::io_problem(&e)))?;
            let certificate = reqwest::Certificate::from_pem(&text)
                .map_err(|_| told("it is not a PEM file".into()))?;
            builder = builder.add_root_certificate(certificate);
        }
        let http = builder
            .build()
            .map_err(|error| ClientError::new(Exit::Failed, format!("no connections: {error}")))?;
        Ok(Client {
            http,
            target,
            has_answered: Arc::default(),
        })
    }

    /// The service's address.
    pub fn server(&self) -> &str {
        &self.target.server
    }

    /// Keeps that the service has answered.
    pub fn answered(&self) {
        self.has_answered.store(true, Relaxed);
    }

    /// Whether the service has answered before.
    pub fn has_answered(&self) -> bool {
        self.has_answered.load(Relaxed)
    }

    /// A request for a path, with the token.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self
            .http
            .request(method, format!("{}{path}", self.target.server));
        match &self.target.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends once and reads the answer.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Result<Value> {
        let response = request.timeout(TIMEOUT).send().await;
        let response = response.map_err(|error| self.unreachable(&error))?;
        self.answered();
        let status = response.status();
        let text = response
            .text()
            .await
            .map_err(|error| self.unreachable(&error))?;
        if status.is_success() {
            if text.is_empty() {
                return Ok(Value::Null);
            }
            return serde_json::from_str(&text).map_err(|_| self.foreign(status));
        }
        Err(self.refused(status, &text))
    }

    /// Asks for something that changes nothing, again while the server does not answer.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let since = tokio::time::Instant::now();
        loop {
            match self.send(self.request(Method::GET, path)).await {
                Ok(value) => {
                    return serde_json::from_value(value).map_err(|_| self.foreign(StatusCode::OK));
                }
                Err(error)
                    if error.exit == Exit::Unreachable
                        && self.has_answered()
                        && since.elapsed() < PATIENCE =>
                {
                    tracing::debug!(error.message, "asked again");
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Changes something.
    pub async fn post(&self, path: &str) -> Result<Value> {
        self.send(self.request(Method::POST, path)).await
    }

    fn foreign(&self, status: StatusCode) -> ClientError {
        let server = &self.target.server;
        let message = format!("{server} does not answer as a Warpline service does ({status})");
        ClientError::new(Exit::Unreachable, message)
    }

    /// The words for a connection that failed.
    pub fn unreachable(&self, error: &reqwest::Error) -> ClientError {
        tracing::debug!(?error, "the request failed");
        let mut causes = String::new();
        let mut cause = std::error::Error::source(error);
        while let Some(inner) = cause {
            causes = inner.to_string();
            cause = inner.source();
        }
        let how = if error.is_timeout() {
            "does not answer in time".to_owned()
        } else if causes.to_ascii_lowercase().contains("certificate") {
            "shows a certificate that is not trusted here; see --ca-certificate".to_owned()
        } else {
            "does not answer; is it running there? see --server".to_owned()
        };
        ClientError::new(Exit::Unreachable, format!("{} {how}", self.target.server))
    }

    /// The words for an answer that is an error.
    pub fn refused(&self, status: StatusCode, text: &str) -> ClientError {
        let body: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        let error = &body["error"];
        let Some(message) = error["message"].as_str() else {
            return self.foreign(status);
        };
        let exit = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Exit::Refused,
            StatusCode::CONFLICT => Exit::Conflict,
            status if status.is_server_error() => Exit::Unreachable,
            StatusCode::TOO_MANY_REQUESTS => Exit::Unreachable,
            StatusCode::NOT_FOUND => Exit::Failed,
            _ => Exit::Usage,
        };
        let mut told = plain(message);
        for violation in error["field_violations"].as_array().into_iter().flatten() {
            told.push_str(&violation_line(violation));
        }
        for path in error["differences"].as_array().into_iter().flatten() {
            told.push_str(&format!(
                "\n  differs: {}",
                plain(path.as_str().unwrap_or_default())
            ));
        }
        ClientError {
            exit,
            message: told,
            body: body.clone(),
        }
    }
}

fn violation_line(violation: &Value) -> String {
    let text = |name: &str| plain(violation[name].as_str().unwrap_or_default());
    let place = match (violation["line"].as_u64(), violation["column"].as_u64()) {
        (Some(line), Some(column)) if line > 0 => format!("spec:{line}:{column}: "),
        _ if text("field").is_empty() => String::new(),
        _ => format!("{}: ", text("field")),
    };
    let mut line = format!(
        "\n  {place}error[{}]: {}",
        text("code"),
        text("description")
    );
    if !text("hint").is_empty() {
        line.push_str(&format!("\n    hint: {}", text("hint")));
    }
    line
}

/// Text of others as a terminal may show it: nothing in it moves the cursor or starts a
/// line.
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => shown.push('\t'),
            c if c.is_control()
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                shown.extend(c.escape_default());
            }
            c => shown.push(c),
        }
    }
    shown
}

/// A path segment of a URL.
pub fn segment(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_moves_no_cursor() {
        assert_eq!(plain("a\tb ü"), "a\tb ü");
        assert_eq!(
            plain("a\nb\u{1b}[2J\r\u{202e}"),
            "a\\nb\\u{1b}[2J\\r\\u{202e}"
        );
        assert_eq!(segment("../a b:c"), "%2E%2E%2Fa%20b%3Ac");
    }
}
