//! `/profile`: a range, or a comparison of two, in one of the formats that tools read.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use axum::routing::get;

use super::App;
use super::api::{DEFAULT_ROWS, MAX_ROWS, diff_of, flame_of};
use super::fault::Fault;
use super::gather::Sources;
use super::params::{Params, SECOND, Selection};
use super::work::{Answer, accepts_gzip};
use crate::output::{self, Format, OutputOptions, write_changes, write_diff, write_top};
use crate::profile::{Diff, Normalize, Profile};

/// A flamegraph brings its own script, so it is kept from everything else that this service shows: `sandbox` makes it a
/// stranger to its own origin.
const SVG_POLICY: &str =
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'";

/// What the answer's body is.
#[derive(Clone)]
enum Kind {
    /// One of the formats.
    Output(Format, OutputOptions),
    /// A table for people, of so many rows.
    Table(usize),
}

/// The samples that the answer is about.
enum Question {
    One(Sources),
    /// The second compared with the first.
    Two {
        sides: [Sources; 2],
        normalize: Normalize,
        /// What the sides are.
        names: [String; 2],
    },
}

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/profile", get(profile))
}

async fn profile(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    let mut params = Params::parse(query.as_deref())?;
    let is_comparison = params.has(SECOND);
    let format = params.text("format")?;
    if format.as_deref() == Some("json") {
        return if is_comparison {
            diff_of(&app, params, &headers).await
        } else {
            flame_of(&app, params, &headers).await
        };
    }
    let kind = Kind::take(format.as_deref(), is_comparison, &mut params)?;
    let is_download = params.switch("download")?;
    let question = Question::take(&app, is_comparison, params).await?;
    let disposition = kind.disposition(is_comparison);
    let (is_svg, is_pprof) = (kind.is(Format::Svg), kind.is(Format::Pprof));
    let gzip = accepts_gzip(&headers);
    let mut response = app.work.answer(move || kind.answer(question.write(&kind)?, gzip)).await?;
    let headers = response.headers_mut();
    if is_svg {
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(SVG_POLICY));
    }
    if is_download || is_pprof {
        headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static(disposition));
    }
    Ok(response)
}

impl Kind {
    /// Takes out the parameters that a format heeds.
    fn take(name: Option<&str>, is_comparison: bool, params: &mut Params) -> Result<Self, Fault> {
        let name = name.unwrap_or(if is_comparison { "svg" } else { "pprof" });
        if name == "text" {
            return Ok(Self::Table(params.number("rows", 1..=MAX_ROWS)?.unwrap_or(DEFAULT_ROWS)));
        }
        let known = Format::NAMES.join(", ");
        let format: Format =
            name.parse().map_err(|_| Fault::parameter("format", format!("must be one of {known}, json, text")))?;
        if is_comparison && matches!(format, Format::Pprof | Format::Firefox) {
            let why = "must be svg, folded, json or text for a comparison; ask for both sides as pprof, and give them \
                       to `go tool pprof -diff_base A B`";
            return Err(Fault::parameter("format", why));
        }
        Ok(Self::Output(format, options(params)?))
    }

    fn is(&self, wanted: Format) -> bool {
        matches!(self, Self::Output(format, _) if *format == wanted)
    }

    fn answer(&self, body: Vec<u8>, gzip: bool) -> Result<Answer, Fault> {
        match self {
            Self::Output(Format::Svg, _) => Answer::text("image/svg+xml", body, gzip),
            Self::Output(Format::Folded, _) | Self::Table(_) => Answer::text("text/plain; charset=utf-8", body, gzip),
            Self::Output(Format::Firefox, _) => Answer::text("application/json", body, gzip),
            Self::Output(Format::Pprof, _) => Ok(Answer::plain("application/octet-stream", body)),
        }
    }

