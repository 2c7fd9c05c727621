//! Arguments, status line, exit codes.

mod app;
mod args;
mod check;
mod config;
mod status;

pub use app::run;
pub use args::{Args, EventArg};
pub use config::{Config, UsageError};
