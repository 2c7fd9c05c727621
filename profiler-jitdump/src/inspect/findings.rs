//! Which deviations were found, and where.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::deviation::{Deviation, Severity};
use jitprof_common::units::FileOffset;

/// Deviations by kind, each counted, and listed where it was met first.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Findings {
    #[serde(serialize_with = "as_list")]
    found: BTreeMap<Deviation, Found>,
    /// How many places of each are listed.
    #[serde(skip)]
    places: usize,
}

/// One kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// How often.
    pub count: u64,
    /// Where: the first ones in the file's order.
    pub places: Vec<Place>,
}

/// One place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Of the record.
    #[serde(serialize_with = "as_offset")]
    pub offset: FileOffset,
    /// What stands there; may be empty. Has no bytes of the dump but numbers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl Findings {
    pub(super) fn new(places: usize) -> Self {
        Self { found: BTreeMap::new(), places }
    }

    pub(super) fn note(&mut self, deviation: Deviation, offset: FileOffset) {
        self.note_with(deviation, offset, String::new);
    }

    pub(super) fn note_with(&mut self, deviation: Deviation, offset: FileOffset, detail: impl FnOnce() -> String) {
        let found = self.found.entry(deviation).or_default();
        found.count = found.count.saturating_add(1);
        if found.places.len() < self.places {
            found.places.push(Place { offset, detail: detail() });
        }
    }

    /// All kinds that were found, errors first.
    pub fn iter(&self) -> impl Iterator<Item = (Deviation, &Found)> {
        let of = |severity| self.found.iter().filter(move |(deviation, _)| deviation.severity() == severity);
        of(Severity::Error).chain(of(Severity::Quirk)).map(|(deviation, found)| (*deviation, found))
    }

    /// What was found of one kind.
    pub fn get(&self, deviation: Deviation) -> Option<&Found> {
        self.found.get(&deviation)
    }

    /// How often something of this severity was found.
    pub fn count(&self, severity: Severity) -> u64 {
        let of = self.found.iter().filter(|(deviation, _)| deviation.severity() == severity);
        of.fold(0, |sum, (_, found)| sum.saturating_add(found.count))
    }
}

#[derive(Serialize)]
struct Listed<'a> {
    name: &'static str,
    severity: Severity,
    count: u64,
    meaning: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    producers: Option<&'static str>,
    places: &'a [Place],
}

fn as_list<S: Serializer>(found: &BTreeMap<Deviation, Found>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(found.iter().map(|(deviation, found)| Listed {
        name: deviation.name(),
        severity: deviation.severity(),
        count: found.count,
        meaning: deviation.meaning(),
        producers: deviation.producers(),
        places: &found.places,
    }))
}

fn as_offset<S: Serializer>(offset: &FileOffset, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(offset.0)
}
