//! Embeds the eBPF object that `cargo xtask build` made and names in `JITPROF_BPF_OBJECT`.
//!
//! Without that variable everything builds and every test that needs no kernel runs; the binary then says that it has
//! no kernel part.

use std::path::Path;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(jitprof_bpf)");
    println!("cargo::rerun-if-env-changed=JITPROF_BPF_OBJECT");
    let Some(object) = std::env::var_os("JITPROF_BPF_OBJECT") else { return };
    let object = Path::new(&object);
    println!("cargo::rerun-if-changed={}", object.display());
    assert!(object.is_file(), "JITPROF_BPF_OBJECT names no file: {} (run `cargo xtask build`)", object.display());
    println!("cargo::rustc-env=JITPROF_BPF_OBJECT_PATH={}", object.display());
    println!("cargo::rustc-cfg=jitprof_bpf");
}
