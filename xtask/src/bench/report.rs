//! The figures of a run, as a Markdown table with the commands below it; and the documents that they are written into.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;

/// What was measured, in order.
pub(crate) struct Report {
    /// The workspace's folder, which is left out of the commands: they are run from there.
    root: String,
    machine: String,
    /// The part that figures belong to from now on.
    part: &'static str,
    figures: Vec<(&'static str, Figure)>,
    skipped: Vec<(&'static str, String, String)>,
}

/// One measured thing.
pub(crate) struct Figure {
    /// What was measured, with its conditions.
    pub(crate) what: String,
    /// jitprof's figure with its unit.
    pub(crate) ours: String,
    /// The peer's figure with the peer's name; empty if there is none.
    pub(crate) peer: String,
    /// How the two compare; empty if there is no peer.
    pub(crate) ratio: String,
    /// What was asked for; empty if nothing was.
    pub(crate) goal: Option<Goal>,
    /// The commands that made it.
    pub(crate) commands: Vec<String>,
}

/// A goal, and whether it was reached.
pub(crate) struct Goal {
    text: String,
    reached: bool,
}

impl Goal {
    /// `value` should be at most `limit`.
    pub(crate) fn at_most(value: f64, limit: f64, unit: &str) -> Option<Self> {
        Some(Self { text: format!("≤ {limit}{unit}"), reached: value <= limit })
    }

    /// `value` should be at least `limit`.
    pub(crate) fn at_least(value: f64, limit: f64, unit: &str) -> Option<Self> {
        Some(Self { text: format!("≥ {limit}{unit}"), reached: value >= limit })
    }
}

impl Report {
    /// Notes the machine and how busy it is.
    pub(crate) fn begin(root: &Path) -> Self {
        let root = format!("{}/", root.display());
        Self { root, machine: machine(), part: "", figures: Vec::new(), skipped: Vec::new() }
    }

    /// What follows belongs to this part.
    pub(crate) fn begin_part(&mut self, part: &'static str) {
        self.part = part;
    }

    /// Adds a figure and shows it at once.
    pub(crate) fn add(&mut self, figure: Figure) {
        command::progress(&format!("{}: {}", self.part, figure.line()));
        self.figures.push((self.part, figure));
    }

    /// Notes that something was not measured, and why.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        command::progress(&format!("{name} is skipped: {reason}"));
        self.skipped.push((self.part, name.to_owned(), reason.to_owned()));
    }

    /// Writes the figures of each part between its markers in the documents of a folder. `how` says what the figures
    /// are not comparable without, such as a shorter run.
    pub(crate) fn write(&self, folder: &Path, how: &str) -> Result<()> {
        for part in self.parts() {
            let block = self.block(part, how)?;
            let path = write_block(folder, part, |_| Ok(block.clone()))?;
            command::progress(&format!("written {part} into {}", path.display()));
        }
        Ok(())
    }

    fn parts(&self) -> Vec<&'static str> {
        let mut parts: Vec<&str> = self.figures.iter().map(|(part, _)| *part).collect();
        parts.dedup();
        parts
    }

    fn block(&self, part: &str, how: &str) -> Result<String> {
        let mut block = String::new();
        writeln!(block, "{}{how}\n", self.machine)?;
        self.table(&mut block, |of| of == part)?;
        // Where figures have no command of their own, the part's is the command.
        Ok(block.replace("```text\n```", &format!("```text\ncargo xtask bench --only {part}\n```")))
    }

    /// Columns in which no figure has anything are left out, and so are the numbers of the commands if there is one only.
    fn table(&self, f: &mut impl fmt::Write, is_wanted: impl Fn(&str) -> bool) -> fmt::Result {
        // Figures of one command share its number.
        let mut commands: Vec<&str> = Vec::new();
        let mut rows: Vec<[String; 6]> = Vec::new();
        for (_, figure) in self.figures.iter().filter(|(part, _)| is_wanted(part)) {
            let mut numbers = Vec::new();
            for command in &figure.commands {
                let index = commands.iter().position(|known| known == command).unwrap_or_else(|| {
                    commands.push(command);
                    commands.len() - 1
                });
                numbers.push((index + 1).to_string());
            }
            let goal = figure.goal.as_ref().map(Goal::verdict).unwrap_or_default();
            let [what, ours, peer, ratio] =
                [&figure.what, &figure.ours, &figure.peer, &figure.ratio].map(String::clone);
            rows.push([numbers.join(", "), what, ours, peer, ratio, goal]);
        }
        let header = ["", "what", "jitprof", "peer", "ratio", "goal"];
        let is_shown = |column: &usize| match column {
            0 => commands.len() > 1,
            1 | 2 => true,
            column => rows.iter().any(|row| !row[*column].is_empty()),
        };
        let shown: Vec<usize> = (0..header.len()).filter(is_shown).collect();
        let line = |cells: &dyn Fn(usize) -> String| {
            let cells: Vec<String> = shown.iter().map(|column| cells(*column)).collect();
            format!("| {} |", cells.join(" | ")).replace("|  |", "| |")
        };
        writeln!(f, "{}", line(&|column| header[column].to_owned()))?;
        writeln!(f, "|{}", "---|".repeat(shown.len()))?;
        for row in &rows {
            writeln!(f, "{}", line(&|column| row[column].clone()))?;
        }
        writeln!(f, "\n```text")?;
        for (index, command) in commands.iter().enumerate() {
            writeln!(f, "{:2} {}", index + 1, command.replace(&self.root, ""))?;
        }
        writeln!(f, "```")?;
        for (_, name, reason) in self.skipped.iter().filter(|(part, ..)| is_wanted(part)) {
            writeln!(f, "\nNot measured: {name}, because it {reason}.")?;
        }
        Ok(())
    }
}

