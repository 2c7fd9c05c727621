//! One record as it is listed: a line of text, or of JSON.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::profile::printable;
use jitprof_common::units::FileOffset;
use jitprof_jitdump::{Body, DebugInfo, FileHeader, Record, Step};

/// The widest name of a kind.
const KIND_WIDTH: usize = "unwinding_info".len();

/// Something in the file.
#[derive(Serialize)]
pub(super) struct Item<'a> {
    /// Where in the file its first byte is.
    pub(super) offset: u64,
    pub(super) kind: &'static str,
    #[serde(flatten)]
    pub(super) what: What<'a>,
}

/// A header, a record or damage, with its fields.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum What<'a> {
    Header(FileHeader),
    Record {
        total_size: u32,
        /// As written: nanoseconds, or ticks.
        time: u64,
        #[serde(flatten)]
        fields: Fields<'a>,
    },
    Damage {
        what: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
    },
}

/// The fields of a record. Names are decoded lossily.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Fields<'a> {
    Load {
        pid: u32,
        tid: u32,
        vma: u64,
        code_addr: u64,
        code_size: u64,
        code_index: u64,
        #[serde(serialize_with = "as_text")]
        name: &'a [u8],
    },
    Move {
        pid: u32,
        tid: u32,
        vma: u64,
        old_code_addr: u64,
        new_code_addr: u64,
        code_size: u64,
        code_index: u64,
    },
    DebugInfo {
        code_addr: u64,
        nr_entry: usize,
        #[serde(serialize_with = "as_entries")]
        entries: DebugInfo<'a>,
    },
    Close {},
    UnwindingInfo {
        unwind_data_size: usize,
        eh_frame_hdr_size: u64,
        mapped_size: u64,
    },
    Unload {
        code_addr: u64,
        code_size: u64,
    },
    Inline {
        code_addr: u64,
        code_size: u32,
        method: u32,
        parent: u32,
        #[serde(serialize_with = "as_text")]
        name: &'a [u8],
        #[serde(serialize_with = "as_text")]
        source: &'a [u8],
    },
    Method {
        code_addr: u64,
        method: u32,
        #[serde(serialize_with = "as_text")]
        source: &'a [u8],
        #[serde(serialize_with = "as_text")]
        module: &'a [u8],
    },
    Lost {
        event: u32,
        reason: u32,
    },
    Unknown {
        id: u32,
    },
}

impl<'a> Item<'a> {
    /// `None` for steps that are nothing in the file. Lost stretches are given when their end is known.
    pub(super) fn of(at: FileOffset, step: &Step<'a>) -> Option<Self> {
        let damage = |offset: u64, what, bytes| Self { offset, kind: "damage", what: What::Damage { what, bytes } };
        Some(match step {
            Step::Header(header) => Self { offset: at.0, kind: "header", what: What::Header(*header) },
            Step::Record(record) => Self::of_record(record),
            Step::BadRecord { offset, total_size, what } => {
                damage(offset.0, what.describe(), Some(u64::from(*total_size)))
            }
            Step::Corrupt { offset, what } => damage(offset.0, what.describe(), None),
            Step::Resynced { skipped } => damage(at.0, "the sequence goes on behind the next bytes", Some(*skipped)),
            Step::Scanned | Step::NeedMore { .. } => return None,
        })
    }

    fn of_record(record: &Record<'a>) -> Self {
        let (kind, fields) = match record.body {
            Body::Load(load) => {
                let jitprof_jitdump::Load { pid, tid, vma, code_addr, code_size, code_index, name, .. } = load;
                ("load", Fields::Load { pid, tid, vma, code_addr, code_size, code_index, name })
            }
            Body::Move(moved) => {
                let jitprof_jitdump::Move { pid, tid, vma, old_code_addr, new_code_addr, code_size, code_index } =
                    moved;
                ("move", Fields::Move { pid, tid, vma, old_code_addr, new_code_addr, code_size, code_index })
            }
            Body::DebugInfo(info) => {
                let (code_addr, nr_entry) = (info.code_addr, info.nr_entry);
                ("debug_info", Fields::DebugInfo { code_addr, nr_entry, entries: info })
            }
            Body::Close => ("close", Fields::Close {}),
            Body::UnwindingInfo(info) => {
                let (unwind_data_size, eh_frame_hdr_size) = (info.bytes.len(), info.hdr_size);
                let mapped_size = info.mapped_size;
                ("unwinding_info", Fields::UnwindingInfo { unwind_data_size, eh_frame_hdr_size, mapped_size })
            }
            Body::Unload(gone) => ("unload", Fields::Unload { code_addr: gone.code_addr, code_size: gone.code_size }),
            Body::Inline(inline) => {
                let (code_addr, code_size) = (inline.start, inline.size);
                let (method, parent, name, source) = (inline.method, inline.parent, inline.name, inline.source);
                ("inline", Fields::Inline { code_addr, code_size, method, parent, name, source })
            }
            Body::Method(method) => {
                let (code_addr, source, module) = (method.code_addr, method.source, method.module);
                ("method", Fields::Method { code_addr, method: method.method, source, module })
            }
            Body::Lost(lost) => ("lost", Fields::Lost { event: lost.event, reason: lost.reason }),
            Body::Unknown { id } => ("unknown", Fields::Unknown { id }),
        };
        let what = What::Record { total_size: record.total_size, time: record.raw_time, fields };
        Self { offset: record.offset.0, kind, what }
    }
}

