//! Names of native and kernel addresses: what was asked for, and what the symbolizer has said.
//!
//! "Not asked", "asked and not answered" and "answered" are three things: a sample is resolved when all of its addresses
//! are answered, or when it has to be.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::engine::border::Output;
use crate::engine::files::Files;
use crate::engine::requests::Requests;
use crate::engine::resolve::REPLACED;
use crate::process::open::FileId;
use crate::symbol::{
    Frame, MAX_KEYS, Name, NameAnswer, SymbolKey, SymbolStats, Unresolved, unnamed_in_file, unnamed_in_function,
    unnamed_in_kernel,
};

/// Addresses asked for at a time; what is asked for beyond waits for answers.
const MAX_ASKED: usize = 1 << 16;

/// What is known of an address.
#[derive(Debug)]
struct Known {
    /// Nothing while it waits.
    frames: Option<Arc<[Frame]>>,
    /// The symbolizer has it, and has not answered.
    asked: bool,
    /// It has no name because its file was closed: it is asked for once more, and when the file can be opened again.
    closed: bool,
    /// The turn in which it was last asked for.
    used: u32,
}

/// All that was asked for.
#[derive(Debug, Default)]
pub(super) struct Names {
    table: FxHashMap<SymbolKey, Known>,
    /// To be asked for, as soon as their files are open.
    wanted: Vec<SymbolKey>,
    /// Asked for and not answered.
    outstanding: usize,
    /// Counts the calls of [`Names::evict_unused`].
    turn: u32,
    /// What is not answered may be answered later, for those who ask then.
    continuous: bool,
    stats: SymbolStats,
}

impl Names {
    /// From now on there is no end that could wait for all answers.
    pub(super) fn begin_continuous(&mut self) {
        self.continuous = true;
    }

    /// Asks for an address unless that has been done. Returns whether its name has come.
    pub(super) fn want(&mut self, key: SymbolKey) -> bool {
        if let Some(known) = self.table.get_mut(&key) {
            known.used = self.turn;
            return known.frames.is_some();
        }
        if self.table.len() >= MAX_KEYS {
            // It never will: who asks is not to wait.
            return true;
        }
        self.table.insert(key, Known { frames: None, asked: false, closed: false, used: self.turn });
        self.stats.requests = self.stats.requests.saturating_add(1);
        self.wanted.push(key);
        false
    }

    /// Has the symbolizer asked for what is wanted, as far as the files are open.
    pub(super) fn ask(&mut self, files: &mut Files, requests: &mut Requests) {
        if self.wanted.is_empty() {
            return;
        }
        let mut asked = Vec::new();
        for key in std::mem::take(&mut self.wanted) {
            // Who has waited too long for it has gone on without.
            let Some(known) = self.table.get_mut(&key).filter(|known| known.frames.is_none()) else { continue };
            let is_there = match key {
                SymbolKey::Kernel(_) => true,
                SymbolKey::File(file, _) if files.open(file, requests) => files.is_open(file),
                SymbolKey::File(..) => {
                    self.stats.count(Unresolved::FileClosed);
                    (known.frames, known.closed) = (Some(unnamed(key, files)), true);
                    continue;
                }
            };
            if !is_there || self.outstanding >= MAX_ASKED {
                // It waits for its file, or for others to be answered.
                self.wanted.push(key);
                continue;
            }
            known.asked = true;
            asked.push(key);
            self.outstanding += 1;
        }
        if !asked.is_empty() {
            requests.output(Output::Name(asked));
        }
    }

