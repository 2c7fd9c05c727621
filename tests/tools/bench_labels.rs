//! What it costs to read who a process is, for every process of this machine:
//! `cargo run --release -p jitprof-tools --bin bench_labels`.
//!
//! The recorder does this once a process that is sampled, once more two seconds later, and after each exec.

use std::time::Instant;

use jitprof::process::hierarchy::{GroupQuery, Hierarchies};
use jitprof::process::labels::Identity;
use jitprof::process::procfs;
use jitprof_common::units::Pid;

const ROUNDS: usize = 20;

fn main() -> std::io::Result<()> {
    let entries = std::fs::read_dir("/proc")?.flatten();
    let pids: Vec<Pid> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid)).collect();
    let mut identity_us = Vec::new();
    let mut comm_us = Vec::new();
    for _ in 0..ROUNDS {
        for pid in &pids {
            let started = Instant::now();
            if Identity::read(*pid).is_ok() {
                identity_us.push(started.elapsed().as_secs_f64() * 1e6);
            }
            let started = Instant::now();
            if procfs::comm(*pid).is_ok() {
                comm_us.push(started.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    let (identity, comm) = (median(&mut identity_us), median(&mut comm_us));
    println!("processes            {}", pids.len());
    println!("who it is            {identity:.1} us a process (median), {:.1} times its name alone", identity / comm);
    let query = GroupQuery { units: vec!["nothing-of-this-name".to_owned()], ..GroupQuery::default() };
    let hierarchies = Hierarchies::find();
    let mut search_us: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            std::hint::black_box(hierarchies.groups(&query));
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    println!("search of all groups {:.1} us (median)", median(&mut search_us));
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
