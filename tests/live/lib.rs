//! Harness of the live tests.
