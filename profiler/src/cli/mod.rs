//! Arguments, subcommands, status line, exit codes.

mod app;
mod args;
mod config;
mod status;
mod subcommand;
mod unwind_info;

pub use app::run;
pub use args::{Args, EventArg};
pub use config::{Config, UsageError};
pub use subcommand::Subcommand;
