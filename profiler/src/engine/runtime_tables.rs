//! What a process' runtime knows of its own code, read from its tables again and again.
//!
//! A reading says what was there at some time between its begin and its end. So code counts from the end of the reading
//! before it was found, where there was nothing then; in the place of other code, or where such may have come and gone
//! unseen, only from the end of the reading that has found it; and until the begin of the last one that has found it still
//! there. A sample waits for the reading after it. Where a change is told (`told.rs`), it counts from then on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use jitprof_common::sample::FramePc;
use jitprof_common::units::{Avma, MonoNs, Pid};
use jitprof_jitdump::code::{CodeInline, SourceRows};

use crate::account::TablesAccount;
use crate::engine::border::{AnswerBody, Output, Registration, Request};
use crate::engine::early::Early;
use crate::engine::frames::in_module;
use crate::engine::options::InterpreterFrames;
use crate::engine::place::Place;
use crate::engine::requests::{Purpose, Requests};
use crate::engine::space::AddressSpace;
use crate::engine::told::Told;
use crate::process::{Mapping, ProcessId};
use crate::runtime::{
    Capture, CodeChange, FoundCode, FoundFrame, FoundInline, FoundRows, ListCapture, NO_ROOM, ParkedStack, Registered,
    RuntimeRead,
};

/// Least time between two readings of one process: in a run, and in a continuous recording.
const PAUSE_NS: u64 = 100_000_000;
const CONTINUOUS_PAUSE_NS: u64 = 1_000_000_000;
/// After a reading it rests for so many times the CPU time that the reading took, in the long run (see [`Early`])...
const REST: u64 = 49;
/// ...but no longer than this, for samples wait for the next one.
const MAX_PAUSE_NS: u64 = 5_000_000_000;
/// How long a process in which no tables were found is not looked at again; it doubles each time.
const FIRST_RETRY_NS: u64 = 2_000_000_000;
const MAX_RETRY_NS: u64 = 600_000_000_000;
/// How long after its start a program may say less than it will, and how soon it is looked at again then, which is after a
/// quarter of the time that it has run: libraries are mapped one after another, and their data is written later.
const LOADING_NS: u64 = 1_000_000_000;
const MIN_LOADING_RETRY_NS: u64 = 10_000_000;
const MAX_LOADING_RETRY_NS: u64 = 100_000_000;
/// After such a look it rests for so many times the CPU time that the look took.
const LOADING_REST: u64 = 4;
/// Readings one after another that do not come to their end before samples wait for them no more, and nothing of what was
/// read before is believed any more.
const MAX_INCOMPLETE: u32 = 8;
/// The same of readings that nothing is heard of; for those no sample waits.
const MAX_MISSED: u32 = 3;
/// Mappings of one process of which it is known that functions' generated code begins in them. YJIT has one, which is of a few
/// where a part of it is being written.
const MAX_ENTRIES: usize = 64;
/// Pieces of code of one process; a large JVM has 50,000.
const MAX_PIECES: usize = 1 << 17;

/// How far it is known whether a process has such tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nobody has looked.
    #[default]
    Unknown,
    /// There were none when it was looked last, or they could not be read.
    None,
    /// There are.
    Found,
    /// They are not read any more.
    Over,
}

/// What a runtime is asked about frames that a dump names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BesideDump {
    /// Nothing: the dump has more in it.
    #[default]
    Nothing,
    /// What was inlined into optimised code, which a dump of V8's does not say.
    Inlined,
    /// Its list of frames, for callers: PHP's dump names code that leaves none on the native stack.
    Listed,
    /// Everything, to be compared.
    All,
}

/// A piece of code that the last reading has found.
#[derive(Clone, Debug)]
struct Piece {
    size: u32,
    since: MonoNs,
    registered: Option<Box<Registered>>,
}

