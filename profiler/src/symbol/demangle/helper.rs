//! Demangling in a process of its own, which is killed when it takes too long.
//!
//! What cpp_demangle takes for a name may double with every two bytes of it (`na`, `nw`, `SaID1` over and over): a name of a
//! hundred bytes keeps it busy for ever, and a thread cannot be stopped. Programs are not compiled into such names; whoever
//! wants others to lose theirs writes them.
//!
//! It begins before anything of a target is open: a process that is started has copies of all descriptors, and closing that of
//! a file system that does not answer would hold it up, and who waits for it. So the one that demangles is started anew by its
//! parent, which does nothing else.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use super::{DEEP, MAX_MANGLED_BYTES, MAX_NAME_BYTES, cpp, cut};
use crate::process::apart::charge_thread;

/// Says to this program that it is the helper, and that it is the one that demangles.
const ARGUMENT: &str = "--demangle-names";
const WORKER: &str = "--worker";
/// CPU time that a name may take; those of Qt and Eigen take a millisecond.
const LIMIT: Duration = Duration::from_millis(20);
/// For so many times that it rests.
const REST: u32 = 9;
/// Memory that it may take.
const MEMORY_BYTES: libc::rlim_t = 64 << 20;

/// How an answer begins: the name, its beginning, and that there is none.
const WHOLE: u8 = 0;
const CUT: u8 = 1;
const TOO_LONG: u8 = 2;

/// This program can be its own helper.
static IS_ALLOWED: AtomicBool = AtomicBool::new(false);
/// It is started no more.
static IS_RECORDING: Once = Once::new();
/// One for each of those who ask: nobody waits for names that are no business of his.
static HELPERS: [Mutex<Place>; 2] = [const { Mutex::new(Place { helper: None, rests_until: None }) }; 2];

/// What becomes of somebody who has asked for too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Its thread's account is charged: it works for one user at a time.
    Pays,
    /// It asks for nothing for a while: others wait for it.
    Rests,
}

/// What comes of asking.
pub(super) enum Answer {
    /// The name, and whether it was cut.
    Name((String, bool)),
    TooLong,
    /// There is no helper.
    Nobody,
}

/// Where a helper is, if there is one.
struct Place {
    helper: Option<Helper>,
    rests_until: Option<Instant>,
}

/// Its end of two pipes. A name goes there as its length and its bytes; what comes back has a byte before that.
struct Helper {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// For the beginning of a program: does what the helper does, if it is to be one; else it may have one from now on.
pub(crate) fn serve_if_asked() -> Option<ExitCode> {
    let arguments: Vec<_> = std::env::args_os().skip(1).take(3).collect();
    let done = match arguments.iter().map(|argument| argument.to_str().unwrap_or_default()).collect::<Vec<_>>()[..] {
        [ARGUMENT] => serve(),
        [ARGUMENT, WORKER] => demangle_names(),
        _ => {
            IS_ALLOWED.store(true, Ordering::Release);
            return None;
        }
    };
    Some(done.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}

/// For the beginning of a recording: whatever there is to start is started now.
pub(crate) fn prepare() {
    if IS_ALLOWED.load(Ordering::Acquire) {
        IS_RECORDING.call_once(|| {
            HELPERS.iter().for_each(|place| {
                let mut place = locked(place);
                place.helper = place.helper.take().or_else(|| Helper::start().ok());
            });
        });
    }
}

fn locked(place: &Mutex<Place>) -> MutexGuard<'_, Place> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Demangles a name. Not for what has descriptors of its own: the pipes are this process'.
pub(super) fn ask(name: &str, patience: Patience) -> Answer {
    let mut place = locked(&HELPERS[usize::from(patience == Patience::Rests)]);
    if place.rests_until.is_some_and(|until| Instant::now() < until) {
        return Answer::TooLong;
    }
    if place.helper.is_none() && IS_ALLOWED.load(Ordering::Acquire) && !IS_RECORDING.is_completed() {
        place.helper = Helper::start().ok();
    }
    let Some(helper) = &mut place.helper else { return Answer::Nobody };
    match helper.ask(name) {
        Ok(Some(name)) => Answer::Name(name),
        Ok(None) => {
            match patience {
                Patience::Pays => charge_thread(LIMIT),
                Patience::Rests => place.rests_until = Instant::now().checked_add(LIMIT * REST),
            }
            Answer::TooLong
        }
        Err(_) => {
            // It has ended: somebody has killed it.
            place.helper = None;
            Answer::Nobody
        }
    }
}

impl Helper {
    fn start() -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("jitprof").arg(ARGUMENT).env_clear();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => Ok(Self { child, to, from: BufReader::new(from) }),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn ask(&mut self, name: &str) -> io::Result<Option<(String, bool)>> {
        send(&mut self.to, &[], name.as_bytes())?;
        let mut answer = [0];
        self.from.read_exact(&mut answer)?;
        if answer == [TOO_LONG] {
            return Ok(None);
        }
        let text = receive(&mut self.from, MAX_NAME_BYTES)?;
        let text = String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Some((text, answer == [CUT])))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // The system may have done it.
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            tracing::debug!("the process that demangles is not waited for: {error}");
        }
    }
}

/// Has names demangled, by one process after the other. Each is started as any program is, and not forked: the unit forbids that.
fn serve() -> io::Result<()> {
    settle();
    std::env::set_current_dir("/")?;
    loop {
        let ended = Command::new("/proc/self/exe").arg0("jitprof").args([ARGUMENT, WORKER]).status()?;
        match ended.signal() {
            // It took too long, too much memory, or the stack.
            Some(libc::SIGPROF | libc::SIGABRT | libc::SIGSEGV) => io::stdout().write_all(&[TOO_LONG])?,
            _ => return Ok(()),
        }
        io::stdout().flush()?;
    }
}

fn settle() {
    let memory = libc::rlimit { rlim_cur: MEMORY_BYTES, rlim_max: MEMORY_BYTES };
    // SAFETY: plain numbers, and a structure and a string that are only read.
    unsafe {
        // It would be called after the link that it was started by.
        libc::prctl(libc::PR_SET_NAME, c"jitprof".as_ptr());
        libc::setrlimit(libc::RLIMIT_DATA, &raw const memory);
        // What a terminal or a service manager sends is for the recording, which still needs names then.
        for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGTERM] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::signal(libc::SIGPROF, libc::SIG_DFL);
    }
}

fn demangle_names() -> io::Result<()> {
    settle();
    let (mut from, mut to) = (BufReader::new(io::stdin().lock()), io::stdout().lock());
    loop {
        let name = match receive(&mut from, MAX_MANGLED_BYTES) {
            Ok(name) => String::from_utf8(name).map_err(|_| io::ErrorKind::InvalidData)?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        set_timer(LIMIT)?;
        let (text, was_cut) = cpp(&name, DEEP).unwrap_or_else(|_| cut(&name));
        set_timer(Duration::ZERO)?;
        send(&mut to, &[if was_cut { CUT } else { WHOLE }], text.as_bytes())?;
    }
}

/// Has the system kill this process after so much CPU time; no time: not any more.
fn set_timer(after: Duration) -> io::Result<()> {
    let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let after = libc::timeval { tv_usec: libc::suseconds_t::from(after.subsec_micros()), ..none };
    let timer = libc::itimerval { it_interval: none, it_value: after };
    // SAFETY: a structure that is only read.
    match unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn send(to: &mut impl Write, before: &[u8], bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    to.write_all(&[before, &length.to_le_bytes(), bytes].concat())?;
    to.flush()
}

fn receive(from: &mut impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > most {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}
