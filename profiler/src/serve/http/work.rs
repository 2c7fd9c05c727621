//! Limits of what is done for requests at the same time, and of what their answers take.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::fault::Fault;

/// Profiles that are made at the same time. One merged profile takes up to 250 MiB, and the machine's CPUs are for others.
const MAX_COMPUTING: usize = 2;
/// Large answers that clients have not taken yet.
const MAX_LARGE: usize = 24;
/// From here on an answer is large, in bytes. With the connections' limit, smaller ones take 32 MiB at most.
const LARGE: usize = 128 << 10;
/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(20);
/// Shorter answers are not worth compressing, in bytes.
const MIN_COMPRESSED: usize = 4 << 10;

/// Turns to be had.
pub(super) struct Work {
    computing: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Default for Work {
    fn default() -> Self {
        Self { computing: Arc::new(Semaphore::new(MAX_COMPUTING)), large: Arc::new(Semaphore::new(MAX_LARGE)) }
    }
}

/// A body, and what it says about itself.
pub(super) struct Answer {
    body: Vec<u8>,
    content_type: &'static str,
    is_gzipped: bool,
}

/// The bytes of a large answer, and its turn, which ends when the connection has taken the last of them.
struct Held {
    body: Vec<u8>,
    _turn: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Work {
    /// Makes an answer on a thread that may block.
    ///
    /// # Errors
    /// It is not its turn in time, or what `make` returns.
    pub(super) async fn answer(
        &self,
        make: impl FnOnce() -> Result<Answer, Fault> + Send + 'static,
    ) -> Result<Response, Fault> {
        let large = turn(&self.large).await?;
        let computing = turn(&self.computing).await?;
        let made = tokio::task::spawn_blocking(move || {
            let made = make();
            drop(computing);
            made
        });
        // An error is a panic, which is in the log.
        let Answer { body, content_type, is_gzipped } = made.await.map_err(|_| Fault::Internal)??;
        let bytes = match body.len() {
            0..LARGE => Bytes::from(body),
            LARGE.. => Bytes::from_owner(Held { body, _turn: large }),
        };
        let mut response = Body::from(bytes).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        if is_gzipped {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        Ok(response)
    }
}

async fn turn(semaphore: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Fault> {
    match tokio::time::timeout(PATIENCE, Arc::clone(semaphore).acquire_owned()).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => Err(Fault::Busy),
    }
}

impl Answer {
    /// Bytes as they are.
    pub(super) fn plain(content_type: &'static str, body: Vec<u8>) -> Self {
        Self { body, content_type, is_gzipped: false }
    }

    /// Text, compressed if it is long and the client can read that.
    ///
    /// # Errors
    /// None in practice: it is written to memory.
    pub(super) fn text(content_type: &'static str, body: Vec<u8>, gzip: bool) -> Result<Self, Fault> {
        if !gzip || body.len() < MIN_COMPRESSED {
            return Ok(Self::plain(content_type, body));
        }
        let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), Compression::fast());
        let body = encoder.write_all(&body).and_then(|()| encoder.finish()).map_err(|_| Fault::Internal)?;
        Ok(Self { body, content_type, is_gzipped: true })
    }

    /// Answers with a value as JSON.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub(super) fn json(value: &impl Serialize, gzip: bool) -> Result<Self, Fault> {
        let body = serde_json::to_vec(value).map_err(|_| Fault::Internal)?;
        Self::text("application/json", body, gzip)
    }
}

/// Whether the client reads gzip.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
        name.trim().eq_ignore_ascii_case("gzip") && !matches!(quality.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_only_sent_to_who_asks_for_it() {
        let accepts = |value: &'static str| {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))]);
            accepts_gzip(&headers)
        };
        assert!(accepts("gzip, deflate, br") && accepts("br, GZIP;q=0.5"));
        assert!(!accepts("identity") && !accepts("gzip;q=0") && !accepts_gzip(&HeaderMap::new()));
    }
}
