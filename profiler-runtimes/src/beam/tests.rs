//! An emulator's memory, made by hand as OTP 25 and 29 have it, and what hostile ones may say instead. That real ones are read
//! right is shown by the tests of whole recordings.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::{Budget, Symbols};

const ENOUGH: Budget = Budget { pages: 1 << 16, steps: 1 << 22 };
const DATA: u64 = 0x40_0000;
const IN_FORCE: u64 = DATA + 0x800;
const RELEASE: u64 = DATA + 0x900;
const TABLES: u64 = 0x1000_0000;
const ATOMS: u64 = 0x1100_0000;
/// The shared code, and right behind it the emulator's own module.
const SHARED: u64 = 0x2000_0000;
const OWN: u64 = SHARED + 0x2000;
const CODE: u64 = 0x2100_0000;
const MODULE_BYTES: u64 = 0x1000;
const LINES: u64 = 0x1200_0000;

/// What a release has where.
#[derive(Clone, Copy)]
struct Release {
    functions: u64,
    is_boxed: bool,
    has_symbols: bool,
}

const OTP_25: Release = Release { functions: 96, is_boxed: false, has_symbols: true };
const OTP_29: Release = Release { functions: 152, is_boxed: true, has_symbols: false };

/// Memory that was written word by word: what was not written on a page on which something was is 0.
#[derive(Clone, Default)]
struct Fake {
    pages: BTreeMap<u64, Vec<u8>>,
    atoms: Vec<String>,
    has_symbols: bool,
}

const PAGE: u64 = 4096;

impl Memory for Fake {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        while count < into.len() {
            let at = address.0.wrapping_add(count as u64);
            let Some(page) = self.pages.get(&(at / PAGE)) else { break };
            let from = &page[(at % PAGE) as usize..];
            let part = from.len().min(into.len() - count);
            into[count..count + part].copy_from_slice(&from[..part]);
            count += part;
        }
        if count == 0 { Err(io::ErrorKind::NotFound.into()) } else { Ok(count) }
    }
}

impl Symbols for &Fake {
    fn address_of(&self, name: &str) -> Option<Avma> {
        let known = [("the_active_code_index", IN_FORCE), ("etp_otp_release", RELEASE)];
        let found = known.iter().find(|(known, _)| *known == name && self.has_symbols);
        found.map(|(_, address)| Avma(*address))
    }
}

impl Fake {
    fn put(&mut self, at: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put_bytes(at, &bytes);
    }

