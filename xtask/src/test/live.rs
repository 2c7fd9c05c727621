//! The live tests, each a process of its own.
//!
//! ```text
//! cargo test --no-run ─▶ the test binary ─▶ its tests, in order                      this file
//!   each: control group, TMPDIR, log, limit ─▶ passed, or why not and of which class  one.rs
//!   what chance may have done: again, twice, alone, once the machine is calm         this file, machine.rs
//! every result at once ─▶ <target>/live/{results.json,junit.xml,log/}                results.rs
//!                      ─▶ the user's cache, over all checkouts                       history.rs
//! ```
//!
//! Some may run beside each other (`--jobs`): those that record processes of their own and look at nothing else.
//!
//! A failure is [hard](Class::Hard) unless the harness says that chance can cause it: then both of two further runs have
//! to pass, and the test is called unsteady by name. A real defect fails three times.

mod beside;
mod history;
mod machine;
mod one;
mod promises;
mod results;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{self, Root};
use crate::prepare::Variables;
use crate::workspace::Workspace;
use beside::BusyLoops;
use history::History;
pub(crate) use history::steadiness;
use one::{Place, Ran};
use promises::Ceilings;
pub(super) use results::failed_last_time;
use results::{Results, Tested};

/// One of each runtime: if it cannot be recorded at all, that is known in the first minutes.
const SMOKE: [&str; 9] = [
    "jitdemo::every_sample_at_a_reused_address_has_the_name_that_was_right_then",
    "node::shares_names_chains_and_tiers_are_true",
    "python::stacks_are_whole_and_shares_are_true",
    "wasmtime::a_jitdump_names_whole_chains",
    "php::compiled_functions_keep_their_leaf",
    "erlang::a_jitdump_names_whole_chains",
    "bare::a_bare_jvm_has_whole_stacks_with_names_and_tiers",
    "frames::golang_with_its_own_stacks",
    "onednn::onednn_is_unwound_through_its_kernels_by_intels_api",
];
/// What takes longest to begin and has the most parts that are not ours comes last.
const LAST: [&str; 1] = ["page::"];
/// How long a test may take.
const LIMIT: Duration = Duration::from_secs(90);
/// With a browser, Go's compiler, or an endurance in it.
const LONG_LIMIT: Duration = Duration::from_secs(240);
/// Beginnings of the names of tests with the longer limit.
const LONG: [&str; 3] = ["endurance::", "page::", "frames::golang"];
/// How often a test that chance may have failed has to pass afterwards.
const FURTHER_RUNS: usize = 2;
/// Tests that are named for the time they took.
const SHOWN_SLOWEST: usize = 8;
/// With more unsteady tests than this, something is wrong with the suite or with the machine.
const MAX_UNSTEADY: usize = 3;
/// With more failures by chance than this, the run has failed whatever further runs show.
const MAX_TRIED_AGAIN: usize = 8;

/// Beginnings of the names of tests that may run beside each other: what they look at is of processes of their own, and
/// neither what they cost nor how long they take.
const TOGETHER: [&str; 29] = [
    "bare::",
    "captures::",
    "containers::",
    "endurance::the_governor",
    "endurance::weights",
    "erlang::",
    "frames::",
    "gsym::",
    "hostile::",
    "jit_api::",
    "jitdemo::",
    "jitdump::",
    "joints::",
    "newer_java::",
    "node::",
    "older_python::",
    "onednn::",
    "php::",
    "php_bare::",
    "php_fpm::",
    "python::",
    "python_bare::",
    "python_services::",
    "ruby_bare::",
    "selection::",
    "trace::",
    "unwind_info::",
    "verifying::",
    "wasmtime::",
];

/// Those among them that record the whole machine, or look at what takes how long.
const ALONE: [&str; 2] = ["joints::the_service", "python_bare::what_is_not_wanted"];

/// Whether a test may run beside others.
fn bears_others(name: &str) -> bool {
    let is = |beginnings: &[&str]| beginnings.iter().any(|beginning| name.starts_with(beginning));
    is(&TOGETHER) && !is(&ALONE)
}

/// Which tests are run, and how.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// Parts of names that are left out.
    pub(super) left_out: Vec<String>,
    /// If any: only names with one of these parts.
    pub(super) only: Vec<String>,
    /// They are made larger, and may take ten times as long.
    pub(super) is_soak: bool,
}

impl Wanted {
    fn has(&self, name: &str) -> bool {
        let among = |parts: &[String]| parts.iter().any(|part| name.contains(part.as_str()));
        (self.only.is_empty() || among(&self.only)) && !among(&self.left_out)
    }
}

