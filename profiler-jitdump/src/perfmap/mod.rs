//! Perf maps: the text file `/tmp/perf-PID.map` in which a runtime lists its generated code, one line a function.
//!
//! ```text
//! line  = start " " size " " name "\n"
//! start = hexadecimal address        size = hexadecimal length in bytes        name = the rest of the line
//! ```
//!
//! Deviations seen in real producers, all accepted:
//!
//! | producer | deviation |
//! |---|---|
//! | Erlang/OTP 25, wasmtime 50 | `0x` before the address, none before the size |
//! | JDK 17 (`Compiler.perfmap`) | zero-padded addresses, names with spaces |
//! | .NET 8 | upper-case digits, names with spaces and brackets |
//! | oneDNN 3, wasmtime 50 | the same line twice |
//! | Node 24 | a newline inside the name of a RegExp: its second half is a bad line, the first half names the code |
//! | all | a torn last line while the file grows |
//!
//! There are no times and no line that ends a function: a later line over the same bytes replaces the earlier one.
//! See [`PerfMapStream`] for the time a line is given.

mod line;
mod tail;

pub use line::{LineError, MapLine, parse_line};
pub use tail::{PerfMapStats, PerfMapStream, Progress, TRAIL_BYTES};
