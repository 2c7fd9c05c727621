//! V8's frames: which words of them samples take along, and which functions they are of.
//!
//! V8's code and functions are found frame by frame, and not listed: see [`jitprof_runtimes::v8`].

use std::num::NonZeroU32;

use jitprof_common::taken::{KEPT_WORDS, MAX_READ_WORDS, MAX_READS, MAX_WORDS};
use jitprof_common::units::Avma;
use jitprof_runtimes::v8::{
    CaptureSpec, Described, Frame, FrameWords, Layout, LayoutError, LeafRegisters, Looked, Names, Taken, Unknown, Where,
};
use jitprof_runtimes::{Memory, ReadError, Reader, Symbols};

use super::frames::{Answers, Capture, DependsOn, DescribedFrame, DescribedFunction, FrameAsk, TakeRead, WhyUnnamed};
use super::modules::Modules;
use super::{RuntimeRead, V8_TABLES};

/// The first of the words that are kept for the next frame at the same address.
const FIRST_KEPT: usize = MAX_WORDS - KEPT_WORDS;
/// Bytes of a word.
const WORD: i16 = 8;

/// A V8 whose layout is known.
pub(super) struct V8 {
    names: Names,
    plan: Plan,
}

impl V8 {
    /// Finds it among a process' modules. What is there and cannot be read is said instead.
    pub(super) fn find<M: Memory>(modules: &Modules, reader: &Reader<M>) -> Option<Result<Self, RuntimeRead>> {
        let module = modules.iter().find(|module| module.address_of(V8_TABLES).is_some())?;
        let runtime = |version: &jitprof_runtimes::v8::Version| format!("V8 {version}");
        let name = match Layout::read(module, reader) {
            Ok(layout) => match Plan::of(&layout.capture()) {
                Some(plan) => return Some(Ok(Self { names: Names::new(layout), plan })),
                None => return Some(Err(unreadable(runtime(&layout.version()), "V8's frames are larger than known"))),
            },
            Err(LayoutError::NoVersion) => return None,
            // Its memory, not its version: it may be there the next time.
            Err(LayoutError::Read(_)) => {
                return Some(Err(RuntimeRead { incomplete: true, anew: true, ..RuntimeRead::default() }));
            }
            Err(error) => (
                match &error {
                    LayoutError::UnknownVersion(version)
                    | LayoutError::Missing { version, .. }
                    | LayoutError::Implausible { version, .. } => runtime(version),
                    LayoutError::NoVersion | LayoutError::Read(_) => "V8".to_owned(),
                },
                error,
            ),
        };
        Some(Err(unreadable(name.0, &name.1.to_string())))
    }

    /// Bytes that are kept, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.names.bytes()
    }

    /// Drops what can be read again.
    pub(super) fn clear(&mut self) {
        self.names.clear();
    }

    /// There are no lists: what it is, and what samples are to take along.
    pub(super) fn read(&self) -> RuntimeRead {
        let runtime = Some(format!("V8 {}", self.names.layout().version()));
        RuntimeRead { runtime, capture: Some(self.plan.capture.clone()), ..RuntimeRead::default() }
    }

    /// Says of each frame what it is.
    pub(super) fn describe<M: Memory>(&mut self, reader: &Reader<M>, frames: &[FrameAsk]) -> Answers {
        let mut answers = Answers::default();
        for frame in frames {
            let (described, depends_on) = match self.plan.frame(frame) {
                Some(_) if answers.is_full() => (DescribedFrame::Unnamed(WhyUnnamed::TooMuch), None),
                Some(words) => {
                    let described = self.names.describe(reader, &words);
                    answers.code.extend(self.names.code());
                    (answer(described, &mut answers), Some(self.plan.depends_on(self.names.looked())))
                }
                None => (DescribedFrame::Unnamed(WhyUnnamed::NoWords), None),
            };
            answers.frames.push(described);
            answers.depends_on.push(depends_on);
        }
        answers
    }
}

fn unreadable(runtime: String, problem: &str) -> RuntimeRead {
    RuntimeRead { runtime: Some(runtime), problem: Some(problem.to_owned()), anew: true, ..RuntimeRead::default() }
}

