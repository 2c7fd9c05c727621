//! The live status line.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::cli::say::say;
use crate::record::Progress;

/// How often the line changes at most.
const PERIOD: Duration = Duration::from_millis(250);
/// Where there is no line, it is said when the end takes longer.
const LONG_END: Duration = Duration::from_secs(3);

/// One line on stderr that is rewritten while a run goes on; nothing when stderr is no terminal.
#[derive(Debug)]
pub(super) struct StatusLine {
    shown: bool,
    enabled: bool,
    quiet: bool,
    started: Instant,
    last: Option<(Instant, Progress)>,
    /// Since when no further samples come.
    ending: Option<Instant>,
    /// That the end takes its time has been said.
    is_end_said: bool,
}

impl StatusLine {
    /// A line that is not shown yet.
    pub(super) fn new(quiet: bool) -> Self {
        Self {
            shown: false,
            enabled: !quiet && std::io::stderr().is_terminal(),
            quiet,
            started: Instant::now(),
            last: None,
            ending: None,
            is_end_said: false,
        }
    }

    /// Shows how far the run is.
    pub(super) fn update(&mut self, progress: Progress) {
        let now = Instant::now();
        if progress.is_ending {
            let ending = *self.ending.get_or_insert(now);
            let is_long = now.duration_since(ending) >= LONG_END;
            if is_long && !self.enabled && !self.quiet && !std::mem::replace(&mut self.is_end_said, true) {
                say!("jitprof: {}", end_line(&progress, usize::MAX));
            }
        }
        if !self.enabled {
            return;
        }
        let rate = match self.last {
            Some((then, _)) if now.duration_since(then) < PERIOD => return,
            Some((then, before)) => {
                per_second(progress.samples.saturating_sub(before.samples), now.duration_since(then))
            }
            None => 0,
        };
        self.last = Some((now, progress));
        let seconds = now.duration_since(self.started).as_secs_f64();
        let text = match progress.is_ending {
            true => end_line(&progress, width()),
            false => line(&progress, rate, seconds, width()),
        };
        self.print(&format!("\r\x1b[K{text}"));
        self.shown = true;
    }

    /// Says that attaching takes its time.
    pub(super) fn attaching(&mut self) {
        if self.enabled {
            let words = ["attaching", ": reading processes, files and announced code", "  (Ctrl-C ends)"];
            self.print(&format!("\r\x1b[K{}", fitting(words.map(str::to_owned).into(), width())));
            self.shown = true;
        }
    }

    /// Clears the line so that other text can take its place.
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

/// Columns of the terminal.
fn width() -> usize {
    columns_of(std::io::stderr()).unwrap_or(80)
}

/// Columns of what is written to, if it is a terminal.
pub(super) fn columns_of(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// What there is to say, the most important first. A line that does not fit would be one more line each time.
fn line(progress: &Progress, rate: u64, seconds: f64, width: usize) -> String {
    let mut parts = vec![format!("{seconds:.1} s"), format!("  {} samples", progress.samples)];
    if progress.lost > 0 {
        parts.push(format!("  lost {}", progress.lost));
    }
    parts.push(format!("  {rate}/s"));
    parts.push(format!("  JIT functions {}", progress.functions));
    parts.push(format!("  waiting for names {}", progress.waiting));
    if progress.lost == 0 {
        parts.push("  lost 0".to_owned());
    }
    parts.push("  (Ctrl-C ends and writes)".to_owned());
    fitting(parts, width)
}

/// What there is to say when no further samples come.
fn end_line(progress: &Progress, width: usize) -> String {
    let waiting = format!(": {} of {} samples wait for names", progress.waiting, progress.samples);
    fitting(vec!["ending".to_owned(), waiting, "  (Ctrl-C writes without them)".to_owned()], width)
}

/// As many parts as leave the last column free: some terminals go on to the next line with it.
fn fitting(parts: Vec<String>, width: usize) -> String {
    let mut line = String::new();
    for part in parts {
        if line.len() + part.len() >= width {
            break;
        }
        line.push_str(&part);
    }
    line
}

fn per_second(count: u64, time: Duration) -> u64 {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    count.saturating_mul(1000) / millis
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_any_width() {
        let progress = Progress { samples: 123_456, functions: 7, waiting: 8, lost: 9, is_ending: false };
        for width in 1..200 {
            assert!(line(&progress, 99, 1234.5, width).len() < width, "{width}");
            assert!(end_line(&progress, width).len() < width, "{width}");
        }
        assert_eq!(line(&progress, 99, 10.0, 40), "10.0 s  123456 samples  lost 9  99/s");
        let whole = line(&Progress { lost: 0, ..progress }, 99, 10.0, 120);
        assert!(whole.ends_with("waiting for names 8  lost 0  (Ctrl-C ends and writes)"), "{whole}");
    }
}
