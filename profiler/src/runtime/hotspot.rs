//! HotSpot's code, as its readers give it and as its announcements would name it.

use std::sync::Arc;

use jitprof_common::machine::Machine;
use jitprof_common::sample::FramePc;
use jitprof_common::taken::{KEPT_WORDS, MAX_WORDS};
use jitprof_common::units::{Avma, MonoNs};
use jitprof_runtimes::hotspot::{
    Blob, BlobName, Change, CodeCache, Codelet, Compilations, Frame, FrameShape, Interpreted, InterpreterFrame, Kind,
    Layout, LayoutError, Pc, Position, ReturnBarrier, Tier, Update, codelets,
};
use jitprof_runtimes::{Memory, ReadError, Reader, Symbols};

use crate::process::monotonic_now;

use super::frames::{Answers, Capture, DescribedFrame, DescribedFunction, FrameAsk, TakeRead, WhyUnnamed};
use super::modules::Modules;
use super::unloading::{Count, Unloading};
use super::{CodeChange, FoundCode, FoundFrame, RuntimeRead};

/// The symbol by which the module is known.
const TABLES: &str = "gHotSpotVMStructs";
/// Stands behind the name of a method that is interpreted.
const INTERPRETED: &str = " [interpreted]";
/// Stands for the frames of a virtual thread that are on no stack.
const IN_HEAP: &str = "[callers in the heap]";
/// How often methods are looked at of which some are unloaded meanwhile.
const LOOKS: u32 = 2;
/// How many readings look for the return barrier.
const STUB_LOOKS: u32 = 100;
/// Readings that are nearer to each other say nothing of compilations that were asked for and are not there: those take longer.
const TURN_NS: u64 = 100_000_000;
/// Bytes of a word.
const WORD: i32 = 8;
/// The first of the words that are kept for the next frame at the same address: what never changes of a method.
const CONST_METHOD: usize = MAX_WORDS - KEPT_WORDS;
/// The other words of a frame in the interpreter: from the lowest slot up to the frame pointer.
const METHOD: usize = slot(InterpreterFrame::METHOD);
const BYTECODE: usize = slot(InterpreterFrame::BYTECODE);
const SLOTS: u8 = slot(0) as u8;

/// Which word a slot of the frame is.
const fn slot(offset: i32) -> usize {
    ((offset - InterpreterFrame::BYTECODE) / WORD) as usize
}

/// What was not found yet in something, and is looked for again a number of times.
struct Pending<T>(Option<(T, u32)>);

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Pending<T> {
    fn of(place: T) -> Self {
        Self(Some((place, STUB_LOOKS)))
    }

    /// Looks once more. What is found is found once.
    fn look<R>(&mut self, find: impl FnOnce(&T) -> Option<R>) -> Option<(T, R)> {
        let (place, looks) = self.0.as_mut()?;
        let found = find(place);
        *looks -= 1;
        let is_over = found.is_some() || *looks == 0;
        let (place, _) = self.0.take_if(|_| is_over)?;
        Some((place, found?))
    }
}

/// A JVM whose layout is known.
pub(super) struct HotSpot {
    layout: Layout,
    cache: CodeCache,
    /// When the last reading began that did not come soon after another one.
    turned_at: MonoNs,
    compilations: Compilations,
    /// Parts of the interpreter in which the frame of a method is whole, by address, once they have been read.
    whole: Vec<Codelet>,
    /// Stubs whose return barrier was not found yet.
    whole_stubs: Pending<Arc<Blob>>,
    unloading: Unloading,
    /// How many classes were unloaded when the last reading of the lists began.
    unloads: Count,
}

