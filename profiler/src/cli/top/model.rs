//! What `top` knows and shows, and what keys do to it. Reads and draws nothing itself.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::figures::{self, FunctionRow, Question, ThreadRow, TreeRow};
use crate::output::OutputOptions;
use crate::profile::{Profile, printable, shorten};
use crate::record::Health;

/// Windows that are kept: as many as the longest range but the whole has seconds.
pub(super) const MAX_WINDOWS: usize = 60;
/// Characters of a filter at most.
const MAX_FILTER: usize = 100;
/// Nodes of the tree that were opened or closed, at most.
const MAX_OPENED: usize = 4096;

/// Which part of the recording is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Range {
    Seconds(usize),
    /// Everything since the start.
    Whole,
    /// What the service is asked for.
    Minute,
}

impl Range {
    fn next(self) -> Self {
        match self {
            Self::Seconds(10) => Self::Seconds(MAX_WINDOWS),
            Self::Seconds(_) => Self::Whole,
            Self::Whole => Self::Seconds(10),
            Self::Minute => Self::Minute,
        }
    }
}

/// What the screen is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Functions,
    Tree,
    Threads,
}

impl View {
    pub(super) const ALL: [Self; 3] = [Self::Functions, Self::Tree, Self::Threads];
}

/// By what functions are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Own,
    Total,
    Name,
}

/// Whether something else has to be done.
#[derive(Debug)]
pub(super) enum Action {
    Nothing,
    Quit,
    /// Write these samples as a flamegraph.
    Write(Box<Profile>, Box<OutputOptions>),
}

/// What was sampled in a part of the recording.
pub(super) struct News {
    pub(super) profile: Profile,
    /// How the recording stands, where that is known.
    pub(super) health: Option<Health>,
    /// Whether it is all that was asked for, and not a further piece.
    pub(super) is_all: bool,
}

/// What is made of the samples that are shown.
#[derive(Default)]
pub(super) struct Figures {
    pub(super) functions: Vec<FunctionRow>,
    pub(super) threads: Vec<ThreadRow>,
    pub(super) tree: Vec<TreeRow>,
    /// CPU time and samples of the thread that is looked at, or of all.
    pub(super) cpu_ns: u64,
    pub(super) samples: u64,
    /// CPU time of the tree: of the stacks that have what is looked for.
    pub(super) tree_ns: u64,
    pub(super) duration: Duration,
}

/// The state of the screen.
pub(super) struct Model {
    pub(super) title: String,
    pub(super) view: View,
    pub(super) range: Range,
    pub(super) sort: Sort,
    pub(super) question: Question,
    /// The filter while it is typed.
    pub(super) typing: Option<String>,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    pub(super) message: Option<String>,
    /// Whether that says what a key has done.
    is_answer: bool,
    pub(super) health: Option<Health>,
    pub(super) figures: Figures,
    /// Line that is chosen, and the first one on the screen.
    pub(super) cursor: usize,
    pub(super) first: usize,
    /// Lines that fitted when it was last drawn.
    pub(super) page: usize,
    opened: HashMap<u64, bool>,
    windows: VecDeque<Profile>,
    whole: Option<Profile>,
    /// What the figures are of.
    shown: Option<Profile>,
    is_stale: bool,
}

impl Model {
    /// Nothing has come yet. `title` says what is recorded.
    pub(super) fn new(title: &str) -> Self {
        Self {
            title: shorten(&printable(title), 160).into_owned(),
            view: View::Functions,
            range: Range::Seconds(10),
            sort: Sort::Own,
            question: Question::default(),
            typing: None,
            is_paused: false,
            shows_help: false,
            message: None,
            is_answer: false,
            health: None,
            figures: Figures::default(),
            cursor: 0,
            first: 0,
            page: 1,
            opened: HashMap::new(),
            windows: VecDeque::new(),
            whole: None,
            shown: None,
            is_stale: false,
        }
    }

    /// Takes what was sampled.
    pub(super) fn take(&mut self, news: News) {
        let News { profile, health, is_all } = news;
        self.health = health.or(self.health.take());
        if is_all {
            self.range = Range::Minute;
            self.whole = None;
        }
        match &mut self.whole {
            None => self.whole = Some(timeless(&profile)),
            Some(whole) => {
                let (start, end) = (whole.meta().start, profile.meta().start.0);
                whole.absorb(&profile, |_| Some(start));
                let before = Duration::from_nanos(end.saturating_sub(start.0));
                whole.set_duration(before + profile.meta().duration);
            }
        }
        if !is_all {
            if self.windows.len() >= MAX_WINDOWS {
                self.windows.pop_front();
            }
            self.windows.push_back(profile);
        }
        self.is_stale = true;
    }

