//! What the kernel's number adds to a message that says in words of its own what has gone wrong.

use std::fmt;
use std::io;

/// ` (os error 3)` behind a message, as behind those of [`io::Error`]; nothing where no call has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errno(Option<i32>);

impl Errno {
    /// Found out without a failing call.
    pub const NONE: Self = Self(None);

    /// Of a number.
    pub const fn from_raw(errno: i32) -> Self {
        Self(Some(errno))
    }
}

impl From<&io::Error> for Errno {
    fn from(error: &io::Error) -> Self {
        Self(error.raw_os_error())
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |errno| write!(to, " (os error {errno})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_behind_a_message_as_std_writes_it() {
        let error = io::Error::from_raw_os_error(libc::ESRCH);
        assert!(error.to_string().ends_with(&Errno::from(&error).to_string()) && Errno::from(&error) != Errno::NONE);
        assert_eq!(Errno::NONE.to_string(), "");
    }
}
