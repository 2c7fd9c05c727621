//! A target's memory, as readers see it: page by page, within a budget.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;

use foldhash::HashMap;
use jitprof_common::units::Avma;

/// Bytes of a page: what is met without notice is fetched by whole ones.
const PAGE_BYTES: usize = 4096;
const PAGE: u64 = PAGE_BYTES as u64;
/// Bytes of a block, and blocks of a page: of what is fetched in advance only those are that are asked for. A whole page
/// takes half as long again as a block, and eight times the room.
const BLOCK_BYTES: usize = 512;
const BLOCK: u64 = BLOCK_BYTES as u64;
const BLOCKS: usize = PAGE_BYTES / BLOCK_BYTES;
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

/// Pages that were fetched, as far as they were.
#[derive(Default)]
struct Pages {
    /// Each by its address. The hash has a seed: the target chooses where its pages are, and not which of them collide.
    kept: HashMap<u64, Kept>,
    /// One block behind another. The room of those that were dropped is used again: to be given new memory costs more
    /// than a page.
    bytes: Vec<u8>,
    /// How many bytes are taken.
    taken: usize,
}

/// Where the blocks of a page are kept that were fetched.
#[derive(Clone, Copy, Default)]
struct Kept {
    /// Which were, a bit each.
    fetched: u8,
    /// Where each of these begins.
    from: [u32; BLOCKS],
    /// How many bytes of each could be read.
    count: [u16; BLOCKS],
}

impl Kept {
    /// What it has of a run whose bytes are kept from a place on, of which so many could be read.
    fn add(&mut self, run: Run, from: usize, count: usize) {
        for number in 0..run.count as usize {
            let (block, within) = (run.first as usize + number, number * BLOCK_BYTES);
            self.fetched |= 1 << block;
            self.from[block] = u32::try_from(from + within).unwrap_or(u32::MAX);
            self.count[block] = count.saturating_sub(within).min(BLOCK_BYTES) as u16;
        }
    }

    /// Where the bytes of a block are, and behind them those of the next ones that lie there as well, until there are
    /// as many as are wanted; nothing if the block was not fetched.
    fn bytes_of(&self, first: usize, wanted: usize) -> Option<Range<usize>> {
        let is_fetched = |block: usize| (self.fetched >> block) & 1 != 0;
        if !is_fetched(first) {
            return None;
        }
        let from = self.from[first] as usize;
        let mut end = from + usize::from(self.count[first]);
        for next in first + 1..BLOCKS {
            if end - from >= wanted || !is_fetched(next) || self.from[next] as usize != end {
                break;
            }
            end += usize::from(self.count[next]);
        }
        Some(from..end)
    }
}

/// Blocks of one page, one behind another.
#[derive(Clone, Copy)]
struct Run {
    page: u64,
    first: u32,
    count: u32,
}

impl Run {
    /// Those around a block that were not fetched, as it was not.
    fn around(page: u64, block: u32, fetched: u8) -> Self {
        let missing = !fetched;
        let until = (missing << (BLOCKS as u32 - 1 - block)).leading_ones();
        let from = (missing >> block).trailing_ones();
        Self { page, first: block + 1 - until, count: until + from - 1 }
    }

    /// Those of a page from the first that is missing of what is wanted to the last, around what was fetched. To copy
    /// what lies between them is as cheap as to look up another place.
    fn of_missing(page: u64, wanted: u8, fetched: u8) -> impl Iterator<Item = Self> {
        let missing = wanted & !fetched;
        let span = |missing: u8| (u8::MAX << missing.trailing_zeros()) & (u8::MAX >> missing.leading_zeros());
        let mut rest = if missing == 0 { 0 } else { span(missing) & !fetched };
        let runs = std::iter::from_fn(move || {
            let first = (rest != 0).then(|| rest.trailing_zeros())?;
            let count = (rest >> first).trailing_ones();
            let blocks = (u8::MAX >> (BLOCKS as u32 - count)) << first;
            rest &= !blocks;
            Some((blocks, Self { page, first, count }))
        });
        runs.filter(move |(blocks, _)| blocks & missing != 0).map(|(_, run)| run)
    }

