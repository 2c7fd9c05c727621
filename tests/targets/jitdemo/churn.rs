//! Functions that are emitted, run, dropped and emitted anew at the same addresses, thousands a second.
//!
//! ```text
//! call -> outer_N -> inner_of_N
//! ```
//!
//! A pair lives in a slot until another pair is emitted there, with other frame sizes: unwound with its predecessor's
//! rules it has a wrong caller. Each name says who the true caller is. The announcement of a pair is complete before it
//! is called for the first time.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::announce::{Announcer, now_ns};
use crate::assembler::{Frames, Function};
use crate::functions;
use crate::memory::Region;
use crate::run::{Compiled, compiled, image};

/// Bytes of a slot: the inner function at its start, the outer one in its second half.
const SLOT_BYTES: usize = 1024;
/// Rounds of a call, at least and at most: 5 to 50 us.
const ROUNDS: (u32, u32) = (1_000, 10_000);

/// The slots and what emits into them.
pub(crate) struct Churn {
    region: Region,
    slots: usize,
    frames: Frames,
    /// Pairs emitted so far.
    emitted: u64,
    noise: u64,
}

impl Churn {
    /// Maps the slots and fills each with a pair.
    pub(crate) fn new(slots: u32, frames: Frames, announcer: &mut Announcer) -> Result<Self> {
        let slots = usize::try_from(slots)?;
        let mut region = Region::new(slots.checked_mul(SLOT_BYTES).context("--slots is too large")?)?;
        region.make_writable_and_executable()?;
        let mut new = Self { region, slots, frames, emitted: 0, noise: now_ns() };
        for _ in 0..slots {
            new.emit(announcer)?;
        }
        Ok(new)
    }

    /// Emits `pairs` pairs a second and calls living ones at random until the time has come. Returns the calls.
    pub(crate) fn run(&mut self, pairs: u32, deadline_ns: u64, announcer: &mut Announcer) -> Result<u64> {
        let every_ns = Duration::from_secs(1).as_nanos() as u64 / u64::from(pairs);
        let mut next = now_ns();
        let mut calls = 0_u64;
        loop {
            let now = now_ns();
            if now >= deadline_ns {
                return Ok(calls);
            }
            // After a pause by the machine the pairs that were missed are not made up for at once.
            next = next.max(now.saturating_sub(10 * every_ns));
            while next <= now {
                self.emit(announcer)?;
                next += every_ns;
            }
            let slot = usize::try_from(self.random() % self.slots as u64)?;
            let rounds = ROUNDS.0 + u32::try_from(self.random() % u64::from(ROUNDS.1 - ROUNDS.0))?;
            call(compiled(self.region.address(slot * SLOT_BYTES + SLOT_BYTES / 2)), rounds);
            calls += 1;
        }
    }

    /// How many functions it has emitted so far.
    pub(crate) fn functions(&self) -> u64 {
        2 * self.emitted
    }

    /// Replaces the pair of the next slot.
    fn emit(&mut self, announcer: &mut Announcer) -> Result<()> {
        let number = self.emitted;
        let offset = usize::try_from(number % self.slots as u64)? * SLOT_BYTES;
        let (inner, outer) = (self.region.address(offset), self.region.address(offset + SLOT_BYTES / 2));
        let rooms = [self.random_room()?, self.random_room()?];
        let inner_function = functions::churned_inner(self.frames, rooms[0]);
        let outer_function = functions::churned_outer(self.frames, inner, rooms[1]);
        self.write(offset, &inner_function)?;
        self.write(offset + SLOT_BYTES / 2, &outer_function)?;
        announcer.announce(&format!("inner_of_{number:08}"), inner, &inner_function)?;
        announcer.announce(&format!("outer_{number:08}"), outer, &outer_function)?;
        self.emitted += 1;
        Ok(())
    }

    fn write(&mut self, offset: usize, function: &Function) -> Result<()> {
        let image = image(function);
        anyhow::ensure!(image.len() <= SLOT_BYTES / 2, "a function of {} bytes is too large for its slot", image.len());
        self.region.write(offset, &image)
    }

    /// Up to 1 kB of locals.
    fn random_room(&mut self) -> Result<u32> {
        Ok(8 + 16 * u32::try_from(self.random() % 64)?)
    }

    fn random(&mut self) -> u64 {
        self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.noise >> 33
    }
}

/// The true caller of every outer function.
#[inline(never)]
fn call(function: Compiled, rounds: u32) {
    std::hint::black_box(function(rounds));
}
