//! What the C library keeps of a thread, in its descriptor: the `struct pthread` of glibc and of musl, on 64-bit machines.
//!
//! ```text
//! glibc               x86-64  AArch64
//!   header.tcb             0          the descriptor's own address
//!   header.dtv             8          → dtv_t, 16 bytes, of each module with variables of the thread's own: 0 their block
//!   header.self           16          the descriptor's own address
//!   tid                  720      208 the kernel's number of the thread
//!   specific_1stblock                 pthread_key_data, 16 bytes, of each of the first 32 keys: 0 seq, 8 data
//!   specific                          → the same of 32 keys each, of which the first is specific_1stblock
//! musl                x86-64
//!   self                   0          the descriptor's own address
//!   tid                   48          the kernel's number of the thread
//! ```
//!
//! As in glibc's `nptl/descr.h` and `sysdeps/x86_64/nptl/tls.h`, and in musl's `src/internal/pthread_impl.h` from 1.2.2 on
//! (before, the number was at 56). On x86-64 the thread pointer and `pthread_t` are the descriptor's address; on AArch64 the
//! thread pointer is not. Where `specific` is depends on glibc's version (2.36: 1296), and glibc says it for `libthread_db`
//! (`nptl_db/structs.def`): a symbol of `libc.so.6`, up to 2.33 of `libpthread.so.0`, leads to three numbers of 32 bits, the
//! size in bits, how many, and the offset. musl says nothing of the kind.

use jitprof_common::listed::Step;
use jitprof_common::units::Avma;

use crate::{Memory, ReadError, Reader};

/// Bytes of a descriptor within which all [`numbers`] are.
pub const DESCRIPTOR_BYTES: usize = GLIBC_TID + size_of::<u32>();
/// `header.tcb`, on x86-64. It is where musl has `self`, too.
const TCB: usize = 0;
/// `header.self`, on x86-64.
const GLIBC_SELF: usize = 16;
/// `tid`, on x86-64.
const GLIBC_TID: usize = 720;
/// `tid`, on AArch64: there is no header before it but 24 words of padding.
const GLIBC_AARCH64_TID: usize = 208;
/// `tid`, on x86-64.
const MUSL_TID: usize = 48;
/// `header.dtv`.
const BLOCKS: Step = Step::add_thread_pointer(8);
/// Bytes of a `dtv_t`, which begins with the address of the block.
const DTV_BYTES: u64 = 16;
/// Bytes of a `pthread_key_data`, and where in it the value is.
const KEY_BYTES: u64 = 16;
/// See [`KEY_BYTES`].
const KEY_VALUE: u64 = 8;
/// In what `libthread_db` is told of a field: its offset.
const OFFSET: u64 = 8;

/// A key of thread-specific data (`pthread_key_t`), one of those whose values are in the descriptor itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u8);

impl Key {
    /// How many there are: `PTHREAD_KEY_2NDLEVEL_SIZE`.
    pub(crate) const COUNT: u8 = 32;

    /// None if the values of this one are elsewhere.
    pub fn new(number: u32) -> Option<Self> {
        u8::try_from(number).ok().filter(|number| *number < Self::COUNT).map(Self)
    }

    /// All that there are.
    pub(crate) fn all() -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator {
        (0..Self::COUNT).map(Self)
    }

    /// From the first key's `pthread_key_data` to this one's value.
    fn to_value(self) -> Step {
        Step::load(KEY_BYTES * u64::from(self.0) + KEY_VALUE)
    }
}

/// The values of all of them, in their order.
pub(crate) type Values = [u64; Key::COUNT as usize];

/// Where a process' threads have the values of their keys, where the C library is glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Of `specific`, in the descriptor.
    offset: u32,
}

impl Keys {
    /// The symbol that leads to what glibc says of `specific`; another C library has none.
    pub const SYMBOL: &str = "_thread_db_pthread_specific";

    /// Those of a glibc that has `specific` so many bytes behind the begin of the descriptor.
    pub const fn at(offset: u32) -> Self {
        Self { offset }
    }

