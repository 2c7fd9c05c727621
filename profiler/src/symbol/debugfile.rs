//! Finds the separate debug file of a stripped one.
//!
//! Looked for below the target's root (if the object was added with one, see `profiler/src/record/debug_root.rs`), then below
//! the host's, in gdb's order:
//!
//! ```text
//! /usr/lib/debug/.build-id/ab/cdef….debug    by build id
//! DIR/NAME, DIR/.debug/NAME, /usr/lib/debug/DIR/NAME    NAME of .gnu_debuglink, DIR of the file's path
//! ```
//!
//! The target may have made all of these, so: no path leaves the root (openat2 with RESOLVE_IN_ROOT, Linux 5.6), no
//! link of /proc is followed, the file is looked at before it is opened (opening a device can act, opening a FIFO
//! blocks), and it must be a regular file of root's or of the owner of the stripped file. The target may have bound it there, so
//! below its root it must be one that it may read itself. It must have the same build id, or, where that has none, the
//! checksum that the link names. Not done: debuginfod (network), dwz's
//! `.gnu_debugaltlink` (names found only there are missing, the symbol tables answer), DWARF packages (`.dwp`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::image::{Image, layout_of};
use super::open_files::OpenFile;
use super::stats::{DebugLoss, SymbolStats};
use super::worker::SymbolBudget;
use crate::process::open::{OpenError, TargetRoot};
use crate::process::procfs::Credentials;
use jitprof_unwind::elf::{self, Layout};

const DEBUG_DIRECTORY: &str = "usr/lib/debug";
/// Longest `.gnu_debuglink` section: a file name (255 bytes), its end, padding and the checksum.
const MAX_LINK_BYTES: u64 = 264;
/// Largest debug file whose checksum is computed.
const MAX_CHECKED_BYTES: u64 = 1 << 30;

/// The copy of the debug file's contents, or nothing. To be called while the stripped one is read. Below a target's root
/// there may be any file system.
pub(super) fn load(origin: &OpenFile, budget: &SymbolBudget, stats: &mut SymbolStats) -> Option<Image> {
    let mut work = || find(origin, budget, stats);
    if origin.root.is_some() { origin.file.reading_others(work) } else { work() }
}

fn find(origin: &OpenFile, budget: &SymbolBudget, stats: &mut SymbolStats) -> Option<Image> {
    let owner = origin.file.metadata().ok()?.uid();
    let build_id = elf::build_id(&origin.file);
    let link = layout_of(&origin.file).ok().and_then(|layout| read_link(&origin.file, &layout));
    let candidates = candidates(build_id.as_deref(), link.as_ref(), Path::new(&*origin.module.path));
    let host = open_root("/").ok().map(|root| Host::new(root, owner));
    let mut is_refused = false;
    let own = origin.root.as_deref().map(Some);
    for own in own.into_iter().chain([None]) {
        for candidate in &candidates {
            let Some(root) = own.or_else(|| host.as_ref()?.below(candidate)) else { continue };
            let opened = open_below(root, candidate, owner);
            is_refused |= matches!(opened, Err(OpenError::Private { .. }));
            let Ok(file) = opened else {
                continue;
            };
            let same_build = match &build_id {
                Some(id) => elf::build_id(&file).as_ref() == Some(id),
                None => link.as_ref().is_some_and(|(_, sum)| checksum(&file).is_ok_and(|found| found == *sum)),
            };
            if !same_build {
                stats.count_debug(DebugLoss::OtherBuild);
                continue;
            }
            if let Some(image) = copy(&file, budget, stats) {
                stats.debug_files = stats.debug_files.saturating_add(1);
                return Some(image);
            }
        }
    }
    if is_refused {
        stats.count_debug(DebugLoss::Private);
    }
    None
}

/// The host's own root.
struct Host {
    /// Where jitprof looks by its own right.
    debug: TargetRoot,
    /// The target has said where: what all may read, or the owner of its file.
    elsewhere: Option<TargetRoot>,
}

impl Host {
    fn new(root: File, owner: u32) -> Self {
        let public = |root| TargetRoot::new(root, Credentials::default().also(&[owner]));
        Self { elsewhere: root.try_clone().ok().map(public), debug: TargetRoot::unrestricted(root) }
    }

    fn below(&self, place: &Path) -> Option<&TargetRoot> {
        if place.starts_with(DEBUG_DIRECTORY) { Some(&self.debug) } else { self.elsewhere.as_ref() }
    }
}

/// Whether a file may have a debug file below a root: it is looked for, but not opened. By a checksum alone, without a
/// build id, it may have any.
pub(crate) fn may_be_below(root: &TargetRoot, file: &File, path: &Path, build_id: Option<&[u8]>) -> bool {
    let Some(build_id) = build_id.filter(|id| !id.is_empty()) else { return true };
    let Some(owner) = file.metadata().ok().map(|metadata| metadata.uid()) else {
        return false;
    };
    let link = layout_of(file).ok().and_then(|layout| read_link(file, &layout));
    // One that is refused is counted when it is to be opened.
    candidates(Some(build_id), link.as_ref(), path).iter().any(|place| match place_below(root, place, owner) {
        Ok(_) => true,
        Err(error) => matches!(error, OpenError::Private { .. }),
    })
}

/// A directory to look below, such as `/proc/PID/root`, which stays usable after the process is gone.
///
/// # Errors
/// Those of open(2).
pub fn open_root(path: &str) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path)
}

