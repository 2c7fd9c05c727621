//! From (process, address, time) to named frames.
//!
//! The files that samples fall into are [`Objects`]; a [`Symbolizer`] names places in them, and in the kernel, on a
//! thread of its own. What it reads was written by the target: docs/symbols.md says what is done about that.

mod codesyms;
mod debugfile;
mod demangle;
mod elf;
mod frame;
mod gsym;
mod image;
mod kernel;
mod loaded;
pub mod names;
mod native;
mod plt;
mod stats;
mod vet;
mod worker;

#[cfg(test)]
mod measure;
#[cfg(test)]
mod tests;

pub use debugfile::open_root;
pub use demangle::MAX_NAME_BYTES;
pub use elf::{MAX_OBJECTS, MAX_OPEN_FILES, ObjectError, ObjectId, Objects};
pub use frame::{Frame, FrameKind, Module, SourceLine, Tier};
pub use image::{MAX_DEBUG_BYTES, MAX_SYMBOL_BYTES};
pub use loaded::MAX_LOADED_BYTES;
pub use stats::{DebugLoss, SymbolStats, Unresolved};
pub use vet::MAX_INLINE_DEPTH;
pub use worker::{MAX_KEYS, MAX_QUEUED, STALL_LIMIT, SymbolBudget, SymbolKey, Symbolizer};
