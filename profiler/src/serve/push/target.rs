//! One target: its queue, its task, its counts.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue, Uri, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::Notify;

use super::client::{Client, Outcome};
use super::queue::{Payload, Queue};
use super::{Encoding, PushError, PushStats, directory, otlp, pyroscope};
use crate::client::{ClientError, secret};
use crate::output::{self, Format, OutputError, OutputOptions};
use crate::record::Window;
use crate::serve::config::{PushKind, PushSettings};

/// The pause after the first failed try; it doubles from try to try.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The pause does not grow beyond this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A target that stays unreachable is named again after this time.
const SAY_AGAIN: Duration = Duration::from_secs(600);

/// Where the bytes go.
enum Way {
    Http { client: Box<Client>, uri: Uri },
    Directory(PathBuf),
}

/// A target with its queue, and the task's part that delivers from it.
pub(super) struct Target {
    pub(super) settings: PushSettings,
    encoding: Encoding,
    way: Way,
    queue: Mutex<Queue>,
    /// Something was put into the queue, or the end has come.
    changed: Notify,
    closing: AtomicBool,
    /// A window is being sent, and not in the queue.
    in_flight: AtomicBool,
    /// Windows that the end has left behind.
    left: AtomicU64,
    counts: Mutex<Counts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    delivered: u64,
    delivered_bytes: u64,
    retries: u64,
    refused: u64,
    not_encoded: u64,
    failing_since: Option<Instant>,
    said: Option<Instant>,
}

impl Target {
    /// Checks what the target needs. Nothing is sent yet.
    pub(super) fn new(settings: PushSettings, host: &str) -> Result<Self, PushError> {
        let failed = |source| PushError { name: settings.shown_name().to_owned(), source };
        let way = match (&settings.directory, &settings.url) {
            (Some(directory), _) => Way::Directory(directory.clone()),
            (None, url) => {
                let base = url.as_deref().unwrap_or_default();
                let client = Client::new(base, settings.ca_file.as_deref()).map_err(failed)?;
                // Read now, so that a wrong path is an error at the start and not a silent loss.
                authorization(&settings).map_err(failed)?;
                Way::Http { client: Box::new(client), uri: uri_of(settings.kind, base) }
            }
        };
        let encoding = Encoding {
            host: host.to_owned(),
            labels: settings.labels.clone(),
            add_labels: settings.add_labels.clone().into_iter().collect(),
        };
        let queue = Mutex::new(Queue::new(settings.queue_windows, settings.queue_bytes.0));
        Ok(Self {
            settings,
            encoding,
            way,
            queue,
            changed: Notify::new(),
            closing: AtomicBool::new(false),
            in_flight: AtomicBool::new(false),
            left: AtomicU64::new(0),
            counts: Mutex::default(),
        })
    }

    /// Takes a window over. Never waits for the target.
    pub(super) fn offer(&self, window: &Window) {
        if window.profile.total() == 0 {
            return;
        }
        match self.encode(window) {
            Ok(body) => {
                let since = window.profile.meta().start_time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                self.queue().add(Payload { body: body.into(), start_ms: since.as_millis(), tries: 0 });
                self.changed.notify_one();
            }
            Err(error) => {
                let mut counts = self.counts();
                counts.not_encoded = counts.not_encoded.saturating_add(1);
                if say_now(&mut counts) {
                    tracing::warn!(push = self.settings.shown_name(), "a window cannot be encoded: {error}");
                }
            }
        }
    }

    fn encode(&self, window: &Window) -> Result<Vec<u8>, OutputError> {
        match self.settings.kind {
            PushKind::Pyroscope => pyroscope::encode(&window.profile, &self.encoding),
            PushKind::Otlp => Ok(gzipped(&otlp::encode(&window.profile, &self.encoding))?),
            PushKind::Directory => {
                let mut file = Vec::new();
                output::write(&window.profile, Format::Pprof, &OutputOptions::default(), &mut file)?;
                Ok(file)
            }
        }
    }

