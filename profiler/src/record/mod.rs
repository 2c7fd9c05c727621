//! A recording of this machine: the [engine](crate::engine), and what drives it.
//!
//! ```text
//! kernel: ring, sideband ──┐                        ┌──▶ kernel: tables, filter
//! workers: /proc, files ────┼──▶ Driver ──▶ Engine ──┼──▶ workers, builders, symbolizer: requests
//! builders: rows ───────────┤                        └──▶ windows, profile, account
//! symbolizer: names ────────┘
//! ```

mod announced;
mod builders;
mod debug_root;
mod driver;
mod end;
mod machine;
mod members;
mod options;
mod party;
mod probes;
mod reader;
mod recorder;
mod stack_readers;
mod stacks;
mod usage;
mod workers;

pub use crate::engine::border::{Recorded, Window};
pub use crate::engine::{CallGraph, Health, InterpreterFrames, Progress, Selector};
pub use announced::{Depth, MappedDump, ProcessCode, announced};
pub use end::End;
pub use machine::{keep_heap_small, processes_called};
pub use options::{LabelOptions, RecordOptions, Targets};
pub use recorder::{Command, RecordError, Recorder, WindowOptions};
pub use stacks::{Doing, Stacks, ThreadStack};
