//! Arguments, subcommands, status line, exit codes.

mod app;
mod args;
mod check;
mod config;
mod gsym;
mod select;
mod serve;
mod snapshot;
mod status;
mod subcommand;
mod trace;
mod trace_log;
mod unwind_info;

pub use app::run;
pub use args::{Args, EventArg};
pub use config::{Config, UsageError};
pub use subcommand::Subcommand;
pub use trace_log::{LogOptions, TraceLog};
