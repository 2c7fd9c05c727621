//! What single frames are, asked of the runtime whose they are.
//!
//! A sample of such a process brings along words of its frames. With them each frame is asked about once, and once more
//! when the answer is a second old: what was read is compared with the words each time, so that what was moved or replaced
//! meanwhile is found out. Samples wait for the answers.
//!
//! An answer says which of the words it depends on: in optimised code most are something else than what the runtime looked
//! for there, and another sample has others. It is kept under those words, too, so that it is found again.
//!
//! Of code that a runtime lists it is asked which functions were inlined at an address. The code has a number of its own,
//! so that the answer never becomes another one: each address is asked about once, and in a continuous recording it is
//! gathered for a second what is to be asked.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use indexmap::IndexMap;
use jitprof_common::sample::FramePc;
use jitprof_common::taken::MAX_TAKEN;
use jitprof_common::units::{Avma, MonoNs, Pid};
use jitprof_jitdump::code::{CodeHit, CodeOrigin};
use rustc_hash::FxHashMap;

use crate::engine::border::{AnswerBody, FrameWords, Request, TakenWords};
use crate::engine::pending::{Pending, Queue};
use crate::engine::place::Place;
use crate::engine::requests::{Purpose, Requests};
use crate::engine::space::{AddressSpace, Mapped};
use crate::process::{Mapping, MappingKind, ProcessId};
use crate::profile::Holder;
use crate::runtime::{Capture, DependsOn, DescribedFrame, DescribedFrames, FrameAsk, ListedCode, WhyUnnamed};
use crate::symbol::names::classify;
use crate::symbol::{Frame, SourceLine};

/// Frames of one process that are remembered at most...
pub(super) const MAX_FRAMES: usize = if cfg!(test) { 2 << 10 } else { 8 << 10 };
/// ...if those of all are not more than this; else each has so many at least, and who has less than his part of all keeps
/// what he has.
const MAX_ALL_FRAMES: usize = 64 << 10;
const LEAST_FRAMES: usize = 1024;
/// Frames of one process that are remembered besides those that samples wait for, and bytes of names.
pub(super) const KEPT_FRAMES: usize = 1024;
const KEPT_NAME_BYTES: usize = 1 << 20;
/// Answers about addresses in listed code, and for questions that differ in what does not matter, of one process that are
/// remembered besides those that samples wait for: the last ones.
const KEPT_REUSABLE: usize = 4 << 10;
/// Different parts of the words that answers about frames at one address depend on: those that were of use last.
const MAX_PARTS: usize = 8;
/// Bytes of names of frames of one process at most, those of all, and those that each may have when all have more.
pub(super) const MAX_NAME_BYTES: usize = 8 << 20;
const MAX_ALL_NAME_BYTES: usize = 64 << 20;
const LEAST_NAME_BYTES: usize = 1 << 20;
/// Frames that are asked about at a time.
const MAX_BATCH: usize = 1024;
/// How long an answer holds for further samples with the same words.
const FRESH_NS: u64 = 1_000_000_000;
/// The same where there was no name: that may be found at the next look, and is asked for until then.
const UNNAMED_NS: u64 = 50_000_000;
/// After an answer nothing is asked for so many times the CPU time that it took...
const REST: u64 = 9;
/// ...but no longer than this, for samples wait, and no shorter than this. In a continuous recording all that is multiplied by
/// the number of its holder's processes that ask: together they cost as much as one does.
const MAX_PAUSE_NS: u64 = 2_000_000_000;
const LEAST_PAUSE_NS: u64 = 20_000_000;
/// The same while functions are replaced before they are looked at, which counts for so long.
const LOSING_PAUSE_NS: u64 = 5_000_000;
const LOSES_NS: u64 = 1_000_000_000;
/// Between two times that nothing but code that is listed is asked about, where samples can wait for it.
const LISTED_PAUSE_NS: u64 = 1_000_000_000;
/// Frames with which that is so at most: further ones are to find room.
const FEW: usize = MAX_BATCH / 4;
/// What a thread that was interrupted while it makes something has, so that it goes on, before that is asked about again.
const GRACE_NS: u64 = 5_000_000;
/// How long a process counts that has asked.
const ASKS_NS: u64 = 10_000_000_000;

/// Stands for the number of a frame that there was no room for.
const NO_ROOM: u32 = u32::MAX;

/// How soon frames are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Haste {
    /// Whatever the last answer has taken: no further sample comes.
    AtOnce,
    /// When it has rested from the last answer: samples wait.
    Soon,
    /// About once a second: samples can wait, and the answers stay true.
    Seldom,
}

/// What is known of a frame.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// Functions of the program, innermost first. They have no module and no address yet.
    Functions(Arc<[Frame]>),
    /// The runtime's own code: the file's symbols name it.
    Own,
    /// What it is cannot be known.
    Unnamed(WhyUnnamed),
}

impl Known {
    /// Whether these are the same functions.
    fn is_same(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Functions(one), Self::Functions(other)) if one == other)
    }

    /// Whether nobody was there to say it.
    fn is_nobodys(&self) -> bool {
        matches!(self, Self::Unnamed(WhyUnnamed::Ended | WhyUnnamed::NoAnswer | WhyUnnamed::Unreadable))
    }
}

/// Which frames of a sample were asked about: the user frame's index, and the number in the table of this generation.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    generation: u32,
    pub(super) frames: Box<[(u16, u32)]>,
    /// There may be more frames than those that words were taken of.
    is_full: bool,
}

impl Asked {
    /// Of the first table.
    #[cfg(test)]
    pub(super) fn of(frames: Box<[(u16, u32)]>) -> Self {
        Self { generation: 0, frames, is_full: false }
    }

    /// Whether a user frame was.
    pub(super) fn has(&self, index: usize) -> bool {
        self.number(index).is_some()
    }

    /// Whether there may be more frames than those that words were taken of.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// There may be more frames than were asked about.
    pub(super) fn note_full(&mut self) {
        self.is_full = true;
    }

