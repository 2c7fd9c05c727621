//! Which clock a dump's times are of, and their conversion to CLOCK_MONOTONIC.
//!
//! The header's flag cannot be trusted: libxsmm set ARCH_TIMESTAMP and wrote nanoseconds until August 2026, LLVM ORC
//! left the flags uninitialised until January 2026. So with the flag set, the interpretation wins whose result lies
//! closer to the time in which records can have been written: from the process' start to now.

use jitprof_common::units::MonoNs;

/// Clocks and kernel times are rounded: a start time from /proc has 10 ms.
const TOLERANCE_NS: u64 = 100_000_000;

/// What times can be true for the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockContext {
    /// When the process started.
    pub process_start: MonoNs,
    /// The time when the options are made. The tail lets it advance.
    pub now: MonoNs,
    /// How to convert counter ticks, where the caller has read that from the kernel.
    pub tsc: Option<TscConversion>,
}

/// Counter ticks to nanoseconds, from the first page of a perf event's mapping
/// (`struct perf_event_mmap_page`: `time_mult`, `time_shift`, `time_zero`):
///
/// ```text
/// ns = time_zero + mono_offset + (ticks * time_mult) >> time_shift
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TscConversion {
    /// The factor: `time_mult` of perf's control page.
    pub mult: u32,
    /// The shift behind it: `time_shift`.
    pub shift: u16,
    /// `time_zero`: perf's clock at 0 ticks.
    pub zero: u64,
    /// CLOCK_MONOTONIC minus perf's clock.
    pub mono_offset: i64,
}

impl TscConversion {
    /// The time of `ticks`, wrapped to 64 bits like the kernel's own arithmetic.
    pub fn to_mono(self, ticks: u64) -> MonoNs {
        // The product of 64 and 32 bits fits 128; a shift above 127 gives no time but zero.
        let scaled = (u128::from(ticks) * u128::from(self.mult)).checked_shr(u32::from(self.shift)).unwrap_or(0);
        let low = u64::try_from(scaled & u128::from(u64::MAX)).expect("invariant: masked to 64 bits");
        MonoNs(low.wrapping_add(self.zero).wrapping_add_signed(self.mono_offset))
    }
}

/// What the times of a dump are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockKind {
    /// No time was read yet.
    #[default]
    Unknown,
    /// Nanoseconds on CLOCK_MONOTONIC.
    Monotonic,
    /// Counter ticks, converted.
    Tsc,
    /// Counter ticks and no conversion, or a clock that cannot be told: every time is taken as unknown.
    Unusable,
}

/// What became of a record's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeVerdict {
    /// The record is of this time.
    At(MonoNs),
    /// Before the process began.
    Stale,
    /// 0, in the future, or of an unusable clock.
    Implausible,
}

/// Judges the times of one dump.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    context: Option<ClockContext>,
    ticks_flagged: bool,
    pub(super) kind: ClockKind,
}

impl Clock {
    pub(super) fn new(context: Option<ClockContext>) -> Self {
        Self { context, ticks_flagged: false, kind: ClockKind::Unknown }
    }

    /// A header's flag begins a new judgement.
    pub(super) fn restart(&mut self, ticks_flagged: bool) {
        self.ticks_flagged = ticks_flagged;
        self.kind = ClockKind::Unknown;
    }

    pub(super) fn set_now(&mut self, now: MonoNs) {
        if let Some(context) = &mut self.context {
            context.now = now;
        }
    }

    /// Ticks become times like this from now on: a rate that was measured for longer is a better one.
    pub(super) fn set_ticks(&mut self, tsc: TscConversion) {
        if let Some(context) = &mut self.context {
            context.tsc = Some(tsc);
        }
    }

    pub(super) fn judge(&mut self, raw: u64) -> TimeVerdict {
        if raw == 0 {
            return TimeVerdict::Implausible;
        }
        if self.kind == ClockKind::Unknown || self.ticks_flagged {
            self.decide(raw);
        }
        let time = match self.kind {
            ClockKind::Unknown | ClockKind::Unusable => return TimeVerdict::Implausible,
            ClockKind::Monotonic => MonoNs(raw),
            ClockKind::Tsc => match self.tsc() {
                Some(tsc) => tsc.to_mono(raw),
                None => return TimeVerdict::Implausible,
            },
        };
        match &self.context {
            Some(context) if time.0 > latest(context) => TimeVerdict::Implausible,
            Some(context) if time.0 < earliest(context) => TimeVerdict::Stale,
            _ => TimeVerdict::At(time),
        }
    }

    fn tsc(&self) -> Option<TscConversion> {
        self.context.and_then(|context| context.tsc)
    }

    /// The first time of a dump decides; under the flag a later one that only the other clock explains decides again,
    /// because the first may be another process' or damaged.
    fn decide(&mut self, raw: u64) {
        let Some(context) = &self.context else {
            self.kind = if self.ticks_flagged { ClockKind::Unusable } else { ClockKind::Monotonic };
            return;
        };
        if !self.ticks_flagged {
            self.kind = ClockKind::Monotonic;
            return;
        }
        let as_ns = distance(context, MonoNs(raw));
        let as_ticks = context.tsc.map(|tsc| distance(context, tsc.to_mono(raw)));
        let kind = match as_ticks {
            Some(ticks) if ticks <= as_ns => ClockKind::Tsc,
            Some(_) => ClockKind::Monotonic,
            None if as_ns == 0 => ClockKind::Monotonic,
            None => ClockKind::Unusable,
        };
        let explained = as_ns == 0 || as_ticks == Some(0);
        if self.kind == ClockKind::Unknown || explained {
            self.kind = kind;
        }
    }
}

fn earliest(context: &ClockContext) -> u64 {
    context.process_start.0.saturating_sub(TOLERANCE_NS)
}

fn latest(context: &ClockContext) -> u64 {
    context.now.0.saturating_add(TOLERANCE_NS)
}

/// How far a time lies outside of the process' life until now.
fn distance(context: &ClockContext, time: MonoNs) -> u64 {
    earliest(context).saturating_sub(time.0).max(time.0.saturating_sub(latest(context)))
}
