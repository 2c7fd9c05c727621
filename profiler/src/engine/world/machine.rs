//! A machine that is made up: processes and files with what is in them, and what somebody who reads them is told.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use jitprof_common::row::{CfaKind, Rule};
use jitprof_common::units::{Avma, FileOffset, MonoNs, Pid, Tid};
use jitprof_jitdump::perfmap::TRAIL_BYTES;
use jitprof_jitdump::{FileBytes, NextRead};
use jitprof_unwind::elf::{Build, Segment};
use serde_bytes::ByteBuf;

use crate::engine::border::{
    AnswerBody, FilePage, FileRows, Identified, MapPlace, OlderMap, Opened, ProcessRead, Request, Unread, WhyUnread,
};
use crate::peek::{Look, Seen, Sight, What};
use crate::process::hierarchy::Group;
use crate::process::open::{FileId, FileIdentity};
use crate::process::{Device, Mapping, MappingKind, Prot};
use crate::runtime::{
    Capture, CodeChange, DependsOn, DescribedFrame, DescribedFrames, DescribedFunction, FoundCode, FoundRows, FrameAsk,
    Missed, RuntimeRead, WhyUnnamed,
};
use crate::symbol::{Frame, FrameKind, Module, Name, SymbolKey, Unresolved, digest};

/// The device of every file.
pub const DEVICE: Device = Device { major: 8, minor: 1 };
/// What stat(2) calls it.
const ST_DEV: u64 = 0x801;
/// Readable, executable, private.
pub const EXECUTABLE: Prot = Prot { read: true, write: false, execute: true, shared: false };
/// Bytes of a dump's header.
const HEAD_BYTES: usize = 40;
/// Where a process' FILE of its dump lies, if it has one.
const STDIO_FILE: Avma = Avma(0x5000_0000);

/// A file.
#[derive(Clone, Debug)]
pub struct MadeFile {
    /// What stat(2) says of it.
    pub identity: FileIdentity,
    /// What is in it.
    pub bytes: Vec<u8>,
    /// For an ELF file.
    pub build: Option<Build>,
    /// For an ELF file: the functions by the file offset of their first byte; each goes on until the next.
    pub symbols: BTreeMap<u64, String>,
    /// For an ELF file: its unwind rows, or why there are none.
    pub rows: Result<FileRows, String>,
    /// It has not been changed for a minute.
    pub is_settled: bool,
    /// When it was written last.
    pub modified_at: MonoNs,
    /// For a perf map: whether the process before has made it.
    pub age: Age,
    /// For an ELF file: there is a debug file below the process' root.
    pub own_debug: bool,
}

/// Who made a perf map, and who writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Age {
    /// The process.
    #[default]
    Own,
    /// One before, that had its number.
    LeftBehind,
    /// One before, and the process goes on in it.
    GoneOnWith,
}

/// A process.
#[derive(Clone, Debug)]
pub struct MadeProcess {
    /// What /proc says of it.
    pub read: ProcessRead,
    /// What is in its memory, by address.
    pub memory: BTreeMap<u64, Vec<u8>>,
    /// What its runtime has announced and not written yet; nothing: it has no FILE.
    pub unwritten: Option<Vec<u8>>,
    /// The same of its perf map.
    pub unwritten_lines: Option<Vec<u8>>,
    /// The version that its environment says.
    pub version: Option<String>,
    /// What its runtime knows of its code.
    pub runtime: MadeRuntime,
}

