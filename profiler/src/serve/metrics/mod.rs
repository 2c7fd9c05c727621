//! `/metrics`: jitprof itself, and CPU time of processes, for Prometheus.

mod cpu;
mod exposition;
pub(super) mod own;
mod unnamed;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;

use self::cpu::CpuByLabels;
use self::exposition::{Kind, Page};
use self::own::Own;
use self::unnamed::UnnamedFrames;
use super::config::{MetricsSettings, WindowSettings};
use super::governor::GovernorStats;
use super::push::Pushers;
use super::recording::Handle;
use crate::archive::Archive;
use crate::cost::Activity;
use crate::record::Window;

/// What the page is.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// How much later than it should a window may come before the recording counts as stuck: it has stalled files to give
/// up, and names to wait for, with limits of their own.
const LATE: Duration = Duration::from_secs(45);

/// Counts of the service, and where to read those of its parts.
pub struct Metrics {
    sources: Sources,
    started: Instant,
    /// When a window has to be there again.
    due_every: Duration,
    cpu: Mutex<CpuByLabels>,
    unnamed: Mutex<UnnamedFrames>,
    last_window: Mutex<Option<Instant>>,
    windows: AtomicU64,
    empty_windows: AtomicU64,
    reloads: AtomicU64,
    failed_reloads: AtomicU64,
    governor: Mutex<Option<GovernorReader>>,
    /// Answers by the first digit of their status; those that are none under 0.
    answers: [AtomicU64; 6],
}

/// The parts of the service that count for themselves.
pub struct Sources {
    /// The continuous recording.
    pub recording: Handle,
    /// The archive of windows.
    pub archive: Arc<Archive>,
    /// The push targets.
    pub pushers: Arc<Pushers>,
    /// The dataset, if there is one.
    #[cfg(feature = "parquet")]
    pub parquet: Option<Arc<super::ParquetSender>>,
}

/// Reads what the governor has measured.
type GovernorReader = Box<dyn Fn() -> GovernorStats + Send + Sync>;

