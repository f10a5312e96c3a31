//! What handlers take from a request, with refusals in our one form.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use serde::de::DeserializeOwned;

use super::BODY_BYTES_MAX;
use super::error::{ApiError, Status};

/// Query parameters.
pub struct Parameters<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Query::try_from_uri(&parts.uri)
            .map(|Query(parameters)| Parameters(parameters))
            .map_err(|error| ApiError::new(Status::InvalidArgument, error.body_text()))
    }
}

/// The segment of the path that names something.
pub struct Named(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Named(name)),
            Err(_) => Err(ApiError::new(Status::NotFound, "the path names nothing")),
        }
    }
}

/// The body, up to the size that is taken.
pub struct Body(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        match Bytes::from_request(request, state).await {
            Ok(bytes) => Ok(Body(bytes)),
            Err(rejection) => Err(refusal(rejection)),
        }
    }
}

fn refusal(rejection: BytesRejection) -> ApiError {
    if rejection.into_response().status() == StatusCode::PAYLOAD_TOO_LARGE {
        let message = format!("the body has more than {} MiB", BODY_BYTES_MAX >> 20);
        return ApiError::new(Status::PayloadTooLarge, message);
    }
    ApiError::new(Status::InvalidArgument, "the body cannot be read")
}