    fn put_bytes(&mut self, at: u64, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            self.pages.entry(at / PAGE).or_insert_with(|| vec![0; PAGE as usize])[(at % PAGE) as usize] = *byte;
        }
    }

    fn atom(&mut self, text: &str, release: Release) -> u64 {
        if let Some(known) = self.atoms.iter().position(|known| known == text) {
            return (known as u64) << 6 | 0x0b;
        }
        let number = self.atoms.len() as u64;
        self.atoms.push(text.to_owned());
        let (atom, name) = (ATOMS + 0x1_0000 + number * 64, ATOMS + 0x4_0000 + number * 64);
        self.put(ATOMS + 0x100, &[ATOMS + 0x1000]);
        self.put(ATOMS + 0x1000 + 8 * number, &[atom]);
        self.put_bytes(atom + 24, &(text.len() as u16).to_le_bytes());
        self.put(atom + 32, &[if release.is_boxed { name | 2 } else { name }]);
        self.put_bytes(if release.is_boxed { name + 16 } else { name }, text.as_bytes());
        number << 6 | 0x0b
    }

    /// A module with functions of 64 bytes, of which each has so many lines of code.
    fn module(&mut self, at: u64, (name, functions): (&str, &[&str]), release: Release) {
        let count = functions.len() as u64;
        let first = at + (0x100 + 8 * count).next_multiple_of(64).max(0x400);
        let starts: Vec<u64> = (0..=count).map(|number| first + 64 * number).collect();
        self.put(at, &[count]);
        self.put(at + release.functions, &starts);
        let module = self.atom(name, release);
        for (start, function) in starts.iter().zip(functions) {
            let function = self.atom(function, release);
            self.put(start + 16, &[module, function, 2]);
            self.put(start + 40, &[0x9090_9090_9090_9090; 3]);
        }
    }

    /// Lines 7 and 9 of the first function of a module, of a file whose name is a list of characters.
    fn lines(&mut self, at: u64, file: &str) {
        let first = at + 0x400;
        let mut functions = [0; 8];
        self.read(Avma(at), &mut functions).unwrap();
        let functions = u64::from_le_bytes(functions);
        self.put(at + 72, &[LINES]);
        let (names, places, rows) = (LINES + 0x1000, LINES + 0x2000, LINES + 0x3000);
        self.put(LINES, &[names, 4, places, rows]);
        self.put(LINES + 32, &vec![rows + 16; functions as usize]);
        self.put(rows, &[first + 40, first + 48]);
        self.put(places, &[7 | 9 << 32]);
        let cells = LINES + 0x4000;
        for (number, letter) in (0..).zip(file.bytes()) {
            let next = if number + 1 == file.len() as u64 { 0x3b } else { cells + 16 * (number + 1) + 1 };
            self.put(cells + 16 * number, &[u64::from(letter) << 4 | 0xf, next]);
        }
        self.put(names, &[cells + 1]);
    }

    /// Which modules are loaded, in all three generations.
    fn load(&mut self, modules: &[u64]) {
        for generation in 0..3 {
            let table = TABLES + 0x1000 * generation;
            let bounds: Vec<u64> = modules.iter().flat_map(|at| [*at, *at + MODULE_BYTES]).collect();
            self.put(table, &bounds);
            self.put(DATA + 0x100 + 32 * generation, &[table, modules.len() as u64, 4096, table + 16]);
        }
    }

    fn emulator(release: Release) -> Self {
        let mut fake = Self { has_symbols: release.has_symbols, ..Self::default() };
        fake.put_bytes(RELEASE, b"25\0");
        fake.put(DATA, &[0; 8]);
        fake.atom("false", release);
        fake.put(DATA + 0x300, &[7, ATOMS + 0x100]);
        let modules: Vec<u64> = (0..10).map(|number| CODE + number * MODULE_BYTES).collect();
        for (number, at) in (0..).zip(&modules) {
            let name = format!("m{number}");
            fake.module(*at, (&name, &["go", "-go/1-fun-0-", "module_info"]), release);
        }
        fake.load(&modules);
        fake.module(OWN, ("erts_beamasm", &["run_process", "normal_exit"]), release);
        // A variable has where the code of one of its functions is.
        fake.put(DATA + 0x500, &[OWN + 0x400 + 64 + 40]);
        fake
    }

    fn layout(&self) -> Result<Layout, LayoutError> {
        Layout::find(self, DATA_RANGE, &Reader::new(self, ENOUGH))
    }
}

const DATA_RANGE: Range<Avma> = Avma(DATA)..Avma(DATA + 0x1000);

fn names(module: &Module) -> Vec<&str> {
    module.functions.iter().map(|function| &*function.name).collect()
}

