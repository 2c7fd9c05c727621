#![doc = include_str!("../README.md")]

pub mod beam;
mod capture;
pub mod cpython;
mod described;
mod frames;
pub mod gdb_jit;
pub mod hotspot;
pub mod libgcc;
mod listed;
mod memory;
pub mod php;
pub mod pthread;
#[cfg(feature = "recorded")]
pub mod recorded;
#[cfg(test)]
mod replay;
pub mod ruby;
mod steps;
pub mod v8;

pub use capture::{Base, CaptureSpec, Take};
pub use described::{Described, Function, Unknown, Version};
pub use frames::Frame;
pub use listed::{Walked, walk};
pub use memory::{Budget, Memory, ReadError, Reader, Symbols};
