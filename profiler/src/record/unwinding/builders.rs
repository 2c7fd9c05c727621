//! Builds rows of files on threads of their own, what samples wait for first.

use std::fs::File;
use std::io;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::elf::{Build, ElfError, Source};
use crate::process::own_vdso;
use crate::unwind::{ElfRows, RowsError, rows_of_elf, rows_of_elf_bytes};

/// Builders at most: rows are wanted soon, and the CPUs are the target's. They run at the usual priority: on a busy
/// machine a niceness of 5 let 9 files be built in 5 seconds instead of 70, and the stacks were cut accordingly.
const MAX_BUILDERS: usize = 4;
/// Files with more functions leave one builder to the others. Node has 76,000 and takes 80 ms, libc 3,700 and 3 ms.
const LARGE_FUNCTIONS: u64 = 20_000;

/// In the background, a builder rests after a file that no sample has met so many times as long as it took, and not
/// longer than this: a tenth of one CPU for each builder.
const REST: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(2);
/// And gives way to everybody else.
const BACKGROUND_NICE: i32 = 5;

/// What rows are made of.
#[derive(Debug)]
pub(super) enum Image {
    File(File),
    Vdso,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) object: u32,
    /// The rows, or why there are none.
    pub(super) rows: Result<ElfRows, String>,
    pub(super) took: Duration,
}

/// An image that waits for a builder.
#[derive(Debug)]
struct Order {
    object: u32,
    image: Image,
    /// How long it will take: its functions, about.
    functions: u64,
    /// Samples that have met it meanwhile.
    samples: u64,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Order>,
    closing: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Nobody waits for the end of the recording: what no sample has met is built in pauses.
    background: AtomicBool,
}

/// The threads. Dropping this ends them, each behind the file that it is at.
#[derive(Debug)]
pub(super) struct Builders {
    shared: Arc<Shared>,
    built: Receiver<Built>,
    outstanding: usize,
}

