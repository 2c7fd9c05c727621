//! The sideband: mappings, names, forks and exits of all tasks, as they happen.
//!
//! A dummy software event on each CPU with `mmap2`, `comm` and `task` set, on CLOCK_MONOTONIC. No tracefs, no
//! tracepoints. Kernel 4.3 or later.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;

use jitprof_common::units::MonoNs;
use perf_event_open_sys::bindings::{
    PERF_COUNT_SW_DUMMY, PERF_FORMAT_TOTAL_TIME_ENABLED, PERF_SAMPLE_TID, PERF_SAMPLE_TIME, PERF_TYPE_SOFTWARE,
    perf_event_attr,
};

use super::error::KernelError;
use super::perf_ring::PerfRing;
use super::task_event;
use crate::process::event::TaskEvent;
use crate::process::monotonic_now;

/// Pages of each CPU's ring. 512 KiB hold some 4000 mappings; a process start makes about 30 records.
const RING_PAGES: usize = 128;

/// Bytes of records with which a continuous recording is woken: an eighth of a ring. It looks at them several times a second
/// anyway, and each wake-up interrupts whoever starts a process or maps a file.
const GATHERED_BYTES: u32 = 64 << 10;

/// When a reader is woken for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakes {
    /// With each: a new child should be followed at once, and the reader paces himself.
    WithEach,
    /// With many.
    WithMany,
}

/// The open sideband of all CPUs.
#[derive(Debug)]
pub struct Sideband {
    wakes: Wakes,
    rings: Vec<Ring>,
    /// CPUs that cannot be opened, of which that has been said.
    unseen: BTreeSet<u32>,
    scratch: Vec<u8>,
    order: Order,
}

/// One CPU's ring.
#[derive(Debug)]
struct Ring {
    cpu: u32,
    ring: PerfRing,
    /// For how long its event had been enabled when that was looked at last, and when that was.
    enabled_ns: u64,
    looked_at: MonoNs,
    /// Nobody waits for it yet.
    is_new: bool,
}

/// Events of several rings, put in order.
#[derive(Debug, Default)]
struct Order {
    /// Those that have been read and not given.
    held: Vec<TaskEvent>,
}

impl Sideband {
    /// Opens it on these CPUs.
    ///
    /// # Errors
    /// `perf_event_open` was refused.
    pub fn open(cpus: &[u32], wakes: Wakes) -> Result<Self, KernelError> {
        Self::open_by(cpus, wakes, |cpu| Ring::open(cpu, wakes)).map_err(KernelError::perf_event_open)
    }

    /// CPUs that have gone offline since they were listed are left to [`Sideband::set_cpus`], unless all have.
    fn open_by(cpus: &[u32], wakes: Wakes, open: impl Fn(u32) -> io::Result<Ring>) -> io::Result<Self> {
        let (mut rings, mut gone) = (Vec::new(), None);
        for &cpu in cpus {
            match open(cpu) {
                Ok(ring) => rings.push(ring),
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => gone = Some(error),
                Err(error) => return Err(error),
            }
        }
        match gone.filter(|_| rings.is_empty()) {
            Some(error) => Err(error),
            None => Ok(Self { wakes, rings, unseen: BTreeSet::new(), scratch: Vec::new(), order: Order::default() }),
        }
    }

    /// Descriptors that tell when events come.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(|ring| ring.ring.fd())
    }

    /// Those of rings that have been opened since the last call, or since all were opened.
    pub fn take_new_fds(&mut self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter_mut().filter_map(|ring| std::mem::take(&mut ring.is_new).then(|| ring.ring.fd()))
    }

    /// The CPUs whose events have ended, because they were offline at some time: the kernel takes their events away, and
    /// does not bring them back. To be called every few seconds; each call interrupts each CPU.
    pub fn ended(&mut self) -> Vec<u32> {
        let now = monotonic_now();
        let ended = self.rings.iter_mut().filter_map(|ring| {
            let before = std::mem::replace(&mut ring.enabled_ns, ring.ring.enabled_ns().unwrap_or(0));
            let since = std::mem::replace(&mut ring.looked_at, now);
            let enabled_ns = ring.enabled_ns.saturating_sub(before);
            (enabled_ns < now.0.saturating_sub(since.0) / 2).then_some(ring.cpu)
        });
        ended.collect()
    }

    /// Goes on with these CPUs; those that `ended` names get new rings. One that cannot be opened is tried with each
    /// call, and said once.
    pub fn set_cpus(&mut self, cpus: &[u32], ended: &[u32]) {
        let wakes = self.wakes;
        for (cpu, error) in self.set_cpus_by(cpus, ended, |cpu| Ring::open(cpu, wakes)) {
            tracing::warn!("what processes do on CPU {cpu} is not seen: {error}");
        }
    }

    /// Returns what is to be said: those that cannot be opened, and could when they were opened last.
    fn set_cpus_by(
        &mut self,
        cpus: &[u32],
        ended: &[u32],
        open: impl Fn(u32) -> io::Result<Ring>,
    ) -> Vec<(u32, io::Error)> {
        let mut news = Vec::new();
        self.read();
        self.rings.retain(|ring| cpus.contains(&ring.cpu) && !ended.contains(&ring.cpu));
        for &cpu in cpus {
            if self.rings.iter().any(|ring| ring.cpu == cpu) {
                continue;
            }
            match open(cpu) {
                Ok(ring) => {
                    self.unseen.remove(&cpu);
                    self.rings.push(Ring { is_new: true, ..ring });
                }
                Err(error) if self.unseen.insert(cpu) => news.push((cpu, error)),
                Err(_) => {}
            }
        }
        news
    }

    /// The CPUs that have a ring.
    pub fn cpus(&self) -> impl Iterator<Item = u32> {
        self.rings.iter().map(|ring| ring.cpu)
    }

    /// Appends all events up to now to `out`, ordered by time, also against those of earlier calls.
    ///
    /// Each ring is in order, but a process may fork on one CPU and its child execute on another while the rings are read
    /// one after the other. What happens meanwhile is held until the next call.
    pub fn drain(&mut self, out: &mut Vec<TaskEvent>) {
        let until = monotonic_now();
        // A record gets its time before it is in the ring: the second reading finds those that were on their way.
        self.read();
        self.read();
        self.order.give(until, out);
    }

    fn read(&mut self) {
        for ring in &mut self.rings {
            ring.ring.drain(&mut self.scratch, |record| self.order.held.extend(task_event::parse(record)));
        }
    }

    /// Whether there are events for the next call, of which no descriptor tells.
    pub fn is_holding(&self) -> bool {
        !self.order.held.is_empty()
    }

    pub(super) fn first_ring(&self) -> Option<&PerfRing> {
        self.rings.first().map(|ring| &ring.ring)
    }
}

