use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::AtomicU64;
use std::time::UNIX_EPOCH;

use proptest::prelude::*;

use super::*;

mod speed;

use super::id::Level;
use super::store::{Place, READ_LIMITS, Store, Times};
use crate::output::pprof::sources::unpack;
use crate::output::pprof::{Encoding, encode};
use crate::profile::{Labels, ProfileMeta, SampledEvent, Task};
use crate::record::Health;
use crate::symbol::{Frame, FrameKind, Tier};
use jitprof_common::units::{MonoNs, Pid, Tid};

/// The wall clock at time 0 of the samples' clock.
const BEGIN_S: u64 = 1_700_000_000;

/// One stack of one thread, so many times.
type Seen = (u32, &'static str, u64);

fn meta(start_s: u64) -> ProfileMeta {
    ProfileMeta {
        title: "All processes".to_owned(),
        start_time: UNIX_EPOCH,
        start: MonoNs(start_s * 1_000_000_000),
        duration: Duration::from_secs(10),
        frequency_hz: NonZeroU32::new(100).unwrap(),
        event: SampledEvent::CpuClock,
    }
}

fn task(tid: u32) -> Task {
    let labels: Labels = [("comm", format!("process{}", tid / 10)), ("container", format!("c{}", tid % 2))]
        .map(|(name, value)| (Arc::<str>::from(name), Arc::<str>::from(value)))
        .into_iter()
        .collect();
    Task {
        pid: Pid(tid / 10),
        process_start: 5,
        tid: Tid(tid),
        comm: Arc::from(format!("thread{tid}")),
        labels: Arc::new(labels),
    }
}

fn window((start_s, length_s): (u64, u64), seen: &[Seen]) -> Window {
    let meta = ProfileMeta { duration: Duration::from_secs(length_s), ..meta(start_s) };
    let mut profile = Profile::new(meta, 100_000_000);
    for (at, &(tid, name, count)) in seen.iter().enumerate() {
        let stack = name.split(';').fold(profile.stack_root(), |prefix, name| {
            let frame = Frame {
                name: Arc::from(name),
                kind: FrameKind::Jit,
                tier: None,
                inlined: false,
                module: None,
                source: None,
                address: 7,
            };
            let frame = profile.intern_frame(&frame);
            profile.push(prefix, frame)
        });
        let task = profile.task(task(tid));
        profile.add(MonoNs(start_s * 1_000_000_000 + at as u64 * 1_000_000), stack, task, count);
    }
    Window { profile, end: MonoNs((start_s + length_s) * 1_000_000_000), health: Health::default() }
}

fn options(directory: Option<&Path>) -> ArchiveOptions {
    ArchiveOptions {
        memory_bytes: 32 << 20,
        directory: directory.map(Path::to_owned),
        max_age: Duration::from_secs(86_400),
        max_bytes: 1 << 30,
    }
}

/// A wall clock that tests set, in seconds since [`BEGIN_S`].
#[derive(Clone)]
struct TestClock {
    wall_s: Arc<AtomicU64>,
    mono_s: Arc<AtomicU64>,
}

impl TestClock {
    fn new() -> Self {
        Self { wall_s: Arc::new(AtomicU64::new(BEGIN_S)), mono_s: Arc::default() }
    }

    fn pass(&self, seconds: u64) {
        self.wall_s.fetch_add(seconds, Ordering::SeqCst);
        self.mono_s.fetch_add(seconds, Ordering::SeqCst);
    }

    fn clock(&self) -> Clock {
        let this = self.clone();
        Box::new(move || {
            let wall = UNIX_EPOCH + Duration::from_secs(this.wall_s.load(Ordering::SeqCst));
            let mono_s = this.mono_s.load(Ordering::SeqCst);
            let steady_ms = i64::try_from(mono_s * 1000).unwrap() - 5_000_000;
            Now { wall, mono: MonoNs(mono_s * 1_000_000_000), steady_ms }
        })
    }

    /// Records windows of ten seconds, each with what `seen` gives for its number.
    fn record(&self, archive: &Archive, windows: u64, seen: impl Fn(u64) -> Vec<Seen>) {
        self.record_long(archive, (windows, 10), seen);
    }

    /// The same with windows of so many seconds.
    fn record_long(&self, archive: &Archive, (windows, length_s): (u64, u64), seen: impl Fn(u64) -> Vec<Seen>) {
        for number in 0..windows {
            let start_s = self.mono_s.load(Ordering::SeqCst);
            self.pass(length_s);
            archive.add(window((start_s, length_s), &seen(number)));
            archive.flush();
        }
    }
}

fn open(directory: Option<&Path>, clock: &TestClock) -> Archive {
    Archive::open_with(options(directory), clock.clock()).unwrap()
}

/// Seconds since the begin.
fn range(from_s: u64, to_s: u64) -> Query {
    let at = |seconds| UNIX_EPOCH + Duration::from_secs(BEGIN_S + seconds);
    Query { from: at(from_s), to: at(to_s), filter: Filter::default() }
}

fn always() -> Query {
    Query { from: UNIX_EPOCH, to: UNIX_EPOCH + Duration::from_secs(10 * BEGIN_S), filter: Filter::default() }
}

/// Counts and CPU time by thread and stack.
fn values(profile: &Profile) -> BTreeMap<(u32, String), (u64, u64)> {
    let mut values: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    let mut frames = Vec::new();
    for row in profile.rows_without_time() {
        profile.frames_of(row.stack, &mut frames);
        let names: Vec<_> = frames.iter().map(|&frame| profile.frame(frame).name).collect();
        let sum = values.entry((profile.task_of(row.task).tid.0, names.join(";"))).or_default();
        *sum = (sum.0 + row.count, sum.1 + row.cpu_ns);
    }
    values
}

fn sum(seen: impl IntoIterator<Item = Seen>) -> BTreeMap<(u32, String), (u64, u64)> {
    let mut values: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for (tid, name, count) in seen {
        let sum = values.entry((tid, name.to_owned())).or_default();
        *sum = (sum.0 + count, sum.1 + count * 10_000_000);
    }
    values
}

fn files(directory: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for day in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if day.path().is_dir() {
            let name =
                |file: std::fs::DirEntry| format!("{:?}/{:?}", day.file_name(), file.file_name()).replace('"', "");
            files.extend(std::fs::read_dir(day.path()).unwrap().map(|file| name(file.unwrap())));
        }
    }
    files.sort();
    files
}

