//! What crosses the border between jitprof's kernel part and its userspace: records, limits, stop reasons, the
//! configuration's names, and the unwinding step that both sides run.
#![no_std]

pub mod config;
pub mod late;
pub mod limits;
pub mod machine;
pub mod row;
pub mod sample;
pub mod stop;
pub mod table;
pub mod unwind;
