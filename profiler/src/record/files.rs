//! Which object file lies behind a mapping.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::process::open::{FileIdentity, OpenError, TargetFile, identify_mapping, open_mapping};
use crate::process::{Mapping, MappingKind, ProcessId};
use crate::record::unwinding::Unwinding;
use crate::symbol::{ObjectId, Objects, SymbolKey};
use crate::units::{Avma, FileOffset, Pid};

/// Mappings remembered at most; beyond it all are looked up anew.
const MAX_KNOWN: usize = 1 << 16;

/// Files whose object is remembered: a build makes thousands, and removes them.
const MAX_SEEN: usize = 1 << 14;

/// Root directories held open, each a descriptor; the usual soft limit of a process is 1024.
const MAX_ROOTS: usize = 128;

/// A mapping of one process: where it begins, and which part of which file it is.
type MappingKey = (Avma, u64, FileOffset);

/// What is known of files elsewhere.
#[derive(Clone, Copy)]
pub(super) struct Tables<'a> {
    pub(super) objects: &'a Objects,
    pub(super) unwinding: Option<&'a Unwinding>,
}

/// Remembers the object behind each mapping that a sample has met.
#[derive(Debug, Default)]
pub(super) struct Files {
    known: FxHashMap<ProcessId, HashMap<MappingKey, Option<ObjectId>>>,
    count: usize,
    /// Objects by what was seen of their files: one that is known is not opened again for each process.
    seen: FxHashMap<FileIdentity, ObjectId>,
    /// The same by the number that the unwind rows have: those were looked up already, by what makes two files the same
    /// here, too.
    with_rows: FxHashMap<u32, ObjectId>,
    roots: HashMap<ProcessId, Option<Arc<File>>>,
    /// Files that could not be opened.
    pub(super) unreadable: u64,
}

impl Files {
    /// Where in which file an address lies. The first address in a mapping opens its file, so that it still resolves
    /// after the process has gone. `None` for memory without a file, and for files that cannot be opened.
    pub(super) fn key(
        &mut self,
        process: ProcessId,
        mapping: &Mapping,
        addr: Avma,
        tables: Tables<'_>,
        remarks: &mut Vec<String>,
    ) -> Option<SymbolKey> {
        let object = self.object(process, mapping, tables, remarks)?;
        let offset = match mapping.kind {
            MappingKind::Vdso => FileOffset(addr.0.checked_sub(mapping.start.0)?),
            _ => mapping.file_offset_of(addr)?,
        };
        Some(SymbolKey::File(object, offset))
    }

    fn object(
        &mut self,
        process: ProcessId,
        mapping: &Mapping,
        tables: Tables<'_>,
        remarks: &mut Vec<String>,
    ) -> Option<ObjectId> {
        if !matches!(mapping.kind, MappingKind::File | MappingKind::Vdso) {
            return None;
        }
        let key = (mapping.start, mapping.inode, mapping.file_offset);
        if let Some(known) = self.known.get(&process).and_then(|known| known.get(&key)) {
            return *known;
        }
        if self.count >= MAX_KNOWN {
            self.known.clear();
            self.count = 0;
        }
        let object = if mapping.kind == MappingKind::Vdso {
            tables.objects.add_vdso().map_err(|error| remarks.push(format!("vDSO not named: {error}"))).ok()
        } else {
            self.find(process, mapping, tables, remarks)
        };
        self.known.entry(process).or_default().insert(key, object);
        self.count += 1;
        object
    }

    /// Forgets the files of other processes.
    pub(super) fn retain(&mut self, wanted: impl Fn(ProcessId) -> bool) {
        self.roots.retain(|process, _| wanted(*process));
        self.known.retain(|process, _| wanted(*process));
        self.count = self.known.values().map(HashMap::len).sum();
    }

    /// The objects behind all mappings that are remembered.
    pub(super) fn objects(&self) -> HashSet<ObjectId> {
        self.known.values().flat_map(HashMap::values).flatten().copied().collect()
    }

    /// The object of a file, which is opened only if nothing is known of it.
    fn find(
        &mut self,
        process: ProcessId,
        mapping: &Mapping,
        Tables { objects, unwinding }: Tables<'_>,
        remarks: &mut Vec<String>,
    ) -> Option<ObjectId> {
        let rows = unwinding.and_then(|unwinding| unwinding.object_number(process, mapping));
        if let Some(object) = rows.and_then(|rows| self.with_rows.get(&rows)).filter(|object| objects.touch(**object)) {
            return Some(*object);
        }
        let seen = identify_mapping(process.pid, mapping).ok().and_then(|identity| self.seen.get(&identity));
        let (object, identity) = match seen.filter(|object| objects.touch(**object)) {
            Some(object) => (*object, None),
            None => self.open(process, mapping, objects, remarks).map(|(object, file)| (object, Some(file)))?,
        };
        if self.seen.len() >= MAX_SEEN || self.with_rows.len() >= MAX_SEEN {
            self.seen.clear();
            self.with_rows.clear();
        }
        self.seen.extend(identity.map(|identity| (identity, object)));
        self.with_rows.extend(rows.map(|rows| (rows, object)));
        Some(object)
    }

    fn open(
        &mut self,
        process: ProcessId,
        mapping: &Mapping,
        objects: &Objects,
        remarks: &mut Vec<String>,
    ) -> Option<(ObjectId, FileIdentity)> {
        let TargetFile { file, identity, .. } = match open_mapping(process.pid, mapping) {
            Ok(opened) => opened,
            Err(error) => {
                self.unreadable += 1;
                // A process that is gone is counted; anything else is worth a word.
                if !matches!(error, OpenError::NotFound { .. }) {
                    remarks.push(format!("no names for {}: {error}", mapping.path));
                }
                return None;
            }
        };
        if self.roots.len() >= MAX_ROOTS && !self.roots.contains_key(&process) {
            self.roots.clear();
        }
        let root = self.roots.entry(process).or_insert_with(|| root_of(process.pid));
        match objects.add_in(file, &mapping.path, root.as_ref()) {
            Ok(object) => Some((object, identity)),
            Err(error) => {
                remarks.push(format!("no names for {}: {error}", mapping.path));
                None
            }
        }
    }
}

/// The target's root directory, where its separate debug files are looked for.
fn root_of(pid: Pid) -> Option<Arc<File>> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    OpenOptions::new().read(true).custom_flags(flags).open(format!("/proc/{pid}/root")).ok().map(Arc::new)
}
