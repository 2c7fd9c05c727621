//! The BPF program's tables, as far as they are decided here: where rows and regions lie, which page and which process
//! has which of them.
//!
//! A reader never sees a half-written table: rows are written into elements that no reader knows, then published by
//! one update whose value is a single word, and the elements they replace are used again only after a grace of a
//! second, longer than any sample takes. Behind it a new epoch begins: rows that walks have kept from the tables before
//! are not believed any more.

use std::collections::BTreeMap;

use jitprof_common::page::{INDEX_ELEMENTS, Search, index_elements, page_elements, page_index};
use jitprof_common::row::Row;
use jitprof_common::table::{
    Epochs, MAX_PAGE_ROWS, MAX_PAGES, MAX_PROCESSES, MAX_REGIONS, PAGE_BITS, PageKey, Region, Span,
};
use jitprof_common::taken::{FrameSpec, MAX_SPECS, MAX_TAKES};
use jitprof_common::units::{MonoNs, Pid};
use rustc_hash::FxHashMap;

use crate::account::TableStats;
use crate::engine::border::{Output, PageNumber, TableUpdate};
use crate::engine::extents::Extents;
use crate::engine::requests::Requests;
use crate::process::open::FileId;
use crate::profile::{Holder, Shares};

/// How long after pages were refused they are tried again, and how many of them at a time.
const RETRY_NS: u64 = 1_000_000_000;
const RETRIED_AT_A_TIME: usize = 256;

/// The memory in which rows and regions lie. The engine decides what is written where.
pub trait TableMemory: Send {
    /// Writes encoded rows, or the index of a page's rows, from element `first` on.
    fn write_rows(&mut self, first: u32, rows: &[u64]);

    /// Writes regions from element `first` on.
    fn write_regions(&mut self, first: u32, regions: &[Region]);

    /// The encoded row that holds at an address of a file, whose page has this span, as the BPF program finds it.
    fn find_row(&self, file: FileId, address: u64, span: Span) -> Option<u64>;
}

/// Finds a row as the BPF program does: the last one that does not begin above the address.
pub fn search_rows(span: Span, address: u64, mut read: impl FnMut(u32) -> u64) -> Option<u64> {
    let pc_low = address as u16;
    let Search { first, mut low, mut high } = Search::of(span, pc_low, |at| Some(read(at)))?;
    while low < high {
        let middle = low + (high - low) / 2;
        if Row(read(middle)).pc_low() <= pc_low {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    (low > first).then(|| read(low - 1))
}

/// How large the tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TableSizes {
    /// Elements for rows.
    pub rows: u32,
    /// Elements for regions.
    pub regions: u32,
}

/// Room in an array that somebody has.
#[derive(Clone, Copy, Debug)]
struct Held {
    span: Span,
    /// On whose bill; that of files' rows is kept where they are placed.
    holder: Option<Holder>,
}

/// What one process has of the tables. The kernel finds it by the process' number; here it is kept with the process.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// Its list of mappings.
    list: Option<Held>,
    /// What is taken along with its frames, and on whose bill.
    take: Option<(u32, Holder)>,
}

/// What is taken along with frames.
struct Spec {
    what: FrameSpec,
    /// With those of how many processes.
    users: usize,
    /// Who came with it first.
    holder: Holder,
}

