//! Keeps the kernel part's unwind tables true: rows of every mapped file, rows of generated code, and where each
//! process has them.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use profiler_common::table::{MAX_REGIONS, PageKey, Region};

use crate::account::UnwindingStats;
use crate::kernel::Tables;
use crate::process::open::{TargetFile, open_mapping};
use crate::process::{Device, Mapping, MappingKind, Process, ProcessId, Processes, own_vdso};
use crate::record::sources::Sources;
use crate::units::{Avma, FileOffset, MonoNs, Pid};
use crate::unwind::{ElfRows, RowsError, Segment, rows_of_elf, rows_of_elf_bytes};

/// Distinct files whose rows are built at most.
const MAX_FILES: usize = 4096;
/// Mappings remembered at most; beyond it all are looked up anew.
const MAX_KNOWN: usize = 1 << 16;

/// Which file a mapping is of, as fstat says. An inode may be used again, or written anew: its last change tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileKey {
    st_dev: u64,
    inode: u64,
    len: u64,
    changed: (i64, i64),
}

/// A mapping, and what it was when its file was looked up.
type KnownMapping = (ProcessId, Avma, Device, u64, FileOffset);

fn known_mapping(process: ProcessId, mapping: &Mapping) -> KnownMapping {
    (process, mapping.start, mapping.device, mapping.inode, mapping.file_offset)
}

/// A file's rows.
#[derive(Debug)]
enum Object {
    Loading,
    Ready(Vec<Segment>),
    Without,
}

/// What the builder thread is asked.
enum Order {
    File(u32, File),
    Vdso(u32),
}

/// The builder thread's answer.
struct Built {
    object: u32,
    rows: Result<ElfRows, RowsError>,
    took: Duration,
}

/// Feeds the tables.
pub(super) struct Unwinding {
    orders: Sender<Order>,
    built: Receiver<Built>,
    outstanding: usize,
    /// By number; 0 is none. Numbers of generated code are not in it.
    objects: HashMap<u32, Object>,
    files: HashMap<FileKey, u32>,
    vdso: Option<u32>,
    known: HashMap<KnownMapping, u32>,
    /// The object number of each process' generated code.
    jit_objects: HashMap<ProcessId, u32>,
    /// Pages published for each of them, to be withdrawn when it ends.
    jit_pages: HashMap<ProcessId, HashSet<u32>>,
    next_object: u32,
    /// Processes whose regions have to be published again.
    changed: HashSet<ProcessId>,
    /// Processes whose samples bring along what a walk by late rows needs.
    late: HashSet<ProcessId>,
    /// What each process' regions are: a list that has not changed is not written again.
    published: HashMap<ProcessId, Vec<Region>>,
    stats: UnwindingStats,
}