/// The tables of a runtime.
#[derive(Clone, Debug, Default)]
pub struct MadeRuntime {
    /// What it is called; nothing if there are no tables.
    pub name: Option<String>,
    /// Why it cannot be read.
    pub problem: Option<String>,
    /// Its code now.
    pub code: Vec<FoundCode>,
    /// It has a place to list code in, be there any or not.
    pub has_lists: bool,
    /// Readings do not come to their end.
    pub incomplete: bool,
    /// What readings do not get of lists.
    pub unread: Missed,
    /// CPU time of a reading, if it is more than a millisecond.
    pub reading_ns: u64,
    /// What samples are to take along with its frames.
    pub capture: Option<Capture>,
    /// Its functions: by the fourth word of their frames, the outermost first. One with a line behind it is at that line, as in
    /// `JS:*outer a.js:1:1@7`.
    pub functions: BTreeMap<u64, String>,
    /// What may be in the making, by the same word.
    pub unfinished: BTreeSet<u64>,
    /// Functions at addresses of its code: by its number and the distance from its first byte, the outermost first, each
    /// with a line, as in `outer@7 > inlined@3`; `!` where the code is deoptimised.
    pub listed: BTreeMap<(u32, u64), String>,
    /// What its answers depend on.
    pub depends_on: Option<DependsOn>,
    /// Where code may have come and gone between two readings.
    pub may_have_passed: Vec<(Avma, u64)>,
    /// Where it puts code.
    pub heaps: Vec<(Avma, u64)>,
    /// Code there keeps no frame pointer.
    pub loses_frame_pointers: bool,
    /// How many classes it has unloaded, and since when its functions are there.
    pub unloads: Option<(u64, MonoNs)>,
    /// Where code lies that its frames are in.
    pub places: Vec<(Avma, u32)>,
    /// Where code begins that it has generated for functions.
    pub entries: Vec<Avma>,
    /// Since when it is told what it registers with a debugger.
    pub told_since: Option<MonoNs>,
    /// What is registered with libgcc.
    pub registered: Vec<FoundRows>,
    /// Its code as it was read last.
    read: Option<Vec<FoundCode>>,
    /// What was registered then.
    read_rows: Vec<FoundRows>,
}

impl MadeRuntime {
    /// The next reading knows nothing of this one.
    pub fn drop_reading(&mut self) {
        self.read = None;
    }

    /// What is different from the last time; code of these entries counts as new.
    fn read(&mut self, again: &[Avma]) -> RuntimeRead {
        if let Some(problem) = self.problem.clone() {
            self.read = None;
            return RuntimeRead { runtime: self.name.clone(), problem: Some(problem), ..RuntimeRead::default() };
        }
        if self.name.is_none() {
            self.read = None;
            return RuntimeRead { anew: true, incomplete: self.incomplete, ..RuntimeRead::default() };
        }
        let before = self.read.replace(self.code.clone());
        let anew = before.is_none();
        let before = before.unwrap_or_default();
        let is_anew = |found: &FoundCode| found.registered.as_ref().is_some_and(|of| again.contains(&of.entry));
        let gone = before.iter().filter(|found| !self.code.contains(found) || is_anew(found));
        let gone = gone.map(|found| CodeChange::Unloaded(found.start));
        let new = self.code.iter().filter(|found| !before.contains(found) || is_anew(found));
        let before_rows = std::mem::replace(&mut self.read_rows, self.registered.clone());
        let before_rows = if anew { Vec::new() } else { before_rows };
        let gone_rows = before_rows.iter().filter(|rows| !self.registered.contains(rows));
        let gone_rows = gone_rows.map(|rows| CodeChange::Unregistered(rows.start));
        let new_rows = self.registered.iter().filter(|rows| !before_rows.contains(rows));
        let rows = gone_rows.chain(new_rows.cloned().map(CodeChange::Registered));
        let changes = gone.chain(new.cloned().map(CodeChange::Loaded)).chain(rows).collect();
        let runtime = self.name.clone();
        let capture = self.capture.clone();
        let cpu_ns = self.reading_ns.max(1_000_000);
        let rows_alone = self.code.is_empty() && !self.registered.is_empty();
        let (incomplete, lists) = (self.incomplete, self.has_lists || rows_alone || !self.code.is_empty());
        let (may_have_passed, unloads) = (self.may_have_passed.clone(), self.unloads.map(|(count, _)| count));
        RuntimeRead {
            runtime,
            problem: None,
            anew,
            changes,
            incomplete,
            unread: self.unread,
            cpu_ns,
            capture,
            lists,
            rows_alone,
            may_have_passed,
            heaps: self.heaps.clone(),
            loses_frame_pointers: self.loses_frame_pointers,
            unloads,
            entries: self.entries.clone(),
            sites: Vec::new(),
            told_since: self.told_since,
            untold: None,
        }
    }

