//! The service: a recording without end, its archive, and those who ask for it.
//!
//! ```text
//! record thread   Recorder::serve -> Window -> bounded queue                 never waits for anything below
//! archive thread  queue -> Archive, push
//! governor        own CPU time and memory -> Command -> record thread
//! tokio           HTTP, signals, timers -> Command -> record thread
//! ```

mod governor;
pub mod http;
mod intake;
mod recording;

pub use governor::{Governor, GovernorOptions, GovernorStats};
pub use intake::Intake;
pub use recording::{Handle, Recording, RecordingError};
