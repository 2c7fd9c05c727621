//! The table of files: for names and for rows one rule of identity, one open, one lifetime.
//!
//! ```text
//! mapping ── Link ──▶ file: identity, descriptor ──▶ names (names.rs), rows (row_cache.rs)
//!              set by what stat(2) says of the mapping's file while it was mapped
//! ```
//!
//! * A file is what stat(2) calls the same: device, inode, length, owner and time of change. Its bytes are looked at on
//!   behalf of everybody who maps it.
//! * Two files are copies of one if a digest of everything that is used of them says so; a build id, which anybody can
//!   write into a file, only proposes it. A file that is named by a debug file of its process' root is nobody's copy.
//! * A file is held open while somebody maps it, and closed soon after.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use jitprof_common::units::{MonoNs, Pid};
use jitprof_unwind::MAX_SEARCHED;
use jitprof_unwind::elf::{Build, hex};
use rustc_hash::FxHashMap;

use crate::account::FileStats;
use crate::engine::border::{Identified, MapPlace, Opened, Output, Request, Unread, WhyUnread};
use crate::engine::link::{FileUse, Link, Linked};
use crate::engine::mapped_paths::NO_PATH;
use crate::engine::process::Process;
use crate::engine::recent::Recent;
use crate::engine::requests::{Purpose, Requests};
use crate::engine::space::{Held, Mapped};
use crate::owners::Held as HeldByOwner;
use crate::process::open::{FileId, FileIdentity, VDSO};
use crate::process::{MappingKind, ProcessId};
use crate::symbol::{Digest, Module};

/// Bytes of code of a function, about.
const FUNCTION_BYTES: u64 = 256;
/// Bytes that are searched for what signal handlers return to in the time that the rows of a function take, a microsecond.
const SEARCHED_PER_FUNCTION: u64 = 1 << 10;

/// Files that are known at most; beyond it those that nobody uses are evicted, and then no further one is taken up.
const MAX_FILES: usize = 16 << 10;
/// Of them, those of one user other than root: who maps thousands of files of his own leaves room for the others'. Fewer where
/// others have many.
const MAX_FILES_OF_OWNER: usize = 2 << 10;
/// So many a user may have while there is room for any, whatever others have.
const FEW_FILES: usize = 64;
/// Files held open at most; the usual soft limit of descriptors of a process is 1024.
const MAX_OPEN: usize = 256;
/// How far the times of a file may be off: a file system counts in ticks.
const CLOCK_SLACK_NS: u64 = 10_000_000;
/// How long a file that nobody maps is held open.
const GRACE_NS: u64 = 1_000_000_000;
/// Mappings of one process whose files are asked for at a time: whoever maps faster than anybody can look gets his turn as
/// the answers come, and the others get theirs. A .NET server has 3,000 mappings.
const MAX_ASKED: u32 = 256;
/// Mappings whose files were asked for in vain, because there was no answer, that are asked for again at most, and those of
/// one process.
const MAX_STALLED: usize = 1024;
const MAX_STALLED_OF_PROCESS: usize = 64;
/// How long after that they are asked for again: four times as long after each time, up to a quarter of an hour.
const STALLED_NS: u64 = 5_000_000_000;
const MAX_STALLED_NS: u64 = 900_000_000_000;
/// Processes that a file is opened through, one after the other, as long as each has gone or does not answer; and how many
/// such files others are looked for in a second: that is a look at all mappings of all.
const MAX_MAPPERS: usize = 4;
const MAX_SEARCHES: u32 = 16;
/// How long a look for files that can be evicted holds: with a table that is full, each new file would be a look at all.
const LOOK_HOLDS_NS: u64 = 100_000_000;
/// How long a file that nobody maps is known: its names may be asked for by the next process that maps it.
const KNOWN_NS: u64 = 300_000_000_000;

/// How a file can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Descriptor {
    /// It is not open, and can be opened again by whoever maps it.
    Closed,
    /// It is being opened.
    Opening,
    /// The driver has it.
    Open,
    /// It could not be opened the last time.
    Failed,
    /// There is nothing in it that is of use: it is no ELF file.
    Useless,
}

/// What is known of a file's contents as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    /// No other file was seen that may be a copy.
    Unasked,
    /// Its digest is made as soon as it is open.
    Wanted,
    /// Its digest is being made.
    Asked,
    /// Its digest.
    Known(Digest),
    /// It is too large for one, or could not be read.
    Unknown,
}

/// Where a file was mapped, and as which one.
#[derive(Clone, Debug)]
struct Seen {
    via: Pid,
    place: MapPlace,
    identity: FileIdentity,
}

