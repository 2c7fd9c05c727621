//! What came of the live tests, in files: for people, for the next run, and for what reads JUnit.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use quick_xml::escape::escape;
use serde_json::{Value, json};

use super::Failure;
use super::one::Ran;
use super::promises::Promise;
use crate::workspace::Workspace;

/// A test, and what came of it.
#[derive(Clone, Debug)]
pub(super) struct Tested {
    pub(super) name: String,
    /// The first run.
    pub(super) ran: Ran,
    /// What came of further runs, if there were any.
    again: Vec<Ran>,
}

impl Tested {
    pub(super) fn of(name: &str, ran: Ran) -> Self {
        Self { name: name.to_owned(), ran, again: Vec::new() }
    }

    /// Whether it failed at first, and both further runs passed.
    pub(super) fn is_unsteady(&self) -> bool {
        self.ran.failure.is_some()
            && self.again.len() == super::FURTHER_RUNS
            && self.again.iter().all(|ran| ran.failure.is_none())
    }

    fn outcome(&self) -> &'static str {
        match (&self.ran.failure, self.is_unsteady()) {
            (None, _) => "passed",
            (Some(_), true) => "unsteady",
            (Some(_), false) => "failed",
        }
    }

    fn json(&self) -> Value {
        let run = |ran: &Ran| {
            let failure = ran.failure.as_ref();
            json!({
                "seconds": ran.took.as_secs_f64(),
                "class": failure.map(|failure| failure.class.to_string()),
                "what": failure.map(|failure| &failure.what),
                "steal_percent": ran.machine.steal_percent,
                "cpu_pressure_percent": ran.machine.pressure_percent,
                "load": ran.machine.load,
                "promises": ran.promises.iter().map(|promise| {
                    json!({ "what": promise.what, "missing": promise.misses(), "of": promise.whole })
                }).collect::<Vec<Value>>(),
            })
        };
        let runs: Vec<Value> = std::iter::once(&self.ran).chain(&self.again).map(run).collect();
        json!({ "name": self.name, "outcome": self.outcome(), "runs": runs })
    }

    fn junit(&self) -> String {
        let (module, test) = self.name.rsplit_once("::").unwrap_or(("", &self.name));
        let seconds = self.ran.took.as_secs_f64();
        let case = format!("  <testcase classname=\"live.{module}\" name=\"{test}\" time=\"{seconds:.3}\"");
        let Some(Failure { class, what }) = &self.ran.failure else { return format!("{case}/>\n") };
        // Control characters are not part of XML, however they are written.
        let what: String = what.chars().filter(|c| !c.is_control() || *c == '\n').collect();
        let what = escape(&what);
        // As Maven's Surefire writes a test that passed in the end.
        let element = if self.is_unsteady() { "flakyFailure" } else { "failure" };
        format!("{case}>\n    <{element} type=\"{class}\">{what}</{element}>\n  </testcase>\n")
    }
}

impl fmt::Display for Tested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Failure { class, what }) = &self.ran.failure else { return f.write_str(&self.name) };
        write!(f, "{} ({class}; {}): {what}", self.name, self.ran.machine)?;
        for ran in &self.again {
            match &ran.failure {
                None => write!(f, "\n  again: passed ({})", ran.machine)?,
                Some(failure) => write!(f, "\n  again: {} ({})", failure.what, ran.machine)?,
            }
        }
        Ok(())
    }
}

/// All results so far. Written after every test: a run that is cut short has said what it found.
pub(super) struct Results {
    folder: PathBuf,
    pub(super) tests: Vec<Tested>,
}

impl Results {
    pub(super) fn begin(workspace: &Workspace) -> Result<Self> {
        let folder = folder(workspace);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self { folder, tests: Vec::new() })
    }

    pub(super) fn add(&mut self, tested: Tested) -> Result<()> {
        self.tests.push(tested);
        self.write()
    }

    /// What each test has counted of promises, in all its runs but the one for which it is called unsteady.
    pub(super) fn promises(&self) -> Vec<(&str, Vec<&Promise>)> {
        let promises = self.tests.iter().map(|test| {
            let first = Some(&test.ran).filter(|_| !test.is_unsteady());
            let kept = first.into_iter().chain(&test.again).flat_map(|ran| &ran.promises);
            (test.name.as_str(), kept.collect())
        });
        promises.collect()
    }

    /// What unsteady tests had counted when they failed.
    pub(super) fn promises_apart(&self) -> Vec<(&str, &Promise)> {
        let unsteady = self.tests.iter().filter(|test| test.is_unsteady());
        unsteady.flat_map(|test| test.ran.promises.iter().map(|promise| (test.name.as_str(), promise))).collect()
    }

    /// The tests that took longest, with their seconds.
    pub(super) fn slowest(&self, count: usize) -> Vec<(&str, f64)> {
        let mut tests: Vec<(&str, f64)> =
            self.tests.iter().map(|test| (test.name.as_str(), test.ran.took.as_secs_f64())).collect();
        tests.sort_by(|one, other| other.1.total_cmp(&one.1));
        tests.truncate(count);
        tests
    }

    /// Notes the further runs of one.
    pub(super) fn decide(&mut self, index: usize, again: Vec<Ran>) -> Result<()> {
        self.tests[index].again = again;
        self.write()
    }

    fn write(&self) -> Result<()> {
        let tests: Vec<Value> = self.tests.iter().map(Tested::json).collect();
        let junit: String = self.tests.iter().map(Tested::junit).collect();
        let count = |outcome: &str| self.tests.iter().filter(|test| test.outcome() == outcome).count();
        let suite = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"live\" tests=\"{}\" failures=\"{}\">\n{junit}</testsuite>\n",
            self.tests.len(),
            count("failed"),
        );
        replace(&self.folder.join("results.json"), &format!("{:#}\n", json!({ "tests": tests })))?;
        replace(&self.folder.join("junit.xml"), &suite)
    }
}

