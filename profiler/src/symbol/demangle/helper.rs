//! Demangling in a process of its own, which is killed when it takes too long.
//!
//! What cpp_demangle takes for a name may double with every two bytes of it (`na`, `nw`, `SaID1` over and over): a name of a
//! hundred bytes keeps it busy for ever, and a thread cannot be stopped. Programs are not compiled into such names; whoever
//! wants others to lose theirs writes them.
//!
//! Whoever asks waits for so long at most, however busy the machine is. An answer that comes later is nobody's, and no name is
//! sent before it has come. What a name takes is put down to whose it is, and nobody pays twice for the same one.
//!
//! It begins before anything of a target is open: a process that is started has copies of all descriptors, and closing that of
//! a file system that does not answer would hold it up, and who waits for it. So the one that demangles is started anew by its
//! parent, which does nothing else.

use std::collections::HashMap;
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
use crate::cost::thread_cpu_time;
use crate::owners::{Holder, Owners};
use crate::process::apart::charge_thread;

/// Says to this program that it is the helper, and that it is the one that demangles.
const ARGUMENT: &str = "--demangle-names";
const WORKER: &str = "--worker";
/// CPU time that a name may take; those of Qt and Eigen take a millisecond.
const LIMIT: Duration = Duration::from_millis(20);
/// How long its answer is waited for: the system may be busy, or let all of jitprof have no more CPU time for a while.
const MAX_WAIT: Duration = Duration::from_millis(200);
/// What is put down besides the CPU time that a name has taken, at most: its way there and back. It takes a twentieth of a
/// millisecond; what it takes longer on a busy machine is nobody's fault.
const MAX_WAY: Duration = Duration::from_micros(100);
/// What takes no longer is not put down where no holder is given: who asks so keeps nobody else waiting.
const USUAL_OF_NOBODY: Duration = Duration::from_millis(5);
/// Part of a thread's time that a holder's names may keep it, and those of all holders together; and what they may take at
/// once of that, in seconds. Most names take a tenth of a millisecond: a program has two thousand of them at its start.
const PART: f64 = 0.05;
const PART_OF_ALL: f64 = 0.1;
const AT_ONCE_S: f64 = 0.25;
const AT_ONCE_OF_ALL_S: f64 = 0.5;
/// The same of what is left to the quiet ones after the others have taken theirs: to those that have taken no more than so many
/// seconds lately, which are five hundred names.
const PART_OF_QUIET: f64 = 0.05;
const QUIET_S: f64 = 0.05;
/// What somebody may owe of it at most, as seconds at his rate.
const OWED_S: f64 = 60.0;
/// Answers that are known at most, and bytes of a name whose answer is: four megabytes at worst, and the names of a program.
const MAX_KNOWN: usize = 512;
const MAX_KNOWN_NAME: usize = MAX_NAME_BYTES;
/// Memory that it may take.
const MEMORY_BYTES: libc::rlim_t = 64 << 20;

/// Bytes before those of a name, which say how many these are.
const LENGTH_BYTES: usize = size_of::<u32>();
/// Bytes before those of an answer: of what kind it is, the microseconds of CPU time that it has taken, and its length.
const HEAD_BYTES: usize = 1 + 2 * LENGTH_BYTES;
/// How an answer begins: the name, its beginning, and that there is none.
const WHOLE: u8 = 0;
const CUT: u8 = 1;
const TOO_LONG: u8 = 2;

/// This program can be its own helper.
static IS_ALLOWED: AtomicBool = AtomicBool::new(false);
/// It is started no more.
static IS_RECORDING: Once = Once::new();
/// One for each of those who ask: nobody waits for names that are no business of his.
static HELPERS: [Mutex<Place>; 2] = [const { Mutex::new(Place { helper: None, kept: None, known: None }) }; 2];

/// What becomes of somebody who has asked for too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Its thread's account is charged: it works for one user at a time.
    Pays,
    /// Nothing of this holder's is asked for for a while: others wait for the thread.
    Rests(Option<Holder>),
}

/// What comes of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The name, and whether it was cut.
    Name((String, bool)),
    /// It stays as it is.
    TooLong,
    /// It was not asked for, or its answer is not waited for any longer: there may be one another time.
    NotNow,
    /// There is no helper.
    Nobody,
}

/// What a name has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Took {
    /// CPU time of the helper.
    cpu: Duration,
    /// The time of who has waited for it, as far as that was the name's doing.
    kept: Duration,
}

