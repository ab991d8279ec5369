//! Answers and how long they may be kept.

use axum::body::Bytes;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::problem::Problem;

/// From so many confirmations on, what a block says won't change.
const FINAL: u32 = 10;

/// How long an answer may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// Five years.
    Forever,
    /// So many seconds.
    Seconds(u32),
    /// Not at all.
    Never,
}

impl Keep {
    /// What a block at a height says, when the tip is at another.
    pub(super) fn of_height(height: u32, tip: u32) -> Self {
        let final_now = (tip + 1).saturating_sub(height) >= FINAL;
        if final_now { Self::Forever } else { Self::SHORT }
    }

    /// What may change with the next block or transaction.
    pub(super) const SHORT: Self = Self::Seconds(10);

    fn header(self) -> HeaderValue {
        match self {
            Self::Forever => HeaderValue::from_static("public, max-age=157784630"),
            Self::Seconds(10) => HeaderValue::from_static("public, max-age=10"),
            Self::Seconds(seconds) => HeaderValue::from_str(&format!("public, max-age={seconds}"))
                .unwrap_or(HeaderValue::from_static("no-store")),
            Self::Never => HeaderValue::from_static("no-store"),
        }
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    kind: &'static str,
    body: Bytes,
    keep: Keep,
}

impl Reply {
    pub(super) fn text(body: impl Into<String>, keep: Keep) -> Self {
        Self { kind: "text/plain", body: body.into().into(), keep }
    }

    pub(super) fn octets(body: impl Into<Bytes>, keep: Keep) -> Self {
        Self { kind: "application/octet-stream", body: body.into(), keep }
    }

    /// JSON that was written already.
    pub(super) fn raw_json(body: impl Into<Bytes>, keep: Keep) -> Self {
        Self { kind: "application/json", body: body.into(), keep }
    }

    pub(super) fn json(value: &impl Serialize, keep: Keep) -> Result<Self, Problem> {
        let body = serde_json::to_vec(value).map_err(|error| Problem::internal(&error.to_string()))?;
        Ok(Self::raw_json(body, keep))
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(self.kind)),
            (header::CACHE_CONTROL, self.keep.header()),
        ];
        (headers, self.body).into_response()
    }
}
