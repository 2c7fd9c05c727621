//! glibc's full buffering, modelled: whatever is written, a look at any moment sees exactly the whole records that are
//! not in the file.

use std::io;

use proptest::prelude::*;

use crate::peek::chain::{self, Expect, Implausible};
use crate::peek::search::{Progress, Search};
use crate::peek::snapshot::{self, DumpEnd, Refusal, Snapshot};
use crate::peek::stdio::{FILE_BYTES, Memory, StdioFile};
use crate::process::procfs::parse_maps;
use jitprof_common::units::Avma;
use jitprof_jitdump::writer::{DumpWriter, LoadFields};

const BLOCK: usize = 4096;
const HEAP: u64 = 0x5555_0000_0000;
const FD: u32 = 3;
const PID: u32 = 77;
const EXPECT: Expect = Expect { own_pid: PID, times: Some((1_000_000_000, 9_000_000_000)) };

/// A heap with a FILE and its buffer in it.
#[derive(Clone)]
struct Image {
    bytes: Vec<u8>,
    file_at: usize,
    buffer_at: usize,
    has_buffer: bool,
    pending: usize,
    file: Vec<u8>,
    /// The file's last block was written without the buffer.
    is_bypassed: bool,
}

impl Memory for Image {
    fn read(&self, addr: Avma, into: &mut [u8]) -> io::Result<usize> {
        let at = addr.0.checked_sub(HEAP).and_then(|at| usize::try_from(at).ok());
        let rest = at.and_then(|at| self.bytes.get(at..)).filter(|rest| !rest.is_empty());
        let rest = rest.ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}

impl Image {
    fn new(file_at: usize, buffer_at: usize) -> Self {
        // Not zero, so that a look behind the end of what was written shows.
        let bytes = (0..buffer_at + 2 * BLOCK).map(|at| (at * 7 % 251) as u8).collect();
        let mut image =
            Self { bytes, file_at, buffer_at, has_buffer: false, pending: 0, file: Vec::new(), is_bypassed: false };
        image.publish();
        image
    }

    /// `_IO_new_file_xsputn` of glibc 2.36, for a fully buffered stream.
    fn fwrite(&mut self, data: &[u8]) {
        let space = if self.has_buffer { BLOCK - self.pending } else { 0 };
        let (first, rest) = data.split_at(space.min(data.len()));
        self.fill(first);
        if !rest.is_empty() {
            self.flush();
            self.has_buffer = true;
            let (whole, rest) = rest.split_at(rest.len() - rest.len() % BLOCK);
            self.file.extend_from_slice(whole);
            self.is_bypassed = !whole.is_empty();
            self.fill(rest);
        }
        self.publish();
    }

    fn fill(&mut self, data: &[u8]) {
        let at = self.buffer_at + self.pending;
        self.bytes[at..at + data.len()].copy_from_slice(data);
        self.pending += data.len();
    }

    fn flush(&mut self) {
        self.file.extend_from_slice(&self.bytes[self.buffer_at..self.buffer_at + self.pending]);
        self.pending = 0;
    }