#[test]
fn modules_of_both_kinds_of_emulators_are_found_by_their_shape() {
    for release in [OTP_25, OTP_29] {
        let mut fake = Fake::emulator(release);
        fake.lines(CODE, "src/m0.erl");
        let layout = fake.layout().unwrap();
        assert_eq!(layout.release(), release.has_symbols.then_some("25"));
        let mut modules = Modules::default();
        let update = modules.update(&layout, &Reader::new(&fake, ENOUGH));
        assert_eq!((update.incomplete, update.damaged, update.changes.len()), (None, 0, 11));
        let all: Vec<_> = modules.iter().collect();
        assert_eq!(names(all[0]), ["erts_beamasm:run_process/2", "erts_beamasm:normal_exit/2"]);
        assert_eq!(names(all[1]), ["m0:go/2", "m0:'-go/1-fun-0-'/2", "m0:module_info/2"]);
        let first = &all[1].functions[0];
        assert_eq!((first.start, first.size), (Avma(CODE + 0x400), 64));
        let lines = [Line { offset: 40, line: 7, file: 0 }, Line { offset: 48, line: 9, file: 0 }];
        assert_eq!((&first.lines[..], &*all[1].files[0]), (&lines[..], "src/m0.erl"));
        assert!(all[1].functions[1].lines.is_empty() && all[2].files.is_empty());
        assert!(modules.bytes() > 1000);
    }
}

#[test]
fn what_is_loaded_unloaded_and_put_in_the_place_of_another_is_a_change() {
    let mut fake = Fake::emulator(OTP_29);
    let layout = fake.layout().unwrap();
    let mut modules = Modules::default();
    modules.update(&layout, &Reader::new(&fake, ENOUGH));
    let again = modules.update(&layout, &Reader::new(&fake, ENOUGH));
    assert_eq!((again.changes.len(), again.shared.len(), again.incomplete), (0, 0, None));
    // Made from one template: all is alike but the names.
    fake.module(CODE, ("m0", &["gone", "-go/1-fun-0-", "module_info"]), OTP_29);
    let new = CODE + 0x10_0000;
    fake.module(new, ("'Elixir.App'", &["run"]), OTP_29);
    let loaded: Vec<u64> = (0..9).map(|number| CODE + number * MODULE_BYTES).chain([new]).collect();
    fake.load(&loaded);
    let update = modules.update(&layout, &Reader::new(&fake, ENOUGH));
    let shown = update.changes.iter().map(|change| match change {
        Change::Loaded(module) => format!("+{}", names(module)[0]),
        Change::Unloaded(module) => format!("-{}", names(module)[0]),
    });
    assert_eq!(shown.collect::<Vec<_>>(), ["-m9:go/2", "-m0:go/2", "+m0:gone/2", "+'\\'Elixir.App\\'':run/2"]);
}

#[test]
fn where_generations_contradict_each_other_neither_is_believed_unless_one_is_in_force() {
    for (release, expected) in [(OTP_25, 11), (OTP_29, 10)] {
        let mut fake = Fake::emulator(release);
        // In the second generation the last module ends elsewhere: its memory was freed, and is used again.
        fake.put(TABLES + 0x1000 + 16 * 9 + 8, &[CODE + 9 * MODULE_BYTES + 0x900]);
        let layout = fake.layout().unwrap();
        let mut modules = Modules::default();
        modules.update(&layout, &Reader::new(&fake, ENOUGH));
        assert_eq!(modules.iter().count(), expected);
    }
}

#[test]
fn shared_code_begins_where_modules_jump_to_and_its_scheduler_by_its_first_instructions() {
    let mut fake = Fake::emulator(OTP_29);
    fake.put(SHARED, &[0; 1024]);
    let call = |from: u64, to: u64| [&[0xe8][..], &(to.wrapping_sub(from + 5) as i32).to_le_bytes()].concat();
    let (at, other) = (CODE + 0x400 + 48, CODE + MODULE_BYTES + 0x400 + 48);
    fake.put_bytes(at, &call(at, SHARED + 0x100));
    fake.put_bytes(other, &[&[0x0f, 0x84][..], &call(other + 1, SHARED + 0x300)[1..]].concat());
    // Neither into the middle of something, nor behind it.
    let odd = CODE + 2 * MODULE_BYTES + 0x400 + 48;
    fake.put_bytes(odd, &call(odd, SHARED + 0x203));
    fake.put_bytes(odd + 8, &call(odd + 8, OWN));
    fake.put_bytes(SHARED + 0x800, &[0x48, 0x81, 0xec, 0, 2, 0, 0, 0x48, 0x83, 0xe4, 0xc0, 0x48, 0x89, 0x27]);
    let layout = fake.layout().unwrap();
    let update = Modules::default().update(&layout, &Reader::new(&fake, ENOUGH));
    let part = |start, size, kind| Shared { start: Avma(start), size, kind };
    let expected = [
        part(SHARED + 0x100, 0x200, SharedKind::Part),
        part(SHARED + 0x300, 0x500, SharedKind::Part),
        part(SHARED + 0x800, 0x1800, SharedKind::Scheduler),
    ];
    assert_eq!(update.shared, expected);
}

