//! Generated code as an ELF file for objdump, gdb and perf: code at its addresses, symbols, lines, unwinding data.
//!
//! ```text
//! ET_EXEC   .text …          runs of functions at their addresses, each a segment; gaps up to 256 bytes are filled
//!           .eh_frame        of all functions, with absolute addresses
//!           .debug_abbrev .debug_info .debug_line .debug_ranges   one unit over all functions with lines
//!           .symtab .strtab .shstrtab
//! ```
//!
//! The code is not held in memory: it is asked for when it is written.

mod layout;
mod lines;
#[cfg(test)]
pub(crate) mod tests;

use std::io::{self, Write};

use object::write::StreamingBuffer;

use jitprof_jitdump::ByteOrder;
use jitprof_jitdump::code::{EhFrame, SourceRows};
use layout::Layout;

/// Code that becomes part of the file.
#[derive(Debug)]
pub struct ElfFunction {
    /// The address of its first byte.
    pub start: u64,
    /// Its bytes, at least one.
    pub size: u64,
    /// Its name as the runtime announced it.
    pub name: String,
    /// The source lines of its addresses.
    pub lines: SourceRows,
    /// The unwinding data that came with it.
    pub eh_frame: Option<EhFrame>,
}

/// What kind of file it becomes.
#[derive(Clone, Copy, Debug)]
pub struct ElfKind {
    /// The ELF machine, one of 64 bits.
    pub machine: u16,
    /// The machine's byte order.
    pub order: ByteOrder,
}

/// Gives a function's bytes in pieces to the writer that it is called with.
pub type CodeSource<'a> = dyn FnMut(&ElfFunction, &mut dyn FnMut(&[u8])) -> io::Result<()> + 'a;

/// What is in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElfAccount {
    /// How many functions the file has.
    pub functions: usize,
    /// Runs of functions: sections of code.
    pub sections: usize,
    /// How many rows of source lines it has.
    pub rows: usize,
    /// Functions with unwinding data.
    pub frames: usize,
    /// Functions left out because there are too many runs.
    pub left_out: usize,
}

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// The output cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
    /// The code of a function could not be had.
    #[error("cannot read code from the dump: {0}")]
    Code(io::Error),
    /// It does not fit the format.
    #[error("the ELF file cannot be made: {0}")]
    Format(String),
}

/// Writes the file. `functions` are ordered by address and do not overlap; `code` is called for each in that order and
/// gives exactly its bytes, in pieces.
///
/// Memory: names, rows and unwinding data twice.
///
/// # Errors
/// [`ElfError`].
pub fn write_elf(
    kind: ElfKind,
    functions: &[ElfFunction],
    code: &mut CodeSource<'_>,
    out: &mut dyn Write,
) -> Result<ElfAccount, ElfError> {
    let layout = Layout::of(kind, functions)?;
    let mut buffer = StreamingBuffer::new(out);
    let account = layout.write(&mut buffer, code)?;
    buffer.result()?;
    Ok(account)
}
