//! Erlang's code, as the reader of the emulator's tables gives it and as its announcements would name it.

use std::sync::Arc;

use jitprof_common::limits::USER_ADDRESS_END;
use jitprof_common::listed::{ListSpec, Step};
use jitprof_common::units::Avma;
use jitprof_runtimes::beam::{
    Change, Function, Layout, LayoutError, Module, Modules as Code, Reloads, Schedulers, Shared, SharedKind,
};
use jitprof_runtimes::pthread::{Key, Keys};
use jitprof_runtimes::{Memory, Reader, Symbols};

use super::code::Room;
use super::frames::{Capture, ParkedStack};
use super::modules::{DIRTY_CALLS, Module as EmulatorFile, Modules};
use super::{CodeChange, EVERYWHERE, FoundCode, FoundFrame, FoundLines, RuntimeRead};

/// A symbol by which the emulator is known: what is linked with it, or loaded by it, imports this.
const EMULATOR: &str = "enif_make_tuple_from_array";
/// How the names of the emulator's own functions begin.
const OWN: &str = "erts_beamasm:";
/// Of these, the one that the first function of each process returns to. Others are returned to amid a stack.
const FIRST: &str = "normal_exit/0";
/// What stands in announcements behind the name of what comes before a function's code.
const HEAD: &str = "-CodeInfoPrologue";
/// What code that modules share is called.
const SHARED: &str = "global::shared";
/// What the scheduler is called by announcements.
const SCHEDULER: &str = "global::process_main";
/// Bytes of a function whose code is read at once; that of others is read where it is met.
const MAX_CODE_BYTES: usize = 64 << 10;
/// Bytes of code that one reading hands on; OTP's own modules have 6 MB. Memory may be mapped at many addresses.
const MAX_ALL_CODE: usize = 32 << 20;
/// The key of a part of a scheduler's data (that of a dirty one is elsewhere), where from there its process is, and where in
/// that the stack pointer of its code is while the thread runs something else. OTP 25 to 29 have them there.
const SCHEDULER_KEY: u32 = 2;
/// See [`SCHEDULER_KEY`].
const CURRENT_PROCESS: u64 = 112;
/// See [`SCHEDULER_KEY`].
const STACK_POINTER: u64 = 88;
/// Bytes of the stack of a process whose work a dirty scheduler does that samples have; a frame has some words.
const PARKED_BYTES: u64 = 4096;

/// An emulator whose layout is known.
pub(super) struct Beam {
    layout: Layout,
    code: Code,
    reloads: Reloads,
    /// From the thread pointer to where the process that the thread runs has parked its stack pointer.
    parked_sp: Vec<Step>,
    parked_stack: Option<ParkedStack>,
}

impl Beam {
    /// Finds it among a process' modules. What is there and cannot be read is said instead.
    pub(super) fn find<M: Memory>(modules: &Modules, reader: &Reader<M>) -> Option<Result<Self, RuntimeRead>> {
        let module = modules.iter().find(|module| module.address_of(EMULATOR).is_some())?;
        Some(match Layout::find(module, module.data(), reader) {
            Ok(layout) => {
                let keys = keys(modules, reader);
                Ok(Self {
                    layout,
                    code: Code::default(),
                    reloads: Reloads::default(),
                    parked_sp: keys.and_then(parked_sp).unwrap_or_default(),
                    parked_stack: keys.and_then(|keys| parked_stack(module, keys, reader)),
                })
            }
            // It may still be about to begin.
            Err(LayoutError::Missing | LayoutError::Unreadable(_)) => {
                Err(RuntimeRead { incomplete: true, anew: true, ..RuntimeRead::default() })
            }
        })
    }

