//! `/api/`: what the page asks for, as JSON. The answers are described in docs/http.md.

mod labels;
mod lines;
mod timeline;

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::App;
use super::fault::Fault;
use super::flame::{Flame, Shape};
use super::flame_json::flame_json;
use super::params::{Params, unix_seconds};
use super::work::{Answer, accepts_gzip};

/// Nodes with a smaller share are summed up unless asked for: a tenth of a pixel on a wide screen.
const LEAST_SHARE: f64 = 0.0001;
/// Labels that may stand as outermost frames.
const MAX_GROUPS: usize = 4;
/// Rows of a table at most, and if nothing is said.
const MAX_ROWS: usize = 1000;
const DEFAULT_ROWS: usize = 100;

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
}

/// What there is to ask for.
async fn status(State(app): State<Arc<App>>) -> Json<Value> {
    let span = app.state.archive.span();
    let health = app.state.recording.health();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "host": rustix::system::uname().nodename().to_string_lossy(),
        "now": unix_seconds(SystemTime::now()),
        "oldest": span.map(|(oldest, _)| unix_seconds(oldest)),
        "newest": span.map(|(_, newest)| unix_seconds(newest)),
        "window_s": app.state.window.length.as_secs_f64(),
        "grace_s": app.state.window.grace.as_secs_f64(),
        "frequency_hz": health.frequency_hz,
        "processes": health.processes,
        "samples_taken": health.taken,
        "samples_lost": health.lost,
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
        let mut flame = Flame::new(shape);
        flame.add(&sources.profile()?, 0);
        flame.finish();
        Answer::json(&flame_json(&flame, least_share, false), gzip)
    };
    app.work.answer(make).await
}

/// The merged stacks of two ranges, or of two selections of one.
async fn diff((State(app), RawQuery(query), headers): Request) -> Result<Response, Fault> {
    let mut params = Params::parse(query.as_deref())?;
    let shape = shape(&mut params)?;
    let least_share = params.number("min", 0.0..=1.0)?.unwrap_or(LEAST_SHARE);
    let now = SystemTime::now();
    let other = params.selection("b.", now)?;
    let one = params.selection("", now)?;
    params.end()?;
    let sides = [app.sources(one).await, app.sources(other).await];
    let gzip = accepts_gzip(&headers);
    let make = move || {
        let mut flame = Flame::new(shape);
        for (side, sources) in sides.iter().enumerate() {
            flame.add(&sources.profile()?, side);
        }
        flame.finish();
        Answer::json(&flame_json(&flame, least_share, true), gzip)
    };
    app.work.answer(make).await
}

/// The functions with the most CPU time.
async fn top((State(app), RawQuery(query), headers): Request) -> Result<Response, Fault> {
    let mut params = Params::parse(query.as_deref())?;
    let lines = params.switch("lines")?;
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
    let make = move || {
        let mut flame = Flame::new(Shape { lines, ..Shape::default() });
        flame.add(&sources.profile()?, 0);
        flame.finish();
        Answer::json(&top_json(&flame, rows, by_total), gzip)
    };
    app.work.answer(make).await
}

fn top_json(flame: &Flame, rows: usize, by_total: bool) -> Value {
    let mut order: Vec<_> = flame.looks.iter().collect();
    order.sort_by(|(one, a), (other, b)| {
        let key = |details: &super::flame::Details| if by_total { details.total[0] } else { details.own[0] };
        key(b).cmp(&key(a)).then_with(|| one.cmp(other))
    });
    let count = order.len();
    let functions: Vec<Value> = order
        .into_iter()
        .take(rows)
        .map(|(look, details)| {
            let (file, line) = details.source.as_ref().map_or((None, None), |(file, line)| (Some(file), Some(line)));
            json!({
                "name": look.name,
                "kind": look.class.label(),
                "module": details.module,
                "file": file,
                "line": line,
                "self": details.own[0],
                "total": details.total[0],
            })
        })
        .collect();
    json!({
        "cpu_ns": flame.nodes[0].total[0],
        "samples": flame.samples[0],
        "more": count - functions.len(),
        "functions": functions,
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
    Ok(Shape { group, reverse: params.switch("reverse")?, lines: params.switch("lines")? })
}
