//! `/api/`: what the page asks for, as JSON. The answers are described in docs/reference/http.md.

mod labels;
mod lines;
mod timeline;
mod unnamed;

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use serde_json::{Value, json};

use super::App;
use super::fault::Fault;
use super::flame::{Flame, Shape, named};
use super::flame_json::{FlameJson, flame_json};
use super::params::{Params, SECOND, unix_seconds};
use super::work::{Answer, accepts_gzip};
use crate::output::color::Class;
use crate::output::frame_names::frame_name;
use crate::profile::printable;
use crate::profile::{Amount, Change, Diff, FunctionRef, Normalize, Profile, Top, TopRow};

/// Nodes with a smaller share are summed up unless asked for: a tenth of a pixel on a wide screen.
const LEAST_SHARE: f64 = 0.0001;
/// Labels that may stand as outermost frames.
const MAX_GROUPS: usize = 4;
/// Rows of a table at most, and if nothing is said.
pub(super) const MAX_ROWS: usize = 1000;
pub(super) const DEFAULT_ROWS: usize = 100;

/// The answer of `/api/diff`.
#[derive(Serialize)]
struct DiffJson {
    #[serde(flatten)]
    tree: FlameJson,
    changes: Vec<Value>,
}

type Request = (State<Arc<App>>, RawQuery, HeaderMap);

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/status", get(status))
        .route("/api/timeline", get(timeline::timeline))
        .route("/api/labels", get(labels::labels))
        .route("/api/flame", get(flame))
        .route("/api/diff", get(diff))
        .route("/api/top", get(top))
        .route("/api/lines", get(lines::lines))
        .route("/api/unnamed", get(unnamed::unnamed))
}

/// What there is to ask for.
async fn status(State(app): State<Arc<App>>) -> Json<Value> {
    let oldest = app.state.archive.stats().oldest;
    let health = app.state.recording.health();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "host": rustix::system::uname().nodename().to_string_lossy(),
        "now": unix_seconds(SystemTime::now()),
        "oldest": oldest.map(unix_seconds),
        "window_s": app.state.window.length.as_secs_f64(),
        "grace_s": app.state.window.grace.as_secs_f64(),
        "frequency_hz": health.frequency_hz,
        "cpu_ns": health.costs,
        "processes": health.processes,
        "samples_taken": health.taken,
        "samples_lost": health.lost,
        "naming": health.naming,
        "windows_dropped": app.state.recording.windows_dropped(),
        "is_recording": app.state.recording.since_window().is_some(),
    }))
}

async fn flame((State(app), RawQuery(query), headers): Request) -> Result<Response, Fault> {
    flame_of(&app, Params::parse(query.as_deref())?, &headers).await
}

/// The merged stacks of a range.
pub(super) async fn flame_of(app: &App, mut params: Params, headers: &HeaderMap) -> Result<Response, Fault> {
    let shape = shape(&mut params)?;
    let least_share = params.number("min", 0.0..=1.0)?.unwrap_or(LEAST_SHARE);
    let selection = params.selection("", SystemTime::now())?;
    params.end()?;
    let sources = app.sources(selection).await;
    let gzip = accepts_gzip(headers);
    let make = move || {
        let profile = sources.samples()?;
        Answer::json(&flame_json(&Flame::new([profile.as_ref(), None], &shape), least_share, false), gzip)
    };
    app.work.answer(make).await
}

async fn diff((State(app), RawQuery(query), headers): Request) -> Result<Response, Fault> {
    diff_of(&app, Params::parse(query.as_deref())?, &headers).await
}

