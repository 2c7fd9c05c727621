//! What was compiled before on this machine is not compiled again by a clean checkout.
//!
//! `cargo xtask test` has cargo keep what it compiles on the way (`build.build-dir`) in the user's cache, in a folder for
//! this lock file and toolchain. What it is compiled for (programs, libraries) comes to the target folder as ever.
//!
//! ```text
//! <cache>/jitprof/build-KEY/        KEY: of Cargo.lock and `rustc -vV`
//!   lock       held by the run that uses it; another run at the same time uses its own target folder
//!   checkout   whose packages it holds
//! ```
//!
//! Cargo gives the workspace's own packages the same names in every checkout and tells old from new by time stamps: those of
//! another checkout are removed first, or this one could be tested with them.

use std::fs::{File, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::command;
use crate::workspace::Workspace;

/// Cargo's variable for the folder. Who sets it has chosen one.
pub(crate) const VARIABLE: &str = "CARGO_BUILD_BUILD_DIR";
/// How many folders are kept: this one, and that of another branch. Each has some 8 GB.
const KEPT: usize = 2;
/// Those that tests and builds use.
const PROFILES: [&str; 2] = ["dev", "release"];
const LOCK: &str = "lock";
const CHECKOUT: &str = "checkout";

/// The folder, for as long as this run goes on.
pub(crate) struct SharedBuild {
    pub(crate) folder: PathBuf,
    _lock: File,
}

impl SharedBuild {
    /// Takes the folder, if there is a place for one and no other run has it.
    pub(crate) fn take(workspace: &Workspace) -> Result<Option<Self>> {
        if std::env::var_os(VARIABLE).is_some() {
            return Ok(None);
        }
        let Some(cache) = user_cache() else { return Ok(None) };
        let all = cache.join("jitprof");
        let folder = all.join(format!("build-{:016x}", key(workspace)?));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let Some(lock) = lock(&folder)? else {
            command::progress(&format!("another run uses {}: building in the target folder", folder.display()));
            return Ok(None);
        };
        let checkout = workspace.root.to_str().context("the checkout's path is no UTF-8")?;
        let note = folder.join(CHECKOUT);
        if std::fs::read_to_string(&note).is_ok_and(|last| last != checkout) {
            command::progress("removing what another checkout has compiled of its own packages");
            for profile in PROFILES {
                let mut clean = workspace.cargo();
                clean.args(["clean", "--workspace", "--quiet", "--profile", profile]).env(VARIABLE, &folder);
                // Of the target folder nothing: this program is in it.
                command::run(clean.arg("--target-dir").arg(folder.join("none")))?;
            }
        }
        std::fs::write(&note, checkout).with_context(|| format!("cannot write {}", note.display()))?;
        for old in superseded(&all, &folder) {
            if lock_of(&old).is_some() {
                command::progress(&format!("removing {}", old.display()));
                std::fs::remove_dir_all(&old).with_context(|| format!("cannot remove {}", old.display()))?;
            }
        }
        Ok(Some(Self { folder, _lock: lock }))
    }
}

/// Of what decides what dependencies are compiled to, besides what cargo itself tells apart.
fn key(workspace: &Workspace) -> Result<u64> {
    let lock_file = workspace.root.join("Cargo.lock");
    let locked = std::fs::read_to_string(&lock_file).with_context(|| format!("cannot read {}", lock_file.display()))?;
    let toolchain = command::output(Command::new("rustc").arg("-vV").current_dir(&workspace.root))?;
    let mut hasher = DefaultHasher::new();
    (from_elsewhere(&locked), toolchain).hash(&mut hasher);
    Ok(hasher.finish())
}

/// What a lock file has of packages that are not the workspace's own, which alone have no source: which of the others
/// those use changes nothing of what these are compiled to.
fn from_elsewhere(locked: &str) -> Vec<&str> {
    locked.split("[[package]]").filter(|package| package.contains("\nsource = ")).collect()
}

/// Where the user keeps what can be made again.
pub(crate) fn user_cache() -> Option<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(absolute);
    cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")).filter(absolute))
}

fn lock(folder: &Path) -> Result<Option<File>> {
    let path = folder.join(LOCK);
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

fn lock_of(folder: &Path) -> Option<File> {
    lock(folder).ok().flatten()
}

/// Folders beside `own` that were used longest ago, beyond those that are kept.
fn superseded(all: &Path, own: &Path) -> Vec<PathBuf> {
    let used = |folder: &Path| folder.join(CHECKOUT).metadata().and_then(|meta| meta.modified()).ok();
    let entries = std::fs::read_dir(all).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_other = |path: &PathBuf| {
        path != own && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("build-"))
    };
    let mut others: Vec<(Option<SystemTime>, PathBuf)> =
        entries.filter(is_other).map(|path| (used(&path), path)).collect();
    others.sort_unstable();
    others.truncate((others.len() + 1).saturating_sub(KEPT));
    others.into_iter().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspaces_own_packages_are_no_part_of_what_is_locked() {
        let lock = |of_own: &str, version: &str| {
            format!(
                "version = 4\n\n[[package]]\nname = \"own\"\ndependencies = [{of_own}]\n\n[[package]]\nname = \"a\"\n\
                 version = \"{version}\"\nsource = \"registry\"\n"
            )
        };
        let (one, more, newer) = (lock("", "1"), lock("\"a\"", "1"), lock("", "2"));
        assert_eq!(from_elsewhere(&one), from_elsewhere(&more));
        assert_eq!(from_elsewhere(&one).len(), 1);
        assert_ne!(from_elsewhere(&one), from_elsewhere(&newer));
    }

    #[test]
    fn a_folder_is_one_runs_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = lock(folder.path()).unwrap();
        assert!(first.is_some());
        assert!(lock(folder.path()).unwrap().is_none());
        drop(first);
        assert!(lock(folder.path()).unwrap().is_some());
    }

    #[test]
    fn the_folders_that_were_used_longest_ago_go() {
        let all = tempfile::tempdir().unwrap();
        let make = |name: &str, seconds: u64| {
            let folder = all.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            let note = File::create(folder.join(CHECKOUT)).unwrap();
            note.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).unwrap();
            folder
        };
        let (own, old, older) = (make("build-own", 1), make("build-b", 30), make("build-a", 20));
        make("other", 5);
        assert_eq!(superseded(all.path(), &own), std::slice::from_ref(&older));
        std::fs::remove_dir_all(older).unwrap();
        assert!(superseded(all.path(), &own).is_empty());
        assert!(old.exists());
    }
}
