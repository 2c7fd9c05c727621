//! The figures of a run, as a Markdown table with the commands below it.

use std::fmt;
use std::path::Path;

use crate::command;

/// What was measured, in order.
pub(crate) struct Report {
    /// The workspace's folder, which is left out of the commands: they are run from there.
    root: String,
    machine: String,
    figures: Vec<Figure>,
    skipped: Vec<(String, String)>,
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
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let load = read("/proc/loadavg");
        let machine = format!(
            "{cpus} CPUs, Linux {}, load average {} at the start",
            read("/proc/sys/kernel/osrelease").trim(),
            load.split(' ').next().unwrap_or("?")
        );
        let root = format!("{}/", root.display());
        Self { root, machine, figures: Vec::new(), skipped: Vec::new() }
    }

    /// Adds a figure and shows it at once.
    pub(crate) fn add(&mut self, figure: Figure) {
        command::progress(&figure.line());
        self.figures.push(figure);
    }

    /// Notes that something was not measured, and why.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        command::progress(&format!("{name} is skipped: {reason}"));
        self.skipped.push((name.to_owned(), reason.to_owned()));
    }
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
        writeln!(f, "{}\n", self.machine)?;
        writeln!(f, "| | what | jitprof | peer | ratio | goal |")?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        // Figures of one command share its number.
        let mut commands: Vec<&str> = Vec::new();
        for figure in &self.figures {
            let mut numbers = Vec::new();
            for command in &figure.commands {
                let index = commands.iter().position(|known| known == command).unwrap_or_else(|| {
                    commands.push(command);
                    commands.len() - 1
                });
                numbers.push((index + 1).to_string());
            }
            let numbers = numbers.join(", ");
            let goal = figure.goal.as_ref().map(Goal::verdict).unwrap_or_default();
            let Figure { what, ours, peer, ratio, .. } = figure;
            writeln!(f, "| {numbers} | {what} | {ours} | {peer} | {ratio} | {goal} |")?;
        }
        writeln!(f, "\n```text")?;
        for (index, command) in commands.iter().enumerate() {
            writeln!(f, "{:2} {}", index + 1, command.replace(&self.root, ""))?;
        }
        writeln!(f, "```")?;
        for (name, reason) in &self.skipped {
            writeln!(f, "\nNot measured: {name}, because it {reason}.")?;
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
        let mut report =
            Report { root: "/here/".into(), machine: String::new(), figures: Vec::new(), skipped: Vec::new() };
        report.add(figure("fast", 0.5));
        report.add(figure("slow", 1.5));
        let text = report.to_string();
        assert!(text.contains("| 1, 2 | fast | 0.5 s |  |  | ≤ 1 s reached |"), "{text}");
        assert!(text.contains("| 1, 2 | slow | 1.5 s |  |  | ≤ 1 s MISSED |"), "{text}");
        assert!(text.ends_with("```text\n 1 run\n 2 peer\n```\n"), "{text}");
    }
}