impl fmt::Display for Item<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>#12x}  ", self.offset)?;
        let kind = self.kind;
        match &self.what {
            What::Header(header) => {
                write!(f, "{:>16}  {kind:KIND_WIDTH$}  version {}, ", "", header.version)?;
                write!(f, "machine {}, pid {}, flags {:#x}", header.elf_mach, header.pid, header.flags)
            }
            What::Damage { what, bytes } => {
                write!(f, "{:>16}  {kind:KIND_WIDTH$}  {what}", "")?;
                bytes.map_or(Ok(()), |bytes| write!(f, ": {bytes} bytes"))
            }
            What::Record { time, fields, .. } => write!(f, "{:>16}  {kind:KIND_WIDTH$}  {fields}", seconds(*time)),
        }
    }
}

impl fmt::Display for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load { tid, code_addr, code_size, code_index, name, .. } => {
                let end = code_addr.saturating_add(*code_size);
                write!(f, "{code_addr:#x}..{end:#x}  #{code_index} tid {tid}  {}", shown(name))
            }
            Self::Move { tid, old_code_addr, new_code_addr, code_size, code_index, .. } => {
                write!(f, "{old_code_addr:#x} to {new_code_addr:#x}, {code_size} bytes  #{code_index} tid {tid}")
            }
            Self::DebugInfo { code_addr, nr_entry, entries } => {
                write!(f, "{code_addr:#x}  {nr_entry} entries")?;
                let first = entries.entries().find(|entry| entry.line > 0);
                first.map_or(Ok(()), |entry| write!(f, ", first {}:{}", shown(entry.name), entry.line))
            }
            Self::Close {} => Ok(()),
            Self::UnwindingInfo { unwind_data_size, eh_frame_hdr_size, mapped_size } => {
                write!(f, "{unwind_data_size} bytes, header {eh_frame_hdr_size}, mapped {mapped_size}")
            }
            Self::Unload { code_addr, code_size } => {
                write!(f, "{code_addr:#x}..{:#x}", code_addr.saturating_add(*code_size))
            }
            Self::Inline { code_addr, code_size, method, parent, name, source } => {
                let end = code_addr.saturating_add(u64::from(*code_size));
                write!(f, "{code_addr:#x}..{end:#x}  method {method} in {parent}  {}", shown(name))?;
                if source.is_empty() { Ok(()) } else { write!(f, " of {}", shown(source)) }
            }
            Self::Method { code_addr, method, source, module } => {
                write!(f, "{code_addr:#x}  method {method} of {} in {}", shown(source), shown(module))
            }
            Self::Lost { event, reason } => write!(f, "event {event}, reason {reason}"),
            Self::Unknown { id } => write!(f, "type {id}"),
        }
    }
}

/// Nanoseconds as seconds, without rounding.
pub(super) fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

fn shown(name: &[u8]) -> String {
    printable(&String::from_utf8_lossy(name)).into_owned()
}

fn as_text<S: Serializer>(name: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(name))
}

#[derive(Serialize)]
struct Entry<'a> {
    addr: u64,
    line: i32,
    discrim: i32,
    #[serde(serialize_with = "as_text")]
    file: &'a [u8],
}

/// As walked, or as repaired where that makes no sense.
fn as_entries<S: Serializer>(info: &DebugInfo<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut walked = info.entries();
    walked.by_ref().for_each(drop);
    let entries = if walked.is_sound() { info.entries() } else { info.repaired().unwrap_or_else(|| info.entries()) };
    serializer.collect_seq(entries.map(|entry| Entry {
        addr: entry.addr,
        line: entry.line,
        discrim: entry.discrim,
        file: entry.name,
    }))
}
