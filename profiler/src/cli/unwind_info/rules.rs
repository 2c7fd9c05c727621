//! Rules in words, and the rows around an address.

use jitprof_common::row::{CfaKind, FpKind, ReturnAddress, Row, Rule};
use serde::Serialize;

use jitprof_unwind::{RowTable, Stretch, kind_name};

/// Rows shown before and behind the one that holds.
const AROUND: usize = 4;

/// A row and the stretch that it holds for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct RowAt {
    /// The addresses for which the rule holds.
    pub(super) at: Stretch,
    /// The rule in words.
    pub(super) rule: String,
    /// Whether it is the row asked for.
    pub(super) holds: bool,
}

/// The rows around an address, ascending.
pub(super) fn rows_around(table: &RowTable, address: u64) -> Vec<RowAt> {
    let mut rows: Vec<RowAt> = Vec::new();
    let mut left = AROUND;
    let starts = [(0, Rule::GAP)].into_iter().chain(table.rows());
    let ends = table.rows().map(|(address, _)| address).chain([u64::MAX]);
    for ((start, rule), end) in starts.zip(ends).filter(|((start, _), end)| start < end) {
        let holds = (start..end).contains(&address);
        if start > address {
            if left == 0 {
                break;
            }
            left -= 1;
        } else if rows.len() > AROUND {
            rows.remove(0);
        }
        rows.push(RowAt { at: Stretch { start, end }, rule: describe(rule), holds });
    }
    rows
}

/// A rule in a line.
pub(super) fn describe(rule: Rule) -> String {
    let cfa = signed(rule.cfa_offset);
    let place = match rule.cfa {
        CfaKind::Sp => format!("cfa = sp{cfa}"),
        CfaKind::SpFar => format!("cfa = sp + {}", Row(rule.encode(0)).far_offset_bytes()),
        CfaKind::Fp | CfaKind::FpAway => format!("cfa = fp{cfa}"),
        CfaKind::FpDeref => format!("cfa = *(fp{cfa})"),
        CfaKind::FpSender => format!("cfa = *(fp{cfa}), ra = *(fp + 8), fp = *fp"),
        CfaKind::SpDeref => format!("cfa = *(sp{cfa}) + 8"),
        CfaKind::Parked => format!("cfa = parked sp{cfa}"),
        CfaKind::SpSaved => {
            let (slot, beyond) = Row(rule.encode(0)).saved_sp_bytes();
            format!("cfa = *(sp + {slot}) + {beyond}")
        }
        CfaKind::Plt | CfaKind::Signal | CfaKind::Outermost | CfaKind::Unsupported | CfaKind::Gap => {
            return kind_name(rule.cfa).to_owned();
        }
    };
    let ra = match rule.return_address {
        // What every rule of x86-64 says.
        ReturnAddress::BelowCfa => None,
        ReturnAddress::LinkRegister | ReturnAddress::NearFp(_) => Some(return_address(rule)),
    };
    [Some(place), saved_fp(rule), ra.map(|place| format!("ra = {place}"))]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ")
}

/// Where the return address is, in words.
fn return_address(rule: Rule) -> String {
    match rule.return_address {
        ReturnAddress::BelowCfa => "*(cfa - 8)".to_owned(),
        ReturnAddress::LinkRegister => "lr".to_owned(),
        ReturnAddress::NearFp(slots) => format!("*(cfa{})", signed(rule.fp_offset.saturating_add(slots.into()))),
    }
}