/// What a failure is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// It is a defect of jitprof or of the test, and not tried again.
    Hard,
    /// The harness says that chance can do it: a share, a promise, too few samples, a limit of waiting.
    Statistical,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hard => "hard",
            Self::Statistical => "statistical",
        })
    }
}

/// Why a test did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    class: Class,
    /// What it said, shortened.
    what: String,
}

/// The live tests, built.
pub(super) struct Live<'a> {
    workspace: &'a Workspace,
    binary: PathBuf,
    /// The names of all tests in it.
    pub(super) names: Vec<String>,
    /// One for each test that runs at a time.
    places: Vec<Place>,
    history: History,
    ceilings: Ceilings,
    /// What runs beside them, until they have ended.
    _beside: BusyLoops,
}

impl<'a> Live<'a> {
    /// Builds them, runs the harness's own tests, lists what there is, and starts busy loops beside what will run: `jobs` at
    /// a time, where that is possible.
    pub(super) fn build(workspace: &'a Workspace, beside: u32, jobs: usize) -> Result<Self> {
        command::progress("building the live tests");
        command::run_tests(workspace.cargo().args(["test", "--package", "jitprof-tests", "--lib"]))?;
        let mut cargo = workspace.cargo();
        cargo.args(["test", "--package", "jitprof-tests", "--test", "live", "--no-run"]);
        let messages = command::output_beside_talk(cargo.arg("--message-format=json-render-diagnostics"))?;
        let binary = executable(&messages).context("cargo built no program of live tests")?;
        let listed = command::output(std::process::Command::new(&binary).args(["--list", "--format", "terse"]))?;
        let names: Vec<String> =
            listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect();
        if let Some(gone) = SMOKE.iter().find(|smoke| !names.iter().any(|name| name == *smoke)) {
            bail!("the first tests of a run are listed in xtask/src/test/live.rs, and there is no {gone}");
        }
        let beginnings = LAST.iter().chain(&LONG).chain(&TOGETHER).chain(&ALONE);
        if let Some(gone) = { beginnings }.find(|beginning| !names.iter().any(|name| name.starts_with(**beginning))) {
            bail!("xtask/src/test/live.rs says how tests called {gone}… are run, and there is none");
        }
        let ceilings = Ceilings::read(&workspace.root.join("tests/live/promises.txt"))?;
        let root = root()?;
        let places = (0..jobs.max(1)).map(|job| Place::new(workspace, root, job)).collect::<Result<_>>()?;
        Ok(Self {
            workspace,
            binary,
            names,
            places,
            history: History::of(workspace, beside, jobs.max(1)),
            ceilings,
            _beside: BusyLoops::start(beside)?,
        })
    }

    /// The tests that are meant, in the order in which they are run.
    fn order(&self, wanted: &Wanted) -> Vec<&str> {
        let failed = failed_last_time(self.workspace);
        let mut names: Vec<&str> = self.names.iter().map(String::as_str).filter(|name| wanted.has(name)).collect();
        names.sort_by_key(|name| rank(name, &failed));
        names
    }

    /// Runs the tests that are meant, and says what came of them.
    pub(super) fn run(&self, variables: &Variables, wanted: &Wanted) -> Result<Verdict> {
        let names = self.order(wanted);
        if names.is_empty() {
            bail!("no live test is left to run; say `--skip live=REASON` if that is meant");
        }
        let mut results = Results::begin(self.workspace)?;
        let count = names.len();
        let (together, alone): (Vec<&str>, Vec<&str>) =
            names.into_iter().partition(|name| self.places.len() > 1 && bears_others(name));
        self.run_together(variables, &together, wanted.is_soak, |index, name, ran| {
            eprint!("live {:>7}  {name} … ", format!("{}/{count}", index + 1));
            self.tell(name, &ran, wanted.is_soak);
            results.add(Tested::of(name, ran))
        })?;
        for (index, name) in alone.iter().enumerate() {
            let number = format!("{}/{count}", together.len() + index + 1);
            results.add(Tested::of(name, self.run_one(variables, name, &number, wanted.is_soak)?))?;
        }
        let is_chance = |test: &Tested| test.ran.failure.as_ref().is_some_and(|one| one.class == Class::Statistical);
        let mut by_chance: Vec<(usize, String)> = Vec::new();
        for (index, test) in results.tests.iter().enumerate().filter(|(_, test)| is_chance(test)) {
            by_chance.push((index, test.name.clone()));
        }
        if by_chance.len() > MAX_TRIED_AGAIN {
            eprintln!("    {} tests failed as chance may do it: too many to be chance", by_chance.len());
            by_chance.clear();
        }
        for (index, name) in by_chance {
            let again = self.run_again(variables, &name, wanted.is_soak)?;
            results.decide(index, again)?;
        }
        let slowest = results.slowest(SHOWN_SLOWEST);
        let slowest: Vec<String> = slowest.iter().map(|(name, seconds)| format!("{seconds:.0} s {name}")).collect();
        eprintln!("    the longest: {}", slowest.join(", "));
        let held = self.ceilings.hold(&results.promises(), &results.promises_apart(), &self.names);
        let promises = held.map_err(|error| format!("{error:#}"));
        Ok(Verdict { promises, ..Verdict::of(&results) })
    }