    /// The number for a user frame.
    fn number(&self, index: usize) -> Option<u32> {
        let index = u16::try_from(index).ok()?;
        let at = self.frames.binary_search_by_key(&index, |(index, _)| *index).ok()?;
        self.frames.get(at).map(|(_, number)| *number)
    }

    /// The sample's frames are others now, but for those up to `until`, and those at its outer end that are the same.
    pub(super) fn follow(&mut self, (before, after): (&[u64], &[u64]), until: usize) {
        let same = before.iter().rev().zip(after.iter().rev()).take_while(|(one, other)| one == other).count();
        let moved = |index: u16| {
            let at = usize::from(index);
            if at <= until && before.get(at) == after.get(at) {
                return Some(index);
            }
            let from_end = before.len().checked_sub(at).filter(|from_end| *from_end <= same)?;
            u16::try_from(after.len().checked_sub(from_end)?).ok().filter(|moved| usize::from(*moved) > until)
        };
        let frames = self.frames.iter().filter_map(|(index, number)| Some((moved(*index)?, *number)));
        self.frames = frames.collect();
    }
}

/// What frames take up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameRoom {
    frames: usize,
    name_bytes: usize,
}

/// What the frames of all processes take up, by whose they are.
#[derive(Debug, Default)]
pub(super) struct FrameRooms {
    all: FrameRoom,
    of: FxHashMap<Holder, FrameRoom>,
    /// Processes that have asked lately, where their holder pays for all of them together.
    asking: FxHashMap<Holder, u64>,
}

/// What a process has of what all have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameShare {
    /// All have too much, and its holder more than others.
    is_tight: bool,
    /// Processes that ask at its holder's expense, with this one.
    askers: u64,
}

impl Default for FrameShare {
    fn default() -> Self {
        Self { is_tight: false, askers: 1 }
    }
}

impl FrameRooms {
    /// Adds those of a process.
    pub(super) fn add(&mut self, holder: Holder, room: FrameRoom) {
        for sum in [&mut self.all, self.of.entry(holder).or_default()] {
            sum.frames += room.frames;
            sum.name_bytes += room.name_bytes;
        }
    }

    /// A process asks at its holder's expense.
    pub(super) fn add_asking(&mut self, holder: Holder) {
        *self.asking.entry(holder).or_default() += 1;
    }

    /// A process' share.
    pub(super) fn share(&self, holder: Holder) -> FrameShare {
        let askers = self.asking.get(&holder).copied().unwrap_or_default().max(1);
        FrameShare { is_tight: self.is_tight(holder), askers }
    }

    /// Whether all have too much, and somebody more than his part of what there may be.
    fn is_tight(&self, holder: Holder) -> bool {
        let own = self.of.get(&holder).copied().unwrap_or_default();
        let is_over = |all: usize, own: usize, max: usize| all > max && own > max / self.of.len().max(1);
        is_over(self.all.frames, own.frames, MAX_ALL_FRAMES)
            || is_over(self.all.name_bytes, own.name_bytes, MAX_ALL_NAME_BYTES)
    }
}

/// What was answered, and of which samples it is true.
#[derive(Clone, Debug)]
struct Answer {
    /// A time after it was read.
    done: MonoNs,
    /// Nothing is known of earlier ones.
    since: MonoNs,
    /// The runtime is not known to have freed nothing after this.
    until: MonoNs,
    known: Known,
}

/// Takes up what was said of a function at one of its places.
fn note_function(all: &mut HashMap<(u64, u64), Option<Answer>>, function: (u64, u64), answer: &Answer) {
    let Known::Functions(functions) = &answer.known else { return };
    // What many functions of one line are called says too little of which one it is.
    let is_anybody = |frame: &Frame| frame.name.starts_with('<') || frame.name.contains("{closure");
    let said = Some(answer).filter(|_| !functions.iter().any(is_anybody)).cloned();
    let known = all.entry(function).or_insert_with(|| said.clone());
    let agrees = |one: &Answer, other: &Answer| names(&one.known).eq(names(&other.known));
    match (&mut *known, said) {
        (Some(one), Some(other)) if agrees(one, &other) => one.done = one.done.max(other.done),
        (known, _) => *known = None,
    }
}

/// What functions are called, innermost first.
fn names(known: &Known) -> impl Iterator<Item = &str> {
    let functions: &[Frame] = match known {
        Known::Functions(functions) => functions,
        Known::Own | Known::Unnamed(_) => &[],
    };
    functions.iter().map(|frame| &*frame.name)
}

/// What is said of samples that are older than what was found is known to be.
static UNLOADED: Known = Known::Unnamed(WhyUnnamed::Unloaded);
/// What is said where two answers about one sample differ.
static REPLACED: Known = Known::Unnamed(WhyUnnamed::Replaced);

#[derive(Debug, Default)]
struct Slot {
    /// It is to be asked about, or is being.
    wanted: bool,
    /// The last answer.
    answer: Option<Answer>,
    /// One that has to be found again before it is one: it may have been of something in the making.
    unsure: Option<Known>,
    /// When a sample was taken that asked.
    used: MonoNs,
    /// The question has only the words that its answer depends on, which are these.
    depends_on: Option<DependsOn>,
}

impl Slot {
    /// What is known at a time. What code there is under a number, that it is gone, and where it is deoptimised, stays true.
    fn at(&self, ask: &FrameAsk, time: MonoNs) -> Option<&Known> {
        let answer = self.answer.as_ref()?;
        let known = &answer.known;
        let is_final = match known {
            Known::Functions(_) => true,
            Known::Unnamed(why) => matches!(why, WhyUnnamed::Replaced | WhyUnnamed::Deoptimized),
            Known::Own => false,
        };
        let fresh = if matches!(known, Known::Unnamed(_)) { UNNAMED_NS } else { FRESH_NS };
        let holds = (ask.code.is_some() && is_final) || time.0 <= answer.done.0.saturating_add(fresh);
        let holds = holds && time <= answer.until;
        holds.then_some(if time < answer.since { &UNLOADED } else { known })
    }
}