/// What a reading has brought.
#[derive(Debug, Default)]
pub(super) struct Brought {
    /// In their order.
    pub(super) changes: Vec<Change>,
    /// There is something to name code now, which there was not before.
    pub(super) is_first: bool,
    /// How many classes the runtime has unloaded, if it says so.
    pub(super) unloads: Option<u64>,
    /// Where generated code of functions begins.
    pub(super) entries: Vec<Avma>,
}

impl Brought {
    /// Whether there is code in it that shows how it is unwound.
    pub(super) fn shows_code(&self) -> bool {
        let shows =
            |change: &Change| matches!(change, Change::Load(found, _) if matches!(found.frame, FoundFrame::Code(_)));
        self.changes.iter().any(shows)
    }
}

/// A change of what code there is.
#[derive(Debug)]
pub(super) enum Change {
    /// This is there, since a time. What was inlined into it comes behind.
    Load(FoundCode, MonoNs),
    /// This was inlined into what is there.
    Inline(CodeInline),
    /// This is gone.
    Unload {
        /// Since when.
        time: MonoNs,
        /// First byte.
        start: Avma,
        /// Length in bytes.
        size: u64,
    },
    /// So code is unwound, if nothing else says anything of it.
    Register(FoundRows),
    /// That holds no more.
    Unregister {
        /// First byte.
        start: Avma,
        /// Length in bytes.
        size: u64,
    },
}

impl Change {
    /// Where there is code that was not there.
    fn place(&self) -> Option<Range<u64>> {
        let Self::Load(found, _) = self else { return None };
        Some(found.start.0..found.start.0.saturating_add(u64::from(found.size)))
    }
}

/// The tables of one process.
#[derive(Debug, Default)]
pub(super) struct RuntimeTables {
    state: State,
    /// Code without a name was met that they may name.
    wanted: bool,
    /// Of which program a reading is on its way.
    reading: Option<MonoNs>,
    /// A reading has come back, whatever it has said...
    is_heard: bool,
    /// ...and one has said what there is, or that there is nothing.
    is_answered: bool,
    /// When that program began, as far as it is known.
    began: MonoNs,
    /// It did not say yet what it will.
    is_loading: bool,
    /// The reader has been asked, and remembers the process from then on, whatever it has said.
    is_remembered: bool,
    /// The last reading that came to its end, between these times.
    last: Option<(MonoNs, MonoNs)>,
    incomplete: u32,
    missed: u32,
    /// What the reader remembers is not what is known here.
    is_void: bool,
    /// They were there when the process has ended.
    ended_found: bool,
    hurried: bool,
    /// Not before this time again.
    next_at: MonoNs,
    /// Or sooner, where code is met that they should name.
    early: Early,
    /// Code in the runtime's heaps keeps no frame pointer.
    loses_frame_pointers: bool,
    retry_ns: u64,
    pieces: BTreeMap<u64, Piece>,
    /// Calls that say what has come and gone.
    told: Told,
    /// Length of code, by its first byte, of which nothing but rows is known.
    registered: BTreeMap<u64, u32>,
    /// Frames are asked about, with these words.
    capture: Option<Capture>,
    /// The same of whom it is a child, until it is known what it has itself.
    inherited: Option<Capture>,
    /// Since when samples take such words along, or lack them for want of room.
    words_since: Option<MonoNs>,
    /// In each mapping where such code lies as runs within an interpreter's loop, the place of a function's.
    entries: BTreeSet<u64>,
    /// An answer about frames has said what it knows of that.
    has_shown: bool,
    /// There are lists, too.
    lists: bool,
    /// These name nothing.
    rows_alone: bool,
    /// Frames that a runtime keeps in a list are not wanted.
    leaves_lists: bool,
    /// What is asked besides, where there is a dump.
    beside_dump: BesideDump,
    account: TablesAccount,
}

impl RuntimeTables {
    /// Code without a name was met, or a runtime that has such tables; these frames of interpreters are wanted.
    pub(super) fn want(&mut self, interpreter: InterpreterFrames) {
        self.wanted = true;
        self.leaves_lists = !interpreter.listed;
    }

