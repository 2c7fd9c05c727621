//! What the labels of processes are made of, and how long they hold.

use std::collections::HashSet;
use std::sync::Arc;

use jitprof_common::units::MonoNs;

use crate::engine::border::ProcessRead;
use crate::profile::Labels;

/// Label sets of one process that are kept for samples that wait; of more, the oldest go.
const MAX_SETS: usize = 4;
/// A process that renames itself more often than this has one set for all of its names.
const RENAME_NS: u64 = 100_000_000;
/// Labels that a child has from its parent for certain, or nearly so.
const INHERITED: [&str; 6] = ["cgroup", "container", "host", "pod", "unit", "user"];

/// The label sets of a process, one after the other.
#[derive(Debug, Default)]
pub(super) struct LabelHistory {
    /// From this time on, the latest set holds.
    since: MonoNs,
    latest: Arc<Labels>,
    /// Those before, each with its time, ascending.
    earlier: Vec<(MonoNs, Arc<Labels>)>,
    /// The process has run another program since, which has not been looked at.
    stale: Option<MonoNs>,
    /// It has another name since, of which no set was made: it renames itself too often.
    renamed: Option<MonoNs>,
    /// When to look again.
    again: Option<MonoNs>,
    /// Whether anything is known.
    is_known: bool,
}

impl LabelHistory {
    /// Whether anything is known.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// The labels at a time; at one before all sets, the first.
    pub(super) fn at(&self, time: MonoNs) -> &Arc<Labels> {
        if time >= self.since {
            return &self.latest;
        }
        let earlier = self.earlier.iter().rev().find(|(since, _)| *since <= time).or(self.earlier.first());
        earlier.map_or(&self.latest, |(_, labels)| labels)
    }

    pub(super) fn latest(&self) -> &Arc<Labels> {
        &self.latest
    }

    /// From `since` on, these hold.
    pub(super) fn add(&mut self, since: MonoNs, labels: Arc<Labels>) {
        self.stale = None;
        if !std::mem::replace(&mut self.is_known, true) {
            (self.since, self.latest) = (since, labels);
            return;
        }
        if self.latest == labels {
            return;
        }
        let is_too_soon = self.is_too_soon(since);
        let replaced = std::mem::replace(&mut self.latest, labels);
        if is_too_soon {
            return;
        }
        if self.earlier.len() >= MAX_SETS - 1 {
            self.earlier.remove(0);
        }
        self.earlier.push((self.since, replaced));
        self.since = since.max(self.since);
    }

    /// What is known of the latest program has become more.
    pub(super) fn amend(&mut self, labels: Arc<Labels>) {
        self.latest = labels;
    }

    /// The process runs another program since.
    pub(super) fn renew(&mut self, since: MonoNs) {
        (self.stale, self.renamed) = (Some(since), None);
    }

    /// The process has another name since `time`. Returns whether a set is to be made of it now; else it is with the next look.
    pub(super) fn rename(&mut self, time: MonoNs) -> bool {
        let is_too_often = self.is_too_soon(time);
        self.renamed = is_too_often.then_some(time);
        !is_too_often
    }

    /// Since when it has a name of which no set was made.
    pub(super) fn take_renamed(&mut self) -> Option<MonoNs> {
        self.renamed.take()
    }

    /// Whether what holds from a time on takes the place of the latest set, which is kept no more.
    fn is_too_soon(&self, time: MonoNs) -> bool {
        time.0.saturating_sub(self.since.0) < RENAME_NS && !self.earlier.is_empty()
    }

    /// Since when the labels are not known.
    pub(super) fn stale_since(&self) -> Option<MonoNs> {
        self.stale
    }

    pub(super) fn look_again(&mut self, when: Option<MonoNs>) {
        self.again = when;
    }

    /// Whether it is time to look again.
    pub(super) fn is_due(&self, now: MonoNs) -> bool {
        self.again.is_some_and(|when| when <= now)
    }
}

/// A runtime as labels show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShownRuntime {
    pub(super) name: &'static str,
    pub(super) version: Option<String>,
}

/// Makes label sets. Equal sets are one.
#[derive(Debug)]
pub(super) struct Labeller {
    host: Arc<str>,
    sets: HashSet<Arc<Labels>>,
}