/// How the caller is found by a rule, in words.
pub(super) fn step(rule: Rule) -> String {
    match rule.cfa {
        CfaKind::Gap => "no row: the frame pointer is believed if sp <= fp < sp + 1 MiB and fp is a multiple of 8; \
                         then the return address is *(fp + 8) and the caller's fp is *fp. Else the stack ends here \
                         with \"no frame pointer\""
            .to_owned(),
        CfaKind::Plt => {
            "the return address is *sp, or *(sp + 8) from the 11th byte of the slot on; fp is unchanged".to_owned()
        }
        CfaKind::Signal => "the interrupted registers are read from the signal frame at sp".to_owned(),
        CfaKind::Outermost => "none: this function has no caller, the stack is complete here".to_owned(),
        CfaKind::Unsupported => "a rule that rows cannot express: if the frame pointer leads to code it is used, else \
                                 the stack ends here with \"unsupported rule\""
            .to_owned(),
        CfaKind::FpSender => {
            let offset = signed(rule.cfa_offset);
            format!("the return address is *(fp + 8), fp = *fp, and the caller's sp was saved at fp{offset}")
        }
        CfaKind::Parked => {
            let offset = signed(rule.cfa_offset);
            format!("the thread's own sp is parked where its runtime's tables lead; the caller's is that{offset}")
        }
        CfaKind::Sp
        | CfaKind::SpFar
        | CfaKind::Fp
        | CfaKind::FpAway
        | CfaKind::FpDeref
        | CfaKind::SpDeref
        | CfaKind::SpSaved => {
            let fp = saved_fp(rule).unwrap_or_else(|| "fp is unchanged".to_owned());
            let cfa = describe(Rule { fp: FpKind::Same, return_address: ReturnAddress::BelowCfa, ..rule });
            let ra = return_address(rule);
            format!("{cfa}; the return address is {ra}, the caller's sp is cfa, {fp}")
        }
    }
}

fn saved_fp(rule: Rule) -> Option<String> {
    let offset = signed(rule.fp_offset);
    match rule.fp {
        FpKind::Same => None,
        FpKind::AtCfa => Some(format!("fp = *(cfa{offset})")),
        FpKind::AtFp => Some(format!("fp = *(fp{offset})")),
        FpKind::Lost => Some("fp lost".to_owned()),
    }
}

/// ` + 16`, ` - 8` or nothing, for an offset in words.
fn signed(words: i16) -> String {
    let bytes = i64::from(words) * 8;
    match bytes {
        0 => String::new(),
        1.. => format!(" + {bytes}"),
        _ => format!(" - {}", bytes.unsigned_abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jitprof_unwind::RowTableBuilder;

    #[test]
    fn a_rule_reads_as_its_equation() {
        assert_eq!(describe(Rule::FRAME_POINTER), "cfa = fp + 16, fp = *(cfa - 16)");
        assert_eq!(describe(Rule::with_cfa(CfaKind::SpDeref, -8)), "cfa = *(sp - 8) + 8");
        assert_eq!(describe(Rule::with_saved_sp(0x98, 56)), "cfa = *(sp + 152) + 56");
        assert_eq!(describe(Rule::LINK_ENTRY), "cfa = sp, ra = lr");
        let saved = Rule::with_cfa(CfaKind::Sp, 32).with_fp(FpKind::AtCfa, -32).with_return_address(-24);
        assert_eq!(describe(saved), "cfa = sp + 32, fp = *(cfa - 32), ra = *(cfa - 24)");
        assert_eq!(describe(Rule::GAP), "gap");
        assert_eq!(
            step(Rule::ENTRY),
            "cfa = sp + 8; the return address is *(cfa - 8), the caller's sp is cfa, fp is unchanged"
        );
    }

    #[test]
    fn the_row_that_holds_stands_among_its_neighbours() {
        let mut builder = RowTableBuilder::default();
        let rules = (0..20_u64).map(|index| (0x1000 + index, Rule::with_cfa(CfaKind::Sp, 8 + index.cast_signed() * 8)));
        builder.add(0x1000..0x1014, rules);
        let table = builder.finish().0;
        let rows = rows_around(&table, 0x100a);
        assert_eq!(rows.len(), 2 * AROUND + 1);
        let held: Vec<_> = rows.iter().filter(|row| row.holds).collect();
        assert_eq!(held.len(), 1);
        assert_eq!((held[0].at, held[0].rule.as_str()), (Stretch { start: 0x100a, end: 0x100b }, "cfa = sp + 88"));
        let before = rows_around(&table, 0x10);
        assert_eq!((before[0].holds, before[0].rule.as_str(), before[0].at.end), (true, "gap", 0x1000));
        assert!(rows_around(&table, 0x2000).last().unwrap().holds);
    }
}
