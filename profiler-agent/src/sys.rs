//! The system calls around which everything else is safe code.

use std::ffi::CStr;
use std::sync::atomic::{AtomicI32, Ordering};

/// A file descriptor that closes itself.
#[derive(Debug)]
pub(crate) struct Fd(i32);

impl Fd {
    /// Its number.
    pub(crate) fn number(&self) -> i32 {
        self.0
    }

    /// Lets go of the number without closing it.
    pub(crate) fn give_up(&mut self) {
        self.0 = -1;
    }

    fn from_call(result: i32) -> Option<Self> {
        (result >= 0).then_some(Self(result))
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.0 >= 0 {
            // SAFETY: the number is this value's own, and nobody uses it after.
            unsafe { libc::close(self.0) };
        }
    }
}

/// Which file a descriptor leads to, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) length: u64,
}

/// The thread's last error.
pub(crate) fn errno() -> i32 {
    // SAFETY: always points to the thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// Sets the thread's last error: a runtime must find its own there after it called us.
pub(crate) fn set_errno(value: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}

/// What [`pid`] found last.
static PID: AtomicI32 = AtomicI32::new(0);

/// This process. Asked anew each time: a fork changes it.
pub(crate) fn pid() -> u32 {
    // SAFETY: takes and touches nothing.
    let pid = unsafe { libc::getpid() };
    PID.store(pid, Ordering::Relaxed);
    pid.unsigned_abs()
}

/// This process as [`pid`] found it; it is asked at the beginning of each event, and this within.
pub(crate) fn known_pid() -> i32 {
    match PID.load(Ordering::Relaxed) {
        0 => i32::try_from(pid()).unwrap_or(0),
        pid => pid,
    }
}

/// The calling thread as the kernel numbers it.
pub(crate) fn tid() -> u32 {
    // SAFETY: takes and touches nothing.
    unsafe { libc::gettid() }.unsigned_abs()
}

/// The calling thread's handle; never 0.
pub(crate) fn thread() -> usize {
    // SAFETY: takes and touches nothing.
    let thread = unsafe { libc::pthread_self() };
    usize::try_from(thread).unwrap_or(usize::MAX)
}

/// The effective user.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: takes and touches nothing.
    unsafe { libc::geteuid() }
}

/// Nanoseconds on CLOCK_MONOTONIC, the clock of all records.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into `time` only.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let (seconds, rest) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// A new, empty file that nobody else had; removes what is there under this name.
pub(crate) fn create_anew(path: &CStr) -> Result<Fd, i32> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: `path` ends with a NUL.
    let opened = unsafe {
        // Only what a dead process of the same number has left: a file of another user stays, and is the error then.
        libc::unlink(path.as_ptr());
        libc::open(path.as_ptr(), flags, 0o600)
    };
    let file = Fd::from_call(opened).ok_or_else(errno)?;
    if file.0 > libc::STDERR_FILENO {
        return Ok(file);
    }
    // A program without stderr would write its words into the dump.
    // SAFETY: takes the number of an open file.
    Fd::from_call(unsafe { libc::fcntl(file.0, libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) }).ok_or_else(errno)
}

/// Makes a directory for this user alone, unless there is one already.
pub(crate) fn make_private_directory(path: &CStr) -> Result<(), i32> {
    // SAFETY: `path` ends with a NUL.
    if unsafe { libc::mkdir(path.as_ptr(), 0o700) } == 0 {
        return Ok(());
    }
    match errno() {
        libc::EEXIST if is_private_directory(path) => Ok(()),
        libc::EEXIST => Err(libc::EACCES),
        error => Err(error),
    }
}

/// Whether it is a directory (no link to one) in which nobody else may put files.
fn is_private_directory(path: &CStr) -> bool {
    // SAFETY: all-zero bytes are a valid `stat`; lstat writes into it only.
    let (result, stat) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::lstat(path.as_ptr(), &raw mut stat), stat)
    };
    result == 0
        && stat.st_mode & libc::S_IFMT == libc::S_IFDIR
        && stat.st_uid == effective_user()
        && stat.st_mode & 0o022 == 0
}

/// Which file the descriptor leads to now.
pub(crate) fn identity(file: &Fd) -> Option<Identity> {
    // SAFETY: all-zero bytes are a valid `stat`; fstat writes into it only.
    let (result, stat) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(file.0, &raw mut stat), stat)
    };
    let length = u64::try_from(stat.st_size).ok()?;
    (result == 0).then_some(Identity { device: stat.st_dev, inode: stat.st_ino, length })
}

/// How long a file of this process may become before the kernel answers with SIGXFSZ.
pub(crate) fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes into `limit` only.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    if result == 0 { limit.rlim_cur } else { u64::MAX }
}

