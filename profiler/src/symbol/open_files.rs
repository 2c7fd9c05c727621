//! The files that names are read from, held open.
//!
//! They resolve after the target has exited, after the file was deleted, and from another mount namespace. Nothing is
//! ever opened by the path that it is known under.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jitprof_unwind::elf;

use super::frame::Module;
use super::stats::Unresolved;
use crate::owners::Owner;
use crate::process::apart::HeldFile;
use crate::process::open::{FileId, FileIdentity, TargetRoot, VDSO};
use crate::process::own_vdso;

/// An opened file, and what is needed to load its symbols.
#[derive(Debug)]
pub struct OpenFile {
    /// The file.
    pub file: HeldFile,
    /// The target's root directory, where its separate debug file is looked for, if it may be.
    pub root: Option<Arc<TargetRoot>>,
    /// Path as the target sees it, and build id.
    pub module: Arc<Module>,
    /// What it was when it was opened.
    identity: Option<FileIdentity>,
}

impl OpenFile {
    /// With the build id that the file has.
    pub fn new(file: File, path: &str, root: Option<Arc<TargetRoot>>) -> Self {
        let build_id = elf::build_id(&file);
        Self::with_build_id(HeldFile::new(file, false), path, root, build_id.as_deref())
    }

    /// With a build id that was read before; none if it is empty.
    pub fn with_build_id(file: HeldFile, path: &str, root: Option<Arc<TargetRoot>>, build_id: Option<&[u8]>) -> Self {
        let build_id = build_id.filter(|id| !id.is_empty()).map(|id| elf::hex(id).into());
        let identity = file.metadata().ok().map(|meta| FileIdentity::of(&meta));
        Self { file, root, module: Arc::new(Module { path: path.into(), build_id }), identity }
    }
}

impl OpenFile {
    /// What it was when it was opened.
    pub fn identity(&self) -> Option<&FileIdentity> {
        self.identity.as_ref()
    }

    /// Who pays for what is done with it.
    pub(crate) fn owner(&self) -> Option<Owner> {
        let identity = self.identity()?;
        Some(Owner::of(identity, identity.uid))
    }

    /// Whether its contents are those that it was opened for. To be asked after they were read.
    pub fn is_unchanged(&self) -> bool {
        let now = self.file.metadata().ok().map(|meta| FileIdentity::of(&meta));
        matches!((now, self.identity), (Some(now), Some(then)) if now.has_contents_of(&then))
    }
}

/// The table of open files, shared by those who read them.
#[derive(Debug, Default)]
pub struct OpenFiles {
    files: Mutex<HashMap<FileId, Arc<OpenFile>>>,
}

impl OpenFiles {
    /// Holds a file open under this name.
    pub fn insert(&self, id: FileId, file: OpenFile) {
        self.lock().insert(id, Arc::new(file));
    }

    /// Lets go of a file. Whoever reads it just now holds it until he is done.
    pub fn close(&self, id: FileId) {
        let file = self.lock().remove(&id);
        drop(file);
    }

    /// Lets go of all files.
    pub fn close_all(&self) {
        let files = std::mem::take(&mut *self.lock());
        drop(files);
    }

    /// A file, if it is open.
    pub fn get(&self, id: FileId) -> Option<Arc<OpenFile>> {
        self.lock().get(&id).cloned()
    }

    /// A file to load symbols from. The vDSO is our own copy, which the kernel maps into every 64-bit process alike; its
    /// offsets are counted from the start of the mapping.
    pub(super) fn origin(&self, id: FileId) -> Result<Arc<OpenFile>, Unresolved> {
        if let Some(file) = self.get(id) {
            return Ok(file);
        }
        if id != VDSO {
            return Err(Unresolved::FileClosed);
        }
        let copy = copy_vdso().map_err(|_| Unresolved::Unreadable)?;
        self.insert(VDSO, OpenFile::new(copy, "[vdso]", None));
        self.get(VDSO).ok_or(Unresolved::FileClosed)
    }

    /// Nothing that runs under the lock can panic half-way through a change.
    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, Arc<OpenFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn copy_vdso() -> io::Result<File> {
    let mut copy = File::from(rustix::fs::memfd_create("vdso", rustix::fs::MemfdFlags::CLOEXEC)?);
    copy.write_all(&own_vdso()?)?;
    Ok(copy)
}
