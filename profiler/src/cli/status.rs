//! The live status line.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::record::Progress;

/// How often the line changes at most.
const PERIOD: Duration = Duration::from_millis(250);

/// One line on stderr that is rewritten while a run goes on; nothing when stderr is no terminal.
#[derive(Debug)]
pub(super) struct StatusLine {
    shown: bool,
    enabled: bool,
    started: Instant,
    last: Option<(Instant, Progress)>,
}

impl StatusLine {
    /// A line that is not shown yet.
    pub(super) fn new(quiet: bool) -> Self {
        Self { shown: false, enabled: !quiet && std::io::stderr().is_terminal(), started: Instant::now(), last: None }
    }

    /// Shows how far the run is.
    pub(super) fn update(&mut self, progress: Progress) {
        if !self.enabled {
            return;
        }
        let now = Instant::now();
        let rate = match self.last {
            Some((then, _)) if now.duration_since(then) < PERIOD => return,
            Some((then, before)) => {
                per_second(progress.samples.saturating_sub(before.samples), now.duration_since(then))
            }
            None => 0,
        };
        self.last = Some((now, progress));
        let seconds = now.duration_since(self.started).as_secs_f64();
        let text = format!(
            "\r\x1b[K{seconds:.1} s  {} samples  {rate}/s  JIT functions {}  waiting for names {}  lost {}  (Ctrl-C ends and writes)",
            progress.samples, progress.functions, progress.waiting, progress.lost
        );
        self.print(&text);
        self.shown = true;
    }

    /// Removes the line.
    pub(super) fn clear(&mut self) {
        if self.shown {
            self.print("\r\x1b[K");
            self.shown = false;
        }
    }

    /// A terminal that has gone away is no reason to stop recording.
    fn print(&mut self, text: &str) {
        let mut stderr = std::io::stderr().lock();
        if stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush()).is_err() {
            self.enabled = false;
        }
    }
}

fn per_second(count: u64, time: Duration) -> u64 {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    count.saturating_mul(1000) / millis
}
