//! Any bytes as the story of a machine, told to an engine in any order and with answers right and wrong. What must hold
//! whatever happens is asserted: it panics if the engine is wrong. A property test and the fuzz target `engine` run it.
//!
//! * Nothing panics; every sample that was given in is in a window or in the profile, once (invariants 5 and 6).
//! * The engine's counts fit together and stay within their bounds; no input leads to requests without end.
//! * A name is of code or of a file that was there at the time of the sample (invariant 3), as far as a list of what
//!   happened can tell; or of a function whose words the sample has brought along.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use jitprof_common::listed::{Field, ListSpec, Step};
use jitprof_common::taken::MAX_WORDS;
use jitprof_common::units::{Avma, FileOffset, MonoNs, Pid, Tid};
use jitprof_jitdump::writer::{DumpWriter, HeaderFields, LoadFields};

use super::machine::{MadeProcess, file_mapping, memory_mapping};
use super::{BEGIN, Fate, MS, World, failure, mmap_event, options, raw_sample};
use crate::engine::border::{
    Answer, AnswerBody, FrameList, FrameWords, Order, PageNumber, Refused, Request, RequestId, RowsAnswer,
    StackSnapshot, TakenWords, Ticks, WhyUnread,
};
use crate::engine::{CallGraph, Input, Selector, Who};
use crate::process::Mapping;
use crate::process::event::TaskChange;
use crate::process::hierarchy::{Group, GroupQuery};
use crate::process::open::FileId;
use crate::profile::{Profile, StackId};
use crate::runtime::{
    Capture, DependsOn, DescribedFrame, DescribedFrames, DescribedFunction, EntryMark, ListCapture, RuntimeRead,
    TakeRead,
};
use crate::symbol::{Name, NameAnswer, SymbolKey, Unresolved};

/// Steps of one story at most.
const MAX_STEPS: usize = 400;
/// Time that passes in one story at most: beyond it steps take none.
const MAX_MS: u64 = 200_000;
/// Processes that there can be.
const PIDS: u32 = 6;
const FIRST_PID: u32 = 100;
/// Where programs lie.
const APP: u64 = 0x40_0000;
const APP_BYTES: u64 = 0x1_0000;
/// Where code is generated, in so many places of so many bytes.
const JIT: u64 = 0x7000_0000;
const SLOTS: u64 = 8;
const SLOT_BYTES: u64 = 0x1000;
const CODE_BYTES: u64 = 64;
const MARKER: u64 = 0x6000_0000;
/// How late a record may name a sample: see `place.rs`.
const LATENESS_NS: u64 = 10 * MS;
/// Requests that one step may lead to, for each process that there can be, and beside them.
const REQUESTS_EACH: usize = 256;
const REQUESTS_BESIDE: usize = 1024;
/// What a process that is only known from /proc may have of its parent from after the fork: see `dump.rs`.
const START_STEP_NS: u64 = 10 * MS;
/// How long an answer about a frame holds for later samples with the same words: see `frames.rs`.
const FRESH_NS: u64 = 1_000 * MS;
/// How far ahead of the clock the time of a sample may be.
const AHEAD_NS: u64 = 120 * MS;
/// The word of a frame that says its function.
const FUNCTION_WORD: usize = 3;
/// In the upper byte of a list's record: a loop has begun there.
const LEAST_MARK: u8 = 3;
/// The programs.
const PROGRAMS: [&str; 3] = ["/bin/a", "/bin/b", "/bin/c"];

/// The bytes that decide.
struct Dice<'a>(&'a [u8]);

impl Dice<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((byte, rest)) => {
                self.0 = rest;
                *byte
            }
            None => 0,
        }
    }

    fn below(&mut self, count: u64) -> u64 {
        u64::from(self.byte()) % count
    }

    fn pid(&mut self) -> u32 {
        FIRST_PID + u32::from(self.byte()) % PIDS
    }
}

/// A process between its birth and its end.
type Life = (u32, MonoNs);

/// A function that was announced in a dump.
#[derive(Debug)]
struct Announced {
    life: Life,
    slot: u64,
    time: MonoNs,
    /// It has surely been read.
    is_read: bool,
}

/// A function that a runtime knows by a word of its frames, in one process.
#[derive(Clone, Debug)]
struct Described {
    life: Life,
    word: u64,
    /// Until when a sample may be named by it.
    until: MonoNs,
}

/// What has happened, as a list.
#[derive(Default)]
struct Naive {
    described: Vec<Described>,
    /// Words that samples have brought along.
    words: BTreeMap<(u32, MonoNs), BTreeSet<u64>>,
    functions: Vec<Announced>,
    /// The programs at [`APP`] and when they came there.
    programs: BTreeMap<Life, Vec<(MonoNs, Option<usize>)>>,
    /// Of whom a process was made, and when.
    parents: BTreeMap<Life, (Life, MonoNs)>,
    execs: BTreeMap<Life, MonoNs>,
    /// Everything is told and answered in time: what is not named right is wrong.
    is_orderly: bool,
}

impl Naive {
    /// Whether a function may be what ran in a process at a time.
    fn may_run(&self, number: usize, life: Life, time: MonoNs) -> bool {
        let Some(function) = self.functions.get(number) else { return false };
        let lineage = self.lineage(life);
        let Some((_, until)) = lineage.iter().find(|(one, _)| *one == function.life) else { return false };
        let lateness = if self.is_orderly { LATENESS_NS } else { u64::MAX / 2 };
        if function.time > *until || function.time.0 > time.0.saturating_add(lateness) {
            return false;
        }
        // Another one took its place.
        let replaces = |other: &Announced| {
            let of_line = lineage.iter().any(|(one, until)| *one == other.life && other.time <= *until);
            of_line && other.is_read && other.slot == function.slot && function.time < other.time && other.time <= time
        };
        !(self.is_orderly && self.functions.iter().any(replaces))
    }

