//! What the service says on stderr.

use std::io::{self, IsTerminal};

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use super::config::{LogFormat, LogLevel, LogSettings};

/// Changes the level while the service runs.
pub struct LogControl(reload::Handle<EnvFilter, Registry>);

impl LogControl {
    /// Says as much from now on.
    pub fn set_level(&self, level: LogLevel) {
        if let Err(error) = self.0.reload(filter(level)) {
            tracing::warn!("the log's level stays as it is: {error}");
        }
    }
}

/// Begins to say something. To be called once.
pub fn init(settings: LogSettings) -> LogControl {
    let (filter, handle) = reload::Layer::new(filter(settings.level));
    let registry = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer()
        .with_writer(io::stderr)
        // Its own complaint about a stderr that has gone would be a panic.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    match settings.format {
        LogFormat::Text => registry.with(lines).init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
    }
    LogControl(handle)
}

/// The level holds for jitprof's own lines; those of its libraries come from `warn` on.
fn filter(level: LogLevel) -> EnvFilter {
    match level {
        LogLevel::Error => EnvFilter::new("error"),
        level => EnvFilter::new(format!("warn,jitprof={}", level.name())),
    }
}