    /// Until when it is known what there was; nothing if nothing is to be waited for.
    pub(super) fn known_until(&self) -> Option<MonoNs> {
        match self.state {
            State::Unknown if self.missed == 0 && (self.reading.is_some() || self.wanted) => Some(MonoNs(0)),
            State::Found if self.has_naming_lists() && self.incomplete < MAX_INCOMPLETE && self.missed == 0 => {
                let read = self.last.map_or(MonoNs(0), |(begun, _)| begun);
                Some(self.told.unread_from().map_or(read, |from| read.min(from)))
            }
            _ => None,
        }
    }

    /// Whether they have been read.
    pub(super) fn are_found(&self) -> bool {
        let names_code = self.has_naming_lists() || self.capture.as_ref().is_some_and(Capture::has_words);
        self.account.readings > 0 && names_code
    }

    /// Whether something of what lists have was not got.
    pub(super) fn has_lost(&self) -> bool {
        let TablesAccount { unfinished, left_out, unread, .. } = self.account;
        unfinished > 0 || left_out > 0 || unread > 0
    }

    /// Whether there are lists that name code.
    fn has_naming_lists(&self) -> bool {
        self.lists && !self.rows_alone
    }

    /// The list of frames that samples take along, or have.
    pub(super) fn list(&self) -> Option<&ListCapture> {
        self.any_list().filter(|_| !self.leaves_lists)
    }

    fn any_list(&self) -> Option<&ListCapture> {
        self.latest_capture()?.list.as_ref()
    }

    /// The stack beside the thread's that samples have.
    pub(super) fn parked_stack(&self) -> Option<&ParkedStack> {
        self.capture.as_ref()?.parked_stack.as_ref()
    }

    /// What is known of it, or of whom it is a child.
    fn latest_capture(&self) -> Option<&Capture> {
        self.capture.as_ref().or(self.inherited.as_ref())
    }

    /// Begins as a copy of its parent, whose frames are in the same places. Returns whether that says anything.
    pub(super) fn inherit(&mut self, parent: &Self) -> bool {
        let has_list = |capture: &&Capture| capture.list.is_some();
        let capture = parent.latest_capture().filter(has_list).filter(|_| self.state == State::Unknown);
        self.inherited = capture.cloned();
        self.leaves_lists |= parent.leaves_lists;
        // Until it is known what the child runs: a dump that it has inherited does not take its list from it.
        if self.inherited.is_some() {
            self.beside_dump = parent.beside_dump;
            self.begin_words(MonoNs(0));
        }
        self.entries.extend(&parent.entries);
        self.inherited.is_some()
    }

    /// Code that the runtime has generated for functions begins at these places.
    pub(super) fn note_entries(&mut self, space: &AddressSpace, entries: &[Avma], now: MonoNs) {
        for entry in entries {
            let Place::Generated(mapped) = Place::mapped(space, *entry, now) else { continue };
            if self.entries.len() < MAX_ENTRIES && !self.has_entry_in(&mapped.mapping) {
                self.entries.insert(entry.0);
            }
        }
    }

    /// An answer about frames has said where such code begins, as far as they show it.
    pub(super) fn note_shown(&mut self) {
        self.has_shown = true;
    }

    /// Whether such code begins in a mapping.
    pub(super) fn has_entry_in(&self, mapping: &Mapping) -> bool {
        self.entries.iter().any(|entry| (mapping.start.0..mapping.end.0).contains(entry))
    }

    /// Whether it may still turn out where such code lies: no answer has said it.
    pub(super) fn may_show_entries(&self) -> bool {
        let is_shown = || self.list()?.generated.as_ref().map(|code| code.is_shown);
        !self.has_shown && is_shown().unwrap_or(false)
    }

    /// Whether there is a list, wanted or not.
    pub(super) fn has_list(&self) -> bool {
        self.any_list().is_some()
    }