/// What is being asked about.
#[derive(Debug)]
struct Question {
    /// Of the program that runs since then.
    since: MonoNs,
    /// The frames' numbers, in the order of the answers. They follow their frames: what is kept does not have to wait.
    numbers: Vec<u32>,
    /// When the last sample was taken that asked for each.
    used: Vec<MonoNs>,
}

/// The frames of one process.
#[derive(Debug, Default)]
pub(super) struct Frames {
    // The target chooses its words: hashed with std's keyed hasher.
    known: IndexMap<FrameAsk, Slot>,
    /// What answers about frames at an address depend on; first what was of use last.
    parts: HashMap<FramePc, Vec<DependsOn>>,
    wanted: VecDeque<u32>,
    generation: u32,
    asked: Option<Question>,
    next_at: MonoNs,
    /// What was unsure is not asked about again before.
    again_at: MonoNs,
    name_bytes: usize,
    /// How many were kept that no sample waited for when others were dropped last, and bytes of their names.
    kept: (usize, usize),
    share: FrameShare,
    /// When something was asked last.
    asked_at: Option<MonoNs>,
    /// When something was not to be found any more where it had been, or was likely not to be in time.
    lost_at: Option<MonoNs>,
    /// How many classes the runtime has unloaded, and until when it is known to have been no more.
    unloads: Option<(u64, MonoNs)>,
    /// A time by which that was so.
    risen: MonoNs,
    over: bool,
    /// What was said of functions in a list at any of their places, once the process has ended; nothing where that differs.
    functions: HashMap<(u64, u64), Option<Answer>>,
    /// Frames that were named in samples.
    pub(super) named: u64,
    /// Answers, and what they have cost.
    pub(super) answers: u64,
    pub(super) cpu_ns: u64,
}

impl Frames {
    /// Another program runs: nothing is known of its frames.
    pub(super) fn exec(&mut self) {
        *self = Self { generation: self.generation.wrapping_add(1), ..Self::default() };
    }

    /// The process has ended: what is not known by now will not be.
    pub(super) fn close(&mut self) {
        self.over = true;
        self.wanted.clear();
        self.functions.clear();
        for (ask, slot) in &self.known {
            if let Some((function, answer)) = ask.listed_function().zip(slot.answer.as_ref()) {
                note_function(&mut self.functions, function, answer);
            }
        }
    }

    /// It has not ended after all. What was asked about it is so still, and what was to be asked is again.
    pub(super) fn reopen(&mut self) {
        if !std::mem::take(&mut self.over) {
            return;
        }
        self.functions.clear();
        let asked: HashSet<u32> = self.asked.iter().flat_map(|question| &question.numbers).copied().collect();
        let wanted = (0..).zip(self.known.values()).filter(|(number, slot)| slot.wanted && !asked.contains(number));
        self.wanted = wanted.map(|(number, _)| number).collect();
    }

