//! Work that a file system may never let go of, done so that jitprof can end nevertheless.
//!
//! A thread that waits for the answer of a file system in userspace cannot be killed, and a process does not end before
//! its threads. So such work is done by a process of its own that shares memory and descriptors with this one, as `vfork`
//! does it: the thread waits for it and can be killed, and what never ends is left to the system.

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jitprof_common::units::Pid;
use rustix::fs::{AtFlags, StatxFlags};

use crate::owners::Held;
use crate::process::Device;

/// Reading symbol tables recurses into libraries; the pages are taken only when touched.
const STACK_BYTES: usize = 4 << 20;
/// Below the stack nothing is mapped.
const GUARD_BYTES: usize = 64 << 10;
/// Stacks that are kept for what is done next: as many as threads read at a time, as a rule. To map one, and to unmap it, costs
/// more than most reads.
const MAX_SPARE: usize = 4;
/// What of a spare stack stays in memory, at its upper end.
const SPARE_BYTES: usize = 128 << 10;
/// Files that are being closed at most; further ones wait, and are open meanwhile.
const MAX_CLOSING: usize = 64;
/// Of them, those of one device, and those of one user other than root: a file system that never answers holds up no more,
/// nor do all that somebody has mounted, and others' files have their turn.
const MAX_CLOSING_OF_ONE: usize = MAX_CLOSING / 8;
/// The same of root, whose are the processes of many containers: users have the rest.
const MAX_CLOSING_OF_ROOT: usize = MAX_CLOSING / 2;
const ROOT: u32 = 0;
/// Of files of which the user is not known: of all of them there are no more than of one user.
const NOT_KNOWN: u32 = u32::MAX;
/// How long it is known of a device whether it may keep readers waiting: its number may be used again.
const KNOWN_FOR: Duration = Duration::from_secs(30);
/// Devices of which that is known at most.
const MAX_KNOWN: usize = 1024;
/// Bytes of a list of mounts that are read.
const MAX_MOUNTS_BYTES: u64 = 4 << 20;
/// File systems that only the machine's own disks and memory can keep waiting.
const LOCAL: [&str; 24] = [
    "bcachefs",
    "bpf",
    "btrfs",
    "cgroup",
    "cgroup2",
    "devpts",
    "devtmpfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hugetlbfs",
    "iso9660",
    "overlay",
    "proc",
    "ramfs",
    "rootfs",
    "squashfs",
    "sysfs",
    "tmpfs",
    "vfat",
    "xfs",
];

/// CPU time of what was done apart, in nanoseconds.
static SPENT_NS: AtomicU64 = AtomicU64::new(0);
/// Stacks that nothing runs on.
static SPARE: Mutex<Vec<Stack>> = Mutex::new(Vec::new());
/// Files that are to be closed, and those of them of which it has not begun.
static CLOSING: Mutex<Closing> = Mutex::new(Closing::new());
static NOT_BEGUN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OF_THREAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// CPU time of what was done apart for this thread.
pub fn spent_for_thread() -> Duration {
    OF_THREAD.get()
}

/// This thread has had so much CPU time used elsewhere.
pub(crate) fn charge_thread(time: Duration) {
    OF_THREAD.set(OF_THREAD.get().saturating_add(time));
    SPENT_NS.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// CPU time of all that was done apart.
pub fn spent() -> Duration {
    Duration::from_nanos(SPENT_NS.load(Ordering::Relaxed))
}

/// What a process of its own is to do, and what came of it.
struct Job<F, T> {
    work: Option<F>,
    done: Option<Result<T, Box<dyn Any + Send>>>,
    cpu: Duration,
    descriptors: Descriptors,
    parent: libc::pid_t,
}

/// Does something in a process of its own, and waits for it. Where the system refuses one, it is done here.
pub fn apart<T, F: FnOnce() -> T>(work: F) -> T {
    start(work, Descriptors::Shared)
}

/// The same of something that uses no open file of this process: whoever waits for the end of one, of a pipe that this process
/// writes to, does not wait for what never ends.
pub fn apart_without_files<T, F: FnOnce() -> T>(work: F) -> T {
    start(work, Descriptors::None)
}

/// Which of this process' descriptors the other one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Descriptors {
    Shared,
    None,
}