#[test]
fn what_is_no_emulator_or_has_not_begun_is_missing() {
    assert!(matches!(Fake::default().layout(), Err(LayoutError::Unreadable(_))));
    let mut fake = Fake::emulator(OTP_25);
    fake.put(DATA + 0x100, &[0; 12]);
    assert_eq!(fake.layout(), Err(LayoutError::Missing));
    let mut fake = Fake::emulator(OTP_25);
    fake.put(DATA + 0x308, &[0]);
    assert_eq!(fake.layout(), Err(LayoutError::Missing));
    let mut fake = Fake::emulator(OTP_25);
    fake.put(DATA + 0x500, &[0]);
    let layout = fake.layout().unwrap();
    let update = Modules::default().update(&layout, &Reader::new(&fake, ENOUGH));
    assert_eq!((update.changes.len(), update.shared.len()), (10, 0), "without its own module the others are read");
}

#[test]
fn names_take_up_no_more_than_they_may_and_what_has_room_stays() {
    let mut fake = Fake::emulator(OTP_25);
    let many = CODE + 0x100_0000;
    // Each name has as many letters as an atom may have, in a module for which there is room in memory and not here.
    let long = "x".repeat(1000);
    let functions = vec![&*long; 34_000];
    fake.module(many, ("m", &functions), OTP_25);
    let loaded: Vec<u64> = (0..9).map(|number| CODE + number * MODULE_BYTES).chain([many]).collect();
    fake.load(&loaded);
    fake.put(TABLES + 16 * 9 + 8, &[many + 0x100_0000]);
    let layout = fake.layout().unwrap();
    let mut modules = Modules::default();
    let update = modules.update(&layout, &Reader::new(&fake, ENOUGH));
    assert_eq!((update.damaged, modules.iter().count()), (1, 10));
    assert!(modules.bytes() < MAX_BYTES, "{}", modules.bytes());
}

#[test]
fn a_reading_costs_no_more_than_it_may() {
    let fake = Fake::emulator(OTP_25);
    let layout = fake.layout().unwrap();
    for steps in [1, 20, 100] {
        let reader = Reader::new(&fake, Budget { steps, ..ENOUGH });
        let update = Modules::default().update(&layout, &reader);
        assert_eq!(update.incomplete, Some(ReadError::OverBudget), "{steps}");
    }
    let reader = Reader::new(&fake, Budget { pages: 2, ..ENOUGH });
    assert_eq!(Layout::find(&fake, DATA_RANGE, &reader), Err(LayoutError::Unreadable(ReadError::OverBudget)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every word may be anything.
    #[test]
    fn hostile_memory_is_survived(
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![any::<u64>(), 0..0x3000_0000_u64]), 1..12),
    ) {
        let mut fake = Fake::emulator(OTP_25);
        fake.lines(CODE, "m0.erl");
        let words: Vec<u64> = fake.pages.keys().flat_map(|page| (page * PAGE..(page + 1) * PAGE).step_by(8)).collect();
        for (at, word) in changes {
            fake.put(words[at.index(words.len())], &[word]);
        }
        if let Ok(layout) = fake.layout() {
            let mut modules = Modules::default();
            modules.update(&layout, &Reader::new(&fake, ENOUGH));
            prop_assert!(modules.iter().count() <= 11);
        }
    }
}