fn answer(described: Described, answers: &mut Answers) -> DescribedFrame {
    match described {
        Described::Functions(frames) => {
            let function = |frame: &Frame| {
                let line = frame.at.map_or(0, |at| at.line);
                let column = frame.at.and_then(|at| NonZeroU32::new(at.column));
                let script = frame.function.script();
                let function = answers.function(&frame.to_string(), (script, line), frame.inlined);
                DescribedFunction { column, ..function }
            };
            DescribedFrame::Functions(frames.iter().map(function).collect())
        }
        // As V8's dumps have it, without the pattern.
        Described::RegExp => DescribedFrame::Functions(vec![answers.function("RegExp:", ("", 0), false)]),
        Described::Wasm => DescribedFrame::Unnamed(WhyUnnamed::WebAssembly),
        Described::Own => DescribedFrame::Own,
        Described::Unknown(why) => DescribedFrame::Unnamed(match why {
            Unknown::Read(ReadError::OverBudget) | Unknown::TooLarge(_) => WhyUnnamed::TooMuch,
            Unknown::Read(_) => WhyUnnamed::Unreadable,
            Unknown::No(_) => WhyUnnamed::Implausible,
            Unknown::Moving => WhyUnnamed::Moving,
            Unknown::NoCode => WhyUnnamed::NoCode,
            Unknown::NoFrame => WhyUnnamed::NoFrame,
            Unknown::Replaced => WhyUnnamed::Replaced,
        }),
    }
}

/// Which of the words that are taken is what.
struct Plan {
    capture: Capture,
    slots: [usize; 4],
    shared: usize,
    literal: (usize, u64),
    script: usize,
    source: usize,
    name: usize,
    /// How many reads give the first three of those, the source, and the name.
    reads: [usize; 3],
}

impl Plan {
    /// One read has all slots, the others go along the chains, whose beginnings are shared: step by step of all of them, so
    /// that neighbours are read at once.
    fn of(spec: &CaptureSpec) -> Option<Self> {
        let lowest = *spec.slots.iter().min()?;
        let count = u8::try_from(-lowest / WORD).ok().filter(|count| (1..=MAX_READ_WORDS).contains(count))?;
        let slot = |offset: i16| usize::try_from((offset - lowest) / WORD).ok().filter(|at| *at < usize::from(count));
        let [context, function, array, offset] = spec.slots.map(slot);
        let mut reads = vec![TakeRead { base: None, offset: i32::from(lowest), words: count, to: 0, tagged: false }];
        let chains = [&spec.shared, &spec.literal, &spec.script, &spec.source, &spec.name];
        let mut ends = [0; 5];
        for (at, chain) in ends.iter_mut().zip(chains) {
            *at = slot(chain.slot)?;
        }
        for step in 0..=chains.iter().map(|chain| chain.through.len()).max()? {
            for (at, chain) in ends.iter_mut().zip(chains) {
                if let Some(offset) = chain.through.iter().chain([&chain.value]).nth(step) {
                    *at = read(&mut reads, u8::try_from(*at).ok()?, i32::from(*offset))?;
                }
            }
        }
        let [shared, literal, script, source, name] = ends;
        let mask = if spec.literal.bytes == 4 { u64::from(u32::MAX) } else { u64::MAX };
        let words = reads.iter().map(|read| usize::from(read.to + read.words)).max().unwrap_or(0);
        (reads.len() <= MAX_READS && words <= MAX_WORDS).then_some(())?;
        let of_word = |word: usize| {
            let has = |read: &TakeRead| (usize::from(read.to)..usize::from(read.to + read.words)).contains(&word);
            reads.iter().position(has).map(|before| before + 1)
        };
        let needed = [of_word(shared)?.max(of_word(literal)?).max(of_word(script)?), of_word(source)?, of_word(name)?];
        Some(Self {
            capture: Capture {
                reads,
                key: u8::try_from(array?).ok()?,
                code: spec.own_code.into_iter().collect(),
                left_by: spec.left_by.into_iter().collect(),
                generated: None,
                parked_sp: Vec::new(),
                parked_stack: None,
                list: None,
            },
            slots: [context?, function?, array?, offset?],
            shared,
            literal: (literal, mask),
            script,
            source,
            name,
            reads: needed,
        })
    }

