//! What the service is told: a file, over which the command line goes.
//!
//! Each section has its defaults, and a key that is not known is an error. `docs/reference/configuration.md` describes every key;
//! `contrib/jitprof.toml` shows them.

mod check;
mod load;
#[cfg(feature = "parquet")]
mod parquet;
mod push;
mod reload;
mod units;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use check::Problem;
pub use load::ConfigError;
#[cfg(feature = "parquet")]
pub use parquet::{ArchiveSettings, ParquetSettings};
pub use push::{PushKind, PushSettings};
pub use reload::Change;
pub use units::{Bytes, ListenAt};

use crate::archive::ArchiveOptions;
use crate::process::hierarchy::GroupQuery;
use crate::record::{CallGraph, InterpreterFrames, LabelOptions, RecordOptions, Selector, Targets, WindowOptions};
use crate::serve::governor::GovernorOptions;
use crate::serve::http::Listen;
use crate::times::Period;
use jitprof_common::units::Pid;

/// Everything that can be chosen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Which processes are profiled.
    pub selection: SelectionSettings,
    /// How samples are taken.
    pub sampling: SamplingSettings,
    /// How the recording is divided into windows.
    pub window: WindowSettings,
    /// Where the page and the API listen, and who may ask.
    pub http: HttpSettings,
    /// What is kept, where, and for how long.
    pub storage: StorageSettings,
    /// Where windows are kept beside the storage.
    #[cfg(feature = "parquet")]
    #[serde(skip_serializing_if = "ArchiveSettings::is_empty")]
    pub archive: ArchiveSettings,
    /// What the service may cost.
    pub limits: LimitSettings,
    /// What `/metrics` says about processes.
    pub metrics: MetricsSettings,
    /// What is said on stderr.
    pub log: LogSettings,
    /// How long the service may take to end.
    pub shutdown: ShutdownSettings,
    /// The targets that windows are sent to.
    pub push: Vec<PushSettings>,
}

/// Who is profiled; every process if nothing is said. Of several values of one key, one is enough; of several keys, all
/// must hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SelectionSettings {
    /// Processes with these ids.
    pub pids: Vec<u32>,
    /// Processes and threads of these names.
    pub comm: Vec<String>,
    /// Processes of these real users, by name or number.
    pub user: Vec<String>,
    /// Processes in these control groups and below.
    pub cgroup: Vec<String>,
    /// Processes of containers whose ids begin so.
    pub container: Vec<String>,
    /// Processes of these systemd units.
    pub unit: Vec<String>,
    /// Children of the chosen processes as well.
    pub children: bool,
}

impl Default for SelectionSettings {
    fn default() -> Self {
        let none = Vec::new;
        Self {
            pids: vec![],
            comm: none(),
            user: none(),
            cgroup: none(),
            container: none(),
            unit: none(),
            children: true,
        }
    }
}

impl SelectionSettings {
    fn targets(&self) -> Targets {
        let groups =
            GroupQuery { paths: self.cgroup.clone(), containers: self.container.clone(), units: self.unit.clone() };
        let mut pids: Vec<Pid> = self.pids.iter().copied().map(Pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let (comms, users) = (self.comm.clone(), self.user.clone());
        if pids.is_empty() && comms.is_empty() && users.is_empty() && groups.is_empty() {
            return Targets::All;
        }
        // A service waits for those that are not there yet.
        Targets::Matching(Selector { pids, comms, users, groups, may_come_later: true })
    }
}

/// How samples are taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingSettings {
    /// Samples per second and busy CPU.
    pub frequency: u32,
    /// Whether kernel frames are recorded.
    pub kernel: bool,
    /// Whether user frames are recorded.
    pub user: bool,
    /// How user stacks are walked.
    pub call_graph: CallGraphSetting,
    /// Read names from the target's memory that its runtime has not written yet.
    pub peek: bool,
    /// Read what targets' runtimes know of their own code.
    pub read_runtime: bool,
    /// Set breakpoints in targets where they register code with a debugger.
    pub probe_registrations: bool,
    /// Whether native frames of interpreters' evaluation loops are shown.
    pub native_frames: bool,
    /// Whether frames that interpreters keep in a list of their own are taken along.
    pub vm_frames: bool,
    /// Memory of the BPF programs' tables of unwind rows.
    pub unwind_memory: Bytes,
    /// GSYM files, or directories of such.
    pub gsym: Vec<PathBuf>,
}

impl Default for SamplingSettings {
    fn default() -> Self {
        Self {
            frequency: 19,
            kernel: true,
            user: true,
            call_graph: CallGraphSetting::Auto,
            peek: true,
            read_runtime: true,
            probe_registrations: false,
            native_frames: true,
            vm_frames: true,
            unwind_memory: Bytes(24 << 20),
            gsym: Vec::new(),
        }
    }
}

/// [`CallGraph`] as the file writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallGraphSetting {
    /// By everything that is known.
    Auto,
    /// By recorded unwind data and frame pointers.
    Eh,
    /// By frame pointers.
    Fp,
}

/// How the recording is divided into windows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WindowSettings {
    /// Length of a window.
    pub length: Period,
    /// How long it stays open for names that come late.
    pub grace: Period,
}

impl Default for WindowSettings {
    fn default() -> Self {
        Self { length: Period(Duration::from_secs(10)), grace: Period(Duration::from_secs(3)) }
    }
}

/// Who may ask, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpSettings {
    /// The address, or the socket's path.
    pub listen: ListenAt,
    /// Whether those who ask at a loopback address must know a secret, where no file has one.
    pub token: TokenSetting,
    /// File with a secret that whoever asks must know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Names of a proxy in front, under which a loopback address is asked for.
    pub hosts: Vec<String>,
}