#[test]
fn what_was_added_is_answered_by_time_and_label() {
    let clock = TestClock::new();
    let archive = open(None, &clock);
    clock.record(&archive, 6, |number| vec![(10, "a;b", number + 1), (21, "a;c", 1)]);
    assert_eq!(values(&archive.query(&always()).unwrap()), sum([(10, "a;b", 21), (21, "a;c", 6)]));
    let profile = archive.query(&range(10, 30)).unwrap();
    assert_eq!(values(&profile), sum([(10, "a;b", 2 + 3), (21, "a;c", 2)]));
    assert_eq!(profile.meta().start_time, range(10, 30).from);
    assert_eq!(profile.meta().duration, Duration::from_secs(20));
    let mut query = range(0, 60);
    query.filter.want("comm", "process2");
    query.filter.want("thread", "thread21");
    assert_eq!(values(&archive.query(&query).unwrap()), sum([(21, "a;c", 6)]));
    query.filter.want("container", "c0");
    assert!(matches!(archive.query(&query), Err(ArchiveError::Nothing)));
    assert!(matches!(archive.query(&range(100, 200)), Err(ArchiveError::Nothing)));
    assert_eq!(values(&archive.query(&range(12, 13)).unwrap()), sum([(10, "a;b", 2), (21, "a;c", 1)]));
    let times: Vec<_> = archive.query_by_window(&range(10, 30)).unwrap().rows().iter().map(|row| row.time.0).collect();
    assert_eq!(times, [0, 0, 10_000_000_000, 10_000_000_000]);
}

