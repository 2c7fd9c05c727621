//! From a waiting sample to frames in the profile.

use std::collections::HashMap;
use std::sync::Arc;

use profiler_common::stop::StopReason;
use profiler_common::unwind::{PcKind, lookup_pc};
use rustc_hash::FxHashMap;

use crate::account::Account;
use crate::code::{CodeHit, CodeId};
use crate::process::{Mapping, MappingKind, Process, ProcessId};
use crate::profile::{FrameId, Profile, Task};
use crate::record::files::{Files, Tables};
use crate::record::labels::History;
use crate::record::sources::Sources;
use crate::record::unwinding::Unwinding;
use crate::record::waiting::{Stacks, Waiting};
use crate::symbol::names::classify;
use crate::symbol::{Frame, FrameKind, Module, SourceLine, SymbolKey, Symbolizer};
use crate::units::{Avma, MonoNs};

/// How much later than the sample a record may be and still name it: runtimes stamp a record when they write it, and
/// the code may run before (V8 logs after installing).
const MAX_LATENESS_NS: u64 = 10_000_000;

/// Sampled instructions of generated code that get frames of their own: an eighth of the frames that a profile holds.
/// What is sampled beyond stands at its function's start. A minute of a busy machine samples some thousands.
const MAX_EXACT: usize = 1 << 16;

/// Functions at which a thread or a process begins: a stack that reaches one of them is complete. glibc's and musl's
/// names, then those of Go, which starts threads without libc, and whose scheduler has a stack of its own in each thread
/// that begins with `mcall`.
const ENTRY_POINTS: [&str; 17] = [
    "_start",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "start_thread",
    "clone",
    "clone3",
    "__clone",
    "__clone3",
    "__clone_internal",
    "libc_start_main_stage2",
    "start",
    "runtime.goexit",
    "runtime.mstart",
    "runtime.clone",
    "runtime.rt0_go",
    "runtime.mcall",
];

/// Why a frame of generated code has no name.
mod unnamed {
    pub(super) const NO_SOURCE: &str = "no jitdump or perf map";
    pub(super) const NOT_ANNOUNCED: &str = "not announced";
}

/// Whether a sample can be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// Every name is known.
    Ready,
    /// The symbolizer has not answered yet.
    NotYet,
    /// Generated code in it has no name, and may get one when the runtime writes its newest records.
    Unnamed,
}

/// What a resolved address is.
enum Resolved {
    /// Generated code with a name: its frames, innermost first, are in [`Resolver::chain`].
    Jit,
    /// Generated code without one.
    UnnamedJit(FrameId),
    /// Native code: innermost first, inlined functions included.
    Native(Arc<[FrameId]>, bool),
    /// Memory that nothing is known to be mapped at.
    Unmapped(FrameId),
}

/// One frame's part of a place in generated code.
struct JitPlace<'a> {
    name: &'a str,
    line: Option<(&'a Arc<str>, u32)>,
    source: Option<&'a Arc<str>>,
    /// Start and method of an inlined part.
    inlined: Option<(u32, u32)>,
}

/// Everything that a resolution reads.
pub(super) struct Context<'a> {
    pub(super) process: Option<&'a Process>,
    pub(super) sources: Option<&'a Sources>,
    pub(super) symbols: &'a Symbolizer,
    pub(super) unwinding: Option<&'a Unwinding>,
    pub(super) stacks: &'a Stacks,
    pub(super) labels: &'a History,
}

impl<'a> Context<'a> {
    fn tables(&self) -> Tables<'a> {
        Tables { objects: self.symbols.objects(), unwinding: self.unwinding }
    }
}

/// An object, the start and method of an inlined part (`None` for the object itself), a line, and an address.
type JitKey = (ProcessId, CodeId, Option<(u32, u32)>, u32, Avma);

/// Names samples and adds them to the profile; remembers frames that it has made.
#[derive(Default)]
pub(super) struct Resolver {
    native: FxHashMap<SymbolKey, (Arc<[FrameId]>, bool)>,
    jit: FxHashMap<JitKey, FrameId>,
    /// Frames of sampled instructions among them.
    exact: usize,
    chain: Vec<FrameId>,
    plain: HashMap<(FrameKind, Arc<str>), FrameId>,
    comms: HashMap<[u8; profiler_common::limits::COMM_LEN], Arc<str>>,
    /// Modules of generated code by the name that its runtime gave; empty for none.
    jit_modules: HashMap<Arc<str>, Arc<Module>>,
    /// Unnamed frames of generated code, by process.
    pub(super) unnamed_by_process: HashMap<ProcessId, u64>,
    frames: Vec<FrameId>,
}