    /// Whether a sample of a process may be of a function that its runtime knows by this word.
    fn may_be_described(&self, word: u64, (pid, start): Life, time: MonoNs) -> bool {
        // A window that has begun by now takes samples from before as those of its begin.
        let mut brought = match self.is_orderly {
            true => self.words.range((pid, time)..=(pid, time)),
            false => self.words.range((pid, MonoNs(0))..=(pid, time)),
        };
        let is_brought = brought.any(|(_, words)| words.contains(&word));
        // A process whose end was lost, and the next one of its number, may look like one.
        let is_its = |known: &&Described| {
            known.life.0 == pid && (!self.is_orderly || (known.life.1 == start && time <= known.until))
        };
        is_brought && self.described.iter().filter(|known| known.word == word).any(|known| is_its(&known))
    }

    /// What a process' runtime knows by such words is gone, and holds for so long still.
    fn end_described(&mut self, life: Life, word: Option<u64>, until: MonoNs) {
        let its =
            self.described.iter_mut().filter(|known| known.life == life && word.is_none_or(|word| known.word == word));
        its.for_each(|known| known.until = known.until.min(until));
    }

    /// A process and those from whom it has its code, each with the time up to which that counts.
    fn lineage(&self, life: Life) -> Vec<(Life, MonoNs)> {
        let mut lineage = vec![(life, MonoNs(u64::MAX))];
        let (mut child, mut until) = (life, MonoNs(u64::MAX));
        while let Some((parent, forked)) = self.parents.get(&child) {
            until = until.min(MonoNs(forked.0 + START_STEP_NS));
            lineage.push((*parent, until));
            child = *parent;
        }
        lineage
    }

    /// Whether a program may have been mapped at a time. What is known of the time before a process was read is what was
    /// there then.
    fn may_be_mapped(&self, program: usize, life: Life, time: MonoNs) -> bool {
        let Some(history) = self.programs.get(&life) else { return false };
        let now = history.iter().rposition(|(since, _)| *since <= time).unwrap_or(0);
        history.get(now..).unwrap_or_default().iter().any(|(_, mapped)| *mapped == Some(program))
    }
}

/// The story, and who tells it.
struct Teller<'a> {
    dice: Dice<'a>,
    world: World,
    naive: Naive,
    /// What becomes of requests: 0 answers all.
    fate: Rc<Cell<u8>>,
    lives: BTreeMap<u32, MonoNs>,
    /// Ticks of a continuous recording wait for what comes late only so long.
    is_continuous: bool,
    duplicates: BTreeSet<u64>,
}

/// Tells the story that these bytes are.
pub fn run(bytes: &[u8]) {
    let mut teller = Teller::new(bytes);
    // Two runtimes and a program that generates no code are there from the beginning.
    for pid in 0..3 {
        teller.appear(FIRST_PID + pid, 0);
    }
    teller.begin_dump(FIRST_PID, false);
    teller.begin_dump(FIRST_PID + 1, true);
    for _ in 0..MAX_STEPS {
        if teller.dice.0.is_empty() {
            break;
        }
        let before = teller.world.asked.len();
        teller.step();
        let asked = teller.world.asked.len() - before;
        assert!(asked <= REQUESTS_BESIDE + REQUESTS_EACH * PIDS as usize, "{asked} requests in one step");
        teller.world.asked.clear();
        teller.world.engine.assert_sound();
    }
    teller.end();
}

