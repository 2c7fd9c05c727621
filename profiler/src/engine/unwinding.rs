//! What the BPF program unwinds by, and what walks are finished by: rows of files and of generated code, and the tables
//! that they are published in.

use jitprof_common::units::MonoNs;
use rustc_hash::FxHashSet;

use crate::account::{TableStats, UnwindingStats};
use crate::engine::border::{Refused, RowsAnswer};
use crate::engine::deferred::Lookup;
use crate::engine::files::Files;
use crate::engine::process::Process;
use crate::engine::processes::Processes;
use crate::engine::publish::{Published, Publisher};
use crate::engine::requests::Requests;
use crate::engine::row_cache::RowCache;
use crate::engine::space::Mapped;
use crate::engine::tables::{TableMemory, TableSizes, Tables};
use crate::process::ProcessId;
use crate::process::open::FileId;

/// Rows, and where they are published.
pub(super) struct Unwinding {
    rows: RowCache,
    tables: Tables,
    publisher: Publisher,
    code_mask: u64,
}

impl Unwinding {
    /// Empty tables. `peek`: code may be read from processes' memory.
    pub(super) fn new(sizes: TableSizes, memory: Box<dyn TableMemory>, peek: bool, code_mask: u64) -> Self {
        Self {
            rows: RowCache::default(),
            tables: Tables::new(sizes, memory),
            publisher: Publisher::new(peek),
            code_mask,
        }
    }

    /// Sampling has begun.
    pub(super) fn begin(&mut self, now: MonoNs) {
        self.publisher.begin(now);
    }

    /// A process' mappings have changed.
    pub(super) fn change(&mut self, process: ProcessId) {
        self.publisher.change(process);
    }

    /// A sample has met code in a mapping: rows that it waits for come sooner.
    pub(super) fn meet(&mut self, of: &mut Published, mapped: &Mapped, files: &Files, requests: &mut Requests) {
        self.rows.meet(files, mapped, requests);
        of.meet();
    }

    /// Whether a process' samples may wait for rows.
    pub(super) fn is_wanting(&self, process: &Process) -> bool {
        self.rows.is_building() || !process.published.is_published() || process.published.is_refused()
    }

    /// Whether rows are being built, or files for them opened.
    pub(super) fn is_building(&self) -> bool {
        self.rows.is_building()
    }

    /// What a walk is finished by.
    pub(super) fn lookup<'a>(&'a self, files: &'a Files) -> Lookup<'a> {
        Lookup { files, rows: &self.rows, tables: &self.tables, code_mask: self.code_mask }
    }

    /// These files can be opened again.
    pub(super) fn retry_files(&mut self, files: &[FileId]) {
        self.rows.retry(files);
    }

    /// Publishes what has changed of mappings and of files' rows.
    pub(super) fn publish(&mut self, processes: &mut Processes, files: &mut Files, requests: &mut Requests) {
        for file in files.take_news() {
            self.rows.go_on(file, files, requests);
            // A link may have been set that a list waits for.
            self.rows.note_change();
        }
        files.take_unanswered().into_iter().for_each(|id| self.publisher.change(id));
        if self.rows.take_changed() {
            self.publisher.change_all(processes);
        }
        self.publisher.publish(processes, (files, &mut self.rows), &mut self.tables, requests);
    }

    /// Publishes what has changed of all processes' generated code.
    pub(super) fn publish_all_code(&mut self, processes: &mut Processes, requests: &mut Requests) {
        let live = processes.busy().filter(|process| process.is_live());
        let dirty = live.filter(|process| process.code.rows().is_some_and(|rows| rows.is_dirty()));
        let dirty: Vec<ProcessId> = dirty.map(|process| process.id).collect();
        dirty.into_iter().for_each(|id| self.publish_code(processes, id, requests));
    }

    /// Publishes what has changed of one process' generated code. What becomes known of one that has ended is published no
    /// more: nobody would withdraw it.
    pub(super) fn publish_code(&mut self, processes: &mut Processes, id: ProcessId, requests: &mut Requests) {
        let Some(process) = processes.get_mut(id).filter(|process| process.is_live()) else { return };
        let object = self.publisher.publish_code(process, &mut self.rows, &mut self.tables, requests);
        if let Some(object) = object {
            self.publisher.change_borrowers(processes, object, &mut self.tables, requests);
        }
    }

    /// Asks when what has changed since the last call will be in force.
    pub(super) fn commit(&mut self, requests: &mut Requests) {
        self.tables.publish(requests);
    }