impl Unwinding {
    /// Starts the builder thread.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn spawn() -> io::Result<Self> {
        let (orders, to_build) = channel();
        let (answers, built) = channel();
        std::thread::Builder::new().name("rows".into()).spawn(move || build(&to_build, &answers))?;
        Ok(Self {
            orders,
            built,
            outstanding: 0,
            objects: HashMap::new(),
            files: HashMap::new(),
            vdso: None,
            known: HashMap::new(),
            jit_objects: HashMap::new(),
            jit_pages: HashMap::new(),
            next_object: 1,
            changed: HashSet::new(),
            late: HashSet::new(),
            published: HashMap::new(),
            stats: UnwindingStats::default(),
        })
    }

    /// A process' mappings have changed.
    pub(super) fn change(&mut self, process: ProcessId) {
        self.changed.insert(process);
    }

    /// Whether a process' samples bring along pieces of their stacks where they meet unknown generated code.
    pub(super) fn set_late(&mut self, process: ProcessId, late: bool) {
        let changes = if late { self.late.insert(process) } else { self.late.remove(&process) };
        if changes {
            self.changed.insert(process);
        }
    }

    /// Whether a process' mappings are in the tables.
    pub(super) fn has_published(&self, process: ProcessId) -> bool {
        self.published.contains_key(&process)
    }

    /// A process has ended: its tables go.
    pub(super) fn end(&mut self, process: ProcessId, tables: &mut Tables, now: MonoNs) {
        self.changed.remove(&process);
        self.late.remove(&process);
        if self.published.remove(&process).is_some() {
            tables.set_regions(process.pid, &[], now);
        }
        if let (Some(object), Some(pages)) = (self.jit_objects.remove(&process), self.jit_pages.remove(&process)) {
            for page in pages {
                tables.set_page(PageKey { object, page }, &[], now);
            }
        }
    }

    /// Waits until the rows of everything asked for so far are built, `limit` at most.
    pub(super) fn wait(&mut self, limit: Duration, tables: &mut Tables, now: MonoNs) {
        let deadline = Instant::now() + limit;
        while self.outstanding > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.built.recv_timeout(left) {
                Ok(built) => self.take_up(built, tables, now),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Takes up what the builder has finished.
    pub(super) fn collect(&mut self, tables: &mut Tables, now: MonoNs) {
        while let Ok(built) = self.built.try_recv() {
            self.take_up(built, tables, now);
        }
    }

    fn take_up(&mut self, built: Built, tables: &mut Tables, now: MonoNs) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.stats.build_us += u64::try_from(built.took.as_micros()).unwrap_or(u64::MAX);
        let state = match built.rows {
            Ok(rows) if !rows.table.is_empty() => {
                for page in rows.table.pages() {
                    if let Ok(number) = u32::try_from(page.page) {
                        tables.set_page(PageKey { object: built.object, page: number }, page.rows, now);
                    }
                }
                self.stats.files += 1;
                Object::Ready(rows.segments)
            }
            Ok(_) => Object::Without,
            Err(error) => {
                tracing::debug!("no unwind rows: {error}");
                Object::Without
            }
        };
        self.stats.files_without_rows += u64::from(matches!(state, Object::Without));
        self.objects.insert(built.object, state);
        // Which of them map it is not worth a table: a region list is built in microseconds.
        self.changed.extend(self.published.keys().copied());
    }

    /// Publishes the mappings of every process that has changed. A list that finds no room is tried again.
    pub(super) fn publish(&mut self, tables: &mut Tables, now: MonoNs, processes: &Processes) {
        for id in std::mem::take(&mut self.changed) {
            let Some(process) = processes.get(id).filter(|process| process.exit_time.is_none()) else { continue };
            let regions = self.regions(process);
            if self.published.get(&id) == Some(&regions) {
                continue;
            }
            if tables.set_regions(id.pid, &regions, now) {
                self.published.insert(id, regions);
            } else {
                self.published.insert(id, Vec::new());
                if regions.len() <= MAX_REGIONS as usize {
                    self.changed.insert(id);
                }
            }
        }
    }

    /// A process' executable mappings by ascending address; neighbours with the same rows are joined.
    fn regions(&mut self, process: &Process) -> Vec<Region> {
        let mut regions: Vec<Region> = Vec::new();
        for mapping in process.space.live() {
            // Mappings without rows are listed, too: that code can be there is known by them.
            let (object, bias) = self.object_of(process, mapping).filter(|(object, _)| *object != 0).unwrap_or((0, 0));
            let (start, end) = (mapping.start.0, mapping.end.0);
            let late = if mapping.may_hold_generated_code() {
                self.late.contains(&process.id)
            } else {
                self.is_loading(process.id, mapping)
            };
            let flags = if late { Region::LATE } else { 0 };
            let same = |last: &&mut Region| (last.object, last.bias, last.flags) == (object, bias, flags);
            match regions.last_mut().filter(|last| last.end == start).filter(same) {
                Some(last) => last.end = end,
                None => regions.push(Region { start, end, bias, object, flags }),
            }
        }
        regions
    }

    fn object_of(&mut self, process: &Process, mapping: &Mapping) -> Option<(u32, u64)> {
        match mapping.kind {
            MappingKind::File | MappingKind::Vdso => self.file_object(process, mapping),
            MappingKind::Vsyscall | MappingKind::Special => None,
            MappingKind::Anonymous | MappingKind::NamedMemory | MappingKind::Heap | MappingKind::Stack => {
                Some((self.jit_object(process.id), 0))
            }
        }
    }

    /// The object of a file's mapping that was looked up before, if its rows are ready, and its bias.
    pub(super) fn known_object(&self, process: ProcessId, mapping: &Mapping) -> Option<(u32, u64)> {
        let object = *self.known.get(&known_mapping(process, mapping))?;
        self.bias(object, mapping).map(|bias| (object, bias))
    }

    /// Whether the rows of a mapping's file are being built.
    pub(super) fn is_loading(&self, process: ProcessId, mapping: &Mapping) -> bool {
        let object = self.known.get(&known_mapping(process, mapping));
        object.and_then(|object| self.objects.get(object)).is_some_and(|object| matches!(object, Object::Loading))
    }

    /// The object of a mapping if its rows are ready, and its bias.
    fn file_object(&mut self, process: &Process, mapping: &Mapping) -> Option<(u32, u64)> {
        let key = known_mapping(process.id, mapping);
        let object = match self.known.get(&key) {
            Some(object) => *object,
            None => {
                let object = self.order(process.id.pid, mapping);
                if self.known.len() >= MAX_KNOWN {
                    self.known.clear();
                }
                self.known.insert(key, object);
                object
            }
        };
        self.bias(object, mapping).map(|bias| (object, bias))
    }

    /// Address in the process minus address in the object.
    fn bias(&self, object: u32, mapping: &Mapping) -> Option<u64> {
        let offset = if mapping.kind == MappingKind::Vdso { 0 } else { mapping.file_offset.0 };
        let Some(Object::Ready(segments)) = self.objects.get(&object) else { return None };
        // A mapping begins at its segment's page, the segment itself may begin a little later. Two segments may share
        // a page of the file: the one that begins there is meant.
        let segment = segments.iter().rfind(|segment| {
            let page_start = segment.file_offset & !0xfff;
            (page_start..segment.file_offset.saturating_add(segment.file_size)).contains(&offset)
        })?;
        let svma = segment.svma.wrapping_sub(segment.file_offset).wrapping_add(offset);
        Some(mapping.start.0.wrapping_sub(svma))
    }

    /// Has the rows of a mapping's file built, if they are not already. Returns its number, 0 for none.
    fn order(&mut self, pid: Pid, mapping: &Mapping) -> u32 {
        if mapping.kind == MappingKind::Vdso {
            if let Some(object) = self.vdso {
                return object;
            }
            let object = self.new_number();
            self.objects.insert(object, Object::Loading);
            self.vdso = Some(object);
            return self.send(Order::Vdso(object), object);
        }
        let Ok(TargetFile { file, identity, .. }) = open_mapping(pid, mapping) else { return 0 };
        let Ok(metadata) = file.metadata() else { return 0 };
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        let key = FileKey { st_dev: identity.st_dev, inode: identity.inode, len: identity.len, changed };
        if let Some(object) = self.files.get(&key) {
            return *object;
        }
        if self.files.len() >= MAX_FILES {
            self.stats.files_refused += 1;
            return 0;
        }
        let object = self.new_number();
        self.objects.insert(object, Object::Loading);
        self.files.insert(key, object);
        self.send(Order::File(object, file), object)
    }

    fn send(&mut self, order: Order, object: u32) -> u32 {
        match self.orders.send(order) {
            Ok(()) => {
                self.outstanding += 1;
                object
            }
            // The builder has panicked: everything else goes on by frame pointers.
            Err(_) => 0,
        }
    }

    fn new_number(&mut self) -> u32 {
        let number = self.next_object;
        // After 4 billion processes numbers begin anew, and 0 stays none.
        self.next_object = number.checked_add(1).unwrap_or(1);
        number
    }

    fn jit_object(&mut self, process: ProcessId) -> u32 {
        if let Some(object) = self.jit_objects.get(&process) {
            return *object;
        }
        let object = self.new_number();
        self.jit_objects.insert(process, object);
        object
    }

    /// Publishes the pages of generated code that have changed.
    pub(super) fn publish_code(&mut self, sources: &mut Sources, tables: &mut Tables, now: MonoNs) {
        let id = sources.id;
        let Some(code) = sources.code.rows_mut().filter(|code| code.is_dirty()) else { return };
        let object = self.jit_object(id);
        let pages = self.jit_pages.entry(id).or_default();
        let published = &mut self.stats.jit_pages;
        code.flush(|page, rows| {
            let Ok(page) = u32::try_from(page) else { return };
            *published += 1;
            tables.set_page(PageKey { object, page }, rows, now);
            if rows.is_empty() {
                pages.remove(&page);
            } else {
                pages.insert(page);
            }
        });
    }

    /// What the tables were built from.
    pub(super) fn stats(&self) -> UnwindingStats {
        self.stats
    }
}

