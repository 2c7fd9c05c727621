//! The samples: from their arrival until they are in the profile.
//!
//! ```text
//! arrived ─▶ its process' queue ─▶ walk finished, every name known ─▶ Profile
//!                              └─▶ put aside: code without a name that may still be announced
//! ```

use jitprof_common::sample::FramePc;
use jitprof_common::taken::MAX_TAKEN;
use jitprof_common::units::{Avma, MonoNs, Pid};
use rustc_hash::FxHashSet;

use crate::account::Account;
use crate::engine::announcements::Announcements;
use crate::engine::border::{FrameWords, Sample};
use crate::engine::deferred::{Deferred, Finished, Lookup, RowsThen};
use crate::engine::files::Files;
use crate::engine::frames::ask_of_listed;
use crate::engine::learned::Learned;
use crate::engine::listed::Listed;
use crate::engine::names::Names;
use crate::engine::options::EngineOptions;
use crate::engine::parked::{self, Parked};
use crate::engine::pending::{
    KEPT_STACK_WORDS, MAX_LISTED_FRAMES, MAX_PENDING, MAX_STACK_WORDS, Pending, RawStack, Stacks,
};
use crate::engine::place::{FileKey, Place};
use crate::engine::process::{Process, ProgramState};
use crate::engine::processes::Processes;
use crate::engine::requests::Requests;
use crate::engine::resolve::{Readiness, Resolution, Resolver, kernel_keys, readiness, want_listed};
use crate::engine::surplus::Surplus;
use crate::process::ProcessId;
use crate::process::open::FileId;
use crate::profile::{Holder, Profile};
use crate::runtime::{FrameAsk, ListCapture};
use crate::symbol::names::may_inline;

/// Longest wait for records that may still come. They arrive 2.3 s late at most in a running Node or JVM; only code
/// without any name waits longer.
const MAX_WAIT_NS: u64 = 30_000_000_000;
/// Most records arrive within two ticks; code whose record has not come by then is read.
const USUAL_DELAY_NS: u64 = 300_000_000;
/// Samples with unnamed code that are put aside at most; further ones stay unnamed.
const MAX_UNNAMED: usize = 64 << 10;
/// With such a part of the samples that may wait, of their stacks or of frames of their lists, none waits longer than it has to.
const FILLING: usize = 4;
/// Samples resolved with what is known when too many wait.
const EARLY_BATCH: usize = MAX_PENDING / 4;

/// Samples, names and the profile.
pub(super) struct Resolving {
    stacks: Stacks,
    arrived: Vec<(Pid, Pending)>,
    deferred: Deferred,
    pub(super) names: Names,
    resolver: Resolver,
    pub(super) profile: Profile,
    pub(super) account: Account,
    /// Samples that wait, those put aside included.
    pending: usize,
    unnamed: usize,
    /// Frames of lists that they keep.
    listed: usize,
    /// Words of stacks at which those of resolved samples are given up, in a continuous recording.
    next_compaction: usize,
}

impl Resolving {
    /// Without any sample.
    pub(super) fn new(profile: Profile) -> Self {
        Self {
            stacks: Stacks::default(),
            arrived: Vec::new(),
            deferred: Deferred::default(),
            names: Names::default(),
            resolver: Resolver::default(),
            profile,
            account: Account::default(),
            pending: 0,
            unnamed: 0,
            listed: 0,
            next_compaction: 0,
        }
    }

    /// What is resolved, and how.
    pub(super) fn resolve_for(&mut self, options: &EngineOptions) {
        self.resolver.resolve_for(options);
    }

    /// From here on the recording is continuous.
    pub(super) fn begin_continuous(&mut self) {
        self.deferred.begin_continuous();
        self.names.begin_continuous();
        self.resolver.begin_continuous();
    }

    /// A sample has come, of a process for which this one takes up room.
    pub(super) fn take(&mut self, sample: &Sample<'_>, holder: Holder) {
        let mut pending = Pending::new(sample, &mut self.stacks);
        pending.snapshot = sample.snapshot.as_ref().and_then(|snapshot| self.deferred.keep(snapshot, holder));
        self.account.samples.delivered += 1;
        self.pending += 1;
        self.listed += pending.listed_frames();
        self.arrived.push((sample.pid, pending));
    }