    /// Whether an answer is on its way.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Whether samples wait for what is not asked for yet.
    pub(super) fn is_wanting(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Whether nothing is known or asked of any frame.
    pub(super) fn is_empty(&self) -> bool {
        self.room() == FrameRoom::default() && !self.is_wanting() && !self.is_asked()
    }

    /// Whether it can wait what samples wait for: nothing of it becomes another one's meanwhile, and there is room for more. Where
    /// a dump names all functions but those that were inlined, no name is lost, and if inlined functions are, it waits no longer.
    pub(super) fn may_wait(&self, inlined_alone: bool, now: MonoNs) -> bool {
        let is_listed =
            |number: &u32| self.known.get_index(*number as usize).is_some_and(|(ask, _)| ask.code.is_some());
        let has_room = self.wanted.len() < FEW && !self.share.is_tight;
        has_room && !self.is_losing(now) && (inlined_alone || self.wanted.iter().all(is_listed))
    }

    /// When it is due to ask for what samples wait for; nothing if they wait for nothing that is not asked for yet.
    pub(super) fn due_at(&self, haste: Haste) -> Option<MonoNs> {
        let soon = self.again_at.max(self.next_at);
        let rested = self.asked_at.map_or(MonoNs(0), |at| MonoNs(at.0.saturating_add(LISTED_PAUSE_NS)));
        let due = match haste {
            Haste::AtOnce => self.again_at,
            Haste::Soon => soon,
            Haste::Seldom => soon.max(rested),
        };
        self.is_wanting().then_some(due)
    }

    /// Whether something was asked lately.
    pub(super) fn has_asked(&self, now: MonoNs) -> bool {
        self.asked_at.is_some_and(|at| now.0.saturating_sub(at.0) < ASKS_NS)
    }

    /// Whether what samples have met is replaced before it is looked at.
    pub(super) fn is_losing(&self, now: MonoNs) -> bool {
        self.lost_at.is_some_and(|at| now.0.saturating_sub(at.0) < LOSES_NS) && !self.over
    }

    /// How many are remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// How much is remembered.
    pub(super) fn room(&self) -> FrameRoom {
        FrameRoom { frames: self.known.len(), name_bytes: self.name_bytes }
    }

    /// Wants to know what the frames of a sample are.
    pub(super) fn want(
        &mut self,
        (space, capture): (&AddressSpace, &Capture),
        (time, user): (MonoNs, &[u64]),
        taken: &TakenWords,
    ) -> Asked {
        let mut frames: Vec<(u16, u32)> = Vec::with_capacity(taken.frames.len());
        let count = capture.word_count();
        for words in &taken.frames {
            let Some(pc) = user.get(usize::from(words.index)).copied().map(FramePc) else { continue };
            if frames.last().is_some_and(|(last, _)| *last >= words.index) {
                continue;
            }
            let Some(place) = place(space, capture, pc, time) else { continue };
            let is_leaf = words.index == 0 && pc.is_interrupted();
            let callee = usize::from(words.index).checked_sub(1).and_then(|callee| user.get(callee));
            let callee = callee.copied().map(FramePc).filter(|callee| callee.is_interrupted());
            let is_left = |callee| in_module(space, &capture.left_by, callee, time).is_some();
            let ask = FrameAsk {
                pc,
                in_module: place,
                is_left: callee.is_some_and(is_left),
                reads: words.reads,
                words: words.words.iter().copied().take(count).collect(),
                registers: taken.registers.filter(|_| is_leaf),
                code: None,
            };
            let number = self.answered(&ask, time).or_else(|| self.number(ask, time));
            frames.push((words.index, number.unwrap_or(NO_ROOM)));
        }
        let is_full = taken.frames.len() >= MAX_TAKEN;
        Asked { generation: self.generation, frames: frames.into(), is_full }
    }

    /// The same of frames that a finished walk has found, where nothing was asked before.
    pub(super) fn want_found(
        &mut self,
        of: (&AddressSpace, &Capture),
        sample: (MonoNs, &[u64]),
        asked: &mut Asked,
        mut words: Vec<FrameWords>,
    ) {
        words.retain(|words| !asked.has(words.index.into()));
        if words.is_empty() || (asked.generation != self.generation && !asked.frames.is_empty()) {
            return;
        }
        let found = self.want(of, sample, &TakenWords { registers: None, frames: words });
        let mut frames = [std::mem::take(&mut asked.frames), found.frames].concat();
        frames.sort_unstable();
        *asked = Asked { generation: self.generation, frames: frames.into(), is_full: asked.is_full || found.is_full };
    }

    /// The number of an answer to a question that differs in nothing that the answer depends on.
    fn answered(&mut self, ask: &FrameAsk, time: MonoNs) -> Option<u32> {
        let parts = self.parts.get_mut(&ask.pc)?;
        let mut narrowed = ask.clone();
        let (at, number) = parts.iter().enumerate().find_map(|(at, depends_on)| {
            depends_on.narrow(ask, &mut narrowed);
            let (number, ask, slot) = self.known.get_full_mut(&narrowed)?;
            if slot.depends_on != Some(*depends_on) || slot.at(ask, time).is_none() {
                return None;
            }
            slot.used = slot.used.max(time);
            Some((at, number))
        })?;
        // What was of use last is tried first.
        parts.get_mut(..=at)?.rotate_right(1);
        u32::try_from(number).ok()
    }

    /// Keeps an answer for all questions that differ in nothing that it depends on.
    fn keep_answer(&mut self, number: u32, depends_on: DependsOn) {
        let Some((ask, slot)) = self.known.get_index(number as usize) else { return };
        let (ask, answer, used) = (depends_on.of(ask), slot.answer.clone(), slot.used);
        if !self.has_room() && !self.known.contains_key(&ask) {
            return;
        }
        let parts = self.parts.entry(ask.pc).or_default();
        if !parts.contains(&depends_on) {
            parts.truncate(MAX_PARTS - 1);
            parts.insert(0, depends_on);
        }
        let slot = self.known.entry(ask).or_default();
        (slot.answer, slot.used, slot.depends_on) = (answer, slot.used.max(used), Some(depends_on));
    }

    fn has_room(&self) -> bool {
        self.known.len() < if self.share.is_tight { LEAST_FRAMES } else { MAX_FRAMES }
    }

    /// Wants to know what the frames of a list are, for a sample: each with its place in the list, in order.
    pub(super) fn want_records(&mut self, wanted: impl Iterator<Item = (u16, FrameAsk)>, time: MonoNs) -> Asked {
        let frames = wanted.map(|(at, ask)| (at, self.number(ask, time).unwrap_or(NO_ROOM))).collect();
        Asked { generation: self.generation, frames, is_full: false }
    }

    /// Wants to know what is at addresses of listed code, for a sample.
    pub(super) fn want_listed(&mut self, asked: &mut Asked, wanted: Vec<(u16, FrameAsk)>, time: MonoNs) {
        // What was asked about the program before is not asked about this one.
        if wanted.is_empty() || (asked.generation != self.generation && !asked.frames.is_empty()) {
            return;
        }
        asked.generation = self.generation;
        let mut frames = std::mem::take(&mut asked.frames).into_vec();
        // What was asked about code that has turned out to be older or younger than the sample is not asked about it.
        frames.retain(|(index, _)| wanted.iter().all(|(again, _)| again != index));
        frames.extend(wanted.into_iter().map(|(index, ask)| (index, self.number(ask, time).unwrap_or(NO_ROOM))));
        frames.sort_unstable();
        asked.frames = frames.into();
    }

    fn number(&mut self, ask: FrameAsk, time: MonoNs) -> Option<u32> {
        if !self.has_room() && !self.known.contains_key(&ask) {
            return None;
        }
        let entry = self.known.entry(ask);
        let number = u32::try_from(entry.index()).ok()?;
        entry.or_default();
        let (ask, slot) = self.known.get_index_mut(number as usize)?;
        slot.used = slot.used.max(time);
        if slot.at(ask, time).is_none() && !slot.wanted && !self.over {
            slot.wanted = true;
            self.wanted.push_back(number);
        }
        Some(number)
    }

    /// A child may have ended before anybody looks: it is looked at as if it replaced what it runs.
    pub(super) fn may_be_lost(&mut self, now: MonoNs) {
        self.lost_at = Some(now);
    }

    /// Whether it is known what a sample's frames are, or never will be.
    pub(super) fn is_settled(&self, asked: &Asked, time: MonoNs) -> bool {
        let is_settled = |number: &u32| {
            let slot = self.known.get_index(*number as usize);
            slot.is_none_or(|(ask, slot)| !slot.wanted || slot.at(ask, time).is_some())
        };
        self.over || asked.generation != self.generation || asked.frames.iter().all(|(_, number)| is_settled(number))
    }

    /// Whether a user frame of a sample was asked about, as one of this listed code if it is in any.
    pub(super) fn has(&self, asked: &Asked, index: usize, code: Option<ListedCode>) -> bool {
        asked.number(index).is_some_and(|number| number == NO_ROOM || self.is_of(number, asked, code))
    }

    /// What was asked about listed code is about no other, and about no frame in what has turned out to be none: the map may
    /// have been older than the sample when it came.
    fn is_of(&self, number: u32, asked: &Asked, code: Option<ListedCode>) -> bool {
        let ask = self.known.get_index(number as usize).filter(|_| asked.generation == self.generation);
        ask.is_none_or(|(ask, _)| ask.code.is_none() || ask.code == code)
    }

    /// What is known of a user frame of a sample, which is in this listed code if it is in any; nothing if it was not asked
    /// about.
    pub(super) fn get(&self, asked: &Asked, (index, code): (usize, Option<ListedCode>), time: MonoNs) -> Option<Known> {
        let number = asked.number(index)?;
        if number == NO_ROOM {
            return Some(Known::Unnamed(WhyUnnamed::TooMany));
        }
        if !self.is_of(number, asked, code) {
            return code.map(|_| Known::Unnamed(self.why_unanswered()));
        }
        let slot = self.known.get_index(number as usize).filter(|_| asked.generation == self.generation);
        // The code may be another's long since.
        let known = slot.and_then(|(ask, slot)| {
            let said = slot.at(ask, time);
            said.filter(|known| !known.is_nobodys()).cloned().or_else(|| self.of_function(ask, time)).or(said.cloned())
        });
        Some(known.unwrap_or(Known::Unnamed(self.why_unanswered())))
    }

    /// What is known of a frame of a list that nobody can be asked about any more, by other places of the same function: all
    /// but its line.
    fn of_function(&self, ask: &FrameAsk, time: MonoNs) -> Option<Known> {
        let function = ask.listed_function().filter(|_| self.over)?;
        let answer = self.functions.get(&function)?.as_ref()?;
        let Known::Functions(functions) = &answer.known else { return None };
        let without_line =
            |frame: &Frame| Frame { source: frame.source.as_ref().map(SourceLine::without_line), ..frame.clone() };
        let holds = time.0 <= answer.done.0.saturating_add(FRESH_NS) && time >= answer.since && time <= answer.until;
        holds.then(|| Known::Functions(functions.iter().map(without_line).collect()))
    }

    /// Why there is no answer.
    fn why_unanswered(&self) -> WhyUnnamed {
        if self.over { WhyUnnamed::Ended } else { WhyUnnamed::NoAnswer }
    }

    /// Asks, if that is due.
    pub(super) fn poll(&mut self, (id, via, since): (ProcessId, Pid, MonoNs), haste: Haste, requests: &mut Requests) {
        let is_due = self.due_at(haste).is_some_and(|due| requests.now >= due);
        if !is_due || self.asked.is_some() || self.over {
            return;
        }
        let count = self.wanted.len().min(MAX_BATCH);
        let numbers: Vec<u32> = self.wanted.drain(..count).collect();
        let ask = |number: &u32| self.known.get_index(*number as usize).map(|(ask, _)| ask.clone());
        let frames = numbers.iter().filter_map(ask).collect();
        let used = |number: &u32| self.known.get_index(*number as usize).map_or(MonoNs(0), |(_, slot)| slot.used);
        let used = numbers.iter().map(used).collect();
        self.asked = Some(Question { since, numbers, used });
        self.asked_at = Some(requests.now);
        let request = Request::DescribeFrames { via, process: id, since, frames };
        requests.ask(Purpose::Frames(id, since), request);
    }

    /// The runtime had unloaded so many classes at some time between two. If they were fewer before, what is known of frames
    /// whose words say where a method is holds no longer, and is asked again for the samples that have come since.
    pub(super) fn note_unloads(&mut self, count: Option<u64>, (begun, done): (MonoNs, MonoNs)) {
        let Some(count) = count else { return };
        let before = self.unloads.replace((count, begun));
        if before.is_some_and(|(before, _)| before == count) {
            return;
        }
        self.risen = done;
        let Some((_, until)) = before else { return };
        for (number, (ask, slot)) in (0..).zip(&mut self.known) {
            let Some(answer) = slot.answer.as_mut().filter(|_| ask.code.is_none()) else { continue };
            answer.until = answer.until.min(until);
            if slot.used > answer.until && !slot.wanted && !self.over {
                slot.wanted = true;
                self.wanted.push_back(number);
            }
        }
    }

    /// Takes up an answer about frames of somebody's program that runs since a time, made between two times.
    /// Returns which code they are in.
    pub(super) fn take(
        &mut self,
        (holder, since): (Holder, MonoNs),
        (body, (begun, done)): (AnswerBody, (MonoNs, MonoNs)),
        now: MonoNs,
    ) -> Vec<(Avma, u32)> {
        let Some(question) = self.asked.take_if(|question| question.since == since) else { return Vec::new() };
        let described = if let AnswerBody::Frames(Some(described)) = body { *described } else { Default::default() };
        self.note_unloads(described.unloads, (begun, done));
        let is_counted = described.unloads.is_some();
        self.answers += 1;
        self.cpu_ns = self.cpu_ns.saturating_add(described.cpu_ns);
        if described.frames.contains(&DescribedFrame::Unnamed(WhyUnnamed::Replaced)) {
            self.lost_at = Some(now);
        }
        let least = if self.is_losing(now) { LOSING_PAUSE_NS } else { LEAST_PAUSE_NS };
        let pause = described.cpu_ns.saturating_mul(REST).clamp(least, MAX_PAUSE_NS);
        self.next_at = MonoNs(now.0.saturating_add(pause.saturating_mul(self.share.askers)));
        let (templates, why_unanswered) = (Templates::of(&described, holder), self.why_unanswered());
        self.name_bytes = self.name_bytes.saturating_add(templates.bytes);
        let has_room = self.name_bytes <= if self.share.is_tight { LEAST_NAME_BYTES } else { MAX_NAME_BYTES };
        for (at, (number, used)) in question.numbers.iter().zip(&question.used).enumerate() {
            let Some((ask, slot)) = self.known.get_index_mut(*number as usize) else { continue };
            slot.wanted = false;
            let first = slot.unsure.take();
            let known = match (described.frames.get(at), first) {
                (Some(DescribedFrame::Functions(_) | DescribedFrame::Unsure(_)), _) if !has_room => {
                    Some(Known::Unnamed(WhyUnnamed::TooMany))
                }
                // Nobody is left who could say it once more. What was known before holds as long as it would have.
                (Some(DescribedFrame::Unsure(_)), None) if self.over => {
                    slot.answer.is_none().then_some(Known::Unnamed(WhyUnnamed::Ended))
                }
                (Some(frame @ DescribedFrame::Unsure(_)), None) => {
                    (slot.unsure, slot.wanted) = (Some(templates.known(frame)), true);
                    self.wanted.push_back(*number);
                    self.again_at = MonoNs(now.0.saturating_add(GRACE_NS));
                    continue;
                }
                // What has become another one's is not named: the sample may be of either.
                (Some(frame), Some(first)) if !first.is_same(&templates.known(frame)) => Some(REPLACED.clone()),
                (Some(frame), _) => Some(templates.known(frame)),
                // What was known before holds as long as it would have.
                (None, _) => slot.answer.is_none().then_some(Known::Unnamed(why_unanswered)),
            };
            let Some(known) = known else { continue };
            let is_named = !matches!(known, Known::Unnamed(_));
            let since = described.since.get(at).copied().unwrap_or(MonoNs(0));
            // What was unloaded may be there for a while, until something takes its place. What has been sampled since is
            // alive: it is what was found, and stays.
            let is_alive = !is_counted || ask.code.is_some() || *used > self.risen;
            let until = if is_alive { MonoNs(u64::MAX) } else { begun };
            slot.answer = Some(Answer { done, since, until, known });
            if slot.used > until && !self.over {
                slot.wanted = true;
                self.wanted.push_back(*number);
            }
            if let (true, Some((function, answer))) = (self.over, ask.listed_function().zip(slot.answer.as_ref())) {
                note_function(&mut self.functions, function, answer);
            }
            // Why something has no name may depend on what else was asked with it.
            if let Some(depends_on) = described.depends_on.get(at).copied().flatten().filter(|_| is_named) {
                self.keep_answer(*number, depends_on);
            }
        }
        described.code
    }

    /// Drops what no sample in the queue waits for, if there is much of it.
    pub(super) fn compact(&mut self, queue: &mut Queue, share: FrameShare) {
        self.share = share;
        let (kept, bytes) = if share.is_tight { (0, 0) } else { self.kept };
        let is_much = self.known.len() > KEPT_FRAMES + kept || self.name_bytes > KEPT_NAME_BYTES + bytes;
        if !is_much {
            return;
        }
        let mut known: IndexMap<FrameAsk, Slot> = IndexMap::new();
        let mut renumbered: Vec<Option<u32>> = vec![None; self.known.len()];
        let waited_for = queue.iter_mut().flat_map(Pending::asked_mut);
        let waited_for = waited_for.filter(|asked| asked.generation == self.generation);
        let waited_for = waited_for.flat_map(|asked| asked.frames.iter_mut().map(|(_, number)| number));
        let being_asked = self.asked.iter_mut().flat_map(|question| &mut question.numbers);
        for number in waited_for.chain(being_asked) {
            let Some(new) = renumbered.get_mut(*number as usize) else { continue };
            *number = *new.get_or_insert_with(|| {
                let moved = self.known.get_index_mut(*number as usize);
                let moved = moved.map(|(ask, slot)| (ask.clone(), std::mem::take(slot)));
                let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
                known.extend(moved);
                next
            });
        }
        let wanted = self.wanted.iter().filter_map(|number| *renumbered.get(*number as usize)?);
        self.wanted = wanted.collect();
        let left = std::mem::replace(&mut self.known, known);
        // Of what others of its places are called only as much is kept as samples wait for.
        let functions: HashSet<_> = self.known.keys().filter_map(FrameAsk::listed_function).collect();
        self.functions.retain(|function, _| functions.contains(function));
        let of_functions = self.functions.values().flatten().map(Answer::name_bytes);
        self.name_bytes = self.known.values().map(Slot::name_bytes).chain(of_functions).sum();
        self.keep_reusable(left);
        let of_part = |slot: &Slot| slot.depends_on.is_some();
        let kept: HashSet<FramePc> =
            self.known.iter().filter(|(_, slot)| of_part(slot)).map(|(ask, _)| ask.pc).collect();
        self.parts.retain(|pc, _| kept.contains(pc));
    }

    /// Keeps what answers others of what no sample waits for, the last ones first.
    fn keep_reusable(&mut self, left: IndexMap<FrameAsk, Slot>) {
        let most = if self.share.is_tight { 0 } else { KEPT_REUSABLE };
        let needed = (self.known.len(), self.name_bytes);
        let is_kept =
            |(ask, slot): &(FrameAsk, Slot)| (ask.code.is_some() || slot.depends_on.is_some()) && slot.answer.is_some();
        let mut left: Vec<(FrameAsk, Slot)> = left.into_iter().filter(is_kept).collect();
        left.sort_by_key(|(_, slot)| std::cmp::Reverse(slot.used));
        for (ask, slot) in left {
            self.name_bytes = self.name_bytes.saturating_add(slot.name_bytes());
            if self.known.len() >= most || self.name_bytes > MAX_NAME_BYTES / 2 {
                self.name_bytes -= slot.name_bytes();
                break;
            }
            // Nothing waits for it: whoever does next asks.
            self.known.insert(ask, Slot { wanted: false, unsure: None, ..slot });
        }
        self.kept = (self.known.len() - needed.0, self.name_bytes - needed.1);
    }
}

impl Answer {
    fn name_bytes(&self) -> usize {
        names(&self.known).map(str::len).sum()
    }
}

impl Slot {
    /// Bytes of names, those that may never be said included: whoever has many of them made pays for them.
    fn name_bytes(&self) -> usize {
        let known = self.answer.iter().map(|answer| &answer.known).chain(&self.unsure);
        known.flat_map(names).map(str::len).sum()
    }
}

/// Frames as the names of an answer make them.
struct Templates {
    frames: Vec<Frame>,
    names: Vec<Arc<str>>,
    bytes: usize,
}

impl Templates {
    fn of(described: &DescribedFrames, holder: Holder) -> Self {
        let template = |name: &String| {
            let name = classify(name, CodeOrigin::Runtime, Some(holder));
            Frame {
                name: name.display.into(),
                kind: name.kind,
                tier: name.tier,
                inlined: false,
                module: None,
                source: name.source,
                address: 0,
            }
        };
        Self {
            frames: described.names.iter().map(template).collect(),
            names: described.names.iter().map(|name| Arc::from(&**name)).collect(),
            bytes: described.names.iter().map(String::len).sum(),
        }
    }

