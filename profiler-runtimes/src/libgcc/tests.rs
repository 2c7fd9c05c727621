//! Memory that is made by hand, as libgcc has it: words of both shapes.

use std::collections::BTreeMap;
use std::io;

use super::*;
use crate::Budget;

/// Where the module's variables are, what they lead to, and the sections.
const DATA: u64 = 0x10_0000;
const DATA_BYTES: u64 = 0x100;
const OBJECTS: u64 = 0x20_0000;
const NODES: u64 = 0x30_0000;
const SECTIONS: u64 = 0x40_0000;
const CODE: u64 = 0x7f00_0000_0000;
const SIZE: u64 = 0x40;
const UNSORTED: u64 = 0x7f8;
const LEAF: u64 = 1 << 32;
const ENOUGH: Budget = Budget { pages: 1000, steps: 100_000 };

#[derive(Clone, Default)]
struct Built(BTreeMap<u64, Vec<u8>>);

impl Built {
    fn bytes(&mut self, at: u64, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            self.0.entry(at / 4096).or_insert_with(|| vec![0; 4096])[at as usize % 4096] = *byte;
        }
    }

    fn words(&mut self, at: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.bytes(at, &bytes);
    }

    fn flip(&mut self, at: u64) {
        self.0.get_mut(&(at / 4096)).unwrap()[at as usize % 4096] ^= 0x55;
    }
}

impl Memory for Built {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        let page = self.0.get(&(address.0 / 4096)).ok_or(io::ErrorKind::NotFound)?;
        let part = &page[address.0 as usize % 4096..];
        let count = part.len().min(into.len());
        into[..count].copy_from_slice(&part[..count]);
        Ok(count)
    }
}