    /// Delivers until the end was asked for and nothing waits any more.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            let changed = self.changed.notified();
            let next = self.queue().take();
            match next {
                Some(payload) => self.deliver(payload).await,
                None if self.closing.load(Ordering::Acquire) => return,
                None => changed.await,
            }
        }
    }

    async fn deliver(&self, mut payload: Payload) {
        self.in_flight.store(true, Ordering::Release);
        let outcome = self.attempt(&payload).await;
        self.in_flight.store(false, Ordering::Release);
        match outcome {
            Outcome::Delivered => self.delivered(payload.body.len()),
            Outcome::Refused { why } => {
                let mut counts = self.counts();
                counts.refused = counts.refused.saturating_add(1);
                if say_now(&mut counts) {
                    tracing::warn!(push = self.settings.shown_name(), "a window was refused for good: {why}");
                }
            }
            Outcome::Later { why, after } => {
                // A fleet that is told a time does not come back all at once either.
                let asked = after.map(|after| after.mul_f64(1.0 + fastrand::f64() / 4.0));
                let pause = asked.unwrap_or_else(|| pause(payload.tries));
                payload.tries = payload.tries.saturating_add(1);
                self.failed(&why);
                self.queue().put_back(payload);
                // The end does not wait: whatever is left is tried once more, until its deadline.
                let closing = async {
                    while !self.closing.load(Ordering::Acquire) {
                        self.changed.notified().await;
                    }
                };
                let pause = if self.closing.load(Ordering::Acquire) { FIRST_PAUSE / 4 } else { pause };
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = closing, if !self.closing.load(Ordering::Acquire) => {}
                }
            }
        }
    }

    async fn attempt(&self, payload: &Payload) -> Outcome {
        match &self.way {
            Way::Directory(path) => {
                let (path, host, payload) = (path.clone(), self.encoding.host.clone(), payload.clone());
                // On a thread of its own, as a file system may hang; the next window waits for this one.
                let written = tokio::task::spawn_blocking(move || directory::write(&path, &host, &payload)).await;
                match written.map_err(io::Error::other).flatten() {
                    Ok(()) => Outcome::Delivered,
                    Err(error) => Outcome::Later { why: error.to_string(), after: None },
                }
            }
            Way::Http { client, uri } => match self.headers() {
                Ok(headers) => client.post(uri, &headers, payload.body.clone(), self.settings.timeout.0).await,
                Err(error) => Outcome::Later { why: error.to_string(), after: None },
            },
        }
    }

    /// Secrets are read for each try, so a token that is renewed is used without a restart.
    fn headers(&self) -> Result<HeaderMap, ClientError> {
        let mut headers = HeaderMap::new();
        let content_type = match self.settings.kind {
            PushKind::Otlp => otlp::CONTENT_TYPE,
            PushKind::Pyroscope | PushKind::Directory => pyroscope::CONTENT_TYPE,
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        if self.settings.kind == PushKind::Otlp {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("jitprof/", env!("CARGO_PKG_VERSION"))));
        if let Some(value) = authorization(&self.settings)? {
            headers.insert(header::AUTHORIZATION, value);
        }
        if let Some(tenant) = &self.settings.tenant
            && let Ok(value) = HeaderValue::from_str(tenant)
        {
            headers.insert("x-scope-orgid", value);
        }
        Ok(headers)
    }

    fn delivered(&self, bytes: usize) {
        let mut counts = self.counts();
        counts.delivered = counts.delivered.saturating_add(1);
        counts.delivered_bytes = counts.delivered_bytes.saturating_add(bytes as u64);
        if let Some(since) = counts.failing_since.take() {
            counts.said = None;
            tracing::info!(
                push = self.settings.shown_name(),
                "reachable again after {} s; {} windows wait",
                since.elapsed().as_secs(),
                self.queue().len()
            );
        }
    }

    fn failed(&self, why: &str) {
        let mut counts = self.counts();
        counts.retries = counts.retries.saturating_add(1);
        counts.failing_since.get_or_insert_with(Instant::now);
        if say_now(&mut counts) {
            let queue = self.queue();
            tracing::warn!(
                push = self.settings.shown_name(),
                "cannot push, will try again: {why}; {} windows wait, {} were dropped",
                queue.len(),
                queue.dropped()
            );
        }
    }

    /// Asks for the end.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Counts what nobody will deliver any more; returns how many windows that are.
    pub(super) fn give_up(&self) -> u64 {
        let mut queue = self.queue();
        let mut left = u64::from(self.in_flight.swap(false, Ordering::AcqRel));
        while queue.take().is_some() {
            left += 1;
        }
        self.left.fetch_add(left, Ordering::Relaxed);
        left
    }

    pub(super) fn stats(&self) -> PushStats {
        let counts = *self.counts();
        let queue = self.queue();
        PushStats {
            name: self.settings.shown_name().to_owned(),
            kind: self.settings.kind.name(),
            delivered: counts.delivered,
            delivered_bytes: counts.delivered_bytes,
            retries: counts.retries,
            dropped_queue_full: queue.dropped(),
            dropped_refused: counts.refused.saturating_add(counts.not_encoded),
            dropped_at_end: self.left.load(Ordering::Relaxed),
            waiting: queue.len(),
            waiting_bytes: queue.bytes(),
            failing: counts.failing_since.is_some(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a failure is worth a line: the first one, and then one from time to time.
fn say_now(counts: &mut Counts) -> bool {
    if counts.said.is_some_and(|said| said.elapsed() < SAY_AGAIN) {
        return false;
    }
    counts.said = Some(Instant::now());
    true
}

/// The pause after a failed try: twice as long from try to try, and random between half of it and all of it.
fn pause(tries: u32) -> Duration {
    let longest = FIRST_PAUSE.saturating_mul(1 << tries.min(10)).min(LONGEST_PAUSE);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// What every OTLP receiver takes, in less than half of the bytes.
fn gzipped(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 3), Compression::default());
    encoder.write_all(body)?;
    encoder.finish()
}

fn uri_of(kind: PushKind, base: &str) -> Uri {
    let path = match kind {
        PushKind::Otlp => otlp::PATH,
        PushKind::Pyroscope | PushKind::Directory => pyroscope::PATH,
    };
    let base = base.trim_end_matches('/');
    let whole = if base.ends_with(path) { base.to_owned() } else { format!("{base}{path}") };
    // The configuration's check has parsed the base, and the path is a constant.
    whole.parse().unwrap_or_default()
}

fn authorization(settings: &PushSettings) -> Result<Option<HeaderValue>, ClientError> {
    let (path, text) = match (&settings.token_file, &settings.username, &settings.password_file) {
        (Some(path), _, _) => (path, format!("Bearer {}", secret(path)?)),
        (None, Some(username), Some(path)) => {
            (path, format!("Basic {}", STANDARD.encode(format!("{username}:{}", secret(path)?))))
        }
        _ => return Ok(None),
    };
    let mut value = HeaderValue::from_str(&text).map_err(|_| ClientError::File {
        path: path.clone(),
        source: io::Error::other("what it holds cannot stand in a header"),
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_differ_and_have_an_end() {
        for tries in 0..100 {
            let longest = FIRST_PAUSE.saturating_mul(1 << tries.min(10)).min(LONGEST_PAUSE);
            let pause = pause(tries);
            assert!(pause >= longest / 2 && pause <= longest, "{tries}: {pause:?}");
        }
        assert!((0..50).any(|_| pause(9) != pause(9)));
    }

    #[test]
    fn what_is_compressed_is_smaller_and_comes_out_whole() {
        let body = b"main;leaf;".repeat(1000);
        let sent = gzipped(&body).unwrap();
        assert!(sent.len() < body.len() / 2, "{} of {}", sent.len(), body.len());
        let mut got = Vec::new();
        io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&sent[..]), &mut got).unwrap();
        assert_eq!(got, body);
    }

    #[test]
    fn the_path_of_the_protocol_is_added_once() {
        for base in ["http://a:4040", "http://a:4040/", "http://a:4040/push.v1.PusherService/Push"] {
            assert_eq!(uri_of(PushKind::Pyroscope, base), "http://a:4040/push.v1.PusherService/Push");
        }
        assert_eq!(uri_of(PushKind::Otlp, "https://c/x"), "https://c/x/v1development/profiles");
    }
}
