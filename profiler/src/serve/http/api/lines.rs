//! `/api/lines`: the source lines of one function.

use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::Request;
use crate::output::{Class, frame_name, printable};
use crate::profile::{FrameId, Profile};
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
    let selection = params.selection("", SystemTime::now())?;
    params.end()?;
    let sources = app.sources(selection).await;
    let gzip = accepts_gzip(&headers);
    app.work.answer(move || Answer::json(&lines_json(&sources.profile()?, &name, &classes), gzip)).await
}

fn lines_json(profile: &Profile, name: &str, classes: &[Class]) -> Value {
    let places: Vec<Option<Place>> = profile.frame_ids().map(|id| place(profile, id, name, classes)).collect();
    let mut sums: BTreeMap<&Place, (u64, u64)> = BTreeMap::new();
    let mut frames = Vec::new();
    let mut seen: Vec<&Place> = Vec::new();
    for row in profile.rows_without_time() {
        profile.frames_of(row.stack, &mut frames);
        seen.clear();
        for frame in &frames {
            // A line that calls itself counts once.
            if let Some(place) = &places[frame.index()]
                && !seen.contains(&place)
            {
                seen.push(place);
                let (_, total) = sums.entry(place).or_default();
                *total = total.saturating_add(row.cpu_ns);
            }
        }
        if let Some(place) = frames.last().and_then(|frame| places[frame.index()].as_ref()) {
            let (own, _) = sums.entry(place).or_default();
            *own = own.saturating_add(row.cpu_ns);
        }
    }
    let mut lines: Vec<_> = sums.into_iter().collect();
    lines.sort_by(|(one, a), (other, b)| (b.1, b.0).cmp(&(a.1, a.0)).then_with(|| one.cmp(other)));
    let more = lines.len().saturating_sub(MAX_LINES);
    lines.truncate(MAX_LINES);
    let lines: Vec<Value> = lines
        .into_iter()
        .map(|((file, line, module), (own, total))| {
            json!({ "file": file, "line": line, "module": module, "self": own, "total": total })
        })
        .collect();
    json!({ "lines": lines, "more": more })
}

fn place(profile: &Profile, id: FrameId, name: &str, classes: &[Class]) -> Option<Place> {
    let frame = profile.frame(id);
    let is_it = classes.contains(&Class::of(frame)) && named(&frame_name(frame, false)) == name;
    let (file, line) = frame.source.unwrap_or_default();
    let module = frame.module.map_or("", |module| module.path);
    let shown = |text: &str| if text.is_empty() { String::new() } else { printable(text).into_owned() };
    is_it.then(|| (shown(file), line, shown(module)))
}
