//! Unwind rows: from call frame information, or from code bytes, to the tables that the kernel part searches.
//!
//! ```text
//! ELF file, vDSO ── elf ──┐
//!                         ├─ eh_frame ──┐
//! dump's EH frame ─ jit ──┘             ├─▶ RowTableBuilder ─▶ RowTable ─▶ pages of 8-byte rows
//! code bytes ────────────────── synth ──┘
//! ```
//!
//! Everything but [`rows_of_elf`], which reads a file with bounded reads, is pure. All input is the target's choice:
//! nothing here panics on it, memory and time are bounded by its length and by the limits beside each reader, and
//! what is left out is counted in [`RowStats`].
//!
//! For x86-64 and AArch64. What depends on the machine: the registers in `machine`, linkage tables in `linkage`, the
//! instructions in `synth`.

mod augmentation;
mod builder;
mod coverage;
mod eh_frame;
mod elf;
mod expression;
mod jit;
mod jit_history;
mod jit_space;
mod linkage;
mod machine;
mod program;
mod rows;
mod stats;
mod synth;

#[cfg(test)]
mod tests;

pub use builder::RowTableBuilder;
pub use coverage::{Coverage, KindCount, Stretch, kind_name};
pub use elf::{ElfRows, RowsError, rows_of_elf, rows_of_elf_bytes};
pub use jit::rows_of_jit;
pub use jit_space::JitSpace;
pub use rows::{Page, RowTable};
pub use stats::RowStats;
pub use synth::{rows_of_called_code, rows_of_code};