/// The tables of all processes.
pub(super) struct Tables {
    memory: Box<dyn TableMemory>,
    rows: Extents,
    regions: Extents,
    regions_capacity: u32,
    pages: FxHashMap<PageKey, Held>,
    /// Pages that the kernel has not taken. Their rows are written, so that they can be tried again as they are.
    refused: BTreeMap<PageNumber, Held>,
    retried_at: MonoNs,
    /// Where to go on with them.
    retry_from: PageNumber,
    /// What is taken along with frames, and with those of how many processes.
    specs: Vec<Spec>,
    /// Processes that have a list, and those with whose frames something is taken along.
    lists: usize,
    takes: usize,
    /// How many elements of `rows` that are used are no rows.
    index_elements: u32,
    /// Whose the pages of generated code are, and the elements of their rows.
    page_shares: Shares,
    row_shares: Shares,
    /// Whose the lists of mappings are, and the regions in them.
    list_shares: Shares,
    region_shares: Shares,
    /// Whose they are: of the descriptions, that are used, and of the processes.
    spec_shares: Shares,
    take_shares: Shares,
    last_object: u32,
    publication: u64,
    changed: bool,
    stats: TableStats,
}

impl Tables {
    /// Empty tables.
    pub(super) fn new(sizes: TableSizes, memory: Box<dyn TableMemory>) -> Self {
        let bytes = u64::from(sizes.rows) * 8 + u64::from(sizes.regions) * size_of::<Region>() as u64;
        Self {
            memory,
            rows: Extents::new(sizes.rows),
            regions: Extents::new(sizes.regions),
            regions_capacity: sizes.regions,
            pages: FxHashMap::default(),
            refused: BTreeMap::new(),
            retried_at: MonoNs(0),
            retry_from: PageNumber { object: 0, page: 0 },
            specs: Vec::new(),
            lists: 0,
            takes: 0,
            index_elements: 0,
            page_shares: Shares::default(),
            row_shares: Shares::default(),
            list_shares: Shares::default(),
            region_shares: Shares::default(),
            spec_shares: Shares::default(),
            take_shares: Shares::default(),
            last_object: 0,
            publication: 0,
            changed: false,
            stats: TableStats { rows_capacity: sizes.rows, bytes, ..TableStats::default() },
        }
    }

    /// A number that no object has had, for a file's rows or a process' generated code.
    pub(super) fn new_object(&mut self) -> u32 {
        // After 4 billion numbers they begin anew, and 0 stays none.
        self.last_object = self.last_object.checked_add(1).unwrap_or(1);
        self.last_object
    }

    /// Publishes the rows of a page, encoded and sorted, in place of those before; `count` of them, of which a replayed
    /// capture has none. Without rows, or when there is no room, the page has none. Returns whether it has what was asked
    /// for. A process that has the object mapped goes by what it had until [`Tables::change_code`] or
    /// [`Tables::set_regions`] is called for it.
    ///
    /// A holder gets his share at most; whoever names none sees to it that he leaves room to others.
    pub(super) fn set_page(
        &mut self,
        (key, holder): (PageKey, Option<Holder>),
        (rows, count): (&[u64], u32),
        requests: &mut Requests,
    ) -> bool {
        if let Some(held) = self.refused.remove(&key.into()) {
            self.give_back_page(held, requests.now);
        }
        let old = self.pages.remove(&key);
        if let Some(old) = old {
            self.give_back_page(old, requests.now);
        }
        let elements = page_elements(count);
        let span = match count {
            1..=MAX_PAGE_ROWS if self.has_share(holder, elements, 1) => self.rows.take(elements),
            _ => None,
        };
        if let Some(span) = span {
            self.write_page(span, rows);
            self.pages.insert(key, Held { span, holder });
            self.page_shares.take(holder, 1);
            self.row_shares.take(holder, span.count as usize);
        }
        if span.is_some() || old.is_some() {
            self.changed = true;
            requests.output(Output::Table(TableUpdate::Page(key, span)));
        }
        let complete = span.is_some() || count == 0;
        self.stats.pages_refused += u64::from(!complete);
        complete
    }

    /// Writes a page's rows, and the index in front of them.
    fn write_page(&mut self, span: Span, rows: &[u64]) {
        let mut first = span.first;
        if let Some(index) = page_index(rows) {
            self.memory.write_rows(first, &index);
            first = first.saturating_add(INDEX_ELEMENTS);
        }
        self.memory.write_rows(first, rows);
        self.index_elements = self.index_elements.saturating_add(index_elements(span.count));
    }