    /// Says something in the line at the bottom, until the next key.
    pub(super) fn say(&mut self, text: &str) {
        self.message = Some(shorten(&printable(text), 400).into_owned());
        self.is_answer = false;
    }

    /// Says what a key has done.
    pub(super) fn answer(&mut self, text: &str) {
        self.say(text);
        self.is_answer = true;
    }

    /// Says what went wrong meanwhile, unless it would take the place of what a key has done, maybe before that was seen.
    /// Returns whether it is said.
    pub(super) fn warn(&mut self, text: &str) -> bool {
        if !self.is_answer {
            self.say(text);
        }
        !self.is_answer
    }

    /// Whether there is something new to be worked out.
    pub(super) fn is_stale(&self) -> bool {
        self.is_stale && !self.is_paused
    }

    /// Whether the figures are of a part of the recording, and not what they are before the first one has come.
    pub(super) fn has_figures(&self) -> bool {
        self.shown.is_some()
    }

    /// Works out anew what is shown.
    pub(super) fn refresh(&mut self) {
        self.is_stale = false;
        self.shown = self.in_range();
        self.work_out();
    }

    fn in_range(&self) -> Option<Profile> {
        let Range::Seconds(seconds) = self.range else { return self.whole.as_ref().map(timeless) };
        let mut windows = self.windows.iter().skip(self.windows.len().saturating_sub(seconds));
        let mut merged = timeless(windows.next()?);
        let start = merged.meta().start;
        for window in windows {
            merged.absorb(window, |_| Some(start));
            let before = Duration::from_nanos(window.meta().start.0.saturating_sub(start.0));
            merged.set_duration(before + window.meta().duration);
        }
        Some(merged)
    }

    fn work_out(&mut self) {
        let Some(shown) = &self.shown else { return };
        let chosen = self.key_at_cursor();
        let of_thread = self.question.of_thread(shown);
        let base = of_thread.as_ref().unwrap_or(shown);
        let found = self.question.of_filter(base);
        let sum = |profile: &Profile| profile.cpu_by_task().into_values().fold(0_u64, u64::saturating_add);
        let in_tree = found.as_ref().unwrap_or(base);
        self.figures = Figures {
            functions: figures::functions(base, &self.question, self.sort),
            threads: figures::threads(shown, &self.question),
            tree: figures::tree(in_tree, &self.question, &self.opened),
            cpu_ns: sum(base),
            samples: base.total(),
            tree_ns: sum(in_tree),
            duration: shown.meta().duration,
        };
        // What was chosen stays so, wherever it is now; the top stays the top.
        if self.cursor > 0
            && let Some(place) = chosen.and_then(|key| (0..self.lines()).find(|&line| self.key(line) == Some(key)))
        {
            self.cursor = place;
        }
        self.cursor = self.cursor.min(self.lines().saturating_sub(1));
    }

    /// Lines of the view.
    pub(super) fn lines(&self) -> usize {
        match self.view {
            View::Functions => self.figures.functions.len(),
            View::Tree => self.figures.tree.len(),
            View::Threads => self.figures.threads.len(),
        }
    }

    fn key_at_cursor(&self) -> Option<u64> {
        self.key(self.cursor)
    }