#[test]
fn windows_in_memory_stay_within_their_bytes_and_the_newest_stay() {
    let clock = TestClock::new();
    let archive = Archive::open_with(ArchiveOptions { memory_bytes: 20_000, ..options(None) }, clock.clock()).unwrap();
    clock.record(&archive, 200, |number| vec![(10, "a;b", number + 1)]);
    let stats = archive.stats();
    assert!(stats.memory_bytes <= 20_000 && stats.windows < 60, "{stats:?}");
    assert!(matches!(archive.query(&range(0, 500)), Err(ArchiveError::Nothing)));
    assert_eq!(values(&archive.query(&range(1990, 2000)).unwrap()), sum([(10, "a;b", 200)]));
    let nothing = Archive::open_with(ArchiveOptions { memory_bytes: 0, ..options(None) }, clock.clock()).unwrap();
    clock.record(&nothing, 3, |_| vec![(10, "a", 1)]);
    assert!(matches!(nothing.query(&always()), Err(ArchiveError::Nothing)));
}

#[test]
fn files_outlive_the_process_and_what_is_not_ours_stays_untouched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive");
    let clock = TestClock::new();
    let archive = open(Some(&path), &clock);
    clock.record(&archive, 3, |number| vec![(10, "a;b", number + 1)]);
    assert_eq!(archive.stats().disk_windows, 3);
    drop(archive);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let names = files(&path);
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names[0].starts_with("2023-11-14/221320.000-10000ms-"), "{names:?}");
    assert_eq!((mode(&path), mode(&path.join("2023-11-14")), mode(&path.join(&names[0]))), (0o700, 0o700, 0o600));

    let day = path.join("2023-11-14");
    std::fs::write(path.join("notes.txt"), "mine").unwrap();
    std::fs::write(day.join("221320.000-host.pb.gz"), "mine").unwrap();
    std::fs::write(day.join(".tmp-221320.000-10000ms-host.pb.gz"), "half a win").unwrap();
    std::fs::write(day.join("221350.000-10000ms-host.pb.gz"), "").unwrap();
    symlink("/etc/passwd", day.join("221400.000-10000ms-host.pb.gz")).unwrap();
    let archive = open(Some(&path), &clock);
    assert_eq!(values(&archive.query(&always()).unwrap()), sum([(10, "a;b", 6)]));
    assert_eq!(archive.stats().unreadable, 1, "the empty file");
    let mut filter = always();
    filter.filter.want("container", "c0");
    assert_eq!(archive.query(&filter).unwrap().total(), 6);
    clock.record(&archive, 1, |_| vec![(10, "a;b", 10)]);
    assert_eq!(values(&archive.query(&always()).unwrap()), sum([(10, "a;b", 16)]));
    drop(archive);
    assert!(path.join("notes.txt").exists() && day.join("221320.000-host.pb.gz").exists());
    assert!(!day.join(".tmp-221320.000-10000ms-host.pb.gz").exists());
    assert_eq!(values(&read_directory(&path, &always()).unwrap()), sum([(10, "a;b", 16)]));
}

#[test]
fn a_directory_that_is_not_ours_alone_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("archive"), folder.path().join("link"));
    let refused = |path: &Path| match Archive::open(options(Some(path))).map(drop) {
        Err(error) => error.to_string(),
        Ok(()) => String::new(),
    };
    let archive = Archive::open(options(Some(&path))).unwrap();
    assert!(refused(&path).contains("another jitprof writes there"), "{}", refused(&path));
    drop(archive);
    assert_eq!(refused(&path), "");
    symlink(&path, &link).unwrap();
    assert!(refused(&link).contains("a symbolic link to one"), "{}", refused(&link));
    std::fs::write(folder.path().join("file"), "").unwrap();
    assert!(refused(&folder.path().join("file")).contains("it is no directory"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(refused(&path).contains("others may write there"));
    assert!(refused(&folder.path().join("no/such")).contains("cannot create the directory"));
    if rustix::process::geteuid().is_root() {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        assert!(refused(&path).contains("it belongs to another user"));
    }
}

#[test]
fn old_files_go_by_age_and_by_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let clock = TestClock::new();
    let hour = ArchiveOptions { max_age: Duration::from_secs(3600), ..options(Some(folder.path())) };
    let archive = Archive::open_with(hour, clock.clock()).unwrap();
    clock.record(&archive, 3, |_| vec![(10, "a", 1)]);
    clock.pass(86_400);
    clock.record(&archive, 2, |_| vec![(10, "b", 1)]);
    assert_eq!(values(&archive.query(&always()).unwrap()), sum([(10, "b", 2)]));
    let names = files(folder.path());
    assert!(names.len() == 2 && names[0].starts_with("2023-11-15/"), "{names:?}");
    assert!(!folder.path().join("2023-11-14").exists(), "an empty day goes too");
    drop(archive);

    let few = ArchiveOptions { max_bytes: 2_000, ..options(Some(folder.path())) };
    let archive = Archive::open_with(few, clock.clock()).unwrap();
    clock.record(&archive, 30, |_| vec![(10, "c", 1)]);
    let stats = archive.stats();
    assert!(stats.disk_bytes <= 2_000 && stats.disk_windows > 0, "{stats:?}");
    let size = |name: &String| std::fs::metadata(folder.path().join(name)).unwrap().len();
    let sizes: u64 = files(folder.path()).iter().map(size).sum();
    assert_eq!(stats.disk_bytes, sizes);
}

