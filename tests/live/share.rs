//! Fractions, and how exactly a number of samples can tell them.

use crate::chance;

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
/// With fewer samples nothing is hardly ever broken.
const FEWEST_FOR_LIMIT: u64 = 50;
/// With fewer samples a promise of 99.5 % would be kept by 98 %. Two seconds of CPU time are 1,994 samples, less those that fall
/// on time that a machine with others on it has not got.
const FEWEST_FOR_PROMISE: u64 = 1800;
/// What is below is no promise of jitprof's, but how much of what can be explained may be missing, of which a slow machine has
/// more.
const LEAST_PROMISE: f64 = 0.98;
/// How often a promise that is kept may fail by chance.
const ALPHA: f64 = 1e-5;

/// `part` of `whole`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Those that are meant.
    pub part: u64,
    /// All.
    pub whole: u64,
}

/// Several of them as one.
impl std::iter::Sum for Share {
    fn sum<I: Iterator<Item = Self>>(shares: I) -> Self {
        let nothing = Self { part: 0, whole: 0 };
        shares.fold(nothing, |sum, share| Self { part: sum.part + share.part, whole: sum.whole + share.whole })
    }
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
    chance::assert_enough(what, share.whole, FEWEST);
    let tolerance = tolerance(expected, as_f64(share.whole));
    if (share.fraction() - expected).abs() > tolerance {
        let Share { part, whole } = share;
        let fraction = share.fraction();
        chance::fail(&format!("{what}: {part} of {whole} is {fraction:.4}, expected {expected} ± {tolerance:.4}"));
    }
}

/// How far off a share of so many samples may be.
fn tolerance(expected: f64, samples: f64) -> f64 {
    SIGMAS * (expected * (1.0 - expected) / (samples / SAMPLES_PER_INDEPENDENT)).sqrt()
}

/// A share of samples of different weights, such as CPU time at changing frequencies.
#[derive(Clone, Copy, Debug, Default)]
pub struct WeightedShare {
    part: f64,
    whole: f64,
    squares: f64,
}

impl WeightedShare {
    /// Adds samples that stand for `weight` each; all three in one unit.
    pub fn add(&mut self, part: u64, whole: u64, weight: f64) {
        self.part += as_f64(part);
        self.whole += as_f64(whole);
        self.squares += as_f64(whole) * weight;
    }

    /// Asserts that it is what it should be, like [`assert_share`]. Samples of which some weigh more tell as much as fewer
    /// of equal weight: `(sum of weights)² / (sum of squared weights)`.
    ///
    /// # Panics
    /// Like [`assert_share`].
    #[track_caller]
    pub fn assert(&self, what: &str, expected: f64) {
        let samples = self.whole * self.whole / self.squares;
        if samples < as_f64(FEWEST) || samples.is_nan() {
            chance::fail(&format!("{what}: as much as {samples:.0} samples is too few to tell a share"));
        }
        let (fraction, tolerance) = (self.part / self.whole, tolerance(expected, samples));
        if (fraction - expected).abs() > tolerance {
            chance::fail(&format!(
                "{what}: {fraction:.4} by as much as {samples:.0} samples, expected {expected} ± {tolerance:.4}"
            ));
        }
    }
}

/// Asserts that a number of samples is what it should be: within five standard deviations of as many independent ones.
///
/// A profiler counts time at equal distances, and the number varies less than that for a target that runs all the time.
/// One that runs in slices begins and ends each of them anywhere between two samples.
///
/// # Panics
/// If it is not.
#[track_caller]
pub fn assert_count(what: &str, count: u64, expected: f64) {
    let tolerance = SIGMAS * expected.sqrt();
    if (as_f64(count) - expected).abs() > tolerance {
        chance::fail(&format!("{what}: {count}, expected {expected:.0} ± {tolerance:.0}"));
    }
}

/// Asserts that a promised fraction is reached, as far as so many samples can tell: it fails if at the promise more
/// misses would happen in one of 100,000 runs. Of 2,000 samples that is 26 for a promise of 99.5 %, of 20,000 it is 146. The sum
/// over all tests is held against tighter ceilings, by whoever runs them all (`promises.txt`). A fraction below 98 % is a limit
/// of what can be explained, and may be told of fewer samples.
///
/// # Panics
/// If it is not, or if there are too few samples to tell anything.
#[track_caller]
pub fn assert_at_least(what: &str, share: Share, promised: f64) {
    let fewest = if promised >= LEAST_PROMISE { FEWEST_FOR_PROMISE } else { FEWEST_FOR_LIMIT };
    hold(what, share, promised, fewest);
}