    /// Tells a line apart from the others, also after the next refresh.
    fn key(&self, line: usize) -> Option<u64> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        match self.view {
            View::Functions => {
                let row = self.figures.functions.get(line)?;
                (&row.name, row.class, &row.process, &row.place).hash(&mut hasher);
            }
            View::Threads => {
                let row = self.figures.threads.get(line)?;
                (row.pid, row.tid).hash(&mut hasher);
            }
            View::Tree => return self.figures.tree.get(line).map(|row| row.key),
        }
        Some(hasher.finish())
    }

    /// Does what a key says.
    pub(super) fn key_pressed(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Nothing;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && matches!(key.code, KeyCode::Char('c')) {
            return Action::Quit;
        }
        (self.message, self.is_answer) = (None, false);
        if self.typing.is_some() {
            self.typed(key.code, control);
            return Action::Nothing;
        }
        if std::mem::take(&mut self.shows_help) && key.code != KeyCode::Char('q') {
            return Action::Nothing;
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('o') => return self.write(),
            KeyCode::Char('f' | '1') => self.turn_to(View::Functions),
            KeyCode::Char('t' | '2') => self.turn_to(View::Tree),
            KeyCode::Char('h' | '3') => self.turn_to(View::Threads),
            KeyCode::Tab => self.turn_to(match self.view {
                View::Functions => View::Tree,
                View::Tree => View::Threads,
                View::Threads => View::Functions,
            }),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.typing = Some(self.question.filter.clone()),
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Char('w') => {
                self.range = self.range.next();
                self.refresh();
            }
            KeyCode::Char('m') => {
                self.question.merge_tiers = !self.question.merge_tiers;
                self.work_out();
            }
            KeyCode::Char('s') => {
                self.sort = match self.sort {
                    Sort::Own => Sort::Total,
                    Sort::Total => Sort::Name,
                    Sort::Name => Sort::Own,
                };
                self.cursor = 0;
                self.work_out();
            }
            KeyCode::Esc => {
                self.question.filter.clear();
                self.question.thread = None;
                self.work_out();
            }
            KeyCode::Enter => self.enter(),
            KeyCode::Left | KeyCode::Char('-') => self.open(false),
            KeyCode::Right | KeyCode::Char('+') => self.open(true),
            code => self.moved(code),
        }
        Action::Nothing
    }

    fn turn_to(&mut self, view: View) {
        if self.view != view {
            self.view = view;
            (self.cursor, self.first) = (0, 0);
            if view == View::Tree {
                self.go_to_first_fork();
            }
        }
    }

    /// Chooses the line behind which calls part for the first time, or the last one: what all stacks have in common fills
    /// the screen else.
    fn go_to_first_fork(&mut self) {
        let rows = &self.figures.tree;
        let fork = rows.windows(2).position(|pair| pair[1].total < pair[0].total / 10 * 9);
        self.cursor = fork.unwrap_or(rows.len().saturating_sub(1));
        self.first = self.cursor.saturating_sub(2);
    }

    fn moved(&mut self, code: KeyCode) {
        let last = self.lines().saturating_sub(1);
        self.cursor = match code {
            KeyCode::Up | KeyCode::Char('k') => self.cursor.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.cursor + 1,
            KeyCode::PageUp => self.cursor.saturating_sub(self.page),
            KeyCode::PageDown => self.cursor.saturating_add(self.page),
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => self.cursor,
        }
        .min(last);
    }

    /// A filter is typed: it counts at once, so that what it finds is seen.
    fn typed(&mut self, code: KeyCode, control: bool) {
        let Some(text) = &mut self.typing else { return };
        match code {
            KeyCode::Char('u') if control => text.clear(),
            KeyCode::Char(c) if !control && text.chars().count() < MAX_FILTER => text.push(c),
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Esc => text.clear(),
            _ => {}
        }
        self.question.filter = text.to_lowercase();
        if matches!(code, KeyCode::Enter | KeyCode::Esc) {
            self.typing = None;
        }
        self.cursor = 0;
        self.work_out();
        if self.view == View::Tree {
            self.go_to_first_fork();
        }
    }

    fn enter(&mut self) {
        match self.view {
            View::Functions => {
                let Some(row) = self.figures.functions.get(self.cursor) else { return };
                self.question.filter = row.name.to_lowercase();
                self.turn_to(View::Tree);
                self.cursor = 0;
                self.work_out();
                self.go_to_first_fork();
            }
            View::Threads => {
                let Some(row) = self.figures.threads.get(self.cursor) else { return };
                self.question.thread = Some((row.pid, row.tid));
                self.question.filter.clear();
                self.turn_to(View::Functions);
                self.work_out();
            }
            View::Tree => {
                let is_open = self.figures.tree.get(self.cursor).and_then(|row| row.is_open);
                self.open(!is_open.unwrap_or(true));
            }
        }
    }

    fn open(&mut self, open: bool) {
        let Some(row) = self.figures.tree.get(self.cursor) else { return };
        if self.view != View::Tree || row.is_open.is_none() {
            return;
        }
        if self.opened.len() >= MAX_OPENED {
            self.opened.clear();
        }
        self.opened.insert(row.key, open);
        self.work_out();
    }

    fn write(&mut self) -> Action {
        let Some(shown) = &self.shown else {
            self.answer("there is nothing yet that could be written");
            return Action::Nothing;
        };
        let of_thread = self.question.of_thread(shown);
        let base = of_thread.as_ref().unwrap_or(shown);
        let profile = self.question.of_filter(base).unwrap_or_else(|| timeless(base));
        let mut words = vec![self.title.clone()];
        words.extend(self.question.thread.map(|(_, tid)| format!("thread {tid}")));
        words.extend((!self.question.filter.is_empty()).then(|| format!("stacks with {}", self.question.filter)));
        let options = OutputOptions {
            title: Some(words.join(" · ")),
            per_process: true,
            merge_tiers: self.question.merge_tiers,
            ..OutputOptions::default()
        };
        Action::Write(Box::new(profile), Box::new(options))
    }
}

/// A copy whose rows are not kept apart by time.
fn timeless(profile: &Profile) -> Profile {
    let mut copy = Profile::new(profile.meta().clone(), u64::MAX);
    let start = profile.meta().start;
    copy.absorb(profile, |_| Some(start));
    copy
}
