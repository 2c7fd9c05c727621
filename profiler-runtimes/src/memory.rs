//! A target's memory, as readers see it: page by page, within a budget.

use std::cell::{Cell, Ref, RefCell};
use std::io;

use jitprof_common::units::Avma;
use rustc_hash::FxHashMap;

/// Bytes of a page, the unit in which memory is read.
const PAGE_BYTES: usize = 4096;
const PAGE: u64 = PAGE_BYTES as u64;
/// Pages that are kept at a time: 64 MiB.
const MAX_KEPT: usize = 1 << 14;
/// Bytes between two places that are read as one: to copy them is cheaper than to look up another place, and as they are less
/// than a page, none is read that neither place is on.
const MAX_GAP: usize = PAGE_BYTES / 2;
/// Bytes of what is read as one: on no more pages than the kernel looks up together.
const MAX_SPAN: usize = 15 * PAGE_BYTES;

/// The memory of a process, or a recording of it.
pub trait Memory {
    /// Reads from an address on; returns how many bytes could be read, as far as the first that could not.
    ///
    /// # Errors
    /// Not even the first byte could be read.
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize>;

    /// Reads several places, each from its address on; returns how many bytes of each could be read. Where one call can do for
    /// many, this is to be faster than one after the other.
    fn read_each(&self, reads: &mut [(Avma, &mut [u8])]) -> Vec<usize> {
        reads.iter_mut().map(|(address, into)| self.read(*address, into).unwrap_or(0)).collect()
    }
}

impl<M: Memory + ?Sized> Memory for &M {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        (**self).read(address, into)
    }

    fn read_each(&self, reads: &mut [(Avma, &mut [u8])]) -> Vec<usize> {
        (**self).read_each(reads)
    }
}

/// The symbols of the runtime's own module, where it is loaded in the process.
pub trait Symbols {
    /// The address of a symbol in the process, if the module has it.
    fn address_of(&self, name: &str) -> Option<Avma>;
}

impl<S: Symbols + ?Sized> Symbols for &S {
    fn address_of(&self, name: &str) -> Option<Avma> {
        (**self).address_of(name)
    }
}

/// Why something could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is no readable memory at this address.
    #[error("no memory to be read at {0:#x}")]
    Unreadable(u64),
    /// The reading has used up what it may cost.
    #[error("more was to be read than a reading may cost")]
    OverBudget,
    /// What was found there cannot be what was looked for.
    #[error("no {what} at {address:#x}")]
    Malformed {
        /// What was looked for.
        what: &'static str,
        /// Where.
        address: u64,
    },
}

/// What a reading may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Pages that are fetched from the target.
    pub pages: u32,
    /// Values that are taken from them.
    pub steps: u64,
}

/// Pages that were fetched.
#[derive(Default)]
struct Pages {
    /// Where each is among the bytes, by its address.
    kept: FxHashMap<u64, Kept>,
    /// One page behind another. The room of those that were dropped is used again: to be given new memory costs more than a page.
    bytes: Vec<u8>,
}

/// Where a page is kept, and how many bytes of it could be read.
#[derive(Clone, Copy)]
struct Kept {
    from: usize,
    count: usize,
}

impl Pages {
    /// A page as far as it is readable, if it was fetched.
    fn get(&self, start: u64) -> Option<&[u8]> {
        let Kept { from, count } = *self.kept.get(&start)?;
        self.bytes.get(from..from + count)
    }

    /// What was fetched of the page that an address is on, from there on.
    fn rest_from(&self, at: u64) -> Option<&[u8]> {
        let within = usize::try_from(at % PAGE).ok()?;
        self.get(at - at % PAGE)?.get(within..).filter(|part| !part.is_empty())
    }

    /// Fetches pages that are not there, each of which is given once.
    fn fetch<M: Memory>(&mut self, starts: &[u64], memory: &M) {
        let from = self.kept.len() * PAGE_BYTES;
        let end = from + starts.len() * PAGE_BYTES;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let room = self.bytes[from..end].chunks_exact_mut(PAGE_BYTES);
        let mut reads: Vec<(Avma, &mut [u8])> = starts.iter().map(|start| Avma(*start)).zip(room).collect();
        let counts = memory.read_each(&mut reads);
        for ((start, count), from) in starts.iter().zip(counts).zip((from..).step_by(PAGE_BYTES)) {
            self.kept.insert(*start, Kept { from, count: count.min(PAGE_BYTES) });
        }
    }
}

