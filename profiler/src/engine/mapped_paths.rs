//! The paths of what processes have mapped, each once. A path is up to 4 KiB long and the target's choice: whoever maps a file of
//! which nobody has the path yet takes up room for it, and leaves some to the others. Without room a mapping has one path that
//! stands for all such: what lies there is known all the same. A path of usual length is kept in any case: a runtime's library or
//! its dump is known by it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::profile::{Holder, Shares};

/// Bytes of the paths of all mappings that are known. The programs and libraries of a host have some thousands, of a hundred bytes
/// each.
const MAX_PATH_BYTES: usize = 16 << 20;
/// What a path takes besides its text, about.
const BESIDES: usize = 128;
/// A path of so many bytes is kept without room, by its mapping alone. The number of mappings bounds those.
const USUAL_BYTES: usize = 256;
/// In the place of a path that there is no room for.
pub(super) const NO_PATH: &str = "[path not kept]";

/// A use of a path, which is kept as long as it has any. It stands for whoever the room was given to.
#[derive(Clone, Debug)]
pub(super) struct PathUse(Arc<Holder>);

/// All paths.
#[derive(Debug, Default)]
pub(super) struct MappedPaths {
    // The target chooses its paths: hashed with std's keyed hasher. The table's own use is one of each path's.
    known: HashMap<Arc<str>, PathUse>,
    /// [`NO_PATH`], once for all who have it.
    none: Option<Arc<str>>,
    bytes: usize,
    shares: Shares,
    /// Somebody was refused room since the last look.
    is_short: bool,
    /// With so many bytes those that nobody uses are looked for.
    sweep_at: usize,
}

/// All paths, for what one process maps.
#[derive(Debug)]
pub(super) struct PathsOf<'a> {
    all: &'a mut MappedPaths,
    holder: Holder,
}

impl PathsOf<'_> {
    /// Puts the path that all have in the place of an equal one. `None` if it is new, longer than usual, and there is no
    /// room for it: then [`NO_PATH`] is in its place.
    pub(super) fn share(&mut self, path: &mut Arc<str>) -> Option<PathUse> {
        self.all.share(path, self.holder)
    }
}

impl MappedPaths {
    /// For what is mapped by a process of this holder's.
    pub(super) fn of(&mut self, holder: Holder) -> PathsOf<'_> {
        PathsOf { all: self, holder }
    }

    fn share(&mut self, path: &mut Arc<str>, holder: Holder) -> Option<PathUse> {
        if let Some((known, path_use)) = self.known.get_key_value(&*path) {
            *path = Arc::clone(known);
            return Some(path_use.clone());
        }
        let bytes = bytes_of(path);
        if !self.shares.may_take(Some(holder), bytes, (self.bytes, MAX_PATH_BYTES)) {
            self.is_short = true;
            if path.len() <= USUAL_BYTES {
                return Some(PathUse(Arc::new(holder)));
            }
            *path = Arc::clone(self.none.get_or_insert_with(|| NO_PATH.into()));
            return None;
        }
        self.shares.take(Some(holder), bytes);
        self.bytes += bytes;
        let path_use = PathUse(Arc::new(holder));
        self.known.insert(Arc::clone(path), path_use.clone());
        Some(path_use)
    }

    /// Whether somebody was refused room lately: what is kept of mappings and processes that have ended takes it from him.
    pub(super) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Drops those that nobody uses, where there may be many. About every second.
    pub(super) fn sweep(&mut self) {
        if !self.is_short && self.bytes < self.sweep_at {
            return;
        }
        let Self { known, bytes, shares, .. } = self;
        known.retain(|path, PathUse(holder)| {
            let is_used = Arc::strong_count(holder) > 1;
            if !is_used {
                *bytes = bytes.saturating_sub(bytes_of(path));
                shares.give_back(Some(**holder), bytes_of(path));
            }
            is_used
        });
        if known.len() < known.capacity() / 4 {
            known.shrink_to_fit();
        }
        self.is_short = false;
        self.sweep_at = self.bytes + MAX_PATH_BYTES.saturating_sub(self.bytes) / 2;
    }

    /// Asserts that what is counted is what there is, and within its bound.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_sound(&self) {
        assert_eq!(self.bytes, self.known.keys().map(|path| bytes_of(path)).sum::<usize>());
        assert!(self.bytes <= MAX_PATH_BYTES);
    }
}

fn bytes_of(path: &str) -> usize {
    path.len() + BESIDES
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Holder = Holder::User(1000);

    /// One of 4 KiB.
    fn long(number: usize) -> Arc<str> {
        format!("/{number:04095}").into()
    }

    #[test]
    fn equal_paths_are_held_once_and_as_long_as_somebody_has_one() {
        let mut all = MappedPaths::default();
        let [mut one, mut other] = [long(1), long(1)];
        let first = all.of(USER).share(&mut one);
        let second = all.of(Holder::User(1001)).share(&mut other);
        assert!(Arc::ptr_eq(&one, &other));
        assert_eq!(all.bytes, 4096 + BESIDES);
        drop(first);
        all.sweep();
        assert_eq!(all.bytes, 4096 + BESIDES);
        drop(second);
        all.sweep();
        assert_eq!(all.bytes, 4096 + BESIDES, "with so few it is not worth a look");
        all.sweep_at = 0;
        all.sweep();
        assert_eq!((all.bytes, all.known.len()), (0, 0));
        all.assert_sound();
    }

    #[test]
    fn who_maps_files_with_long_paths_leaves_room_and_has_it_again_when_they_are_gone() {
        let mut all = MappedPaths::default();
        let mut fill = |holder, numbers: std::ops::Range<usize>| -> Vec<PathUse> {
            numbers.filter_map(|number| all.of(holder).share(&mut long(number))).collect()
        };
        let greedy = fill(USER, 0..5000);
        assert!((2000..3000).contains(&greedy.len()), "{}", greedy.len());
        // Who has what others have takes up nothing.
        let (known, modest) = (fill(Holder::User(1001), 0..2000), fill(Holder::User(1002), 10_000..10_050));
        assert_eq!((known.len(), modest.len()), (2000, 50));
        all.assert_sound();
        assert!(all.is_short());
        drop((greedy, known));
        all.sweep();
        assert!(!all.is_short());
        assert_eq!(all.known.len(), 50);
        assert!(all.of(USER).share(&mut long(5000)).is_some());
        all.assert_sound();
    }

    #[test]
    fn paths_of_usual_length_are_kept_whatever_roots_processes_map() {
        let mut all = MappedPaths::default();
        let each = (0..100).flat_map(|pid| (0..100).map(move |number| (pid, number)));
        let kept: Vec<PathUse> = each
            .filter_map(|(pid, number)| {
                let holder = Holder::Process(jitprof_common::units::Pid(pid), 0);
                all.of(holder).share(&mut long(100 * pid as usize + number))
            })
            .collect();
        assert!(kept.len() < 5000);
        let library: Arc<str> = "/usr/lib/jvm/lib/server/libjvm.so".into();
        let (mut path, mut unusual) = (Arc::clone(&library), long(100_000));
        let mut innocent = all.of(Holder::Process(jitprof_common::units::Pid(1000), 0));
        assert!(innocent.share(&mut path).is_some() && innocent.share(&mut unusual).is_none());
        assert_eq!([&*path, &*unusual], [&*library, NO_PATH]);
        all.assert_sound();
    }
}