    /// Takes up an answer.
    pub(super) fn take(&mut self, NameAnswer { key, name }: NameAnswer, files: &Files) {
        let Some(known) = self.table.get_mut(&key).filter(|known| known.asked) else { return };
        known.asked = false;
        self.outstanding = self.outstanding.saturating_sub(1);
        if known.frames.is_some() {
            // It was counted as one that did not come in time.
            self.stats.discount(Unresolved::NotInTime);
        }
        match name {
            Name::Frames(frames) if !frames.is_empty() => {
                self.stats.resolved = self.stats.resolved.saturating_add(1);
                let lines = u64::from(frames.iter().any(|frame| frame.source.is_some()));
                self.stats.with_lines = self.stats.with_lines.saturating_add(lines);
                known.frames = Some(frames.into());
            }
            // That is how it is now, and not how it stays.
            Name::None(reason @ (Unresolved::TooSlow | Unresolved::FileClosed)) if self.continuous => {
                self.stats.count(reason);
                self.table.remove(&key);
            }
            // Others were opened in its place while it waited.
            Name::None(Unresolved::FileClosed) if !std::mem::replace(&mut known.closed, true) => {
                known.frames = None;
                self.wanted.push(key);
            }
            Name::None(reason) => {
                self.stats.count(reason);
                let mut frames = unnamed(key, files);
                if reason == Unresolved::Replaced {
                    frames = frames.iter().map(|frame| Frame { name: REPLACED.into(), ..frame.clone() }).collect();
                }
                known.frames = Some(frames);
            }
            Name::Within(reason, begin) => {
                self.stats.count(reason);
                known.frames = Some(match key {
                    SymbolKey::File(file, offset) => {
                        Arc::from([unnamed_in_function(files.module(file).as_ref(), offset, begin)])
                    }
                    SymbolKey::Kernel(_) => unnamed(key, files),
                });
            }
            // There was no time for it: who asks again later may have more luck.
            Name::Frames(_) | Name::NotNow => {
                self.stats.requests = self.stats.requests.saturating_sub(1);
                self.table.remove(&key);
            }
        }
    }

    /// The frames of an address, innermost first and never empty, and whether that is final. What is not answered is
    /// named `[file+0x…]` or `[kernel]`, and counted.
    pub(super) fn frames(&mut self, key: SymbolKey, files: &Files) -> (Arc<[Frame]>, bool) {
        let turn = self.turn;
        if let Some(known) = self.table.get_mut(&key)
            && let Some(frames) = &known.frames
        {
            known.used = turn;
            let is_final = !(known.asked || known.closed);
            return (Arc::clone(frames), is_final);
        }
        let frames = unnamed(key, files);
        if self.continuous {
            // It may be named yet, for those who ask later.
            self.stats.count(Unresolved::NotInTime);
            return (frames, false);
        }
        if let Some(waiting) = self.table.get_mut(&key) {
            // It may come yet, for later samples.
            self.stats.count(Unresolved::NotInTime);
            waiting.frames = Some(Arc::clone(&frames));
            return (frames, !waiting.asked);
        }
        if self.table.len() < MAX_KEYS {
            self.stats.requests = self.stats.requests.saturating_add(1);
            self.stats.count(Unresolved::NotInTime);
            let known = Known { frames: Some(Arc::clone(&frames)), asked: false, closed: false, used: turn };
            self.table.insert(key, known);
        } else {
            self.stats.requests = self.stats.requests.saturating_add(1);
            self.stats.count(Unresolved::TableFull);
        }
        (frames, true)
    }

    /// These files can be opened again: what has no name because they were closed is asked for when it is met.
    pub(super) fn retry(&mut self, files: &[FileId]) {
        if files.is_empty() {
            return;
        }
        let is_of = |key: &SymbolKey| matches!(key, SymbolKey::File(file, _) if files.contains(file));
        let stats = &mut self.stats;
        self.table.retain(|key, known| {
            let again = known.closed && !known.asked && known.frames.is_some() && is_of(key);
            if again {
                stats.discount(Unresolved::FileClosed);
                stats.requests = stats.requests.saturating_sub(1);
            }
            !again
        });
    }

    /// How many addresses wait for their names.
    pub(super) fn waiting(&self) -> usize {
        self.outstanding + self.wanted.len()
    }

    /// Evicts the names of addresses that nobody has asked for in the last `turns` calls of this, if more than `keep`
    /// addresses are known. What is evicted has to be asked for again.
    pub(super) fn evict_unused(&mut self, keep: usize, turns: u32) {
        self.turn = self.turn.saturating_add(1);
        if self.table.len() <= keep {
            return;
        }
        let oldest = self.turn.saturating_sub(turns);
        self.table.retain(|_, known| known.frames.is_none() || known.asked || known.used >= oldest);
        if self.table.len() < self.table.capacity() / 4 {
            self.table.shrink_to_fit();
        }
    }

    /// What was asked for and answered, without what the worker knows.
    pub(super) fn stats(&self) -> &SymbolStats {
        &self.stats
    }
}

/// The frame of an address without a name.
fn unnamed(key: SymbolKey, files: &Files) -> Arc<[Frame]> {
    Arc::from([match key {
        SymbolKey::File(file, offset) => unnamed_in_file(files.module(file).as_ref(), offset),
        SymbolKey::Kernel(_) => unnamed_in_kernel(),
    }])
}
