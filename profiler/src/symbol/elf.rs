//! The ELF files that samples fall into, each under one small id for the whole run.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::frame::Module;
use super::stats::Unresolved;
use crate::elf;
use crate::process::own_vdso;

/// Files held open at once; the usual soft limit of a process is 1024. The least recently used one is closed, keeps
/// its id and its resolved frames, and takes the next file that [`Objects::add`] finds to be the same.
pub const MAX_OPEN_FILES: usize = 256;
/// Distinct files of one run.
pub const MAX_OBJECTS: usize = 65536;

/// A file, the same for every process that maps it. Valid until it is forgotten; ids count from 0, in order of appearance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(u32);

/// Why a file cannot become an object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// A directory, device, pipe or socket, which must not be read from.
    #[error("{path} is no regular file")]
    NotRegular {
        /// The path as the target sees it.
        path: String,
    },
    /// The file's metadata could not be read.
    #[error("cannot inspect {path}: {source}")]
    Inspect {
        /// The path as the target sees it.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// [`MAX_OBJECTS`] files are known already.
    #[error("more than {MAX_OBJECTS} different files are mapped; {path} stays without names")]
    TooMany {
        /// The path as the target sees it.
        path: String,
    },
    /// Our own process has no vDSO, or it could not be copied.
    #[error("cannot copy the vDSO: {source}")]
    Vdso {
        /// What the system said.
        source: io::Error,
    },
}

/// What makes two files the same. A build id alone would let anyone name the frames of everyone: a file with libc's
/// build id and other symbols is quickly made. With the owner in the key, only root can speak for root's files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Identity {
    BuildId { id: Vec<u8>, size: u64, owner: u32 },
    Inode { device: u64, inode: u64, size: u64, modified_s: i64, modified_ns: i64 },
}

/// Everything the worker needs to load one object.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) file: Arc<File>,
    pub(super) root: Option<Arc<File>>,
    pub(super) module: Arc<Module>,
}

#[derive(Debug)]
struct Object {
    /// Nothing after it was closed.
    file: Option<Arc<File>>,
    root: Option<Arc<File>>,
    module: Arc<Module>,
    last_used: u64,
}

#[derive(Debug, Default)]
struct Table {
    ids: HashMap<Identity, ObjectId>,
    objects: HashMap<ObjectId, Object>,
    /// Numbers are not used again: who still has one that is forgotten gets no name, not a wrong one.
    next: u32,
    vdso: Option<ObjectId>,
    open: usize,
    clock: u64,
    closed: u64,
}

/// The table of files. Holds them open, so that they resolve after the target has exited, after the file was deleted,
/// and from another mount namespace. Nothing is ever opened by the path that it was added under.
#[derive(Debug, Default)]
pub struct Objects {
    table: Mutex<Table>,
}

impl Objects {
    /// Takes an open file, and `path` as the target sees it. The same file again gives the same id and keeps the first
    /// path. Reads the program headers and the notes (some 200 bytes), nothing more; what is no ELF file gets an id
    /// too, and frames that say so.
    ///
    /// # Errors
    /// If it is no regular file, cannot be inspected, or is one too many.
    pub fn add(&self, file: File, path: &str) -> Result<ObjectId, ObjectError> {
        self.add_in(file, path, None)
    }

    /// As [`Objects::add`], with the target's root directory (`/proc/PID/root`, opened with `O_PATH`): separate debug
    /// files are looked for below it before the host's. It is held as long as the file.
    ///
    /// # Errors
    /// As [`Objects::add`].
    pub fn add_in(&self, file: File, path: &str, root: Option<&Arc<File>>) -> Result<ObjectId, ObjectError> {
        let metadata = file.metadata().map_err(|source| ObjectError::Inspect { path: path.to_owned(), source })?;
        if !metadata.is_file() {
            return Err(ObjectError::NotRegular { path: path.to_owned() });
        }
        let build_id = elf::build_id(&file);
        let module =
            Arc::new(Module { path: path.into(), build_id: build_id.as_deref().map(|id| elf::hex(id).into()) });
        let identity = match build_id {
            Some(id) => Identity::BuildId { id, size: metadata.size(), owner: metadata.uid() },
            None => Identity::Inode {
                device: metadata.dev(),
                inode: metadata.ino(),
                size: metadata.size(),
                modified_s: metadata.mtime(),
                modified_ns: metadata.mtime_nsec(),
            },
        };
        self.lock().intern(identity, Origin { file: Arc::new(file), root: root.cloned(), module })
    }

