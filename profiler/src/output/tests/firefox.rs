use serde_json::Value;

use super::*;

pub(super) fn total(json: &str) -> u64 {
    let profile: Value = serde_json::from_str(json).unwrap();
    let threads = profile["threads"].as_array().unwrap();
    let weights = threads.iter().flat_map(|thread| thread["samples"]["weight"].as_array().unwrap());
    weights.map(|weight| weight.as_u64().unwrap()).sum()
}

fn json(samples: &[TestSample], options: &OutputOptions) -> Value {
    serde_json::from_str(&string(&profile(samples), Format::Firefox, options)).unwrap()
}

/// The names of a sample's frames from the root, each with its category.
fn stack_of(profile: &Value, thread: &Value, sample: usize) -> Vec<String> {
    let mut names = Vec::new();
    let mut stack = thread["samples"]["stack"][sample].as_u64();
    while let Some(index) = stack {
        let index = usize::try_from(index).unwrap();
        let frame = usize::try_from(thread["stackTable"]["frame"][index].as_u64().unwrap()).unwrap();
        let func = usize::try_from(thread["frameTable"]["func"][frame].as_u64().unwrap()).unwrap();
        let name = usize::try_from(thread["funcTable"]["name"][func].as_u64().unwrap()).unwrap();
        let category = usize::try_from(thread["frameTable"]["category"][frame].as_u64().unwrap()).unwrap();
        let name = thread["stringArray"][name].as_str().unwrap();
        names.push(format!("{name}|{}", profile["meta"]["categories"][category]["name"].as_str().unwrap()));
        stack = thread["stackTable"]["prefix"][index].as_u64();
    }
    names.reverse();
    names
}

#[test]
fn threads_have_their_names_stacks_times_and_categories() {
    let profile = json(&service(), &OutputOptions { lines: true, ..OutputOptions::default() });
    let threads = profile["threads"].as_array().unwrap();
    let names: Vec<_> =
        threads.iter().map(|thread| (thread["name"].as_str().unwrap(), thread["tid"].clone())).collect();
    assert_eq!(names, [("node", "4242".into()), ("V8Worker", "4250".into())]);
    assert_eq!(threads[0]["processName"], "node");
    assert_eq!(profile["meta"]["interval"], 10.0);
    assert_eq!(profile["meta"]["startTime"], 1_700_000_000_000.0);
    assert_eq!(profile["meta"]["symbolicated"], true);
    assert_eq!(
        stack_of(&profile, &threads[0], 0),
        [
            "main|native",
            "v8::Execution::Call(v8::Isolate*)|native",
            "JSEntryTrampoline|builtin",
            "~handle (/app/server.js:10)|interpreted ~",
            "^parse (/app/server.js:20)|JIT baseline ^",
            "*leafHot (/app/server.js:40)|JIT optimised *",
        ]
    );
    assert_eq!(stack_of(&profile, &threads[1], 0), ["[stopped: no frame pointer]|note", "memcpy|native"]);
    let deltas: Vec<_> =
        threads[0]["samples"]["timeDeltas"].as_array().unwrap().iter().map(|delta| delta.as_f64().unwrap()).collect();
    assert_eq!(deltas, [0.0, 10.0, 10.0, 10.0, 0.0, 10.0, 0.0, 30.0]);
    assert_eq!(threads[0]["markers"]["length"], 1);
}

#[test]
fn a_process_of_which_a_worker_was_sampled_has_its_own_name() {
    let labels = Arc::new([("comm", "node")].into_iter().collect());
    let worker = Task { labels, ..task(4250, "V8Worker") };
    let sample = TestSample { time_ns: 0, task: worker, frames: vec![native("f", "/bin/x", 1)], count: 1 };
    let profile = json(&[sample], &OutputOptions::default());
    let thread = &profile["threads"][0];
    assert_eq!(thread["processName"], "node");
    assert_eq!(thread["name"], "V8Worker");
}

#[test]
fn a_reused_pid_is_another_process() {
    let mut samples = service();
    for sample in &mut samples[5..] {
        sample.task.process_start = 78;
    }
    let profile = json(&samples, &OutputOptions::default());
    let pids: Vec<_> = profile["threads"].as_array().unwrap().iter().map(|thread| thread["pid"].clone()).collect();
    assert_eq!(pids.len(), 3);
    assert!(pids.contains(&"4242".into()) && pids.contains(&"4242.1".into()), "{pids:?}");
}

#[test]
fn ten_thousand_modules_do_not_exhaust_the_subcategories() {
    let samples: Vec<_> = (0..10_000_u32)
        .map(|i| TestSample {
            time_ns: 0,
            task: task(1, "x"),
            frames: vec![native("f", &format!("/lib/{i}.so"), 0)],
            count: 1,
        })
        .collect();
    let profile = json(&samples, &OutputOptions::default());
    assert_eq!(profile["threads"][0]["samples"]["length"], 10_000);
    // There is room for 65,536; ours end long before that.
    let subcategories = |category: &Value| category["subcategories"].as_array().map_or(0, Vec::len);
    let most = profile["meta"]["categories"].as_array().unwrap().iter().map(subcategories).max();
    assert!(most.is_some_and(|most| (1000..5000).contains(&most)), "{most:?}");
}

#[test]
fn a_start_before_1970_is_no_panic() {
    let mut meta = meta();
    meta.start_time = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
    let mut profile = Profile::new(meta, u64::MAX);
    let task = profile.task(task(1, "x"));
    profile.add(MonoNs(0), profile.stack_root(), task, 1);
    for format in [Format::Firefox, Format::Pprof, Format::Svg] {
        assert!(!bytes(&profile, format, &OutputOptions::default()).is_empty());
    }
}