/// A module that has a function for registrations, or another one.
struct Module(&'static str);

impl Symbols for Module {
    fn address_of(&self, name: &str) -> Option<Avma> {
        (name == self.0).then_some(Avma(0x1000))
    }
}

fn object(number: u64) -> u64 {
    OBJECTS + number * 0x40
}

fn section(number: u64) -> u64 {
    SECTIONS + number * 0x1000
}

fn function(number: u64) -> u64 {
    CODE + number * 0x1000
}

/// A common entry with absolute addresses, the entry of a function, and an end.
fn frames(function: u64) -> Vec<u8> {
    frames_of([function], 0)
}

/// The same for several functions, with a common entry that is so much longer.
fn frames_of(functions: impl IntoIterator<Item = u64>, longer: u32) -> Vec<u8> {
    let mut bytes = (16 + longer).to_le_bytes().to_vec();
    bytes.extend([0_u8, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0]);
    bytes.resize(20 + longer as usize, 0);
    for function in functions {
        let to_common = u32::try_from(bytes.len() + 4).unwrap();
        bytes.extend([20, to_common].map(u32::to_le_bytes).as_flattened());
        bytes.extend([function, SIZE].map(u64::to_le_bytes).as_flattened());
    }
    bytes.extend([0_u8; 4]);
    bytes
}

/// An object that has registered the section of its number, and leads to another one.
fn register(built: &mut Built, number: u64, next: u64) {
    built.bytes(section(number), &frames(function(number)));
    built.words(object(number), &[u64::MAX, 0, 0, section(number), UNSORTED, next]);
}

/// The same of one that somebody has looked up.
fn register_sorted(built: &mut Built, number: u64, next: u64) {
    register(built, number, next);
    let vector = object(number) + 0x2000;
    built.words(vector, &[section(number), 1, section(number) + 20]);
    built.words(object(number), &[function(number), 0, 0, vector, 1 << 11 | 1, next]);
}

/// Words that are in any module beside what is looked for.
fn others(built: &mut Built) {
    built.words(DATA, &[0; DATA_BYTES as usize / 8]);
    built.words(DATA, &[DATA + 0x40, 7, 0x50_0000, CODE, u64::MAX, DATA + 8]);
}

/// As up to 12: two objects that were looked up, and one that was not.
fn lists() -> Built {
    let mut built = Built::default();
    others(&mut built);
    built.words(DATA + 0x60, &[object(1), object(3)]);
    register_sorted(&mut built, 1, object(2));
    register_sorted(&mut built, 2, 0);
    register(&mut built, 3, 0);
    built
}

fn node(built: &mut Built, number: u64, header: u64, entries: &[u64]) -> u64 {
    let at = NODES + number * 0x100;
    built.words(at, &[4, header]);
    built.words(at + 16, entries);
    at
}

/// As from 13 on: the trees of code and of sections, with the same objects. What is next to one is anything.
fn trees() -> Built {
    let mut built = Built::default();
    others(&mut built);
    register_sorted(&mut built, 1, 0x1234_5678);
    register(&mut built, 2, object(2));
    register(&mut built, 3, 0);
    let first = node(&mut built, 0, LEAF | 2, &[function(1), SIZE, object(1), function(2), SIZE, object(2)]);
    let second = node(&mut built, 1, LEAF | 1, &[function(3), SIZE, object(3)]);
    let root = node(&mut built, 2, 2, &[function(3) - 1, first, u64::MAX, second]);
    let of_sections = [1, 2, 3].map(|number| [section(number), 1, object(number)]).concat();
    let other = node(&mut built, 3, LEAF | 3, &of_sections);
    let freed = node(&mut built, 4, 2 << 32 | 9, &[]);
    built.words(DATA + 0x60, &[other, freed, 0, root, 0, 4]);
    built
}

fn registry() -> Registry {
    Registry::find(Module(REGISTER), Avma(DATA)..Avma(DATA + DATA_BYTES)).unwrap()
}

fn read(registry: &mut Registry, built: &Built) -> Update {
    registry.update(&Reader::new(built, ENOUGH))
}

/// Which functions came.
fn come(update: &Update) -> Vec<u64> {
    let mut come: Vec<u64> = update.come.iter().map(|found| (found.start.0 - CODE) / 0x1000).collect();
    come.sort_unstable();
    come
}

fn gone(update: &Update) -> Vec<u64> {
    let mut gone: Vec<u64> = update.gone.iter().map(|start| (start.0 - CODE) / 0x1000).collect();
    gone.sort_unstable();
    gone
}

#[test]
fn what_is_registered_is_found_in_lists_and_in_trees() {
    for built in [lists(), trees()] {
        let (mut registry, reader) = (registry(), Reader::new(&built, ENOUGH));
        assert!(registry.is_used(&reader) && registry.is_empty());
        let update = registry.update(&reader);
        assert_eq!((come(&update), update.damaged, update.incomplete), (vec![1, 2, 3], 0, None));
        let first = update.come.iter().find(|found| found.start == Avma(function(1))).unwrap();
        assert_eq!((u64::from(first.size), first.frame.section_start), (SIZE, Avma(section(1))));
        assert_eq!(&*first.frame.bytes, frames(function(1)));
        assert!(!registry.is_empty() && registry.bytes() > 0);
        assert_eq!(read(&mut registry, &built), Update::default(), "nothing has changed");
    }
}

#[test]
fn what_cannot_be_read_to_its_end_may_be_used() {
    let (built, mut unused) = (lists(), Built::default());
    others(&mut unused);
    let is_used = |built: &Built, steps| registry().is_used(&Reader::new(built, Budget { steps, ..ENOUGH }));
    assert!(is_used(&built, 1) && is_used(&unused, 1));
    assert!(is_used(&built, ENOUGH.steps) && !is_used(&unused, ENOUGH.steps));
}

#[test]
fn objects_may_have_several_sections_or_none() {
    let mut built = lists();
    built.bytes(section(4), &frames(function(4)));
    built.words(object(9), &[section(3), section(4), 0]);
    built.words(object(3), &[u64::MAX, 0, 0, object(9), UNSORTED | 2, 0]);
    // What libgcc makes of a section that it does not understand.
    built.words(object(2), &[u64::MAX, 0, 0, section(5), UNSORTED, 0]);
    built.bytes(section(5), &[0; 8]);
    let update = read(&mut registry(), &built);
    assert_eq!((come(&update), update.damaged), (vec![1, 3, 4], 0));
}

#[test]
fn what_goes_and_what_changes_is_said() {
    let (mut registry, mut built) = (registry(), lists());
    read(&mut registry, &built);
    built.bytes(section(3), &frames(function(7)));
    built.words(DATA + 0x60, &[object(2)]);
    let update = read(&mut registry, &built);
    assert_eq!((gone(&update), come(&update)), (vec![1, 3], vec![7]));
    // Memory that is gone without a word is no section any more.
    built.0.remove(&(section(2) / 4096));
    let update = read(&mut registry, &built);
    assert_eq!((gone(&update), update.damaged), (vec![2], 0), "nothing leads to a list that begins with no object");
    built.words(DATA + 0x60, &[0, 0]);
    assert_eq!(gone(&read(&mut registry, &built)), [7]);
    assert!(registry.is_empty() && !registry.is_used(&Reader::new(&built, ENOUGH)));
}

#[test]
fn a_function_that_two_have_registered_is_the_first_ones() {
    let mut built = lists();
    built.bytes(section(2), &frames(function(1)));
    assert_eq!(come(&read(&mut registry(), &built)), [1, 3]);
}

#[test]
fn what_is_not_like_an_object_is_none() {
    let lies: [&dyn Fn(&mut Built); 6] = [
        &|built| built.words(object(3) + 32, &[UNSORTED | 4]),
        &|built| built.words(object(3) + 32, &[UNSORTED | 1 << 40]),
        &|built| built.words(object(3) + 32, &[1 << 11 | 1]),
        &|built| built.words(object(3) + 24, &[0x70_0000]),
        &|built| built.bytes(section(3) + 8, &[2]),
        &|built| built.bytes(section(3) + 4, &[24]),
    ];
    for (number, lie) in lies.iter().enumerate() {
        for (mut built, damaged) in [(lists(), 0), (trees(), 1)] {
            lie(&mut built);
            let update = read(&mut registry(), &built);
            assert_eq!((come(&update), update.damaged), (vec![1, 2], damaged), "{number}");
        }
    }
    // Of a list, those behind it are there still.
    let mut built = lists();
    built.words(object(2), &[0, 0, 0, 0, 0, object(3)]);
    built.words(DATA + 0x68, &[0]);
    let update = read(&mut registry(), &built);
    assert_eq!((come(&update), update.damaged), (vec![1, 3], 1));
}

#[test]
fn a_part_of_a_tree_that_contradicts_takes_nothing_from_what_was_known() {
    let second = NODES + 0x100;
    let lies: [&dyn Fn(&mut Built); 6] = [
        &|built| built.words(second + 8, &[LEAF | 11]),
        &|built| built.words(second + 8, &[2 << 32 | 1]),
        &|built| built.words(second + 16, &[function(2)]),
        &|built| built.words(second + 24, &[0]),
        &|built| built.words(second + 32, &[object(3) + 4]),
        // A circle.
        &|built| built.words(second + 8, &[1, u64::MAX, NODES + 0x200]),
    ];
    for (number, lie) in lies.iter().enumerate() {
        let (mut registry, whole) = (registry(), trees());
        read(&mut registry, &whole);
        let mut built = whole.clone();
        lie(&mut built);
        // The tree of sections says nothing now.
        built.words(DATA + 0x60, &[0]);
        let is_kept = (1..MAX_INCOMPLETE).all(|_| {
            let update = read(&mut registry, &built);
            matches!(update.incomplete, Some(ReadError::Malformed { .. })) && update.gone.is_empty()
        });
        assert!(is_kept, "{number}");
        assert_eq!(gone(&read(&mut registry, &built)), [1, 2, 3], "it is not believed for ever: {number}");
        assert_eq!(come(&read(&mut registry, &whole)), [1, 2, 3]);
    }
}

#[test]
fn a_root_that_contradicts_is_none_and_circles_end() {
    let root = NODES + 0x200;
    let lies: [&dyn Fn(&mut Built); 3] =
        [&|built| built.words(root + 8, &[16]), &|built| built.words(root + 8, &[0]), &|built| {
            built.words(root + 16, &[u64::MAX, NODES, function(1)])
        }];
    for lie in lies {
        let mut built = trees();
        built.words(DATA + 0x60, &[0]);
        lie(&mut built);
        assert_eq!(read(&mut registry(), &built), Update::default());
    }
    let mut built = lists();
    built.words(object(2) + 40, &[object(1)]);
    built.words(object(3) + 40, &[object(3)]);
    assert_eq!(come(&read(&mut registry(), &built)), [1, 2, 3]);
}

#[test]
fn what_costs_too_much_is_left_and_nothing_is_taken_for_gone() {
    for built in [lists(), trees()] {
        let whole = Reader::new(&built, ENOUGH);
        registry().update(&whole);
        let needed = ENOUGH.steps - whole.left().steps;
        for steps in (0..needed).step_by(3) {
            let mut registry = registry();
            read(&mut registry, &built);
            let update = registry.update(&Reader::new(&built, Budget { steps: steps / 2, ..ENOUGH }));
            assert!(update.gone.is_empty() && update.come.is_empty(), "{steps}: {update:?}");
        }
        let update = registry().update(&Reader::new(&built, Budget { pages: 1, ..ENOUGH }));
        assert_eq!(update.incomplete, Some(ReadError::OverBudget));
    }
}

#[test]
fn a_section_without_an_end_is_damaged() {
    let mut built = lists();
    built.bytes(section(3), &[0xff, 0xff, 0x3f, 0]);
    let update = read(&mut registry(), &built);
    assert_eq!((come(&update), update.damaged), (vec![1, 2], 1));
}

#[test]
fn a_function_that_nothing_is_known_of_is_counted_as_long_as_it_is_registered() {
    const PADDING: u32 = 64 << 10;
    let (mut registry, mut built, whole) = (registry(), lists(), frames(function(3)));
    let padding = vec![0; PADDING as usize];
    let long = [&whole[..20], &(20 + PADDING).to_le_bytes(), &whole[24..44], &padding[..], &[0; 4]].concat();
    built.bytes(section(3), &long);
    let update = read(&mut registry, &built);
    assert_eq!((come(&update), update.damaged, update.incomplete), (vec![1, 2], 1, None));
    assert_eq!(read(&mut registry, &built), Update { damaged: 1, ..Update::default() });
    built.bytes(section(3), &whole);
    let update = read(&mut registry, &built);
    assert_eq!((come(&update), update.damaged), (vec![3], 0));
}

#[test]
fn a_section_for_which_there_are_too_few_steps_is_left_whole_to_another_reading() {
    let mut built = lists();
    built.bytes(section(3), &frames_of((3..103).map(function), 0));
    let (mut whole, mut none) = (0, 0);
    for steps in (0..6000).step_by(100) {
        let mut registry = registry();
        let update = registry.update(&Reader::new(&built, Budget { steps, ..ENOUGH }));
        match come(&update).into_iter().filter(|number| *number >= 3).count() {
            100 => whole += 1,
            0 => none += 1,
            part => panic!("{part} with {steps} steps"),
        }
        let is_whole = update.come.len() == 102;
        assert_eq!((update.incomplete.is_none(), update.damaged), (is_whole, 0), "{steps}");
        let rest = read(&mut registry, &built);
        assert_eq!((update.come.len() + rest.come.len(), rest.incomplete), (102, None), "{steps}");
    }
    assert!(whole > 0 && none > 20, "{whole} {none}");
}

#[test]
fn a_section_that_is_too_dear_for_any_reading_is_kept_in_part_and_the_rest_is_counted() {
    let (mut registry, mut built) = (registry(), lists());
    built.words(object(3), &[u64::MAX, 0, 0, section(0x10), UNSORTED, 0]);
    built.bytes(section(0x10), &frames_of((3..103).map(function), 4000));
    let update = read(&mut registry, &built);
    let lost = u32::try_from(102 - update.come.len()).unwrap();
    assert_eq!((update.damaged, update.incomplete), (lost, None));
    assert!((1..100).contains(&lost), "{lost}");
    assert_eq!(read(&mut registry, &built), Update { damaged: lost, ..Update::default() });
}

#[test]
fn what_has_found_no_room_is_taken_when_there_is_some() {
    let (mut registry, mut built) = (registry(), lists());
    built.bytes(section(3), &frames_of([function(3), function(4)], 0));
    // Those of others, which have no section here.
    registry.owners.extend((1..).take(MAX_FUNCTIONS - 3).map(|at: u64| (at, 0_u64)));
    let update = read(&mut registry, &built);
    assert_eq!((come(&update), update.damaged, update.incomplete), (vec![1, 2, 3], 1, None));
    assert_eq!(read(&mut registry, &built), Update { damaged: 1, ..Update::default() });
    registry.owners.retain(|_, section| *section != 0);
    let update = read(&mut registry, &built);
    assert_eq!((come(&update), gone(&update), update.damaged), (vec![4], vec![], 0));
    assert_eq!(read(&mut registry, &built), Update::default());
    built.words(DATA + 0x68, &[0]);
    assert_eq!(gone(&read(&mut registry, &built)), [3, 4]);
}

#[test]
fn whatever_byte_is_wrong_no_other_function_is_found() {
    for (built, places) in [(lists(), [DATA, OBJECTS, SECTIONS + 0x3000]), (trees(), [DATA, OBJECTS, NODES])] {
        for at in places.iter().flat_map(|place| (*place..place + 0x100).step_by(3)) {
            let mut built = built.clone();
            built.flip(at);
            let update = read(&mut registry(), &built);
            let known = update.come.iter().filter(|found| (1..=3).any(|number| found.start.0 == function(number)));
            let others = update.come.len() - known.count();
            let is_entry = (SECTIONS..SECTIONS + 0x1_0000).contains(&at);
            assert!(others == 0 || is_entry, "{at:#x}: {update:?}");
        }
    }
}

#[test]
fn only_a_libgcc_of_its_own_is_searched() {
    let find = |name, size| Registry::find(Module(name), Avma(DATA)..Avma(DATA + size)).is_some();
    assert!(find(REGISTER, MAX_DATA) && !find(REGISTER, MAX_DATA + 1) && !find("other", DATA_BYTES));
}