    fn publish(&mut self) {
        let base = if self.has_buffer { HEAP + self.buffer_at as u64 } else { 0 };
        let end = if self.has_buffer { base + BLOCK as u64 } else { 0 };
        let ptr = base + self.pending as u64;
        let mut file = [0; FILE_BYTES];
        file[..4].copy_from_slice(&0xfbad_2c84_u32.to_le_bytes());
        for (at, value) in [(8, base), (16, base), (24, base), (32, base), (40, ptr), (48, end), (56, base), (64, end)]
        {
            file[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        file[112..].copy_from_slice(&FD.to_le_bytes());
        self.bytes[self.file_at..self.file_at + FILE_BYTES].copy_from_slice(&file);
    }

    /// Where a search finds FILEs of the dump's descriptor.
    fn search(&self) -> Vec<Avma> {
        let line = format!("{:x}-{:x} rw-p 00000000 00:00 0 [heap]\n", HEAP, HEAP + self.bytes.len() as u64);
        let mut search = Search::new(&parse_maps(line.as_bytes()).mappings, vec![FD]);
        assert_eq!(search.advance(self), Progress::Done, "the image is smaller than a slice");
        search.take_candidates()
    }

    /// Judges this FILE's buffer as the continuation of `file`.
    fn judge(&self, file: &[u8], end: &DumpEnd) -> Result<Snapshot, Refusal> {
        let (seen, buffer) = snapshot::consistent(self, Avma(HEAP + self.file_at as u64), end.file_len)?;
        let blocks: Vec<Vec<u8>> = chain::flush_ends(end, seen.stdio.capacity)
            .into_iter()
            .map(|end| file[end as usize - BLOCK..end as usize].to_vec())
            .collect();
        snapshot::judge(seen, buffer, &blocks, end, &EXPECT)
    }
}

/// What was written, and where its records end.
#[derive(Clone, Default)]
struct Written {
    stream: Vec<u8>,
    /// Ends of the header and of every record.
    ends: Vec<usize>,
}

impl Written {
    /// What a reader of the first `len` bytes knows.
    fn end(&self, len: usize) -> DumpEnd {
        let last = self.whole(len);
        DumpEnd {
            file_len: len as u64,
            torn: self.stream[last..len].to_vec(),
            owed: 0,
            at_start: last == 0,
            monotonic: true,
            lines: false,
        }
    }

    /// The end of the last whole record in the first `len` bytes.
    fn whole(&self, len: usize) -> usize {
        self.ends.iter().copied().take_while(|end| *end <= len).last().unwrap_or(0)
    }
}

/// One record in the pieces in which producers write it.
#[derive(Clone, Debug)]
struct Piece {
    name: usize,
    code: usize,
    unwinding: usize,
    seed: u8,
}

fn piece() -> impl Strategy<Value = Piece> {
    let code = prop_oneof![6 => 0..200_usize, 2 => 200..5000_usize, 1 => 5000..20_000_usize];
    (0..120_usize, code, prop_oneof![Just(0), 20..200_usize], any::<u8>())
        .prop_map(|(name, code, unwinding, seed)| Piece { name, code, unwinding, seed })
}

impl Piece {
    fn fwrites(&self, time: u64) -> Vec<Vec<u8>> {
        // Two pieces have the same bytes nowhere.
        let mut state = u32::from(self.seed) << 16 | 0x9e37;
        let mut filler = |len: usize| -> Vec<u8> {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8 | 1
            };
            (0..len).map(|_| next()).collect()
        };
        let (name, code) = (filler(self.name), filler(self.code));
        let mut dump = DumpWriter::new(PID);
        let header = dump.len();
        dump.load(time, &LoadFields { code_addr: 0x7000, name: &name, code: &code, ..LoadFields::default() });
        let bytes = dump.into_bytes();
        let record = &bytes[header..];
        let (head, rest) = record.split_at(56);
        let (name, code) = rest.split_at(self.name + 1);
        let mut fwrites = Vec::new();
        if self.unwinding > 0 {
            let mut dump = DumpWriter::new(PID);
            dump.record(4, time, &filler(24 + self.unwinding));
            fwrites.push(dump.into_bytes()[header..].to_vec());
        }
        fwrites.extend([head, name, code].into_iter().filter(|part| !part.is_empty()).map(<[u8]>::to_vec));
        fwrites
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_look_at_any_moment_sees_exactly_the_whole_records_that_are_not_in_the_file(
        pieces in prop::collection::vec(piece(), 1..40),
        file_at in 0..500_usize,
    ) {
        let mut image = Image::new(file_at * 8, 5000);
        let mut written = Written::default();
        let header = DumpWriter::new(PID).into_bytes();
        let mut write = |image: &mut Image, bytes: &[u8], whole: bool| {
            image.fwrite(bytes);
            written.stream.extend_from_slice(bytes);
            if whole {
                written.ends.push(written.stream.len());
            }
            match image.judge(&image.file, &written.end(image.file.len())) {
                Ok(snapshot) => {
                    let len = image.file.len();
                    let known = written.whole(written.stream.len()).max(len);
                    assert_eq!(snapshot.whole(), &written.stream[len..known]);
                }
                // The block of a bypass that ends with a record, or within a piece other than the code, is not known.
                Err(refusal) => assert!(refusal == Refusal::OldBytes && image.is_bypassed, "{refusal:?}"),
            }
        };
        write(&mut image, &header, true);
        for (index, piece) in pieces.iter().enumerate() {
            let fwrites = piece.fwrites(2_000_000_000 + index as u64);
            let unwinding = usize::from(piece.unwinding > 0);
            for (part, bytes) in fwrites.iter().enumerate() {
                write(&mut image, bytes, part + 1 == fwrites.len() || part + 1 == unwinding);
            }
        }
        prop_assert_eq!(image.search(), [Avma(HEAP + image.file_at as u64)]);
    }

    #[test]
    fn a_buffer_that_did_not_write_the_last_block_is_refused(
        before in prop::collection::vec(piece(), 1..20),
        after in prop::collection::vec(piece(), 80..100),
        held in 0..20_usize,
    ) {
        let mut image = Image::new(64, 5000);
        let mut written = Written::default();
        let put = |image: &mut Image, written: &mut Written, piece: &Piece, time: u64| {
            for bytes in piece.fwrites(time) {
                image.fwrite(&bytes);
                written.stream.extend_from_slice(&bytes);
            }
            written.ends.push(written.stream.len());
        };
        let header = DumpWriter::new(PID).into_bytes();
        image.fwrite(&header);
        written.stream.extend_from_slice(&header);
        written.ends.push(header.len());
        for piece in &before {
            put(&mut image, &mut written, piece, 2_000_000_000);
        }
        let flushed_before = image.file.len();
        let mut child = image.clone();
        for piece in &after {
            put(&mut image, &mut written, piece, 3_000_000_000);
        }
        prop_assume!(image.file.len() > flushed_before + BLOCK);
        // The child wrote something of its own after the fork, but no whole block.
        let own = vec![0x5a; (BLOCK - child.pending.max(1)).min(held)];
        child.fwrite(&own);
        // What little is left in a buffer that is nearly full is the same by chance.
        prop_assume!(child.pending <= BLOCK - 16);
        let judged = child.judge(&image.file, &written.end(image.file.len()));
        prop_assert!(judged.is_err(), "{:?}", judged.map(|snapshot| snapshot.whole().to_vec()));
    }

    #[test]
    fn random_memory_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400), torn in prop::collection::vec(any::<u8>(), 0..80), owed in 0..50_u64) {
        let end = DumpEnd { file_len: 4096, torn, owed, at_start: false, monotonic: true, lines: false };
        let chain = chain::walk(&end, &bytes, &EXPECT);
        prop_assert!(chain.is_err() || chain.is_ok_and(|chain| chain.complete <= bytes.len()));
        prop_assert!(StdioFile::parse(&bytes).is_none_or(|file| file.pending <= file.capacity));
    }
}

#[test]
fn lines_of_a_map_are_taken_up_to_the_last_whole_one() {
    let end =
        DumpEnd { file_len: 4096, torn: b"7f00 1".to_vec(), owed: 0, at_start: false, monotonic: false, lines: true };
    let chain = chain::lines(&end, b"0 Burn:Main ()\n7f10 20 Burn:LeafHot (int)\n7f30 8 Bur").unwrap();
    assert_eq!((chain.complete, chain.records), (42, 2));
    assert_eq!(chain::lines(&end, b"no line yet").unwrap().complete, 0);
    assert!(chain::lines(&end, b"0 Burn:Main ()\nother text altogether\n").is_err());
}

#[test]
fn records_of_another_process_or_another_time_are_refused() {
    let end = DumpEnd { file_len: 0, torn: Vec::new(), owed: 0, at_start: true, monotonic: true, lines: false };
    let dump = |pid: u32, time: u64| {
        let mut dump = DumpWriter::new(PID);
        dump.set_pid(pid).load(time, &LoadFields { code: &[1], ..LoadFields::default() });
        dump.into_bytes()
    };
    let walk = |bytes: &[u8]| chain::walk(&end, bytes, &EXPECT).map(|chain| chain.records);
    assert_eq!(walk(&dump(PID, 2_000_000_000)), Ok(1));
    assert_eq!(walk(&dump(PID, 0)), Ok(1));
    assert_eq!(walk(&dump(PID + 1, 2_000_000_000)), Err(Implausible::Pid));
    assert_eq!(walk(&dump(PID, 90_000_000_000)), Err(Implausible::Time));
    assert_eq!(walk(&[0; 64]), Err(Implausible::Header));
}

#[test]
fn bytes_that_come_after_the_pointer_that_covers_them_are_not_used() {
    /// The buffer as it was for so many reads, then as it is.
    struct Late(Image, Image, std::cell::Cell<u32>);
    impl Memory for Late {
        fn read(&self, addr: Avma, into: &mut [u8]) -> io::Result<usize> {
            let is_buffer = addr.0 == HEAP + self.1.buffer_at as u64;
            let left = self.2.get();
            self.2.set(left.saturating_sub(u32::from(is_buffer)));
            if is_buffer && left > 0 { self.0.read(addr, into) } else { self.1.read(addr, into) }
        }
    }
    let mut before = Image::new(0, 5000);
    before.fwrite(&[1; 100]);
    let mut after = before.clone();
    after.fwrite(&[2; 100]);
    let look = |late| {
        let memory = Late(before.clone(), after.clone(), std::cell::Cell::new(late));
        snapshot::consistent(&memory, Avma(HEAP), 0).map(|(seen, buffer)| (seen.stdio.pending, buffer[150]))
    };
    assert_eq!(look(0), Ok((200, 2)));
    assert_eq!(look(1), Err(Refusal::Overtaken));
}

#[test]
fn a_search_reads_no_more_than_its_budget_and_only_private_writable_memory() {
    struct Zeros;
    impl Memory for Zeros {
        fn read(&self, _: Avma, into: &mut [u8]) -> io::Result<usize> {
            into.fill(0);
            Ok(into.len())
        }
    }
    let maps = parse_maps(
        b"100000000-140000000 rw-p 00000000 00:00 0\n\
          1000000000-1000100000 rw-p 00000000 00:00 0 [heap]\n\
          2000000000-2000100000 rw-s 00000000 00:00 0\n\
          3000000000-3000100000 r--p 00000000 00:00 0\n\
          4000000000-4000100000 rw-p 00000000 08:01 7 /lib/x.so\n",
    );
    assert_eq!(maps.bad_lines, 0);
    let mut search = Search::new(&maps.mappings, vec![FD]);
    let mut scanned = 0;
    let mut calls = 0;
    while search.advance(&Zeros) == Progress::More {
        let read = search.take_scanned();
        assert!(read <= 9 << 20, "{read} bytes in one call");
        scanned += read;
        calls += 1;
    }
    scanned += search.take_scanned();
    assert!((255 << 20..=257 << 20).contains(&scanned), "{scanned} bytes");
    assert!(calls >= 31, "{calls} calls");
}
