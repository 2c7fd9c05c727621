//! Windows as Parquet.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units::Bytes;
use crate::dataset::Location;
use crate::times::Period;

/// Where windows are kept beside the storage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ArchiveSettings {
    /// A dataset that the hosts of a fleet share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parquet: Option<ParquetSettings>,
}

impl ArchiveSettings {
    /// Whether nothing is configured.
    pub fn is_empty(&self) -> bool {
        self.parquet.is_none()
    }
}

/// A dataset, and how it is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParquetSettings {
    /// A directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// A bucket and a prefix: `s3://bucket/prefix`, `gs://…`, `az://…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A file for each such time; a divisor of an hour.
    pub every: Period,
    /// Samples are summed up over such times; a divisor of `every`.
    pub step: Period,
    /// A file that has become so large is followed by a second one.
    pub target_size: Bytes,
    /// Labels of all rows; `version` has a column of its own.
    pub add_labels: BTreeMap<String, String>,
    /// Options of the bucket's client, over those of the environment.
    pub options: BTreeMap<String, String>,
    /// File with more of them, `name = "value"`: those that are secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options_file: Option<PathBuf>,
}

impl Default for ParquetSettings {
    fn default() -> Self {
        Self {
            directory: None,
            url: None,
            every: Period(Duration::from_secs(600)),
            step: Period(Duration::from_secs(60)),
            target_size: Bytes(64 << 20),
            add_labels: BTreeMap::new(),
            options: BTreeMap::new(),
            options_file: None,
        }
    }
}

impl ParquetSettings {
    /// The place.
    pub fn location(&self) -> Location {
        match (&self.directory, &self.url) {
            (Some(directory), _) => Location::Directory(directory.clone()),
            (None, url) => Location::Url(url.clone().unwrap_or_default()),
        }
    }

    /// Its name in log lines.
    pub fn shown_name(&self) -> String {
        match (&self.directory, &self.url) {
            (Some(directory), _) => directory.display().to_string(),
            (None, url) => url.clone().unwrap_or_default(),
        }
    }
}
