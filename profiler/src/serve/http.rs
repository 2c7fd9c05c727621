//! The HTTP side.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use super::recording::Handle;
use crate::archive::Archive;

/// What requests are answered from.
#[derive(Clone)]
pub struct State {
    /// Closed windows.
    pub archive: Arc<Archive>,
    /// The open one.
    pub recording: Handle,
}

/// All that is served.
pub fn router(state: State) -> Router {
    Router::new().route("/healthz", get(|| async { "ok\n" })).with_state(state)
}
