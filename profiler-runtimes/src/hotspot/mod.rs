//! HotSpot, the JVM of OpenJDK: what its tables say of its own code (JDK 17 and later, x86-64 for frames).
//!
//! `gHotSpotVMStructs` and its like are exported by `libjvm.so` for debuggers; they name the fields of the runtime's
//! classes and say where in an object each is ([`Layout`]). From `CodeCache::_heaps` on all code is found
//! ([`CodeCache`]): each heap has a map with a byte for each segment, which is 0 where a block begins; a block has its
//! length, whether it is used, and the header of a blob. A compiled method has tables of its own that say which methods
//! are at an address ([`CodeCache::position`]).
//!
//! A blob is told from a later one at the same address by its extent, its method and the number of its compilation,
//! which the runtime never gives twice.

mod code_cache;
mod compilations;
mod continuations;
mod interpreter;
mod layout;
mod names;
mod numbers;
mod scopes;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "recorded"))]
mod threads;
mod turnover;
mod unloads;

pub use code_cache::{Blob, BlobName, Change, CodeCache, FrameShape, Kind, Tier, Update};
pub use compilations::Compilations;
pub use continuations::ReturnBarrier;
pub use interpreter::{Codelet, Interpreted, InterpreterFrame, codelets};
pub use layout::{Layout, LayoutError, Version};
pub use names::MethodName;
pub use scopes::{Frame, Pc, Position};
#[cfg(any(test, feature = "recorded"))]
pub use threads::{WaitingThread, waiting_threads};
pub use unloads::Unloads;