    fn known(&self, frame: &DescribedFrame) -> Known {
        let functions = match frame {
            DescribedFrame::Functions(functions) | DescribedFrame::Unsure(functions) => functions,
            DescribedFrame::Own => return Known::Own,
            DescribedFrame::Unnamed(why) => return Known::Unnamed(*why),
        };
        let frames = functions.iter().filter_map(|function| {
            let template = self.frames.get(function.name as usize)?;
            let file = function.file.and_then(|file| self.names.get(file as usize));
            let (line, column) = (function.line, function.column);
            let place = file.map(|file| SourceLine { file: Arc::clone(file), line, column });
            let source = place.or_else(|| template.source.clone());
            let frame = Frame { inlined: function.inlined, source, ..template.clone() };
            Some(if function.guessed { frame.as_guess() } else { frame })
        });
        let frames: Arc<[Frame]> = frames.collect();
        let is_all = !frames.is_empty() && frames.len() == functions.len();
        if is_all { Known::Functions(frames) } else { Known::Unnamed(WhyUnnamed::Implausible) }
    }
}

/// What is to be asked about a frame in code that its runtime lists.
pub(super) fn ask_of_listed(hit: &CodeHit<'_>, pc: FramePc) -> Option<FrameAsk> {
    listed_code(hit).map(|code| FrameAsk::of_listed(pc, code))
}

/// Which code that its runtime lists this is, if it does.
pub(super) fn listed_code(hit: &CodeHit<'_>) -> Option<ListedCode> {
    Some(ListedCode { start: hit.start(), number: hit.number() }).filter(|code| code.number > 0)
}

/// Where a frame is that words were taken of: `None` if no such code is there, else the address in the first mapping of the
/// runtime's module, if it is in that.
fn place(space: &AddressSpace, capture: &Capture, pc: FramePc, time: MonoNs) -> Option<Option<Avma>> {
    if matches!(Place::mapped(space, Avma(pc.lookup()), time), Place::Generated(_)) {
        return Some(None);
    }
    in_module(space, &capture.code, pc, time).map(Some)
}

/// Where in the first mapping of a module a frame is, if it is in one of these parts of it, in whichever mapping.
pub(super) fn in_module(space: &AddressSpace, parts: &[(Avma, u64)], pc: FramePc, time: MonoNs) -> Option<Avma> {
    let address = Avma(pc.lookup());
    let mapping = &space.lookup(address, time)?.mapping;
    let offset = mapping.file_offset_of(address).filter(|_| mapping.kind == MappingKind::File)?;
    let in_part = |(start, size): &(Avma, u64)| {
        let home = home(space, *start, time)?;
        let from = home.file_offset_of(*start)?.0;
        let within = offset.0.checked_sub(from).filter(|within| within < size && is_same_file(home, mapping))?;
        Some(Avma(start.0 + within + (pc.pc() - address.0)))
    };
    parts.iter().find_map(in_part)
}

fn home(space: &AddressSpace, start: Avma, time: MonoNs) -> Option<&Mapping> {
    space.lookup(start, time).map(|mapped| &mapped.mapping).filter(|home| home.kind == MappingKind::File)
}

fn is_same_file(one: &Mapping, other: &Mapping) -> bool {
    other.kind == MappingKind::File && (one.device, one.inode) == (other.device, other.inode)
}

/// Whether a mapping is of the module that has these parts.
pub(super) fn is_of_module(space: &AddressSpace, parts: &[(Avma, u64)], mapping: &Mapping, time: MonoNs) -> bool {
    let home = parts.first().and_then(|(start, _)| home(space, *start, time));
    home.is_some_and(|home| is_same_file(home, mapping))
}

/// The parts of a mapping in which frames' words are taken, by ascending address, if it is not all or nothing.
pub(super) fn taken_in(space: &AddressSpace, capture: &Capture, mapped: &Mapped) -> Vec<(u64, u64)> {
    let mapping = &mapped.mapping;
    if matches!(Place::of_mapping(mapped), Place::Generated(_)) {
        let (start, end) = capture.generated.map_or((0, 0), |(start, size)| (start.0, start.0.saturating_add(size)));
        let (from, to) = (start.max(mapping.start.0), end.min(mapping.end.0));
        return (from < to).then_some((from, to)).into_iter().collect();
    }
    let part = |(start, size): &(Avma, u64)| {
        let home = home(space, *start, MonoNs(u64::MAX)).filter(|home| is_same_file(home, mapping))?;
        let from = home.file_offset_of(*start)?.0;
        let to = from.saturating_add(*size).min(mapping.file_offset.0.saturating_add(mapping.len()));
        let from = from.max(mapping.file_offset.0);
        let at = |offset: u64| mapping.start.0 + (offset - mapping.file_offset.0);
        (from < to).then(|| (at(from), at(to)))
    };
    let mut parts: Vec<(u64, u64)> = capture.code.iter().filter_map(part).collect();
    parts.sort_unstable();
    parts.dedup_by(|next, last| next.0 < last.1);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::DescribedFunction;

    #[test]
    fn who_fills_the_room_for_frames_has_the_least_and_the_others_what_they_have() {
        let user = |uid| Holder::User(uid);
        for (greedy, modest) in [((9000, 0), (100, 0)), ((10, MAX_NAME_BYTES), (10, 1 << 20))] {
            let room = |(frames, name_bytes)| FrameRoom { frames, name_bytes };
            let mut rooms = FrameRooms::default();
            (0..7).for_each(|_| rooms.add(user(1), room(greedy)));
            rooms.add(user(2), room(modest));
            assert!(!rooms.is_tight(user(1)) && !rooms.is_tight(user(2)), "{greedy:?}");
            (0..7).for_each(|_| rooms.add(user(1), room(greedy)));
            assert!(rooms.is_tight(user(1)) && !rooms.is_tight(user(2)) && !rooms.is_tight(user(3)), "{greedy:?}");
        }
    }

    /// Frames of which one is asked about, and its number.
    fn asking() -> (Frames, u32) {
        let pc = FramePc::new(0x7000, jitprof_common::unwind::PcKind::Instruction);
        let ask =
            FrameAsk { pc, in_module: None, is_left: false, reads: 1, words: [1].into(), registers: None, code: None };
        let mut frames = Frames::default();
        let number = frames.number(ask, MonoNs(1)).unwrap();
        frames.asked = Some(Question { since: MonoNs(0), numbers: vec![number], used: vec![MonoNs(0)] });
        (frames, number)
    }

    /// A function of the first name.
    const FUNCTION: DescribedFunction =
        DescribedFunction { name: 0, file: None, line: 0, column: None, inlined: false, guessed: false };

    /// An answer that has to be found again.
    fn unsure(name: &str) -> AnswerBody {
        let frames = vec![DescribedFrame::Unsure(vec![FUNCTION])];
        let described = DescribedFrames { names: vec![name.to_owned()], frames, ..DescribedFrames::default() };
        AnswerBody::Frames(Some(Box::new(described)))
    }

    #[test]
    fn what_is_not_sure_yet_counts_and_is_not_said_of_a_process_that_has_ended() {
        let now = MonoNs(1);
        let (mut frames, _) = asking();
        frames.take((Holder::User(1), MonoNs(0)), (unsure("made"), (now, now)), now);
        assert_eq!(frames.known.values().map(Slot::name_bytes).sum::<usize>(), "made".len());
        let (mut frames, number) = asking();
        frames.close();
        frames.take((Holder::User(1), MonoNs(0)), (unsure("made"), (now, now)), now);
        let known = frames.get(&Asked::of([(0, number)].into()), (0, None), now);
        assert!(matches!(known, Some(Known::Unnamed(WhyUnnamed::Ended))), "{known:?}");
    }

    #[test]
    fn what_is_asked_about_listed_code_can_wait_as_long_as_it_is_little_and_nothing_is_lost() {
        let ask = |at| {
            let pc = FramePc::new(0x7000 + at, jitprof_common::unwind::PcKind::Instruction);
            FrameAsk::of_listed(pc, ListedCode { start: Avma(0x7000), number: 1 })
        };
        let now = MonoNs(5);
        let asking = |count: u64| {
            let mut frames = Frames { asked_at: Some(now), ..Frames::default() };
            for at in 0..count {
                frames.number(ask(at), now);
            }
            frames
        };
        let due = |frames: &Frames| [Haste::AtOnce, Haste::Soon, Haste::Seldom].map(|haste| frames.due_at(haste));
        let mut frames = asking(2);
        assert!(frames.may_wait(false, now));
        assert_eq!(due(&frames), [Some(MonoNs(0)), Some(MonoNs(0)), Some(MonoNs(5 + LISTED_PAUSE_NS))]);
        // Objects in which words of frames are found move.
        let words = FrameAsk { code: None, words: [1].into(), ..ask(9) };
        frames.number(words, now);
        assert!(!frames.may_wait(false, now) && frames.may_wait(true, now));
        assert!(!asking(FEW as u64).may_wait(true, now), "others are to find room");
        let mut frames = asking(2);
        frames.may_be_lost(now);
        assert!(!frames.may_wait(true, now));
        assert_eq!(due(&Frames::default()), [None; 3]);
    }

    #[test]
    fn names_beyond_the_room_are_not_kept() {
        use jitprof_common::unwind::PcKind;

        let ask = |word| FrameAsk {
            pc: FramePc::new(0x7000, PcKind::Instruction),
            in_module: None,
            is_left: false,
            reads: 1,
            words: [word].into(),
            registers: None,
            code: None,
        };
        for (is_tight, named) in [(false, true), (true, false)] {
            let (mut frames, mut queue, now) = (Frames::default(), Queue::default(), MonoNs(1));
            frames.compact(&mut queue, FrameShare { is_tight, askers: 1 });
            let number = frames.number(ask(1), now).unwrap();
            frames.asked = Some(Question { since: MonoNs(0), numbers: vec![number], used: vec![MonoNs(0)] });
            let described = DescribedFrames {
                names: vec!["x".repeat(LEAST_NAME_BYTES + 1)],
                frames: vec![DescribedFrame::Functions(vec![FUNCTION])],
                ..DescribedFrames::default()
            };
            let body = AnswerBody::Frames(Some(Box::new(described)));
            frames.take((Holder::User(1), MonoNs(0)), (body, (now, now)), now);
            let asked = Asked::of([(0, number)].into());
            let known = frames.get(&asked, (0, None), now);
            assert_eq!(matches!(known, Some(Known::Functions(_))), named, "{known:?}");
        }
    }
}
