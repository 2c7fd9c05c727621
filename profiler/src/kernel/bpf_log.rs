//! Rare events of the BPF programs, which write them with aya-log.

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Level, Log, Metadata, Record};

/// Passes events on to where jitprof's own diagnostics go.
#[derive(Debug)]
struct ToTracing;

impl Log for ToTracing {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        match record.level() {
            Level::Error | Level::Warn => tracing::warn!(target: "jitprof::bpf", "{}", record.args()),
            Level::Info | Level::Debug | Level::Trace => tracing::debug!(target: "jitprof::bpf", "{}", record.args()),
        }
    }

    fn flush(&self) {}
}

/// The events' buffer.
pub(super) struct BpfLog(EbpfLogger<ToTracing>);

impl BpfLog {
    /// Of loaded programs; `None` with a warning if it cannot be had, for nothing else depends on it.
    pub(super) fn of(ebpf: &mut Ebpf) -> Option<Self> {
        match EbpfLogger::init_with_logger(ebpf, ToTracing) {
            Ok(logger) => Some(Self(logger)),
            Err(error) => {
                tracing::warn!("events of the BPF programs will not be logged: {error}");
                None
            }
        }
    }

    /// Logs what has happened since the last call.
    pub(super) fn drain(&mut self) {
        self.0.flush();
    }
}
