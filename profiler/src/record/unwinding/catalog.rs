//! Which files have rows, who uses them, and which of them can go.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use crate::elf::{Build, Segment, Source};
use crate::process::open::FileIdentity;
use crate::units::MonoNs;

/// Distinct files at most, whether they have rows or not.
const MAX_FILES: usize = 4096;
/// Inodes whose object is remembered: a build makes thousands of files, and removes them.
const MAX_INODES: usize = 4 * MAX_FILES;
/// How long nobody must have used a file's rows before they can go: programs that are started again and again find
/// them still there.
const GRACE_NS: u64 = 2_000_000_000;

/// What makes two files the same: copies of a library in twenty containers need one table. A build id alone would let
/// anyone unwind everyone's code by rows of a crafted file: with length, segments and owner beside it, only root can
/// speak for root's files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Identity {
    Build { build: Build, len: u64, owner: u32 },
    Inode(FileIdentity),
    Vdso,
}

/// Whether a file's rows can be used.
#[derive(Debug)]
pub(super) enum State {
    /// They are being built, or wait for room.
    Loading,
    /// They are in the tables: where the file says that its code is, and the pages.
    Ready {
        /// Executable segments.
        segments: Vec<Segment>,
        /// Pages published.
        pages: Vec<u32>,
        /// Rows in them.
        rows: u32,
    },
    /// It has none.
    Without,
}

#[derive(Debug)]
struct Object {
    state: State,
    identity: Identity,
    path: Arc<str>,
    /// Processes that have it in their list of mappings.
    users: u32,
    /// Since when there are none.
    unused_since: MonoNs,
}

/// What a look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is known under this number.
    Known(u32),
    /// It is new: its rows are to be built.
    New(u32),
    /// There are too many files.
    Full,
}

/// An object whose rows go.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Victim {
    pub(super) object: u32,
    pub(super) pages: Vec<u32>,
    pub(super) rows: u32,
}

/// All files. Numbers are not used again before 4 billion of them.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    objects: HashMap<u32, Object>,
    identities: HashMap<Identity, u32>,
    /// What was read of a file need not be read again.
    inodes: HashMap<FileIdentity, u32>,
    last_number: u32,
}

impl Catalog {
    /// The object of a file that was looked up before.
    pub(super) fn known(&self, inode: &FileIdentity) -> Option<u32> {
        self.inodes.get(inode).copied()
    }

    /// The object of an open file. The first look at an inode reads some 200 bytes of it.
    pub(super) fn file(&mut self, file: &File, inode: FileIdentity, path: &Arc<str>, now: MonoNs) -> Found {
        if let Some(object) = self.known(&inode) {
            return Found::Known(object);
        }
        let build = Build::read(&Source::File(file)).ok().filter(|build| !build.id.is_empty());
        let identity = match build {
            Some(build) => Identity::Build { build, len: inode.len, owner: inode.uid },
            None => Identity::Inode(inode),
        };
        let found = self.intern(identity, path, now);
        if let Found::Known(object) | Found::New(object) = found {
            if self.inodes.len() >= MAX_INODES {
                self.inodes.clear();
            }
            self.inodes.insert(inode, object);
        }
        found
    }

    /// The vDSO's object.
    pub(super) fn vdso(&mut self, now: MonoNs) -> Found {
        self.intern(Identity::Vdso, &Arc::from("[vdso]"), now)
    }

    /// A number that no object has had, for a process' generated code.
    pub(super) fn new_number(&mut self) -> u32 {
        // After 4 billion numbers they begin anew, and 0 stays none.
        self.last_number = self.last_number.checked_add(1).unwrap_or(1);
        self.last_number
    }

    /// Whether there is hardly room for another file.
    pub(super) fn is_crowded(&self) -> bool {
        self.objects.len() > MAX_FILES / 8 * 7
    }

    /// Whether an object's rows can be used; `None` for one that has gone.
    pub(super) fn state(&self, object: u32) -> Option<&State> {
        self.objects.get(&object).map(|object| &object.state)
    }