    /// Which words these parts of a frame are.
    fn depends_on(&self, looked: Looked) -> DependsOn {
        let [context, function, bytecode_array, bytecode_offset] = self.slots;
        let bit = |part: Looked, at: usize| if looked.has(part) && at < MAX_WORDS { 1_u16 << at } else { 0 };
        let words = [
            (Looked::CONTEXT, context),
            (Looked::FUNCTION, function),
            (Looked::BYTECODE_ARRAY, bytecode_array),
            (Looked::BYTECODE_OFFSET, bytecode_offset),
            (Looked::SHARED, self.shared),
            (Looked::IDENTITY, self.literal.0),
            (Looked::IDENTITY, self.script),
            (Looked::IDENTITY, self.source),
            (Looked::IDENTITY, self.name),
        ];
        // As samples have them: rdi, r9, r12.
        let registers = [(Looked::LEAF_FUNCTION, 1), (Looked::LEAF_OFFSET, 2), (Looked::LEAF_ARRAY, 4)];
        let registers = registers.into_iter().filter(|(part, _)| looked.has(*part)).map(|(_, bit)| bit);
        DependsOn {
            words: words.into_iter().fold(0, |all, (part, at)| all | bit(part, at)),
            tags: bit(Looked::CONTEXT_TAG, context),
            registers: registers.fold(0, |all, one| all | one),
        }
    }

    /// The frame as the reader wants it; nothing if not even its slots were taken.
    fn frame(&self, ask: &FrameAsk) -> Option<FrameWords> {
        let word = |at: usize| ask.words.get(at).copied().unwrap_or(0);
        if ask.reads == 0 {
            return None;
        }
        let [context, function, bytecode_array, bytecode_offset] = self.slots.map(word);
        let [numbers, source, name] = self.reads.map(|reads| usize::from(ask.reads) >= reads);
        let taken = numbers.then(|| Taken {
            shared: word(self.shared),
            literal: u32::try_from(word(self.literal.0) & self.literal.1).unwrap_or(u32::MAX),
            script: word(self.script),
            source: source.then(|| word(self.source)),
            name: name.then(|| word(self.name)),
        });
        let leaf = ask.registers.map(|[function, bytecode_offset, bytecode_array]| LeafRegisters {
            function,
            bytecode_array,
            bytecode_offset,
        });
        let place = ask.in_module.map_or(Where::Generated, Where::Module);
        let (pc, is_call) = (Avma(ask.pc.pc()), !ask.pc.is_interrupted());
        Some(FrameWords {
            pc,
            is_call,
            is_left: ask.is_left,
            place,
            context,
            function,
            bytecode_array,
            bytecode_offset,
            taken,
            leaf: leaf.filter(|_| !is_call),
        })
    }
}

/// Where the word goes that lies at an offset from what a word points to. It is read if it is not yet, with the last read
/// if it lies behind what that has.
fn read(reads: &mut Vec<TakeRead>, base: u8, offset: i32) -> Option<usize> {
    let within = |read: TakeRead| {
        let bytes = u8::try_from(offset.checked_sub(read.offset)?).ok()?;
        (read.base == Some(base) && bytes % 8 == 0).then_some(bytes / 8)
    };
    let known = reads.iter().find_map(|read| Some(read.to + within(*read).filter(|word| *word < read.words)?));
    if let Some(to) = known {
        return Some(usize::from(to));
    }
    let last = reads.last_mut()?;
    let to = if last.base.is_none() { u8::try_from(FIRST_KEPT).ok()? } else { last.to.checked_add(last.words)? };
    if within(*last) == Some(last.words) {
        last.words += 1;
    } else {
        reads.push(TakeRead { base: Some(base), offset, words: 1, to, tagged: true });
    }
    Some(usize::from(to))
}

#[cfg(test)]
mod tests {
    use jitprof_common::sample::FramePc;
    use jitprof_common::unwind::PcKind;
    use jitprof_runtimes::v8::Chain;

    use super::*;

