//! From (process, address, time) to named frames.
//!
//! A [`Symbolizer`] names places in [`OpenFiles`], and in the kernel, on a thread of its own; [`Naming`] is both together
//! for those who wait for it. What it reads was written by the target: docs/design/symbols.md says what is done about that.

mod codesyms;
mod credit;
mod debugfile;
mod demangle;
mod digest;
mod frame;
mod gsym;
mod image;
mod kernel;
mod loaded;
pub mod names;
mod naming;
mod native;
mod open_files;
mod plt;
mod stats;
mod vet;
mod worker;

#[cfg(test)]
mod measure;
#[cfg(test)]
mod tests;

pub(crate) use debugfile::may_be_below;
pub use debugfile::open_root;
pub use demangle::MAX_NAME_BYTES;
#[cfg(test)]
pub(crate) use demangle::{deep_name, spend_on_names};
pub(crate) use demangle::{prepare_demangling, serve_if_asked};
pub use digest::{Digest, contents_digest, digest};
pub use frame::{Frame, FrameKind, Module, SourceLine, Tier, is_guess};
pub use image::{MAX_DEBUG_BYTES, MAX_SYMBOL_BYTES};
pub use kernel::unnamed_in_kernel;
pub use loaded::MAX_LOADED_BYTES;
pub use naming::Naming;
pub use native::{mapped_as, unnamed_in_file, unnamed_in_function};
pub use open_files::{OpenFile, OpenFiles};
pub use stats::{DebugLoss, SymbolStats, Unresolved};
pub use vet::MAX_INLINE_DEPTH;
pub use worker::{MAX_KEYS, Name, NameAnswer, STALL_LIMIT, SymbolBudget, SymbolKey, Symbolizer};