impl HotSpot {
    /// Finds it among a process' modules. What is there and cannot be read is said instead.
    pub(super) fn find<M: Memory>(modules: &Modules, reader: &Reader<M>) -> Option<Result<Self, RuntimeRead>> {
        let module = modules.iter().find(|module| module.address_of(TABLES).is_some())?;
        Some(match Layout::read(module, reader) {
            Ok(layout) => Ok(Self {
                layout,
                cache: CodeCache::default(),
                turned_at: MonoNs(0),
                compilations: Compilations::default(),
                whole: Vec::new(),
                whole_stubs: Pending::default(),
                unloading: Unloading::default(),
                unloads: Count::Unsaid,
            }),
            // Its memory, not its version: it may be there the next time.
            Err(LayoutError::Unreadable(_)) => {
                Err(RuntimeRead { incomplete: true, anew: true, ..RuntimeRead::default() })
            }
            Err(error) => {
                let version = match &error {
                    LayoutError::Missing { version, .. } | LayoutError::TooOld(version) => format!("HotSpot {version}"),
                    LayoutError::NoTables(_) | LayoutError::Unreadable(_) => "HotSpot".to_owned(),
                };
                let problem = Some(error.to_string());
                Err(RuntimeRead { runtime: Some(version), problem, anew: true, ..RuntimeRead::default() })
            }
        })
    }

