//! Reads another process' memory. It never writes, and it does not stop the process.
#![expect(unsafe_code, reason = "process_vm_readv has no safe wrapper among the dependencies")]

use std::io;

use crate::peek::stdio::Memory;
use jitprof_common::units::{Avma, Pid};

/// Places that are read with one call: IOV_MAX.
const AT_ONCE: usize = 1024;

/// The memory of a running process, by process_vm_readv(2). Needs CAP_SYS_PTRACE or the same user.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote(pub(super) Pid);

impl Memory for Remote {
    fn read(&self, addr: Avma, into: &mut [u8]) -> io::Result<usize> {
        let pid = libc::pid_t::try_from(self.0.0).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        let start = usize::try_from(addr.0).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(start), iov_len: into.len() };
        // SAFETY: the kernel writes at most `into.len()` bytes to `into`, which is borrowed for the call; the remote
        // address is not dereferenced here, and a bad one fails with EFAULT.
        let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }
}

impl Remote {
    /// Reads several places with few calls. Returns how many bytes of each could be read.
    pub(super) fn read_each(self, reads: &mut [(Avma, &mut [u8])]) -> Vec<usize> {
        let mut counts = Vec::with_capacity(reads.len());
        let mut at_once = AT_ONCE;
        while counts.len() < reads.len() {
            let next = reads.len().min(counts.len() + at_once);
            let part = &mut reads[counts.len()..next];
            let copied = self.read_some(part).unwrap_or(0);
            let shares = share_out(copied, part);
            // Each call is told of all its places, also of those behind the one that ends it: where many do, calls are small.
            at_once = (2 * shares.len()).min(AT_ONCE);
            counts.extend(shares);
        }
        counts
    }

    /// Reads them in order, until one that cannot be read whole. Returns the bytes of all.
    fn read_some(self, reads: &mut [(Avma, &mut [u8])]) -> io::Result<usize> {
        let pid = libc::pid_t::try_from(self.0.0).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        let local =
            |(_, into): &mut (Avma, &mut [u8])| libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = |(address, into): &(Avma, &mut [u8])| {
            let start = usize::try_from(address.0).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
            Ok(libc::iovec { iov_base: std::ptr::without_provenance_mut(start), iov_len: into.len() })
        };
        let remote = reads.iter().map(remote).collect::<io::Result<Vec<_>>>()?;
        let local: Vec<_> = reads.iter_mut().map(local).collect();
        let count = libc::c_ulong::try_from(local.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: the kernel writes at most as many bytes to each local place as its slice has, all of which are borrowed for
        // the call; the remote addresses are not dereferenced here, and a bad one ends what is read.
        let read = unsafe { libc::process_vm_readv(pid, local.as_ptr(), count, remote.as_ptr(), count, 0) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }
}

/// How many bytes each has of those that were read in order: as far as the first of which some are missing, which has ended it.
fn share_out(copied: usize, reads: &[(Avma, &mut [u8])]) -> Vec<usize> {
    let mut left = copied;
    let mut counts = Vec::with_capacity(reads.len());
    for (_, into) in reads {
        let count = left.min(into.len());
        left -= count;
        counts.push(count);
        if count < into.len() {
            break;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_together_and_those_that_are_not_there_cost_themselves_only() {
        let bytes: Vec<u8> = (0..=255).collect();
        let at = |offset: usize| Avma(bytes.as_ptr() as u64 + offset as u64);
        let mut places = vec![[0; 4]; 3 * AT_ONCE];
        let address = |index: usize| match index % 3 {
            2 => Avma(0x10),
            _ => at(index % 200),
        };
        let mut reads: Vec<(Avma, &mut [u8])> =
            places.iter_mut().enumerate().map(|(index, place)| (address(index), &mut place[..])).collect();
        let counts = Remote(Pid(std::process::id())).read_each(&mut reads);
        let expected: Vec<usize> = (0..3 * AT_ONCE).map(|index| if index % 3 == 2 { 0 } else { 4 }).collect();
        assert_eq!(counts, expected);
        for (index, place) in places.iter().enumerate() {
            let first = index % 200;
            assert_eq!(&place[..], if index % 3 == 2 { &[0; 4] } else { &bytes[first..first + 4] });
        }
    }

    #[test]
    fn where_nothing_can_be_read_each_place_is_tried_and_the_next_one_is_read_all_the_same() {
        let there = [7_u8; 4];
        let mut places = vec![[0; 4]; 2 * AT_ONCE];
        let last = places.len() - 1;
        let address = |index: usize| Avma(if index == last { there.as_ptr() as u64 } else { 0x10 });
        let mut reads: Vec<(Avma, &mut [u8])> =
            places.iter_mut().enumerate().map(|(index, place)| (address(index), &mut place[..])).collect();
        let counts = Remote(Pid(std::process::id())).read_each(&mut reads);
        assert_eq!((counts.len(), counts.iter().sum::<usize>(), counts[last]), (2 * AT_ONCE, 4, 4));
        assert_eq!(places[last], there);
    }

    #[test]
    fn what_ends_within_a_place_is_as_much_of_it_as_there_is() {
        let places = &mut [[0_u8; 4]; 3];
        let reads: Vec<(Avma, &mut [u8])> = places.iter_mut().map(|place| (Avma(0), &mut place[..])).collect();
        assert_eq!(share_out(6, &reads), [4, 2]);
        assert_eq!(share_out(0, &reads), [0]);
        assert_eq!(share_out(8, &reads), [4, 4, 0]);
        assert_eq!(share_out(12, &reads), [4, 4, 4]);
    }

    #[test]
    fn nothing_is_read_of_a_process_that_is_not_there() {
        let mut place = [0; 4];
        let mut reads: Vec<(Avma, &mut [u8])> = vec![(Avma(0x1000), &mut place[..])];
        assert_eq!(Remote(Pid(u32::MAX)).read_each(&mut reads), [0]);
    }
}
