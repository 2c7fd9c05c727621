//! Control groups as directories: which ones a selection means, and which processes are in them.

use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::process::labels::{container, unescape_unit, unit};
use crate::process::procfs;
use jitprof_common::units::Pid;

/// Directories that are looked at in one hierarchy; a host with a thousand containers has a tenth of this.
const MAX_GROUPS: usize = 32 << 10;
/// Steps down from a hierarchy's root.
const MAX_DEPTH: usize = 32;
/// Processes of one selection.
const MAX_PIDS: usize = 64 << 10;

/// Which control groups: those that answer every question that is asked. Of each kind one is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupQuery {
    /// Paths: in a hierarchy (`/system.slice`), or of its directory (`/sys/fs/cgroup/system.slice`).
    pub paths: Vec<String>,
    /// Beginnings of containers' ids.
    pub containers: Vec<String>,
    /// systemd units; without a suffix `.service` is meant.
    pub units: Vec<String>,
}

impl GroupQuery {
    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.containers.is_empty() && self.units.is_empty()
    }
}

/// A control group. What is in a group below belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its directory.
    pub directory: PathBuf,
    /// Its path in its hierarchy.
    pub path: String,
    /// Whether its hierarchy is of version 2, which the BPF program can compare with.
    pub is_v2: bool,
    /// Tells it from a later one of the same path.
    pub inode: u64,
}

impl Group {
    /// Processes in it and below are added, up to a bound.
    pub fn add_pids(&self, pids: &mut Vec<Pid>) {
        for_each_group(&self.directory, "", &mut |directory, _| {
            let Ok(file) = File::open(directory.join("cgroup.procs")) else { return };
            let lines = BufReader::new(file).lines().map_while(Result::ok);
            let room = MAX_PIDS.saturating_sub(pids.len());
            pids.extend(lines.filter_map(|line| line.parse().ok().map(Pid)).take(room));
        });
    }

    /// Whether there is anything in it, where the kernel tells.
    fn is_populated(&self) -> bool {
        fs::read_to_string(self.directory.join("cgroup.events")).map_or(true, |text| text.contains("populated 1"))
    }
}

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    /// Where it is mounted, as its owner sees it.
    mount: String,
    is_v2: bool,
    is_systemd: bool,
    device: String,
}

/// The hierarchies of the host.
#[derive(Clone, Debug, Default)]
pub struct Hierarchies {
    /// What the mount points are below of.
    root: PathBuf,
    /// Version 2 first, then systemd's own, then the others.
    all: Vec<Hierarchy>,
}

impl Hierarchies {
    /// Those that the first process has mounted; of a container with the host's processes, that is the host's. jitprof's
    /// own ones if that may not be read.
    pub fn find() -> Self {
        let (first, own) = (Pid(1), Pid(std::process::id()));
        let is_other = match (procfs::mount_namespace(first), procfs::mount_namespace(own)) {
            (Ok(first), Ok(own)) => first != own,
            _ => false,
        };
        if is_other {
            let hosts = Self { root: PathBuf::from("/proc/1/root"), all: mounted(first) };
            let is_readable = |one: &Hierarchy| hosts.directory(one, "").is_dir();
            if hosts.all.first().is_some_and(is_readable) {
                return hosts;
            }
        }
        Self { root: PathBuf::from("/"), all: mounted(own) }
    }

    /// The groups that a query means, from the first hierarchy with any; one whose groups are empty gives way to one
    /// with processes in them.
    pub fn groups(&self, query: &GroupQuery) -> Vec<Group> {
        let mut found: Option<Vec<Group>> = None;
        for hierarchy in &self.all {
            let groups = self.in_hierarchy(hierarchy, query);
            if groups.is_empty() {
                continue;
            }
            if !hierarchy.is_v2 || groups.iter().any(Group::is_populated) {
                return groups;
            }
            found.get_or_insert(groups);
        }
        found.unwrap_or_default()
    }

    fn in_hierarchy(&self, hierarchy: &Hierarchy, query: &GroupQuery) -> Vec<Group> {
        let mut kinds: Vec<Vec<String>> = Vec::new();
        if !query.paths.is_empty() {
            let paths = query.paths.iter().filter_map(|path| relative(&hierarchy.mount, path));
            kinds.push(paths.filter(|path| self.directory(hierarchy, path).is_dir()).collect());
        }
        if !(query.containers.is_empty() && query.units.is_empty()) {
            let (mut containers, mut units) = (Vec::new(), Vec::new());
            for_each_group(&self.directory(hierarchy, ""), "", &mut |_, path| {
                if container(path).is_some_and(|id| query.containers.iter().any(|wanted| id.starts_with(wanted))) {
                    containers.push(path.to_owned());
                }
                if unit(path).is_some_and(|unit| query.units.iter().any(|wanted| is_unit(&unit, wanted))) {
                    units.push(path.to_owned());
                }
            });
            kinds.extend((!query.containers.is_empty()).then_some(containers));
            kinds.extend((!query.units.is_empty()).then_some(units));
        }
        let common = kinds.into_iter().map(outermost).reduce(|one, other| in_both(&one, &other));
        let groups = common.unwrap_or_default().into_iter().filter_map(|path| {
            let directory = self.directory(hierarchy, &path);
            let inode = fs::metadata(&directory).ok()?.ino();
            Some(Group { directory, path, is_v2: hierarchy.is_v2, inode })
        });
        groups.collect()
    }