impl Resolver {
    /// Asks for the names of all native and kernel addresses of a stack that was not seen before.
    pub(super) fn prefetch(
        process: &Process,
        user: &[u64],
        time: MonoNs,
        files: &mut Files,
        symbols: &Symbolizer,
        unwinding: Option<&Unwinding>,
        remarks: &mut Vec<String>,
    ) {
        let tables = Tables { objects: symbols.objects(), unwinding };
        for (index, &pc) in user.iter().enumerate() {
            let addr = Avma(lookup_pc(pc, pc_kind(index)));
            if let Some(mapping) = process.space.lookup(addr, time)
                && let Some(key) = files.key(process.id, mapping, addr, tables, remarks)
            {
                symbols.request(key);
            }
        }
    }

    /// Asks for the names of kernel addresses.
    pub(super) fn prefetch_kernel(kernel: &[u64], symbols: &Symbolizer) {
        for (index, &pc) in kernel.iter().enumerate() {
            symbols.request(SymbolKey::Kernel(Avma(lookup_pc(pc, pc_kind(index)))));
        }
    }

    /// Whether the sample can be resolved as well as it ever will be.
    pub(super) fn readiness(
        &self,
        sample: &Waiting,
        context: &Context<'_>,
        files: &mut Files,
        remarks: &mut Vec<String>,
    ) -> Readiness {
        let symbols = context.symbols;
        let kernel = context.stacks.frames(sample.kernel).iter().enumerate();
        let mut kernel = kernel.map(|(index, &pc)| SymbolKey::Kernel(Avma(lookup_pc(pc, pc_kind(index)))));
        if !kernel.all(|key| self.is_named(symbols, key)) {
            return Readiness::NotYet;
        }
        let Some(process) = context.process else { return Readiness::Ready };
        let mut readiness = Readiness::Ready;
        for (index, &pc) in context.stacks.frames(sample.user).iter().enumerate() {
            let addr = Avma(lookup_pc(pc, pc_kind(index)));
            let Some(mapping) = process.space.lookup(addr, sample.time) else { break };
            if is_file(mapping) {
                let key = files.key(process.id, mapping, addr, context.tables(), remarks);
                if key.is_some_and(|key| !self.is_named(symbols, key)) {
                    return Readiness::NotYet;
                }
            } else if context.sources.is_some_and(|sources| sources.any() && !is_announced(sources, addr, sample.time))
            {
                readiness = Readiness::Unnamed;
            }
        }
        readiness
    }

    /// Whether a name has come. One that was forgotten since it was asked for is asked for again.
    fn is_named(&self, symbols: &Symbolizer, key: SymbolKey) -> bool {
        let named = self.native.contains_key(&key) || symbols.get(key).is_some();
        if !named {
            symbols.request(key);
        }
        named
    }

    /// Forgets the frames that it has made: the profile has been emptied.
    pub(super) fn forget_frames(&mut self) {
        self.native.clear();
        self.jit.clear();
        self.plain.clear();
        self.comms.clear();
        self.jit_modules.clear();
    }

    /// Frames and names that it remembers.
    pub(super) fn remembered(&self) -> usize {
        self.native.len() + self.jit.len() + self.plain.len() + self.comms.len() + self.jit_modules.len()
    }

    /// Forgets the frames of other processes' code.
    pub(super) fn retain(&mut self, wanted: impl Fn(ProcessId) -> bool) {
        self.unnamed_by_process.retain(|process, _| wanted(*process));
        self.jit.retain(|(process, ..), _| wanted(*process));
    }

    /// Adds the sample to the profile.
    pub(super) fn resolve(
        &mut self,
        sample: &Waiting,
        context: &Context<'_>,
        files: &mut Files,
        profile: &mut Profile,
        account: &mut Account,
    ) {
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        for (index, &pc) in context.stacks.frames(sample.kernel).iter().enumerate() {
            let key = SymbolKey::Kernel(Avma(lookup_pc(pc, pc_kind(index))));
            frames.extend(self.native(key, context.symbols, profile).0.iter().copied());
        }
        self.user_frames(sample, context, files, profile, account, &mut frames);
        let mut stack = profile.stack_root();
        for frame in frames.iter().rev() {
            stack = profile.push(stack, *frame);
        }
        let comm = Arc::clone(self.comms.entry(sample.comm).or_insert_with(|| comm_text(&sample.comm)));
        let task = profile.task(Task {
            pid: sample.process.pid,
            process_start: sample.process.start.0,
            tid: sample.tid,
            comm,
            labels: Arc::clone(context.labels.at(sample.time)),
        });
        profile.add(sample.time, stack, task, 1);
        self.frames = frames;
    }