    /// Bytes that are kept, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.code.bytes()
    }

    pub(super) fn read<M: Memory>(&mut self, reader: &Reader<M>) -> RuntimeRead {
        let mut update = self.code.update(&self.layout, reader);
        let (mut changes, mut room) = (Vec::new(), Room::new(MAX_CODE_BYTES, MAX_ALL_CODE));
        // One place for all that is believed late: each piece of code is compared with each place.
        let may_have_passed = if self.reloads.take(&mut update) { vec![EVERYWHERE] } else { Vec::new() };
        // They come first: all other code calls them, and rows are made in this order.
        let shared = update.shared.iter().map(|shared| found_shared(shared, (reader, &mut room)));
        changes.extend(shared.map(CodeChange::Loaded));
        for change in &update.changes {
            match change {
                Change::Unloaded(module) => {
                    let places = module.functions.iter().flat_map(|function| [function.start, code_of(function)]);
                    changes.extend(places.map(CodeChange::Unloaded));
                }
                Change::Loaded(module) => {
                    let found =
                        module.functions.iter().filter_map(|function| found(module, function, (reader, &mut room)));
                    changes.extend(found.map(CodeChange::Loaded));
                    let heads = module.functions.iter().filter_map(found_head);
                    changes.extend(heads.map(CodeChange::Loaded));
                }
            }
        }
        let runtime = self.layout.release().map_or("Erlang/OTP".to_owned(), |release| format!("Erlang/OTP {release}"));
        let parked_sp = self.parked_sp.iter().map(|step| (step.op, step.operand)).collect();
        RuntimeRead {
            runtime: Some(runtime),
            changes,
            capture: Some(Capture { parked_sp, parked_stack: self.parked_stack.clone(), ..Capture::default() }),
            lists: true,
            may_have_passed,
            incomplete: update.incomplete.is_some(),
            ..RuntimeRead::default()
        }
    }
}

/// Where threads have the values of their keys; none where the C library is another one.
fn keys<M: Memory>(modules: &Modules, reader: &Reader<M>) -> Option<Keys> {
    let symbol = modules.iter().find_map(|module| module.address_of(Keys::SYMBOL))?;
    Keys::read(symbol, reader).ok()
}

/// The way to where the process that a thread runs has parked its stack pointer.
fn parked_sp(keys: Keys) -> Option<Vec<Step>> {
    let to_data = keys.way_to(Key::new(SCHEDULER_KEY)?);
    Some([&to_data[..], &[Step::load(CURRENT_PROCESS), Step::load(STACK_POINTER)]].concat())
}

/// How the stack of a process is taken whose work a dirty scheduler does; nothing where it is not known what calls such work
/// (Debian's OTP 29 has no symbols), or which process that is.
fn parked_stack<M: Memory>(emulator: &EmulatorFile, keys: Keys, reader: &Reader<M>) -> Option<ParkedStack> {
    let calls: Vec<(Avma, u64)> = DIRTY_CALLS.iter().flat_map(|name| emulator.parts_of(name)).collect();
    let schedulers = Schedulers::find(emulator, reader).filter(|_| !calls.is_empty())?;
    Some(ParkedStack { words: words_of_dirty(schedulers.to_data(keys))?, calls })
}

/// The words from a parked stack pointer on, if a thread is a dirty scheduler's; none of another one's, which come to their
/// end at once. `to_data` leads from the thread pointer to its scheduler's data.
fn words_of_dirty(to_data: [Step; 3]) -> Option<ListSpec> {
    let beyond = [&to_data[..], &[Schedulers::TO_NUMBER, Step::add(USER_ADDRESS_END)]].concat();
    let parked = [&to_data[..], &[Schedulers::TO_PROCESS, Step::load(STACK_POINTER)]].concat();
    let end = [&parked[..], &[Step::add(PARKED_BYTES)]].concat();
    ListSpec::of_words(&[&beyond, &parked], &end)
}

/// A function as announcements have it. What lies before its code is data, and a call that is made where no clause of it
/// matches.
fn found<M: Memory>(
    module: &Module,
    function: &Function,
    (reader, room): (&Reader<M>, &mut Room),
) -> Option<FoundCode> {
    let size = function.size.checked_sub(Function::HEAD).filter(|size| *size > 0)?;
    let start = code_of(function);
    let (name, lines) = (function.name.to_string(), lines(module, function).kept());
    Some(FoundCode {
        start,
        size,
        name,
        frame: room.frame((start, size.into()), reader),
        number: 0,
        lines,
        registered: None,
    })
}

/// The data before the code of a function of the emulator's own: some of these functions are returned to, and called by nobody.
/// What is looked up then lies before their first byte.
fn found_head(function: &Function) -> Option<FoundCode> {
    let name = function.name.strip_prefix(OWN)?;
    let frame = if name == FIRST { FoundFrame::Outermost } else { FoundFrame::Unknown };
    Some(FoundCode {
        start: function.start,
        size: Function::HEAD.min(function.size),
        name: format!("{OWN}{name}{HEAD}"),
        frame,
        number: 0,
        lines: None,
        registered: None,
    })
}

