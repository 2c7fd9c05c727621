//! The engine with inputs in any order: samples, task events, answers right, wrong, late and never, lost events, time that
//! goes back, little memory. See `engine/world/chaos.rs` for what is asserted.
#![no_main]

use jitprof::engine::world::chaos;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| chaos::run(bytes));
