//! How much: samples and CPU time.

use std::ops::AddAssign;

/// Samples, and the CPU time that they stand for. In the order of the time: the frequency may have changed, and then more
/// samples may be less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount {
    /// The CPU time that they stand for, in nanoseconds.
    pub cpu_ns: u64,
    /// How many samples.
    pub samples: u64,
}

/// A value in the first and in the second of two profiles; of one profile alone in the first.
pub type Both = [Amount; 2];

impl AddAssign for Amount {
    fn add_assign(&mut self, more: Self) {
        self.samples = self.samples.saturating_add(more.samples);
        self.cpu_ns = self.cpu_ns.saturating_add(more.cpu_ns);
    }
}

/// Adds side by side.
pub(super) fn add_both(sum: &mut Both, more: Both) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}
