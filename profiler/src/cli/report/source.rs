//! What a name on the command line stands for, and what is read from it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Zoned;

use super::{ReportError, time};
use crate::archive::{ArchiveError, Query, directory_range, read_directory, wall_time};
use crate::output::{read_pprof, read_saved};
use crate::plog::open_file;
use crate::profile::{Filter, Profile, ProfileMeta, Row};
use crate::units::MonoNs;

/// Rows of several recordings are kept apart by this.
const BUCKET_NS: u64 = 1_000_000;

/// A range of time, open where nothing is given.
#[derive(Clone, Debug, Default)]
pub(super) struct Range {
    from: Option<SystemTime>,
    to: Option<SystemTime>,
}

/// A file or a directory, and the time that is wanted of it.
#[derive(Clone, Debug)]
pub(super) struct Source {
    path: PathBuf,
    range: Range,
}

impl Range {
    pub(super) fn parse(from: Option<&str>, to: Option<&str>) -> Result<Self, ReportError> {
        let now = Zoned::now();
        let parse = |text: &str| time::parse(text, &now);
        Ok(Self { from: from.map(parse).transpose()?, to: to.map(parse).transpose()? })
    }

    fn holds(&self, time: SystemTime) -> bool {
        self.from.is_none_or(|from| time >= from) && self.to.is_none_or(|to| time < to)
    }

    fn query(&self, filter: &Filter) -> Query {
        // Far enough for every file name; the year 9999.
        let end = UNIX_EPOCH + Duration::from_secs(253_402_300_799);
        Query { from: self.from.unwrap_or(UNIX_EPOCH), to: self.to.unwrap_or(end), filter: filter.clone() }
    }
}

impl Source {
    /// `PATH`, or `PATH@FROM..TO` with either end left out, if there is no file of that whole name.
    pub(super) fn parse(name: &OsString, range: &Range) -> Result<Self, ReportError> {
        let whole = PathBuf::from(name);
        let bytes = name.as_bytes();
        let at = bytes.iter().rposition(|&byte| byte == b'@').filter(|_| whole.symlink_metadata().is_err());
        let Some(at) = at else { return Ok(Self { path: whole, range: range.clone() }) };
        let text = String::from_utf8_lossy(&bytes[at + 1..]);
        let Some((from, to)) = text.split_once("..") else {
            return Ok(Self { path: whole, range: range.clone() });
        };
        let given = |text| (!str::is_empty(text)).then_some(text);
        let path = PathBuf::from(OsStr::from_bytes(&bytes[..at]));
        Ok(Self { path, range: Range::parse(given(from), given(to))? })
    }

    /// What is wanted of it; `None` if that is nothing.
    fn read(&self, filter: &Filter) -> Result<Option<Profile>, ReportError> {
        let path = || self.path.clone();
        if self.path.is_dir() {
            return match read_directory(&self.path, &self.range.query(filter)) {
                Ok(profile) => Ok(Some(profile)),
                Err(ArchiveError::Nothing) => match directory_range(&self.path) {
                    Ok(_) => Ok(None),
                    Err(_) => Err(ReportError::NoWindows(path())),
                },
                Err(source) => Err(ReportError::Archive { path: path(), source }),
            };
        }
        let (profile, is_timed) = read_file(&self.path)?;
        let meta = profile.meta();
        let middle = meta.start_time.checked_add(meta.duration / 2).unwrap_or(meta.start_time);
        let wanted = |row: &Row| {
            let time = if is_timed { wall_time(&profile, row.time) } else { middle };
            self.range.holds(time) && filter.passes(profile.task_of(row.task))
        };
        let selected = profile.select(meta.start, wanted);
        Ok((selected.total() > 0).then_some(selected))
    }
}

/// A recording by what is in it, and whether its samples have times.
fn read_file(path: &Path) -> Result<(Profile, bool), ReportError> {
    let file = open_file(path).map_err(|source| ReportError::Open { path: path.to_owned(), source })?;
    let mut file: BufReader<File> = BufReader::new(file);
    let first = file.fill_buf().ok().and_then(|bytes| bytes.iter().find(|byte| !byte.is_ascii_whitespace()).copied());
    if first == Some(b'{') {
        let saved = read_saved(file).map_err(|source| ReportError::Saved { path: path.to_owned(), source })?;
        return Ok((saved, true));
    }
    let profile = read_pprof(file).map_err(|source| ReportError::Pprof { path: path.to_owned(), source })?;
    Ok((profile, false))
}

/// All samples of all sources; `None` if there are none.
pub(super) fn merge(sources: &[Source], filter: &Filter) -> Result<Option<Profile>, ReportError> {
    let mut merged: Option<Profile> = None;
    let mut spans = Vec::new();
    for source in sources {
        let Some(profile) = source.read(filter)? else { continue };
        let meta = profile.meta();
        spans.push((meta.start_time, meta.start_time.checked_add(meta.duration).unwrap_or(meta.start_time)));
        if sources.len() == 1 {
            return Ok(Some(profile));
        }
        let into = merged.get_or_insert_with(|| {
            let title = format!("{} recordings", sources.len());
            Profile::new(ProfileMeta { title, start: MonoNs(0), ..meta.clone() }, BUCKET_NS)
        });
        let begin = into.meta().start_time;
        into.absorb(&profile, |row| {
            let since = wall_time(&profile, row.time).duration_since(begin).unwrap_or_default();
            Some(MonoNs(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)))
        });
    }
    if let Some(merged) = &mut merged {
        let start = spans.iter().map(|span| span.0).min();
        merged.set_duration(covered(spans));
        start.into_iter().for_each(|start| merged.set_start_time(start));
    }
    Ok(merged)
}

/// How much time was recorded; what two recordings share counts once.
fn covered(mut spans: Vec<(SystemTime, SystemTime)>) -> Duration {
    spans.sort_unstable();
    let (mut sum, mut known_to) = (Duration::ZERO, UNIX_EPOCH);
    for (start, end) in spans {
        sum += end.duration_since(start.max(known_to)).unwrap_or_default();
        known_to = known_to.max(end);
    }
    sum
}
