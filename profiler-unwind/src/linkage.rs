//! Rows of linkage tables (`.plt`) that no call frame information covers: lld writes none, nobody does for AArch64.

use std::ops::Range;

use jitprof_common::machine::Machine;
use jitprof_common::row::{CfaKind, Rule};

use super::builder::RowTableBuilder;
use crate::elf::{Layout, SHT_NOBITS, Section, Source};

/// `stp x16, x30, [sp, #-16]!`: how an AArch64 table's first slot begins, behind a `bti c` if it has one.
const STP_X16_X30: [u8; 4] = 0xa9bf_7bf0_u32.to_le_bytes();
/// Bytes of that slot.
const ARM_FIRST_SLOT: u64 = 32;
/// `adrp x16, page`, whatever the page: how every other slot begins, behind a `bti c` if it has one.
const ADRP_X16: u32 = 0x9000_0010;
const ADRP_MASK: u32 = 0x9f00_001f;

/// Adds the rows. Where call frame information covers a slot, its entries came first and win.
pub(super) fn add_linkage_tables(
    source: &Source<'_>,
    layout: &Layout,
    machine: Machine,
    code: &[Range<u64>],
    builder: &mut RowTableBuilder,
) {
    for section in layout.sections.iter().filter(|section| section.kind != SHT_NOBITS) {
        let range = section.svma..section.svma.saturating_add(section.size);
        if !code.iter().any(|code| code.start <= range.start && range.end <= code.end) {
            continue;
        }
        let rules = match machine {
            Machine::X86_64 => x86_rules(source, section),
            Machine::Aarch64 => arm_rules(source, section),
        };
        // Other code is for those who look for what nothing covers.
        if rules.is_empty() {
            continue;
        }
        builder.add(range.clone(), rules.into_iter().map(|(offset, rule)| (range.start.saturating_add(offset), rule)));
    }
}

fn x86_rules(source: &Source<'_>, section: &Section) -> Vec<(u64, Rule)> {
    let entered = |offset| Rule::with_cfa(CfaKind::Sp, offset);
    match section.name.as_str() {
        // The first slot is jumped to from the others, with two words on the stack, and pushes a third.
        ".plt" if is_classic(source, section.file_offset) => vec![(0, entered(16)), (6, entered(24)), (16, Rule::PLT)],
        ".plt.sec" | ".plt.got" => vec![(0, Rule::ENTRY)],
        _ => vec![],
    }
}

/// Whether the second slot is `jmp *x(%rip); push n; jmp`.
fn is_classic(source: &Source<'_>, file_offset: u64) -> bool {
    let slot = file_offset.checked_add(16).and_then(|offset| source.read(offset, 16).ok());
    slot.is_some_and(|slot| matches!(slot.as_slice(), [0xff, 0x25, _, _, _, _, 0x68, _, _, _, _, 0xe9, ..]))
}

/// The slots only jump. The first one is jumped to from them and saves the return address on the stack.
fn arm_rules(source: &Source<'_>, section: &Section) -> Vec<(u64, Rule)> {
    let first = source.read(section.file_offset, section.size.min(8)).unwrap_or_default();
    let is_adrp_x16 = |word: &[u8; 4]| u32::from_le_bytes(*word) & ADRP_MASK == ADRP_X16;
    let saved = |offset| (offset, Rule::with_cfa(CfaKind::Sp, 16));
    let (entry, slots) = ((0, Rule::LINK_ENTRY), (ARM_FIRST_SLOT, Rule::LINK_ENTRY));
    match (section.name.as_str(), first.as_chunks().0) {
        (".plt", [STP_X16_X30, ..]) => vec![entry, saved(4), slots],
        (".plt", [_, STP_X16_X30]) => vec![entry, saved(8), slots],
        // A static program's slots, which find libc's variants for the CPU: there is no first slot.
        (".plt" | ".iplt", words) if words.iter().any(is_adrp_x16) => vec![entry],
        _ => vec![],
    }
}
