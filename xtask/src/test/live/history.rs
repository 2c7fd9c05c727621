//! What came of every run of every live test on this machine, and the table of how steady they are.
//!
//! ```text
//! cargo xtask test ─▶ <cache>/jitprof/live-runs.jsonl, a line for each run of a test ─▶ cargo xtask steadiness
//!                                                                     ─▶ docs/measurements/steadiness.csv
//! ```
//!
//! A clean checkout is thrown away after its run, so that the file is the user's and not the checkout's. Runs of a
//! checkout with changes that are not committed are noted and not counted: they may be of a fault that was put in to see
//! that a test fails. For the same reason what a test said that failed is kept there, too (`failed/`): of what happens
//! once in fifty runs nothing else is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::one::{LOGS, Ran, log_of};
use crate::command;
use crate::shared_build;
use crate::workspace::Workspace;

const FILE: &str = "live-runs.jsonl";
/// Where the logs of failed tests are kept, and how many; each is some 20 kB.
const FAILED: &str = "failed";
const MAX_FAILED: usize = 100;
/// Above this size the older half of the file goes: some 100 runs of all tests.
const MAX_BYTES: u64 = 8 << 20;
const HEADER: &str = "test,passed,runs,failed by chance,failed hard,passed beside busy loops,runs beside busy loops,\
                      failed by chance beside busy loops,failed hard beside busy loops,median s,longest s";
/// Where the table is written to, from the root.
const DOCUMENT: &str = "docs/measurements/steadiness.csv";

/// Where runs are noted.
pub(super) struct History {
    /// None where the user has no folder for caches.
    file: Option<PathBuf>,
    /// Where this run's logs are.
    logs: PathBuf,
    commit: String,
    /// Whether the checkout has changes that are not committed.
    is_changed: bool,
    /// Busy loops that run beside the tests.
    beside: u32,
    /// Tests that run at a time, of those that may.
    jobs: usize,
}

impl History {
    pub(super) fn of(workspace: &Workspace, beside: u32, jobs: usize) -> Self {
        let git =
            |arguments: &[&str]| command::output(Command::new("git").args(arguments).current_dir(&workspace.root)).ok();
        let commit = git(&["rev-parse", "--short=10", "HEAD"]).map(|commit| commit.trim().to_owned());
        let status = git(&["status", "--porcelain", "--untracked-files=no"]);
        Self {
            file: shared_build::user_cache().map(|cache| cache.join("jitprof").join(FILE)),
            logs: workspace.target.join(LOGS),
            commit: commit.unwrap_or_default(),
            is_changed: status.is_none_or(|status| !status.trim().is_empty()),
            beside,
            jobs,
        }
    }

    /// Notes a run. A file that cannot be written fails no test.
    pub(super) fn note(&self, name: &str, ran: &Ran) {
        let Some(file) = &self.file else { return };
        let seconds_of = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let line = json!({
            "at": seconds_of(SystemTime::now()),
            "commit": self.commit,
            "changed": self.is_changed,
            "beside": self.beside,
            "jobs": self.jobs,
            "name": name,
            "outcome": ran.failure.as_ref().map_or("passed".to_owned(), |failure| failure.class.to_string()),
            "what": ran.failure.as_ref().map(|failure| &failure.what),
            "seconds": ran.took.as_secs_f64(),
            "cpu_pressure_percent": ran.machine.pressure_percent,
            "steal_percent": ran.machine.steal_percent,
        });
        if let Err(error) = append(file, &line.to_string()) {
            eprintln!("    this run is not noted in {}: {error}", file.display());
        }
        if ran.failure.is_some() {
            let (log, folder) = (self.logs.join(log_of(name)), file.with_file_name(FAILED));
            if let Err(error) = keep(&log, &folder, seconds_of(SystemTime::now())) {
                eprintln!("    {} is not kept in {}: {error}", log.display(), folder.display());
            }
        }
    }
}

