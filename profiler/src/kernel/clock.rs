//! The time-stamp counter on CLOCK_MONOTONIC.

use std::sync::atomic::{Ordering, compiler_fence};

use perf_event_open_sys::bindings::perf_event_mmap_page;

use super::sideband::Sideband;
use crate::process::monotonic_now;
use jitprof_common::units::MonoNs;

/// Shortest time over which the counter's rate is measured. Reading both clocks is uncertain by less than a
/// microsecond, so that the rate is good to 50 ppm and better the longer the run.
const MIN_BASELINE_NS: u64 = 20_000_000;
/// Fraction bits of a measured rate, if it fits.
const MEASURED_SHIFT: u16 = 32;

/// The counter's value at a time of CLOCK_MONOTONIC, and how fast it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TickAnchor {
    /// The counter's value at `at`.
    pub ticks: u64,
    /// The time.
    pub at: MonoNs,
    /// Nanoseconds are `ticks * mult >> shift`.
    pub mult: u32,
    /// See `mult`.
    pub shift: u16,
}

/// Places the time-stamp counter on CLOCK_MONOTONIC, for dumps whose timestamps are ticks.
#[derive(Clone, Copy, Debug)]
pub struct TickClock {
    first: Option<(u64, MonoNs)>,
    kernel_rate: Option<(u32, u16)>,
}

impl TickClock {
    /// Takes the first reading of both clocks, and the kernel's own rate where it offers one (perf's `cap_user_time`;
    /// it does not under a paravirtual clock).
    pub fn start(sideband: &Sideband) -> Self {
        // SAFETY: the control page stays mapped as long as the sideband is borrowed.
        let kernel_rate = sideband.first_ring().and_then(|ring| unsafe { rate(ring.page().as_ptr()) });
        Self { first: reading(), kernel_rate }
    }

    /// The conversion as known now. `None` on machines without such a counter, and in the first moments of a run where
    /// the rate has to be measured.
    pub fn anchor(&self) -> Option<TickAnchor> {
        let (first_ticks, first_at) = self.first?;
        if let Some((mult, shift)) = self.kernel_rate {
            return Some(TickAnchor { ticks: first_ticks, at: first_at, mult, shift });
        }
        let (ticks, at) = reading()?;
        let elapsed_ns = at.0.checked_sub(first_at.0).filter(|ns| *ns >= MIN_BASELINE_NS)?;
        let elapsed_ticks = ticks.checked_sub(first_ticks).filter(|ticks| *ticks > 0)?;
        // A counter slower than 1 GHz has more than a nanosecond a tick and needs fewer fraction bits.
        (0..=MEASURED_SHIFT).rev().find_map(|shift| {
            let mult = (u128::from(elapsed_ns) << shift) / u128::from(elapsed_ticks);
            Some(TickAnchor { ticks, at, mult: u32::try_from(mult).ok()?, shift })
        })
    }
}

/// The counter, and the time half-way through reading it.
fn reading() -> Option<(u64, MonoNs)> {
    let before = monotonic_now();
    let ticks = ticks()?;
    let after = monotonic_now();
    Some((ticks, MonoNs(before.0 + after.0.saturating_sub(before.0) / 2)))
}

/// # Safety
/// `page` must point to a mapped perf control page.
unsafe fn rate(page: *const perf_event_mmap_page) -> Option<(u32, u16)> {
    // The kernel changes the page only on clock updates: a handful of tries always suffices.
    for _ in 0..16 {
        // SAFETY: the caller's promise.
        let (lock, has_rate, mult, shift, lock_after) = unsafe {
            let lock = (&raw const (*page).lock).read_volatile();
            compiler_fence(Ordering::SeqCst);
            let capabilities = (*page).__bindgen_anon_1.__bindgen_anon_1.cap_user_time();
            let mult = (&raw const (*page).time_mult).read_volatile();
            let shift = (&raw const (*page).time_shift).read_volatile();
            compiler_fence(Ordering::SeqCst);
            (lock, capabilities, mult, shift, (&raw const (*page).lock).read_volatile())
        };
        if lock == lock_after && lock & 1 == 0 {
            return (has_rate != 0 && mult != 0).then_some((mult, shift));
        }
    }
    None
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> Option<u64> {
    // SAFETY: every x86-64 CPU has rdtsc.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> Option<u64> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_measured_rate_places_later_ticks_on_the_clock() {
        let clock = TickClock { first: reading(), kernel_rate: None };
        let anchor = loop {
            if let Some(anchor) = clock.anchor() {
                break anchor;
            }
            std::thread::yield_now();
        };
        let (ticks, at) = reading().unwrap();
        let elapsed = (u128::from(ticks - anchor.ticks) * u128::from(anchor.mult)) >> anchor.shift;
        let placed = anchor.at.0 + elapsed as u64;
        assert!(placed.abs_diff(at.0) < 1_000_000, "{placed} is not near {}", at.0);
    }
}
