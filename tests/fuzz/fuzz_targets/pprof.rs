//! A pprof file of any bytes: no panic, no standstill, and what was read is written and read again as it is.
//!
//! Good seeds are the unpacked files of jitprof and of Go programs: behind gzip's checksum nothing would be found.
#![no_main]

use jitprof::output::{Format, OutputOptions, read_pprof, write};
use jitprof::profile::Profile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(profile) = read_pprof(bytes) else {
        return;
    };
    if profile.total() == 0 {
        return;
    }
    // Names are made printable when they are written, so the second and the third are the same.
    let second = again(&profile);
    let third = again(&second);
    assert_eq!(second.total(), profile.total());
    assert_eq!(written(&second), written(&third));
});

fn again(profile: &Profile) -> Profile {
    read_pprof(&*written(profile)).expect("jitprof's own file")
}

fn written(profile: &Profile) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(profile, Format::Pprof, &OutputOptions::default(), &mut bytes).expect("a vector takes all");
    bytes
}
