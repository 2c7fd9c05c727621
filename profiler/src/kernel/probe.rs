//! Breakpoints on what processes call when they register code with a debugger: one uprobe for each process and place, by
//! `perf_event_open(2)` (Linux 4.17).
//!
//! The kernel writes the breakpoint into the process, and takes it away when the event's descriptor is closed. Both wait for the
//! process' address space, which may be held: nothing here is for the thread of the samples.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::{HashMap, MapData, MapError};
use aya::programs::ProgramFd;
use jitprof_common::units::{Avma, Pid};
use perf_event_open_sys::bindings::{PERF_FLAG_FD_CLOEXEC, perf_event_attr};
use perf_event_open_sys::ioctls;

use super::error::KernelError;
use crate::process::apart::HeldFile;

/// Where the kernel says which kind of event a uprobe is.
const KIND: &str = "/sys/bus/event_source/devices/uprobe/type";
/// Insert nothing in the place of something (`BPF_NOEXIST`).
const ONLY_NEW: u64 = 1;

/// Sets breakpoints that run the BPF program.
pub struct Prober {
    program: ProgramFd,
    kind: u32,
    slots: Mutex<Slots>,
}

/// Where a breakpoint is wanted.
#[derive(Clone, Copy, Debug)]
pub struct ProbeAt<'a> {
    /// The process.
    pub pid: Pid,
    /// A thread of it that lives.
    pub via: Pid,
    /// Who has started it.
    pub user: u32,
    /// A handle on the file that is mapped.
    pub file: &'a File,
    /// Where in the file the function begins, in bytes.
    pub offset: u64,
    /// Where it is in the process.
    pub function: Avma,
    /// Where the descriptor is that belongs to it.
    pub descriptor: Avma,
}

/// A breakpoint. Dropping this takes it away, which is not waited for.
pub struct Probe {
    prober: Arc<Prober>,
    place: (Pid, Avma),
    /// Nothing until it is set.
    event: Option<HeldFile>,
}

/// What the BPF program knows of processes.
struct Slots {
    /// By function and process, as `ProbeKey` has them.
    probed: HashMap<MapData, [u64; 2], u64>,
    /// As `CallCount` has it.
    calls: HashMap<MapData, u32, [u64; 3]>,
    places: BTreeMap<Pid, Places>,
}

/// Those of one process.
#[derive(Default)]
struct Places {
    /// How many it has.
    count: usize,
    /// Calls that were not told, as was said last.
    missed: u64,
}

impl Prober {
    /// For a loaded program, with its maps.
    ///
    /// # Errors
    /// The kernel has no uprobes, or the object not the maps.
    pub(super) fn new(ebpf: &mut Ebpf, program: ProgramFd) -> Result<Self, KernelError> {
        let kind = kind().map_err(|source| KernelError::NoUprobes { source })?;
        let mut take = |name| ebpf.take_map(name).ok_or(KernelError::Mismatch { name });
        let slots = Slots {
            probed: HashMap::try_from(take("PROBED")?)?,
            calls: HashMap::try_from(take("CALLS")?)?,
            places: BTreeMap::new(),
        };
        Ok(Self { program, kind, slots: Mutex::new(slots) })
    }

    /// Sets a breakpoint, and waits for the process' address space.
    ///
    /// # Errors
    /// The kernel refuses, or there is one already.
    pub fn attach(self: &Arc<Self>, at: &ProbeAt<'_>) -> io::Result<Probe> {
        let place = (at.pid, at.function);
        self.slots().add(place, at.descriptor).map_err(io::Error::other)?;
        let mut probe = Probe { prober: Arc::clone(self), place, event: None };
        let event = self.open(at)?;
        probe.event = Some(HeldFile::new(File::from(event), true).opened_for(0, || Some(at.user)));
        Ok(probe)
    }

    /// The processes of which more calls have not been told than was said last, and how many since they are probed.
    pub fn newly_missed(&self) -> Vec<(Pid, u64)> {
        let mut slots = self.slots();
        let Slots { calls, places, .. } = &mut *slots;
        let newly_missed = |(pid, of): (&Pid, &mut Places)| {
            let [_, _, missed] = calls.get(&pid.0, 0).ok()?;
            (std::mem::replace(&mut of.missed, missed) != missed).then_some((*pid, missed))
        };
        places.iter_mut().filter_map(newly_missed).collect()
    }

    /// Nothing panics while the lock is held.
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, at: &ProbeAt<'_>) -> io::Result<OwnedFd> {
        // Whatever is at the file's path by now: this leads to the very file.
        let path = CString::new(format!("/proc/self/fd/{}", at.file.as_raw_fd())).map_err(io::Error::other)?;
        let via = i32::try_from(at.via.0).map_err(io::Error::other)?;
        let size = u32::try_from(size_of::<perf_event_attr>()).map_err(io::Error::other)?;
        let mut attributes = perf_event_attr { type_: self.kind, size, ..perf_event_attr::default() };
        attributes.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
        attributes.__bindgen_anon_4.probe_offset = at.offset;
        // SAFETY: attributes and path live through the call; the result is checked before it becomes a descriptor.
        let event = unsafe {
            let fd = perf_event_open_sys::perf_event_open(&mut attributes, via, -1, -1, PERF_FLAG_FD_CLOEXEC.into());
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let program = u32::try_from(self.program.as_fd().as_raw_fd()).map_err(io::Error::other)?;
        // SAFETY: both are open descriptors, of an event and of a program; neither call gets a pointer.
        let is_refused =
            unsafe { ioctls::SET_BPF(event.as_raw_fd(), program) < 0 || ioctls::ENABLE(event.as_raw_fd(), 0) < 0 };
        if is_refused { Err(io::Error::last_os_error()) } else { Ok(event) }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // What it tells from here on is of nobody.
        self.prober.slots().remove(self.place);
    }
}

impl Slots {
    fn add(&mut self, place: (Pid, Avma), descriptor: Avma) -> Result<(), MapError> {
        let (pid, _) = place;
        self.probed.insert(key(place), descriptor.0, ONLY_NEW)?;
        if !self.places.contains_key(&pid)
            && let Err(error) = self.calls.insert(pid.0, [0_u64; 3], 0)
        {
            drop(self.probed.remove(&key(place)));
            return Err(error);
        }
        self.places.entry(pid).or_default().count += 1;
        Ok(())
    }

    fn remove(&mut self, place: (Pid, Avma)) {
        let (pid, _) = place;
        // What is not there need not go.
        drop(self.probed.remove(&key(place)));
        let Some(places) = self.places.get_mut(&pid) else { return };
        places.count = places.count.saturating_sub(1);
        if places.count == 0 {
            self.places.remove(&pid);
            drop(self.calls.remove(&pid.0));
        }
    }
}

fn key((pid, function): (Pid, Avma)) -> [u64; 2] {
    [function.0, pid.0.into()]
}

fn kind() -> io::Result<u32> {
    std::fs::read_to_string(KIND)?.trim().parse().map_err(io::Error::other)
}
