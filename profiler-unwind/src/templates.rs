//! Copies of recorded code: runtimes stamp out one template many times (CPython's trampolines), and not each copy has a
//! record. Code with the same bytes has the same rows.

use std::collections::HashMap;

use super::rows::RowTable;

/// Length of a template in bytes. CPython's has 11 (16 with `endbr64`); a shorter one could be a piece of anything, a
/// longer one is no template.
pub const TEMPLATE_BYTES: std::ops::RangeInclusive<usize> = 11..=256;
/// Different templates of one process.
const MAX_TEMPLATES: usize = 1024;
/// Code is found by so many first bytes.
const PREFIX: usize = 8;
/// Runtimes place their functions at multiples of this at least: a copy lies as its template does.
const ALIGNMENT: u64 = 16;

/// The different pieces of code that have been recorded with rows.
#[derive(Clone, Debug, Default)]
pub struct Templates {
    by_prefix: HashMap<[u8; PREFIX], Vec<Template>>,
    count: usize,
    longest: usize,
}

#[derive(Clone, Debug)]
struct Template {
    start: u64,
    code: Box<[u8]>,
    rows: RowTable,
}

/// A copy of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Its first byte.
    pub start: u64,
    /// Its length in bytes.
    pub size: usize,
    /// Its rows.
    pub rows: RowTable,
}

impl Templates {
    /// Takes up a recorded function that may be one; not if the same code is known already, or too much.
    pub fn add(&mut self, start: u64, code: &[u8], rows: &RowTable) {
        let Some(prefix) = code.first_chunk().filter(|_| TEMPLATE_BYTES.contains(&code.len())) else { return };
        let same_prefix = self.by_prefix.entry(*prefix).or_default();
        if self.count >= MAX_TEMPLATES || same_prefix.iter().any(|known| *known.code == *code) {
            return;
        }
        same_prefix.push(Template { start, code: code.into(), rows: rows.clone() });
        self.count += 1;
        self.longest = self.longest.max(code.len());
    }

    /// Bytes before and behind an address that a copy around it may reach to; 0 without templates.
    pub fn reach(&self) -> usize {
        self.longest
    }

    /// The copy that covers `address`, in memory that has these bytes from `start` on. Of several the longest; none if
    /// two of the same length disagree. Cost: a hash look-up for each sixteenth byte of the longest template.
    pub fn find(&self, start: u64, bytes: &[u8], address: u64) -> Option<Copy> {
        let offset = usize::try_from(address.checked_sub(start)?).ok()?;
        let mut found: Option<Copy> = None;
        let mut ambiguous = false;
        for at in offset.saturating_sub(self.longest)..=offset {
            let rest = bytes.get(at..)?;
            let Some(prefix) = rest.first_chunk() else { break };
            let here = start.checked_add(u64::try_from(at).ok()?)?;
            for template in self.by_prefix.get(prefix).into_iter().flatten() {
                let covers = offset - at < template.code.len() && rest.starts_with(&template.code);
                if !covers || here % ALIGNMENT != template.start % ALIGNMENT {
                    continue;
                }
                let size = template.code.len();
                let known = found.as_ref().map_or(0, |copy| copy.size);
                ambiguous = size == known || (ambiguous && size < known);
                if size > known {
                    let rows = template.rows.shifted(here.wrapping_sub(template.start));
                    found = Some(Copy { start: here, size, rows });
                }
            }
        }
        found.filter(|_| !ambiguous)
    }
}
