//! From (process, address, time) to named frames.

mod frame;

pub use frame::{Frame, FrameKind, Module, SourceLine, Tier};
