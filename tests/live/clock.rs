//! Two clocks of Linux.

/// How far the wall clock is ahead of CLOCK_MONOTONIC, in nanoseconds: of several readings the one that was the least
/// disturbed.
pub fn unix_minus_monotonic_ns() -> u64 {
    let readings = (0..100).map(|_| {
        let before = now_ns(libc::CLOCK_MONOTONIC);
        let unix = now_ns(libc::CLOCK_REALTIME);
        let after = now_ns(libc::CLOCK_MONOTONIC);
        (after - before, unix - before.midpoint(after))
    });
    readings.min().map_or(0, |(_, difference)| difference)
}

fn now_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the timespec that the pointer refers to.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(result, 0, "Linux has this clock");
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
