//! Keeps the library in the process once it is loaded.

fn main() {
    // ITT's static part may dlclose a collector at exit, while another thread is still inside of it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Processes load it by the thousand, and nobody debugs it in them: 0.5 MB instead of 5.5.
    if std::env::var_os("PROFILE").is_some_and(|profile| profile == "release") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--strip-all");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
