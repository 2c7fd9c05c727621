//! Names of native and kernel addresses: what was asked for, and what the symbolizer has said.
//!
//! "Not asked", "asked and not answered" and "answered" are three things: a sample is resolved when all of its addresses
//! are answered, or when it has to be.
//!
//! A target chooses its return addresses, and may have so many that there is no room for all: each
//! [holder](crate::profile::Holder) has his share of it, and they ask in turns.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::engine::border::Output;
use crate::engine::files::Files;
use crate::engine::requests::Requests;
use crate::engine::resolve::REPLACED;
use crate::process::open::FileId;
use crate::profile::{Holder, Shares};
use crate::symbol::{
    Frame, MAX_KEYS, Name, NameAnswer, SymbolKey, SymbolStats, Unresolved, unnamed_in_file, unnamed_in_function,
    unnamed_in_kernel,
};

/// Addresses asked for at a time; what is asked for beyond waits for answers. It is what may stand before anybody's.
const MAX_ASKED: usize = if cfg!(test) { 512 } else { 8 << 10 };
/// The same of one file, which may hold up who reads it.
const MAX_ASKED_OF_FILE: usize = if cfg!(test) { 400 } else { MAX_ASKED / 4 };
/// Addresses that are looked at in one turn, for their files may not be open yet.
const LOOKED_AT: usize = 2 * MAX_ASKED;

/// What is known of an address.
#[derive(Debug)]
struct Known {
    /// Nothing while it waits.
    frames: Option<Arc<[Frame]>>,
    /// Whose room it takes, and who asks for it.
    holder: Holder,
    /// It has no name because its file was closed: it is asked for once more, and when the file can be opened again.
    closed: bool,
    /// The turn in which it was last asked for.
    used: u32,
}

/// Addresses that are to be asked for, by who wants them. Each has his turn.
#[derive(Debug, Default)]
struct Wanted {
    of: FxHashMap<Holder, VecDeque<SymbolKey>>,
    /// Those who want any, whose turn it is next first.
    turns: VecDeque<Holder>,
}

impl Wanted {
    fn push(&mut self, holder: Holder, key: SymbolKey) {
        let queue = self.of.entry(holder).or_default();
        if queue.is_empty() {
            self.turns.push_back(holder);
        }
        queue.push_back(key);
    }

    /// He has had his turn in vain: it is the next that he asks for.
    fn put_back(&mut self, holder: Holder, key: SymbolKey) {
        self.of.entry(holder).or_default().push_front(key);
    }

    /// The next address, and who wants it.
    fn pop(&mut self) -> Option<(Holder, SymbolKey)> {
        let holder = self.turns.pop_front()?;
        let queue = self.of.get_mut(&holder)?;
        let key = queue.pop_front()?;
        if queue.is_empty() {
            self.of.remove(&holder);
        } else {
            self.turns.push_back(holder);
        }
        Some((holder, key))
    }

    /// Takes out who must wait for answers before his next turn, unless he wants nothing.
    fn suspend(&mut self, holder: Holder) {
        // He has just had his turn, and is the last.
        if self.turns.back() == Some(&holder) {
            self.turns.pop_back();
        }
    }

    /// Those who waited for answers come first in the next turn.
    fn resume(&mut self, holders: Vec<Holder>) {
        for holder in holders.into_iter().rev().filter(|holder| self.of.contains_key(holder)) {
            self.turns.push_front(holder);
        }
    }

    fn retain(&mut self, is_wanted: impl Fn(Holder, SymbolKey) -> bool) {
        self.of.retain(|holder, queue| {
            queue.retain(|key| is_wanted(*holder, *key));
            !queue.is_empty()
        });
        self.turns.retain(|holder| self.of.contains_key(holder));
    }

    fn len_of(&self, holder: Holder) -> usize {
        self.of.get(&holder).map_or(0, VecDeque::len)
    }

    fn len(&self) -> usize {
        self.of.values().map(VecDeque::len).sum()
    }
}

/// All that was asked for.
#[derive(Debug, Default)]
pub(super) struct Names {
    table: FxHashMap<SymbolKey, Known>,
    /// Whose they are.
    shares: Shares,
    /// To be asked for, as soon as their files are open.
    wanted: Wanted,
    /// The symbolizer has them, and has not answered; at whose expense.
    asked: FxHashMap<SymbolKey, Holder>,
    asked_shares: Shares,
    /// How many of them are in each file, and whose.
    asked_of: FxHashMap<FileId, (Shares, usize)>,
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
    pub(super) fn want(&mut self, holder: Holder, key: SymbolKey) -> bool {
        if let Some(known) = self.table.get_mut(&key) {
            known.used = self.turn;
            if known.frames.is_some() {
                return true;
            }
            let first = known.holder;
            if first != holder {
                self.want_sooner(first, holder, key);
            }
            return false;
        }
        if !self.has_room(holder) {
            // It never will: who asks is not to wait.
            return true;
        }
        self.insert(holder, key, None);
        if !self.asked.contains_key(&key) {
            self.wanted.push(holder, key);
        }
        false
    }

