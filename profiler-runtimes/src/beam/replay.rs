//! What was recorded of real processes: `recorded/beam/stacks.erl`, by `recorded/beam/record.sh`. Of modules that its stack
//! does not go through, the recordings have only where their functions are.

use std::collections::BTreeSet;
use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::Budget;
use crate::recorded::{Counting, Recorded};
use crate::replay::{beside, budgets, damage, damages, memory, taken, version_of};

const BUDGET: Budget = Budget { pages: 1 << 14, steps: 1 << 20 };
/// Each with where the emulator's variables are, and what the program said of its functions and of a stack.
const RECORDINGS: [&str; 1] = ["beam/debian-25"];
/// How the names of the functions begin that are the emulator's own.
const OWN: &str = "erts_beamasm:";
/// How those of the recorded program begin.
const PROGRAM: &str = "stacks:";
/// What is kept of any process, nearly.
const MAX_KEPT: usize = 2 * (MAX_BYTES + MAX_ATOM_BYTES);

struct Recording {
    memory: Recorded,
    /// Where the emulator's own variables are.
    data: Range<Avma>,
}

impl Recording {
    fn of(name: &str) -> Self {
        let data = beside(name, "mem.data");
        let (start, end) = data.trim_end().split_once(' ').unwrap();
        let [start, end] = [start, end].map(|address| Avma(u64::from_str_radix(address, 16).unwrap()));
        Self { memory: memory(name), data: start..end }
    }

    fn layout(&self) -> Layout {
        self.find(&Reader::new(&self.memory, BUDGET)).unwrap()
    }

    fn find<M: Memory>(&self, reader: &Reader<M>) -> Result<Layout, LayoutError> {
        Layout::find(&self.memory, self.data.clone(), reader)
    }

    fn word(&self, at: u64) -> u64 {
        Reader::new(&self.memory, BUDGET).u64(Avma(at)).unwrap()
    }

    /// Those of some words that are not 0: most variables are.
    fn words_with_something(&self, mut words: Vec<u64>) -> Vec<u64> {
        let reader = Reader::new(&self.memory, BUDGET);
        words.retain(|at| reader.u64(Avma(*at)).is_ok_and(|word| word != 0));
        words
    }

    fn read(&self, layout: &Layout) -> (Modules, Update) {
        let mut modules = Modules::default();
        let update = modules.update(layout, &Reader::new(&self.memory, BUDGET));
        (modules, update)
    }
}

fn functions(modules: &Modules) -> impl Iterator<Item = (&Module, &Function)> {
    modules.iter().flat_map(|module| module.functions.iter().map(move |function| (&**module, function)))
}

/// The module that the recorded program is.
fn program(modules: &Modules) -> &Module {
    functions(modules).find(|(_, function)| function.name.starts_with(PROGRAM)).unwrap().0
}

/// What the program says of so many things, each on a line that begins with what it is.
fn said<'s>(said: &'s str, what: &'s str) -> impl Iterator<Item = &'s str> {
    said.lines().filter_map(move |line| line.strip_prefix(what)?.strip_prefix(' '))
}

#[test]
fn the_functions_of_modules_are_those_that_the_program_says() {
    for name in RECORDINGS {
        let recording = Recording::of(name);
        let layout = recording.layout();
        assert_eq!(layout.release(), Some(version_of(name)), "{name}");
        let (mut modules, update) = recording.read(&layout);
        assert_eq!((update.damaged, update.incomplete), (0, None), "{name}");
        assert!(modules.iter().count() > 40 && modules.bytes() > 1000, "{name}");
        let of_program = functions(&modules).map(|(_, function)| &*function.name).filter(|name| !name.starts_with(OWN));
        let text = beside(name, "said");
        let expected: BTreeSet<&str> = said(&text, "function").collect();
        assert!(expected.len() > 20, "{name}");
        assert_eq!(of_program.collect::<BTreeSet<_>>(), expected, "{name}");
        let again = modules.update(&layout, &Reader::new(&recording.memory, BUDGET));
        assert_eq!((again.changes.len(), again.shared.len(), again.incomplete), (0, 0, None), "{name}");
    }
}

#[test]
fn the_lines_of_calls_are_those_of_the_stack_that_the_program_says() {
    for name in RECORDINGS {
        let recording = Recording::of(name);
        let (modules, _) = recording.read(&recording.layout());
        let text = beside(name, "said");
        let frames: Vec<&str> = said(&text, "frame").collect();
        assert!(frames.len() > 5, "{name}: {frames:?}");
        for frame in frames {
            let is_its = |(module, function): (&Module, &Function)| {
                let file = |line: &Line| &module.files[line.file as usize];
                let is_said = |line: &Line| format!("{}\t{}\t{}", function.name, file(line), line.line) == frame;
                function.lines.iter().any(is_said)
            };
            assert!(functions(&modules).any(is_its), "{name}: {frame}");
        }
        for (_, function) in functions(&modules) {
            let offsets: Vec<u32> = function.lines.iter().map(|line| line.offset).collect();
            let is_within = offsets.iter().all(|offset| *offset <= function.size);
            assert!(offsets.is_sorted() && is_within, "{name}: {function:?}");
        }
    }
}