/// The builder thread: gimli takes half a second for a large executable. The smallest file comes first, so that libc
/// does not wait for a browser.
fn build(orders: &Receiver<Order>, answers: &Sender<Built>) {
    let mut waiting: Vec<(u64, Order)> = Vec::new();
    loop {
        if waiting.is_empty() {
            let Ok(order) = orders.recv() else { return };
            waiting.push((order.bytes(), order));
        }
        waiting.extend(orders.try_iter().map(|order| (order.bytes(), order)));
        let smallest = waiting.iter().enumerate().min_by_key(|(_, (bytes, _))| *bytes).map(|(index, _)| index);
        let Some((_, order)) = smallest.map(|index| waiting.swap_remove(index)) else { continue };
        let started = Instant::now();
        let (object, rows) = match order {
            Order::File(object, file) => (object, rows_of_elf(&file)),
            Order::Vdso(object) => {
                (object, own_vdso().map_err(RowsError::Read).and_then(|image| rows_of_elf_bytes(&image)))
            }
        };
        if answers.send(Built { object, rows, took: started.elapsed() }).is_err() {
            return;
        }
    }
}

impl Order {
    /// How large the file is, in bytes.
    fn bytes(&self) -> u64 {
        match self {
            Self::File(_, file) => file.metadata().map_or(u64::MAX, |metadata| metadata.len()),
            Self::Vdso(_) => 0,
        }
    }
}