    /// Bytes that are kept, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.cache.bytes() + self.compilations.bytes() + self.unloading.bytes()
    }

    pub(super) fn read<M: Memory>(&mut self, reader: &Reader<M>) -> RuntimeRead {
        let begun = self.unloading.look(&self.layout, reader);
        let compiled = self.compilations.count(&self.layout, reader);
        self.note_turn(monotonic_now());
        let update = self.cache.update(&self.layout, reader);
        let compiled = [compiled, self.compilations.count(&self.layout, reader)];
        let unloads = self.unloading.look(&self.layout, reader);
        let was_unloaded = std::mem::replace(&mut self.unloads, begun) != unloads;
        // What calls native methods has numbers, too, is not counted, and goes with its class only.
        let may_hide = self.compilations.may_hide(&update, compiled) || was_unloaded;
        let may_have_passed = if update.unseen && may_hide { self.freed_in(&update, was_unloaded) } else { Vec::new() };
        let mut changes = self.parted_stubs(reader);
        changes.reserve(update.changes.len());
        for change in &update.changes {
            match change {
                Change::Loaded(blob) => {
                    let parts = self.parts_of_stubs(blob, reader);
                    if parts.is_none() && ReturnBarrier::is_in(blob, &self.layout) {
                        self.whole_stubs = Pending::of(Arc::clone(blob));
                    }
                    match parts {
                        Some(parts) => changes.extend(parts.map(CodeChange::Loaded)),
                        None => changes.push(CodeChange::Loaded(found(blob))),
                    }
                }
                // Stubs with a barrier stay as long as the process.
                Change::Unloaded(blob) => changes.push(CodeChange::Unloaded(blob.code)),
            }
        }
        RuntimeRead {
            runtime: Some(format!("HotSpot {}", self.layout.version())),
            changes,
            incomplete: update.incomplete.is_some(),
            capture: self.interpreter().and_then(|interpreter| capture(&self.layout, interpreter)),
            lists: true,
            may_have_passed,
            heaps: self.heaps().collect(),
            // Elsewhere compiled code has no rows.
            loses_frame_pointers: Machine::NATIVE == Machine::X86_64 && self.layout.loses_frame_pointers(),
            unloads: unloads.number(),
            ..RuntimeRead::default()
        }
    }

    /// The stubs around the return barrier in the place of the whole, once it is found. They may not be written yet when their
    /// blob is there, or the reading has no room left for them.
    fn parted_stubs<M: Memory>(&mut self, reader: &Reader<M>) -> Vec<CodeChange> {
        let mut pending = std::mem::take(&mut self.whole_stubs);
        let found = pending.look(|blob| self.parts_of_stubs(blob, reader));
        self.whole_stubs = pending;
        let Some((blob, parts)) = found else { return Vec::new() };
        [CodeChange::Unloaded(blob.code)].into_iter().chain(parts.map(CodeChange::Loaded)).collect()
    }

    fn parts_of_stubs<M: Memory>(&self, blob: &Blob, reader: &Reader<M>) -> Option<[FoundCode; 3]> {
        let barrier = ReturnBarrier::find(blob, &self.layout, reader)?;
        around(found(blob), barrier)
    }

    /// The heaps in which code may have come since the reading before and been freed: all, where classes were unloaded, else
    /// those in which code is gone. Where room is scarce, some lives for a tenth of a second.
    fn freed_in(&self, update: &Update, was_unloaded: bool) -> Vec<(Avma, u64)> {
        let is_in = |change: &Change, (low, end): (Avma, Avma)| match change {
            Change::Unloaded(blob) => (low..end).contains(&blob.header),
            Change::Loaded(_) => false,
        };
        let is_freed = |(low, size): &(Avma, u64)| {
            let end = Avma(low.0.saturating_add(*size));
            was_unloaded || update.changes.iter().any(|change| is_in(change, (*low, end)))
        };
        self.heaps().filter(is_freed).collect()
    }

    /// First byte and length of each heap.
    fn heaps(&self) -> impl Iterator<Item = (Avma, u64)> {
        self.cache.ranges().iter().map(|(low, end)| (*low, end.0.saturating_sub(low.0)))
    }

    /// A reading begins. Between two that come soon after each other hardly a compilation is made.
    fn note_turn(&mut self, now: MonoNs) {
        let is_soon = now.0.saturating_sub(self.turned_at.0) < TURN_NS;
        self.cache.comes_soon(is_soon);
        if !is_soon {
            self.turned_at = now;
        }
    }

    fn interpreter(&self) -> Option<&Arc<Blob>> {
        self.cache.blobs().find(|blob| blob.kind == Kind::Interpreter)
    }

    /// Says which methods are at addresses of compiled code, and which are interpreted in frames.
    pub(super) fn describe<M: Memory>(&mut self, reader: &Reader<M>, frames: &[FrameAsk]) -> Answers {
        if self.whole.is_empty() {
            reader.refresh();
            // They are asked for again if they could not be read.
            self.whole = codelets(&self.layout, reader).unwrap_or_default();
            self.whole.retain(Codelet::keeps_frame);
        }
        let mut described = vec![DescribedFrame::Unnamed(WhyUnnamed::Replaced); frames.len()];
        let mut answers = Answers::default();
        let compiled = frames.iter().enumerate().filter_map(|(at, ask)| {
            let code = ask.code?;
            let blob = self.cache.at(code.start)?;
            let is_same = blob.code == code.start && blob.compile_id == code.number;
            is_same.then_some((at, &**blob, Avma(ask.pc.pc())))
        });
        let compiled: Vec<_> = compiled.collect();
        // The address of a frame that is no longer valid is replaced: then it says nothing of what was inlined there.
        let come_by = |at: usize, blob: &Blob, pc: Avma| match frames[at].pc.is_interrupted() {
            true => Pc::Interrupted,
            false if blob.is_deoptimized(pc) => Pc::Deoptimized,
            false => Pc::Called,
        };
        let asked: Vec<_> = compiled.iter().map(|(at, blob, pc)| (*blob, *pc, come_by(*at, blob, *pc))).collect();
        let positions = self.cache.positions(&self.layout, reader, &asked);
        for (((at, ..), (blob, _, come_by)), position) in compiled.iter().zip(&asked).zip(positions) {
            described[*at] = match come_by {
                Pc::Deoptimized => deoptimized_as(position, tier(blob), &mut answers),
                _ => described_as(position, tier(blob), &mut answers),
            };
        }
        let interpreted = frames.iter().enumerate().filter(|(_, ask)| ask.code.is_none());
        let mut asked = Vec::new();
        for (at, ask) in interpreted {
            match self.interpreted(ask) {
                Ok(frame) => asked.push((at, frame)),
                Err(why) => described[at] = DescribedFrame::Unnamed(why),
            }
        }
        let words: Vec<Interpreted> = asked.iter().map(|(_, frame)| *frame).collect();
        let (methods, unloads) = self.methods(reader, &words);
        answers.since = vec![MonoNs(0); frames.len()];
        answers.unloads = match unloads {
            Count::Unsaid if !asked.is_empty() => Some(self.unloading.may_have_risen(monotonic_now())),
            _ => unloads.number(),
        };
        for ((at, frame), method) in asked.iter().zip(methods) {
            if let (Ok(Some(method)), Some(_)) = (&method, answers.unloads) {
                answers.since[*at] = self.unloading.since(frame, &method.method);
            }
            let of_one = |frame| Position { frames: vec![frame], guessed: 0, exact: true };
            described[*at] = described_as(method.map(|frame| frame.map(of_one)), INTERPRETED, &mut answers);
        }
        answers.frames = described;
        answers
    }

    /// The methods of frames in the interpreter's code, and how many classes were unloaded before and after they were looked
    /// at. Where some were unloaded meanwhile, again and again, no method is certain.
    fn methods<M: Memory>(
        &mut self,
        reader: &Reader<M>,
        asked: &[Interpreted],
    ) -> (Vec<Result<Option<Frame>, ReadError>>, Count) {
        let mut before = self.unloading.look(&self.layout, reader);
        for _ in 0..LOOKS {
            let methods = Interpreted::frames(asked, &self.layout, reader);
            let after = self.unloading.look(&self.layout, reader);
            if after == before && after != Count::Unread {
                return (methods, after);
            }
            before = after;
        }
        (vec![Ok(None); asked.len()], before)
    }

    /// The words of a frame in the interpreter's code, if it is a method's.
    fn interpreted(&self, ask: &FrameAsk) -> Result<Interpreted, WhyUnnamed> {
        let word = |at: usize, reads: u8| {
            ask.words.get(at).copied().filter(|_| ask.reads >= reads).map(Avma).ok_or(WhyUnnamed::NoWords)
        };
        if !ask.pc.is_interrupted() {
            let (method, saved, const_method) = (word(METHOD, 1)?, word(BYTECODE, 1)?, word(CONST_METHOD, 2).ok());
            return Ok(Interpreted { method, const_method, saved, register: None });
        }
        // What it executes just now is in a register, and the frame has what it executed at its last call.
        if self.keeps_frame(ask.pc) {
            let (method, const_method) = (word(METHOD, 2)?, Some(word(CONST_METHOD, 2)?));
            return Ok(Interpreted { method, const_method, saved: Avma(0), register: None });
        }
        Err(WhyUnnamed::NoFrame)
    }

    fn keeps_frame(&self, pc: FramePc) -> bool {
        let before = self.whole.partition_point(|codelet| codelet.start.0 <= pc.pc());
        let codelet = before.checked_sub(1).and_then(|at| self.whole.get(at));
        codelet.is_some_and(|codelet| pc.pc() < codelet.end.0)
    }
}

