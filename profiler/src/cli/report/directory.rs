//! What is read from a directory of `jitprof serve`.

use std::path::Path;

use super::ReportError;
use super::source::Range;
use crate::profile::{Filter, Profile};

/// What is wanted of the windows in a directory; `None` if that is nothing.
#[cfg(feature = "serve")]
pub(super) fn read(path: &Path, range: &Range, filter: &Filter) -> Result<Option<Profile>, ReportError> {
    use std::time::{Duration, UNIX_EPOCH};

    use crate::archive::{ArchiveError, Query, directory_range, read_directory};

    // Far enough for every file name: the year 9999.
    let end = UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    let (from, to) = (range.from.unwrap_or(UNIX_EPOCH), range.to.unwrap_or(end));
    match read_directory(path, &Query { from, to, filter: filter.clone() }) {
        Ok(profile) => Ok(Some(profile)),
        Err(ArchiveError::Nothing) => match directory_range(path) {
            Ok(_) => Ok(None),
            Err(_) => Err(ReportError::NoWindows(path.to_owned())),
        },
        Err(source) => Err(ReportError::Archive { path: path.to_owned(), source }),
    }
}

/// The archive belongs to the service.
#[cfg(not(feature = "serve"))]
pub(super) fn read(path: &Path, _range: &Range, _filter: &Filter) -> Result<Option<Profile>, ReportError> {
    Err(ReportError::NoArchive(path.to_owned()))
}
