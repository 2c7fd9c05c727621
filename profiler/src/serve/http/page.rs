//! The page: its own files and nothing from elsewhere.

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::profile::fnv1a;

/// A file of the page.
struct Asset {
    path: &'static str,
    content_type: &'static str,
    body: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

const ASSETS: [Asset; 13] = [
    Asset { path: "/", content_type: "text/html; charset=utf-8", body: include_str!("../page/index.html") },
    Asset { path: "/page/style.css", content_type: "text/css; charset=utf-8", body: include_str!("../page/style.css") },
    Asset { path: "/page/icon.svg", content_type: "image/svg+xml", body: include_str!("../page/icon.svg") },
    Asset { path: "/page/main.js", content_type: SCRIPT, body: include_str!("../page/main.js") },
    Asset { path: "/page/state.js", content_type: SCRIPT, body: include_str!("../page/state.js") },
    Asset { path: "/page/text.js", content_type: SCRIPT, body: include_str!("../page/text.js") },
    Asset { path: "/page/timeline.js", content_type: SCRIPT, body: include_str!("../page/timeline.js") },
    Asset { path: "/page/tree.js", content_type: SCRIPT, body: include_str!("../page/tree.js") },
    Asset { path: "/page/flame.js", content_type: SCRIPT, body: include_str!("../page/flame.js") },
    Asset { path: "/page/table.js", content_type: SCRIPT, body: include_str!("../page/table.js") },
    Asset { path: "/page/details.js", content_type: SCRIPT, body: include_str!("../page/details.js") },
    Asset { path: "/page/naming.js", content_type: SCRIPT, body: include_str!("../page/naming.js") },
    Asset { path: "/page/filters.js", content_type: SCRIPT, body: include_str!("../page/filters.js") },
];

pub(super) fn routes() -> Router {
    ASSETS.iter().fold(Router::new(), |router, asset| {
        router.route(asset.path, get(move |headers: HeaderMap| async move { send(asset, &headers) }))
    })
}

fn send(asset: &'static Asset, headers: &HeaderMap) -> Response {
    let tag = format!("\"{:016x}\"", fnv1a(asset.body.as_bytes()));
    // The files of one version belong together, so a browser always asks whether it still has the right ones.
    let cached = [(header::ETAG, tag.clone()), (header::CACHE_CONTROL, "no-cache".to_owned())];
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, cached).into_response();
    }
    (cached, [(header::CONTENT_TYPE, asset.content_type)], asset.body).into_response()
}
