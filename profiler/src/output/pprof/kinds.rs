//! What pprof has no field for: the kind and tier of a frame, as one number.
//!
//! It stands in a field of its own with a number far behind pprof's, which every reader of protobuf skips.

use crate::symbol::{FrameKind, Tier};

const KINDS: [FrameKind; 7] = [
    FrameKind::Native,
    FrameKind::Kernel,
    FrameKind::Jit,
    FrameKind::Interpreter,
    FrameKind::Builtin,
    FrameKind::Span,
    FrameKind::Note,
];
const TIERS: [Option<Tier>; 5] =
    [None, Some(Tier::Interpreted), Some(Tier::Baseline), Some(Tier::Mid), Some(Tier::Optimized)];

/// Kinds take the lower three bits.
const TIER_SHIFT: u32 = 3;

/// The number; 0 for native code, which is not written.
pub(super) fn code(kind: FrameKind, tier: Option<Tier>) -> u64 {
    let place = |at: Option<usize>| at.and_then(|at| u64::try_from(at).ok()).unwrap_or(0);
    let kind = place(KINDS.iter().position(|known| *known == kind));
    kind | place(TIERS.iter().position(|known| *known == tier)) << TIER_SHIFT
}

/// What a number means; one that a later version wrote counts as native code.
pub(super) fn decode(code: u64) -> (FrameKind, Option<Tier>) {
    let entry = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    let kind = KINDS.get(entry(code & 7)).copied().unwrap_or(FrameKind::Native);
    let tier = TIERS.get(entry(code >> TIER_SHIFT)).copied().flatten();
    (kind, tier)
}

/// What a frame of another program's file is, by the name of its module.
pub(crate) fn guessed(module: Option<&str>) -> FrameKind {
    match module {
        Some(path) if path.starts_with("[kernel") || path.starts_with("[guest.kernel") => FrameKind::Kernel,
        Some("[vmlinux]" | "vmlinux") => FrameKind::Kernel,
        Some(path) if path.starts_with("[jit") || path.starts_with("/tmp/perf-") || path == "//anon" => FrameKind::Jit,
        _ => FrameKind::Native,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_and_tier_has_a_number_of_its_own() {
        for kind in KINDS {
            for tier in TIERS {
                assert_eq!(decode(code(kind, tier)), (kind, tier));
            }
        }
        assert_eq!(code(FrameKind::Native, None), 0);
        assert_eq!(decode(u64::MAX), (FrameKind::Native, None));
    }
}
