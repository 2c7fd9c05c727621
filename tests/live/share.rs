//! Fractions, and how exactly a number of samples can tell them.

/// Standard deviations that a measured fraction may be off: 1 test in 1.7 million fails by chance, of the hundred or so
/// that a run makes.
const SIGMAS: f64 = 5.0;
/// How many samples tell as much as one independent one.
///
/// A profiler samples at equal distances, and a target takes turns between its leaves, so that a sample's leaf says
/// something about the next one's. Targets vary their calls at random between a tenth and nineteen tenths of the mean.
/// Simulated with calls of 0.1 to 10 sampling periods, the variance of the share is then 0.1 to 1.06 times that of as
/// many independent samples; with calls that vary by a quarter and in a cycle of 101 it is up to 490 times as large. A
/// busy machine, which runs a target in slices, is what the rest of this factor is for.
const SAMPLES_PER_INDEPENDENT: f64 = 2.0;
/// With fewer samples hardly any share is wrong.
const FEWEST: u64 = 100;
/// With fewer samples a promise is hardly ever broken.
const FEWEST_FOR_PROMISE: u64 = 50;

/// `part` of `whole`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Those that are meant.
    pub part: u64,
    /// All.
    pub whole: u64,
}

impl Share {
    /// As a fraction; NaN of nothing.
    pub fn fraction(self) -> f64 {
        as_f64(self.part) / as_f64(self.whole)
    }
}

/// Asserts that a share is what it should be, as exactly as half as many independent samples can tell: 5 of their
/// standard deviations, which is ± 0.056 for 3,000 samples of a share of 0.75.
///
/// # Panics
/// If it is not, or if there are too few samples to tell anything.
#[track_caller]
pub fn assert_share(what: &str, share: Share, expected: f64) {
    assert!(share.whole >= FEWEST, "{what}: {} samples are too few to tell a share", share.whole);
    let independent = as_f64(share.whole) / SAMPLES_PER_INDEPENDENT;
    let tolerance = SIGMAS * (expected * (1.0 - expected) / independent).sqrt();
    assert!(
        (share.fraction() - expected).abs() <= tolerance,
        "{what}: {} of {} is {:.4}, expected {expected} ± {tolerance:.4}",
        share.part,
        share.whole,
        share.fraction()
    );
}

/// Asserts that a promised fraction is reached. There is no tolerance: a promise is not a measurement. Of few samples
/// one may be missing.
///
/// # Panics
/// If it is not, or if there are too few samples to tell anything.
#[track_caller]
pub fn assert_at_least(what: &str, share: Share, promised: f64) {
    assert!(share.whole >= FEWEST_FOR_PROMISE, "{what}: {} are too few to tell a share", share.whole);
    let missing = as_f64(share.whole - share.part.min(share.whole));
    let allowed = ((1.0 - promised) * as_f64(share.whole)).max(1.0);
    assert!(
        missing <= allowed,
        "{what}: {} of {} is {:.4}, promised {promised}",
        share.part,
        share.whole,
        share.fraction()
    );
}

fn as_f64(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_held_against_its_sampling_error() {
        let of_1000 = |part| Share { part, whole: 1000 };
        // A standard deviation of 500 independent samples is 0.0194.
        assert_share("within 5 sigma", of_1000(846), 0.75);
        assert_share("within 5 sigma", of_1000(654), 0.75);
        assert!(std::panic::catch_unwind(|| assert_share("beyond", of_1000(847), 0.75)).is_err());
        assert!(std::panic::catch_unwind(|| assert_share("beyond", of_1000(653), 0.75)).is_err());
        assert!(std::panic::catch_unwind(|| assert_share("few", Share { part: 75, whole: 99 }, 0.75)).is_err());
    }

    #[test]
    fn a_promise_has_no_tolerance() {
        assert_at_least("exactly", Share { part: 995, whole: 1000 }, 0.995);
        assert_at_least("one of few", Share { part: 99, whole: 100 }, 0.995);
        assert!(std::panic::catch_unwind(|| assert_at_least("less", Share { part: 994, whole: 1000 }, 0.995)).is_err());
    }
}
