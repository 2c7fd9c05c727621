//! The service as its users meet it: in a browser, by `go tool pprof`, and by clients that do harm.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use jitprof_tests::{Jitprof, Running, Scratch, Target, path_from, wait_until};
use serde_json::Value;

/// A service of the whole host, and a program that burns CPU beside it.
struct Service<'a> {
    _running: Running<'a>,
    _target: Target,
    pid: String,
    address: SocketAddr,
}

impl<'a> Service<'a> {
    fn start(scratch: &'a Scratch) -> Result<Self> {
        let mut demo = Command::new(path_from("JITPROF_DEMO")?);
        demo.args(["--secs", "600"]);
        let target = Target::start(demo, scratch)?;
        // A port that is free now; nobody else asks for it until the service has it.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let listen = address.to_string();
        let running =
            Jitprof::new(scratch, ["serve", "--freq", "99", "--token", "none", "--listen", &listen])?.spawn()?;
        let service = Self { pid: target.said("pid")?.to_owned(), _running: running, _target: target, address };
        wait_until("the service to answer", || Ok(service.get("/healthz").ok()))?;
        Ok(service)
    }

    fn get(&self, path: &str) -> Result<String> {
        get(self.address, path)
    }

    fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.get("/api/status")?)?)
    }

    /// Waits until so many windows are in the archive and a piece of the next can be seen.
    fn wait_for_samples(&self, seconds: f64) -> Result<()> {
        let begin = self.status()?["now"].as_f64().context("no time")?;
        wait_until("windows to close", || {
            let now = self.status()?["now"].as_f64().context("no time")?;
            Ok((now >= begin + seconds).then_some(()))
        })
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

/// The body of an answer, which must be good.
fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = connect(address)?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.contains(" 200 "), "{path}: {head}\n{body}");
    Ok(body.to_owned())
}

#[test]
fn the_page_works_in_a_browser() -> Result<()> {
    let scratch = Scratch::new()?;
    let service = Service::start(&scratch)?;
    service.wait_for_samples(25.0)?;
    let mut node = Command::new(path_from("JITPROF_NODE")?);
    node.arg(path_from("JITPROF_TARGETS")?.with_file_name("browser").join("page.cjs"));
    node.arg(format!("http://{}", service.address));
    let pictures = std::env::var_os("JITPROF_PICTURES").map_or_else(|| scratch.path().to_owned(), Into::into);
    let output = node.arg(pictures).output().context("cannot start node")?;
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    if !output.status.success() {
        bail!("{said}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[test]
fn go_tool_pprof_reads_what_is_served() -> Result<()> {
    let scratch = Scratch::new()?;
    let service = Service::start(&scratch)?;
    let url = format!("http://{}/debug/pprof/profile?seconds=3&pid={}", service.address, service.pid);
    let mut go = Command::new(path_from("JITPROF_GO")?);
    go.args(["tool", "pprof", "-top", "-sample_index=samples"]).arg(url).env("PPROF_TMPDIR", scratch.path());
    go.env("HOME", scratch.path());
    let output = go.output().context("cannot start go")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && said.contains("leaf_hot"), "{said}{}", String::from_utf8_lossy(&output.stderr));

    let wrong = format!("http://{}/debug/pprof/profile?seconds=3&pid=x", service.address);
    let output = Command::new(path_from("JITPROF_GO")?)
        .args(["tool", "pprof", "-top"])
        .arg(wrong)
        .env("HOME", scratch.path())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(said.contains("parameter `pid`"), "the reason does not come through: {said}");
    Ok(())
}

#[test]
fn two_hundred_clients_cost_no_sample_and_no_window() -> Result<()> {
    let scratch = Scratch::new()?;
    let service = Service::start(&scratch)?;
    service.wait_for_samples(14.0)?;
    let mut silent = connect(service.address)?;
    write!(silent, "GET /profile?format=folded HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let end = Instant::now() + Duration::from_secs(15);
    let answered = std::thread::scope(|scope| {
        let client = |number: usize| {
            let address = service.address;
            move || {
                let paths = ["/api/flame?from=-30s", "/api/timeline?from=-30s&step=1", "/page/main.js", "/api/status"];
                let mut answered = 0_u64;
                while Instant::now() < end {
                    // Who asks too much may be turned away, but everybody must be answered.
                    let path = paths.get(number % paths.len()).unwrap_or(&"/");
                    match get(address, path) {
                        Ok(_) => answered += 1,
                        Err(error) => ensure!(error.to_string().contains(" 503 "), "{error:#}"),
                    }
                }
                Ok(answered)
            }
        };
        let clients: Vec<_> = (0..199).map(|number| scope.spawn(client(number))).collect();
        clients.into_iter().map(|client| client.join().expect("no panic")).sum::<Result<u64>>()
    })?;
    service.get("/healthz")?;
    let status = service.status()?;
    println!("{answered} answers; {status}");
    ensure!(status["samples_lost"] == 0 && status["windows_dropped"] == 0, "{status}");
    // A window closed in the meantime: nothing of the last ten seconds was held up.
    let timeline: Value =
        serde_json::from_str(&service.get(&format!("/api/timeline?from=-16s&to=-6s&step=10&pid={}", service.pid))?)?;
    let burned = timeline["series"][0]["cpu_ns"][0].as_u64().unwrap_or(0);
    ensure!(burned > 0, "nothing of the target: {timeline}");
    drop(silent);
    Ok(())
}
