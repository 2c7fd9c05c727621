//! Tables for programs: CSV, and JSON as a list of objects.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Map, Value};

use super::color::Class;
use crate::profile::{
    Amount, Diff, FunctionRef, Normalize, Profile, Task, TaskId, Top, TopRow, label_of, printable, shorten,
};

/// Values of a label that are told apart, those with the most CPU time first.
const MAX_VALUES: usize = 1000;
/// What stands for processes without the label.
const NO_VALUE: &str = "-";
/// Longest text of a table for people, in characters.
const SHOWN: usize = 60;

/// How a table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SheetFormat {
    /// Columns for people.
    Text,
    /// RFC 4180, with a line of names.
    Csv,
    /// A list of objects.
    Json,
}

/// A table: names of columns, and rows of as many values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sheet {
    columns: Vec<String>,
    rows: Vec<Vec<Value>>,
}

impl Sheet {
    fn new(by: Option<&str>, columns: &[&str]) -> Self {
        let columns = by.into_iter().chain(columns.iter().copied()).map(str::to_owned).collect();
        Self { columns, rows: Vec::new() }
    }

    /// What each value of a label used.
    pub fn of_values(profile: &Profile, by: &str) -> Self {
        let mut sheet = Self::new(Some(by), &["samples", "cpu_s", "share"]);
        let all = amount(profile);
        for (value, part) in sums(profile, by) {
            sheet.rows.push(vec![value.into(), part.samples.into(), seconds(part).into(), share(part, all).into()]);
        }
        sheet
    }

    /// The same of two profiles: the part that each value had of the CPU time of each.
    pub fn of_value_changes(before: &Profile, after: &Profile, by: &str) -> Self {
        let columns = ["samples_before", "samples_after", "cpu_s_before", "cpu_s_after", "share_before", "share_after"];
        let mut sheet = Self::new(Some(by), &columns);
        let sides = [before, after];
        let all = sides.map(amount);
        let mut values: HashMap<String, [Amount; 2]> = HashMap::new();
        for (side, profile) in sides.into_iter().enumerate() {
            sums(profile, by).into_iter().for_each(|(value, part)| values.entry(value).or_default()[side] = part);
        }
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(|one, other| {
            (one.1[0].cpu_ns.max(one.1[1].cpu_ns), &other.0)
                .cmp(&(other.1[0].cpu_ns.max(other.1[1].cpu_ns), &one.0))
                .reverse()
        });
        for (value, parts) in values {
            let mut row: Vec<Value> = vec![value.into()];
            row.extend(parts.map(|part| part.samples.into()));
            row.extend(parts.map(|part| seconds(part).into()));
            row.extend([0, 1].map(|side| share(parts[side], all[side]).into()));
            sheet.rows.push(row);
        }
        sheet
    }

    /// The functions that use the most, at most `rows` of them; with a label those of each of its values.
    pub fn of_functions(profile: &Profile, rows: usize, by: Option<&str>) -> Self {
        let columns =
            ["samples", "own_cpu_s", "own_share", "total_cpu_s", "total_share", "kind", "function", "module", "file"];
        let mut sheet = Self::new(by, &columns);
        for (value, part) in parts(profile, by) {
            let top = Top::of(&part);
            for TopRow { function, own, total } in top.rows.iter().take(rows) {
                let mut row: Vec<Value> = value.iter().map(|value| value.clone().into()).collect();
                row.push(own.samples.into());
                row.extend(
                    [seconds(*own), share(*own, top.all), seconds(*total), share(*total, top.all)].map(Value::from),
                );
                row.extend(described(function));
                sheet.rows.push(row);
            }
        }
        sheet
    }

    /// The functions that changed the most, at most `rows` of them; with a label those of each value that both sides have.
    pub fn of_changes(
        before: &Profile,
        after: &Profile,
        normalize: Normalize,
        (rows, by): (usize, Option<&str>),
    ) -> Self {
        let columns = [
            "own_before",
            "own_after",
            "own_change",
            "own_confidence",
            "total_before",
            "total_after",
            "total_change",
            "total_confidence",
            "kind",
            "function",
            "module",
            "file",
        ];
        let mut sheet = Self::new(by, &columns);
        let mut olds = parts(before, by);
        for (value, new) in parts(after, by) {
            let Some(at) = olds.iter().position(|old| old.0 == value) else { continue };
            let old = olds.swap_remove(at).1;
            let diff = Diff::new(&old, &new, normalize);
            for change in diff.changes.iter().take(rows) {
                let mut row: Vec<Value> = value.iter().map(|value| value.clone().into()).collect();
                for (both, confidence) in [(change.own, change.own_confidence), (change.total, change.total_confidence)]
                {
                    let numbers = [diff.value(both[0], 0), diff.value(both[1], 1), diff.change(both), confidence];
                    row.extend(numbers.map(Value::from));
                }
                row.extend(described(&change.function));
                sheet.rows.push(row);
            }
        }
        sheet
    }

