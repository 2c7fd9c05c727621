//! The symbols of files that were looked at before, for all processes that map them.
//!
//! No table of files: nothing is open here, and what a file is, `FileIdentity` says as for names and rows. It is the memory
//! of readers that may hang, which the engine asks and does not share its own with.
//!
//! Files are the target's choice, and what one maps may not drive out what others have: what is over is taken from the user
//! whose processes have brought the most.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::modules::FileSymbols;
use crate::process::open::FileIdentity;

/// Files that are remembered.
const MAX_FILES: usize = if cfg!(test) { 64 } else { 4096 };
/// Bytes of what is remembered; V8 has 100 KB, other runtimes a tenth of it, and most files nothing.
const MAX_BYTES: usize = if cfg!(test) { 1 << 20 } else { 16 << 20 };
/// Bytes that a file takes at least.
const FILE_BYTES: usize = 512;
/// Bytes of tables after which no further file is read in one look at a process: the next look goes on, as what was read is
/// remembered. Programs with their debug information have some 100 MB.
const MAX_READ_BYTES: u64 = 256 << 20;
/// Bytes of symbols after which no further file is looked at: no process has so many runtimes.
const MAX_SYMBOL_BYTES: usize = 4 << 20;

/// What was remembered, by file.
#[derive(Default)]
pub(super) struct KnownFiles(Mutex<Files>);

#[derive(Default)]
struct Files {
    of: HashMap<FileIdentity, Remembered>,
    bytes: usize,
    uses: u64,
}

struct Remembered {
    /// Whose process had it mapped when it was read.
    user: u32,
    used: u64,
    bytes: usize,
    /// Nothing while somebody reads it, who is waited for: it would take no less time to read it again.
    symbols: Arc<OnceLock<Arc<FileSymbols>>>,
}

/// A look at the files of one process: what it has cost so far.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// The process' user.
    user: u32,
    read: u64,
    symbol_bytes: usize,
}

impl Look {
    pub(super) fn of(user: u32) -> Self {
        Self { user, ..Self::default() }
    }

    /// Whether no file is read any more that is not remembered.
    pub(super) fn is_over(&self) -> bool {
        self.read >= MAX_READ_BYTES
    }
}

impl KnownFiles {
    /// The symbols of a file, read unless they are remembered. `None` if too much has been read, or found, in this look.
    pub(super) fn symbols_of(
        &self,
        identity: FileIdentity,
        look: &mut Look,
        read: impl FnOnce() -> FileSymbols,
    ) -> Option<Arc<FileSymbols>> {
        if look.symbol_bytes >= MAX_SYMBOL_BYTES {
            return None;
        }
        let place = self.place_of(identity, look)?;
        let mut is_new = false;
        let symbols = place.get_or_init(|| {
            is_new = true;
            Arc::new(read())
        });
        if is_new {
            look.read = look.read.saturating_add(symbols.read);
            self.note(identity, symbols.bytes());
        }
        look.symbol_bytes = look.symbol_bytes.saturating_add(symbols.symbol_bytes());
        Some(Arc::clone(symbols))
    }

    /// Where a file's symbols are, or will be.
    fn place_of(&self, identity: FileIdentity, look: &Look) -> Option<Arc<OnceLock<Arc<FileSymbols>>>> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        files.uses += 1;
        let used = files.uses;
        if let Some(known) = files.of.get_mut(&identity) {
            known.used = used;
            return Some(Arc::clone(&known.symbols));
        }
        if look.is_over() {
            return None;
        }
        let symbols = Arc::default();
        let new = Remembered { user: look.user, used, bytes: FILE_BYTES, symbols: Arc::clone(&symbols) };
        files.bytes += new.bytes;
        files.of.insert(identity, new);
        files.limit();
        Some(symbols)
    }

    /// Notes how much a file takes that has been read.
    fn note(&self, identity: FileIdentity, bytes: usize) {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let files = &mut *files;
        // It may have been dropped meanwhile.
        let Some(known) = files.of.get_mut(&identity) else { return };
        files.bytes = files.bytes - known.bytes + FILE_BYTES + bytes;
        known.bytes = FILE_BYTES + bytes;
        files.limit();
    }
}