    /// Everything up to a publication is in force since `at`.
    pub(super) fn confirm(&mut self, publication: u64, at: MonoNs, processes: &mut Processes) {
        self.publisher.confirm(publication, at, processes);
    }

    /// The kernel has not taken an update.
    pub(super) fn refused(&mut self, refused: Refused, processes: &mut Processes, now: MonoNs) {
        if let Refused::Page(page) = refused {
            self.tables.refuse_page(page);
            Publisher::miss_page(processes, page, now);
        }
        let (Refused::Regions(pid) | Refused::Take(pid)) = refused else { return };
        let id = processes.live_of(pid).map(|process| process.id);
        let Some(process) = id.and_then(|id| processes.get_mut(id)) else { return };
        match refused {
            Refused::Take(_) => self.publisher.without_words(process, &mut self.tables, now),
            _ => self.publisher.refused(process, &mut self.tables, now),
        }
    }

    /// Publishes again what the kernel has not taken, and tells the processes that are walked by it. With every tick.
    pub(super) fn retry(&mut self, processes: &mut Processes, requests: &mut Requests) {
        Publisher::place_again(processes, &self.tables, requests.now);
        let pages = self.tables.retry(requests);
        let mut objects = self.rows.take_completed();
        objects.extend(pages.iter().map(|page| page.object));
        if objects.is_empty() {
            return;
        }
        for process in processes.iter_mut().filter(|process| process.published.uses(&objects)) {
            self.tables.change_rows(process.id.pid, requests);
            self.publisher.return_pages(process, &pages, &self.tables);
        }
    }

    /// Makes room where it becomes scarce. With every tick.
    pub(super) fn make_room(&mut self, processes: &mut Processes, files: &Files, requests: &mut Requests) {
        self.tables.reclaim(requests.now);
        self.rows.make_room(files, &mut self.tables, requests);
        self.publisher.look_again(processes, requests.now);
    }

    /// Takes up rows of a file.
    pub(super) fn take_rows(&mut self, answer: RowsAnswer, files: &Files, requests: &mut Requests) {
        let RowsAnswer { file, took, rows } = answer;
        self.rows.take(file, (took, rows), files, &mut self.tables, requests);
    }

    /// A child begins with its parent's code: until it has rows of its own, it is walked by the parent's.
    pub(super) fn share_code(&mut self, child: &mut Process, parent: &Process) {
        self.publisher.share_code(child, parent);
    }

    /// A process is no longer walked by the code of the one that it was forked from.
    pub(super) fn unshare_code(&mut self, process: &mut Process) {
        self.publisher.unshare_code(process);
    }

    /// A process has become another program.
    pub(super) fn exec(&mut self, process: &mut Process) {
        self.publisher.exec(process);
    }

    /// A process has ended: what it has in the tables goes.
    pub(super) fn end(&mut self, process: &mut Process, requests: &mut Requests) {
        self.publisher.end(process, &mut self.rows, &mut self.tables, requests);
    }

    /// Processes were evicted.
    pub(super) fn remove_gone(&mut self, gone: &FxHashSet<ProcessId>) {
        self.publisher.remove_gone(gone);
    }

    /// What names processes here, and how many.
    #[cfg(test)]
    pub(super) fn rooms(&self) -> Vec<(&'static str, usize)> {
        self.publisher.rooms().into_iter().chain(self.tables.rooms()).collect()
    }

    /// Closes files that nobody uses and evicts their rows. About every second.
    pub(super) fn sweep(&mut self, files: &mut Files, requests: &mut Requests) {
        for file in files.sweep(|file| self.rows.is_busy(file), requests) {
            self.rows.evict_file(file, &mut self.tables, requests);
        }
    }

    /// What rows were built from, of files and of generated code.
    pub(super) fn stats<'a>(&self, processes: impl Iterator<Item = &'a Process>) -> UnwindingStats {
        let mut stats = self.publisher.stats(self.rows.stats());
        for rows in processes.filter_map(|process| process.code.rows()) {
            stats.jit_functions = stats.jit_functions.saturating_add(rows.with_rows() as u64);
            stats.jit_refused = stats.jit_refused.saturating_add(rows.refused());
        }
        stats
    }

    /// Asserts that the counts are those of what they count, and within their bounds.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_sound(&self, processes: &Processes) {
        self.rows.assert_sound();
        let holdings: Vec<_> = processes.iter().map(|process| process.published.holding()).collect();
        self.tables.assert_sound(&holdings);
    }

    /// Use of the tables.
    pub(super) fn table_stats(&self) -> TableStats {
        self.tables.stats()
    }
}
