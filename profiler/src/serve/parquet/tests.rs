use std::path::Path;

use super::*;
use crate::archive::ArchiveOptions;
use crate::dataset::{DatasetQuery, Location, load};
use crate::profile::Profile;
use crate::record::Window;
use crate::serve::push::test_profile;
use jitprof_common::units::MonoNs;

/// So that hours ago is a time that the samples' clock knows, on a machine that has just been started, too.
const LONGER_UP: Duration = Duration::from_secs(86_400);

fn archive(directory: Option<&Path>) -> Arc<Archive> {
    let options = ArchiveOptions {
        memory_bytes: 32 << 20,
        directory: directory.map(Path::to_owned),
        max_age: Duration::from_secs(86_400),
        max_bytes: 1 << 30,
    };
    Arc::new(Archive::open_with_uptime(options, LONGER_UP).unwrap())
}

/// A window of so many samples that ended so long ago.
fn window(ago: Duration, samples: u64) -> Window {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
    let end = MonoNs((now + LONGER_UP - ago).as_nanos() as u64);
    let mut whole = test_profile(&[("node", "c1", samples)]);
    whole.set_duration(Duration::from_secs(1));
    // Its clock begins with the window.
    let start = MonoNs(end.0 - 1_000_000_000);
    let meta = crate::profile::ProfileMeta { start, ..whole.meta().clone() };
    let mut profile = Profile::new(meta, 1_000_000);
    profile.absorb(&whole, |_| Some(start));
    Window { profile, end, health: Default::default() }
}

fn settings(directory: &Path) -> ParquetSettings {
    let add_labels = BTreeMap::from([("version".to_owned(), "7".to_owned())]);
    ParquetSettings { directory: Some(directory.to_owned()), add_labels, ..ParquetSettings::default() }
}

fn worker(settings: &ParquetSettings, archive: &Arc<Archive>) -> Worker {
    Worker::new(settings, &WindowSettings::default(), Arc::clone(archive), "web1").unwrap()
}

/// Files of samples, and samples of version 7 in them.
fn dataset(directory: &Path) -> (usize, u64) {
    let store = Store::open(&Location::Directory(directory.to_owned()), &[]).unwrap();
    let mut query = DatasetQuery::default();
    query.filter.want("version", "7");
    query.filter.want("host", "web1");
    let total = load(&store, None, &query).unwrap().map_or(0, |profile| profile.total());
    (files(&directory.join("samples")), total)
}

fn files(directory: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    entries.map(|entry| entry.unwrap().path()).map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn slots_that_are_over_are_sent_once_and_the_open_one_at_the_end() {
    let (kept, sent) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let archive = archive(Some(kept.path()));
    for (ago, samples) in [(2 * HOUR, 3), (HOUR, 4), (HOUR, 5), (Duration::ZERO, 6)] {
        archive.add(window(ago, samples));
    }
    archive.flush();
    let mut sender = worker(&settings(sent.path()), &archive);
    while sender.look(false) == PACE {}
    assert_eq!(sender.look(false), LOOK);
    assert_eq!(dataset(sent.path()), (2, 12));
    // Another start knows what has arrived, and sends the slot that is open when it ends, and again when it has more.
    let mut sender = worker(&settings(sent.path()), &archive);
    while sender.look(true) == PACE {}
    assert_eq!(dataset(sent.path()), (3, 18));
    assert_eq!(sender.counts.files.load(Ordering::Relaxed), 2, "one of frames, one of samples");
    archive.add(window(Duration::ZERO, 7));
    let mut sender = worker(&settings(sent.path()), &archive);
    while sender.look(true) == PACE {}
    let (files, samples) = dataset(sent.path());
    // Ten minutes may have ended just between the two.
    assert!(files <= 4 && samples == 25, "{files} files, {samples} samples");
}

#[test]
fn what_could_not_be_sent_is_sent_later_and_nothing_is_sent_twice_for_another_length() {
    let (kept, sent) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let archive = archive(Some(kept.path()));
    for hour in 1..=5 {
        archive.add(window(hour * HOUR, 1));
    }
    archive.flush();
    let target = sent.path().join("dataset");
    // Something else is in its place.
    std::fs::write(&target, "x").unwrap();
    let mut settings = settings(&target);
    let mut sender = worker(&settings, &archive);
    for _ in 0..3 {
        let pause = sender.look(false);
        assert!(pause >= FIRST_PAUSE && pause != LOOK, "{pause:?}");
    }
    assert_eq!(sender.counts.waiting.load(Ordering::Relaxed), 5);
    assert!(sender.counts.failing.load(Ordering::Relaxed) && sender.counts.retries.load(Ordering::Relaxed) == 3);
    drop(sender);
    std::fs::remove_file(&target).unwrap();
    let mut sender = worker(&settings, &archive);
    while sender.look(false) == PACE {}
    assert_eq!(dataset(&target), (5, 5));
    assert!(!sender.counts.failing.load(Ordering::Relaxed));
    settings.every = crate::times::Period(HOUR);
    let mut sender = worker(&settings, &archive);
    assert_eq!(sender.look(true), LOOK);
    // Another place has nothing yet.
    let other = sent.path().join("other");
    settings.directory = Some(other.clone());
    let mut sender = worker(&settings, &archive);
    while sender.look(true) == PACE {}
    assert_eq!(dataset(&other).1, 5);
}

#[test]
fn windows_that_the_archive_dropped_first_are_counted_and_two_runs_without_files_do_not_overwrite_each_other() {
    let sent = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let archive = archive(None);
        archive.add(window(Duration::ZERO, 2));
        let mut sender = worker(&settings(sent.path()), &archive);
        while sender.look(true) == PACE {}
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(dataset(sent.path()), (2, 4));
    let archive = archive(None);
    archive.add(window(HOUR, 2));
    std::fs::write(sent.path().join("x"), "").unwrap();
    let mut sender = worker(&settings(&sent.path().join("x")), &archive);
    sender.look(false);
    sender.archive = self::archive(None);
    sender.look(false);
    assert_eq!(sender.counts.expired.load(Ordering::Relaxed), 1);
}