fn start<T, F: FnOnce() -> T>(work: F, descriptors: Descriptors) -> T {
    // SAFETY: a plain number.
    let parent = unsafe { libc::getpid() };
    let mut job = Job { work: Some(work), done: None, cpu: Duration::ZERO, descriptors, parent };
    let ran = Stack::take().and_then(|stack| {
        run(&stack, &mut job)?;
        stack.keep();
        Ok(())
    });
    if let Err(error) = ran {
        tracing::debug!("cannot do something in a process of its own: {error}");
    }
    charge_thread(job.cpu);
    match (job.done, job.work) {
        (Some(Ok(done)), _) => done,
        (Some(Err(panic)), _) => resume_unwind(panic),
        (None, Some(work)) => work(),
        // It was killed half-way.
        (None, None) => resume_unwind(Box::new("a process of jitprof's was killed")),
    }
}

extern "C" fn enter<T, F: FnOnce() -> T>(job: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `run` passes a job of this very type, and waits until this function has returned before it touches it.
    let job = unsafe { &mut *job.cast::<Job<F, T>>() };
    // Who waits for it is killed with all of jitprof: nobody may go on computing then.
    // SAFETY: plain numbers; of its parent nothing is read but its number.
    let is_alone = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::getppid() != job.parent
    };
    if is_alone {
        return 0;
    }
    if job.descriptors == Descriptors::None {
        // A table of its own, without any: to copy all descriptors and to close the copies costs more than most reads.
        // SAFETY: those of the other process stay. The work uses none but those that it opens itself.
        unsafe {
            if libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) != 0 {
                // Linux 5.8: copies, which stay.
                libc::unshare(libc::CLONE_FILES);
            }
        }
    }
    if let Some(work) = job.work.take() {
        job.done = Some(catch_unwind(AssertUnwindSafe(work)));
    }
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    job.cpu = Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0));
    0
}

