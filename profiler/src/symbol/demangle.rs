//! Names as people wrote them, from names as linkers know them, within bounds.

use std::fmt::{self, Write};

use cpp_demangle::ParseOptions;
use cpp_demangle::error::Error;

use self::helper::{Answer, Patience};
use crate::owners::Holder;

mod helper;
mod last;

#[cfg(test)]
pub(crate) use helper::spend_on_names;
pub(crate) use helper::{prepare as prepare_demangling, serve_if_asked};
pub(super) use last::LastNames;

/// Longest name, path or source file of a frame, in bytes; what is longer is cut and ends in `…`.
pub const MAX_NAME_BYTES: usize = 4096;
/// A mangled name beyond this is shown as it is. C++ expression templates reach 20,000.
const MAX_MANGLED_BYTES: usize = 65536;
/// How deep the parts of a C++ name may be nested that is parsed here: it takes microseconds at worst, and is enough for every
/// fourth name of libstdc++, LLVM and Node.
const SHALLOW: u32 = 16;
/// The same where there is no helper: a tenth of a millisecond, and three names of five.
const MEDIUM: u32 = 20;
/// The same in the helper, whose time is limited. The deepest of 168,610 real names needs 88.
const DEEP: u32 = 128;
const CUT: char = '…';

/// A Rust or C++ name, demangled; any other is returned as it is. Says whether it had to be cut.
///
/// Substitutions let 100 bytes of a C++ name stand for gigabytes, so the demanglers write into a buffer that refuses
/// what is too much. Left out, as perf does: Rust's hash suffix,
/// and the parameters and return types of C++, which would fill a flamegraph's boxes.
pub(super) fn demangle(name: &str) -> (String, bool) {
    demangle_with(name, Patience::Pays).unwrap_or_else(|| cut(name))
}

/// The same for who must not be kept: some names of a holder stay as they are for a while after those of his that took long.
/// `None` for such a one: it may be had later.
pub(super) fn demangle_promptly(name: &str, holder: Option<Holder>) -> Option<String> {
    demangle_with(name, Patience::Rests(holder)).map(|(text, _)| text)
}

fn demangle_with(name: &str, patience: Patience) -> Option<(String, bool)> {
    let mut text = Bounded::default();
    // An error of the writer means "full"; what was written until then is the name's start.
    if name.len() <= MAX_MANGLED_BYTES {
        if let Ok(rust) = rustc_demangle::try_demangle(name) {
            let complete = write!(text, "{rust:#}").is_ok();
            return Some(text.finish(complete));
        }
        if name.starts_with("_Z") {
            let cpp = match cpp(name, SHALLOW) {
                Err(Error::TooMuchRecursion) => match helper::ask(name, patience) {
                    Answer::Name(name) => Some(name),
                    Answer::TooLong => None,
                    Answer::NotNow => return None,
                    Answer::Nobody => cpp(name, MEDIUM).ok(),
                },
                here => here.ok(),
            };
            return Some(cpp.unwrap_or_else(|| cut(name)));
        }
    }
    Some(cut(name))
}

/// A C++ name whose parts are nested so deep at most.
fn cpp(name: &str, levels: u32) -> Result<(String, bool), Error> {
    let symbol = cpp_demangle::Symbol::new_with_options(name, &ParseOptions::default().recursion_limit(levels))?;
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let mut text = Bounded::default();
    let complete = symbol.structured_demangle(&mut text, &options).is_ok();
    if complete || text.full { Ok(text.finish(complete)) } else { Ok(cut(name)) }
}

/// A name that is nested too deep to be demangled by who asks, unless there is no helper; and how it was written.
#[cfg(test)]
pub(crate) fn deep_name() -> (String, String) {
    let names = (1..100).map(|pointers| format!("_Z1fI{}iEvv", "P".repeat(pointers)));
    let mut deep = names.filter(|name| matches!(cpp(name, SHALLOW), Err(Error::TooMuchRecursion)));
    let name = deep.next().expect("names may be nested as deep as one likes");
    let (written, _) = cpp(&name, MEDIUM).expect("it is nested a little deeper");
    (name, written)
}

/// Whether a name may be another one demangled.
pub(super) fn is_mangled(name: &str) -> bool {
    name.starts_with("_Z") || name.starts_with("_R")
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
    fn a_name_that_its_holder_may_have_no_time_for_may_be_had_later() {
        let (holder, (name, written)) = (Holder::User(4_000_000_001), deep_name());
        assert_eq!(demangle_promptly(&name, Some(holder)), Some(written.clone()));
        spend_on_names(holder, 60.0);
        assert_eq!(demangle_promptly(&name, Some(holder)), None);
        assert_eq!(demangle_promptly("_Z1fv", Some(holder)), Some("f".to_owned()), "it takes no time");
        spend_on_names(holder, -60.0);
        assert_eq!(demangle_promptly(&name, Some(holder)), Some(written));
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
        let (name, was_cut) = cpp(&hostile, DEEP).unwrap();
        assert!(was_cut, "{name}");
        assert!(name.len() <= MAX_NAME_BYTES && started.elapsed().as_secs() < 5, "{} bytes", name.len());
    }

    /// Each of these doubles the parser's work, and it is nested no deeper than real names are.
    #[test]
    fn a_name_that_cannot_be_parsed_in_time_stays_as_it_is() {
        let started = std::time::Instant::now();
        for part in ["na", "nw", "da", "SaID1", "R1a", "IilC1", "ALA"] {
            for count in [10, 20, 30, 50] {
                let hostile = format!("_Z1fA{}", part.repeat(count));
                assert_eq!(demangle(&hostile), (hostile.clone(), false));
            }
        }
        assert!(started.elapsed().as_secs() < 5, "without a helper");
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