impl Labeller {
    /// `host` is what the host is called; empty for no such label.
    pub(super) fn new(host: &str) -> Self {
        Self { host: Arc::from(host), sets: HashSet::new() }
    }

    /// The labels of a process that was read.
    pub(super) fn of(&mut self, read: &ProcessRead, runtime: Option<ShownRuntime>) -> Arc<Labels> {
        let cgroup = read.cgroup.clone().unwrap_or_default();
        let text = |value: &Option<String>| value.as_deref().map_or_else(Arc::default, Arc::from);
        let (runtime, version) = runtime.map_or((None, None), |shown| (Some(shown.name.to_owned()), shown.version));
        let labels: [(&str, Arc<str>); 10] = [
            ("comm", Arc::from(&*read.comm)),
            ("host", Arc::clone(&self.host)),
            ("cgroup", Arc::from(&*cgroup.path)),
            ("container", text(&cgroup.container)),
            ("pod", text(&cgroup.pod)),
            ("unit", text(&cgroup.unit)),
            ("user", text(&read.user)),
            ("exe", text(&exe_name(read))),
            ("runtime", text(&runtime)),
            ("runtime_version", text(&version)),
        ];
        self.intern(labels.into_iter().collect())
    }

    /// The labels of a process that ended before it could be read: what its parent has in common with it, or it itself
    /// had before its last program; the name, if it is known, from elsewhere.
    pub(super) fn of_lost(&mut self, ancestor: Option<&Labels>, comm: &str) -> Arc<Labels> {
        let ancestor = ancestor.into_iter().flat_map(Labels::iter);
        let inherited = ancestor.filter(|(name, _)| INHERITED.contains(&&***name));
        let inherited = inherited.map(|(name, value)| (Arc::clone(name), Arc::clone(value)));
        let own = [("comm", Arc::from(comm)), ("host", Arc::clone(&self.host))];
        let own = own.map(|(name, value): (_, Arc<str>)| (Arc::from(name), value));
        self.intern(own.into_iter().chain(inherited).collect())
    }

    /// The same labels but for one.
    pub(super) fn with(&mut self, labels: &Labels, name: &str, value: &str) -> Arc<Labels> {
        let changed = std::iter::once((Arc::from(name), Arc::from(value)));
        let kept = labels.iter().map(|(name, value)| (Arc::clone(name), Arc::clone(value)));
        self.intern(changed.chain(kept.filter(|(kept, _): &(Arc<str>, _)| **kept != *name)).collect())
    }

    /// Evicts sets that nobody holds any more.
    pub(super) fn evict_unused(&mut self) {
        self.sets.retain(|labels| Arc::strong_count(labels) > 1);
    }

    /// Label sets that were made and are not evicted.
    #[cfg(test)]
    pub(super) fn set_count(&self) -> usize {
        self.sets.len()
    }

    fn intern(&mut self, labels: Labels) -> Arc<Labels> {
        if let Some(known) = self.sets.get(&labels) {
            return Arc::clone(known);
        }
        let labels = Arc::new(labels);
        self.sets.insert(Arc::clone(&labels));
        labels
    }
}