impl<'a> Teller<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let mut dice = Dice(bytes);
        let (flags, more) = (dice.byte(), dice.byte());
        let mut options = options();
        options.bucket_ns = 1;
        options.peek = flags & 1 == 0;
        options.inherit = flags & 2 == 0;
        options.labels_host = options.labels_host.filter(|_| flags & 4 == 0);
        options.who = match more % 4 {
            0 | 1 => Who::Chosen,
            2 => Who::All,
            _ => Who::Matching(Selector {
                groups: GroupQuery { paths: vec!["/x".to_owned()], ..GroupQuery::default() },
                comms: if flags & 8 == 0 { vec!["a".to_owned()] } else { Vec::new() },
                ..Selector::default()
            }),
        };
        options.call_graph = match more >> 2 & 3 {
            0 => CallGraph::FramePointers,
            1 => CallGraph::EhFrame,
            _ => CallGraph::Auto,
        };
        if let Some(sizes) = options.tables.as_mut().filter(|_| flags & 16 != 0) {
            (sizes.rows, sizes.regions) = (40, 12);
        }
        if flags & 32 != 0 {
            options.tables = None;
        }
        let mut world = World::new(options);
        let fate = Rc::new(Cell::new(0_u8));
        let (mode, count) = (Rc::clone(&fate), Cell::new(0_u8));
        world.decide = Box::new(move |_| {
            count.set(count.get().wrapping_add(1));
            decided(mode.get(), count.get())
        });
        for number in 0..PROGRAMS.len() {
            // Two of them have the same build id, and are no copies.
            install(&mut world, number, if number == 0 { b"id0" } else { b"id1" });
        }
        world.machine.groups = vec![Group { directory: "/x".into(), path: "/x".to_owned(), is_v2: false, inode: 1 }];
        if matches!(more % 4, 3) {
            let groups = world.machine.groups.clone();
            world.order(Order::Members { pids: Vec::new(), groups });
        }
        let is_continuous = flags & 64 != 0;
        if is_continuous {
            world.continuous(2000, u64::from(more >> 4) * 500);
        }
        let naive = Naive { is_orderly: true, ..Naive::default() };
        let lives = BTreeMap::new();
        Self { dice, world, naive, fate, lives, is_continuous, duplicates: BTreeSet::new() }
    }

    fn life(&self, pid: u32) -> Option<Life> {
        self.lives.get(&pid).map(|start| (pid, *start))
    }

    fn step(&mut self) {
        match self.dice.byte() % 36 {
            0..=3 => self.sample(),
            4 => self.pass(1),
            5 => self.pass(20),
            6 => self.pass(400),
            7 => self.turn_back(),
            8 | 9 => self.announce(),
            10 => {
                let (pid, is_empty) = (self.dice.pid(), self.dice.byte() & 1 == 1);
                self.begin_dump(pid, is_empty);
            }
            11 => self.list(),
            12 => self.fork(),
            13 => self.exec(),
            14 => self.exit(),
            15 => self.map(),
            16 => self.lose(),
            17 => self.change_fate(),
            18 => self.release(),
            19 => self.lie(),
            20 => self.damage(),
            21 => self.press(),
            22 => self.want_window(),
            23 => self.hold(),
            24 => self.refuse(),
            25 => self.change_threads(),
            26 => {
                let (pid, byte) = (self.dice.pid(), self.dice.byte());
                self.appear(pid, byte);
            }
            27 => self.order(),
            28 => self.keep_unwritten(),
            29 => self.remember(),
            30 => self.replace_program(),
            _ => self.describe(),
        }
    }

    fn address(&mut self) -> u64 {
        let byte = self.dice.byte();
        let at = u64::from(byte >> 4);
        match byte % 8 {
            0..=4 => JIT + (at % SLOTS) * SLOT_BYTES + 8,
            5 | 6 => APP + (at & 1) * 0x1000 + 16,
            _ => 0x1000 * at,
        }
    }

    fn sample(&mut self) {
        let pid = self.dice.pid();
        let byte = self.dice.byte();
        let stack: Vec<u64> = (0..byte % 4).map(|_| self.address()).collect();
        let shift = u64::from(byte >> 2 & 3) * 40 * MS;
        let now = self.world.now;
        // One from the past that comes late, or with a time that has not come yet.
        let time = match byte >> 4 {
            0 => MonoNs(now.0.saturating_sub(shift)),
            1 => MonoNs(now.0 + shift),
            _ => now,
        };
        let words = [JIT + 8, APP + 16, APP + 0x1010, 0].repeat(usize::from(byte >> 6));
        let snapshot = (byte >> 6 != 0).then(|| StackSnapshot {
            registers: [stack.first().copied().unwrap_or(JIT + 8), 0x7f00_0000 - u64::from(byte & 8), 0x7f00_0008, 0],
            kind: byte % 3,
            index: u16::from(byte & 1),
            base: 0x7f00_0000,
            bytes: words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect::<Vec<u8>>().into(),
        });
        let mut sample = raw_sample(time.max(BEGIN), pid, &stack, snapshot);
        sample.stop = byte % 17;
        sample.listed = self.listed(pid, sample.time);
        sample.taken = if sample.listed.is_none() { self.words(pid, sample.time, stack.len()) } else { None };
        if byte & 16 != 0 {
            sample.kernel = vec![0xffff_ffff_8100_0000 + u64::from(byte)].into();
        }
        self.world.give(&sample);
    }

    /// The list of frames of a sample, if its process' runtime keeps one: functions, what is none, and marks where a loop has
    /// begun, which fit the stack now and then.
    fn listed(&mut self, pid: u32, time: MonoNs) -> Option<Box<FrameList>> {
        let runtime = &self.world.machine.processes.get(&pid)?.runtime;
        runtime.capture.as_ref()?.list.as_ref()?;
        let known: Vec<u64> = runtime.functions.keys().copied().collect();
        let byte = self.dice.byte();
        let mut records = Vec::new();
        for _ in 0..byte % 8 {
            let byte = self.dice.byte();
            let code = match byte % 8 {
                0 => u64::from(byte >> 3),
                _ => known.get(usize::from(byte >> 3) % known.len().max(1)).copied().unwrap_or(0),
            };
            self.naive.words.entry((pid, time)).or_default().insert(code);
            let is_mark = byte & 3 == 1;
            records.push([code, if is_mark { u64::from(LEAST_MARK) << 56 | 0x70 } else { 0x70 }]);
        }
        Some(Box::new(FrameList { records, is_whole: byte & 0x80 == 0, is_cut: byte & 0xc0 == 0xc0, state: [0; 2] }))
    }

    /// Words of the frames of a sample, if its process' runtime has such.
    fn words(&mut self, pid: u32, time: MonoNs, frames: usize) -> Option<Box<TakenWords>> {
        let runtime = &self.world.machine.processes.get(&pid)?.runtime;
        runtime.capture.as_ref()?;
        let known: Vec<u64> = runtime.functions.keys().copied().collect();
        let byte = self.dice.byte();
        let mut taken = TakenWords { registers: (byte & 1 == 0).then_some([byte.into(); 3]), frames: Vec::new() };
        // One that is not in the stack, too.
        for index in 0..=frames {
            let byte = self.dice.byte();
            let word = match byte % 8 {
                0 => continue,
                1 => u64::from(byte >> 3),
                _ => known.get(usize::from(byte >> 3) % known.len().max(1)).copied().unwrap_or(0),
            };
            // One that no answer depends on.
            let mut words = [u64::from(byte & 64); MAX_WORDS];
            (words[0], words[FUNCTION_WORD]) = (self.dice.byte().into(), word);
            self.naive.words.entry((pid, time)).or_default().insert(word);
            taken.frames.push(FrameWords { index: index as u16, reads: 1 + byte % 2, words });
        }
        if byte & 6 == 6 {
            taken.frames.reverse();
        }
        Some(Box::new(taken))
    }

    /// A runtime knows functions by words of their frames, and what those are changes. Or somebody is sampled who never was.
    fn describe(&mut self) {
        let (any, byte) = (self.dice.pid(), self.dice.byte());
        // Rather one that has some already.
        let has_some = |(_, made): &(&u32, &MadeProcess)| !made.runtime.functions.is_empty();
        let known = self.world.machine.processes.iter().find(has_some).map(|(pid, _)| *pid);
        let pid = known.filter(|_| byte & 8 != 0).unwrap_or(any);
        let Some(life) = self.life(pid).filter(|_| byte & 7 != 7) else {
            return self.world.sample(1000 + pid, &[JIT + 8]);
        };
        let now = self.world.now;
        let word = self.naive.described.len() as u64 + 1;
        let Some(made) = self.world.machine.processes.get_mut(&pid) else { return };
        let runtime = &mut made.runtime;
        match byte & 7 {
            0 => {
                runtime.problem = (byte & 0x80 != 0).then(|| "unknown".to_owned());
                runtime.incomplete = byte & 0x40 != 0;
                runtime.places = vec![(Avma(JIT + u64::from(byte >> 3) * 0x100), 64)];
            }
            1 if !runtime.functions.is_empty() => {
                let at = usize::from(byte >> 3) % runtime.functions.len();
                if let Some(word) = runtime.functions.keys().nth(at).copied() {
                    runtime.functions.remove(&word);
                    self.naive.end_described(life, Some(word), MonoNs(now.0 + FRESH_NS));
                    self.pass(200);
                    self.sample_of(pid, word);
                }
            }
            _ => {
                if runtime.capture.is_none() {
                    let read = TakeRead { base: None, offset: -40, words: 5, to: 0, tagged: false };
                    let code = vec![(Avma(APP + 0x1000), 0x800)];
                    runtime.name = Some("V8".to_owned());
                    runtime.capture = Some(if byte & 0x30 == 0x30 {
                        let walk = ListSpec::new(&[&[Step::load(8)]], &[Field::new(0, u64::MAX, 0, 0)], 8);
                        let (is_frame, has_base) = (byte & 0x40 != 0, byte & 0x80 != 0);
                        let mark = EntryMark { least: LEAST_MARK, is_frame, has_base, ..EntryMark::default() };
                        let loops = vec![(Avma(APP + 0x1000), 0x800)];
                        let list = walk.map(|walk| ListCapture {
                            walk,
                            mark,
                            loops,
                            within: Vec::new(),
                            lasting: 0,
                            tells_innermost: false,
                            of_first_thread: false,
                            keeps_first: false,
                            generated: None,
                        });
                        Capture { list, ..Capture::default() }
                    } else {
                        Capture { reads: vec![read], key: byte >> 6, code, ..Capture::default() }
                    });
                    let has_list = runtime.capture.as_ref().is_some_and(|capture| capture.list.is_some());
                    let words = if has_list { 1 } else { 1 << FUNCTION_WORD };
                    runtime.depends_on = (byte & 8 != 0).then_some(DependsOn { words, tags: 2, registers: 0 });
                }
                runtime.functions.insert(word, format!("JS:*v{word} a.js:1:1"));
                self.naive.described.push(Described { life, word, until: MonoNs(u64::MAX) });
                // The first sample shows that there is something to ask, and the second one asks.
                self.sample_of(pid, word);
                self.pass(20);
                self.sample_of(pid, word);
            }
        }
    }

    /// A sample with a frame of this function now.
    fn sample_of(&mut self, pid: u32, word: u64) {
        let mut sample = raw_sample(self.world.now, pid, &[JIT + 8, APP + 0x1010], None);
        let mut words = [0; MAX_WORDS];
        words[FUNCTION_WORD] = word;
        self.naive.words.entry((pid, sample.time)).or_default().insert(word);
        let frames = vec![FrameWords { index: 0, reads: 1, words }];
        sample.taken = Some(Box::new(TakenWords { registers: None, frames }));
        self.world.give(&sample);
    }

    fn pass(&mut self, unit: u64) {
        let ms = unit * (1 + self.dice.below(20));
        let passed = (self.world.now.0 - BEGIN.0) / MS;
        if passed > MAX_MS {
            return self.world.settle();
        }
        self.world.run_for(ms);
        // Two ticks are enough to read all, if somebody answers.
        if ms >= 500 && self.fate.get() == 0 && self.world.held() == 0 {
            let read = self.naive.functions.iter_mut();
            read.filter(|function| self.lives.get(&function.life.0) == Some(&function.life.1))
                .for_each(|function| function.is_read = true);
        }
    }

    fn turn_back(&mut self) {
        let back = self.dice.below(256) * 100 * MS;
        let now = self.world.now;
        self.world.feed(Input::Turn(MonoNs(now.0.saturating_sub(back))));
    }

    fn dump_path(&self, pid: u32) -> String {
        format!("/tmp/jit-{pid}.dump")
    }

    /// With a header that is still in a buffer when it is opened, perhaps.
    fn begin_dump(&mut self, pid: u32, is_empty: bool) {
        if self.life(pid).is_none() {
            return;
        }
        let path = self.dump_path(pid);
        // The functions of one that is replaced may not have been read.
        let life = self.life(pid);
        let unread = |function: &&mut Announced| Some(function.life) == life && !function.is_read;
        if self.naive.functions.iter_mut().find(unread).is_some() {
            self.naive.is_orderly = false;
        }
        let header = HeaderFields { pid, time: BEGIN.0, ..HeaderFields::default() };
        let bytes = if is_empty { Vec::new() } else { DumpWriter::with_header(&header).into_bytes() };
        let inode = self.world.machine.add_file(&path, bytes);
        self.map_as(pid, file_mapping(MARKER, 0x1000, inode, &path), true);
        if is_empty {
            self.world.machine.append(&path, &DumpWriter::with_header(&header).into_bytes());
        }
    }

    fn record(&mut self, pid: u32, life: Life) -> (Vec<u8>, u64) {
        let slot = self.dice.below(SLOTS);
        let name = format!("f{}", self.naive.functions.len());
        // Records of one time have no order that could be compared.
        let mut time = self.world.now;
        while !self.duplicates.insert(time.0) {
            time.0 += 1;
        }
        let mut code = vec![0x90; CODE_BYTES as usize];
        code[..4].copy_from_slice(&[0x55, 0x48, 0x89, 0xe5]);
        code[CODE_BYTES as usize - 2..].copy_from_slice(&[0x5d, 0xc3]);
        let start = JIT + slot * SLOT_BYTES;
        let mut writer = DumpWriter::new(pid);
        writer.load(time.0, &LoadFields { code_addr: start, code_index: 0, name: name.as_bytes(), code: &code });
        self.naive.functions.push(Announced { life, slot, time, is_read: false });
        (writer.into_bytes().split_off(40), start)
    }

    fn announce(&mut self) {
        let pid = self.dice.pid();
        let (Some(life), path) = (self.life(pid), self.dump_path(pid)) else { return };
        let has_dump = self.world.machine.mappings_mut(pid).is_some_and(|all| all.iter().any(|one| *one.path == *path));
        if !has_dump {
            return;
        }
        let (record, _) = self.record(pid, life);
        self.world.machine.append(&path, &record);
    }

    fn keep_unwritten(&mut self) {
        let pid = self.dice.pid();
        // What is in a buffer may never be written: that is so of a process that is killed.
        self.naive.is_orderly = false;
        let Some(life) = self.life(pid) else { return };
        let (record, _) = self.record(pid, life);
        if let Some(made) = self.world.machine.processes.get_mut(&pid) {
            made.unwritten.get_or_insert_default().extend(record);
        }
    }

    fn list(&mut self) {
        let pid = self.dice.pid();
        let (byte, path) = (self.dice.byte(), format!("/tmp/perf-{pid}.map"));
        let line = format!("{:x} 40 p{byte}\n", JIT + u64::from(byte % 8) * SLOT_BYTES);
        match byte >> 6 {
            0 if self.world.machine.paths.contains_key(&path) => self.world.machine.append(&path, line.as_bytes()),
            0..=2 => {
                self.world.machine.add_file(&path, line.into_bytes());
            }
            _ => {
                self.world.machine.paths.remove(&path);
            }
        }
        // Its lines have no times: they may name what a dump has ended.
    }

    fn birth(&mut self, pid: u32, program: usize, parent: Option<u32>) {
        let now = self.world.now;
        self.lives.insert(pid, now);
        if let Some(parent) = parent.and_then(|parent| self.life(parent)) {
            self.naive.parents.insert((pid, now), (parent, now));
            let history = self.naive.programs.get(&parent).and_then(|history| history.last()).copied();
            let copies = self.naive.described.iter().filter(|known| known.life == parent && known.until.0 == u64::MAX);
            let copies: Vec<Described> = copies.map(|known| Described { life: (pid, now), ..known.clone() }).collect();
            self.naive.described.extend(copies);
            self.naive.programs.insert((pid, now), vec![(now, history.and_then(|(_, mapped)| mapped))]);
            return;
        }
        self.naive.programs.insert((pid, now), vec![(now, Some(program))]);
    }

    /// A process of strangers, which nothing tells of.
    fn appear(&mut self, pid: u32, byte: u8) {
        if self.lives.contains_key(&pid) {
            return;
        }
        let program = usize::from(byte) % PROGRAMS.len();
        let inode = self.world.machine.paths[PROGRAMS[program]];
        let app = file_mapping(APP, APP_BYTES, inode, PROGRAMS[program]);
        let now = self.world.now;
        let mappings = vec![app, memory_mapping(JIT, SLOTS * SLOT_BYTES)];
        self.world.machine.add_process(pid, now, PROGRAMS[program], mappings);
        self.birth(pid, program, None);
        if byte & 0x80 == 0 {
            self.world.order(Order::Follow { pids: vec![Pid(pid)], awaited: byte & 0x40 != 0 });
        }
        self.pass(1);
    }

    fn fork(&mut self) {
        let (child, parent) = (self.dice.pid(), self.dice.pid());
        let Some(made) = self.world.machine.processes.get(&parent).cloned() else { return };
        if self.lives.contains_key(&child) {
            return;
        }
        let now = self.world.now;
        let mut made: MadeProcess = made;
        (made.read.via, made.read.start, made.read.parent) = (Pid(child), now, Pid(parent));
        made.read.threads = vec![Tid(child)];
        made.unwritten = None;
        self.world.machine.processes.insert(child, made);
        self.birth(child, 0, Some(parent));
        // What was announced and not read may come to the child, or not.
        let change =
            TaskChange::Fork { pid: Pid(child), parent_pid: Pid(parent), tid: Tid(child), parent_tid: Tid(parent) };
        self.world.task(change);
        self.pass(1);
    }

    fn exec(&mut self) {
        let (pid, byte) = (self.dice.pid(), self.dice.byte());
        let Some(life) = self.life(pid) else { return };
        let program = usize::from(byte) % PROGRAMS.len();
        let now = self.world.now;
        if let Some(made) = self.world.machine.processes.get_mut(&pid) {
            made.read.exe = Some(PROGRAMS[program].to_owned());
            made.read.comm = "x".to_owned();
            made.read.mappings = Some(Vec::new());
            (made.unwritten, made.read.via, made.read.threads) = (None, Pid(pid), vec![Tid(pid)]);
            made.runtime = Default::default();
        }
        self.naive.end_described(life, None, MonoNs(now.0 + AHEAD_NS));
        self.naive.programs.entry(life).or_default().push((now, None));
        self.naive.execs.insert(life, now);
        // What was not read of the program before is lost.
        self.count_unread_as_lost(life);
        let comm = Arc::from("x");
        self.world.task(TaskChange::Comm { pid: Pid(pid), tid: Tid(pid), comm, exec: true });
        let inode = self.world.machine.paths[PROGRAMS[program]];
        self.map_as(pid, file_mapping(APP, APP_BYTES, inode, PROGRAMS[program]), true);
        self.map_as(pid, memory_mapping(JIT, SLOTS * SLOT_BYTES), true);
        self.pass(1);
    }

    fn count_unread_as_lost(&mut self, life: Life) {
        if self.naive.functions.iter().any(|function| function.life == life && !function.is_read) {
            self.naive.is_orderly = false;
        }
    }

    fn exit(&mut self) {
        let (pid, byte) = (self.dice.pid(), self.dice.byte());
        let Some(life) = self.life(pid) else { return };
        self.lives.remove(&pid);
        self.count_unread_as_lost(life);
        let threads = self.world.machine.processes.remove(&pid).map(|made| made.read.threads).unwrap_or_default();
        for tid in threads {
            // Or its end is lost.
            if byte & 7 != 7 {
                self.world.task(TaskChange::Exit { pid: Pid(pid), tid });
            }
        }
        if byte & 7 == 7 {
            self.naive.is_orderly = false;
            self.world.task(TaskChange::Lost { count: 1 });
        }
        self.pass(1);
    }

    fn map_as(&mut self, pid: u32, mapping: Mapping, is_told: bool) {
        let change = mmap_event(pid, &mapping);
        let program = PROGRAMS.iter().position(|program| **program == *mapping.path);
        if let Some(life) = self.life(pid).filter(|_| mapping.start.0 == APP) {
            self.naive.programs.entry(life).or_default().push((self.world.now, program));
        }
        if let Some(mappings) = self.world.machine.mappings_mut(pid) {
            mappings.retain(|old| old.end <= mapping.start || mapping.end <= old.start);
            mappings.push(mapping);
            mappings.sort_by_key(|mapping| mapping.start);
        }
        match is_told {
            true => self.world.task(TaskChange::Mmap(change)),
            false => self.world.task(TaskChange::Lost { count: 1 }),
        }
    }

    fn map(&mut self) {
        let (pid, byte) = (self.dice.pid(), self.dice.byte());
        if self.life(pid).is_none() {
            return;
        }
        let program = usize::from(byte) % PROGRAMS.len();
        let inode = self.world.machine.paths[PROGRAMS[program]];
        let is_told = byte & 0x80 == 0;
        self.naive.is_orderly &= is_told;
        let mapping = match byte >> 4 & 3 {
            0 => file_mapping(APP, APP_BYTES, inode, PROGRAMS[program]),
            1 => memory_mapping(APP, APP_BYTES),
            2 => memory_mapping(JIT, SLOTS * SLOT_BYTES),
            // Nowhere near where code is generated: what is named there is not a function of a program.
            _ => file_mapping(0x100_0000 * u64::from(byte | 1), APP_BYTES, inode, PROGRAMS[program]),
        };
        self.map_as(pid, mapping, is_told);
        self.pass(1);
    }

    fn lose(&mut self) {
        let count = self.dice.below(100);
        self.naive.is_orderly = false;
        self.world.lost += count;
        self.world.task(TaskChange::Lost { count });
        self.world.order(Order::Frequency(std::num::NonZeroU32::MIN.saturating_add(self.dice.byte().into())));
    }

    fn change_fate(&mut self) {
        self.fate.set(self.dice.byte());
        self.naive.is_orderly &= self.fate.get() == 0;
    }

    fn release(&mut self) {
        let at = usize::from(self.dice.byte());
        if self.world.held() > 0 {
            self.world.release_one(at % self.world.held());
        }
    }

    /// Something is said that nobody has asked for, or something else than was asked.
    fn lie(&mut self) {
        self.naive.is_orderly = false;
        let (what, number) = (self.dice.byte(), self.dice.byte());
        let (request, now) = (RequestId(u64::from(number)), self.world.now);
        let file = FileId(u32::from(number % 32));
        let answer = |body| Input::Answer(Answer { request, begun: now, done: now, body });
        let input = match what % 14 {
            0 => answer(AnswerBody::Stalled),
            1 => answer(AnswerBody::Running(vec![Pid(FIRST_PID)])),
            2 => answer(AnswerBody::Contents(Some([number; 16]))),
            3 => answer(AnswerBody::Memory(vec![None, Some(vec![number; 64].into())])),
            4 => answer(AnswerBody::Digests(vec![Some([number; 16])])),
            5 => answer(AnswerBody::Version(Some(Some("1.2.3".to_owned())))),
            6 => answer(failure(&Request::Contents { file }, WhyUnread::Failed)),
            7 => {
                Input::Rows(RowsAnswer { file, took: Duration::ZERO, rows: Ok(super::machine::plain_rows(0x10_0000)) })
            }
            8 => Input::Names(vec![NameAnswer {
                key: SymbolKey::File(file, FileOffset(16)),
                name: if number & 1 == 0 { Name::NotNow } else { Name::None(Unresolved::NotElf) },
            }]),
            9 => Input::Published { publication: u64::from(number), at: MonoNs(now.0 + 1) },
            10 => Input::Refused(Refused::Page(PageNumber { object: u32::from(number % 16), page: 0 })),
            11 => answer(AnswerBody::Runtime((number & 1 == 0).then(|| Box::new(lies_of_tables(number))))),
            12 => answer(AnswerBody::Frames((number & 1 == 0).then(|| Box::new(lies_of_frames(number))))),
            _ => Input::Ticks(Ticks { mult: u32::from(number), shift: u16::from(number), zero: now.0 }),
        };
        self.world.feed(input);
    }

    fn damage(&mut self) {
        let pid = self.dice.pid();
        self.naive.is_orderly = false;
        let (path, count) = (self.dump_path(pid), usize::from(self.dice.byte()));
        let bytes: Vec<u8> = (0..count % 32).map(|_| self.dice.byte()).collect();
        match count >> 6 {
            0 => self.world.machine.append(&path, &bytes),
            1 => self.world.machine.append(&path, &vec![0; count * 16]),
            cut => {
                if let Some(file) = self.world.machine.file_mut(&path) {
                    let kept = file.bytes.len() * cut / 4;
                    file.bytes.truncate(kept);
                }
            }
        }
    }

    fn press(&mut self) {
        self.naive.is_orderly = false;
        let tight = self.dice.byte() & 1 == 0;
        self.world.order(Order::Tight(tight));
    }

    fn want_window(&mut self) {
        let byte = self.dice.byte();
        let now = self.world.now;
        let (from, to) = (MonoNs(now.0.saturating_sub(3_000 * MS)), MonoNs(now.0 + u64::from(byte) * MS));
        match byte % 3 {
            0 => {
                self.naive.is_orderly = false;
                self.world.order(Order::CloseWindow);
            }
            _ => {
                let patience = Duration::from_millis(u64::from(byte) * 10);
                self.world.order(Order::Snapshot { token: u64::from(byte), from, to, patience });
            }
        }
    }

    fn hold(&mut self) {
        let byte = self.dice.byte();
        (self.world.holds_names, self.world.holds_rows) = (byte & 1 == 0, byte & 2 == 0);
    }

    fn refuse(&mut self) {
        self.world.kernel.refuses = usize::from(self.dice.byte() % 8);
    }

    fn change_threads(&mut self) {
        let (pid, byte) = (self.dice.pid(), self.dice.byte());
        let tid = Tid(10_000 + u32::from(byte % 16));
        let Some(made) = self.world.machine.processes.get_mut(&pid) else { return };
        let is_known = made.read.threads.contains(&tid);
        let change = match byte >> 5 {
            0..=3 if !is_known => {
                made.read.threads.push(tid);
                TaskChange::Fork { pid: Pid(pid), parent_pid: Pid(pid), tid, parent_tid: Tid(pid) }
            }
            4 if made.read.threads.len() > 1 => {
                // The first thread may end before the others.
                let gone = made.read.threads.remove(usize::from(byte) % made.read.threads.len());
                made.read.via = made.read.threads.first().map_or(Pid(pid), |tid| Pid(tid.0));
                TaskChange::Exit { pid: Pid(pid), tid: gone }
            }
            _ => TaskChange::Comm { pid: Pid(pid), tid, comm: Arc::from("worker"), exec: false },
        };
        self.world.task(change);
    }

    fn order(&mut self) {
        let (pid, byte) = (self.dice.pid(), self.dice.byte());
        match byte % 4 {
            0 => self.world.order(Order::Follow { pids: vec![Pid(pid)], awaited: byte & 4 == 0 }),
            1 => self.world.machine.members.push((Pid(pid), Some("a".to_owned()))),
            2 => self.world.machine.members.clear(),
            _ => {
                let counters = self.world.counters();
                self.world.feed(Input::Counters(counters));
            }
        }
    }

    fn remember(&mut self) {
        let (pid, byte) = (self.dice.pid(), self.dice.byte());
        if let Some(made) = self.world.machine.processes.get_mut(&pid) {
            made.memory.insert(JIT, vec![byte; (SLOTS * SLOT_BYTES) as usize]);
        }
    }

    /// A program is installed anew.
    fn replace_program(&mut self) {
        let number = usize::from(self.dice.byte()) % PROGRAMS.len();
        install(&mut self.world, number, b"id2");
    }

    fn end(&mut self) {
        if self.dice.byte() & 1 == 0 {
            (self.world.holds_names, self.world.holds_rows) = (false, false);
            self.fate.set(0);
            while self.world.held() > 0 {
                self.world.release_one(0);
            }
        }
        self.world.finish();
        self.world.engine.assert_sound();
        let Some(recorded) = &self.world.recorded else { return };
        let windows = self.world.windows.iter().map(|window| &window.profile);
        let copies = self.world.snapshots.iter().map(|(_, profile)| profile);
        // A window that closes may take samples before all is read.
        self.naive.is_orderly &= !self.is_continuous;
        for profile in windows.chain(copies).chain([&recorded.profile]) {
            self.check_names(profile);
        }
    }

    fn check_words(&self, profile: &Profile, stack: StackId, (life, time): (Life, MonoNs)) {
        let mut frames = Vec::new();
        profile.frames_of(stack, &mut frames);
        for name in frames.into_iter().map(|frame| profile.frame(frame).name) {
            let Some(word) = name.strip_prefix('v').and_then(|number| number.parse().ok()) else { continue };
            let words = self.naive.words.get(&(life.0, time));
            assert!(
                self.naive.may_be_described(word, life, time),
                "{name} at {time:?} in {life:?}, with {words:?}; of {:?}",
                self.naive.described,
            );
        }
    }

    fn check_names(&self, profile: &Profile) {
        profile.visit_rows(|row| {
            let task = profile.task_of(row.task);
            let life = (task.pid.0, MonoNs(task.process_start));
            self.check_words(profile, row.stack, (life, row.time));
            let Some((_, leaf)) = profile.pop(row.stack) else { return };
            let name = profile.frame(leaf).name;
            if let Some(number) = name.strip_prefix('f').and_then(|number| number.parse().ok()) {
                let functions = &self.naive.functions;
                assert!(
                    self.naive.may_run(number, life, row.time),
                    "{name} of {:?} at {:?} in {life:?}, born of {:?}; of {functions:?}",
                    functions.get(number),
                    row.time,
                    self.naive.parents.get(&life),
                );
            }
            let program = name.strip_suffix("_0").or_else(|| name.strip_suffix("_1"));
            if let Some(program) = program.and_then(|number| number.parse().ok()).filter(|_| self.naive.is_orderly) {
                assert!(
                    self.naive.may_be_mapped(program, life, row.time),
                    "{name} at {:?} in {life:?} with {:?}",
                    row.time,
                    self.naive.programs.get(&life),
                );
            }
        });
    }
}