impl Builders {
    /// Starts them: as many as there are CPUs, at least two so that a large file stops no small one, four at most.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn spawn() -> io::Result<Self> {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shared = Arc::new(Shared::default());
        let (answers, built) = channel();
        let builders = Self { shared: Arc::clone(&shared), built, outstanding: 0 };
        for index in 0..cpus.clamp(2, MAX_BUILDERS) {
            let (shared, answers) = (Arc::clone(&shared), answers.clone());
            let thread = std::thread::Builder::new().name(format!("rows-{index}"));
            thread.spawn(move || build(&shared, &answers, index == 0))?;
        }
        Ok(builders)
    }

    /// Has rows built that `samples` samples have met already.
    pub(super) fn order(&mut self, object: u32, image: Image, samples: u64) {
        let functions = match &image {
            Image::File(file) => functions_of(file),
            Image::Vdso => 0,
        };
        self.outstanding = self.outstanding.saturating_add(1);
        self.shared.lock().waiting.push(Order { object, image, functions, samples });
        // Not all builders take large files: one that does must hear of it.
        self.shared.changed.notify_all();
    }

    /// A sample has met an object that waits: it comes sooner.
    pub(super) fn want(&self, object: u32) {
        if let Some(order) = self.shared.lock().waiting.iter_mut().find(|order| order.object == object) {
            order.samples = order.samples.saturating_add(1);
            self.shared.changed.notify_all();
        }
    }

    /// From now on what no sample has met is built slowly.
    pub(super) fn work_in_background(&self) {
        self.shared.background.store(true, Ordering::Relaxed);
    }

    /// Objects ordered and not yet taken up.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// What has been built, if anything has.
    pub(super) fn next(&mut self) -> Option<Built> {
        match self.built.try_recv() {
            Ok(built) => Some(self.taken(built)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// The same, waiting for it until `deadline`.
    pub(super) fn wait_next(&mut self, deadline: Instant) -> Option<Built> {
        match self.built.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(built) => Some(self.taken(built)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    fn taken(&mut self, built: Built) -> Built {
        self.outstanding = self.outstanding.saturating_sub(1);
        built
    }
}

impl Drop for Builders {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closing = true;
        queue.waiting.clear();
        drop(queue);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Nothing panics while the lock is held.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a while, unless a sample comes to wait for something.
    fn rest(&self, pause: Duration) {
        let rested = |queue: &mut Queue| !queue.closing && queue.waiting.iter().all(|order| order.samples == 0);
        let waited = self.changed.wait_timeout_while(self.lock(), pause, rested);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for the next order; `None` to end.
    fn next(&self, only_small: bool) -> Option<Order> {
        let mut queue = self.lock();
        loop {
            if queue.closing {
                return None;
            }
            if let Some(index) = queue.choose(only_small) {
                return Some(queue.waiting.swap_remove(index));
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Queue {
    /// The least work for each sample that waits for it: this order leaves the fewest samples without rows, and libc does
    /// not wait for a browser.
    fn choose(&self, only_small: bool) -> Option<usize> {
        let fitting = |order: &Order| !only_small || order.functions < LARGE_FUNCTIONS;
        let waiting = self.waiting.iter().enumerate().filter(|(_, order)| fitting(order));
        waiting.min_by(|(_, a), (_, b)| a.compare_work(b)).map(|(index, _)| index)
    }
}

impl Order {
    /// By functions for each sample. A file that no sample has met counts like half a sample: its process runs.
    fn compare_work(&self, other: &Self) -> std::cmp::Ordering {
        let half_samples = |order: &Self| u128::from(order.samples) * 2 + 1;
        let work = |order: &Self| u128::from(order.functions) + 1;
        (work(self) * half_samples(other)).cmp(&(work(other) * half_samples(self)))
    }
}

/// By the table of functions; without one, by the file's length: a function has some hundred bytes.
fn functions_of(file: &File) -> u64 {
    let functions = Build::read(&Source::File(file)).map_or(0, |build| build.functions);
    if functions > 0 { functions } else { file.metadata().map_or(u64::MAX, |metadata| metadata.len() / 256) }
}

fn build(shared: &Shared, answers: &Sender<Built>, only_small: bool) {
    let mut polite = false;
    while let Some(Order { object, image, samples, .. }) = shared.next(only_small) {
        let background = shared.background.load(Ordering::Relaxed);
        if background && !std::mem::replace(&mut polite, true) {
            // Of this thread alone: Linux takes a niceness for each.
            if let Err(error) = rustix::process::setpriority_process(None, BACKGROUND_NICE) {
                tracing::debug!("a builder keeps its priority: {error}");
            }
        }
        let started = Instant::now();
        let rows = catch_unwind(move || rows_of(&image));
        let rows = rows.unwrap_or_else(|_| Err("its reader panicked".to_owned()));
        let took = started.elapsed();
        if answers.send(Built { object, rows, took }).is_err() {
            return;
        }
        if background && samples == 0 {
            shared.rest(took.saturating_mul(REST).min(LONGEST_REST));
        }
    }
}

fn rows_of(image: &Image) -> Result<ElfRows, String> {
    let rows = match image {
        Image::File(file) => rows_of_elf(file),
        Image::Vdso => own_vdso()
            .map_err(|error| RowsError::Elf(ElfError::Read(error)))
            .and_then(|image| rows_of_elf_bytes(&image)),
    };
    rows.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(object: u32, functions: u64, samples: u64) -> Order {
        Order { object, image: Image::Vdso, functions, samples }
    }

    #[test]
    fn the_least_work_for_each_waiting_sample_comes_first() {
        let waiting =
            vec![order(1, 9, 0), order(2, 70_000, 300), order(3, 3_700, 100), order(4, 50, 0), order(5, 60, 3)];
        let mut queue = Queue { waiting, closing: false };
        let mut chosen = Vec::new();
        while let Some(index) = queue.choose(false) {
            chosen.push(queue.waiting.swap_remove(index).object);
        }
        assert_eq!(chosen, [5, 1, 3, 4, 2]);
    }

    #[test]
    fn one_builder_is_kept_free_of_large_files() {
        let mut queue = Queue { waiting: vec![order(1, LARGE_FUNCTIONS, 90_000), order(2, 5, 0)], closing: false };
        assert_eq!(queue.choose(true).map(|index| queue.waiting.swap_remove(index).object), Some(2));
        assert_eq!(queue.choose(true), None);
        assert_eq!(queue.choose(false), Some(0));
    }

    #[test]
    fn rows_come_from_the_threads() {
        let mut builders = Builders::spawn().unwrap();
        builders.order(7, Image::Vdso, 0);
        builders.order(8, Image::File(File::open("/proc/self/exe").unwrap()), 0);
        builders.want(8);
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut objects: Vec<u32> = (0..2)
            .map(|_| {
                let built = builders.wait_next(deadline).unwrap();
                assert!(built.rows.is_ok_and(|rows| !rows.table.is_empty()));
                built.object
            })
            .collect();
        objects.sort_unstable();
        assert_eq!((objects.as_slice(), builders.outstanding()), ([7, 8].as_slice(), 0));
    }
}