fn run<T, F: FnOnce() -> T>(stack: &Stack, job: &mut Job<F, T>) -> io::Result<()> {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_SYSVSEM;
    let _signals = Blocked::all()?;
    // SAFETY: the function gets the stack for itself and the job that it expects. CLONE_VFORK suspends this thread until
    // the new process has ended, so that nobody else uses this thread's local data, the job or the stack meanwhile; if
    // this thread is killed, so are all others, and what the new process uses stays mapped as long as it lives.
    let pid = unsafe { libc::clone(enter::<T, F>, stack.top(), flags, ptr::from_mut(job).cast()) };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    loop {
        // SAFETY: no status is asked for.
        let waited = unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) };
        if waited == pid {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Signals of this thread, and of what it starts, blocked as long as the value lives: a handler must not run twice.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn all() -> io::Result<Self> {
        // SAFETY: a set of signals is plain data, both calls only write to it.
        let before = unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            let failed = libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            if failed != 0 {
                return Err(io::Error::from_raw_os_error(failed));
            }
            before
        };
        Ok(Self(before))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that the kernel has given.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// A stack with a guard below it.
struct Stack(*mut libc::c_void);

// SAFETY: the mapping belongs to the value, whichever thread has that.
unsafe impl Send for Stack {}

impl Stack {
    /// A spare one, or a new one.
    fn take() -> io::Result<Self> {
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.map_or_else(Self::new, Ok)
    }

    /// Keeps it for what is done next. Whoever ran on it has ended.
    fn keep(self) {
        // SAFETY: the part of the own mapping between the guard and what stays, which nobody uses.
        unsafe {
            let unused = self.0.wrapping_byte_add(GUARD_BYTES);
            libc::madvise(unused, STACK_BYTES - SPARE_BYTES, libc::MADV_DONTNEED);
        }
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < MAX_SPARE {
            spare.push(self);
        }
    }

    fn new() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        let (length, access) = (STACK_BYTES + GUARD_BYTES, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that is there.
        let base = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self(base);
        // SAFETY: the first bytes of the mapping that was just made.
        match unsafe { libc::mprotect(base, GUARD_BYTES, libc::PROT_NONE) } {
            0 => Ok(stack),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn top(&self) -> *mut libc::c_void {
        self.0.wrapping_byte_add(STACK_BYTES + GUARD_BYTES)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and whoever ran on it has ended.
        unsafe { libc::munmap(self.0, STACK_BYTES + GUARD_BYTES) };
    }
}

/// An open file. One whose file system may not answer is closed apart, for closing may wait for an answer as well.
#[derive(Debug)]
pub struct HeldFile {
    file: ManuallyDrop<File>,
    may_hold: bool,
    closes_apart: bool,
    /// Of the process that it was opened for.
    user: u32,
}

impl HeldFile {
    /// `may_hold`: whether reading and closing it may take for ever.
    pub fn new(file: File, may_hold: bool) -> Self {
        Self { file: ManuallyDrop::new(file), may_hold, closes_apart: may_hold, user: NOT_KNOWN }
    }

    /// The same where closing alone may.
    pub fn closed_apart_if(mut self, may_hold: bool) -> Self {
        self.closes_apart |= may_hold;
        self
    }

    /// Opened for a process of this user: it is closed among his. Asked only where that matters, which is nowhere for what is
    /// root's and answers.
    pub fn opened_for(mut self, owner: u32, user: impl FnOnce() -> Option<u32>) -> Self {
        if self.closes_apart || owner != ROOT {
            self.user = user().unwrap_or(NOT_KNOWN);
        }
        self
    }

    /// Who pays for it where its file system says that this one owns it: for whom it was opened, whose the owner may be a
    /// subordinate id of. What is root's pays for itself, as everybody uses it; but a file system that may not answer may say
    /// whatever its maker likes.
    pub fn payer(&self, owner: u32) -> u32 {
        let is_his = self.closes_apart || ![owner, self.user].iter().any(|user| [ROOT, NOT_KNOWN].contains(user));
        if is_his { self.user } else { owner }
    }

    /// Reads something of it, apart if need be.
    pub fn reading<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.may_hold { apart(work) } else { work() }
    }

    /// The same, while that is done, of other files, which may never answer whatever this one does: apart, unless all of it
    /// is.
    pub fn reading_others<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.may_hold { work() } else { apart(work) }
    }
}

impl Deref for HeldFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        // SAFETY: the field is not used after this, for the value is being dropped.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        if self.closes_apart { close_apart(self.user, file) } else { drop(file) }
    }
}

/// For whom a file is closed: the user of the process that it was opened for, whatever its file system says of its owner, and
/// its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Party {
    user: u32,
    device: Device,
}

impl Party {
    /// How many of his user's are closed at a time, on whatever devices: he may mount as many as he likes.
    fn most_of_user(self) -> usize {
        if self.user == ROOT { MAX_CLOSING_OF_ROOT } else { MAX_CLOSING_OF_ONE }
    }
}

/// Which files are being closed. A thread begins and ends under the lock, and begins another one if it is not the last that
/// has something to do: no file whose turn it is is left without one.
struct Closing {
    threads: usize,
    /// Whose file each thread is at.
    begun: Vec<Party>,
    /// Nobody is in it without a file.
    waiting: BTreeMap<Party, Vec<File>>,
}

impl Closing {
    const fn new() -> Self {
        Self { threads: 0, begun: Vec::new(), waiting: BTreeMap::new() }
    }

    fn add(&mut self, party: Party, file: File) {
        self.waiting.entry(party).or_default().push(file);
    }

    /// Files of this device, and of this user, that threads are at.
    fn begun_of(&self, party: Party) -> (usize, usize) {
        let of_device = self.begun.iter().filter(|begun| begun.device == party.device).count();
        (of_device, self.begun.iter().filter(|begun| begun.user == party.user).count())
    }