/// Appends all bytes with one write(2). `Err` has the error, or 0 if the file took a part only.
pub(crate) fn append(file: &Fd, bytes: &[u8]) -> Result<(), i32> {
    // A network file system may be interrupted before anything is written; it is tried a few times.
    for _ in 0..8 {
        // SAFETY: the range is `bytes`.
        let written = unsafe { libc::write(file.0, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(written) {
            Ok(written) if written == bytes.len() => return Ok(()),
            Ok(_) => return Err(0),
            Err(_) if errno() == libc::EINTR => {}
            Err(_) => return Err(errno()),
        }
    }
    Err(libc::EINTR)
}

/// Cuts a file.
pub(crate) fn truncate(file: &Fd, length: u64) -> bool {
    let Ok(length) = libc::off_t::try_from(length) else { return false };
    // SAFETY: touches the file only.
    unsafe { libc::ftruncate(file.0, length) == 0 }
}

/// Maps the file's first page executable, which is how profilers find a dump. The mapping stays for good.
pub(crate) fn map_marker(file: &Fd) -> Result<(), i32> {
    // SAFETY: a new mapping at a place that the kernel chooses; nobody reads or jumps into it.
    let mapped = unsafe {
        let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(4096);
        libc::mmap(std::ptr::null_mut(), page, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE, file.0, 0)
    };
    if mapped == libc::MAP_FAILED { Err(errno()) } else { Ok(()) }
}

/// An empty file in memory.
pub(crate) fn memfd() -> Option<Fd> {
    // SAFETY: the name ends with a NUL.
    Fd::from_call(unsafe { libc::memfd_create(c"jitprof".as_ptr(), libc::MFD_CLOEXEC) })
}

/// Writes a line to stderr, unless that would wait, and without the SIGPIPE of a closed pipe.
pub(crate) fn say(line: &[u8]) {
    let mut stderr = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one descriptor is handed over; poll writes into it only and does not wait.
    let ready = unsafe { libc::poll(&raw mut stderr, 1, 0) };
    if ready != 1 || stderr.revents != libc::POLLOUT {
        return;
    }
    // SAFETY: the signal sets are initialised before use; `line` is as long as said; the mask is put back.
    unsafe {
        let mut pipe: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        let was_pending = libc::sigismember(&raw const pending, libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut old);
        let written = libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        if written < 0 && errno() == libc::EPIPE && !was_pending {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&raw const pipe, std::ptr::null_mut(), &raw const at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
    }
}

unsafe extern "C" {
    /// POSIX; the libc crate does not have it for Linux.
    fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
const CANCEL_DISABLE: i32 = 1;

/// Signals that an instruction of the thread itself causes: blocked, they would end the process.
const FAULTS: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];

/// While it lives, the thread is not cancelled (write(2) is a place where it could be, and the unwinding that follows
/// would end the process at our border), and signals from outside wait: the handler of one may compile, and would wait
/// for a lock that its own thread holds. At its end the thread's errno is what it was.
pub(crate) struct Undisturbed {
    errno: i32,
    cancel_state: i32,
    signals: libc::sigset_t,
}

impl Undisturbed {
    pub(crate) fn begin() -> Self {
        // SAFETY: all-zero bytes are a valid set; the calls write into the sets and into the field only.
        unsafe {
            let mut undisturbed = Self { errno: errno(), cancel_state: 0, signals: std::mem::zeroed() };
            let mut blocked: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut blocked);
            for fault in FAULTS {
                libc::sigdelset(&raw mut blocked, fault);
            }
            pthread_setcancelstate(CANCEL_DISABLE, &raw mut undisturbed.cancel_state);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, &raw mut undisturbed.signals);
            undisturbed
        }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        // SAFETY: the mask and the state that the thread had; null pointers are not written to (glibc, musl).
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.signals, std::ptr::null_mut());
            pthread_setcancelstate(self.cancel_state, std::ptr::null_mut());
        }
        set_errno(self.errno);
    }
}

/// Readable pages with an unreadable one behind them, for tests of what lies at a border.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Pages {
    start: u64,
    end: u64,
}

#[cfg(test)]
impl Pages {
    pub(crate) fn with_guard() -> Option<Self> {
        const SIZE: usize = 8 * 4096;
        // SAFETY: a new mapping at a place that the kernel chooses, whose last page is made unreadable.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(std::ptr::null_mut(), SIZE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if start == libc::MAP_FAILED || libc::mprotect(start.byte_add(SIZE - 4096), 4096, libc::PROT_NONE) != 0 {
                return None;
            }
            Some(Self { start: start as u64, end: start as u64 + SIZE as u64 - 4096 })
        }
    }

    /// Puts the bytes before the unreadable page and returns their address.
    pub(crate) fn fill_end_with(&self, bytes: &[u8]) -> u64 {
        let at = self.end - bytes.len() as u64;
        assert!(at >= self.start);
        // SAFETY: the range lies within the readable pages, which live for good.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        at
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    static SIGNALS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn on_signal(_: i32) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
        set_errno(libc::EINTR);
    }

    #[test]
    fn a_signal_waits_until_the_work_is_done_and_then_comes() {
        // SAFETY: the handler does nothing that a handler may not do.
        unsafe { libc::signal(libc::SIGUSR2, on_signal as extern "C" fn(i32) as libc::sighandler_t) };
        set_errno(libc::ENOENT);
        let undisturbed = Undisturbed::begin();
        // SAFETY: sends the calling thread a signal that it handles.
        unsafe { libc::raise(libc::SIGUSR2) };
        assert_eq!(SIGNALS.load(Ordering::Relaxed), 0);
        drop(undisturbed);
        assert_eq!((SIGNALS.load(Ordering::Relaxed), errno()), (1, libc::ENOENT));
    }
}
