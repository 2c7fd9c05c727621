//! PHP's frames: how samples walk them, and which functions they are of.
//!
//! The frames are found in the process' list, and not on its stack: see [`jitprof_runtimes::php`].

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, Register};
use jitprof_common::machine::Machine;
use jitprof_common::units::Avma;
use jitprof_runtimes::php::{self, Described, Functions, Layout, LayoutError, Unknown, Version};
use jitprof_runtimes::{Memory, Reader, Symbols};

use super::RuntimeRead;
use super::frames::{
    Answers, Capture, DescribedFrame, EntryMark, FrameAsk, ListCapture, LoopCode, WhyUnnamed, why_unknown,
};
use super::modules::{Modules, PHP_LOOP};

/// The symbol by which the module is known.
const VARIABLES: &str = "executor_globals";
/// The function that says how instructions are run, and its code where it says by jumps (`ZEND_VM_KIND_HYBRID`): elsewhere the
/// loop calls what is jitted.
const KIND: &str = "zend_vm_kind";
const HYBRID: [u8; 6] = [0xb8, 4, 0, 0, 0, 0xc3];
/// Bytes of the loop in which it makes its frame.
const MAX_PROLOGUE: usize = 32;
/// Bytes of that frame; PHP 8.2's has 160.
const MAX_FRAME: u32 = 4096;
/// Bytes of a word.
const WORD: u32 = 8;

/// A PHP whose layout is known.
pub(super) struct Php {
    functions: Functions,
    loops: Vec<(Avma, u64)>,
    /// What its JIT makes.
    generated: Option<LoopCode>,
}

impl Php {
    /// Finds it among a process' modules. What is there and cannot be read is said instead.
    pub(super) fn find<M: Memory>(modules: &Modules, reader: &Reader<M>) -> Option<Result<Self, RuntimeRead>> {
        let module = modules.iter().find(|module| module.address_of(VARIABLES).is_some())?;
        let error = match Layout::read(module, reader) {
            Ok(layout) => {
                let loops = module.parts_of(PHP_LOOP);
                let is_hybrid = module.address_of(KIND).is_some_and(|kind| says_hybrid(kind, reader));
                let is_known = is_hybrid && keeps_no_frame_of_its_own(layout.version());
                let generated = loops.first().filter(|_| is_known).and_then(|(start, _)| jitted(*start, reader));
                return Some(Ok(Self { functions: Functions::new(layout), loops, generated }));
            }
            Err(LayoutError::NoVersion) => return None,
            Err(error) => error,
        };
        let version = match &error {
            LayoutError::UnknownVersion(version) => Some(name_of(*version)),
            // It may be there the next time.
            LayoutError::Read(_) | LayoutError::NotStarted | LayoutError::NoVersion => None,
        };
        Some(Err(RuntimeRead::refused(version, &error)))
    }

    /// As in `PHP 8.2.7`.
    pub(super) fn name(&self) -> String {
        name_of(self.functions.layout().version())
    }

    /// What samples take along, and how it goes with the native stack.
    pub(super) fn capture(&self) -> Capture {
        let php::EntryMark { least } = self.functions.layout().entry();
        let mark = EntryMark { least, is_frame: true, ..EntryMark::default() };
        let (walk, loops) = (*self.functions.layout().walk(), self.loops.clone());
        let within = Vec::new();
        let list = ListCapture {
            walk,
            mark,
            loops,
            within,
            lasting: 0,
            tells_innermost: true,
            of_first_thread: true,
            keeps_first: false,
            generated: self.generated.clone(),
        };
        Capture { list: Some(list), ..Capture::default() }
    }

    /// Bytes that are kept, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.functions.bytes()
    }

    /// Drops what can be read again.
    pub(super) fn clear(&mut self) {
        self.functions.clear();
    }

    /// Says of each record which function it is of: its words are what the walk has kept, and whether it is the innermost.
    pub(super) fn describe<M: Memory>(&mut self, reader: &Reader<M>, frames: &[FrameAsk]) -> Answers {
        let mut answers = Answers::default();
        self.functions.begin();
        for frame in frames {
            let described = self.describe_one(reader, frame, &mut answers);
            answers.frames.push(described);
        }
        // A closure that was freed is known by the function that has it, which may have come after it.
        for (at, frame) in frames.iter().enumerate() {
            if answers.frames.get(at) == Some(&DescribedFrame::Unnamed(WhyUnnamed::Replaced)) {
                let described = self.describe_one(reader, frame, &mut answers);
                if let Some(known) = answers.frames.get_mut(at) {
                    *known = described;
                }
            }
        }
        answers
    }

    fn describe_one<M: Memory>(
        &mut self,
        reader: &Reader<M>,
        frame: &FrameAsk,
        answers: &mut Answers,
    ) -> DescribedFrame {
        match frame.words[..] {
            [_, _, ..] if answers.is_full() => DescribedFrame::Unnamed(WhyUnnamed::TooMuch),
            [function, instruction, ref innermost @ ..] => {
                let is_innermost = innermost.first().is_some_and(|innermost| *innermost != 0);
                answer(self.functions.describe(reader, (function, instruction), is_innermost), answers)
            }
            _ => DescribedFrame::Unnamed(WhyUnnamed::NoWords),
        }
    }
}

