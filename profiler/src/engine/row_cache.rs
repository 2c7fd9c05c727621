//! Unwind rows of files: which are wanted, built, in the tables, and which of them can go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jitprof_common::table::{MAX_PAGES, PageKey};
use jitprof_common::units::MonoNs;
use jitprof_unwind::elf::{Segment, svma_of_mapping};

use crate::account::UnwindingStats;
use crate::engine::border::{FileRows, Output};
use crate::engine::files::Files;
use crate::engine::process::Process;
use crate::engine::requests::Requests;
use crate::engine::space::Mapped;
use crate::engine::tables::Tables;
use crate::process::MappingKind;
use crate::process::open::FileId;

/// Files with rows, or with rows being built.
const MAX_FILES: usize = 4096;
/// Files whose rows are being built at most; further ones are asked for when these are done.
const MAX_BUILDING: usize = 256;
/// How long nobody must have used a file's rows before they can go: programs that are started again and again find them
/// still there.
const GRACE_NS: u64 = 2_000_000_000;
/// Tables that wait for room at most, and for how long: what is given back can be used again after a second.
const MAX_WITHOUT_ROOM: usize = 16;
const ROOM_NS: u64 = 3_000_000_000;
/// How long after rows found no room they are built again, if there is some then; twice as long after each time.
const BUILT_AGAIN_NS: u64 = 10_000_000_000;
const MAX_BUILT_AGAIN_NS: u64 = 600_000_000_000;
/// Pages of one file at most: 512 MiB of code. The largest program seen has 2,000; one that says it has code everywhere
/// took all of them.
const MAX_PAGES_OF_FILE: usize = MAX_PAGES as usize / 8;
/// Pages of all files of one owner at most; of root's, of those on one file system.
const MAX_PAGES_OF_OWNER: usize = MAX_PAGES as usize / 2;
/// The part of all rows that is left to others than one owner, unless that is root.
const LEFT_TO_OTHERS: u32 = 4;
/// The part of all rows that goes when there are too many files, if nobody uses them.
const CROWDED: u32 = 64;
/// The part of all rows that is kept free, if rows that nobody uses can go for it.
const KEPT_FREE: u32 = 8;

/// What a process can be walked by in a mapping of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowsOf {
    /// Rows of this object, at this distance.
    Object { file: FileId, object: u32, bias: u64 },
    /// Not known yet.
    NotYet,
    /// Nobody has asked, or they were evicted.
    Unasked,
    /// There are none.
    Nothing,
}

/// How far a file's rows have come.
#[derive(Debug)]
enum State {
    /// The file is being opened, or compared with one that it may be a copy of.
    Wanted,
    /// They are being built.
    Building,
    /// They wait for room in the tables.
    WithoutRoom,
    /// They are in the tables, of whose elements they take `rows`: indices count as rows.
    Ready { object: u32, pages: Vec<u32>, rows: u32, segments: Vec<Segment>, short: Option<Short> },
    /// There are none.
    Without,
}

/// What of a file's rows has found no room.
#[derive(Clone, Copy, Debug)]
struct Short {
    pages: usize,
    rows: u32,
    /// When they are built again at the soonest, and how long after the last time.
    next: MonoNs,
    wait_ns: u64,
    is_building: bool,
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// Samples that have met the file before its rows were built.
    met: u64,
    /// Processes that have the rows in their list of mappings.
    users: u32,
    /// Since when there are none.
    unused_since: MonoNs,
}

/// Rows that found no room yet.
#[derive(Debug)]
struct WithoutRoom {
    file: FileId,
    rows: FileRows,
    since: MonoNs,
}

/// Rows of all files.
#[derive(Debug, Default)]
pub(super) struct RowCache {
    entries: BTreeMap<FileId, Entry>,
    building: usize,
    without_room: Vec<WithoutRoom>,
    /// Objects that have got pages since their lists were published.
    completed: BTreeSet<u32>,
    /// Lists of mappings may be others than when they were published.
    changed: bool,
    stats: UnwindingStats,
}

