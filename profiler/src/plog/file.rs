//! Opens a log.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::error::PlogError;

/// Opens a file that is to be a log. Anything but a regular file is refused without waiting for it: whoever may replace
/// the file could put a FIFO in its place.
///
/// # Errors
/// There is none, or it may not be read, or is no regular file.
pub fn open_file(path: &Path) -> Result<File, PlogError> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let file = opened.map_err(PlogError::io("open it"))?;
    let kind = file.metadata().map_err(PlogError::io("look at it"))?;
    if kind.is_file() {
        return Ok(file);
    }
    Err(PlogError::Io { action: "read it", source: io::Error::other("it is no regular file") })
}
