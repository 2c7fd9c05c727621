//! What stands in the place of trace logs without the feature `plog`: no option, and so no log.

use std::time::Duration;

use crate::profile::Profile;
use crate::record::Targets;

/// No option.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TraceArgs {}

/// A log beside a recording; there is none.
#[derive(Clone, Debug)]
pub enum TraceLog {}

/// What is seen of a log; there is nothing.
#[derive(Debug)]
pub(super) enum Watch {}

/// A log that cannot be read; there is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum TraceLogError {}

impl TraceArgs {
    /// There is never a trace log.
    pub fn log(self, _bucket: Duration) -> Option<TraceLog> {
        None
    }
}

impl Watch {
    pub(super) fn new(log: &TraceLog, _targets: &Targets) -> Self {
        match *log {}
    }

    pub(super) fn tick(&mut self) {
        match *self {}
    }

    pub(super) fn finish(self) -> Self {
        self
    }
}

pub(super) fn add_spans(
    _profile: &mut Profile,
    log: &TraceLog,
    _learnt: Option<&Watch>,
    _slack_ns: u64,
) -> Result<Vec<String>, TraceLogError> {
    match *log {}
}
