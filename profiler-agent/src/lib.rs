//! `libjitprof_agent.so`: the collector that runtimes load for Intel's JIT profiling API. It lives in somebody else's
//! process, and writes what is announced there into a jitdump that `jitprof`, `perf` and others read.
//!
//! ```text
//! NotifyEvent ─▶ event    the structure's fields          ┐ every byte behind a pointer of the runtime is copied with
//! itt module  ─▶ module   the object's functions          ┘ memory::read, which fails where a load would crash
//!                  ▼
//!                collector  methods, regions, inlines ─▶ record (bytes) ─▶ dump: one write(2) an event
//! ```
//!
//! What holds everywhere: nothing here ends the process, waits for anything but the disk, or grows without a bound.
//! `process` keeps panics inside, gives a forked child a dump of its own, and falls silent after the first failure.
//! The use of it is described in [docs/reference/jit-api.md].
//!
//! [docs/reference/jit-api.md]: https://github.com/jitprof/jitprof/blob/main/docs/reference/jit-api.md

mod collector;
mod dump;
mod event;
mod exports;
mod inlines;
mod itt;
mod memory;
mod methods;
mod module;
mod process;
mod record;
mod regions;
mod report;
mod rows;
mod sys;
mod unwinding;

pub use exports::{__itt_api_init, Initialize, NotifyEvent};
