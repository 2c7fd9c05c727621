//! What is said on stderr beside the data.
//!
//! A terminal that has gone away, or a reader that has seen enough, is no reason to lose a recording: what cannot be said
//! is not said.

use std::fmt;
use std::io::Write;

/// Says a part of something.
pub(super) fn part(text: fmt::Arguments<'_>) {
    let mut stderr = std::io::stderr().lock();
    // There is nobody to be told.
    drop(stderr.write_fmt(text).and_then(|()| stderr.flush()));
}

/// Says a line.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::cli::say::part(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// Says something that has its own line ends.
macro_rules! say_part {
    ($($text:tt)*) => {
        $crate::cli::say::part(format_args!($($text)*))
    };
}

pub(super) use {say, say_part};
