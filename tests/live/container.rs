//! Targets with pid, mount and root of their own, as containers have them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::Scratch;

/// Makes a root of the system's libraries and /app with the given files, and runs the command $2 in it.
const CONTAINER: &str = r#"
set -e
mount -t tmpfs tmpfs "$1"
cd "$1"
for directory in usr lib lib64; do
    if [ -d /$directory ]; then mkdir $directory; mount --rbind /$directory $directory; fi
done
mkdir proc tmp old app
run=$2
shift 2
while [ $# -gt 0 ]; do cp "$1" "app/$2"; shift 2; done
mount -t proc proc proc
pivot_root . old
exec chroot . /usr/bin/sh -c "cd /tmp; umount -l /old; exec $run"
"#;

/// A command that runs `run` in a container, whose /app has `files` by these names.
///
/// # Errors
/// The directory for its root cannot be made.
pub fn container<'a>(
    scratch: &Scratch,
    files: impl IntoIterator<Item = (&'a Path, &'a str)>,
    run: &str,
) -> Result<Command> {
    let root = scratch.file("root");
    std::fs::create_dir(&root).with_context(|| format!("cannot make {}", root.display()))?;
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount", "sh", "-c", CONTAINER, "sh"]).arg(&root).arg(run);
    for (file, name) in files {
        command.arg(file).arg(name);
    }
    Ok(command)
}
