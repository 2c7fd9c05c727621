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

mod amount;
mod call_tree;
mod diff;
mod filter;
mod forest;
mod frames;
mod function;
mod guesses;
mod handle;
mod labels;
mod limits;
mod matching;
mod merge;
mod meta;
mod order;
mod printable;
mod shares;
mod significance;
mod table;
#[cfg(test)]
mod tests;
mod top;
mod totals;
mod transfer;

pub use amount::{Amount, Both};
pub use call_tree::{CallTree, TreeLayout, TreeNode};
pub use diff::{Change, Diff, Normalize, Side};
pub use filter::{Filter, label_of};
pub use frames::{FrameRef, ModuleRef, SourceRef};
pub use function::{ByFunction, FunctionRef};
pub use guesses::Guesses;
pub use handle::{FrameId, StackId, TaskId};
pub use labels::{LABEL_NAMES, Labels};
pub(crate) use limits::fnv1a;
pub use limits::{Limits, MAX_STRING_BYTES, Overflow, shorten};
pub use matching::Matching;
pub use merge::{Direction, MergeBy};
pub use meta::{ProfileMeta, SampledEvent, Task};
pub use order::Row;
pub(crate) use printable::printable;
pub use shares::Shares;
pub use table::Profile;
pub use top::{Top, TopRow};
pub use totals::{FrameTotals, Used};

pub use crate::owners::Holder;

/// Hashes of our own small ids. Text and addresses, which the target chooses, go to the default hasher.
type IdHash = std::hash::BuildHasherDefault<rustc_hash::FxHasher>;
