//! One collector a process, whoever calls: any thread, a forked child, a signal handler in the middle of a call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::collector::Collector;
use crate::report::{self, Failure};
use crate::sys;

/// The state of the process that made it. A forked child finds its parent's, and puts its own in the place.
struct Process {
    pid: u32,
    /// The thread inside, 0 if there is none.
    inside: AtomicUsize,
    collector: Mutex<Collector>,
}

/// Never freed: threads may be inside while the process ends.
static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// Runs `work` with the collector of this process, alone. Does nothing after a failure, in which a panic ends too.
/// The thread's errno stays what it was, and the thread is not cancelled meanwhile.
pub(crate) fn with_collector(work: impl FnOnce(&mut Collector) -> Result<(), Failure>) {
    if report::is_dead() {
        return;
    }
    let _undisturbed = sys::Undisturbed::begin();
    let outcome = catch_unwind(AssertUnwindSafe(|| run(work)));
    let outcome = outcome.unwrap_or_else(|_| Err(Failure::new("internal error, please report it", 0)));
    if let Err(failure) = outcome {
        report::die(&failure);
    }
}

fn run(work: impl FnOnce(&mut Collector) -> Result<(), Failure>) -> Result<(), Failure> {
    let process = current();
    let thread = sys::thread();
    // The handler of a fault that compiles, on a thread that is inside: it would wait for itself. (Other signals wait
    // until the work is done, see `Undisturbed`.)
    if process.inside.load(Ordering::Relaxed) == thread {
        return Ok(());
    }
    // Poisoned by a panic in another thread, which has ended all work.
    let Ok(mut collector) = process.collector.lock() else { return Ok(()) };
    process.inside.store(thread, Ordering::Relaxed);
    let outcome = work(&mut collector);
    process.inside.store(0, Ordering::Relaxed);
    outcome
}

fn current() -> &'static Process {
    let pid = sys::pid();
    let known = CURRENT.load(Ordering::Acquire);
    // SAFETY: null, or made from a Box below, and never freed.
    let parent = match unsafe { known.as_ref() } {
        Some(process) if process.pid == pid => return process,
        parent => parent,
    };
    // If a thread of the parent was inside at the fork, it is not here to leave, and its tables may be half changed.
    let inherited = parent.and_then(|parent| Some(parent.collector.try_lock().ok()?.child(pid)));
    let collector = Mutex::new(inherited.unwrap_or_else(|| Collector::new(pid)));
    let own = Box::into_raw(Box::new(Process { pid, inside: AtomicUsize::new(0), collector }));
    match CURRENT.compare_exchange(known, own, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: made above, and never freed from here on.
        Ok(_) => unsafe { &*own },
        Err(other) => {
            // SAFETY: `own` was not published; `other` was, by another thread, and is never freed.
            unsafe {
                drop(Box::from_raw(own));
                &*other
            }
        }
    }
}
