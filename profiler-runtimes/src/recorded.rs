//! Memory that was read of a process, kept for tests: pages and symbols, compressed.
//!
//! A file is zstd of: the number of symbols, each as length, name and address; the number of pages, each as address,
//! length and bytes. All numbers have eight bytes, the least significant first.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

use jitprof_common::units::Avma;

use crate::{Memory, Symbols};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Bytes that a recording may unpack to.
const MAX_BYTES: u64 = 256 << 20;

/// Memory and symbols as they were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    pages: BTreeMap<u64, Vec<u8>>,
    symbols: BTreeMap<String, u64>,
}

/// Memory, and how many bytes were asked for.
#[derive(Debug)]
pub struct Counting<'a>(&'a Recorded, std::cell::Cell<u64>);

impl<'a> Counting<'a> {
    /// Of which nothing was read yet.
    pub fn new(memory: &'a Recorded) -> Self {
        Self(memory, std::cell::Cell::default())
    }

    /// Bytes that were asked for.
    pub fn bytes(&self) -> u64 {
        self.1.get()
    }
}

impl Memory for Counting<'_> {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        self.1.set(self.1.get() + into.len() as u64);
        self.0.read(address, into)
    }
}

impl Recorded {
    /// Reads a file.
    ///
    /// # Errors
    /// It is damaged, or too large.
    pub fn read(file: impl Read) -> io::Result<Self> {
        let mut plain = Vec::new();
        zstd::Decoder::new(file)?.take(MAX_BYTES).read_to_end(&mut plain)?;
        let mut rest = plain.as_slice();
        let mut recorded = Self::default();
        for _ in 0..number(&mut rest)? {
            let name = String::from_utf8_lossy(bytes(&mut rest)?).into_owned();
            recorded.symbols.insert(name, number(&mut rest)?);
        }
        for _ in 0..number(&mut rest)? {
            let address = number(&mut rest)?;
            recorded.pages.insert(address, bytes(&mut rest)?.to_vec());
        }
        Ok(recorded)
    }

    /// What a file holds.
    ///
    /// # Errors
    /// It could not be compressed.
    pub fn to_file(&self) -> io::Result<Vec<u8>> {
        let mut plain = (self.symbols.len() as u64).to_le_bytes().to_vec();
        for (name, address) in &self.symbols {
            plain.extend((name.len() as u64).to_le_bytes());
            plain.extend(name.as_bytes());
            plain.extend(address.to_le_bytes());
        }
        plain.extend((self.pages.len() as u64).to_le_bytes());
        for (address, page) in &self.pages {
            plain.extend(address.to_le_bytes());
            plain.extend((page.len() as u64).to_le_bytes());
            plain.extend(page);
        }
        zstd::encode_all(plain.as_slice(), 19)
    }

    /// Puts bytes in the place of others, as a hostile process might.
    pub fn overwrite(&mut self, address: Avma, with: &[u8]) {
        for (at, byte) in (address.0..).zip(with) {
            let (start, within) = (at - at % PAGE as u64, (at % PAGE as u64) as usize);
            if let Some(byte_there) = self.pages.get_mut(&start).and_then(|page| page.get_mut(within)) {
                *byte_there = *byte;
            }
        }
    }

    /// Drops all but these words, each given by the address of its first byte: they read as 0, which packs well.
    pub fn keep_words(&mut self, words: &BTreeSet<u64>) {
        for (start, page) in &mut self.pages {
            for (at, byte) in (*start..).zip(page) {
                if !words.contains(&(at - at % 8)) {
                    *byte = 0;
                }
            }
        }
        self.pages.retain(|start, page| words.range(*start..start.saturating_add(page.len() as u64)).next().is_some());
    }

    /// Where pages begin.
    pub fn page_addresses(&self) -> impl Iterator<Item = Avma> + '_ {
        self.pages.keys().map(|start| Avma(*start))
    }
}

impl Memory for Recorded {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            let at = address.0.wrapping_add(done as u64);
            let within = (at % PAGE as u64) as usize;
            let page = self.pages.get(&(at - at % PAGE as u64)).and_then(|page| page.get(within..));
            let Some(page) = page.filter(|page| !page.is_empty()) else { break };
            let count = page.len().min(into.len() - done);
            into[done..done + count].copy_from_slice(&page[..count]);
            done += count;
        }
        if done == 0 && !into.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(done) }
    }
}

impl Symbols for Recorded {
    fn address_of(&self, name: &str) -> Option<Avma> {
        self.symbols.get(name).copied().map(Avma)
    }
}

