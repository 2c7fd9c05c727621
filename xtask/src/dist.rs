//! `dist`: binary, agent, documents and licences in one archive.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::build::{self, Profile};
use crate::command;
use crate::workspace::Workspace;

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let binary = build::jitprof(workspace, Profile::Release)?;
    let agent = build::agent(workspace, Profile::Release)?;
    command::progress("packing");
    let name = format!("jitprof-{}-{}-linux", workspace.version, std::env::consts::ARCH);
    let dist = workspace.target.join("dist");
    let folder = dist.join(&name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    copy(&[binary, agent], &folder)?;
    copy(&documents(workspace)?, &folder)?;

    let archive = format!("{name}.tar.gz");
    // The commit's time, no user names, sorted: the same commit gives the same archive.
    let mut log = Command::new("git");
    let time = command::output(log.args(["log", "-1", "--format=%ct"]).current_dir(&workspace.root))?;
    let mut tar = Command::new("tar");
    tar.current_dir(&dist).args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{}", time.trim())).args(["--use-compress-program", "gzip -9n", "-cf", &archive, &name]);
    command::run(&mut tar)?;
    let sum = command::output(Command::new("sha256sum").arg(&archive).current_dir(&dist))?;
    let sum_file = dist.join(format!("{archive}.sha256"));
    std::fs::write(&sum_file, &sum).with_context(|| format!("cannot write {}", sum_file.display()))?;
    println!("{}", dist.join(&archive).display());
    print!("{sum}");
    Ok(())
}

/// README, licences and docs/.
fn documents(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries =
        std::fs::read_dir(&workspace.root).with_context(|| format!("cannot list {}", workspace.root.display()))?;
    for entry in entries {
        let path = entry.context("cannot list the workspace")?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name == "README.md"
            || name == "CHANGELOG.md"
            || name == "docs"
            || name.starts_with("LICENSE")
            || name.starts_with("THIRD-PARTY")
        {
            found.push(path);
        }
    }
    Ok(found)
}

fn copy(files: &[PathBuf], folder: &std::path::Path) -> Result<()> {
    command::run(Command::new("cp").arg("-r").args(files).arg(folder))
}
