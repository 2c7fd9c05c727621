//! Keeps the library in the process once it is loaded.

fn main() {
    // ITT's static part may dlclose a collector at exit, while another thread is still inside of it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
