//! The service: a continuous recording, its archive, and those who ask for it.
//!
//! ```text
//! record thread   Recorder::serve -> Window -> bounded queue                 never waits for anything below
//! archive thread  queue -> counts, push queues, Archive
//! governor        own CPU time and memory -> Command -> record thread
//! tokio           HTTP, push, signals, timers -> Command -> record thread
//! ```
//!
//! Only the record thread and the symbolizer keep the capabilities that the service was started with.

pub mod config;
mod governor;
pub mod http;
mod intake;
pub mod log;
mod metrics;
#[cfg(feature = "parquet")]
mod parquet;
mod privileges;
mod push;
mod recording;
mod service;
mod supervisor;
mod token_file;

pub use governor::{Governor, GovernorOptions, GovernorStats};
pub use intake::Intake;
pub use metrics::{Metrics, Sources};
#[cfg(feature = "parquet")]
pub use parquet::{ParquetError, ParquetSender, ParquetStats};
pub use push::{PushError, PushStats, Pushers};
pub use recording::{Handle, Recording, RecordingError};
pub use service::{ServeError, run};
pub use token_file::token_file;
