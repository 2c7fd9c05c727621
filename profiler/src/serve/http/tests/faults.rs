//! Clients that do harm: slow, silent, many.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tokio::net::TcpSocket;
use tokio::sync::oneshot;

use super::{Service, run};
use crate::serve::http::server::Limits;
use crate::serve::http::{HttpError, HttpOptions, Listen, Server, Token};

/// A served service. It ends with the value.
struct Served {
    address: SocketAddr,
    service: Service,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Served {
    fn new(limits: Limits) -> Self {
        Self::with_token(limits, None)
    }

    fn with_token(limits: Limits, token: Option<Token>) -> Self {
        let service = Service::new();
        let options = HttpOptions { listen: Listen::Tcp("127.0.0.1:0".parse().unwrap()), token, hosts: Vec::new() };
        let (end, ended) = oneshot::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let router = service.router.clone();
        let thread = std::thread::spawn(move || {
            run(async {
                let server = Server::bind_with(&options, limits).await.unwrap();
                tell.send(server.address()).unwrap();
                server.serve(router, async { ended.await.unwrap_or_default() }).await;
            });
        });
        let address = told.recv().unwrap().strip_prefix("http://").unwrap().parse().unwrap();
        Self { address, service, end: Some(end), thread: Some(thread) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// A client for which the kernel keeps next to nothing of an answer.
    fn connect_narrow(&self) -> TcpStream {
        let stream = run(async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(16 << 10).unwrap();
            socket.connect(self.address).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    fn get(&self, path: &str) -> String {
        get(self.connect(), path)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.end.take());
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn get(mut stream: impl Read + Write, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Waits until the other end has closed the connection.
fn wait_for_end(mut stream: TcpStream) -> Duration {
    let begin = Instant::now();
    let mut rest = [0; 65_536];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => return begin.elapsed(),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return begin.elapsed(),
            Ok(_) => {}
            Err(error) => panic!("the connection stays open: {error}"),
        }
    }
}

/// Samples whose answer is larger than what the service's socket holds: 200 stacks of 40 frames with names of 1000 letters.
fn add_much(served: &Served) {
    let names: Vec<String> = (0..300).map(|index| format!("{index:_>1000}")).collect();
    let path = |stack: usize| -> Vec<&str> { (0..40).map(|frame| names[(stack + frame * 7) % 300].as_str()).collect() };
    let paths: Vec<Vec<&str>> = (0..200).map(path).collect();
    let samples: Vec<(&str, &[&str], u64)> = paths.iter().map(|path| ("p", &path[..], 1)).collect();
    served.service.window(5, &samples);
}

#[test]
fn of_two_hundred_clients_one_that_never_reads_harms_nobody_and_is_dropped() {
    let limits = Limits { answer: Duration::from_millis(300), ..Limits::default() };
    let served = Served::new(limits);
    add_much(&served);
    let whole = served.get("/profile?format=folded").len();
    assert!(whole > 7_000_000, "the socket may hold an answer of {whole} bytes");
    let mut silent = served.connect_narrow();
    write!(silent, "GET /profile?format=folded HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(silent.peek(&mut [0]).unwrap(), 1, "the answer has begun");
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..199).map(|_| scope.spawn(|| served.get("/api/status"))).collect();
        for client in clients {
            assert!(client.join().unwrap().starts_with("HTTP/1.1 200"));
        }
    });
    // It reads only now: what was on its way comes, then the end, long before the answer's.
    std::thread::sleep(Duration::from_millis(600).saturating_sub(begun.elapsed()));
    let begin = Instant::now();
    let mut got = Vec::new();
    let ended = silent.read_to_end(&mut got);
    assert!(got.len() < whole, "all of {whole} bytes, {ended:?}");
    assert!(begin.elapsed() < Limits::default().head, "dropped as idle, and not for what it did not take");
    assert!(served.get("/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
fn an_unfinished_head_ends_in_time() {
    let served = Served::new(Limits { head: Duration::from_millis(300), ..Limits::default() });
    let mut slow = served.connect();
    slow.write_all(b"GET / HTTP/1.1\r\nHost: local").unwrap();
    let idle = served.connect();
    // A client that sends a byte now and then gains nothing by it.
    let mut dripping = served.connect();
    let dripper = dripping.try_clone().unwrap();
    let drip = std::thread::spawn(move || {
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(50));
            if dripping.write_all(b"x").is_err() {
                return;
            }
        }
    });
    for stream in [slow, idle, dripper] {
        wait_for_end(stream);
    }
    drip.join().unwrap();
    assert!(served.get("/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let served = Served::new(Limits::default());
    let mut stream = served.connect();
    let head = format!("GET /?{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(100_000));
    // The service may close before it has all.
    let _sent = stream.write_all(head.as_bytes());
    let mut answer = [0; 12];
    let status = stream.read_exact(&mut answer).map(|()| answer);
    assert!(status.is_err() || status.is_ok_and(|status| &status[9..10] == b"4"));
    assert!(served.get("/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
fn more_connections_than_allowed_are_closed_and_others_go_on() {
    let served = Served::new(Limits { connections: 8, head: Duration::from_millis(200), ..Limits::default() });
    let open: Vec<_> = (0..20).map(|_| served.connect()).collect();
    for stream in open {
        wait_for_end(stream);
    }
    assert!(served.get("/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
fn half_open_connections_lock_nobody_out() {
    let served = Served::new(Limits { connections: 8, ..Limits::default() });
    let half: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = served.connect();
            // Some that have had to go already.
            let _sent = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: local");
            stream
        })
        .collect();
    for _ in 0..20 {
        assert!(served.get("/healthz").starts_with("HTTP/1.1 200"));
    }
    drop(half);
}

#[test]
fn answers_that_nobody_takes_lock_nobody_out() {
    let slow = Duration::from_millis(100);
    let served = Served::new(Limits { connections: 4, of_peer: 4, slow, ..Limits::default() });
    add_much(&served);
    let silent: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = served.connect_narrow();
            write!(stream, "GET /profile?format=folded HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            assert_eq!(stream.peek(&mut [0]).unwrap(), 1, "the answer has begun");
            stream
        })
        .collect();
    std::thread::sleep(slow * 4);
    for _ in 0..20 {
        assert!(served.get("/healthz").starts_with("HTTP/1.1 200"));
    }
    drop(silent);
}

#[test]
fn forms_that_never_come_lock_nobody_out() {
    let token = Token::new("0123456789abcdef").unwrap();
    let served = Served::with_token(Limits { connections: 8, of_peer: 8, ..Limits::default() }, Some(token));
    let head = "POST /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 22\r\n";
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = served.connect();
            write!(stream, "{head}Expect: 100-continue\r\n\r\n").unwrap();
            // Only when its head was read and its body is waited for.
            let mut status = [0; 12];
            stream.read_exact(&mut status).unwrap();
            assert_eq!(&status, b"HTTP/1.1 100");
            stream
        })
        .collect();
    for _ in 0..20 {
        assert!(served.get("/healthz").starts_with("HTTP/1.1 200"));
    }
    drop(waiting);
    let mut whole = served.connect();
    write!(whole, "{head}\r\ntoken=0123456789abcdef").unwrap();
    let mut answer = String::new();
    whole.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 303"), "{answer}");
}

#[test]
fn a_wide_address_wants_a_token_before_anything_is_served() {
    run(async {
        let mut options =
            HttpOptions { listen: Listen::Tcp("0.0.0.0:0".parse().unwrap()), token: None, hosts: Vec::new() };
        assert!(matches!(Server::bind(&options).await, Err(HttpError::NeedsToken { .. })));
        options.token = Some(Token::new("0123456789abcdef").unwrap());
        Server::bind(&options).await.unwrap();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        options.listen = Listen::Tcp(taken.local_addr().unwrap());
        let Err(error) = Server::bind(&options).await else { panic!("the port is taken") };
        assert!(error.to_string().contains("is another service there?"));
    });
}

#[test]
fn a_unix_socket_is_served_for_user_and_group_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jitprof.sock");
    let options = HttpOptions { listen: Listen::Unix(path.clone()), token: None, hosts: Vec::new() };
    std::fs::write(&path, "a file").unwrap();
    run(async { assert!(matches!(Server::bind(&options).await, Err(HttpError::Taken { what: "is no socket", .. }))) });
    std::fs::remove_file(&path).unwrap();
    // A socket that a killed service left behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    run(async {
        let server = Server::bind(&options).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        assert!(matches!(Server::bind(&options).await, Err(HttpError::Taken { what: "is in use", .. })));
        let (end, ended) = oneshot::channel::<()>();
        let router = Service::new().router;
        let client = path.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let answer = get(UnixStream::connect(client).unwrap(), "/healthz");
            drop(end);
            answer
        });
        server.serve(router, async { ended.await.unwrap_or_default() }).await;
        assert!(asked.await.unwrap().starts_with("HTTP/1.1 200"));
    });
    assert!(!path.exists());
}
