//! What a recording has seen of the known program.

use serde_json::Value;

/// With less something is wrong, or there is a reason for it.
pub(super) const LIMIT: f64 = 0.99;
/// The hot leaf's share of the leaves' time.
const KNOWN_SHARE: f64 = 0.75;
/// Standard deviations that a share may be off.
const SIGMAS: f64 = 5.0;
/// How many samples tell as much as one independent one: targets take turns between their leaves.
const SAMPLES_PER_INDEPENDENT: f64 = 2.0;
/// With fewer samples nothing can be told.
const FEWEST: u64 = 200;
/// What stands for generated code that nothing names.
const WITHOUT_NAME: &str = "[JIT code without a name]";

/// Parts of the names of the known program's functions, callers first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Truth {
    /// The chain that has three quarters of the time.
    pub(super) hot: &'static [&'static str],
    /// The chain that has the rest.
    pub(super) cold: &'static [&'static str],
}

/// What can be less than it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Too few samples to tell anything.
    Samples,
    /// Frames of generated code without a name.
    Named,
    /// Stacks that end early.
    Complete,
    /// Callers of the leaves.
    Chain,
    /// The hot leaf's share is not the known one.
    Share,
}

/// `part` of `whole`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) part: u64,
    pub(super) whole: u64,
}

impl Share {
    /// As a fraction; nothing of nothing.
    pub(super) fn fraction(self) -> Option<f64> {
        (self.whole > 0).then(|| self.part as f64 / self.whole as f64)
    }

    fn reaches(self, limit: f64) -> bool {
        self.fraction().is_some_and(|fraction| fraction >= limit)
    }
}

/// The figures of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Samples in the profile.
    pub(super) samples: u64,
    /// Frames of generated code with a name.
    pub(super) named: Share,
    /// Stacks that were walked to their end.
    pub(super) complete: Share,
    /// Samples with the whole chain down to a leaf, of those in a leaf or in code that nothing names.
    pub(super) chain: Share,
    /// Those in the hot leaf, of those in either.
    pub(super) hot: Share,
    /// What the account advises.
    pub(super) advice: Vec<String>,
}

impl Figures {
    /// Of folded stacks and an account.
    pub(super) fn of(folded: &str, account: &Value, truth: Truth) -> Self {
        let mut figures = Self::of_account(account);
        for line in folded.lines() {
            let Some((stack, count)) = line.rsplit_once(' ') else { continue };
            let Ok(count) = count.parse::<u64>() else { continue };
            figures.add(stack, count, truth);
        }
        figures
    }

    fn of_account(account: &Value) -> Self {
        let count = |pointer: &str| account.pointer(pointer).map_or(0, sum);
        let (named, complete) = (count("/jit/named"), count("/stacks/complete"));
        let advice = account["advice"].as_array().into_iter().flatten();
        Self {
            samples: count("/samples/delivered"),
            named: Share { part: named, whole: named + count("/jit/unnamed") },
            complete: Share { part: complete, whole: complete + count("/stacks/cut") },
            advice: advice.filter_map(|line| line["advice"].as_str().map(str::to_owned)).collect(),
            ..Self::default()
        }
    }

