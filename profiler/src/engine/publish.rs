//! Keeps the BPF program's tables true for each process: where it has mapped what, and the rows of its generated code.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jitprof_common::page::page_elements;
use jitprof_common::table::{MAX_PAGE_ROWS, MAX_REGIONS, PageKey, Region};
use jitprof_common::taken::FrameSpec;
use jitprof_common::units::MonoNs;
use rustc_hash::FxHashSet;

use crate::account::UnwindingStats;
use crate::engine::border::PageNumber;
use crate::engine::delays::Delays;
use crate::engine::files::Files;
use crate::engine::frames::taken_in;
use crate::engine::place::Place;
use crate::engine::process::Process;
use crate::engine::processes::Processes;
use crate::engine::regions;
use crate::engine::requests::Requests;
use crate::engine::row_cache::{RowCache, RowsOf};
use crate::engine::tables::{Holding, Tables};
use crate::process::ProcessId;
use crate::process::open::FileId;

/// Lists of mappings longer than this are published five times a second at most.
const LONG_LIST: usize = 1024;
const LONG_LIST_NS: u64 = 200_000_000;
/// How long a process whose code was replaced sends a snapshot with every sample that meets its code. Collectors of busy
/// runtimes free code every few seconds.
const REPLACING: Duration = Duration::from_secs(10);

/// How long a process of whose frames nothing could be taken along, for want of room, waits for the next try.
const WORDLESS: Duration = Duration::from_secs(5);

/// How long after pages of generated code found no room it is looked for again.
const TRY_AGAIN_NS: u64 = 1_000_000_000;

/// Lists without room that are tried again with a tick: each is made anew, and with thousands of processes most of them
/// find none again.
const LISTS_PER_TICK: usize = 64;

/// Said once.
const TOO_MANY_TAKES: &str =
    "of too many processes frames are to be asked about; the code of the last ones has no names";

/// What of one process is in the tables, and what is to become of it.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// Its room in them.
    holding: Holding,
    /// Its mappings, if they are.
    regions: Option<Vec<Region>>,
    /// The files whose rows are in that list.
    files: BTreeSet<FileId>,
    since: MonoNs,
    /// The object of its generated code; 0 if it has none.
    object: u32,
    /// Whether that is the object of the process that this one was forked from.
    is_borrowed: bool,
    /// What is taken along with its frames, or was to be.
    take: Option<Box<FrameSpec>>,
    /// With which publication that began, and when it was asked for.
    takes_from: Option<(u64, MonoNs)>,
    /// Pages of generated code, to be withdrawn when it ends.
    pages: BTreeSet<u32>,
    /// Those of them that have found no room, with how many rows, and since when none was looked for.
    without_room: BTreeMap<u32, u32>,
    tried: MonoNs,
    /// Its list has found no room and is tried again: the number of the refusal, for their order.
    refused: Option<u64>,
    /// Samples since its list was made that have met what is not published.
    met: u64,
    /// Its code has been replaced lately, and until when that counts.
    replacing: Option<MonoNs>,
    /// Nothing could be taken along with its frames, and until when that is left so.
    wordless: Option<MonoNs>,
}

impl Published {
    /// Whether its mappings are in the tables.
    pub(super) fn is_published(&self) -> bool {
        self.regions.is_some()
    }

    /// Whether it is walked by one of these objects.
    pub(super) fn uses(&self, objects: &BTreeSet<u32>) -> bool {
        self.regions.iter().flatten().any(|region| objects.contains(&region.object))
    }

    /// What it has of the tables.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn holding(&self) -> &Holding {
        &self.holding
    }

    /// Whether words of its frames are taken along, or are with the next publication.
    pub(super) fn takes_words(&self) -> bool {
        self.take.is_some()
    }

    /// Whether this is taken along with its frames, and known since when.
    fn takes(&self, spec: Option<&FrameSpec>) -> bool {
        self.take.as_deref() == spec && self.take.is_some() == self.takes_from.is_some()
    }

    /// From a publication on, this is taken along. In place of something else: samples have words since that began, as its
    /// mappings may be the same, and are not published once more.
    fn begin_take(&mut self, spec: Option<Box<FrameSpec>>, asked: (u64, MonoNs)) {
        let before = self.takes_from.filter(|_| self.takes_words());
        self.takes_from = spec.as_ref().map(|_| before.unwrap_or(asked));
        self.take = spec;
    }

    /// Whether its list waits for room.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Whether pages of its generated code have found no room.
    pub(super) fn lacks_room(&self) -> bool {
        !self.without_room.is_empty()
    }

    /// A sample has met code of it that may not be published yet.
    pub(super) fn meet(&mut self) {
        self.met += 1;
    }

    /// A long list that changes all the time would use up the room of all: what it replaces stays in use for a second.
    fn is_too_young(&self, now: MonoNs) -> bool {
        self.regions.as_ref().is_some_and(|regions| regions.len() > LONG_LIST)
            && now.0.saturating_sub(self.since.0) < LONG_LIST_NS
    }
}

