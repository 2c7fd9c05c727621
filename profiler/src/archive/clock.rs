//! What time it is, by both clocks.

use std::time::{Duration, SystemTime};

use super::id::milliseconds;
use crate::process::monotonic_now;
use jitprof_common::units::MonoNs;

/// Beyond this the wall clock was set; below it runs a little faster or slower, as NTP has it.
const STEP: Duration = Duration::from_millis(500);

/// One time, read from all clocks at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// The calendar's, which may be set at any time.
    pub(super) wall: SystemTime,
    /// The clock of the samples' timestamps.
    pub(super) mono: MonoNs,
    /// Milliseconds of a clock that nobody sets and that counts while the machine is suspended: what ages are measured
    /// with. It begins anywhere.
    pub(super) steady_ms: i64,
}

/// Where the archive takes the time from.
pub(super) type Clock = Box<dyn Fn() -> Now + Send + Sync>;

pub(super) fn system_clock() -> Clock {
    Box::new(|| {
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let steady_ms = boot.tv_sec.saturating_mul(1000).saturating_add(boot.tv_nsec / 1_000_000);
        Now { wall: SystemTime::now(), mono: monotonic_now(), steady_ms }
    })
}

impl Now {
    /// When something ended, on the steady clock, if the calendar says `end_ms`. A calendar that lies ahead, because the
    /// clock was set back since, makes nothing younger than now.
    pub(super) fn steady_end(&self, end_ms: u64) -> i64 {
        let ago = milliseconds(self.wall).saturating_sub(end_ms);
        self.steady_ms.saturating_sub_unsigned(ago)
    }
}

/// How the samples' clock stands to the wall clock. It changes by steps only, so that windows join without gaps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Relation(Option<Now>);

impl Relation {
    /// When something was, by the wall clock as it stands now.
    pub(super) fn wall_time(&mut self, time: MonoNs, now: Now) -> SystemTime {
        let present = at(now, time);
        if let Some(known) = self.0 {
            let expected = at(known, time);
            let apart = present.duration_since(expected).or_else(|_| expected.duration_since(present));
            if apart.is_ok_and(|apart| apart < STEP) {
                return expected;
            }
        }
        self.0 = Some(now);
        present
    }
}

/// A timestamp of the samples as a time of the calendar, by one time that is known on both clocks.
fn at(now: Now, time: MonoNs) -> SystemTime {
    let Now { wall, mono, .. } = now;
    let later = Duration::from_nanos(time.0.saturating_sub(mono.0));
    let earlier = Duration::from_nanos(mono.0.saturating_sub(time.0));
    let shifted = wall.checked_add(later).and_then(|wall| wall.checked_sub(earlier));
    shifted.unwrap_or(SystemTime::UNIX_EPOCH)
}
