//! Keeps the kernel part's unwind tables true: rows of every mapped file, rows of generated code, and where each
//! process has them.

mod builders;
mod catalog;
mod delays;
mod recent;
mod regions;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use profiler_common::machine::Machine;
use profiler_common::table::{MAX_REGIONS, PageKey, Region};
use rustc_hash::{FxHashMap, FxHashSet};

use self::builders::{Builders, Built, Image};
use self::catalog::{Catalog, Found, State};
use self::delays::Delays;
use self::recent::Recent;
use crate::account::UnwindingStats;
use crate::elf::svma_of_mapping;
use crate::kernel::Tables;
use crate::process::open::{FileIdentity, TargetFile, identify_mapping, open_mapping};
use crate::process::{Device, Mapping, MappingKind, Process, ProcessId, Processes, monotonic_now, procfs};
use crate::record::sources::Sources;
use crate::units::{Avma, MonoNs};
use crate::unwind::ElfRows;

/// Files that wait for a builder at most, each with an open descriptor; further ones are looked up when these are done.
const MAX_ORDERS: usize = 256;
/// Files remembered of one process at most; beyond it all are looked up anew.
const MAX_KNOWN: usize = 4096;
/// Files that samples have met before they were looked up, remembered at most.
const MAX_MET: usize = 4096;
/// Ended processes whose files are remembered.
const MAX_ENDED: usize = 256;
/// Tables that wait for room at most, and for how long: what is given back can be used again after a second.
const MAX_HOMELESS: usize = 16;
const HOMELESS_NS: u64 = 3_000_000_000;
/// Lists of mappings longer than this are published five times a second at most.
const LONG_LIST: usize = 1024;
const LONG_LIST_NS: u64 = 200_000_000;
/// The part of all rows that goes when there are too many files, if nobody uses them.
const CROWDED: u32 = 64;
/// The part of all rows that is kept free, if rows that nobody uses can go for it.
const KEPT_FREE: u32 = 8;

/// Which file a process maps. The address is only told for events that do not know the inode.
type KnownFile = (Device, u64, Option<u64>, Avma);

/// A process' list as it was published.
#[derive(Debug, Default)]
struct Published {
    regions: Vec<Region>,
    /// The files' objects in it.
    objects: BTreeSet<u32>,
    since: MonoNs,
}

impl Published {
    /// A long list that changes all the time would use up the room of all: what it replaces stays in use for a second.
    fn is_too_young(&self, now: MonoNs) -> bool {
        self.regions.len() > LONG_LIST && now.0.saturating_sub(self.since.0) < LONG_LIST_NS
    }
}

/// Rows that found no room yet.
#[derive(Debug)]
struct Homeless {
    object: u32,
    rows: ElfRows,
    since: MonoNs,
}

/// A process' generated code in the tables.
#[derive(Debug, Default)]
struct Code {
    object: u32,
    /// Whether it is the object of the process that this one was forked from.
    borrowed: bool,
    /// Pages published, to be withdrawn when it ends.
    pages: HashSet<u32>,
}

/// Feeds the tables.
pub(super) struct Unwinding {
    builders: Builders,
    catalog: Catalog,
    recent: Recent,
    known: FxHashMap<ProcessId, HashMap<KnownFile, u32>>,
    /// Samples that have met files which have not been looked up yet.
    met: HashMap<(ProcessId, KnownFile), u64>,
    code: FxHashMap<ProcessId, Code>,
    homeless: VecDeque<Homeless>,
    /// Processes whose regions have to be published again.
    changed: FxHashSet<ProcessId>,
    /// Likewise, with the next tick: there was no room for their lists.
    refused: FxHashSet<ProcessId>,
    /// Processes whose samples bring along what a walk by late rows needs.
    late: FxHashSet<ProcessId>,
    /// Files of processes that have ended, for samples that wait.
    ended: VecDeque<(ProcessId, HashMap<KnownFile, u32>)>,
    /// What each process' regions are: a list that has not changed is not written again.
    published: FxHashMap<ProcessId, Published>,
    /// Device and inode of this program.
    own_file: Option<(u64, u64)>,
    stats: UnwindingStats,
    remarks: Vec<String>,
    started: MonoNs,
    delays: Delays,
}

