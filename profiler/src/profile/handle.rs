//! The handles of a profile's entries: positions in its tables, void in any other profile.

use super::forest::{index, number};

/// A frame of one profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(u32);

/// A stack of one profile: a frame and the stack it was called from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(u32);

/// A task of one profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StringId(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ModuleId(u32);

macro_rules! handles {
    ($($id:ty),*) => {$(
        impl $id {
            pub(super) fn new(at: usize) -> Self {
                Self(number(at))
            }

            pub(crate) fn index(self) -> usize {
                index(self.0)
            }
        }
    )*};
}

handles!(FrameId, StackId, TaskId, StringId, ModuleId);