/// The file name of a process' executable.
fn exe_name(read: &ProcessRead) -> Option<String> {
    let path = read.exe.as_deref()?;
    // What the kernel appends when the file was replaced.
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use jitprof_common::units::Pid;

    use super::*;
    use crate::process::labels::Cgroup;

    const SECOND: u64 = 1_000_000_000;

    fn read(comm: &str) -> ProcessRead {
        ProcessRead {
            via: Pid(1),
            start: MonoNs(1),
            parent: Pid(0),
            comm: comm.to_owned(),
            is_kernel_thread: false,
            is_dead: false,
            status: None,
            payer: None,
            user: Some("4000000000".to_owned()),
            exe: Some("/opt/node (deleted)".to_owned()),
            command_line: None,
            environment: Vec::new(),
            cgroup: Some(Cgroup::parse(b"0::/system.slice/web.service\n")),
            mappings: None,
            threads: Vec::new(),
        }
    }

    fn history(since: u64, comm: &str) -> LabelHistory {
        let mut history = LabelHistory::default();
        history.add(MonoNs(since), labels(comm));
        history
    }

    fn labels(comm: &str) -> Arc<Labels> {
        Labeller::new("h").of(&read(comm), None)
    }

    fn text(labels: &Labels) -> String {
        labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn labels_say_what_was_read_and_nothing_where_nothing_is_known() {
        let mut labeller = Labeller::new("h");
        let shown = ShownRuntime { name: "node", version: Some("20.11.0".to_owned()) };
        let known = "cgroup=/system.slice/web.service comm=x exe=node host=h";
        let whole = labeller.of(&read("x"), Some(shown));
        let rest = "runtime=node runtime_version=20.11.0 unit=web.service user=4000000000";
        assert_eq!(text(&whole), format!("{known} {rest}"));
        let plain = labeller.of(&read("x"), None);
        assert_eq!(text(&plain), format!("{known} unit=web.service user=4000000000"));
    }

    #[test]
    fn a_process_of_which_all_is_known_has_the_labels_that_can_be_asked_for() {
        let some = || Some("x".to_owned());
        let cgroup = Cgroup { path: "/x".to_owned(), container: some(), pod: some(), unit: some() };
        let shown = ShownRuntime { name: "node", version: some() };
        let labels = Labeller::new("h").of(&ProcessRead { cgroup: Some(cgroup), ..read("x") }, Some(shown));
        let mut names: Vec<&str> = labels.iter().map(|(name, _)| &**name).chain(["pid", "tid", "thread"]).collect();
        let mut known = crate::profile::LABEL_NAMES;
        names.sort_unstable();
        known.sort_unstable();
        assert_eq!(names, known);
    }

    #[test]
    fn equal_sets_are_one_and_go_with_their_last_holder() {
        let mut labeller = Labeller::new("h");
        let (one, other) = (labeller.of(&read("x"), None), labeller.of(&read("x"), None));
        assert!(Arc::ptr_eq(&one, &other));
        drop((one, other));
        labeller.evict_unused();
        assert!(labeller.sets.is_empty());
    }

    #[test]
    fn a_process_that_was_not_read_has_its_parents_surroundings_under_its_own_name() {
        let mut labeller = Labeller::new("h");
        let lost = labeller.of_lost(Some(&labels("parent")), "child");
        assert_eq!(text(&lost), "cgroup=/system.slice/web.service comm=child host=h unit=web.service user=4000000000");
        assert_eq!(text(&labeller.of_lost(None, "")), "host=h");
    }

    #[test]
    fn a_sample_has_the_labels_of_its_time() {
        let mut history = history(SECOND, "sh");
        history.renew(MonoNs(2 * SECOND));
        assert_eq!(history.stale_since(), Some(MonoNs(2 * SECOND)));
        history.add(MonoNs(2 * SECOND), labels("node"));
        assert_eq!(history.stale_since(), None);
        let comm = |time| history.at(MonoNs(time)).get("comm").map(|comm| comm.to_string());
        let seen: Vec<_> = [0, SECOND, 2 * SECOND - 1, 2 * SECOND, 9 * SECOND].into_iter().filter_map(comm).collect();
        assert_eq!(seen, ["sh", "sh", "sh", "node", "node"]);
    }

    #[test]
    fn a_process_that_renames_itself_all_the_time_keeps_few_sets() {
        let mut history = history(0, "0");
        for step in 1..1000_u64 {
            history.add(MonoNs(step * SECOND / 100), labels(&step.to_string()));
            assert!(history.earlier.len() < MAX_SETS && is_ascending(&history));
        }
        assert_eq!(history.latest().get("comm").map(|comm| &**comm), Some("999"));
        // A clock that went back does no harm.
        history.add(MonoNs(5), labels("back"));
        assert!(is_ascending(&history));
        assert_eq!(history.latest().get("comm").map(|comm| &**comm), Some("back"));
    }

    fn is_ascending(history: &LabelHistory) -> bool {
        history.earlier.iter().map(|(since, _)| *since).chain([history.since]).is_sorted()
    }

    #[test]
    fn one_label_is_changed_and_the_others_stay() {
        let mut labeller = Labeller::new("h");
        let changed = labeller.with(&labels("x"), "comm", "y");
        assert_eq!(changed.get("comm").map(|comm| &**comm), Some("y"));
        assert_eq!(changed.iter().len(), labels("x").iter().len());
        assert_eq!(labeller.with(&changed, "comm", "").get("comm"), None);
    }
}
