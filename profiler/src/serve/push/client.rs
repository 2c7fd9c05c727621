//! One HTTP request to a target.

use std::path::Path;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};

use crate::causes::chain;
use crate::client::{ClientError, HttpClient, http_client, tls_advice};

/// Bytes of an answer that are read: enough for a reason in a log line.
const MAX_ANSWER_BYTES: usize = 16 << 10;
/// Characters of it that are shown.
const SHOWN_CHARS: usize = 200;
/// A server may ask for a longer pause, but does not get it.
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// How a try ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The target has it.
    Delivered,
    /// Not now; the target may have said when.
    Later { why: String, after: Option<Duration> },
    /// The target will not take it at any time, so it is dropped.
    Refused { why: String },
}

/// Sends requests to one target, over connections that are kept.
pub(super) struct Client {
    client: HttpClient<Full<Bytes>>,
}

impl Client {
    /// A client that trusts the certificates of `ca_file`, or those of the system. They are only read if `url` is
    /// https.
    pub(super) fn new(url: &str, ca_file: Option<&Path>) -> Result<Self, ClientError> {
        Ok(Self { client: http_client(url.starts_with("https:"), ca_file)? })
    }

    /// Posts a body. Everything together takes at most `timeout`.
    pub(super) async fn post(&self, uri: &Uri, headers: &HeaderMap, body: Bytes, timeout: Duration) -> Outcome {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = axum::http::Method::POST;
        request.uri_mut().clone_from(uri);
        request.headers_mut().clone_from(headers);
        match tokio::time::timeout(timeout, self.answer(request)).await {
            Ok(outcome) => outcome,
            Err(_) => Outcome::Later { why: format!("no answer within {} s", timeout.as_secs()), after: None },
        }
    }

    async fn answer(&self, request: Request<Full<Bytes>>) -> Outcome {
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) => {
                let advice = tls_advice(&error).map(|advice| format!("; {advice}")).unwrap_or_default();
                return Outcome::Later { why: chain(&error) + &advice, after: None };
            }
        };
        let (status, after) = (response.status(), retry_after(response.headers()));
        let body = match Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await {
            Ok(body) => body.to_bytes(),
            // The status has been said; the rest only explains it.
            Err(_) => Bytes::new(),
        };
        judge(status, after, &body)
    }
}

/// What a status means for the window: it has arrived, it is tried again, or nobody will ever take it.
fn judge(status: StatusCode, after: Option<Duration>, body: &[u8]) -> Outcome {
    let why = || {
        let text: String = String::from_utf8_lossy(body).chars().take(SHOWN_CHARS).collect();
        let text = crate::profile::printable(&text).into_owned();
        if body.is_empty() { status.to_string() } else { format!("{status}: {text}") }
    };
    match status {
        status if status.is_success() => Outcome::Delivered,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Outcome::Later { why: why(), after },
        status if status.is_server_error() => Outcome::Later { why: why(), after },
        // An answer that a change of the configuration or of the server turns into another: the window may wait.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => {
            Outcome::Later { why: why(), after }
        }
        _ => Outcome::Refused { why: why() },
    }
}

/// The pause that the server asks for, in seconds. Dates, the other form, are not known from profile receivers.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_whether_another_try_makes_sense() {
        let status = |code| judge(StatusCode::from_u16(code).unwrap(), None, b"because\x1b[0m");
        assert_eq!(status(200), Outcome::Delivered);
        for code in [401, 403, 404, 408, 429, 500, 503] {
            assert!(matches!(status(code), Outcome::Later { .. }), "{code}");
        }
        for code in [301, 400, 413, 415, 422] {
            let Outcome::Refused { why } = status(code) else { panic!("{code}") };
            assert!(why.contains("because") && !why.contains('\x1b'), "{why}");
        }
    }

    #[test]
    fn a_server_may_ask_for_a_pause_but_not_for_any() {
        let after = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, axum::http::HeaderValue::from_static(text));
            retry_after(&headers)
        };
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!(after("999999999"), Some(MAX_PAUSE));
        assert_eq!(after("-1"), None);
        assert_eq!(after("Wed, 21 Oct 2015 07:28:00 GMT"), None);
    }
}
