//! The worker's side: files loaded so far, and the answers from them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::credit::{Use, payer};
use super::frame::Frame;
use super::kernel::{Kernel, KernelNow};
use super::native::{Names, Native};
use super::stats::{SymbolStats, Unresolved};
use super::worker::{Lane, Name, NameAnswer, Shared, Step, SymbolKey};
use crate::cost::{Activity, Phases, thread_cpu_time};
use crate::owners::Owner;
use crate::process::open::FileId;
use jitprof_common::units::{Avma, FileOffset};

/// Bytes of copies, and of what is parsed of them, loaded at once; the least recently used file is dropped, and loaded again when needed.
pub const MAX_LOADED_BYTES: u64 = 512 << 20;
/// Files remembered as loaded before.
const MAX_SEEN: usize = 1 << 16;
/// CPU time that a look-up may take in a loaded file, and what all of them in one owner's files may take beyond that: much of
/// it is parsed only when it is asked for. With more, each look-up is paid for as loading is in those of his files that have
/// taken more than so much of it.
const LOOK_UP: Duration = Duration::from_millis(1);
const BEYOND: Duration = Duration::from_secs(2);
const BEYOND_IN_FILE: Duration = Duration::from_millis(100);
/// Owners at most of whom it is known what look-ups in their files have taken.
const MAX_OWNERS: usize = 1024;
/// Files loaded at once; each copy is a descriptor or two.
const MAX_LOADED_FILES: usize = 128;

/// What a worker has loaded. It lives on the worker's thread, because blazesym is made for one thread.
#[derive(Default)]
pub(super) struct Loaded {
    files: HashMap<FileId, File>,
    kernel: KernelNow,
    names: Names,
    bytes: u64,
    clock: u64,
    /// Files that have been loaded once.
    seen: HashSet<FileId>,
    /// Whose names are being looked up, and whether in a file that was loaded again: what is spent is on that account.
    last: (Lane, bool),
    /// What look-ups have taken, by whose the files are.
    look_ups: HashMap<Owner, LookUps>,
    /// This thread's CPU time when it was last put down to somebody.
    spent: Duration,
}

struct File {
    native: Result<Native, Unresolved>,
    last_used: u64,
    used_at: Instant,
    look_ups: LookUps,
}

/// What look-ups in a file, or in those of an owner, have taken beyond what each may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct LookUps(Duration);

impl LookUps {
    fn note(&mut self, spent: Duration) {
        self.0 = self.0.saturating_add(spent).saturating_sub(LOOK_UP);
    }

    /// Whether they are paid for, in a file of an owner.
    fn are_dear(self, of_owner: Option<&Self>) -> bool {
        self.0 > BEYOND_IN_FILE && of_owner.is_some_and(|of_owner| of_owner.0 > BEYOND)
    }
}

/// Notes a look-up in a file of an owner.
fn note(look_ups: &mut HashMap<Owner, LookUps>, owner: Owner, spent: Duration) {
    let of_owner = look_ups.entry(owner).or_default();
    of_owner.note(spent);
    if *of_owner == LookUps::default() {
        look_ups.remove(&owner);
    } else if look_ups.len() > MAX_OWNERS
        && let Some(least) = look_ups.iter().min_by_key(|(_, of_owner)| **of_owner).map(|(owner, _)| *owner)
    {
        look_ups.remove(&least);
    }
}

impl File {
    fn bytes(&self) -> u64 {
        self.native.as_ref().map_or(0, |native| native.bytes)
    }
}

impl Loaded {
    /// Answers until the run is over, or until another worker has taken over.
    pub(super) fn run(mut self, shared: &Shared, number: u64) {
        self.answer(shared, number);
        self.set_bytes(shared, 0);
    }

