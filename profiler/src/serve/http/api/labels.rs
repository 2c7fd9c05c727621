//! `/api/labels`: which values labels have in a range.

use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::Request;
use crate::profile::{Profile, label_of};
use crate::serve::http::fault::Fault;
use crate::serve::http::params::Params;
use crate::serve::http::work::{Answer, accepts_gzip};

/// Labels that every task has.
const ALWAYS: [&str; 3] = ["comm", "pid", "thread"];
/// Values of one label at most: those with the most CPU time.
const MAX_VALUES: usize = 200;

pub(super) async fn labels((State(app), RawQuery(query), headers): Request) -> Result<Response, Fault> {
    let mut params = Params::parse(query.as_deref())?;
    let only = params.text("name")?;
    let selection = params.selection("", SystemTime::now())?;
    params.end()?;
    let sources = app.sources(selection).await;
    let gzip = accepts_gzip(&headers);
    let make = move || {
        let labels = sources.samples()?.map_or_else(Vec::new, |profile| labels_json(&profile, only.as_deref()));
        Answer::json(&json!({ "labels": labels }), gzip)
    };
    app.work.answer(make).await
}

fn labels_json(profile: &Profile, only: Option<&str>) -> Vec<Value> {
    let mut labels: BTreeMap<&str, BTreeMap<String, u64>> = BTreeMap::new();
    for (id, cpu_ns) in profile.cpu_by_task() {
        let task = profile.task_of(id);
        let known = task.labels.iter().map(|(name, _)| &**name).filter(|name| !ALWAYS.contains(name));
        for name in ALWAYS.into_iter().chain(known) {
            if only.is_none_or(|only| only == name)
                && let Some(value) = label_of(task, name)
            {
                let sum = labels.entry(name).or_default().entry(value.into_owned()).or_default();
                *sum = sum.saturating_add(cpu_ns);
            }
        }
    }
    labels
        .into_iter()
        .map(|(name, values)| {
            let mut values: Vec<_> = values.into_iter().collect();
            values.sort_by(|(one, a), (other, b)| b.cmp(a).then_with(|| one.cmp(other)));
            let more = values.len().saturating_sub(MAX_VALUES);
            values.truncate(MAX_VALUES);
            let values: Vec<_> =
                values.into_iter().map(|(value, cpu_ns)| json!({ "value": value, "cpu_ns": cpu_ns })).collect();
            json!({ "name": name, "values": values, "more": more })
        })
        .collect()
}