#[test]
fn shared_code_lies_before_the_emulators_own_module_and_has_one_scheduler() {
    for name in RECORDINGS {
        let recording = Recording::of(name);
        let layout = recording.layout();
        let (modules, Update { shared, .. }) = recording.read(&layout);
        let own = layout.own().unwrap();
        assert!(functions(&modules).any(|(module, function)| module.start.0 == own && function.name.starts_with(OWN)));
        assert!(shared.len() > 2, "{name}: {shared:x?}");
        let ends = shared.iter().map(|part| part.start.0 + u64::from(part.size));
        let next = shared.iter().map(|part| part.start.0).skip(1).chain([own]);
        assert!(ends.eq(next), "{name}: {shared:x?}");
        let schedulers = shared.iter().filter(|part| part.kind == SharedKind::Scheduler);
        assert_eq!(schedulers.count(), 1, "{name}: {shared:x?}");
    }
}

#[test]
fn what_has_taken_the_place_of_a_module_is_another_one() {
    for name in RECORDINGS {
        let mut recording = Recording::of(name);
        let layout = recording.layout();
        let (mut modules, _) = recording.read(&layout);
        let [first, second] = [0, 1].map(|at| program(&modules).functions[at].start.0 + NAME + 8);
        let other = recording.word(second);
        recording.memory.overwrite(Avma(first), &other.to_le_bytes());
        let before = Arc::clone(modules.iter().find(|module| module.start == program(&modules).start).unwrap());
        let update = modules.update(&layout, &Reader::new(&recording.memory, BUDGET));
        let [Change::Unloaded(gone), Change::Loaded(module)] = &update.changes[..] else { panic!("{update:?}") };
        assert_eq!((gone, module.functions.len()), (&before, before.functions.len()), "{name}");
        let atom = |function: &Function| function.name.rsplit_once('/').unwrap().0.to_owned();
        assert_eq!(atom(&module.functions[0]), atom(&before.functions[1]), "{name}");
    }
}

#[test]
fn the_name_of_a_file_that_is_a_circle_is_cut() {
    for name in RECORDINGS {
        let mut recording = Recording::of(name);
        let layout = recording.layout();
        let (modules, _) = recording.read(&layout);
        let table = recording.word(program(&modules).start.0 + Layout::LINE_TABLE);
        // The first of the names is a list of characters, whose tag is 1. Behind a cell's character is the next cell.
        let list = recording.word(recording.word(table));
        recording.memory.overwrite(Avma(list + 7), &list.to_le_bytes());
        let (modules, _) = recording.read(&layout);
        let files: Vec<usize> = program(&modules).files.iter().map(|file| file.len()).collect();
        assert!(files.contains(&MAX_FILE_NAME), "{name}: {files:?}");
    }
}

/// Reads all there is, whatever it is.
fn read_all<M: Memory>(layout: &Layout, reader: &Reader<M>) {
    let mut modules = Modules::default();
    for _ in 0..2 {
        modules.update(layout, reader);
    }
    assert!(functions(&modules).count() <= MAX_ALL_FUNCTIONS);
    assert!(modules.bytes() <= MAX_KEPT, "{}", modules.bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Whatever stands in memory, a reading ends, within its budget.
    #[test]
    fn hostile_memory_costs_a_bounded_reading(
        recording in 0..RECORDINGS.len(),
        damages in damages(),
        budget in budgets(BUDGET, 400, 200_000),
    ) {
        let mut recording = Recording::of(RECORDINGS[recording]);
        let honest = recording.layout();
        let by_modules = taken(&recording.memory, BUDGET, |reader| read_all(&honest, reader));
        let by_layout = taken(&recording.memory, BUDGET, |reader| drop(recording.find(reader)));
        let by_layout = recording.words_with_something(by_layout);
        damage(&mut recording.memory, &by_layout, &damages[..1]);
        damage(&mut recording.memory, &by_modules, &damages[1..]);
        let counting = Counting::new(&recording.memory);
        let lying = recording.find(&Reader::new(&counting, budget));
        prop_assert!(counting.bytes() <= u64::from(budget.pages) * 4096);
        for layout in [Some(honest), lying.ok()].into_iter().flatten() {
            let counting = Counting::new(&recording.memory);
            read_all(&layout, &Reader::new(&counting, budget));
            prop_assert!(counting.bytes() <= u64::from(budget.pages) * 4096);
        }
    }
}
