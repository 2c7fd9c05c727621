//! A GSYM file of any bytes: no panic, whatever is asked of it, and what a look-up finds is what the function says.
//!
//! Good seeds are small files of `llvm-gsymutil --convert` and of `jitprof gsym export`.
#![no_main]

use jitprof::gsym::{Gsym, MAX_STRING_BYTES};
use libfuzzer_sys::fuzz_target;

/// More functions and files than this are not looked at.
const MOST: u32 = 64;

fuzz_target!(|input: &[u8]| {
    let Ok(gsym) = Gsym::parse(input.to_vec()) else {
        return;
    };
    for index in 0..gsym.header().num_files.min(MOST) {
        if let Ok(Some(path)) = gsym.file(index) {
            // Lossy decoding makes three bytes of one.
            assert!(path.len() <= 6 * MAX_STRING_BYTES + 1);
        }
    }
    for index in 0..gsym.header().num_addresses.min(MOST) {
        let Ok(function) = gsym.function(index) else {
            continue;
        };
        let middle = function.start + u64::from(function.size) / 2;
        for address in [function.start, middle, function.start.wrapping_sub(1)] {
            if let Ok(Some(found)) = gsym.lookup(address) {
                assert!(found.start <= address);
                assert!(found.size == 0 || address - found.start < u64::from(found.size));
                assert!(found.places.last().is_some_and(|place| !place.inlined));
                assert_eq!(gsym.size_and_name(found.index).unwrap().0, found.size);
            }
        }
    }
});
