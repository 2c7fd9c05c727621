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

    /// That of a test: the one whose beginning of a path is the longest.
    fn of(&self, test: &str) -> Option<f64> {
        let of_it = self.0.iter().filter(|(tests, _)| test.starts_with(tests.as_str()));
        of_it.max_by_key(|(tests, _)| tests.len()).map(|(_, ceiling)| *ceiling)
    }

    /// Holds the sum of all misses of a run against the ceilings. Returns what it came to in words.
    pub(super) fn hold<'a>(&self, kept: impl Iterator<Item = (&'a str, &'a Promise)>) -> Result<String> {
        let (mut misses, mut samples, mut expected) = (0, 0, 0.0);
        let mut excess: Vec<(f64, String)> = Vec::new();
        for (test, promise) in kept {
            let (what, missing, whole) = (&promise.what, promise.misses(), promise.whole);
            let Some(ceiling) = self.of(test) else {
                bail!("no ceiling in promises.txt: {test}: {what}: {missing} of {whole} missing");
            };
            misses += missing;
            samples += whole;
            let allowed = ceiling * as_f64(whole);
            expected += allowed;
            excess.push((as_f64(missing) - allowed, format!("{test}: {what}: {missing} of {whole}")));
        }
        let most = most(expected);
        let sum = format!("{misses} of {samples} promised missing, {most:.0} allowed");
        if as_f64(misses) > most {
            excess.sort_by(|one, other| other.0.total_cmp(&one.0));
            let largest: Vec<String> = excess.into_iter().take(SHOWN).map(|(_, line)| line).collect();
            bail!("all tests together: {sum}; the most in\n{}", largest.join("\n"));
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
            ceilings.hold([("a::b", &stacks), ("a::name", &names)].into_iter())
        };
        // 40 are expected, in 10 bursts of 4: a deviation of 12.6, 3.72 of them, and 9.
        assert_eq!(hold(95).unwrap(), "95 of 49000 promised missing, 96 allowed");
        let error = hold(97).unwrap_err().to_string();
        assert!(
            error.ends_with("the most in\na::b: complete stacks: 97 of 40000\na::name: named frames: 0 of 9000"),
            "{error}"
        );
    }

    #[test]
    fn a_promise_without_a_ceiling_and_a_line_that_is_none_are_errors() {
        let none = Ceilings::parse("").unwrap();
        assert!(none.hold([("a::b", &promise("x", 0, 10))].into_iter()).is_err());
        for wrong in ["a::b", "x %  a::", "1 %", "-1 % a::", "1 % a::\n2 % a::"] {
            assert!(Ceilings::parse(wrong).is_err(), "{wrong}");
        }
    }
}
