//! Reads what the engine asks for: /proc, files behind mappings, perf maps, memory, control groups. Every call may wait
//! for its target.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jitprof_common::units::{Avma, MonoNs, Pid};
use jitprof_jitdump::perfmap::TRAIL_BYTES;
use jitprof_jitdump::{FileBytes, HEADER_SIZE, NextRead};
use jitprof_unwind::elf::{Build, Source};
use serde_bytes::ByteBuf;

use crate::advice::{VersionFile, flags_in_environment, version_in_environment};
use crate::engine::border::{AnswerBody, Identified, OlderMap, Opened, ProcessRead, Request, Unread, WhyUnread};
use crate::kernel::Prober;
use crate::peek::{look, read_memory};
use crate::process::apart::{HeldFile, Waits, apart, apart_without_files};
use crate::process::hierarchy::{Group, GroupQuery, Hierarchies};
use crate::process::labels::{Cgroup, Users};
use crate::process::monotonic_now;
use crate::process::open::{
    FileId, FileIdentity, MapPlace, OpenError, TargetFile, TargetRoot, Way, identify_mapping, open_in_root,
    open_mapped, open_otherwise, open_perf_map, perf_map_path, way_and_end, way_to,
};
use crate::process::procfs::{self, ProcError};
use crate::process::{Device, Errno, Ids, ProcessId, status_and_user, user_of};
use crate::record::debug_root::debug_root;
use crate::record::machine::running_pids;
use crate::record::probes::Probes;
use crate::runtime::RuntimeReaders;
use crate::symbol::{Digest, OpenFile, OpenFiles, contents_digest, digest, may_be_below};

/// A file that has not been changed for so long is not likely to be changed within the next moments.
const SETTLED_S: i64 = 60;
/// What the wall clock may have been set forward by since a file was changed.
const CLOCK_SLACK: Duration = Duration::from_millis(200);
/// Files remembered as opened before.
const MAX_OPENED: usize = 16 << 10;
/// Bytes of a file that are read for a version; Node's header has 3 KiB.
const MAX_VERSION_BYTES: u64 = 64 << 10;

/// Reads; shared by all threads that do.
pub(super) struct Reader {
    files: Arc<OpenFiles>,
    /// Files that have been opened before: of those it is enough to know that they are the same.
    opened: Mutex<HashSet<FileIdentity>>,
    users: Mutex<Option<Users>>,
    hierarchies: Mutex<Option<Hierarchies>>,
    waits: Waits,
    runtimes: RuntimeReaders,
    probes: Probes,
}

impl Reader {
    /// What is opened goes into this table.
    pub(super) fn new(files: Arc<OpenFiles>) -> Self {
        let (opened, users, hierarchies, waits) = Default::default();
        let (runtimes, probes) = Default::default();
        Self { files, opened, users, hierarchies, waits, runtimes, probes }
    }

    /// Sets breakpoints where processes register code, or none.
    pub(super) fn probing(self, prober: Option<Arc<Prober>>) -> Self {
        Self { probes: Probes::new(prober), ..self }
    }

    /// Reads. What may never come back is done apart.
    pub(super) fn read(&self, request: Request) -> AnswerBody {
        let may_hold = match &request {
            Request::Identify { via, place, .. } | Request::Open { via, place, .. } => {
                self.waits.may_hold(*via, place.device)
            }
            Request::OpenPerfMap { via, own_pid, unless, .. } => match self.way_to_map(*via, *own_pid) {
                // Most processes have none.
                (Way::Nowhere, _) => return AnswerBody::Opened(Err(no_perf_map(*own_pid))),
                // That of others is open: to open it again takes fifty system calls, every second.
                (_, end) if end.is_some() && end == unless.map(as_end) => {
                    return AnswerBody::Opened(Err(same_perf_map()));
                }
                (way, _) => way == Way::Uncertain,
            },
            Request::Version { via, files, .. } => {
                files.iter().any(|file| self.way_to(*via, Path::new(&file.path)) == Way::Uncertain)
            }
            Request::Read { file, .. } | Request::Contents { file } => {
                let open = self.files.get(*file);
                return match open {
                    Some(open) => open.file.reading(|| self.read_here(request, false)),
                    None => self.read_here(request, false),
                };
            }
            // A page of the process' memory may never come.
            Request::Memory { .. } | Request::Digests { .. } | Request::DescribeFrames { .. } => {
                return apart_without_files(|| self.read_here(request, false));
            }
            Request::ReadRuntime { via, process, .. } => {
                let who = (*process, *via);
                self.probes.expect(who.0);
                let read = apart_without_files(|| self.read_here(request, false));
                return self.probe(who, read);
            }
            Request::Peek(_) => true,
            _ => false,
        };
        if may_hold { apart(|| self.read_here(request, true)) } else { self.read_here(request, false) }
    }

