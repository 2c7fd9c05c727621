//! The HTTP side as a whole: over real sockets, with a recording whose commands the tests answer.

mod faults;
mod flames;
mod guards;
mod ranges;

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use tower::ServiceExt;

use super::{State, router};
use crate::archive::{Archive, ArchiveOptions};
use crate::process::monotonic_now;
use crate::profile::{Profile, ProfileMeta, SampledEvent, Task};
use crate::record::{Command, Health, Window, WindowOptions};
use crate::serve::{Handle, Intake};
use crate::symbol::{Frame, FrameKind};
use jitprof_common::units::{MonoNs, Pid, Tid};

/// A service without BPF programs.
struct Service {
    router: Router,
    state: State,
    /// What the recording has in no window.
    open: Arc<Mutex<Option<Profile>>>,
}

/// An answer in full.
struct Got {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Got {
    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Service {
    fn new() -> Self {
        let (recording, commands) = Handle::detached();
        let options = ArchiveOptions {
            memory_bytes: 64 << 20,
            directory: None,
            max_age: Duration::from_secs(86_400),
            max_bytes: 1 << 30,
        };
        let archive = Arc::new(Archive::open(options).expect("an archive"));
        // No window closes here, and health must not say so however busy the machine is.
        let window = WindowOptions { length: Duration::from_secs(3600), grace: Duration::from_millis(30) };
        let intake = Arc::new(Intake::new(Arc::clone(&archive)));
        let state = State { archive, intake, recording, window };
        let open = Arc::new(Mutex::new(None));
        let service = Self { router: router(state.clone()), state, open };
        service.answer(commands);
        service
    }

    /// Answers like the recording does: with what lies in the range and in no window, when it is over; or after half a second,
    /// in which all is there that a test has.
    fn answer(&self, commands: Receiver<Command>) {
        let open = Arc::clone(&self.open);
        let intake = Arc::clone(&self.state.intake);
        std::thread::spawn(move || {
            for command in commands {
                let Command::Snapshot { from, to, reply, .. } = command else { continue };
                let left = to.0.saturating_sub(monotonic_now().0);
                std::thread::sleep(Duration::from_nanos(left).min(Duration::from_millis(500)));
                let open = open.lock().expect("no panic");
                // It begins where the windows end.
                let empty = || profile(intake.kept_until(), &[]);
                let open = open.as_ref().map_or_else(empty, |open| {
                    open.select(open.meta().start.max(from), |row| row.time >= from && row.time < to)
                });
                reply(open);
            }
        });
    }

    /// Closes a window of ten seconds that ended so many seconds ago.
    fn window(&self, ended_ago: u64, samples: &[(&str, &[&str], u64)]) {
        let start = MonoNs(monotonic_now().0 - (ended_ago + 10) * 1_000_000_000);
        let end = start.after(Duration::from_secs(10));
        self.state.intake.add(Window { profile: profile(start, samples), end, health: Health::default() });
    }

    async fn get(&self, path: &str) -> Got {
        self.ask(Request::get(path).body(Body::empty()).expect("a request")).await
    }

    async fn ask(&self, request: Request<Body>) -> Got {
        let response = self.router.clone().oneshot(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.expect("a body").to_vec();
        Got { status: parts.status, headers: parts.headers, body }
    }
}

/// Samples of 10 ms, half a second after `start`: process, frames from the root, count.
fn profile(start: MonoNs, samples: &[(&str, &[&str], u64)]) -> Profile {
    let now = monotonic_now();
    let ago = Duration::from_nanos(now.0.saturating_sub(start.0));
    let ahead = Duration::from_nanos(start.0.saturating_sub(now.0));
    let meta = ProfileMeta {
        title: "test".to_owned(),
        start_time: SystemTime::now() - ago + ahead,
        start,
        duration: Duration::from_secs(10),
        frequency_hz: 100.try_into().expect("not 0"),
        event: SampledEvent::CpuClock,
    };
    let mut profile = Profile::new(meta, 100_000_000);
    for (number, (comm, frames, count)) in (1_u32..).zip(samples) {
        let task = profile.task(Task {
            pid: Pid(number),
            process_start: 0,
            tid: Tid(number),
            comm: Arc::from(*comm),
            labels: Arc::new([("container", "c1")].into_iter().collect()),
        });
        let stack = frames.iter().fold(profile.stack_root(), |stack, name| {
            let frame = Frame {
                name: Arc::from(*name),
                kind: FrameKind::Native,
                tier: None,
                inlined: false,
                module: None,
                source: None,
                address: 0,
            };
            let frame = profile.intern_frame(&frame);
            profile.push(stack, frame)
        });
        profile.add(start.after(Duration::from_millis(500)), stack, task, *count);
    }
    profile
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(test)
}
