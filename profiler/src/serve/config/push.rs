//! Where windows are sent.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units::Bytes;
use crate::times::Period;

/// A target that each window is sent to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushSettings {
    /// The protocol that the target takes.
    pub kind: PushKind,
    /// Its name in metrics and log lines; the kind without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where: base of the service's URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Where, for a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Labels of samples that make a series of their own for each combination of values.
    #[serde(default = "labels")]
    pub labels: Vec<String>,
    /// Labels that every series has.
    #[serde(default)]
    pub add_labels: BTreeMap<String, String>,
    /// File with a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Name for basic authentication; the password is in `password_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// File with the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Value of the header `X-Scope-OrgID`, by which Pyroscope tells tenants apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Roots that the server's certificate is checked against; the system's without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// How long one try may take.
    #[serde(default = "timeout")]
    pub timeout: Period,
    /// Windows that wait at most; the oldest is dropped.
    #[serde(default = "queue_windows")]
    pub queue_windows: usize,
    /// Bytes that wait at most.
    #[serde(default = "queue_bytes")]
    pub queue_bytes: Bytes,
}

/// The protocol of a push target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PushKind {
    /// `push.v1` of Grafana Pyroscope.
    Pyroscope,
    /// OTLP profiles over HTTP, `v1development`: experimental, as the protocol is.
    Otlp,
    /// A pprof file for each window.
    Directory,
}

impl PushKind {
    /// The name in the configuration file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pyroscope => "pyroscope",
            Self::Otlp => "otlp",
            Self::Directory => "directory",
        }
    }
}

impl PushSettings {
    /// The target's name in metrics and log lines.
    pub fn shown_name(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.kind.name())
    }
}

fn labels() -> Vec<String> {
    ["comm", "container", "unit"].map(str::to_owned).to_vec()
}

fn timeout() -> Period {
    Period(Duration::from_secs(10))
}

fn queue_windows() -> usize {
    60
}

fn queue_bytes() -> Bytes {
    Bytes(16 << 20)
}