/// Publishes what has changed. Its lists of processes are of those with work to be done, so that nobody looks at all of
/// them; what is known of each stands in its [`Published`].
#[derive(Debug, Default)]
pub(super) struct Publisher {
    /// Code may be read from processes' memory.
    peek: bool,
    /// Processes whose mappings have to be published again.
    changed: FxHashSet<ProcessId>,
    /// Processes to be looked at with each tick: of which something found no room, or whose code was replaced.
    waiting: FxHashSet<ProcessId>,
    refusals: u64,
    /// Functions that wait for a publication to be in force: whose, and since when it was asked for.
    unconfirmed: Vec<(u64, ProcessId)>,
    /// Publications on their way that have a list of a process' mappings.
    unconfirmed_lists: Vec<(u64, ProcessId)>,
    /// The latest publication that is in force.
    confirmed: u64,
    started: Option<MonoNs>,
    delays: Delays,
    regions_refused: u64,
    jit_pages: u64,
}

impl Publisher {
    /// Of nothing yet.
    pub(super) fn new(peek: bool) -> Self {
        Self { peek, ..Self::default() }
    }

    /// Sampling has begun: what was announced before did not wait for the tables.
    pub(super) fn begin(&mut self, now: MonoNs) {
        self.started = Some(now);
    }

    /// A process' mappings have changed.
    pub(super) fn change(&mut self, process: ProcessId) {
        self.changed.insert(process);
    }

    /// Rows of files have come or gone: every list may be another one.
    pub(super) fn change_all(&mut self, processes: &Processes) {
        let published = processes.iter().filter(|process| process.is_live() && process.published.is_published());
        let others = published.filter(|process| !process.published.is_refused());
        self.changed.extend(others.map(|process| process.id));
    }

    /// Some lists that found no room are tried again, and code that has settled is no longer taken for replaced.
    pub(super) fn look_again(&mut self, processes: &mut Processes, now: MonoNs) {
        let (mut refused, changed) = (Vec::new(), &mut self.changed);
        self.waiting.retain(|id| {
            let Some(Process { published, .. }) = processes.get_mut(*id) else { return false };
            let is_over = |until: &mut MonoNs| *until <= now;
            let (replaced, wordless) = (published.replacing.take_if(is_over), published.wordless.take_if(is_over));
            if replaced.or(wordless).is_some() {
                changed.insert(*id);
            }
            refused.extend(published.refused.map(|number| (published.met == 0, number, *id)));
            published.is_refused() || published.replacing.or(published.wordless).is_some()
        });
        if refused.len() > LISTS_PER_TICK {
            // Those that samples have met since, then the others; of either who has waited for the longest.
            refused.select_nth_unstable(LISTS_PER_TICK);
            refused.truncate(LISTS_PER_TICK);
        }
        for (_, _, id) in refused {
            if let Some(process) = processes.get_mut(id) {
                process.published.refused = None;
                changed.insert(id);
            }
        }
    }

    /// Publishes the mappings of every process that has changed, those that samples have met before the others.
    pub(super) fn publish(
        &mut self,
        processes: &mut Processes,
        (files, rows): (&mut Files, &mut RowCache),
        tables: &mut Tables,
        requests: &mut Requests,
    ) {
        let changed = self.changed.drain().filter_map(|id| {
            let process = processes.get_mut(id).filter(|process| process.is_live())?;
            Some((std::mem::take(&mut process.published.met), id))
        });
        let mut changed: Vec<(u64, ProcessId)> = changed.collect();
        changed.sort_unstable_by_key(|(met, id)| (std::cmp::Reverse(*met), *id));
        for (_, id) in changed {
            let Some(process) = processes.get_mut(id) else { continue };
            if process.published.is_too_young(requests.now) {
                self.changed.insert(id);
                continue;
            }
            self.publish_one(process, (files, rows), tables, requests);
        }
    }

