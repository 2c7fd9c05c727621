//! What the tests of several modules need.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Encoding;
use crate::profile::{Profile, ProfileMeta, SampledEvent, Task};
use crate::symbol::{Frame, FrameKind, Module};
use jitprof_common::units::{MonoNs, Pid, Tid};

/// One stack, `main` and `leaf`, for each task, which has a name, a container (empty: none) and so many samples.
pub(in crate::serve) fn profile(tasks: &[(&str, &str, u64)]) -> Profile {
    let meta = ProfileMeta {
        title: "t".to_owned(),
        start_time: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        start: MonoNs(0),
        duration: Duration::from_secs(10),
        frequency_hz: NonZeroU32::MIN.saturating_add(18),
        event: SampledEvent::CpuClock,
    };
    let mut profile = Profile::new(meta, 1_000_000);
    let frame = |name: &str| Frame {
        name: name.into(),
        kind: FrameKind::Native,
        tier: None,
        inlined: false,
        module: Some(Arc::new(Module { path: "/usr/bin/x".into(), build_id: Some("ab12".into()) })),
        source: None,
        address: 0x1000,
    };
    let (main, leaf) = (profile.intern_frame(&frame("main")), profile.intern_frame(&frame("leaf")));
    let stack = profile.push(profile.stack_root(), main);
    let stack = profile.push(stack, leaf);
    for (number, (comm, container, samples)) in (1..).zip(tasks) {
        let task = profile.task(Task {
            pid: Pid(number),
            process_start: 0,
            tid: Tid(number),
            comm: Arc::from(*comm),
            labels: Arc::new([("container", *container)].into_iter().collect()),
        });
        profile.add(MonoNs(1), stack, task, *samples);
    }
    profile
}

/// A target of the host `h` with its usual labels, and one of the user's.
pub(super) fn encoding() -> Encoding {
    Encoding {
        host: "h".to_owned(),
        labels: ["comm", "container", "unit"].map(str::to_owned).to_vec(),
        add_labels: vec![("cluster".to_owned(), "a".to_owned())],
    }
}