/// The day, in UTC.
pub(crate) fn today() -> String {
    command::output(Command::new("date").args(["-u", "+%F"])).unwrap_or_default().trim().to_owned()
}

/// The machine, and how busy it is.
pub(crate) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let load = read("/proc/loadavg");
    let information = read("/proc/cpuinfo");
    let model = information.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or(std::env::consts::ARCH, |(_, model)| model.trim());
    format!(
        "{}: {cpus} CPUs ({model}), Linux {}, load average {} at the start",
        today(),
        read("/proc/sys/kernel/osrelease").trim(),
        load.split(' ').next().unwrap_or("?")
    )
}

/// Writes a table that another command has printed into its block: the date and the machine above it, and below it the
/// command, which the block has already.
pub(crate) fn write_table(root: &Path, block: &str, table: &str) -> Result<()> {
    let machine = machine();
    let path = write_block(&root.join("docs/measurements"), block, |old| with_table(old, &machine, table))?;
    command::progress(&format!("written {block} into {}", path.display()));
    Ok(())
}

/// A block with another table above its commands.
fn with_table(old: &str, machine: &str, table: &str) -> Result<String> {
    let commands = old.find("```text").map(|at| &old[at..]).context("the block names no command")?;
    let table = table.trim();
    let is_table = !table.is_empty() && table.lines().all(|line| line.starts_with('|') && line.ends_with('|'));
    anyhow::ensure!(is_table, "standard input is no Markdown table");
    Ok(format!("{machine}\n\n{table}\n\n{commands}"))
}

/// Replaces what stands between the markers of a part, in the first document that has them.
pub(crate) fn write_block(folder: &Path, part: &str, block: impl Fn(&str) -> Result<String>) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    paths.sort();
    for path in paths.into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "md")) {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if let Some(old) = block_of(&text, part) {
            let (before, behind) = around(&text, old);
            let text = [before, &block(old)?, behind].concat();
            // In place: the file stays its owner's when this runs as root.
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            return Ok(path);
        }
    }
    anyhow::bail!("no document in {} has the markers of {part}", folder.display())
}

/// What stands between the markers of a part; nothing if a text has none.
fn block_of<'a>(text: &'a str, part: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<!-- bench:{part} -->\n"))?;
    Some(rest.split_once(&format!("<!-- /bench:{part} -->\n"))?.0)
}

/// What stands before a part of a text and behind it, which may be empty.
fn around<'a>(text: &'a str, part: &str) -> (&'a str, &'a str) {
    let begin = part.as_ptr().addr() - text.as_ptr().addr();
    (&text[..begin], &text[begin + part.len()..])
}

impl Figure {
    fn line(&self) -> String {
        let mut line = format!("{}: {}", self.what, self.ours);
        for (before, text) in [(" | ", &self.peer), (" | ", &self.ratio)] {
            if !text.is_empty() {
                line.push_str(before);
                line.push_str(text);
            }
        }
        if let Some(goal) = &self.goal {
            line.push_str(&format!(" | {}", goal.verdict()));
        }
        line
    }
}

impl Goal {
    fn verdict(&self) -> String {
        format!("{} {}", self.text, if self.reached { "reached" } else { "MISSED" })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        for part in self.parts() {
            writeln!(f, "\n\n{part}\n")?;
            self.table(f, |of| of == part)?;
        }
        Ok(())
    }
}

/// How many times `theirs` goes into `ours`; nothing if there is nothing to compare with.
pub(crate) fn ratio(ours: f64, theirs: f64) -> String {
    match ours / theirs {
        ratio if !ratio.is_finite() => String::new(),
        ratio if ratio.abs() < 0.1 => format!("{ratio:.3}"),
        ratio => format!("{ratio:.2}"),
    }
}

