//! Since when a method has been where it is, while the runtime unloads classes.
//!
//! A frame's words say where its method is. What is there when it is looked at is another method if the sampled one was
//! unloaded in between, and may be at the same place to the byte. So the runtime's count of unloaded classes is read with each
//! reading: as long as it is the same, each method stays. One that was seen at its place before the count rose, and is there
//! afterwards, was there in between.
//!
//! A runtime that does not count (`-XX:-UsePerfData`) may have unloaded any method at any time: then each look is as if the count
//! had risen, so that a method has to be seen before a sample and afterwards.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use jitprof_common::units::{Avma, MonoNs};
use jitprof_runtimes::hotspot::{Interpreted, Layout, MethodName, Unloads};
use jitprof_runtimes::{Memory, Reader};

use crate::process::monotonic_now;

/// Methods that are remembered; when there are more, all are dropped.
const MAX_METHODS: usize = 4096;
/// With the time of a look, the number of what a runtime that does not count has unloaded by then.
const UNCOUNTED: u64 = 1 << 63;

/// How many classes were unloaded by a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    /// The runtime does not say.
    Unsaid,
    /// It could not be read this time.
    Unread,
    /// So many.
    Is(u64),
}

impl Count {
    /// The number, if there is one.
    pub(super) fn number(self) -> Option<u64> {
        if let Self::Is(count) = self { Some(count) } else { None }
    }
}

/// What is known of the methods of one process that are interpreted.
#[derive(Default)]
pub(super) struct Unloading {
    counter: Option<Unloads>,
    /// The count that was read last, or what stands for it, and a time since which it is that.
    last: Option<(u64, MonoNs)>,
    /// By what their frames say of them: what they are called, as a number, and since when.
    methods: HashMap<(Avma, Option<Avma>), (u64, MonoNs)>,
    names: RandomState,
}

impl Unloading {
    /// Bytes that are kept, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.methods.capacity() * 64
    }

    /// Reads the count.
    pub(super) fn look<M: Memory>(&mut self, layout: &Layout, reader: &Reader<M>) -> Count {
        if self.counter.is_none() {
            self.counter = Unloads::find(layout, reader).ok().flatten();
        }
        let Some(counter) = self.counter else { return Count::Unsaid };
        counter.count(reader).map_or(Count::Unread, |count| self.note(count, monotonic_now()))
    }

    /// A runtime that does not count was looked at, before this time: what it had before it may have unloaded. A number that is
    /// another one each time.
    pub(super) fn may_have_risen(&mut self, now: MonoNs) -> u64 {
        let number = UNCOUNTED | now.0;
        self.last = Some((number, now));
        number
    }

    /// The count was read, before this time.
    fn note(&mut self, count: u64, now: MonoNs) -> Count {
        if self.last.is_none_or(|(last, _)| last != count) {
            self.last = Some((count, now));
        }
        Count::Is(count)
    }

    /// Since when the method of a frame that was looked at has been there, if the count was the same before and afterwards, or
    /// may have risen until then.
    pub(super) fn since(&mut self, frame: &Interpreted, name: &MethodName) -> MonoNs {
        let Some((_, same_since)) = self.last else { return MonoNs(0) };
        let name = self.names.hash_one(name);
        let key = (frame.method, frame.const_method);
        if self.methods.len() >= MAX_METHODS && !self.methods.contains_key(&key) {
            self.methods.clear();
        }
        let known = self.methods.entry(key).or_insert((name, same_since));
        if known.0 != name {
            *known = (name, same_since);
        }
        known.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(method: u64) -> Interpreted {
        Interpreted { method: Avma(method), const_method: Some(Avma(8)), saved: Avma(0), register: None }
    }

    fn name(method: &str) -> MethodName {
        MethodName { class: "A".into(), method: method.into(), signature: "()V".into() }
    }

    #[test]
    fn a_method_holds_since_the_count_last_rose_or_since_it_was_seen_before() {
        let mut unloading = Unloading::default();
        assert_eq!(unloading.since(&frame(1), &name("uncounted")), MonoNs(0));
        for (count, now) in [(3, 100), (3, 200)] {
            assert_eq!(unloading.note(count, MonoNs(now)), Count::Is(count));
        }
        assert_eq!(unloading.since(&frame(1), &name("stays")), MonoNs(100));
        assert_eq!(unloading.since(&frame(2), &name("goes")), MonoNs(100));
        unloading.note(4, MonoNs(300));
        assert_eq!(unloading.since(&frame(1), &name("stays")), MonoNs(100));
        assert_eq!(unloading.since(&frame(2), &name("another")), MonoNs(300));
        assert_eq!(unloading.since(&frame(3), &name("met")), MonoNs(300));
    }

    #[test]
    fn a_method_of_a_runtime_that_does_not_count_holds_since_it_was_seen_first() {
        let mut unloading = Unloading::default();
        let first = unloading.may_have_risen(MonoNs(100));
        assert_eq!(unloading.since(&frame(1), &name("stays")), MonoNs(100));
        assert_eq!(unloading.since(&frame(2), &name("goes")), MonoNs(100));
        assert_ne!(unloading.may_have_risen(MonoNs(200)), first);
        assert_eq!(unloading.since(&frame(1), &name("stays")), MonoNs(100));
        assert_eq!(unloading.since(&frame(2), &name("another")), MonoNs(200));
        assert_eq!(unloading.note(0, MonoNs(300)), Count::Is(0), "it has begun to count");
        assert_eq!(unloading.since(&frame(2), &name("later")), MonoNs(300));
    }

    #[test]
    fn not_more_methods_than_some_are_remembered() {
        let mut unloading = Unloading::default();
        unloading.note(1, MonoNs(100));
        for method in 0..3 * MAX_METHODS as u64 {
            unloading.since(&frame(method), &name("any"));
            assert!(unloading.methods.len() <= MAX_METHODS);
        }
    }
}
