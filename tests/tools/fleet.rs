//! A dataset of a fleet that does not exist: every host's name begins with `generated-`, and every row has the label
//! `generated`. What is in it is known, so that queries can be held against it:
//!
//! * each host runs one of eight services, `shop.service` on every eighth host, with a version `1.0` until 12:00 and `2.0`
//!   from then on;
//! * version 2.0 of `shop.service` uses twice as much of its CPU time in `serializeOrder` as version 1.0: about 10 % instead
//!   of 5 %;
//! * on each [`ODD`]th host of a service `collectGarbage` has about five times the part that it has elsewhere.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use jitprof::dataset::{FrameRow, Location, Part, SampleRow, Store, Table, Tags, write_frames, write_samples};

/// 2026-11-21T00:00:00Z.
const DAY_MS: u64 = 1_795_219_200_000;
const HOUR_MS: u64 = 3_600_000;
const SERVICES: [&str; 8] = ["shop", "cart", "search", "pay", "mail", "auth", "feed", "image"];
/// Functions of a service, and stacks of them.
const FUNCTIONS: u64 = 500;
const STACKS: u64 = 160;
/// Which hosts of a service are odd.
const ODD: u64 = 25;
/// What a sample at 19 Hz stands for.
const SAMPLE_NS: i64 = 52_631_578;
/// CPUs that a host keeps busy.
const BUSY: u64 = 4;

#[derive(Parser)]
struct Arguments {
    /// Where to
    directory: PathBuf,
    #[arg(long, default_value_t = 1000)]
    hosts: u64,
    #[arg(long, default_value_t = 24)]
    hours: u64,
    /// Only each host whose number this divides; 8: those of shop.service
    #[arg(long, default_value_t = 1)]
    stride: usize,
    /// Length of a step in minutes
    #[arg(long, default_value_t = 10)]
    step: u64,
}