    /// Whether so many elements of so many pages have room now that this holder may take.
    pub(super) fn has_share(&self, holder: Option<Holder>, elements: u32, pages: usize) -> bool {
        let used = (self.rows.used() as usize, self.stats.rows_capacity as usize);
        self.page_shares.may_take(holder, pages, (self.page_count(), MAX_PAGES as usize))
            && self.row_shares.may_take(holder, elements as usize, used)
    }

    fn give_back_page(&mut self, Held { span, holder }: Held, now: MonoNs) {
        self.rows.retire(span, now);
        self.page_shares.give_back(holder, 1);
        self.row_shares.give_back(holder, span.count as usize);
    }

    /// The kernel has not taken a page: its code is walked by frame pointer until it is tried again.
    pub(super) fn refuse_page(&mut self, page: PageNumber) {
        if let Some(held) = self.pages.remove(&page.into()) {
            self.stats.pages_refused += 1;
            self.refused.insert(page, held);
        }
    }

    /// The kernel has not taken a process' list: it is walked by frame pointer.
    pub(super) fn refuse_regions(&mut self, holding: &mut Holding, now: MonoNs) {
        if self.give_back_regions(holding, now) {
            self.stats.processes_refused += 1;
        }
    }

    /// Publishes again what the kernel has not taken, some of it, a while later. Returns the pages.
    pub(super) fn retry(&mut self, requests: &mut Requests) -> Vec<PageNumber> {
        let now = requests.now;
        if self.refused.is_empty() || now.0.saturating_sub(self.retried_at.0) < RETRY_NS {
            return Vec::new();
        }
        self.retried_at = now;
        let (before, behind) = (self.refused.range(..self.retry_from), self.refused.range(self.retry_from..));
        let again: Vec<PageNumber> = behind.chain(before).map(|(page, _)| *page).take(RETRIED_AT_A_TIME).collect();
        for page in &again {
            let Some(held) = self.refused.remove(page) else { continue };
            self.retry_from = PageNumber { page: page.page.saturating_add(1), ..*page };
            let key = PageKey::from(*page);
            self.pages.insert(key, held);
            self.changed = true;
            requests.output(Output::Table(TableUpdate::Page(key, Some(held.span))));
        }
        again
    }

    /// Pages that are in the kernel's table, or shall be.
    fn page_count(&self) -> usize {
        self.pages.len() + self.refused.len()
    }

    /// Pages of a process' generated code have changed.
    pub(super) fn change_code(&mut self, pid: Pid, requests: &mut Requests) {
        self.changed = true;
        requests.output(Output::Table(TableUpdate::Epoch(pid, Epochs::CODE)));
    }

    /// Pages that a process has mapped have rows that they had not.
    pub(super) fn change_rows(&mut self, pid: Pid, requests: &mut Requests) {
        self.changed = true;
        requests.output(Output::Table(TableUpdate::Epoch(pid, Epochs::MAPPINGS)));
    }

    /// Publishes a process' executable mappings, sorted by address and without overlap. Without any, or when there is
    /// no room, the process is walked by frame pointers. Returns whether it has what was asked for.
    pub(super) fn set_regions(
        &mut self,
        (pid, holder): (Pid, Holder),
        holding: &mut Holding,
        regions: &[Region],
        requests: &mut Requests,
    ) -> bool {
        let had = self.give_back_regions(holding, requests.now);
        let span = match u32::try_from(regions.len()) {
            Ok(count @ 1..=MAX_REGIONS) if self.has_share_of_regions(holder, count) => self.regions.take(count),
            _ => None,
        };
        if let Some(span) = span {
            self.memory.write_regions(span.first, regions);
            holding.list = Some(Held { span, holder: Some(holder) });
            self.lists += 1;
            self.list_shares.take(Some(holder), 1);
            self.region_shares.take(Some(holder), span.count as usize);
        }
        if span.is_some() || had {
            self.changed = true;
            requests.output(Output::Table(TableUpdate::Regions(pid, span)));
        }
        requests.output(Output::Table(TableUpdate::Epoch(pid, Epochs::MAPPINGS)));
        let complete = span.is_some() || regions.is_empty();
        self.stats.processes_refused += u64::from(!complete);
        complete
    }