/// Like [`assert_at_least`] where there can only be some hundred samples, of which less can be told: on an emulated machine,
/// or of code in which a program is seldom.
///
/// # Panics
/// Like there.
#[track_caller]
pub fn assert_at_least_of_few(what: &str, share: Share, promised: f64) {
    hold(what, share, promised, FEWEST_FOR_LIMIT);
}

#[track_caller]
fn hold(what: &str, share: Share, promised: f64, fewest: u64) {
    if promised >= LEAST_PROMISE {
        chance::promise(what, share.part, share.whole);
    }
    chance::assert_enough(what, share.whole, fewest);
    let missing = share.whole - share.part.min(share.whole);
    let allowed = most_misses(share.whole, 1.0 - promised);
    if missing > allowed {
        let Share { part, whole } = share;
        let fraction = share.fraction();
        chance::fail(&format!(
            "{what}: {part} of {whole} is {fraction:.4}, promised {promised}, {allowed} may be missing"
        ));
    }
}

/// The most of so many samples that may be missing if each of them is missing with this probability: more are with a
/// probability below [`ALPHA`].
fn most_misses(samples: u64, probability: f64) -> u64 {
    if probability <= 0.0 {
        return 0;
    }
    // Binomial, term by term, by logarithms: the first one is too small for a float if there are many samples.
    let count = as_f64(samples);
    let odds = (probability / (1.0 - probability)).ln();
    let mut term = count * (1.0 - probability).ln();
    let mut below = term.exp();
    let mut misses = 0;
    while 1.0 - below >= ALPHA && misses < samples {
        let so_far = as_f64(misses);
        term += ((count - so_far) / (so_far + 1.0)).ln() + odds;
        below += term.exp();
        misses += 1;
    }
    misses
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
    fn samples_of_different_weights_tell_less() {
        let of = |weights: [f64; 2]| {
            let mut share = WeightedShare::default();
            for weight in weights {
                share.add(417, 500, weight);
            }
            share
        };
        // 0.834 of 1000 seconds by 1000 samples, by 2000, and by 750 that tell as much as 667.
        of([1.0, 1.0]).assert("within", 0.75);
        assert!(std::panic::catch_unwind(|| of([0.5, 0.5]).assert("beyond", 0.75)).is_err());
        of([1.0, 2.0]).assert("within", 0.75);
        assert!(std::panic::catch_unwind(|| of([10.0, 20.0]).assert("few", 0.75)).is_err());
    }

    #[test]
    fn a_number_of_samples_is_held_against_its_own_error() {
        assert_count("within", 900, 1000.0);
        assert_count("within", 1158, 1000.0);
        assert!(std::panic::catch_unwind(|| assert_count("beyond", 841, 1000.0)).is_err());
    }

    #[test]
    fn a_promise_is_broken_by_more_misses_than_chance_makes() {
        // Poisson with a mean of 10: P(X > 26) is 0.7e-5, P(X > 25) 1.8e-5.
        assert_eq!(most_misses(200_000, 10.0 / 200_000.0), 26);
        assert_eq!((most_misses(100, 0.0), most_misses(0, 0.5), most_misses(3, 0.9999)), (0, 0, 3));
        // 20,000 of 4,000,000: a normal distribution with a deviation of 141, of which 4.27.
        assert!((20_590..20_620).contains(&most_misses(4_000_000, 0.005)), "{}", most_misses(4_000_000, 0.005));
        let of_2000 = |missing| Share { part: 2000 - missing, whole: 2000 };
        let allowed = most_misses(2000, 0.005);
        assert_at_least("as many as chance makes", of_2000(allowed), 0.995);
        assert!(std::panic::catch_unwind(|| assert_at_least("more", of_2000(allowed + 1), 0.995)).is_err());
        let few = |count| Share { part: count, whole: count };
        assert!(std::panic::catch_unwind(|| assert_at_least("few", few(1799), 0.995)).is_err());
        assert!(std::panic::catch_unwind(|| assert_at_least("few", few(49), 0.9)).is_err());
        assert_at_least("enough for what is no promise", few(50), 0.9);
        assert_at_least_of_few("enough where there can be no more", few(50), 0.995);
        let lost = Share { part: 380, whole: 400 };
        assert!(std::panic::catch_unwind(|| assert_at_least_of_few("of few", lost, 0.995)).is_err());
        let (one, other) = (Share { part: 1, whole: 2 }, Share { part: 3, whole: 5 });
        assert_eq!([one, other].into_iter().sum::<Share>(), Share { part: 4, whole: 7 });
    }
}