    /// A frame is of the function that its fourth word says, one of a list of that which its first says; 0 is the runtime's
    /// own.
    fn describe(&self, frames: &[FrameAsk]) -> DescribedFrames {
        let (code, entries) = (self.places.clone(), self.entries.clone());
        let mut described = DescribedFrames { code, entries, cpu_ns: 1_000_000, ..DescribedFrames::default() };
        for frame in frames {
            if let Some(code) = frame.code {
                let there = self.code.iter().any(|found| (found.start, found.number) == (code.start, code.number));
                let at = (code.number, frame.pc.pc() - code.start.0);
                let names = self.listed.get(&at).filter(|_| there);
                let described_as = names.map_or(DescribedFrame::Unnamed(WhyUnnamed::Replaced), |names| {
                    if names == "!" {
                        return DescribedFrame::Unnamed(WhyUnnamed::Deoptimized);
                    }
                    let functions = names.rsplit(" > ").enumerate().filter_map(|(depth, name)| {
                        let (name, line) = name.rsplit_once('@')?;
                        let (name, guessed) = name.strip_prefix('?').map_or((name, false), |name| (name, true));
                        described.names.extend([name.to_owned(), "A.java".to_owned()]);
                        let last = described.names.len() as u32 - 1;
                        let (line, inlined) = (line.parse().ok()?, depth < names.matches(" > ").count());
                        let (name, file) = (last - 1, Some(last));
                        Some(DescribedFunction { name, file, line, column: None, inlined, guessed })
                    });
                    DescribedFrame::Functions(functions.collect())
                });
                described.frames.push(described_as);
                continue;
            }
            let word = match *frame.words {
                [code, _] | [code, _, _] => code,
                ref words => words.get(3).copied().unwrap_or(0),
            };
            let functions = self.functions.get(&word).into_iter().flat_map(|names| names.split(';').rev());
            let functions: Vec<DescribedFunction> = functions
                .enumerate()
                .map(|(depth, name)| {
                    let (name, line, column) = at_place(name).unwrap_or((name, 0, None));
                    described.names.push(name.to_owned());
                    let at = described.names.len() as u32 - 1;
                    let script = script(name).filter(|_| line > 0);
                    let file = script.map(|script| {
                        described.names.push(script.to_owned());
                        at + 1
                    });
                    let inlined = depth == 0 && word % 2 == 1;
                    DescribedFunction { name: at, file, line, column, inlined, guessed: false }
                })
                .collect();
            described.frames.push(match (word, functions.is_empty()) {
                (0, _) => DescribedFrame::Own,
                (_, true) => DescribedFrame::Unnamed(WhyUnnamed::Replaced),
                (_, false) if self.unfinished.contains(&word) => DescribedFrame::Unsure(functions),
                (_, false) => DescribedFrame::Functions(functions),
            });
        }
        described.depends_on = vec![self.depends_on; described.frames.len()];
        if let Some((count, since)) = self.unloads {
            (described.unloads, described.since) = (Some(count), vec![since; described.frames.len()]);
        }
        described
    }
}

/// The name, the line and perhaps the column of `JS:*outer a.js:1:1@7:3`.
fn at_place(name: &str) -> Option<(&str, u32, Option<NonZeroU32>)> {
    let (name, place) = name.rsplit_once('@')?;
    let (line, column) = place.split_once(':').unwrap_or((place, "0"));
    Some((name, line.parse().ok()?, NonZeroU32::new(column.parse().ok()?)))
}