impl Default for HttpSettings {
    fn default() -> Self {
        let listen = ListenAt(Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 7878))));
        Self { listen, token: TokenSetting::Random, token_file: None, hosts: Vec::new() }
    }
}

/// The secret of a service that is given none. A unix socket, which has an owner and a mode, needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TokenSetting {
    /// A new one at each start, said at the start and written to a file for the service's user.
    Random,
    /// None: every user of this machine may ask.
    None,
}

/// How much is kept, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StorageSettings {
    /// Windows are kept here as files; in memory only without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Older files are removed.
    pub max_age: Period,
    /// The oldest files are removed when all together are larger.
    pub max_bytes: Bytes,
    /// Windows in memory may take this much.
    pub memory: Bytes,
}

impl Default for StorageSettings {
    fn default() -> Self {
        Self {
            directory: None,
            max_age: Period(Duration::from_secs(86_400)),
            max_bytes: Bytes(1 << 30),
            memory: Bytes(16 << 20),
        }
    }
}

/// What the service may cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitSettings {
    /// CPU time of jitprof and its BPF programs, in percent of the whole machine: on 8 CPUs, 1.0 is 8 % of one.
    pub max_cpu: f64,
    /// Resident memory; near it caches are evicted.
    pub max_memory: Bytes,
}

impl Default for LimitSettings {
    fn default() -> Self {
        let GovernorOptions { max_cpu_percent, max_memory_bytes } = GovernorOptions::default();
        Self { max_cpu: max_cpu_percent, max_memory: Bytes(max_memory_bytes) }
    }
}

/// What `/metrics` says about processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsSettings {
    /// Labels of samples by which CPU time is summed up.
    pub by: Vec<String>,
    /// Combinations of their values that are told apart at most; the rest is `other`.
    pub top: usize,
    /// Where `/metrics` also answers, and nothing else, to everybody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<ListenAt>,
}

impl Default for MetricsSettings {
    fn default() -> Self {
        Self { by: vec!["comm".to_owned()], top: 50, listen: None }
    }
}

/// What is said on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSettings {
    /// Lines of text, or of JSON.
    pub format: LogFormat,
    /// The least important lines that are written.
    pub level: LogLevel,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: LogLevel::Info }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// An object a line.
    Json,
}

/// What is worth a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What cannot be done.
    Error,
    /// What is lost.
    Warn,
    /// What changes.
    Info,
    /// Everything.
    Debug,
}

impl LogLevel {
    /// The level's name in a filter directive.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

/// How the service ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShutdownSettings {
    /// How long the last windows are pushed, and open requests answered, after the end was asked for.
    pub deadline: Period,
}

impl Default for ShutdownSettings {
    fn default() -> Self {
        Self { deadline: Period(Duration::from_secs(5)) }
    }
}

impl Settings {
    /// Reads a file, lets `change` put the command line over it, and checks the result. Without a file there are the
    /// defaults.
    ///
    /// # Errors
    /// [`ConfigError`], with the place.
    pub fn load(path: Option<&Path>, change: impl FnOnce(&mut Self)) -> Result<Self, ConfigError> {
        load::load(path, change)
    }

    /// The whole configuration as a file would have it.
    pub fn to_toml(&self) -> String {
        // Strings, numbers, lists and tables only: nothing here is without a form in TOML.
        toml::to_string(self).unwrap_or_else(|error| format!("# {error}\n"))
    }

    /// How `new` differs, each kind of difference once.
    pub fn changes(&self, new: &Self) -> Vec<Change> {
        reload::changes(self, new)
    }

    /// These settings with what `new` may change while running.
    pub fn with_running_changes(&self, new: &Self) -> Self {
        reload::with_running_changes(self, new)
    }

    /// How the recorder is to work.
    pub fn record_options(&self) -> RecordOptions {
        let targets = self.selection.targets();
        let title = match &targets {
            Targets::Matching(selector) => selector.to_string(),
            _ => "All processes".to_owned(),
        };
        RecordOptions {
            targets,
            inherit: self.selection.children,
            frequency_hz: self.sampling.frequency,
            event: None,
            kernel_stack: self.sampling.kernel,
            user_stack: self.sampling.user,
            call_graph: match self.sampling.call_graph {
                CallGraphSetting::Auto => CallGraph::Auto,
                CallGraphSetting::Eh => CallGraph::EhFrame,
                CallGraphSetting::Fp => CallGraph::FramePointers,
            },
            unwind_mib: Some(u32::try_from(self.sampling.unwind_memory.0 >> 20).unwrap_or(u32::MAX)),
            peek: self.sampling.peek,
            read_runtime: self.sampling.read_runtime,
            probe_registrations: self.sampling.probe_registrations,
            interpreter: InterpreterFrames { native: self.sampling.native_frames, listed: self.sampling.vm_frames },
            verify_names: false,
            gsym: self.sampling.gsym.clone(),
            title,
            bucket: Duration::from_millis(100),
            labels: Some(LabelOptions::of_this_host()),
            continuous: true,
            log_kernel: false,
            capture: None,
        }
    }

    /// How it is divided into windows.
    pub fn window_options(&self) -> WindowOptions {
        WindowOptions { length: self.window.length.0, grace: self.window.grace.0 }
    }

    /// What it may cost.
    pub fn governor_options(&self) -> GovernorOptions {
        GovernorOptions { max_cpu_percent: self.limits.max_cpu, max_memory_bytes: self.limits.max_memory.0 }
    }

    /// Bounds and directory of the archive.
    pub fn archive_options(&self) -> ArchiveOptions {
        ArchiveOptions {
            memory_bytes: self.storage.memory.0,
            directory: self.storage.directory.clone(),
            max_age: self.storage.max_age.0,
            max_bytes: self.storage.max_bytes.0,
        }
    }
}
