//! `/api/lines`: the source lines of one function.

use std::cmp::Reverse;
use std::time::SystemTime;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::Request;
use crate::output::color::Class;
use crate::output::frame_names::{frame_name, merge_tiers};
use crate::profile::printable;
use crate::profile::{FrameRef, FrameTotals, MergeBy, Profile, SourceRef};
use crate::serve::http::fault::Fault;
use crate::serve::http::flame::named;
use crate::serve::http::params::Params;
use crate::serve::http::work::{Answer, accepts_gzip};

/// Lines at most: those with the most CPU time.
const MAX_LINES: usize = 200;

/// A place in the source, and the file whose code it became.
type Place = (String, u32, String);

pub(super) async fn lines((State(app), RawQuery(query), headers): Request) -> Result<Response, Fault> {
    let mut params = Params::parse(query.as_deref())?;
    let name = params.text("name")?.ok_or_else(|| Fault::parameter("name", "must name a function"))?;
    let kind = params.text("kind")?;
    let classes = Class::ALL.into_iter().filter(|class| kind.as_deref().is_none_or(|kind| kind == class.label()));
    let classes: Vec<Class> = classes.collect();
    if classes.is_empty() {
        return Err(Fault::parameter("kind", "must be a word of the legend, such as native"));
    }
    let merge_tiers = params.switch("merge-tiers")?;
    let selection = params.selection("", SystemTime::now())?;
    params.end()?;
    let by = ByLine { name, classes, merge_tiers };
    let sources = app.sources(selection).await;
    let gzip = accepts_gzip(&headers);
    app.work.answer(move || Answer::json(&lines_json(&sources.profile()?, &by), gzip)).await
}

fn lines_json(profile: &Profile, by: &ByLine) -> Value {
    let totals = FrameTotals::of([Some(profile), None], by);
    let mut lines: Vec<_> = totals
        .iter()
        .filter_map(|(place, used)| Some((place.as_ref()?, used.own[0].cpu_ns, used.total[0].cpu_ns)))
        .collect();
    lines.sort_by_key(|&(place, own, total)| (Reverse((total, own)), place));
    let more = lines.len().saturating_sub(MAX_LINES);
    lines.truncate(MAX_LINES);
    let lines: Vec<Value> = lines
        .into_iter()
        .map(|((file, line, module), own, total)| {
            json!({ "file": file, "line": line, "module": module, "self": own, "total": total })
        })
        .collect();
    json!({ "lines": lines, "more": more })
}

/// Keeps the lines of one function apart, and takes all other frames for one.
struct ByLine {
    name: String,
    classes: Vec<Class>,
    /// The name is one of whatever tier.
    merge_tiers: bool,
}

impl<'p> MergeBy<'p> for ByLine {
    type Frame = Option<Place>;

    fn frame(&self, frame: FrameRef<'p>) -> Option<Place> {
        let frame = if self.merge_tiers { merge_tiers(frame) } else { frame };
        let is_it = self.classes.contains(&Class::of(frame)) && named(&frame_name(frame, false)) == self.name;
        let SourceRef { file, line, .. } = frame.source.unwrap_or_default();
        let module = frame.module.map_or("", |module| module.path);
        let shown = |text: &str| if text.is_empty() { String::new() } else { printable(text).into_owned() };
        is_it.then(|| (shown(file), line, shown(module)))
    }
}