    /// Writes it.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, format: SheetFormat, mut writer: impl Write) -> io::Result<()> {
        match format {
            SheetFormat::Text => self.write_text(&mut writer),
            SheetFormat::Csv => self.write_csv(&mut writer),
            SheetFormat::Json => {
                let object =
                    |row: &Vec<Value>| self.columns.iter().cloned().zip(row.iter().cloned()).collect::<Map<_, _>>();
                let rows: Vec<_> = self.rows.iter().map(object).collect();
                serde_json::to_writer(&mut writer, &rows)?;
                writeln!(writer)
            }
        }
    }

    fn write_csv(&self, writer: &mut impl Write) -> io::Result<()> {
        writeln!(writer, "{}\r", self.columns.iter().map(|name| csv(name)).collect::<Vec<_>>().join(","))?;
        for row in &self.rows {
            let cells: Vec<String> =
                row.iter().map(|cell| cell.as_str().map_or_else(|| cell.to_string(), csv)).collect();
            writeln!(writer, "{}\r", cells.join(","))?;
        }
        Ok(())
    }

    fn write_text(&self, writer: &mut impl Write) -> io::Result<()> {
        let shown = |cell: &Value| match cell {
            Value::String(text) => shorten(text, SHOWN).into_owned(),
            Value::Number(number) if number.is_f64() => format!("{:.4}", number.as_f64().unwrap_or(0.0)),
            other => other.to_string(),
        };
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(shown).collect()).collect();
        let width = |at: usize, name: &String| {
            rows.iter().map(|row| row[at].chars().count()).chain([name.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(|(at, name)| width(at, name)).collect();
        let is_text = |at: usize| self.rows.first().is_some_and(|row| row[at].is_string());
        for cells in std::iter::once(&self.columns).chain(&rows) {
            let cells = cells.iter().enumerate().map(|(at, cell)| {
                let width = widths[at];
                if is_text(at) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            writeln!(writer, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

fn csv(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

fn value_of(task: &Task, by: &str) -> String {
    label_of(task, by)
        .filter(|value| !value.is_empty())
        .map_or_else(|| NO_VALUE.to_owned(), |value| printable(&value).into())
}

/// What each value of a label used, the one with the most first.
fn sums(profile: &Profile, by: &str) -> Vec<(String, Amount)> {
    let mut of_task: HashMap<TaskId, Amount> = HashMap::new();
    profile.visit_rows(|row| add(of_task.entry(row.task).or_default(), row.cpu_ns, row.count));
    let mut sums: HashMap<String, Amount> = HashMap::new();
    for (task, part) in of_task {
        add(sums.entry(value_of(profile.task_of(task), by)).or_default(), part.cpu_ns, part.samples);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
    sums
}

fn add(sum: &mut Amount, cpu_ns: u64, samples: u64) {
    sum.cpu_ns = sum.cpu_ns.saturating_add(cpu_ns);
    sum.samples = sum.samples.saturating_add(samples);
}

/// The samples of each value of a label; all of them without one.
fn parts(profile: &Profile, by: Option<&str>) -> Vec<(Option<String>, Profile)> {
    let start = profile.meta().start;
    let Some(by) = by else { return vec![(None, profile.select(start, |_| true))] };
    let mut values: HashMap<TaskId, String> = HashMap::new();
    profile.visit_rows(|row| {
        values.entry(row.task).or_insert_with(|| value_of(profile.task_of(row.task), by));
    });
    let part = |value: String| {
        let mut part = profile.select(start, |row| values.get(&row.task) == Some(&value));
        part.set_duration(profile.meta().duration);
        (Some(value), part)
    };
    sums(profile, by).into_iter().take(MAX_VALUES).map(|(value, _)| part(value)).collect()
}

fn described(function: &FunctionRef<'_>) -> [Value; 4] {
    let text = |text: Option<&str>| text.map_or_else(String::new, |text| printable(text).into_owned()).into();
    let kind = Class::of(function.as_frame()).label();
    [kind.into(), printable(function.name).into_owned().into(), text(function.module), text(function.file)]
}

fn amount(profile: &Profile) -> Amount {
    let mut all = Amount::default();
    profile.visit_rows(|row| add(&mut all, row.cpu_ns, row.count));
    all
}

#[expect(clippy::cast_precision_loss, reason = "more than 2^53 ns are 104 days")]
fn seconds(amount: Amount) -> f64 {
    amount.cpu_ns as f64 / 1e9
}

fn share(amount: Amount, all: Amount) -> f64 {
    // Nine digits are more than any number of samples has.
    if all.cpu_ns == 0 { 0.0 } else { (seconds(amount) / seconds(all) * 1e9).round() / 1e9 }
}
