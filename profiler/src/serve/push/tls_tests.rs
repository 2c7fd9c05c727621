//! Pushes over TLS to a server whose certificate is by an authority of its own.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::HeaderMap;
use jitprof_common::units::MonoNs;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_rustls::TlsAcceptor;

use super::client::{Client, Outcome};
use super::{PushStats, Pushers, test_profile};
use crate::record::{Health, Window};
use crate::serve::config::{PushSettings, Settings};

/// How the server's authority is called.
const AUTHORITY: &str = "an authority of the test's own";
/// How a refusal of its certificate ends.
const ADVICE: &str = "set `ca_file` to the PEM certificate of the authority that has signed the server's";
/// To which port the process pushes that has an environment of its own.
const CHILD_PORT: &str = "JITPROF_TEST_PUSH_PORT";

/// An authority, and a server that has a certificate by it for `localhost`.
struct Server {
    address: SocketAddr,
    authority_pem: String,
    /// The first line of each request that came through.
    requests: UnboundedReceiver<String>,
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

impl Server {
    async fn start() -> Self {
        let authority = authority(AUTHORITY);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let authority_pem = authority.pem();
        let (sender, requests) = unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A client that does not trust the certificate goes away.
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let first = request(&mut stream).await;
                let answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
                if stream.write_all(answer).await.is_ok() {
                    // Whoever has given up listening has seen enough.
                    sender.send(first).unwrap_or_default();
                }
                stream.shutdown().await.unwrap_or_default();
            }
        });
        Self { address, authority_pem, requests }
    }
}

/// The first line of a request that was read to its end.
async fn request(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    stream.read_exact(&mut vec![0; length.parse().unwrap()]).await.unwrap();
    head.lines().next().unwrap().to_owned()
}

/// The targets of both protocols, as the configuration has them, with more lines.
fn targets(port: u16, more: &str) -> Vec<PushSettings> {
    let target = |kind| format!("[[push]]\nkind = \"{kind}\"\nurl = \"https://localhost:{port}\"\n{more}");
    let settings: Settings = toml::from_str(&[target("pyroscope"), target("otlp")].concat()).unwrap();
    settings.push
}

/// Windows that each target has taken.
async fn pushed(settings: &[PushSettings]) -> Vec<u64> {
    let pushers = Pushers::start(settings, "host", Handle::current()).unwrap();
    let profile = test_profile(&[("node", "", 7)]);
    pushers.offer(&Window { profile, end: MonoNs(10_000_000_000), health: Health::default() });
    let is_settled = |stats: &PushStats| stats.delivered + stats.retries > 0;
    while !pushers.stats().iter().all(is_settled) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pushers.stats().iter().map(|stats| stats.delivered).collect()
}

/// What the log says of one try of each.
async fn refusals(settings: &[PushSettings]) -> Vec<String> {
    let mut refusals = Vec::new();
    for PushSettings { url, ca_file, .. } in settings {
        let url = url.as_deref().unwrap();
        let client = Client::new(url, ca_file.as_deref()).unwrap();
        match client.post(&url.parse().unwrap(), &HeaderMap::new(), Bytes::new(), Duration::from_secs(60)).await {
            Outcome::Later { why, .. } => refusals.push(why),
            other => panic!("{other:?}"),
        }
    }
    refusals
}

fn ca_file(pem: &str) -> (NamedTempFile, String) {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), pem).unwrap();
    let line = format!("ca_file = \"{}\"\n", file.path().display());
    (file, line)
}

#[tokio::test]
async fn a_private_authority_is_trusted_by_its_file_alone() {
    let mut server = Server::start().await;
    let port = server.address.port();
    let (_file, own) = ca_file(&server.authority_pem);
    assert_eq!(pushed(&targets(port, &own)).await, [1, 1]);
    let mut came = [server.requests.recv().await.unwrap(), server.requests.recv().await.unwrap()];
    came.sort();
    assert_eq!(came, ["post /push.v1.pusherservice/push http/1.1", "post /v1development/profiles http/1.1"]);

    // By the file of another authority it is refused, whether that has the same name or not, and so is another server.
    for other in [AUTHORITY, "another"] {
        let (_file, other) = ca_file(&authority(other).pem());
        assert_eq!(pushed(&targets(port, &other)).await, [0, 0]);
        for why in refusals(&targets(port, &other)).await {
            assert!(why.contains("invalid peer certificate") && why.ends_with(ADVICE), "{why}");
        }
    }
    assert!(server.requests.try_recv().is_err(), "something was sent to a server that is not trusted");
}

#[tokio::test]
async fn a_server_without_tls_is_told_from_one_that_is_not_trusted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await.unwrap_or_default();
        }
    });
    let (_file, own) = ca_file(&authority(AUTHORITY).pem());
    for why in refusals(&targets(port, &own)).await {
        assert!(why.ends_with("is it meant to be http://?"), "{why}");
    }
}

/// The system's certificates are read once for a process, from where its environment says: so there is one for each.
#[tokio::test]
async fn without_a_file_the_system_s_certificates_count_which_the_environment_may_name() {
    let server = Server::start().await;
    let (own, _) = ca_file(&server.authority_pem);
    let (other, _) = ca_file(&authority("another").pem());
    for (file, expected) in [(own, "pushed [1, 1]"), (other, ADVICE)] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "serve::push::tls_tests::pushes_by_the_system_s_certificates",
            "--ignored",
            "--nocapture",
        ]);
        child.env("SSL_CERT_FILE", file.path()).env_remove("SSL_CERT_DIR");
        child.env(CHILD_PORT, server.address.port().to_string());
        let output = tokio::task::spawn_blocking(move || child.output()).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains(expected), "{said}");
    }
}

#[tokio::test]
#[ignore = "started by the test above, in an environment of its own"]
async fn pushes_by_the_system_s_certificates() {
    let port = std::env::var(CHILD_PORT).unwrap().parse().unwrap();
    let pushed = pushed(&targets(port, "")).await;
    println!("pushed {pushed:?}");
    if pushed != [1, 1] {
        println!("{}", refusals(&targets(port, "")).await.join("\n"));
    }
}
