//! Demangling in a process of its own, which is killed when it takes too long.
//!
//! What cpp_demangle takes for a name may double with every two bytes of it (`na`, `nw`, `SaID1` over and over): a name of a
//! hundred bytes keeps it busy for ever, and a thread cannot be stopped. Programs are not compiled into such names; whoever
//! wants others to lose theirs writes them.
//!
//! Whoever asks waits for so long at most, however busy the machine is. An answer that comes later is nobody's, and no name is
//! sent before it has come.
//!
//! It begins before anything of a target is open: a process that is started has copies of all descriptors, and closing that of
//! a file system that does not answer would hold it up, and who waits for it. So the one that demangles is started anew by its
//! parent, which does nothing else.

use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};

use super::{DEEP, MAX_MANGLED_BYTES, MAX_NAME_BYTES, cpp, cut};
use crate::owners::{Holder, Owners};
use crate::process::apart::charge_thread;

/// Says to this program that it is the helper, and that it is the one that demangles.
const ARGUMENT: &str = "--demangle-names";
const WORKER: &str = "--worker";
/// CPU time that a name may take; those of Qt and Eigen take a millisecond.
const LIMIT: Duration = Duration::from_millis(20);
/// How long its answer is waited for: the system may be busy, or let all of jitprof have no more CPU time for a while.
const MAX_WAIT: Duration = Duration::from_millis(200);
/// What takes no longer is not put down to anybody: most names take a tenth of a millisecond.
const USUAL: Duration = Duration::from_millis(5);
/// Part of a thread's time that a holder's names may keep it which take longer, and those of all holders together; and what
/// they may take at once of that, in seconds.
const PART: f64 = 0.1;
const PART_OF_ALL: f64 = 0.5;
const AT_ONCE_S: f64 = 0.1;
const AT_ONCE_OF_ALL_S: f64 = 1.0;
/// What somebody may owe of it at most, as seconds at his rate.
const OWED_S: f64 = 60.0;
/// Memory that it may take.
const MEMORY_BYTES: libc::rlim_t = 64 << 20;

/// Bytes before those of a name, which say how many these are.
const LENGTH_BYTES: usize = size_of::<u32>();
/// How an answer begins: the name, its beginning, and that there is none.
const WHOLE: u8 = 0;
const CUT: u8 = 1;
const TOO_LONG: u8 = 2;

/// This program can be its own helper.
static IS_ALLOWED: AtomicBool = AtomicBool::new(false);
/// It is started no more.
static IS_RECORDING: Once = Once::new();
/// One for each of those who ask: nobody waits for names that are no business of his.
static HELPERS: [Mutex<Place>; 2] = [const { Mutex::new(Place { helper: None, kept: None }) }; 2];

/// What becomes of somebody who has asked for too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Its thread's account is charged: it works for one user at a time.
    Pays,
    /// Nothing of this holder's is asked for for a while: others wait for the thread.
    Rests(Option<Holder>),
}

/// What comes of asking.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The name, and whether it was cut.
    Name((String, bool)),
    TooLong,
    /// It was not asked for: the answer about an earlier one has not come yet.
    Owed,
    /// There is no helper.
    Nobody,
}

/// Where a helper is, if there is one.
struct Place {
    helper: Option<Helper>,
    kept: Option<Kept>,
}

/// What a thread for which others wait has been kept by names that took long, by whose they are and in all.
struct Kept {
    by: Owners<Option<Holder>>,
    by_all: Owners<()>,
}

impl Default for Kept {
    fn default() -> Self {
        let by_all = Owners::starting_with(AT_ONCE_OF_ALL_S, OWED_S);
        Self { by: Owners::starting_with(AT_ONCE_S, OWED_S), by_all }
    }
}

impl Kept {
    fn may_be(&self, by: Option<Holder>, now: Instant) -> bool {
        self.by.may_spend(by, PART, now) && self.by_all.may_spend((), PART_OF_ALL, now)
    }

    fn note(&mut self, by: Option<Holder>, time: Duration, now: Instant) {
        self.by.spend(by, PART, now, time.as_secs_f64());
        self.by_all.spend((), PART_OF_ALL, now, time.as_secs_f64());
    }
}

struct Helper {
    child: Child,
    pipes: Pipes<ChildStdin, ChildStdout>,
}

