//! Builds, tests, measures and packages jitprof.
fn main() {}