    /// Reads what the symbol leads to.
    ///
    /// # Errors
    /// It could not be read.
    pub fn read<M: Memory>(symbol: Avma, reader: &Reader<M>) -> Result<Self, ReadError> {
        reader.u32(Avma(symbol.0.saturating_add(OFFSET))).map(Self::at)
    }

    /// From the thread pointer to the value of a key.
    pub fn way_to(self, key: Key) -> [Step; 3] {
        [Step::add_thread_pointer(self.offset.into()), Step::load(0), key.to_value()]
    }

    /// The values that the thread with this descriptor has.
    pub(crate) fn values<M: Memory>(self, descriptor: u64, reader: &Reader<M>) -> Result<Values, ReadError> {
        let first = reader.pointer(Avma(descriptor.wrapping_add(self.offset.into())))?;
        let mut data = [[[0_u8; 8]; 2]; Key::COUNT as usize];
        reader.bytes(first, data.as_flattened_mut().as_flattened_mut())?;
        Ok(data.map(|[_sequence, value]| u64::from_le_bytes(value)))
    }
}

/// From the thread pointer to glibc's block with the thread's own variables of a module, by the loader's number of that.
pub(crate) fn way_to_block(module: u64) -> [Step; 3] {
    [BLOCKS, Step::load(0), Step::load(module.wrapping_mul(DTV_BYTES))]
}

/// Whether a way leads to or through such a block, which other C libraries have elsewhere.
pub(crate) fn is_through_block(way: &[Step]) -> bool {
    way.first() == Some(&BLOCKS)
}

/// The kernel's number of the thread with this descriptor, which is glibc's, on x86-64.
pub(crate) fn glibc_number<M: Memory>(descriptor: u64, reader: &Reader<M>) -> Result<u32, ReadError> {
    reader.u32(Avma(descriptor.wrapping_add(GLIBC_TID as u64)))
}

/// The kernel's number of a thread, for each C library whose descriptor this may be: its address, and what could be read of
/// it. Anything may be there; who knows the process' threads can tell.
pub fn numbers(address: u64, descriptor: &[u8]) -> impl Iterator<Item = u32> {
    let has_own_address = |at| bytes_at(descriptor, at).map(u64::from_ne_bytes) == Some(address);
    let (is_own, is_glibc) = (has_own_address(TCB), has_own_address(GLIBC_SELF));
    let layouts = [
        (GLIBC_TID, is_own && is_glibc),
        (MUSL_TID, is_own && !is_glibc),
        (GLIBC_AARCH64_TID, cfg!(target_arch = "aarch64")),
    ];
    let plausible = layouts.into_iter().filter(|(_, plausible)| *plausible);
    plausible.filter_map(move |(at, _)| bytes_at(descriptor, at).map(u32::from_ne_bytes))
}