/// A file.
#[derive(Debug)]
struct Entry {
    /// The table's own use: others are those of links and copies.
    own: FileUse,
    identity: Option<FileIdentity>,
    /// Who pays for it.
    owner: u32,
    module: Arc<Module>,
    build: Option<Build>,
    /// Below the root of who maps it there may be a debug file for it. Decided together with `build`, once: what comes
    /// there later does not name the copies of this file.
    own_debug: bool,
    contents: Contents,
    /// The file that this one may be a copy of.
    twin: Option<FileId>,
    /// The file that this one is a copy of.
    original: Option<FileUse>,
    descriptor: Descriptor,
    seen: Option<Seen>,
    /// Through whom it could not be opened since somebody mapped it anew.
    tried: Vec<Pid>,
    /// Since when nobody uses it.
    unused_since: Option<MonoNs>,
    /// When it was last opened or asked for.
    used_at: MonoNs,
}

/// As many functions as are in a file, about, by their table, and those that would take as long as the search of code that they
/// do not cover; without a table, by the file's length.
fn work(build: Option<&Build>, len: u64) -> u64 {
    let Some(build) = build.filter(|build| build.functions > 0) else { return len / FUNCTION_BYTES };
    let code = build.code.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.file_size)).min(len);
    let uncovered = code.saturating_sub(build.functions.saturating_mul(FUNCTION_BYTES));
    build.functions.saturating_add(uncovered.min(MAX_SEARCHED) / SEARCHED_PER_FUNCTION)
}

/// Whether a user other than root may have one more file.
fn may_have_more(held: HeldByOwner) -> bool {
    held.own < MAX_FILES_OF_OWNER && held.leaves_room(MAX_FILES, FEW_FILES)
}

/// What tells builds apart before their bytes are compared.
type BuildKey = (Vec<u8>, u64, u32);

/// All files.
#[derive(Default)]
pub(super) struct Files {
    entries: BTreeMap<FileId, Entry>,
    by_identity: HashMap<FileIdentity, FileId>,
    by_build: HashMap<BuildKey, FileId>,
    /// How many each user has.
    of_owner: FxHashMap<u32, usize>,
    /// Those of a user, or of anybody, that nobody used at the last look, the one unused for the longest first.
    evictable: FxHashMap<Option<u32>, Evictable>,
    /// How often all files were looked at for one to evict.
    #[cfg(test)]
    pub(super) looks: u64,
    recent: Recent,
    last: u32,
    /// Those that are open.
    open: BTreeSet<FileId>,
    /// Files that each may turn out to be the original of.
    twins: FxHashMap<FileId, BTreeSet<FileId>>,
    /// Files of which more is known than at the last call of [`Files::take_news`].
    news: Vec<FileId>,
    /// Files that could not be opened and may be now.
    reopened: Vec<FileId>,
    /// Processes with mappings that have to be asked for now: a work list.
    unanswered: Vec<ProcessId>,
    /// Mappings that are asked for again, and when. Who has asked may have ended: those whom he made have them, too.
    stalled: Vec<Stalled>,
    /// How often other processes were looked for that map a file, since the last sweep.
    searches: u32,
    /// Device and inode of jitprof's own file, and its process.
    own: Option<(u64, u64, Pid)>,
    stats: FileStats,
}

/// Files that can be evicted, as far as is known.
#[derive(Debug)]
struct Evictable {
    files: VecDeque<FileId>,
    looked_at: MonoNs,
}

/// A mapping whose file was asked for in vain.
#[derive(Debug)]
struct Stalled {
    id: ProcessId,
    link: Arc<Link>,
    again_at: MonoNs,
}

/// How many of a process' mappings are being looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    count: u32,
    /// More have to be.
    more: bool,
}

impl Files {
    /// Without any file but the vDSO. `own` is jitprof's own: device, inode and process.
    pub(super) fn new(own: Option<(u64, u64, Pid)>) -> Self {
        let mut files = Self { own, last: VDSO.0, ..Self::default() };
        let mut vdso = Entry::new(VDSO, None, Arc::from("[vdso]"), MonoNs(0));
        vdso.descriptor = Descriptor::Open;
        files.entries.insert(VDSO, vdso);
        files
    }

    /// A number for a file outside of the table, such as a dump.
    pub(super) fn new_file(&mut self) -> FileId {
        // Numbers are not used again: who still has one of an evicted file gets no name, not a wrong one.
        self.last = self.last.wrapping_add(1).max(VDSO.0 + 1);
        FileId(self.last)
    }

