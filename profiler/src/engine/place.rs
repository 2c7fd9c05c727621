//! What lies at an address of a process at a time: asked once, in one order, by all who want to know.

use jitprof_common::sample::FramePc;
use jitprof_common::units::{Avma, FileOffset, MonoNs};
use jitprof_jitdump::code::{CodeHit, CodeOrigin};

use crate::engine::files::Files;
use crate::engine::link::Linked;
use crate::engine::process::Process;
use crate::engine::requests::Requests;
use crate::engine::space::{AddressSpace, Mapped};
use crate::process::MappingKind;
use crate::symbol::SymbolKey;

/// How much later than the sample a record may be and still name it: runtimes stamp a record when they write it, and
/// the code may run before (V8 logs after installing).
const MAX_LATENESS_NS: u64 = 10_000_000;

/// What was read of the tables of a runtime says nothing of the time before.
fn lateness(origin: CodeOrigin) -> u64 {
    if origin == CodeOrigin::Runtime { 0 } else { MAX_LATENESS_NS }
}

/// What lies at an address.
pub(super) enum Place<'a> {
    /// Code that its runtime has announced.
    Announced {
        /// Which.
        hit: CodeHit<'a>,
        /// Whether it was announced later than the sample was taken.
        is_late: bool,
    },
    /// A file, or the vDSO.
    File(&'a Mapped),
    /// Memory that may hold generated code; nothing names it.
    Generated(&'a Mapped),
    /// Memory of the kernel's making, such as `[vsyscall]`.
    Special(&'a Mapped),
    /// Nothing is mapped there.
    Unmapped,
    /// Nothing is known to be mapped there, but not all is known that was mapped then.
    NotKnown,
    /// Nobody knows: the process was gone before it could be looked at.
    Gone,
}

impl<'a> Place<'a> {
    /// Of a user frame. Announced code comes first: V8's builtins lie inside node's own text.
    pub(super) fn of(process: &'a Process, pc: FramePc, time: MonoNs) -> Self {
        if process.is_gone {
            return Self::Gone;
        }
        let addr = Avma(pc.lookup());
        if let Some(nearest) = process.code.map.lookup_nearest(addr, time)
            && nearest.later_by_ns <= lateness(nearest.hit.origin())
        {
            return Self::Announced { hit: nearest.hit, is_late: nearest.later_by_ns > 0 };
        }
        Self::mapped(&process.space, addr, time)
    }

    /// By what is mapped there alone, whatever is announced.
    pub(super) fn mapped(space: &'a AddressSpace, addr: Avma, time: MonoNs) -> Self {
        match space.lookup(addr, time) {
            Some(mapped) => Self::of_mapping(mapped),
            None if space.may_lack(time) => Self::NotKnown,
            None => Self::Unmapped,
        }
    }

    /// The same for all of a mapping.
    pub(super) fn of_mapping(mapped: &'a Mapped) -> Self {
        match mapped.mapping.kind {
            MappingKind::File | MappingKind::Vdso => Self::File(mapped),
            _ if mapped.mapping.may_hold_generated_code() => Self::Generated(mapped),
            _ => Self::Special(mapped),
        }
    }
}

/// Under which key an address of a file is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKey {
    /// This one.
    Key(SymbolKey),
    /// Which file it is is not known yet: nothing is said until it is, or until it is too late.
    NotYet,
    /// The file is not to be had.
    Nothing,
    /// What lies there by now is not what ran.
    Replaced,
}

impl FileKey {
    /// Of an address in a mapping of a file.
    pub(super) fn of(files: &Files, mapped: &Mapped, addr: Avma) -> Self {
        let Some(linked) = mapped.link.get() else { return Self::NotYet };
        let mapping = &mapped.mapping;
        let offset = match mapping.kind {
            MappingKind::Vdso => addr.0.checked_sub(mapping.start.0).map(FileOffset),
            _ => mapping.file_offset_of(addr),
        };
        match (linked.file(), offset) {
            (None, _) if matches!(linked, Linked::Replaced) => Self::Replaced,
            (Some(file), Some(offset)) => Self::Key(SymbolKey::File(files.original(file), offset)),
            _ => Self::Nothing,
        }
    }

    /// The same; sees to it that the file is looked at.
    pub(super) fn want(
        files: &mut Files,
        process: &Process,
        mapped: &Mapped,
        addr: Avma,
        requests: &mut Requests,
    ) -> Self {
        // Most are followed long since.
        if mapped.link.get().is_none() {
            files.follow(process, mapped, requests);
        }
        Self::of(files, mapped, addr)
    }
}
