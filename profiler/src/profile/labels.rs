//! What is known about a process beyond its number.

use std::sync::Arc;

/// Names of labels that every recording has where they are known: of a task, then of its process. Files of other programs
/// may have others.
pub const LABEL_NAMES: [&str; 13] = [
    "pid",
    "tid",
    "thread",
    "comm",
    "host",
    "cgroup",
    "container",
    "pod",
    "unit",
    "user",
    "exe",
    "runtime",
    "runtime_version",
];

/// Labels kept for one process; further ones are left out.
const MAX_LABELS: usize = 32;

/// Names and values, sorted by name, each name once: `container`, `unit`, `runtime` and so on. Values come from the
/// target and are unsanitized.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels(Vec<(Arc<str>, Arc<str>)>);

impl Labels {
    /// The value of a label.
    pub fn get(&self, name: &str) -> Option<&Arc<str>> {
        let index = self.0.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        self.0.get(index).map(|(_, value)| value)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Arc<str>)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<N: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(N, V)> for Labels {
    /// Of several values of one name the first counts; empty values are no labels.
    fn from_iter<I: IntoIterator<Item = (N, V)>>(labels: I) -> Self {
        let mut list: Vec<(Arc<str>, Arc<str>)> = labels
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .filter(|(_, value)| !value.is_empty())
            .take(MAX_LABELS)
            .collect();
        list.sort_by(|one, other| one.0.cmp(&other.0));
        list.dedup_by(|later, kept| later.0 == kept.0);
        Self(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_by_name_and_the_first_value_counts() {
        let labels: Labels =
            [("unit", "a.service"), ("container", "c1"), ("unit", "b.service"), ("exe", "")].into_iter().collect();
        assert_eq!(labels.get("unit").map(|value| &**value), Some("a.service"));
        assert_eq!(labels.get("exe"), None);
        assert_eq!(labels.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["container", "unit"]);
    }
}