    fn has_share_of_regions(&self, holder: Holder, count: u32) -> bool {
        let used = (self.regions.used() as usize, self.regions_capacity as usize);
        self.list_shares.may_take(Some(holder), 1, (self.lists, MAX_PROCESSES as usize))
            && self.region_shares.may_take(Some(holder), count as usize, used)
    }

    fn give_back_regions(&mut self, holding: &mut Holding, now: MonoNs) -> bool {
        let Some(Held { span, holder }) = holding.list.take() else { return false };
        self.lists -= 1;
        self.regions.retire(span, now);
        self.list_shares.give_back(holder, 1);
        self.region_shares.give_back(holder, span.count as usize);
        true
    }

    /// Publishes what is taken along with a process' frames; nothing: nothing is. Returns whether there was room.
    pub(super) fn set_take(
        &mut self,
        (pid, holder): (Pid, Holder),
        holding: &mut Holding,
        spec: Option<&FrameSpec>,
        requests: &mut Requests,
    ) -> bool {
        let had = self.drop_take(holding);
        let room = (self.takes, MAX_TAKES as usize);
        let may_take = self.take_shares.may_take(Some(holder), 1, room);
        let index = spec.filter(|_| may_take).and_then(|spec| self.spec(spec, holder, requests));
        if let Some(index) = index {
            holding.take = Some((index, holder));
            self.takes += 1;
            self.take_shares.take(Some(holder), 1);
        }
        if had || index.is_some() {
            requests.output(Output::Table(TableUpdate::Take(pid, index)));
        }
        index.is_some() || spec.is_none()
    }

    /// Nothing is taken along with a process' frames any more. Returns whether anything was.
    pub(super) fn drop_take(&mut self, holding: &mut Holding) -> bool {
        let Some((index, holder)) = holding.take.take() else { return false };
        self.takes -= 1;
        self.take_shares.give_back(Some(holder), 1);
        if let Some(spec) = self.specs.get_mut(index as usize) {
            spec.users -= 1;
            if spec.users == 0 {
                self.spec_shares.give_back(Some(spec.holder), 1);
            }
        }
        true
    }

    /// Processes with the same build of a runtime have the same; one that nobody uses makes room for another.
    fn spec(&mut self, what: &FrameSpec, holder: Holder, requests: &mut Requests) -> Option<u32> {
        let known = self.specs.iter().position(|known| known.what == *what);
        let is_used = known.and_then(|at| self.specs.get(at)).is_some_and(|spec| spec.users > 0);
        let used = self.specs.iter().filter(|spec| spec.users > 0).count();
        if !is_used {
            if !self.spec_shares.may_take(Some(holder), 1, (used, MAX_SPECS as usize)) {
                return None;
            }
            self.spec_shares.take(Some(holder), 1);
        }
        let full = self.specs.len() >= MAX_SPECS as usize;
        let at = known.or_else(|| match full {
            true => self.specs.iter().position(|spec| spec.users == 0),
            false => Some(self.specs.len()),
        })?;
        let new = Spec { what: *what, users: 0, holder };
        match self.specs.get_mut(at) {
            Some(spec) if spec.users > 0 => {}
            Some(unused) => *unused = new,
            None => self.specs.push(new),
        }
        let index = u32::try_from(at).ok()?;
        if known.is_none() {
            requests.output(Output::Table(TableUpdate::Spec(index, Box::new(*what))));
        }
        self.specs.get_mut(at)?.users += 1;
        Some(index)
    }