/// What is taken along with frames in the interpreter: its slots, and at once what never changes of the method, which tells
/// afterwards whether it is still the same one.
fn capture(layout: &Layout, interpreter: &Blob) -> Option<Capture> {
    let spec = InterpreterFrame::capture(layout, interpreter);
    let [_, const_method] = *spec.words.iter().find_map(|word| <&[i32; 2]>::try_from(&*word.steps).ok())?;
    let slots = TakeRead { base: None, offset: InterpreterFrame::BYTECODE, words: SLOTS, to: 0, tagged: false };
    let base = u8::try_from(METHOD).ok();
    let kept = TakeRead { base, offset: const_method, words: 1, to: u8::try_from(CONST_METHOD).ok()?, tagged: false };
    Some(Capture {
        reads: vec![slots, kept],
        key: base?,
        code: Vec::new(),
        left_by: Vec::new(),
        generated: Some((spec.start, spec.end.0.saturating_sub(spec.start.0))),
        parked_sp: Vec::new(),
        parked_stack: None,
        list: None,
    })
}

fn described_as(position: Result<Option<Position>, ReadError>, tier: &str, answers: &mut Answers) -> DescribedFrame {
    if answers.is_full() {
        return DescribedFrame::Unnamed(WhyUnnamed::TooMuch);
    }
    let Position { frames: methods, guessed, .. } = match position {
        Ok(Some(position)) => position,
        Ok(None) => return DescribedFrame::Unnamed(WhyUnnamed::Replaced),
        Err(ReadError::OverBudget) => return DescribedFrame::Unnamed(WhyUnnamed::TooMuch),
        Err(ReadError::Unreadable(_)) => return DescribedFrame::Unnamed(WhyUnnamed::Unreadable),
        Err(ReadError::Malformed { .. }) => return DescribedFrame::Unnamed(WhyUnnamed::Implausible),
    };
    let last = methods.len().saturating_sub(1);
    let functions = methods.iter().enumerate().map(|(depth, method)| DescribedFunction {
        guessed: depth < guessed,
        ..function(method, tier, depth < last, answers)
    });
    DescribedFrame::Functions(functions.collect())
}