/// Where the pages begin that bytes from an address on are on.
fn pages_of((address, bytes): (Avma, usize)) -> impl Iterator<Item = u64> {
    let last = address.0.saturating_add(bytes.saturating_sub(1) as u64);
    (address.0 / PAGE..=last / PAGE).map(|page| page * PAGE)
}

/// Places of one length that are read as one.
struct Span {
    start: u64,
    bytes: usize,
    places: usize,
}

impl Span {
    /// Places in their order, those together that lie close behind one another.
    fn all(addresses: &[Avma], bytes: usize) -> Vec<Self> {
        let mut spans: Vec<Self> = Vec::new();
        for address in addresses {
            if !spans.last_mut().is_some_and(|span| span.takes(*address, bytes)) {
                spans.push(Self { start: address.0, bytes, places: 1 });
            }
        }
        spans
    }

    /// Where each is read to, one behind another in room that is made if there is too little.
    fn reads<'r>(spans: &[Self], room: &'r mut Vec<u8>) -> Vec<(Avma, &'r mut [u8])> {
        let bytes: usize = spans.iter().map(|span| span.bytes).sum();
        if room.len() < bytes {
            room.resize(bytes, 0);
        }
        let mut rest = room.as_mut_slice();
        let mut reads = Vec::with_capacity(spans.len());
        for span in spans {
            let (into, behind) = std::mem::take(&mut rest).split_at_mut(span.bytes);
            reads.push((Avma(span.start), into));
            rest = behind;
        }
        reads
    }

    /// Takes one more place, if it lies close enough.
    fn takes(&mut self, address: Avma, bytes: usize) -> bool {
        let from = self.offset(address).filter(|from| *from <= self.bytes.saturating_add(MAX_GAP));
        let end = from.map(|from| self.bytes.max(from.saturating_add(bytes))).filter(|end| *end <= MAX_SPAN);
        let Some(end) = end else { return false };
        (self.bytes, self.places) = (end, self.places + 1);
        true
    }

    /// How far into it an address is.
    fn offset(&self, address: Avma) -> Option<usize> {
        usize::try_from(address.0.checked_sub(self.start)?).ok()
    }
}

/// Reads values, each page once for as long as the reader lives.
pub struct Reader<M> {
    memory: M,
    pages: RefCell<Pages>,
    /// For what is read past the pages, of several places at a time.
    room: RefCell<Vec<u8>>,
    left: Cell<Budget>,
    #[cfg(feature = "recorded")]
    used: RefCell<Option<std::collections::BTreeSet<u64>>>,
}

impl<M: Memory> Reader<M> {
    /// A reader that has fetched nothing yet.
    pub fn new(memory: M, budget: Budget) -> Self {
        Self {
            memory,
            pages: RefCell::default(),
            room: RefCell::default(),
            left: Cell::new(budget),
            #[cfg(feature = "recorded")]
            used: RefCell::default(),
        }
    }

    /// From now on keeps account of the words that are taken, of all that is fetched.
    #[cfg(feature = "recorded")]
    pub fn note_words(&self) {
        self.used.borrow_mut().get_or_insert_default();
    }

    /// The words that were taken: what a recording needs to keep.
    #[cfg(feature = "recorded")]
    pub fn used_words(&self) -> std::collections::BTreeSet<u64> {
        self.used.borrow().clone().unwrap_or_default()
    }

    /// Notes that these bytes were taken.
    fn note(&self, address: Avma, count: usize) {
        #[cfg(feature = "recorded")]
        if let Some(used) = &mut *self.used.borrow_mut() {
            let last = address.0.saturating_add(count.saturating_sub(1) as u64);
            used.extend((address.0 / 8..=last / 8).map(|word| word * 8));
        }
        #[cfg(not(feature = "recorded"))]
        let (_, _) = (address, count);
    }

    /// What the reading may still cost.
    pub fn left(&self) -> Budget {
        self.left.get()
    }

    /// Charges so many steps for work on what was read.
    ///
    /// # Errors
    /// The budget is used up.
    pub fn spend(&self, steps: u64) -> Result<(), ReadError> {
        let mut left = self.left.get();
        left.steps = left.steps.checked_sub(steps).ok_or(ReadError::OverBudget)?;
        self.left.set(left);
        Ok(())
    }

