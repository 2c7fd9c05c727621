//! Control groups as the managers of containers and services name them, and as a hostile one might.

use proptest::prelude::*;

use super::*;

const ID: &str = "3f0c5de1a4b27c8890e1d2f3a4b5c6d7e8f90123456789abcdef0123456789ab";

fn parsed(text: &str) -> Cgroup {
    Cgroup::parse(text.replace("ID", ID).as_bytes())
}

/// Container, pod and unit of a path of version 2.
fn at(path: &str) -> (Option<String>, Option<String>, Option<String>) {
    let cgroup = parsed(&format!("0::{path}\n"));
    assert_eq!(cgroup.path, path.replace("ID", ID));
    (cgroup.container, cgroup.pod, cgroup.unit)
}

#[test]
fn containers_are_known_by_the_names_that_their_managers_give() {
    for path in [
        "/docker/ID",
        "/system.slice/docker-ID.scope",
        "/system.slice/nerdctl-ID.scope",
        "/machine.slice/libpod-ID.scope/container",
        "/machine.slice/crun-ID.scope",
        "/ecs/0123456789abcdef0123456789abcdef/ID",
        "/system.slice/docker-ID.scope/init.scope/below",
    ] {
        assert_eq!(at(path).0.as_deref(), Some(ID), "{path}");
    }
    assert_eq!(at("/lxc/web").0.as_deref(), Some("web"));
    assert_eq!(at("/lxc.payload.web/init.scope").0.as_deref(), Some("web"));
    assert_eq!(at("/machine.slice/libpod-conmon-ID.scope").0, None);
    assert_eq!(at("/user.slice/3f0c").0, None);
}

#[test]
fn of_containers_in_a_container_the_innermost_counts() {
    let outer = "f".repeat(64);
    let nested = format!("/docker/{outer}/kubelet/kubepods/burstable/pod8a6f0b1e-1111-2222-3333-444455556666/ID");
    let (container, pod, _) = at(&nested);
    assert_eq!((container.as_deref(), pod.as_deref()), (Some(ID), Some("8a6f0b1e-1111-2222-3333-444455556666")));
}

#[test]
fn pods_are_known_from_both_drivers_of_the_kubelet() {
    let uid = "8a6f0b1e-1111-2222-3333-444455556666";
    for path in [
        "/kubepods/besteffort/pod8a6f0b1e-1111-2222-3333-444455556666/ID",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8a6f0b1e_1111_2222_3333_444455556666.slice/\
         cri-containerd-ID.scope",
        "/kubepods.slice/kubepods-pod8a6f0b1e_1111_2222_3333_444455556666.slice/crio-ID.scope",
        "/system.slice/containerd.service/kubepods-pod8a6f0b1e_1111_2222_3333_444455556666.slice:cri-containerd:ID",
    ] {
        let (container, pod, _) = at(path);
        assert_eq!((container.as_deref(), pod.as_deref()), (Some(ID), Some(uid)), "{path}");
    }
    assert_eq!(at("/podium/podcasts/pod").1, None);
}

#[test]
fn the_unit_is_the_innermost_that_is_no_container() {
    let unit = |path| at(path).2;
    assert_eq!(unit("/system.slice/nginx.service").as_deref(), Some("nginx.service"));
    assert_eq!(unit("/system.slice/system-getty.slice/getty@tty1.service").as_deref(), Some("getty@tty1.service"));
    let user = "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-firefox-77.scope";
    assert_eq!(unit(user).as_deref(), Some("app-gnome-firefox-77.scope"));
    assert_eq!(unit("/system.slice/docker.service/workers").as_deref(), Some("docker.service"));
    assert_eq!(unit("/system.slice/web.service/libpod-payload-ID").as_deref(), Some("web.service"));
    assert_eq!(unit("/system.slice/docker-ID.scope"), None);
    assert_eq!(unit("/system.slice/_cpu.service").as_deref(), Some("cpu.service"));
    assert_eq!(unit(r"/system.slice/dev-disk-by\x2dlabel.swap").as_deref(), Some("dev-disk-by-label.swap"));
    assert_eq!(unit("/system.slice/.service"), None);
    assert_eq!(unit("/system.slice"), None);
}