impl Took {
    /// Of one that was not demangled.
    fn waiting(kept: Duration) -> Self {
        Self { cpu: kept.min(LIMIT), kept }
    }
}

/// Where a helper is, if there is one.
struct Place {
    helper: Option<Helper>,
    kept: Option<Kept>,
    known: Option<Known>,
}

/// The answers that came last, in two halves: when the newer one is full, the older one goes. Whoever wants those of others to
/// go has names of his own demangled, and pays for them.
#[derive(Default)]
struct Known {
    newer: HashMap<Box<str>, Answer>,
    older: HashMap<Box<str>, Answer>,
}

impl Known {
    fn get(&self, name: &str) -> Option<&Answer> {
        // Whoever looks for what is not kept pays nothing.
        if name.len() > MAX_KNOWN_NAME {
            return None;
        }
        self.newer.get(name).or_else(|| self.older.get(name))
    }

    /// Notes an answer, if it is the last word.
    fn note(&mut self, name: &str, answer: &Answer) {
        if name.len() > MAX_KNOWN_NAME || !matches!(answer, Answer::Name(_) | Answer::TooLong) {
            return;
        }
        if self.newer.len() >= MAX_KNOWN / 2 {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(name.into(), answer.clone());
    }
}

/// What a thread for which others wait has been kept by names, by whose they are and of which share.
struct Kept {
    by: Owners<Option<Holder>>,
    by_all: Owners<Share>,
}

/// What names take their time from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Share {
    /// That of all.
    All,
    /// That of users who have taken next to nothing lately.
    QuietUsers,
    /// The same of processes of root's, of which somebody may have as many as he likes: what they take, users do not lack.
    QuietProcesses,
}

impl Share {
    fn of_quiet(by: Option<Holder>) -> Self {
        if matches!(by, Some(Holder::Process(..))) { Self::QuietProcesses } else { Self::QuietUsers }
    }

    fn part(self) -> f64 {
        if self == Self::All { PART_OF_ALL } else { PART_OF_QUIET }
    }
}

impl Default for Kept {
    fn default() -> Self {
        let by_all = Owners::starting_with(AT_ONCE_OF_ALL_S, OWED_S);
        Self { by: Owners::starting_with(AT_ONCE_S, OWED_S), by_all }
    }
}

impl Kept {
    /// From what a name of this holder's may take its time, if it may have any.
    fn share_of(&self, by: Option<Holder>, now: Instant) -> Option<Share> {
        if !self.by.may_spend(by, PART, now) {
            return None;
        }
        let is_quiet = self.by.spent_s(by, PART, now) <= QUIET_S;
        let mut shares = std::iter::once(Share::All).chain(is_quiet.then(|| Share::of_quiet(by)));
        shares.find(|share| self.by_all.may_spend(*share, share.part(), now))
    }

    fn note(&mut self, (by, share): (Option<Holder>, Share), time: Duration, now: Instant) {
        if by.is_none() && time <= USUAL_OF_NOBODY {
            return;
        }
        self.by.spend(by, PART, now, time.as_secs_f64());
        self.by_all.spend(share, share.part(), now, time.as_secs_f64());
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
    if let Some(known) = place.known.as_ref().and_then(|known| known.get(name)) {
        return known.clone();
    }
    let by = match patience {
        Patience::Pays => None,
        Patience::Rests(by) => match place.kept.get_or_insert_default().share_of(by, Instant::now()) {
            Some(share) => Some((by, share)),
            None => return Answer::NotNow,
        },
    };
    let (answer, took) = place.ask(name);
    match (by, &mut place.kept) {
        (Some(by), Some(kept)) => kept.note(by, took.kept, Instant::now()),
        _ => charge_thread(took.cpu),
    }
    place.known.get_or_insert_default().note(name, &answer);
    answer
}

/// A holder's names have kept a thread for so long more, or less.
#[cfg(test)]
pub(crate) fn spend_on_names(holder: Holder, seconds: f64) {
    locked(&HELPERS[1]).kept.get_or_insert_default().by.spend(Some(holder), PART, Instant::now(), seconds);
}

impl Place {
    /// Asks the helper, which is started if there may be one. Says what that has taken.
    fn ask(&mut self, name: &str) -> (Answer, Took) {
        if self.helper.is_none() && IS_ALLOWED.load(Ordering::Acquire) && !IS_RECORDING.is_completed() {
            self.helper = Helper::start().ok();
        }
        let Some(helper) = &mut self.helper else { return (Answer::Nobody, Took::default()) };
        helper.pipes.ask(name, MAX_WAIT).unwrap_or_else(|_| {
            // It has ended: somebody has killed it.
            self.helper = None;
            (Answer::Nobody, Took::default())
        })
    }
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

