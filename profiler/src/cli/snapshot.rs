//! `jitprof snapshot`: what a running service has now, as a file.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, header};
use clap::Args as ClapArgs;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::output::{Destination, Format, OutputError, check_writable, write_to};
use crate::serve::config::{ListenAt, Time};
use crate::serve::http::Listen;

/// How long the service may take; it may have other questions to answer first.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of an answer at most.
const MAX_ANSWER_BYTES: usize = 1 << 30;
/// Bytes of a token's file at most.
const MAX_TOKEN_BYTES: u64 = 4096;

/// What `snapshot` takes.
#[derive(Debug, ClapArgs)]
pub struct Arguments {
    /// Where to write; the extension picks the format (.svg .folded .pb.gz .json); - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "jitprof.pb.gz")]
    output: PathBuf,
    /// The format for - and for files of unknown extension
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,
    /// How far back, such as 30s or 15m
    #[arg(long, value_name = "TIME", default_value = "5m")]
    last: Time,
    /// This process only
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// Processes of this name only
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// This container only
    #[arg(long, value_name = "ID")]
    container: Option<String>,
    /// Where the service listens, as its own --listen says it
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7878")]
    from: ListenAt,
    /// File with the service's token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub(super) enum SnapshotError {
    /// Format, or file.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// Standard output without a format.
    #[error("--output - needs --format (svg, folded, pprof or firefox)")]
    NoFormat,
    /// The token's file.
    #[error("cannot read {}: {source}", path.display())]
    Token {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody is there.
    #[error("no service answers at {address}: {why}; is `jitprof serve` running, and does it listen there?")]
    Nobody {
        /// Where.
        address: String,
        /// What went wrong.
        why: String,
    },
    /// The service says no.
    #[error("the service refuses: {0}")]
    Refused(String),
    /// The system refuses sockets or threads.
    #[error("cannot start: {0}")]
    System(io::Error),
}

/// Asks and writes.
///
/// # Errors
/// [`SnapshotError`].
pub(super) fn run(arguments: &Arguments) -> Result<(), SnapshotError> {
    let destination = Destination::from_argument(&arguments.output);
    let named: Option<Format> = arguments.format.as_deref().map(str::parse).transpose()?;
    let format = match (&destination, named) {
        (Destination::Stdout, named) => named.ok_or(SnapshotError::NoFormat)?,
        (Destination::File(path), named) => Format::from_path(path).or_else(|error| named.ok_or(error))?,
    };
    check_writable(&destination)?;
    let token = arguments.token_file.as_deref().map(token).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(SnapshotError::System)?;
    let path = path(arguments, format);
    let body = runtime.block_on(async {
        let asked = tokio::time::timeout(PATIENCE, ask(&arguments.from, &path, token.as_deref()));
        asked.await.unwrap_or_else(|_| Err(nobody(&arguments.from, "it takes too long")))
    })?;
    Ok(write_to(&destination, |writer| Ok(writer.write_all(&body)?))?)
}

/// The question.
fn path(arguments: &Arguments, format: Format) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("format", &format.to_string());
    // A blank between two units would be one for the query's reader, too, but not for every proxy.
    query.append_pair("from", &format!("-{}", arguments.last.to_string().replace(' ', "")));
    query.append_pair("to", "now");
    if let Some(pid) = arguments.pid {
        query.append_pair("pid", &pid.to_string());
    }
    for (name, value) in [("comm", &arguments.comm), ("container", &arguments.container)] {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    format!("/profile?{}", query.finish())
}

fn token(path: &Path) -> Result<String, SnapshotError> {
    let failed = |source| SnapshotError::Token { path: path.to_owned(), source };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    io::Read::read_to_string(&mut io::Read::take(file, MAX_TOKEN_BYTES), &mut text).map_err(failed)?;
    Ok(text.trim().to_owned())
}

fn nobody(address: &ListenAt, why: impl ToString) -> SnapshotError {
    SnapshotError::Nobody { address: address.to_string(), why: why.to_string() }
}

async fn ask(address: &ListenAt, path: &str, token: Option<&str>) -> Result<Bytes, SnapshotError> {
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
) -> Result<Bytes, SnapshotError> {
    let failed = |error: hyper::Error| nobody(address, error);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    // Ends with the connection; what goes wrong there is what the answer says.
    tokio::spawn(connection);
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
    let words: String = String::from_utf8_lossy(&body).chars().take(500).collect();
    let words = crate::output::printable(words.lines().next().unwrap_or_default()).into_owned();
    Err(SnapshotError::Refused(if words.is_empty() { status.to_string() } else { words }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn the_question_says_when_who_and_how() {
        let line = ["x", "--last", "90s", "--comm", "a b&c", "-p", "7"];
        let arguments = Command::try_parse_from(line).unwrap().arguments;
        assert_eq!(path(&arguments, Format::Svg), "/profile?format=svg&from=-1m30s&to=now&pid=7&comm=a+b%26c");
    }
}
