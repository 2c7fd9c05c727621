//! The terminal: taken, given back whatever happens, and what is said meanwhile.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use tracing_subscriber::fmt::MakeWriter;

use crate::cli::say::say;
use crate::profile::printable;

/// Lines that are kept of what is said while the screen is taken.
const MAX_LINES: usize = 100;

/// What is said while the screen is taken: warnings, and a panic's message. It is printed when the screen is given back.
#[derive(Clone, Default)]
pub(super) struct Said(Arc<Mutex<VecDeque<String>>>);

impl Said {
    fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= MAX_LINES {
            lines.pop_front();
        }
        lines.push_back(printable(line).into_owned());
    }

    /// The last thing that was said.
    pub(super) fn last(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).back().cloned()
    }

    /// How many lines there are.
    pub(super) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn print(&self) {
        for line in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            say!("{line}");
        }
    }

    /// Takes up warnings from here on.
    pub(super) fn take_log(&self) {
        let log = tracing_subscriber::fmt()
            .with_writer(self.clone())
            .log_internal_errors(false)
            .with_ansi(false)
            .with_target(false)
            .with_env_filter(tracing_subscriber::EnvFilter::new("warn"))
            .without_time()
            .finish();
        if tracing::subscriber::set_global_default(log).is_err() {
            tracing::debug!("warnings go where they went");
        }
    }
}

/// A line of the log.
pub(super) struct LogLine(Said);

impl Write for LogLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        String::from_utf8_lossy(bytes).lines().for_each(|line| self.0.push(line));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Said {
    type Writer = LogLine;

    fn make_writer(&'w self) -> LogLine {
        LogLine(self.clone())
    }
}

/// The screen as long as it is taken.
pub(super) struct Screen {
    pub(super) terminal: Terminal<CrosstermBackend<io::Stdout>>,
    said: Said,
}

impl Screen {
    /// Takes the screen. A panic, of whatever thread, is told when it is given back.
    ///
    /// # Errors
    /// It is no terminal, or refuses.
    pub(super) fn take(said: &Said) -> io::Result<Self> {
        let heard = said.clone();
        std::panic::set_hook(Box::new(move |panic| panic.to_string().lines().for_each(|line| heard.push(line))));
        // From here on it is given back, also if the next steps fail.
        let screen = Self { terminal: Terminal::new(CrosstermBackend::new(io::stdout()))?, said: said.clone() };
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let given_back = disable_raw_mode().and(execute!(io::stdout(), LeaveAlternateScreen, Show));
        // A thread that panics cannot change what is done then, and would end here without its words.
        if !std::thread::panicking() {
            drop(std::panic::take_hook());
        }
        self.said.print();
        if let Err(error) = given_back {
            tracing::debug!("the terminal has gone: {error}");
        }
    }
}

/// Whether there is a screen to take.
pub(super) fn has_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}
