//! `/profile`: a range in one of the formats that tools read.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use axum::routing::get;

use super::App;
use super::fault::Fault;
use super::params::Params;
use super::work::{Answer, accepts_gzip};
use crate::output::{self, Format, OutputOptions};

/// A flamegraph brings its own script, so it is kept from everything else that this service shows: `sandbox` makes it a
/// stranger to its own origin.
const SVG_POLICY: &str =
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'";

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/profile", get(profile))
}

async fn profile(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    let mut params = Params::parse(query.as_deref())?;
    let format = params.text("format")?;
    if format.as_deref() == Some("json") {
        return super::api::flame_of(&app, params, &headers).await;
    }
    let format = format.as_deref().unwrap_or("pprof");
    let known = Format::NAMES.join(", ");
    let format: Format =
        format.parse().map_err(|_| Fault::parameter("format", format!("must be one of {known}, json")))?;
    let options = options(&mut params)?;
    let is_download = params.switch("download")?;
    let selection = params.selection("", SystemTime::now())?;
    params.end()?;
    let name = file_name(format);
    let sources = app.sources(selection).await;
    let gzip = accepts_gzip(&headers);
    let make = move || {
        let profile = sources.profile()?;
        let mut body = Vec::new();
        output::write(&profile, format, &options, &mut body)?;
        match format {
            Format::Svg => Answer::text("image/svg+xml", body, gzip),
            Format::Folded => Answer::text("text/plain; charset=utf-8", body, gzip),
            Format::Firefox => Answer::text("application/json", body, gzip),
            Format::Pprof => Ok(Answer::plain("application/octet-stream", body)),
        }
    };
    let mut response = app.work.answer(make).await?;
    let headers = response.headers_mut();
    if format == Format::Svg {
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(SVG_POLICY));
    }
    if is_download || format == Format::Pprof {
        headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static(name));
    }
    Ok(response)
}

fn options(params: &mut Params) -> Result<OutputOptions, Fault> {
    let min_width_percent = params.number("min-width", 0.0..=100.0)?;
    let defaults = OutputOptions::default();
    Ok(OutputOptions {
        min_width_percent: min_width_percent.unwrap_or(defaults.min_width_percent),
        reverse: params.switch("reverse")?,
        inverted: params.switch("inverted")?,
        lines: params.switch("lines")?,
        per_thread: params.switch("per-thread")?,
        per_process: params.switch("per-process")?,
        ..defaults
    })
}

fn file_name(format: Format) -> &'static str {
    match format {
        Format::Svg => "attachment; filename=\"jitprof.svg\"",
        Format::Folded => "attachment; filename=\"jitprof.folded\"",
        Format::Pprof => "attachment; filename=\"jitprof.pb.gz\"",
        Format::Firefox => "attachment; filename=\"jitprof.json\"",
    }
}