    /// Sees to it that a mapping's link is set, now or later. Returns the file if it is known.
    pub(super) fn follow(&mut self, process: &Process, mapped: &Mapped, requests: &mut Requests) -> Option<FileId> {
        if let Some(linked) = mapped.link.get() {
            return linked.file().map(|file| self.original(file));
        }
        match mapped.mapping.kind {
            MappingKind::File => {}
            MappingKind::Vdso => {
                mapped.link.set(Linked::File(self.entries.get(&VDSO)?.own.clone()));
                return Some(VDSO);
            }
            _ => return None,
        }
        if mapped.link.is_asked() {
            return None;
        }
        // Most files of a new process are known: they need not be opened, and mostly not even be looked at.
        if let Some(identity) = self.recent.get(&mapped.mapping, requests.now) {
            mapped.link.ask();
            let place = MapPlace::of(&mapped.mapping);
            let file = self.link(process, &mapped.link, place, (identity, None), requests.now)?;
            return Some(self.original(file));
        }
        let asked = process.asked.get();
        if asked.count >= MAX_ASKED {
            process.asked.set(Asked { more: true, ..asked });
            return None;
        }
        process.asked.set(Asked { count: asked.count + 1, ..asked });
        mapped.link.ask();
        let place = MapPlace::of(&mapped.mapping);
        let file = self.new_file();
        let purpose = Purpose::Link(process.id, Arc::clone(&mapped.link), place.clone(), file);
        requests.ask(purpose, Request::Identify { via: process.via, place, file });
        None
    }

    /// Takes up what lies behind a mapping, as it was found out from `time.0` to `time.1`. What lies there by now may
    /// be another file.
    pub(super) fn take_identity(
        &mut self,
        (id, process): (ProcessId, Option<&Process>),
        (link, place, file): (&Arc<Link>, MapPlace, FileId),
        found: Result<Identified, Unread>,
        (begun, done): (MonoNs, MonoNs),
        requests: &mut Requests,
    ) {
        if let Some(process) = process {
            self.note_answer(process);
        }
        let found = match found {
            Ok(found) => found,
            Err(unread) => {
                self.stats.unreadable += 1;
                // A process that is gone is counted; anything else is worth a word.
                if unread.why != WhyUnread::Gone {
                    requests.remark(format!("no names for {}: {}", place.path, unread.text));
                }
                link.set(Linked::Nothing);
                if unread.why == WhyUnread::Stalled && process.is_some_and(Process::is_live) {
                    self.note_stalled(id, link, requests.now);
                }
                return;
            }
        };
        let Identified { identity, is_settled, modified_at, opened } = found;
        let is_linked = process.is_some_and(|process| {
            // What was written after it was mapped is not what has run since.
            let by = process.space.was_mapped_by(place.start, link);
            let is_of_its_time = by.is_none_or(|by| modified_at.0 <= by.0.saturating_add(CLOCK_SLACK_NS));
            is_of_its_time && self.link_if_its(process, (link, place), (identity, is_settled), file, (begun, done))
        });
        if !is_linked {
            self.stats.replaced += u64::from(process.is_some());
            link.set(Linked::Replaced);
        }
        if let Some(opened) = opened {
            let is_its = is_linked && link.file() == Some(file);
            if is_its {
                self.take_opened(file, Ok(opened), requests);
            } else {
                // It was opened in vain.
                requests.output(Output::Close(file));
            }
        }
    }

    /// There was no answer: what does not answer now may do so later.
    fn note_stalled(&mut self, id: ProcessId, link: &Arc<Link>, now: MonoNs) {
        let its = self.stalled.iter().filter(|stalled| stalled.id == id).count();
        if self.stalled.len() >= MAX_STALLED || its >= MAX_STALLED_OF_PROCESS {
            return;
        }
        let wait = STALLED_NS.saturating_mul(4_u64.saturating_pow(link.tries())).min(MAX_STALLED_NS);
        let again_at = MonoNs(now.0.saturating_add(wait));
        self.stalled.push(Stalled { id, link: Arc::clone(link), again_at });
    }

    /// Links of mappings that are to be asked for again: they need new ones. About every second.
    pub(super) fn take_stalled(&mut self, now: MonoNs) -> Vec<Arc<Link>> {
        self.stalled.extract_if(.., |stalled| stalled.again_at <= now).map(|stalled| stalled.link).collect()
    }

    /// A process has mappings that have to be asked for.
    pub(super) fn ask_again(&mut self, id: ProcessId) {
        self.unanswered.push(id);
    }

    /// A mapping of a process has been looked at: there is room for the next ones.
    fn note_answer(&mut self, process: &Process) {
        let mut asked = process.asked.get();
        asked.count = asked.count.saturating_sub(1);
        if asked.more && asked.count <= MAX_ASKED / 2 {
            asked.more = false;
            self.unanswered.push(process.id);
        }
        process.asked.set(asked);
    }