    /// The same, where a process' ids have been read a moment ago.
    pub(super) fn read_knowing(&self, request: Request, known: Option<Box<Ids>>) -> AnswerBody {
        match (request, known) {
            (Request::Process { pid, maps, cgroup, command_line }, Some(known)) => {
                AnswerBody::Process(self.process(pid, (maps, cgroup, command_line), Some(*known)).map(Box::new))
            }
            (request, _) => self.read(request),
        }
    }

    fn way_to(&self, via: Pid, path: &Path) -> Way {
        way_to(via, path, |device| self.waits.may_hold(via, device))
    }

    fn way_to_map(&self, via: Pid, own_pid: u32) -> (Way, Option<(Device, u64)>) {
        way_and_end(via, &perf_map_path(own_pid), |device| self.waits.may_hold(via, device))
    }

    /// `may_hold` says whether what is opened may never be read to its end.
    fn read_here(&self, request: Request, may_hold: bool) -> AnswerBody {
        match request {
            Request::Process { pid, maps, cgroup, command_line } => {
                AnswerBody::Process(self.process(pid, (maps, cgroup, command_line), None).map(Box::new))
            }
            Request::Running => AnswerBody::Running(running_pids()),
            Request::Identify { via, place, file } => {
                AnswerBody::Identified(self.identify(via, &place, file, may_hold))
            }
            Request::Open { via, place, file, debug } => {
                AnswerBody::Opened(self.open(via, &place, file, (may_hold, debug)))
            }
            Request::OpenPerfMap { via, own_pid, uid, file, unless } => self
                .open_map((via, own_pid, uid), file, unless)
                .unwrap_or_else(|unread| AnswerBody::Opened(Err(unread))),
            Request::Read { file, next } => AnswerBody::Read(self.read_on(file, next)),
            Request::Contents { file } => {
                let open = self.files.get(file);
                let digest = open.as_ref().and_then(|open| contents_digest(&open.file));
                AnswerBody::Contents(digest.filter(|_| open.is_some_and(|open| open.is_unchanged())))
            }
            Request::Peek(what) => match self.files.get(what.file) {
                Some(open) => AnswerBody::Peeked(look(&what, &open.file)),
                None => AnswerBody::Peeked(crate::peek::Sight::Unreadable),
            },
            Request::Memory { via, pieces } => {
                AnswerBody::Memory(pieces.iter().map(|(at, len)| memory(via, *at, *len).map(ByteBuf::from)).collect())
            }
            Request::Digests { via, pieces } => {
                let digest_of = |(at, len): &(Avma, u32)| -> Option<Digest> { Some(digest(&memory(via, *at, *len)?)) };
                AnswerBody::Digests(pieces.iter().map(digest_of).collect())
            }
            Request::ReadRuntime { via, process, since, again } => {
                let read = self.runtimes.read(via, (process, since), &again, &self.waits);
                AnswerBody::Runtime(read.map(Box::new))
            }
            Request::DescribeFrames { via, process, since, frames } => {
                let described = self.runtimes.describe(via, (process, since), &frames, &self.waits);
                AnswerBody::Frames(described.map(Box::new))
            }
            Request::CodeRows(code) => AnswerBody::CodeRows(code.rows()),
            Request::Version { via, files, variable } => AnswerBody::Version(version(via, &files, variable)),
            Request::Members { search, groups, pids, names } => self.members(search, groups, pids, names),
        }
    }

    /// Closes a file that was opened for nobody.
    pub(super) fn close(&self, file: FileId) {
        self.files.close(file);
    }

    /// What was read of a process' runtime is not needed any more.
    pub(super) fn drop_runtime(&self, process: ProcessId) {
        self.runtimes.evict(process);
        self.probes.evict(process);
    }

    /// Takes away the breakpoints that were set in processes.
    pub(super) fn remove_breakpoints(&self) {
        self.probes.clear();
    }