/// A frame that is no longer valid, if nothing was inlined into its code: else that may run in it, and nothing says what.
fn deoptimized_as(position: Result<Option<Position>, ReadError>, tier: &str, answers: &mut Answers) -> DescribedFrame {
    if matches!(&position, Ok(Some(Position { guessed: 0, .. }))) {
        described_as(position, tier, answers)
    } else {
        DescribedFrame::Unnamed(WhyUnnamed::Deoptimized)
    }
}

fn function(method: &Frame, tier: &str, inlined: bool, answers: &mut Answers) -> DescribedFunction {
    let name = method.method.in_class_file_with(tier);
    // A class says its file without the directory, which is that of its package.
    let package = method.method.class.rsplit_once('/').map_or("", |(package, _)| package);
    let file = match &method.file {
        Some(file) if package.is_empty() => file.to_string(),
        Some(file) => [package, "/", file].concat(),
        None => String::new(),
    };
    answers.function_in(&name, (&file, method.line.unwrap_or(0)), inlined)
}

fn found(blob: &Blob) -> FoundCode {
    let number = if matches!(blob.kind, Kind::Method(_)) { blob.compile_id } else { 0 };
    FoundCode {
        start: blob.code,
        size: blob.code_bytes,
        name: name(blob),
        frame: frame(blob),
        number,
        lines: None,
        registered: None,
    }
}

/// Stubs around a return barrier, and it, by the last byte of the code before: what returns to it is looked up there. Before it
/// lies what continues a virtual thread: it makes room on the stack for as many frames as there are, and keeps the frame
/// pointer of `enterSpecial`, which calls it.
fn around(stubs: FoundCode, barrier: ReturnBarrier) -> Option<[FoundCode; 3]> {
    let before = u32::try_from(barrier.start.0.checked_sub(stubs.start.0)?).ok()?.checked_sub(1)?;
    let size = barrier.bytes.checked_add(1)?;
    let behind = before.checked_add(size)?;
    let rest = stubs.size.checked_sub(behind).filter(|_| before > 0)?;
    let at = |distance: u32| Some(Avma(stubs.start.0.checked_add(distance.into())?));
    let frame = FoundFrame::Fixed { bytes: barrier.frame_bytes };
    let heap = FoundCode { start: at(before)?, size, name: IN_HEAP.to_owned(), frame, ..stubs.clone() };
    let last = FoundCode { start: at(behind)?, size: rest, ..stubs.clone() };
    Some([FoundCode { size: before, frame: FoundFrame::OfCaller, ..stubs }, heap, last])
}

/// Stands behind the name of a method that was compiled.
fn tier(blob: &Blob) -> &'static str {
    match blob.kind {
        Kind::Method(Tier::C1) => " [C1]",
        Kind::Method(Tier::C1Counting | Tier::C1Profiling) => " [C1, counting]",
        Kind::Method(Tier::C2) => " [C2]",
        _ => "",
    }
}

