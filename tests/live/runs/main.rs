//! Live tests: real runtimes, a real kernel, the real binary. They need root; `cargo xtask test` runs them.
//!
//! The split of every target is known: its hot leaf takes 75 % of the time.

mod cli;
mod containers;
mod erlang;
mod hostile;
mod jitdemo;
mod node;
mod php;
mod python;
mod unwind_info;
mod wasmtime;
