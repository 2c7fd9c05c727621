//! What changed between two profiles, by function.

use std::time::Duration;

use super::amount::{Amount, Both};
use super::function::FunctionRef;
use super::matching::Matching;
use super::significance::{Counts, float};
use super::table::Profile;
use super::totals::FrameTotals;

/// What the two sides are measured in, so that they can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Normalize {
    /// Parts of all CPU time of each side: what changed in how the time is spent.
    #[default]
    Total,
    /// CPUs: CPU time by recorded time. What changed in what it costs.
    Duration,
    /// CPU seconds as they are.
    None,
}

/// One of the two profiles as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// What each side has in all.
    pub all: Amount,
    /// How long was recorded.
    pub duration: Duration,
}

/// What a function used in both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change<'p> {
    /// The function that is compared.
    pub function: FunctionRef<'p>,
    /// What the function itself used.
    pub own: Both,
    /// What it and what it called used.
    pub total: Both,
    /// How sure it is that `own` changed, from 0 to 1, over all functions that were compared (Bonferroni).
    pub own_confidence: f64,
    /// The same confidence of `total`.
    pub total_confidence: f64,
}

/// Two profiles beside each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Diff<'p> {
    /// The first and the second.
    pub sides: [Side; 2],
    /// How they are compared.
    pub normalize: Normalize,
    /// Which functions of the sides are one.
    pub matching: Matching<'p>,
    /// The functions whose own use changed most first, in the unit of `normalize`.
    pub changes: Vec<Change<'p>>,
}

impl<'p> Diff<'p> {
    /// Compares `b` with `a`.
    pub fn new(a: &'p Profile, b: &'p Profile, normalize: Normalize) -> Self {
        let matching = Matching::of([a, b]);
        let totals = FrameTotals::of([Some(a), Some(b)], &matching);
        let durations = [a, b].map(|profile| profile.meta().duration);
        let [of_a, of_b] = totals.all();
        let sides = [Side { all: of_a, duration: durations[0] }, Side { all: of_b, duration: durations[1] }];
        let changes = totals.iter().map(|(&function, used)| Change {
            function,
            own: used.own,
            total: used.total,
            own_confidence: 0.0,
            total_confidence: 0.0,
        });
        let changes = changes.collect();
        let mut diff = Self { sides, normalize, matching, changes };
        diff.judge();
        diff
    }

    /// An amount of one side (0 or 1) in the unit of the comparison: a part of 1, CPUs, or seconds.
    pub fn value(&self, amount: Amount, side: usize) -> f64 {
        let Side { all, duration } = self.sides[side];
        let unit = match self.normalize {
            Normalize::Total => float(all.cpu_ns),
            Normalize::Duration => duration.as_secs_f64() * 1e9,
            Normalize::None => 1e9,
        };
        if unit > 0.0 { float(amount.cpu_ns) / unit } else { 0.0 }
    }

    /// By how much the second is more than the first.
    pub fn change(&self, both: Both) -> f64 {
        self.value(both[1], 1) - self.value(both[0], 0)
    }

    /// How many samples of the second one sample of the first stands for.
    pub fn factor(&self) -> f64 {
        let [a, b] = self.sides;
        let weight = |side: Side| float(side.all.cpu_ns) / float(side.all.samples);
        let factor = match self.normalize {
            Normalize::Total => float(b.all.samples) / float(a.all.samples),
            Normalize::Duration => weight(a) / weight(b) * (b.duration.as_secs_f64() / a.duration.as_secs_f64()),
            Normalize::None => weight(a) / weight(b),
        };
        if factor.is_finite() { factor } else { 1.0 }
    }

    fn counts(&self, both: Both) -> Counts {
        let is_share = self.normalize == Normalize::Total;
        let out_of = |side: Side| match self.normalize {
            Normalize::Total => float(side.all.samples),
            // Samples that one busy CPU would have given in the time; without normalising, both had the same.
            Normalize::Duration => side.duration.as_secs_f64() * 1e9 * float(side.all.samples) / float(side.all.cpu_ns),
            Normalize::None => 1e9 * float(side.all.samples) / float(side.all.cpu_ns),
        };
        let [out_of_a, out_of_b] = self.sides.map(out_of);
        Counts { a: both[0].samples, b: both[1].samples, out_of_a, out_of_b, is_share }
    }

    fn judge(&mut self) {
        let mut changes = std::mem::take(&mut self.changes);
        let compared = changes.len().max(1);
        #[expect(clippy::cast_precision_loss, reason = "a number of functions")]
        let confidence = |both| 1.0 - (self.counts(both).chance() * compared as f64).min(1.0);
        for change in &mut changes {
            change.own_confidence = confidence(change.own);
            change.total_confidence = confidence(change.total);
        }
        let sizes = |change: &Change<'_>| (self.change(change.own).abs(), self.change(change.total).abs());
        changes.sort_by(|one, other| {
            let ((own, total), (other_own, other_total)) = (sizes(one), sizes(other));
            let by_size = other_own.total_cmp(&own).then(other_total.total_cmp(&total));
            by_size.then(one.function.cmp(&other.function))
        });
        self.changes = changes;
    }
}
