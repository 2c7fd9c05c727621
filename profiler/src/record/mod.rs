//! One run: takes samples, follows what the target does and announces, and fills a profile.
//!
//! ```text
//! every tick    side band -> Processes, Sources of forks and execs
//!               ring      -> waiting samples
//!               tails     -> code maps, rows of generated code
//!               mappings, rows of files and of code -> the kernel part's tables
//!               samples of earlier ticks, up to the time until which all announcements are known -> Profile
//! at the end    the same once more, without waiting
//! ```

mod announced;
mod bounds;
mod copies;
mod dumps;
mod files;
mod generated;
mod labels;
mod late;
mod machine;
mod members;
mod options;
mod resolve;
mod run;
mod sources;
mod unwinding;
mod versions;
mod waiting;
mod window;

pub use dumps::{MappedDump, ProcessDumps, dumps_of};
pub use generated::{GeneratedCode, generated_code};
pub use machine::keep_heap_small;
pub use options::{CallGraph, LabelOptions, RecordOptions, Selector, Targets};
pub use run::{Progress, RecordError, Recorded, Recorder};
pub use window::{Command, Health, Window, WindowOptions};