/// The middle value, and the least and largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// `None` for no values.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let upper = *sorted.get(sorted.len() / 2)?;
        let lower = *sorted.get((sorted.len() - 1) / 2)?;
        Some(Self { median: (lower + upper) / 2.0, least, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_lies_between_the_middle_two() {
        assert_eq!(Spread::of(&[4.0, 1.0, 3.0, 2.0]), Some(Spread { median: 2.5, least: 1.0, most: 4.0 }));
        assert_eq!(Spread::of(&[]), None);
    }

    fn empty() -> Report {
        Report {
            root: "/here/".into(),
            machine: "some machine".into(),
            part: "",
            figures: Vec::new(),
            skipped: Vec::new(),
        }
    }

    #[test]
    fn each_part_is_written_between_its_markers_and_the_rest_stays() {
        let figure = |what: &str| Figure {
            what: what.into(),
            ours: "1 s".into(),
            peer: String::new(),
            ratio: String::new(),
            goal: None,
            commands: vec![format!("/here/{what}")],
        };
        let mut report = empty();
        report.begin_part("plog");
        report.skip("a peer", "is not installed");
        report.add(figure("logs"));
        report.begin_part("gsym");
        report.add(figure("symbols"));
        let block = report.block("plog", ", quick").unwrap();
        assert!(block.starts_with("some machine, quick\n\n| what | jitprof |\n|---|---|\n| logs | 1 s |\n"), "{block}");
        assert!(block.contains(" 1 logs\n") && !block.contains("symbols"), "{block}");
        assert!(block.ends_with("Not measured: a peer, because it is not installed.\n"), "{block}");
        let text = "# Logs\n<!-- bench:plog -->\nold\n<!-- /bench:plog -->\nmore\n";
        assert_eq!(block_of(text, "plog"), Some("old\n"));
        assert_eq!(block_of(text, "gsym"), None);
    }

    #[test]
    fn a_table_from_elsewhere_is_written_above_the_commands_of_its_block() {
        let folder = std::env::temp_dir().join(format!("xtask-blocks-{}", std::process::id()));
        let document = folder.join("docs/measurements/formats.md");
        fs::create_dir_all(document.parent().unwrap()).unwrap();
        let text = |block: &str| format!("before\n<!-- bench:symbols -->\n{block}<!-- /bench:symbols -->\nafter\n");
        fs::write(&document, text("old\n\n| a |\n\n```text\nrun it\n```\n")).unwrap();
        write_table(&folder, "symbols", "| b |\n|---|\n| 1 |\n").unwrap();
        let written = fs::read_to_string(&document).unwrap();
        let machine = Report::begin(&folder).machine;
        let (day, _) = machine.split_once(':').unwrap();
        assert!(written.starts_with(&format!("before\n<!-- bench:symbols -->\n{day}: ")), "{written}");
        assert!(written.contains("at the start\n\n| b |\n|---|\n| 1 |\n\n```text\nrun it\n```\n<!-- /"), "{written}");
        assert!(written.ends_with(" -->\nafter\n") && !written.contains("old"), "{written}");
        fs::write(&document, "| b |\n<!-- bench:symbols -->\n<!-- /bench:symbols -->\n").unwrap();
        write_block(document.parent().unwrap(), "symbols", |_| Ok("first\n".to_owned())).unwrap();
        let first = fs::read_to_string(&document).unwrap();
        assert_eq!(first, "| b |\n<!-- bench:symbols -->\nfirst\n<!-- /bench:symbols -->\n", "an empty block");
        fs::write(&document, &written).unwrap();
        for (block, table) in [("symbols", "no table"), ("symbols", ""), ("names", "| b |")] {
            assert!(write_table(&folder, block, table).is_err(), "{block}: {table}");
        }
        assert_eq!(fs::read_to_string(&document).unwrap(), written);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_missed_goal_is_said_in_the_table() {
        let figure = |what: &str, value| Figure {
            what: what.into(),
            ours: format!("{value} s"),
            peer: String::new(),
            ratio: String::new(),
            goal: Goal::at_most(value, 1.0, " s"),
            commands: vec!["run".into(), "/here/peer".into()],
        };
        let mut report = empty();
        report.add(figure("fast", 0.5));
        report.add(figure("slow", 1.5));
        let text = report.to_string();
        assert!(text.contains("| 1, 2 | fast | 0.5 s | ≤ 1 s reached |"), "{text}");
        assert!(text.contains("| 1, 2 | slow | 1.5 s | ≤ 1 s MISSED |"), "{text}");
        assert!(text.ends_with("```text\n 1 run\n 2 peer\n```\n"), "{text}");
    }
}
