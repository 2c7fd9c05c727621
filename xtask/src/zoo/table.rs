//! The table of what was seen.

use std::fmt;

use super::measure::{Fault, Figures, Share};

/// A row: one start of one runtime.
pub(super) struct Row {
    /// The runtime's name on the command line.
    pub(super) runtime: &'static str,
    /// As it says itself.
    pub(super) version: String,
    /// The day of the recording.
    pub(super) day: String,
    /// How it was started.
    pub(super) how: &'static str,
    /// What was seen, or why nothing was.
    pub(super) seen: Result<Figures, String>,
    /// The advice that is due.
    pub(super) due: Option<&'static str>,
    /// What is below the limit, and why, where that is known.
    pub(super) because: Option<(&'static [Fault], &'static str)>,
}

impl Row {
    /// Whether it is as it should be, or it is known why it is not.
    pub(super) fn is_explained(&self) -> bool {
        let advised = |figures: &Figures| figures.is_advice_right(self.due);
        self.seen.as_ref().is_ok_and(|figures| advised(figures) && self.unexplained(figures).is_empty())
    }

    fn unexplained(&self, figures: &Figures) -> Vec<Fault> {
        let known = self.because.map_or(&[][..], |(faults, _)| faults);
        figures.faults().into_iter().filter(|fault| !known.contains(fault)).collect()
    }

    fn remark(&self) -> String {
        let figures = match &self.seen {
            Err(error) => return format!("not recorded: {error}"),
            Ok(figures) => figures,
        };
        match (self.unexplained(figures).as_slice(), self.because) {
            ([], Some((_, reason))) if !figures.faults().is_empty() => reason.to_owned(),
            ([], _) => String::new(),
            (faults, _) => format!("**not known why: {faults:?}**"),
        }
    }

    fn advice(&self) -> &'static str {
        match (&self.seen, self.due) {
            (Err(_), _) => "",
            (Ok(figures), due) if !figures.is_advice_right(due) => "**wrong**",
            (Ok(_), Some(_)) => "right",
            (Ok(_), None) => "none due",
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = |of: &dyn Fn(&Figures) -> String| self.seen.as_ref().map(of).unwrap_or_default();
        let share = |of: &dyn Fn(&Figures) -> Share| {
            cell(&|figures| of(figures).fraction().map_or("–".to_owned(), |share| format!("{:.1} %", share * 100.0)))
        };
        write!(
            f,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            self.runtime,
            self.version,
            self.day,
            self.how,
            cell(&|figures| figures.samples.to_string()),
            share(&|figures| figures.named),
            share(&|figures| figures.complete),
            share(&|figures| figures.chain),
            share(&|figures| figures.hot),
            self.advice(),
            self.remark().replace('|', "/").replace('\n', " ")
        )
    }
}

/// What stands above the rows.
const HEAD: &str = "| runtime | version | recorded | started with | samples | named | complete | whole chain | hot (75 %) | \
                    advice | why below 99 % |\n\
                    |---|---|---|---|---|---|---|---|---|---|---|\n";

/// All rows below their heads.
pub(super) fn text(rows: &[Row]) -> String {
    below_head(rows.iter().map(Row::to_string))
}

/// The rows of a table in a document, those of runtimes that were recorded again replaced: in the order of `known`, without
/// the rows of what is not among them.
pub(super) fn merged(document: &str, rows: &[Row], known: &[&str]) -> String {
    let is_new = |name: &str| rows.iter().any(|row| row.runtime == name);
    let lines = known.iter().flat_map(|name| {
        let new = rows.iter().filter(|row| row.runtime == *name).map(Row::to_string);
        let old = document.lines().filter(|line| !is_new(name) && cells(line).first() == Some(name));
        new.chain(old.map(str::to_owned)).collect::<Vec<_>>()
    });
    below_head(lines)
}

fn below_head(rows: impl Iterator<Item = String>) -> String {
    rows.fold(HEAD.to_owned(), |text, row| text + &row + "\n")
}

/// The cells of a row; none of what is no row.
pub(super) fn cells(line: &str) -> Vec<&str> {
    let row = line.strip_prefix("| ").and_then(|rest| rest.strip_suffix(" |"));
    row.map_or(Vec::new(), |row| row.split(" | ").map(str::trim).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(complete: u64, because: Option<(&'static [Fault], &'static str)>) -> Row {
        let all = Share { part: 1000, whole: 1000 };
        let figures = Figures {
            samples: 1000,
            named: all,
            complete: Share { part: complete, whole: 1000 },
            chain: all,
            hot: Share { part: 752, whole: 1000 },
            advice: Vec::new(),
        };
        let (version, day) = ("1.2".to_owned(), "2026-11-23".to_owned());
        Row { runtime: "x-1", version, day, how: "--names", seen: Ok(figures), due: None, because }
    }

    #[test]
    fn a_row_has_its_figures_and_the_reason_only_where_one_is_needed() {
        let good = row(995, Some((&[Fault::Complete], "a reason")));
        assert_eq!(
            good.to_string(),
            "| x-1 | 1.2 | 2026-11-23 | --names | 1000 | 100.0 % | 99.5 % | 100.0 % | 75.2 % | none due |  |"
        );
        assert!(good.is_explained());
        let explained = row(980, Some((&[Fault::Complete], "a reason")));
        assert!(
            explained.is_explained()
                && explained.to_string().ends_with("98.0 % | 100.0 % | 75.2 % | none due | a reason |")
        );
        let unexplained = row(980, None);
        assert!(!unexplained.is_explained() && unexplained.to_string().contains("**not known why: [Complete]**"));
        assert!(!row(980, Some((&[Fault::Chain], "a reason"))).is_explained(), "the reason is another fault's");
    }

    #[test]
    fn what_was_not_recorded_and_wrong_advice_are_never_explained() {
        let mut wrong = row(1000, Some((&[Fault::Complete], "a reason")));
        wrong.due = Some("--names");
        assert!(!wrong.is_explained() && wrong.to_string().contains("**wrong**"));
        let failed = Row { seen: Err("no such package".into()), ..row(1000, Some((&[Fault::Complete], "a reason"))) };
        assert!(!failed.is_explained());
        assert_eq!(
            failed.to_string(),
            "| x-1 | 1.2 | 2026-11-23 | --names |  |  |  |  |  |  | not recorded: no such package |"
        );
    }

    #[test]
    fn rows_of_what_was_recorded_again_are_replaced_and_the_others_stay() {
        let old = "2026-11-22: 2 CPUs\n\n| runtime | version |\n|---|---|\n| w-1 | 1 | a |\n| x-1 | 1 | old |\n\
                   | x-1 | 1 | older |\n| gone | 1 | b |\n| x-10 | 1 | c |\n\n```text\nrun\n```\n";
        let rows = [row(995, None)];
        let merged = merged(old, &rows, &["x-1", "w-1", "x-10"]);
        let rows = format!("{}\n| w-1 | 1 | a |\n| x-10 | 1 | c |\n", rows[0]);
        assert_eq!(merged, format!("{HEAD}{rows}"));
    }
}