    /// Drops the pages, so that what is read from now on is as it is from now on.
    pub fn refresh(&self) {
        self.pages.borrow_mut().kept.clear();
    }

    /// Reads with none of the pages that were fetched before, and keeps none of those that are fetched for it; the budget is the
    /// same. The pages of a reader are from different moments: what is read of a target that runs is as it was at some moment if
    /// it is the same once more when it is read like this.
    pub fn afresh<T>(&self, read: impl FnOnce(&Reader<&M>) -> T) -> T {
        let fresh = Reader::new(&self.memory, self.left());
        #[cfg(feature = "recorded")]
        fresh.used.replace(self.used.take());
        let value = read(&fresh);
        #[cfg(feature = "recorded")]
        self.used.replace(fresh.used.take());
        self.left.set(fresh.left());
        value
    }

    /// Fills `into` from an address on.
    ///
    /// # Errors
    /// Part of it is not readable, or the budget is used up.
    pub fn bytes(&self, address: Avma, into: &mut [u8]) -> Result<(), ReadError> {
        let mut left = self.left.get();
        left.steps = left.steps.checked_sub(1).ok_or(ReadError::OverBudget)?;
        self.left.set(left);
        self.note(address, into.len());
        let mut done = 0;
        while done < into.len() {
            let at = address.0.checked_add(done as u64).ok_or(ReadError::Unreadable(address.0))?;
            let within = usize::try_from(at % PAGE).unwrap_or(0);
            let page = self.page(at - at % PAGE)?;
            let part = page.get(within..).filter(|part| !part.is_empty()).ok_or(ReadError::Unreadable(at))?;
            let count = part.len().min(into.len() - done);
            into[done..done + count].copy_from_slice(&part[..count]);
            done += count;
        }
        Ok(())
    }

    /// Fills `into` with what is there now, past the pages that were fetched before and without keeping any; returns how
    /// many bytes could be read.
    ///
    /// # Errors
    /// Not even the first byte is readable, or the budget is used up.
    pub fn now(&self, address: Avma, into: &mut [u8]) -> Result<usize, ReadError> {
        self.charge(address, into.len())?;
        let count = self.memory.read(address, into).map_err(|_| ReadError::Unreadable(address.0))?;
        self.note(address, count);
        Ok(count)
    }

    /// As [`now`](Self::now), as many bytes of each of several places, in order, with as few calls as the memory needs for them.
    pub fn now_each(&self, addresses: &[Avma], bytes: usize) -> Vec<Result<Vec<u8>, ReadError>> {
        let affordable = addresses.iter().take_while(|address| self.charge(**address, bytes).is_ok()).count();
        let spans = Span::all(&addresses[..affordable], bytes);
        let mut room = self.room.borrow_mut();
        let mut reads = Span::reads(&spans, &mut room);
        let counts = self.memory.read_each(&mut reads);
        let mut found = Vec::with_capacity(addresses.len());
        for ((span, (_, read)), count) in spans.iter().zip(&reads).zip(counts) {
            let places = &addresses[found.len()..found.len() + span.places];
            let read = &read[..count.min(read.len())];
            found.extend(places.iter().map(|address| self.place_in(span, read, (*address, bytes))));
        }
        found.resize(addresses.len(), Err(ReadError::OverBudget));
        found
    }

    /// What was read of a place together with others. What cannot be read in front of it does not matter to it.
    fn place_in(&self, span: &Span, read: &[u8], (address, bytes): (Avma, usize)) -> Result<Vec<u8>, ReadError> {
        let from = span.offset(address).unwrap_or(0);
        let place = if from <= read.len() {
            read[from..read.len().min(from.saturating_add(bytes))].to_vec()
        } else {
            let mut place = vec![0; bytes];
            let count = self.memory.read(address, &mut place).unwrap_or(0);
            place.truncate(count);
            place
        };
        self.note(address, place.len());
        if place.is_empty() { Err(ReadError::Unreadable(address.0)) } else { Ok(place) }
    }