impl Metrics {
    /// All counts at zero.
    pub fn new(sources: Sources, settings: &MetricsSettings, window: &WindowSettings) -> Self {
        Self {
            sources,
            started: Instant::now(),
            due_every: window.length.0 + window.grace.0 + LATE,
            cpu: Mutex::new(CpuByLabels::new(settings.by.clone(), settings.top)),
            unnamed: Mutex::new(UnnamedFrames::new(settings.top)),
            last_window: Mutex::new(None),
            windows: AtomicU64::new(0),
            empty_windows: AtomicU64::new(0),
            reloads: AtomicU64::new(0),
            failed_reloads: AtomicU64::new(0),
            governor: Mutex::default(),
            answers: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Takes note of a closed window.
    pub fn note(&self, window: &Window) {
        self.windows.fetch_add(1, Ordering::Relaxed);
        if window.profile.total() == 0 {
            self.empty_windows.fetch_add(1, Ordering::Relaxed);
        }
        *self.last_window.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.cpu.lock().unwrap_or_else(PoisonError::into_inner).add(&window.profile);
        self.unnamed.lock().unwrap_or_else(PoisonError::into_inner).add(&window.profile);
    }

    /// Takes note of a reload.
    pub fn note_reload(&self, succeeded: bool) {
        let counter = if succeeded { &self.reloads } else { &self.failed_reloads };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Who keeps the limits now.
    pub(super) fn set_governor(&self, reader: impl Fn() -> GovernorStats + Send + Sync + 'static) {
        *self.governor.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(reader));
    }

    /// Takes note of an answer.
    fn note_answer(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100);
        if let Some(count) = self.answers.get(class).or(self.answers.first()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether windows come when they should.
    pub fn is_alive(&self) -> bool {
        let last = *self.last_window.lock().unwrap_or_else(PoisonError::into_inner);
        last.unwrap_or(self.started).elapsed() < self.due_every
    }

    /// Windows closed so far.
    pub fn windows(&self) -> u64 {
        self.windows.load(Ordering::Relaxed)
    }

    /// The page that a scrape gets.
    pub fn render(&self) -> String {
        let mut page = Page::default();
        page.family(Kind::Gauge, "jitprof_build_info", "1, with the version.")
            .value(&[("version", env!("CARGO_PKG_VERSION")), ("arch", std::env::consts::ARCH)], 1_u64);
        self.recording(&mut page);
        self.own(&mut page);
        self.governor(&mut page);
        self.archive(&mut page);
        self.http(&mut page);
        self.push(&mut page);
        #[cfg(feature = "parquet")]
        self.parquet(&mut page);
        self.processes(&mut page);
        self.unnamed(&mut page);
        page.finish()
    }

    fn recording(&self, page: &mut Page) {
        use Kind::{Counter, Gauge};
        let health = self.sources.recording.health();
        page.one(Gauge, "jitprof_up", "Whether windows come when they should.", self.is_alive());
        page.one(Counter, "jitprof_samples_taken_total", "Samples taken in the kernel.", health.taken);
        page.one(Counter, "jitprof_samples_delivered_total", "Samples brought to userspace.", health.delivered);
        page.one(Counter, "jitprof_samples_lost_total", "Samples lost on the way.", health.lost);
        page.one(Gauge, "jitprof_samples_waiting", "Samples that wait for names.", health.waiting);
        page.one(Counter, "jitprof_samples_overflowed_total", "What profiles had no room for.", health.overflowed);
        page.one(Counter, "jitprof_windows_total", "Windows closed.", self.windows());
        let empty = self.empty_windows.load(Ordering::Relaxed);
        page.one(Counter, "jitprof_windows_empty_total", "Windows closed without a sample.", empty);
        let dropped = self.sources.recording.windows_dropped();
        page.one(Counter, "jitprof_windows_dropped_total", "Windows that the archive did not take in time.", dropped);
        let mut stacks = page.family(Counter, "jitprof_stacks_total", "User stacks, by whether they are whole.");
        stacks.value(&[("end", "complete")], health.complete_stacks);
        stacks.value(&[("end", "cut")], health.cut_stacks);
        let mut frames = page.family(Counter, "jitprof_jit_frames_total", "Frames of generated code.");
        let jit = &health.jit_frames;
        frames.value(&[("name", "known")], jit.named.total());
        frames.value(&[("name", "unknown")], jit.unnamed_total());
        let mut named = page.family(Counter, "jitprof_jit_frames_named_total", "Of those: by what named them.");
        jit.named.each().iter().for_each(|(by, count)| named.value(&[("by", by)], *count));
        let mut unnamed = page.family(Counter, "jitprof_jit_frames_unnamed_total", "Of those: why they have no name.");
        jit.unnamed.iter().for_each(|(reason, count)| unnamed.value(&[("reason", reason)], *count));
        page.one(Gauge, "jitprof_processes", "Processes known to run.", health.processes);
        page.one(Gauge, "jitprof_jit_functions", "Functions that runtimes announced and that live.", health.functions);
        let hertz = u64::from(health.frequency_hz);
        page.one(Gauge, "jitprof_sampling_frequency_hertz", "Samples per second and busy CPU.", hertz);
        let kernel = seconds(health.kernel_ns);
        page.one(Counter, "jitprof_kernel_cpu_seconds_total", "CPU time of the BPF programs, in others' time.", kernel);
        let mut reloads = page.family(Counter, "jitprof_reloads_total", "Reloads of the configuration.");
        reloads.value(&[("result", "done")], self.reloads.load(Ordering::Relaxed));
        reloads.value(&[("result", "refused")], self.failed_reloads.load(Ordering::Relaxed));
    }

    fn own(&self, page: &mut Page) {
        use Kind::{Counter, Gauge};
        let own = Own::now();
        let refused = self.sources.recording.ledger().refused();
        let help = "Processes not read yet, as starts of processes cost too much.";
        page.one(Counter, "jitprof_processes_refused_total", help, refused);
        let costs = self.sources.recording.ledger().costs().values();
        let help = "Own CPU time with that of the BPF programs, by what it was for.";
        let mut activities = page.family(Counter, "jitprof_activity_cpu_seconds_total", help);
        for (activity, ns) in Activity::ALL.into_iter().zip(costs) {
            activities.value(&[("activity", activity.name())], seconds(ns));
        }
        let mut cpu = page.family(Counter, "jitprof_cpu_seconds_total", "Own CPU time, by thread.");
        own.cpu_ns.iter().for_each(|(thread, ns)| cpu.value(&[("thread", thread)], seconds(*ns)));
        page.one(Gauge, "jitprof_resident_memory_bytes", "Own resident memory.", own.resident_bytes);
        page.one(Gauge, "jitprof_peak_resident_memory_bytes", "The most it was.", own.peak_resident_bytes);
        if let Some(open) = own.open_files {
            page.one(Gauge, "jitprof_open_fds", "Own open file descriptors.", open);
        }
        if let Some(max) = own.max_files {
            page.one(Gauge, "jitprof_max_fds", "As many are allowed.", max);
        }
        page.one(Gauge, "jitprof_uptime_seconds", "Since the start.", self.started.elapsed().as_secs_f64());
    }

    fn governor(&self, page: &mut Page) {
        use Kind::{Counter, Gauge};
        let governor = self.governor.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(stats) = governor.as_ref().map(|reader| reader()) else { return };
        let cpu = stats.cpu_percent() / 100.0;
        page.one(
            Gauge,
            "jitprof_governor_cpu_ratio",
            "Part of the machine used, with the BPF programs, smoothed.",
            cpu,
        );
        let mut changes = page.family(Counter, "jitprof_governor_changes_total", "Changes of the frequency.");
        changes.value(&[("to", "lower")], stats.lowered);
        changes.value(&[("to", "higher")], stats.raised);
        page.one(Gauge, "jitprof_governor_memory_short", "Whether caches are kept small.", stats.memory_short);
        let shortages = stats.memory_shortages;
        page.one(Counter, "jitprof_governor_memory_shortages_total", "Times that memory became short.", shortages);
    }

    fn archive(&self, page: &mut Page) {
        use Kind::{Counter, Gauge};
        let stats = self.sources.archive.stats();
        page.one(Gauge, "jitprof_archive_windows", "Windows that can be asked for.", stats.windows);
        page.one(Gauge, "jitprof_archive_disk_windows", "Of these, in files.", stats.disk_windows);
        page.one(Gauge, "jitprof_archive_memory_bytes", "Memory of windows and index.", stats.memory_bytes);
        page.one(Gauge, "jitprof_archive_disk_bytes", "Bytes of all files.", stats.disk_bytes);
        let failed = stats.writes_failed;
        page.one(Counter, "jitprof_archive_writes_failed_total", "Files not written or not removed.", failed);
        page.one(Gauge, "jitprof_archive_windows_waiting", "Windows that wait for the disk.", stats.waiting);
        let late = stats.written_late;
        page.one(Counter, "jitprof_archive_windows_late_total", "Windows that waited for the disk, written.", late);
        page.one(Counter, "jitprof_archive_windows_dropped_total", "Windows that came into no file.", stats.dropped);
        page.one(Gauge, "jitprof_archive_unreadable_files", "Files that cannot be read.", stats.unreadable);
        page.one(Gauge, "jitprof_archive_writing", "Whether the last write succeeded.", !stats.is_stopped);
        if let Some(oldest) = stats.oldest.and_then(|oldest| oldest.duration_since(UNIX_EPOCH).ok()) {
            let help = "When the oldest window begins, since 1970.";
            page.one(Gauge, "jitprof_archive_oldest_timestamp_seconds", help, oldest.as_secs_f64());
        }
    }

    fn http(&self, page: &mut Page) {
        let mut family = page.family(Kind::Counter, "jitprof_http_responses_total", "Answers, by class of status.");
        for (count, class) in self.answers.iter().zip(["other", "1xx", "2xx", "3xx", "4xx", "5xx"]) {
            family.value(&[("code", class)], count.load(Ordering::Relaxed));
        }
    }

    fn push(&self, page: &mut Page) {
        use Kind::{Counter, Gauge};
        let stats = self.sources.pushers.stats();
        if stats.is_empty() {
            return;
        }
        let mut each = |kind, name, help, value: fn(&super::push::PushStats) -> u64| {
            let mut family = page.family(kind, name, help);
            stats.iter().for_each(|one| family.value(&[("target", &one.name), ("kind", one.kind)], value(one)));
        };
        each(Counter, "jitprof_push_windows_total", "Windows delivered.", |one| one.delivered);
        each(Counter, "jitprof_push_bytes_total", "Bytes delivered.", |one| one.delivered_bytes);
        each(Counter, "jitprof_push_retries_total", "Tries that failed.", |one| one.retries);
        each(Gauge, "jitprof_push_waiting_windows", "Windows that wait.", |one| one.waiting as u64);
        each(Gauge, "jitprof_push_waiting_bytes", "Bytes that wait.", |one| one.waiting_bytes);
        each(Gauge, "jitprof_push_failing", "Whether the last try failed.", |one| one.failing.into());
        let mut dropped = page.family(Counter, "jitprof_push_dropped_windows_total", "Windows dropped, and why.");
        for one in &stats {
            let reasons = [
                ("queue full", one.dropped_queue_full),
                ("refused", one.dropped_refused),
                ("ended", one.dropped_at_end),
            ];
            for (reason, windows) in reasons {
                dropped.value(&[("target", &one.name), ("kind", one.kind), ("reason", reason)], windows);
            }
        }
    }

    #[cfg(feature = "parquet")]
    fn parquet(&self, page: &mut Page) {
        use Kind::{Counter, Gauge};
        let Some(stats) = self.sources.parquet.as_ref().map(|parquet| parquet.stats()) else { return };
        page.one(Counter, "jitprof_parquet_files_total", "Files that have arrived.", stats.files);
        page.one(Counter, "jitprof_parquet_bytes_total", "Their bytes.", stats.bytes);
        page.one(Counter, "jitprof_parquet_rows_total", "Rows of samples in them.", stats.rows);
        page.one(Counter, "jitprof_parquet_windows_total", "Windows in them.", stats.windows);
        let help = "Windows that are to be sent and have not arrived.";
        page.one(Gauge, "jitprof_parquet_waiting_windows", help, stats.waiting);
        let help = "Windows that left the archive before they could be sent.";
        page.one(Counter, "jitprof_parquet_expired_windows_total", help, stats.expired);
        page.one(Counter, "jitprof_parquet_retries_total", "Tries that failed.", stats.retries);
        page.one(Gauge, "jitprof_parquet_failing", "Whether the last try failed.", stats.failing);
        let help = "CPU time of the thread that writes Parquet.";
        page.one(Counter, "jitprof_parquet_cpu_seconds_total", help, seconds(stats.cpu_ns));
    }

    fn unnamed(&self, page: &mut Page) {
        let unnamed = self.unnamed.lock().unwrap_or_else(PoisonError::into_inner);
        let help =
            "Frames without a function's name, by process and reason; the processes with the most, the rest as other.";
        let mut family = page.family(Kind::Counter, "jitprof_unnamed_frames_total", help);
        unnamed.iter().for_each(|(comm, reason, frames)| family.value(&[("comm", comm), ("reason", reason)], frames));
    }

    fn processes(&self, page: &mut Page) {
        let cpu = self.cpu.lock().unwrap_or_else(PoisonError::into_inner);
        if cpu.names().is_empty() {
            return;
        }
        let help = "CPU time of processes as sampled; the busiest by name, the rest as other.";
        let mut family = page.family(Kind::Counter, "jitprof_process_cpu_seconds_total", help);
        for (values, ns) in cpu.iter() {
            let labels: Vec<_> =
                cpu.names().iter().map(|name| &**name).zip(values.iter().map(|value| &**value)).collect();
            family.value(&labels, seconds(ns));
        }
        let other: Vec<_> = cpu.names().iter().map(|name| (&**name, cpu::OTHER)).collect();
        family.value(&other, seconds(cpu.other_ns()));
    }
}

/// The route `/metrics`.
pub(super) fn routes(metrics: Arc<Metrics>) -> Router {
    let page = move || async move { ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.render()) };
    Router::new().route("/metrics", get(page))
}

/// Counts the answers of a router.
pub(super) fn counted(router: Router, metrics: Arc<Metrics>) -> Router {
    router.layer(map_response(move |response: Response| {
        metrics.note_answer(response.status());
        std::future::ready(response)
    }))
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}