/// The merged stacks of two ranges, or of two selections of one.
pub(super) async fn diff_of(app: &App, mut params: Params, headers: &HeaderMap) -> Result<Response, Fault> {
    let shape = shape(&mut params)?;
    let least_share = params.number("min", 0.0..=1.0)?.unwrap_or(LEAST_SHARE);
    let now = SystemTime::now();
    let other = params.selection(SECOND, now)?;
    let one = params.selection("", now)?;
    params.end()?;
    let sides = [app.sources(one).await, app.sources(other).await];
    let gzip = accepts_gzip(headers);
    let make = move || {
        let [a, b] = &sides;
        let (a, b) = (a.samples()?, b.samples()?);
        let changes = match (&a, &b) {
            (Some(a), Some(b)) => changes_json(a, b),
            _ => Vec::new(),
        };
        let tree = flame_json(&Flame::new([a.as_ref(), b.as_ref()], &shape), least_share, true);
        Answer::json(&DiffJson { tree, changes }, gzip)
    };
    app.work.answer(make).await
}

/// The functions with the most CPU time.
async fn top((State(app), RawQuery(query), headers): Request) -> Result<Response, Fault> {
    let mut params = Params::parse(query.as_deref())?;
    let rows = params.number("rows", 1..=MAX_ROWS)?.unwrap_or(DEFAULT_ROWS);
    let by_total = match params.text("sort")?.as_deref() {
        None | Some("self") => false,
        Some("total") => true,
        Some(_) => return Err(Fault::parameter("sort", "must be self or total")),
    };
    let selection = params.selection("", SystemTime::now())?;
    params.end()?;
    let sources = app.sources(selection).await;
    let gzip = accepts_gzip(&headers);
    app.work.answer(move || Answer::json(&top_json(&sources.profile()?, rows, by_total), gzip)).await
}

fn top_json(profile: &Profile, rows: usize, by_total: bool) -> Value {
    let mut top = Top::of(profile);
    if by_total {
        top.rows.sort_by_key(|row| std::cmp::Reverse(row.total));
    }
    let more = top.rows.len().saturating_sub(rows);
    let amount = |amount: Amount| json!({ "cpu_ns": amount.cpu_ns, "samples": amount.samples });
    let row = |row: &TopRow<'_>| {
        let mut json = function_json(row.function);
        json["self"] = amount(row.own);
        json["total"] = amount(row.total);
        json
    };
    let functions: Vec<Value> = top.rows.iter().take(rows).map(row).collect();
    json!({ "all": amount(top.all), "more": more, "functions": functions })
}

/// The functions whose own share changed most, with how sure that is.
fn changes_json(a: &Profile, b: &Profile) -> Vec<Value> {
    let diff = Diff::new(a, b, Normalize::Total);
    let change = |change: &Change<'_>| {
        let mut json = function_json(change.function);
        json["self"] = json!(change.own.map(|amount| amount.cpu_ns));
        json["total"] = json!(change.total.map(|amount| amount.cpu_ns));
        json["self_confidence"] = json!(change.own_confidence);
        json["total_confidence"] = json!(change.total_confidence);
        json
    };
    diff.changes.iter().take(DEFAULT_ROWS).map(change).collect()
}

fn function_json(function: FunctionRef<'_>) -> Value {
    let FunctionRef { module, file, .. } = function;
    let frame = function.as_frame();
    let shown = |text: &str| printable(text).into_owned();
    json!({
        "name": named(&frame_name(frame, false)),
        "kind": Class::of(frame).label(),
        "module": module.map(shown),
        "file": file.filter(|file| !file.is_empty()).map(shown),
    })
}

fn shape(params: &mut Params) -> Result<Shape, Fault> {
    let group = params.text("group")?;
    let group: Vec<String> = match group.as_deref() {
        None => vec!["comm".to_owned()],
        Some("none") => Vec::new(),
        Some(names) => names.split(',').map(str::to_owned).collect(),
    };
    if group.len() > MAX_GROUPS || group.iter().any(String::is_empty) {
        return Err(Fault::parameter(
            "group",
            format!("must be none, or up to {MAX_GROUPS} labels such as comm,thread"),
        ));
    }
    Ok(Shape {
        group,
        reverse: params.switch("reverse")?,
        lines: params.switch("lines")?,
        merge_tiers: params.switch("merge-tiers")?,
    })
}