impl Short {
    fn of(pages: usize, rows: u32, wait_ns: u64, now: MonoNs) -> Option<Self> {
        let next = MonoNs(now.0.saturating_add(wait_ns));
        (pages > 0).then_some(Self { pages, rows, next, wait_ns, is_building: false })
    }
}

impl RowCache {
    /// What a mapping can be walked by; asks for what is not known, unless too much has been asked for.
    pub(super) fn want(
        &mut self,
        files: &mut Files,
        process: &Process,
        mapped: &Mapped,
        requests: &mut Requests,
    ) -> RowsOf {
        let Some(file) = files.follow(process, mapped, requests) else {
            return if mapped.link.get().is_none() { RowsOf::NotYet } else { RowsOf::Nothing };
        };
        if files.is_own_image(file, process) {
            return RowsOf::Nothing;
        }
        if !self.entries.contains_key(&file) {
            self.begin(file, files, requests);
        }
        self.known(files, mapped)
    }

    fn begin(&mut self, file: FileId, files: &mut Files, requests: &mut Requests) {
        if self.building >= MAX_BUILDING {
            // It is asked for again when lists are made anew.
            self.changed = true;
            return;
        }
        let full = self.entries.len() >= MAX_FILES;
        if full {
            self.stats.files_refused += 1;
            let path = files.module(file).map_or_else(String::new, |module| module.path.to_string());
            requests.remark(format!("too many files for unwind rows; {path} is walked by frame pointer"));
        }
        let state = if full { State::Without } else { State::Wanted };
        self.building += usize::from(!full);
        self.entries.insert(file, Entry { state, met: 0, users: 0, unused_since: requests.now });
        self.go_on(file, files, requests);
    }

    /// These files can be opened again: those that have no rows because they could not be are asked for anew.
    pub(super) fn retry(&mut self, files: &[FileId]) {
        for file in files {
            let is_without = |entry: &Entry| matches!(entry.state, State::Without) && entry.users == 0;
            if self.entries.get(file).is_some_and(is_without) {
                self.entries.remove(file);
            }
        }
    }

    /// More is known of a file than before.
    pub(super) fn go_on(&mut self, file: FileId, files: &mut Files, requests: &mut Requests) {
        let Some(entry) = self.entries.get_mut(&file).filter(|entry| matches!(entry.state, State::Wanted)) else {
            return;
        };
        if files.original(file) != file {
            // Its original's are asked for when lists are made anew.
            self.entries.remove(&file);
            self.building = self.building.saturating_sub(1);
            self.changed = true;
        } else if files.is_open(file) {
            if !files.may_be_copy(file) {
                entry.state = State::Building;
                let functions = files.functions(file);
                requests.output(Output::BuildRows { file, samples: entry.met, functions });
            }
        } else if !files.open(file, requests) {
            self.end_without(file);
        }
    }

    fn end_without(&mut self, file: FileId) {
        if let Some(entry) = self.entries.get_mut(&file) {
            entry.state = State::Without;
            self.building = self.building.saturating_sub(1);
            self.stats.files_without_rows += 1;
            self.changed = true;
        }
    }

    /// What a mapping can be walked by, as far as it is known.
    pub(super) fn known(&self, files: &Files, mapped: &Mapped) -> RowsOf {
        let Some(linked) = mapped.link.get() else { return RowsOf::NotYet };
        let Some(file) = linked.file().map(|file| files.original(file)) else { return RowsOf::Nothing };
        match self.entries.get(&file).map(|entry| &entry.state) {
            Some(State::Ready { object, segments, .. }) => {
                let mapping = &mapped.mapping;
                let offset = if mapping.kind == MappingKind::Vdso { 0 } else { mapping.file_offset.0 };
                svma_of_mapping(segments, offset).map_or(RowsOf::Nothing, |svma| RowsOf::Object {
                    file,
                    object: *object,
                    bias: mapping.start.0.wrapping_sub(svma),
                })
            }
            Some(State::Wanted | State::Building | State::WithoutRoom) => RowsOf::NotYet,
            Some(State::Without) => RowsOf::Nothing,
            None => RowsOf::Unasked,
        }
    }

