//! Inlined methods that cannot be written yet.
//!
//! They may be announced before the method around them, in any order, and name an inlined method as their parent. A
//! profiler wants them behind the LOAD of the code that they lie in. So those whose method is not there yet wait.

use std::collections::HashMap;

/// Announcements that wait at most.
const MAX_WAITING: usize = 4096;
/// Bytes that they take at most.
const MAX_WAITING_BYTES: usize = 4 << 20;
/// Inlined methods whose outermost parent is remembered at most; then the memory begins anew.
const MAX_ROOTS: usize = 1 << 16;

/// One that waits.
#[derive(Debug)]
struct Waiting {
    start: u64,
    end: u64,
    method: u32,
    record: Vec<u8>,
}

/// Those that wait, and which method every inlined one belongs to.
#[derive(Debug, Default)]
pub(crate) struct Inlines {
    waiting: Vec<Waiting>,
    bytes: usize,
    roots: HashMap<u32, u32>,
}

impl Inlines {
    /// Whether `parent` is `method`, or known to be inlined in it.
    pub(crate) fn belongs(&self, parent: u32, method: u32) -> bool {
        parent == method || self.roots.get(&parent) == Some(&method)
    }

    /// Notes that an inlined method lies in `root`.
    pub(crate) fn note(&mut self, inlined: u32, root: u32) {
        if self.roots.len() >= MAX_ROOTS {
            self.roots.clear();
        }
        if self.roots.try_reserve(1).is_ok() {
            self.roots.insert(inlined, root);
        }
    }

    /// Keeps a record until its method comes; false if there is no room.
    pub(crate) fn wait(&mut self, start: u64, end: u64, method: u32, record: &[u8]) -> bool {
        let mut own = Vec::new();
        let fits = self.waiting.len() < MAX_WAITING && self.bytes + record.len() <= MAX_WAITING_BYTES;
        if !fits || own.try_reserve_exact(record.len()).is_err() || self.waiting.try_reserve(1).is_err() {
            return false;
        }
        own.extend_from_slice(record);
        self.bytes += own.len();
        self.waiting.push(Waiting { start, end, method, record: own });
        true
    }

    /// Takes out the records that lie in code of `root` that is announced now.
    pub(crate) fn take(&mut self, start: u64, end: u64, root: u32) -> Vec<Vec<u8>> {
        let mut taken = Vec::new();
        let mut at = 0;
        while let Some(waiting) = self.waiting.get(at) {
            if waiting.start >= start && waiting.end <= end {
                let waiting = self.waiting.remove(at);
                self.bytes -= waiting.record.len();
                self.note(waiting.method, root);
                taken.push(waiting.record);
            } else if waiting.start < end && start < waiting.end {
                // Neither inside nor outside: it was meant for code that never came.
                self.bytes -= self.waiting.remove(at).record.len();
            } else {
                at += 1;
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_in_the_code_is_taken() {
        let mut inlines = Inlines::default();
        for (start, end, method) in [(10, 20, 1), (12, 14, 2), (30, 40, 3), (5, 11, 4)] {
            assert!(inlines.wait(start, end, method, &[1, 2]));
        }
        assert_eq!(inlines.take(10, 25, 9).len(), 2);
        assert!(inlines.belongs(2, 9) && inlines.belongs(9, 9) && !inlines.belongs(3, 9));
        assert_eq!((inlines.waiting.len(), inlines.bytes), (1, 2));
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut inlines = Inlines::default();
        let taken = (0..10_000).filter(|_| inlines.wait(0, 1, 1, &[0; 100])).count();
        assert_eq!(taken, MAX_WAITING);
        let mut inlines = Inlines::default();
        let taken = (0..100).filter(|_| inlines.wait(0, 1, 1, &vec![0; 1 << 20])).count();
        assert_eq!(taken, 4);
    }
}