/// This process' end of two pipes. A name goes there as its length and its bytes; what comes back has a byte before that.
struct Pipes<W, R> {
    to: W,
    from: R,
    /// Bytes that go there without being waited for, while nothing is on the way.
    room: usize,
    /// A name has gone there whose answer has not come, or not all of it.
    is_owed: bool,
    /// What has come of it.
    got: Vec<u8>,
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
    let mut place = locked(&HELPERS[usize::from(patience != Patience::Pays)]);
    if let Patience::Rests(by) = patience
        && !place.kept.get_or_insert_default().may_be(by, Instant::now())
    {
        return Answer::TooLong;
    }
    if place.helper.is_none() && IS_ALLOWED.load(Ordering::Acquire) && !IS_RECORDING.is_completed() {
        place.helper = Helper::start().ok();
    }
    let Some(helper) = &mut place.helper else { return Answer::Nobody };
    let asked = Instant::now();
    let Ok(answer) = helper.pipes.ask(name, MAX_WAIT) else {
        // It has ended: somebody has killed it.
        place.helper = None;
        return Answer::Nobody;
    };
    let took = asked.elapsed().max(if answer == Answer::TooLong { LIMIT } else { Duration::ZERO });
    match patience {
        _ if took <= USUAL => {}
        // Waiting takes no CPU time.
        Patience::Pays => charge_thread(took.min(LIMIT)),
        Patience::Rests(by) => place.kept.get_or_insert_default().note(by, took, Instant::now()),
    }
    answer
}

impl Helper {
    fn start() -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("jitprof").arg(ARGUMENT).env_clear();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => Ok(Self { child, pipes: Pipes::new(to, from) }),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl<W: Write + AsFd, R: Read + AsFd> Pipes<W, R> {
    fn new(to: W, from: R) -> Self {
        // As the system makes it, there is no room for the longest names.
        let room = fcntl_setpipe_size(&to, MAX_MANGLED_BYTES + LENGTH_BYTES).or_else(|_| fcntl_getpipe_size(&to));
        let room = room.unwrap_or_default();
        Self { to, from, room, is_owed: false, got: Vec::new() }
    }

    /// Asks, and waits for so long at most.
    fn ask(&mut self, name: &str, limit: Duration) -> io::Result<Answer> {
        if self.is_owed && self.take(Duration::ZERO)?.is_none() {
            return Ok(Answer::Owed);
        }
        if name.len().saturating_add(LENGTH_BYTES) > self.room {
            return Ok(Answer::Nobody);
        }
        self.is_owed = true;
        send(&mut self.to, &[], name.as_bytes())?;
        Ok(self.take(limit)?.unwrap_or(Answer::TooLong))
    }

    /// The answer that is owed, if it comes within so long.
    fn take(&mut self, limit: Duration) -> io::Result<Option<Answer>> {
        let deadline = Instant::now() + limit;
        let mut block = [0; MAX_NAME_BYTES];
        loop {
            if let Some(answer) = answer_in(&self.got)? {
                self.is_owed = false;
                self.got.clear();
                return Ok(Some(answer));
            }
            if !is_readable(&self.from, deadline)? {
                return Ok(None);
            }
            match self.from.read(&mut block)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => self.got.extend_from_slice(&block[..read]),
            }
        }
    }
}

/// The answer that these bytes are, once all of it is there.
fn answer_in(bytes: &[u8]) -> io::Result<Option<Answer>> {
    let [kind, a, b, c, d, text @ ..] = bytes else {
        return Ok((bytes == [TOO_LONG]).then_some(Answer::TooLong));
    };
    let length = usize::try_from(u32::from_le_bytes([*a, *b, *c, *d])).unwrap_or(usize::MAX);
    if !matches!(*kind, WHOLE | CUT) || length > MAX_NAME_BYTES || text.len() > length {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if text.len() < length {
        return Ok(None);
    }
    let text = String::from_utf8(text.to_vec()).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Some(Answer::Name((text, *kind == CUT))))
}