    /// Fetches the pages of places that are read next, those that are not there, with as few calls as the memory needs for them:
    /// as far as the budget goes, and no more than are kept. What is missing then is fetched when it is read.
    pub(crate) fn prefetch(&self, places: impl IntoIterator<Item = (Avma, usize)>) {
        let places = places.into_iter().filter(|(_, bytes)| *bytes > 0);
        let is_missing = |start: &u64| !self.pages.borrow().kept.contains_key(start);
        let mut starts: Vec<u64> = places.flat_map(pages_of).filter(is_missing).collect();
        starts.sort_unstable();
        starts.dedup();
        let (mut pages, mut left) = (self.pages.borrow_mut(), self.left.get());
        let room = MAX_KEPT.saturating_sub(pages.kept.len());
        starts.truncate(room.min(usize::try_from(left.pages).unwrap_or(usize::MAX)));
        left.pages = left.pages.saturating_sub(u32::try_from(starts.len()).unwrap_or(u32::MAX));
        self.left.set(left);
        if !starts.is_empty() {
            pages.fetch(&starts, &self.memory);
        }
    }

    /// Fills `into` from an address on with what has been fetched; nothing if some of it has not. What is looked at so is read
    /// afterwards, and costs its steps then.
    pub(crate) fn fetched(&self, address: Avma, into: &mut [u8]) -> Option<()> {
        let pages = self.pages.borrow();
        let mut done = 0;
        while done < into.len() {
            let part = pages.rest_from(address.0.checked_add(done as u64)?)?;
            let count = part.len().min(into.len() - done);
            into[done..done + count].copy_from_slice(&part[..count]);
            done += count;
        }
        Some(())
    }

    /// Charges for bytes that are read past the pages.
    fn charge(&self, address: Avma, bytes: usize) -> Result<(), ReadError> {
        let mut left = self.left.get();
        left.steps = left.steps.checked_sub(1).ok_or(ReadError::OverBudget)?;
        let pages = (address.0 % PAGE + bytes as u64).div_ceil(PAGE);
        let pages = u32::try_from(pages).map_err(|_| ReadError::OverBudget)?;
        left.pages = left.pages.checked_sub(pages).ok_or(ReadError::OverBudget)?;
        self.left.set(left);
        Ok(())
    }