    /// Appends the user frames, innermost first, and counts how the stack ended.
    fn user_frames(
        &mut self,
        sample: &Waiting,
        context: &Context<'_>,
        files: &mut Files,
        profile: &mut Profile,
        account: &mut Account,
        frames: &mut Vec<FrameId>,
    ) {
        let user = context.stacks.frames(sample.user);
        if user.is_empty() {
            account.stacks.without_user_part += 1;
            return;
        }
        let mut stop = sample.stop;
        let mut at_entry = false;
        for (index, &pc) in user.iter().enumerate() {
            match self.user_frame(pc, index, sample, context, files, profile, account) {
                Resolved::Jit => {
                    account.jit.leaves_named += u64::from(index == 0);
                    at_entry = false;
                    frames.append(&mut self.chain);
                    if index < sample.true_from && !was_true(context, pc, index, sample.time) {
                        // What the kernel part took for its caller may be anything.
                        stop = StopReason::StaleRules;
                        break;
                    }
                }
                Resolved::UnnamedJit(frame) => {
                    account.jit.leaves_unnamed += u64::from(index == 0);
                    *self.unnamed_by_process.entry(sample.process).or_default() += 1;
                    at_entry = false;
                    frames.push(frame);
                }
                Resolved::Native(native, entry) => {
                    at_entry = entry;
                    frames.extend(native.iter().copied());
                }
                Resolved::Unmapped(frame) if index == 0 => frames.push(frame),
                Resolved::Unmapped(_) => {
                    // A word that was taken for a return address: nothing beyond it is a caller.
                    stop = StopReason::NotExecutable;
                    break;
                }
            }
        }
        if stop == StopReason::EndOfStack && user.len() == 1 && !at_entry {
            // Code that uses the frame pointer as any register had a zero in it (PHP's traces, Erlang without
            // `+JPperf true`): no thread begins in a function that is no entry point and has no caller.
            stop = StopReason::NoFramePointer;
        }
        if at_entry || stop == StopReason::EndOfStack {
            account.stacks.complete += 1;
        } else {
            *account.stacks.cut.entry(stop.describe()).or_default() += 1;
            let note = self.plain(FrameKind::Note, &format!("[cut: {}]", stop.describe()), profile);
            frames.push(note);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one address, and the tables it is looked up in")]
    fn user_frame(
        &mut self,
        pc: u64,
        index: usize,
        sample: &Waiting,
        context: &Context<'_>,
        files: &mut Files,
        profile: &mut Profile,
        account: &mut Account,
    ) -> Resolved {
        let addr = Avma(lookup_pc(pc, pc_kind(index)));
        // Announced code first: V8's builtins lie inside node's own text.
        if let Some(sources) = context.sources
            && let Some(nearest) = sources.code.map.lookup_nearest(addr, sample.time)
            && nearest.later_by_ns <= MAX_LATENESS_NS
        {
            account.jit.named_late += u64::from(nearest.later_by_ns > 0);
            account.jit.count_named(nearest.hit.origin());
            let address = self.address(&nearest.hit, (index == 0).then_some(addr), account);
            self.jit_chain(sample.process, &nearest.hit, address, profile);
            return Resolved::Jit;
        }
        let Some(process) = context.process else {
            return Resolved::Unmapped(self.plain(FrameKind::Native, "[process gone]", profile));
        };
        let Some(mapping) = process.space.lookup(addr, sample.time) else {
            return Resolved::Unmapped(self.plain(FrameKind::Native, "[unmapped]", profile));
        };
        if is_file(mapping) {
            return self.file_frame(process, mapping, addr, context, files, profile, account);
        }
        let any = context.sources.is_some_and(Sources::any);
        let reason = if any { unnamed::NOT_ANNOUNCED } else { unnamed::NO_SOURCE };
        *account.jit.unnamed.entry(reason).or_default() += 1;
        Resolved::UnnamedJit(self.plain(FrameKind::Jit, "[JIT code without a name]", profile))
    }

    #[expect(clippy::too_many_arguments, reason = "one address, and the tables it is looked up in")]
    fn file_frame(
        &mut self,
        process: &Process,
        mapping: &Mapping,
        addr: Avma,
        context: &Context<'_>,
        files: &mut Files,
        profile: &mut Profile,
        account: &mut Account,
    ) -> Resolved {
        let mut remarks = Vec::new();
        let key = files.key(process.id, mapping, addr, context.tables(), &mut remarks);
        for remark in remarks {
            account.remark(remark);
        }
        match key {
            Some(key) => {
                let (frames, entry) = self.native(key, context.symbols, profile);
                Resolved::Native(frames, entry)
            }
            None => {
                account.native_unnamed += 1;
                let name = format!("[{}]", mapping.basename());
                Resolved::Native(Arc::new([self.plain(FrameKind::Native, &name, profile)]), false)
            }
        }
    }

    /// The frames of an object's or the kernel's address, and whether the outermost of them is an entry point.
    fn native(&mut self, key: SymbolKey, symbols: &Symbolizer, profile: &mut Profile) -> (Arc<[FrameId]>, bool) {
        if let Some((frames, entry)) = self.native.get(&key) {
            return (Arc::clone(frames), *entry);
        }
        let final_answer = symbols.get(key).is_some();
        let named = symbols.frames(key);
        let entry = named.last().is_some_and(|frame| ENTRY_POINTS.contains(&base_name(&frame.name)));
        let frames: Arc<[FrameId]> = named.iter().map(|frame| profile.intern_frame(frame)).collect();
        if final_answer {
            self.native.insert(key, (Arc::clone(&frames), entry));
        }
        (frames, entry)
    }

    /// The address that frames of a place in generated code get: of the sampled instruction, so that samples can be
    /// counted by instruction; of callers the function's start, because return addresses would only multiply frames.
    fn address(&self, hit: &CodeHit<'_>, sampled: Option<Avma>, account: &mut Account) -> Avma {
        match sampled {
            Some(_) if self.exact >= MAX_EXACT => {
                account.jit.leaves_inexact += 1;
                hit.start()
            }
            Some(sampled) => sampled,
            None => hit.start(),
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

    fn jit(
        &mut self,
        process: ProcessId,
        hit: &CodeHit<'_>,
        place: &JitPlace<'_>,
        address: Avma,
        profile: &mut Profile,
    ) -> FrameId {
        let key = (process, hit.id, place.inlined, place.line.map_or(0, |(_, line)| line), address);
        if let Some(frame) = self.jit.get(&key) {
            return *frame;
        }
        let name = classify(place.name, hit.origin());
        let line = place.line.map(|(file, line)| SourceLine { file: Arc::clone(file), line });
        let file = || place.source.map(|file| SourceLine { file: Arc::clone(file), line: 0 });
        let frame = profile.intern_frame(&Frame {
            name: Arc::from(name.display),
            kind: name.kind,
            tier: name.tier,
            inlined: place.inlined.is_some(),
            module: Some(self.jit_module(hit.module())),
            source: line.or(name.source).or_else(file),
            address: address.0,
        });
        self.exact += usize::from(address != hit.start());
        self.jit.insert(key, frame);
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
        let name: Arc<str> = Arc::from(name);
        *self.plain.entry((kind, Arc::clone(&name))).or_insert_with(|| {
            profile.intern_frame(&Frame {
                name,
                kind,
                tier: None,
                inlined: false,
                module: None,
                source: None,
                address: 0,
            })
        })
    }
}

/// Whether the kernel part had the right rules for generated code when it took the sample.
fn was_true(context: &Context<'_>, pc: u64, index: usize, time: MonoNs) -> bool {
    let rows = context.sources.and_then(|sources| sources.code.rows());
    rows.is_none_or(|rows| rows.was_true(lookup_pc(pc, pc_kind(index)), time))
}

fn is_file(mapping: &Mapping) -> bool {
    matches!(mapping.kind, MappingKind::File | MappingKind::Vdso)
}

fn is_announced(sources: &Sources, addr: Avma, time: MonoNs) -> bool {
    sources.code.map.lookup_nearest(addr, time).is_some_and(|nearest| nearest.later_by_ns <= MAX_LATENESS_NS)
}

fn pc_kind(index: usize) -> PcKind {
    if index == 0 { PcKind::Instruction } else { PcKind::ReturnAddress }
}

/// A symbol without its version: `__libc_start_main@@GLIBC_2.34`.
fn base_name(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

fn comm_text(comm: &[u8]) -> Arc<str> {
    let end = memchr::memchr(0, comm).unwrap_or(comm.len());
    Arc::from(String::from_utf8_lossy(&comm[..end]))
}