/// What PHP's JIT makes is jumped to by the loop, and jumps back: it has the frame that the loop has made at its beginning. It
/// lies beside the cache that processes share, and patterns that are compiled elsewhere.
fn jitted<M: Memory>(start: Avma, reader: &Reader<M>) -> Option<LoopCode> {
    let mut code = [0; MAX_PROLOGUE];
    let read = reader.now(start, &mut code).ok().filter(|_| Machine::NATIVE == Machine::X86_64)?;
    let (bytes, fp_below) = made_by(code.get(..read)?)?;
    let name = "[PHP JIT code]".to_owned();
    Some(LoopCode { name, bytes, fp_below, pushes: Vec::new(), making: Vec::new(), is_shared: true, is_shown: false })
}

/// What the JIT of 8.0.0 makes holds 16 bytes more than the loop's frame wherever it runs, but not on its way there and back:
/// where that is, it does not say. Later ones leave room for its calls in the loop's own frame.
fn keeps_no_frame_of_its_own(version: Version) -> bool {
    (version.major, version.minor, version.micro) != (8, 0, Some(0))
}

fn says_hybrid<M: Memory>(kind: Avma, reader: &Reader<M>) -> bool {
    let mut code = [0; HYBRID.len()];
    reader.now(kind, &mut code).is_ok_and(|read| read == code.len()) && code == HYBRID
}

/// The bytes of the frame that a function makes at its beginning, the return address included, and how far below its end the
/// caller's frame pointer is. Nothing if it does not say so by pushing registers and moving the stack pointer once.
fn made_by(prologue: &[u8]) -> Option<(u32, Option<u32>)> {
    let (mut bytes, mut fp_below) = (WORD, None);
    for instruction in Decoder::new(64, prologue, DecoderOptions::NONE) {
        match instruction.mnemonic() {
            Mnemonic::Push => {
                bytes += WORD;
                if instruction.op0_register() == Register::RBP {
                    fp_below = Some(bytes);
                }
            }
            Mnemonic::Sub if instruction.op0_register() == Register::RSP => {
                let room = u32::try_from(instruction.try_immediate(1).ok()?).ok()?;
                return Some((bytes.checked_add(room).filter(|bytes| *bytes < MAX_FRAME)?, fp_below));
            }
            _ if instruction.flow_control() != FlowControl::Next => return None,
            _ => {}
        }
    }
    None
}

fn name_of(version: Version) -> String {
    format!("PHP {version}")
}

fn answer(described: Result<Described, Unknown>, answers: &mut Answers) -> DescribedFrame {
    match described {
        Ok(Described { function, .. }) if function.name.is_empty() => DescribedFrame::Own,
        Ok(Described { function, line }) => {
            let dialect = if function.is_internal() { "php.internal" } else { "php" };
            let name = format!("{dialect}::{}", function.name);
            DescribedFrame::Functions(vec![answers.function_in(&name, (&function.file, line), false)])
        }
        Err(unknown) => DescribedFrame::Unnamed(why_unknown(&unknown, WhyUnnamed::Replaced)),
    }
}

#[cfg(test)]
mod tests {
    use jitprof_runtimes::php::Function;

    use super::super::frames::DescribedFunction;
    use super::*;

    #[test]
    fn the_jit_of_the_first_version_that_has_one_is_not_taken_for_a_later_one() {
        let of = |minor, micro| keeps_no_frame_of_its_own(Version { major: 8, minor, micro: Some(micro) });
        assert_eq!([of(0, 0), of(0, 1), of(1, 0), of(2, 31)], [false, true, true, true]);
    }

    #[test]
    fn the_frame_of_the_loop_is_as_large_as_its_beginning_makes_it() {
        // push r13; push r12; push rbp; push rbx; sub rsp, 0x78; mov rax, fs:0x28
        let of_82 = b"\x41\x55\x41\x54\x55\x53\x48\x83\xec\x78\x64\x48\x8b\x04\x25\x28\0\0\0";
        assert_eq!(made_by(of_82), Some((160, Some(32))));
        // push rbx; sub rsp, 0x100: the frame pointer is the caller's.
        assert_eq!(made_by(b"\x53\x48\x81\xec\0\x01\0\0"), Some((272, None)));
        // Nothing is moved; a jump comes before; a frame that nobody makes.
        for other in [&b"\x53\x90\x90"[..], b"\x53\xeb\x10\x48\x83\xec\x78", b"\x48\x81\xec\0\0\0\x40"] {
            assert_eq!(made_by(other), None);
        }
    }

    #[test]
    fn a_function_of_the_program_has_its_file_and_one_of_phps_own_none() {
        let mut answers = Answers::default();
        let of = |name: &str, file: &str| Function { name: name.into(), file: file.into(), first_line: 3 };
        let described = [(of("A::b", "/srv/a.php"), 7), (of("A::b", "/srv/a.php"), 0), (of("usort", ""), 0)];
        let described = described.map(|(function, line)| answer(Ok(Described { function, line }), &mut answers));
        answers.frames.extend(described);
        let said = answers.finish(0);
        assert_eq!(said.names, ["/srv/a.php", "php::A::b", "php.internal::usort"]);
        let functions = |name, line, file| {
            let function = DescribedFunction { name, file, line, column: None, inlined: false, guessed: false };
            DescribedFrame::Functions(vec![function])
        };
        assert_eq!(said.frames, [functions(1, 7, Some(0)), functions(1, 0, Some(0)), functions(2, 0, None)]);
    }
}