    /// The number that the next publication will have.
    pub(super) fn next_publication(&self) -> u64 {
        self.publication + 1
    }

    /// Asks when what has changed will be in force. Returns the number of that publication, if anything has.
    pub(super) fn publish(&mut self, requests: &mut Requests) -> Option<u64> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        self.publication += 1;
        requests.output(Output::Publish(self.publication));
        Some(self.publication)
    }

    /// The row that holds at an address of a file's object, as the BPF program finds it; [`Row::GAP`] without one.
    pub(super) fn row(&self, (file, object): (FileId, u32), address: u64) -> Row {
        let Ok(page) = u32::try_from(address >> PAGE_BITS) else { return Row::GAP };
        let Some(held) = self.pages.get(&PageKey { object, page }) else { return Row::GAP };
        self.memory.find_row(file, address, held.span).map_or(Row::GAP, Row)
    }

    /// Makes room of what was replaced a while ago.
    pub(super) fn reclaim(&mut self, now: MonoNs) {
        let indices = &mut self.index_elements;
        self.rows.reclaim(now, |page| *indices = indices.saturating_sub(index_elements(page.count)));
        self.regions.reclaim(now, |_| {});
    }

    /// Elements for rows that can be taken now.
    pub(super) fn free_rows(&self) -> u32 {
        self.stats.rows_capacity.saturating_sub(self.rows.used())
    }

    /// Elements for rows that there are.
    pub(super) fn capacity(&self) -> u32 {
        self.stats.rows_capacity
    }

    /// Whether this many elements of this many pages have room now. In pieces they may not: the room may be in pieces, too.
    pub(super) fn has_room(&self, elements: u32, pages: usize) -> bool {
        self.free_rows() >= elements && (MAX_PAGES as usize).saturating_sub(self.page_count()) >= pages
    }

    /// Asserts that what is used is what somebody has or what is in its grace, and no element has two owners.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_sound(&self, holdings: &[&Holding]) {
        self.rows.assert_owned(self.pages.values().chain(self.refused.values()).map(|held| &held.span));
        assert!(self.refused.keys().all(|page| !self.pages.contains_key(&PageKey::from(*page))));
        let lists: Vec<&Held> = holdings.iter().filter_map(|holding| holding.list.as_ref()).collect();
        assert_eq!(self.lists, lists.len());
        self.regions.assert_owned(lists.iter().map(|held| &held.span));
        let takes: Vec<u32> = holdings.iter().filter_map(|holding| holding.take).map(|(take, _)| take).collect();
        assert_eq!(self.takes, takes.len());
        let users = |at: usize| takes.iter().filter(|take| **take as usize == at).count();
        assert!(self.specs.iter().enumerate().all(|(at, spec)| spec.users == users(at)));
    }

    /// Whether rows have been given back that can be taken when their grace is over.
    pub(super) fn is_returning(&self) -> bool {
        self.rows.is_returning()
    }

    /// Use of the tables.
    pub(super) fn stats(&self) -> TableStats {
        let rows = self.rows.used().saturating_sub(self.index_elements);
        TableStats { rows, regions: self.regions.used(), pages: self.pages.len(), ..self.stats }
    }

    /// What is here of processes, and of how many.
    #[cfg(test)]
    pub(super) fn rooms(&self) -> [(&'static str, usize); 2] {
        [("lists", self.lists), ("takes", self.takes)]
    }
}

#[cfg(test)]
mod tests {
    use jitprof_common::row::{CfaKind, Rule};

    use super::*;
    use crate::process::open::VDSO;

    /// Elements for rows.
    struct Elements(Vec<u64>);

    impl TableMemory for Elements {
        fn write_rows(&mut self, first: u32, rows: &[u64]) {
            self.0[first as usize..][..rows.len()].copy_from_slice(rows);
        }

        fn write_regions(&mut self, _first: u32, _regions: &[Region]) {}

