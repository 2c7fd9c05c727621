//! Records as they come.

use std::io::Write;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::super::subcommand::SubcommandError;
use super::JitdumpError;
use super::filter::{Filter, Progress};
use super::list::Lister;
use super::source::{POLL_BYTES, Source};
use crate::cli::say::say;
use crate::profile::printable;
use jitprof_jitdump::{ParserOptions, RecordTail};

/// Between two looks: a reader of lines does not see the difference to none.
const PAUSE: Duration = Duration::from_millis(100);

struct Followed {
    source: Source,
    tail: RecordTail,
    progress: Progress,
}

/// Lists what is there and what comes, until a signal, or the end of the process that writes.
pub(super) fn run(
    sources: Vec<Source>,
    filter: &Filter<'_>,
    json: bool,
    out: &mut impl Write,
) -> Result<(), SubcommandError> {
    let mut all = Vec::with_capacity(sources.len());
    for source in sources {
        let tail = source.tail(ParserOptions::default())?;
        all.push(Followed { source, tail, progress: Progress::default() });
    }
    let failed = |what| move |source| JitdumpError::System { what, source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed("cannot wait for signals"))?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed("cannot wait for signals"))?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed("cannot wait for signals"))?;
        let mut current = None;
        loop {
            // What it wrote before it ended is read after it ended.
            let ended = all.iter().all(|followed| followed.source.process.is_some_and(|process| !process.runs()));
            let more = poll(&mut all, &mut current, filter, json, out)?;
            out.flush()?;
            if ended && !more {
                return Ok(());
            }
            let pause = if more { Duration::ZERO } else { PAUSE };
            tokio::select! {
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    })
}

/// Lists what is new; whether there is more to read at once. `current` is the dump whose records were listed last.
fn poll(
    all: &mut [Followed],
    current: &mut Option<usize>,
    filter: &Filter<'_>,
    json: bool,
    out: &mut impl Write,
) -> Result<bool, SubcommandError> {
    let several = all.len() > 1;
    let mut more = false;
    for (index, Followed { source, tail, progress }) in all.iter_mut().enumerate() {
        let mut lines = Vec::new();
        let path = several.then_some(source.path.as_str());
        let mut lister = Lister::new(filter, *progress, json, path, &mut lines);
        let polled = tail.poll(POLL_BYTES, &mut |at, step| lister.step(at, step));
        *progress = lister.finish()?;
        let polled = polled.map_err(|error| source.failed(error))?;
        if polled.restarted {
            *progress = Progress::default();
            say!("jitprof: {} was rewritten, and is read anew", printable(&source.path));
        }
        if several && !json && !lines.is_empty() && current.replace(index) != Some(index) {
            writeln!(out, "==> {} <==", printable(&source.path))?;
        }
        out.write_all(&lines)?;
        more |= polled.more;
    }
    Ok(more)
}
