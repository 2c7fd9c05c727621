//! What a request cannot have, and why.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::archive::ArchiveError;
use crate::output::OutputError;

/// Why a request is not answered as it was meant.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// A parameter is missing, or its value makes no sense.
    #[error("parameter `{name}`: {why}")]
    Parameter {
        /// The parameter's name.
        name: String,
        /// What it should be.
        why: String,
    },
    /// There is nothing to show.
    #[error("nothing was sampled in that time by what the filter lets through")]
    Nothing,
    /// There is nothing to compare, or nothing to compare it with.
    #[error("side {0} has no samples: nothing was sampled in its time by what its filter lets through")]
    NothingIn(char),
    /// Too many ask at the same time.
    #[error("too many requests are being answered; try again in some seconds")]
    Busy,
    /// Nothing records any more.
    #[error("the recording has ended; see the log of the service")]
    Ended,
    /// The archive cannot answer.
    #[error("{0}")]
    Archive(ArchiveError),
    /// The profile cannot be written in the format that was asked for.
    #[error("{0}")]
    Output(OutputError),
    /// A fault of jitprof.
    #[error("jitprof failed to answer this; please report it with the log of the service")]
    Internal,
}

impl Fault {
    /// A parameter that cannot be used.
    pub(super) fn parameter(name: &str, why: impl Into<String>) -> Self {
        Self::Parameter { name: name.to_owned(), why: why.into() }
    }

    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Parameter { .. } => StatusCode::BAD_REQUEST,
            Self::Nothing | Self::NothingIn(_) => StatusCode::NOT_FOUND,
            Self::Busy | Self::Ended => StatusCode::SERVICE_UNAVAILABLE,
            Self::Archive(_) | Self::Output(_) | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl From<ArchiveError> for Fault {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::Nothing => Self::Nothing,
            other => Self::Archive(other),
        }
    }
}

impl From<OutputError> for Fault {
    fn from(error: OutputError) -> Self {
        match error {
            OutputError::NoSamples => Self::Nothing,
            other => Self::Output(other),
        }
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let status = self.status();
        if status.is_server_error() {
            tracing::warn!("a request failed: {self}");
        }
        let mut response = (status, Json(json!({ "error": self.to_string() }))).into_response();
        if matches!(self, Self::Busy) {
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("5"));
        }
        response
    }
}
