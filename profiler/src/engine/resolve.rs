//! From a waiting sample to frames in the profile.

use std::collections::HashMap;
use std::sync::Arc;

use jitprof_common::limits::COMM_LEN;
use jitprof_common::sample::FramePc;
use jitprof_common::stop::StopReason;
use jitprof_common::units::{Avma, MonoNs};
use jitprof_jitdump::code::{CodeHit, CodeId, CodeOrigin};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::account::{Account, NamedBy};
use crate::advice;
use crate::engine::entry::Entry;
use crate::engine::exchanged::{Exchanged, ExchangedBy, runs_another_interpreter};
use crate::engine::files::Files;
use crate::engine::frames::{Known, ask_of_listed, in_module, is_of_module, listed_code};
use crate::engine::learned::{is_in_loop_frame, is_loop_code};
use crate::engine::listed::{Listed, NativeLoops, Placed, is_settled};
use crate::engine::names::Names;
use crate::engine::options::EngineOptions;
use crate::engine::paths::PathNumbers;
use crate::engine::pending::{Pending, Stacks};
use crate::engine::place::{FileKey, Place};
use crate::engine::process::Process;
use crate::engine::requests::Requests;
use crate::engine::verify::{
    announced_first, function_of, is_of_one_function, is_same_code, verify, verify_asked, verify_listed,
};
use crate::process::ProcessId;
use crate::profile::{FrameId, Holder, Profile, SourceRef, Task};
use crate::runtime::WhyUnnamed;
use crate::symbol::names::{classify, interpreted, may_inline};
use crate::symbol::{Frame, FrameKind, Module, SourceLine, SymbolKey, Tier, is_guess, mapped_as};

/// The name of generated code that has none.
pub(crate) const UNNAMED_JIT: &str = "[JIT code without a name]";

/// The name of an interpreted function that has none.
pub(crate) const UNNAMED_FUNCTION: &str = "[interpreted function without a name]";

/// The functions that an interpreter's loop runs, where nobody has looked.
pub(crate) const UNLISTED: &str = "[interpreted functions that were not looked at]";
/// Stands between the native frames and those that their interpreter keeps, where it is not known how they go together.
const APART: &str = "[how these two parts go together is not known]";

/// Sampled instructions of generated code that get frames of their own: an eighth of the frames that a profile holds.
/// What is sampled beyond stands at its function's start. A minute of a busy machine samples some thousands.
const MAX_EXACT: usize = 1 << 16;

/// After so long a name is asked for again that its holder's names had no time left for: often enough for who reads the
/// profile, and seldom beside the samples that go through it.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// The name of code of a file that has been written over, or whose place another file has taken, before it was looked at.
pub(super) const REPLACED: &str = "[replaced]";

/// Why a frame of generated code has no name.
mod unnamed {
    pub(super) const NO_SOURCE: &str = "no jitdump or perf map";
    pub(super) const NOT_READ: &str = "its runtime was not looked at in time";
    pub(super) const NOT_ANNOUNCED: &str = "not announced";
    pub(super) const OF_THE_RUNTIME: &str = "code that the runtime made for itself";
    pub(super) const LIST_NOT_TAKEN: &str = "the frames of its interpreter were not taken along";
    pub(super) const NOT_IN_TABLES: &str = "not in the runtime's tables at that time";
}

/// Whether a sample can be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// Every name is known.
    Ready,
    /// Something that was asked for has not been answered yet.
    NotYet,
    /// Generated code in it has no name, and may get one when the runtime writes its newest records.
    Unnamed,
}

/// Why there are no words of a frame that a runtime is asked about by them.
fn why_no_words(process: &Process, time: MonoNs) -> WhyUnnamed {
    let is_early = process.tables.words_since().map_or_else(|| process.published.takes_words(), |since| time < since);
    if is_early { WhyUnnamed::TooEarly } else { WhyUnnamed::NoWords }
}

/// Wants to know which functions are in frames of code that the runtime lists, where a sample has not asked yet.
pub(super) fn want_listed(sample: &mut Pending, process: &mut Process, stacks: &Stacks) {
    if sample.time < process.runs_since() || !process.tables.are_found() {
        return;
    }
    let ask = |(index, pc): (usize, FramePc)| {
        let Place::Announced { hit, .. } = Place::of(process, pc, sample.time) else { return None };
        let is_asked = process.frames.has(&sample.asked, index, listed_code(&hit));
        u16::try_from(index).ok().filter(|_| !is_asked).zip(ask_of_listed(&hit, pc))
    };
    let wanted = stacks.frames(sample.user).enumerate().filter_map(ask).collect();
    process.frames.want_listed(&mut sample.asked, wanted, sample.time);
}

/// Whether a sample can be resolved as well as it ever will be. What is not known is asked for.
pub(super) fn readiness(
    sample: &mut Pending,
    process: &mut Process,
    stacks: &Stacks,
    names: &mut Names,
    files: &mut Files,
    requests: &mut Requests,
) -> Readiness {
    let (mut named, holder) = (true, process.holder());
    for key in kernel_keys(stacks, sample) {
        named &= names.want(holder, key);
    }
    let mut readiness = Readiness::Ready;
    want_listed(sample, process, stacks);
    named &= process.frames.is_settled(&sample.asked, sample.time);
    named &= is_settled(sample.listed.as_deref(), &process.frames, sample.time);
    for (index, pc) in stacks.frames(sample.user).enumerate() {
        match Place::of(process, pc, sample.time) {
            Place::Announced { .. } | Place::Special(_) => {}
            Place::File(mapped) => match FileKey::want(files, process, mapped, Avma(pc.lookup()), requests) {
                FileKey::Key(key) => named &= names.want(holder, key),
                FileKey::NotYet => named = false,
                FileKey::Nothing | FileKey::Replaced => {}
            },
            Place::Generated(_) if is_said(sample, index, process) || is_run_by_list(sample, pc, process) => {}
            Place::Generated(_) => {
                // What the tables do not have by now they will not have.
                let may_come = process.code.is_known() && !process.tables.are_found();
                if process.announcements.any() || may_come {
                    readiness = Readiness::Unnamed;
                }
            }
            // It was no return address, or it is shown, and its callers are.
            Place::Unmapped | Place::NotKnown if pc.is_doubted() || index == 0 => {}
            Place::Unmapped | Place::NotKnown | Place::Gone => break,
        }
    }
    if named { readiness } else { Readiness::NotYet }
}

/// Whether a runtime has said what a frame is that nothing announces. That it cannot be known by that does not count where a
/// dump may name it still.
fn is_said(sample: &Pending, index: usize, process: &Process) -> bool {
    match process.frames.get(&sample.asked, (index, None), sample.time) {
        Some(Known::Functions(_)) => true,
        Some(Known::Own | Known::Unnamed(_)) => !process.asks_inlined_alone(),
        None => false,
    }
}

/// Whether a frame is of code in the frame of its interpreter's loop, and the sample's list says what that runs: there is no
/// name to wait for.
fn is_run_by_list(sample: &Pending, pc: FramePc, process: &Process) -> bool {
    sample.listed.is_some() && is_in_loop_frame(process, Avma(pc.lookup()), sample.time)
}

/// The keys of a sample's kernel frames, innermost first: all but the innermost are return addresses.
pub(super) fn kernel_keys(stacks: &Stacks, sample: &Pending) -> impl Iterator<Item = SymbolKey> {
    let addresses = stacks.words_of(sample.kernel).iter().enumerate();
    addresses.map(|(index, address)| SymbolKey::Kernel(Avma(address.wrapping_sub(u64::from(index > 0)))))
}

/// Everything that a resolution reads and writes.
pub(super) struct Resolution<'a> {
    pub(super) process: &'a Process,
    pub(super) names: &'a mut Names,
    pub(super) files: &'a Files,
    pub(super) stacks: &'a Stacks,
    pub(super) profile: &'a mut Profile,
    pub(super) account: &'a mut Account,
}

