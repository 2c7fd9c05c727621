//! Which records are listed.

use clap::{Args, ValueEnum};

use super::super::address::parse_address;
use crate::times::DumpTime;
use jitprof_common::units::MonoNs;
use jitprof_jitdump::{Body, Record, Step};

/// The options of a list as typed. Each narrows it.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Which records")]
pub(super) struct Wanted {
    /// Records of these kinds
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<Kind>,

    /// Functions whose name contains this
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,

    /// Records of code that covers this address (hexadecimal, with or without 0x), and lines announced for it
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    addr: Option<u64>,

    /// Records of this pid, as the producer writes it
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    /// From this time on: +DURATION after the first record (+1.5s, +2m), or as the dump has it, in nanoseconds
    /// (81234567890) or seconds (81.234567890)
    #[arg(long, value_name = "TIME")]
    since: Option<DumpTime>,

    /// Up to this time
    #[arg(long, value_name = "TIME")]
    until: Option<DumpTime>,
}

/// A kind of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Header,
    Load,
    Move,
    Debug,
    Close,
    Unwinding,
    Unload,
    Inline,
    Method,
    Lost,
    Unknown,
    Damage,
}

/// What is wanted of a list.
#[derive(Debug)]
pub(super) struct Filter<'a> {
    wanted: &'a Wanted,
}

/// What a filter remembers of one dump.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// The time of its first record.
    first: Option<MonoNs>,
}

impl<'a> Filter<'a> {
    pub(super) fn new(wanted: &'a Wanted) -> Self {
        Self { wanted }
    }

    /// The first option that was given.
    pub(super) fn given(&self) -> Option<&'static str> {
        let wanted = self.wanted;
        [
            (!wanted.kind.is_empty(), "--kind"),
            (wanted.name.is_some(), "--name"),
            (wanted.addr.is_some(), "--addr"),
            (wanted.pid.is_some(), "--pid"),
            (wanted.since.is_some(), "--since"),
            (wanted.until.is_some(), "--until"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }

    /// Whether the step is listed.
    pub(super) fn takes(&self, progress: &mut Progress, step: &Step<'_>) -> bool {
        let kind = kind_of(step);
        if !self.wanted.kind.is_empty() && !kind.is_some_and(|kind| self.wanted.kind.contains(&kind)) {
            if let Step::Record(record) = step {
                progress.first.get_or_insert(MonoNs(record.raw_time));
            }
            return false;
        }
        match step {
            Step::Record(record) => self.takes_record(progress, record),
            // What has no fields is shown unless some are asked for.
            _ => self.given().is_none_or(|name| name == "--kind") && kind.is_some(),
        }
    }

    fn takes_record(&self, progress: &mut Progress, record: &Record<'_>) -> bool {
        let wanted = self.wanted;
        let time = MonoNs(record.raw_time);
        let first = *progress.first.get_or_insert(time);
        wanted.since.is_none_or(|since| time >= since.on_clock(first))
            && wanted.until.is_none_or(|until| time <= until.on_clock(first))
            && wanted.pid.is_none_or(|pid| pid_of(&record.body) == Some(pid))
            && wanted.addr.is_none_or(|address| covers(&record.body, address))
            && wanted.name.as_deref().is_none_or(|name| is_named(&record.body, name))
    }
}

fn kind_of(step: &Step<'_>) -> Option<Kind> {
    Some(match step {
        Step::Header(_) => Kind::Header,
        Step::Record(record) => match record.body {
            Body::Load(_) => Kind::Load,
            Body::Move(_) => Kind::Move,
            Body::DebugInfo(_) => Kind::Debug,
            Body::Close => Kind::Close,
            Body::UnwindingInfo(_) => Kind::Unwinding,
            Body::Unload(_) => Kind::Unload,
            Body::Inline(_) => Kind::Inline,
            Body::Method(_) => Kind::Method,
            Body::Lost(_) => Kind::Lost,
            Body::Unknown { .. } => Kind::Unknown,
        },
        Step::BadRecord { .. } | Step::Corrupt { .. } | Step::Resynced { .. } => Kind::Damage,
        Step::Scanned | Step::NeedMore { .. } => return None,
    })
}

fn pid_of(body: &Body<'_>) -> Option<u32> {
    match body {
        Body::Load(load) => Some(load.pid),
        Body::Move(moved) => Some(moved.pid),
        _ => None,
    }
}

fn covers(body: &Body<'_>, address: u64) -> bool {
    let within = |start: u64, size: u64| address.checked_sub(start).is_some_and(|offset| offset < size);
    match body {
        // Code of no bytes is at its address.
        Body::Load(load) => within(load.code_addr, load.code_size.max(1)),
        Body::Move(moved) => {
            within(moved.old_code_addr, moved.code_size) || within(moved.new_code_addr, moved.code_size)
        }
        Body::DebugInfo(info) => info.code_addr == address,
        Body::Unload(gone) => within(gone.code_addr, gone.code_size),
        Body::Inline(inline) => within(inline.start, u64::from(inline.size)),
        Body::Method(method) => method.code_addr == address,
        Body::Close | Body::UnwindingInfo(_) | Body::Lost(_) | Body::Unknown { .. } => false,
    }
}

fn is_named(body: &Body<'_>, part: &str) -> bool {
    match body {
        Body::Load(load) => memchr::memmem::find(load.name, part.as_bytes()).is_some(),
        Body::Inline(inline) => memchr::memmem::find(inline.name, part.as_bytes()).is_some(),
        _ => false,
    }
}