    fn directory(&self, hierarchy: &Hierarchy, path: &str) -> PathBuf {
        self.root.join(hierarchy.mount.trim_start_matches('/')).join(path.trim_start_matches('/'))
    }
}

fn mounted(pid: Pid) -> Vec<Hierarchy> {
    let mut all = parse_mounts(&procfs::mounts(pid).unwrap_or_default());
    all.sort_by_key(|hierarchy| (!hierarchy.is_v2, !hierarchy.is_systemd));
    all
}

/// The hierarchies in a `/proc/PID/mountinfo`, each once.
fn parse_mounts(text: &[u8]) -> Vec<Hierarchy> {
    let mut all: Vec<Hierarchy> = Vec::new();
    for line in String::from_utf8_lossy(text).lines() {
        let Some((mount, kind)) = line.split_once(" - ") else { continue };
        let (mut mount, mut kind) = (mount.split(' '), kind.split(' '));
        let is_v2 = match kind.next() {
            Some("cgroup2") => true,
            Some("cgroup") => false,
            _ => continue,
        };
        let is_systemd = kind.nth(1).is_some_and(|options| options.split(',').any(|option| option == "name=systemd"));
        let (Some(device), Some(mount)) = (mount.nth(2), mount.nth(1)) else { continue };
        if !all.iter().any(|known| known.device == device) {
            // A blank is the only character that the kernel escapes and that a mount point of this kind may have.
            let mount = mount.replace("\\040", " ");
            all.push(Hierarchy { mount, is_v2, is_systemd, device: device.to_owned() });
        }
    }
    all
}

/// The path in the hierarchy; `None` for one that lies in another hierarchy or leads upwards.
fn relative(mount: &str, path: &str) -> Option<String> {
    let inside = match path.strip_prefix("/sys/fs/cgroup") {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            let rest = path.strip_prefix(mount)?;
            (rest.is_empty() || rest.starts_with('/')).then_some(rest)?
        }
        _ => path.strip_prefix(mount).filter(|rest| rest.starts_with('/')).unwrap_or(path),
    };
    let words: Vec<&str> = inside.split('/').filter(|word| !word.is_empty()).collect();
    (!words.contains(&"..")).then(|| format!("/{}", words.join("/")))
}

fn is_unit(unit: &str, wanted: &str) -> bool {
    let wanted = unescape_unit(wanted);
    unit == wanted || unit.strip_suffix(".service").is_some_and(|stem| stem == wanted)
}

