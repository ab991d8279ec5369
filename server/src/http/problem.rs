//! Errors: a status and a text that says what is wrong.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::node::NodeError;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    pub(super) text: String,
    /// Seconds after which it may be asked again.
    pub(super) retry: Option<u32>,
}

impl Problem {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), retry: None }
    }

    pub(super) fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub(super) fn missing(text: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }

    pub(super) fn unprocessable(text: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, text)
    }

    pub(super) fn too_many(text: impl Into<String>) -> Self {
        Self { retry: Some(1), ..Self::new(StatusCode::TOO_MANY_REQUESTS, text) }
    }

    pub(super) fn busy(text: impl Into<String>, retry: u32) -> Self {
        Self { retry: Some(retry), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, text) }
    }

    pub(super) fn internal(text: &str) -> Self {
        tracing::error!("a request failed: {text}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
    }
}

impl From<NodeError> for Problem {
    fn from(error: NodeError) -> Self {
        match &error {
            NodeError::NotFound(text) => Self::missing(text),
            NodeError::Invalid(_) | NodeError::Rejected { .. } | NodeError::TooLarge { .. } => {
                Self::bad(error.to_string())
            }
            NodeError::Indexing(_) => Self::busy(error.to_string(), 30),
            NodeError::Busy(_) | NodeError::Daemon(_) => Self::busy(error.to_string(), 5),
            NodeError::Internal(text) => Self::internal(text),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.text).into_response();
        if let Some(seconds) = self.retry {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}