    /// A sample has met code in a mapping: rows that it waits for come sooner.
    pub(super) fn meet(&mut self, files: &Files, mapped: &Mapped, requests: &mut Requests) {
        let file = mapped.link.file().map(|file| files.original(file));
        let Some((file, entry)) = file.and_then(|file| Some((file, self.entries.get_mut(&file)?))) else { return };
        match entry.state {
            State::Wanted => entry.met = entry.met.saturating_add(1),
            State::Building => requests.output(Output::HurryRows(file)),
            State::WithoutRoom | State::Ready { .. } | State::Without => {}
        }
    }

    /// Whether rows are being built, or files for them opened.
    pub(super) fn is_building(&self) -> bool {
        self.building > 0
    }

    /// Whether a file's rows are in use or being made.
    pub(super) fn is_busy(&self, file: FileId) -> bool {
        self.entries.get(&file).is_some_and(|entry| {
            entry.users > 0 || matches!(entry.state, State::Wanted | State::Building | State::WithoutRoom)
        })
    }

    /// Takes up rows that were built.
    pub(super) fn take(
        &mut self,
        file: FileId,
        (took, rows): (Duration, Result<FileRows, String>),
        files: &Files,
        tables: &mut Tables,
        requests: &mut Requests,
    ) {
        self.stats.build_us += u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let Some(entry) = self.entries.get_mut(&file) else { return };
        match entry.state {
            State::Building => {}
            State::Ready { short: Some(Short { is_building: true, .. }), .. } => {
                return self.complete(file, rows.ok(), files, tables, requests);
            }
            _ => return,
        }
        match rows {
            Ok(rows) if !rows.pages.is_empty() => {
                entry.state = State::WithoutRoom;
                self.building = self.building.saturating_sub(1);
                self.place(WithoutRoom { file, rows, since: requests.now }, files, tables, requests);
            }
            _ => self.end_without(file),
        }
    }

    /// Puts a file's rows into the tables; where there is no room, it is made or waited for, and in the end what fits is
    /// published.
    fn place(&mut self, waiting: WithoutRoom, files: &Files, tables: &mut Tables, requests: &mut Requests) {
        let (number, wanted) = self.fitting(waiting.file, &waiting.rows, files, tables.capacity());
        if !tables.has_room(wanted, number) {
            // It may be pages that are short, not rows.
            let missing = u64::from(wanted.saturating_sub(tables.free_rows())).max(1);
            let evicted = self.evict(missing, tables, requests);
            let waits = requests.now.0.saturating_sub(waiting.since.0) < ROOM_NS;
            if (evicted || tables.is_returning()) && waits && self.without_room.len() < MAX_WITHOUT_ROOM {
                self.without_room.push(waiting);
                return;
            }
        }
        let WithoutRoom { file, rows: FileRows { segments, pages }, .. } = waiting;
        let Some(entry) = self.entries.get_mut(&file) else { return };
        let object = tables.new_object();
        // Nobody is charged with what is refused.
        let (mut published, mut held) = (Vec::new(), 0_u32);
        for page in pages.iter().take(number) {
            if tables.set_page((PageKey { object, page: page.page }, None), (&page.rows, page.count), requests) {
                published.push(page.page);
                held = held.saturating_add(page.elements());
            }
        }
        let refused = pages.len() - published.len();
        let all = pages.iter().fold(0_u32, |sum, page| sum.saturating_add(page.elements()));
        let short = Short::of(refused, all.saturating_sub(held), BUILT_AGAIN_NS, requests.now);
        if refused > 0 {
            self.stats.files_cut += 1;
            let path = files.module(file).map_or_else(String::new, |module| module.path.to_string());
            let more = if number == MAX_PAGES_OF_FILE { "" } else { "; `--unwind-memory` gives more room" };
            requests.remark(format!(
                "no room for {refused} of {} pages of unwind rows of {path}: its code there is walked by frame \
                 pointer{more}",
                pages.len()
            ));
        }
        self.stats.files += 1;
        entry.state = State::Ready { object, pages: published, rows: held, segments, short };
        entry.unused_since = requests.now;
        self.changed = true;
    }