/// Keeps what is read through it: whole pages, and the symbols that were found.
#[derive(Debug)]
pub struct Recorder<T> {
    target: T,
    kept: RefCell<Recorded>,
}

impl<T> Recorder<T> {
    /// Nothing is kept yet.
    pub fn new(target: T) -> Self {
        Self { target, kept: RefCell::default() }
    }

    /// What was read.
    pub fn into_recorded(self) -> Recorded {
        self.kept.into_inner()
    }
}

impl<T: Memory> Memory for Recorder<T> {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        let first = address.0 - address.0 % PAGE as u64;
        for start in (first..address.0.saturating_add(into.len() as u64)).step_by(PAGE) {
            if !self.kept.borrow().pages.contains_key(&start) {
                let mut page = vec![0; PAGE];
                if let Ok(count) = self.target.read(Avma(start), &mut page) {
                    page.truncate(count);
                    self.kept.borrow_mut().pages.insert(start, page);
                }
            }
        }
        self.kept.borrow().read(address, into)
    }
}

impl<T: Symbols> Symbols for Recorder<T> {
    fn address_of(&self, name: &str) -> Option<Avma> {
        let address = self.target.address_of(name)?;
        self.kept.borrow_mut().symbols.insert(name.to_owned(), address.0);
        Some(address)
    }
}

fn bytes<'b>(rest: &mut &'b [u8]) -> io::Result<&'b [u8]> {
    let length = usize::try_from(number(rest)?).map_err(|_| io::ErrorKind::InvalidData)?;
    let (bytes, behind) = rest.split_at_checked(length).ok_or(io::ErrorKind::UnexpectedEof)?;
    *rest = behind;
    Ok(bytes)
}

fn number(rest: &mut &[u8]) -> io::Result<u64> {
    let (number, behind) = rest.split_first_chunk::<8>().ok_or(io::ErrorKind::UnexpectedEof)?;
    *rest = behind;
    Ok(u64::from_le_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, Reader};

    #[test]
    fn what_was_read_is_there_again_and_nothing_else() {
        let mut whole = Recorded::default();
        whole.pages.insert(0x1000, (0..=255).cycle().take(PAGE).collect());
        whole.pages.insert(0x2000, vec![7; 100]);
        whole.pages.insert(0x5000, vec![1; PAGE]);
        whole.symbols.insert("used".to_owned(), 0x1008);
        whole.symbols.insert("other".to_owned(), 1);
        let recorder = Recorder::new(&whole);
        let reader = Reader::new(&recorder, Budget { pages: 9, steps: 9 });
        assert_eq!(recorder.address_of("used"), Some(Avma(0x1008)));
        assert_eq!(reader.u64(Avma(0x1ffc)), Ok(0x0707_0707_fffe_fdfc));
        assert!(reader.u64(Avma(0x2060)).is_err());
        drop(reader);
        let recorded = recorder.into_recorded();
        let again = Recorded::read(recorded.to_file().unwrap().as_slice()).unwrap();
        assert_eq!(again, recorded);
        assert_eq!(again.page_addresses().collect::<Vec<_>>(), [Avma(0x1000), Avma(0x2000)]);
        assert_eq!((again.address_of("used"), again.address_of("other")), (Some(Avma(0x1008)), None));
    }

    #[test]
    fn only_the_words_that_were_taken_are_kept() {
        let mut recorded = Recorded::default();
        recorded.pages.insert(0x1000, vec![7; PAGE]);
        recorded.pages.insert(0x2000, vec![7; PAGE]);
        let reader = Reader::new(&recorded, Budget { pages: 9, steps: 9 });
        reader.note_words();
        assert_eq!(reader.u16(Avma(0x1ffc)), Ok(0x0707));
        assert_eq!(reader.u8(Avma(0x1100)), Ok(7));
        let words = reader.used_words();
        drop(reader);
        recorded.keep_words(&words);
        assert_eq!(recorded.page_addresses().collect::<Vec<_>>(), [Avma(0x1000)]);
        let kept = &recorded.pages[&0x1000];
        assert!(kept[0xff8..].iter().chain(&kept[0x100..0x108]).all(|byte| *byte == 7));
        assert_eq!(kept.iter().filter(|byte| **byte == 7).count(), 16);
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let mut recorded = Recorded::default();
        recorded.pages.insert(0x1000, vec![1; PAGE]);
        let file = recorded.to_file().unwrap();
        assert!(Recorded::read(&file[..file.len() - 1]).is_err());
        let long = [1_u64.to_le_bytes(), u64::MAX.to_le_bytes()].concat();
        assert!(Recorded::read(zstd::encode_all(long.as_slice(), 1).unwrap().as_slice()).is_err());
    }
}