/// What no runtime says.
fn lies_of_tables(number: u8) -> RuntimeRead {
    RuntimeRead {
        runtime: (number & 2 == 0).then(|| "V8".to_owned()),
        anew: number & 4 == 0,
        incomplete: number & 8 == 0,
        cpu_ns: u64::from(number) << 50,
        may_have_passed: vec![(Avma(u64::from(number) << 56), u64::MAX); usize::from(number % 4)],
        heaps: vec![(Avma(u64::from(number % 2) << 56), u64::MAX); usize::from(number % 16)],
        unloads: (number & 32 == 0).then(|| number.into()),
        ..RuntimeRead::default()
    }
}

/// Frames of functions without names, of more than was asked.
fn lies_of_frames(number: u8) -> DescribedFrames {
    let (name, file, guessed) = (number.into(), Some(number.into()), number % 2 == 1);
    let column = NonZeroU32::new(number.into());
    let functions = vec![DescribedFunction { name, file, line: 1, column, inlined: true, guessed }];
    let is_unsure = number.is_multiple_of(3);
    let frame = if is_unsure { DescribedFrame::Unsure(functions) } else { DescribedFrame::Functions(functions) };
    DescribedFrames {
        frames: vec![frame; usize::from(number)],
        names: vec!["no name".to_owned(); usize::from(number % 4)],
        depends_on: vec![Some(DependsOn { words: number.into(), tags: 0, registers: number }); usize::from(number % 8)],
        cpu_ns: u64::from(number) << 50,
        since: vec![MonoNs(u64::from(number) << 24); usize::from(number % 16)],
        unloads: (number & 4 == 0).then(|| number.into()),
        code: vec![(Avma(u64::MAX - u64::from(number)), u32::MAX)],
        entries: vec![Avma(u64::from(number) << 56); usize::from(number % 4)],
    }
}

/// Puts a program into its place.
fn install(world: &mut World, number: usize, build_id: &[u8]) {
    let names = [format!("{number}_0"), format!("{number}_1")];
    world.machine.add_program(PROGRAMS[number], build_id, &[(0, &*names[0]), (0x1000, &*names[1])]);
    // What has the same bytes is the same program.
    world.machine.append(PROGRAMS[number], names[0].as_bytes());
}

/// What becomes of a request.
fn decided(mode: u8, count: u8) -> Fate {
    if mode == 0 {
        return Fate::Answer;
    }
    match mode.wrapping_mul(37).wrapping_add(count.wrapping_mul(mode | 1)) >> 4 {
        0 | 1 => Fate::Hold,
        2 | 3 => Fate::HoldAnswer,
        4 => Fate::Stall,
        5 => Fate::Fail(WhyUnread::Failed),
        6 => Fate::Fail(WhyUnread::Gone),
        7 => Fate::Fail(WhyUnread::Same),
        _ => Fate::Answer,
    }
}
