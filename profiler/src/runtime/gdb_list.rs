//! Code that is registered with a debugger, and what else is registered with libgcc.

use std::collections::{BTreeMap, HashMap};

use jitprof_common::units::Avma;
use jitprof_runtimes::gdb_jit::{Change, Details, Function, Image, Images, Inlined, Update};
use jitprof_runtimes::{Memory, Reader};

use super::code::Room;
use super::libgcc::Libgcc;
use super::modules::{Module, Modules};
use super::{
    CallSite, CodeChange, EVERYWHERE, FoundCode, FoundFrame, FoundInline, FoundLines, Missed, Registered, RuntimeRead,
};

/// Lists of one process: each module with a copy of LLVM has one.
const MAX_LISTS: usize = 8;
/// Bytes of a function whose code is read at once; that of others is read where it is met.
const MAX_CODE_BYTES: usize = 16 << 10;
/// Bytes of code that one reading hands on; that of further functions is read where it is met. Symbols may overlap.
const MAX_ALL_CODE: usize = 32 << 20;
/// Readings, from one on in which something was gone, in which what comes may lie where something else has come and gone since
/// the reading before: who frees code frees more, as a rule soon and some of it unseen. The list counts nothing that would tell.
const UNSTEADY: u32 = 64;
/// Bytes before and behind what is gone in which something else may have come and gone: it may have been larger.
const AROUND: u64 = 64 << 10;
/// Places that are remembered in which something was; if there are more, it may have been anywhere.
const MAX_FREED: usize = 256;

/// The lists of one process.
#[derive(Default)]
pub(super) struct Lists {
    lists: Vec<Images>,
    /// Where modules call that fill them.
    sites: Vec<CallSite>,
    /// Which list and which object file of it has the function that begins at an address. Another one may have taken
    /// the place before it is found out that the first is gone.
    owners: HashMap<u64, (usize, u64)>,
    /// Where what comes is known from then on only.
    freed: Freed,
    /// At the reading before, there was an object file that could not be read.
    is_damaged: bool,
    /// What JITs have told libgcc.
    registered: Libgcc,
}

/// Where something is gone, and something else may have come and gone since.
#[derive(Default)]
struct Freed {
    /// By the first byte of a place: its end, and in how many readings it counts. None overlaps another one.
    places: BTreeMap<u64, (u64, u32)>,
    /// Readings in which each place counts, as it is not known of something where it was.
    everywhere: u32,
}

impl Lists {
    /// Those of a process, if there are any, or something is registered with libgcc.
    pub(super) fn find<M: Memory>(modules: &Modules, reader: &Reader<M>) -> Option<Self> {
        let lists = Self::of(modules);
        (!lists.lists.is_empty() || lists.registered.is_used(reader)).then_some(lists)
    }

    /// Those of a process, if it has any.
    pub(super) fn of(modules: &Modules) -> Self {
        let mut lists = Self::default();
        lists.look_again(modules);
        lists
    }

    /// Takes up the lists of modules that were loaded since.
    pub(super) fn look_again(&mut self, modules: &Modules) {
        self.sites = modules.iter().filter_map(Module::call_site).take(MAX_LISTS).collect();
        for found in modules.iter().filter_map(Images::find) {
            let is_new = self.lists.iter().all(|known| known.descriptor() != found.descriptor());
            if is_new && self.lists.len() < MAX_LISTS {
                self.lists.push(found);
            }
        }
        self.registered.look_again(modules);
    }

    /// These entries were registered since the last reading.
    pub(super) fn read_anew(&mut self, entries: &[Avma]) {
        for images in &mut self.lists {
            entries.iter().for_each(|entry| images.read_anew(*entry));
        }
    }

