//! The table at the end of a test run.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::command;

/// Of a reason, this many lines from its start and its end are shown, each cut to so many characters.
const LINES: usize = 30;
const COLUMNS: usize = 400;

/// What was done, in order.
#[derive(Default)]
pub(crate) struct Summary {
    rows: Vec<Row>,
    /// How many live tests have passed, and how many have not.
    tests: Option<(usize, usize)>,
}

struct Row {
    name: String,
    outcome: Outcome,
    note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed(Duration),
    Failed(Duration),
    Skipped,
    /// Something to know that is no step.
    Remark,
}

impl Summary {
    /// Runs a step; the text it returns becomes its note, an error becomes a failure.
    pub(crate) fn run(&mut self, name: &str, step: impl FnOnce() -> Result<String>) {
        command::progress(name);
        let start = Instant::now();
        let result = step();
        self.add(name, start.elapsed(), result);
    }

    /// Records what a step that ran beside others came to.
    pub(crate) fn add(&mut self, name: &str, took: Duration, result: Result<String>) {
        let (outcome, note) = match result {
            Ok(note) => (Outcome::Passed(took), note),
            Err(error) => {
                eprintln!("error: {name}: {error:#}");
                (Outcome::Failed(took), format!("{error:#}"))
            }
        };
        self.rows.push(Row { name: name.to_owned(), outcome, note });
    }

    /// Records that a step was left out on purpose.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        self.rows.push(Row { name: name.to_owned(), outcome: Outcome::Skipped, note: reason.to_owned() });
    }

    /// Says something about what was run.
    pub(crate) fn remark(&mut self, name: &str, text: &str) {
        self.rows.push(Row { name: name.to_owned(), outcome: Outcome::Remark, note: text.to_owned() });
    }

    /// Notes what came of the live tests.
    pub(crate) fn count_tests(&mut self, passed: usize, failed: usize) {
        self.tests = Some((passed, failed));
    }

    /// `live: 12 passed, 0 failed`, in the words that readers of logs look for; none if there was no live test.
    pub(crate) fn closing_line(&self) -> Option<String> {
        self.tests.map(|(passed, failed)| format!("live: {passed} passed, {failed} failed"))
    }

    /// Whether the step was run and did not fail.
    pub(crate) fn passed(&self, name: &str) -> bool {
        self.rows.iter().any(|row| row.name == name && matches!(row.outcome, Outcome::Passed(_)))
    }

    /// Why the steps that failed did, each with its name: what the end of a long log has to say.
    pub(crate) fn reasons(&self) -> String {
        let failed = self.rows.iter().filter(|row| matches!(row.outcome, Outcome::Failed(_)));
        failed.map(|row| format!("{}: {}", row.name, ends_of(&row.note))).collect::<Vec<_>>().join("\n")
    }

    /// How many steps failed.
    pub(crate) fn failures(&self) -> usize {
        self.rows.iter().filter(|row| matches!(row.outcome, Outcome::Failed(_))).count()
    }
}

/// The first and the last lines of a long text.
fn ends_of(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| line.chars().take(COLUMNS).collect()).collect();
    if lines.len() <= 2 * LINES {
        return lines.join("\n");
    }
    let left_out = format!("… {} lines …", lines.len() - 2 * LINES);
    [&lines[..LINES], &[left_out], &lines[lines.len() - LINES..]].concat().join("\n")
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(4);
        writeln!(f, "{:width$}  {:7}  {:>7}  note", "step", "result", "seconds")?;
        for Row { name, outcome, note } in &self.rows {
            let (result, seconds) = match outcome {
                Outcome::Passed(took) => ("ok", format!("{:.1}", took.as_secs_f64())),
                Outcome::Failed(took) => ("FAILED", format!("{:.1}", took.as_secs_f64())),
                Outcome::Skipped => ("skipped", "-".to_owned()),
                Outcome::Remark => ("noted", "-".to_owned()),
            };
            let line = format!("{name:width$}  {result:7}  {seconds:>7}  {}", note.lines().next().unwrap_or_default());
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn the_table_names_every_step_with_result_and_reason() {
        let mut summary = Summary::default();
        summary.run("fmt", || Ok(String::new()));
        summary.run("unit", || bail!("two\nlines"));
        summary.skip("php", "no package here");
        let table = summary.to_string();
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[1].starts_with("fmt   ok"), "{table}");
        assert!(lines[2].starts_with("unit  FAILED") && lines[2].ends_with("two"), "{table}");
        assert!(lines[3].starts_with("php   skipped        -  no package here"), "{table}");
        assert_eq!(summary.failures(), 1);
        assert_eq!(summary.closing_line(), None);
        summary.remark("unsteady", "a::b (statistical)\nmore");
        summary.count_tests(3, 1);
        assert!(summary.to_string().contains("noted          -  a::b (statistical)"), "{summary}");
        assert_eq!(summary.closing_line().unwrap(), "live: 3 passed, 1 failed");
        assert_eq!(summary.failures(), 1);
        assert_eq!(summary.reasons(), "unit: two\nlines");
    }

    #[test]
    fn a_long_reason_keeps_its_start_and_its_end() {
        let mut summary = Summary::default();
        let log: Vec<String> = (0..1000).map(|line| format!("line {line}")).collect();
        summary.run("kernel", || bail!("{}", log.join("\n")));
        let reasons = summary.reasons();
        assert!(reasons.starts_with("kernel: line 0\n") && reasons.ends_with("\nline 999"), "{reasons}");
        assert!(reasons.contains("… 940 lines …"), "{reasons}");
    }

    #[test]
    fn a_step_that_was_skipped_or_never_run_has_not_passed() {
        let mut summary = Summary::default();
        summary.run("fmt", || Ok(String::new()));
        summary.skip("build", "reason");
        assert!(summary.passed("fmt"));
        assert!(!summary.passed("build"));
        assert!(!summary.passed("unit"));
    }
}
