//! The service that runs on this host or another: where it is, and how it is asked.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, StatusCode, header};
use clap::Args as ClapArgs;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::serve::config::ListenAt;
use crate::serve::http::Listen;
use crate::serve::token_file;

/// How long the service may take; it may have other questions to answer first.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of an answer at most.
const MAX_ANSWER_BYTES: usize = 1 << 30;
/// Bytes of a token's file at most.
const MAX_TOKEN_BYTES: u64 = 4096;

/// Where the service is.
#[derive(Clone, Debug, ClapArgs)]
pub(super) struct ServiceArgs {
    /// Where the service listens, as its own --listen says it
    #[arg(long = "listen", value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7878", help_heading = "Service")]
    listen: ListenAt,
    /// File with the service's token [default: what the service has written, if it may be read]
    #[arg(long, value_name = "FILE", help_heading = "Service")]
    token_file: Option<PathBuf>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    /// The file with the token cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Token {
        /// The path as given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody answers at the address.
    #[error("no service answers at {address}: {why}; is `jitprof serve` running, and does it listen there?")]
    Nobody {
        /// The address as given.
        address: String,
        /// What went wrong.
        why: String,
    },
    /// The service does not know who asks.
    #[error(
        "{}; /run/jitprof/token-PORT has that of its last start, for root and its group: --token-file FILE names another file",
        if *.had_token { "the service has another token" } else { "the service wants a token" }
    )]
    Unknown {
        /// A token was sent.
        had_token: bool,
    },
    /// The service says no.
    #[error("the service refuses: {0}")]
    Refused(String),
    /// The system refuses sockets or threads.
    #[error("cannot start: {0}")]
    System(io::Error),
}

impl ServiceArgs {
    /// Where it is, as it was given.
    #[cfg(feature = "top")]
    pub(super) fn address(&self) -> String {
        self.listen.to_string()
    }

    /// What the service answers to a path with its query.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub(super) fn get(&self, path: &str) -> Result<Bytes, ServiceError> {
        let written = match self.listen.0 {
            Listen::Tcp(address) => token_file(address.port()),
            Listen::Unix(_) => None,
        };
        let token = self.token_file.clone().or(written).as_deref().map(token).transpose()?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ServiceError::System)?;
        runtime.block_on(async {
            let asked = tokio::time::timeout(PATIENCE, ask(&self.listen, path, token.as_deref()));
            asked.await.unwrap_or_else(|_| Err(nobody(&self.listen, "it takes too long")))
        })
    }
}

fn token(path: &Path) -> Result<String, ServiceError> {
    let failed = |source| ServiceError::Token { path: path.to_owned(), source };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    io::Read::read_to_string(&mut io::Read::take(file, MAX_TOKEN_BYTES), &mut text).map_err(failed)?;
    Ok(text.trim().to_owned())
}

fn nobody(address: &ListenAt, why: impl ToString) -> ServiceError {
    ServiceError::Nobody { address: address.to_string(), why: why.to_string() }
}

async fn ask(address: &ListenAt, path: &str, token: Option<&str>) -> Result<Bytes, ServiceError> {
    let failed = |error: io::Error| nobody(address, error);
    match &address.0 {
        Listen::Tcp(tcp) => {
            let stream = TcpStream::connect(tcp).await.map_err(failed)?;
            get(stream, address, &tcp.to_string(), path, token).await
        }
        Listen::Unix(socket) => {
            let stream = UnixStream::connect(socket).await.map_err(failed)?;
            get(stream, address, "localhost", path, token).await
        }
    }
}

async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: &ListenAt,
    host: &str,
    path: &str,
    token: Option<&str>,
) -> Result<Bytes, ServiceError> {
    let failed = |error: hyper::Error| nobody(address, error);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    // Ends with the connection; what goes wrong there is what the answer says.
    tokio::spawn(connection);
    let had_token = token.is_some();
    let mut request = Request::builder().uri(path).header(header::HOST, host);
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| nobody(address, error))?;
    let response = sender.send_request(request).await.map_err(failed)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
    let body = body.map_err(|error| nobody(address, error))?.to_bytes();
    if status.is_success() {
        return Ok(body);
    }
    if status == StatusCode::UNAUTHORIZED {
        return Err(ServiceError::Unknown { had_token });
    }
    Err(ServiceError::Refused(sentence(&body).unwrap_or_else(|| status.to_string())))
}

/// What a refusal says: the service gives its reason as JSON, whatever stands between it and us something else.
fn sentence(body: &[u8]) -> Option<String> {
    let reason = serde_json::from_slice::<serde_json::Value>(body).ok();
    let reason = reason.as_ref().and_then(|answer| answer.get("error")?.as_str());
    let text = reason.map_or_else(|| String::from_utf8_lossy(body), Into::into);
    let words: String = text.lines().find(|line| !line.trim().is_empty())?.chars().take(500).collect();
    Some(crate::profile::printable(&words).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_sentence() {
        let json = br#"{"error":"nothing was sampled in that time by what the filter lets through"}"#;
        assert_eq!(sentence(json).unwrap(), "nothing was sampled in that time by what the filter lets through");
        assert_eq!(sentence(b"\r\nno token\n").unwrap(), "no token");
        assert_eq!(sentence(b"\x1b[2Jbad gateway").unwrap(), "\\x1b[2Jbad gateway");
        assert_eq!(sentence(b""), None);
        let text = |had_token| ServiceError::Unknown { had_token }.to_string();
        assert!(text(true).starts_with("the service has another token; /run/jitprof/token-PORT has that"));
        assert!(text(false).starts_with("the service wants a token; "));
    }
}
