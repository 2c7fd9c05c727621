//! The generated code at one time as a GSYM file, for other tools to name addresses with.

mod inlines;
mod snapshot;
#[cfg(test)]
mod tests;
mod write;

pub use snapshot::{Part, Snapshot, SnapshotStats};
pub use write::{Uuid, WriteError, write};
