//! The one form of errors, and the only place where a status code is chosen.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lifecycle::batches::BatchError;
use lifecycle::filter::FilterError;
use lifecycle::moves::Refusal;
use lifecycle::store::StoreError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::serve::submit::FieldViolation;

/// The body of every answer that is an error.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// What went wrong with a request.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorDetail {
    /// The HTTP status.
    pub code: u16,
    /// Its stable name.
    pub status: Status,
    /// What happened and what to do, in words.
    pub message: String,
    /// Each field that is wrong, all of them at once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub field_violations: Vec<FieldViolation>,
    /// Where a submission differs from the one that has taken its name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<String>,
}

/// The stable names of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// The request is wrong.
    InvalidArgument,
    /// The batch's state does not allow it.
    FailedPrecondition,
    /// There is no token, or none that is known.
    Unauthenticated,
    /// The token does not allow it.
    PermissionDenied,
    /// There is no such thing, or it is another owner's.
    NotFound,
    /// The name stands for something else.
    AlreadyExists,
    /// The body is too large.
    PayloadTooLarge,
    /// The body is of a kind that is not understood.
    UnsupportedMediaType,
    /// Too much is going on; later it may work.
    ResourceExhausted,
    /// We were wrong.
    Internal,
    /// Something that the service needs does not answer; later it may work.
    Unavailable,
}

impl Status {
    fn code(self) -> StatusCode {
        match self {
            Status::InvalidArgument | Status::FailedPrecondition => StatusCode::BAD_REQUEST,
            Status::Unauthenticated => StatusCode::UNAUTHORIZED,
            Status::PermissionDenied => StatusCode::FORBIDDEN,
            Status::NotFound => StatusCode::NOT_FOUND,
            Status::AlreadyExists => StatusCode::CONFLICT,
            Status::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Status::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Status::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Status::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Status::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Why a request is not answered as asked.
#[derive(Debug)]
pub struct ApiError {
    status: Status,
    message: String,
    field_violations: Vec<FieldViolation>,
    differences: Vec<String>,
}

impl ApiError {
    /// An error of one sentence.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        ApiError {
            status,
            message: message.into(),
            field_violations: Vec::new(),
            differences: Vec::new(),
        }
    }

    /// A request with fields that are wrong.
    pub fn fields(field_violations: Vec<FieldViolation>) -> Self {
        let message = match field_violations.as_slice() {
            [one] if one.field.is_empty() => one.description.clone(),
            [one] => format!("`{}`: {}", one.field, one.description),
            many => format!("{} problems", many.len()),
        };
        ApiError {
            field_violations,
            ..ApiError::new(Status::InvalidArgument, message)
        }
    }

    /// A parameter that is wrong.
    pub fn parameter(field: &str, code: &str, description: impl Into<String>) -> Self {
        Self::fields(vec![FieldViolation::parameter(field, code, description)])
    }

    /// There is no such batch for this caller.
    pub fn no_batch(id: &str) -> Self {
        let id: String = id.chars().take(80).flat_map(char::escape_default).collect();
        Self::new(Status::NotFound, format!("there is no batch `{id}`"))
    }
}

impl From<BatchError> for ApiError {
    fn from(error: BatchError) -> Self {
        let message = error.to_string();
        match error {
            BatchError::NotFound(id) => ApiError::no_batch(&id),
            BatchError::Conflict { differences, .. } => ApiError {
                differences,
                ..ApiError::new(Status::AlreadyExists, message)
            },
            BatchError::Refused(Refusal::State(_) | Refusal::LeaseLost(_)) => {
                ApiError::new(Status::FailedPrecondition, message)
            }
            BatchError::Store(error) => error.into(),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "the store failed a request");
        match error {
            StoreError::Unavailable(_) => {
                ApiError::new(Status::Unavailable, "the store does not answer; try again")
            }
            StoreError::Corrupt(_) | StoreError::Version(_) => ApiError::new(
                Status::Internal,
                "the store cannot be read; the server's log says why",
            ),
        }
    }
}

impl From<FilterError> for ApiError {
    fn from(error: FilterError) -> Self {
        ApiError::parameter("filter", "filter", error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = self.status.code();
        let body = ErrorBody {
            error: ErrorDetail {
                code: code.as_u16(),
                status: self.status,
                message: self.message,
                field_violations: self.field_violations,
                differences: self.differences,
            },
        };
        let mut response = (code, Json(body)).into_response();
        let headers = response.headers_mut();
        match self.status {
            Status::Unauthenticated => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Status::Unavailable | Status::ResourceExhausted => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
            }
            _ => {}
        }
        response
    }
}
