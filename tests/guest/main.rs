//! The first and only process of a virtual machine that tries jitprof on another kernel.
//!
//! It mounts what jitprof needs, runs the [checks](checks::ALL) one after the other, prints a line of JSON for each
//! behind the word `GUEST`, and turns the machine off. `cargo xtask test --kernel` makes the initramfs with this as
//! `/init`, `jitprof` and `jitdemo` in `/bin`, starts qemu, and reads the lines from the serial console.
//!
//! ```text
//! GUEST {"up_s":2.65,"kernel":"5.10.0-46-cloud-amd64"}
//! GUEST {"check":"programs","ok":true,"note":"sampler_oldest ?, walker ?"}
//! GUEST {"end_s":6.2,"failed":0}
//! ```

mod checks;
mod machine;
mod targets;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["syscalls", seconds] => targets::run(seconds, targets::read_zeros),
        ["deep", seconds] => targets::run(seconds, targets::descend),
        _ if std::process::id() == 1 => {
            checks::run_all();
            machine::turn_off()
        }
        _ => {
            eprintln!("kernel-guest is the first process of a virtual machine; run `cargo xtask test --kernel 6.1`");
            ExitCode::FAILURE
        }
    }
}
