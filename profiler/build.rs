//! Embeds the eBPF object that `cargo xtask build` made and names in `JITPROF_BPF_OBJECT`, or the one that stands in the
//! published crate (`cargo xtask package`), so that this is built without the tools that make it.
//!
//! Without either everything builds and every test that needs no kernel runs; the binary then says that it has no BPF
//! programs.
//!
//! Also says of which commit the program is made, and of which BPF object, for `--version`.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(jitprof_bpf)");
    let mut parts = vec![commit().map_or("commit not known".to_owned(), |commit| format!("commit {commit}"))];
    parts.push(object().map_or("without BPF programs".to_owned(), |digest| format!("BPF object {digest:016x}")));
    println!("cargo::rustc-env=JITPROF_VERSION={} ({})", env!("CARGO_PKG_VERSION"), parts.join(", "));
}

/// The commit of a checkout, or of what a published crate was made from.
fn commit() -> Option<String> {
    // Builds for tests would be made again for each commit.
    if std::env::var_os("PROFILE").is_none_or(|profile| profile != "release") {
        return None;
    }
    let short = |id: &str| id.chars().take(12).collect::<String>();
    if let Ok(published) = std::fs::read_to_string(".cargo_vcs_info.json") {
        let (_, after) = published.split_once("\"sha1\"")?;
        return after.split('"').nth(1).map(short);
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
    };
    // Each commit and each checkout adds a line to it.
    println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    git(&["rev-parse", "HEAD"]).map(|id| short(&id))
}

/// Embeds the BPF object, if there is one, and returns a digest of it (FNV-1a).
fn object() -> Option<u64> {
    println!("cargo::rerun-if-env-changed=JITPROF_BPF_OBJECT");
    let object = std::env::var_os("JITPROF_BPF_OBJECT").map(PathBuf::from).or_else(published)?;
    println!("cargo::rerun-if-changed={}", object.display());
    assert!(object.is_file(), "JITPROF_BPF_OBJECT names no file: {} (run `cargo xtask build`)", object.display());
    println!("cargo::rustc-env=JITPROF_BPF_OBJECT_PATH={}", object.display());
    println!("cargo::rustc-cfg=jitprof_bpf");
    let bytes = std::fs::read(object).expect("the BPF object can be read");
    Some(bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)))
}

/// The object in a published crate for the machine that this is built for; a checkout has none.
fn published() -> Option<PathBuf> {
    let machine = std::env::var("CARGO_CFG_TARGET_ARCH").ok()?;
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")?;
    Some(Path::new(&manifest).join(format!("bpf/jitprof-{machine}.bpf.o"))).filter(|object| object.is_file())
}