    fn publish_one(
        &mut self,
        process: &mut Process,
        (files, rows): (&mut Files, &mut RowCache),
        tables: &mut Tables,
        requests: &mut Requests,
    ) {
        let now = requests.now;
        let spec = process.capture().map(|capture| Box::new(capture.spec()));
        if !process.published.takes(spec.as_deref()) {
            let who = (process.id.pid, process.holder());
            process.published.begin_take(spec, (tables.next_publication(), now));
            let Published { take, holding, .. } = &mut process.published;
            if !tables.set_take(who, holding, take.as_deref(), requests) {
                requests.remark(TOO_MANY_TAKES.to_owned());
                self.without_words(process, tables, now);
            }
        }
        let (mut regions, mut used) = (Vec::new(), BTreeSet::new());
        if process.published.object == 0 {
            process.published.object = tables.new_object();
        }
        let snapshots = match (self.wants_snapshots(process), process.published.replacing.is_some()) {
            (true, true) => Region::SNAPSHOT | Region::REPLACED,
            (true, false) => Region::SNAPSHOT,
            (false, _) => 0,
        };
        for mapped in process.space.live() {
            let mapping = &mapped.mapping;
            // Mappings without rows are listed, too: that code can be there is known by them.
            let (object, bias, flags) = match Place::of_mapping(mapped) {
                Place::File(_) => match rows.want(files, process, mapped, requests) {
                    RowsOf::Object { file, object, bias } => {
                        used.insert(file);
                        (object, bias, 0)
                    }
                    RowsOf::NotYet => (0, 0, Region::SNAPSHOT),
                    RowsOf::Unasked | RowsOf::Nothing => (0, 0, 0),
                },
                Place::Generated(_) => {
                    let is_all =
                        process.capture().is_some_and(|capture| capture.generated.is_none() && capture.has_words());
                    let takes = if process.published.take.is_some() && is_all { Region::TAKE } else { 0 };
                    (process.published.object, 0, Region::GENERATED | snapshots | takes)
                }
                _ => (0, 0, 0),
            };
            let whole = Region { start: mapping.start.0, end: mapping.end.0, bias, object, flags };
            // Nothing is inlined into the runtime's own code.
            let parts = match process.capture().filter(|_| !process.asks_inlined_alone()) {
                Some(capture) => taken_in(&process.space, capture, mapped),
                None => Vec::new(),
            };
            let mut at = whole.start;
            for (start, end) in parts {
                if at < start {
                    regions::push(&mut regions, Region { start: at, end: start, ..whole });
                }
                regions::push(&mut regions, Region { start, end, flags: flags | Region::TAKE, ..whole });
                at = end;
            }
            if at < whole.end {
                regions::push(&mut regions, Region { start: at, ..whole });
            }
        }
        let (regions, left_out) = regions::fit(regions, MAX_REGIONS as usize);
        if process.published.regions.as_ref().is_some_and(|published| *published == regions) {
            // What ended meanwhile has the same rules as what is there now, or has never been listed.
            let latest = tables.next_publication() - 1;
            process.space.withdraw_with(latest);
            if self.confirmed >= latest {
                process.space.confirm(latest, now);
            }
            return;
        }
        if left_out > 0 {
            self.regions_refused = self.regions_refused.max(left_out);
            requests.remark(format!(
                "process {} has more executable mappings than the {MAX_REGIONS} that are unwound by rows; the \
                 smallest are walked by frame pointer",
                process.id.pid
            ));
        }
        let who = (process.id.pid, process.holder());
        let complete = tables.set_regions(who, &mut process.published.holding, &regions, requests);
        process.space.withdraw_with(tables.next_publication());
        self.unconfirmed_lists.push((tables.next_publication(), process.id));
        if complete {
            process.published.refused = None;
        } else {
            self.refuse(process);
            used.clear();
        }
        used.iter().for_each(|file| rows.begin_use(*file));
        let before = std::mem::replace(&mut process.published.files, used);
        before.into_iter().for_each(|file| rows.end_use(file, now));
        process.published.regions = Some(if complete { regions } else { Vec::new() });
        process.published.since = now;
    }

    /// There was no room for what is to be taken along with a process' frames, here or in the kernel: there may be a while
    /// later.
    pub(super) fn without_words(&mut self, process: &mut Process, tables: &mut Tables, now: MonoNs) {
        tables.drop_take(&mut process.published.holding);
        process.published.take = None;
        process.published.wordless = Some(now.after(WORDLESS));
        lack_words(process);
        self.waiting.insert(process.id);
    }

    /// The kernel has not taken a process' list: it is tried again.
    pub(super) fn refused(&mut self, process: &mut Process, tables: &mut Tables, now: MonoNs) {
        tables.refuse_regions(&mut process.published.holding, now);
        process.published.regions = Some(Vec::new());
        self.refuse(process);
    }

    fn refuse(&mut self, process: &mut Process) {
        self.refusals += 1;
        process.published.refused = Some(self.refusals);
        lack_words(process);
        self.waiting.insert(process.id);
    }

