//! What waits for a target: bounded in windows and bytes, the oldest goes first.

use std::collections::VecDeque;

use axum::body::Bytes;

/// One window as its target wants it.
#[derive(Clone, Debug)]
pub(super) struct Payload {
    /// The request's body, or the file.
    pub(super) body: Bytes,
    /// Milliseconds since 1970 of its start, for the file's name.
    pub(super) start_ms: u128,
    /// How many tries have failed so far.
    pub(super) tries: u32,
}

/// The queue of one target.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: VecDeque<Payload>,
    bytes: u64,
    max_windows: usize,
    max_bytes: u64,
    dropped: u64,
}

impl Queue {
    pub(super) fn new(max_windows: usize, max_bytes: u64) -> Self {
        Self { waiting: VecDeque::new(), bytes: 0, max_windows, max_bytes, dropped: 0 }
    }

    /// Adds the newest window; the oldest ones make room.
    pub(super) fn add(&mut self, payload: Payload) {
        self.bytes = self.bytes.saturating_add(payload.body.len() as u64);
        self.waiting.push_back(payload);
        while self.waiting.len() > self.max_windows || self.bytes > self.max_bytes {
            if self.take().is_none() {
                break;
            }
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// Takes the oldest window out.
    pub(super) fn take(&mut self) -> Option<Payload> {
        let payload = self.waiting.pop_front()?;
        self.bytes = self.bytes.saturating_sub(payload.body.len() as u64);
        Some(payload)
    }

    /// Puts back what could not be delivered, if there is room for it still.
    pub(super) fn put_back(&mut self, payload: Payload) {
        let bytes = self.bytes.saturating_add(payload.body.len() as u64);
        if self.waiting.len() >= self.max_windows || bytes > self.max_bytes {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        self.bytes = bytes;
        self.waiting.push_front(payload);
    }

    /// Windows that there was no room for.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(start_ms: u128, length: usize) -> Payload {
        Payload { body: vec![0; length].into(), start_ms, tries: 0 }
    }

    #[test]
    fn the_oldest_makes_room_and_every_drop_is_counted() {
        let mut queue = Queue::new(3, 100);
        (0..5).for_each(|number| queue.add(payload(number, 10)));
        assert_eq!((queue.len(), queue.bytes(), queue.dropped()), (3, 30, 2));
        queue.add(payload(5, 95));
        assert_eq!((queue.len(), queue.bytes(), queue.dropped()), (1, 95, 5));
        assert_eq!(queue.take().map(|payload| payload.start_ms), Some(5));
        assert_eq!((queue.len(), queue.bytes()), (0, 0));
        queue.add(payload(6, 101));
        assert_eq!((queue.len(), queue.bytes(), queue.dropped()), (0, 0, 6), "larger than the whole queue");
    }

    #[test]
    fn what_is_put_back_is_the_oldest_again_and_gives_way_to_newer_ones() {
        let mut queue = Queue::new(2, 100);
        queue.add(payload(1, 10));
        queue.add(payload(2, 10));
        let first = queue.take().unwrap();
        queue.put_back(first);
        let first = queue.take().unwrap();
        assert_eq!(first.start_ms, 1);
        queue.add(payload(3, 10));
        queue.put_back(first);
        assert_eq!((queue.len(), queue.bytes(), queue.dropped()), (2, 20, 1));
        assert_eq!(queue.take().map(|payload| payload.start_ms), Some(2));
    }
}