    /// Sets breakpoints where a reading has found that a process registers code, and says since when they tell.
    fn probe(&self, who: (ProcessId, Pid), read: AnswerBody) -> AnswerBody {
        match read {
            AnswerBody::Runtime(Some(mut read)) => {
                let sites = std::mem::take(&mut read.sites);
                (read.told_since, read.untold) = self.probes.watch(who, &sites, &self.waits);
                AnswerBody::Runtime(Some(read))
            }
            other => {
                self.probes.give_up(who.0);
                other
            }
        }
    }

    fn process(
        &self,
        pid: Pid,
        (maps, cgroup, command_line): (bool, bool, bool),
        known: Option<Ids>,
    ) -> Result<ProcessRead, Unread> {
        let stat = procfs::stat(pid).map_err(|error| unread_process(&error))?;
        let mut threads = if maps || stat.is_dead() { procfs::threads(pid).unwrap_or_default() } else { Vec::new() };
        // The first thread may have ended before the others: its memory is to be seen through another one.
        let other = threads.iter().filter(|tid| tid.0 != pid.0).map(|tid| Pid(tid.0)).min();
        let via = if stat.is_dead() { other.unwrap_or(pid) } else { pid };
        if !maps {
            threads.clear();
        }
        let mappings = match maps {
            true => {
                let read = procfs::maps(via).map_err(|error| unread_process(&error))?;
                Some(read.mappings.into_iter().filter(|mapping| mapping.prot.execute).collect())
            }
            false => None,
        };
        // Asked after its start was read: if it is the same process now, it was then.
        let known = known.filter(|known| via == pid && known.are_of(pid)).map(|known| (known.status, known.user));
        let (status, payer) = known.or_else(|| status_and_user(via)).unzip();
        let user = status.as_ref().filter(|_| cgroup).map(|status| self.user(status.real_uid));
        Ok(ProcessRead {
            via,
            start: stat.start(),
            parent: stat.parent,
            is_kernel_thread: stat.is_kernel_thread(),
            is_dead: stat.is_dead() && other.is_none(),
            status,
            payer,
            user,
            exe: procfs::exe(via).ok().flatten().map(|exe| exe.to_string_lossy().into_owned()),
            command_line: command_line.then(|| procfs::cmdline(via).unwrap_or_default()),
            environment: match command_line {
                true => procfs::environment(via).map(|text| flags_in_environment(&text)).unwrap_or_default(),
                false => Vec::new(),
            },
            cgroup: if cgroup { procfs::cgroup(via).ok().map(|text| Cgroup::parse(&text)) } else { None },
            comm: stat.comm,
            mappings,
            threads,
        })
    }

    fn user(&self, uid: u32) -> String {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.get_or_insert_with(Users::read).name(uid).to_string()
    }

    fn identify(&self, via: Pid, place: &MapPlace, file: FileId, may_hold: bool) -> Result<Identified, Unread> {
        let known = identify_mapping(via, place).ok();
        if let Some(identity) = known
            && self.was_opened(&identity)
        {
            return Ok(identified(identity, None));
        }
        self.with_file(via, place, may_hold, |found, may_hold| {
            // A mapping that is gone by now is looked for by its path: that may be a file of which all is known.
            if self.was_opened(&found.identity) {
                drop(self.held((found.file, &found.identity), may_hold, (via, place.device)));
                return identified(found.identity, None);
            }
            let opened = self.hold(via, place, file, (may_hold, true), found);
            identified(opened.identity, Some(opened))
        })
    }

