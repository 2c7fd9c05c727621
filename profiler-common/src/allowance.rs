//! So much in a window of time, and no more: what the BPF program hands over of one kind.

/// How much of it is used. Writer and reader: the BPF program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Allowance {
    window: u64,
    used: u64,
}

impl Allowance {
    /// Takes one of so many at this time of CLOCK_MONOTONIC, in windows of so many nanoseconds; false if there is none left.
    #[inline(always)]
    pub fn take(&mut self, now_ns: u64, (most, window_ns): (u64, u64)) -> bool {
        let window = now_ns / window_ns;
        if self.window != window {
            self.window = window;
            self.used = 0;
        }
        self.used = self.used.wrapping_add(1);
        self.used <= most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_is_used_up_and_comes_back_with_the_next_window() {
        let mut allowance = Allowance::default();
        for _ in 0..3 {
            assert!(allowance.take(500, (3, 100)));
        }
        assert!(!allowance.take(599, (3, 100)));
        assert!(allowance.take(600, (3, 100)));
    }
}
