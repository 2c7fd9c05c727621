//! Sockets and connections.
//!
//! hyper is driven here and not by axum's own loop, which has no limits: neither of connections, nor of the time that a
//! client takes to send its request and to take the answer.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::connections::{Connections, Peer, Place, Taken};
use super::guard::Guard;
use super::options::{HttpOptions, Listen};

/// Time to finish what is being answered when the service ends.
const FAREWELL: Duration = Duration::from_secs(3);
/// Pause after the system refused a connection, for want of file descriptors as a rule.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

/// Why there is no HTTP side.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Other machines could reach the address, and there is no token.
    #[error("{address} can be reached from other machines, so a token is needed; set one, or listen on 127.0.0.1")]
    NeedsToken {
        /// The address to listen at.
        address: String,
    },
    /// The path of the socket is taken.
    #[error("{} {what}; remove it or name another path", path.display())]
    Taken {
        /// The socket's path.
        path: PathBuf,
        /// What is at the path already.
        what: &'static str,
    },
    /// The system refuses the socket.
    #[error("cannot listen at {address}: {source}; is another service there?")]
    Listen {
        /// The address to listen at.
        address: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What one client may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections at the same time; beyond it those go that have sent no request, or are slow to take an answer.
    pub(super) connections: usize,
    /// The same of one address, or of one user at a unix socket.
    pub(super) of_peer: usize,
    /// Time for the head of a request, and between two requests.
    pub(super) head: Duration,
    /// Time to take an answer, from the moment the client's receive buffer is full.
    pub(super) answer: Duration,
    /// The same where others find no place: then the slowest goes.
    pub(super) slow: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            of_peer: 224,
            head: Duration::from_secs(15),
            answer: Duration::from_secs(60),
            slow: Duration::from_secs(5),
        }
    }
}

/// Largest head of a request, in bytes; also what is read ahead of a connection.
const MAX_HEAD: usize = 32 << 10;

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, Inode),
}

/// The socket's file, so that no other one of its name is removed.
struct Inode {
    path: PathBuf,
    number: u64,
}

impl Drop for Inode {
    fn drop(&mut self) {
        let is_ours = std::fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.number);
        if is_ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// A socket that is listened at.
pub struct Server {
    socket: Socket,
    guard: Guard,
    limits: Limits,
}

impl Server {
    /// Listens at the address; [`Self::serve`] then answers.
    ///
    /// # Errors
    /// [`HttpError`].
    pub async fn bind(options: &HttpOptions) -> Result<Self, HttpError> {
        Self::bind_with(options, Limits::default()).await
    }

    pub(super) async fn bind_with(options: &HttpOptions, limits: Limits) -> Result<Self, HttpError> {
        let address = match &options.listen {
            Listen::Tcp(address) => address.to_string(),
            Listen::Unix(path) => path.display().to_string(),
        };
        if options.token.is_none() && !options.listen.is_local() {
            return Err(HttpError::NeedsToken { address });
        }
        let failed = |source| HttpError::Listen { address: address.clone(), source };
        let (socket, port) = Socket::bind(&options.listen).await.map_err(|error| error.unwrap_or_else(failed))?;
        Ok(Self { socket, guard: Guard::new(options, port).map_err(failed)?, limits })
    }

    /// Listens where whoever can connect may ask, without a token: for routes that tell numbers, and no function's name.
    ///
    /// # Errors
    /// [`HttpError`].
    pub async fn bind_open(listen: &Listen) -> Result<Self, HttpError> {
        let failed = |source| {
            let address = match listen {
                Listen::Tcp(address) => address.to_string(),
                Listen::Unix(path) => path.display().to_string(),
            };
            HttpError::Listen { address, source }
        };
        let (socket, _) = Socket::bind(listen).await.map_err(|error| error.unwrap_or_else(failed))?;
        Ok(Self { socket, guard: Guard::open().map_err(failed)?, limits: Limits::default() })
    }