    fn was_opened(&self, identity: &FileIdentity) -> bool {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).contains(identity)
    }

    fn open(
        &self,
        via: Pid,
        place: &MapPlace,
        file: FileId,
        (may_hold, debug): (bool, bool),
    ) -> Result<Opened, Unread> {
        self.with_file(via, place, may_hold, |found, may_hold| self.hold(via, place, file, (may_hold, debug), found))
    }

    /// Opens a mapping's file, and does something with it. Where its path is the only way, and may lead through what never
    /// answers, whatever device the file is on, all of that is done apart, unless it is (`may_hold`).
    fn with_file<T>(
        &self,
        via: Pid,
        place: &MapPlace,
        may_hold: bool,
        then: impl FnOnce(TargetFile, bool) -> T,
    ) -> Result<T, Unread> {
        let error = match open_mapped(via, place) {
            Ok(found) => return Ok(then(found, may_hold)),
            Err(error) => error,
        };
        let otherwise = |may_hold| {
            let opened = open_otherwise(via, place, error).map_err(|error| unread_file(&error));
            opened.map(|found| then(found, may_hold))
        };
        if !may_hold && self.way_to(via, Path::new(&*place.path)) == Way::Uncertain {
            return apart(|| otherwise(true));
        }
        otherwise(may_hold)
    }

    /// Holds a file open as this one from now on, until the engine has it closed. `debug` says whether a debug file below
    /// the process' root may name it.
    fn hold(
        &self,
        via: Pid,
        place: &MapPlace,
        file: FileId,
        (may_hold, debug): (bool, bool),
        found: TargetFile,
    ) -> Opened {
        let TargetFile { file: open, identity, .. } = found;
        let build = Build::read(&Source::File(&open)).ok();
        let build_id = build.as_ref().map(|build| &*build.id);
        let root = if debug { debug_root(via, identity.st_dev) } else { None };
        // Where there is none now, none is looked for later: then others have its names, too.
        // Below it there may be any file system.
        let is_there = |root: &Arc<TargetRoot>| may_be_below(root, &open, Path::new(&*place.path), build_id);
        let root = root.filter(|root| if may_hold { is_there(root) } else { apart(|| is_there(root)) });
        let (head, own_debug) = (head_of(&open), root.is_some());
        let open = self.held((open, &identity), may_hold, (via, place.device));
        self.files.insert(file, OpenFile::with_build_id(open, &place.path, root, build_id));
        let opened = Opened { identity, head, build, is_inherited: false, own_debug };
        let mut known = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_OPENED {
            known.clear();
        }
        known.insert(identity);
        opened
    }

    fn held(&self, (open, identity): (File, &FileIdentity), may_hold: bool, (via, device): (Pid, Device)) -> HeldFile {
        let held = HeldFile::new(open, may_hold).closed_apart_if(self.waits.closing_may_hold(via, device));
        held.opened_for(identity.uid, || user_of(via))
    }

    fn open_map(
        &self,
        (via, own_pid, uid): (Pid, u32, u32),
        file: FileId,
        unless: Option<(u64, u64)>,
    ) -> Result<AnswerBody, Unread> {
        // A process that has changed its user since it was read writes as the user that it is now.
        let now = procfs::status(via).ok().map(|status| [status.effective_uid, status.fs_uid]);
        let users: Vec<u32> = [uid].into_iter().chain(now.into_iter().flatten()).collect();
        // Before the file: of a process that ends meanwhile it would not be known whose the file is.
        let started = started(&procfs::stat(via).map_err(|error| unread_process(&error))?);
        let opened = open_perf_map(via, own_pid, &users).map_err(|error| unread_file(&error))?;
        let TargetFile { file: open, identity, .. } = opened;
        let open = self.held((open, &identity), self.waits.may_hold(via, identity.device), (via, identity.device));
        if unless == Some((identity.st_dev, identity.inode)) {
            return Err(same_perf_map());
        }
        if is_from_before(since_1970(identity.changed), started) {
            let text = format!("/tmp/perf-{own_pid}.map is older than the process {via}");
            let trail = ByteBuf::from(trail_of(&open, identity.len));
            let older = OlderMap { identity: (identity.st_dev, identity.inode), len: identity.len, trail, text };
            return Ok(AnswerBody::OlderMap(older));
        }
        let made = open.metadata().and_then(|metadata| metadata.created()).ok();
        let made = made.and_then(|made| made.duration_since(UNIX_EPOCH).ok());
        let is_inherited = made.is_some_and(|made| is_from_before(made, started));
        let opened = Opened { identity, build: None, head: head_of(&open), is_inherited, own_debug: false };
        self.files.insert(file, OpenFile::with_build_id(open, "", None, None));
        Ok(AnswerBody::Opened(Ok(opened)))
    }

    fn read_on(&self, file: FileId, next: NextRead) -> Result<FileBytes, Unread> {
        let open = self
            .files
            .get(file)
            .ok_or_else(|| Unread { why: WhyUnread::Gone, text: "it has been closed".to_owned() })?;
        FileBytes::read(&open.file, next).map_err(|error| Unread { why: WhyUnread::Failed, text: error.to_string() })
    }

    fn members(&self, search: Option<GroupQuery>, groups: Vec<Group>, pids: bool, names: bool) -> AnswerBody {
        let found = search.map(|query| {
            let mut hierarchies = self.hierarchies.lock().unwrap_or_else(PoisonError::into_inner);
            hierarchies.get_or_insert_with(Hierarchies::find).groups(&query)
        });
        let mut members = Vec::new();
        if pids {
            found.as_ref().unwrap_or(&groups).iter().for_each(|group| group.add_pids(&mut members));
        }
        let name = |pid| if names { procfs::comm(pid).ok() } else { None };
        AnswerBody::Members { members: members.into_iter().map(|pid| (pid, name(pid))).collect(), groups: found }
    }
}

