//! What systemd, or whatever started the service, is told.

use sd_notify::NotifyState;

use std::time::Duration;

/// The service can be used.
pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// A new configuration is being read; [`ready`] follows.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!("no monotonic time: {error}"),
    }
}

/// The end has begun.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// A line for `systemctl status`; and, if the service is well, that it lives.
pub(super) fn status(text: &str, is_alive: bool) {
    let status = NotifyState::Status(text);
    if is_alive { tell(&[status, NotifyState::Watchdog]) } else { tell(&[status]) }
}

/// How often it has to be told that the service lives.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|interval| !interval.is_zero())
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!("nobody was told: {error}");
    }
}