/// The same numbers for the same seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// A service: its frames, and its stacks with how often each is seen.
struct Service {
    name: &'static str,
    frames: Vec<FrameRow>,
    stacks: Vec<(Arc<[i64]>, u64, Leaf)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaf {
    Serialize,
    Garbage,
    Other,
}

fn frame(name: String, kind: &str, file: &str, line: u64) -> FrameRow {
    let mut row = FrameRow {
        name,
        kind: kind.to_owned(),
        tier: if kind == "jit" { "optimized".to_owned() } else { String::new() },
        file: file.to_owned(),
        line: i32::try_from(line).unwrap_or(0),
        module: if kind == "native" { "/usr/bin/node".to_owned() } else { String::new() },
        ..FrameRow::default()
    };
    row.frame = row.digest();
    row
}

fn service(number: u64, name: &'static str) -> Service {
    let mut numbers = Numbers(number);
    let mut frames = vec![
        frame("main".to_owned(), "native", "", 0),
        frame("serializeOrder".to_owned(), "jit", &format!("/srv/{name}/order.js"), 12),
        frame("collectGarbage".to_owned(), "native", "", 0),
    ];
    let of =
        |at: u64| frame(format!("{name}Step{at}"), "jit", &format!("/srv/{name}/lib{}.js", at % 40), 1 + at * 7 % 900);
    frames.extend((0..FUNCTIONS).map(of));
    let mut stacks = Vec::new();
    for at in 0..STACKS {
        let depth = 8 + numbers.below(30);
        let mut stack = vec![frames[0].frame];
        // Towards the root stacks share their frames.
        for level in 0..depth {
            let width = (level + 1) * 3;
            let pick = 3 + (level * 17 + numbers.below(width)) % FUNCTIONS;
            stack.push(frames[usize::try_from(pick).unwrap_or(3)].frame);
        }
        let leaf = match at {
            0..4 => Leaf::Serialize,
            4..8 => Leaf::Garbage,
            _ => Leaf::Other,
        };
        match leaf {
            Leaf::Serialize => stack.push(frames[1].frame),
            Leaf::Garbage => stack.push(frames[2].frame),
            Leaf::Other => {}
        }
        // Some are seen often and many rarely.
        let weight = if leaf == Leaf::Other { 40_000 / (20 + at) } else { 0 };
        stacks.push((Arc::from(stack), weight, leaf));
    }
    let others: u64 = stacks.iter().map(|stack| stack.1).sum();
    // Five and three percent, in four stacks each.
    for (_, weight, leaf) in &mut stacks {
        match leaf {
            Leaf::Serialize => *weight = others * 5 / 92 / 4,
            Leaf::Garbage => *weight = others * 3 / 92 / 4,
            Leaf::Other => {}
        }
    }
    Service { name, frames, stacks }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let began = Instant::now();
    let store = Store::open(&Location::Directory(arguments.directory.clone()), &[])?;
    let services: Vec<Service> = (0..).zip(SERVICES).map(|(number, name)| service(number, name)).collect();
    let (mut rows, mut files) = (0_usize, 0_usize);
    for host in (0..arguments.hosts).step_by(arguments.stride) {
        let service = &services[usize::try_from(host % 8)?];
        let name = format!("generated-{host:04}");
        for hour in 0..arguments.hours {
            let part =
                Part { host: name.clone(), slot_ms: DAY_MS + hour * HOUR_MS, first: (DAY_MS + hour * HOUR_MS) << 12 };
            if hour % 24 == 0 {
                store.put(&part.path(Table::Frames, 0), write_frames(&service.frames)?)?;
                files += 1;
            }
            let sampled = hour_of(service, &name, (host, hour), arguments.step);
            rows += sampled.len();
            for (number, file) in write_samples(&sampled, 64 << 20)?.into_iter().enumerate() {
                store.put(&part.path(Table::Samples, number), file)?;
                files += 1;
            }
        }
    }
    println!("{rows} rows in {files} files, {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// What a host was seen to do in an hour.
fn hour_of(service: &Service, host: &str, (number, hour): (u64, u64), step: u64) -> Vec<SampleRow> {
    let mut numbers = Numbers(number * 1000 + hour);
    let is_new = hour >= 12;
    let tags = Arc::new(Tags {
        host: host.to_owned(),
        service: format!("{}.service", service.name),
        version: if is_new { "2.0" } else { "1.0" }.to_owned(),
        comm: "node".to_owned(),
        thread: "node".to_owned(),
        pid: 1000 + i32::try_from(number % 30_000).unwrap_or(0),
        labels: BTreeMap::from([
            ("generated".to_owned(), "true".to_owned()),
            ("runtime".to_owned(), "node".to_owned()),
        ]),
    });
    let is_odd = (number / 8) % ODD == ODD / 2;
    let weight = |(_, weight, leaf): &(Arc<[i64]>, u64, Leaf)| match leaf {
        Leaf::Serialize if is_new && service.name == "shop" => weight * 21 / 10,
        Leaf::Garbage if is_odd => weight * 6,
        _ => *weight,
    };
    let all: u64 = service.stacks.iter().map(weight).sum();
    let samples = BUSY * 19 * 60 * step;
    let mut rows = Vec::new();
    for stack in &service.stacks {
        let expected = samples * weight(stack) / all.max(1);
        for at in 0..60 / step.max(1) {
            // As many as expected, give or take a fifth; the rare ones not every time.
            let seen = expected * (80 + numbers.below(41)) / 100 + u64::from(numbers.below(3) == 0);
            let Ok(seen @ 1..) = i64::try_from(seen) else { continue };
            let time_ms = i64::try_from(DAY_MS + hour * HOUR_MS + at * step * 60_000).unwrap_or(0);
            rows.push(SampleRow {
                time_us: time_ms * 1000,
                length_ms: i32::try_from(step * 60_000).unwrap_or(0),
                tags: Arc::clone(&tags),
                stack: Arc::clone(&stack.0),
                samples: seen,
                cpu_ns: seen * SAMPLE_NS,
            });
        }
    }
    rows
}