    /// Whether anybody has wanted them read.
    pub(super) fn was_wanted(&self) -> bool {
        self.wanted || self.is_remembered
    }

    /// Whether it was to be read, and nothing has come back.
    pub(super) fn is_unheard(&self) -> bool {
        self.was_wanted() && !self.is_heard
    }

    /// Whether it is known of the program what there is, or that there is nothing.
    pub(super) fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// Whether there is a list that is not wanted.
    pub(super) fn leaves_list(&self) -> bool {
        self.leaves_lists && self.any_list().is_some()
    }

    /// What samples are to take along, if frames are asked about one by one; `has_dump`: a dump names them.
    pub(super) fn capture(&self, has_dump: bool) -> Option<&Capture> {
        let capture = self.latest_capture().filter(|_| !self.leaves_list());
        let is_known = self.state == State::Found || self.ended_found || self.inherited.is_some();
        capture.filter(|capture| is_known && (!has_dump || self.is_taken_beside(capture)))
    }

    /// Whether samples take this along beside a dump. What is listed of code, as PHP's is with a debugger, the dump has; a list
    /// of frames says who has called.
    fn is_taken_beside(&self, capture: &Capture) -> bool {
        match self.beside_dump {
            BesideDump::Nothing => false,
            BesideDump::Inlined => !self.lists,
            BesideDump::Listed => capture.list.is_some(),
            BesideDump::All => !self.lists || capture.list.is_some(),
        }
    }

    /// Samples take words along since a time, if they did not before.
    pub(super) fn begin_words(&mut self, since: MonoNs) {
        self.words_since.get_or_insert(since);
    }

    /// Since when they do.
    pub(super) fn words_since(&self) -> Option<MonoNs> {
        self.words_since
    }

    /// Whether words are taken of frames at an address in the runtime's own code.
    pub(super) fn takes_words_in_module(&self, space: &AddressSpace, pc: FramePc, time: MonoNs) -> bool {
        self.capture.as_ref().is_some_and(|capture| in_module(space, &capture.code, pc, time).is_some())
    }

    /// This is to be asked about frames that a dump names.
    pub(super) fn ask_beside_dump(&mut self, what: BesideDump) {
        self.beside_dump = what;
    }

    /// What was said last.
    pub(super) fn beside_dump(&self) -> BesideDump {
        self.beside_dump
    }

    /// Whether they are to be read of a process that has a dump, or none.
    pub(super) fn are_read(&self, has_dump: bool) -> bool {
        let lacks_list = self.beside_dump == BesideDump::Listed && !self.has_list();
        !has_dump || lacks_list || (self.beside_dump != BesideDump::Nothing && !self.lists)
    }

    /// Whether a process that has a dump, or none, is asked what was inlined into optimised code, and nothing else.
    pub(super) fn ask_inlined_alone(&self, has_dump: bool) -> bool {
        has_dump && self.beside_dump == BesideDump::Inlined
    }

    /// Whether what they list is read beside a dump, to be compared with that: of a runtime of which no frame is asked about.
    pub(super) fn are_listed_beside(&self) -> bool {
        let asks = |capture: &Capture| capture.has_words() || capture.list.is_some();
        self.beside_dump == BesideDump::All && self.lists && !self.capture.as_ref().is_some_and(asks)
    }

    /// Whether there were no lists, and all frames were asked about one by one, at any time.
    pub(super) fn ask_frames(&self) -> bool {
        self.capture.as_ref().is_some_and(Capture::has_words) && !self.lists
    }

    /// Whether frames may be asked about between two readings: they do not depend on lists of code, or there are none.
    pub(super) fn may_ask_early(&self) -> bool {
        self.latest_capture().is_some_and(|capture| !self.lists || capture.list.is_some())
    }

    /// Whether what they said of a time was not looked at again afterwards.
    pub(super) fn is_unconfirmed(&self, time: MonoNs) -> bool {
        self.last.is_none_or(|(begun, _)| begun < time)
    }