fn bytes_at<const N: usize>(descriptor: &[u8], at: usize) -> Option<[u8; N]> {
    descriptor.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::Budget;
    use crate::listed::follow;

    /// Where glibc 2.36 says of `specific` where it is, and the descriptor of a thread.
    const SAID: u64 = 0x1000;
    const DESCRIPTOR: u64 = SAID + 0x100;
    const FIRST_BLOCK: u64 = DESCRIPTOR + 0x310;
    const SPECIFIC: u64 = DESCRIPTOR + 0x510;

    struct Process(Vec<u8>);

    impl Process {
        /// A thread that has a value by its fourth key, which is used for the third time.
        fn of_glibc(value: u64) -> Self {
            let mut process = Self(vec![0; 0x1000]);
            process.put(SAID, &[0x800_u32, 1, 0x510].map(u32::to_le_bytes).concat());
            process.put(SPECIFIC, &FIRST_BLOCK.to_le_bytes());
            process.put(FIRST_BLOCK + 4 * 16, &[3, value].map(u64::to_le_bytes).concat());
            process.put(DESCRIPTOR + 0x2d0, &4711_u32.to_le_bytes());
            process
        }

        fn put(&mut self, address: u64, bytes: &[u8]) {
            let at = usize::try_from(address - SAID).unwrap();
            self.0[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn reader(&self) -> Reader<&Self> {
            Reader::new(self, Budget { pages: 9, steps: 100 })
        }
    }

    impl Memory for Process {
        fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
            let from = address.0.checked_sub(SAID).and_then(|from| usize::try_from(from).ok());
            let part = from.and_then(|from| self.0.get(from..)).filter(|part| !part.is_empty());
            let part = part.ok_or(io::ErrorKind::NotFound)?;
            let count = part.len().min(into.len());
            into[..count].copy_from_slice(&part[..count]);
            Ok(count)
        }
    }

    #[test]
    fn the_value_of_a_key_is_where_glibc_has_it() {
        let process = Process::of_glibc(0xabc);
        let keys = Keys::read(Avma(SAID), &process.reader()).unwrap();
        assert_eq!(keys, Keys::at(0x510));
        let values = keys.values(DESCRIPTOR, &process.reader()).unwrap();
        let mut expected = [0; 32];
        expected[4] = 0xabc;
        assert_eq!(values, expected);
        let key = Key::new(4).unwrap();
        assert_eq!(keys.way_to(key), [Step::add_thread_pointer(0x510), Step::load(0), Step::load(72)]);
        for (key, value) in Key::all().zip(values) {
            assert_eq!(follow(&keys.way_to(key), DESCRIPTOR, &process.reader()), Some(value), "{key:?}");
        }
    }

    #[test]
    fn keys_whose_values_are_elsewhere_are_none() {
        assert_eq!(Key::new(31), Key::all().next_back());
        for number in [32, 256, 256 + 4, u32::MAX] {
            assert_eq!(Key::new(number), None, "{number}");
        }
    }

    #[test]
    fn memory_that_is_cut_off_has_no_values() {
        let Process(whole) = Process::of_glibc(0xabc);
        let read = |length: usize| {
            let process = Process(whole[..length].to_vec());
            let keys = Keys::read(Avma(SAID), &process.reader())?;
            keys.values(DESCRIPTOR, &process.reader())
        };
        // Of the descriptor itself the word that leads to the values is the last.
        let end = usize::try_from(SPECIFIC + 8 - SAID).unwrap();
        for length in 0..end {
            assert!(read(length).is_err(), "{length}");
        }
        assert!(read(end).is_ok());
        let process = Process(whole);
        assert!(Keys::at(u32::MAX).values(u64::MAX, &process.reader()).is_err());
    }

    #[test]
    fn blocks_of_variables_hang_on_the_descriptor() {
        let way = way_to_block(7);
        assert_eq!(way, [Step::add_thread_pointer(8), Step::load(0), Step::load(7 * 16)]);
        assert!(is_through_block(&way));
        assert!(!is_through_block(&[Step::add_thread_pointer(8_u64.wrapping_neg()), Step::load(0)]));
        assert!(!is_through_block(&[]));
    }

    #[test]
    fn the_kernels_number_is_in_the_descriptor() {
        let process = Process::of_glibc(0);
        assert_eq!(glibc_number(DESCRIPTOR, &process.reader()), Ok(4711));
        let own = DESCRIPTOR.to_ne_bytes();
        let mut descriptor = [0_u8; DESCRIPTOR_BYTES];
        descriptor[0..8].copy_from_slice(&own);
        descriptor[48..52].copy_from_slice(&12_u32.to_ne_bytes());
        descriptor[208..212].copy_from_slice(&13_u32.to_ne_bytes());
        descriptor[720..724].copy_from_slice(&4711_u32.to_ne_bytes());
        let found =
            |descriptor: &[u8]| numbers(DESCRIPTOR, descriptor).filter(|number| *number != 13).collect::<Vec<_>>();
        assert_eq!(found(&descriptor), [12], "musl's has its own address once");
        descriptor[16..24].copy_from_slice(&own);
        assert_eq!(found(&descriptor), [4711]);
        assert_eq!(found(&descriptor[..723]), [0_u32; 0]);
        descriptor[0] ^= 1;
        assert_eq!(found(&descriptor), [0_u32; 0], "it is no descriptor");
        let on_aarch64 = numbers(DESCRIPTOR, &descriptor).any(|number| number == 13);
        assert_eq!(on_aarch64, cfg!(target_arch = "aarch64"));
    }
}
