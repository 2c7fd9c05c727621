//! `/api/timeline`: CPU time over time by the values of a label.

use std::time::{Duration, SystemTime};

use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde::Serialize;

use super::Request;
use crate::archive::{Series, Timeline};
use crate::profile::label_of;
use crate::serve::http::fault::Fault;
use crate::serve::http::gather::Sources;
use crate::serve::http::params::{Params, unix_seconds};
use crate::serve::http::work::{Answer, accepts_gzip};

/// Steps if nothing is said, and at most.
const DEFAULT_STEPS: u32 = 240;
const MAX_STEPS: u64 = 2000;
/// Values with a series of their own, if nothing is said, and at most; the rest are summed up.
const DEFAULT_SERIES: usize = 11;
const MAX_SERIES: usize = 100;

#[derive(Serialize)]
struct TimelineJson {
    from: f64,
    step: f64,
    by: String,
    series: Vec<SeriesJson>,
    /// All values without a series of their own.
    rest: Option<Rest>,
    /// From when on samples were taken at which frequency.
    frequencies: Vec<(f64, u32)>,
}

#[derive(Serialize)]
struct SeriesJson {
    value: String,
    cpu_ns: Vec<u64>,
}

#[derive(Serialize)]
struct Rest {
    values: usize,
    cpu_ns: Vec<u64>,
}

pub(super) async fn timeline((State(app), RawQuery(query), headers): Request) -> Result<Response, Fault> {
    let mut params = Params::parse(query.as_deref())?;
    let by = params.text("by")?.unwrap_or_else(|| "comm".to_owned());
    let step = params.number("step", 1.0..=86_400.0)?;
    let series = params.number("series", 1..=MAX_SERIES)?.unwrap_or(DEFAULT_SERIES);
    let selection = params.selection("", SystemTime::now())?;
    params.end()?;
    let length = selection.to.duration_since(selection.from).unwrap_or_default();
    let step = step.map_or(length / DEFAULT_STEPS, Duration::from_secs_f64).max(Duration::from_secs(1));
    if length.as_nanos().div_ceil(step.as_nanos()) > u128::from(MAX_STEPS) {
        return Err(Fault::parameter("step", format!("makes more than {MAX_STEPS} steps of this range")));
    }
    let sources = app.sources(selection).await;
    let gzip = accepts_gzip(&headers);
    let changes = app.state.recording.frequencies();
    let frequencies: Vec<_> = changes.into_iter().map(|(from, hertz)| (unix_seconds(from), hertz)).collect();
    app.work
        .answer(move || {
            let timeline = limited(whole(&sources, &by, step), by, series);
            Answer::json(&TimelineJson { frequencies, ..timeline }, gzip)
        })
        .await
}

/// The archive's timeline, and on top of it the open window's.
fn whole(sources: &Sources, by: &str, step: Duration) -> Timeline {
    let selection = sources.selection();
    let mut timeline = sources.archive().timeline(&sources.query(), by, step);
    let length = selection.to.duration_since(selection.from).unwrap_or_default();
    let steps = usize::try_from(length.as_nanos().div_ceil(step.as_nanos())).unwrap_or(0);
    for series in &mut timeline.series {
        series.cpu_ns.resize(steps, 0);
    }
    sources.open_rows(|open, row, time| {
        let since = time.duration_since(selection.from).unwrap_or_default();
        let index = usize::try_from(since.as_nanos() / step.as_nanos()).unwrap_or(usize::MAX);
        let value = label_of(open.task_of(row.task), by).unwrap_or_default();
        let known = timeline.series.iter().position(|series| series.value == *value);
        let position = known.unwrap_or_else(|| {
            timeline.series.push(Series { value: value.into_owned(), cpu_ns: vec![0; steps] });
            timeline.series.len() - 1
        });
        if let Some(sum) = timeline.series.get_mut(position).and_then(|series| series.cpu_ns.get_mut(index)) {
            *sum = sum.saturating_add(row.cpu_ns);
        }
    });
    timeline.series.sort_by_key(|series| std::cmp::Reverse(series.cpu_ns.iter().sum::<u64>()));
    timeline
}

fn limited(mut timeline: Timeline, by: String, count: usize) -> TimelineJson {
    let rest = timeline.series.split_off(count.min(timeline.series.len()));
    let summed = rest.iter().map(|series| &series.cpu_ns).fold(Vec::new(), |mut sum: Vec<u64>, more| {
        sum.resize(more.len(), 0);
        sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
        sum
    });
    TimelineJson {
        from: unix_seconds(timeline.start),
        step: timeline.step.as_secs_f64(),
        by,
        series: timeline.series.into_iter().map(|Series { value, cpu_ns }| SeriesJson { value, cpu_ns }).collect(),
        rest: (!rest.is_empty()).then_some(Rest { values: rest.len(), cpu_ns: summed }),
        frequencies: Vec::new(),
    }
}