/// The script of `JS:*outer a.js:1:1`.
fn script(name: &str) -> Option<&str> {
    name.rsplit(' ').next()?.split(':').next()
}

/// The machine.
#[derive(Debug, Default)]
pub struct Machine {
    /// Who runs.
    pub processes: BTreeMap<u32, MadeProcess>,
    /// Every file by its inode; a file without a name lives as long as it is open.
    pub inodes: BTreeMap<u64, MadeFile>,
    /// Files by their names.
    pub paths: BTreeMap<String, u64>,
    /// Control groups.
    pub groups: Vec<Group>,
    /// Who is in them.
    pub members: Vec<(Pid, Option<String>)>,
    /// The open files.
    pub open: HashMap<FileId, u64>,
    /// The paths under which they were opened.
    opened_as: HashMap<FileId, Arc<str>>,
    identified: HashSet<FileIdentity>,
    last_inode: u64,
}

/// A mapping of a file, as the sideband or /proc tells it.
pub fn file_mapping(start: u64, len: u64, inode: u64, path: &str) -> Mapping {
    Mapping {
        start: Avma(start),
        end: Avma(start + len),
        file_offset: FileOffset(0),
        device: DEVICE,
        inode,
        generation: None,
        path: Arc::from(path),
        deleted: false,
        prot: EXECUTABLE,
        kind: MappingKind::File,
    }
}

/// Memory that may hold generated code.
pub fn memory_mapping(start: u64, len: u64) -> Mapping {
    let anonymous = file_mapping(start, len, 0, "");
    Mapping { kind: MappingKind::Anonymous, device: Device::default(), ..anonymous }
}

/// Rows for so many bytes of code, all of them for frames of 16 bytes.
pub fn plain_rows(bytes: u64) -> FileRows {
    let row = Rule::with_cfa(CfaKind::Sp, 16).encode(0);
    let pages = 0..u32::try_from(bytes.div_ceil(1 << 16)).unwrap_or(1);
    FileRows {
        segments: vec![Segment { kind: 1, flags: 5, file_offset: 0, svma: 0, file_size: bytes, memory_size: bytes }],
        pages: pages.map(|page| FilePage { page, count: 1, rows: vec![row] }).collect(),
    }
}

impl Machine {
    /// Makes a file, in place of one of the same name. Returns its inode.
    pub fn add_file(&mut self, path: &str, bytes: Vec<u8>) -> u64 {
        self.last_inode += 1;
        let inode = self.last_inode;
        let identity = FileIdentity {
            device: DEVICE,
            st_dev: ST_DEV,
            inode,
            uid: 0,
            len: bytes.len() as u64,
            changed: (i64::try_from(inode).unwrap_or(0), 0),
            modified: (0, 0),
            block_size: 4096,
        };
        let rows = Err("it has none".to_owned());
        let file = MadeFile {
            identity,
            bytes,
            build: None,
            symbols: BTreeMap::new(),
            rows,
            is_settled: false,
            modified_at: MonoNs(0),
            age: Age::Own,
            own_debug: false,
        };
        self.inodes.insert(inode, file);
        self.paths.insert(path.to_owned(), inode);
        inode
    }

    /// Makes an ELF file with functions at these file offsets, and rows for all of them. Returns its inode.
    pub fn add_program(&mut self, path: &str, build_id: &[u8], symbols: &[(u64, &str)]) -> u64 {
        let inode = self.add_file(path, [b"\x7fELF", build_id].concat());
        if let Some(file) = self.inodes.get_mut(&inode) {
            let rows = plain_rows(0x1_0000);
            file.build = Some(Build { id: build_id.to_vec(), code: rows.segments.clone(), functions: 8 });
            file.rows = Ok(rows);
            file.symbols = symbols.iter().map(|(offset, name)| (*offset, (*name).to_owned())).collect();
        }
        inode
    }