    fn answer(&mut self, shared: &Shared, number: u64) {
        let mut stats = SymbolStats::default();
        let phases = Phases::new(Arc::clone(&shared.ledger));
        phases.begin(Activity::Names);
        loop {
            phases.settle();
            let (lane, batch) = match shared.next_step(number, !self.files.is_empty()) {
                Step::Answer(lane, batch) => (lane, batch),
                Step::Unload => {
                    self.files = HashMap::new();
                    self.set_bytes(shared, 0);
                    self.names.drop_unused();
                    continue;
                }
                Step::End => return,
            };
            // A worker that was alone at first gives the others their part.
            let has = (self.bytes, self.others(shared));
            self.evict_to(kept(shared.budget().loaded, has, shared.workers()), shared, &mut stats);
            if lane != self.last.0 {
                self.put_down(shared, (lane, false));
            }
            for key in batch {
                let name = match key {
                    SymbolKey::File(id, offset) => self.file_name(shared, (lane, id), offset, &mut stats),
                    SymbolKey::Kernel(address) => self.kernel_name(address, &mut stats),
                };
                if !shared.answer(number, NameAnswer { key, name }, &mut stats) {
                    return;
                }
            }
        }
    }

    fn file_name(
        &mut self,
        shared: &Shared,
        (lane, id): (Lane, FileId),
        offset: FileOffset,
        stats: &mut SymbolStats,
    ) -> Name {
        let found = match shared.refusal(id) {
            Some(reason) => Err(reason),
            None => self.resolve(shared, (lane, id), offset, stats),
        };
        match found {
            Ok(frames) => Name::Frames(frames.into()),
            Err(Unresolved::NotInTime) => Name::NotNow,
            Err(reason @ (Unresolved::NoSymbols | Unresolved::NoSymbolHere)) => {
                let begin = self.begin_of_function(shared, id, offset);
                begin.map_or(Name::None(reason), |begin| Name::Within(reason, begin))
            }
            Err(reason) => Name::None(reason),
        }
    }

    /// Loads the file if need be, and looks the offset up. A panic in a parser refuses the file from then on.
    fn resolve(
        &mut self,
        shared: &Shared,
        (lane, id): (Lane, FileId),
        offset: FileOffset,
        stats: &mut SymbolStats,
    ) -> Result<Vec<Frame>, Unresolved> {
        // Whatever the panic left behind is dropped with the file; `names` and `stats` are never half-changed.
        let call = std::panic::AssertUnwindSafe(|| {
            self.load(shared, (lane, id), stats)?;
            let file = self.files.get_mut(&id).ok_or(Unresolved::FileClosed)?;
            let native = file.native.as_ref().map_err(|reason| *reason)?;
            let begun = thread_cpu_time();
            let found = native.resolve(offset, &mut self.names, stats);
            let spent = thread_cpu_time().saturating_sub(begun);
            file.look_ups.note(spent);
            note(&mut self.look_ups, payer(lane), spent);
            found
        });
        let found = std::panic::catch_unwind(call).unwrap_or_else(|_| {
            stats.panics = stats.panics.saturating_add(1);
            Err(Unresolved::Panicked)
        });
        if found == Err(Unresolved::Panicked) {
            shared.refuse(id, Unresolved::Panicked);
            self.unload(shared, id);
        }
        found
    }

    /// Where the function begins that has no name.
    fn begin_of_function(&mut self, shared: &Shared, id: FileId, offset: FileOffset) -> Option<FileOffset> {
        let file = self.files.get_mut(&id)?;
        let (before, native) = (file.bytes(), file.native.as_mut().ok()?);
        let origin = shared.files.origin(id).ok()?;
        let call = std::panic::AssertUnwindSafe(|| native.begin_of_function(offset, &origin.file));
        let begin = origin.file.reading(|| std::panic::catch_unwind(call).ok().flatten());
        let more = file.bytes().saturating_sub(before);
        self.set_bytes(shared, self.bytes.saturating_add(more));
        begin.filter(|_| origin.is_unchanged())
    }

