//! Ruby's frames: how samples walk them, and which functions they are of.
//!
//! The frames are found in the array of each thread's or fiber's, and not on its stack: see [`jitprof_runtimes::ruby`].

use jitprof_common::listed::ListSpec;
use jitprof_common::machine::Machine;
use jitprof_common::units::Avma;
use jitprof_runtimes::ruby::{self, Described, Functions, Layout, LayoutError, Looked, Progress, Version};
use jitprof_runtimes::{Memory, Reader, Symbols};
use serde_bytes::ByteBuf;

use super::RuntimeRead;
use super::frames::{
    Answers, Capture, DescribedFrame, EntryMark, FrameAsk, ListCapture, LoopCode, Making, WhyUnnamed, why_unknown,
};
use super::modules::{Modules, RUBY, RUBY_LOOP};

/// Ruby 3.1's YJIT puts a frame into the list before it writes it: what is read there is the function that was called before.
/// Of a function of the program `sub r13, 0x40; mov [r12 + 0x10], r13`, until `mov [r13 + 0x10], rax` has said which; of one
/// in C `sub qword [r12 + 0x10], 0x40`, until `mov [rcx + 0x20], rax`. Later ones do it the other way round.
const MAKING: [[&[u8]; 2]; 2] = [
    [&[0x49, 0x83, 0xed, 0x40, 0x4d, 0x89, 0x6c, 0x24, 0x10], &[0x49, 0x89, 0x45, 0x10]],
    [&[0x49, 0x83, 0x6c, 0x24, 0x10, 0x40], &[0x48, 0x89, 0x41, 0x20]],
];

/// A Ruby whose layout is known.
pub(super) struct Ruby {
    functions: Functions,
    loops: Vec<(Avma, u64)>,
    within: Vec<(Avma, u64)>,
}

impl Ruby {
    /// Finds it among a process' modules. What is there and cannot be read is said instead.
    pub(super) fn find<M: Memory>(modules: &Modules, reader: &Reader<M>) -> Option<Result<Self, RuntimeRead>> {
        let module = modules.iter().find(|module| module.address_of(RUBY).is_some())?;
        let error = match Layout::read(module, reader) {
            Ok(layout) => {
                let functions = Functions::new(layout);
                let (loops, within) = (module.parts_of(RUBY_LOOP), module.parts_within(RUBY_LOOP));
                if !loops.is_empty() {
                    return Some(Ok(Self { functions, loops, within }));
                }
                // Without a name, it is what runs instructions. Before there are any, it may be found the next time.
                let loops = functions.first_handler(reader).map(|handler| module.dispatching_at(handler));
                return Some(match loops {
                    Some(loops) if !loops.is_empty() => Ok(Self { functions, loops, within }),
                    loops => {
                        let name = name_of(functions.layout().version());
                        let problem = loops.map(|_| format!("{name} does not show where it runs instructions"));
                        let incomplete = problem.is_none();
                        let read = RuntimeRead {
                            runtime: Some(name),
                            problem,
                            incomplete,
                            anew: true,
                            ..RuntimeRead::default()
                        };
                        Err(read)
                    }
                });
            }
            Err(LayoutError::NoVersion) => return None,
            Err(error) => error,
        };
        let version = match &error {
            LayoutError::UnknownVersion(version)
            | LayoutError::NoThreads(version)
            | LayoutError::NoCollector(version) => Some(name_of(*version)),
            // It may be there the next time.
            LayoutError::Read(_) | LayoutError::NoVersion => None,
        };
        Some(Err(RuntimeRead::refused(version, &error)))
    }

    /// As in `Ruby 3.1.2`.
    pub(super) fn name(&self) -> String {
        name_of(self.functions.layout().version())
    }

    /// What samples take along, and how it goes with the native stack.
    pub(super) fn capture(&self) -> Capture {
        let ruby::EntryMark { least, no_frames } = self.functions.layout().entry();
        let mark = EntryMark { least, is_frame: true, no_frames, ..EntryMark::default() };
        let (walk, loops) = (*self.functions.layout().walk(), self.loops.clone());
        let list = ListCapture {
            walk,
            mark,
            loops,
            within: self.within.clone(),
            lasting: self.functions.layout().was_old(),
            tells_innermost: false,
            of_first_thread: false,
            keeps_first: false,
            generated: (Machine::NATIVE == Machine::X86_64).then(yjit),
        };
        Capture { list: Some(list), ..Capture::default() }
    }

