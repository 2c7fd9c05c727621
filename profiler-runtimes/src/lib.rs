#![doc = include_str!("../README.md")]

pub mod beam;
mod capture;
pub mod cpython;
mod described;
pub mod gdb_jit;
pub mod hotspot;
mod listed;
mod memory;
pub mod php;
#[cfg(feature = "recorded")]
pub mod recorded;
#[cfg(test)]
mod replay;
pub mod ruby;
pub mod v8;

pub use capture::{Base, CaptureSpec, Take};
pub use described::{Described, Function, Unknown, Version};
pub use listed::{Walked, walk};
pub use memory::{Budget, Memory, ReadError, Reader, Symbols};
