//! Errors in the protocol's form, with their HTTP status.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::fmt::Display;

/// What a client is told.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    kind: &'static str,
    /// The part of the request that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
    /// Seconds after which to ask again.
    retry: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), kind, param: None, code: None, retry: None }
    }

    fn of_request(status: StatusCode, code: impl Into<Option<&'static str>>, message: impl Into<String>) -> ApiError {
        ApiError { code: code.into(), ..ApiError::new(status, "invalid_request_error", message) }
    }

    fn with_param(self, param: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..self }
    }

    /// A part of the request that cannot be.
    pub(crate) fn invalid(message: impl Into<String>, param: impl Into<String>) -> ApiError {
        ApiError::of_request(StatusCode::BAD_REQUEST, None, message).with_param(param)
    }

    /// A body that is not what the protocol has.
    pub(crate) fn malformed(message: impl Display) -> ApiError {
        ApiError::of_request(StatusCode::BAD_REQUEST, None, format!("the body is no request: {message}"))
    }

    /// A part of the protocol that this server does not have.
    pub(crate) fn unsupported(what: impl Display, param: &str) -> ApiError {
        ApiError::of_request(StatusCode::BAD_REQUEST, "unsupported", what.to_string()).with_param(param)
    }

    pub(crate) fn too_long(tokens: usize, capacity: usize) -> ApiError {
        let message = format!(
            "the prompt has at least {tokens} tokens, and the context of {capacity} has to hold an answer as well; shorten it"
        );
        ApiError::of_request(StatusCode::BAD_REQUEST, "context_length_exceeded", message).with_param("messages")
    }

    pub(crate) fn too_large(limit: usize) -> ApiError {
        let message = format!("the request has more than {limit} bytes");
        ApiError::of_request(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    }

    pub(crate) fn too_slow() -> ApiError {
        ApiError::of_request(StatusCode::REQUEST_TIMEOUT, "request_timeout", "the request's body took too long")
    }

    pub(crate) fn no_json() -> ApiError {
        let message = "the body must be JSON, with `Content-Type: application/json`";
        ApiError::of_request(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, message)
    }

    pub(crate) fn no_route(path: &str) -> ApiError {
        let message =
            format!("there is no {path} here; there are /v1/chat/completions, /v1/completions and /v1/models");
        ApiError::of_request(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(crate) fn no_method(method: &str, path: &str) -> ApiError {
        ApiError::of_request(StatusCode::METHOD_NOT_ALLOWED, None, format!("{path} does not take {method}"))
    }

    pub(crate) fn no_model(asked: &str, served: &str) -> ApiError {
        let message = format!("there is no model `{asked}` here; there is `{served}`");
        ApiError::of_request(StatusCode::NOT_FOUND, "model_not_found", message).with_param("model")
    }

    pub(crate) fn wrong_key() -> ApiError {
        let error = ApiError::new(
            StatusCode::UNAUTHORIZED,
            "authentication_error",
            "the key is missing or wrong; send `Authorization: Bearer KEY`",
        );
        ApiError { code: Some("invalid_api_key"), ..error }
    }

    pub(crate) fn queue_full(waiting: usize, retry: u64) -> ApiError {
        let message = format!("{waiting} requests wait already; ask again in {retry} s");
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        ApiError { code: Some("queue_full"), retry: Some(retry), ..error }
    }

    pub(crate) fn ending() -> ApiError {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "the server is shutting down");
        ApiError { code: Some("shutting_down"), retry: Some(5), ..error }
    }

    pub(crate) fn server(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Whether it is the server's fault, and none of its limits.
    pub(crate) fn is_ours(&self) -> bool {
        self.status == StatusCode::INTERNAL_SERVER_ERROR
    }

    /// The protocol's object.
    pub(crate) fn json(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl From<kiln::Error> for ApiError {
    fn from(error: kiln::Error) -> ApiError {
        match &error {
            kiln::Error::InvalidArgument { what, .. } => {
                let param = what.replace(' ', "_");
                ApiError::invalid(error.to_string(), param)
            }
            kiln::Error::Grammar { .. } => ApiError::invalid(error.to_string(), "response_format"),
            kiln::Error::ContextFull { .. } | kiln::Error::NoTokenAllowed { .. } | kiln::Error::Text(_) => {
                ApiError::of_request(StatusCode::BAD_REQUEST, None, error.to_string())
            }
            _ => ApiError::server(error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        let mut response = (self.status, json, self.json().to_string()).into_response();
        if let Some(seconds) = self.retry {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self.status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT) {
            // The rest of the body is not read.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
