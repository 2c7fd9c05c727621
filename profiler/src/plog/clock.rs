//! Ticks to nanoseconds.

const NS_PER_SECOND: u64 = 1_000_000_000;

/// The time base of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    ticks_per_second: u64,
    /// Nanoseconds of a tick, where that is a whole number: spares a division of 128 bits for each time.
    whole_ns: Option<u64>,
}

impl Clock {
    /// A clock of so many ticks a second; 0 is taken for nanoseconds.
    pub fn new(ticks_per_second: u64) -> Self {
        let ticks_per_second = if ticks_per_second == 0 { NS_PER_SECOND } else { ticks_per_second };
        let whole = NS_PER_SECOND.is_multiple_of(ticks_per_second);
        Self { ticks_per_second, whole_ns: whole.then_some(NS_PER_SECOND / ticks_per_second) }
    }

    /// `ticks · 10⁹ / ticks per second`, rounded down; `u64::MAX` beyond that.
    pub fn ns(self, ticks: u64) -> u64 {
        match self.whole_ns {
            Some(ns) => ticks.saturating_mul(ns),
            None => {
                let ns = u128::from(ticks) * u128::from(NS_PER_SECOND) / u128::from(self.ticks_per_second);
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_nanoseconds_without_overflow() {
        assert_eq!(Clock::new(1_000_000).ns(7), 7000);
        assert_eq!(Clock::new(3_000_000_000).ns(3_000_000_001), 1_000_000_000);
        assert_eq!(Clock::new(3).ns(u64::MAX), u64::MAX);
        assert_eq!(Clock::new(1).ns(u64::MAX), u64::MAX);
        assert_eq!(Clock::new(u64::MAX).ns(u64::MAX), NS_PER_SECOND);
        assert_eq!(Clock::new(0).ns(5), 5);
    }
}