impl Files {
    /// Drops what is over, as far as an eighth below what may be: the files of who has the most, that were of use longest ago.
    fn limit(&mut self) {
        if self.of.len() <= MAX_FILES && self.bytes <= MAX_BYTES {
            return;
        }
        let is_over = |files: &Self| files.of.len() > MAX_FILES * 7 / 8 || files.bytes > MAX_BYTES * 7 / 8;
        while is_over(self) {
            let Some(user) = self.greediest() else { return };
            let his = self.of.iter().filter(|(_, known)| known.user == user);
            let mut his: Vec<_> = his.map(|(identity, known)| (known.used, *identity)).collect();
            his.sort_unstable_by_key(|(used, _)| *used);
            // Until another one has more than he.
            for (_, identity) in his.iter().take(his.len().div_ceil(8)) {
                self.bytes -= self.of.remove(identity).map_or(0, |known| known.bytes);
            }
        }
    }

    /// Whose files take up the most, of what there is too much of.
    fn greediest(&self) -> Option<u32> {
        let mut of: HashMap<u32, f64> = HashMap::new();
        for known in self.of.values() {
            // As shares of both that there may be.
            *of.entry(known.user).or_default() += (known.bytes as f64 / MAX_BYTES as f64).max(1.0 / MAX_FILES as f64);
        }
        of.into_iter().max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(user, _)| user)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::time::Duration;

    use super::*;

    fn identity(inode: u64) -> FileIdentity {
        let own = FileIdentity::of(&File::open("/proc/self/exe").unwrap().metadata().unwrap());
        FileIdentity { inode, ..own }
    }

    fn symbols(count: usize, read: u64) -> FileSymbols {
        FileSymbols::of_names((0..count).map(|at| format!("v8dbg_{at:0>120}")), read)
    }

    /// Whether a file is remembered; it is by then.
    fn is_known(known: &KnownFiles, inode: u64, user: u32, count: usize) -> bool {
        let mut is_read = false;
        let read = || {
            is_read = true;
            symbols(count, 0)
        };
        assert!(known.symbols_of(identity(inode), &mut Look::of(user), read).is_some());
        !is_read
    }

    #[test]
    fn who_maps_ever_new_files_drives_out_his_own() {
        for count in [0, 64] {
            let known = KnownFiles::default();
            assert!(!is_known(&known, 1, 0, 4) && !is_known(&known, 2, 1001, 4) && is_known(&known, 1, 0, 4));
            for inode in 100..1100 {
                is_known(&known, inode, 1000, count);
                let files = known.0.lock().unwrap();
                assert!(files.of.len() <= MAX_FILES && files.bytes <= MAX_BYTES, "{}", files.bytes);
                assert_eq!(files.bytes, files.of.values().map(|known| known.bytes).sum::<usize>());
            }
            assert!(is_known(&known, 1, 0, 4) && is_known(&known, 2, 1001, 4), "{count}");
            assert!(is_known(&known, 1099, 1000, count) && !is_known(&known, 100, 1000, count), "the oldest goes");
        }
        let (known, large) = (KnownFiles::default(), MAX_BYTES / 100);
        assert!(!is_known(&known, 1, 1000, large), "larger than all that may be kept");
        assert_eq!(known.0.lock().unwrap().bytes, 0);
    }

    #[test]
    fn a_look_reads_so_much_and_the_next_one_goes_on() {
        let (known, mut look) = (KnownFiles::default(), Look::of(0));
        let read = |inode, look: &mut Look| known.symbols_of(identity(inode), look, || symbols(1, MAX_READ_BYTES - 1));
        assert!(read(1, &mut look).is_some() && !look.is_over());
        assert!(read(2, &mut look).is_some() && look.is_over());
        assert!(read(3, &mut look).is_none() && read(1, &mut look).is_some(), "what is known costs nothing");
        assert!(read(3, &mut Look::of(0)).is_some());
    }

    #[test]
    fn a_look_finds_so_much_and_no_more() {
        let (known, mut look) = (KnownFiles::default(), Look::of(0));
        let each = symbols(2048, 0).symbol_bytes();
        let found = (0..100).filter(|at| known.symbols_of(identity(*at), &mut look, || symbols(2048, 0)).is_some());
        assert_eq!(found.count(), MAX_SYMBOL_BYTES.div_ceil(each));
        assert!(known.symbols_of(identity(1000), &mut Look::of(0), || symbols(1, 0)).is_some());
    }

    #[test]
    fn a_file_that_somebody_reads_is_not_read_again() {
        let (known, reads, begun) = (KnownFiles::default(), AtomicU32::new(0), Barrier::new(4));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    begun.wait();
                    let read = || {
                        reads.fetch_add(1, Relaxed);
                        std::thread::sleep(Duration::from_millis(50));
                        symbols(1, 1)
                    };
                    assert_eq!(known.symbols_of(identity(1), &mut Look::of(0), read).unwrap().read, 1);
                });
            }
        });
        assert_eq!(reads.load(Relaxed), 1);
    }
}
