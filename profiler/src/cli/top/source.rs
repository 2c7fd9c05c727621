//! Where samples come from: a recording of this machine, or a service.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::model::{Model, News};
use super::{Arguments, TopError};
use crate::cli::config::default_title;
use crate::kernel::Waker;
use crate::process::procfs;
use crate::record::{
    CallGraph, InterpreterFrames, LabelOptions, RecordError, RecordOptions, Recorder, Targets, WindowOptions,
};
use jitprof_common::units::Pid;

/// Length of a window: how often there is something new.
const WINDOW: Duration = Duration::from_secs(1);
/// How long names of a window are waited for.
const GRACE: Duration = Duration::from_millis(300);
/// Windows that wait to be shown at most.
const MAX_WAITING: usize = 16;
/// Between looks for targets that have ended.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What brings samples.
pub(super) struct Source {
    /// What is recorded.
    pub(super) title: String,
    news: Receiver<Result<News, String>>,
    ended: bool,
    recording: Option<Recording>,
}

struct Recording {
    thread: JoinHandle<Result<(), RecordError>>,
    stop: Arc<AtomicBool>,
    wake: Waker,
    /// Processes that were chosen by number.
    pids: Vec<Pid>,
    looked: Instant,
}

impl Source {
    /// Begins to record, or to ask. `None` if it was over before it began.
    pub(super) fn of(arguments: &Arguments, ends: &AtomicBool) -> Result<Option<Self>, TopError> {
        #[cfg(feature = "serve")]
        if arguments.service {
            return service::start(arguments).map(Some);
        }
        let mut select = arguments.select.clone();
        select.pid.extend(&arguments.pids);
        let targets = select.targets(false).filter(|_| !arguments.all).unwrap_or(Targets::All);
        Self::record(options(targets, arguments), ends)
    }

    fn record(options: RecordOptions, ends: &AtomicBool) -> Result<Option<Self>, TopError> {
        let system = |what| move |source| TopError::System { what, source };
        let title = options.title.clone();
        let pids = match &options.targets {
            Targets::Processes(pids) => pids.clone(),
            _ => Vec::new(),
        };
        let wake = Waker::new().map_err(system("cannot make a descriptor"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, news) = mpsc::sync_channel(MAX_WAITING);
        let (started, is_started) = mpsc::sync_channel(1);
        let (stops, wakes) = (Arc::clone(&stop), wake.clone());
        let run = move || {
            let recorder = Recorder::start(options)?;
            if started.send(()).is_err() {
                return Ok(());
            }
            serve(recorder, &stops, &wakes, &sender)
        };
        let thread =
            std::thread::Builder::new().name("record".into()).spawn(run).map_err(system("cannot start a thread"))?;
        loop {
            match is_started.recv_timeout(Duration::from_millis(50)) {
                Ok(()) => break,
                Err(RecvTimeoutError::Timeout) if ends.load(Ordering::Acquire) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return thread.join().map_err(|_| TopError::Panicked)?.map(|()| None).map_err(TopError::from);
                }
            }
        }
        let looked = Instant::now();
        let recording = Some(Recording { thread, stop, wake, pids, looked });
        Ok(Some(Self { title, news, ended: false, recording }))
    }

    /// Gives the model what has come. Returns whether something has.
    pub(super) fn poll(&mut self, model: &mut Model) -> bool {
        let mut has_come = false;
        loop {
            match self.news.try_recv() {
                Ok(Ok(news)) => model.take(news),
                Ok(Err(trouble)) => {
                    model.warn(&trouble);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    if !std::mem::replace(&mut self.ended, true) {
                        model.say("the recording has ended; q quits");
                        has_come = true;
                    }
                    break;
                }
            }
            has_come = true;
        }
        if let Some(recording) = &mut self.recording
            && recording.has_lost_its_targets()
        {
            model.say("what was looked at has ended; q quits, o writes what is shown");
            has_come = true;
        }
        has_come
    }

    /// Ends the recording, if one was made.
    pub(super) fn end(self) -> Result<(), TopError> {
        let Some(recording) = self.recording else { return Ok(()) };
        recording.stop.store(true, Ordering::Release);
        recording.wake.wake();
        // Nobody waits for the last window: what has failed by now is told, and everything else ends with the process.
        if !recording.thread.is_finished() {
            return Ok(());
        }
        Ok(recording.thread.join().map_err(|_| TopError::Panicked)??)
    }
}

