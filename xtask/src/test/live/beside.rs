//! Work beside the tests, for who wants to know what they are on a busy machine.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Processes that do nothing but use a CPU each. They end with the value, and by themselves if its owner is killed.
pub(super) struct BusyLoops(Vec<Child>);

impl BusyLoops {
    pub(super) fn start(count: u32) -> Result<Self> {
        let owner = std::process::id().to_string();
        let mut loops = Self(Vec::new());
        for _ in 0..count {
            let mut shell = Command::new("sh");
            // A second or so between two looks at whether the owner is still there.
            shell.args([
                "-c",
                "while kill -0 \"$1\" 2>/dev/null; do n=0; while [ $n -lt 500000 ]; do n=$((n + 1)); done; done",
                "busy-loop",
                &owner,
            ]);
            shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            loops.0.push(shell.spawn().context("cannot start a busy loop")?);
        }
        Ok(loops)
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            if let Err(error) = child.kill().and_then(|()| child.wait()) {
                eprintln!("a busy loop was not ended: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_loops_end_with_their_owner() {
        let loops = BusyLoops::start(1).unwrap();
        let place = format!("/proc/{}", loops.0[0].id());
        assert!(std::path::Path::new(&place).exists());
        drop(loops);
        assert!(!std::path::Path::new(&place).exists());
    }
}
