//! Unwinding data as a jitdump has it: one function's, behind its code.
//!
//! A reader takes an UNWINDING_INFO record for the next LOAD, and its `.eh_frame` to lie behind the code, as perf's own
//! writers lay it out. LLVM has one section for the whole object, elsewhere. So each function gets the two entries that
//! it needs, with the function's address in them changed to what leads there from the new place:
//!
//! ```text
//! code .. | round up to 8 | CIE | FDE | 0u32 | .eh_frame_hdr of 20 bytes, with a table of one entry
//! ```

use gimli::{BaseAddresses, CieOrFde, EhFrame, NativeEndian, UnwindSection};

use crate::memory;

/// Entries looked at in one section.
const MAX_ENTRIES: usize = 1 << 18;
/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4` and `| DW_EH_PE_sdata8`: what LLVM writes, by code model.
const SDATA4: u8 = 0x1b;
const SDATA8: u8 = 0x1c;

/// The entries of one `.eh_frame`.
#[derive(Debug)]
pub(crate) struct Frames {
    section: Vec<u8>,
    /// By the function's address.
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    function: u64,
    cie: usize,
    fde: usize,
    /// Bytes of the function's address in the entry.
    address_bytes: usize,
}

impl Frames {
    /// Copies the section that lies at `start`.
    pub(crate) fn read(start: u64, size: u64) -> Option<Self> {
        let mut section = Vec::new();
        memory::append(start, usize::try_from(size).ok()?, &mut section).then(|| Self::parse(section, start))
    }

    /// Finds the entries of a section that lies at `start`.
    pub(crate) fn parse(section: Vec<u8>, start: u64) -> Self {
        let bases = BaseAddresses::default().set_eh_frame(start);
        let frame = EhFrame::new(&section, NativeEndian);
        let mut found = Vec::new();
        let mut entries = frame.entries(&bases);
        // Stops at the terminator and at the first entry that makes no sense.
        while found.len() < MAX_ENTRIES
            && let Ok(Some(entry)) = entries.next()
        {
            let CieOrFde::Fde(partial) = entry else { continue };
            let Ok(fde) = partial.parse(EhFrame::cie_from_offset) else { continue };
            let encoding = address_encoding(section.get(fde.cie().offset()..).unwrap_or_default());
            let address_bytes = match encoding {
                Some(SDATA4) => 4,
                Some(SDATA8) => 8,
                _ => continue,
            };
            found.push(Entry {
                function: fde.initial_address(),
                cie: fde.cie().offset(),
                fde: fde.offset(),
                address_bytes,
            });
        }
        found.sort_by_key(|entry| entry.function);
        Self { section, entries: found }
    }

    /// The data of the function at `start`, and how long its header is.
    pub(crate) fn of(&self, start: u64, size: u32) -> Option<(Vec<u8>, usize)> {
        let index = self.entries.binary_search_by_key(&start, |entry| entry.function).ok()?;
        let entry = self.entries.get(index)?;
        let (cie, fde) = (self.entry_bytes(entry.cie)?, self.entry_bytes(entry.fde)?);
        let behind = u64::from(size).next_multiple_of(8);
        let mut data = Vec::with_capacity(cie.len() + fde.len() + 24);
        data.extend_from_slice(cie);
        data.extend_from_slice(fde);
        // Its distance to the common entry, counted from its own second word.
        data.get_mut(cie.len() + 4..cie.len() + 8)?.copy_from_slice(&u32::try_from(cie.len() + 4).ok()?.to_ne_bytes());
        let at = cie.len() + 8;
        let to_code = -i64::try_from(behind.checked_add(u64::try_from(at).ok()?)?).ok()?;
        let field = data.get_mut(at..at + entry.address_bytes)?;
        field.copy_from_slice(to_code.to_ne_bytes().get(..entry.address_bytes)?);
        data.extend_from_slice(&[0; 4]);
        let header = header(data.len(), cie.len(), behind)?;
        data.extend_from_slice(&header);
        Some((data, header.len()))
    }

    /// The whole entry that begins at `at`. Entries of the 64-bit form are not written by LLVM.
    fn entry_bytes(&self, at: usize) -> Option<&[u8]> {
        let length = self.section.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes)?;
        let end = at.checked_add(4)?.checked_add(usize::try_from(length).ok()?)?;
        self.section.get(at..end).filter(|entry| entry.len() >= 16)
    }
}

/// `.eh_frame_hdr` behind `length` bytes of `.eh_frame`, whose FDE begins at `fde`.
fn header(length: usize, fde: usize, behind: u64) -> Option<[u8; 20]> {
    let length = i32::try_from(length).ok()?;
    let words = [
        // To the section, from this word.
        -(length.checked_add(4)?),
        // One entry: the function's and the FDE's distance from the header.
        1,
        -i32::try_from(behind).ok()?.checked_add(length)?,
        i32::try_from(fde).ok()? - length,
    ];
    let mut header = [0; 20];
    // Version 1; the section pc-relative and the table header-relative, in signed words; the count in an unsigned one.
    header[..4].copy_from_slice(&[1, 0x1b, 0x03, 0x3b]);
    for (field, word) in header[4..].chunks_exact_mut(4).zip(words) {
        field.copy_from_slice(&word.to_ne_bytes());
    }
    Some(header)
}

/// How a common entry says that addresses are encoded: the byte that belongs to the `R` of its augmentation.
fn address_encoding(cie: &[u8]) -> Option<u8> {
    let text = cie.get(9..)?;
    let end = text.iter().position(|byte| *byte == 0)?;
    let letters = text.get(..end)?.strip_prefix(b"z")?;
    let mut rest = text.get(end + 1..)?;
    // Code and data alignment, the return address' register, and the length of what follows.
    for _ in 0..4 {
        let length = rest.iter().take(10).position(|byte| byte & 0x80 == 0)? + 1;
        rest = rest.get(length..)?;
    }
    for letter in letters {
        match letter {
            b'R' => return rest.first().copied(),
            b'L' => rest = rest.get(1..)?,
            b'P' => {
                let size = match rest.first()? & 0x0f {
                    0x00 | 0x04 | 0x0c => 8,
                    0x02 | 0x0a => 2,
                    0x03 | 0x0b => 4,
                    _ => return None,
                };
                rest = rest.get(1 + size..)?;
            }
            b'S' | b'B' => {}
            _ => return None,
        }
    }
    None
}