/// The file with debug information, or at least symbols.
fn copy(file: &File, budget: &SymbolBudget, stats: &mut SymbolStats) -> Option<Image> {
    let image = Image::copy(file, &layout_of(file).ok()?, budget).ok()?;
    if let Some(loss) = image.debug_loss {
        stats.count_debug(loss);
    }
    (image.has_debug || image.has_symbols).then_some(image)
}

fn candidates(build_id: Option<&[u8]>, link: Option<&(String, u32)>, path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Some((first, rest)) = build_id.and_then(<[u8]>::split_first) {
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        found.push(format!("{DEBUG_DIRECTORY}/.build-id/{first:02x}/{rest}.debug").into());
    }
    if let (Some((name, _)), Some(directory)) = (link, path.strip_prefix("/").ok().and_then(Path::parent)) {
        let below_debug = Path::new(DEBUG_DIRECTORY).join(directory);
        found.extend([directory.join(name), directory.join(".debug").join(name), below_debug.join(name)]);
    }
    found
}

/// Name and checksum: `{name, 0, padding to 4, crc u32}`. A name with a slash is none.
fn read_link(file: &File, layout: &Layout) -> Option<(String, u32)> {
    let section = layout.section(".gnu_debuglink").filter(|section| section.size <= MAX_LINK_BYTES)?;
    let bytes = elf::read_bytes(file, section.file_offset, section.size).ok()?;
    let end = memchr::memchr(0, &bytes)?;
    let name = std::str::from_utf8(bytes.get(..end)?).ok()?;
    let checksum = elf::u32_at(&bytes, end.checked_add(1)?.checked_next_multiple_of(4)?)?;
    let is_plain = !name.is_empty() && name != "." && name != ".." && !name.contains('/');
    is_plain.then(|| (name.to_owned(), checksum))
}

/// Opens a file of root's or of this owner's. What of it may be read is for the root to say: below the host's, where
/// jitprof looks by its own right, all.
fn open_below(root: &TargetRoot, path: &Path, owner: u32) -> Result<File, OpenError> {
    Ok(root.open(&place_below(root, path, owner)?, path)?.file)
}

fn place_below(root: &TargetRoot, path: &Path, owner: u32) -> Result<File, OpenError> {
    root.find_of(path, OFlags::empty(), &[owner])
}

/// CRC-32 (IEEE) of all bytes, as `.gnu_debuglink` has it.
fn checksum(file: &File) -> io::Result<u32> {
    let length = file.metadata()?.len();
    if length > MAX_CHECKED_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut sum = flate2::Crc::new();
    let mut block = vec![0; 1 << 16];
    let mut at = 0;
    while at < length {
        let read = file.read_at(&mut block, at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        sum.update(block.get(..read).unwrap_or_default());
        at = at.saturating_add(u64::try_from(read).map_err(|_| io::ErrorKind::FileTooLarge)?);
    }
    Ok(sum.sum())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_the_kernel_makes_up_is_no_debug_file() {
        let root = TargetRoot::unrestricted(open_root("/").unwrap());
        let open = |path: &str| open_below(&root, Path::new(path), 0);
        assert!(open("etc/passwd").is_ok());
        assert!(matches!(open("proc/version"), Err(OpenError::NotRegular { .. })));
    }

    #[test]
    fn where_a_target_says_that_its_debug_file_is_on_the_host_only_what_all_may_read_is_one() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for place in ["root/private/v.debug", "usr/lib/debug/root/private/v.debug"] {
            let file = directory.path().join(place);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, b"x").unwrap();
        }
        let open = |place: &str, mode| {
            let file = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(directory.path().join(place), file).unwrap();
            let uid = std::fs::metadata(directory.path()).unwrap().uid();
            let host = Host::new(open_root(directory.path().to_str().unwrap()).unwrap(), uid);
            open_below(host.below(Path::new(place)).unwrap(), Path::new(place), uid)
        };
        assert!(open("root/private/v.debug", 0o644).is_ok());
        assert!(open("usr/lib/debug/root/private/v.debug", 0o600).is_ok());
        // Else its owner may.
        if rustix::process::getuid().is_root() {
            assert!(open("root/private/v.debug", 0o600).unwrap_err().is_private());
            std::fs::set_permissions(directory.path().join("root"), std::fs::Permissions::from_mode(0o700)).unwrap();
            assert!(open("root/private/v.debug", 0o644).unwrap_err().is_private());
        }
    }

    #[test]
    fn a_debug_file_is_one_that_the_target_may_read_or_that_jitprof_finds_by_itself() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let file = directory.path().join("bin.debug");
        std::fs::write(&file, b"x").unwrap();
        let (owner, group) = std::fs::metadata(&file).map(|meta| (meta.uid(), meta.gid())).unwrap();
        let open = |mode, ids: Option<[u32; 2]>| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let root = open_root(directory.path().to_str().unwrap()).unwrap();
            let root = match ids.map(|[u, g]| format!("Uid:\t{u}\t{u}\t{u}\t{u}\nGid:\t{g}\t{g}\t{g}\t{g}\n")) {
                Some(status) => TargetRoot::new(root, Credentials::parse(status.as_bytes()).unwrap()),
                None => TargetRoot::unrestricted(root),
            };
            open_below(&root, Path::new("bin.debug"), owner)
        };
        assert!(open(0o644, Some([4_000_001, 7])).is_ok());
        assert!(open(0o600, Some([owner, 7])).is_ok(), "whoever pays for it");
        assert!(open(0o640, Some([4_000_001, group])).is_ok());
        assert!(open(0o600, None).is_ok() && open(0o640, None).is_ok());
        for mode in [0o600, 0o640] {
            assert!(open(mode, Some([4_000_001, 4_000_002])).unwrap_err().is_private());
        }
    }
}