    fn start(self) -> u64 {
        self.page + u64::from(self.first) * BLOCK
    }

    fn bytes(self) -> usize {
        self.count as usize * BLOCK_BYTES
    }
}

impl Pages {
    /// What was fetched from an address on, of the bytes that are wanted as many as lie in one piece. Nothing if the
    /// block was not fetched; no byte if it could not be read there.
    fn piece(&self, at: u64, wanted: usize) -> Option<&[u8]> {
        let kept = self.kept.get(&(at - at % PAGE))?;
        let within = usize::try_from(at % PAGE).ok()?;
        let (block, before) = (within / BLOCK_BYTES, within % BLOCK_BYTES);
        let Range { start, end } = kept.bytes_of(block, before + wanted)?;
        let from = start + before;
        self.bytes.get(from.min(end)..end.min(from + wanted))
    }

    /// Why nothing can be read at an address on a page that was fetched: nothing on it can, or nothing from there on.
    fn unreadable(&self, at: u64) -> ReadError {
        let page = at - at % PAGE;
        ReadError::Unreadable(if self.is_missing(page) { page } else { at })
    }

    /// Whether a page was fetched of which nothing could be read.
    fn is_missing(&self, page: u64) -> bool {
        self.kept.get(&page).is_some_and(|kept| kept.count.iter().all(|count| *count == 0))
    }

    /// The blocks of a page that were fetched, if any were.
    fn fetched(&self, page: u64) -> Option<u8> {
        self.kept.get(&page).map(|kept| kept.fetched)
    }

    /// Fetches blocks that are not there, each of which is given once.
    fn fetch<M: Memory>(&mut self, runs: &[Run], memory: &M) {
        let mut from = self.taken;
        self.taken += runs.iter().map(|run| run.bytes()).sum::<usize>();
        if self.bytes.len() < self.taken {
            self.bytes.resize(self.taken, 0);
        }
        let places = runs.iter().map(|run| (run.start(), run.bytes()));
        let counts = memory.read_each(&mut reads_of(places, &mut self.bytes[from..]));
        for (run, count) in runs.iter().zip(counts) {
            self.kept.entry(run.page).or_default().add(*run, from, count);
            from += run.bytes();
        }
    }

    /// Drops all.
    fn clear(&mut self) {
        self.kept.clear();
        self.taken = 0;
    }
}

/// How many pages it costs to read bytes from an address on past those that were fetched.
fn pages_of(address: Avma, bytes: usize) -> u64 {
    (address.0 % PAGE + bytes as u64).div_ceil(PAGE)
}

/// The pages that bytes from an address on are on, and which blocks of each, a bit each.
fn blocks_of((address, bytes): (Avma, usize)) -> impl Iterator<Item = (u64, u8)> {
    let last = address.0.saturating_add(bytes.saturating_sub(1) as u64);
    (address.0 / PAGE..=last / PAGE).map(move |page| {
        let page = page * PAGE;
        let first = address.0.saturating_sub(page) / BLOCK;
        let last = (last - page).min(PAGE - 1) / BLOCK;
        (page, (u8::MAX << first) & (u8::MAX >> (BLOCKS as u64 - 1 - last)))
    })
}

