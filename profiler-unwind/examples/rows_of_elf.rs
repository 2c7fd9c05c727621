//! Prints the unwind rows of a program or library: from which address on the caller's frame is found how.
//!
//! ```text
//! cargo run --example rows_of_elf -- /bin/true            all rows, by the file's own addresses
//! cargo run --example rows_of_elf -- /bin/true 0x4a20     the row that holds at an address
//! ```

use std::error::Error;
use std::fs::File;
use std::io::Write as _;

use jitprof_common::row::{CfaKind, FpKind, ReturnAddress, Rule};
use jitprof_unwind::{Coverage, rows_of_elf};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: rows_of_elf FILE [ADDRESS]")?;
    let elf = rows_of_elf(&File::open(path)?)?;
    let mut out = std::io::stdout().lock();
    if let Some(address) = arguments.next() {
        let address = u64::from_str_radix(address.trim_start_matches("0x"), 16)?;
        writeln!(out, "{address:#x} {}", shown(elf.table.rule_at(address)))?;
        return Ok(());
    }
    for (address, rule) in elf.table.rows() {
        writeln!(out, "{address:#x} {}", shown(rule))?;
    }
    let code: Vec<_> = elf.segments.iter().map(|segment| segment.addresses()).collect();
    let covered = Coverage::of(&elf.table, &code, 0);
    eprintln!(
        "{:?}: {} functions, {} rows in {} bytes; {:.1} % of the code covered",
        elf.machine,
        elf.stats.fdes,
        elf.table.len(),
        elf.table.bytes(),
        100.0 * covered.share()
    );
    Ok(())
}

/// A rule as its equations; offsets in bytes.
fn shown(rule: Rule) -> String {
    let bytes = |words: i16| i64::from(words) * 8;
    let cfa = match rule.cfa {
        CfaKind::Gap => return "no row: the frame pointer is tried".to_owned(),
        CfaKind::Outermost => return "no caller".to_owned(),
        CfaKind::Signal => return "registers as the kernel has left them at sp".to_owned(),
        CfaKind::Unsupported => return "a rule that rows cannot express".to_owned(),
        CfaKind::Plt => return "cfa = sp + 8, or 16 behind the slot's push".to_owned(),
        CfaKind::Sp => format!("cfa = sp + {}", bytes(rule.cfa_offset)),
        CfaKind::SpFar => format!("cfa = sp + 256 KiB + {}", u32::from(rule.cfa_offset.cast_unsigned()) * 8),
        CfaKind::Fp | CfaKind::FpAway => format!("cfa = fp + {}", bytes(rule.cfa_offset)),
        CfaKind::FpSender => format!("cfa = *(fp + {}), ra and fp at fp", bytes(rule.cfa_offset)),
        CfaKind::FpDeref => format!("cfa = *(fp + {})", bytes(rule.cfa_offset)),
        CfaKind::SpDeref => format!("cfa = *(sp + {}) + 8", bytes(rule.cfa_offset)),
        CfaKind::Parked => format!("cfa = parked sp + {}", bytes(rule.cfa_offset)),
        CfaKind::SpSaved => "cfa by a saved stack pointer".to_owned(),
    };
    let fp = match rule.fp {
        FpKind::Same => String::new(),
        FpKind::AtCfa => format!(", fp = *(cfa + {})", bytes(rule.fp_offset)),
        FpKind::AtFp => format!(", fp = *(fp + {})", bytes(rule.fp_offset)),
        FpKind::Lost => ", fp lost".to_owned(),
    };
    let return_address = match rule.return_address {
        ReturnAddress::BelowCfa => "*(cfa - 8)".to_owned(),
        ReturnAddress::LinkRegister => "lr".to_owned(),
        ReturnAddress::NearFp(slots) => format!("*(cfa + {})", bytes(rule.fp_offset) + i64::from(slots) * 8),
    };
    format!("{cfa}{fp}, return address = {return_address}")
}