/// What a resolved address is.
enum Resolved {
    /// Generated code with a name: its frames, innermost first, are in [`Resolver::chain`].
    Jit(Entry),
    /// Generated code without one.
    UnnamedJit(FrameId),
    /// The same, of frames that its runtime was asked about.
    Described,
    /// Native code.
    Native(NativeFrames),
    /// Memory that nothing is known to be mapped at, and why a stack ends that leads there.
    Unmapped(FrameId, StopReason),
}

/// One frame's part of a place in generated code.
struct JitPlace<'a> {
    name: &'a str,
    line: Option<(&'a Arc<str>, u32)>,
    source: Option<&'a Arc<str>>,
    /// Start and method of an inlined part.
    inlined: Option<(u32, u32)>,
}

/// An object, the start and method of an inlined part (`None` for the object itself), a line, and an address.
type JitKey = (ProcessId, CodeId, Option<(u32, u32)>, u32, Avma);

/// The frames of a native address.
#[derive(Clone)]
struct NativeFrames {
    /// Innermost first, inlined functions included.
    frames: Arc<[FrameId]>,
    /// Whether the outermost is an entry point.
    entry: Entry,
    /// Which of them is the loop of an interpreter that can name what it runs: the innermost that is one.
    interpreter: Option<usize>,
    /// It is, and not what calls it.
    is_loop: bool,
    /// All functions have it that V8's interpreter runs: it says which one no more than a loop does.
    is_shared: bool,
    /// In CPython's own module, it calls another interpreter.
    runs_another: bool,
}

impl NativeFrames {
    /// One that nothing more is known of.
    fn single(frame: FrameId) -> Self {
        Self::of(Some(frame))
    }

    fn of(frames: impl IntoIterator<Item = FrameId>) -> Self {
        Self {
            frames: frames.into_iter().collect(),
            entry: Entry::No,
            interpreter: None,
            is_loop: false,
            is_shared: false,
            runs_another: false,
        }
    }

    /// What was inlined into the loop of an interpreter, and the loop with what it was itself inlined into. The functions
    /// that it runs stand between the two.
    fn around_loop(&self) -> (&[FrameId], &[FrameId]) {
        let own = self.interpreter.unwrap_or(self.frames.len().saturating_sub(1));
        self.frames.split_at_checked(own).unwrap_or((&[], &self.frames))
    }
}

/// What runs the functions of a part of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunBy {
    Interpreter,
    /// Code that was generated for some of them, it is not known which. Of the innermost, the place in it may be an earlier one;
    /// and it may not be what the list says yet, where such code makes a frame before it says whose.
    Generated {
        is_innermost: bool,
        may_be_new: bool,
    },
}

impl RunBy {
    /// Of the functions of a part, from the innermost.
    fn each(self) -> impl Iterator<Item = Self> {
        let outer = match self {
            Self::Interpreter => self,
            Self::Generated { .. } => Self::Generated { is_innermost: false, may_be_new: false },
        };
        std::iter::once(self).chain(std::iter::repeat(outer))
    }

    /// Functions as they are shown: without what is not certain.
    fn shown(self, functions: &Arc<[Frame]>) -> Arc<[Frame]> {
        match self {
            Self::Interpreter => Arc::clone(functions),
            Self::Generated { .. } => functions.iter().map(|frame| self.certain(frame)).collect(),
        }
    }

    /// What is certain of a function.
    fn certain(self, frame: &Frame) -> Frame {
        let Self::Generated { is_innermost, .. } = self else { return frame.clone() };
        let tier = frame.tier.filter(|tier| *tier != Tier::Interpreted);
        let line = |source: &SourceLine| if is_innermost { source.without_line() } else { source.clone() };
        Frame { tier, source: frame.source.as_ref().map(line), ..frame.clone() }
    }
}

/// What a sample has in it that advice is for, and what named the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Anonymous {
    /// Frames of generated code with a name.
    pub(super) named: NamedBy,
    /// Why frames have none.
    pub(super) reasons: Vec<&'static str>,
    /// Frames of files.
    pub(super) in_files: u64,
    /// Frames of generated code without a name.
    pub(super) unnamed: u64,
    /// Frames that its runtime was asked about and has named.
    pub(super) described: u64,
    /// It went through the loop of an interpreter that can name what it runs.
    pub(super) interpreted: bool,
}

/// Names samples and adds them to the profile; remembers frames that it has made.
#[derive(Default)]
pub(super) struct Resolver {
    /// By address, and the number of the path under which the process maps the file that it lies in; 0 for the kernel.
    native: FxHashMap<(SymbolKey, usize), NativeFrames>,
    paths: PathNumbers,
    jit: FxHashMap<JitKey, FrameId>,
    /// Those of them whose names are not final, and since when.
    unsettled: FxHashMap<JitKey, FrameId>,
    unsettled_since: MonoNs,
    /// Frames of sampled instructions among them.
    exact: usize,
    /// Samples bring the frames of interpreters that keep them in a list.
    walks_lists: bool,
    /// Frames of generated code do not say where it lies.
    hides_addresses: bool,
    /// Native frames of interpreters' loops are left out.
    hides_loops: bool,
    chain: Vec<FrameId>,
    plain: FxHashMap<FrameKind, HashMap<Arc<str>, FrameId>>,
    /// Of them, those that say why a stack ends.
    cuts: FxHashMap<StopReason, FrameId>,
    comms: HashMap<[u8; COMM_LEN], Arc<str>>,
    /// Modules of generated code by the name that its runtime gave; empty for none.
    jit_modules: HashMap<Arc<str>, Arc<Module>>,
    frames: Vec<FrameId>,
    /// Processes of which a native stack was cut, and loops of its list lay behind the cut.
    cut_amid_loops: FxHashSet<ProcessId>,
    /// Which frame functions of the sample's list were put to last, and the outermost of them if it has a name.
    listed: Option<(usize, Arc<str>)>,
    /// What compiled code is to which frames of the sample return, if no words were taken of some of them. The target chooses
    /// its addresses: hashed with std's keyed hasher.
    alike: Option<HashMap<FramePc, Arc<[Frame]>>>,
    /// Of the sample at hand, and whose it is.
    anonymous: Anonymous,
    holder: Option<Holder>,
}

impl Resolver {
    /// Profiles get other readers than those who may look into the targets.
    pub(super) fn begin_continuous(&mut self) {
        self.hides_addresses = true;
    }

    /// What is resolved, and how.
    pub(super) fn resolve_for(&mut self, options: &EngineOptions) {
        self.hides_loops = !options.interpreter.native;
        self.walks_lists = options.walks_lists;
    }

    /// Drops the frames that it has made: the profile has been emptied.
    pub(super) fn clear_frames(&mut self) {
        self.native.clear();
        self.paths.clear();
        self.jit.clear();
        self.unsettled.clear();
        self.plain.clear();
        self.cuts.clear();
        self.comms.clear();
        self.jit_modules.clear();
    }

    /// Frames and names that it remembers.
    pub(super) fn remembered(&self) -> usize {
        let of_code = self.jit.len() + self.unsettled.len();
        let plain = self.plain.values().map(HashMap::len).sum::<usize>();
        self.native.len() + self.paths.len() + of_code + plain + self.comms.len() + self.jit_modules.len()
    }

    /// Drops the frames of code of processes that are not wanted.
    pub(super) fn retain(&mut self, wanted: impl Fn(ProcessId) -> bool) {
        self.cut_amid_loops.retain(|process| wanted(*process));
        self.jit.retain(|(process, ..), _| wanted(*process));
        self.unsettled.retain(|(process, ..), _| wanted(*process));
    }

