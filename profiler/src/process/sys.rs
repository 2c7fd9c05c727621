//! Two system calls that reading /proc safely needs.

use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use jitprof_common::units::MonoNs;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::time::{ClockId, clock_gettime};

/// Less is what lies between two readings of clocks.
const LEAST_SUSPENSION_NS: u64 = 1_000_000;
/// Suspensions of the machine that are known at most.
const MAX_SUSPENSIONS: usize = 256;

/// Opens `path` relative to `root`, which is the root directory of the whole resolution: neither `..` nor an absolute
/// symbolic link leads out of it, and magic links of a /proc inside of it are refused. Linux ≥ 5.6.
pub(super) fn open_in_root(root: BorrowedFd<'_>, path: &CStr, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// Now on CLOCK_MONOTONIC.
pub fn monotonic_now() -> MonoNs {
    MonoNs(clock_ns(ClockId::Monotonic))
}

/// CLOCK_BOOTTIME minus CLOCK_MONOTONIC in ns: the time that the machine has spent suspended.
pub(super) fn suspended_ns() -> u64 {
    // Monotonic is read first, so that the difference is never negative; a few hundred ns too much do not matter
    // beside the 10 ms ticks that it is used with. Who is held up in between reads far too much, but hardly twice.
    let read = || {
        let mono = clock_ns(ClockId::Monotonic);
        clock_ns(ClockId::Boottime).saturating_sub(mono)
    };
    read().min(read())
}

/// What CLOCK_BOOTTIME was on CLOCK_MONOTONIC, by the difference that was seen then: with the one that is now, a process
/// from before the machine was suspended would seem to be another one.
pub(super) fn boot_to_mono_ns(boot_ns: u64) -> u64 {
    static SEEN: Mutex<Differences> = Mutex::new(Differences(Vec::new()));
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let (now, difference) = (since_boot_ns(), suspended_ns());
    seen.mono_of(boot_ns, now, difference)
}

/// Looks how long the machine has been suspended. What began between the last look before a suspension and the suspension
/// is told from what began afterwards if that was shorter than the suspension: about once a second is enough.
pub fn note_suspension() {
    boot_to_mono_ns(0);
}

/// How much the two clocks have differed, and until when, on CLOCK_BOOTTIME.
struct Differences(Vec<(u64, u64)>);

impl Differences {
    /// What CLOCK_BOOTTIME was on CLOCK_MONOTONIC, if the difference is `difference` now.
    fn mono_of(&mut self, boot_ns: u64, now: u64, difference: u64) -> u64 {
        boot_ns.saturating_sub(self.at(boot_ns, now, difference))
    }

    /// The difference at a time, if it is `difference` now.
    fn at(&mut self, boot_ns: u64, now: u64, difference: u64) -> u64 {
        match self.0.last_mut() {
            Some((until, last)) if last.abs_diff(difference) < LEAST_SUSPENSION_NS => *until = now.max(*until),
            last => {
                if let Some((until, last)) = last {
                    // While the machine was suspended, nothing began: whatever is from then is from right before.
                    *until = until.saturating_add(difference.saturating_sub(*last));
                }
                self.0.push((now, difference));
            }
        }
        if self.0.len() > MAX_SUSPENSIONS {
            self.0.remove(0);
        }
        self.0.iter().find(|(until, _)| boot_ns <= *until).map_or(difference, |(_, difference)| *difference)
    }
}

/// CLOCK_BOOTTIME in ns.
pub(super) fn since_boot_ns() -> u64 {
    clock_ns(ClockId::Boottime)
}

fn clock_ns(clock: ClockId) -> u64 {
    let at = clock_gettime(clock);
    let secs = u64::try_from(at.tv_sec).unwrap_or(0);
    secs.saturating_mul(1_000_000_000).saturating_add(u64::try_from(at.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_stays_what_it_was_when_the_machine_is_suspended() {
        const S: u64 = 1_000_000_000;
        let mut seen = Differences(Vec::new());
        // Suspended for 5 s before anybody looked, then for an hour.
        assert_eq!(seen.at(90 * S, 100 * S, 5 * S), 5 * S);
        assert_eq!(seen.at(90 * S, 110 * S, 5 * S + 300), 5 * S);
        assert_eq!(seen.at(90 * S, 3750 * S, 3605 * S), 5 * S, "the same process has the same start");
        assert_eq!(seen.at(3740 * S, 3750 * S, 3605 * S), 3605 * S, "and one from afterwards that of its fork");
        assert_eq!(seen.at(109 * S, 3760 * S, 3605 * S), 5 * S);
        // It began after the last look before.
        assert_eq!(seen.at(115 * S, 3760 * S, 3605 * S), 5 * S);
    }

    /// Suspended from 40 s to 45 s on CLOCK_BOOTTIME, before anybody looked, and from 200 s to 205 s between two looks.
    #[test]
    fn a_start_is_what_the_other_clock_was_then_before_and_after_a_suspension() {
        const MS: u64 = 1_000_000;
        let mut seen = Differences(Vec::new());
        for second in 100..200 {
            assert_eq!(seen.mono_of(90_000 * MS, second * 1000 * MS, 5000 * MS), 85_000 * MS);
        }
        for now in [206_000, 400_000] {
            let mut start = |boot: u64| seen.mono_of(boot * MS, now * MS, 10_000 * MS) / MS;
            // The last two began right before it, and right after it.
            assert_eq!([90_000, 199_500, 205_500].map(&mut start), [85_000, 194_500, 195_500], "at {now} ms");
            // What the difference was before the first look is not known: it is too early, and always the same.
            assert_eq!(start(30_000), 25_000);
        }
    }
}
