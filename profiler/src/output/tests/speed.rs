use super::*;

/// 12,000 samples in 5,000 distinct stacks of 10 to 50 frames, from 4,000 functions at 20,000 addresses.
pub(super) fn recording() -> Profile {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut profile = Profile::new(meta(), 10_000_000);
    let stacks: Vec<_> = (0..5_000)
        .map(|_| {
            let depth = 10 + random(40);
            (0..depth).fold(profile.stack_root(), |prefix, level| {
                let function = if level < 8 { level * 3 + random(3) } else { random(4_000) };
                let address = function * 0x100 + random(5) * 0x10;
                let name =
                    format!("module{}::Class{}::function_{function}(int, char const*)", function % 30, function % 300);
                let frame = match function % 4 {
                    0 => jit(&name, Some(Tier::Optimized), address, 7),
                    1 => kernel(&name, address),
                    _ => native(&name, "/usr/bin/node", address),
                };
                let frame = profile.intern_frame(&frame);
                profile.push(prefix, frame)
            })
        })
        .collect();
    let tasks: Vec<_> = (0..8).map(|tid| profile.task(task(tid, "node"))).collect();
    for i in 0..12_000_u64 {
        let stack = if i < 5_000 {
            stacks[usize::try_from(i).unwrap()]
        } else {
            stacks[usize::try_from(random(5_000)).unwrap()]
        };
        let task = tasks[usize::try_from(random(8)).unwrap()];
        profile.add(MonoNs(5_000_000_000 + i * 5_000_000), stack, task, 1);
    }
    profile
}

/// The CPU time of this thread: a loaded machine must not decide a test.
fn cpu_time() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(schedstat.split(' ').next().unwrap().parse().unwrap())
}

#[test]
#[ignore = "a measurement: cargo test --release -p jitprof --lib output::tests::speed -- --ignored --nocapture"]
fn a_minute_at_99_hz_is_written_in_well_below_300_ms() {
    let start = cpu_time();
    let profile = recording();
    println!(
        "interned in {:.1} ms: {} frames, {} stacks",
        (cpu_time() - start).as_secs_f64() * 1e3,
        profile.frame_count(),
        profile.stack_count()
    );
    assert_eq!(profile.total(), 12_000);
    for format in [Format::Svg, Format::Folded, Format::Pprof, Format::Firefox] {
        let mut best = Duration::MAX;
        let mut size = 0;
        for _ in 0..5 {
            let start = cpu_time();
            size = bytes(&profile, format, &OutputOptions::default()).len();
            best = best.min(cpu_time() - start);
        }
        println!("{format}: {:.1} ms, {size} bytes", best.as_secs_f64() * 1e3);
        assert!(best < Duration::from_millis(300), "{format} took {best:?}");
    }
}