impl Unwinding {
    /// Starts the builder threads.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn spawn() -> io::Result<Self> {
        Ok(Self {
            builders: Builders::spawn()?,
            catalog: Catalog::default(),
            recent: Recent::default(),
            known: FxHashMap::default(),
            met: HashMap::new(),
            code: FxHashMap::default(),
            homeless: VecDeque::new(),
            changed: FxHashSet::default(),
            refused: FxHashSet::default(),
            late: FxHashSet::default(),
            ended: VecDeque::new(),
            published: FxHashMap::default(),
            own_file: std::fs::metadata("/proc/self/exe").ok().map(|metadata| (metadata.dev(), metadata.ino())),
            stats: UnwindingStats::default(),
            remarks: Vec::new(),
            started: monotonic_now(),
            delays: Delays::new(),
        })
    }

    /// A process' mappings have changed.
    pub(super) fn change(&mut self, process: ProcessId) {
        self.changed.insert(process);
    }

    /// A process has mapped a file: it may not be the one that its inode stood for before.
    pub(super) fn map_file(&mut self, process: ProcessId, device: Device, inode: u64) {
        if let Some(known) = self.known.get_mut(&process) {
            known.retain(|(known_device, known_inode, ..), _| (*known_device, *known_inode) != (device, inode));
        }
    }

    /// Whether a process' samples bring along pieces of their stacks where they meet unknown generated code.
    pub(super) fn set_late(&mut self, process: ProcessId, late: bool) {
        let changes = if late { self.late.insert(process) } else { self.late.remove(&process) };
        if changes {
            self.changed.insert(process);
        }
    }

    /// The object of a file's mapping that was looked up before, if its rows are ready, and its bias.
    pub(super) fn known_object(&self, process: ProcessId, mapping: &Mapping) -> Option<(u32, u64)> {
        let object = self.known_number(process, mapping)?;
        self.bias(object, mapping).map(|bias| (object, bias))
    }

    /// Whether the rows of a mapping's file are being built.
    pub(super) fn is_loading(&self, process: ProcessId, mapping: &Mapping) -> bool {
        let state = self.known_number(process, mapping).and_then(|object| self.catalog.state(object));
        matches!(state, Some(State::Loading))
    }

    /// The number of the object of a file's mapping that was looked up before, whether it has rows or not.
    pub(super) fn object_number(&self, process: ProcessId, mapping: &Mapping) -> Option<u32> {
        self.known_number(process, mapping).filter(|number| *number != 0)
    }

    fn known_number(&self, process: ProcessId, mapping: &Mapping) -> Option<u32> {
        let ended = || self.ended.iter().rev().find(|(ended, _)| *ended == process).map(|(_, known)| known);
        self.known.get(&process).or_else(ended)?.get(&known_file(mapping)).copied()
    }

    /// Whether a process' mappings are in the tables.
    pub(super) fn has_published(&self, process: ProcessId) -> bool {
        self.published.contains_key(&process)
    }

    /// A sample has met code in this mapping: rows that it waits for come sooner.
    pub(super) fn meet(&mut self, process: ProcessId, mapping: &Mapping) {
        let key = known_file(mapping);
        if let Some(object) = self.known.get(&process).and_then(|known| known.get(&key)) {
            self.builders.want(*object);
        } else if self.met.len() < MAX_MET {
            *self.met.entry((process, key)).or_default() += 1;
        }
    }

    /// Whether a process' samples may wait for rows.
    pub(super) fn is_wanting(&self, process: ProcessId) -> bool {
        self.builders.outstanding() > 0 || !self.has_published(process)
    }

    /// A process has ended: its tables go.
    pub(super) fn end(&mut self, process: ProcessId, tables: &mut Tables, now: MonoNs) {
        self.changed.remove(&process);
        self.refused.remove(&process);
        self.late.remove(&process);
        if let Some(known) = self.known.remove(&process) {
            if self.ended.len() >= MAX_ENDED {
                self.ended.pop_front();
            }
            self.ended.push_back((process, known));
        }
        if let Some(published) = self.published.remove(&process) {
            tables.set_regions(process.pid, &[], now);
            for object in published.objects {
                self.catalog.give_back(object, now);
            }
        }
        self.end_code(process, tables, now);
    }

    /// Forgets the files of other processes that have ended.
    pub(super) fn retain_ended(&mut self, wanted: impl Fn(ProcessId) -> bool) {
        self.ended.retain(|(process, _)| wanted(*process));
    }

    /// From now on the builders take what no sample waits for slowly.
    pub(super) fn work_in_background(&self) {
        self.builders.work_in_background();
    }

    /// Whether rows are being built.
    pub(super) fn is_building(&self) -> bool {
        self.builders.outstanding() > 0
    }

    /// Withdraws what a process has published of its generated code.
    fn end_code(&mut self, process: ProcessId, tables: &mut Tables, now: MonoNs) {
        if let Some(Code { object, pages, .. }) = self.code.remove(&process) {
            for page in pages {
                tables.set_page(PageKey { object, page }, &[], now);
            }
            self.change_code(object, tables);
        }
    }

    /// The rows of a process' generated code have changed: for itself, and for children that still go by them.
    fn change_code(&self, object: u32, tables: &Tables) {
        for (id, _) in self.code.iter().filter(|(_, code)| code.object == object) {
            tables.change_code(id.pid);
        }
    }

    /// A child begins with its parent's code: until it has rows of its own, it is walked by the parent's.
    pub(super) fn share_code(&mut self, child: ProcessId, parent: ProcessId) {
        if let Some(object) = self.code.get(&parent).map(|code| code.object) {
            self.code.entry(child).or_insert(Code { object, borrowed: true, pages: HashSet::new() });
        }
    }

    /// A process has become another program: what it borrowed is none of its code.
    pub(super) fn exec(&mut self, process: ProcessId) {
        self.known.remove(&process);
        if self.code.get(&process).is_some_and(|code| code.borrowed) {
            self.code.remove(&process);
        }
    }

    /// Waits until the rows of everything asked for so far are built, `limit` at most.
    pub(super) fn wait(&mut self, limit: Duration, tables: &mut Tables, now: MonoNs) {
        let deadline = Instant::now() + limit;
        while self.builders.outstanding() > 0
            && let Some(built) = self.builders.wait_next(deadline)
        {
            self.take_up(built, tables, now);
        }
    }

    /// Takes up what the builders have finished, and lets unused rows go where room becomes scarce.
    pub(super) fn collect(&mut self, tables: &mut Tables, now: MonoNs) {
        let (capacity, free) = (tables.stats().rows_capacity, tables.free_rows());
        let wanted = capacity / KEPT_FREE;
        if free < wanted {
            self.evict(u64::from(wanted - free), tables, now);
        } else if self.catalog.is_crowded() {
            self.evict(u64::from(capacity / CROWDED), tables, now);
        }
        self.changed.extend(self.refused.drain());
        for _ in 0..self.homeless.len() {
            if let Some(homeless) = self.homeless.pop_front() {
                self.house(homeless, tables, now);
            }
        }
        while let Some(built) = self.builders.next() {
            self.take_up(built, tables, now);
        }
    }

    fn take_up(&mut self, built: Built, tables: &mut Tables, now: MonoNs) {
        self.stats.build_us += u64::try_from(built.took.as_micros()).unwrap_or(u64::MAX);
        match built.rows {
            Ok(rows) if !rows.table.is_empty() && rows.machine == Machine::NATIVE => {
                self.house(Homeless { object: built.object, rows, since: now }, tables, now);
                return;
            }
            Ok(_) => {}
            Err(reason) => tracing::debug!("no unwind rows: {}: {reason}", self.catalog.path(built.object)),
        }
        self.stats.files_without_rows += 1;
        self.catalog.set_state(built.object, State::Without, now);
    }

    /// Publishes a file's rows; where there is no room, it is made or waited for, and in the end what fits is
    /// published.
    fn house(&mut self, homeless: Homeless, tables: &mut Tables, now: MonoNs) {
        let wanted = u32::try_from(homeless.rows.table.len()).unwrap_or(u32::MAX);
        if !tables.has_room(wanted, homeless.rows.table.page_count()) {
            // It may be pages that are short, not rows.
            let evicted = self.evict(u64::from(wanted.saturating_sub(tables.free_rows())).max(1), tables, now);
            let waits = now.0.saturating_sub(homeless.since.0) < HOMELESS_NS;
            if (evicted || tables.is_returning()) && waits && self.homeless.len() < MAX_HOMELESS {
                self.homeless.push_back(homeless);
                return;
            }
        }
        let Homeless { object, rows: ElfRows { table, segments, .. }, .. } = homeless;
        let (mut pages, mut refused) = (Vec::new(), 0_u32);
        for page in table.pages() {
            let Ok(number) = u32::try_from(page.page) else { continue };
            if tables.set_page(PageKey { object, page: number }, page.rows, now) {
                pages.push(number);
            } else {
                refused += 1;
            }
        }
        if refused > 0 {
            self.stats.files_cut += 1;
            let path = self.catalog.path(object);
            self.remarks.push(format!(
                "no room for {refused} of {} pages of unwind rows of {path}: its code there is walked by frame pointer",
                table.page_count()
            ));
        }
        self.stats.files += 1;
        self.catalog.set_state(object, State::Ready { segments, pages, rows: wanted }, now);
        // Which of them map it is not worth a table: a region list is built in microseconds.
        self.changed.extend(self.published.keys().copied());
    }

    /// Lets rows go that nobody uses. Returns whether there were any.
    fn evict(&mut self, rows: u64, tables: &mut Tables, now: MonoNs) -> bool {
        let victims = self.catalog.evict(rows, now);
        for victim in &victims {
            for page in &victim.pages {
                tables.set_page(PageKey { object: victim.object, page: *page }, &[], now);
            }
            self.stats.files_evicted += 1;
            self.stats.rows_evicted += u64::from(victim.rows);
        }
        !victims.is_empty()
    }

    /// Publishes the mappings of every process that has changed. A list that finds no room is tried again.
    pub(super) fn publish(&mut self, tables: &mut Tables, now: MonoNs, processes: &Processes) {
        for id in self.by_demand() {
            let Some(process) = processes.get(id).filter(|process| process.exit_time.is_none()) else { continue };
            if self.published.get(&id).is_some_and(|published| published.is_too_young(now)) {
                self.changed.insert(id);
                continue;
            }
            let (regions, left_out) = self.regions(process, now);
            if self.published.get(&id).is_some_and(|published| published.regions == regions) {
                continue;
            }
            if left_out > 0 {
                self.stats.regions_refused = self.stats.regions_refused.max(left_out);
                self.remarks.push(format!(
                    "process {} has more executable mappings than the {MAX_REGIONS} that are unwound by rows; the \
                     smallest are walked by frame pointer",
                    id.pid
                ));
            }
            let complete = tables.set_regions(id.pid, &regions, now);
            let regions = if complete { regions } else { Vec::new() };
            let objects =
                regions.iter().map(|region| region.object).filter(|object| self.catalog.state(*object).is_some());
            let objects: BTreeSet<u32> = objects.collect();
            if !complete {
                self.refused.insert(id);
            }
            for object in &objects {
                self.catalog.take(*object);
            }
            if let Some(before) = self.published.insert(id, Published { regions, objects, since: now }) {
                for object in before.objects {
                    self.catalog.give_back(object, now);
                }
            }
        }
        self.met.clear();
    }

    /// The processes that have changed, those that samples have met before the others.
    fn by_demand(&mut self) -> Vec<ProcessId> {
        let mut samples: HashMap<ProcessId, u64> = HashMap::new();
        for ((process, _), count) in &self.met {
            *samples.entry(*process).or_default() += count;
        }
        let mut changed: Vec<ProcessId> = self.changed.drain().collect();
        changed.sort_by_key(|process| std::cmp::Reverse(samples.get(process).copied().unwrap_or(0)));
        changed
    }

    /// A process' executable mappings by ascending address, and how many were left out; neighbours with the same rows
    /// are joined.
    fn regions(&mut self, process: &Process, now: MonoNs) -> (Vec<Region>, u64) {
        let mut regions: Vec<Region> = Vec::new();
        for mapping in process.space.live() {
            // Mappings without rows are listed, too: that code can be there is known by them.
            let (object, bias) = self.object_of(process, mapping, now).unwrap_or((0, 0));
            let (start, end) = (mapping.start.0, mapping.end.0);
            let generated = mapping.may_hold_generated_code();
            let late = if generated { self.late.contains(&process.id) } else { self.is_loading(process.id, mapping) };
            let flags = if late { Region::LATE } else { 0 } | if generated { Region::GENERATED } else { 0 };
            regions::push(&mut regions, Region { start, end, bias, object, flags });
        }
        regions::fit(regions, MAX_REGIONS as usize)
    }

    fn object_of(&mut self, process: &Process, mapping: &Mapping, now: MonoNs) -> Option<(u32, u64)> {
        match mapping.kind {
            MappingKind::File | MappingKind::Vdso => self.file_object(process, mapping, now),
            MappingKind::Vsyscall | MappingKind::Special => None,
            MappingKind::Anonymous | MappingKind::NamedMemory | MappingKind::Heap | MappingKind::Stack => {
                Some((self.code_of(process.id).object, 0))
            }
        }
    }

    /// The object of a mapping if its rows are ready, and its bias.
    fn file_object(&mut self, process: &Process, mapping: &Mapping, now: MonoNs) -> Option<(u32, u64)> {
        let key = known_file(mapping);
        let known = self.known.get(&process.id).and_then(|known| known.get(&key)).copied();
        // What has been evicted since is looked up again.
        let object = match known.filter(|object| *object == 0 || self.catalog.state(*object).is_some()) {
            Some(object) => object,
            None => {
                let object = self.look_up(process.id, mapping, now)?;
                let known = self.known.entry(process.id).or_default();
                if known.len() >= MAX_KNOWN {
                    known.clear();
                }
                known.insert(key, object);
                object
            }
        };
        self.bias(object, mapping).map(|bias| (object, bias))
    }

    /// Address in the process minus address in the object.
    fn bias(&self, object: u32, mapping: &Mapping) -> Option<u64> {
        let offset = if mapping.kind == MappingKind::Vdso { 0 } else { mapping.file_offset.0 };
        let Some(State::Ready { segments, .. }) = self.catalog.state(object) else { return None };
        Some(mapping.start.0.wrapping_sub(svma_of_mapping(segments, offset)?))
    }

    /// Has the rows of a mapping's file built, if they are not already. Returns its number, 0 if it can have none;
    /// nothing if it has to be asked again.
    fn look_up(&mut self, process: ProcessId, mapping: &Mapping, now: MonoNs) -> Option<u32> {
        if self.builders.outstanding() >= MAX_ORDERS {
            self.changed.insert(process);
            return None;
        }
        let (found, image) = if mapping.kind == MappingKind::Vdso {
            (self.catalog.vdso(now), Image::Vdso)
        } else {
            // Most files of a new process are known: they need not be opened, and mostly not even be looked at.
            let identity = self.recent.get(mapping, now).or_else(|| {
                let identity = identify_mapping(process.pid, mapping).ok()?;
                self.recent.add(mapping, identity, now);
                Some(identity)
            });
            if let Some(identity) = identity
                && let Some(object) = self.catalog.known(&identity)
            {
                return (!self.is_own_image(&identity, process)).then_some(object);
            }
            let Ok(TargetFile { file, identity, .. }) = open_mapping(process.pid, mapping) else { return Some(0) };
            if self.is_own_image(&identity, process) {
                return None;
            }
            (self.catalog.file(&file, identity, &mapping.path, now), Image::File(file))
        };
        Some(match found {
            Found::Known(object) => object,
            Found::New(object) => {
                let samples = self.met.remove(&(process, known_file(mapping))).unwrap_or(0);
                self.builders.order(object, image, samples);
                object
            }
            Found::Full => {
                self.stats.files_refused += 1;
                self.remarks
                    .push(format!("too many files for unwind rows; {} is walked by frame pointer", mapping.path));
                0
            }
        })
    }

    /// Whether this is jitprof's own file in its child: a command that is about to be executed.
    fn is_own_image(&self, file: &FileIdentity, process: ProcessId) -> bool {
        let own = self.own_file == Some((file.st_dev, file.inode));
        own && procfs::stat(process.pid).is_ok_and(|stat| stat.parent.0 == std::process::id())
    }

    fn code_of(&mut self, process: ProcessId) -> &mut Code {
        let catalog = &mut self.catalog;
        self.code.entry(process).or_insert_with(|| Code { object: catalog.new_number(), ..Code::default() })
    }

    /// Publishes the pages of generated code that have changed.
    pub(super) fn publish_code(&mut self, sources: &mut Sources, tables: &mut Tables, now: MonoNs) {
        let id = sources.id;
        let Some(rows) = sources.code.rows_mut().filter(|rows| rows.is_dirty()) else { return };
        if self.code.get(&id).is_some_and(|code| code.borrowed) {
            // The list of mappings leads to the new object when all of it is there.
            self.code.remove(&id);
            self.changed.insert(id);
        }
        let mut refused: Vec<u64> = Vec::new();
        let mut count = 0;
        let code = self.code_of(id);
        rows.flush(|number, page_rows| {
            let Ok(page) = u32::try_from(number) else { return };
            count += 1;
            if !tables.set_page(PageKey { object: code.object, page }, page_rows, now) {
                refused.push(number);
            }
            if page_rows.is_empty() {
                code.pages.remove(&page);
            } else {
                code.pages.insert(page);
            }
        });
        let object = code.object;
        self.stats.jit_pages += count;
        self.change_code(object, tables);
        let wanted = u64::from(profiler_common::table::MAX_PAGE_ROWS);
        if !refused.is_empty() && (self.evict(wanted, tables, now) || tables.is_returning()) {
            // There will be room when the grace is over.
            refused.into_iter().for_each(|page| rows.touch_page(page));
        }
        let (started, delays) = (self.started, &mut self.delays);
        // What was announced before the recording waited for its beginning, not for the tables.
        let done = monotonic_now();
        rows.settle(done, |loaded| {
            if loaded >= started {
                delays.add(done.0.saturating_sub(loaded.0));
            }
        });
    }

    /// What the tables were built from.
    pub(super) fn stats(&self) -> UnwindingStats {
        UnwindingStats {
            jit_delays: self.delays.count(),
            jit_delay_median_ms: self.delays.median_ms(),
            jit_delay_longest_ms: self.delays.longest_ns / 1_000_000,
            ..self.stats
        }
    }

    /// What found no room, in words, since the last call.
    pub(super) fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }
}

fn known_file(mapping: &Mapping) -> KnownFile {
    let start = if mapping.inode == 0 { mapping.start } else { Avma(0) };
    (mapping.device, mapping.inode, mapping.generation, start)
}
