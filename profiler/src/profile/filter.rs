//! Which tasks a question is about.

use std::borrow::Cow;

use super::meta::Task;

/// What a task has under a label's name: `pid`, `tid`, `thread`, `comm` (the process' name where it is known, else the
/// thread's), and whatever else is known about the process.
pub fn label_of<'a>(task: &'a Task, name: &str) -> Option<Cow<'a, str>> {
    match name {
        "pid" => Some(task.pid.to_string().into()),
        "tid" => Some(task.tid.to_string().into()),
        "thread" => Some(Cow::Borrowed(&*task.comm)),
        "comm" => Some(Cow::Borrowed(task.labels.get("comm").map_or(&*task.comm, |comm| comm))),
        _ => task.labels.get(name).map(|value| Cow::Borrowed(&**value)),
    }
}

/// Names with the values that are wanted: a task passes if each name has one of its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    wanted: Vec<(String, Vec<String>)>,
}

impl Filter {
    /// Adds a value; several of one name are alternatives.
    pub fn want(&mut self, name: &str, value: &str) {
        match self.wanted.iter_mut().find(|(known, _)| known == name) {
            Some((_, values)) => values.push(value.to_owned()),
            None => self.wanted.push((name.to_owned(), vec![value.to_owned()])),
        }
    }

    /// Whether it lets every sample through.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// The names, each with the values that pass.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.wanted.iter().map(|(name, values)| (&**name, &**values))
    }

    /// Whether a task passes.
    pub fn passes(&self, task: &Task) -> bool {
        self.wanted.iter().all(|(name, values)| values.iter().any(|value| has(task, name, value)))
    }
}

/// Whether a task has a value under a name. A process is called as its main thread is, and as its program: from Node 24 on
/// the main thread is `MainThread`, and who looks for `node` means it.
fn has(task: &Task, name: &str, value: &str) -> bool {
    let is_program = || task.labels.get("exe").is_some_and(|exe| exe.rsplit('/').next() == Some(value));
    label_of(task, name).is_some_and(|has| *has == *value) || (name == "comm" && is_program())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use jitprof_common::units::{Pid, Tid};

    #[test]
    fn every_name_must_have_one_of_its_values() {
        let task = Task {
            pid: Pid(7),
            process_start: 0,
            tid: Tid(8),
            comm: Arc::from("worker"),
            labels: Arc::new([("comm", "node"), ("container", "c1")].into_iter().collect()),
        };
        let filter = |wanted: &[(&str, &str)]| {
            let mut filter = Filter::default();
            wanted.iter().for_each(|(name, value)| filter.want(name, value));
            filter.passes(&task)
        };
        assert!(filter(&[]));
        assert!(filter(&[("pid", "7"), ("comm", "x"), ("comm", "node"), ("thread", "worker")]));
        assert!(!filter(&[("comm", "worker")]));
        let labels = Arc::new([("comm", "MainThread"), ("exe", "/opt/node-24/bin/node")].into_iter().collect());
        let task = Task { labels, ..task.clone() };
        let called = |name: &str| {
            let mut filter = Filter::default();
            filter.want("comm", name);
            filter.passes(&task)
        };
        assert!(called("node") && called("MainThread") && !called("/opt/node-24/bin/node") && !called("bin"));
        assert!(!filter(&[("container", "c1"), ("unit", "a.service")]));
    }
}