fn identified(identity: FileIdentity, opened: Option<Opened>) -> Identified {
    let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, nanos) = identity.modified;
    let modified = u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000_000);
    let modified = modified.saturating_add(u64::try_from(nanos).unwrap_or(0));
    // A time in the future says nothing but that a clock was set.
    let ago = u64::try_from(real.as_nanos()).unwrap_or(u64::MAX).checked_sub(modified).unwrap_or(u64::MAX);
    let modified_at = MonoNs(monotonic_now().0.saturating_sub(ago));
    Identified { identity, is_settled: is_settled(&identity), modified_at, opened }
}

/// So many bytes of a process' memory, all or none.
fn memory(via: Pid, at: Avma, len: u32) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    let read = read_memory(via, at, &mut bytes).ok()?;
    (read == bytes.len()).then_some(bytes)
}

fn version(via: Pid, files: &[VersionFile], variable: Option<&'static str>) -> Option<Option<String>> {
    let in_files = files.iter().find_map(|file| {
        let opened = open_in_root(via, Path::new(&file.path)).ok()?;
        let mut text = Vec::new();
        opened.file.take(MAX_VERSION_BYTES).read_to_end(&mut text).ok()?;
        file.version(&text)
    });
    let found = in_files.or_else(|| version_in_environment(&procfs::environment(via).ok()?, variable?));
    // What is not found of a process that has gone says nothing of its program.
    let is_certain = found.is_some() || procfs::stat(via).is_ok_and(|stat| !stat.is_dead());
    is_certain.then_some(found)
}

/// Whether a file has not been changed for long.
fn is_settled(identity: &FileIdentity) -> bool {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed());
    wall.saturating_sub(identity.changed.0) >= SETTLED_S
}

/// When a process started, in seconds since 1970, by the clock as it is set now.
fn started(stat: &procfs::Stat) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(stat.age())
}

/// Whether a file was made, or last changed, before the process started: then by somebody else who had its pid.
fn is_from_before(at: Duration, started: Duration) -> bool {
    at.saturating_add(CLOCK_SLACK) < started
}

/// A time of a file since 1970; what is before counts as then.
fn since_1970((seconds, nanoseconds): (i64, i64)) -> Duration {
    let part = |part: i64| u64::try_from(part).unwrap_or(0);
    Duration::from_secs(part(seconds)).saturating_add(Duration::from_nanos(part(nanoseconds)))
}

/// The last bytes of a perf map that has this length.
fn trail_of(file: &File, len: u64) -> Vec<u8> {
    let at = len.saturating_sub(TRAIL_BYTES as u64);
    let next = NextRead { offset: at, len: usize::try_from(len - at).unwrap_or(TRAIL_BYTES) };
    FileBytes::read(file, next).map(|read| read.bytes).unwrap_or_default()
}

/// A file's first bytes.
fn head_of(file: &File) -> Vec<u8> {
    let next = NextRead { offset: 0, len: HEADER_SIZE };
    FileBytes::read(file, next).map(|read| read.head).unwrap_or_default()
}

fn unread_process(error: &ProcError) -> Unread {
    let why = if matches!(error, ProcError::NoSuchProcess(..)) { WhyUnread::Gone } else { WhyUnread::Failed };
    Unread { why, text: error.to_string() }
}

fn no_perf_map(own_pid: u32) -> Unread {
    unread_file(&OpenError::NotFound { path: perf_map_path(own_pid), errno: Errno::NONE })
}

fn same_perf_map() -> Unread {
    Unread { why: WhyUnread::Same, text: String::new() }
}

/// A file's `st_dev` and inode as the end of a way has them.
fn as_end((st_dev, inode): (u64, u64)) -> (Device, u64) {
    (Device::from_st_dev(st_dev), inode)
}