    fn add(&mut self, stack: &str, count: u64, truth: Truth) {
        let has = |name: &str| stack.split(';').any(|frame| frame.contains(name));
        let leaf = |chain: &[&'static str]| chain.last().is_some_and(|leaf| has(leaf));
        let (hot, cold) = (leaf(truth.hot), leaf(truth.cold));
        if hot || cold {
            self.hot.whole += count;
            self.hot.part += if hot { count } else { 0 };
        }
        if hot || cold || has(WITHOUT_NAME) {
            self.chain.whole += count;
            let whole = in_order(stack, if hot { truth.hot } else { truth.cold });
            self.chain.part += if whole { count } else { 0 };
        }
    }

    /// Whether nothing can be told.
    pub(super) fn are_too_few(&self) -> bool {
        self.samples < FEWEST
    }

    /// What is not as it should be.
    pub(super) fn faults(&self) -> Vec<Fault> {
        if self.are_too_few() {
            return vec![Fault::Samples];
        }
        let mut faults = Vec::new();
        let shares = [(self.named, Fault::Named), (self.complete, Fault::Complete), (self.chain, Fault::Chain)];
        faults.extend(shares.iter().filter(|(share, _)| !share.reaches(LIMIT)).map(|(_, fault)| *fault));
        if !self.is_share_right() {
            faults.push(Fault::Share);
        }
        faults
    }

    /// Whether the hot leaf's share is the known one, as exactly as so many samples can tell.
    fn is_share_right(&self) -> bool {
        let samples = self.hot.whole as f64 / SAMPLES_PER_INDEPENDENT;
        let tolerance = SIGMAS * (KNOWN_SHARE * (1.0 - KNOWN_SHARE) / samples).sqrt();
        self.hot.fraction().is_some_and(|share| (share - KNOWN_SHARE).abs() <= tolerance)
    }

    /// Whether the advice is what it should be: there if it is due, and only then.
    pub(super) fn is_advice_right(&self, due: Option<&str>) -> bool {
        match due {
            Some(text) => self.advice.len() == 1 && self.advice[0].contains(text),
            None => self.advice.is_empty(),
        }
    }
}

/// A number, or the sum of an object's.
fn sum(value: &Value) -> u64 {
    let parts = value.as_object().into_iter().flat_map(|object| object.values());
    value.as_u64().unwrap_or_else(|| parts.filter_map(Value::as_u64).sum())
}

/// Whether frames with these parts of names follow each other, others between them or not.
fn in_order(stack: &str, names: &[&str]) -> bool {
    let mut frames = stack.split(';');
    names.iter().all(|name| frames.any(|frame| frame.contains(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUTH: Truth = Truth { hot: &["outer", "middle", "hot"], cold: &["outer", "side", "cold"] };

    fn figures(folded: &str) -> Figures {
        let account = serde_json::json!({
            "samples": { "delivered": 400 },
            "jit": { "named": { "jitdump": 300, "peeked": 90 }, "unnamed": { "not announced": 10 } },
            "stacks": { "complete": 396, "cut": { "no frame pointer": 3, "truncated": 1 } },
            "advice": [{ "advice": "the code of X is not announced: start it with `x --names`." }],
        });
        Figures::of(folded, &account, TRUTH)
    }

    #[test]
    fn chains_count_from_the_outermost_caller_to_the_leaf() {
        let figures = figures(
            "x;main;*outer;middle;hot 300\nx;main;outer;tramp;side;cold;read 90\nx;hot 5\nx;middle;outer;hot 3\n\
             x;[JIT code without a name] 2\nx;elsewhere 7\nbroken\n",
        );
        assert_eq!(figures.chain, Share { part: 390, whole: 400 });
        assert_eq!(figures.hot, Share { part: 308, whole: 398 });
        assert_eq!(
            (figures.named, figures.complete),
            (Share { part: 390, whole: 400 }, Share { part: 396, whole: 400 })
        );
        assert_eq!(figures.faults(), [Fault::Named, Fault::Chain]);
    }

    #[test]
    fn a_share_that_is_off_or_missing_is_a_fault() {
        let of = |hot: u64, cold: u64| {
            let all = Share { part: 1, whole: 1 };
            let hot = Share { part: hot, whole: hot + cold };
            Figures { samples: 1000, named: all, complete: all, chain: all, hot, advice: Vec::new() }.faults()
        };
        assert!(of(750, 250).is_empty());
        assert_eq!(of(950, 50), [Fault::Share]);
        assert_eq!(of(0, 0), [Fault::Share]);
    }

    #[test]
    fn advice_is_right_when_it_is_due_and_says_the_flag() {
        let figures = figures("");
        assert!(figures.is_advice_right(Some("x --names")));
        assert!(!figures.is_advice_right(Some("y --names")) && !figures.is_advice_right(None));
        assert!(Figures::default().is_advice_right(None) && !Figures::default().is_advice_right(Some("x")));
    }
}