/// Keeps a log, as of a time; the oldest ones go.
fn keep(log: &Path, folder: &Path, seconds: u64) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let name = log.file_name().unwrap_or_default().to_string_lossy();
    std::fs::copy(log, folder.join(format!("{seconds}.{name}")))?;
    let entries = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    let mut kept: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).collect();
    kept.sort();
    kept.iter().rev().skip(MAX_FAILED).try_for_each(std::fs::remove_file)
}

fn append(file: &Path, line: &str) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    if file.metadata().is_ok_and(|meta| meta.len() > MAX_BYTES) {
        let text = std::fs::read_to_string(file)?;
        let middle = text.floor_char_boundary(text.len() / 2);
        let newer = text[middle..].split_once('\n').map_or("", |(_, newer)| newer);
        std::fs::write(file, newer)?;
    }
    writeln!(OpenOptions::new().create(true).append(true).open(file)?, "{line}")
}

/// `steadiness`: writes the table into the documents.
pub(crate) fn steadiness(workspace: &Workspace) -> Result<()> {
    let cache = shared_build::user_cache().context("there is no folder for caches: HOME is not set")?;
    let file = cache.join("jitprof").join(FILE);
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("{}: run `cargo xtask test` first", file.display()))?;
    let table = Table::of(&text);
    ensure!(!table.tests.is_empty(), "{} has no run of a committed state", file.display());
    let document = workspace.root.join(DOCUMENT);
    std::fs::write(&document, table.document()).with_context(|| format!("cannot write {}", document.display()))?;
    println!("{}\nwritten    {}", table.sums(), document.display());
    Ok(())
}

/// Runs of one test, beside nothing or beside busy loops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Runs {
    passed: u64,
    statistical: u64,
    hard: u64,
}

impl Runs {
    fn all(&self) -> u64 {
        self.passed + self.statistical + self.hard
    }

    fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.statistical += other.statistical;
        self.hard += other.hard;
    }

    /// How many passed, of how many, and how the others failed.
    fn columns(&self) -> String {
        format!("{},{},{},{}", self.passed, self.all(), self.statistical, self.hard)
    }

    fn failures(&self) -> String {
        let kinds = [(self.statistical, "by chance"), (self.hard, "hard")];
        let kinds: Vec<String> =
            kinds.iter().filter(|(count, _)| *count > 0).map(|(count, kind)| format!("{count} {kind}")).collect();
        kinds.join(", ")
    }
}

#[derive(Clone, Debug, Default)]
struct Test {
    quiet: Runs,
    busy: Runs,
    seconds: Vec<f64>,
}

#[derive(Clone, Debug, Default)]
struct Table {
    tests: BTreeMap<String, Test>,
    /// In the order of the file.
    commits: Vec<String>,
    /// Seconds since 1970 of the first and the last run.
    times: Option<(u64, u64)>,
}

impl Table {
    fn of(lines: &str) -> Self {
        let mut table = Self::default();
        let mut seen = BTreeSet::new();
        for run in lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let Some(name) = run["name"].as_str() else { continue };
            if run["changed"] != false {
                continue;
            }
            let test = table.tests.entry(name.to_owned()).or_default();
            let runs = if run["beside"].as_u64() == Some(0) { &mut test.quiet } else { &mut test.busy };
            match run["outcome"].as_str() {
                Some("passed") => runs.passed += 1,
                Some("statistical") => runs.statistical += 1,
                _ => runs.hard += 1,
            }
            test.seconds.extend(run["seconds"].as_f64());
            let commit = run["commit"].as_str().unwrap_or_default();
            if seen.insert(commit.to_owned()) {
                table.commits.push(commit.to_owned());
            }
            let at = run["at"].as_u64().unwrap_or_default();
            let (first, last) = table.times.unwrap_or((at, at));
            table.times = Some((first.min(at), last.max(at)));
        }
        table
    }

    fn sums(&self) -> String {
        let sum = |of: fn(&Test) -> &Runs| {
            let mut all = Runs::default();
            self.tests.values().for_each(|test| all.add(of(test)));
            all
        };
        let said = |place: &str, runs: &Runs| {
            let failures = if runs.passed == runs.all() { String::new() } else { format!(" ({})", runs.failures()) };
            format!("{place}: {} of {} runs passed{failures}", runs.passed, runs.all())
        };
        let days = self.times.map(|(first, last)| format!("{} to {}", date(first), date(last))).unwrap_or_default();
        format!(
            "{} tests; {}; {}; {days}, commits {}",
            self.tests.len(),
            said("nothing beside them", &sum(|test| &test.quiet)),
            said("beside busy loops", &sum(|test| &test.busy)),
            self.commits.join(" ")
        )
    }

    /// A row for each test.
    fn document(&self) -> String {
        let row = |(name, test): (&String, &Test)| {
            let (median, longest) = median_and_longest(&test.seconds);
            format!("{name},{},{},{median:.1},{longest:.1}\n", test.quiet.columns(), test.busy.columns())
        };
        let rows: String = self.tests.iter().map(row).collect();
        format!("{HEADER}\n{rows}")
    }
}