#[test]
fn a_clock_that_is_set_makes_no_window_older_or_younger() {
    let folder = tempfile::tempdir().unwrap();
    let clock = TestClock::new();
    let hour = ArchiveOptions { max_age: Duration::from_secs(3600), ..options(Some(folder.path())) };
    let archive = Archive::open_with(hour.clone(), clock.clock()).unwrap();
    clock.record(&archive, 2, |_| vec![(10, "before", 1)]);
    // A day ahead: what is seconds old stays, beside what is recorded meanwhile.
    clock.wall_s.fetch_add(86_400, Ordering::SeqCst);
    clock.record(&archive, 2, |_| vec![(10, "ahead", 1)]);
    assert_eq!(values(&archive.query(&always()).unwrap()), sum([(10, "before", 2), (10, "ahead", 2)]));
    // Back again: what was recorded with the wrong time goes after an hour nevertheless, and what is newer stays.
    clock.wall_s.fetch_sub(86_400, Ordering::SeqCst);
    clock.pass(3570);
    clock.record(&archive, 2, |_| vec![(10, "after", 1)]);
    assert_eq!(values(&archive.query(&always()).unwrap()), sum([(10, "ahead", 2), (10, "after", 2)]));
    clock.record(&archive, 4, |_| vec![(10, "after", 1)]);
    assert_eq!(values(&archive.query(&always()).unwrap()), sum([(10, "after", 6)]));
    drop(archive);

    // Years back and with few bytes: the newest stay, whatever the calendar says.
    clock.wall_s.store(1_000_000, Ordering::SeqCst);
    let few = ArchiveOptions { max_bytes: 4_000, memory_bytes: 20_000, ..hour };
    let archive = Archive::open_with(few, clock.clock()).unwrap();
    clock.record(&archive, 60, |number| vec![(10, if number < 50 { "old" } else { "new" }, 1)]);
    let stats = archive.stats();
    assert!(stats.disk_bytes <= 4_000 && stats.disk_windows > 3, "{stats:?}");
    let kept = values(&archive.query(&always()).unwrap());
    assert!(kept.contains_key(&(10, "new".to_owned())) && !kept.contains_key(&(10, "after".to_owned())), "{kept:?}");
}

#[test]
fn a_clock_that_is_set_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let clock = TestClock::new();
    let archive = open(Some(folder.path()), &clock);
    clock.record(&archive, 4, |_| vec![(10, "first", 1)]);
    // Back to where it began: the same times once more, and a third time.
    for name in ["second", "third"] {
        clock.wall_s.store(BEGIN_S, Ordering::SeqCst);
        clock.record(&archive, 4, |_| vec![(10, name, 1)]);
    }
    clock.wall_s.fetch_add(7200, Ordering::SeqCst);
    clock.record(&archive, 4, |_| vec![(10, "later", 1)]);
    let all = sum([(10, "first", 4), (10, "second", 4), (10, "third", 4), (10, "later", 4)]);
    assert_eq!(values(&archive.query(&always()).unwrap()), all);
    let windows: Vec<_> = files(folder.path()).into_iter().filter(|name| !name.contains(".merged-")).collect();
    assert_eq!(windows.len(), 16);
    assert!(windows[2].contains(".000_2-10000ms-"), "{windows:?}");
    let hour = values(&archive.query(&range(0, 3600)).unwrap());
    assert_eq!(hour, sum([(10, "first", 4), (10, "second", 4), (10, "third", 4)]));
    assert_eq!(values(&archive.query(&range(7200, 9000)).unwrap()), sum([(10, "later", 4)]));
    drop(archive);
    let archive = open(Some(folder.path()), &clock);
    assert_eq!(values(&archive.query(&always()).unwrap()), all);
}

