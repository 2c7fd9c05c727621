//! How long new code waits for its rows.

/// Delays are told apart up to so many milliseconds.
const DELAY_STEPS: usize = 2000;

/// How long functions waited from their announcement until their rows were in the tables.
#[derive(Debug)]
pub(super) struct Delays {
    /// By milliseconds; the last one is for all that are longer.
    counts: Vec<u64>,
    pub(super) longest_ns: u64,
}

impl Default for Delays {
    fn default() -> Self {
        Self { counts: vec![0; DELAY_STEPS], longest_ns: 0 }
    }
}

impl Delays {
    pub(super) fn add(&mut self, delay_ns: u64) {
        let step = usize::try_from(delay_ns / 1_000_000).unwrap_or(usize::MAX).min(DELAY_STEPS - 1);
        if let Some(count) = self.counts.get_mut(step) {
            *count += 1;
        }
        self.longest_ns = self.longest_ns.max(delay_ns);
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The median in whole milliseconds.
    pub(super) fn median_ms(&self) -> u64 {
        let half = self.count().div_ceil(2);
        let mut seen = 0;
        let step = self.counts.iter().position(|count| {
            seen += count;
            seen >= half
        });
        step.and_then(|step| u64::try_from(step).ok()).unwrap_or(0)
    }
}
