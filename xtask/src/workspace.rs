//! Where the sources are and where the results go.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command;
use crate::shared_build;

/// The checkout that this xtask belongs to.
pub(crate) struct Workspace {
    /// The folder with the workspace's Cargo.toml.
    pub(crate) root: PathBuf,
    /// Cargo's target folder; honours `CARGO_TARGET_DIR` and cargo's configuration files.
    pub(crate) target: PathBuf,
    /// Where cargo keeps what it compiles on the way, if that is not the target folder.
    build: Option<PathBuf>,
    /// The version that all packages share.
    pub(crate) version: String,
}

impl Workspace {
    /// Asks cargo, so that every way to move the target folder is honoured.
    pub(crate) fn find() -> Result<Self> {
        let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let mut metadata = cargo();
        metadata.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]).arg(manifest);
        let metadata: Value = serde_json::from_str(&command::output(&mut metadata)?)
            .context("`cargo metadata` printed something else than JSON")?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let package = |name: &str| {
            let packages = metadata["packages"].as_array();
            packages
                .and_then(|packages| packages.iter().find(|package| package["name"] == name))
                .with_context(|| format!("`cargo metadata` lists no package `{name}`"))
        };
        Ok(Self {
            root: text(&metadata["workspace_root"]).context("`cargo metadata` names no workspace")?.into(),
            build: None,
            target: text(&metadata["target_directory"]).context("`cargo metadata` names no target folder")?.into(),
            version: text(&package("jitprof")?["version"]).context("`cargo metadata` names no version")?,
        })
    }

    /// The BPF programs' own workspace.
    pub(crate) fn ebpf(&self) -> PathBuf {
        self.root.join("profiler-ebpf")
    }

    /// The programs that demo, live tests and benchmarks profile.
    pub(crate) fn targets(&self) -> PathBuf {
        self.root.join("tests/targets")
    }

    /// The same, with what cargo compiles on the way in another folder.
    pub(crate) fn building_in(self, folder: &Path) -> Self {
        Self { build: Some(folder.to_owned()), ..self }
    }

    /// Where cargo keeps what it compiles on the way.
    pub(crate) fn build_folder(&self) -> &Path {
        self.build.as_deref().unwrap_or(&self.target)
    }

    /// A cargo command that runs in the workspace's root.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = cargo();
        command.current_dir(&self.root);
        if let Some(folder) = &self.build {
            command.env(shared_build::VARIABLE, folder);
        }
        command
    }
}

/// The cargo that started this xtask.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