    fn spec() -> CaptureSpec {
        CaptureSpec {
            slots: [-8, -16, -32, -40],
            shared: Chain { slot: -16, through: Vec::new(), value: 24, bytes: 8 },
            literal: Chain { slot: -16, through: vec![24], value: 60, bytes: 4 },
            script: Chain { slot: -16, through: vec![24, 32], value: 48, bytes: 8 },
            source: Chain { slot: -16, through: vec![24, 32, 8], value: 8, bytes: 8 },
            name: Chain { slot: -16, through: vec![24, 32, 16], value: 8, bytes: 8 },
            leaf_registers: [7, 12, 9],
            own_code: Some((Avma(0x1000), 0x500)),
            left_by: Some((Avma(0x1100), 0x80)),
        }
    }

    #[test]
    fn what_is_taken_is_read_once_and_found_again() {
        let plan = Plan::of(&spec()).unwrap();
        let read = |base, offset, to| TakeRead { base: Some(base), offset, words: 1, to, tagged: true };
        let slots = TakeRead { base: None, offset: -40, words: 5, to: 0, tagged: false };
        // The function's slot is the fourth word; what it leads to comes in the upper half. The script's source and name are
        // neighbours.
        let of_script = [read(10, 48, 11), TakeRead { words: 2, ..read(10, 8, 12) }, read(12, 8, 14), read(13, 8, 15)];
        let of_function = [slots, read(3, 24, 8), read(8, 60, 9), read(8, 32, 10)];
        assert_eq!(plan.capture.reads, [of_function, of_script].concat());
        assert_eq!((plan.capture.key, plan.capture.left_by.as_slice()), (1, [(Avma(0x1100), 0x80)].as_slice()));
        let ask = FrameAsk {
            pc: FramePc::new(0x7000, PcKind::Instruction),
            in_module: None,
            is_left: false,
            reads: 8,
            words: [10, 11, 12, 13, 14, 0, 0, 0, 15, 0xffff_0000_0010, 17, 18, 19, 20, 21, 22].into(),
            registers: Some([1, 2, 3]),
            code: None,
        };
        let frame = plan.frame(&ask).unwrap();
        assert_eq!((frame.context, frame.function, frame.bytecode_array, frame.bytecode_offset), (14, 13, 11, 10));
        let taken = Taken { shared: 15, literal: 16, script: 18, source: Some(21), name: Some(22) };
        assert_eq!(frame.taken, Some(taken));
        let leaf = LeafRegisters { function: 1, bytecode_offset: 2, bytecode_array: 3 };
        assert_eq!((frame.pc, frame.is_call, frame.leaf), (Avma(0x7000), false, Some(leaf)));
        let caller = plan.frame(&FrameAsk { pc: FramePc(0x7000), reads: 4, ..ask.clone() }).unwrap();
        assert_eq!((caller.is_call, caller.is_left, caller.taken, caller.leaf), (true, false, None, None));
        assert!(plan.frame(&FrameAsk { is_left: true, ..ask.clone() }).unwrap().is_left);
        assert!(plan.frame(&FrameAsk { reads: 0, ..ask }).is_none());
    }

    #[test]
    fn a_frame_whose_script_s_strings_could_not_be_read_has_its_numbers() {
        let plan = Plan::of(&spec()).unwrap();
        let ask = |reads| FrameAsk {
            pc: FramePc(0x7000),
            in_module: None,
            is_left: false,
            reads,
            words: [10, 11, 12, 13, 14, 0, 0, 0, 15, 16, 17, 18, 19, 20, 21, 22].into(),
            registers: None,
            code: None,
        };
        let numbers = Taken { shared: 15, literal: 16, script: 18, source: None, name: None };
        for reads in [5, 6] {
            assert_eq!(plan.frame(&ask(reads)).unwrap().taken, Some(numbers));
        }
        assert_eq!(plan.frame(&ask(7)).unwrap().taken, Some(Taken { source: Some(21), ..numbers }));
        assert_eq!(plan.frame(&ask(4)).unwrap().taken, None);
    }

    #[test]
    fn a_frame_larger_than_what_can_be_taken_is_not_guessed_at() {
        assert!(Plan::of(&CaptureSpec { slots: [-8, -16, -32, -72], ..spec() }).is_none());
        let far = Chain { slot: -16, through: (0..8).collect(), value: 1, bytes: 8 };
        assert!(Plan::of(&CaptureSpec { script: far, ..spec() }).is_none());
    }
}
