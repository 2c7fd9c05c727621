//! `/debug/pprof/`: what a Go program serves, for every process of the host.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;

use super::App;
use super::fault::Fault;
use super::params::Params;
use super::work::Answer;
use crate::output::{self, OutputOptions};

/// Longest recording, in seconds.
const MAX_SECONDS: u64 = 600;
/// What Go takes if nothing is said.
const DEFAULT_SECONDS: u64 = 30;
/// By this header `go tool pprof` knows that an error's text is meant for its user.
const GO_PPROF: HeaderName = HeaderName::from_static("x-go-pprof");

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/debug/pprof/", get(|| async { Html(include_str!("../page/pprof.html")) }))
        .route("/debug/pprof/profile", get(profile))
}

async fn profile(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Response {
    record(&app, query.as_deref()).await.unwrap_or_else(|fault| {
        let text = format!("{fault}\n");
        let mut response = (fault.status(), text).into_response();
        response.headers_mut().insert(GO_PPROF, HeaderValue::from_static("1"));
        response
    })
}

async fn record(app: &App, query: Option<&str>) -> Result<Response, Fault> {
    let mut params = Params::parse(query)?;
    let seconds = params.number("seconds", 1..=MAX_SECONDS)?.unwrap_or(DEFAULT_SECONDS);
    let filter = params.filter("")?;
    params.end()?;
    let _turn = app.recordings.try_acquire().map_err(|_| Fault::Busy)?;
    let sources = app.record(Duration::from_secs(seconds), filter).await.ok_or(Fault::Ended)?;
    let make = move || {
        let mut body = Vec::new();
        output::write_pprof(&sources.profile()?, &OutputOptions::default(), &mut body)?;
        Ok(Answer::plain("application/octet-stream", body))
    };
    let mut response = app.work.answer(make).await?;
    let name = HeaderValue::from_static("attachment; filename=\"profile\"");
    response.headers_mut().insert(header::CONTENT_DISPOSITION, name);
    Ok(response)
}