impl Ring {
    fn open(cpu: u32, wakes: Wakes) -> io::Result<Self> {
        let ring = PerfRing::open(attributes(wakes), cpu, RING_PAGES)?;
        Ok(Self { cpu, ring, enabled_ns: 0, looked_at: monotonic_now(), is_new: false })
    }
}

impl Order {
    /// Appends what happened up to a time to `out`, by time.
    fn give(&mut self, until: MonoNs, out: &mut Vec<TaskEvent>) {
        self.held.sort_by_key(|event| event.time);
        let count = self.held.partition_point(|event| event.time <= until);
        out.extend(self.held.drain(..count));
    }
}

fn attributes(wakes: Wakes) -> perf_event_attr {
    let mut attributes = perf_event_attr {
        type_: PERF_TYPE_SOFTWARE,
        config: PERF_COUNT_SW_DUMMY.into(),
        read_format: PERF_FORMAT_TOTAL_TIME_ENABLED.into(),
        sample_type: (PERF_SAMPLE_TID | PERF_SAMPLE_TIME).into(),
        clockid: libc::CLOCK_MONOTONIC,
        ..perf_event_attr::default()
    };
    attributes.set_mmap(1);
    attributes.set_mmap2(1);
    attributes.set_comm(1);
    attributes.set_comm_exec(1);
    attributes.set_task(1);
    attributes.set_sample_id_all(1);
    attributes.set_use_clockid(1);
    attributes.set_watermark(1);
    attributes.__bindgen_anon_2.wakeup_watermark = match wakes {
        Wakes::WithEach => 1,
        Wakes::WithMany => GATHERED_BYTES,
    };
    attributes
}

#[cfg(test)]
mod tests {
    use jitprof_common::units::{Pid, Tid};

    use super::*;
    use crate::process::event::TaskChange;

    #[test]
    fn what_happens_while_the_rings_are_read_waits_for_what_came_before_it() {
        let event =
            |time, pid| TaskEvent { time: MonoNs(time), change: TaskChange::Exit { pid: Pid(pid), tid: Tid(pid) } };
        let (mut order, mut out) = (Order::default(), Vec::new());
        // The first ring was read before its event of 120 was there, the second one behind that of 130.
        order.held.extend([event(90, 1), event(80, 2), event(130, 2)]);
        order.give(MonoNs(100), &mut out);
        order.held.extend([event(120, 1), event(210, 1)]);
        order.give(MonoNs(200), &mut out);
        assert_eq!(out.iter().map(|event| event.time.0).collect::<Vec<_>>(), [80, 90, 120, 130]);
        assert_eq!(order.held.len(), 1);
    }

    #[test]
    fn a_cpu_that_has_gone_since_it_was_listed_does_not_end_the_start() {
        let gone = |_: u32| Err(io::Error::from_raw_os_error(libc::ENODEV));
        assert!(
            Sideband::open_by(&[0, 1], Wakes::WithEach, gone)
                .is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV))
        );
        assert!(Sideband::open_by(&[0], Wakes::WithEach, |_| Err(io::ErrorKind::ResourceBusy.into())).is_err());
        // Without the right to open an event it is not seen how that ends.
        if Ring::open(0, Wakes::WithEach).is_ok() {
            let second = |cpu: u32| if cpu == 0 { Ring::open(cpu, Wakes::WithEach) } else { gone(cpu) };
            assert_eq!(Sideband::open_by(&[0, 1], Wakes::WithEach, second).unwrap().cpus().collect::<Vec<_>>(), [0]);
        }
    }

    #[test]
    fn a_cpu_that_cannot_be_opened_is_said_once_until_it_can() {
        let mut sideband = Sideband::open(&[], Wakes::WithEach).unwrap();
        let refused = |_: u32| Err(io::ErrorKind::ResourceBusy.into());
        let first = |cpu: u32| if cpu == 0 { Ring::open(cpu, Wakes::WithEach) } else { refused(cpu) };
        let mut said = |open: &dyn Fn(u32) -> io::Result<Ring>, ended: &[u32]| -> Vec<u32> {
            sideband.set_cpus_by(&[0, 1], ended, open).into_iter().map(|(cpu, _)| cpu).collect()
        };
        assert_eq!(said(&refused, &[]), [0, 1]);
        assert!(said(&refused, &[]).is_empty());
        // Without the right to open an event it is not seen how that ends.
        if Ring::open(0, Wakes::WithEach).is_ok() {
            assert!(said(&first, &[]).is_empty());
            assert_eq!(said(&refused, &[0]), [0]);
        }
    }
}
