//! `/proc/PID/cgroup`: the control group, and what managers of containers and services write into its name.
//!
//! ```text
//! 0::/system.slice/nginx.service                                          version 2
//! 4:memory:/docker/3f0c…                                                  version 1, a line for each hierarchy
//! 0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1a2b_….slice/cri-containerd-9d3e….scope
//! ```

use serde::{Deserialize, Serialize};

/// Lines that are read; there are some 14 controllers.
const MAX_LINES: usize = 64;
/// Bytes of a value that are kept: the kernel's own limit of a path is four times this.
const MAX_BYTES: usize = 1024;
/// Hexadecimal digits of a container's id.
const ID_DIGITS: usize = 64;
/// What systemd calls units that have a control group and are no slice.
const UNIT_SUFFIXES: [&str; 5] = [".service", ".scope", ".socket", ".mount", ".swap"];

/// Where a process stands among the control groups. All of it is text that others chose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cgroup {
    /// The path in the hierarchy of version 2 if it says anything, else in systemd's, else in another of version 1;
    /// `/` for the root.
    pub path: String,
    /// The innermost container's id: 64 hexadecimal digits, or what LXC and ECS call it.
    pub container: Option<String>,
    /// The Kubernetes pod's uid, with dashes, or podman's pod id.
    pub pod: Option<String>,
    /// The innermost systemd unit that is neither a slice nor a container, without systemd's escapes.
    pub unit: Option<String>,
}

impl Cgroup {
    /// Parses the file. What it does not understand it leaves out.
    pub fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let mut paths: Vec<(u8, &str)> = text.lines().take(MAX_LINES).filter_map(line).collect();
        // Stable: hierarchies of equal rank stay in the kernel's order.
        paths.sort_by_key(|(rank, path)| (*path == "/", *rank));
        let first = |find: fn(&str) -> Option<String>| paths.iter().find_map(|(_, path)| find(path));
        Self {
            path: paths.first().map(|(_, path)| shorten(path)).unwrap_or_default(),
            container: first(container),
            pod: first(pod),
            unit: first(unit),
        }
    }
}

/// The rank and path of a line `id:controllers:path`.
fn line(line: &str) -> Option<(u8, &str)> {
    let mut parts = line.splitn(3, ':');
    let rank = match (parts.next()?, parts.next()?) {
        ("0", "") => 0,
        (_, "name=systemd") => 1,
        _ => 2,
    };
    let mut path = parts.next()?;
    // What the kernel appends when the group was removed.
    path = path.strip_suffix(" (deleted)").unwrap_or(path);
    // Read from within a cgroup namespace, paths outside of it begin with steps upwards.
    while let Some(rest) = path.strip_prefix("/..").filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        path = rest;
    }
    Some((rank, if path.is_empty() { "/" } else { path }))
}

/// The id of the innermost container.
pub(in crate::process) fn container(path: &str) -> Option<String> {
    let mut inner: Option<&str> = None;
    let mut parent = "";
    for component in path.split('/') {
        let is_lxc = parent == "lxc" && !component.is_empty();
        let found = id_in(component).or_else(|| component.strip_prefix("lxc.payload."));
        let found = found.or_else(|| (is_lxc || is_ecs_task(component)).then_some(component));
        inner = found.or(inner);
        parent = component;
    }
    inner.filter(|id| !id.is_empty()).map(shorten)
}

/// `ID`, `docker-ID.scope`, `cri-containerd-ID.scope`, `SLICE:cri-containerd:ID`, `libpod-payload-ID`, and the like; not
/// the monitors that stand beside a container.
fn id_in(component: &str) -> Option<&str> {
    let name = component.strip_suffix(".scope").unwrap_or(component);
    let name = name.rsplit(':').next().unwrap_or(name);
    let id = name.rsplit('-').next().unwrap_or(name);
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (id.len() == ID_DIGITS && id.bytes().all(is_hex) && !name.contains("conmon")).then_some(id)
}

/// On ECS Fargate: the task's id and a number.
fn is_ecs_task(component: &str) -> bool {
    component.split_once('-').is_some_and(|(task, number)| {
        task.len() == 32
            && task.bytes().all(|byte| byte.is_ascii_hexdigit())
            && number.len() >= 6
            && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn pod(path: &str) -> Option<String> {
    path.split('/').rev().find_map(|component| {
        let name = component.split(':').next().unwrap_or(component);
        let name = name.strip_suffix(".slice").unwrap_or(name);
        if let Some((_, id)) = name.rsplit_once("libpod_pod_") {
            return is_pod_uid(id).then(|| id.to_owned());
        }
        let uid = match name.strip_prefix("pod") {
            Some(uid) => uid,
            None => name.strip_prefix("kubepods")?.rsplit_once("-pod")?.1,
        };
        let uid = uid.replace('_', "-");
        is_pod_uid(&uid).then_some(uid)
    })
}

/// A uuid, or the hash that the kubelet gives to pods from files.
fn is_pod_uid(uid: &str) -> bool {
    (32..=ID_DIGITS).contains(&uid.len()) && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

pub(in crate::process) fn unit(path: &str) -> Option<String> {
    let component = path.split('/').rev().find(|component| is_unit(component) && id_in(component).is_none())?;
    Some(shorten(&unescape_unit(component.strip_prefix('_').unwrap_or(component))))
}

fn is_unit(component: &str) -> bool {
    // The kernel allows 255 bytes in a name, and systemd as many.
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    let stem = UNIT_SUFFIXES.iter().find_map(|suffix| component.strip_suffix(suffix));
    stem.is_some_and(|stem| !stem.trim_start_matches('_').is_empty() && stem.bytes().all(allowed))
}

/// Undoes systemd's `\x2d`. A user may write a unit's name either way.
pub fn unescape_unit(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = rest.strip_prefix(b"\\x").and_then(|digits| digits.get(..2));
        let code = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        // A sign is no digit, though the parser takes it for one.
        match code.filter(|_| hex.is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))) {
            Some(code) => {
                bytes.push(code);
                rest = &rest[4..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A long text's first bytes.
fn shorten(text: &str) -> String {
    if text.len() <= MAX_BYTES {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(MAX_BYTES)])
}