    fn load(&mut self, shared: &Shared, (lane, id): (Lane, FileId), stats: &mut SymbolStats) -> Result<(), Unresolved> {
        self.clock = self.clock.saturating_add(1);
        if let Some(file) = self.files.get_mut(&id) {
            (file.last_used, file.used_at) = (self.clock, Instant::now());
            let are_dear = file.look_ups.are_dear(self.look_ups.get(&payer(lane)));
            return if are_dear { self.may_spend(shared, lane, false) } else { Ok(()) };
        }
        let budget = shared.budget();
        self.unload_idle(shared, budget.idle);
        let again = self.seen.contains(&id);
        self.may_spend(shared, lane, again)?;
        let origin = shared.files.origin(id)?;
        let native = origin.file.reading(|| {
            let native = Native::load(&origin, &shared.gsym, &budget, stats);
            if origin.is_unchanged() { native } else { Err(Unresolved::Replaced) }
        });
        stats.loads = stats.loads.saturating_add(1);
        if self.seen.len() >= MAX_SEEN {
            self.seen.clear();
        }
        self.seen.insert(id);
        let file = File { native, last_used: self.clock, used_at: Instant::now(), look_ups: LookUps::default() };
        self.set_bytes(shared, self.bytes.saturating_add(file.bytes()));
        self.files.insert(id, file);
        self.evict_to(room(budget.loaded, self.others(shared), shared.workers()), shared, stats);
        Ok(())
    }

    /// Puts what was spent down to whom it was for. What is spent from now on is for this one.
    fn put_down(&mut self, shared: &Shared, next: (Lane, bool)) {
        let spent = thread_cpu_time();
        let (lane, again) = std::mem::replace(&mut self.last, next);
        let seconds = spent.saturating_sub(std::mem::replace(&mut self.spent, spent)).as_secs_f64();
        shared.put_down(Use { lane, again, seconds });
    }

    /// Puts what was spent down, and asks whether more may be for this owner's files.
    fn may_spend(&mut self, shared: &Shared, lane: Lane, again: bool) -> Result<(), Unresolved> {
        // What is spent until it may load something is on nobody's account.
        self.put_down(shared, (None, false));
        shared.may_load(lane, again)?;
        self.last = (lane, again);
        Ok(())
    }

    /// Unloads those that were used least lately, until the rest has no more bytes than these. The last one stays.
    fn evict_to(&mut self, most: u64, shared: &Shared, stats: &mut SymbolStats) {
        while self.files.len() > 1 && (self.bytes > most || self.files.len() > MAX_LOADED_FILES) {
            let oldest = self.files.iter().min_by_key(|(_, file)| file.last_used).map(|(id, _)| *id);
            let Some(oldest) = oldest else { break };
            self.unload(shared, oldest);
            stats.evictions = stats.evictions.saturating_add(1);
        }
    }

    /// Bytes that the other workers have loaded.
    fn others(&self, shared: &Shared) -> u64 {
        shared.loaded.load(Ordering::Relaxed).saturating_sub(self.bytes)
    }

    /// Nobody else changes what this worker has.
    fn set_bytes(&mut self, shared: &Shared, bytes: u64) {
        shared.loaded.fetch_add(bytes, Ordering::Relaxed);
        shared.loaded.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }

    /// Files that nobody has asked for in a long time.
    fn unload_idle(&mut self, shared: &Shared, limit: Duration) {
        let idle = self.files.iter().filter(|(_, file)| file.used_at.elapsed() > limit);
        let idle: Vec<FileId> = idle.map(|(id, _)| *id).collect();
        if !idle.is_empty() {
            idle.into_iter().for_each(|id| self.unload(shared, id));
            self.names.drop_unused();
        }
    }

    fn unload(&mut self, shared: &Shared, id: FileId) {
        if let Some(file) = self.files.remove(&id) {
            self.set_bytes(shared, self.bytes.saturating_sub(file.bytes()));
        }
    }

    fn kernel_name(&mut self, address: Avma, stats: &mut SymbolStats) -> Name {
        let kernel = self.kernel.for_address(address, Instant::now(), Kernel::load);
        stats.kernel_symbols = u64::try_from(kernel.len()).unwrap_or(u64::MAX);
        match kernel.resolve(address, &mut self.names) {
            Ok(frame) => Name::Frames(Box::from([frame])),
            Err(reason) => Name::None(reason),
        }
    }
}