    /// Whether an object can be loaded; one that was closed or forgotten wants its file again. Counts as a use.
    pub fn touch(&self, id: ObjectId) -> bool {
        let mut table = self.lock();
        let now = table.tick();
        let object = table.objects.get_mut(&id).filter(|object| object.file.is_some());
        object.map(|object| object.last_used = now).is_some()
    }

    /// The vDSO: our own copy, which the kernel maps into every 64-bit process alike. Its offsets are counted from the
    /// start of the mapping.
    ///
    /// # Errors
    /// If our process has none, or memory for a copy is refused.
    pub fn add_vdso(&self) -> Result<ObjectId, ObjectError> {
        if let Some(known) = self.lock().vdso {
            return Ok(known);
        }
        let file = copy_vdso().map_err(|source| ObjectError::Vdso { source })?;
        let id = self.add(file, "[vdso]")?;
        self.lock().vdso = Some(id);
        Ok(id)
    }

    /// Path and build id of an object.
    pub fn module(&self, id: ObjectId) -> Option<Arc<Module>> {
        self.lock().object(id).map(|object| Arc::clone(&object.module))
    }

    /// Distinct files so far.
    pub fn len(&self) -> usize {
        self.lock().objects.len()
    }

    /// Whether no file was added yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets files that are not wanted any more. Called with the symbolizer's own lock held: nothing in here takes it.
    pub(super) fn retain(&self, wanted: impl Fn(ObjectId) -> bool) {
        self.lock().retain(wanted);
    }

    /// Files closed so far because too many were open.
    pub(super) fn closed(&self) -> u64 {
        self.lock().closed
    }

    /// The file to load from.
    pub(super) fn origin(&self, id: ObjectId) -> Result<Origin, Unresolved> {
        let mut table = self.lock();
        let now = table.tick();
        let object = table.objects.get_mut(&id).ok_or(Unresolved::FileClosed)?;
        object.last_used = now;
        let file = object.file.clone().ok_or(Unresolved::FileClosed)?;
        Ok(Origin { file, root: object.root.clone(), module: Arc::clone(&object.module) })
    }

    /// A panic while the lock was held cannot leave the table half-changed: nothing in there calls foreign code.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.clock = self.clock.saturating_add(1);
        self.clock
    }

    fn object(&self, id: ObjectId) -> Option<&Object> {
        self.objects.get(&id)
    }

    fn retain(&mut self, wanted: impl Fn(ObjectId) -> bool) {
        let vdso = self.vdso;
        let Self { objects, open, .. } = self;
        objects.retain(|id, object| {
            let stays = Some(*id) == vdso || wanted(*id);
            *open = open.saturating_sub(usize::from(!stays && object.file.is_some()));
            stays
        });
        self.ids.retain(|_, id| objects.contains_key(id));
    }

    fn intern(&mut self, identity: Identity, origin: Origin) -> Result<ObjectId, ObjectError> {
        let now = self.tick();
        let Origin { file, root, module } = origin;
        if let Some(&id) = self.ids.get(&identity) {
            let object = self.objects.get_mut(&id).expect("invariant: ids lead to objects");
            object.last_used = now;
            if object.file.is_none() {
                (object.file, object.root) = (Some(file), root);
                self.open = self.open.saturating_add(1);
                self.close_surplus();
            }
            return Ok(id);
        }
        if self.objects.len() >= MAX_OBJECTS || self.next == u32::MAX {
            return Err(ObjectError::TooMany { path: module.path.to_string() });
        }
        let id = ObjectId(self.next);
        self.next += 1;
        self.objects.insert(id, Object { file: Some(file), root, module, last_used: now });
        self.ids.insert(identity, id);
        self.open = self.open.saturating_add(1);
        self.close_surplus();
        Ok(id)
    }

    fn close_surplus(&mut self) {
        while self.open > MAX_OPEN_FILES {
            let open = self.objects.values_mut().filter(|object| object.file.is_some());
            let Some(oldest) = open.min_by_key(|object| object.last_used) else {
                return;
            };
            (oldest.file, oldest.root) = (None, None);
            self.open = self.open.saturating_sub(1);
            self.closed = self.closed.saturating_add(1);
        }
    }
}

fn copy_vdso() -> io::Result<File> {
    let mut copy = File::from(rustix::fs::memfd_create("vdso", rustix::fs::MemfdFlags::CLOEXEC)?);
    copy.write_all(&own_vdso()?)?;
    Ok(copy)
}
