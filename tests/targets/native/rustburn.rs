//! Rust that keeps no frame pointers: through a sort of the standard library, a closure and a trait object.
//!
//! ```text
//! main -> run -> outer -> sorted -> (core::slice::sort ..) -> compare -> leaf_hot    75 %
//!                      -> boxed -> <Task as Work>::work -> leaf_cold                 25 %
//! ```

use std::cmp::Ordering;
use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};

/// Values that are sorted; the comparisons that it takes depend on nothing else.
const VALUES: [u32; 16] = [5, 3, 9, 1, 7, 15, 2, 8, 4, 12, 6, 11, 0, 14, 10, 13];

macro_rules! leaf {
    ($name:ident) => {
        #[inline(never)]
        fn $name(rounds: u32) -> u32 {
            let mut x = 1_u32;
            for i in 0..rounds {
                x = x.wrapping_mul(1_103_515_245).wrapping_add(12_345).wrapping_add(i);
                x ^= x >> 7;
            }
            black_box(x)
        }
    };
}
leaf!(leaf_hot);
leaf!(leaf_cold);

trait Work {
    fn work(&self, rounds: u32) -> u32;
}

struct Task;

impl Work for Task {
    #[inline(never)]
    fn work(&self, rounds: u32) -> u32 {
        black_box(leaf_cold(rounds)).wrapping_add(1)
    }
}

#[inline(never)]
fn compare(a: &u32, b: &u32, rounds: u32) -> Ordering {
    black_box(leaf_hot(rounds));
    a.cmp(b)
}

#[inline(never)]
fn sorted(rounds: u32) -> u32 {
    let mut values = black_box(VALUES);
    let mut comparisons = 0;
    values.sort_by(|a, b| {
        comparisons += 1;
        compare(a, b, rounds)
    });
    black_box(values);
    comparisons
}

#[inline(never)]
fn boxed(work: &dyn Work, rounds: u32) -> u32 {
    black_box(work.work(rounds)).wrapping_add(1)
}

#[inline(never)]
fn outer(work: &dyn Work, rounds: u32) -> u32 {
    let comparisons = black_box(sorted(rounds));
    black_box(boxed(work, rounds * comparisons / 3)).wrapping_add(comparisons)
}

#[inline(never)]
fn run(length: Duration) -> u64 {
    let work: Box<dyn Work> = black_box(Box::new(Task));
    let start = Instant::now();
    let mut noise = 1_u32;
    let mut sum = 0_u64;
    while start.elapsed() < length {
        // A tenth to nineteen tenths of 4000, at random: calls of similar length fall into step with a profiler's
        // clock.
        noise = noise.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        sum += u64::from(outer(work.as_ref(), 400 + (noise >> 8) % 7201));
    }
    sum
}

fn main() -> std::io::Result<()> {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4);
    let mut stdout = std::io::stdout();
    writeln!(stdout, "ready pid={}", std::process::id())?;
    stdout.flush()?;
    let sum = run(Duration::from_secs(seconds));
    writeln!(stdout, "sum {sum}")
}
