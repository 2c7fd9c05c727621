//! What frames are that a runtime keeps in a list, in the words of all such runtimes.

use std::fmt;
use std::sync::Arc;

use crate::ReadError;

/// The bits of a record's second word that have the address of the instruction; above is what is said of an entry.
pub const INSTRUCTION: u64 = (1 << 56) - 1;

/// A version of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// As in `3.13.1`: 3.
    pub major: u8,
    /// 13.
    pub minor: u8,
    /// 1, where it is said.
    pub micro: Option<u8>,
}

impl fmt::Display for Version {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}.{}", self.major, self.minor)?;
        self.micro.map_or(Ok(()), |micro| write!(to, ".{micro}"))
    }
}

/// A function of the program, or of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its qualified name. CPython's `Class.method`, `outer.<locals>.inner`, `<module>`; PHP's `function`, `Class::method`,
    /// `{closure:app.php:7}`, or `app.php` if it is what that has outside of functions.
    pub name: Arc<str>,
    /// The file that it was compiled from, as the compiler was told; empty if it is one of the runtime's own, whose code is
    /// native, or if it is a module's of CPython and it is not known which module's.
    pub file: Arc<str>,
    /// The line on which it begins; 0 if it is one of the runtime's own.
    pub first_line: u32,
}

impl Function {
    /// Whether it is one of the runtime's own.
    pub fn is_internal(&self) -> bool {
        self.file.is_empty()
    }
}

/// What a frame is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Whose it is.
    pub function: Function,
    /// The line that runs, or that the call is on; 0 if that is not known.
    pub line: u32,
}

/// Why it cannot be known what a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// Memory could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Something is not what it should be.
    #[error("there is no {0} where it should be")]
    No(&'static str),
    /// Another one is there now.
    #[error("there is another {0} where it was")]
    Replaced(&'static str),
    /// Something is larger than can be read.
    #[error("there is a {0} that is too large")]
    TooLarge(&'static str),
}
