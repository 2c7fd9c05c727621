//! Arguments, subcommands, status line, exit codes.

mod address;
mod app;
mod args;
mod check;
mod config;
mod dump;
mod filter;
mod generate;
#[cfg(feature = "gsym")]
mod gsym;
mod jitdump;
mod look;
mod outputs;
mod replay;
mod report;
mod say;
mod select;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "serve")]
mod service;
#[cfg(feature = "serve")]
mod snapshot;
mod status;
mod subcommand;
#[cfg(feature = "top")]
mod top;
#[cfg(feature = "plog")]
mod trace;
#[cfg(feature = "plog")]
mod trace_log;
#[cfg(not(feature = "plog"))]
#[path = "without_trace_log.rs"]
mod trace_log;
mod unwind_info;

pub use app::run;
pub use args::{Args, EventArg};
pub use config::{Config, UsageError};
pub use outputs::OutputsError;
pub use subcommand::Subcommand;
pub use trace_log::{TraceArgs, TraceLog};