    /// A page, as far as it is readable.
    fn page(&self, start: u64) -> Result<Ref<'_, [u8]>, ReadError> {
        let page = match Ref::filter_map(self.pages.borrow(), |pages| pages.get(start)) {
            Ok(page) => page,
            Err(pages) => {
                drop(pages);
                self.fetch(start)?;
                Ref::map(self.pages.borrow(), |pages| pages.get(start).unwrap_or_default())
            }
        };
        if page.is_empty() { Err(ReadError::Unreadable(start)) } else { Ok(page) }
    }

    /// Fetches a page that is not there.
    fn fetch(&self, start: u64) -> Result<(), ReadError> {
        let mut left = self.left.get();
        left.pages = left.pages.checked_sub(1).ok_or(ReadError::OverBudget)?;
        self.left.set(left);
        let mut pages = self.pages.borrow_mut();
        if pages.kept.len() >= MAX_KEPT {
            pages.kept.clear();
        }
        pages.fetch(&[start], &self.memory);
        Ok(())
    }

    fn array<const N: usize>(&self, address: Avma) -> Result<[u8; N], ReadError> {
        let mut bytes = [0; N];
        self.bytes(address, &mut bytes)?;
        Ok(bytes)
    }

    /// A byte.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes); so for all that follow.
    pub fn u8(&self, address: Avma) -> Result<u8, ReadError> {
        self.array::<1>(address).map(|[byte]| byte)
    }

    /// Two bytes, the least significant first.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub fn u16(&self, address: Avma) -> Result<u16, ReadError> {
        self.array(address).map(u16::from_le_bytes)
    }

    /// Four bytes, the least significant first.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub fn u32(&self, address: Avma) -> Result<u32, ReadError> {
        self.array(address).map(u32::from_le_bytes)
    }

    /// Four bytes with a sign, the least significant first.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub fn i32(&self, address: Avma) -> Result<i32, ReadError> {
        self.array(address).map(i32::from_le_bytes)
    }

    /// Eight bytes, the least significant first.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub fn u64(&self, address: Avma) -> Result<u64, ReadError> {
        self.array(address).map(u64::from_le_bytes)
    }

    /// A pointer. It may be null, or lead anywhere.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub fn pointer(&self, address: Avma) -> Result<Avma, ReadError> {
        self.u64(address).map(Avma)
    }

    /// The bytes before the first NUL, at most `max` of them.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes). A string that is longer is cut, and no error.
    pub fn c_string(&self, address: Avma, max: usize) -> Result<Vec<u8>, ReadError> {
        let mut string = Vec::new();
        while string.len() < max {
            let at = address.0.checked_add(string.len() as u64).ok_or(ReadError::Unreadable(address.0))?;
            let rest = usize::try_from(PAGE - at % PAGE).unwrap_or(0).min(max - string.len());
            let mut part = vec![0; rest];
            self.bytes(Avma(at), &mut part)?;
            if let Some(end) = part.iter().position(|byte| *byte == 0) {
                string.extend_from_slice(&part[..end]);
                break;
            }
            string.append(&mut part);
        }
        Ok(string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that lies at one address.
    struct Piece(u64, Vec<u8>);

    impl Memory for Piece {
        fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
            let from = address.0.checked_sub(self.0).and_then(|from| usize::try_from(from).ok());
            let part = from.and_then(|from| self.1.get(from..)).filter(|part| !part.is_empty());
            let part = part.ok_or(io::ErrorKind::NotFound)?;
            let count = part.len().min(into.len());
            into[..count].copy_from_slice(&part[..count]);
            Ok(count)
        }
    }

    /// Pieces of memory, and how often they were asked for something.
    struct Asked(Vec<Piece>, Cell<u32>);

    impl Memory for Asked {
        fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
            self.1.set(self.1.get() + 1);
            self.0.iter().find_map(|piece| piece.read(address, into).ok()).ok_or(io::ErrorKind::NotFound.into())
        }

        fn read_each(&self, reads: &mut [(Avma, &mut [u8])]) -> Vec<usize> {
            let before = self.1.get();
            let counts = reads.iter_mut().map(|(address, into)| self.read(*address, into).unwrap_or(0)).collect();
            self.1.set(before + 1);
            counts
        }
    }

    fn piece() -> Piece {
        let mut bytes: Vec<u8> = (0..=255).cycle().take(8192).collect();
        bytes.extend(b"end\0");
        Piece(0x10000, bytes)
    }

    fn reader(budget: Budget) -> Reader<Piece> {
        Reader::new(piece(), budget)
    }

    const ENOUGH: Budget = Budget { pages: 16, steps: 100 };

    #[test]
    fn values_are_read_across_pages_and_each_page_is_fetched_once() {
        let reader = reader(ENOUGH);
        assert_eq!(reader.u32(Avma(0x10ffe)), Ok(0x0100_fffe));
        assert_eq!(reader.u16(Avma(0x10002)), Ok(0x0302));
        assert_eq!(reader.left().pages, 14);
        assert_eq!(reader.c_string(Avma(0x12000), 100), Err(ReadError::Unreadable(0x12004)));
        assert_eq!(reader.c_string(Avma(0x12000), 4).as_deref(), Ok(&b"end"[..]));
        assert_eq!(reader.c_string(Avma(0x12000), 2).as_deref(), Ok(&b"en"[..]));
    }

    #[test]
    fn places_are_read_in_order_as_far_as_the_budget_goes() {
        let reader = reader(Budget { pages: 3, steps: 100 });
        let addresses = [0x10000, 0x12002, 0x20000, 0x10004].map(Avma);
        let expected = [Ok(vec![0, 1, 2, 3]), Ok(vec![b'd', 0]), Err(ReadError::Unreadable(0x20000))];
        let mut found = reader.now_each(&addresses, 4);
        assert_eq!(found.pop(), Some(Err(ReadError::OverBudget)));
        assert_eq!(found, expected);
        assert_eq!(reader.left(), Budget { pages: 0, steps: 97 });
    }

    #[test]
    fn places_close_together_are_read_as_one_and_what_is_missing_between_them_is_missing_of_no_other() {
        let asked = Asked(vec![Piece(0x10000, vec![1; 4096]), Piece(0x12000, vec![2; 4096])], Cell::new(0));
        let reader = Reader::new(&asked, ENOUGH);
        let found = reader.now_each(&[0x10ff0, 0x10ffc, 0x11800, 0x11ffc, 0x12000].map(Avma), 8);
        let missing = |address| Err(ReadError::Unreadable(address));
        assert_eq!(found, [Ok(vec![1; 8]), Ok(vec![1; 4]), missing(0x11800), missing(0x11ffc), Ok(vec![2; 8])]);
        assert_eq!(asked.1.get(), 4, "together, and three by themselves");
        let found = reader.now_each(&[0x12ff8, 0x12000, 0x12ff8].map(Avma), 8);
        assert_eq!(found, [Ok(vec![2; 8]), Ok(vec![2; 8]), Ok(vec![2; 8])], "in any order");
    }

    #[test]
    fn places_are_read_as_one_as_long_as_no_page_lies_between_them() {
        let spans = |addresses: &[u64]| {
            let addresses: Vec<Avma> = addresses.iter().copied().map(Avma).collect();
            Span::all(&addresses, 8).iter().map(|span| (span.start, span.bytes, span.places)).collect::<Vec<_>>()
        };
        let gap = MAX_GAP as u64;
        assert_eq!(spans(&[0x1000, 0x1008 + gap]), [(0x1000, 16 + MAX_GAP, 2)]);
        assert_eq!(spans(&[0x1000, 0x1009 + gap]), [(0x1000, 8, 1), (0x1009 + gap, 8, 1)]);
        assert_eq!(spans(&[0x1000, 0x1000, 0xff8]), [(0x1000, 8, 2), (0xff8, 8, 1)]);
        let many: Vec<u64> = (0..1000).map(|number| number * 1000).collect();
        assert!(spans(&many).iter().all(|(_, bytes, _)| *bytes <= MAX_SPAN));
        assert_eq!(spans(&many).iter().map(|(.., places)| places).sum::<usize>(), 1000);
        assert_eq!(spans(&[u64::MAX, 0, u64::MAX]).len(), 3);
    }

    #[test]
    fn pages_are_prefetched_with_one_call_and_cost_what_they_would_have() {
        let asked = Asked(vec![piece()], Cell::new(0));
        let reader = Reader::new(&asked, ENOUGH);
        reader.prefetch([(Avma(0x10ffe), 4), (Avma(0x11000), 1), (Avma(0x20000), 8), (Avma(0x12000), 0)]);
        let mut word = [0; 4];
        assert_eq!(reader.fetched(Avma(0x10ffe), &mut word), Some(()));
        assert_eq!(word, [0xfe, 0xff, 0, 1]);
        for missing in [0x12000, 0x11ffe, 0x20000, u64::MAX] {
            assert_eq!(reader.fetched(Avma(missing), &mut word), None, "{missing:#x}");
        }
        assert_eq!((asked.1.get(), reader.left()), (1, Budget { pages: 13, ..ENOUGH }));
        assert_eq!(reader.u32(Avma(0x10ffe)), Ok(0x0100_fffe));
        assert_eq!(reader.u8(Avma(0x20000)), Err(ReadError::Unreadable(0x20000)));
        assert_eq!((asked.1.get(), reader.left().pages), (1, 13));
        reader.refresh();
        assert_eq!(reader.fetched(Avma(0x10ffe), &mut word), None);
        assert_eq!((reader.u8(Avma(0x11001)), asked.1.get()), (Ok(1), 2));
    }

    #[test]
    fn no_more_is_prefetched_than_a_reading_may_cost_and_keeps() {
        let places = || (0..2 * MAX_KEPT as u64).map(|page| (Avma(page * PAGE), 1));
        let poor = reader(Budget { pages: 20, steps: 100 });
        poor.prefetch(places());
        assert_eq!(poor.left(), Budget { pages: 0, steps: 100 });
        assert_eq!((poor.u8(Avma(0x10001)), poor.u8(Avma(0x14000))), (Ok(1), Err(ReadError::OverBudget)));
        let rich = reader(Budget { pages: u32::MAX, steps: 100 });
        rich.prefetch(places());
        rich.prefetch(places());
        assert_eq!(rich.left().pages as usize, u32::MAX as usize - MAX_KEPT);
        assert_eq!(rich.pages.borrow().kept.len(), MAX_KEPT);
    }

    #[test]
    fn what_is_not_there_or_costs_too_much_is_an_error() {
        assert_eq!(reader(ENOUGH).u8(Avma(0)), Err(ReadError::Unreadable(0)));
        assert_eq!(reader(ENOUGH).u64(Avma(u64::MAX)), Err(ReadError::Unreadable(u64::MAX - 4095)));
        assert_eq!(reader(Budget { pages: 0, steps: 9 }).u8(Avma(0x10000)), Err(ReadError::OverBudget));
        assert_eq!(reader(Budget { pages: 9, steps: 0 }).u8(Avma(0x10000)), Err(ReadError::OverBudget));
    }
}