    /// Two further runs, alone on a calm machine.
    fn run_again(&self, variables: &Variables, name: &str, is_soak: bool) -> Result<Vec<Ran>> {
        let mut again = Vec::new();
        for number in 1..=FURTHER_RUNS {
            machine::wait_for_calm();
            let ran = self.run_one(variables, name, &format!("again {number}/{FURTHER_RUNS}"), is_soak)?;
            let passed = ran.failure.is_none();
            again.push(ran);
            if !passed {
                break;
            }
        }
        Ok(again)
    }

    /// Runs each test so often and shows how often it passed.
    pub(super) fn repeat(&self, variables: &Variables, wanted: &Wanted, times: u32) -> Result<String> {
        let names = self.order(wanted);
        let mut passed = vec![(0u32, Vec::new()); names.len()];
        for round in 1..=times {
            for (name, (count, reasons)) in names.iter().zip(&mut passed) {
                match self.run_one(variables, name, &format!("{round}/{times}"), false)?.failure {
                    None => *count += 1,
                    Some(failure) => reasons.push(failure),
                }
            }
        }
        let mut table = String::new();
        for (name, (count, reasons)) in names.iter().zip(passed) {
            table += &format!("{count:>4} of {times}  {name}\n");
            for Failure { class, what } in reasons {
                table += &format!("              {class}: {}\n", what.lines().next().unwrap_or_default());
            }
        }
        Ok(table)
    }