        fn find_row(&self, _file: FileId, address: u64, span: Span) -> Option<u64> {
            search_rows(span, address, |at| self.0[at as usize])
        }
    }

    fn tables(rows: u32) -> (Tables, Requests) {
        let memory = Box::new(Elements(vec![u64::MAX; rows as usize]));
        (Tables::new(TableSizes { rows, regions: 1 }, memory), Requests::default())
    }

    /// So many rows, all of them different, and as far from each other as they can be.
    fn rows(count: u32) -> Vec<u64> {
        let rule = |number: u32| Rule::with_cfa(CfaKind::Sp, (1 + i64::from(number)) * 8);
        (0..count).map(|number| rule(number).encode((number * (0xffff / count)) as u16)).collect()
    }

    #[test]
    fn each_address_has_its_row_with_an_index_and_without() {
        let (mut tables, mut requests) = tables(700);
        for (object, count) in [(1, 31), (2, 32), (3, 541)] {
            let rows = rows(count);
            let key = PageKey { object, page: 5 };
            assert!(tables.set_page((key, None), (&rows, count), &mut requests));
            for low in 0..=u16::MAX {
                let above = rows.partition_point(|row| Row(*row).pc_low() <= low);
                let found = tables.row((VDSO, object), 0x5_0000 | u64::from(low));
                assert_eq!(found.0, rows[above - 1], "{low} of {count}");
            }
        }
    }

    #[test]
    fn an_index_takes_elements_and_is_no_rows() {
        const SECOND: u64 = 1_000_000_000;
        let (mut tables, mut requests) = tables(700);
        let keys = [1, 2].map(|page| PageKey { object: 1, page });
        for (key, count) in keys.into_iter().zip([31, 541]) {
            assert!(tables.set_page((key, None), (&rows(count), count), &mut requests));
        }
        assert_eq!((tables.stats().rows, tables.free_rows()), (31 + 541, 700 - 31 - 541 - 16));
        for key in keys {
            tables.set_page((key, None), (&[], 0), &mut requests);
        }
        assert_eq!(tables.stats().rows, 31 + 541, "they are in their grace");
        tables.reclaim(MonoNs(SECOND));
        assert_eq!((tables.stats().rows, tables.free_rows()), (0, 700));
        assert_eq!(tables.index_elements, 0);
    }

    #[test]
    fn a_page_whose_index_has_no_room_is_refused() {
        for (room, count, fits) in [(31, 31, true), (47, 32, false), (48, 32, true)] {
            let (mut tables, mut requests) = tables(room);
            let key = PageKey { object: 1, page: 0 };
            assert_eq!(tables.set_page((key, None), (&rows(count), count), &mut requests), fits, "{count} in {room}");
        }
        // A holder is charged with it.
        let (holder, key) = (Holder::User(1), PageKey { object: 1, page: 0 });
        let (mut tables, mut requests) = tables(100);
        assert!(tables.set_page((key, Some(holder)), (&rows(32), 32), &mut requests));
        assert!(tables.has_share(Some(holder), 40, 1) && !tables.has_share(Some(holder), 41, 1));
    }

    #[test]
    fn who_generates_code_on_more_pages_than_there_are_leaves_the_next_one_his() {
        let (mut tables, mut requests) = tables(1 << 17);
        let rows = rows(1);
        let mut taken = |object, user, wanted: u32| {
            let holder = Some(Holder::User(user));
            let keys = (0..wanted).map(|page| PageKey { object, page });
            keys.filter(|key| tables.set_page((*key, holder), (&rows, 1), &mut requests)).count()
        };
        assert_eq!([taken(1, 1000, MAX_PAGES + 1), taken(2, 1001, 10_000)], [43_008, 10_000]);
        let stats = tables.stats();
        assert_eq!((stats.pages, stats.pages_refused), (53_008, 65_537 - 43_008));
    }
}
