//! What an archive costs, on real windows:
//!
//! ```sh
//! for i in 1 2 3 4 5 6; do sudo jitprof --all -F 99 -d 10s -q -o windows/$i.pb.gz; done
//! JITPROF_WINDOWS=windows cargo test --release -p jitprof --lib archive::tests::speed -- --ignored --nocapture
//! ```

use std::time::Instant;

use super::*;
use crate::output::pprof::{Encoding, encode};
use crate::output::read_pprof;
use crate::profile::Row;

fn windows() -> Vec<Profile> {
    let folder = std::env::var_os("JITPROF_WINDOWS").expect("JITPROF_WINDOWS names a folder of recordings of 10 s");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| read_pprof(std::fs::File::open(path).unwrap()).unwrap()).collect()
}

/// Another process each time for one in ten, as on a host where programs come and go.
fn replayed(profile: &Profile, number: u64, start_s: u64) -> Window {
    let mut window = Profile::new(meta(start_s), u64::MAX);
    let mut frames = Vec::new();
    for row in profile.rows_without_time() {
        profile.frames_of(row.stack, &mut frames);
        let stack = frames.iter().fold(window.stack_root(), |stack, &frame| {
            let frame = window.intern_frame_ref(&profile.frame(frame));
            window.push(stack, frame)
        });
        let mut task = profile.task_of(row.task).clone();
        if task.pid.0.is_multiple_of(10) {
            task.process_start += number;
            task.pid.0 += u32::try_from(number % 1000).unwrap() * 10;
        }
        let task = window.task(task);
        window.add_row(Row { time: window.meta().start, task, stack, ..row });
    }
    Window { profile: window, end: MonoNs((start_s + 10) * 1_000_000_000), health: Health::default() }
}

fn timed<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = run();
    println!("{what}: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    result
}

#[test]
#[ignore = "a measurement; see the module's text"]
fn six_hours_are_answered() {
    for (number, profile) in windows().iter().enumerate() {
        for level in [1, 3, 6] {
            let mut bytes = Vec::new();
            timed(&format!("window {number}, gzip level {level}"), || {
                encode(profile, Encoding { gzip_level: level, ..Encoding::default() }, &mut bytes).unwrap();
            });
            println!("  {} samples, {} bytes", profile.total(), bytes.len());
        }
    }
    let (folder, clock, real) = (tempfile::tempdir().unwrap(), TestClock::new(), windows());
    let archive = open(Some(folder.path()), &clock);
    let start = Instant::now();
    let mut adding = Duration::ZERO;
    for number in 0..2160 {
        let start_s = clock.mono_s.load(Ordering::SeqCst);
        let profile = &real[usize::try_from(number).unwrap() % real.len()];
        let window = replayed(profile, number, start_s);
        clock.pass(10);
        let start = Instant::now();
        archive.add(window);
        adding += start.elapsed();
        archive.flush();
    }
    println!(
        "recorded in {:.1} s, {:.2} ms a window in add",
        start.elapsed().as_secs_f64(),
        adding.as_secs_f64() / 2.16
    );
    println!("{:?}", archive.stats());
    let hours = |hours: u64| range(21_600 - hours * 3600, 21_600);
    for count in [1, 6] {
        for round in ["cold", "again"] {
            let profile = timed(&format!("{count} h, {round}"), || archive.query(&hours(count)).unwrap());
            println!("  {} samples, {} stacks, {:?}", profile.total(), profile.stack_count(), profile.overflow());
        }
        let mut one = hours(count);
        one.filter.want("pid", &real[0].task_of(real[0].rows()[0].task).pid.to_string());
        timed(&format!("{count} h of one process"), || archive.query(&one).map(|profile| profile.total()).unwrap_or(0));
        timed(&format!("{count} h by comm"), || archive.timeline(&hours(count), "comm", Duration::from_secs(60)));
        timed(&format!("{count} h by thread"), || archive.timeline(&hours(count), "thread", Duration::from_secs(60)));
        timed(&format!("{count} h, windows only"), || archive.query_by_window(&hours(count)).unwrap().total());
    }
    drop(archive);
    timed("report of the directory", || read_directory(folder.path(), &always()).unwrap().total());
    let archive = timed("opened again", || open(Some(folder.path()), &clock));
    timed("indexed", || wait_for_scan(&archive));
    println!("{:?}", archive.stats());
}
