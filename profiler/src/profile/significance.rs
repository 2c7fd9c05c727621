//! How sure a difference between two counts of samples is.
//!
//! A sample hits a function or does not, so what is counted is binomial. Given `n = a + b` samples of a function in two
//! profiles, and no change, each of them is from the second with the probability `p` = the second's part of all samples
//! (or of the recorded time). The confidence is 1 − the probability that chance alone makes a difference at least so
//! large, in either direction.
//!
//! * up to [`EXACT`] samples: the exact binomial sum, twice the smaller tail;
//! * above: the normal approximation, `z = (b − n p) / √(n p (1 − p))`; for shares of all samples with the variance of
//!   two proportions, which counts for functions that take most of a profile.
//!
//! Samples of one thread follow each other, and so are not quite independent: a burst counts as many samples. The
//! confidence says nothing about whether the load was the same.

/// Samples up to which sums are exact.
const EXACT: u64 = 200;

/// Two counts and what they are counted out of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) a: u64,
    pub(super) b: u64,
    /// All samples of both, or how many samples one busy CPU would have given in both.
    pub(super) out_of_a: f64,
    pub(super) out_of_b: f64,
    /// Whether the counts are parts of `out_of`.
    pub(super) is_share: bool,
}

impl Counts {
    /// The probability of a difference at least so large if nothing changed.
    pub(super) fn chance(&self) -> f64 {
        let all = self.out_of_a + self.out_of_b;
        let n = self.a.saturating_add(self.b);
        if !(self.out_of_a > 0.0 && self.out_of_b > 0.0 && all.is_finite()) || n == 0 {
            return 1.0;
        }
        let p = self.out_of_b / all;
        if n <= EXACT {
            return (2.0 * at_most(self.b, n, p).min(at_most(self.a, n, 1.0 - p))).min(1.0);
        }
        let (a, b, n) = (float(self.a), float(self.b), float(n));
        let share = if self.is_share { n / all } else { 0.0 };
        let deviation = (n * p * (1.0 - p) * (1.0 - share)).sqrt();
        let z = if deviation > 0.0 { (b * (1.0 - p) - a * p).abs() / deviation } else { 0.0 };
        libm::erfc(z / std::f64::consts::SQRT_2)
    }
}

/// The probability of at most `k` hits in `n` throws.
fn at_most(k: u64, n: u64, p: f64) -> f64 {
    let factorial = |k: u64| libm::lgamma(float(k) + 1.0);
    let term = |k: u64| {
        let log = factorial(n) - factorial(k) - factorial(n - k) + float(k) * p.ln() + float(n - k) * (1.0 - p).ln();
        log.exp()
    };
    (0..=k.min(n)).map(term).sum::<f64>().min(1.0)
}

#[expect(clippy::cast_precision_loss, reason = "statistics of counts; more than 2^53 samples need 50,000 CPU years")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chance(a: u64, b: u64, out_of_a: f64, out_of_b: f64) -> f64 {
        Counts { a, b, out_of_a, out_of_b, is_share: true }.chance()
    }

    fn near(left: f64, right: f64) {
        assert!((left - right).abs() < 1e-3 * right.max(1e-3), "{left} is not {right}");
    }

    #[test]
    fn small_counts_are_exact() {
        // Fair coins: no head in 5 throws, 2 or fewer in 10 (both tails).
        near(chance(5, 0, 100.0, 100.0), 2.0 / 32.0);
        near(chance(8, 2, 1000.0, 1000.0), 2.0 * 56.0 / 1024.0);
        near(chance(1, 0, 10.0, 90.0), 0.2);
        assert!((chance(50, 50, 100.0, 100.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn large_counts_follow_the_two_proportion_test() {
        // 30 % of 1000 and 35 % of 1000: z = 0.05 / √(0.325 · 0.675 · 2 / 1000) = 2.3870, p = 0.01699.
        near(chance(300, 350, 1000.0, 1000.0), 0.016_99);
        // Poisson rates, 300 and 350 in equal times: z = 50 / √650 = 1.9612, p = 0.04986.
        near(Counts { a: 300, b: 350, out_of_a: 5e5, out_of_b: 5e5, is_share: false }.chance(), 0.049_86);
        assert!(chance(1000, 0, 2000.0, 2000.0) < 1e-99);
    }

    #[test]
    fn nothing_to_compare_is_no_difference() {
        for (a, b, out_of_a, out_of_b) in [(0, 0, 10.0, 10.0), (3, 4, 0.0, 10.0), (3, 4, f64::NAN, 1.0)] {
            assert!((chance(a, b, out_of_a, out_of_b) - 1.0).abs() < 1e-9);
        }
        // All samples of both are in it: it cannot have changed its share.
        assert!((chance(1000, 1000, 1000.0, 1000.0) - 1.0).abs() < 1e-9);
        assert!((chance(u64::MAX, u64::MAX, 1e19, 1e19)).is_finite());
    }
}
