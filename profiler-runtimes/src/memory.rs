//! A target's memory, as readers see it: page by page, within a budget.

use std::cell::{Cell, RefCell};
use std::io;

use jitprof_common::units::Avma;
use rustc_hash::FxHashMap;

/// Bytes of a page, the unit in which memory is read.
const PAGE: u64 = 4096;
/// Pages that are kept at a time: 64 MiB.
const MAX_KEPT: usize = 1 << 14;

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

/// Reads values, each page once for as long as the reader lives.
pub struct Reader<M> {
    memory: M,
    pages: RefCell<FxHashMap<u64, Option<Box<[u8]>>>>,
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
            used.extend((address.0 / 8..=address.0.saturating_add(count as u64) / 8).map(|word| word * 8));
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
        let mut places = vec![vec![0; bytes]; affordable];
        let mut reads: Vec<(Avma, &mut [u8])> =
            addresses.iter().copied().zip(places.iter_mut().map(Vec::as_mut_slice)).collect();
        let counts = self.memory.read_each(&mut reads);
        let found = addresses.iter().zip(places).zip(counts).map(|((address, mut place), count)| {
            place.truncate(count);
            self.note(*address, count);
            if place.is_empty() { Err(ReadError::Unreadable(address.0)) } else { Ok(place) }
        });
        let mut found: Vec<_> = found.collect();
        found.resize(addresses.len(), Err(ReadError::OverBudget));
        found
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
    fn page(&self, start: u64) -> Result<std::cell::Ref<'_, [u8]>, ReadError> {
        if !self.pages.borrow().contains_key(&start) {
            let mut left = self.left.get();
            left.pages = left.pages.checked_sub(1).ok_or(ReadError::OverBudget)?;
            self.left.set(left);
            let mut page = vec![0; usize::try_from(PAGE).unwrap_or(0)];
            let count = self.memory.read(Avma(start), &mut page).unwrap_or(0);
            page.truncate(count);
            if self.pages.borrow().len() >= MAX_KEPT {
                self.refresh();
            }
            self.pages.borrow_mut().insert(start, (count > 0).then(|| page.into_boxed_slice()));
        }
        std::cell::Ref::filter_map(self.pages.borrow(), |pages| pages.get(&start)?.as_deref())
            .map_err(|_| ReadError::Unreadable(start))
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

    fn reader(budget: Budget) -> Reader<Piece> {
        let mut bytes: Vec<u8> = (0..=255).cycle().take(8192).collect();
        bytes.extend(b"end\0");
        Reader::new(Piece(0x10000, bytes), budget)
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
    fn what_is_not_there_or_costs_too_much_is_an_error() {
        assert_eq!(reader(ENOUGH).u8(Avma(0)), Err(ReadError::Unreadable(0)));
        assert_eq!(reader(ENOUGH).u64(Avma(u64::MAX)), Err(ReadError::Unreadable(u64::MAX - 4095)));
        assert_eq!(reader(Budget { pages: 0, steps: 9 }).u8(Avma(0x10000)), Err(ReadError::OverBudget));
        assert_eq!(reader(Budget { pages: 9, steps: 0 }).u8(Avma(0x10000)), Err(ReadError::OverBudget));
    }
}