/// What a worker may have loaded beside the others: what they leave of it, and half of its part if they leave less.
fn room(limit: u64, others: u64, workers: u64) -> u64 {
    limit.saturating_sub(others).max(limit / (2 * workers))
}

/// What a worker may keep of what it has loaded: all of it, or its part where the others and it have more than they may.
fn kept(limit: u64, (own, others): (u64, u64), workers: u64) -> u64 {
    if own.saturating_add(others) > limit { limit / workers } else { own }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_what_may_be_loaded() {
        assert_eq!([0, 100, 350, 400, 900].map(|others| room(400, others, 2)), [400, 300, 100, 100, 100]);
        assert_eq!(room(400, 0, 1), 400);
        // Each has loaded what it may, one after the other.
        let all = (0..5).fold(0, |others, _| others + room(400, others, 5));
        assert!(all <= 400 + 5 * 40, "{all}");
    }

    /// Look-ups in files of some owner.
    #[derive(Default)]
    struct Files {
        each: Vec<LookUps>,
        all: HashMap<Owner, LookUps>,
    }

    impl Files {
        /// A look-up in one of them. Returns whether the next one there is paid for.
        fn note(&mut self, file: usize, spent: Duration) -> bool {
            self.each.resize(self.each.len().max(file + 1), LookUps::default());
            self.each[file].note(spent);
            note(&mut self.all, Owner::test(1000), spent);
            self.are_dear(file)
        }

        fn are_dear(&self, file: usize) -> bool {
            self.each[file].are_dear(self.all.get(&Owner::test(1000)))
        }
    }

    #[test]
    fn look_ups_that_keep_taking_long_are_paid_for() {
        let mut usual = Files::default();
        // Parsing what is asked for first takes its time.
        [1000, 300, 300].into_iter().for_each(|ms| assert!(!usual.note(0, Duration::from_millis(ms))));
        (0..10_000).for_each(|_| assert!(!usual.note(0, Duration::from_micros(20))));
        let mut made = Files::default();
        assert_eq!((1..).find(|_| made.note(0, Duration::from_millis(30))), Some(69));
        // Not for good, if it was another's fault.
        (0..100).for_each(|_| _ = made.note(0, Duration::ZERO));
        assert!(!made.are_dear(0));
    }

    #[test]
    fn many_dear_files_of_one_owner_take_no_more_for_nothing_than_one() {
        let mut made = Files::default();
        let first = (1..).find(|number| made.note(number % 16, Duration::from_millis(30)));
        assert_eq!(first, Some(69));
        // His others are no dearer by that, nor are those of others.
        assert!(!made.note(16, Duration::from_millis(30)) && made.are_dear(0));
        assert!(!made.each[0].are_dear(made.all.get(&Owner::test(1001))));
    }

    #[test]
    fn the_owners_whose_look_ups_are_known_are_bounded() {
        let mut look_ups = HashMap::new();
        for uid in 0..2 * MAX_OWNERS as u32 {
            note(&mut look_ups, Owner::test(uid), Duration::from_millis(if uid == 7 { 30 } else { 3 }));
            note(&mut look_ups, Owner::test(uid), Duration::ZERO);
            note(&mut look_ups, Owner::test(u32::MAX - uid), Duration::from_micros(20));
        }
        assert!(look_ups.len() == MAX_OWNERS && look_ups.contains_key(&Owner::test(7)), "{}", look_ups.len());
    }

    #[test]
    fn a_worker_that_was_alone_gives_others_their_part() {
        let (alone, second) = (400, room(400, 400, 2));
        assert_eq!(kept(400, (alone, 0), 1), alone);
        let left = kept(400, (alone, second), 2);
        assert_eq!((left, room(400, left, 2)), (200, 200));
        assert_eq!(kept(400, (left, 200), 2), left);
    }
}
