//! `--records` and `--follow`: one line for each record.

use std::io::{self, Write};

use super::super::subcommand::SubcommandError;
use super::filter::{Filter, Progress};
use super::item::Item;
use super::source::Source;
use crate::profile::printable;
use jitprof_common::units::FileOffset;
use jitprof_jitdump::{ParserOptions, Step};

/// Writes the records of one dump.
pub(super) struct Lister<'a, W> {
    filter: &'a Filter<'a>,
    progress: Progress,
    json: bool,
    /// Written into each line of JSON; `None` if there is but one dump.
    path: Option<&'a str>,
    out: W,
    failed: Option<io::Error>,
}

#[derive(serde::Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    dump: Option<&'a str>,
    #[serde(flatten)]
    item: Item<'a>,
}

impl<'a, W: Write> Lister<'a, W> {
    pub(super) fn new(filter: &'a Filter<'a>, progress: Progress, json: bool, path: Option<&'a str>, out: W) -> Self {
        Self { filter, progress, json, path, out, failed: None }
    }

    /// Writes the step if it is wanted. After a failure nothing is written any more.
    pub(super) fn step(&mut self, at: FileOffset, step: &Step<'_>) {
        if self.failed.is_some() || !self.filter.takes(&mut self.progress, step) {
            return;
        }
        let Some(item) = Item::of(at, step) else { return };
        let written = if self.json {
            let line = Line { dump: self.path, item };
            serde_json::to_writer(&mut self.out, &line).map_err(io::Error::from).and_then(|()| writeln!(self.out))
        } else {
            writeln!(self.out, "{item}")
        };
        self.failed = written.err();
    }

    pub(super) fn finish(self) -> io::Result<Progress> {
        self.failed.map_or(Ok(self.progress), Err)
    }
}

/// Lists the dumps one after the other.
pub(super) fn run(
    sources: Vec<Source>,
    filter: &Filter<'_>,
    json: bool,
    out: &mut impl Write,
) -> Result<(), SubcommandError> {
    let several = sources.len() > 1;
    for source in &sources {
        if several && !json {
            writeln!(out, "==> {} <==", printable(&source.path))?;
        }
        let path = several.then_some(source.path.as_str());
        let mut lister = Lister::new(filter, Progress::default(), json, path, &mut *out);
        source.walk(ParserOptions::default(), &mut |at, step| lister.step(at, step))?;
        lister.finish()?;
    }
    Ok(())
}
