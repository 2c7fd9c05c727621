//! The other end of the service: somebody who asks it, and somebody who takes what it pushes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::wait::WAIT_LIMIT;

/// Largest body that is read.
const MAX_BODY: usize = 64 << 20;

/// A port of this machine that nobody listens at now.
///
/// # Errors
/// There is none.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Status and body of a GET.
///
/// # Errors
/// Nobody answers.
pub fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, WAIT_LIMIT)?;
    stream.set_read_timeout(Some(WAIT_LIMIT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").context("an answer without a body")?;
    let status = head.split(' ').nth(1).context("an answer without a status")?.parse()?;
    Ok((status, body.to_owned()))
}

/// A connection that is kept from question to question.
#[derive(Debug)]
pub struct Kept {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
}

impl Kept {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, WAIT_LIMIT)?;
        stream.set_read_timeout(Some(WAIT_LIMIT))?;
        Ok(Self { stream: BufReader::new(stream), address })
    }

    /// The body of a GET.
    ///
    /// # Errors
    /// There is none.
    pub fn get(&mut self, path: &str) -> Result<String> {
        write!(self.stream.get_mut(), "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address)?;
        let (_, _, body) = read_message(&mut self.stream)?.context("the connection was closed")?;
        Ok(String::from_utf8(body)?)
    }
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its path.
    pub path: String,
    /// Headers, names in lower case.
    pub headers: HashMap<String, String>,
    /// Its body.
    pub body: Vec<u8>,
}

/// How a receiver behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// 200.
    Takes,
    /// Takes the connection and the request, and never answers.
    Silent,
    /// 503 with `Retry-After: 1`, the first two times; then 200.
    BusyTwice,
}

/// An HTTP server that keeps what it is sent. Its threads end with the test's process.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Receiver {
    /// Listens at a port of its own.
    ///
    /// # Errors
    /// It cannot.
    pub fn start(manner: Manner) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let receiver = Self { address: listener.local_addr()?, requests: Arc::default() };
        let requests = Arc::clone(&receiver.requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let requests = Arc::clone(&requests);
                std::thread::spawn(move || {
                    // A client that goes away in the middle is the client's affair.
                    serve(stream, manner, &requests).unwrap_or_else(|error| eprintln!("receiver: {error}"));
                });
            }
        });
        Ok(receiver)
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it got so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(stream: TcpStream, manner: Manner, requests: &Mutex<Vec<Request>>) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some(request) = read_request(&mut reader)? {
        let number = {
            let mut requests = requests.lock().unwrap_or_else(PoisonError::into_inner);
            requests.push(request);
            requests.len()
        };
        match manner {
            Manner::Silent => std::thread::sleep(Duration::from_secs(3600)),
            Manner::BusyTwice if number <= 2 => stream
                .write_all(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy")?,
            Manner::Takes | Manner::BusyTwice => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?,
        }
    }
    Ok(())
}

fn read_request(reader: &mut impl BufRead) -> Result<Option<Request>> {
    let Some((first, headers, body)) = read_message(reader)? else { return Ok(None) };
    let path = first.split(' ').nth(1).context("no path")?.to_owned();
    Ok(Some(Request { path, headers, body }))
}

/// First line, headers and body.
type Message = (String, HashMap<String, String>, Vec<u8>);

fn read_message(reader: &mut impl BufRead) -> Result<Option<Message>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let first = std::mem::take(&mut line);
    let mut headers = HashMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        match line.trim().split_once(':') {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.trim().to_owned()),
            None => break,
        };
    }
    let length: usize = headers.get("content-length").map_or(Ok(0), |length| length.parse())?;
    if length > MAX_BODY {
        bail!("a body of {length} bytes");
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((first, headers, body)))
}
