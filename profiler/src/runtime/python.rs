//! CPython's frames: how samples walk them, and which functions they are of.
//!
//! The frames are found in the list of each thread's, and not on its stack: see [`jitprof_runtimes::cpython`].

use jitprof_common::units::Avma;
use jitprof_runtimes::cpython::{self, Described, Function, Functions, Layout, LayoutError, Unknown, Version};
use jitprof_runtimes::pthread::Keys;
use jitprof_runtimes::{Memory, Reader, Symbols};

use super::RuntimeRead;
use super::frames::{Answers, Capture, DescribedFrame, EntryMark, FrameAsk, ListCapture, WhyUnnamed, why_unknown};
use super::modules::{EVALUATION_LOOP, Modules};

/// The symbol by which the module is known.
const RUNTIME: &str = "_PyRuntime";
/// What a class is initialised by, and what CPython calls its own frame between that and who calls the class, and its file.
const INIT: &str = "__init__";

/// A CPython whose layout is known.
pub(super) struct Python {
    functions: Functions,
    loops: Vec<(Avma, u64)>,
}

impl Python {
    /// Finds it among a process' modules. What is there and cannot be read is said instead.
    pub(super) fn find<M: Memory>(modules: &Modules, reader: &Reader<M>) -> Option<Result<Self, RuntimeRead>> {
        let with = |name| modules.iter().find(move |module| module.address_of(name).is_some());
        let module = with(RUNTIME)?;
        let error = match Layout::read(module, with(Keys::SYMBOL), reader) {
            Ok(layout) => {
                let loops = module.parts_of(EVALUATION_LOOP);
                return Some(Ok(Self { functions: Functions::new(layout), loops }));
            }
            Err(LayoutError::NoVersion) => return None,
            Err(error) => error,
        };
        let version = match &error {
            // Its memory, not its version: it may be there the next time.
            LayoutError::Read(_) | LayoutError::NotStarted(_) | LayoutError::NoVersion => None,
            LayoutError::UnknownVersion(version)
            | LayoutError::FreeThreaded(version)
            | LayoutError::Missing { version, .. }
            | LayoutError::Implausible { version, .. } => Some(name_of(*version)),
        };
        Some(Err(RuntimeRead::refused(version, &error)))
    }

    /// As in `CPython 3.13.0`.
    pub(super) fn name(&self) -> String {
        name_of(self.functions.layout().version())
    }

    /// What samples take along, and how it goes with the native stack.
    pub(super) fn capture(&self) -> Capture {
        let cpython::EntryMark { least, is_frame, has_base } = self.functions.layout().entry();
        let mark = EntryMark { least, is_frame, has_base, no_frames: 0 };
        let (walk, loops) = (*self.functions.layout().walk(), self.loops.clone());
        let within = Vec::new();
        let list = ListCapture {
            walk,
            mark,
            loops,
            within,
            lasting: 0,
            tells_innermost: false,
            of_first_thread: false,
            keeps_first: self.functions.layout().keeps_first_state(),
            generated: None,
        };
        Capture { list: Some(list), ..Capture::default() }
    }

    /// Where everything is.
    pub(super) fn layout(&self) -> &Layout {
        self.functions.layout()
    }

    /// Bytes that are kept, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.functions.bytes()
    }

    /// Drops what can be read again.
    pub(super) fn clear(&mut self) {
        self.functions.clear();
    }

    /// Says of each record which function it is of: its words are what the walk has kept.
    pub(super) fn describe<M: Memory>(&mut self, reader: &Reader<M>, frames: &[FrameAsk]) -> Answers {
        let mut answers = Answers::default();
        for frame in frames {
            let described = match frame.words[..] {
                [_, _, ..] if answers.is_full() => DescribedFrame::Unnamed(WhyUnnamed::TooMuch),
                [code, instruction, ..] => {
                    let described = self.functions.describe(reader, code, instruction);
                    answer(described, self.functions.may_be_unfinished(reader, code), &mut answers)
                }
                _ => DescribedFrame::Unnamed(WhyUnnamed::NoWords),
            };
            answers.frames.push(described);
        }
        answers
    }
}

fn name_of(version: Version) -> String {
    format!("CPython {version}")
}

fn answer(described: Result<Described, Unknown>, is_unsure: bool, answers: &mut Answers) -> DescribedFrame {
    match described {
        Ok(Described { function, .. }) if is_hidden(&function) => DescribedFrame::Own,
        Ok(Described { function, line }) => {
            // As CPython's announcements have it.
            let name = format!("py::{}:{}", function.name, function.file);
            let functions = vec![answers.function(&name, (&function.file, line), false)];
            if is_unsure { DescribedFrame::Unsure(functions) } else { DescribedFrame::Functions(functions) }
        }
        Err(unknown) => DescribedFrame::Unnamed(why_unknown(&unknown, WhyUnnamed::Implausible)),
    }
}

/// Whether it is what CPython puts between a class's `__init__` and who calls the class, from 3.12 on where it does so often. It
/// has no line, and tracebacks leave it out.
fn is_hidden(function: &Function) -> bool {
    (&*function.name, &*function.file, function.first_line) == (INIT, INIT, 0)
}

#[cfg(test)]
mod tests {
    use super::super::frames::DescribedFunction;
    use super::*;

    #[test]
    fn a_function_is_named_as_its_announcement_names_it() {
        let mut answers = Answers::default();
        let function = Function { name: "Class.method".into(), file: "/srv/app.py".into(), first_line: 3 };
        let described = [(7, false), (0, true)].map(|(line, is_unsure)| {
            let described = Described { function: function.clone(), line };
            answer(Ok(described), is_unsure, &mut answers)
        });
        answers.frames.extend(described);
        let said = answers.finish(0);
        assert_eq!(said.names, ["/srv/app.py", "py::Class.method:/srv/app.py"]);
        let of = DescribedFunction { name: 1, file: None, line: 0, column: None, inlined: false, guessed: false };
        let functions = |line, file| vec![DescribedFunction { file, line, ..of }];
        let [named, unsure] = [functions(7, Some(0)), functions(0, None)];
        assert_eq!(said.frames, [DescribedFrame::Functions(named), DescribedFrame::Unsure(unsure)]);
    }

    #[test]
    fn what_stands_before_init_without_being_a_function_is_left_out() {
        let mut answers = Answers::default();
        let of = |name: &str, file: &str, first_line| Function { name: name.into(), file: file.into(), first_line };
        let shim = Ok(Described { function: of("__init__", "__init__", 0), line: 0 });
        assert_eq!(answer(shim, false, &mut answers), DescribedFrame::Own);
        for own in [of("A.__init__", "/a.py", 3), of("__init__", "/a.py", 3), of("__init__", "__init__", 1)] {
            let described = Ok(Described { function: own, line: 4 });
            assert!(matches!(answer(described, false, &mut answers), DescribedFrame::Functions(_)));
        }
    }
}