    /// Has them read, if that is due: code without a name was met, or the process has run since they were read.
    pub(super) fn poll(&mut self, (id, via, since): (ProcessId, Pid, MonoNs), ran_at: MonoNs, requests: &mut Requests) {
        let is_due = match self.state {
            State::Unknown if self.missed == 0 => self.wanted,
            State::Unknown | State::None => self.wanted && requests.now >= self.next_at,
            // What is loaded later may have lists.
            State::Found if !self.lists && self.any_list().is_some() => self.wanted && requests.now >= self.next_at,
            State::Found if !self.lists => false,
            State::Found => requests.now >= self.due_at() && self.is_unconfirmed(ran_at.max(self.told.latest())),
            State::Over => false,
        };
        if is_due && self.reading.is_none() {
            if std::mem::take(&mut self.is_void) {
                requests.output(Output::DropRuntime(id));
            }
            self.early.begin(requests.now < self.next_at);
            self.reading = Some(since);
            self.began = since.max(id.start);
            self.is_remembered = true;
            self.wanted = false;
            let again = self.told.ask();
            requests.ask(Purpose::Runtime(id, since), Request::ReadRuntime { via, process: id, since, again });
        }
    }

    /// When the next reading of lists that were found is due.
    fn due_at(&self) -> MonoNs {
        // One that did not come to its end, or of which nothing was heard, is tried again in its own time.
        let is_steady = (self.incomplete, self.missed) == (0, 0);
        if is_steady { self.early.due_at(self.next_at) } else { self.next_at }
    }

    /// Whether the lists should name code at an address that was met at a time, and were not read since.
    pub(super) fn should_name(&self, address: u64, time: MonoNs) -> bool {
        self.state == State::Found && self.lists && self.is_unconfirmed(time) && self.early.has_heap_at(address)
    }

    /// Whether the frame pointer says nothing of the caller of code at an address, unless it is known to.
    pub(super) fn lose_frame_pointer_at(&self, address: u64) -> bool {
        self.loses_frame_pointers && self.early.has_heap_at(address)
    }

    /// Code was met there then that the lists should name.
    pub(super) fn note_missed(&mut self, address: u64, time: MonoNs) {
        self.early.meet(address, time);
    }

    /// The process has registered code, or some calls are not told.
    pub(super) fn note_registration(&mut self, told: &Registration) {
        if self.state != State::Over && self.told.note(told) {
            self.early.tell(told.time);
        }
    }

    /// When it is looked again before the next tick, if that is not long overdue: a program is still being loaded, or makes code.
    pub(super) fn hasty_look(&self, now: MonoNs) -> Option<MonoNs> {
        let look = match self.state {
            State::None if self.is_loading => Some(self.next_at),
            State::Found if self.lists => self.early.look_at(self.due_at(), now),
            _ => None,
        };
        let is_overdue = |look: MonoNs| now.0.saturating_sub(look.0) > MAX_LOADING_RETRY_NS;
        look.filter(|look| self.reading.is_none() && !is_overdue(*look))
    }

    /// The next reading does not wait until the last one's rest is over. One that did not come to its end, or of which nothing
    /// was heard, is tried again in its own time.
    pub(super) fn look_at_once(&mut self, now: MonoNs) {
        if self.incomplete == 0 && self.missed == 0 && self.state == State::Found {
            self.next_at = self.next_at.min(now);
        }
    }

    /// Whether a reading is on its way. Its reader is asked one thing at a time.
    pub(super) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Whether no further sample comes.
    pub(super) fn is_hurried(&self) -> bool {
        self.hurried
    }

    /// From now on they are read at once: no further sample comes.
    pub(super) fn hurry(&mut self) {
        self.next_at = MonoNs(0);
        self.hurried = true;
    }

    /// The process has ended, or runs another program.
    pub(super) fn close(&mut self, id: ProcessId, requests: &mut Requests) {
        // The reader remembers also whose frames were asked about by what its parent has.
        if self.is_remembered || self.inherited.is_some() {
            requests.output(Output::DropRuntime(id));
        }
        // Its last samples are still to come.
        self.ended_found |= self.state == State::Found;
        self.state = State::Over;
    }