#[test]
fn merged_blocks_answer_for_hours_and_count_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let clock = TestClock::new();
    let archive = open(Some(folder.path()), &clock);
    clock.record_long(&archive, (27, 60), |number| vec![(10, "a;b", number % 3 + 1), (21, "a;c", 1)]);
    let all = sum([(10, "a;b", 54), (21, "a;c", 27)]);
    assert_eq!(files(folder.path()).iter().filter(|name| name.contains(".merged-")).count(), 2);
    assert_eq!(values(&archive.query(&always()).unwrap()), all);
    assert_eq!(archive.query(&always()).unwrap().meta().duration, Duration::from_secs(1620));
    let plan = archive.store.plan(&range_ms(always().from, always().to), true);
    assert_eq!(plan.len(), 2 + 7, "two merged blocks and the rest as windows");
    // Across the border of merged blocks: both are only partly asked for.
    assert_eq!(values(&archive.query(&range(300, 900)).unwrap()), sum([(10, "a;b", 21), (21, "a;c", 10)]));
    drop(archive);
    assert_eq!(values(&read_directory(folder.path(), &always()).unwrap()), all);
    let archive = open(Some(folder.path()), &clock);
    assert_eq!(values(&archive.query(&always()).unwrap()), all, "before the index is there");
    wait_for_scan(&archive);
    assert_eq!(archive.store.plan(&range_ms(always().from, always().to), true).len(), 2 + 7);
    assert_eq!(values(&archive.query(&always()).unwrap()), all);
    // Once the windows are gone, merged blocks answer alone.
    for name in files(folder.path()).iter().filter(|name| !name.contains(".merged-")) {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    drop(archive);
    let archive = open(Some(folder.path()), &clock);
    wait_for_scan(&archive);
    assert_eq!(values(&archive.query(&always()).unwrap()), sum([(10, "a;b", 39), (21, "a;c", 20)]));
}

fn wait_for_scan(archive: &Archive) {
    while archive.stats().unscanned > 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    archive.flush();
}

#[test]
fn a_timeline_adds_up_and_knows_threads_only_when_asked() {
    let clock = TestClock::new();
    let archive = open(None, &clock);
    clock.record(&archive, 6, |number| vec![(10, "a", number + 1), (11, "a", 1), (21, "b", 1)]);
    let timeline = archive.timeline(&range(0, 60), "comm", Duration::from_secs(20));
    assert_eq!(timeline.start, range(0, 60).from);
    let ms10 = |counts: &[u64]| counts.iter().map(|count| count * 10_000_000).collect::<Vec<_>>();
    let series = |value: &str, counts: &[u64]| Series { value: value.to_owned(), cpu_ns: ms10(counts) };
    assert_eq!(timeline.series, [series("process1", &[5, 9, 13]), series("process2", &[2, 2, 2])]);
    let fine = archive.timeline(&range(5, 25), "comm", Duration::from_secs(5));
    assert_eq!(fine.series[0].cpu_ns, [10_000_000, 15_000_000, 15_000_000, 20_000_000], "spread over the window");
    let mut query = range(0, 60);
    query.filter.want("pid", "1");
    let threads = archive.timeline(&query, "thread", Duration::from_secs(60));
    assert_eq!(threads.series, [series("thread10", &[21]), series("thread11", &[6])]);
    let unknown = archive.timeline(&query, "unit", Duration::from_secs(60));
    assert_eq!(unknown.series, [series("", &[27])]);
    assert_eq!(archive.timeline(&range(60, 0), "comm", Duration::ZERO).series, []);
}

