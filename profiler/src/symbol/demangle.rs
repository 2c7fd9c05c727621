//! Names as people wrote them, from names as linkers know them, within bounds.

use std::fmt::{self, Write};

/// Longest name, path or source file of a frame, in bytes; what is longer is cut and ends in `…`.
pub const MAX_NAME_BYTES: usize = 4096;
/// A mangled name beyond this is shown as it is. C++ expression templates reach 20,000.
const MAX_MANGLED_BYTES: usize = 65536;
const CUT: char = '…';

/// A Rust or C++ name, demangled; any other is returned as it is. Says whether it had to be cut.
///
/// Substitutions let 100 bytes of a C++ name stand for gigabytes, so the demanglers write into a buffer that refuses
/// what is too much. Left out, as perf does: Rust's hash suffix,
/// and the parameters and return types of C++, which would fill a flamegraph's boxes.
pub(super) fn demangle(name: &str) -> (String, bool) {
    let mut text = Bounded::default();
    // An error of the writer means "full"; what was written until then is the name's start.
    if name.len() <= MAX_MANGLED_BYTES {
        if let Ok(rust) = rustc_demangle::try_demangle(name) {
            let complete = write!(text, "{rust:#}").is_ok();
            return text.finish(complete);
        }
        if name.starts_with("_Z")
            && let Ok(symbol) = cpp_demangle::Symbol::new(name)
        {
            let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
            let complete = symbol.structured_demangle(&mut text, &options).is_ok();
            if complete || text.full {
                return text.finish(complete);
            }
        }
    }
    cut(name)
}

/// The first [`MAX_NAME_BYTES`] bytes of a text, and whether there were more.
pub(super) fn cut(text: &str) -> (String, bool) {
    let mut bounded = Bounded::default();
    let complete = bounded.write_str(text).is_ok();
    bounded.finish(complete)
}

#[derive(Default)]
struct Bounded {
    text: String,
    full: bool,
}

impl Bounded {
    fn finish(mut self, complete: bool) -> (String, bool) {
        if !complete {
            self.text.push(CUT);
        }
        (self.text, !complete)
    }
}

impl Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = (MAX_NAME_BYTES - CUT.len_utf8()).saturating_sub(self.text.len());
        if !self.full && more.len() <= room {
            self.text.push_str(more);
            return Ok(());
        }
        if !self.full {
            self.text.push_str(&more[..more.floor_char_boundary(room)]);
            self.full = true;
        }
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_and_cpp_names_are_demangled_and_others_are_not() {
        let names = [
            ("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("_ZN2v88internal7Isolate4InitEv", "v8::internal::Isolate::Init"),
            ("Builtins_InterpreterEntryTrampoline", "Builtins_InterpreterEntryTrampoline"),
            ("_Z", "_Z"),
            ("f", "f"),
            ("", ""),
        ];
        for (mangled, expected) in names {
            assert_eq!(demangle(mangled), (expected.to_owned(), false), "{mangled}");
        }
    }

    #[test]
    fn a_name_that_expands_without_end_is_cut() {
        // f<A<int, int>, A<S0_, S0_>, A<S1_, S1_>, ..>: each argument is twice as long as the one before.
        let mut hostile = String::from("_Z1fI1AIiiE");
        for digit in ('0'..='9').chain('A'..='Z') {
            hostile.push_str(&format!("S0_IS{digit}_S{digit}_E"));
        }
        hostile.push_str("Evv");
        let started = std::time::Instant::now();
        let (name, was_cut) = demangle(&hostile);
        assert!(was_cut, "{name}");
        assert!(name.len() <= MAX_NAME_BYTES && started.elapsed().as_secs() < 5, "{} bytes", name.len());
    }

    #[test]
    fn a_long_name_is_cut_at_a_character() {
        for length in MAX_NAME_BYTES - 4..MAX_NAME_BYTES + 4 {
            let long: String = std::iter::repeat_n('ä', length).collect();
            let (name, was_cut) = demangle(&long);
            assert!(was_cut && name.ends_with('…') && name.len() <= MAX_NAME_BYTES);
        }
        let fits = "x".repeat(MAX_NAME_BYTES - 3);
        assert_eq!(demangle(&fits), (fits.clone(), false));
    }
}