/// Where places of so many bytes each are read to: one behind another.
fn reads_of(places: impl Iterator<Item = (u64, usize)>, mut room: &mut [u8]) -> Vec<(Avma, &mut [u8])> {
    let read = |(start, bytes): (u64, usize)| {
        let (into, behind) = std::mem::take(&mut room).split_at_mut(bytes);
        room = behind;
        (Avma(start), into)
    };
    places.map(read).collect()
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

    /// Where each is read to, in room that is made if there is too little.
    fn reads<'r>(spans: &[Self], room: &'r mut Vec<u8>) -> Vec<(Avma, &'r mut [u8])> {
        let bytes: usize = spans.iter().map(|span| span.bytes).sum();
        if room.len() < bytes {
            room.resize(bytes, 0);
        }
        reads_of(spans.iter().map(|span| (span.start, span.bytes)), room)
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

    /// Does something with what is left beside the cost of looking at each of several places with [`now_each`](Self::now_each), or
    /// with half of it if that is more.
    pub(crate) fn with_now_each_ahead<T>(&self, addresses: &[Avma], bytes: usize, work: impl FnOnce() -> T) -> T {
        let pages = addresses.iter().fold(0_u64, |pages, address| pages.saturating_add(pages_of(*address, bytes)));
        let left = self.left.get();
        let ahead = Budget {
            pages: u32::try_from(pages).unwrap_or(u32::MAX).min(left.pages / 2),
            steps: (addresses.len() as u64).min(left.steps / 2),
        };
        self.left.set(Budget { pages: left.pages - ahead.pages, steps: left.steps - ahead.steps });
        let done = work();
        let left = self.left.get();
        self.left.set(Budget { pages: left.pages + ahead.pages, steps: left.steps + ahead.steps });
        done
    }

    /// Drops the pages, so that what is read from now on is as it is from now on.
    pub fn refresh(&self) {
        self.pages.borrow_mut().clear();
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
        self.spend(1)?;
        self.note(address, into.len());
        let mut done = 0;
        while done < into.len() {
            let at = address.0.checked_add(done as u64).ok_or(ReadError::Unreadable(address.0))?;
            done += self.copy(at, &mut into[done..])?;
        }
        Ok(())
    }

    /// Fills `into` from an address on as far as that lies in one piece here, which no page leaves; returns how many
    /// bytes that is, one at least. The steps are left to who takes them.
    ///
    /// # Errors
    /// The first byte is not readable, or the budget is used up.
    pub(crate) fn part(&self, address: Avma, into: &mut [u8]) -> Result<usize, ReadError> {
        let count = self.copy(address.0, into)?;
        self.note(address, count);
        Ok(count)
    }

    fn copy(&self, at: u64, into: &mut [u8]) -> Result<usize, ReadError> {
        loop {
            let pages = self.pages.borrow();
            let Some(piece) = pages.piece(at, into.len()) else {
                drop(pages);
                self.fetch(at)?;
                continue;
            };
            if piece.is_empty() {
                return Err(pages.unreadable(at));
            }
            into[..piece.len()].copy_from_slice(piece);
            return Ok(piece.len());
        }
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
    /// What could be read of each is shown to `look`, which is not to read in this way itself.
    pub fn now_each<T>(
        &self,
        addresses: &[Avma],
        bytes: usize,
        mut look: impl FnMut(Avma, Result<&[u8], ReadError>) -> T,
    ) -> Vec<T> {
        let affordable = addresses.iter().take_while(|address| self.charge(**address, bytes).is_ok()).count();
        let spans = Span::all(&addresses[..affordable], bytes);
        let mut room = self.room.borrow_mut();
        let mut reads = Span::reads(&spans, &mut room);
        let counts = self.memory.read_each(&mut reads);
        let mut found = Vec::with_capacity(addresses.len());
        for ((span, (_, read)), count) in spans.iter().zip(&reads).zip(counts) {
            let read = &read[..count.min(read.len())];
            for address in &addresses[found.len()..found.len() + span.places] {
                let mut alone = Vec::new();
                found.push(look(*address, self.place_in(span, read, (*address, bytes), &mut alone)));
            }
        }
        let dear = &addresses[found.len()..];
        found.extend(dear.iter().map(|address| look(*address, Err(ReadError::OverBudget))));
        found
    }

    /// What was read of a place together with others, or else of it alone. What cannot be read in front of it does not
    /// matter to it.
    fn place_in<'r>(
        &self,
        span: &Span,
        read: &'r [u8],
        (address, bytes): (Avma, usize),
        alone: &'r mut Vec<u8>,
    ) -> Result<&'r [u8], ReadError> {
        let from = span.offset(address).unwrap_or(0);
        let place: &'r [u8] = if from <= read.len() {
            &read[from..read.len().min(from.saturating_add(bytes))]
        } else {
            alone.resize(bytes, 0);
            let count = self.memory.read(address, alone).unwrap_or(0);
            &alone[..count.min(bytes)]
        };
        self.note(address, place.len());
        if place.is_empty() { Err(ReadError::Unreadable(address.0)) } else { Ok(place) }
    }

    /// Fetches the blocks of places that are read next, those that are not there, with as few calls as the memory needs
    /// for them. A page costs once, however many blocks of it are fetched so: as far as the budget goes, and no more
    /// than are kept. What is missing then is fetched when it is read.
    pub(crate) fn prefetch(&self, places: impl IntoIterator<Item = (Avma, usize)>) {
        let places = places.into_iter().filter(|(_, bytes)| *bytes > 0);
        let mut wanted: Vec<(u64, u8)> = Vec::new();
        // What is asked for in order is often on the same page.
        for (page, blocks) in places.flat_map(blocks_of) {
            match wanted.last_mut() {
                Some((last, all)) if *last == page => *all |= blocks,
                _ => wanted.push((page, blocks)),
            }
        }
        wanted.sort_unstable();
        wanted.dedup_by(|(page, blocks), (last, all)| {
            let is_same = page == last;
            *all |= if is_same { *blocks } else { 0 };
            is_same
        });
        let (mut pages, mut left) = (self.pages.borrow_mut(), self.left.get());
        let mut room = MAX_KEPT.saturating_sub(pages.kept.len());
        let mut runs = Vec::new();
        for (page, blocks) in wanted {
            // What cannot be read takes a call of its own each time.
            if pages.is_missing(page) {
                continue;
            }
            let fetched = pages.fetched(page);
            if fetched.is_none() {
                let (Some(rest), Some(behind)) = (left.pages.checked_sub(1), room.checked_sub(1)) else { break };
                (left.pages, room) = (rest, behind);
            }
            runs.extend(Run::of_missing(page, blocks, fetched.unwrap_or(0)));
        }
        self.left.set(left);
        if !runs.is_empty() {
            pages.fetch(&runs, &self.memory);
        }
    }

    /// Fills `into` from an address on with what has been fetched; nothing if some of it has not. What is looked at so is read
    /// afterwards, and costs its steps then.
    pub(crate) fn fetched(&self, address: Avma, into: &mut [u8]) -> Option<()> {
        let pages = self.pages.borrow();
        let mut done = 0;
        while done < into.len() {
            let piece = pages.piece(address.0.checked_add(done as u64)?, into.len() - done)?;
            if piece.is_empty() {
                return None;
            }
            into[done..done + piece.len()].copy_from_slice(piece);
            done += piece.len();
        }
        Some(())
    }

    /// Charges for bytes that are read past the pages.
    fn charge(&self, address: Avma, bytes: usize) -> Result<(), ReadError> {
        let mut left = self.left.get();
        left.steps = left.steps.checked_sub(1).ok_or(ReadError::OverBudget)?;
        let pages = u32::try_from(pages_of(address, bytes)).map_err(|_| ReadError::OverBudget)?;
        left.pages = left.pages.checked_sub(pages).ok_or(ReadError::OverBudget)?;
        self.left.set(left);
        Ok(())
    }

    /// Fetches the page of an address at which nothing was, what was not fetched of it around there.
    fn fetch(&self, at: u64) -> Result<(), ReadError> {
        let mut left = self.left.get();
        left.pages = left.pages.checked_sub(1).ok_or(ReadError::OverBudget)?;
        self.left.set(left);
        let mut pages = self.pages.borrow_mut();
        let (page, block) = (at - at % PAGE, u32::try_from(at % PAGE / BLOCK).unwrap_or(0));
        // More of a page that is kept is no page more.
        let fetched = pages.fetched(page).unwrap_or_else(|| {
            if pages.kept.len() >= MAX_KEPT {
                pages.clear();
            }
            0
        });
        pages.fetch(&[Run::around(page, block, fetched)], &self.memory);
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

    /// Memory that is there everywhere, and what was read of it.
    struct Noted(RefCell<Vec<(u64, usize)>>);

    impl Noted {
        fn byte(at: u64) -> u8 {
            (at ^ (at >> 8)) as u8
        }

        fn word(at: u64) -> u64 {
            u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| Self::byte(at + byte)))
        }

        fn take(&self) -> Vec<(u64, usize)> {
            self.0.take()
        }
    }

    impl Memory for Noted {
        fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
            self.0.borrow_mut().push((address.0, into.len()));
            for (at, byte) in (address.0..).zip(into.iter_mut()) {
                *byte = Self::byte(at);
            }
            Ok(into.len())
        }
    }

    /// As much of each place as could be read.
    fn now_each<M: Memory>(reader: &Reader<M>, addresses: &[u64], bytes: usize) -> Vec<Result<Vec<u8>, ReadError>> {
        let addresses: Vec<Avma> = addresses.iter().copied().map(Avma).collect();
        let mut shown = addresses.iter();
        reader.now_each(&addresses, bytes, |address, place| {
            assert_eq!(shown.next(), Some(&address), "in order");
            place.map(<[u8]>::to_vec)
        })
    }

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
        let addresses = [0x10000, 0x12002, 0x20000, 0x10004];
        let expected = [Ok(vec![0, 1, 2, 3]), Ok(vec![b'd', 0]), Err(ReadError::Unreadable(0x20000))];
        let mut found = now_each(&reader, &addresses, 4);
        assert_eq!(found.pop(), Some(Err(ReadError::OverBudget)));
        assert_eq!(found, expected);
        assert_eq!(reader.left(), Budget { pages: 0, steps: 97 });
    }

    #[test]
    fn places_close_together_are_read_as_one_and_what_is_missing_between_them_is_missing_of_no_other() {
        let asked = Asked(vec![Piece(0x10000, vec![1; 4096]), Piece(0x12000, vec![2; 4096])], Cell::new(0));
        let reader = Reader::new(&asked, ENOUGH);
        let found = now_each(&reader, &[0x10ff0, 0x10ffc, 0x11800, 0x11ffc, 0x12000], 8);
        let missing = |address| Err(ReadError::Unreadable(address));
        assert_eq!(found, [Ok(vec![1; 8]), Ok(vec![1; 4]), missing(0x11800), missing(0x11ffc), Ok(vec![2; 8])]);
        assert_eq!(asked.1.get(), 4, "together, and three by themselves");
        let found = now_each(&reader, &[0x12ff8, 0x12000, 0x12ff8], 8);
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
    fn of_pages_what_is_asked_for_is_prefetched_and_the_rest_when_it_is_read() {
        let memory = Noted(RefCell::default());
        let reader = Reader::new(&memory, ENOUGH);
        let prefetched = |places: &[(u64, usize)]| {
            reader.prefetch(places.iter().map(|(start, bytes)| (Avma(*start), *bytes)));
            memory.take()
        };
        assert_eq!(
            prefetched(&[(0x10ff8, 16), (0x10208, 8), (0x10a00, 1)]),
            [(0x10200, 7 * BLOCK_BYTES), (0x11000, BLOCK_BYTES)]
        );
        assert_eq!(prefetched(&[(0x10210, 8), (0x10fff, 1)]), []);
        assert_eq!(prefetched(&[(0x11400, 1), (0x10000, 1)]), [(0x10000, BLOCK_BYTES), (0x11400, BLOCK_BYTES)]);
        // Around what is there, and not between what is there alone.
        assert_eq!(prefetched(&[(0x12400, 1)]), [(0x12400, BLOCK_BYTES)]);
        assert_eq!(prefetched(&[(0x12a00, 1)]), [(0x12a00, BLOCK_BYTES)]);
        assert_eq!(prefetched(&[(0x12200, 1), (0x12c00, 1)]), [(0x12200, BLOCK_BYTES), (0x12c00, BLOCK_BYTES)]);
        assert_eq!((reader.left().pages, reader.u64(Avma(0x10ffc))), (13, Ok(Noted::word(0x10ffc))));
        assert_eq!((memory.take(), reader.u8(Avma(0x12001))), (Vec::new(), Ok(Noted::byte(0x12001))));
        assert_eq!((memory.take(), reader.left().pages), (vec![(0x12000, BLOCK_BYTES)], 12));
        assert_eq!(reader.u64(Avma(0x125fc)), Ok(Noted::word(0x125fc)));
        assert_eq!((memory.take(), reader.left().pages), (vec![(0x12600, 2 * BLOCK_BYTES)], 11));
        let (mut whole, mut part) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        assert_eq!(reader.bytes(Avma(0x12000), &mut whole), Ok(()));
        assert!((0x12000..).zip(&whole).all(|(at, byte)| *byte == Noted::byte(at)));
        assert_eq!((memory.take(), reader.left().pages), (vec![(0x12e00, BLOCK_BYTES)], 10));
        // What was fetched at once lies in one piece.
        assert_eq!((reader.part(Avma(0x13010), &mut part), memory.take()), (Ok(4080), vec![(0x13000, PAGE_BYTES)]));
        assert_eq!((reader.part(Avma(0x12008), &mut part), part[0]), (Ok(504), Noted::byte(0x12008)));
    }

    #[test]
    fn of_a_page_that_is_not_there_no_other_block_is_prefetched() {
        let asked = Asked(vec![piece()], Cell::new(0));
        let reader = Reader::new(&asked, ENOUGH);
        let prefetched = |at: u64| {
            reader.prefetch([(Avma(at), 1)]);
            asked.1.get()
        };
        assert_eq!([0x20000, 0x20a00, 0x20200].map(prefetched), [1, 1, 1]);
        assert_eq!([0x10000, 0x10a00, 0x10200].map(prefetched), [2, 3, 4]);
        assert_eq!((reader.u8(Avma(0x20a00)), asked.1.get()), (Err(ReadError::Unreadable(0x20000)), 5));
    }

    #[test]
    fn what_looks_will_cost_is_still_there_for_them() {
        let poor = reader(Budget { pages: 10, steps: 100 });
        // The second is on two pages.
        let places = [Avma(0x10000), Avma(0x10ff8)];
        let left = poor.with_now_each_ahead(&places, 16, || {
            assert_eq!(poor.spend(99), Err(ReadError::OverBudget));
            poor.spend(90).map(|()| poor.left())
        });
        assert_eq!(left, Ok(Budget { pages: 7, steps: 8 }));
        assert_eq!(poor.left(), Budget { pages: 10, steps: 10 });
        let left = poor.with_now_each_ahead(&[places[1]; 6], 16, || poor.left());
        assert_eq!(left, Budget { pages: 5, steps: 5 }, "half is for what is before them");
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
        // The rest of one of them drives no other out.
        assert_eq!((rich.u8(Avma(0x10201)), rich.pages.borrow().kept.len()), (Ok(1), MAX_KEPT));
    }

    #[test]
    fn what_is_not_there_or_costs_too_much_is_an_error() {
        assert_eq!(reader(ENOUGH).u8(Avma(0)), Err(ReadError::Unreadable(0)));
        assert_eq!(reader(ENOUGH).u64(Avma(u64::MAX)), Err(ReadError::Unreadable(u64::MAX - 4095)));
        assert_eq!(reader(Budget { pages: 0, steps: 9 }).u8(Avma(0x10000)), Err(ReadError::OverBudget));
        assert_eq!(reader(Budget { pages: 9, steps: 0 }).u8(Avma(0x10000)), Err(ReadError::OverBudget));
    }
}