    /// What names processes here, and how many.
    #[cfg(test)]
    pub(super) fn rooms(&self) -> [(&'static str, usize); 2] {
        [("frames of code", self.jit.len() + self.unsettled.len()), ("cut amid loops", self.cut_amid_loops.len())]
    }

    /// Adds the sample to the profile. Returns what in it does not say what ran.
    pub(super) fn resolve(&mut self, sample: &Pending, of: &mut Resolution<'_>) -> Anonymous {
        self.anonymous = Anonymous::default();
        self.holder = Some(of.process.holder());
        of.profile.set_holder(self.holder);
        if sample.time.0.saturating_sub(self.unsettled_since.0) >= ASK_AGAIN_NS {
            self.unsettled.clear();
            self.unsettled_since = sample.time;
        }
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        for key in kernel_keys(of.stacks, sample) {
            frames.extend(self.native(key, None, of).frames.iter().copied());
        }
        self.user_frames(sample, of, &mut frames);
        let mut stack = of.profile.stack_root();
        for frame in frames.iter().rev() {
            stack = of.profile.push(stack, *frame);
        }
        let comm = Arc::clone(self.comms.entry(sample.comm).or_insert_with(|| comm_text(&sample.comm)));
        let (id, labels) = (of.process.id, Arc::clone(of.process.labels.at(sample.time)));
        let task = of.profile.task(Task { pid: id.pid, process_start: id.start.0, tid: sample.tid, comm, labels });
        of.profile.add(sample.time, stack, task, 1);
        self.frames = frames;
        std::mem::take(&mut self.anonymous)
    }

    fn count_named(&mut self, origin: CodeOrigin, account: &mut Account) {
        account.jit.named.count(origin);
        self.anonymous.named.count(origin);
    }

    fn count_unnamed(&mut self, reason: &'static str, account: &mut Account) {
        *account.jit.unnamed.entry(reason).or_default() += 1;
        self.anonymous.reasons.push(reason);
    }

    /// Appends the user frames, innermost first, and counts how the stack ended.
    fn user_frames(&mut self, sample: &Pending, of: &mut Resolution<'_>, frames: &mut Vec<FrameId>) {
        let (stacks, user) = (of.stacks, sample.user);
        let depth = stacks.frames(user).len();
        if depth == 0 {
            of.account.stacks.without_user_part += 1;
            return;
        }
        let mut stop = sample.stop;
        let mut entry = Entry::No;
        let is_making = is_making_frame(sample, of);
        let astray = astray(sample, of);
        // What lies beyond is not shown, and a part of the list that was put there would not be either.
        let stale = stale_in_loop(sample, of);
        let is_shown = |placed: &Placed| stale.is_none_or(|stale| placed.parts.iter().all(|(at, _)| *at <= stale));
        let placed = self.placed(sample, of).filter(|placed| astray.is_none() && is_shown(placed));
        // A capture of an earlier version does not say it.
        self.walks_lists |= sample.listed.is_some();
        self.alike = sample.asked.is_full().then(HashMap::default);
        self.listed = None;
        for (index, pc) in stacks.frames(user).enumerate() {
            let is_nowhere = || matches!(Place::of(of.process, pc, sample.time), Place::Unmapped | Place::NotKnown);
            if pc.is_doubted() && is_nowhere() {
                continue;
            }
            // Its caller was found without it.
            let by_kernel = !pc.is_doubted() && !sample.by_rows.contains(&index);
            match self.user_frame(pc, (index, sample), of) {
                Resolved::Jit(of_code) => {
                    of.account.jit.leaves_named += u64::from(index == 0);
                    entry = of_code;
                    self.announced((index, pc, placed.as_ref()), sample, of, frames);
                    if by_kernel && !was_true(of.process, pc, sample.time) {
                        // What the BPF program took for its caller may be anything.
                        (stop, entry) = (StopReason::StaleRules, Entry::No);
                        break;
                    }
                }
                Resolved::Described => {
                    of.account.jit.leaves_named += u64::from(index == 0);
                    entry = Entry::No;
                    frames.append(&mut self.chain);
                }
                Resolved::UnnamedJit(frame) => {
                    of.account.jit.leaves_unnamed += u64::from(index == 0);
                    self.anonymous.unnamed += 1;
                    entry = Entry::No;
                    frames.push(frame);
                    let is_by_rows_alone = of.process.tables.lose_frame_pointer_at(pc.lookup());
                    if by_kernel && is_by_rows_alone && !has_true_row(of.process, pc, sample.time) {
                        // It was walked by the rows of what had been in its place, or by a frame pointer that it does not keep.
                        stop = StopReason::StaleRules;
                        break;
                    }
                }
                Resolved::Native(native) => {
                    self.anonymous.in_files += 1;
                    let own = placed.as_ref().and_then(|placed| placed.part_of(index));
                    let is_of_another = placed.as_ref().is_some_and(|placed| placed.elsewhere.contains(&index));
                    if let Some((part, listed)) = own.zip(sample.listed.as_ref()) {
                        let (inlined, mut around) = native.around_loop();
                        // A loop without a symbol is one all the same.
                        if self.hides_loops && native.interpreter.is_none() {
                            around = &[];
                        }
                        frames.extend_from_slice(inlined);
                        let is_made = |record: &u16| !(is_making && *record == INNERMOST);
                        let called = listed.frames(part).find(is_made).filter(|_| inlined.is_empty());
                        if called.is_some_and(|record| is_shown_natively(record, sample, of, frames)) {
                            frames.pop();
                        }
                        let by = match is_unnamed_loop_code(of.process, pc, sample.time) {
                            true => RunBy::Generated {
                                is_innermost: true,
                                may_be_new: index == 0 && !is_making && has_frames_of_its_own(of.process),
                            },
                            false => RunBy::Interpreter,
                        };
                        let functions = listed.frames(part).filter(is_made).zip(by.each());
                        let listed_frame = |(record, by)| self.listed_frame((record, by), sample, of, frames);
                        let last = functions.map(listed_frame).last();
                        // A loop may have no frame yet.
                        self.listed = last.flatten().map(|name| (index, name));
                        let is_last = placed.as_ref().is_some_and(|placed| placed.is_last(index));
                        if is_last && listed.is_cut() {
                            frames.push(self.cut(StopReason::DepthLimit, of.profile));
                        }
                        frames.extend_from_slice(around);
                    } else if is_of_another || self.lacks_list(&native, pc, sample, of.process) {
                        let (inlined, around) = native.around_loop();
                        frames.extend_from_slice(inlined);
                        self.count_unnamed(unnamed::LIST_NOT_TAKEN, of.account);
                        frames.push(self.plain(FrameKind::Interpreter, UNLISTED, of.profile));
                        frames.extend_from_slice(around);
                    } else {
                        frames.extend_from_slice(&native.frames);
                    }
                    entry = entry.of_caller(native.entry);
                }
                Resolved::Unmapped(frame, _) if index == 0 => frames.push(frame),
                Resolved::Unmapped(_, why) => {
                    // A word that was taken for a return address: nothing beyond it is known to be a caller.
                    stop = why;
                    break;
                }
            }
            if sample.parked_cut == Some(index) {
                frames.push(self.cut(StopReason::DepthLimit, of.profile));
            }
            if let Some((_, why)) = astray.filter(|(at, _)| *at == index) {
                (stop, entry) = (why, Entry::No);
                break;
            }
            // One that has called somebody is on that stack already; interrupted, it may be on its caller's still.
            if entry == Entry::Outermost && index > 0 {
                break;
            }
            if by_kernel && of.process.space.was_walked_as_another(Avma(pc.lookup()), sample.time) {
                (stop, entry) = (StopReason::StaleMapping, Entry::No);
                break;
            }
        }
        entry = entry.beside(of.process.space.has_mapped_c_library());
        let is_list_cut = sample.listed.as_ref().map_or(sample.parked_cut.is_some(), |listed| listed.is_cut());
        let is_complete = entry.completes(stop);
        if !is_complete {
            *of.account.stacks.cut.entry(stop.describe()).or_default() += 1;
            frames.push(self.cut(stop, of.profile));
        } else if is_list_cut {
            *of.account.stacks.cut.entry(StopReason::DepthLimit.describe()).or_default() += 1;
        } else {
            of.account.stacks.complete += 1;
        }
        let Some(listed) = &sample.listed else { return };
        self.anonymous.interpreted = false;
        if placed.is_some() {
            of.account.stacks.with_list += 1;
            return;
        }
        of.account.stacks.list_apart += 1;
        if !is_complete && may_go_on(sample.stop) && lacks_loops(listed, sample, of) {
            self.cut_amid_loops.insert(of.process.id);
        }
        if listed.all().next().is_some() {
            frames.push(self.plain(FrameKind::Note, APART, of.profile));
            for record in listed.all().filter(|record| !(is_making && *record == INNERMOST)) {
                self.listed_frame((record, RunBy::Interpreter), sample, of, frames);
            }
        }
        if is_list_cut {
            frames.push(self.cut(StopReason::DepthLimit, of.profile));
        }
    }

    /// Which records of a sample's list belong to which of its user frames; nothing if there is no list, or that cannot be
    /// known.
    fn placed(&mut self, sample: &Pending, of: &mut Resolution<'_>) -> Option<Placed> {
        let listed = sample.listed.as_ref()?;
        let (in_loop, begins) = loops_of(sample, of)?;
        let count = listed.loop_count(|record| is_own(record, sample, of));
        // Other cuts are mostly where no loop is behind, as in a program that a runtime is a library of, but not where one was.
        let is_short = matches!(sample.stop, StopReason::DepthLimit | StopReason::SnapshotEnd);
        let goes_on = is_short || (may_go_on(sample.stop) && self.cut_amid_loops.contains(&of.process.id));
        let keeps_first = of.process.tables.list().is_some_and(|list| list.keeps_first);
        let is_of_all = count == in_loop.len() && !(goes_on && keeps_first);
        let exchanged =
            if is_of_all { exchanged_above(&in_loop, sample, of) } else { self.exchanged(&in_loop, sample, of) };
        let native = NativeLoops { frames: &in_loop, goes_on, begins, exchanged: &exchanged };
        listed.placed(native, |record| is_own(record, sample, of))
    }

    /// Where another list may have come to a sample's thread.
    fn exchanged(&mut self, in_loop: &[usize], sample: &Pending, of: &mut Resolution<'_>) -> Exchanged {
        let stacks = of.stacks;
        let mut exchanged = Exchanged::new(of.process.tables.list().is_some_and(|list| list.keeps_first));
        for (index, pc) in stacks.frames(sample.user).enumerate() {
            if let Some(by) = self.exchanges(pc, sample.time, of) {
                exchanged.note(by, in_loop.partition_point(|at| *at < index));
            }
        }
        exchanged
    }

    /// By what a frame may have exchanged the list: its library, or a function of the interpreter's own module.
    fn exchanges(&mut self, pc: FramePc, time: MonoNs, of: &mut Resolution<'_>) -> Option<ExchangedBy> {
        let (process, address) = (of.process, Avma(pc.lookup()));
        let mapped = process.space.lookup(address, time)?;
        let by_library = ExchangedBy::of_library(mapped.mapping.basename());
        if by_library.is_some() || !is_of_module(&process.space, &process.tables.list()?.loops, &mapped.mapping, time) {
            return by_library;
        }
        let FileKey::Key(key) = FileKey::of(of.files, mapped, address) else { return None };
        // What is not is counted where it is shown.
        if !of.names.is_answered(key) {
            return None;
        }
        self.native(key, Some(&mapped.mapping.path), of).runs_another.then_some(ExchangedBy::Interpreters)
    }

    /// Whether an interpreter's frames are missing that samples take along on this kernel: its process was not looked at in
    /// time, or the list is another interpreter's.
    fn lacks_list(&self, native: &NativeFrames, pc: FramePc, sample: &Pending, process: &Process) -> bool {
        let tables = &process.tables;
        let is_announced = || process.announcements.any() || process.code.is_known();
        if !self.walks_lists || sample.listed.is_some() || tables.leaves_list() || is_announced() {
            return false;
        }
        match tables.list() {
            Some(list) => in_module(&process.space, &list.loops, pc, sample.time).is_some(),
            None => native.is_loop && tables.was_wanted() && !tables.is_answered(),
        }
    }

    /// The note that frames are missing, and why.
    fn cut(&mut self, stop: StopReason, profile: &mut Profile) -> FrameId {
        if let Some(known) = self.cuts.get(&stop) {
            return *known;
        }
        let frame = self.plain(FrameKind::Note, &format!("[cut: {}]", stop.describe()), profile);
        self.cuts.insert(stop, frame);
        frame
    }

    /// The function of the list whose loop the frame below is, if this one is announced code by which such a loop is entered:
    /// CPython's with `-X perf`. And whether both are the same.
    fn listed_below(&self, index: usize, hit: &CodeHit<'_>) -> Option<(Arc<str>, bool)> {
        let (_, name) = self.listed.as_ref().filter(|(at, _)| at + 1 == index)?;
        let announced = interpreted(hit.name(), hit.origin())?;
        Some((Arc::clone(name), announced.display == **name))
    }

    /// Appends announced code, and what belongs to it of a sample's list.
    fn announced(
        &mut self,
        (index, pc, placed): (usize, FramePc, Option<&Placed>),
        sample: &Pending,
        of: &mut Resolution<'_>,
        frames: &mut Vec<FrameId>,
    ) {
        let own = placed.and_then(|placed| placed.part_of(index)).zip(sample.listed.as_ref());
        let Some((part, listed)) = own else {
            frames.append(&mut self.chain);
            return;
        };
        let records: Vec<u16> = listed.frames(part).collect();
        self.announced_in_list((index, pc, &records), sample, of, frames);
        if listed.is_cut() && placed.is_some_and(|placed| placed.is_last(index)) {
            frames.push(self.cut(StopReason::DepthLimit, of.profile));
        }
    }

    /// Appends announced code that runs in the frame of its interpreter's loop, and the part of the list that runs there. A
    /// function is one frame: that of the code, under the name that the list has for it. A function that returns is in the list
    /// no more: it was called by what is. Other code stands where the loop would, and the list says what it runs: a trace goes on
    /// in other functions than the one after which it is called.
    fn announced_in_list(
        &mut self,
        (index, pc, records): (usize, FramePc, &[u16]),
        sample: &Pending,
        of: &mut Resolution<'_>,
        frames: &mut Vec<FrameId>,
    ) {
        let announced = std::mem::take(&mut self.chain);
        if records.first().is_some_and(|record| is_shown_natively(*record, sample, of, frames)) {
            frames.pop();
        }
        let one = announced_among(pc, records, sample, of);
        let is_returning = one.is_none() && index == 0 && is_in_one_function(pc, sample, of.process);
        if is_returning {
            frames.extend_from_slice(&announced);
        }
        let by = RunBy::Generated { is_innermost: true, may_be_new: false };
        for (at, (record, by)) in records.iter().zip(by.each()).enumerate() {
            match one.as_ref().filter(|(same, _)| *same == at) {
                Some((_, function)) => self.one_frame((index, &announced, &by.certain(function)), of, frames),
                None => {
                    self.listed_frame((*record, by), sample, of, frames);
                }
            }
        }
        if one.is_none() && !is_returning {
            frames.extend(announced);
        }
    }

    /// Appends the frames of announced code, which is of a function that a list has under this name.
    fn one_frame(
        &mut self,
        (index, announced, function): (usize, &[FrameId], &Frame),
        of: &mut Resolution<'_>,
        frames: &mut Vec<FrameId>,
    ) {
        let Some((own, inlined)) = announced.split_last() else { return };
        frames.extend_from_slice(inlined);
        let own = of.profile.frame(*own);
        let place = own.source.map(|SourceRef { file, line, column }| SourceLine { file: file.into(), line, column });
        let frame = Frame {
            name: Arc::clone(&function.name),
            kind: own.kind,
            tier: own.tier,
            inlined: false,
            module: Some(self.jit_module(None)),
            source: function.source.clone().or(place),
            address: own.address,
        };
        let known = of.profile.frame_count();
        frames.push(of.profile.intern_frame(&frame));
        self.exact += usize::from(index == 0 && frame.address != 0 && of.profile.frame_count() > known);
    }

    /// Appends the functions of a frame of the sample's list, innermost first. Returns the name of the outermost.
    fn listed_frame(
        &mut self,
        (record, by): (u16, RunBy),
        sample: &Pending,
        of: &mut Resolution<'_>,
        frames: &mut Vec<FrameId>,
    ) -> Option<Arc<str>> {
        let known = sample.listed.as_ref();
        let known = known.and_then(|listed| of.process.frames.get(&listed.asked, (record.into(), None), sample.time));
        let why = match known {
            Some(Known::Functions(functions)) => {
                self.count_named(CodeOrigin::Runtime, of.account);
                self.anonymous.described += 1;
                self.described_chain(&by.shown(&functions), None, of);
                frames.append(&mut self.chain);
                return functions.last().map(|function| Arc::clone(&function.name));
            }
            // The runtime's own, of which there is nothing to show.
            Some(Known::Own) => return None,
            // It is being made: YJIT counts it before it says what it is, and has not called it yet.
            Some(Known::Unnamed(WhyUnnamed::Replaced)) if matches!(by, RunBy::Generated { may_be_new: true, .. }) => {
                return None;
            }
            Some(Known::Unnamed(why)) => why,
            None => WhyUnnamed::NoAnswer,
        };
        self.count_unnamed(why.describe(), of.account);
        frames.push(self.plain(FrameKind::Interpreter, UNNAMED_FUNCTION, of.profile));
        None
    }

    /// Notes what a frame in generated code is, for those at the same place of which no words were taken. An interpreter's
    /// place is that of all functions.
    fn note_alike(&mut self, pc: FramePc, functions: &Arc<[Frame]>) {
        let is_compiled = functions.iter().all(|frame| frame.tier.is_some_and(|tier| tier != Tier::Interpreted));
        if let Some(alike) = self.alike.as_mut().filter(|_| is_compiled) {
            alike.entry(pc).or_insert_with(|| Arc::clone(functions));
        }
    }

    /// What is known of a frame that no words were taken of because others were nearer to the ends of its stack: what another
    /// is that returns to the same place, or that there is a function, of which nothing is known.
    fn between(&self, pc: FramePc, process: &Process, time: MonoNs) -> Option<Known> {
        let same = self.alike.as_ref()?.get(&pc).map(|functions| Known::Functions(Arc::clone(functions)));
        let is_taken =
            || !process.asks_inlined_alone() && process.tables.takes_words_in_module(&process.space, pc, time);
        same.or_else(|| is_taken().then(|| Known::Unnamed(why_no_words(process, time))))
    }

    fn user_frame(&mut self, pc: FramePc, (index, sample): (usize, &Pending), of: &mut Resolution<'_>) -> Resolved {
        let (process, is_innermost, time) = (of.process, index == 0, sample.time);
        let addr = Avma(pc.lookup());
        let place = Place::of(process, pc, time);
        let listed = if let Place::Announced { hit, .. } = &place { listed_code(hit) } else { None };
        let described = process.frames.get(&sample.asked, (index, listed), time);
        let described = described.or_else(|| self.between(pc, process, time));
        let is_dumped = matches!(&place, Place::Announced { hit, .. } if is_of_dump(hit));
        // The code may be another's by then: what the runtime says itself comes before an older record.
        let may_be_older = is_dumped && process.announcements.may_lack_before(time);
        let is_dumped = is_dumped && !may_be_older;
        let is_listed = listed.is_some();
        if let Some(Known::Functions(functions)) = described.as_ref().filter(|_| !is_listed && !is_dumped) {
            if let Some(verified) = &mut of.account.verified {
                verified.only_announced += 1;
            }
            self.count_named(CodeOrigin::Runtime, of.account);
            self.anonymous.described += 1;
            self.described_chain(functions, is_innermost.then_some(addr), of);
            if matches!(place, Place::Generated(_)) {
                self.note_alike(pc, functions);
            }
            // Of an interpreter that is listed there are rows, which may have come later.
            let is_announced = matches!(place, Place::Announced { .. });
            return if is_announced { Resolved::Jit(Entry::No) } else { Resolved::Described };
        }
        match place {
            Place::Announced { hit, is_late } => {
                of.account.jit.named_late += u64::from(is_late);
                let by_tables = hit.origin() == CodeOrigin::Runtime;
                match described {
                    // As of an interpreter in a file: it has a name, and the function that it runs has none.
                    Some(Known::Unnamed(why)) if by_tables && !is_listed => {
                        self.count_unnamed(why.describe(), of.account);
                    }
                    _ => self.count_named(hit.origin(), of.account),
                }
                let in_list = self.listed_below(index, &hit);
                if let Some(verified) = &mut of.account.verified {
                    match (&in_list, &described) {
                        (Some((name, is_same)), _) => verify_listed(process, &hit, (addr, name, *is_same), verified),
                        (None, Some(known)) if is_dumped => verify_asked(process, &hit, (addr, known), verified),
                        (None, _) if may_be_older => verified.only_announced += 1,
                        (None, _) => verify(process, &hit, (addr, index, sample), verified),
                    }
                }
                let is_unconfirmed = may_be_older || (by_tables && process.tables.is_unconfirmed(time));
                of.account.jit.unconfirmed += u64::from(is_unconfirmed);
                let address = self.address(&hit, is_innermost.then_some(addr), of.account);
                if let Some(Known::Functions(functions)) = described.as_ref().filter(|_| is_listed) {
                    self.anonymous.described += 1;
                    if is_innermost {
                        count_leaf(functions, of.account);
                    }
                    self.listed_chain(process.id, (&hit, pc), functions, address, of.profile);
                } else if is_listed {
                    let why = if let Some(Known::Unnamed(why)) = described { why } else { WhyUnnamed::NoAnswer };
                    *of.account.jit.not_looked_into.entry(why.describe()).or_default() += 1;
                    self.jit_chain(process.id, &hit, address, of.profile);
                    if why == WhyUnnamed::Deoptimized {
                        self.guess_inlined(&hit, address, of.profile);
                    }
                } else {
                    let known = described.as_ref().filter(|_| is_dumped);
                    self.dumped_chain((&hit, pc), known, address, of);
                }
                if in_list.is_some_and(|(_, is_same)| is_same) {
                    self.chain.clear();
                }
                Resolved::Jit(Entry::of_generated(hit.name(), process.code.is_of_beam()))
            }
            Place::File(mapped) => match FileKey::of(of.files, mapped, addr) {
                FileKey::Key(key) => {
                    let native = self.native(key, Some(&mapped.mapping.path), of);
                    let is_wanted = || process.tables.was_wanted() && !process.announcements.any();
                    let why = match described {
                        Some(Known::Unnamed(why)) => Some(why),
                        None if native.is_shared && is_wanted() => Some(why_no_words(process, time)),
                        _ => None,
                    };
                    // The interpreter's code has a name, and the function that it runs has none.
                    if let Some(why) = why {
                        self.count_unnamed(why.describe(), of.account);
                    }
                    self.anonymous.interpreted |= native.interpreter.is_some();
                    Resolved::Native(native)
                }
                key @ (FileKey::NotYet | FileKey::Nothing | FileKey::Replaced) => {
                    of.account.native_unnamed += 1;
                    let name = match key {
                        FileKey::Replaced => REPLACED.to_owned(),
                        _ => format!("[{}]", mapped.mapping.basename()),
                    };
                    Resolved::Native(NativeFrames::single(self.plain(FrameKind::Native, &name, of.profile)))
                }
            },
            Place::Special(mapped) => {
                of.account.native_unnamed += 1;
                let name = mapped.mapping.basename();
                Resolved::Native(NativeFrames::single(self.plain(FrameKind::Native, name, of.profile)))
            }
            Place::Generated(mapped) if is_loop_code(process, mapped) => {
                of.account.jit.leaves_named += u64::from(is_innermost);
                Resolved::Native(self.loop_code(process, of.profile))
            }
            Place::Generated(_) => {
                let any = process.announcements.any() || process.code.is_known();
                let reason = match any {
                    _ if process.asks_inlined_alone() && described.is_none() => unnamed::NOT_ANNOUNCED,
                    _ if process.tables.ask_frames() => match described {
                        Some(Known::Unnamed(why)) => why.describe(),
                        Some(Known::Own | Known::Functions(_)) => unnamed::OF_THE_RUNTIME,
                        None => why_no_words(process, time).describe(),
                    },
                    _ if process.tables.are_found() => unnamed::NOT_IN_TABLES,
                    true => unnamed::NOT_ANNOUNCED,
                    false if process.tables.is_unheard() => unnamed::NOT_READ,
                    false => unnamed::NO_SOURCE,
                };
                self.count_unnamed(reason, of.account);
                Resolved::UnnamedJit(self.plain(FrameKind::Jit, UNNAMED_JIT, of.profile))
            }
            Place::Unmapped => self.unmapped("[unmapped]", StopReason::NotExecutable, of.profile),
            Place::NotKnown => self.unmapped("[mapping not known]", StopReason::UnknownMapping, of.profile),
            Place::Gone => self.unmapped("[process gone]", StopReason::NotExecutable, of.profile),
        }
    }

    fn unmapped(&mut self, name: &str, why: StopReason, profile: &mut Profile) -> Resolved {
        Resolved::Unmapped(self.plain(FrameKind::Native, name, profile), why)
    }

    /// The frame of generated code that runs within an interpreter's loop: it stands for the loop.
    fn loop_code(&mut self, process: &Process, profile: &mut Profile) -> NativeFrames {
        let code = process.tables.list().and_then(|list| list.generated.as_ref()).filter(|_| !self.hides_loops);
        let frames = code.map(|code| self.plain(FrameKind::Jit, &code.name, profile));
        NativeFrames { interpreter: Some(0), ..NativeFrames::of(frames) }
    }

    /// The frames of an object's or the kernel's address. An object is called what the process at hand calls it, whoever
    /// else has mapped it, and under whatever name.
    fn native(&mut self, key: SymbolKey, path: Option<&Arc<str>>, of: &mut Resolution<'_>) -> NativeFrames {
        let place = (key, path.map_or(0, |path| self.paths.of(path)));
        if let Some(known) = self.native.get(&place) {
            return known.clone();
        }
        let (named, is_final) = of.names.frames(of.process.holder(), key, of.files);
        let entry = named.last().map_or(Entry::No, Entry::of);
        let interpreter = named.iter().position(|frame| advice::is_evaluation_loop(&frame.name));
        let is_loop = interpreter.is_some_and(|at| !advice::calls_evaluation_loop(&named[at].name));
        let own = |frame: &Frame| path.and_then(|path| mapped_as(frame, path));
        // Of one that is not shown the place stays known.
        let is_shown = |frame: &&Frame| !(self.hides_loops && advice::is_evaluation_loop(&frame.name));
        let frames: Arc<[FrameId]> = named
            .iter()
            .filter(is_shown)
            .map(|frame| of.profile.intern_frame(own(frame).as_ref().unwrap_or(frame)))
            .collect();
        let is_shared = named.iter().any(|frame| &*frame.name == SHARED_FRAME);
        let runs_another = named.iter().any(|frame| runs_another_interpreter(&frame.name));
        let native = NativeFrames { frames, entry, interpreter, is_loop, is_shared, runs_another };
        if is_final {
            self.native.insert(place, native.clone());
        }
        native
    }

    /// The address that frames of a place in generated code get: of the sampled instruction, so that samples can be
    /// counted by instruction; of callers the function's start, because return addresses would only multiply frames.
    fn address(&self, hit: &CodeHit<'_>, sampled: Option<Avma>, account: &mut Account) -> Avma {
        match sampled {
            _ if self.hides_addresses => Avma(0),
            Some(_) if self.exact >= MAX_EXACT => {
                account.jit.leaves_inexact += 1;
                hit.start()
            }
            Some(sampled) => sampled,
            None => hit.start(),
        }
    }

    /// Frames that the runtime was asked about, innermost first. It does not say where their code begins.
    fn described_chain(&mut self, functions: &[Frame], sampled: Option<Avma>, of: &mut Resolution<'_>) {
        self.chain.clear();
        let module = self.jit_module(None);
        for (depth, function) in functions.iter().enumerate() {
            let exact = sampled.filter(|_| depth == 0 && !self.hides_addresses && function.kind == FrameKind::Jit);
            if exact.is_some() && self.exact >= MAX_EXACT {
                of.account.jit.leaves_inexact += 1;
            }
            let address = exact.filter(|_| self.exact < MAX_EXACT).unwrap_or(Avma(0));
            let known = of.profile.frame_count();
            let frame = of.profile.intern_frame(&Frame {
                module: Some(Arc::clone(&module)),
                address: address.0,
                ..function.clone()
            });
            self.exact += usize::from(address.0 != 0 && of.profile.frame_count() > known);
            self.chain.push(frame);
        }
    }

    /// Frames at an address of code that the runtime lists, innermost first.
    fn listed_chain(
        &mut self,
        process: ProcessId,
        (hit, pc): (&CodeHit<'_>, FramePc),
        functions: &[Frame],
        address: Avma,
        profile: &mut Profile,
    ) {
        self.chain.clear();
        let module = self.jit_module(None);
        let offset = u32::try_from(hit.offset).unwrap_or(u32::MAX);
        for (depth, function) in functions.iter().enumerate() {
            // What is returned to and what was interrupted there are not the same.
            let level = u32::try_from(depth * 2).unwrap_or(u32::MAX) | u32::from(pc.is_interrupted());
            let key = (process, hit.id, Some((offset, level)), 0, address);
            let frame = self.jit.get(&key).copied().unwrap_or_else(|| {
                let frame = Frame { module: Some(Arc::clone(&module)), address: address.0, ..function.clone() };
                let frame = profile.intern_frame(&frame);
                self.exact += usize::from(!self.hides_addresses && address != hit.start());
                self.jit.insert(key, frame);
                frame
            });
            self.chain.push(frame);
        }
    }

    /// Frames at an address of code that is announced, innermost first: what its runtime says of what was inlined there, if it
    /// means the same code, and has more to say than the announcement.
    fn dumped_chain(
        &mut self,
        (hit, pc): (&CodeHit<'_>, FramePc),
        known: Option<&Known>,
        address: Avma,
        of: &mut Resolution<'_>,
    ) {
        let known = known.filter(|_| may_inline(hit.name()));
        match known.map(|known| self.inlined_there(hit, known)) {
            Some(Ok(Some(functions))) => {
                self.anonymous.described += 1;
                self.inlined_chain(hit, functions, address, of.profile);
                self.note_alike(pc, functions);
                return;
            }
            Some(Err(why)) => *of.account.jit.not_looked_into.entry(why.describe()).or_default() += 1,
            Some(Ok(None)) | None => {}
        }
        self.jit_chain(of.process.id, hit, address, of.profile);
    }

    /// What a runtime says of a frame in optimised code that a dump names, if that is more than what the dump does; else why
    /// it is not known. Of V8's rows for such code nothing says which are of a function that was inlined: where one was, its
    /// tables have the lines.
    fn inlined_there<'k>(&self, hit: &CodeHit<'_>, known: &'k Known) -> Result<Option<&'k Arc<[Frame]>>, WhyUnnamed> {
        let functions = match known {
            Known::Functions(functions) => functions,
            Known::Unnamed(why) => return Err(*why),
            Known::Own => return Err(WhyUnnamed::Replaced),
        };
        let dumped = classify(hit.name(), hit.origin(), self.holder);
        // Under another name it is other code, which has come there since.
        let own = functions.last().filter(|own| is_same_code(&dumped, own)).ok_or(WhyUnnamed::Replaced)?;
        let has_line = own.source != dumped.source;
        Ok(Some(functions).filter(|_| functions.len() > 1 || has_line))
    }

    /// Frames that a runtime has named at an address of code that is announced, innermost first.
    fn inlined_chain(&mut self, hit: &CodeHit<'_>, functions: &[Frame], address: Avma, profile: &mut Profile) {
        self.chain.clear();
        let module = self.jit_module(hit.module());
        let is_exact = !self.hides_addresses && address != hit.start();
        for function in functions {
            let known = profile.frame_count();
            let frame = Frame { module: Some(Arc::clone(&module)), address: address.0, ..function.clone() };
            let frame = profile.intern_frame(&frame);
            self.exact += usize::from(is_exact && profile.frame_count() > known);
            self.chain.push(frame);
        }
    }

    /// The frames of a place in generated code: the inlined methods around it, then the object itself.
    fn jit_chain(&mut self, process: ProcessId, hit: &CodeHit<'_>, address: Avma, profile: &mut Profile) {
        self.chain.clear();
        let own = JitPlace { name: hit.name(), line: hit.line(hit.offset), source: hit.source(), inlined: None };
        let frame = self.jit(process, hit, &own, address, profile);
        self.chain.push(frame);
        for inlined in hit.inlined(hit.offset) {
            let place = JitPlace {
                name: inlined.name(),
                line: inlined.line(hit.offset),
                source: inlined.source(),
                inlined: Some((inlined.start(), inlined.method())),
            };
            let frame = self.jit(process, hit, &place, address, profile);
            self.chain.push(frame);
        }
        self.chain.reverse();
    }

    /// Says within the object itself that others may have been inlined there: it stands there once more, as a guess.
    fn guess_inlined(&mut self, hit: &CodeHit<'_>, address: Avma, profile: &mut Profile) {
        let name = classify(hit.name(), hit.origin(), self.holder);
        let guess = Frame {
            name: Arc::from(name.display),
            kind: name.kind,
            tier: None,
            inlined: true,
            module: Some(self.jit_module(hit.module())),
            source: name.source,
            address: address.0,
        };
        self.chain.insert(0, profile.intern_frame(&guess.as_guess()));
    }

    fn jit(
        &mut self,
        process: ProcessId,
        hit: &CodeHit<'_>,
        place: &JitPlace<'_>,
        address: Avma,
        profile: &mut Profile,
    ) -> FrameId {
        let key = (process, hit.id, place.inlined, place.line.map_or(0, |(_, line)| line), address);
        if let Some(frame) = self.jit.get(&key).or_else(|| self.unsettled.get(&key)) {
            return *frame;
        }
        let name = classify(place.name, hit.origin(), self.holder);
        let line = place.line.map(|(file, line)| SourceLine::new(Arc::clone(file), line));
        let file = || place.source.map(|file| SourceLine::new(Arc::clone(file), 0));
        let known = profile.frame_count();
        let frame = profile.intern_frame(&Frame {
            name: Arc::from(name.display),
            kind: name.kind,
            tier: name.tier,
            inlined: place.inlined.is_some(),
            module: Some(self.jit_module(hit.module())),
            source: line.or(name.source).or_else(file),
            address: address.0,
        });
        let is_new = profile.frame_count() > known;
        self.exact += usize::from(is_new && !self.hides_addresses && address != hit.start());
        let known = if name.is_final { &mut self.jit } else { &mut self.unsettled };
        known.insert(key, frame);
        frame
    }

    fn jit_module(&mut self, name: Option<&Arc<str>>) -> Arc<Module> {
        let name = name.map_or_else(Arc::default, Arc::clone);
        let module = self.jit_modules.entry(name).or_insert_with_key(|name| {
            let path = if name.is_empty() { "[jit]".into() } else { format!("[jit:{name}]").into() };
            Arc::new(Module { path, build_id: None })
        });
        Arc::clone(module)
    }

    fn plain(&mut self, kind: FrameKind, name: &str, profile: &mut Profile) -> FrameId {
        let known = self.plain.entry(kind).or_default();
        if let Some(frame) = known.get(name) {
            return *frame;
        }
        let name: Arc<str> = Arc::from(name);
        let shown = Arc::clone(&name);
        let frame = Frame { name: shown, kind, tier: None, inlined: false, module: None, source: None, address: 0 };
        let frame = profile.intern_frame(&frame);
        known.insert(name, frame);
        frame
    }
}

/// What V8 calls the code that stands for each function that its interpreter runs.
const SHARED_FRAME: &str = "Builtin:InterpreterEntryTrampoline";

/// Native frames from the caller of generated code to the loop that it runs in: Ruby 3.1's calls it itself, and where a compiler
/// has not inlined them, two functions are between. From one loop to the next there are five at least.
const MAX_TO_LOOP: usize = 3;
/// The record of a list that is the innermost frame.
const INNERMOST: u16 = 0;
/// Bytes of an evaluation loop in which it may not have put its frame into the list; it does so before it runs an instruction.
const LOOP_BEGIN: u64 = 256;

/// Whether a stack that ends for this reason may have frames behind its end. What returns to nothing is as a rule the first
/// function of a stack of its own, a fiber's.
fn may_go_on(stop: StopReason) -> bool {
    !matches!(stop, StopReason::EndOfStack | StopReason::ZeroReturnAddress)
}

/// Whether a sample's list has elements of more loops than its native stack has.
fn lacks_loops(listed: &Listed, sample: &Pending, of: &Resolution<'_>) -> bool {
    let Some((in_loop, _)) = loops_of(sample, of) else { return false };
    listed.has_more_loops_than(in_loop.len(), |record| own_name(record, sample, of).is_some())
}

/// Whether generated code within the process' interpreter's loop makes frames itself.
fn has_frames_of_its_own(process: &Process) -> bool {
    process.tables.list().and_then(|list| list.generated.as_ref()).is_some_and(|code| !code.pushes.is_empty())
}

/// Whether a sample was taken where generated code of an interpreter's loop has made a frame for the list that does not say yet
/// whose it is: the list has that of a function that was called before.
fn is_making_frame(sample: &Pending, of: &Resolution<'_>) -> bool {
    let innermost = of.stacks.frames(sample.user).next().filter(|_| sample.listed.is_some());
    innermost.is_some_and(|pc| {
        of.process.learned.is_making_frame(pc.lookup()) && is_unnamed_loop_code(of.process, pc, sample.time)
    })
}

/// The first user frame in generated code of an interpreter's loop whose caller the walk has missed, and why the stack ends
/// there: where the word in the place of the return address was none, it went on by the frame pointer, which may be that of
/// somebody further out.
fn astray(sample: &Pending, of: &Resolution<'_>) -> Option<(usize, StopReason)> {
    let capture = of.process.tables.list()?;
    let is_own_frame = capture.generated.as_ref()?.pushes.is_empty();
    let is_in = |code: &[(Avma, u64)], pc: FramePc| in_module(&of.process.space, code, pc, sample.time).is_some();
    let is_loop = |pc: &FramePc| is_in(&capture.loops, *pc) || is_in(&capture.within, *pc);
    let frames: Vec<FramePc> = of.stacks.frames(sample.user).collect();
    let missed = |(index, pair): (usize, &[FramePc])| {
        let [pc, caller] = *pair else { return None };
        if !is_unnamed_loop_code(of.process, pc, sample.time) {
            return None;
        }
        match Place::of(of.process, caller, sample.time) {
            // What it has called that was generated beside it, whether something names that or not.
            Place::Generated(mapped) if is_own_frame && is_loop_code(of.process, mapped) => return None,
            Place::Announced { .. } if is_own_frame => return None,
            Place::File(_) | Place::Announced { .. } => {}
            Place::NotKnown => return Some((index, StopReason::UnknownMapping)),
            _ => return Some((index, StopReason::NotExecutable)),
        }
        let callers = frames.get(index + 1..index + 1 + MAX_TO_LOOP).filter(|_| !is_own_frame)?;
        (!callers.iter().any(is_loop)).then_some((index, StopReason::BadReturnAddress))
    };
    frames.windows(2).enumerate().find_map(missed)
}

/// The first user frame in announced code of an interpreter's loop for whose caller the BPF program did not have the rules.
fn stale_in_loop(sample: &Pending, of: &Resolution<'_>) -> Option<usize> {
    sample.listed.as_ref()?;
    let is_stale = |(index, pc): &(usize, FramePc)| {
        !pc.is_doubted()
            && !sample.by_rows.contains(index)
            && is_in_loop_frame(of.process, Avma(pc.lookup()), sample.time)
            && matches!(Place::of(of.process, *pc, sample.time), Place::Announced { .. })
            && !was_true(of.process, *pc, sample.time)
    };
    of.stacks.frames(sample.user).enumerate().find(is_stale).map(|(index, _)| index)
}

/// Whether a frame is of generated code that runs within an interpreter's loop, and that nothing names.
fn is_unnamed_loop_code(process: &Process, pc: FramePc, time: MonoNs) -> bool {
    matches!(Place::of(process, pc, time), Place::Generated(mapped) if is_loop_code(process, mapped))
}

/// The user frames in loops of a sample's interpreter, from the innermost, and whether the first of them has just begun.
fn loops_of(sample: &Pending, of: &Resolution<'_>) -> Option<(Vec<usize>, bool)> {
    let capture = of.process.tables.list()?;
    let is_in = |code: &[_], pc: FramePc| in_module(&of.process.space, code, pc, sample.time).is_some();
    let (mut in_loop, mut begins) = (Vec::new(), false);
    // Code in the loop's own frame calls others of its kind, which return to it: together they are one loop.
    let mut stood_for_loop = false;
    // Where generated code is the loop's own frame, there is no other one of it.
    let is_own_frame = capture.generated.as_ref().is_some_and(|code| code.pushes.is_empty());
    // The innermost frame that the next loop has called for its work: generated code, by whatever functions, or right above it.
    let (mut generated, mut within) = (None, None);
    for (index, pc) in of.stacks.frames(sample.user).enumerate() {
        let at = in_module(&of.process.space, &capture.loops, pc, sample.time);
        if !is_own_frame && is_unnamed_loop_code(of.process, pc, sample.time) {
            generated.get_or_insert(index);
        }
        let stands_for_loop = is_in_loop_frame(of.process, Avma(pc.lookup()), sample.time);
        if std::mem::replace(&mut stood_for_loop, stands_for_loop) && stands_for_loop {
            in_loop.pop();
        }
        if at.is_some() || stands_for_loop {
            let from = generated.take().or(within).unwrap_or(index);
            let is_first = |at: Avma| capture.loops.iter().any(|(start, _)| at.0.wrapping_sub(start.0) < LOOP_BEGIN);
            begins |= from == 0 && at.is_some_and(is_first);
            in_loop.push(from);
        }
        within = is_in(&capture.within, pc).then_some(index);
    }
    Some((in_loop, begins))
}

/// What may be exchanging the list of a sample that has begun in as many loops as its stack has: the list may be of another
/// stack all the same, which is there no more.
fn exchanged_above(in_loop: &[usize], sample: &Pending, of: &Resolution<'_>) -> Exchanged {
    let mut exchanged = Exchanged::new(false);
    let above = of.stacks.frames(sample.user).take(in_loop.first().copied().unwrap_or(0));
    let by_library = |pc: FramePc| {
        let mapped = of.process.space.lookup(Avma(pc.lookup()), sample.time)?;
        ExchangedBy::of_library(mapped.mapping.basename())
    };
    above.filter_map(by_library).for_each(|by| exchanged.note(by, 0));
    exchanged
}

/// Whether a record is of a function of the runtime's own, or is not written yet: no loop has begun there.
fn is_own(record: u16, sample: &Pending, of: &Resolution<'_>) -> bool {
    (record == INNERMOST && is_making_frame(sample, of)) || own_name(record, sample, of).is_some()
}

/// The name of a record of the sample's list, if it is one of the runtime's own functions.
fn own_name(record: u16, sample: &Pending, of: &Resolution<'_>) -> Option<Arc<str>> {
    let known = of.process.frames.get(&sample.listed.as_ref()?.asked, (record.into(), None), sample.time);
    let Some(Known::Functions(functions)) = known else { return None };
    functions.last().filter(|function| function.kind == FrameKind::Builtin).map(|function| Arc::clone(&function.name))
}

/// Which of the functions of a part of a list, from the innermost, code is announced as. What it is about to call, or what has
/// just returned to it, may stand before it; what stands beyond is another call.
fn announced_among(pc: FramePc, records: &[u16], sample: &Pending, of: &Resolution<'_>) -> Option<(usize, Frame)> {
    let Place::Announced { hit, .. } = Place::of(of.process, pc, sample.time) else { return None };
    let asked = &sample.listed.as_ref()?.asked;
    let known = |record: &u16| of.process.frames.get(asked, (usize::from(*record), None), sample.time);
    let is_own = |function: &Frame| function.kind == FrameKind::Builtin;
    let functions = records.iter().map(|record| function_of(known(record))).enumerate();
    let last = functions.filter(|(_, function)| !function.as_ref().is_some_and(is_own)).take(2);
    announced_first(hit.name(), last)
}

/// Whether a frame is in code that is announced as that of one function.
fn is_in_one_function(pc: FramePc, sample: &Pending, process: &Process) -> bool {
    let place = Place::of(process, pc, sample.time);
    matches!(place, Place::Announced { hit, .. } if is_of_one_function(hit.name()))
}

/// Whether the function of a record is one of the runtime's own whose native frame is the last of these frames, and says so
/// by its name: PHP's do.
fn is_shown_natively(record: u16, sample: &Pending, of: &Resolution<'_>, frames: &[FrameId]) -> bool {
    let Some(native) = frames.last().map(|frame| of.profile.frame(*frame)) else { return false };
    let name = ["zif_", "zim_"].iter().find_map(|prefix| native.name.strip_prefix(prefix));
    let Some(name) = name.filter(|_| native.kind == FrameKind::Native) else { return false };
    own_name(record, sample, of).is_some_and(|own| own.replace("::", "_").eq_ignore_ascii_case(name))
}

/// Counts a leaf in listed code, innermost first, as certain or not.
fn count_leaf(functions: &[Frame], account: &mut Account) {
    let is_guessed = functions.first().is_some_and(|frame| is_guess(&frame.name, frame.kind, frame.inlined));
    account.jit.leaves_guessed += u64::from(is_guessed);
    account.jit.leaves_certain += u64::from(!is_guessed);
}

/// Whether a dump names it.
fn is_of_dump(hit: &CodeHit<'_>) -> bool {
    matches!(hit.origin(), CodeOrigin::Jitdump | CodeOrigin::Peeked)
}

/// Whether the BPF program had the right rules for generated code when it took the sample. Of code that is announced and
/// lies in a file, as V8's builtins do, it has the file's rows.
fn was_true(process: &Process, pc: FramePc, time: MonoNs) -> bool {
    let place = Place::mapped(&process.space, Avma(pc.lookup()), time);
    let in_file = matches!(place, Place::File(_) | Place::Special(_));
    in_file || process.code.was_true(pc.lookup(), time)
}

/// Whether it had, of code where other code has been, and did not do without.
fn has_true_row(process: &Process, pc: FramePc, time: MonoNs) -> bool {
    let row = process.code.rows().and_then(|rows| rows.row_at(pc.lookup(), time));
    was_true(process, pc, time) && !row.is_some_and(|row| row.is_gap())
}

fn comm_text(comm: &[u8]) -> Arc<str> {
    let end = memchr::memchr(0, comm).unwrap_or(comm.len());
    Arc::from(String::from_utf8_lossy(&comm[..end]))
}
