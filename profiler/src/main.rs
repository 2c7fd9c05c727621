//! The `jitprof` command.
fn main() {}
