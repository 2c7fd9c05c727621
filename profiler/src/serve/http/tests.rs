//! Tests of the HTTP side as a whole.