    /// Runs tests in each place until none is left, and hands each result to `take`, with how many there were before.
    fn run_together(
        &self,
        variables: &Variables,
        names: &[&str],
        is_soak: bool,
        mut take: impl FnMut(usize, &str, Ran) -> Result<()>,
    ) -> Result<()> {
        let left = Mutex::new(names.iter());
        let (sender, results) = mpsc::channel();
        std::thread::scope(|scope| {
            for place in &self.places {
                let (sender, left) = (sender.clone(), &left);
                scope.spawn(move || {
                    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next().copied();
                    while let Some(name) = next() {
                        let ran = place.run(&self.binary, name, variables, limit(name, is_soak));
                        // Nobody listens any more if something went wrong.
                        if sender.send((name, ran)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            // What is not received is dropped with the receiver, which ends the others.
            results.into_iter().enumerate().try_for_each(|(index, (name, ran))| take(index, name, ran?))
        })
    }

    /// Runs a test with none beside it.
    fn run_one(&self, variables: &Variables, name: &str, count: &str, is_soak: bool) -> Result<Ran> {
        eprint!("live {count:>7}  {name} … ");
        let ran = self.places[0].run(&self.binary, name, variables, limit(name, is_soak))?;
        self.tell(name, &ran, is_soak);
        Ok(ran)
    }

    /// Notes what came of a test, and says it.
    fn tell(&self, name: &str, ran: &Ran, is_soak: bool) {
        if !is_soak {
            self.history.note(name, ran);
        }
        let seconds = ran.took.as_secs_f64();
        match &ran.failure {
            None => eprintln!("ok, {seconds:.1} s"),
            Some(Failure { class, what }) => {
                eprintln!("FAILED ({class}), {seconds:.1} s, {}", ran.machine);
                eprintln!("{}", indented(what));
            }
        }
    }
}

/// How long a test may take.
fn limit(name: &str, is_soak: bool) -> Duration {
    let limit = if LONG.iter().any(|long| name.starts_with(long)) { LONG_LIMIT } else { LIMIT };
    if is_soak { 10 * limit } else { limit }
}

fn root() -> Result<Root> {
    match Root::detect() {
        Root::Unavailable => bail!(
            "the live tests need root, and sudo asks for a password here; run `sudo -v` and try again, or leave them \
             out with --no-live"
        ),
        root => Ok(root),
    }
}

/// Where a test stands in the order; equal ones stay as they are listed.
fn rank(name: &str, failed: &[String]) -> (u8, usize) {
    if let Some(place) = failed.iter().position(|one| one == name) {
        return (0, place);
    }
    if let Some(place) = SMOKE.iter().position(|one| *one == name) {
        return (1, place);
    }
    (if LAST.iter().any(|last| name.starts_with(last)) { 3 } else { 2 }, 0)
}

/// The test program among cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = artifacts.filter(|message| {
        message["reason"] == "compiler-artifact"
            && message["target"]["name"] == "live"
            && message["profile"]["test"] == true
    });
    programs.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    | {line}")).collect::<Vec<_>>().join("\n")
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// How many tests passed, the unsteady ones among them.
    pub(super) passed: usize,
    /// A line for each that failed.
    pub(super) failed: Vec<String>,
    /// A line for each that failed once as chance may do it, and passed twice afterwards.
    pub(super) unsteady: Vec<String>,
    /// What all promises together came to, or how far beyond their ceilings they are.
    promises: Result<String, String>,
}

impl Default for Verdict {
    fn default() -> Self {
        Self { passed: 0, failed: Vec::new(), unsteady: Vec::new(), promises: Ok(String::new()) }
    }
}

impl Verdict {
    fn of(results: &Results) -> Self {
        let mut verdict = Self::default();
        for test in &results.tests {
            match (&test.ran.failure, test.is_unsteady()) {
                (None, _) => verdict.passed += 1,
                (Some(_), true) => {
                    verdict.passed += 1;
                    verdict.unsteady.push(test.to_string());
                }
                (Some(_), false) => verdict.failed.push(test.to_string()),
            }
        }
        verdict
    }

    /// As one result.
    pub(super) fn conclude(&self) -> Result<String> {
        if !self.failed.is_empty() {
            bail!("{} failed, {} passed\n{}", self.failed.len(), self.passed, self.failed.join("\n"));
        }
        if self.unsteady.len() > MAX_UNSTEADY {
            bail!("{} tests are unsteady, more than {MAX_UNSTEADY}\n{}", self.unsteady.len(), self.unsteady.join("\n"));
        }
        let promises = self.promises.as_ref().map_err(|broken| anyhow::anyhow!("{broken}"))?;
        let unsteady =
            if self.unsteady.is_empty() { String::new() } else { format!(", {} unsteady", self.unsteady.len()) };
        Ok(format!("{} tests{unsteady}; {promises}", self.passed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_comes_first_and_the_browser_last() {
        let failed = ["page::b".to_owned()];
        let mut names = ["aaa::x", "page::a", SMOKE[1], "page::b", SMOKE[0], "zzz::y"];
        names.sort_by_key(|name| rank(name, &failed));
        assert_eq!(names, ["page::b", SMOKE[0], SMOKE[1], "aaa::x", "zzz::y", "page::a"]);
    }

    #[test]
    fn tests_are_chosen_and_left_out_by_parts_of_their_names() {
        let wanted = |only: &[&str], left_out: &[&str]| Wanted {
            only: only.iter().map(|&part| part.to_owned()).collect(),
            left_out: left_out.iter().map(|&part| part.to_owned()).collect(),
            is_soak: false,
        };
        assert!(wanted(&[], &[]).has("a::b"));
        assert!(wanted(&["a::"], &[]).has("a::b") && !wanted(&["a::"], &[]).has("c::b"));
        assert!(!wanted(&["a::"], &["b"]).has("a::b"));
    }

    #[test]
    fn the_test_program_is_found_among_the_libraries() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"jitprof_tests"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","target":{"name":"live"},"profile":{"test":true},"executable":"/t/live-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages), Some("/t/live-1".into()));
        assert_eq!(executable("{}"), None);
    }

    #[test]
    fn a_failure_fails_and_many_unsteady_tests_do() {
        let of = |failed: usize, unsteady: usize| Verdict {
            passed: 10,
            failed: vec!["f".to_owned(); failed],
            unsteady: vec!["u".to_owned(); unsteady],
            promises: Ok("3 missing".to_owned()),
        };
        assert_eq!(of(0, 0).conclude().unwrap(), "10 tests; 3 missing");
        assert_eq!(of(0, MAX_UNSTEADY).conclude().unwrap(), "10 tests, 3 unsteady; 3 missing");
        let broken = Verdict { promises: Err("too many".to_owned()), ..of(0, 0) };
        assert_eq!(broken.conclude().unwrap_err().to_string(), "too many");
        assert!(of(0, MAX_UNSTEADY + 1).conclude().is_err());
        assert!(of(1, 0).conclude().unwrap_err().to_string().starts_with("1 failed, 10 passed\nf"));
    }
}