    /// Whether a process' samples are to bring along snapshots where they meet generated code without rows: if it may get
    /// some from a dump that is read, or from the code itself.
    fn wants_snapshots(&self, process: &Process) -> bool {
        let from_memory = self.peek && process.code.wants_code();
        process.code.rows().is_some()
            && (from_memory || process.announcements.may_bring_rows())
            && process.snapshots.is_worth_it()
    }

    /// A child begins with its parent's code: until it has rows of its own, it is walked by the parent's.
    pub(super) fn share_code(&mut self, child: &mut Process, parent: &Process) {
        if parent.published.object != 0 && child.published.object == 0 {
            child.published.object = parent.published.object;
            child.published.is_borrowed = true;
        }
    }

    /// A process is no longer walked by the code of the one that it was forked from.
    pub(super) fn unshare_code(&mut self, process: &mut Process) {
        if std::mem::take(&mut process.published.is_borrowed) {
            process.published.object = 0;
        }
        self.changed.insert(process.id);
    }

    /// A process has become another program: what it borrowed is no code of its, and nobody has asked for words of it.
    pub(super) fn exec(&mut self, process: &mut Process) {
        process.published.takes_from = None;
        self.unshare_code(process);
    }

    /// Publishes the pages of generated code that have changed. Returns the object, if there were any.
    pub(super) fn publish_code(
        &mut self,
        process: &mut Process,
        rows: &mut RowCache,
        tables: &mut Tables,
        requests: &mut Requests,
    ) -> Option<u32> {
        let (id, holder) = (process.id, Some(process.holder()));
        let published = &mut process.published;
        let space = process.code.rows_mut()?;
        // Also while what was handed over before is not confirmed: until then its samples are walked by rows of what was there.
        if space.take_replaced() {
            self.waiting.insert(id);
            if published.replacing.replace(requests.now.after(REPLACING)).is_none() {
                self.changed.insert(id);
            }
        }
        if !space.is_dirty() || space.is_unconfirmed() {
            return None;
        }
        if std::mem::take(&mut published.is_borrowed) {
            // The list of mappings leads to the new object when all of it is there.
            published.object = 0;
            self.changed.insert(id);
        }
        if published.object == 0 {
            published.object = tables.new_object();
            self.changed.insert(id);
        }
        let (object, mut missed, mut count) = (published.object, Vec::new(), 0);
        space.flush(|number, page_rows| {
            let Ok(page) = u32::try_from(number) else { return };
            count += 1;
            let rows = u32::try_from(page_rows.len()).unwrap_or(u32::MAX);
            if tables.set_page((PageKey { object, page }, holder), (page_rows, rows), requests) {
                published.without_room.remove(&page);
            } else {
                published.without_room.insert(page, rows);
                missed.push(number);
            }
            if page_rows.is_empty() {
                published.pages.remove(&page);
            } else {
                published.pages.insert(page);
            }
        });
        self.jit_pages += count;
        tables.change_code(id.pid, requests);
        missed.iter().for_each(|page| space.miss_page(*page, requests.now));
        if !missed.is_empty() {
            published.tried = requests.now;
            // Pages that find room when the grace of what goes is over are published then.
            rows.evict(u64::from(MAX_PAGE_ROWS), tables, requests);
        }
        self.unconfirmed.push((tables.next_publication(), id));
        Some(object)
    }

    /// Pages of generated code that found no room are published again when there is some, with the next publication. With
    /// every tick.
    pub(super) fn place_again(processes: &mut Processes, tables: &Tables, now: MonoNs) {
        let waits = |process: &&mut Process| {
            let published = &process.published;
            published.lacks_room() && now.0.saturating_sub(published.tried.0) >= TRY_AGAIN_NS
        };
        for process in processes.busy_mut().filter(|process| process.is_live()).filter(waits) {
            let holder = Some(process.holder());
            let (mut sum, mut count) = (0_u32, 0);
            for (page, rows) in &process.published.without_room {
                sum = sum.saturating_add(page_elements(*rows));
                count += 1;
                if (count > 1 && sum > MAX_PAGE_ROWS) || !tables.has_share(holder, sum, count) {
                    break;
                }
                if let Some(space) = process.code.rows_mut() {
                    space.touch_page(u64::from(*page));
                }
            }
            process.published.tried = now;
        }
    }

    /// The kernel has not taken a page of generated code.
    pub(super) fn miss_page(processes: &mut Processes, page: PageNumber, now: MonoNs) {
        for process in processes.iter_mut().filter(|process| process.published.object == page.object) {
            if let Some(space) = process.code.rows_mut() {
                space.miss_page(u64::from(page.page), now);
            }
        }
    }