    /// Whether there are none, and nothing was registered with libgcc at the last reading.
    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_empty() && self.registered.is_empty()
    }

    /// Bytes that are kept, nearly.
    pub(super) fn bytes(&self) -> usize {
        let lists = self.lists.iter().map(Images::bytes).sum::<usize>() + self.owners.len() * 48;
        lists + self.freed.places.len() * 32 + self.registered.bytes()
    }

    pub(super) fn read<M: Memory>(&mut self, reader: &Reader<M>) -> RuntimeRead {
        let rows_alone = self.lists.is_empty();
        let name = if rows_alone { "what is registered with libgcc" } else { "what is registered for GDB" };
        let runtime = Some(name.to_owned());
        let mut read = RuntimeRead { runtime, sites: self.sites.clone(), rows_alone, ..RuntimeRead::default() };
        let mut room = Room::new(MAX_CODE_BYTES, MAX_ALL_CODE);
        self.freed.begin();
        let was_damaged = std::mem::take(&mut self.is_damaged);
        for (list, images) in self.lists.iter_mut().enumerate() {
            let update = images.update(reader);
            read.incomplete |= update.incomplete.is_some();
            self.is_damaged |= update.damaged > 0;
            let unread = unread_of(&update);
            read.unread.note(unread.entries, unread.is_cut);
            for change in update.changes {
                match change {
                    Change::Loaded(image, details) => {
                        for found in functions(&image, details, reader, &mut room) {
                            if self.owners.insert(found.start.0, (list, image.id)).is_some() {
                                read.changes.push(CodeChange::Unloaded(found.start));
                            }
                            read.changes.push(CodeChange::Loaded(found));
                        }
                    }
                    Change::Unloaded(image) => {
                        self.freed.note(&image);
                        for Function { address, .. } in image.functions() {
                            if self.owners.get(&address.0) == Some(&(list, image.id)) {
                                self.owners.remove(&address.0);
                                read.changes.push(CodeChange::Unloaded(Avma(address.0)));
                            }
                        }
                    }
                }
            }
        }
        // What could not be read may be gone, too, and nobody knows from where.
        read.may_have_passed = self.freed.places(was_damaged || self.is_damaged);
        let (changes, unread) = self.registered.read(reader);
        read.changes.extend(changes);
        read.unread.note(unread.entries, unread.is_cut);
        read
    }
}

impl Freed {
    /// One more reading begins.
    fn begin(&mut self) {
        self.everywhere = self.everywhere.saturating_sub(1);
        self.places.retain(|_, (_, readings)| {
            *readings = readings.saturating_sub(1);
            *readings > 0
        });
    }

    /// An object file is gone. What it was made for lay side by side.
    fn note(&mut self, image: &Image) {
        let functions = image.functions();
        let is_known = image.names_all() && functions.iter().all(|function| function.size > 0);
        let start = functions.iter().map(|function| function.address.0).min();
        let end = functions.iter().map(|function| function.address.0.saturating_add(function.size)).max();
        match start.zip(end).filter(|_| is_known) {
            Some((start, end)) => self.add(start.saturating_sub(AROUND), end.saturating_add(AROUND)),
            None => self.everywhere = UNSTEADY,
        }
    }

    fn add(&mut self, mut start: u64, mut end: u64) {
        // Those that it overlaps become one with it.
        let last_before = |places: &BTreeMap<u64, (u64, u32)>, end: u64| {
            places.range(..end).next_back().map(|(from, (to, _))| (*from, *to))
        };
        while let Some((from, to)) = last_before(&self.places, end)
            && to > start
        {
            self.places.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.places.insert(start, (end, UNSTEADY));
        if self.places.len() > MAX_FREED {
            self.places.clear();
            self.everywhere = UNSTEADY;
        }
    }

    /// First byte and length of each; all if something else that is gone may have been anywhere.
    fn places(&self, is_unsure: bool) -> Vec<(Avma, u64)> {
        if self.everywhere > 0 || (is_unsure && !self.places.is_empty()) {
            return vec![EVERYWHERE];
        }
        self.places.iter().map(|(start, (end, _))| (Avma(*start), end - start)).collect()
    }
}

/// What a reading of a list has not got: object files that could not be read, or had no room for all functions.
fn unread_of(update: &Update) -> Missed {
    Missed { entries: update.damaged.saturating_add(update.without_room), is_cut: update.incomplete.is_some() }
}

/// The code of an object file. What has several names is there once, with the last of them: it does not take its own place.
fn functions<M: Memory>(image: &Image, details: Vec<Details>, reader: &Reader<M>, room: &mut Room) -> Vec<FoundCode> {
    let sized = image.functions().iter().enumerate().filter(|(_, function)| function.size > 0);
    let registered = Registered { entry: image.entry, image: image.address, size: image.size as u64 };
    let last: HashMap<u64, usize> = sized.map(|(index, function)| (function.address.0, index)).collect();
    let functions = image.functions().iter().zip(details).enumerate().filter_map(|(index, (function, details))| {
        let is_last = last.get(&function.address.0) == Some(&index);
        let size = u32::try_from(function.size).ok().filter(|_| is_last)?;
        let frame = match details.frame {
            Some(frame) => {
                FoundFrame::Recorded { bytes: frame.bytes.into_vec().into(), section_start: frame.section_start }
            }
            None => room.frame((function.address, function.size), reader),
        };
        let (files, rows) = (details.lines.files, details.lines.rows);
        let inlined = details.inlined.into_iter().map(inlined).collect();
        let lines = FoundLines { files, rows, inlined }.kept();
        let (start, name, registered) = (function.address, function.name.to_string(), Some(Box::new(registered)));
        Some(FoundCode { start, size, name, frame, number: 0, lines, registered })
    });
    functions.collect()
}

fn inlined(part: Inlined) -> FoundInline {
    let Inlined { start, size, name, around, lines } = part;
    FoundInline { start, size, name, around, files: lines.files, rows: lines.rows }
}

#[cfg(test)]
mod tests {
    use std::io;