/// Whether a group is the other one or below it.
fn is_below(path: &str, other: &str) -> bool {
    path.strip_prefix(other.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Without those that lie in another one.
fn outermost(mut paths: Vec<String>) -> Vec<String> {
    paths.sort();
    // In this order a group comes before those below it, though not always right before.
    let mut kept: Vec<String> = Vec::new();
    for path in paths {
        if !kept.iter().any(|outer| is_below(&path, outer)) {
            kept.push(path);
        }
    }
    kept
}

/// Those of each that are the same as one of the other, or below it.
fn in_both(one: &[String], other: &[String]) -> Vec<String> {
    let below = |paths: &[String], others: &[String]| -> Vec<String> {
        paths.iter().filter(|path| others.iter().any(|outer| is_below(path, outer))).cloned().collect()
    };
    outermost([below(one, other), below(other, one)].concat())
}

/// Calls `visit` for a directory and all below, each with its path from the first one.
fn for_each_group(directory: &Path, path: &str, visit: &mut impl FnMut(&Path, &str)) {
    let mut left = vec![(directory.to_owned(), path.to_owned(), 0)];
    let mut seen = 0;
    while let Some((directory, path, depth)) = left.pop() {
        visit(&directory, &path);
        seen += 1;
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        let below = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let room = MAX_GROUPS.saturating_sub(left.len() + seen);
        if depth < MAX_DEPTH {
            left.extend(below.take(room).map(|entry| {
                let path = format!("{path}/{}", entry.file_name().to_string_lossy());
                (entry.path(), path, depth + 1)
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &[u8] = b"\
24 1 0:21 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
25 24 0:22 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
26 24 0:23 / /sys/fs/cgroup/systemd rw,relatime shared:9 - cgroup cgroup rw,xattr,name=systemd
27 24 0:24 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
28 1 0:24 /a /mnt/a\\040b rw,relatime - cgroup2 cgroup2 rw
broken - cgroup2
";

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn each_hierarchy_is_found_once() {
        let found = parse_mounts(HYBRID);
        let shown: Vec<_> = found.iter().map(|one| (&*one.mount, one.is_v2, one.is_systemd)).collect();
        let (memory, systemd) = (("/sys/fs/cgroup/memory", false, false), ("/sys/fs/cgroup/systemd", false, true));
        assert_eq!(shown, [memory, systemd, ("/sys/fs/cgroup/unified", true, false)]);
    }

    #[test]
    fn paths_are_those_of_a_hierarchy_or_of_its_directory_and_never_lead_upwards() {
        let unified = |path| relative("/sys/fs/cgroup/unified", path);
        assert_eq!(unified("/system.slice/x").as_deref(), Some("/system.slice/x"));
        assert_eq!(unified("system.slice//x/").as_deref(), Some("/system.slice/x"));
        assert_eq!(unified("/sys/fs/cgroup/unified/x").as_deref(), Some("/x"));
        assert_eq!(unified("/sys/fs/cgroup/memory/x"), None);
        assert_eq!(unified("/x/../../etc"), None);
        assert_eq!(relative("/sys/fs/cgroup", "/sys/fs/cgroup/x").as_deref(), Some("/x"));
        assert_eq!(relative("/sys/fs/cgroup", "/sys/fs/cgroup").as_deref(), Some("/"));
    }

    #[test]
    fn a_group_stands_for_those_below_it() {
        let paths = strings(&["/a/b", "/a-b", "/a", "/a/b/c", "/d"]);
        assert_eq!(outermost(paths), ["/a", "/a-b", "/d"]);
        assert_eq!(outermost(strings(&["/x", "/"])), ["/"]);
    }

    #[test]
    fn of_two_questions_both_must_hold() {
        let (one, other) = (strings(&["/a", "/b/c"]), strings(&["/a/x", "/b", "/d"]));
        assert_eq!(in_both(&one, &other), ["/a/x", "/b/c"]);
        assert_eq!(in_both(&one, &[]), Vec::<String>::new());
    }

    #[test]
    fn units_are_named_with_or_without_their_suffix_and_escapes() {
        assert!(is_unit("nginx.service", "nginx") && is_unit("nginx.service", "nginx.service"));
        assert!(is_unit("a-b.swap", r"a\x2db.swap"));
        assert!(!is_unit("session-1.scope", "session-1") && !is_unit("nginx.service", "ngin"));
    }

    #[test]
    fn groups_are_found_by_path_container_and_unit() {
        let scratch = tempfile::tempdir().unwrap();
        let id = "ab".repeat(32);
        let deep = format!("kubepods/pod8a6f0b1e-1111-2222-3333-444455556666/{id}/inner");
        for path in ["system.slice/web.service/worker", &deep] {
            let directory = scratch.path().join(path);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cgroup.procs"), "12\n34\n").unwrap();
        }
        let hierarchy = Hierarchy { mount: "/".to_owned(), is_v2: true, is_systemd: false, device: String::new() };
        let all = Hierarchies { root: scratch.path().to_owned(), all: vec![hierarchy] };
        let paths =
            |query: GroupQuery| -> Vec<String> { all.groups(&query).into_iter().map(|group| group.path).collect() };
        let query = GroupQuery::default;
        assert_eq!(paths(GroupQuery { units: strings(&["web"]), ..query() }), ["/system.slice/web.service"]);
        let container = format!("/kubepods/pod8a6f0b1e-1111-2222-3333-444455556666/{id}");
        assert_eq!(paths(GroupQuery { containers: strings(&["abab"]), ..query() }), [container]);
        assert_eq!(paths(GroupQuery { containers: strings(&["abc"]), ..query() }), Vec::<String>::new());
        assert_eq!(paths(GroupQuery { paths: strings(&["/kubepods", "/none"]), ..query() }), ["/kubepods"]);
        let both = GroupQuery { paths: strings(&["/kubepods"]), units: strings(&["web"]), ..query() };
        assert_eq!(paths(both), Vec::<String>::new());
        let groups = all.groups(&GroupQuery { paths: strings(&["/system.slice"]), ..query() });
        let mut pids = Vec::new();
        groups.iter().for_each(|group| group.add_pids(&mut pids));
        assert_eq!(pids, [Pid(12), Pid(34)]);
    }
}
