//! Interned stacks and counts: what a run found, before any output format.
//!
//! Strings, modules, frames and stacks are each kept once; a stack is a (prefix, frame) pair behind the [`StackId`]
//! handle, so two stacks that share their first frames share that memory. Counts are kept for each (time bucket,
//! stack, task).
//!
//! # Memory
//! [`Limits`] bounds every table. With the default limits a profile can never hold more than about 250 MiB: 64 MiB of
//! text, 2^19 frames of about 64 bytes, 2^21 stacks of about 28 bytes and 2^21 rows of about 45 bytes. By
//! the same figures the 12,000 samples of 60 s at 99 Hz on two busy CPUs take some 7 MiB even if they are as varied as
//! in the speed test of the outputs (20,000 frames, 134,000 stack prefixes). What no longer fits is counted under a note frame that says
//! so, and in [`Overflow`]; the total stays true.

mod diff;
mod filter;
mod labels;
mod limits;
mod meta;
mod order;
mod restack;
mod select;
mod significance;
mod table;
#[cfg(test)]
mod tests;
mod top;

pub use diff::{Both, Change, Diff, DiffNode, Normalize, Side};
pub use filter::{Filter, label_of};
pub use labels::{LABEL_NAMES, Labels};
pub(crate) use limits::fnv1a;
pub use limits::{Limits, MAX_STRING_BYTES, Overflow, shorten};
pub use meta::{ProfileMeta, SampledEvent, Task};
pub use order::Row;
pub use table::{FrameId, FrameRef, ModuleRef, Profile, StackId, TaskId};
pub use top::{Amount, Function, Top, TopRow};