    /// The path under which an object was first met.
    pub(super) fn path(&self, object: u32) -> Arc<str> {
        self.objects.get(&object).map_or_else(|| Arc::from(""), |object| Arc::clone(&object.path))
    }

    /// An object's rows have come, or turned out not to be there.
    pub(super) fn set_state(&mut self, object: u32, state: State, now: MonoNs) {
        if let Some(object) = self.objects.get_mut(&object) {
            object.state = state;
            object.unused_since = now;
        }
    }

    /// A process has it in its list of mappings.
    pub(super) fn take(&mut self, object: u32) {
        if let Some(object) = self.objects.get_mut(&object) {
            object.users = object.users.saturating_add(1);
        }
    }

    /// A process has it no longer.
    pub(super) fn give_back(&mut self, object: u32, now: MonoNs) {
        if let Some(object) = self.objects.get_mut(&object) {
            object.users = object.users.saturating_sub(1);
            object.unused_since = now;
        }
    }

    /// Forgets objects that nobody has used for a while, the one unused for the longest first, until they had `rows`
    /// rows. Their pages are the caller's to withdraw.
    pub(super) fn evict(&mut self, rows: u64, now: MonoNs) -> Vec<Victim> {
        let mut unused: Vec<(MonoNs, u32)> = self
            .objects
            .iter()
            .filter(|(_, object)| object.users == 0 && now.0.saturating_sub(object.unused_since.0) >= GRACE_NS)
            .filter(|(_, object)| matches!(object.state, State::Ready { .. }))
            .map(|(number, object)| (object.unused_since, *number))
            .collect();
        unused.sort_unstable();
        let (mut victims, mut freed) = (Vec::new(), 0_u64);
        for (_, number) in unused {
            if freed >= rows {
                break;
            }
            if let Some(Object { state: State::Ready { pages, rows, .. }, .. }) = self.forget(number) {
                freed = freed.saturating_add(rows.into());
                victims.push(Victim { object: number, pages, rows });
            }
        }
        if !victims.is_empty() {
            let objects = &self.objects;
            self.inodes.retain(|_, object| objects.contains_key(object));
        }
        victims
    }

    fn forget(&mut self, number: u32) -> Option<Object> {
        let object = self.objects.remove(&number)?;
        self.identities.remove(&object.identity);
        Some(object)
    }

    fn intern(&mut self, identity: Identity, path: &Arc<str>, now: MonoNs) -> Found {
        if let Some(object) = self.identities.get(&identity) {
            return Found::Known(*object);
        }
        if self.objects.len() >= MAX_FILES && !self.forget_one_without_rows(now) {
            return Found::Full;
        }
        let number = self.new_number();
        let (state, path) = (State::Loading, Arc::clone(path));
        self.identities.insert(identity.clone(), number);
        self.objects.insert(number, Object { state, identity, path, users: 0, unused_since: now });
        Found::New(number)
    }