    fn has_turn(&self, party: Party) -> bool {
        let (of_device, of_user) = self.begun_of(party);
        let kind = self.begun.iter().filter(|begun| (begun.user == ROOT) == (party.user == ROOT)).count();
        let held = Held { own: of_user, kind, all: self.begun.len() };
        // What root may have is for its many containers.
        let leaves_room = party.user == ROOT || held.leaves_room(MAX_CLOSING, 1);
        of_device < MAX_CLOSING_OF_ONE && of_user < party.most_of_user() && leaves_room
    }

    /// Whether a further thread has something to do.
    fn has_room(&self) -> bool {
        self.threads < MAX_CLOSING && self.waiting.keys().any(|party| self.has_turn(*party))
    }

    /// A file whose turn it is: of the user, then of the device, of which there are fewest at it.
    fn take(&mut self) -> Option<(Party, File)> {
        let with_turn = self.waiting.keys().copied().filter(|party| self.has_turn(*party));
        let fewest = |party: &Party| {
            let (of_device, of_user) = self.begun_of(*party);
            (of_user, of_device)
        };
        let party = with_turn.min_by_key(fewest)?;
        let files = self.waiting.get_mut(&party)?;
        let file = files.pop()?;
        if files.is_empty() {
            self.waiting.remove(&party);
        }
        self.begun.push(party);
        Some((party, file))
    }

    /// A file of his has been closed.
    fn end(&mut self, party: Party) {
        if let Some(at) = self.begun.iter().position(|begun| *begun == party) {
            self.begun.swap_remove(at);
        }
    }
}

/// Closes a file without waiting for it. With too many that do not let go, it stays open until one does.
fn close_apart(user: u32, file: File) {
    let party = Party { user, device: device_of(&file) };
    let mut closing = closing();
    closing.add(party, file);
    NOT_BEGUN.fetch_add(1, Ordering::AcqRel);
    begin_closing(closing);
}

/// Has a further thread close files, if there is something for it.
fn begin_closing(mut closing: MutexGuard<'_, Closing>) {
    if !closing.has_room() {
        return;
    }
    closing.threads += 1;
    drop(closing);
    if let Err(error) = std::thread::Builder::new().name("closes".into()).spawn(close_all) {
        tracing::debug!("a file stays open: {error}");
        self::closing().threads -= 1;
    }
}

/// Nothing that runs under the lock can panic.
fn closing() -> MutexGuard<'static, Closing> {
    CLOSING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which device a file is on. Asks no file system; those that say nothing are one.
fn device_of(file: &File) -> Device {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let known = rustix::fs::statx(file, c"", flags, StatxFlags::empty());
    known.map_or(Device::default(), |known| Device { major: known.stx_dev_major, minor: known.stx_dev_minor })
}

fn close_all() {
    let mut closing = self::closing();
    while let Some((party, file)) = closing.take() {
        begin_closing(closing);
        let file = ManuallyDrop::new(file);
        apart(move || {
            NOT_BEGUN.fetch_sub(1, Ordering::AcqRel);
            drop(ManuallyDrop::into_inner(file));
        });
        closing = self::closing();
        closing.end(party);
    }
    closing.threads -= 1;
}