/// Where a function's code begins.
fn code_of(function: &Function) -> Avma {
    Avma(function.start.0.saturating_add(u64::from(Function::HEAD)))
}

/// Code that modules share. Of its names the emulator keeps none.
fn found_shared<M: Memory>(shared: &Shared, (reader, room): (&Reader<M>, &mut Room)) -> FoundCode {
    let &Shared { start, size, kind } = shared;
    let (name, frame) = match kind {
        SharedKind::Part => (SHARED, room.frame((start, size.into()), reader)),
        SharedKind::Scheduler => (SCHEDULER, FoundFrame::Outermost),
    };
    FoundCode { start, size, name: name.to_owned(), frame, number: 0, lines: None, registered: None }
}

/// The lines of a function's code. What begins before is of its first byte.
fn lines(module: &Module, function: &Function) -> FoundLines {
    let mut files: Vec<(u32, Arc<str>)> = Vec::new();
    let mut rows = Vec::with_capacity(function.lines.len());
    for line in &function.lines {
        let Some(file) = module.files.get(line.file as usize).filter(|file| !file.is_empty()) else { continue };
        let known = files.iter().position(|(number, _)| *number == line.file);
        let at = known.unwrap_or_else(|| {
            files.push((line.file, Arc::clone(file)));
            files.len() - 1
        });
        let offset = line.offset.saturating_sub(Function::HEAD);
        rows.push((offset, line.line, u32::try_from(at).unwrap_or(u32::MAX)));
    }
    FoundLines { files: files.into_iter().map(|(_, file)| file).collect(), rows, inlined: Vec::new() }
}

#[cfg(test)]
mod tests {
    use jitprof_common::listed::WAY_TO_END;

    use super::super::code::tests::everywhere;
    use super::*;

    #[test]
    fn the_words_of_a_parked_stack_are_those_of_dirty_schedulers_alone() {
        let [thread, first] = [Step::add_thread_pointer(0x510), Step::load(0)];
        let words = words_of_dirty([thread, first, Step::load(72)]).unwrap();
        // Another one has a number, so that it begins behind its end.
        let beyond = [thread, first, Step::load(72), Schedulers::TO_NUMBER, Step::add(USER_ADDRESS_END)];
        assert_eq!(words.ways[0][..5], beyond);
        let parked = [thread, first, Step::load(72), Schedulers::TO_PROCESS, Step::load(88)];
        assert_eq!(words.ways[1][..5], parked);
        assert_eq!(words.ways[WAY_TO_END][..5], parked);
        assert_eq!(words.ways[WAY_TO_END][5], Step::add(PARKED_BYTES));
        let of_others = vec![thread, first, Step::load(40), Step::load(112), Step::load(88)];
        assert_eq!(parked_sp(Keys::at(0x510)), Some(of_others), "that of an ordinary one is found in another way");
    }

    #[test]
    fn a_stack_ends_where_the_first_function_of_its_process_returns_to_and_at_the_scheduler() {
        let head = |name: &str| {
            let function = Function { name: name.into(), start: Avma(0x1000), size: 0x60, lines: Vec::new() };
            found_head(&function).map(|head| (head.start.0, head.size, head.name, head.frame))
        };
        let first = (0x1000, 40, "erts_beamasm:normal_exit/0-CodeInfoPrologue".to_owned(), FoundFrame::Outermost);
        assert_eq!(head("erts_beamasm:normal_exit/0"), Some(first));
        // Where a function is traced it is amid the stack.
        assert_eq!(head("erts_beamasm:return_trace/0").map(|head| head.3), Some(FoundFrame::Unknown));
        assert_eq!(head("lists:map/2"), None);
        let reader = everywhere();
        let shared = |kind| {
            found_shared(
                &Shared { start: Avma(0x1000), size: 2, kind },
                (&reader, &mut Room::new(MAX_CODE_BYTES, MAX_ALL_CODE)),
            )
            .frame
        };
        assert_eq!(shared(SharedKind::Scheduler), FoundFrame::Outermost);
        assert_eq!(shared(SharedKind::Part), FoundFrame::Code(vec![0x90; 2].into()));
    }
}