    /// Files without rows take no room in the tables, only here.
    fn forget_one_without_rows(&mut self, now: MonoNs) -> bool {
        let old = |object: &Object| now.0.saturating_sub(object.unused_since.0) >= GRACE_NS;
        let without = self.objects.iter().filter(|(_, object)| matches!(object.state, State::Without) && old(object));
        let Some(oldest) = without.min_by_key(|(_, object)| object.unused_since).map(|(number, _)| *number) else {
            return false;
        };
        self.inodes.retain(|_, object| *object != oldest);
        self.forget(oldest).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> MonoNs {
        MonoNs(seconds * SECOND)
    }

    fn ready(catalog: &mut Catalog, name: u8, rows: u32, now: MonoNs) -> u32 {
        let build = Build { id: vec![name], ..Build::default() };
        let identity = Identity::Build { build, len: 1, owner: 0 };
        let Found::New(object) = catalog.intern(identity, &Arc::from("x"), now) else { panic!("known") };
        catalog.set_state(object, State::Ready { segments: Vec::new(), pages: vec![u32::from(name)], rows }, now);
        object
    }

    #[test]
    fn what_was_unused_for_the_longest_goes_first_and_only_as_much_as_is_needed() {
        let mut catalog = Catalog::default();
        let objects: Vec<u32> = (1..=4).map(|name| ready(&mut catalog, name, 100, at(0))).collect();
        for object in &objects {
            catalog.take(*object);
        }
        for (object, seconds) in [(objects[2], 1), (objects[0], 2), (objects[1], 3)] {
            catalog.give_back(object, at(seconds));
        }
        let evicted = |victims: Vec<Victim>| victims.iter().map(|victim| victim.object).collect::<Vec<_>>();
        assert_eq!(evicted(catalog.evict(150, at(10))), [objects[2], objects[0]]);
        assert!(catalog.state(objects[2]).is_none() && catalog.state(objects[1]).is_some());
        assert_eq!(evicted(catalog.evict(u64::MAX, at(10))), [objects[1]], "what is in use stays");
    }

    #[test]
    fn rows_are_kept_for_a_while_after_their_last_use() {
        let mut catalog = Catalog::default();
        let object = ready(&mut catalog, 1, 100, at(0));
        catalog.take(object);
        catalog.give_back(object, at(10));
        assert_eq!(catalog.evict(1, MonoNs(at(12).0 - 1)), []);
        assert_eq!(catalog.evict(1, at(12)), [Victim { object, pages: vec![1], rows: 100 }]);
    }

    #[test]
    fn copies_of_a_file_share_one_object_and_another_build_has_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let (mut catalog, path) = (Catalog::default(), Arc::from("x"));
        let own = std::env::current_exe().unwrap();
        let copy = |name: &str| {
            let to = folder.path().join(name);
            std::fs::copy(&own, &to).unwrap();
            File::open(to).unwrap()
        };
        let mut look = |file: &File| catalog.file(file, identity_of(file), &path, at(0));
        let (first, second) = (copy("first"), copy("second"));
        let Found::New(object) = look(&first) else { panic!("known") };
        assert_eq!(look(&first), Found::Known(object));
        let shared = Build::read(&Source::File(&first)).unwrap().id.len() > 1;
        assert!(shared, "test binaries are linked with a build id");
        assert_eq!(look(&second), Found::Known(object));

        let longer = copy("longer");
        let appending = std::fs::OpenOptions::new().append(true).open(folder.path().join("longer")).unwrap();
        std::io::Write::write_all(&mut &appending, b"x").unwrap();
        assert!(matches!(look(&longer), Found::New(_)));
    }

    #[test]
    fn an_evicted_file_is_new_when_it_comes_again() {
        let mut catalog = Catalog::default();
        let file = File::open("/proc/self/exe").unwrap();
        let (path, identity) = (Arc::from("x"), identity_of(&file));
        let Found::New(object) = catalog.file(&file, identity, &path, at(0)) else { panic!("known") };
        assert_eq!(catalog.known(&identity), Some(object));
        catalog.set_state(object, State::Ready { segments: Vec::new(), pages: Vec::new(), rows: 5 }, at(0));
        assert_eq!(catalog.evict(5, at(5)).len(), 1);
        assert_eq!(catalog.known(&identity), None);
        assert!(matches!(catalog.file(&file, identity, &path, at(5)), Found::New(other) if other != object));
    }

    #[test]
    fn a_file_that_was_written_anew_is_not_the_known_one() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("file");
        std::fs::write(&name, "as long as").unwrap();
        let (mut catalog, file) = (Catalog::default(), File::open(&name).unwrap());
        catalog.file(&file, identity_of(&file), &Arc::from("x"), at(0));
        let before = identity_of(&file);
        assert!(catalog.known(&before).is_some());
        // A file system's clock may step by some milliseconds.
        while identity_of(&file) == before {
            std::thread::sleep(std::time::Duration::from_millis(1));
            std::fs::write(&name, "the other ").unwrap();
        }
        assert_eq!(catalog.known(&identity_of(&file)), None);
    }

    fn identity_of(file: &File) -> FileIdentity {
        FileIdentity::of(&file.metadata().unwrap())
    }
}
