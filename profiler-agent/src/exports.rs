//! What runtimes call.

use std::ffi::{c_uint, c_void};

use crate::event::SHUTDOWN;
use crate::itt;
use crate::process::with_collector;
use crate::report;

/// `iJIT_SAMPLING_ON`.
const SAMPLING_ON: c_uint = 1;
/// `iJIT_NOTHING_RUNNING`.
const NOTHING_RUNNING: c_uint = 0;
/// What SHUTDOWN is to return; the Rust crate `ittapi` takes anything else for an error. The others ignore it.
const DONE: c_uint = 1;

/// Called once by the API's static part. Returns 1 for "sampling", or 0 if no dump can be made: then engines that ask
/// (oneDNN) announce nothing.
#[unsafe(no_mangle)]
pub extern "C" fn Initialize() -> c_uint {
    silence_panics();
    with_collector(|collector| collector.open().map(|_| ()));
    if report::is_dead() { NOTHING_RUNNING } else { SAMPLING_ON }
}

/// Called for each event. `data` is the event's structure, and may be any pointer. Returns 1.
#[unsafe(no_mangle)]
pub extern "C" fn NotifyEvent(event: c_uint, data: *mut c_void) -> c_uint {
    // Nothing is torn down: more loads may follow, and there is nothing to flush.
    if event != SHUTDOWN {
        with_collector(|collector| collector.event(event, data as u64));
    }
    DONE
}

/// Called once by ITT's static part, to fill in its table of functions. `global` is its `__itt_global`, and `groups`
/// what it wants; both may be anything.
#[unsafe(no_mangle)]
pub extern "C" fn __itt_api_init(global: *mut c_void, _groups: c_uint) {
    silence_panics();
    itt::fill_in(global as u64);
}

/// The default hook writes pages to stderr; a panic here costs one line. The hook is this library's own: std is linked
/// into it.
fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}