/// Written under another name and renamed: who reads it finds the whole of it.
fn replace(file: &Path, text: &str) -> Result<()> {
    let unfinished = file.with_extension("tmp");
    std::fs::write(&unfinished, text)
        .and_then(|()| std::fs::rename(&unfinished, file))
        .with_context(|| format!("cannot write {}", file.display()))
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("live")
}

/// The tests that did not pass at once when they were run last; none if nothing is known of it.
pub(in crate::test) fn failed_last_time(workspace: &Workspace) -> Vec<String> {
    let text = std::fs::read_to_string(folder(workspace).join("results.json")).unwrap_or_default();
    failed_in(&text)
}

fn failed_in(results: &str) -> Vec<String> {
    let results: Value = serde_json::from_str(results).unwrap_or_default();
    let tests = results["tests"].as_array().into_iter().flatten();
    let failed = tests.filter(|test| test["outcome"] != "passed");
    failed.filter_map(|test| test["name"].as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Class;
    use super::super::machine::Machine;
    use super::*;

    fn ran(failure: Option<&str>) -> Ran {
        Ran {
            took: Duration::from_millis(1500),
            failure: failure.map(|what| Failure { class: Class::Statistical, what: what.to_owned() }),
            machine: Machine { steal_percent: 0.0, pressure_percent: 5.0, load: 1.0 },
            promises: Vec::new(),
        }
    }

    fn tested(name: &str, first: Option<&str>, again: &[Option<&str>]) -> Tested {
        Tested { again: again.iter().map(|failure| ran(*failure)).collect(), ..Tested::of(name, ran(first)) }
    }

    #[test]
    fn a_test_is_unsteady_if_both_further_runs_pass() {
        let outcome = |again: &[Option<&str>]| tested("a::b", Some("few"), again).outcome();
        assert_eq!(outcome(&[]), "failed");
        assert_eq!(outcome(&[None]), "failed");
        assert_eq!(outcome(&[None, Some("few")]), "failed");
        assert_eq!(outcome(&[None, None]), "unsteady");
        assert_eq!(tested("a::b", None, &[]).outcome(), "passed");
    }

    #[test]
    fn the_promises_of_all_runs_count_but_that_of_an_unsteady_test_apart() {
        let missing = |missing: u64| Promise { what: "names".to_owned(), part: 100 - missing, whole: 100 };
        let mut shaky = tested("a::shaky", Some("few"), &[None, None]);
        shaky.ran.promises = vec![missing(50)];
        shaky.again[1].promises = vec![missing(2), missing(1)];
        let mut failed = tested("a::failed", Some("few"), &[None, Some("few")]);
        failed.ran.promises = vec![missing(40)];
        let tests = vec![shaky, tested("a::none", None, &[]), failed];
        let results = Results { folder: PathBuf::new(), tests };
        let misses = |kept: &[&Promise]| kept.iter().map(|promise| promise.misses()).collect::<Vec<_>>();
        let kept = results.promises();
        assert_eq!((kept[0].0, misses(&kept[0].1)), ("a::shaky", vec![2, 1]));
        assert_eq!((kept[1].0, misses(&kept[1].1)), ("a::none", vec![]));
        assert_eq!((kept[2].0, misses(&kept[2].1)), ("a::failed", vec![40]));
        assert_eq!(results.promises_apart(), [("a::shaky", &missing(50))]);
    }

    #[test]
    fn results_are_files_that_others_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results { folder: folder.path().to_owned(), tests: Vec::new() };
        results.add(tested("a::good", None, &[])).unwrap();
        results.add(tested("a::bad", Some("1 < 2 & \u{1b}[1m\"x\""), &[])).unwrap();
        results.add(tested("a::shaky", Some("few"), &[])).unwrap();
        results.decide(2, vec![ran(None), ran(None)]).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(failed_in(&read("results.json")), ["a::bad", "a::shaky"]);
        let junit = read("junit.xml");
        assert!(junit.contains("<testsuite name=\"live\" tests=\"3\" failures=\"1\">"), "{junit}");
        assert!(junit.contains("<failure type=\"statistical\">1 &lt; 2 &amp; [1m&quot;x&quot;</failure>"), "{junit}");
        assert!(junit.contains("<testcase classname=\"live.a\" name=\"good\" time=\"1.500\"/>"), "{junit}");
        assert!(junit.contains("<flakyFailure"), "{junit}");
        assert_eq!(failed_in("no JSON"), [""; 0]);
    }
}
