//! What an archive's files go through: a writer that is killed in the middle, and a disk that is full.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::num::NonZeroU32;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jitprof::archive::{Archive, ArchiveOptions, Query, read_directory};
use jitprof::profile::{Filter, Profile, ProfileMeta, SampledEvent, Task};
use jitprof::record::{Health, Window};
use jitprof::symbol::{Frame, FrameKind};
use jitprof_common::units::{MonoNs, Pid, Tid};

/// Where the writer that will be killed writes.
const WRITER: &str = "JITPROF_TEST_WRITER";

/// A window whose only function tells its number, with enough beside it that writing takes a while.
fn window(number: u64) -> Window {
    let start = MonoNs(number * 10_000_000);
    let meta = ProfileMeta {
        title: "test".to_owned(),
        start_time: UNIX_EPOCH,
        start,
        duration: Duration::from_millis(10),
        frequency_hz: NonZeroU32::new(99).unwrap(),
        event: SampledEvent::CpuClock,
    };
    let mut profile = Profile::new(meta, u64::MAX);
    let frame = |profile: &mut Profile, name: String| {
        profile.intern_frame(&Frame {
            name: Arc::from(name),
            kind: FrameKind::Native,
            tier: None,
            inlined: false,
            module: None,
            source: None,
            address: 0,
        })
    };
    let task = profile.task(Task {
        pid: Pid(1),
        process_start: 1,
        tid: Tid(1),
        comm: Arc::from("test"),
        labels: Arc::default(),
    });
    let function = frame(&mut profile, format!("window{number}"));
    let base = profile.push(profile.stack_root(), function);
    for inner in 0..300_u64 {
        let name = inner.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number).to_string().repeat(3);
        let function = frame(&mut profile, name);
        let stack = profile.push(base, function);
        profile.add(start, stack, task, 1);
    }
    Window { profile, end: MonoNs(start.0 + 10_000_000), health: Health::default() }
}

fn options(path: &Path) -> ArchiveOptions {
    ArchiveOptions {
        memory_bytes: 8 << 20,
        directory: Some(path.to_owned()),
        max_age: Duration::from_secs(86_400 * 365),
        max_bytes: 1 << 30,
    }
}

fn always() -> Query {
    let to = SystemTime::now() + Duration::from_secs(86_400 * 365 * 100);
    Query { from: UNIX_EPOCH, to, filter: Filter::default() }
}

/// The numbers of the windows whose 300 samples are all there.
fn whole_windows(profile: &Profile) -> BTreeSet<u64> {
    let mut counts = std::collections::BTreeMap::<u64, u64>::new();
    let mut frames = Vec::new();
    for row in profile.rows_without_time() {
        profile.frames_of(row.stack, &mut frames);
        let number = profile.frame(frames[0]).name.strip_prefix("window").unwrap().parse().unwrap();
        *counts.entry(number).or_default() += row.count;
    }
    assert!(counts.values().all(|count| *count == 300), "{counts:?}");
    counts.into_keys().collect()
}

/// Not a test of its own: the process that is killed. Says which windows are surely in files.
#[test]
fn writer() {
    let Some(path) = std::env::var_os(WRITER) else { return };
    let archive = Archive::open(options(Path::new(&path))).unwrap();
    for number in 0.. {
        archive.add(window(number));
        if number % 7 == 6 {
            archive.flush();
            println!("written {number}");
        }
    }
}

