//! Live tests: real runtimes, a real kernel, the real binary. They need root; `cargo xtask test` runs them.
//!
//! The split of every target is known: its hot leaf takes 75 % of the time.

mod bare;
mod captures;
mod churn;
mod cli;
mod containers;
mod copies;
mod endurance;
mod erlang;
mod frames;
mod gsym;
mod hostile;
mod jit_api;
mod jitdemo;
mod jitdump;
mod joints;
mod newer_java;
mod node;
mod older_python;
mod onednn;
mod page;
mod php;
mod php_bare;
mod php_fpm;
mod pretenders;
mod python;
mod python_bare;
mod python_services;
mod ruby_bare;
mod selection;
mod serve;
mod silence;
mod threads;
mod top;
mod trace;
mod unwind_info;
mod verifying;
mod wasmtime;