    /// Files that could not be opened and have been mapped by somebody else since.
    pub(super) fn take_reopened(&mut self) -> Vec<FileId> {
        std::mem::take(&mut self.reopened)
    }

    /// Processes with mappings that could not be asked for when there were too many, and can be by now.
    pub(super) fn take_unanswered(&mut self) -> Vec<ProcessId> {
        std::mem::take(&mut self.unanswered)
    }

    /// Sets a link to a file, if that is what was mapped there all the time from `begun` to `done`.
    fn link_if_its(
        &mut self,
        process: &Process,
        (link, place): (&Arc<Link>, MapPlace),
        (identity, is_settled): (FileIdentity, bool),
        file: FileId,
        (begun, done): (MonoNs, MonoNs),
    ) -> bool {
        let mapping = process.space.of_link(place.start, link).map(|mapped| &mapped.mapping);
        let same_device = mapping.filter(|mapping| mapping.inode != 0 && mapping.device == identity.device);
        let same_inode = same_device.map(|mapping| mapping.inode == identity.inode);
        let is_its_file = match process.space.held(place.start, link, begun, done) {
            // Overlayfs and btrfs report another device in maps than to stat(2), so that nothing can be compared.
            Held::Throughout => same_inode.unwrap_or(true),
            // Something else may have been looked at.
            Held::InPart => {
                same_inode.unwrap_or(false) && !process.space.held_its_number_too(place.start, link, begun, done)
            }
            Held::NotAtAll => false,
        };
        if !is_its_file {
            return false;
        }
        if let Some(mapping) = mapping.filter(|_| is_settled) {
            self.recent.add(mapping, identity, done);
        }
        self.link(process, link, place, (identity, Some(file)), done).is_some()
    }

    fn link(
        &mut self,
        process: &Process,
        link: &Link,
        place: MapPlace,
        (identity, new): (FileIdentity, Option<FileId>),
        now: MonoNs,
    ) -> Option<FileId> {
        let file = match self.by_identity.get(&identity) {
            Some(file) => *file,
            None => {
                let owner = identity.uid;
                let held = self.held_by(owner);
                let is_greedy = owner != 0 && !may_have_more(held);
                let is_full = is_greedy || self.entries.len() >= MAX_FILES;
                // Who has few has none that he could do without.
                let evicted = (is_greedy && held.own >= FEW_FILES).then_some(owner);
                if is_full && !self.evict_one(evicted, now) {
                    self.stats.refused += 1;
                    link.set(Linked::Nothing);
                    return None;
                }
                let file = new.unwrap_or_else(|| self.new_file());
                self.entries.insert(file, Entry::new(file, Some((identity, owner)), Arc::clone(&place.path), now));
                self.by_identity.insert(identity, file);
                *self.of_owner.entry(owner).or_default() += 1;
                self.stats.files += 1;
                file
            }
        };
        let entry = self.entries.get_mut(&file)?;
        // Whoever mapped it first may have had no room for its path.
        if *entry.module.path == *NO_PATH && *place.path != *NO_PATH {
            let build_id = entry.module.build_id.clone();
            entry.module = Arc::new(Module { path: Arc::clone(&place.path), build_id });
        }
        entry.unused_since = None;
        link.set(match process.has_released {
            true => Linked::Closed(file),
            false => Linked::File(entry.own.clone()),
        });
        self.news.push(file);
        // A copy's bytes are as good as its original's.
        let original = self.original(file);
        let entry = self.entries.get_mut(&original)?;
        if entry.descriptor == Descriptor::Failed {
            entry.descriptor = Descriptor::Closed;
            self.reopened.push(original);
        }
        entry.seen = Some(Seen { via: process.via, place, identity });
        entry.tried.clear();
        Some(file)
    }

    fn held_by(&self, owner: u32) -> HeldByOwner {
        let of = |owner: u32| self.of_owner.get(&owner).copied().unwrap_or(0);
        let users = self.by_identity.len().saturating_sub(of(0));
        HeldByOwner { own: of(owner), kind: if owner == 0 { of(0) } else { users }, all: self.entries.len() }
    }

    /// The file whose names and rows a file has: itself, unless it is a copy.
    pub(super) fn original(&self, file: FileId) -> FileId {
        let original = self.entries.get(&file).and_then(|entry| entry.original.as_ref());
        original.map_or(file, FileUse::file)
    }