    /// These pages are handed over again, as they are.
    pub(super) fn return_pages(&mut self, process: &mut Process, pages: &[PageNumber], tables: &Tables) {
        let Some(space) = process.code.rows_mut() else { return };
        let own = pages.iter().filter(|page| page.object == process.published.object);
        if own.filter(|page| space.return_page(u64::from(page.page))).count() > 0 {
            self.unconfirmed.push((tables.next_publication(), process.id));
        }
    }

    /// Processes that are walked by the code object of another one, which has changed.
    pub(super) fn change_borrowers(
        &self,
        processes: &Processes,
        object: u32,
        tables: &mut Tables,
        requests: &mut Requests,
    ) {
        let borrowers =
            processes.iter().filter(|process| process.published.is_borrowed && process.published.object == object);
        borrowers.for_each(|process| tables.change_code(process.id.pid, requests));
    }

    /// Everything up to a publication is in force since `at`.
    pub(super) fn confirm(&mut self, publication: u64, at: MonoNs, processes: &mut Processes) {
        let started = self.started.unwrap_or(MonoNs(u64::MAX));
        self.confirmed = publication;
        for (_, id) in self.unconfirmed_lists.extract_if(.., |(number, _)| *number <= publication) {
            if let Some(process) = processes.get_mut(id) {
                process.space.confirm(publication, at);
                if process.published.takes_from.is_some_and(|(number, _)| number <= publication) {
                    process.tables.begin_words(at);
                }
            }
        }
        let delays = &mut self.delays;
        for (_, id) in self.unconfirmed.extract_if(.., |(number, _)| *number <= publication) {
            let Some(space) = processes.get_mut(id).and_then(|process| process.code.rows_mut()) else { continue };
            space.mark_published(at, |loaded| {
                // What was announced before the recording waited for its beginning, not for the tables.
                if loaded >= started {
                    delays.add(at.0.saturating_sub(loaded.0));
                }
            });
        }
    }

    /// A process has ended: what it has in the tables goes.
    pub(super) fn end(
        &mut self,
        process: &mut Process,
        rows: &mut RowCache,
        tables: &mut Tables,
        requests: &mut Requests,
    ) {
        self.changed.remove(&process.id);
        self.waiting.remove(&process.id);
        // What is published of it later is not in force by what was published before.
        self.unconfirmed.retain(|(_, id)| *id != process.id);
        let mut published = std::mem::take(&mut process.published);
        let who = (process.id.pid, process.holder());
        if published.take.is_some() {
            tables.set_take(who, &mut published.holding, None, requests);
        }
        if published.regions.is_some() {
            tables.set_regions(who, &mut published.holding, &[], requests);
            published.files.iter().for_each(|file| rows.end_use(*file, requests.now));
        }
        if !published.is_borrowed {
            for page in published.pages {
                tables.set_page((PageKey { object: published.object, page }, None), (&[], 0), requests);
            }
            tables.change_code(process.id.pid, requests);
        }
    }

    /// Processes were evicted. What is published of them was withdrawn when they ended.
    pub(super) fn remove_gone(&mut self, gone: &FxHashSet<ProcessId>) {
        self.changed.retain(|id| !gone.contains(id));
        self.waiting.retain(|id| !gone.contains(id));
        self.unconfirmed.retain(|(_, id)| !gone.contains(id));
        self.unconfirmed_lists.retain(|(_, id)| !gone.contains(id));
    }

    /// What names processes here, and how many.
    #[cfg(test)]
    pub(super) fn rooms(&self) -> [(&'static str, usize); 4] {
        [
            ("changed", self.changed.len()),
            ("waiting for room", self.waiting.len()),
            ("code on its way", self.unconfirmed.len()),
            ("lists on their way", self.unconfirmed_lists.len()),
        ]
    }

    /// Adds what this knows to what rows of files were built from.
    pub(super) fn stats(&self, of_files: UnwindingStats) -> UnwindingStats {
        UnwindingStats {
            regions_refused: self.regions_refused,
            jit_pages: self.jit_pages,
            jit_delays: self.delays.count(),
            jit_delay_median_ms: self.delays.median_ms(),
            jit_delay_longest_ms: self.delays.longest_ns / 1_000_000,
            ..of_files
        }
    }
}

/// Samples have no words for want of room since these were asked for. Before, it is for want of a look at the runtime.
fn lack_words(process: &mut Process) {
    if let Some((_, asked)) = process.published.takes_from {
        process.tables.begin_words(asked);
    }
}
