//! The bytes of code that a runtime's tables lead to.

use jitprof_common::units::Avma;
use jitprof_runtimes::{Memory, Reader};

use super::FoundFrame;

/// How much of its code one reading hands on. Memory may be mapped at many addresses, and pieces of code overlap.
pub(super) struct Room {
    /// Bytes of a piece at most.
    most: usize,
    /// Bytes of all that are left.
    left: usize,
}

impl Room {
    pub(super) const fn new(most: usize, all: usize) -> Self {
        Self { most, left: all }
    }

    /// What a whole piece of code shows, if there is room for it; else that is read where the code is met.
    pub(super) fn frame<M: Memory>(&mut self, (start, size): (Avma, u64), reader: &Reader<M>) -> FoundFrame {
        let size = usize::try_from(size).ok().filter(|size| *size <= self.most.min(self.left));
        let Some(size) = size else { return FoundFrame::Unknown };
        self.left -= size;
        let mut bytes = vec![0; size];
        match reader.now(start, &mut bytes) {
            Ok(count) if count == size => FoundFrame::Code(bytes.into()),
            Ok(_) | Err(_) => FoundFrame::Unknown,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io;

    use jitprof_runtimes::Budget;

    use super::*;

    /// Memory that is there wherever one looks.
    pub(in crate::runtime) struct Everywhere;

    impl Memory for Everywhere {
        fn read(&self, _address: Avma, into: &mut [u8]) -> io::Result<usize> {
            into.fill(0x90);
            Ok(into.len())
        }
    }

    /// A reader of it.
    pub(in crate::runtime) fn everywhere() -> Reader<Everywhere> {
        Reader::new(Everywhere, Budget { pages: 1 << 16, steps: 1 << 20 })
    }

    #[test]
    fn code_is_handed_on_as_a_whole_and_no_more_of_it_than_there_is_room_for() {
        let (reader, mut room) = (everywhere(), Room::new(4096, 4196));
        let mut frame = |size| room.frame((Avma(0x1000), size), &reader);
        let code = |size: usize| FoundFrame::Code(vec![0x90; size].into());
        assert_eq!(frame(4097), FoundFrame::Unknown, "not a part of it");
        assert_eq!(frame(4096), code(4096));
        assert_eq!(
            [101, 60, 60, u64::MAX].map(&mut frame),
            [FoundFrame::Unknown, code(60), FoundFrame::Unknown, FoundFrame::Unknown]
        );
        assert_eq!(room.left, 40);
    }
}