    /// Opens a file if it is not open. Returns whether it is open, or may be soon.
    pub(super) fn open(&mut self, file: FileId, requests: &mut Requests) -> bool {
        let Some(entry) = self.entries.get_mut(&file) else { return false };
        entry.used_at = requests.now;
        match (entry.descriptor, &entry.seen) {
            (Descriptor::Open | Descriptor::Opening, _) => true,
            (Descriptor::Failed | Descriptor::Useless, _) | (Descriptor::Closed, None) => false,
            (Descriptor::Closed, Some(seen)) => {
                let debug = entry.may_have_own_debug();
                let request = Request::Open { via: seen.via, place: seen.place.clone(), file, debug };
                requests.ask(Purpose::File(file), request);
                entry.descriptor = Descriptor::Opening;
                true
            }
        }
    }

    /// Opens a file through another process if the one that was asked has gone or does not answer. Returns whether it
    /// may be open soon; if not, the answer is to be taken up.
    pub(super) fn open_elsewhere<'a>(
        &mut self,
        file: FileId,
        opened: &Result<Opened, Unread>,
        processes: impl Iterator<Item = &'a Process>,
        requests: &mut Requests,
    ) -> bool {
        let is_lost = |unread: &Unread| matches!(unread.why, WhyUnread::Gone | WhyUnread::Stalled);
        if !opened.as_ref().is_err_and(is_lost) || self.searches >= MAX_SEARCHES {
            return false;
        }
        let opening = self.entries.get_mut(&file).filter(|entry| entry.descriptor == Descriptor::Opening);
        let Some(entry) = opening else { return false };
        entry.tried.extend(entry.seen.as_ref().map(|seen| seen.via));
        if entry.tried.len() >= MAX_MAPPERS {
            return false;
        }
        self.searches += 1;
        let (tried, debug) = (entry.tried.clone(), entry.may_have_own_debug());
        let others = processes.filter(|process| process.is_live() && !tried.contains(&process.via));
        let seen = others.filter_map(|process| {
            let is_its = |mapped: &&Mapped| mapped.link.file().is_some_and(|own| self.original(own) == file);
            let mapped = process.space.live().find(is_its)?;
            let identity = self.entries.get(&mapped.link.file()?)?.identity?;
            Some(Seen { via: process.via, place: MapPlace::of(&mapped.mapping), identity })
        });
        let (Some(seen), Some(entry)) = (seen.min_by_key(|seen| seen.via), self.entries.get_mut(&file)) else {
            return false;
        };
        requests.ask(Purpose::File(file), Request::Open { via: seen.via, place: seen.place.clone(), file, debug });
        entry.seen = Some(seen);
        true
    }

    /// Takes up an opened file, or the reason why it could not be opened.
    pub(super) fn take_opened(&mut self, file: FileId, opened: Result<Opened, Unread>, requests: &mut Requests) {
        let Some(entry) = self.entries.get_mut(&file) else {
            if opened.is_ok() {
                requests.output(Output::Close(file));
            }
            return;
        };
        self.news.push(file);
        let opened = match opened {
            Ok(opened) => opened,
            Err(unread) => {
                entry.descriptor = Descriptor::Failed;
                self.stats.unreadable += 1;
                if unread.why != WhyUnread::Gone {
                    requests.remark(format!("no names for {}: {}", entry.module.path, unread.text));
                }
                return self.go_on_with_contents(file, requests);
            }
        };
        if entry.seen.as_ref().is_some_and(|seen| !seen.identity.has_contents_of(&opened.identity)) {
            // It has changed since it was looked at: what it says now says nothing about the code that was mapped.
            entry.descriptor = Descriptor::Failed;
            self.stats.replaced += 1;
            requests.output(Output::Close(file));
            return self.go_on_with_contents(file, requests);
        }
        if opened.build.is_none() {
            // No ELF file, a dump perhaps: there is nothing in it to name or to walk by, and nothing to hold it open for.
            entry.descriptor = Descriptor::Useless;
            requests.output(Output::Close(file));
            return;
        }
        entry.descriptor = Descriptor::Open;
        self.open.insert(file);
        if let Some(build) = opened.build.filter(|_| entry.build.is_none()) {
            let build_id = (!build.id.is_empty()).then(|| hex(&build.id).into());
            entry.module = Arc::new(Module { path: Arc::clone(&entry.module.path), build_id });
            entry.build = Some(build);
            entry.own_debug = opened.own_debug;
            self.look_for_twin(file, requests);
        }
        self.go_on_with_contents(file, requests);
        self.close_surplus(requests);
    }

    /// A file with a build id may be a copy of one that is known.
    fn look_for_twin(&mut self, file: FileId, requests: &mut Requests) {
        let Some(key) = self.entries.get(&file).and_then(Entry::build_key) else { return };
        let first = *self.by_build.entry(key).or_insert(file);
        if first == file || !self.entries.contains_key(&first) {
            return;
        }
        if let Some(entry) = self.entries.get_mut(&file) {
            entry.twin = Some(first);
            self.twins.entry(first).or_default().insert(file);
        }
        for one in [first, file] {
            self.ask_contents(one, requests);
        }
        self.compare(file);
    }

    fn ask_contents(&mut self, file: FileId, requests: &mut Requests) {
        let Some(entry) = self.entries.get_mut(&file).filter(|entry| entry.contents == Contents::Unasked) else {
            return;
        };
        if entry.descriptor == Descriptor::Open {
            entry.contents = Contents::Asked;
            requests.ask(Purpose::Contents(file), Request::Contents { file });
            return;
        }
        let may_open = self.open(file, requests);
        if let Some(entry) = self.entries.get_mut(&file) {
            entry.contents = if may_open { Contents::Wanted } else { Contents::Unknown };
        }
    }

    /// A file whose contents are wanted has been opened, or cannot be.
    fn go_on_with_contents(&mut self, file: FileId, requests: &mut Requests) {
        let wanted = self.entries.get_mut(&file).filter(|entry| entry.contents == Contents::Wanted);
        if let Some(entry) = wanted {
            entry.contents = Contents::Unasked;
            self.ask_contents(file, requests);
            self.compare_all_with(file);
        }
    }

    /// Takes up the digest of everything that is used of a file.
    pub(super) fn take_contents(&mut self, file: FileId, digest: Option<Digest>) {
        let Some(entry) = self.entries.get_mut(&file) else { return };
        entry.contents = digest.map_or(Contents::Unknown, Contents::Known);
        self.compare_all_with(file);
    }

    fn compare_all_with(&mut self, file: FileId) {
        let twins = self.twins.get(&file).cloned().unwrap_or_default();
        twins.into_iter().chain([file]).for_each(|one| self.compare(one));
    }

    /// It is known whether a file is a copy of its twin, or nobody wants to know any more.
    fn drop_twin(&mut self, file: FileId, twin: FileId) {
        if let Some(twins) = self.twins.get_mut(&twin) {
            twins.remove(&file);
            if twins.is_empty() {
                self.twins.remove(&twin);
            }
        }
    }

    /// Makes a file a copy of its twin if their digests are known and the same.
    fn compare(&mut self, file: FileId) {
        let Some(twin) = self.entries.get(&file).and_then(|entry| entry.twin) else { return };
        let contents = |one| self.entries.get(&one).map_or(Contents::Unknown, |entry| entry.contents);
        let same = match (contents(file), contents(twin)) {
            (Contents::Known(own), Contents::Known(other)) => own == other,
            (Contents::Unknown, _) | (_, Contents::Unknown) => false,
            _ => return,
        };
        if contents(twin) == Contents::Unknown
            && let Some(key) = self.entries.get(&file).and_then(Entry::build_key)
        {
            // Of the first one no more will be known: the next ones are compared with this one.
            self.by_build.insert(key, file);
        }
        self.drop_twin(file, twin);
        let original = self.entries.get(&self.original(twin)).map(|entry| entry.own.clone());
        if let Some(entry) = self.entries.get_mut(&file) {
            entry.twin = None;
            entry.original = original.filter(|_| same);
            self.stats.copies += u64::from(entry.original.is_some());
            self.news.push(file);
        }
    }

    /// Whether it may turn out that a file is a copy of another one.
    pub(super) fn may_be_copy(&self, file: FileId) -> bool {
        self.entries.get(&file).is_some_and(|entry| entry.twin.is_some() || entry.descriptor == Descriptor::Opening)
    }

    /// Whether a file can be read now.
    pub(super) fn is_open(&self, file: FileId) -> bool {
        self.entries.get(&file).is_some_and(|entry| entry.descriptor == Descriptor::Open)
    }

    /// Asserts that the counts are those of what they count, and within their bounds.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_sound<'a>(&self, mut processes: impl Iterator<Item = &'a Process>) {
        let entries = self.entries.iter().filter(|(file, _)| **file != VDSO);
        let open = entries.filter(|(_, entry)| entry.descriptor == Descriptor::Open).map(|(file, _)| *file);
        assert_eq!(self.open, open.collect());
        let twins = self.twins.iter().flat_map(|(twin, files)| files.iter().map(|file| (*file, *twin)));
        let entries = self.entries.iter().filter_map(|(file, entry)| Some((*file, entry.twin?)));
        assert_eq!(twins.collect::<BTreeSet<_>>(), entries.collect());
        assert!(self.open.len() <= MAX_OPEN && self.entries.len() <= MAX_FILES + 1);
        assert_eq!(self.of_owner.values().sum::<usize>(), self.by_identity.len());
        assert!(self.of_owner.iter().all(|(owner, count)| *owner == 0 || *count <= MAX_FILES_OF_OWNER));
        assert!(self.stalled.len() <= MAX_STALLED);
        assert!(processes.all(|process| process.asked.get().count <= MAX_ASKED));
        assert!(self.by_identity.values().all(|file| self.entries.contains_key(file)));
        assert!(self.by_build.values().all(|file| self.entries.contains_key(file)));
    }

    /// Path and build id of a file.
    pub(super) fn module(&self, file: FileId) -> Option<Arc<Module>> {
        self.entries.get(&file).map(|entry| Arc::clone(&entry.module))
    }

    /// How long the rows of a file take, in functions.
    pub(super) fn functions(&self, file: FileId) -> u64 {
        let Some(entry) = self.entries.get(&file) else { return 0 };
        work(entry.build.as_ref(), entry.identity.map_or(0, |identity| identity.len))
    }

    /// Who pays for a file; of root's, those of one file system belong together.
    pub(super) fn owner(&self, file: FileId) -> Option<(u32, Option<u64>)> {
        let entry = self.entries.get(&file)?;
        let identity = entry.identity?;
        Some((entry.owner, (entry.owner == 0).then_some(identity.st_dev)))
    }

    /// Files of which more is known than at the last call.
    pub(super) fn take_news(&mut self) -> Vec<FileId> {
        std::mem::take(&mut self.news)
    }

    /// Closes files that nobody uses, and evicts those that nobody has used for long. About every second. `is_busy` says
    /// whose rows are in use. Returns those that were evicted.
    pub(super) fn sweep(&mut self, is_busy: impl Fn(FileId) -> bool, requests: &mut Requests) -> Vec<FileId> {
        let now = requests.now;
        self.evictable.clear();
        self.searches = 0;
        let (mut close, mut evict) = (Vec::new(), Vec::new());
        for (file, entry) in self.entries.iter_mut().filter(|(file, _)| **file != VDSO) {
            if !entry.own.is_last() {
                entry.unused_since = None;
                continue;
            }
            let unused = now.0.saturating_sub(entry.unused_since.get_or_insert(now).0);
            if unused >= GRACE_NS && entry.descriptor == Descriptor::Open {
                close.push(*file);
            }
            if unused >= KNOWN_NS && entry.descriptor != Descriptor::Opening && !is_busy(*file) {
                evict.push(*file);
            }
        }
        close.into_iter().for_each(|file| self.close(file, requests));
        evict.iter().for_each(|file| self.evict(*file));
        evict
    }

    fn close(&mut self, file: FileId, requests: &mut Requests) {
        let Some(entry) = self.entries.get_mut(&file).filter(|entry| entry.descriptor == Descriptor::Open) else {
            return;
        };
        entry.descriptor = Descriptor::Closed;
        self.open.remove(&file);
        requests.output(Output::Close(file));
    }

    fn close_surplus(&mut self, requests: &mut Requests) {
        while self.open.len() > MAX_OPEN {
            let used_at = |file: &&FileId| self.entries.get(file).map(|entry| entry.used_at);
            let Some(oldest) = self.open.iter().min_by_key(used_at).copied() else { return };
            self.close(oldest, requests);
            self.stats.closed += 1;
        }
    }

    /// Makes room, among the files of an owner or among all. Who maps files by the thousand asks for it again and again: all
    /// are looked at once in a while.
    fn evict_one(&mut self, owner: Option<u32>, now: MonoNs) -> bool {
        let known = self.evictable.get(&owner);
        let is_fresh = known.is_some_and(|known| now.0.saturating_sub(known.looked_at.0) < LOOK_HOLDS_NS);
        if !is_fresh && known.is_none_or(|known| known.files.is_empty()) {
            let files = self.look_for_evictable(owner);
            self.evictable.insert(owner, Evictable { files, looked_at: now });
        }
        while let Some(file) = self.evictable.get_mut(&owner).and_then(|known| known.files.pop_front()) {
            if self.entries.get(&file).is_some_and(|entry| entry.can_go(owner)) {
                self.evict(file);
                return true;
            }
        }
        false
    }

    fn look_for_evictable(&mut self, owner: Option<u32>) -> VecDeque<FileId> {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let unused = self.entries.iter().filter(|(file, entry)| **file != VDSO && entry.can_go(owner));
        let mut unused: Vec<_> = unused.map(|(file, entry)| (entry.used_at, *file)).collect();
        unused.sort_unstable();
        unused.into_iter().map(|(_, file)| file).collect()
    }

    fn evict(&mut self, file: FileId) {
        let Some(Entry { identity: Some(identity), owner, build, twin, .. }) = self.entries.remove(&file) else {
            return;
        };
        if let Some(twin) = twin {
            self.drop_twin(file, twin);
        }
        self.by_identity.remove(&identity);
        if let Some(count) = self.of_owner.get_mut(&owner) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.of_owner.remove(&owner);
            }
        }
        let key = build.map(|build| (build.id, identity.len, identity.uid));
        if let Some(key) = key.filter(|key| self.by_build.get(key) == Some(&file)) {
            self.by_build.remove(&key);
        }
    }

    /// Whether this is jitprof's own file in its child: a command that is about to be executed.
    pub(super) fn is_own_image(&self, file: FileId, process: &Process) -> bool {
        let identity = self.entries.get(&file).and_then(|entry| entry.identity);
        self.own.is_some_and(|(device, inode, own)| {
            let is_own = identity.is_some_and(|file| (file.st_dev, file.inode) == (device, inode));
            is_own && process.parent_pid == own
        })
    }

    /// Files, and what became of them.
    pub(super) fn stats(&self) -> FileStats {
        self.stats
    }

    /// What names processes here, and how many.
    #[cfg(test)]
    pub(super) fn rooms(&self) -> [(&'static str, usize); 2] {
        [("unanswered", self.unanswered.len()), ("stalled", self.stalled.len())]
    }
}