    /// What one has wanted first, and would be asked for later than another one needs it, is the other one's from now on.
    fn want_sooner(&mut self, first: Holder, holder: Holder, key: SymbolKey) {
        let is_sooner = self.wanted.len_of(holder) < self.wanted.len_of(first);
        if !is_sooner || self.asked.contains_key(&key) || !self.has_room(holder) {
            return;
        }
        if let Some(known) = self.table.get_mut(&key) {
            known.holder = holder;
            self.shares.give_back(Some(first), 1);
            self.shares.take(Some(holder), 1);
            self.wanted.push(holder, key);
        }
    }

    fn has_room(&self, holder: Holder) -> bool {
        self.shares.may_take(Some(holder), 1, (self.table.len(), MAX_KEYS))
    }

    fn insert(&mut self, holder: Holder, key: SymbolKey, frames: Option<Arc<[Frame]>>) {
        self.stats.requests = self.stats.requests.saturating_add(1);
        self.shares.take(Some(holder), 1);
        self.table.insert(key, Known { frames, holder, closed: false, used: self.turn });
    }

    fn remove(&mut self, key: SymbolKey) {
        if let Some(known) = self.table.remove(&key) {
            self.shares.give_back(Some(known.holder), 1);
        }
    }

    /// Has the symbolizer asked for what is wanted, as far as the files are open.
    pub(super) fn ask(&mut self, files: &mut Files, requests: &mut Requests) {
        let (mut asked, mut later, mut full) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..LOOKED_AT {
            if self.asked.len() >= MAX_ASKED || later.len() >= MAX_ASKED_OF_FILE {
                break;
            }
            let Some((holder, key)) = self.wanted.pop() else { break };
            // Who has waited too long for it has gone on without, or another one asks for it.
            let is_wanted = |known: &&mut Known| known.frames.is_none() && known.holder == holder;
            let Some(known) = self.table.get_mut(&key).filter(is_wanted) else { continue };
            if self.asked.contains_key(&key) {
                continue;
            }
            let is_there = match key {
                SymbolKey::Kernel(_) => true,
                SymbolKey::File(file, _) if files.open(file, requests) => files.is_open(file),
                SymbolKey::File(..) => {
                    self.stats.count(Unresolved::FileClosed);
                    (known.frames, known.closed) = (Some(unnamed(key, files)), true);
                    continue;
                }
            };
            if !is_there || self.has_asked_enough_of(holder, key) {
                later.push((holder, key));
            } else if self.asked_shares.may_take(Some(holder), 1, (self.asked.len(), MAX_ASKED)) {
                self.asked_shares.take(Some(holder), 1);
                self.asked.insert(key, holder);
                if let SymbolKey::File(file, _) = key {
                    let (shares, count) = self.asked_of.entry(file).or_default();
                    shares.take(Some(holder), 1);
                    *count += 1;
                }
                asked.push(key);
            } else {
                self.wanted.suspend(holder);
                self.wanted.put_back(holder, key);
                full.push(holder);
            }
        }
        self.wanted.resume(full);
        for (holder, key) in later {
            self.wanted.push(holder, key);
        }
        if !asked.is_empty() {
            requests.output(Output::Name(asked));
        }
    }

    fn has_asked_enough_of(&self, holder: Holder, key: SymbolKey) -> bool {
        let SymbolKey::File(file, _) = key else { return false };
        let is_full =
            |(shares, count): &(Shares, usize)| !shares.may_take(Some(holder), 1, (*count, MAX_ASKED_OF_FILE));
        self.asked_of.get(&file).is_some_and(is_full)
    }