/// Waits until the closing of all files has begun, at the end of everything: then it is nobody's business but that of the
/// processes that are at it.
pub fn wait_for_closing(limit: Duration) {
    let deadline = Instant::now() + limit;
    while NOT_BEGUN.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The first thing of closing is that the descriptor is gone.
    if closing().threads > 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Which devices may keep readers waiting for ever.
#[derive(Debug, Default)]
pub struct Waits(Mutex<HashMap<Device, Wait>>);

/// What may take for ever of a file on some device.
#[derive(Clone, Copy, Debug)]
struct Wait {
    may_hold: bool,
    closing_may: bool,
    since: Instant,
}

impl Waits {
    /// Whether files on this device may, which a process has mapped: whether its file system is another one than those
    /// of disks and memory. Asks no file system.
    pub fn may_hold(&self, via: Pid, device: Device) -> bool {
        self.of(via, device).may_hold
    }

    /// Whether closing such a file may. An overlay hands that on to the file below it, which is one of a tenant's file system if
    /// a tenant has made the overlay; nearly all are those of a container engine, over the machine's own disk.
    pub fn closing_may_hold(&self, via: Pid, device: Device) -> bool {
        self.of(via, device).closing_may
    }

    fn of(&self, via: Pid, device: Device) -> Wait {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wait) = known.get(&device).filter(|wait| wait.since.elapsed() < KNOWN_FOR) {
            return *wait;
        }
        let kind = kind_of(via, device);
        let may_hold = kind.as_deref().is_none_or(|kind| !LOCAL.contains(&kind));
        let closing_may = may_hold || (kind.as_deref() == Some("overlay") && !is_over_local(device));
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        let wait = Wait { may_hold, closing_may, since: Instant::now() };
        known.insert(device, wait);
        wait
    }
}

/// The file system on a device, as a process sees it, or as jitprof does: in a root that is no mount of its own, the process
/// sees none.
fn kind_of(via: Pid, device: Device) -> Option<String> {
    let kind = |process: &str| kind_in(&mounts_of(process)?, device).map(str::to_owned);
    kind(&via.to_string()).or_else(|| kind("self"))
}