    /// The file of a name, if there is one.
    pub fn file_mut(&mut self, path: &str) -> Option<&mut MadeFile> {
        let inode = self.paths.get(path)?;
        self.inodes.get_mut(inode)
    }

    /// Writes behind the end of a file.
    pub fn append(&mut self, path: &str, bytes: &[u8]) {
        if let Some(file) = self.file_mut(path) {
            file.bytes.extend_from_slice(bytes);
        }
    }

    /// Makes a process with one thread.
    pub fn add_process(&mut self, pid: u32, start: MonoNs, exe: &str, mappings: Vec<Mapping>) {
        let read = ProcessRead {
            via: Pid(pid),
            start,
            parent: Pid(1),
            comm: exe.rsplit('/').next().unwrap_or_default().to_owned(),
            is_kernel_thread: false,
            is_dead: false,
            status: None,
            payer: None,
            user: None,
            exe: Some(exe.to_owned()),
            command_line: Some(vec![exe.to_owned()]),
            environment: Vec::new(),
            cgroup: None,
            mappings: Some(mappings),
            threads: vec![Tid(pid)],
        };
        let made = MadeProcess {
            read,
            memory: BTreeMap::new(),
            unwritten: None,
            unwritten_lines: None,
            version: None,
            runtime: MadeRuntime::default(),
        };
        self.processes.insert(pid, made);
    }

    /// What is mapped in a process.
    pub fn mappings_mut(&mut self, pid: u32) -> Option<&mut Vec<Mapping>> {
        self.processes.get_mut(&pid)?.read.mappings.as_mut()
    }

    /// Answers as somebody does who looks now.
    pub fn answer(&mut self, request: &Request) -> AnswerBody {
        match request {
            Request::Process { pid, maps, cgroup, command_line } => {
                AnswerBody::Process(self.process(*pid, *maps, *cgroup, *command_line))
            }
            Request::Running => AnswerBody::Running(self.processes.keys().map(|pid| Pid(*pid)).collect()),
            Request::Identify { via, place, file } => {
                self.opened_as.insert(*file, Arc::clone(&place.path));
                AnswerBody::Identified(self.identify(*via, place, *file))
            }
            Request::Open { via, place, file, .. } => {
                self.opened_as.insert(*file, Arc::clone(&place.path));
                let inode = self.inode_of(*via, place);
                AnswerBody::Opened(inode.and_then(|inode| self.open_inode(inode, *file)))
            }
            Request::OpenPerfMap { via, own_pid, uid, file, unless } => {
                let opened = self.open_perf_map(*via, (*own_pid, *uid), *file, *unless);
                opened.unwrap_or_else(|unread| AnswerBody::Opened(Err(unread)))
            }
            Request::Read { file, next } => AnswerBody::Read(self.read(*file, *next)),
            Request::Contents { file } => {
                let file = self.open.get(file).and_then(|inode| self.inodes.get(inode));
                AnswerBody::Contents(file.map(|file| digest(&file.bytes)))
            }
            Request::Peek(look) => AnswerBody::Peeked(self.peek(look)),
            Request::Memory { via, pieces } => {
                let piece = |(at, len): &(Avma, u32)| self.memory(*via, *at, *len).map(ByteBuf::from);
                AnswerBody::Memory(pieces.iter().map(piece).collect())
            }
            Request::Digests { via, pieces } => {
                let piece = |(at, len): &(Avma, u32)| self.memory(*via, *at, *len).map(|bytes| digest(&bytes));
                AnswerBody::Digests(pieces.iter().map(piece).collect())
            }
            Request::ReadRuntime { via, again, .. } => {
                let process = self.processes.get_mut(&via.0);
                AnswerBody::Runtime(process.map(|process| Box::new(process.runtime.read(again))))
            }
            Request::DescribeFrames { via, frames, .. } => {
                let process = self.processes.get(&via.0);
                AnswerBody::Frames(process.map(|process| Box::new(process.runtime.describe(frames))))
            }
            Request::CodeRows(code) => AnswerBody::CodeRows(code.rows()),
            Request::Version { via, .. } => {
                AnswerBody::Version(self.processes.get(&via.0).map(|process| process.version.clone()))
            }
            Request::Members { search, pids, names, .. } => AnswerBody::Members {
                groups: search.as_ref().map(|_| self.groups.clone()),
                members: match pids {
                    true => self.members.iter().map(|(pid, name)| (*pid, name.clone().filter(|_| *names))).collect(),
                    false => Vec::new(),
                },
            },
        }
    }

