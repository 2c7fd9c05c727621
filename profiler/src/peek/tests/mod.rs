//! The pure core against a model of glibc, and the whole against real runtimes.

mod live;
mod model;
