//! What a name on the command line stands for, and what is read from it.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Zoned;

use super::{ReportError, dataset, directory};
use crate::output::{read_pprof, read_saved};
use crate::profile::{Filter, Profile, ProfileMeta, Row};
use crate::regular_file::open_regular;
use crate::times::{TimeError, parse_time};
use jitprof_common::units::MonoNs;

/// Rows of several recordings are kept apart by this.
const BUCKET_NS: u64 = 1_000_000;

/// A range of time, open where nothing is given.
#[derive(Clone, Debug, Default)]
pub(super) struct Range {
    pub(super) from: Option<SystemTime>,
    pub(super) to: Option<SystemTime>,
}

/// A file, a directory or a dataset, and what is wanted of it.
#[derive(Clone, Debug)]
pub(super) struct Source {
    path: PathBuf,
    range: Range,
    filter: Filter,
}

impl Range {
    pub(super) fn parse(from: Option<&str>, to: Option<&str>) -> Result<Self, TimeError> {
        let now = Zoned::now();
        let parse = |text: &str| parse_time(text, &now);
        Ok(Self { from: from.map(parse).transpose()?, to: to.map(parse).transpose()? })
    }

    fn holds(&self, time: SystemTime) -> bool {
        self.from.is_none_or(|from| time >= from) && self.to.is_none_or(|to| time < to)
    }
}

impl Source {
    /// `PATH`, or if there is no file of that whole name `PATH@FROM..TO` with either end left out, `PATH@NAME=VALUE`, or
    /// several of these.
    pub(super) fn parse(name: &OsString, range: &Range, filter: &Filter) -> Result<Self, ReportError> {
        let mut source = Self { path: PathBuf::from(name), range: range.clone(), filter: filter.clone() };
        while source.path.symlink_metadata().is_err() {
            let bytes = source.path.as_os_str().as_bytes();
            let Some(at) = bytes.iter().rposition(|&byte| byte == b'@') else { break };
            let text = String::from_utf8_lossy(&bytes[at + 1..]);
            if let Some((from, to)) = text.split_once("..") {
                let given = |text| (!str::is_empty(text)).then_some(text);
                source.range = Range::parse(given(from), given(to))?;
            } else if let Some((name, value)) = text.split_once('=').filter(|(name, value)| is_label(name, value)) {
                source.filter.want(name, value);
            } else {
                break;
            }
            source.path = PathBuf::from(OsStr::from_bytes(&bytes[..at]));
        }
        Ok(source)
    }

    /// What is wanted of it; `None` if that is nothing.
    fn read(&self) -> Result<Option<Profile>, ReportError> {
        let filter = &self.filter;
        if dataset::is_dataset(&self.path) {
            return dataset::read(&self.path, &self.range, filter);
        }
        if self.path.is_dir() {
            return directory::read(&self.path, &self.range, filter);
        }
        let (profile, is_timed) = read_file(&self.path)?;
        let meta = profile.meta();
        let middle = meta.start_time.checked_add(meta.duration / 2).unwrap_or(meta.start_time);
        let wanted = |row: &Row| {
            let time = if is_timed { profile.wall_time(row.time) } else { middle };
            self.range.holds(time) && filter.passes(profile.task_of(row.task))
        };
        let selected = profile.select(meta.start, wanted);
        Ok((selected.total() > 0).then_some(selected))
    }
}

/// Whether it is a label with a value, and not part of a path.
fn is_label(name: &str, value: &str) -> bool {
    !name.is_empty() && !value.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A recording by what is in it, and whether its samples have times.
fn read_file(path: &Path) -> Result<(Profile, bool), ReportError> {
    let failed = |source: io::Error| match path.to_str().and_then(|name| name.parse().ok()) {
        Some(pid) if source.kind() == io::ErrorKind::NotFound => ReportError::NoRecording(pid),
        _ => ReportError::Open { path: path.to_owned(), source },
    };
    let opened = open_regular(path).map_err(failed)?;
    let file = opened.ok_or_else(|| ReportError::NotRegular { path: path.to_owned() })?;
    let mut file = BufReader::new(file);
    let first = file.fill_buf().ok().and_then(|bytes| bytes.iter().find(|byte| !byte.is_ascii_whitespace()).copied());
    if first == Some(b'{') {
        let saved = read_saved(file).map_err(|source| ReportError::Saved { path: path.to_owned(), source })?;
        return Ok((saved, true));
    }
    let profile = read_pprof(file).map_err(|source| ReportError::Pprof { path: path.to_owned(), source })?;
    Ok((profile, false))
}

/// All samples of all sources; `None` if there are none.
pub(super) fn merge(sources: &[Source]) -> Result<Option<Profile>, ReportError> {
    let mut merged: Option<Profile> = None;
    let mut spans = Vec::new();
    for source in sources {
        let Some(profile) = source.read()? else { continue };
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
            let since = profile.wall_time(row.time).duration_since(begin).unwrap_or_default();
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