    /// The process that has this thread.
    fn of_thread(&self, via: Pid) -> Option<&MadeProcess> {
        let by_thread = || self.processes.values().find(|process| process.read.threads.contains(&Tid(via.0)));
        self.processes.get(&via.0).or_else(by_thread)
    }

    fn process(&self, pid: Pid, maps: bool, cgroup: bool, command_line: bool) -> Result<Box<ProcessRead>, Unread> {
        let mut read = self.processes.get(&pid.0).ok_or_else(gone)?.read.clone();
        if !maps {
            read.mappings = None;
            read.threads.clear();
        }
        read.cgroup = read.cgroup.filter(|_| cgroup);
        read.command_line = read.command_line.filter(|_| command_line);
        Ok(Box::new(read))
    }

    fn inode_of(&self, via: Pid, place: &MapPlace) -> Result<u64, Unread> {
        self.of_thread(via).ok_or_else(gone)?;
        let by_path = || self.paths.get(&*place.path).copied();
        Some(place.inode).filter(|inode| self.inodes.contains_key(inode)).or_else(by_path).ok_or_else(gone)
    }

    fn identify(&mut self, via: Pid, place: &MapPlace, file: FileId) -> Result<Identified, Unread> {
        let inode = self.inode_of(via, place)?;
        let made = self.inodes.get(&inode).ok_or_else(gone)?;
        let (identity, is_settled, modified_at) = (made.identity, made.is_settled, made.modified_at);
        let opened = match self.identified.insert(identity) {
            true => Some(self.open_inode(inode, file)?),
            false => None,
        };
        Ok(Identified { identity, is_settled, modified_at, opened })
    }

    fn open_inode(&mut self, inode: u64, file: FileId) -> Result<Opened, Unread> {
        let made = self.inodes.get(&inode).ok_or_else(gone)?;
        self.open.insert(file, inode);
        let head = made.bytes.get(..HEAD_BYTES).unwrap_or(&made.bytes).to_vec();
        let (identity, build, own_debug) = (made.identity, made.build.clone(), made.own_debug);
        Ok(Opened { identity, build, head, is_inherited: false, own_debug })
    }

    fn open_perf_map(
        &mut self,
        via: Pid,
        (own_pid, uid): (u32, u32),
        file: FileId,
        unless: Option<(u64, u64)>,
    ) -> Result<AnswerBody, Unread> {
        self.of_thread(via).ok_or_else(gone)?;
        let inode = *self.paths.get(&format!("/tmp/perf-{own_pid}.map")).ok_or_else(gone)?;
        let made = self.inodes.get(&inode).ok_or_else(gone)?;
        let (identity, age) = (made.identity, made.age);
        if unless == Some((identity.st_dev, identity.inode)) {
            return Err(Unread { why: WhyUnread::Same, text: String::new() });
        }
        if identity.uid != 0 && identity.uid != uid {
            return Err(Unread { why: WhyUnread::Failed, text: "it is somebody else's".to_owned() });
        }
        if age == Age::LeftBehind {
            let trail = ByteBuf::from(&made.bytes[made.bytes.len().saturating_sub(TRAIL_BYTES)..]);
            let (len, text) = (made.bytes.len() as u64, "it is older".to_owned());
            return Ok(AnswerBody::OlderMap(OlderMap {
                identity: (identity.st_dev, identity.inode),
                len,
                trail,
                text,
            }));
        }
        let opened = self.open_inode(inode, file)?;
        Ok(AnswerBody::Opened(Ok(Opened { is_inherited: age == Age::GoneOnWith, ..opened })))
    }