    fn disposition(&self, is_comparison: bool) -> &'static str {
        match (self, is_comparison) {
            (Self::Output(Format::Svg, _), false) => "attachment; filename=\"jitprof.svg\"",
            (Self::Output(Format::Svg, _), true) => "attachment; filename=\"jitprof-diff.svg\"",
            (Self::Output(Format::Folded, _), false) => "attachment; filename=\"jitprof.folded\"",
            (Self::Output(Format::Folded, _), true) => "attachment; filename=\"jitprof-diff.folded\"",
            (Self::Output(Format::Pprof, _), _) => "attachment; filename=\"jitprof.pb.gz\"",
            (Self::Output(Format::Firefox, _), _) => "attachment; filename=\"jitprof.json\"",
            (Self::Table(_), false) => "attachment; filename=\"jitprof.txt\"",
            (Self::Table(_), true) => "attachment; filename=\"jitprof-diff.txt\"",
        }
    }
}

impl Question {
    /// Takes out all other parameters, and finds the samples.
    async fn take(app: &App, is_comparison: bool, mut params: Params) -> Result<Self, Fault> {
        let now = SystemTime::now();
        if !is_comparison {
            let selection = params.selection("", now)?;
            params.end()?;
            return Ok(Self::One(app.sources(selection).await));
        }
        let normalize = match params.text("normalize")?.as_deref() {
            None | Some("total") => Normalize::Total,
            Some("duration") => Normalize::Duration,
            Some("none") => Normalize::None,
            Some(_) => return Err(Fault::parameter("normalize", "must be total, duration or none")),
        };
        let second: Selection = params.selection(SECOND, now)?;
        let first = params.selection("", now)?;
        params.end()?;
        let names = [first.to_string(), second.to_string()];
        Ok(Self::Two { sides: [app.sources(first).await, app.sources(second).await], normalize, names })
    }

    /// Makes the body. Blocks.
    fn write(&self, kind: &Kind) -> Result<Vec<u8>, Fault> {
        let mut body = Vec::new();
        match self {
            Self::One(sources) => write_one(&sources.profile()?, kind, &mut body)?,
            Self::Two { sides: [first, second], normalize, names } => {
                let profiles = [side(first, 'A')?, side(second, 'B')?];
                write_two([&profiles[0], &profiles[1]], *normalize, names, kind, &mut body)?;
            }
        }
        Ok(body)
    }
}

fn write_one(profile: &Profile, kind: &Kind, body: &mut Vec<u8>) -> Result<(), Fault> {
    match kind {
        Kind::Output(format, options) => Ok(output::write(profile, *format, options, body)?),
        Kind::Table(rows) => write_top(profile, *rows, body).map_err(|_| Fault::Internal),
    }
}

fn write_two(
    profiles: [&Profile; 2],
    normalize: Normalize,
    names: &[String; 2],
    kind: &Kind,
    body: &mut Vec<u8>,
) -> Result<(), Fault> {
    let diff = Diff::new(profiles[0], profiles[1], normalize);
    match kind {
        Kind::Output(format, options) => {
            let [first, second] = names;
            let (title, subtitle) = (Some(second.clone()), Some(format!("compared with {first}")));
            let options = OutputOptions { title, subtitle, ..options.clone() };
            Ok(write_diff(profiles, &diff, *format, &options, body)?)
        }
        Kind::Table(rows) => write_changes(&diff, *rows, body).map_err(|_| Fault::Internal),
    }
}

fn side(sources: &Sources, name: char) -> Result<Profile, Fault> {
    let profile = sources.samples()?.filter(|profile| profile.total() > 0);
    profile.ok_or(Fault::NothingIn(name))
}

fn options(params: &mut Params) -> Result<OutputOptions, Fault> {
    let min_width_percent = params.number("min-width", 0.0..=100.0)?;
    let defaults = OutputOptions::default();
    Ok(OutputOptions {
        min_width_percent: min_width_percent.unwrap_or(defaults.min_width_percent),
        reverse: params.switch("reverse")?,
        upwards: params.switch("flame")?,
        lines: params.switch("lines")?,
        per_thread: params.switch("per-thread")?,
        per_process: params.switch("per-process")?,
        merge_tiers: params.switch("merge-tiers")?,
        ..defaults
    })
}
