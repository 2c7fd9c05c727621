//! The service over HTTP: its page, its API, and the metrics.
//!
//! ```text
//! server   sockets, limits of connections and times       -> hyper
//! guard    who may ask: Host, Origin, token               -> axum
//! params   a query string, checked                        -> Selection
//! gather   archive + open window                          -> Profile
//! api, profile, debug, page                               -> answers
//! ```
//!
//! Nothing here reaches the file system: parameters become times, numbers and values that labels are compared with.
//! Nothing waits for a client but its own connection: profiles are made by blocking threads of which there are few, and
//! the recording is asked for a copy of its open window at most once a second, however many ask.

mod api;
mod connections;
mod debug;
mod fault;
mod flame;
mod flame_json;
mod gather;
mod guard;
mod options;
mod page;
mod params;
mod profile;
mod server;
#[cfg(test)]
mod tests;
mod tokens;
mod work;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::sync::Semaphore;

pub use options::{HttpOptions, Listen};
pub use server::{HttpError, Server};
pub use tokens::{Token, TokenError};

use super::Intake;
use super::recording::Handle;
use crate::archive::Archive;
use crate::record::WindowOptions;
use gather::OpenWindow;
use work::Work;

/// Recordings over `/debug/pprof/profile` that wait for their end at most.
const MAX_RECORDINGS: usize = 32;

/// What requests are answered from.
#[derive(Clone)]
pub struct State {
    /// The windows that are closed.
    pub archive: Arc<Archive>,
    /// The way of windows into the archive.
    pub intake: Arc<Intake>,
    /// The continuous recording, which has the open window.
    pub recording: Handle,
    /// How long windows are, and how long they wait for late names.
    pub window: WindowOptions,
}

/// What all handlers share.
struct App {
    state: State,
    open_window: OpenWindow,
    work: Work,
    recordings: Arc<Semaphore>,
}

/// All that is served, without the guards that [`Server::serve`] puts around it; further routes may be merged.
pub fn router(state: State) -> Router {
    let app = Arc::new(App {
        state,
        open_window: OpenWindow::default(),
        work: Work::default(),
        recordings: Arc::new(Semaphore::new(MAX_RECORDINGS)),
    });
    Router::new()
        .route(guard::HEALTH, get(health))
        .merge(api::routes())
        .merge(profile::routes())
        .merge(debug::routes())
        .with_state(app)
        .merge(page::routes())
}

/// 200 as long as windows close.
async fn health(app: axum::extract::State<Arc<App>>) -> (StatusCode, String) {
    let WindowOptions { length, grace } = app.state.window;
    let limit = length * 3 + grace + Duration::from_secs(5);
    match app.state.recording.since_window() {
        None => (StatusCode::SERVICE_UNAVAILABLE, "the recording has ended; see the log\n".to_owned()),
        Some(since) if since > limit => {
            let seconds = since.as_secs();
            (StatusCode::SERVICE_UNAVAILABLE, format!("no window was closed for {seconds} s; see the log\n"))
        }
        Some(_) => (StatusCode::OK, "ok\n".to_owned()),
    }
}