#[test]
fn many_processes_are_summed_up_but_a_timeline_by_pid_is_exact() {
    let clock = TestClock::new();
    let archive = open(None, &clock);
    clock.record(&archive, 1, |_| (0..4000).map(|pid| (pid * 10, "a", 1)).collect());
    assert!(archive.stats().memory_bytes < 400_000, "{:?}", archive.stats());
    let mut query = range(0, 10);
    query.filter.want("pid", "3999");
    let timeline = archive.timeline(&query, "comm", Duration::from_secs(10));
    assert_eq!(timeline.series, [Series { value: "process3999".to_owned(), cpu_ns: vec![10_000_000] }]);
    let all = archive.timeline(&range(0, 10), "container", Duration::from_secs(10));
    assert_eq!(all.series.iter().map(|series| series.cpu_ns[0]).sum::<u64>(), 4000 * 10_000_000);
    // A name of the many that were too small for the index is not lost either.
    let mut query = range(0, 10);
    query.filter.want("comm", "process3999");
    let by_comm = archive.timeline(&query, "container", Duration::from_secs(10));
    assert_eq!(by_comm.series.iter().map(|series| series.cpu_ns[0]).collect::<Vec<_>>(), [10_000_000]);
    let by_pid = archive.timeline(&range(0, 10), "pid", Duration::from_secs(10));
    assert_eq!(by_pid.series.len(), 1001);
    assert_eq!(by_pid.series.iter().map(|series| series.cpu_ns[0]).sum::<u64>(), 4000 * 10_000_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_partition_of_time_gives_all_samples(
        windows in proptest::collection::vec(
            proptest::collection::vec((0_u32..40, prop_oneof![Just("a"), Just("a;b"), Just("a;b;c")], 1_u64..9), 0..6),
            1..80,
        ),
        mut cuts in proptest::collection::vec(0_u64..900, 0..6),
    ) {
        let clock = TestClock::new();
        let archive = open(None, &clock);
        clock.record(&archive, windows.len() as u64, |number| windows[usize::try_from(number).unwrap()].clone());
        let all = sum(windows.iter().flatten().copied());
        // Cuts between windows, so that every part has windows of its own.
        cuts.iter_mut().for_each(|cut| *cut = *cut / 10 * 10);
        cuts.extend([0, 1000]);
        cuts.sort_unstable();
        let mut parts: BTreeMap<(u32, String), (u64, u64)> = BTreeMap::new();
        for ends in cuts.windows(2).filter(|ends| ends[0] < ends[1]) {
            if let Ok(profile) = archive.query(&range(ends[0], ends[1])) {
                for (key, (count, cpu_ns)) in values(&profile) {
                    let sum = parts.entry(key).or_default();
                    *sum = (sum.0 + count, sum.1 + cpu_ns);
                }
            }
        }
        prop_assert_eq!(&parts, &all);
        if !all.is_empty() {
            prop_assert_eq!(&values(&archive.query(&always()).unwrap()), &all);
        }
    }
}

#[test]
fn a_window_with_more_names_than_a_file_holds_is_read_again_and_its_total_is_true() {
    let mut profile = Profile::new(meta(0), 100_000_000);
    let mut add = |of, name: &str, count| {
        let frame = Frame {
            name: Arc::from(name),
            kind: FrameKind::Jit,
            tier: Some(Tier::Optimized),
            inlined: true,
            module: None,
            source: None,
            address: 0,
        };
        let frame = profile.intern_frame(&frame);
        let (stack, task) = (profile.push(profile.stack_root(), frame), profile.task(task(of)));
        profile.add(MonoNs(0), stack, task, count);
    };
    let count = 750;
    (0..count).for_each(|number| add(10, &format!("{number:0>2000}"), 1));
    add(20, "victim", 50);
    // It is so large that no reader takes it.
    let mut bytes = Vec::new();
    encode(&profile, Encoding::default(), &mut bytes).unwrap();
    assert!(unpack(&*bytes, &READ_LIMITS, &mut Vec::new()).is_err());

    let store = Store::new(&options(None), None);
    let place = Place { level: Level::Window, start_ms: 0, length_ms: 10_000, ended_ms: 0 };
    store.put(&profile, place, &[]).unwrap();
    let merged = store.merge(&store.plan(&(0..20_000), true), &Filter::default(), Times::Together).unwrap();
    assert_eq!(merged.total(), count + 50);
    let mut of_victim = 0;
    merged.visit_rows(|row| {
        let (_, frame) = merged.pop(row.stack).unwrap();
        of_victim += if merged.frame(frame).name == "victim" { row.count } else { 0 };
    });
    assert_eq!(of_victim, 50);
}