    /// Puts in those of a file's pages that had no room when it was built first.
    fn complete(
        &mut self,
        file: FileId,
        rows: Option<FileRows>,
        files: &Files,
        tables: &mut Tables,
        requests: &mut Requests,
    ) {
        let (most_pages, most_rows) = self.share(file, files, tables.capacity());
        let Some(Entry { state: State::Ready { object, pages, rows: held, segments, short }, .. }) =
            self.entries.get_mut(&file)
        else {
            return;
        };
        let before = short.take();
        // It is another file by now, or none that can be read: what is there stays.
        let Some(built) = rows.filter(|rows| rows.segments == *segments) else { return };
        let known: BTreeSet<u32> = pages.iter().copied().collect();
        let (mut put, mut left) = ((0, 0_u32), (0, 0_u32));
        for page in built.pages.iter().filter(|page| !known.contains(&page.page)) {
            let is_within = put.0 < most_pages && put.1.saturating_add(page.elements()) <= most_rows;
            let key = (PageKey { object: *object, page: page.page }, None);
            let count = if is_within && tables.set_page(key, (&page.rows, page.count), requests) {
                pages.push(page.page);
                &mut put
            } else {
                &mut left
            };
            *count = (count.0 + 1, count.1.saturating_add(page.elements()));
        }
        *held = held.saturating_add(put.1);
        let wait_ns = before.map_or(BUILT_AGAIN_NS, |short| short.wait_ns.saturating_mul(2).min(MAX_BUILT_AGAIN_NS));
        *short = Short::of(left.0, left.1, wait_ns, requests.now);
        if put.0 > 0 {
            self.completed.insert(*object);
        }
    }

    /// Has the rows of a file built again that found no room, if all that it lacks has some by now or can be given some.
    /// One file at a time.
    fn build_again(&mut self, files: &Files, tables: &mut Tables, requests: &mut Requests) {
        let now = requests.now;
        let due = self.entries.iter().find_map(|(file, entry)| match entry.state {
            State::Ready { short: Some(short), .. } if entry.users > 0 && !short.is_building && short.next <= now => {
                Some((*file, short))
            }
            _ => None,
        });
        let Some((file, Short { pages, rows, .. })) = due else { return };
        let (most_pages, most_rows) = self.share(file, files, tables.capacity());
        let is_within = pages <= most_pages && rows <= most_rows && files.is_open(file);
        let is_building = is_within && tables.has_room(rows, pages);
        if is_within && !is_building {
            self.evict(u64::from(rows.saturating_sub(tables.free_rows())).max(1), tables, requests);
        }
        let Some(entry) = self.entries.get_mut(&file) else { return };
        if let State::Ready { short: Some(short), .. } = &mut entry.state {
            (short.is_building, short.next) = (is_building, MonoNs(now.0.saturating_add(BUILT_AGAIN_NS)));
        }
        if is_building {
            requests.output(Output::BuildRows { file, samples: entry.met, functions: files.functions(file) });
        }
    }

