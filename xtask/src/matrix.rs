//! `test --kernel`: jitprof on other kernels than this machine's, each in a virtual machine of its own.
//!
//! ```text
//! Debian's mirrors ─▶ <target>/kernels/vmlinuz-SUITE-ARCH                         ../apt.rs, kernel.rs, emulator.rs
//! jitprof, jitdemo, kernel-guest (the init), their libraries ─▶ <target>/kernels/ARCH.cpio  image.rs
//! qemu ─▶ the serial console ─▶ <target>/kernels/NAME.log ─▶ a verdict                      guest.rs
//! ```
//!
//! What is checked in the machine is in `tests/guest`. Machines are emulated (tcg): where this runs mostly is a virtual
//! machine itself, and nested virtualisation cannot be counted on.

mod emulator;
mod guest;
mod image;
mod kernel;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::build::{self, Profile};
use crate::command;
use crate::platform::Platform;
use crate::workspace::Workspace;
use emulator::Emulator;
use kernel::KERNELS;
pub(crate) use kernel::Kernel;

/// What differs between architectures.
pub(crate) struct Arch {
    /// As Rust calls it.
    name: &'static str,
    /// As Debian calls it.
    debian: &'static str,
    /// The emulator, and the package that brings it.
    qemu: &'static str,
    package: &'static str,
    /// Machine and processor.
    machine: &'static [&'static str],
    /// The serial console's device.
    console: &'static str,
    /// What programs are built for when this machine is of another architecture: linked statically, so that no
    /// libraries of the other architecture are needed.
    target: &'static str,
}

static X86_64: Arch = Arch {
    name: "x86_64",
    debian: "amd64",
    qemu: "qemu-system-x86_64",
    package: "qemu-system-x86",
    machine: &["-machine", "q35,usb=off,vmport=off", "-cpu", "max"],
    console: "ttyS0",
    target: "x86_64-unknown-linux-musl",
};

static AARCH64: Arch = Arch {
    name: "aarch64",
    debian: "arm64",
    qemu: "qemu-system-aarch64",
    package: "qemu-system-arm",
    machine: &["-machine", "virt", "-cpu", "cortex-a57"],
    console: "ttyAMA0",
    target: "aarch64-unknown-linux-musl",
};

/// The programs that go into a machine.
pub(crate) struct Programs {
    jitprof: PathBuf,
    jitdemo: PathBuf,
    guest: PathBuf,
}

/// The kernels that the words of a command line mean, in the matrix's order.
pub(crate) fn select(words: &[String]) -> Result<Vec<&'static Kernel>> {
    let mut wanted = Vec::new();
    for word in words {
        match word.as_str() {
            "short" => wanted.extend(KERNELS.iter().filter(|kernel| kernel.in_short_form)),
            "all" => wanted.extend(KERNELS.iter().filter(|kernel| kernel.arch.name == std::env::consts::ARCH)),
            "arm64" => wanted.extend(KERNELS.iter().filter(|kernel| kernel.arch.name == AARCH64.name)),
            name => wanted.push(KERNELS.iter().find(|kernel| kernel.name == name).with_context(|| {
                let names = KERNELS.iter().map(|kernel| kernel.name).collect::<Vec<_>>().join(", ");
                format!("the matrix has no kernel {name}; it has {names}, and the groups short, all and arm64")
            })?),
        }
    }
    Ok(KERNELS.iter().filter(|kernel| wanted.iter().any(|one| one.name == kernel.name)).collect())
}

/// Gets everything that the machines need: emulators, kernels, programs. Returns what was tried for.
pub(crate) fn prepare(workspace: &Workspace, kernels: &[&'static Kernel]) -> Result<String> {
    let folder = folder(workspace);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for arch in [&X86_64, &AARCH64] {
        if kernels.iter().any(|kernel| kernel.arch.name == arch.name) {
            Emulator::prepare(arch, &folder)?;
            image::make(&programs(workspace, arch)?, &folder.join(format!("{}.cpio", arch.name)))?;
        }
    }
    for kernel in kernels {
        kernel.fetch(&folder)?;
    }
    Ok(kernels.iter().map(|kernel| kernel.name).collect::<Vec<_>>().join(", "))
}

/// Tries all of them, as many at a time as there is room for, and returns what each came to, in the same order.
pub(crate) fn run(workspace: &Workspace, kernels: &[&'static Kernel]) -> Vec<Tried> {
    let mut tried = run_all(kernels, &folder(workspace));
    tried.sort_by_key(|tried| KERNELS.iter().position(|kernel| kernel.name == tried.name));
    tried
}

/// What a kernel came to.
pub(crate) struct Tried {
    /// The name that it was chosen by.
    name: &'static str,
    /// What it says that it is (`uname -r`), or the name if it has not come so far.
    pub(crate) kernel: String,
    /// From the machine's start to its end.
    pub(crate) took: Duration,
    /// What was found, or what failed.
    pub(crate) verdict: Result<String>,
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("kernels")
}

/// An emulated machine has two CPUs: half as many machines as this one has CPUs. More would be slower than a busy machine
/// is, and what is asserted in them of time and samples would be an accident.
fn run_all(kernels: &[&'static Kernel], folder: &Path) -> Vec<Tried> {
    let at_a_time = thread::available_parallelism().map_or(1, |cpus| (cpus.get() / 2).max(1));
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut tried = Vec::new();
        while let Some(kernel) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
            command::progress(&format!("kernel {}", kernel.name));
            let start = Instant::now();
            let (release, verdict) = guest::run(kernel, folder);
            let release = release.unwrap_or_else(|| kernel.name.to_owned());
            tried.push(Tried { name: kernel.name, kernel: release, took: start.elapsed(), verdict });
        }
        tried
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..at_a_time).map(|_| scope.spawn(worker)).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| worker.join().expect("invariant: a worker returns errors");
        workers.into_iter().flat_map(join).collect()
    })
}

/// Programs for machines of this architecture.
fn programs(workspace: &Workspace, arch: &Arch) -> Result<Programs> {
    if arch.name == std::env::consts::ARCH {
        // Those that `build` has made: what is tried is what is shipped.
        let release = workspace.target.join("release");
        return Ok(Programs {
            jitprof: release.join("jitprof"),
            jitdemo: release.join("jitdemo"),
            guest: build::kernel_guest(workspace, &Platform::host())?,
        });
    }
    let platform = Platform::of_triple(arch.target)?;
    Ok(Programs {
        jitprof: build::jitprof_for(workspace, &platform, Profile::Release)?,
        jitdemo: build::jitdemo_for(workspace, &platform)?,
        guest: build::kernel_guest(workspace, &platform)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Vec<&'static str> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        select(&words).unwrap().into_iter().map(|kernel| kernel.name).collect()
    }

    #[test]
    fn kernels_are_chosen_by_name_and_group_once_each() {
        assert_eq!(names(&["backports", "5.10", "backports"]), ["5.10", "backports"]);
        assert_eq!(names(&["arm64"]), ["arm64-6.1", "arm64-6.12"]);
        assert!(names(&["short", "all"]).len() >= names(&["short"]).len());
        assert!(select(&["4.4".to_owned()]).is_err());
    }
}