    /// Where it listens, with the port that was given if 0 was asked for.
    pub fn address(&self) -> String {
        match &self.socket {
            Socket::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| "?".to_owned(), |addr| format!("http://{addr}"))
            }
            Socket::Unix(_, inode) => format!("unix:{}", inode.path.display()),
        }
    }

    /// The port, of an address.
    pub fn port(&self) -> Option<u16> {
        match &self.socket {
            Socket::Tcp(listener) => listener.local_addr().ok().map(|address| address.port()),
            Socket::Unix(..) => None,
        }
    }

    /// Serves until `end`, then until what is being answered is answered, but not for long.
    pub async fn serve(self, router: Router, end: impl Future<Output = ()>) {
        let service = TowerToHyperService::new(self.guard.around(router));
        let graceful = GracefulShutdown::new();
        let connections = Connections::new(self.limits.connections, self.limits.of_peer, self.limits.slow);
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(self.limits.head).max_buf_size(MAX_HEAD);
        let mut end = std::pin::pin!(end);
        let mut is_refused = false;
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                () = &mut end => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Said once, and not five times a second for as long as it lasts.
                    if !std::mem::replace(&mut is_refused, true) {
                        tracing::warn!("cannot accept connections: {error}");
                    }
                    sleep(REFUSED_PAUSE).await;
                    continue;
                }
            };
            is_refused = false;
            let Some(place) = connections.admit(peer).map(Arc::new) else { continue };
            let (number, service, taker) = (place.number, service.clone(), Arc::clone(&place));
            let noted = service_fn(move |request: Request<Incoming>| {
                let place = Arc::clone(&place);
                // Whoever promises a body and sends none has earned no more than with half a head.
                let answering = request.body().is_end_stream().then(|| place.answering());
                let answer = service.call(request);
                async move {
                    let answer = answer.await;
                    let answering = answering.unwrap_or_else(|| place.answering());
                    answer.map(|answer| answer.map(|body| Taken { body, _answering: answering }))
                }
            });
            let stream = Timed { stream, limit: self.limits.answer, deadline: None, place: taker };
            let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), noted));
            let task = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!("a connection ended: {error}");
                }
            });
            connections.run_by(number, task.abort_handle());
        }
        if timeout(FAREWELL, graceful.shutdown()).await.is_err() {
            tracing::info!("some clients did not take their answers in time");
        }
    }
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Socket {
    /// The socket, and its port.
    async fn bind(listen: &Listen) -> Result<(Self, u16), UnixError> {
        match listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).await.map_err(UnixError::System)?;
                let port = listener.local_addr().map_err(UnixError::System)?.port();
                Ok((Self::Tcp(listener), port))
            }
            Listen::Unix(path) => Ok((bind_unix(path).await?, 0)),
        }
    }

    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Peer)> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                (Box::new(stream), Peer::at(address.ip()))
            }
            Self::Unix(listener, _) => {
                let stream = listener.accept().await?.0;
                let user = stream.peer_cred()?.uid();
                (Box::new(stream), Peer::User(user))
            }
        })
    }
}

/// Takes the place of a socket that nobody listens at any more. The inner error is the system's.
async fn bind_unix(path: &Path) -> Result<Socket, UnixError> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(taken(path, "is no socket")),
        Ok(_) => match tokio::net::UnixStream::connect(path).await {
            Ok(_) => return Err(taken(path, "is in use")),
            Err(_) => std::fs::remove_file(path).map_err(UnixError::System)?,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(UnixError::System(error)),
    }
    let listener = UnixListener::bind(path).map_err(UnixError::System)?;
    let number = std::fs::symlink_metadata(path).map_err(UnixError::System)?.ino();
    let socket = Socket::Unix(listener, Inode { path: path.to_owned(), number });
    std::fs::set_permissions(path, Permissions::from_mode(0o660)).map_err(UnixError::System)?;
    Ok(socket)
}

enum UnixError {
    Http(HttpError),
    System(io::Error),
}

impl UnixError {
    fn unwrap_or_else(self, failed: impl FnOnce(io::Error) -> HttpError) -> HttpError {
        match self {
            Self::Http(error) => error,
            Self::System(error) => failed(error),
        }
    }
}

fn taken(path: &Path, what: &'static str) -> UnixError {
    UnixError::Http(HttpError::Taken { path: path.to_owned(), what })
}

/// A stream whose other end must take what is written within a time, from the first byte that does not fit to the flush
/// behind the last one.
struct Timed {
    stream: Box<dyn Stream>,
    limit: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Where it is noted how slow the other end is.
    place: Arc<Place>,
}

impl Timed {
    fn or_late<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_pending() {
            let limit = self.limit;
            let deadline = self.deadline.get_or_insert_with(|| {
                self.place.waits();
                Box::pin(tokio::time::sleep_until(Instant::now() + limit))
            });
            ready!(deadline.as_mut().poll(cx));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take its answer")));
        }
        poll
    }

    fn written(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &poll
            && self.deadline.is_some()
        {
            self.place.takes(*bytes);
        }
        self.or_late(cx, poll)
    }
}

impl AsyncRead for Timed {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Timed {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.written(cx, poll)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.written(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_flush(cx);
        if poll.is_ready() && this.deadline.take().is_some() {
            this.place.has_taken();
        }
        this.or_late(cx, poll)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.or_late(cx, poll)
    }
}
