//! Waiting for samples, events and orders.
//!
//! Edge-triggered epoll, Linux 2.6: what woke the thread once does not wake it again. poll(2) calls a BPF ring readable
//! as soon as one sample is in it, whatever wake-ups the BPF program held back; a thread that waits by it hardly ever
//! waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

/// Wakes a thread that waits for [`Arrivals`].
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// One that wakes nobody yet.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Ends the present wait, or else the next one.
    pub fn wake(&self) {
        // The counter has room for 2⁶⁴ - 2 wake-ups that nobody reads.
        if let Err(error) = rustix::io::write(&*self.0, &1_u64.to_ne_bytes()) {
            tracing::debug!("not woken: {error}");
        }
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What a thread waits for: some of it at once, the rest when it has paused for a while, so that a storm of it costs a
/// bounded number of wake-ups.
#[derive(Debug)]
pub struct Arrivals {
    all: Edges,
    prompt: Edges,
}

impl Arrivals {
    /// From these descriptors, which leave it by themselves when they are closed. What is there already has arrived.
    ///
    /// # Errors
    /// There is no descriptor left, or one of them cannot be waited for.
    pub fn of<'fd>(
        paced: impl IntoIterator<Item = BorrowedFd<'fd>>,
        prompt: impl IntoIterator<Item = BorrowedFd<'fd>>,
    ) -> io::Result<Self> {
        let (mut all, mut only_prompt) = (Edges::none()?, Edges::none()?);
        for source in paced {
            all.add(source)?;
        }
        for source in prompt {
            all.add(source)?;
            only_prompt.add(source)?;
        }
        Ok(Self { all, prompt: only_prompt })
    }

    /// Waits for one more, but not at once.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn add(&mut self, paced: BorrowedFd<'_>) -> io::Result<()> {
        self.all.add(paced)
    }

    /// Waits until something arrives or the time is up; and then for the pause, unless something arrives that is waited
    /// for at once. What has arrived until the return wakes nobody again.
    ///
    /// # Errors
    /// As `epoll_wait(2)`.
    pub fn wait(&self, limit: Duration, pause: Duration) -> io::Result<()> {
        let end = Instant::now() + limit;
        if self.all.wait(limit)? {
            self.prompt.wait(pause.min(end.saturating_duration_since(Instant::now())))?;
            self.all.clear()?;
        }
        self.prompt.clear()
    }
}

/// Descriptors whose news wake once.
#[derive(Debug)]
struct Edges {
    epoll: OwnedFd,
    sources: usize,
}

impl Edges {
    fn none() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, sources: 0 })
    }

    fn add(&mut self, source: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, source, epoll::EventData::new_u64(0), flags)?;
        self.sources += 1;
        Ok(())
    }

    /// Waits until something arrives or the time is up, never shorter. Returns whether something has arrived since the
    /// last call. A signal ends the wait early.
    fn wait(&self, limit: Duration) -> io::Result<bool> {
        let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 });
        // Room for all of them: what one call does not tell of would wake the next one.
        let mut arrived = Vec::with_capacity(self.sources.max(1));
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut arrived), Some(&limit)) {
            Ok(count) => Ok(count > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes note of what has arrived until now: whoever looks at all sources next need not be woken for it.
    fn clear(&self) -> io::Result<()> {
        self.wait(Duration::ZERO).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    fn edges(sources: &[BorrowedFd<'_>]) -> Edges {
        let mut edges = Edges::none().unwrap();
        sources.iter().for_each(|source| edges.add(*source).unwrap());
        edges
    }

    #[test]
    fn what_woke_once_does_not_wake_again_though_nobody_has_read_it() {
        let (reader, mut writer) = io::pipe().unwrap();
        let arrivals = edges(&[reader.as_fd()]);
        writer.write_all(b"x").unwrap();
        assert!(arrivals.wait(LONG).unwrap());
        let start = Instant::now();
        assert!(!arrivals.wait(SHORT).unwrap());
        assert!(start.elapsed() >= SHORT);
    }

    #[test]
    fn a_wake_up_before_the_wait_counts_and_so_does_each_later_one() {
        let waker = Waker::new().unwrap();
        let arrivals = edges(&[waker.as_fd()]);
        for _ in 0..3 {
            waker.wake();
            assert!(arrivals.wait(LONG).unwrap());
        }
        let other = waker.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(SHORT);
            other.wake();
        });
        assert!(arrivals.wait(LONG).unwrap());
        thread.join().unwrap();
    }

    #[test]
    fn what_has_been_seen_does_not_wake_whatever_the_number_of_sources() {
        let wakers: Vec<Waker> = (0..20).map(|_| Waker::new().unwrap()).collect();
        let arrivals = edges(&wakers.iter().map(AsFd::as_fd).collect::<Vec<_>>());
        wakers.iter().for_each(Waker::wake);
        arrivals.clear().unwrap();
        assert!(!arrivals.wait(Duration::ZERO).unwrap());
        wakers[7].wake();
        assert!(arrivals.wait(LONG).unwrap());
    }

    #[test]
    fn a_wait_is_never_shorter_than_asked_for() {
        let arrivals = edges(&[]);
        for micros in [1, 300, 999, 1500] {
            let (start, limit) = (Instant::now(), Duration::from_micros(micros));
            assert!(!arrivals.wait(limit).unwrap());
            assert!(start.elapsed() >= limit, "{micros} µs");
        }
    }

    #[test]
    fn what_is_waited_for_at_once_ends_the_pause_and_the_rest_does_not() {
        let (paced, prompt) = (Waker::new().unwrap(), Waker::new().unwrap());
        let arrivals = Arrivals::of([paced.as_fd()], [prompt.as_fd()]).unwrap();
        paced.wake();
        let start = Instant::now();
        arrivals.wait(LONG, SHORT).unwrap();
        assert!(start.elapsed() >= SHORT, "the pause was kept");
        for _ in 0..2 {
            paced.wake();
            prompt.wake();
            let start = Instant::now();
            arrivals.wait(LONG, LONG).unwrap();
            assert!(start.elapsed() < LONG);
        }
        // Nothing is left of it.
        let start = Instant::now();
        arrivals.wait(SHORT, LONG).unwrap();
        assert!(start.elapsed() >= SHORT);
    }
}