#[test]
fn a_writer_that_is_killed_loses_the_open_window_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive");
    // Killed at another point each time, and started again on what is there.
    for round in 0..8_usize {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer", "--nocapture"])
            .env(WRITER, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut written = lines.filter_map(|line| line.strip_prefix("written ")?.parse::<u64>().ok());
        let sure = written.nth(round).unwrap();
        writer.kill().unwrap();
        assert!(!writer.wait().unwrap().success());

        // Read beside a possible writer, and by the next one.
        let seen = whole_windows(&read_directory(&path, &always()).unwrap());
        assert!((0..=sure).all(|number| seen.contains(&number)), "{sure} of {seen:?}");
        let archive = Archive::open(options(&path)).unwrap();
        assert_eq!(whole_windows(&archive.query(&always()).unwrap()), seen);
        assert_eq!(archive.stats().unreadable, 0);
        drop(archive);
        let days = std::fs::read_dir(&path).unwrap().map(|day| day.unwrap().path()).filter(|day| day.is_dir());
        let files = days.flat_map(|day| std::fs::read_dir(day).unwrap().map(|file| file.unwrap().file_name()));
        let files: Vec<_> = files.map(|file| file.into_string().unwrap()).collect();
        assert!(files.iter().all(|file| file.ends_with(".pb.gz") && !file.starts_with('.')), "{files:?}");
        std::fs::remove_dir_all(&path).unwrap();
    }
}

/// A file system of its own, unmounted with this.
struct SmallDisk<'p>(&'p Path);

impl<'p> SmallDisk<'p> {
    fn mount(path: &'p Path) -> Self {
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs"]).arg(path).status();
        assert!(status.unwrap().success(), "needs root");
        Self(path)
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(self.0).status().unwrap().success());
    }
}

#[test]
#[ignore = "mounts a tmpfs: sudo cargo test -p jitprof --test archive_faults -- --ignored"]
fn a_full_disk_stops_the_writing_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(folder.path());
    let ballast = folder.path().join("ballast");
    std::fs::write(&ballast, vec![1; 200 << 10]).unwrap();
    let archive = Archive::open(options(folder.path())).unwrap();
    for number in 0..60 {
        archive.add(window(number));
        archive.flush();
    }
    let full = archive.stats();
    assert!(full.writes_failed > 0 && full.is_stopped, "{full:?}");
    assert_eq!(full.windows, 60, "all are in memory: {full:?}");
    assert_eq!(whole_windows(&archive.query(&always()).unwrap()).len(), 60);
    let temporary = |path: &Path| {
        let days = std::fs::read_dir(path).unwrap().map(|day| day.unwrap().path()).filter(|day| day.is_dir());
        let files = days.flat_map(|day| std::fs::read_dir(day).unwrap().map(|file| file.unwrap().file_name()));
        files.filter(|file| file.to_string_lossy().starts_with(".tmp-")).count()
    };
    assert_eq!(temporary(folder.path()), 0);

    assert_eq!((full.waiting, full.written_late), (60 - full.disk_windows, 0), "{full:?}");

    // Room for some: the oldest that wait are written first.
    std::fs::write(&ballast, vec![1; 150 << 10]).unwrap();
    archive.add(window(60));
    archive.flush();
    let some = archive.stats();
    assert!(some.is_stopped && some.written_late > 0 && some.waiting > 0, "{some:?}");
    let kept = whole_windows(&read_directory(folder.path(), &always()).unwrap());
    let oldest: BTreeSet<u64> = (0..u64::try_from(some.disk_windows).unwrap()).collect();
    assert_eq!(kept, oldest);

    // Room for all: nothing is missing.
    std::fs::remove_file(&ballast).unwrap();
    assert!(Command::new("mount").args(["-o", "remount,size=4m"]).arg(folder.path()).status().unwrap().success());
    archive.add(window(61));
    archive.flush();
    let again = archive.stats();
    assert!(!again.is_stopped && again.waiting == 0 && again.dropped == 0, "{again:?}");
    assert_eq!((again.disk_windows, again.writes_failed), (62, some.writes_failed), "{again:?}");
    // The windows here all ended before the disk was full.
    assert_eq!(again.written_late, 62 - u64::try_from(full.disk_windows).unwrap());
    drop(archive);
    assert_eq!(whole_windows(&read_directory(folder.path(), &always()).unwrap()), (0..62).collect());
    assert_eq!(temporary(folder.path()), 0);
    drop(disk);
}