fn mounts_of(process: &str) -> Option<String> {
    let mut text = String::new();
    let mounts = File::open(format!("/proc/{process}/mountinfo")).ok()?;
    io::Read::read_to_string(&mut io::Read::take(mounts, MAX_MOUNTS_BYTES), &mut text).ok()?;
    Some(text)
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`
fn line_of(mounts: &str, device: Device) -> Option<&str> {
    let number = format!("{}:{}", device.major, device.minor);
    mounts.lines().find(|line| line.split(' ').nth(2) == Some(&number))
}

fn kind_in(mounts: &str, device: Device) -> Option<&str> {
    kind_of_line(line_of(mounts, device)?)
}

fn kind_of_line(line: &str) -> Option<&str> {
    line.split_once(" - ")?.1.split(' ').next()
}

/// Whether an overlay is mounted where jitprof or the first process is, over directories of local file systems alone. In a
/// mount namespace that a tenant has made, the paths of these directories say nothing.
fn is_over_local(device: Device) -> bool {
    ["self", "1"].into_iter().any(|host| mounts_of(host).is_some_and(|mounts| has_local_layers(&mounts, device)))
}

/// `… - overlay overlay rw,lowerdir=/a/l/X:/a/l/Y,upperdir=/a/diff,workdir=/a/work`. What cannot be compared with the places of
/// other mounts is not known to be local: a path that is not absolute, or has an escaped letter.
fn has_local_layers(mounts: &str, device: Device) -> bool {
    let options = line_of(mounts, device).and_then(|line| line.split_once(" - ")?.1.split(' ').nth(2));
    let options = options.unwrap_or_default().split(',').filter_map(|option| option.split_once('='));
    let layers =
        options.filter(|(name, _)| ["lowerdir", "lowerdir+", "datadir+", "upperdir", "workdir"].contains(name));
    let mut layers = layers.flat_map(|(_, paths)| paths.split(':')).filter(|path| !path.is_empty()).peekable();
    let others = mounts.lines().filter(|line| kind_of_line(line).is_none_or(|kind| !LOCAL.contains(&kind)));
    let others: Vec<&str> = others.filter_map(|line| line.split(' ').nth(4)).collect();
    let is_local = |path: &str| {
        let is_plain = path.starts_with('/') && !path.contains('\\');
        is_plain && !others.iter().any(|place| Path::new(path).starts_with(place))
    };
    layers.peek().is_some() && layers.all(is_local)
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_is_done_apart_is_done_by_another_process_with_the_same_memory() {
        let own = std::process::id();
        let mut seen = Vec::new();
        let answer = apart(|| {
            seen.push(std::process::id());
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(5) {}
            String::from("made there")
        });
        assert_eq!((answer.as_str(), seen.len()), ("made there", 1));
        assert_ne!(seen, [own]);
        assert!(spent_for_thread() >= Duration::from_millis(1) && spent() >= spent_for_thread());
        let panicked = catch_unwind(|| apart(|| panic!("there")));
        assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"there"));
    }

    #[test]
    fn a_spare_stack_gives_back_what_was_deep() {
        fn fill(depth: usize) -> usize {
            let page = std::hint::black_box([1_u8; 4096]);
            usize::from(page[7]) + if depth > 0 { fill(depth - 1) } else { 0 }
        }
        assert_eq!(apart(|| fill(200)), 201);
        let stack = Stack::take().unwrap();
        let resident = |stack: &Stack| {
            let mut pages = vec![0_u8; STACK_BYTES / 4096];
            let start = stack.0.wrapping_byte_add(GUARD_BYTES);
            // SAFETY: one byte for each page of the mapping.
            assert_eq!(unsafe { libc::mincore(start, STACK_BYTES, pages.as_mut_ptr()) }, 0);
            pages.iter().filter(|page| **page & 1 == 1).count()
        };
        assert!(resident(&stack) <= SPARE_BYTES / 4096, "{}", resident(&stack));
        (0..2 * MAX_SPARE).for_each(|_| Stack::new().unwrap().keep());
        assert!(SPARE.lock().unwrap().len() <= MAX_SPARE);
    }

    #[test]
    fn a_thread_that_waits_for_what_is_done_apart_does_not_keep_others_waiting() {
        let (reader, writer) = io::pipe().unwrap();
        let waits = std::thread::spawn(move || apart(|| io::Read::bytes(reader).count()));
        io::Write::write_all(&mut &writer, b"abc").unwrap();
        assert_eq!(apart(|| 7), 7);
        drop(writer);
        assert_eq!(waits.join().unwrap(), 3);
    }

    #[test]
    fn who_waits_for_the_end_of_a_pipe_does_not_wait_for_what_uses_no_files() {
        let (reader, writer) = io::pipe().unwrap();
        let (held, holds) = io::pipe().unwrap();
        let waits = std::thread::spawn(move || {
            apart_without_files(|| {
                // None of the descriptors is there; those that are opened are.
                let is_gone = io::Read::bytes(&held).next().is_some_and(|read| read.is_err());
                let opened = File::open("/proc/self/stat").is_ok();
                std::thread::sleep(Duration::from_millis(300));
                (is_gone, opened)
            })
        });
        std::thread::sleep(Duration::from_millis(100));
        let begun = Instant::now();
        drop(writer);
        assert_eq!(io::Read::bytes(reader).count(), 0);
        assert!(begun.elapsed() < Duration::from_millis(150), "{:?}", begun.elapsed());
        assert_eq!(waits.join().unwrap(), (true, true));
        drop(holds);
    }

    #[test]
    fn what_is_done_apart_ends_with_who_waits_for_it() {
        const COMPUTES: &str = "JITPROF_TEST_COMPUTES_APART";
        if std::env::var_os(COMPUTES).is_some() {
            apart(|| {
                eprintln!("apart: {}", std::process::id());
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        let name = "process::apart::tests::what_is_done_apart_ends_with_who_waits_for_it";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]).env(COMPUTES, "1").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut waits = command.spawn().unwrap();
        let mut lines = io::BufReader::new(waits.stderr.take().unwrap()).lines();
        let pid = lines.find_map(|line| line.unwrap().strip_prefix("apart: ").map(str::to_owned)).unwrap();
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
        };
        assert_eq!(state(), Some('R'));
        waits.kill().unwrap();
        waits.wait().unwrap();
        let begun = Instant::now();
        while !matches!(state(), None | Some('Z')) {
            assert!(begun.elapsed() < Duration::from_secs(20), "it goes on: {:?}", state());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn files_are_closed_apart() {
        let (reader, writer) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        drop(HeldFile::new(file, true));
        assert_eq!(io::Read::bytes(reader).count(), 0, "the other end has seen it");
    }

    #[test]
    fn a_file_system_is_found_by_the_number_of_its_device() {
        let mounts = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      40 22 0:45 / /mnt/a\\040b rw master:3 - fuse.sshfs host:/ rw,user_id=0\n";
        let kind = |major, minor| kind_in(mounts, Device { major, minor });
        assert_eq!(kind(254, 0), Some("ext4"));
        assert_eq!(kind(0, 45), Some("fuse.sshfs"));
        assert_eq!(kind(0, 4), None);
        assert!(LOCAL.is_sorted());
    }

    #[test]
    fn an_overlay_is_closed_here_only_if_what_is_below_it_is_known_to_be_local() {
        let is_local = |options: &str| {
            let mounts = format!(
                "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                 40 22 0:45 / /var/lib/lazy rw shared:3 - fuse.lazy lazy rw,user_id=0\n\
                 41 22 0:46 / /run/rootfs rw shared:4 - overlay overlay rw,{options}\n"
            );
            has_local_layers(&mounts, Device { major: 0, minor: 46 })
        };
        assert!(is_local(
            "lowerdir=/var/lib/o/l/A:/var/lib/o/l/B,upperdir=/var/lib/o/1/diff,workdir=/var/lib/o/1/work"
        ));
        assert!(is_local("lowerdir+=/var/lib/o/1,lowerdir+=/var/lib/lazybones,datadir+=/var/lib/o/2"));
        for options in [
            "lowerdir=/var/lib/o/l/A:/var/lib/lazy/7/fs,upperdir=/var/lib/o/1/diff,workdir=/var/lib/o/1/work",
            "lowerdir=/var/lib/o/l/A,upperdir=/var/lib/lazy/1",
            "lowerdir=l/A:l/B",
            "lowerdir=/var/lib/la\\134zy",
            "nouserxattr",
        ] {
            assert!(!is_local(options), "{options}");
        }
        assert!(!has_local_layers("", Device { major: 0, minor: 46 }), "a tenant has made it, out of our sight");
    }

    #[test]
    fn what_is_read_here_may_be_closed_apart_nevertheless() {
        let (reader, writer) = io::pipe().unwrap();
        let file = HeldFile::new(File::from(std::os::fd::OwnedFd::from(writer)), false).closed_apart_if(true);
        assert_eq!(file.reading(std::process::id), std::process::id());
        assert_ne!(file.reading_others(std::process::id), std::process::id());
        assert!(file.closes_apart);
        drop(file);
        assert_eq!(io::Read::bytes(reader).count(), 0, "the other end has seen it");
    }

    #[test]
    fn a_device_that_lets_no_file_go_leaves_threads_to_others() {
        let mut closing = Closing::new();
        // A file system that all use, and one that another user has.
        let [stuck, other] = [(ROOT, 1), (1000, 2)].map(|(user, minor)| party(user, minor));
        (0..2 * MAX_CLOSING).for_each(|_| closing.add(stuck, null()));
        assert!(taken(&mut closing) == [stuck; MAX_CLOSING_OF_ONE] && !closing.has_room());
        closing.add(party(1000, 1), null());
        assert!(taken(&mut closing).is_empty(), "another user's file on the same device waits as well");
        closing.add(other, null());
        assert!(closing.has_room());
        assert_eq!(taken(&mut closing), [other]);
        closing.end(other);
        assert!(!closing.has_room() && closing.begun.len() == MAX_CLOSING_OF_ONE);
        closing.end(stuck);
        assert_eq!(taken(&mut closing), [party(1000, 1)], "his user has none that is closed");
        closing.end(party(1000, 1));
        closing.threads = MAX_CLOSING;
        assert!(!closing.has_room());
    }

    #[test]
    fn a_user_who_mounts_many_file_systems_leaves_threads_to_others() {
        let mut closing = Closing::new();
        let add = |closing: &mut Closing, user: u32, devices: std::ops::Range<u32>| {
            devices.for_each(|minor| closing.add(party(user, minor), null()));
        };
        add(&mut closing, 1000, 0..12);
        assert_eq!(taken(&mut closing).len(), MAX_CLOSING_OF_ONE);
        // Of whom it is not known are together no more; what root has mounted is of many.
        add(&mut closing, NOT_KNOWN, 12..24);
        assert_eq!(taken(&mut closing).len(), MAX_CLOSING_OF_ONE);
        add(&mut closing, ROOT, 24..64);
        assert_eq!(taken(&mut closing).len(), MAX_CLOSING_OF_ROOT);
        closing.add(party(1001, 200), null());
        assert!(closing.has_room());
        assert_eq!(taken(&mut closing), [party(1001, 200)]);
    }

    #[test]
    fn however_many_users_hold_threads_there_are_some_for_new_ones_and_for_root() {
        let mut closing = Closing::new();
        let mut take = |user: u32| {
            (0..9).for_each(|minor| closing.add(party(user, 100 * user + minor), null()));
            taken(&mut closing).iter().filter(|party| party.user == user).count()
        };
        let taken: Vec<usize> = (1000..1022).map(&mut take).collect();
        assert!(taken[0] == MAX_CLOSING_OF_ONE && taken[1..].iter().all(|taken| *taken >= 1), "{taken:?}");
        assert_eq!(take(ROOT), 9);
    }

    fn party(user: u32, minor: u32) -> Party {
        Party { user, device: Device { major: 0, minor } }
    }

    fn null() -> File {
        File::open("/dev/null").unwrap()
    }

    /// All whose turn it is.
    fn taken(closing: &mut Closing) -> Vec<Party> {
        std::iter::from_fn(|| closing.take().map(|(party, _)| party)).collect()
    }

    #[test]
    fn who_a_file_was_opened_for_is_asked_where_it_matters() {
        let asked = |held: HeldFile| held.opened_for(ROOT, || Some(1000)).user;
        assert_eq!(asked(HeldFile::new(null(), false)), NOT_KNOWN);
        assert_eq!(asked(HeldFile::new(null(), false).closed_apart_if(true)), 1000);
        assert_eq!(HeldFile::new(null(), true).opened_for(ROOT, || None).user, NOT_KNOWN);
    }

    #[test]
    fn who_pays_for_a_file_is_not_for_its_file_system_to_say() {
        let payer = |may_hold, owner, user| HeldFile::new(null(), may_hold).opened_for(owner, || user).payer(owner);
        assert_eq!(payer(false, 100_005, Some(1000)), 1000, "a subordinate id of his");
        assert_eq!(payer(false, ROOT, Some(1000)), ROOT, "all use it");
        assert_eq!(payer(false, 1001, Some(ROOT)), 1001);
        assert_eq!(payer(false, 1001, None), 1001);
        assert_eq!([ROOT, 1001].map(|owner| payer(true, owner, Some(1000))), [1000; 2]);
    }

    #[test]
    fn files_of_one_device_are_known_by_its_number() {
        let (reader, writer) = io::pipe().unwrap();
        let ends = [std::os::fd::OwnedFd::from(reader), std::os::fd::OwnedFd::from(writer)];
        let [one, other] = ends.map(|end| device_of(&File::from(end)));
        let memory = device_of(&File::open("/proc/self/stat").unwrap());
        assert!(one == other && one != memory, "{one:?} {other:?} {memory:?}");
    }

    #[test]
    fn more_files_than_are_closed_at_a_time_do_not_stay_open() {
        let pipes = (0..MAX_CLOSING + 16).map(|_| io::pipe().unwrap());
        let held = |writer| HeldFile::new(File::from(std::os::fd::OwnedFd::from(writer)), true);
        let (readers, files): (Vec<_>, Vec<_>) = pipes.map(|(reader, writer)| (reader, held(writer))).unzip();
        drop(files);
        for reader in readers {
            assert_eq!(io::Read::bytes(reader).count(), 0);
        }
    }
}
