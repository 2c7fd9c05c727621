//! The frames that a runtime keeps in lists, of threads that wait: no sample brings them along.

use std::collections::HashMap;

use jitprof_common::listed::ListSpec;
use jitprof_common::units::{Pid, Tid};
use jitprof_runtimes::{Reader, Walked, walk};

use super::known_files::KnownFiles;
use super::modules::Modules;
use super::php::Php;
use super::python::Python;
use super::ruby::Ruby;
use super::{BUDGET, DESCRIBE_BUDGET, Live};
use crate::process::apart::Waits;
use crate::process::procfs;

/// Where the lists of a process begin.
#[derive(Debug)]
pub struct ThreadLists {
    via: Pid,
    walk: ListSpec,
    /// The pointers of threads, by their numbers in the process' own namespace.
    pointers: HashMap<u32, u64>,
}

impl ThreadLists {
    /// Of a process as it is now; nothing if its runtime is none that has such lists, or they cannot be read.
    pub fn of(via: Pid) -> Option<Self> {
        let reader = Reader::new(Live(via), BUDGET);
        let modules = Modules::of(via, &KnownFiles::default(), &Waits::default());
        if let Some(python) = Python::find(&modules, &reader) {
            let python = python.ok()?;
            let pointers = python.layout().thread_pointers(&reader).ok()?.into_iter().collect();
            return Some(Self { via, walk: *python.layout().walk(), pointers });
        }
        // What is read is the process' first thread's; it begins at no thread pointer.
        let walk = match Php::find(&modules, &reader) {
            Some(php) => php.ok()?.capture().list?.walk,
            None => *Ruby::find(&modules, &reader)?.ok()?.walk_of_first_thread()?,
        };
        let first = procfs::own_tid(via, Tid(via.0)).ok()?;
        Some(Self { via, walk, pointers: HashMap::from([(first, 0)]) })
    }

    /// The list of a thread, as samples of it have it. Nothing if the thread has none.
    pub fn of_thread(&self, tid: Tid) -> Option<Walked> {
        let pointer = *self.pointers.get(&procfs::own_tid(self.via, tid).ok()?)?;
        let walked = walk(&self.walk, pointer, &Reader::new(Live(self.via), DESCRIBE_BUDGET));
        walked.base.is_some().then_some(walked)
    }
}