fn median_and_longest(seconds: &[f64]) -> (f64, f64) {
    let mut seconds = seconds.to_vec();
    seconds.sort_by(f64::total_cmp);
    let at = |index: usize| seconds.get(index).copied().unwrap_or_default();
    (at(seconds.len() / 2), at(seconds.len().saturating_sub(1)))
}

/// A day as people write it, of seconds since 1970; the seconds where there is no `date`.
fn date(seconds: u64) -> String {
    let at = format!("@{seconds}");
    command::output(Command::new("date").args(["-u", "-d", &at, "+%F"])).map_or(at, |day| day.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, outcome: &str, beside: u32, changed: bool) -> String {
        json!({ "at": 86_400 * 365, "commit": "abc", "changed": changed, "beside": beside, "name": name,
                "outcome": outcome, "seconds": 2.0 })
        .to_string()
    }

    #[test]
    fn the_logs_of_the_latest_failures_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (log, kept) = (folder.path().join("a.b.log"), folder.path().join("failed"));
        for second in 0..MAX_FAILED as u64 + 2 {
            std::fs::write(&log, second.to_string()).unwrap();
            keep(&log, &kept, 1_700_000_000 + second).unwrap();
        }
        let mut names: Vec<_> = std::fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!((names.len(), names[0].to_str()), (MAX_FAILED, Some("1700000002.a.b.log")));
        assert_eq!(std::fs::read_to_string(kept.join(&names[0])).unwrap(), "2");
    }

    #[test]
    fn runs_are_counted_by_test_and_place_and_those_of_changed_checkouts_are_not() {
        let lines = [
            line("a::b", "passed", 0, false),
            line("a::b", "statistical", 0, false),
            line("a::b", "hard", 2, false),
            line("a::b", "hard", 0, true),
            "torn {".to_owned(),
        ];
        let table = Table::of(&lines.join("\n"));
        let test = &table.tests["a::b"];
        assert_eq!(test.quiet, Runs { passed: 1, statistical: 1, hard: 0 });
        assert_eq!(test.busy, Runs { passed: 0, statistical: 0, hard: 1 });
        let document = table.document();
        assert_eq!(document.lines().nth(1), Some("a::b,1,2,1,0,0,1,0,1,2.0,2.0"));
        assert_eq!(HEADER.split(',').count(), document.lines().nth(1).unwrap().split(',').count());
        assert_eq!(
            table.sums(),
            "1 tests; nothing beside them: 1 of 2 runs passed (1 by chance); beside busy loops: 0 of 1 runs passed (1 hard); \
             1971-01-01 to 1971-01-01, commits abc"
        );
    }

    #[test]
    fn a_long_history_loses_its_older_half() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deeper/runs");
        append(&file, "first").unwrap();
        let long = "x".repeat(usize::try_from(MAX_BYTES).unwrap() / 2);
        append(&file, &long).unwrap();
        append(&file, &long).unwrap();
        append(&file, "last").unwrap();
        assert!(std::fs::read_to_string(&file).unwrap().ends_with("\nlast\n"));
        assert!(!std::fs::read_to_string(&file).unwrap().starts_with("first"));
        assert!(file.metadata().unwrap().len() < MAX_BYTES);
    }
}
