//! What was measured stands among the measurements, and nowhere else.

use crate::{assert_none, markdown, written_by_hand};

/// Units that only measured things have.
const UNITS: [&str; 6] = ["µs", "MB/s", "GB/s", "records/s", "iterations/s", " ns a "];

#[test]
fn figures_stand_among_the_measurements_only() {
    let documents = markdown::all();
    let mut wrong = Vec::new();
    for document in written_by_hand(&documents) {
        for (line, text) in document.lines() {
            // What a program prints is an example.
            let text: String = text.split('`').step_by(2).collect();
            let is_quantity = |(at, _): (usize, &str)| text[..at].trim_end().ends_with(|c: char| c.is_ascii_digit());
            let unit = UNITS.iter().find(|unit| text.match_indices(**unit).any(is_quantity));
            if let Some(found) = unit.map(|unit| (*unit).to_owned()).or_else(|| share_in(&text)) {
                wrong.push(format!("{}:{line}: {found:?} looks measured", document.path));
            }
        }
    }
    assert_none("figures", wrong);
}

/// `577 of 577`, `75.2 % ± 2.2`: counts and shares that somebody has found.
fn share_in(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_count =
        |word: &str| word.len() > 1 && word.trim_end_matches([',', ';', '.']).chars().all(|c| c.is_ascii_digit());
    let of = words.windows(3).find(|three| three[1] == "of" && is_count(three[0]) && is_count(three[2]));
    of.map(|three| three.join(" ")).or_else(|| text.contains('±').then(|| "±".to_owned()))
}

#[test]
fn measurements_say_where_and_by_what_they_were_taken() {
    let documents = markdown::all();
    let mut wrong = Vec::new();
    for document in documents.iter().filter(|document| document.path.starts_with("docs/measurements/")) {
        let mut open: Option<(usize, String)> = None;
        let mut block = String::new();
        for (index, line) in document.text.lines().enumerate() {
            let marker = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
            match (marker, &open) {
                (Some(name), None) if name.starts_with("bench:") => {
                    (open, block) = (Some((index + 1, name.to_owned())), String::new());
                }
                (Some(name), Some((at, begun))) => {
                    let place = format!("{}:{at}", document.path);
                    if name.strip_prefix('/') != Some(begun) {
                        wrong.push(format!("{place}: {begun} is ended by {name}"));
                    }
                    for (what, wanted) in [("the machine", "CPU"), ("the kernel", "Linux"), ("the command", "```text")]
                    {
                        if !block.contains(wanted) {
                            wrong.push(format!("{place}: {begun} does not say {what}"));
                        }
                    }
                    open = None;
                }
                (_, Some(_)) => block.push_str(&format!("{line}\n")),
                (_, None) if line.starts_with('|') && document.path != "docs/measurements/README.md" => {
                    wrong.push(format!("{}:{}: a table outside of a block", document.path, index + 1));
                }
                (_, None) => {}
            }
        }
        if let Some((at, begun)) = open {
            wrong.push(format!("{}:{at}: {begun} has no end", document.path));
        }
    }
    assert_none("measurements", wrong);
}