/// As perf's agent for the JVM announces a method, and which compiler made it behind.
fn name(blob: &Blob) -> String {
    match &blob.name {
        BlobName::Method(method) => method.in_class_file_with(tier(blob)),
        BlobName::Blob(name) => name.to_string(),
        // Empty, it is shown as code without a name.
        BlobName::Unknown(_) => String::new(),
    }
}

fn frame(blob: &Blob) -> FoundFrame {
    match (blob.kind, blob.frame) {
        (_, FrameShape::Sized { bytes, complete_from }) => {
            // Stubs of the runtime are called, and seen by what they call, with their frame complete.
            FoundFrame::Sized { bytes, complete_from: complete_from.unwrap_or(0) }
        }
        (_, FrameShape::Interpreter) => FoundFrame::Interpreter,
        // They jump to the method they find; the stack is that of the call.
        (Kind::Vtable, FrameShape::Unknown) => FoundFrame::None,
        (_, FrameShape::Unknown) => FoundFrame::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use jitprof_runtimes::hotspot::MethodName;

    use super::*;

    #[test]
    fn a_deoptimised_frame_has_its_name_if_nothing_was_inlined_into_its_code() {
        let method = MethodName { class: "A".into(), method: "outer".into(), signature: "()V".into() };
        let own = Frame { method, file: None, bci: None, line: None };
        let mut answers = Answers::default();
        let mut described = |position| deoptimized_as(position, " [C2]", &mut answers);
        let alone = described(Ok(Some(Position { frames: vec![own.clone()], guessed: 0, exact: false })));
        let DescribedFrame::Functions(functions) = &alone else { panic!("{alone:?}") };
        assert_eq!((functions.len(), functions[0].guessed, functions[0].line), (1, false, 0));
        let with_another = Position { frames: vec![own.clone(), own], guessed: 1, exact: false };
        for position in [Ok(Some(with_another)), Ok(None), Err(ReadError::OverBudget)] {
            assert_eq!(described(position), DescribedFrame::Unnamed(WhyUnnamed::Deoptimized));
        }
    }

    #[test]
    fn what_is_not_there_yet_is_looked_for_again_and_not_for_ever() {
        let mut stubs = Pending::of("stubs");
        assert_eq!(stubs.look(|_| None::<u32>), None);
        assert_eq!(stubs.look(|_| Some(7)), Some(("stubs", 7)));
        assert_eq!(stubs.look(|_| Some(7)), None);
        let mut never = Pending::of("no stubs");
        let looked = (0..2 * STUB_LOOKS).filter(|_| {
            let mut looked = false;
            never.look(|_| {
                looked = true;
                None::<u32>
            });
            looked
        });
        assert_eq!(looked.count(), STUB_LOOKS as usize);
    }

    #[test]
    fn stubs_are_parted_around_the_return_barrier_and_the_byte_before_it() {
        let stubs = FoundCode {
            start: Avma(0x1000),
            size: 0x400,
            name: "StubRoutines".to_owned(),
            frame: FoundFrame::Unknown,
            number: 0,
            lines: None,
            registered: None,
        };
        let barrier = |start| ReturnBarrier { start: Avma(start), bytes: 7, frame_bytes: 80 };
        let parts = around(stubs.clone(), barrier(0x1100)).unwrap();
        let places = parts.clone().map(|part| (part.start.0, part.size));
        assert_eq!(places, [(0x1000, 0xff), (0x10ff, 8), (0x1107, 0x2f9)]);
        let frames = parts.clone().map(|part| part.frame);
        assert_eq!(frames, [FoundFrame::OfCaller, FoundFrame::Fixed { bytes: 80 }, FoundFrame::Unknown]);
        let names = parts.map(|part| part.name);
        assert_eq!(names, ["StubRoutines", "[callers in the heap]", "StubRoutines"]);
        for outside in [0xfff, 0x1000, 0x1001, 0x13fa, u64::MAX] {
            assert_eq!(around(stubs.clone(), barrier(outside)), None, "{outside:#x}");
        }
    }
}
