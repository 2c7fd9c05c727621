//! The promises of all live tests together.
//!
//! A single test allows as many misses as chance makes of so few samples, which is several times as many as jitprof has. The
//! sum over all tests tells more: `tests/live/promises.txt` has a ceiling for each target, measured, and all misses of a run
//! are held against what the ceilings come to. To raise one is an edit that somebody sees.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Standard deviations above which a sum of misses is no chance: 1 run in 10,000.
const SIGMAS: f64 = 3.72;
/// Misses come in bursts: a stall of some milliseconds is several of them. So many count as one.
const BURST: f64 = 4.0;
/// How many promises are shown that contribute most.
const SHOWN: usize = 5;

/// What a test has counted of a promise.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Promise {
    /// What is promised, in the test's words.
    pub(super) what: String,
    /// How many kept it, of how many.
    pub(super) part: u64,
    pub(super) whole: u64,
}

impl Promise {
    pub(super) fn misses(&self) -> u64 {
        self.whole.saturating_sub(self.part)
    }
}

/// What the harness notes (`tests/live/chance.rs`): `part TAB whole TAB what`, a line each.
pub(super) fn noted(text: &str) -> Vec<Promise> {
    let promise = |line: &str| {
        let mut words = line.splitn(3, '\t');
        let (part, whole) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Promise { what: words.next()?.to_owned(), part, whole })
    };
    text.lines().filter_map(promise).collect()
}

/// The most that may be missing of the promises of each target, as a fraction, by the beginning of its tests' paths.
#[derive(Debug)]
pub(super) struct Ceilings(BTreeMap<String, f64>);

impl Ceilings {
    pub(super) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(&text).with_context(|| file.display().to_string())
    }

    /// Lines such as `0.05 %  node::`; `#` begins a remark.
    fn parse(text: &str) -> Result<Self> {
        let mut ceilings = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let words = line.split_once('%').and_then(|(percent, tests)| {
                let (percent, tests) = (percent.trim().parse::<f64>().ok()?, tests.trim());
                ((0.0..=100.0).contains(&percent) && !tests.is_empty()).then_some((percent, tests))
            });
            let Some((percent, tests)) = words else { bail!("line {}: not `PERCENT %  TESTS`: {line}", index + 1) };
            if ceilings.insert(tests.to_owned(), percent / 100.0).is_some() {
                bail!("line {}: a second ceiling for the same tests: {line}", index + 1);
            }
        }
        Ok(Self(ceilings))
    }

    /// The line of a test, and its ceiling: the one whose beginning of a path is the longest.
    fn of(&self, test: &str) -> Option<(&str, f64)> {
        let of_it = self.0.iter().filter(|(tests, _)| test.starts_with(tests.as_str()));
        of_it.max_by_key(|(tests, _)| tests.len()).map(|(tests, ceiling)| (tests.as_str(), *ceiling))
    }

    /// Holds what tests have counted against the ceilings: each line by itself, so that none is paid for by another's
    /// samples, and all together. What unsteady tests had counted when they failed is `apart`: they are named for it, and it
    /// counts among all. `names` are those of all tests there are. Returns what it came to in words.
    ///
    /// # Errors
    /// There are too many misses, a promise without a ceiling, or a ceiling whose tests have all run and promised nothing.
    pub(super) fn hold(
        &self,
        kept: &[(&str, Vec<&Promise>)],
        apart: &[(&str, &Promise)],
        names: &[String],
    ) -> Result<String> {
        let mut lines: BTreeMap<&str, Sum> = BTreeMap::new();
        for (test, promises) in kept {
            let Some((line, ceiling)) = self.of(test) else {
                match promises.first() {
                    Some(Promise { what, .. }) => bail!("no ceiling in promises.txt: {test}: {what}"),
                    None => continue,
                }
            };
            let sum = lines.entry(line).or_default();
            sum.tests += 1;
            promises.iter().for_each(|promise| sum.add(test, promise, ceiling));
        }
        let mut all = Sum::default();
        for (line, sum) in lines {
            let its = names.iter().filter(|name| self.of(name).is_some_and(|(its, _)| its == line));
            if sum.samples == 0 && sum.tests == its.count() {
                bail!("promises.txt has a ceiling of {line}, and its tests have promised nothing");
            }
            sum.hold(line)?;
            all.join(sum);
        }
        for (test, promise) in apart {
            all.add(test, promise, self.of(test).map_or(0.0, |(_, ceiling)| ceiling));
        }
        all.hold("all tests together")
    }
}

/// What some tests have promised.
#[derive(Default)]
struct Sum {
    tests: usize,
    misses: u64,
    samples: u64,
    /// How many misses their ceilings come to.
    expected: f64,
    /// By how much each is above its ceiling.
    excess: Vec<(f64, String)>,
}

impl Sum {
    fn add(&mut self, test: &str, promise: &Promise, ceiling: f64) {
        let (what, missing, whole) = (&promise.what, promise.misses(), promise.whole);
        let allowed = ceiling * as_f64(whole);
        self.misses += missing;
        self.samples += whole;
        self.expected += allowed;
        self.excess.push((as_f64(missing) - allowed, format!("{test}: {what}: {missing} of {whole}")));
    }