impl Entry {
    /// Whether nobody uses it, and it is this owner's, if one is given.
    fn can_go(&self, owner: Option<u32>) -> bool {
        self.own.is_last()
            && owner.is_none_or(|owner| self.identity.is_some() && self.owner == owner)
            && matches!(self.descriptor, Descriptor::Closed | Descriptor::Failed | Descriptor::Useless)
    }

    /// Whether a debug file below the root of who maps it may be looked for when it is opened.
    fn may_have_own_debug(&self) -> bool {
        self.own_debug || self.build.is_none()
    }

    /// What its copies have, too; none without a build id, or if others are not to have its names.
    fn build_key(&self) -> Option<BuildKey> {
        let build = self.build.as_ref().filter(|build| !build.id.is_empty() && !self.own_debug)?;
        let identity = self.identity?;
        Some((build.id.clone(), identity.len, identity.uid))
    }

    /// With what it is and who pays for it, if that is known.
    fn new(file: FileId, known: Option<(FileIdentity, u32)>, path: Arc<str>, now: MonoNs) -> Self {
        let (identity, owner) = known.unzip();
        Self {
            own: FileUse::new(file),
            identity,
            owner: owner.unwrap_or(0),
            module: Arc::new(Module { path, build_id: None }),
            build: None,
            own_debug: false,
            contents: Contents::Unasked,
            twin: None,
            original: None,
            descriptor: Descriptor::Closed,
            seen: None,
            tried: Vec::new(),
            unused_since: None,
            used_at: now,
        }
    }
}

