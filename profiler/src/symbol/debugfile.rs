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
//! all must be allowed to read it, or it is the target's user's. It must have the same build id, or, where that has none, the
//! checksum that the link names. Not done: debuginfod (network), dwz's
//! `.gnu_debugaltlink` (names found only there are missing, the symbol tables answer), DWARF packages (`.dwp`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, fstatfs, openat2};

use super::image::{Image, layout_of};
use super::open_files::OpenFile;
use super::stats::{DebugLoss, SymbolStats};
use super::worker::SymbolBudget;
use crate::regular_file::may_be_kernels_own;
use jitprof_unwind::elf::{self, Layout};

const DEBUG_DIRECTORY: &str = "usr/lib/debug";
/// Longest `.gnu_debuglink` section: a file name (255 bytes), its end, padding and the checksum.
const MAX_LINK_BYTES: u64 = 264;
/// Largest debug file whose checksum is computed.
const MAX_CHECKED_BYTES: u64 = 1 << 30;

/// Who owns a stripped file, and whether that is the user of the process that it was opened for.
#[derive(Clone, Copy, Debug)]
struct Owner {
    uid: u32,
    is_target: bool,
}

/// The copy of the debug file's contents, or nothing. To be called while the stripped one is read. Below a target's root
/// there may be any file system.
pub(super) fn load(origin: &OpenFile, budget: &SymbolBudget, stats: &mut SymbolStats) -> Option<Image> {
    let mut work = || find(origin, budget, stats);
    if origin.root.is_some() { origin.file.reading_others(work) } else { work() }
}

fn find(origin: &OpenFile, budget: &SymbolBudget, stats: &mut SymbolStats) -> Option<Image> {
    let uid = origin.file.metadata().ok()?.uid();
    let owner = Owner { uid, is_target: uid != 0 && origin.file.payer(uid) == uid };
    let build_id = elf::build_id(&origin.file);
    let link = layout_of(&origin.file).ok().and_then(|layout| read_link(&origin.file, &layout));
    let candidates = candidates(build_id.as_deref(), link.as_ref(), Path::new(&*origin.module.path));
    let host = open_root("/").ok();
    for root in origin.root.as_deref().into_iter().chain(host.as_ref()) {
        for candidate in &candidates {
            let Some(file) = open_below(root, candidate, owner) else {
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
    None
}

/// Whether a file may have a debug file below a root: it is looked for, but not opened. By a checksum alone, without a
/// build id, it may have any.
pub(crate) fn may_be_below(root: &File, file: &File, path: &Path, build_id: Option<&[u8]>) -> bool {
    let Some(build_id) = build_id.filter(|id| !id.is_empty()) else { return true };
    // Whether the target's user may read it is known when it is opened.
    let Some(owner) = file.metadata().ok().map(|metadata| Owner { uid: metadata.uid(), is_target: true }) else {
        return false;
    };
    let link = layout_of(file).ok().and_then(|layout| read_link(file, &layout));
    candidates(Some(build_id), link.as_ref(), path).iter().any(|place| place_below(root, place, owner).is_some())
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

fn open_below(root: &File, path: &Path, owner: Owner) -> Option<File> {
    let place = place_below(root, path, owner)?;
    // The descriptor, not the path: nothing can have come between.
    let own = format!("/proc/self/fd/{}", place.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(own).ok()
}

fn place_below(root: &File, path: &Path, owner: Owner) -> Option<File> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let place = File::from(openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).ok()?);
    let metadata = place.metadata().ok()?;
    let is_owners = metadata.uid() == owner.uid;
    let may_read = metadata.mode() & 0o004 != 0 || (is_owners && owner.is_target);
    let is_allowed = metadata.is_file() && (metadata.uid() == 0 || is_owners) && may_read;
    (is_allowed && !may_be_kernels_own(fstatfs(&place))).then_some(place)
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
        let root = File::open("/").unwrap();
        let place = |path: &str| place_below(&root, Path::new(path), Owner { uid: 0, is_target: false });
        assert!(place("etc/passwd").is_some() && place("proc/version").is_none());
    }

    #[test]
    fn what_only_its_owner_may_read_is_a_debug_file_of_his_processes_alone() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bin.debug");
        std::fs::write(&file, b"x").unwrap();
        let uid = std::fs::metadata(&file).unwrap().uid();
        let root = File::open(directory.path()).unwrap();
        let is_found = |mode, is_target| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            place_below(&root, Path::new("bin.debug"), Owner { uid, is_target }).is_some()
        };
        assert!(is_found(0o644, false) && is_found(0o600, true) && !is_found(0o600, false) && !is_found(0o640, false));
    }
}