    use jitprof_runtimes::gdb_jit::Lines;
    use jitprof_runtimes::{Budget, Frame, Symbols};

    use super::*;

    /// Where the list's head is, and where its entries are, each so many bytes behind the one before.
    const HEAD: u64 = 0x1_0000;
    const ENTRIES: u64 = 0x2_0000;
    const ENTRY: u64 = 0x200;
    /// Where in its entry an object file is, its bytes, and those of its function.
    const FILE: u64 = 64;
    const FILE_BYTES: u64 = 336;
    const SIZE: u64 = 0x100;
    const BUDGET: Budget = Budget { pages: 1000, steps: 10_000 };

    /// A list of these entries. Behind each is an object file with a function at an address; with none that could be known if
    /// that is 0.
    struct Listed(Vec<(u64, u64)>);

    impl Listed {
        fn word(&self, at: u64) -> u64 {
            let place = |(entry, _): &(u64, u64)| ENTRIES + entry * ENTRY;
            if at == HEAD {
                return 1;
            }
            if at == HEAD + 16 {
                return self.0.first().map_or(0, place);
            }
            let Some(index) = self.0.iter().position(|entry| (place(entry)..place(entry) + ENTRY).contains(&at)) else {
                return 0;
            };
            let (_, function) = self.0[index];
            match at % ENTRY {
                0 => self.0.get(index + 1).map_or(0, place),
                16 => place(&self.0[index]) + FILE,
                24 => FILE_BYTES,
                within if within >= FILE && function != 0 => {
                    let word = usize::try_from((within - FILE) / 8).unwrap();
                    object_file(function).get(word).copied().unwrap_or(0)
                }
                _ => 0,
            }
        }
    }

    /// The words of an ELF file with a table of symbols, one of names, and a function that has two.
    fn object_file(function: u64) -> Vec<u64> {
        let header =
            [0x0001_0102_464c_457f, 0, 0x1_003e_0002, 0, 0, 144, 56 << 48 | 64 << 32, 2 << 48 | 3 << 32 | 64 << 16];
        let symbol = |name: u64| [1 << 48 | 0x12 << 32 | name, function, SIZE];
        let symbols = [[0; 3], symbol(1), symbol(3)];
        let names = [u64::from(b'f') << 8 | u64::from(b'g') << 24];
        let sections = [[0; 8], [2 << 32, 0, 0, 64, 72, 1 << 32 | 2, 8, 24], [3 << 32, 0, 0, 136, 8, 0, 1, 0]];
        [&header[..], symbols.as_flattened(), &names, sections.as_flattened()].concat()
    }

    impl Memory for Listed {
        fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
            for (at, byte) in (address.0..).zip(into.iter_mut()) {
                *byte = self.word(at - at % 8).to_le_bytes()[usize::try_from(at % 8).unwrap()];
            }
            Ok(into.len())
        }
    }

    impl Symbols for Listed {
        fn address_of(&self, _name: &str) -> Option<Avma> {
            Some(Avma(HEAD))
        }
    }

    fn lists() -> Lists {
        Lists { lists: vec![Images::find(Listed(Vec::new())).unwrap()], ..Lists::default() }
    }

    fn read(lists: &mut Lists, entries: &[(u64, u64)]) -> Vec<(Avma, u64)> {
        let reader = Reader::new(Listed(entries.to_vec()), BUDGET);
        let read = lists.read(&reader);
        assert!(!read.incomplete);
        read.may_have_passed
    }

    #[test]
    fn object_files_without_room_for_their_functions_are_not_got_either() {
        let update = Update { changes: Vec::new(), damaged: 1, without_room: 2, incomplete: None };
        assert_eq!(unread_of(&update), Missed { entries: 3, is_cut: false });
        let reader = Reader::new(Listed(vec![(1, 0), (2, 0x7f00_0000_0000)]), BUDGET);
        assert_eq!(lists().read(&reader).unread, Missed::default());
    }

