//! CPython's frames: how samples walk them, and which functions they are of.
//!
//! The frames are found in the list of each thread's, and not on its stack: see [`jitprof_runtimes::cpython`].

use std::time::Duration;

use jitprof_common::units::Avma;
use jitprof_runtimes::cpython::{self, Described, Functions, Layout, LayoutError, Unknown, Version};
use jitprof_runtimes::{Memory, Reader, Symbols};

use super::RuntimeRead;
use super::frames::{Answers, Capture, DescribedFrame, EntryMark, FrameAsk, ListCapture, WhyUnnamed, why_unknown};
use super::modules::{EVALUATION_LOOP, Modules};

/// What a thread that was interrupted while it makes a code object has, so that it goes on.
const GRACE: Duration = Duration::from_millis(5);
/// The symbol by which the module is known.
const RUNTIME: &str = "_PyRuntime";
/// The symbol of the C library's that says where a thread's keys are.
const KEYS: &str = "_thread_db_pthread_specific";

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
        let error = match Layout::read(module, with(KEYS), reader) {
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
        let incomplete = version.is_none();
        let problem = (!incomplete).then(|| error.to_string());
        Some(Err(RuntimeRead { runtime: version, problem, incomplete, anew: true, ..RuntimeRead::default() }))
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
        let list =
            ListCapture { walk, mark, loops, within, lasting: 0, tells_innermost: false, of_first_thread: false };
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
        let mut unsure = Vec::new();
        for (at, frame) in frames.iter().enumerate() {
            let described = match frame.words[..] {
                [_, _, ..] if answers.is_full() => DescribedFrame::Unnamed(WhyUnnamed::TooMuch),
                [code, instruction, ..] => {
                    if self.functions.may_be_unfinished(reader, code) {
                        unsure.push((at, code));
                    }
                    answer(self.functions.describe(reader, code, instruction), &mut answers)
                }
                _ => DescribedFrame::Unnamed(WhyUnnamed::NoWords),
            };
            answers.frames.push(described);
        }
        if !unsure.is_empty() {
            std::thread::sleep(GRACE);
            take_back(&mut answers, &unsure, |code| self.functions.is_still_there(reader, code));
        }
        answers
    }
}

/// What has become another code object's since is not named.
fn take_back(answers: &mut Answers, unsure: &[(usize, u64)], is_still_there: impl Fn(u64) -> bool) {
    for (at, _) in unsure.iter().filter(|(_, code)| !is_still_there(*code)) {
        if let Some(frame @ DescribedFrame::Functions(_)) = answers.frames.get_mut(*at) {
            *frame = DescribedFrame::Unnamed(WhyUnnamed::Replaced);
        }
    }
}

fn name_of(version: Version) -> String {
    format!("CPython {version}")
}

fn answer(described: Result<Described, Unknown>, answers: &mut Answers) -> DescribedFrame {
    match described {
        Ok(Described { function, line }) => {
            // As CPython's announcements have it.
            let name = format!("py::{}:{}", function.name, function.file);
            DescribedFrame::Functions(vec![answers.function(&name, (&function.file, line), false)])
        }
        Err(unknown) => DescribedFrame::Unnamed(why_unknown(&unknown, WhyUnnamed::Implausible)),
    }
}

#[cfg(test)]
mod tests {
    use jitprof_runtimes::cpython::Function;

    use super::super::frames::DescribedFunction;
    use super::*;

    #[test]
    fn a_function_is_named_as_its_announcement_names_it() {
        let mut answers = Answers::default();
        let function = Function { name: "Class.method".into(), file: "/srv/app.py".into(), first_line: 3 };
        let described = [7, 0].map(|line| {
            let described = Described { function: function.clone(), line };
            answer(Ok(described), &mut answers)
        });
        answers.frames.extend(described);
        let said = answers.finish(0);
        assert_eq!(said.names, ["/srv/app.py", "py::Class.method:/srv/app.py"]);
        let functions = |line, file| {
            DescribedFrame::Functions(vec![DescribedFunction { name: 1, file, line, inlined: false, guessed: false }])
        };
        assert_eq!(said.frames, [functions(7, Some(0)), functions(0, None)]);
    }

    #[test]
    fn what_was_being_made_when_it_was_looked_at_is_not_named() {
        let mut answers = Answers::default();
        let function = Function { name: "made".into(), file: "/srv/app.py".into(), first_line: 3 };
        for _ in 0..3 {
            let described = answer(Ok(Described { function: function.clone(), line: 3 }), &mut answers);
            answers.frames.push(described);
        }
        answers.frames.push(DescribedFrame::Unnamed(WhyUnnamed::NoWords));
        let before = answers.frames.clone();
        take_back(&mut answers, &[(0, 7), (1, 8), (3, 8), (9, 8)], |code| code == 7);
        let replaced = DescribedFrame::Unnamed(WhyUnnamed::Replaced);
        assert_eq!(answers.frames, [before[0].clone(), replaced, before[2].clone(), before[3].clone()]);
    }
}