    /// Asserts that the counts are those of what they count, and within their bounds.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_sound(&self, processes: &Processes) {
        let queued: usize = processes.iter().map(|process| process.queue.iter().count()).sum();
        assert_eq!(self.pending, queued + processes.arriving_samples().count() + self.arrived.len());
        let aside: usize = processes.iter().map(|process| process.queue.unnamed.len()).sum();
        assert_eq!(self.unnamed, aside);
        assert!(self.unnamed <= MAX_UNNAMED);
        let samples = || {
            let queued = processes.iter().flat_map(|process| process.queue.iter());
            queued.chain(processes.arriving_samples()).chain(self.arrived.iter().map(|(_, sample)| sample))
        };
        assert_eq!(self.listed, samples().map(Pending::listed_frames).sum::<usize>());
        self.names.assert_sound();
        self.deferred.assert_sound(samples().filter_map(|sample| sample.snapshot.as_deref()));
    }

    /// The samples that have come since the last call.
    pub(super) fn take_arrived(&mut self) -> Vec<(Pid, Pending)> {
        std::mem::take(&mut self.arrived)
    }

    /// Samples that wait.
    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    /// Whether a walk waits for rows.
    pub(super) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Asks for names and files of a sample's frames, once for all samples of its process that are alike. What has changed
    /// since, such as a mapping, is asked for when the sample is to be resolved.
    /// Returns what in it asks for more.
    pub(super) fn prefetch(
        &mut self,
        process: &Process,
        sample: &Pending,
        files: &mut Files,
        requests: &mut Requests,
    ) -> Met {
        if !self.stacks.is_new_to(process.id, sample.kernel, sample.user) {
            return Met::default();
        }
        let holder = process.holder();
        for key in kernel_keys(&self.stacks, sample) {
            self.names.want(holder, key);
        }
        Self::prefetch_user(&self.stacks, &mut self.names, (process, sample.user, sample.time), files, requests)
    }

    /// Asks what the frames of a sample are that it has brought words of.
    pub(super) fn ask_frames(&mut self, processes: &mut Processes, id: ProcessId, sample: &mut Pending) {
        self.listed -= sample.listed_frames();
        let (mut taken, list) = (sample.taken.take(), sample.list.take());
        if taken.is_none() && list.is_none() {
            return;
        }
        let Some(process) = processes.get_mut(id) else { return };
        let user = self.stacks.words_of(sample.user);
        let is_full = taken.as_ref().is_some_and(|taken| taken.frames.len() >= MAX_TAKEN);
        if let Some(taken) = &mut taken {
            retain_asked(process, (sample.time, user), &mut taken.frames);
        }
        let Process { frames, space, tables, announcements, .. } = process;
        let Some(capture) = tables.capture(announcements.has_dump()) else { return };
        if let Some(taken) = taken {
            sample.asked = frames.want((space, capture), (sample.time, user), &taken);
            if is_full {
                sample.asked.note_full();
            }
        }
        let Some(list) = list else { return };
        let has_list = |capture: &&ListCapture| !capture.of_first_thread || sample.tid.0 == id.pid.0;
        if capture.parked_stack.is_some() {
            sample.parked = parked::words_of(&list);
        } else if let Some(capture) = capture.list.as_ref().filter(has_list) {
            sample.listed = Some(Box::new(Listed::ask(&list, capture, sample.time, frames)));
        }
        self.listed += sample.listed_frames();
    }

    fn prefetch_user(
        stacks: &Stacks,
        names: &mut Names,
        (process, user, time): (&Process, RawStack, MonoNs),
        files: &mut Files,
        requests: &mut Requests,
    ) -> Met {
        let (mut met, holder) = (Met::default(), process.holder());
        for (index, pc) in stacks.frames(user).enumerate() {
            match Place::of(process, pc, time) {
                Place::File(mapped) => {
                    if let FileKey::Key(key) = FileKey::want(files, process, mapped, Avma(pc.lookup()), requests) {
                        names.want(holder, key);
                    }
                }
                Place::Announced { hit, .. } => {
                    if process.learned.wants_found(process, &hit, index == 0) {
                        met.code.push(pc.lookup());
                    }
                    met.listed.extend(u16::try_from(index).ok().zip(ask_of_listed(&hit, pc)));
                }
                Place::Generated(_) => {
                    met.unnamed = true;
                    let is_missed = !pc.is_doubted() && process.tables.should_name(pc.lookup(), time);
                    met.missed.extend(is_missed.then(|| (pc.lookup(), time)));
                }
                Place::Special(_) | Place::Unmapped | Place::NotKnown | Place::Gone => {}
            }
        }
        met
    }

    /// The innermost user frame of a sample and the one it ended at: whose rows are wanted first.
    pub(super) fn ends(&self, sample: &Pending) -> impl Iterator<Item = Avma> + use<> {
        let mut frames = self.stacks.frames(sample.user);
        let ends = [frames.next(), frames.next_back()];
        ends.into_iter().flatten().map(|pc| Avma(pc.lookup()))
    }

    /// These files can be opened again.
    pub(super) fn retry(&mut self, files: &[FileId]) {
        self.names.retry(files);
    }

    /// Has the symbolizer asked for what is wanted.
    pub(super) fn ask_names(&mut self, files: &mut Files, requests: &mut Requests) {
        self.names.ask(files, requests);
    }

    /// Walks on from every sample of a process all of whose code is known, and from all that were taken before `last_until`: for
    /// them nothing is waited for any more. Returns whether any snapshots are worth it now that were not before, or the other
    /// way round.
    pub(super) fn finish_deferred(
        &mut self,
        processes: &mut Processes,
        id: ProcessId,
        (lookup, last_until): (Lookup<'_>, MonoNs),
        requests: &mut Requests,
    ) -> (Vec<(RawStack, MonoNs)>, bool) {
        let now = requests.now;
        let mut changed = Vec::new();
        let Some(process) = processes.get_mut(id) else { return (changed, false) };
        if !process.queue.iter().any(|sample| sample.snapshot.is_some()) {
            return (changed, false);
        }
        let mut queue = std::mem::take(&mut process.queue);
        let (mut learned, mut of_use) = (std::mem::take(&mut process.learned), process.snapshots);
        let was_worth_it = of_use.is_worth_it();
        let (limit, since) = (resolvable_until(process, now), process.runs_since());
        let asked = limit.max(MonoNs(now.0.saturating_sub(USUAL_DELAY_NS))).max(last_until);
        for sample in queue.iter_mut().filter(|sample| sample.snapshot.is_some() && sample.time < asked) {
            let last = sample.time < last_until;
            // Where its code lies is said with what its frames are, unless a dump says it.
            let is_said = process.asks_inlined_alone() || process.frames.is_settled(&sample.asked, sample.time);
            if !last && !is_said {
                continue;
            }
            let rules = RowsThen::new(process, lookup, sample.time);
            if !(last || sample.time < limit) {
                self.deferred.ask(sample, &rules).note(&mut learned, &mut of_use);
                continue;
            }
            let walked = self.stacks.words_of(sample.user);
            let (finished, effects) = self.deferred.finish(sample, walked, (&rules, &learned), last);
            effects.note(&mut learned, &mut of_use);
            if let Finished::ByRows(frames, chain, mut words) = finished {
                let from = frames.start;
                sample.by_rows = frames;
                if let Some((user, stop)) = chain {
                    sample.asked.follow((self.stacks.words_of(sample.user), &user), from);
                    (sample.user, sample.stop) = (self.stacks.intern(&user), stop);
                    changed.push((sample.user, sample.time));
                }
                let user = self.stacks.words_of(sample.user);
                retain_asked(process, (sample.time, user), &mut words);
                let Process { frames, space, tables, announcements, .. } = &mut *process;
                if let Some(capture) = tables.capture(announcements.has_dump()).filter(|_| sample.time >= since) {
                    frames.want_found((space, capture), (sample.time, user), &mut sample.asked, words);
                }
            }
        }
        let Some(process) = processes.get_mut(id) else { return (changed, false) };
        (process.queue, process.learned, process.snapshots) = (queue, learned, of_use);
        (changed, was_worth_it != of_use.is_worth_it())
    }

    /// Asks for names of stacks that finished walks have given.
    pub(super) fn prefetch_changed(
        &mut self,
        process: &Process,
        changed: Vec<(RawStack, MonoNs)>,
        files: &mut Files,
        requests: &mut Requests,
    ) -> Met {
        let mut met = Met::default();
        for (user, time) in changed {
            let of = (process, user, time);
            let of_one = Self::prefetch_user(&self.stacks, &mut self.names, of, files, requests);
            met.unnamed |= of_one.unnamed;
            met.missed.extend(of_one.missed);
            met.code.extend(of_one.code);
        }
        met
    }

    /// Resolves samples whose every announcement is known; with `last`, all. A sample with unnamed code is put aside: its
    /// name may come as late as the runtime's exit.
    pub(super) fn resolve_ready(
        &mut self,
        processes: &mut Processes,
        files: &mut Files,
        requests: &mut Requests,
        last: bool,
    ) {
        let now = requests.now;
        for process in processes.busy_mut().filter(|process| !process.queue.is_empty()) {
            let limit = resolvable_until(process, now);
            let mut queue = std::mem::take(&mut process.queue);
            while let Some(sample) = queue.samples.front_mut() {
                if !last {
                    let in_time = now.0.saturating_sub(sample.time.0) < MAX_WAIT_NS;
                    let unread = matches!(process.program, ProgramState::Asked);
                    if sample.time >= limit || (in_time && (unread || Deferred::holds(sample))) {
                        break;
                    }
                    match readiness(sample, process, &self.stacks, &mut self.names, files, requests) {
                        Readiness::NotYet if in_time => break,
                        // A walk that may still be finished goes with it.
                        Readiness::Unnamed if self.unnamed < MAX_UNNAMED => {
                            self.unnamed += 1;
                            queue.unnamed.extend(queue.samples.pop_front());
                            continue;
                        }
                        Readiness::NotYet | Readiness::Unnamed | Readiness::Ready => {}
                    }
                }
                if let Some(sample) = queue.samples.pop_front() {
                    self.resolve(sample, process, files);
                }
            }
            if last {
                self.unnamed -= queue.unnamed.len();
                for sample in std::mem::take(&mut queue.unnamed) {
                    self.resolve(sample, process, files);
                }
            }
            process.queue = queue;
        }
        self.clear_stacks();
    }

    fn resolve(&mut self, mut sample: Pending, process: &mut Process, files: &Files) {
        self.deferred.give_up(&mut sample);
        self.put_parked(&mut sample, process);
        let mut resolution = Resolution {
            process,
            names: &mut self.names,
            files,
            stacks: &self.stacks,
            profile: &mut self.profile,
            account: &mut self.account,
        };
        let anonymous = self.resolver.resolve(&sample, &mut resolution);
        process.note_naming(&anonymous);
        process.unnamed += anonymous.unnamed;
        process.frames.named += anonymous.described;
        process.interpreted += u64::from(anonymous.interpreted);
        process.resolved += 1;
        self.pending -= 1;
        self.listed -= sample.listed_frames();
    }

    /// Puts the frames of a stack that is not the thread's to where its work is called from there.
    fn put_parked(&mut self, sample: &mut Pending, process: &Process) {
        let Some(Parked { user, frames, is_whole }) = parked::placed(sample, process, &self.stacks) else { return };
        sample.user = self.stacks.intern(&user);
        sample.parked_cut = frames.clone().next_back().filter(|_| !is_whole);
        // Their callers are where the stack has them, whatever the tables had.
        sample.by_rows = frames;
        self.account.stacks.with_list += 1;
    }

    /// Whether every sample taken before `time` is in the profile.
    pub(super) fn is_resolved_before(&self, processes: &Processes, time: MonoNs) -> bool {
        let is_later = |sample: &Pending| sample.time >= time;
        let queued = processes.busy().all(|process| process.queue.iter().all(is_later));
        queued && !processes.awaits_before(time) && self.arrived.iter().all(|(_, sample)| is_later(sample))
    }

    /// Resolves all samples taken before `time` with what is known now.
    pub(super) fn resolve_before(&mut self, processes: &mut Processes, files: &Files, time: MonoNs) {
        for process in processes.iter_mut().filter(|process| !process.queue.is_empty()) {
            let aside = process.queue.unnamed.len();
            let due = process.queue.take_before(time);
            self.unnamed -= aside - process.queue.unnamed.len();
            for sample in due {
                self.resolve(sample, process, files);
            }
        }
        self.clear_stacks();
    }

    /// Resolves all samples of a process with what is known now.
    pub(super) fn resolve_all_of(&mut self, processes: &mut Processes, id: ProcessId, files: &Files) {
        self.resolve_early(processes, (id, MonoNs(u64::MAX)), files);
    }

    /// Makes room: the samples of a process from before a time are resolved with what is known now.
    pub(super) fn resolve_early(&mut self, processes: &mut Processes, (id, until): (ProcessId, MonoNs), files: &Files) {
        let Some(process) = processes.get_mut(id).filter(|process| !process.queue.is_empty()) else { return };
        let aside = process.queue.unnamed.len();
        let due = process.queue.take_before(until);
        self.unnamed -= aside - process.queue.unnamed.len();
        for sample in due {
            self.resolve(sample, process, files);
            self.account.samples.resolved_early += 1;
        }
    }

    /// Wants to know which functions are in frames of waiting samples, as far as it is not known.
    pub(super) fn want_listed(&self, processes: &mut Processes) {
        for process in processes.iter_mut().filter(|process| process.is_live() && !process.queue.is_empty()) {
            let mut queue = std::mem::take(&mut process.queue);
            for sample in queue.iter_mut() {
                want_listed(sample, process, &self.stacks);
            }
            process.queue = queue;
        }
    }

    /// Asks for every name that a waiting sample will need.
    pub(super) fn want_all(&mut self, processes: &Processes, files: &mut Files, requests: &mut Requests) {
        for process in processes.iter().filter(|process| !process.queue.is_empty()) {
            for sample in process.queue.iter() {
                for key in kernel_keys(&self.stacks, sample) {
                    self.names.want(process.holder(), key);
                }
                let of = (process, sample.user, sample.time);
                Self::prefetch_user(&self.stacks, &mut self.names, of, files, requests);
            }
        }
    }

    /// The profile is another one.
    pub(super) fn clear_profile(&mut self) {
        self.resolver.clear_frames();
    }

    /// Whether so many wait that none should wait for longer than it has to.
    pub(super) fn is_filling(&self) -> bool {
        let is_filling = |(held, most): (usize, usize)| held > most / FILLING;
        let (words, listed) = ((self.stacks.words(), MAX_STACK_WORDS), (self.listed, MAX_LISTED_FRAMES));
        [(self.pending, MAX_PENDING), words, listed].into_iter().any(is_filling)
    }

    /// Those samples that must be resolved to make room, where too many wait.
    pub(super) fn with_too_many_samples(&self, processes: &Processes) -> Surplus {
        match self.pending > MAX_PENDING {
            true => Surplus::of_samples(processes, MAX_PENDING - EARLY_BATCH),
            false => Surplus::default(),
        }
    }

    /// The same where there are too many stacks: the stacks of resolved samples are gone.
    pub(super) fn with_too_many_stacks(&mut self, processes: &mut Processes) -> Surplus {
        if !self.stacks.is_full() {
            return Surplus::default();
        }
        self.drop_unused_stacks(processes);
        let mut seen: FxHashSet<RawStack> = FxHashSet::default();
        Surplus::of_greediest(processes, MAX_STACK_WORDS / 2, |sample| {
            let stacks = [sample.kernel, sample.user].into_iter().filter(|stack| seen.insert(*stack));
            stacks.map(|stack| self.stacks.words_of(stack).len()).sum()
        })
    }

    /// The same where there are too many frames of lists.
    pub(super) fn with_too_many_listed(&self, processes: &Processes) -> Surplus {
        match self.listed > MAX_LISTED_FRAMES {
            true => Surplus::of_greediest(processes, MAX_LISTED_FRAMES / 2, Pending::listed_frames),
            false => Surplus::default(),
        }
    }

    /// Raw stacks are needed as long as a sample waits; a few are kept, because they come again.
    fn clear_stacks(&mut self) {
        if self.pending == 0 && self.arrived.is_empty() && self.stacks.words() >= KEPT_STACK_WORDS {
            self.stacks.clear();
        }
    }

    /// Drops those of samples that have been resolved when they are many. On a busy machine some sample waits always.
    pub(super) fn compact_stacks(&mut self, processes: &mut Processes) {
        if self.stacks.words() >= self.next_compaction.max(KEPT_STACK_WORDS) {
            self.drop_unused_stacks(processes);
        }
    }

    /// Drops the stacks of samples that have been resolved.
    pub(super) fn drop_unused_stacks(&mut self, processes: &mut Processes) {
        let mut kept = Stacks::default();
        let arrived = self.arrived.iter_mut().map(|(_, sample)| sample);
        for sample in processes.pending_mut().chain(arrived) {
            sample.kernel = kept.intern(self.stacks.words_of(sample.kernel));
            sample.user = kept.intern(self.stacks.words_of(sample.user));
        }
        self.next_compaction = kept.words() * 2;
        self.stacks = kept;
    }

    /// Processes were evicted.
    pub(super) fn remove_gone(&mut self, gone: &FxHashSet<ProcessId>) {
        self.stacks.remove_gone(gone);
        self.resolver.retain(|id| !gone.contains(&id));
    }

    /// What names processes here, and how many.
    #[cfg(test)]
    pub(super) fn rooms(&self) -> Vec<(&'static str, usize)> {
        let own = [("arrived", self.arrived.len()), ("asked stacks", self.stacks.asked())];
        own.into_iter().chain(self.resolver.rooms()).collect()
    }

    /// Makes the profile's tables anew, without what no row refers to.
    pub(super) fn compact_profile(&mut self) {
        self.profile.compact();
        self.resolver.clear_frames();
    }

    /// Frames and names that are remembered for the profile.
    pub(super) fn remembered(&self) -> usize {
        self.resolver.remembered()
    }

    /// What became of stack snapshots.
    pub(super) fn deferred_stats(&self, processes: &Processes) -> crate::account::DeferredStats {
        let given_up = processes.iter().filter(|process| !process.snapshots.is_worth_it()).count();
        crate::account::DeferredStats { processes_given_up: given_up, ..self.deferred.stats() }
    }
}

