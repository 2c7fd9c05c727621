#![doc = include_str!("../README.md")]
//!
//! # Where things are
//!
//! | module | what |
//! |---|---|
//! | [`unwind`] | the step, and the traits of what it reads: [`StackMemory`](unwind::StackMemory) and [`UnwindRules`](unwind::UnwindRules) |
//! | [`row`] | rules and the 8 bytes that they are written as |
//! | [`machine`], [`stop`], [`units`] | whose code it is; why a walk ended; numbers that must not be mixed up |
//! | [`table`] | keys and values of the maps in which rows are found, and how they are replaced under their readers |
//! | [`page`] | how a page's rows lie there, and their index |
//! | [`sample`], [`taken`], [`listed`], [`snapshot`] | records of the ring buffer |
//! | [`registrations`] | records of the other one: calls that tell of generated code |
//! | [`config`], [`limits`] | what both sides agree on |
#![no_std]

pub mod allowance;
pub mod config;
pub mod limits;
pub mod listed;
pub mod machine;
pub mod page;
pub mod registrations;
pub mod row;
pub mod sample;
pub mod snapshot;
pub mod stop;
pub mod table;
pub mod taken;
pub mod units;
pub mod unwind;