    fn read(&self, file: FileId, next: NextRead) -> Result<FileBytes, Unread> {
        let made = self.open.get(&file).and_then(|inode| self.inodes.get(inode)).ok_or_else(gone)?;
        let at = usize::try_from(next.offset).unwrap_or(usize::MAX);
        let rest = made.bytes.get(at..).unwrap_or_default();
        Ok(FileBytes {
            file_len: made.bytes.len() as u64,
            head: made.bytes.get(..HEAD_BYTES).unwrap_or(&made.bytes).to_vec(),
            offset: next.offset,
            bytes: rest.get(..next.len).unwrap_or(rest).to_vec(),
        })
    }

    fn peek(&self, look: &Look) -> Sight {
        let Some(process) = self.of_thread(look.via) else { return Sight::Unreadable };
        let unwritten = if look.end.lines { &process.unwritten_lines } else { &process.unwritten };
        let Some(bytes) = unwritten else { return Sight::NoDescriptor };
        let pending = Sight::Pending { seen: Seen::made_up(look.end.file_len, bytes.len()), bytes: bytes.clone() };
        match look.what {
            What::Search => Sight::Found { address: STDIO_FILE, scanned: 4096, then: Box::new(pending) },
            What::Read { seen, .. } if seen == Some(Seen::made_up(look.end.file_len, bytes.len())) => Sight::Unchanged,
            What::Read { .. } => pending,
        }
    }

    fn memory(&self, via: Pid, at: Avma, len: u32) -> Option<Vec<u8>> {
        let process = self.of_thread(via)?;
        let (start, bytes) = process.memory.range(..=at.0).next_back()?;
        let from = usize::try_from(at.0 - start).ok()?;
        bytes.get(from..from.checked_add(len as usize)?).map(<[u8]>::to_vec)
    }

    /// The names at an address, as the symbolizer gives them; a symbol `outer > inlined` is two.
    pub fn name(&self, key: SymbolKey) -> Name {
        let (name, kind, address) = match key {
            SymbolKey::Kernel(address) => (format!("kernel_{:x}", address.0), FrameKind::Kernel, address.0),
            SymbolKey::File(file, offset) => {
                let Some(made) = self.open.get(&file).and_then(|inode| self.inodes.get(inode)) else {
                    return Name::None(Unresolved::FileClosed);
                };
                let Some((_, name)) = made.symbols.range(..=offset.0).next_back() else {
                    return Name::None(Unresolved::NoSymbols);
                };
                (name.clone(), FrameKind::Native, offset.0)
            }
        };
        let path = match key {
            SymbolKey::File(file, _) => self.opened_as.get(&file),
            SymbolKey::Kernel(_) => None,
        };
        let module = path.map(|path| Arc::new(Module { path: Arc::clone(path), build_id: None }));
        let depth = name.matches(" > ").count();
        let frame = |(level, name): (usize, &str)| Frame {
            name: Arc::from(name),
            kind,
            tier: None,
            inlined: level < depth,
            module: module.clone(),
            source: None,
            address,
        };
        Name::Frames(name.rsplit(" > ").enumerate().map(frame).collect())
    }

    /// The rows of an open file.
    pub fn rows(&self, file: FileId) -> Result<FileRows, String> {
        let made = self.open.get(&file).and_then(|inode| self.inodes.get(inode));
        made.map_or_else(|| Err("it is closed".to_owned()), |made| made.rows.clone())
    }
}

fn gone() -> Unread {
    Unread { why: WhyUnread::Gone, text: "it is gone".to_owned() }
}