    /// How the frames of the first thread are walked.
    pub(super) fn walk_of_first_thread(&self) -> Option<&ListSpec> {
        self.functions.layout().walk_of_first_thread()
    }

    /// Where generated code may begin of functions that the first thread runs.
    pub(super) fn first_entries<M: Memory>(&self, reader: &Reader<M>) -> Vec<Avma> {
        self.functions.first_entries(reader)
    }

    /// Bytes that are kept, nearly.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
    }

    /// Says of each record which function it is of: its words are what the walk has kept, and how far the collector was then.
    pub(super) fn describe<M: Memory>(&self, reader: &Reader<M>, frames: &[FrameAsk]) -> Answers {
        let why = |unknown| why_unknown(&unknown, WhyUnnamed::Replaced);
        let look = |frame: &FrameAsk| match frame.words[..] {
            [code, instruction, ..] => self.functions.describe(reader, (code, instruction)).map_err(why),
            _ => Err(WhyUnnamed::NoWords),
        };
        let looked: Vec<Result<Looked, WhyUnnamed>> = frames.iter().map(look).collect();
        // Whatever is freed from now on was there when it was looked at.
        let now = self.functions.progress(reader).map_err(why);
        let mut answers = Answers::default();
        answers.entries.extend(looked.iter().flatten().flat_map(|looked| &looked.entries));
        for (frame, looked) in frames.iter().zip(looked) {
            let described = match (looked, now) {
                _ if answers.is_full() => DescribedFrame::Unnamed(WhyUnnamed::TooMuch),
                (Ok(looked), Ok(now)) if is_confirmed(&looked, frame, now) => answer(looked.described, &mut answers),
                (Ok(_), Ok(_)) => DescribedFrame::Unnamed(WhyUnnamed::Collected),
                (Err(why), _) | (Ok(_), Err(why)) => DescribedFrame::Unnamed(why),
            };
            answers.frames.push(described);
        }
        answers
    }
}

/// What YJIT makes is called by the loop, keeps three registers, and leads from function to function by jumps.
fn yjit() -> LoopCode {
    let [push_r13, push_r12, push_rbx]: [&[u8]; 3] = [&[0x41, 0x55], &[0x41, 0x54], &[0x53]];
    LoopCode {
        name: "[YJIT code]".to_owned(),
        bytes: 32,
        fp_below: None,
        pushes: [push_r13, push_r12, push_rbx].map(bytes_of).into(),
        making: MAKING.map(|[begins, ends]| Making { begins: bytes_of(begins), ends: bytes_of(ends) }).into(),
        is_shared: false,
        is_shown: true,
    }
}

fn bytes_of(code: &[u8]) -> ByteBuf {
    ByteBuf::from(code.to_vec())
}

/// Whether what was found is what the sample has met.
fn is_confirmed(looked: &Looked, frame: &FrameAsk, now: Progress) -> bool {
    match frame.words[..] {
        [_, instruction, passing, lasting, ..] => looked.is_of((instruction, [passing, lasting]), now),
        _ => false,
    }
}

fn name_of(version: Version) -> String {
    format!("Ruby {version}")
}

fn answer(Described { function, line }: Described, answers: &mut Answers) -> DescribedFrame {
    let dialect = if function.is_internal() { "ruby.c" } else { "ruby" };
    let name = format!("{dialect}::{}", function.name);
    DescribedFrame::Functions(vec![answers.function_in(&name, (&function.file, line), false)])
}

#[cfg(test)]
mod tests {
    use jitprof_runtimes::ruby::Function;

    use super::super::frames::DescribedFunction;
    use super::*;

    #[test]
    fn a_function_of_the_program_has_its_file_and_one_in_c_none() {
        let mut answers = Answers::default();
        let of = |name: &str, file: &str| Function { name: name.into(), file: file.into(), first_line: 3 };
        let described = [(of("block in turn", "/srv/a.rb"), 7), (of("sort_by", ""), 0)];
        let described = described.map(|(function, line)| answer(Described { function, line }, &mut answers));
        answers.frames.extend(described);
        let said = answers.finish(0);
        assert_eq!(said.names, ["/srv/a.rb", "ruby::block in turn", "ruby.c::sort_by"]);
        let functions = |name, line, file| {
            let function = DescribedFunction { name, file, line, column: None, inlined: false, guessed: false };
            DescribedFrame::Functions(vec![function])
        };
        assert_eq!(said.frames, [functions(1, 7, Some(0)), functions(2, 0, None)]);
    }
}
