//! Which functions use the most.

use super::amount::Amount;
use super::function::{ByFunction, FunctionRef};
use super::table::Profile;
use super::totals::FrameTotals;

/// What a function used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopRow<'p> {
    /// The function that the amounts are of.
    pub function: FunctionRef<'p>,
    /// What the function itself used.
    pub own: Amount,
    /// In it and in what it called; a function that calls itself counts once.
    pub total: Amount,
}

/// Functions by what they used, the one with the most of its own first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top<'p> {
    /// One for each function.
    pub rows: Vec<TopRow<'p>>,
    /// All samples, those without a frame included.
    pub all: Amount,
}

impl<'p> Top<'p> {
    /// What each function of a profile used. The same samples give the same table, in whatever order they were added.
    pub fn of(profile: &'p Profile) -> Self {
        let totals = FrameTotals::of([Some(profile), None], &ByFunction);
        let mut rows: Vec<_> = totals
            .iter()
            .map(|(&function, used)| TopRow { function, own: used.own[0], total: used.total[0] })
            .collect();
        rows.sort_unstable_by(|one, other| {
            (other.own, other.total, &one.function).cmp(&(one.own, one.total, &other.function))
        });
        Self { rows, all: totals.all()[0] }
    }
}