    /// The process has not ended after all. What was read of it is not known to be there any more.
    pub(super) fn reopen(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.state == State::Over {
            self.disbelieve(&mut changes);
            *self = Self {
                wanted: self.was_wanted(),
                // The reader was told to drop it; an answer that is on its way is of what was before.
                is_void: true,
                reading: self.reading,
                leaves_lists: self.leaves_lists,
                beside_dump: self.beside_dump,
                early: std::mem::take(&mut self.early),
                loses_frame_pointers: self.loses_frame_pointers,
                account: std::mem::take(&mut self.account),
                ..Self::default()
            };
        }
        changes
    }

    /// Takes up a reading of the program that runs since a time, made between two times.
    pub(super) fn take(
        &mut self,
        since: MonoNs,
        body: AnswerBody,
        (begun, done): (MonoNs, MonoNs),
        least_pause: MonoNs,
        requests: &mut Requests,
    ) -> Brought {
        let mut brought = Brought::default();
        if self.reading.take_if(|program| *program == since).is_none() || self.state == State::Over {
            return brought;
        }
        if self.is_void {
            // It is of what the reader was told to drop meanwhile.
            self.wanted = true;
            return brought;
        }
        let AnswerBody::Runtime(Some(read)) = body else {
            self.missed(&mut brought.changes, requests);
            return brought;
        };
        self.is_heard = true;
        // What does not come to its end is tried less and less often.
        let dear = read.cpu_ns.saturating_mul(REST << self.incomplete.min(MAX_INCOMPLETE));
        self.early.owe(dear, self.began, requests.now);
        let pause = dear.clamp(least_pause.0, MAX_PAUSE_NS);
        let pause = if self.hurried && !read.incomplete { 0 } else { pause };
        self.next_at = MonoNs(requests.now.0.saturating_add(pause));
        self.account.runtime = read.runtime.clone().unwrap_or_default();
        if let Some(why) = &read.untold {
            requests.remark(format!("not all calls that register code are told: {why}"));
        }
        self.is_loading = false;
        let age = begun.0.saturating_sub(self.began.0);
        let is_loading = age < LOADING_NS;
        let says_something = read.problem.is_none() && read.runtime.is_some();
        self.is_answered |= says_something || !(is_loading || read.incomplete);
        if self.is_answered {
            self.inherited = None;
        }
        // Its libraries are mapped one after another, and what they are told by is written later.
        if is_loading && !says_something && read.problem.as_deref() != Some(NO_ROOM) {
            self.disbelieve(&mut brought.changes);
            self.state = State::None;
            let pause = (age / 4).clamp(MIN_LOADING_RETRY_NS, MAX_LOADING_RETRY_NS);
            let pause = pause.max(read.cpu_ns.saturating_mul(LOADING_REST));
            self.next_at = MonoNs(requests.now.0.saturating_add(pause));
            (self.wanted, self.is_loading) = (true, true);
            return brought;
        }
        if let Some(problem) = &read.problem {
            self.disbelieve(&mut brought.changes);
            self.state = State::None;
            requests.remark(format!("{problem}: the code of such processes is not named by what they know themselves"));
            // Others will end, and what has just been loaded will be ready.
            self.retry_ns = (self.retry_ns * 2).clamp(FIRST_RETRY_NS, MAX_RETRY_NS);
            self.next_at = MonoNs(requests.now.0.saturating_add(self.retry_ns));
            return brought;
        }
        if read.runtime.is_none() && read.incomplete {
            self.missed(&mut brought.changes, requests);
            return brought;
        }
        if read.runtime.is_none() {
            self.retry_ns = (self.retry_ns * 2).clamp(FIRST_RETRY_NS, MAX_RETRY_NS);
            self.next_at = MonoNs(requests.now.0.saturating_add(self.retry_ns));
            self.state = State::None;
            return brought;
        }
        self.missed = 0;
        brought.is_first = self.state != State::Found || self.capture != read.capture;
        self.state = State::Found;
        self.capture = read.capture.clone();
        self.lists = read.lists || read.capture.is_none();
        self.rows_alone = read.rows_alone;
        if !self.lists {
            self.retry_ns = (self.retry_ns * 2).clamp(FIRST_RETRY_NS, MAX_RETRY_NS);
            self.next_at = MonoNs(requests.now.0.saturating_add(self.retry_ns));
        }
        brought.unloads = read.unloads;
        brought.entries.clone_from(&read.entries);
        self.early.note_heaps(&read.heaps);
        self.loses_frame_pointers = read.loses_frame_pointers;
        self.take_changes(*read, (begun, done), &mut brought);
        self.early.settle(brought.changes.iter().filter_map(Change::place), begun, requests.now);
        brought
    }

