//! Demangling in a process of its own, which is killed when it takes too long.
//!
//! What cpp_demangle takes for a name may double with every two bytes of it (`na`, `nw`, `SaID1` over and over): a name of a
//! hundred bytes keeps it busy for ever, and a thread cannot be stopped. Programs are not compiled into such names; whoever
//! wants others to lose theirs writes them.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{DEEP, MAX_MANGLED_BYTES, MAX_NAME_BYTES, cpp, cut};
use crate::process::apart::charge_thread;

/// Says to this program that it is the helper.
const ARGUMENT: &str = "--demangle-names";
/// CPU time that a name may take; those of Qt and Eigen take a millisecond.
const LIMIT: Duration = Duration::from_millis(20);
/// For so many times that it rests.
const REST: u32 = 9;
/// Memory that it may take.
const MEMORY_BYTES: libc::rlim_t = 256 << 20;

/// This program can be its own helper.
static IS_ALLOWED: AtomicBool = AtomicBool::new(false);
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

/// Where a helper is, if there is one.
struct Place {
    helper: Option<Helper>,
    rests_until: Option<Instant>,
}

/// Its end of two pipes. A name goes there as its length and its bytes; what comes back has a byte before that which says
/// whether it was cut.
struct Helper {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// For the beginning of a program: does what the helper does, if it is to be one; else it may have one from now on.
pub(crate) fn serve_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|argument| argument == ARGUMENT) && arguments.next().is_none() {
        return Some(serve().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS));
    }
    IS_ALLOWED.store(true, Ordering::Release);
    None
}

/// Whether there may be one.
pub(super) fn is_allowed() -> bool {
    IS_ALLOWED.load(Ordering::Acquire)
}

/// Demangles a name; nothing if that takes too long, or if there can be no helper. Not for what has descriptors of its own: the
/// pipes are this process'.
pub(super) fn ask(name: &str, patience: Patience) -> Option<(String, bool)> {
    let place = &HELPERS[usize::from(patience == Patience::Rests)];
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    if place.rests_until.is_some_and(|until| Instant::now() < until) {
        return None;
    }
    if place.helper.is_none() {
        place.helper = Helper::start().ok();
    }
    let answer = place.helper.as_mut()?.ask(name);
    if answer.is_err() {
        // It is killed with that, if it was not.
        place.helper = None;
        match patience {
            Patience::Pays => charge_thread(LIMIT),
            Patience::Rests => place.rests_until = Instant::now().checked_add(LIMIT * REST),
        }
    }
    answer.ok()
}

impl Helper {
    fn start() -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("jitprof").arg(ARGUMENT).env_clear().current_dir("/");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => Ok(Self { child, to, from: BufReader::new(from) }),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn ask(&mut self, name: &str) -> io::Result<(String, bool)> {
        send(&mut self.to, &[], name.as_bytes())?;
        let mut was_cut = [0];
        self.from.read_exact(&mut was_cut)?;
        let text = receive(&mut self.from, MAX_NAME_BYTES)?;
        let text = String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok((text, was_cut != [0]))
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

fn serve() -> io::Result<()> {
    let memory = libc::rlimit { rlim_cur: MEMORY_BYTES, rlim_max: MEMORY_BYTES };
    // SAFETY: plain numbers, and a structure and a string that are only read.
    unsafe {
        // It would be called after the link that it was started by.
        libc::prctl(libc::PR_SET_NAME, c"jitprof".as_ptr());
        libc::setrlimit(libc::RLIMIT_DATA, &raw const memory);
        // Ctrl-C of a terminal is for the recording, which still needs names then.
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
        libc::signal(libc::SIGPROF, libc::SIG_DFL);
    }
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
        send(&mut to, &[u8::from(was_cut)], text.as_bytes())?;
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