#[test]
fn hierarchies_that_say_nothing_are_passed_over() {
    let hybrid = "9:name=systemd:/system.slice/a.service\n4:memory:/docker/ID\n1:cpu,cpuacct:/\n0::/\n";
    let cgroup = parsed(hybrid);
    assert_eq!(cgroup.path, "/system.slice/a.service");
    assert_eq!(cgroup.container.as_deref(), Some(ID));
    assert_eq!(cgroup.unit.as_deref(), Some("a.service"));
    assert_eq!(parsed("4:memory:/x\n0::/y\n").path, "/y");
    assert_eq!(parsed("0::/\n").path, "/");
    assert_eq!(parsed("").path, "");
}

#[test]
fn a_path_seen_from_a_namespace_and_a_removed_group_are_read_like_others() {
    assert_eq!(parsed("0::/../../kubepods.slice/x").path, "/kubepods.slice/x");
    assert_eq!(parsed("0::/..").path, "/");
    assert_eq!(parsed("0::/..hidden").path, "/..hidden");
    assert_eq!(parsed("0::/system.slice/a.service (deleted)").unit.as_deref(), Some("a.service"));
    assert_eq!(parsed("0::/a:b:c").path, "/a:b:c");
}

#[test]
fn escapes_are_undone_and_what_is_none_stays() {
    assert_eq!(unescape_unit(r"a\x2db"), "a-b");
    assert_eq!(unescape_unit(r"a\x2"), r"a\x2");
    assert_eq!(unescape_unit(r"a\x+1"), r"a\x+1");
    assert_eq!(unescape_unit(r"\xc3\xa4\"), r"ä\");
}

#[test]
fn the_first_name_of_a_user_id_counts() {
    let users =
        parse_passwd(b"root:x:0:0:root:/root:/bin/bash\ntoor:x:0:0::/:\n\nbad\n:x:5:5\nw:x:99999999999:1\nww:x:33:33");
    let mut names: Vec<_> = users.iter().map(|(uid, name)| (*uid, &**name)).collect();
    names.sort_unstable();
    assert_eq!(names, [(0, "root"), (33, "ww")]);
}

#[test]
fn this_process_is_read() {
    let own = Identity::read(Pid(std::process::id())).unwrap();
    assert!(!own.comm.is_empty() && own.uid.is_some() && own.cgroup.path.starts_with('/'));
    let exe = std::env::current_exe().unwrap();
    assert_eq!(own.exe_name().as_deref(), exe.file_name().and_then(|name| name.to_str()));
    assert!(Identity::read(Pid(0)).is_err());
}

proptest! {
    #[test]
    fn any_bytes_give_bounded_values(text in prop::collection::vec(any::<u8>(), 0..4096)) {
        check(&Cgroup::parse(&text))?;
        prop_assert!(parse_passwd(&text).len() <= text.len());
    }

    #[test]
    fn any_path_of_telling_words_gives_bounded_values(
        rank in prop::sample::select(vec!["0:", "1:name=systemd", "2:cpu,cpuacct", "::", ""]),
        words in prop::collection::vec(prop::sample::select(vec![
            "/", "..", "-", ":", "docker", "cri-containerd", "pod", "kubepods", "libpod_pod_", "lxc", ".scope", "\\x2d",
            ".service", ".slice", "conmon", "ä", "\n", " (deleted)", "_", ID, "8a6f0b1e_1111_2222_3333_444455556666",
        ]), 0..64),
    ) {
        check(&Cgroup::parse(format!("{rank}:{}", words.concat()).as_bytes()))?;
    }

    #[test]
    fn names_with_every_byte_escaped_come_back(name in "[a-z@:_.-]{1,40}") {
        let escaped: String = name.bytes().map(|byte| format!("\\x{byte:02x}")).collect();
        prop_assert_eq!(unescape_unit(&escaped), name);
    }
}

fn check(cgroup: &Cgroup) -> Result<(), TestCaseError> {
    let values = [Some(&cgroup.path), cgroup.container.as_ref(), cgroup.pod.as_ref(), cgroup.unit.as_ref()];
    for value in values.into_iter().flatten() {
        prop_assert!(value.len() <= 1024 + 3 && !value.contains('\n'));
    }
    for id in cgroup.pod.iter().chain(&cgroup.container) {
        prop_assert!(!id.is_empty() && !id.contains('/'));
    }
    Ok(())
}