    /// Asks, and waits for so long at most. Says what that has taken.
    fn ask(&mut self, name: &str, limit: Duration) -> io::Result<(Answer, Took)> {
        if self.is_owed && self.take(Duration::ZERO)?.is_none() {
            return Ok((Answer::NotNow, Took::default()));
        }
        if name.len().saturating_add(LENGTH_BYTES) > self.room {
            return Ok((Answer::Nobody, Took::default()));
        }
        self.is_owed = true;
        let asked = Instant::now();
        send(&mut self.to, &[], name.as_bytes())?;
        Ok(match self.take(limit)? {
            Some((Answer::TooLong, cpu)) => (Answer::TooLong, Took::waiting(asked.elapsed().max(cpu))),
            Some((answer, cpu)) => (answer, Took { cpu, kept: asked.elapsed().min(cpu.saturating_add(MAX_WAY)) }),
            None => (Answer::NotNow, Took::waiting(asked.elapsed())),
        })
    }

    /// The answer that is owed, if it comes within so long.
    fn take(&mut self, limit: Duration) -> io::Result<Option<(Answer, Duration)>> {
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

/// The answer that these bytes are, once all of it is there, and what CPU time it has taken.
fn answer_in(bytes: &[u8]) -> io::Result<Option<(Answer, Duration)>> {
    let Some((head, text)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
        return Ok((bytes == [TOO_LONG]).then_some((Answer::TooLong, LIMIT)));
    };
    let [kind, a, b, c, d, e, f, g, h] = *head;
    let time = Duration::from_micros(u32::from_le_bytes([a, b, c, d]).into());
    let length = usize::try_from(u32::from_le_bytes([e, f, g, h])).unwrap_or(usize::MAX);
    if !matches!(kind, WHOLE | CUT) || length > MAX_NAME_BYTES || text.len() > length {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if text.len() < length {
        return Ok(None);
    }
    let text = String::from_utf8(text.to_vec()).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Some((Answer::Name((text, kind == CUT)), time)))
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
        let begun = thread_cpu_time();
        set_timer(LIMIT)?;
        // One that panics costs no other one its demangler.
        let demangled = std::panic::catch_unwind(|| cpp(&name, DEEP)).ok().and_then(Result::ok);
        let (text, was_cut) = demangled.unwrap_or_else(|| cut(&name));
        set_timer(Duration::ZERO)?;
        let took = thread_cpu_time().saturating_sub(begun);
        send(&mut to, &head(if was_cut { CUT } else { WHOLE }, took), text.as_bytes())?;
    }
}

/// How an answer begins, before its length.
fn head(kind: u8, took: Duration) -> [u8; HEAD_BYTES - LENGTH_BYTES] {
    let [a, b, c, d] = u32::try_from(took.as_micros()).unwrap_or(u32::MAX).to_le_bytes();
    [kind, a, b, c, d]
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

    /// What is answered, whatever it has taken.
    fn answer(own: &mut Pipes<PipeWriter, PipeReader>, name: &str, limit: Duration) -> Answer {
        own.ask(name, limit).unwrap().0
    }

    #[test]
    fn an_answer_is_waited_for_so_long_and_one_that_comes_later_is_nobody_s() {
        let (mut own, mut questions, mut answers) = pipes();
        let (late, took) = own.ask("late", SHORT).unwrap();
        assert!(late == Answer::NotNow && took.kept >= SHORT && took.cpu == LIMIT, "{late:?} {took:?}");
        let second = own.ask("second", LONG).unwrap();
        assert_eq!(second, (Answer::NotNow, Took::default()), "nor is it waited for once more");
        assert_eq!(receive(&mut questions, 10).unwrap(), b"late");
        // Half of it.
        answers.write_all(&[WHOLE, 1, 0, 0, 0, 6, 0]).unwrap();
        assert_eq!(answer(&mut own, "third", LONG), Answer::NotNow);
        answers.write_all(&[0, 0, b'n', b'o', b'b', b'o', b'd', b'y']).unwrap();
        let helper = thread::spawn(move || {
            let name = receive(&mut questions, 10).unwrap();
            send(&mut answers, &head(WHOLE, SHORT), &name.to_ascii_uppercase()).unwrap();
            let last = receive(&mut questions, 10).unwrap();
            answers.write_all(&[TOO_LONG]).unwrap();
            (name, last, questions)
        });
        assert_eq!(answer(&mut own, "fourth", LONG), whole("FOURTH"));
        let (fifth, took) = own.ask("fifth", LONG).unwrap();
        assert!(fifth == Answer::TooLong && took.kept >= LIMIT && took.cpu == LIMIT, "{fifth:?} {took:?}");
        let (fourth, fifth, _open) = helper.join().unwrap();
        assert_eq!((&*fourth, &*fifth), (&b"fourth"[..], &b"fifth"[..]));
        assert!(own.ask("sixth", LONG).is_err(), "it has ended");
    }

    #[test]
    fn what_a_name_has_taken_is_its_cpu_time_however_long_the_machine_lets_it_wait() {
        let (mut own, mut questions, mut answers) = pipes();
        let cpu = Duration::from_micros(300);
        let helper = thread::spawn(move || {
            let name = receive(&mut questions, 10).unwrap();
            thread::sleep(SHORT);
            send(&mut answers, &head(WHOLE, cpu), &name).unwrap();
            questions
        });
        assert_eq!(own.ask("name", LONG).unwrap(), (whole("name"), Took { cpu, kept: cpu + MAX_WAY }));
        drop(helper.join().unwrap());
    }

    #[test]
    fn a_name_for_which_there_is_no_room_is_not_sent() {
        let (mut own, questions, _answers) = pipes();
        let room = own.room;
        assert!(room >= MAX_MANGLED_BYTES + LENGTH_BYTES);
        let name = "x".repeat(room);
        assert_eq!(answer(&mut own, &name, SHORT), Answer::Nobody);
        // What fits goes there at once, although nobody reads it.
        assert_eq!(answer(&mut own, &name[LENGTH_BYTES..], SHORT), Answer::NotNow);
        drop(questions);
    }

    #[test]
    fn nobody_pays_twice_for_a_name_and_what_may_come_later_is_not_known() {
        let mut known = Known::default();
        known.note("name", &whole("shown"));
        known.note("endless", &Answer::TooLong);
        known.note("later", &Answer::NotNow);
        known.note("nobody", &Answer::Nobody);
        let get = |known: &Known, name| known.get(name).cloned();
        assert_eq!((get(&known, "name"), get(&known, "endless")), (Some(whole("shown")), Some(Answer::TooLong)));
        assert_eq!((get(&known, "later"), get(&known, "nobody")), (None, None));
        (0..MAX_KNOWN).for_each(|number| known.note(&number.to_string(), &Answer::TooLong));
        let last = (MAX_KNOWN - 1).to_string();
        assert!(get(&known, "name").is_none() && get(&known, &last).is_some());
        assert!(known.newer.len() + known.older.len() <= MAX_KNOWN);
        known.note(&"x".repeat(MAX_KNOWN_NAME + 1), &Answer::TooLong);
        assert!(get(&known, &"x".repeat(MAX_KNOWN_NAME + 1)).is_none(), "it is too long to be kept");
    }

    #[test]
    fn who_may_have_nothing_more_has_the_names_that_are_known() {
        let holder = Holder::User(4_000_000_000);
        spend_on_names(holder, OWED_S);
        locked(&HELPERS[1]).known.get_or_insert_default().note("_Z1fA1", &whole("f"));
        assert_eq!(ask("_Z1fA2", Patience::Rests(Some(holder))), Answer::NotNow);
        assert_eq!(ask("_Z1fA1", Patience::Rests(Some(holder))), whole("f"));
    }

    /// What these keep a thread in a minute, each with a name that takes so long whenever he may have one, in seconds.
    fn kept_by(kept: &mut Kept, holders: &[Option<Holder>], took: Duration, start: Instant) -> f64 {
        let mut kept_s = 0.0;
        for ms in (0..60_000).step_by(5) {
            let now = start + Duration::from_millis(ms);
            for by in holders {
                if let Some(share) = kept.share_of(*by, now) {
                    kept.note((*by, share), took, now);
                    kept_s += took.as_secs_f64();
                }
            }
        }
        kept_s
    }

    fn processes() -> Vec<Option<Holder>> {
        (0..12).map(|pid| Some(Holder::Process(jitprof_common::units::Pid(pid), 1))).collect()
    }

    #[test]
    fn who_has_names_that_take_long_keeps_others_from_none_of_theirs() {
        let [one, other] = [1000, 1001].map(|user| Some(Holder::User(user)));
        // Names that nobody would call slow are as dear to others if there are many of them.
        for took in [LIMIT, Duration::from_micros(4_900)] {
            let (mut kept, start) = (Kept::default(), Instant::now());
            let kept_s = kept_by(&mut kept, &[one], took, start);
            let most = AT_ONCE_S + 60.0 * PART + 2.0 * LIMIT.as_secs_f64();
            assert!((60.0 * PART..=most).contains(&kept_s), "{kept_s}");
            let end = start + Duration::from_secs(60);
            assert!(kept.share_of(other, end).is_some() && kept.share_of(None, end).is_some());
            (0..30).for_each(|_| kept.note((one, Share::All), LIMIT, end));
            assert!(kept.share_of(one, end).is_none());
        }
    }

    #[test]
    fn many_names_that_take_no_time_to_speak_of_are_put_down_all_the_same() {
        let (mut kept, start, by) = (Kept::default(), Instant::now(), Some(Holder::User(1000)));
        let usual = Duration::from_micros(190);
        let count = (0..10_000).take_while(|_| {
            let share = kept.share_of(by, start);
            share.inspect(|share| kept.note((by, *share), usual, start)).is_some()
        });
        let count = count.count();
        assert!((1_000..2_000).contains(&count), "{count}");
        // For nobody there is nobody else who would wait.
        (0..10_000).for_each(|_| kept.note((None, Share::All), usual, start));
        assert!(kept.share_of(None, start).is_some());
    }

    #[test]
    fn all_together_keep_a_thread_for_a_part_of_its_time() {
        let kept_s = kept_by(&mut Kept::default(), &processes(), LIMIT, Instant::now());
        let part = PART_OF_ALL + PART_OF_QUIET;
        let most = 2.0 * AT_ONCE_OF_ALL_S + 60.0 * part + 4.0 * LIMIT.as_secs_f64();
        assert!((60.0 * part..=most).contains(&kept_s), "{kept_s}");
    }

    #[test]
    fn a_quiet_user_has_his_names_however_many_processes_want_theirs() {
        let (mut kept, start, quiet) = (Kept::default(), Instant::now(), Some(Holder::User(1000)));
        kept_by(&mut kept, &processes(), LIMIT, start);
        let end = start + Duration::from_secs(60);
        (0..4).for_each(|_| kept.note((processes()[0], Share::All), LIMIT, end));
        assert_eq!(kept.share_of(quiet, end), Some(Share::QuietUsers));
        // And after he has had some he is one of all.
        (0..3).for_each(|_| kept.note((quiet, Share::QuietUsers), LIMIT, end));
        assert_eq!(kept.share_of(quiet, end), None);
        assert!(kept.share_of(quiet, end + Duration::from_secs(2)).is_some(), "until he is quiet again");
    }

    #[test]
    fn what_is_no_answer_is_none() {
        let took = Duration::from_micros(258);
        assert_eq!(answer_in(&[]).unwrap(), None);
        assert_eq!(answer_in(&[CUT, 2, 1, 0, 0, 1, 0, 0, 0]).unwrap(), None);
        let one = Answer::Name(("x".to_owned(), true));
        assert_eq!(answer_in(&[CUT, 2, 1, 0, 0, 1, 0, 0, 0, b'x']).unwrap(), Some((one, took)));
        assert_eq!(answer_in(&[WHOLE, 2, 1, 0, 0, 0, 0, 0, 0]).unwrap(), Some((whole(""), took)));
        for wrong in [
            [7, 0, 0, 0, 0, 1, 0, 0, 0, b'x'],
            [WHOLE, 0, 0, 0, 0, 0, 0, 0, 0, b'x'],
            [CUT, 0, 0, 0, 0, 0, 0, 1, 0, b'x'],
            [CUT, 0, 0, 0, 0, 1, 0, 0, 0, 0xff],
        ] {
            assert!(answer_in(&wrong).is_err(), "{wrong:?}");
        }
    }
}
