//! The service: a recording without end, its archive, and those who ask for it.
//!
//! ```text
//! record thread   Recorder::serve -> Window -> bounded queue                 never waits for anything below
//! archive thread  queue -> Archive, push
//! tokio           HTTP, signals, timers -> Command -> record thread
//! ```

pub mod http;
mod intake;
mod recording;

pub use intake::Intake;
pub use recording::{Handle, Recording, RecordingError};