/// Whether there is something to be read, or that it has ended, by then.
fn is_readable(from: &impl AsFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
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
        // One that panics costs no other one its demangler.
        let demangled = std::panic::catch_unwind(|| cpp(&name, DEEP)).ok().and_then(Result::ok);
        let (text, was_cut) = demangled.unwrap_or_else(|| cut(&name));
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

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, PipeWriter, pipe};
    use std::thread;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    /// Both ends of the pipes of a helper.
    fn pipes() -> (Pipes<PipeWriter, PipeReader>, PipeReader, PipeWriter) {
        let ((questions, to), (from, answers)) = (pipe().unwrap(), pipe().unwrap());
        (Pipes::new(to, from), questions, answers)
    }

    fn whole(name: &str) -> Answer {
        Answer::Name((name.to_owned(), false))
    }

    #[test]
    fn an_answer_is_waited_for_so_long_and_one_that_comes_later_is_nobody_s() {
        let (mut own, mut questions, mut answers) = pipes();
        let begun = Instant::now();
        assert_eq!(own.ask("late", SHORT).unwrap(), Answer::TooLong);
        assert!(begun.elapsed() >= SHORT);
        assert_eq!(own.ask("second", LONG).unwrap(), Answer::Owed, "nor is it waited for once more");
        assert_eq!(receive(&mut questions, 10).unwrap(), b"late");
        // Half of it.
        answers.write_all(&[WHOLE, 6, 0]).unwrap();
        assert_eq!(own.ask("third", LONG).unwrap(), Answer::Owed);
        answers.write_all(&[0, 0, b'n', b'o', b'b', b'o', b'd', b'y']).unwrap();
        let helper = thread::spawn(move || {
            let name = receive(&mut questions, 10).unwrap();
            send(&mut answers, &[WHOLE], &name.to_ascii_uppercase()).unwrap();
            let last = receive(&mut questions, 10).unwrap();
            answers.write_all(&[TOO_LONG]).unwrap();
            (name, last, questions)
        });
        assert_eq!(own.ask("fourth", LONG).unwrap(), whole("FOURTH"));
        assert_eq!(own.ask("fifth", LONG).unwrap(), Answer::TooLong);
        let (fourth, fifth, _open) = helper.join().unwrap();
        assert_eq!((&*fourth, &*fifth), (&b"fourth"[..], &b"fifth"[..]));
        assert!(own.ask("sixth", LONG).is_err(), "it has ended");
    }

    #[test]
    fn a_name_for_which_there_is_no_room_is_not_sent() {
        let (mut own, questions, _answers) = pipes();
        let room = own.room;
        assert!(room >= MAX_MANGLED_BYTES + LENGTH_BYTES);
        let name = "x".repeat(room);
        assert_eq!(own.ask(&name, SHORT).unwrap(), Answer::Nobody);
        // What fits goes there at once, although nobody reads it.
        assert_eq!(own.ask(&name[LENGTH_BYTES..], SHORT).unwrap(), Answer::TooLong);
        drop(questions);
    }

    /// What these keep a thread in a minute, each with a name of 20 ms whenever he may have one, in seconds.
    fn kept_by(kept: &mut Kept, holders: &[Option<Holder>], start: Instant) -> f64 {
        let mut kept_s = 0.0;
        for ms in (0..60_000).step_by(5) {
            let now = start + Duration::from_millis(ms);
            for by in holders {
                if kept.may_be(*by, now) {
                    kept.note(*by, LIMIT, now);
                    kept_s += LIMIT.as_secs_f64();
                }
            }
        }
        kept_s
    }

    #[test]
    fn who_has_names_that_take_long_keeps_others_from_none_of_theirs() {
        let (mut kept, start) = (Kept::default(), Instant::now());
        let [one, other] = [1000, 1001].map(|user| Some(Holder::User(user)));
        let kept_s = kept_by(&mut kept, &[one], start);
        let most = AT_ONCE_S + 60.0 * PART + 2.0 * LIMIT.as_secs_f64();
        assert!((60.0 * PART..=most).contains(&kept_s), "{kept_s}");
        let end = start + Duration::from_secs(60);
        assert!(kept.may_be(other, end) && kept.may_be(None, end));
        (0..10).for_each(|_| kept.note(one, LIMIT, end));
        assert!(!kept.may_be(one, end) && kept.may_be(other, end));
    }

    #[test]
    fn all_together_keep_a_thread_for_no_more_than_half_of_its_time() {
        let holders: Vec<_> = (0..40).map(|user| Some(Holder::User(user))).collect();
        let kept_s = kept_by(&mut Kept::default(), &holders, Instant::now());
        let most = AT_ONCE_OF_ALL_S + 60.0 * PART_OF_ALL + 2.0 * LIMIT.as_secs_f64();
        assert!((60.0 * PART_OF_ALL..=most).contains(&kept_s), "{kept_s}");
    }

    #[test]
    fn what_is_no_answer_is_none() {
        assert_eq!(answer_in(&[]).unwrap(), None);
        assert_eq!(answer_in(&[CUT, 1, 0, 0, 0]).unwrap(), None);
        assert_eq!(answer_in(&[CUT, 1, 0, 0, 0, b'x']).unwrap(), Some(Answer::Name(("x".to_owned(), true))));
        assert_eq!(answer_in(&[WHOLE, 0, 0, 0, 0]).unwrap(), Some(whole("")));
        for wrong in
            [[7, 1, 0, 0, 0, b'x'], [WHOLE, 0, 0, 0, 0, b'x'], [CUT, 0, 0, 1, 0, b'x'], [CUT, 1, 0, 0, 0, 0xff]]
        {
            assert!(answer_in(&wrong).is_err(), "{wrong:?}");
        }
    }
}
