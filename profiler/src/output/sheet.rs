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
/// The same where there is no room: columns are left out before texts are shorter.
const LEAST_SHOWN: usize = 24;
/// Between two columns of such a table.
const GAP: &str = "  ";
/// Columns that it is without where it is too wide, one after the other. What a row is of stays, and one number that its
/// place in the table is by.
const SPARED: [&str; 18] = [
    "file",
    "module",
    "total_before",
    "total_after",
    "own_before",
    "own_after",
    "total_cpu_s",
    "own_cpu_s",
    "cpu_s_before",
    "cpu_s_after",
    "samples_before",
    "samples_after",
    "samples",
    "total_confidence",
    "total_change",
    "total_share",
    "kind",
    "own_confidence",
];
/// The columns of functions that changed.
const OF_CHANGES: [&str; 12] = [
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
        let mut sheet = Self::new(by, &OF_CHANGES);
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

    /// Writes it. As text, no line is longer than `room` characters.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, format: SheetFormat, room: usize, mut writer: impl Write) -> io::Result<()> {
        match format {
            SheetFormat::Text => self.write_text(room, &mut writer),
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

    fn write_text(&self, room: usize, writer: &mut impl Write) -> io::Result<()> {
        let shown = |cell: &Value| match cell {
            Value::String(text) => text.clone(),
            Value::Number(number) if number.is_f64() => format!("{:.4}", number.as_f64().unwrap_or(0.0)),
            other => other.to_string(),
        };
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(shown).collect()).collect();
        let width = |at: usize, name: &String| {
            rows.iter().map(|row| row[at].chars().count()).chain([name.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(|(at, name)| width(at, name)).collect();
        let (columns, longest) = self.fitting(&widths, room);
        for cells in std::iter::once(&self.columns).chain(&rows) {
            let cells = columns.iter().map(|&at| {
                let (cell, width) = (&cells[at], widths[at]);
                if !self.is_text(at) {
                    return format!("{cell:>width$}");
                }
                let (cell, width) = (shorten(cell, longest), width.min(longest));
                format!("{cell:<width$}")
            });
            writeln!(writer, "{}", cut(cells.collect::<Vec<_>>().join(GAP).trim_end(), room))?;
        }
        let left_out = (0..widths.len()).filter(|at| !columns.contains(at)).map(|at| &*self.columns[at]);
        let left_out: Vec<&str> = left_out.collect();
        if left_out.is_empty() {
            return Ok(());
        }
        let said = format!("--table csv has also {}", left_out.join(", "));
        wrapped(&said, room).iter().try_for_each(|line| writeln!(writer, "{}", cut(line, room)))
    }

    /// Whether a column has texts, and not numbers.
    fn is_text(&self, at: usize) -> bool {
        self.rows.first().is_some_and(|row| row[at].is_string())
    }

    /// The columns of so many characters that fit into a line, and the longest text that does then.
    fn fitting(&self, widths: &[usize], room: usize) -> (Vec<usize>, usize) {
        let line = |columns: &[usize], longest: usize| {
            let width = |at: &usize| if self.is_text(*at) { widths[*at].min(longest) } else { widths[*at] };
            columns.iter().map(width).sum::<usize>() + GAP.len() * columns.len().saturating_sub(1)
        };
        let mut columns: Vec<usize> = (0..widths.len()).collect();
        for name in SPARED {
            if line(&columns, LEAST_SHOWN) <= room {
                break;
            }
            // The first says of whom a row is, and a label may have any name.
            columns.retain(|at| *at == 0 || self.columns[*at] != name);
        }
        let longest = (LEAST_SHOWN..=SHOWN).rev().find(|longest| line(&columns, *longest) <= room);
        (columns, longest.unwrap_or(LEAST_SHOWN))
    }
}

/// As much of a line as there is room for.
fn cut(line: &str, room: usize) -> &str {
    line.char_indices().nth(room).map_or(line, |(end, _)| &line[..end])
}

/// A text as lines that are no longer than there is room, as far as its words are not.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut().filter(|line| line.len() + 1 + word.len() <= room) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
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

#[cfg(test)]
mod tests {
    use super::*;

    const OF_FUNCTIONS: [&str; 9] =
        ["samples", "own_cpu_s", "own_share", "total_cpu_s", "total_share", "kind", "function", "module", "file"];

    fn functions() -> Sheet {
        let mut sheet = Sheet::new(Some("comm"), &OF_FUNCTIONS);
        for function in ["short".to_owned(), "é".repeat(200), format!("{}::end", "long".repeat(40))] {
            let mut row: Vec<Value> = vec!["node".into(), 12.into()];
            row.extend([0.5, 0.25, 1.0, 0.5].map(Value::from));
            row.extend(["JIT optimised *".to_owned(), function, "/m".repeat(70), "/f".repeat(70)].map(Value::from));
            sheet.rows.push(row);
        }
        sheet
    }

    fn text(sheet: &Sheet, format: SheetFormat, room: usize) -> String {
        let mut written = Vec::new();
        sheet.write(format, room, &mut written).unwrap();
        String::from_utf8(written).unwrap()
    }

    #[test]
    fn no_line_of_a_table_for_people_is_longer_than_there_is_room() {
        for room in [30, 60, 80, 120, 160, 200, 400] {
            let text = text(&functions(), SheetFormat::Text, room);
            assert!(text.lines().all(|line| line.chars().count() <= room), "{room}: {text}");
            assert_eq!(text.lines().filter(|line| line.starts_with("node")).count(), 3, "{text}");
        }
    }

    #[test]
    fn columns_are_left_out_and_said_before_a_function_has_no_name_left() {
        let narrow = text(&functions(), SheetFormat::Text, 80);
        let head: Vec<&str> = narrow.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(head, ["comm", "samples", "own_share", "total_share", "kind", "function"]);
        assert!(narrow.lines().any(|line| line.contains("longlong") && line.contains("…#")), "{narrow}");
        assert!(narrow.ends_with("--table csv has also own_cpu_s, total_cpu_s, module, file\n"), "{narrow}");
        let wide = text(&functions(), SheetFormat::Text, 250);
        assert!(wide.contains(" file") && wide.contains(" short ") && !wide.contains("csv"), "{wide}");
        let whole = text(&functions(), SheetFormat::Csv, 80);
        assert!(whole.contains(&"long".repeat(40)) && whole.starts_with("comm,samples,own_cpu_s,"), "{whole}");
    }

    #[test]
    fn a_function_that_changed_has_its_name_in_a_narrow_table() {
        let function = "App\\Cart::totalOfBaskets";
        let mut sheet = Sheet::new(Some("comm"), &OF_CHANGES);
        let mut row: Vec<Value> = vec!["php-fpm: pool w".into()];
        row.extend([0.25, 0.5, 0.25, 0.999, 0.5, 0.75, 0.25, 0.999].map(Value::from));
        row.extend(["JIT optimised *", function, "/usr/lib/php/opcache.so", "/srv/app/src/Cart.php"].map(Value::from));
        sheet.rows.push(row);
        for (room, shown) in [
            (80, &["comm", "own_change", "own_confidence", "function"][..]),
            (120, &["comm", "own_change", "own_confidence", "total_change", "total_confidence", "kind", "function"]),
        ] {
            let text = text(&sheet, SheetFormat::Text, room);
            assert!(text.lines().all(|line| line.chars().count() <= room), "{text}");
            assert_eq!(text.lines().next().unwrap().split_whitespace().collect::<Vec<_>>(), shown, "{text}");
            assert!(text.lines().nth(1).unwrap().ends_with(function), "{text}");
            // What is left out is said in full.
            assert!(OF_CHANGES.iter().all(|column| text.contains(column)), "{text}");
        }
    }

    #[test]
    fn a_label_that_is_called_like_a_column_stays() {
        let mut sheet = Sheet::new(Some("file"), &["samples"]);
        sheet.rows.push(vec!["a".repeat(50).into(), 7.into()]);
        assert!(text(&sheet, SheetFormat::Text, 20).starts_with("file"));
    }
}
