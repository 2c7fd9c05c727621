//! Windows to other systems: Grafana Pyroscope, OTLP, a directory.
//!
//! ```text
//! archive thread   Pushers::offer: encodes the window for each target -> bounded queue, the oldest goes first
//! tokio            a task for each target: takes, sends, on failure waits and tries again
//! ```
//!
//! A target that does not answer costs its queue, and nothing else: samples, archive and end do not wait for it.

mod client;
mod directory;
mod otlp;
mod pyroscope;
mod queue;
mod series;
mod target;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::task::JoinHandle;

use target::Target;
#[cfg(test)]
pub(in crate::serve) use tests::profile as test_profile;

use crate::client::ClientError;
use crate::record::Window;
use crate::serve::config::PushSettings;

/// A target that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("push target `{name}`: {source}")]
pub struct PushError {
    /// The target's name as configured.
    pub name: String,
    /// What keeps it from being used.
    pub source: ClientError,
}

/// What all windows of a target have in common.
#[derive(Clone, Debug)]
struct Encoding {
    /// This machine's name.
    host: String,
    /// Labels of samples that make a series.
    labels: Vec<String>,
    /// Labels that every series has.
    add_labels: Vec<(String, String)>,
}

/// Counts of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushStats {
    /// The target's name as configured.
    pub name: String,
    /// The target's protocol.
    pub kind: &'static str,
    /// Windows delivered.
    pub delivered: u64,
    /// Bytes of the windows delivered.
    pub delivered_bytes: u64,
    /// Tries that failed and are made again.
    pub retries: u64,
    /// Windows dropped because the queue was full.
    pub dropped_queue_full: u64,
    /// Windows that the target does not take, or that cannot be encoded.
    pub dropped_refused: u64,
    /// Windows that were left when the target was removed or the service ended.
    pub dropped_at_end: u64,
    /// Windows that wait now.
    pub waiting: usize,
    /// Bytes of the windows that wait.
    pub waiting_bytes: u64,
    /// Whether the last try failed.
    pub failing: bool,
}

/// A target at work.
struct Running {
    target: Arc<Target>,
    task: JoinHandle<()>,
}

/// The push targets of the service, each with its queue and its task.
pub struct Pushers {
    host: String,
    runtime: Runtime,
    running: Mutex<Vec<Running>>,
}

impl Pushers {
    /// Starts a task on `runtime` for each target.
    ///
    /// # Errors
    /// A file that a target names cannot be used.
    pub fn start(settings: &[PushSettings], host: &str, runtime: Runtime) -> Result<Self, PushError> {
        let pushers = Self { host: host.to_owned(), runtime, running: Mutex::default() };
        pushers.replace(settings)?;
        Ok(pushers)
    }

    /// Goes on with these targets. One that has not changed keeps its queue; what waits for one that is gone is
    /// dropped.
    ///
    /// # Errors
    /// A file that a target names cannot be used; then everything stays as it was.
    pub fn replace(&self, settings: &[PushSettings]) -> Result<(), PushError> {
        let mut running = self.lock();
        let is_new = |wanted: &&PushSettings| running.iter().all(|known| known.target.settings != **wanted);
        let new: Vec<Target> = settings
            .iter()
            .filter(is_new)
            .map(|settings| Target::new(settings.clone(), &self.host))
            .collect::<Result<_, _>>()?;
        let (kept, gone) = std::mem::take(&mut *running)
            .into_iter()
            .partition(|known: &Running| settings.contains(&known.target.settings));
        *running = kept;
        for Running { target, task } in gone {
            task.abort();
            report_left(&target);
        }
        for target in new {
            let target = Arc::new(target);
            let task = self.runtime.spawn(Arc::clone(&target).run());
            running.push(Running { target, task });
        }
        Ok(())
    }

    /// Queues a window for every target. Costs its encoding; waits for nobody.
    pub fn offer(&self, window: &Window) {
        let targets: Vec<_> = self.lock().iter().map(|running| Arc::clone(&running.target)).collect();
        targets.iter().for_each(|target| target.offer(window));
    }

    /// Delivers what waits, for at most `limit`.
    pub async fn close(&self, limit: Duration) {
        let running = std::mem::take(&mut *self.lock());
        running.iter().for_each(|running| running.target.close());
        let deadline = tokio::time::Instant::now() + limit;
        for Running { target, mut task } in running {
            if tokio::time::timeout_at(deadline, &mut task).await.is_err() {
                task.abort();
                report_left(&target);
            }
        }
    }

    /// Counts of each target.
    pub fn stats(&self) -> Vec<PushStats> {
        self.lock().iter().map(|running| running.target.stats()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report_left(target: &Target) {
    let left = target.give_up();
    tracing::warn!(push = target.settings.shown_name(), "ended with {left} windows that still waited");
}