    /// Nothing was read: somebody is stuck at it, or at what lies on the way. It is tried again.
    fn missed(&mut self, changes: &mut Vec<Change>, requests: &mut Requests) {
        self.missed = self.missed.saturating_add(1);
        self.retry_ns = (self.retry_ns * 2).clamp(FIRST_RETRY_NS, MAX_RETRY_NS);
        self.next_at = MonoNs(requests.now.0.saturating_add(self.retry_ns));
        self.wanted = true;
        // The last answer may have been lost on its way, and the reader remembers it as said.
        self.is_void |= self.state == State::Found;
        if self.missed == MAX_MISSED {
            self.disbelieve(changes);
        }
    }

    /// What was read before is not known to be there any more.
    fn disbelieve(&mut self, changes: &mut Vec<Change>) {
        for start in self.pieces.keys().copied().collect::<Vec<_>>() {
            self.unload(start, changes);
        }
        let registered = std::mem::take(&mut self.registered);
        changes.extend(registered.into_iter().map(unregister));
        self.last = None;
        self.told.drop_all();
        self.is_void = self.state == State::Found;
    }

    fn take_changes(&mut self, read: RuntimeRead, (begun, done): (MonoNs, MonoNs), brought: &mut Brought) {
        self.account.readings += 1;
        self.account.unfinished += u64::from(read.incomplete || read.unread.is_cut);
        self.account.unread = self.account.unread.max(read.unread.entries.into());
        self.account.cpu_ns += read.cpu_ns;
        if read.anew {
            self.disbelieve(&mut brought.changes);
            self.is_void = false;
        }
        self.told.note_since(read.told_since, done);
        // Where something was at the reading before, it may have been there until just before what has taken its place.
        // What was there is only known of readings that came to their end, and of code that none has seen nothing is.
        let before = self.last.filter(|_| self.incomplete == 0 && !read.incomplete).map(|(_, done)| done);
        let may_have_passed = |from: u64, to: u64| {
            read.may_have_passed.iter().any(|(start, size)| start.0 < to && from < start.0.saturating_add(*size))
        };
        let mut gone = BTreeMap::new();
        brought.changes.reserve(read.changes.len());
        for change in read.changes {
            match change {
                CodeChange::Unloaded(start) => {
                    if let Some(ended) = self.unload(start.0, &mut brought.changes) {
                        gone.insert(start.0, ended);
                    }
                }
                CodeChange::Loaded(found) => {
                    let end = found.start.0.saturating_add(u64::from(found.size));
                    let before_it =
                        gone.range(..end).next_back().filter(|(_, (gone_end, _))| *gone_end > found.start.0);
                    let is_known = before_it.is_none() && !may_have_passed(found.start.0, end);
                    let of = found.registered.as_deref();
                    let told = of.and_then(|of| self.told.begin(of, (begun, done)));
                    // Not before the end of what was there, whatever was told.
                    let told = told.map(|time| before_it.map_or(time, |(_, (_, gone_at))| time.max(*gone_at)));
                    let since = told.or(before.filter(|_| is_known)).unwrap_or(done);
                    self.load(found, since, &mut brought.changes);
                }
                CodeChange::Registered(found) => {
                    if self.registered.len() < MAX_PIECES {
                        self.account.loads += 1;
                        let before = self.registered.insert(found.start.0, found.size);
                        brought.changes.extend(before.map(|size| unregister((found.start.0, size))));
                        brought.changes.push(Change::Register(found));
                    } else {
                        self.account.left_out += 1;
                    }
                }
                CodeChange::Unregistered(start) => {
                    brought.changes.extend(self.registered.remove_entry(&start.0).map(unregister));
                }
            }
        }
        if read.incomplete {
            self.incomplete = self.incomplete.saturating_add(1);
            if self.incomplete == MAX_INCOMPLETE {
                self.disbelieve(&mut brought.changes);
            }
        } else {
            (self.incomplete, self.retry_ns) = (0, 0);
            self.last = Some((begun, done));
            self.told.take_up(begun);
        }
    }