    fn answered(&mut self, asker: Holder, key: SymbolKey) {
        let SymbolKey::File(file, _) = key else { return };
        if let Some((shares, count)) = self.asked_of.get_mut(&file) {
            shares.give_back(Some(asker), 1);
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.asked_of.remove(&file);
            }
        }
    }

    /// Takes up an answer.
    pub(super) fn take(&mut self, NameAnswer { key, name }: NameAnswer, files: &Files) {
        let Some(asker) = self.asked.remove(&key) else { return };
        self.asked_shares.give_back(Some(asker), 1);
        self.answered(asker, key);
        // It may have been evicted.
        let Some(known) = self.table.get_mut(&key) else { return };
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
                self.remove(key);
            }
            // Others were opened in its place while it waited.
            Name::None(Unresolved::FileClosed) if !std::mem::replace(&mut known.closed, true) => {
                known.frames = None;
                self.wanted.push(known.holder, key);
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
                self.remove(key);
            }
        }
    }

    /// Whether an address is answered, if only by that it has no name.
    pub(super) fn is_answered(&self, key: SymbolKey) -> bool {
        self.table.get(&key).is_some_and(|known| known.frames.is_some())
    }

    /// The frames of an address, innermost first and never empty, and whether that is final. What is not answered is
    /// named `[file+0x…]` or `[kernel]`, and counted.
    pub(super) fn frames(&mut self, holder: Holder, key: SymbolKey, files: &Files) -> (Arc<[Frame]>, bool) {
        let turn = self.turn;
        if let Some(known) = self.table.get_mut(&key)
            && let Some(frames) = &known.frames
        {
            known.used = turn;
            let is_final = !(known.closed || self.asked.contains_key(&key));
            return (Arc::clone(frames), is_final);
        }
        let frames = unnamed(key, files);
        if !self.table.contains_key(&key) && !self.has_room(holder) {
            // There may be room yet, and nobody remembers what has found none.
            self.stats.requests = self.stats.requests.saturating_add(1);
            self.stats.count(Unresolved::TableFull);
            return (frames, false);
        }
        self.stats.count(Unresolved::NotInTime);
        if self.continuous {
            // It may be named yet, for those who ask later.
            return (frames, false);
        }
        // It may come yet, for later samples.
        match self.table.get_mut(&key) {
            Some(waiting) => waiting.frames = Some(Arc::clone(&frames)),
            None => self.insert(holder, key, Some(Arc::clone(&frames))),
        }
        (frames, !self.asked.contains_key(&key))
    }

    /// These files can be opened again: what has no name because they were closed is asked for when it is met.
    pub(super) fn retry(&mut self, files: &[FileId]) {
        if files.is_empty() {
            return;
        }
        let is_of = |key: &SymbolKey| matches!(key, SymbolKey::File(file, _) if files.contains(file));
        let (stats, shares, asked) = (&mut self.stats, &mut self.shares, &self.asked);
        self.table.retain(|key, known| {
            let again = known.closed && known.frames.is_some() && is_of(key) && !asked.contains_key(key);
            if again {
                shares.give_back(Some(known.holder), 1);
                stats.discount(Unresolved::FileClosed);
                stats.requests = stats.requests.saturating_sub(1);
            }
            !again
        });
    }

    /// How many addresses wait for their names.
    pub(super) fn waiting(&self) -> usize {
        self.asked.len() + self.wanted.len()
    }

    /// Evicts addresses that nobody has asked for in the last `turns` calls of this, with a name or without, if more than
    /// `keep` are known. What is evicted has to be asked for again.
    pub(super) fn evict_unused(&mut self, keep: usize, turns: u32) {
        self.turn = self.turn.saturating_add(1);
        self.leave_out_what_is_not_wanted();
        if self.table.len() <= keep {
            return;
        }
        let oldest = self.turn.saturating_sub(turns);
        let (stats, shares) = (&mut self.stats, &mut self.shares);
        self.table.retain(|_, known| {
            let is_kept = known.used >= oldest;
            if !is_kept {
                shares.give_back(Some(known.holder), 1);
                stats.requests = stats.requests.saturating_sub(u64::from(known.frames.is_none()));
            }
            is_kept
        });
        self.leave_out_what_is_not_wanted();
        if self.table.len() < self.table.capacity() / 4 {
            self.table.shrink_to_fit();
        }
    }

    /// What was answered, is another one's to ask for, or was evicted.
    fn leave_out_what_is_not_wanted(&mut self) {
        let table = &self.table;
        let waits = |known: &Known, holder| known.frames.is_none() && known.holder == holder;
        self.wanted.retain(|holder, key| table.get(&key).is_some_and(|known| waits(known, holder)));
    }

    /// Asserts that the shares are those of what is known.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_sound(&self) {
        let mut shares = Shares::default();
        self.table.values().for_each(|known| shares.take(Some(known.holder), 1));
        assert_eq!(self.shares, shares);
        assert!(self.table.len() <= MAX_KEYS && self.asked.len() <= MAX_ASKED);
        let in_files = self.asked.keys().filter(|key| matches!(key, SymbolKey::File(..))).count();
        assert_eq!(self.asked_of.values().map(|(_, count)| count).sum::<usize>(), in_files);
        let has_turn = |holder: &Holder| self.wanted.turns.iter().filter(|one| *one == holder).count() == 1;
        assert!(self.wanted.of.keys().all(has_turn) && self.wanted.turns.len() == self.wanted.of.len());
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