    /// Objects that have got pages since the last call: who is walked by them is to hear of it.
    pub(super) fn take_completed(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.completed)
    }

    /// How many pages of a file, and rows in them, are within its share and its owner's.
    fn fitting(&self, file: FileId, rows: &FileRows, files: &Files, capacity: u32) -> (usize, u32) {
        let (most_pages, most) = self.share(file, files, capacity);
        let (mut number, mut wanted) = (0, 0_u32);
        for page in rows.pages.iter().take(most_pages) {
            match wanted.checked_add(page.elements()).filter(|sum| *sum <= most) {
                Some(sum) => (number, wanted) = (number + 1, sum),
                None => break,
            }
        }
        (number, wanted)
    }

    /// How many more pages and rows of a file are within its share and its owner's.
    fn share(&self, file: FileId, files: &Files, capacity: u32) -> (usize, u32) {
        let owner = files.owner(file);
        let his = self.entries.iter().filter(|(one, _)| owner.is_some() && files.owner(**one) == owner);
        let (has_pages, has_rows) = his.fold((0, 0_u32), |(all, sum), (_, entry)| match &entry.state {
            State::Ready { pages, rows, .. } => (all + pages.len(), sum.saturating_add(*rows)),
            _ => (all, sum),
        });
        let has = match self.entries.get(&file).map(|entry| &entry.state) {
            Some(State::Ready { pages, .. }) => pages.len(),
            _ => 0,
        };
        let is_root = owner.is_none_or(|(user, _)| user == 0);
        let most = if is_root { u32::MAX } else { (capacity - capacity / LEFT_TO_OTHERS).saturating_sub(has_rows) };
        let most_pages = MAX_PAGES_OF_FILE.saturating_sub(has).min(MAX_PAGES_OF_OWNER.saturating_sub(has_pages));
        (most_pages, most)
    }

    /// A process has a file's rows in its list of mappings.
    pub(super) fn begin_use(&mut self, file: FileId) {
        if let Some(entry) = self.entries.get_mut(&file) {
            entry.users = entry.users.saturating_add(1);
        }
    }

    /// A process has a file's rows in its list of mappings no more.
    pub(super) fn end_use(&mut self, file: FileId, now: MonoNs) {
        if let Some(entry) = self.entries.get_mut(&file) {
            entry.users = entry.users.saturating_sub(1);
            entry.unused_since = now;
        }
    }

    /// Lists of mappings may have become others.
    pub(super) fn note_change(&mut self) {
        self.changed = true;
    }

    /// Whether lists of mappings may have become others since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Makes room where it becomes scarce, and places what waits for it. With every tick.
    pub(super) fn make_room(&mut self, files: &Files, tables: &mut Tables, requests: &mut Requests) {
        let (capacity, free) = (tables.capacity(), tables.free_rows());
        let kept = capacity / KEPT_FREE;
        if free < kept {
            self.evict(u64::from(kept - free), tables, requests);
        } else if self.entries.len() > MAX_FILES / 8 * 7 {
            self.evict(u64::from(capacity / CROWDED), tables, requests);
        }
        for waiting in std::mem::take(&mut self.without_room) {
            self.place(waiting, files, tables, requests);
        }
        self.build_again(files, tables, requests);
    }

    /// Evicts rows that nobody uses, those unused for the longest first. Returns whether there were any.
    pub(super) fn evict(&mut self, rows: u64, tables: &mut Tables, requests: &mut Requests) -> bool {
        let unused = |entry: &Entry| {
            let is_settled = matches!(entry.state, State::Ready { .. } | State::Without);
            is_settled && entry.users == 0 && requests.now.0.saturating_sub(entry.unused_since.0) >= GRACE_NS
        };
        let entries = self.entries.iter().filter(|(_, entry)| unused(entry));
        let mut victims: Vec<(MonoNs, FileId)> = entries.map(|(file, entry)| (entry.unused_since, *file)).collect();
        victims.sort_unstable();
        let mut freed = 0_u64;
        for (_, file) in victims {
            if freed >= rows {
                break;
            }
            freed = freed.saturating_add(self.evict_file(file, tables, requests));
        }
        freed > 0
    }

    /// Withdraws a file's rows. Returns how many they were.
    pub(super) fn evict_file(&mut self, file: FileId, tables: &mut Tables, requests: &mut Requests) -> u64 {
        let Some(Entry { state: State::Ready { object, pages, rows, .. }, .. }) = self.entries.remove(&file) else {
            return 0;
        };
        for page in pages {
            tables.set_page((PageKey { object, page }, None), (&[], 0), requests);
        }
        self.stats.files_evicted += 1;
        self.stats.rows_evicted += u64::from(rows);
        u64::from(rows).max(1)
    }

    /// Asserts that the counts are those of what they count, and within their bounds.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_sound(&self) {
        let building = |entry: &&Entry| matches!(entry.state, State::Wanted | State::Building);
        assert_eq!(self.building, self.entries.values().filter(building).count());
        assert!(self.building <= MAX_BUILDING && self.without_room.len() <= MAX_WITHOUT_ROOM);
        let without_room = |entry: &&Entry| matches!(entry.state, State::WithoutRoom);
        assert_eq!(self.without_room.len(), self.entries.values().filter(without_room).count());
    }

    /// What rows were built from.
    pub(super) fn stats(&self) -> UnwindingStats {
        self.stats
    }
}
