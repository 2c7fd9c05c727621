//! What time it is, by both clocks.

use std::time::{Duration, SystemTime};

use crate::process::monotonic_now;
use crate::units::MonoNs;

/// Beyond this the wall clock was set; below it runs a little faster or slower, as NTP has it.
const STEP: Duration = Duration::from_millis(500);

/// One moment on both clocks.
pub(super) type Now = (SystemTime, MonoNs);

/// Where the archive takes the time from.
pub(super) type Clock = Box<dyn Fn() -> Now + Send + Sync>;

pub(super) fn system_clock() -> Clock {
    Box::new(|| (SystemTime::now(), monotonic_now()))
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

/// A moment of the samples' clock, by one moment that is known on both.
fn at((wall, mono): Now, time: MonoNs) -> SystemTime {
    let later = Duration::from_nanos(time.0.saturating_sub(mono.0));
    let earlier = Duration::from_nanos(mono.0.saturating_sub(time.0));
    let shifted = wall.checked_add(later).and_then(|wall| wall.checked_sub(earlier));
    shifted.unwrap_or(SystemTime::UNIX_EPOCH)
}
