//! jitprof
#![no_std]