/// What in stacks asks for more to be read.
#[derive(Debug, Default)]
pub(super) struct Met {
    /// There is generated code without a name.
    pub(super) unnamed: bool,
    /// Where it is and when, if the runtime's tables should name it and were not read since.
    pub(super) missed: Vec<(u64, MonoNs)>,
    /// Addresses of code that the runtime's tables name, whose instructions say more.
    pub(super) code: Vec<u64>,
    /// What is to be asked about frames in code that the runtime lists.
    pub(super) listed: Vec<(u16, FrameAsk)>,
}

/// Leaves of the frames of which words were taken those that are asked about: where a dump has the names, those in code that
/// others may have been inlined into, and those that it does not name yet.
fn retain_asked(process: &Process, (time, user): (MonoNs, &[u64]), frames: &mut Vec<FrameWords>) {
    if !process.asks_inlined_alone() {
        return;
    }
    let is_asked = |pc: FramePc| match Place::of(process, pc, time) {
        Place::Announced { hit, .. } => may_inline(hit.name()),
        Place::Generated(_) => true,
        Place::File(_) | Place::Special(_) | Place::Unmapped | Place::NotKnown | Place::Gone => false,
    };
    frames.retain(|words| user.get(usize::from(words.index)).is_some_and(|pc| is_asked(FramePc(*pc))));
}

/// Samples from before this time can be resolved: every record up to it is known, or was waited for long enough.
fn resolvable_until(process: &Process, now: MonoNs) -> MonoNs {
    let waited_enough = MonoNs(now.0.saturating_sub(MAX_WAIT_NS));
    // Where there is a dump, the tables are not read, or only to be compared with it.
    let are_read = !process.announcements.has_dump() || process.tables.are_listed_beside();
    let tables = process.tables.known_until().filter(|_| are_read);
    let until = process.announcements.known_until().into_iter().chain(tables).min();
    until.map_or(now, |until| until.max(waited_enough))
}

/// Asks for code that walks have met and nothing is known about, of every process; and for a perf map that may name it:
/// one is made when the first code is, and is not looked for a second later.
pub(super) fn ask_learned(processes: &mut Processes, files: &mut Files, requests: &mut Requests) {
    for process in processes.busy_mut().filter(|process| process.is_live() && process.learned.is_wanting()) {
        if !process.announcements.has_perf_map() && !process.tables.are_found() {
            Announcements::look_for_perf_map(process, files, requests);
        }
        Learned::ask(process, requests);
    }
}