    fn join(&mut self, other: Self) {
        self.misses += other.misses;
        self.samples += other.samples;
        self.expected += other.expected;
        self.excess.extend(other.excess);
    }

    fn hold(&self, whose: &str) -> Result<String> {
        let most = most(self.expected);
        let sum = format!("{} of {} promised missing, {most:.0} allowed", self.misses, self.samples);
        if as_f64(self.misses) > most {
            let mut excess: Vec<&(f64, String)> = self.excess.iter().collect();
            excess.sort_by(|one, other| other.0.total_cmp(&one.0));
            let largest: Vec<&str> = excess.into_iter().take(SHOWN).map(|(_, line)| line.as_str()).collect();
            bail!("{whose}: {sum}; the most in\n{}", largest.join("\n"));
        }
        Ok(sum)
    }
}

fn as_f64(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

/// The most misses that chance makes where so many are expected: of a Poisson distribution, in bursts.
fn most(expected: f64) -> f64 {
    let bursts = expected / BURST;
    BURST * (bursts + SIGMAS * bursts.sqrt() + (SIGMAS * SIGMAS - 1.0) / 6.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promise(what: &str, missing: u64, whole: u64) -> Promise {
        Promise { what: what.to_owned(), part: whole - missing, whole }
    }

    #[test]
    fn what_the_harness_notes_is_read() {
        assert_eq!(noted("995\t1000\tcomplete stacks\nx\ty\n\n"), [promise("complete stacks", 5, 1000)]);
    }

    #[test]
    fn the_sum_is_held_against_the_ceilings() {
        let ceilings = Ceilings::parse("# measured\n0 %  a::\n0.1 %  a::b\n").unwrap();
        let hold = |missing: u64| {
            let (stacks, names) = (promise("complete stacks", missing, 40_000), promise("named frames", 0, 9000));
            ceilings.hold(&[("a::b", vec![&stacks]), ("a::name", vec![&names])], &[], &[])
        };
        // 40 are expected, in 10 bursts of 4: a deviation of 12.6, 3.72 of them, and 9.
        assert_eq!(hold(95).unwrap(), "95 of 49000 promised missing, 96 allowed");
        let error = hold(97).unwrap_err().to_string();
        assert!(error.starts_with("a::b: 97 of 40000 promised missing"), "{error}");
        assert!(error.ends_with("the most in\na::b: complete stacks: 97 of 40000"), "{error}");
    }

    #[test]
    fn no_target_is_paid_for_by_another_ones_samples() {
        let ceilings = Ceilings::parse("0.1 %  many::\n0.1 %  few::\n").unwrap();
        let (many, few) = (promise("names", 0, 1_000_000), promise("names", 60, 2000));
        let kept = [("many::a", vec![&many]), ("few::a", vec![&few])];
        let error = ceilings.hold(&kept, &[], &[]).unwrap_err().to_string();
        assert!(error.starts_with("few::: 60 of 2000 promised missing, "), "{error}");
        // What an unsteady test had when it failed counts among all.
        let of_unsteady = |few| ceilings.hold(&kept[..1], &[("few::a", few)], &[]);
        assert!(of_unsteady(&few).unwrap().starts_with("60 of 1002000"));
        let error = of_unsteady(&promise("names", 2000, 2000)).unwrap_err().to_string();
        assert!(error.starts_with("all tests together: 2000 of 1002000"), "{error}");
    }

    #[test]
    fn all_together_are_held_against_what_their_ceilings_come_to() {
        let text: String = (0..50).map(|line| format!("0.1 %  t{line:02}::\n")).collect();
        let ceilings = Ceilings::parse(&text).unwrap();
        // 2 are expected of each, and each may have 21.
        let (kept, names) = (promise("names", 10, 2000), (0..50).map(|line| format!("t{line:02}::a")));
        let names: Vec<String> = names.collect();
        let kept: Vec<_> = names.iter().map(|name| (name.as_str(), vec![&kept])).collect();
        assert!(ceilings.hold(&kept[..1], &[], &[]).is_ok());
        assert!(
            ceilings.hold(&kept, &[], &[]).unwrap_err().to_string().starts_with("all tests together: 500 of 100000")
        );
    }

    #[test]
    fn a_promise_without_a_ceiling_a_ceiling_without_a_promise_and_a_line_that_is_none_are_errors() {
        let none = Ceilings::parse("").unwrap();
        let (nothing, names) = ([("a::b", vec![])], ["a::b".to_owned(), "b::c".to_owned()]);
        assert!(none.hold(&[("a::b", vec![&promise("x", 0, 10)])], &[], &names).is_err());
        assert!(none.hold(&nothing, &[], &names).is_ok());
        let one = Ceilings::parse("1 %  a::").unwrap();
        assert!(one.hold(&[("b::c", vec![])], &[], &names).is_ok(), "its tests have not run");
        assert!(one.hold(&nothing, &[], &names).is_err());
        assert!(
            one.hold(&nothing, &[], &["a::b".to_owned(), "a::c".to_owned()]).is_ok(),
            "nor has the one that promises"
        );
        for wrong in ["a::b", "x %  a::", "1 %", "-1 % a::", "1 % a::\n2 % a::"] {
            assert!(Ceilings::parse(wrong).is_err(), "{wrong}");
        }
    }
}