fn unread_file(error: &OpenError) -> Unread {
    let why = match error {
        OpenError::NotFound { .. } => WhyUnread::Gone,
        OpenError::Replaced { .. } => WhyUnread::Replaced,
        OpenError::Private { .. } | OpenError::Hidden { .. } => WhyUnread::Private,
        _ => WhyUnread::Failed,
    };
    Unread { why, text: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_known_is_not_held_open_for_each_mapping_of_it_that_has_gone() {
        let files = Arc::new(OpenFiles::default());
        let reader = Reader::new(Arc::clone(&files));
        let (own, path) = (Pid(std::process::id()), std::env::current_exe().unwrap());
        // Nothing is mapped there, so it is looked for by its path.
        let (start, end, path) = (Avma(0x1000), Avma(0x2000), path.to_str().unwrap().into());
        let gone = MapPlace { start, end, path, inode: 0, device: Device::default() };
        assert!(reader.identify(own, &gone, FileId(1), false).unwrap().opened.is_some());
        assert!(reader.identify(own, &gone, FileId(2), false).unwrap().opened.is_none());
        assert!(files.get(FileId(1)).is_some() && files.get(FileId(2)).is_none());
    }

    #[test]
    fn a_file_behind_a_way_of_which_not_all_is_known_is_opened_apart() {
        let reader = Reader::new(Arc::default());
        let (own, directory) = (Pid(std::process::id()), tempfile::tempdir().unwrap());
        let (path, link) = (directory.path().join("file"), directory.path().join("link"));
        std::fs::write(&path, b"x").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let open = |path: &Path, may_hold: bool| {
            let (start, end, path) = (Avma(0x1000), Avma(0x2000), path.to_str().unwrap().into());
            let gone = MapPlace { start, end, path, inode: 0, device: Device::default() };
            let opened = reader.with_file(own, &gone, may_hold, |_, may_hold| (std::process::id() != own.0, may_hold));
            opened.unwrap()
        };
        assert_eq!(open(&link, false), (true, true));
        assert_eq!(open(&link, true), (false, true), "whoever asks is apart");
        let is_uncertain = reader.way_to(own, &path) == Way::Uncertain;
        assert_eq!(open(&path, false), (is_uncertain, is_uncertain));
    }

    #[test]
    fn a_perf_map_that_is_not_there_is_said_not_to_be_there() {
        let reader = Reader::new(Arc::default());
        let (via, own_pid) = (Pid(std::process::id()), u32::MAX);
        let asked = Request::OpenPerfMap { via, own_pid, uid: 0, file: FileId(1), unless: None };
        let AnswerBody::Opened(Err(unread)) = reader.read(asked) else { panic!("there is none") };
        assert_eq!(unread.why, WhyUnread::Gone);
        assert!(unread.text.contains("perf-4294967295.map is not there"), "{}", unread.text);
    }

    #[test]
    fn a_perf_map_that_is_known_is_not_opened_again() {
        let (via, own_pid) = (Pid(std::process::id()), u32::MAX - std::process::id());
        let (reader, path) = (Reader::new(Arc::default()), perf_map_path(own_pid));
        // Whoever opened this would say that it is no file.
        std::fs::create_dir(&path).unwrap();
        let there = FileIdentity::of(&std::fs::metadata(&path).unwrap());
        let why = |unless| match reader.read(Request::OpenPerfMap { via, own_pid, uid: 0, file: FileId(1), unless }) {
            AnswerBody::Opened(Err(unread)) => unread.why,
            other => panic!("{other:?}"),
        };
        let known = (there.st_dev, there.inode);
        let found = [Some(known), None, Some((known.0, known.1 + 1))].map(why);
        std::fs::remove_dir(&path).unwrap();
        assert_eq!(found, [WhyUnread::Same, WhyUnread::Failed, WhyUnread::Failed]);
    }

    #[test]
    fn a_file_from_before_the_process_is_told_from_its_own() {
        let file = tempfile::tempfile().unwrap();
        let own = FileIdentity::of(&file.metadata().unwrap());
        let pid = Pid(std::process::id());
        let stat = procfs::stat(pid).unwrap();
        assert!(!is_from_before(since_1970(own.changed), started(&stat)));
        assert!(stat.age().as_secs() < 3600, "{:?}", stat.age());
        assert!(is_from_before(since_1970((own.changed.0 - 3610, 0)), started(&stat)));
        // A container that starts again has its numbers again, and perhaps its files: two seconds are enough.
        let before = started(&stat).saturating_sub(Duration::from_secs(1));
        assert!(is_from_before(before, started(&stat)));
        assert_eq!(since_1970((-1, 5)), Duration::from_nanos(5));
    }
}