    #[test]
    fn what_is_said_of_a_function_is_handed_on_and_its_code_is_read_where_its_frame_is_not_said() {
        let reader = Reader::new(Listed(vec![(1, 0x7f00_0000_0000)]), BUDGET);
        let mut images = Images::find(Listed(Vec::new())).unwrap();
        images.update(&reader);
        let image = images.images().next().unwrap().clone();
        let found = |details: Details| {
            let (details, mut room) = (vec![Details::default(), details], Room::new(MAX_CODE_BYTES, MAX_ALL_CODE));
            let mut found = functions(&image, details, &reader, &mut room);
            found.remove(0)
        };
        let lines = |file: &str, line| Lines { files: vec![file.into()], rows: vec![(0, line, 0)] };
        let part = Inlined { start: 4, size: 8, name: "inner".into(), around: None, lines: lines("b.c", 7) };
        let frame = Frame { bytes: [1, 2].into(), section_start: Avma(3) };
        let known = found(Details { lines: lines("a.c", 5), inlined: vec![part], frame: Some(frame) });
        assert_eq!(known.frame, FoundFrame::Recorded { bytes: vec![1, 2].into(), section_start: Avma(3) });
        let of = known.lines.unwrap();
        assert_eq!((&*of.files[0], of.rows[0]), ("a.c", (0, 5, 0)));
        let part = &of.inlined[0];
        assert_eq!((part.start, part.size, &*part.name), (4, 8, "inner"));
        assert_eq!((&*part.files[0], part.rows[0]), ("b.c", (0, 7, 0)));
        assert!(matches!(found(Details::default()).frame, FoundFrame::Code(_)));
    }

    #[test]
    fn code_with_several_names_is_there_once_and_does_not_take_its_own_place() {
        const START: u64 = 0x7f00_0000_0000;
        let mut lists = lists();
        let changes = lists.read(&Reader::new(Listed(vec![(1, START)]), BUDGET)).changes;
        let [CodeChange::Loaded(found)] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!((found.start, found.name.as_str()), (Avma(START), "g"));
        let gone = lists.read(&Reader::new(Listed(Vec::new()), BUDGET)).changes;
        assert_eq!(gone, [CodeChange::Unloaded(Avma(START))]);
    }

    #[test]
    fn what_comes_after_something_was_gone_may_lie_where_something_else_has_passed() {
        let mut lists = lists();
        let mut read = |entries: &[u64]| read(&mut lists, &entries.iter().map(|entry| (*entry, 0)).collect::<Vec<_>>());
        for entries in [&[][..], &[1], &[2, 1], &[3, 2, 1]] {
            assert!(read(entries).is_empty(), "only more: {entries:?}");
        }
        assert_eq!(read(&[3, 1]), [EVERYWHERE], "something is gone, from nobody knows where");
        for _ in 1..UNSTEADY {
            assert_eq!(read(&[4, 3, 1]), [EVERYWHERE]);
        }
        assert!(read(&[5, 4, 3, 1]).is_empty(), "for long nothing was");
    }

    #[test]
    fn something_else_has_passed_only_around_what_is_gone_if_it_is_known_where_that_was() {
        const FIRST: u64 = 0x7f00_0000_0000;
        const SECOND: u64 = 0x7f00_0100_0000;
        let around = |function: u64| (Avma(function - AROUND), SIZE + 2 * AROUND);
        let mut lists = lists();
        assert!(read(&mut lists, &[(2, SECOND), (1, FIRST)]).is_empty());
        assert_eq!(read(&mut lists, &[(2, SECOND)]), [around(FIRST)]);
        assert_eq!(read(&mut lists, &[(3, FIRST), (2, SECOND)]), [around(FIRST)]);
        assert_eq!(read(&mut lists, &[(3, FIRST)]), [around(FIRST), around(SECOND)]);
        for _ in 2..UNSTEADY {
            read(&mut lists, &[(3, FIRST)]);
        }
        assert_eq!(read(&mut lists, &[(4, 0), (3, FIRST)]), [around(SECOND)], "it is long since the first one was");
        assert_eq!(read(&mut lists, &[(3, FIRST)]), [EVERYWHERE], "another one is gone, from nobody knows where");
    }

    #[test]
    fn places_that_overlap_are_one_and_too_many_are_everywhere() {
        let mut freed = Freed::default();
        for start in [0x30, 0x10, 0x20] {
            freed.add(start, start + 0x18);
        }
        assert_eq!(freed.places(false), [(Avma(0x10), 0x38)]);
        assert_eq!(freed.places(true), [EVERYWHERE], "something could not be read");
        for at in 1..=MAX_FREED as u64 {
            freed.add(at << 20, (at << 20) + 1);
        }
        assert_eq!(freed.places(false), [EVERYWHERE]);
        for _ in 0..UNSTEADY {
            freed.begin();
        }
        assert!(freed.places(true).is_empty());
    }
}