#[cfg(test)]
mod tests {
    use jitprof_unwind::elf::Segment;

    use super::*;

    #[test]
    fn however_many_users_map_thousands_of_files_a_new_one_has_some() {
        let mut all = 4000;
        let root = all;
        let mut take = |most: usize| {
            let own =
                (0..most).find(|own| !may_have_more(HeldByOwner { own: *own, kind: all - root + own, all: all + own }));
            all += own.unwrap_or(most);
            own.unwrap_or(most)
        };
        let greedy: Vec<usize> = (0..10).map(|_| take(usize::MAX)).collect();
        assert_eq!(greedy[..4], [2048, 2048, 2048, 1024], "{greedy:?}");
        assert!((0..40).all(|_| take(FEW_FILES) == FEW_FILES), "{greedy:?}");
        assert!(all <= MAX_FILES);
    }

    #[test]
    fn code_that_no_function_covers_is_work_too() {
        let of = |functions, bytes| {
            let code =
                vec![Segment { kind: 1, flags: 5, file_offset: 0, svma: 0, file_size: bytes, memory_size: bytes }];
            work(Some(&Build { id: Vec::new(), code, functions }), bytes)
        };
        // libc has one function for 400 bytes.
        let libc = of(3_700, 3_700 * 400);
        assert!((3_700..4_500).contains(&libc), "{libc}");
        assert_eq!(of(9, 9 * 256), 9);
        let sparse = of(1, 16 << 20);
        assert!(sparse > 2 * libc && of(1, 1 << 40) < 20_000, "{sparse}");
        assert_eq!((work(None, 256 * 9), of(0, 256 * 9)), (9, 9));
        // What a file says of its segments is no longer than it.
        let code = vec![Segment { kind: 1, flags: 5, file_offset: 0, svma: 0, file_size: u64::MAX, memory_size: 0 }; 2];
        assert_eq!(work(Some(&Build { id: Vec::new(), code, functions: 1 }), 256), 1);
    }
}
