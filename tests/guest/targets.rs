//! Programs to profile that need nothing but a kernel.

use std::hint::black_box;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Frames of [`descend`] on the stack of almost every sample: more than tail calls at 16 turns would reach, fewer than
/// a sample holds.
pub(crate) const DEPTH: u32 = 600;

/// Says that it is ready, then does `work` again and again for so many seconds.
pub(crate) fn run(seconds: &str, work: fn() -> Result<()>) -> ExitCode {
    let done = || -> Result<()> {
        let end = Instant::now() + Duration::from_secs(seconds.parse()?);
        println!("ready pid={}", std::process::id());
        std::io::stdout().flush()?;
        while Instant::now() < end {
            work()?;
        }
        Ok(())
    };
    match done() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Is in the kernel most of the time: it reads so much at once that the ways in and out are next to none of it. Interrupts
/// are off there, and a sample that is due is taken behind the system call. With a 16th of it, and a new buffer for every
/// 100 reads, 0.56 to 0.66 of samples on emulated AArch64 were in the copy.
pub(crate) fn read_zeros() -> Result<()> {
    let mut zeros = std::fs::File::open("/dev/zero").context("/dev/zero")?;
    let mut buffer = vec![0; 1 << 22];
    for _ in 0..1000 {
        zeros.read_exact(&mut buffer)?;
    }
    black_box(&buffer);
    Ok(())
}

/// Is deep in a recursion most of the time.
pub(crate) fn descend() -> Result<()> {
    black_box(descend_to(DEPTH));
    Ok(())
}

#[inline(never)]
fn descend_to(depth: u32) -> u64 {
    if depth == 0 {
        return (0..black_box(10_000_000_u64)).fold(0, |sum, number| black_box(sum ^ number));
    }
    // Used after the call, so that no jump takes the call's place.
    black_box(descend_to(black_box(depth - 1))).wrapping_add(1)
}
