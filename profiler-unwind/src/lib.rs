#![doc = include_str!("../README.md")]
//!
//! # Where rows come from
//!
//! ```text
//! ELF file, vDSO ── elf ──┐
//!                         ├─ eh_frame ──┐
//! dump's EH frame ─ jit ──┘             ├─▶ RowTableBuilder ─▶ RowTable ─▶ pages of 8-byte rows
//! code bytes ────────────────── synth ──┘
//! ```
//!
//! | | |
//! |---|---|
//! | [`rows_of_elf`], [`rows_of_elf_bytes`] | a file, an image in memory |
//! | [`functions_of_elf`] | where the functions of a file are |
//! | [`rows_of_jit`] | a function with the EH frame that a runtime has recorded |
//! | [`rows_of_code`], [`rows_of_called_code`], [`rows_of_sized_code`] | a function by its bytes |
//! | [`RowTable`], [`RowTableBuilder`] | the result, and how pieces of code become one |
//! | [`JitSpace`] | the functions of a process that generates code, over time |
//! | [`Templates`] | code by its bytes, to recognise copies |
//! | [`Coverage`], [`RowStats`] | what a table says, and what was left out of it |
//! | [`elf`] | the headers of ELF files |
//!
//! Everything but [`rows_of_elf`], which reads a file with bounded reads, is pure. All input is the target's choice:
//! nothing here panics on it, memory and time are bounded by its length and by the limits beside each reader, and
//! what is left out is counted in [`RowStats`].
//!
//! What depends on the machine: the registers in `machine`, linkage tables in `linkage`, what signal handlers return to in
//! `sigreturn`, the instructions in `synth`.
//! [docs/design/unwinding.md](https://github.com/jitprof/jitprof/blob/main/docs/design/unwinding.md) says how they come to
//! be, and what rows cannot express.

mod augmentation;
mod builder;
mod code_rows;
mod coverage;
mod eh_frame;
pub mod elf;
mod expression;
mod file;
mod jit;
mod jit_history;
mod jit_space;
mod linkage;
mod loop_code;
mod machine;
mod program;
mod rows;
mod sigreturn;
mod stats;
mod synth;
mod templates;

#[cfg(test)]
mod tests;

pub use builder::RowTableBuilder;
pub use coverage::{Coverage, KindCount, Stretch, kind_name};
pub use file::{ElfRows, RowsError, functions_of_elf, rows_of_elf, rows_of_elf_bytes};
pub use jit::{RecordedFrames, rows_of_jit};
pub use jit_space::JitSpace;
pub use loop_code::{LoopFrame, MAX_HELD_BYTES, loop_code_keeps_frame_pointer, rows_of_loop_code};
pub use rows::{Page, RowTable};
pub use sigreturn::{BYTES_BEFORE, MAX_SEARCHED, NUMBER_AND_CALL};
pub use stats::RowStats;
pub use synth::{rows_of_called_code, rows_of_code, rows_of_sized_code};
pub use templates::{Copy, TEMPLATE_BYTES, Templates};
