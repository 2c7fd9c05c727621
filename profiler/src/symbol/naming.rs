//! Names for those who wait for them: a symbolizer, the files it reads, and its answers.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::frame::Frame;
use super::kernel::unnamed_in_kernel;
use super::native::{unnamed_in_file, unnamed_in_function};
use super::open_files::{OpenFile, OpenFiles};
use super::stats::SymbolStats;
use super::worker::{Limits, Name, NameAnswer, SymbolBudget, SymbolKey, Symbolizer};
use crate::gsym::GsymStore;
use crate::process::open::{FileId, TargetRoot, VDSO};

/// Names addresses of files that are added to it.
pub struct Naming {
    symbolizer: Symbolizer,
    files: Arc<OpenFiles>,
    last: FileId,
    asked: Vec<SymbolKey>,
    known: HashMap<SymbolKey, Option<Arc<[Frame]>>>,
    stats: SymbolStats,
}

impl Naming {
    /// Starts a worker; files without debug information get it from these GSYM files.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn spawn(gsym: GsymStore) -> io::Result<Self> {
        Self::spawn_within(Limits::default(), gsym)
    }

    pub(super) fn spawn_within(limits: Limits, gsym: GsymStore) -> io::Result<Self> {
        let files = Arc::new(OpenFiles::default());
        let symbolizer = Symbolizer::spawn_within(limits, (Arc::clone(&files), gsym), Arc::default(), Box::new(|| {}))?;
        Ok(Self {
            symbolizer,
            files,
            last: VDSO,
            asked: Vec::new(),
            known: HashMap::new(),
            stats: SymbolStats::default(),
        })
    }

    /// Loads within another budget from now on.
    pub fn set_budget(&self, budget: SymbolBudget) {
        self.symbolizer.set_budget(budget);
    }

    /// Adds an open file, `path` as the target sees it, with the target's root directory: separate debug
    /// files are looked for below it before the host's.
    pub fn add(&mut self, file: File, path: &str, root: Option<Arc<TargetRoot>>) -> FileId {
        self.last = FileId(self.last.0 + 1);
        self.files.insert(self.last, OpenFile::new(file, path, root));
        self.last
    }

    /// Closes a file: what is not named by now is not named any more.
    pub fn close(&self, file: FileId) {
        self.files.close(file);
    }

    /// Asks for the frames of an address, once.
    pub fn request(&mut self, key: SymbolKey) {
        if self.known.insert(key, self.known.get(&key).cloned().flatten()).is_none() {
            self.stats.requests += 1;
            self.asked.push(key);
        }
    }

    /// Waits until everything asked for is answered, or until `limit` has passed. Returns how many are still waiting.
    pub fn wait(&mut self, limit: Duration) -> usize {
        self.symbolizer.ask(std::mem::take(&mut self.asked));
        let waiting = self.symbolizer.wait(limit);
        for NameAnswer { key, name } in self.symbolizer.take_answers() {
            match name {
                Name::Frames(frames) => {
                    self.stats.resolved += 1;
                    self.stats.with_lines += u64::from(frames.iter().any(|frame| frame.source.is_some()));
                    self.known.insert(key, Some(frames.into()));
                }
                Name::None(reason) => {
                    self.stats.count(reason);
                    self.known.insert(key, Some(self.unnamed(key)));
                }
                Name::Within(reason, begin) => {
                    self.stats.count(reason);
                    let frames = match key {
                        SymbolKey::File(file, offset) => {
                            let open = self.files.get(file);
                            let module = open.as_ref().map(|file| &file.module);
                            Arc::from([unnamed_in_function(module, offset, begin)])
                        }
                        SymbolKey::Kernel(_) => self.unnamed(key),
                    };
                    self.known.insert(key, Some(frames));
                }
                Name::NotNow => {
                    self.stats.requests -= 1;
                    self.known.remove(&key);
                }
            }
        }
        waiting
    }

    /// The frames of an address, innermost first and never empty; of one that was not answered `[file+0x…]` or
    /// `[kernel]`.
    pub fn frames(&self, key: SymbolKey) -> Arc<[Frame]> {
        self.known.get(&key).cloned().flatten().unwrap_or_else(|| self.unnamed(key))
    }

    fn unnamed(&self, key: SymbolKey) -> Arc<[Frame]> {
        Arc::from([match key {
            SymbolKey::File(file, offset) => {
                unnamed_in_file(self.files.get(file).as_ref().map(|file| &file.module), offset)
            }
            SymbolKey::Kernel(_) => unnamed_in_kernel(),
        }])
    }

    /// The account so far.
    pub fn stats(&self) -> SymbolStats {
        let mut stats = self.symbolizer.stats();
        stats.absorb(&self.stats);
        stats
    }
}