    fn load(&mut self, mut found: FoundCode, since: MonoNs, changes: &mut Vec<Change>) {
        if self.pieces.len() >= MAX_PIECES {
            self.account.left_out += 1;
            return;
        }
        let (start, registered) = (found.start, found.registered.take());
        self.pieces.insert(start.0, Piece { size: found.size, since, registered });
        self.account.loads += 1;
        let parts = found.lines.as_mut().map(|lines| std::mem::take(&mut lines.inlined));
        changes.push(Change::Load(found, since));
        let parts = parts.into_iter().flatten().zip(1..);
        changes.extend(parts.map(|(part, number)| Change::Inline(inlined(part, number, (start, since)))));
    }

    /// Ends a piece when that was told, or when it was seen last. Returns the end of its place, and that time, if there was one.
    fn unload(&mut self, start: u64, changes: &mut Vec<Change>) -> Option<(u64, MonoNs)> {
        let Piece { size, since, registered } = self.pieces.remove(&start)?;
        let seen = self.last.map_or(since, |(begun, _)| begun.max(since));
        let time = registered.and_then(|of| self.told.end(&of, since, seen)).unwrap_or(seen);
        changes.push(Change::Unload { time, start: Avma(start), size: u64::from(size) });
        Some((start.saturating_add(u64::from(size)), time))
    }

    /// For the account, if they were found.
    pub(super) fn account(&self) -> Option<TablesAccount> {
        let told = self.told.account();
        let is_known = self.account.readings > 0 || !self.account.runtime.is_empty();
        is_known.then(|| TablesAccount { told, ..self.account.clone() })
    }
}

/// Nothing is said any more of the code at an address, of so many bytes.
fn unregister((start, size): (u64, u32)) -> Change {
    Change::Unregister { start: Avma(start), size: u64::from(size) }
}

/// A part that was inlined into code that is at an address since a time. The function itself has the number 0.
fn inlined(part: FoundInline, number: u32, (start, time): (Avma, MonoNs)) -> CodeInline {
    CodeInline {
        time,
        start: Avma(start.0.saturating_add(u64::from(part.start))),
        size: u64::from(part.size),
        method: number,
        parent: part.around.map_or(0, |around| around.saturating_add(1)),
        name: part.name.to_string(),
        source: None,
        lines: SourceRows::of(part.files, part.rows),
    }
}

/// The least pause between two readings.
pub(super) fn least_pause(continuous: bool) -> MonoNs {
    MonoNs(if continuous { CONTINUOUS_PAUSE_NS } else { PAUSE_NS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_wait_for_lists_that_name_code_and_for_no_others() {
        let mut tables = RuntimeTables { state: State::Found, lists: true, ..RuntimeTables::default() };
        assert_eq!(tables.known_until(), Some(MonoNs(0)));
        tables.rows_alone = true;
        assert_eq!(tables.known_until(), None);
    }
}