impl Recording {
    /// Whether all processes that were chosen by number have ended; says so once.
    fn has_lost_its_targets(&mut self) -> bool {
        if self.pids.is_empty() || self.looked.elapsed() < LOOK_EVERY {
            return false;
        }
        self.looked = Instant::now();
        self.pids.retain(|pid| procfs::stat(*pid).is_ok_and(|stat| !stat.is_dead()));
        self.pids.is_empty()
    }
}

fn serve(
    recorder: Recorder,
    stop: &AtomicBool,
    wake: &Waker,
    news: &SyncSender<Result<News, String>>,
) -> Result<(), RecordError> {
    let (_commands, orders) = mpsc::sync_channel(1);
    let window = WindowOptions { length: WINDOW, grace: GRACE };
    let ended = recorder.serve(window, stop, wake, &orders, |window| {
        let piece = News { profile: window.profile, health: Some(window.health), is_all: false };
        // The screen is behind: what it misses it misses, but samples never wait for it.
        if let Err(TrySendError::Full(_)) = news.try_send(Ok(piece)) {
            tracing::warn!("the screen is too slow: a second of samples is not shown");
        }
    });
    ended.map(drop)
}

pub(super) fn options(targets: Targets, arguments: &Arguments) -> RecordOptions {
    RecordOptions {
        title: default_title(&targets, &[]),
        targets,
        inherit: true,
        frequency_hz: arguments.freq,
        event: None,
        kernel_stack: true,
        user_stack: true,
        call_graph: CallGraph::Auto,
        unwind_mib: None,
        peek: true,
        read_runtime: !arguments.no_read_runtime,
        probe_registrations: false,
        interpreter: InterpreterFrames::default(),
        verify_names: false,
        gsym: Vec::new(),
        bucket: Duration::from_millis(100),
        labels: Some(LabelOptions::of_this_host()),
        continuous: false,
        log_kernel: false,
        capture: None,
    }
}

#[cfg(feature = "serve")]
mod service {
    //! A running service, asked again and again.

    use super::super::model::MAX_WINDOWS;
    use super::*;
    use crate::cli::service::{ServiceArgs, ServiceError};
    use crate::output::read_pprof;

    /// Between two questions; each costs the service the merging of what it has of a minute.
    const ASK_EVERY: Duration = Duration::from_secs(2);

    /// Asks for the first time, so that what cannot work is said at once, and goes on on a thread of its own.
    pub(super) fn start(arguments: &Arguments) -> Result<Source, TopError> {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("format", "pprof").append_pair("from", &format!("-{MAX_WINDOWS}s")).append_pair("to", "now");
        let select = &arguments.select;
        for pid in select.pid.iter().chain(&arguments.pids) {
            query.append_pair("pid", &pid.to_string());
        }
        let named =
            [("comm", &select.comm), ("user", &select.user), ("container", &select.container), ("unit", &select.unit)];
        for (name, value) in named.into_iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)))
        {
            query.append_pair(name, value);
        }
        let path = format!("/profile?{}", query.finish());
        let at = arguments.at.clone();
        let (sender, news) = mpsc::sync_channel(1);
        let title = format!("service at {}", at.address());
        let first = ask(&at, &path);
        if let Err(error @ (ServiceError::Nobody { .. } | ServiceError::Token { .. })) = first {
            return Err(error.into());
        }
        let go_on = move || {
            let mut answer = first;
            while sender.send(answer.map_err(|error| error.to_string())).is_ok() {
                std::thread::sleep(ASK_EVERY);
                answer = ask(&at, &path);
            }
        };
        std::thread::Builder::new()
            .name("ask".into())
            .spawn(go_on)
            .map_err(|source| TopError::System { what: "cannot start a thread", source })?;
        Ok(Source { title, news, ended: false, recording: None })
    }

    fn ask(at: &ServiceArgs, path: &str) -> Result<News, ServiceError> {
        let body = at.get(path)?;
        let profile =
            read_pprof(&*body).map_err(|error| ServiceError::Refused(format!("its answer is no profile: {error}")))?;
        Ok(News { profile, health: None, is_all: true })
    }
}
