use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use super::*;
use crate::process::procfs;

fn own() -> Pid {
    Pid(std::process::id())
}

/// This test's ids.
fn own_credentials() -> Credentials {
    TargetRoot::of(own()).unwrap().credentials
}

/// Nobody's here.
fn stranger() -> Credentials {
    Credentials::parse(b"Uid:\t4000001\t4000001\t4000001\t4000001\nGid:\t7\t7\t7\t7\n").unwrap()
}

/// As a process with this test's ids finds it in a root: where it may read all, and where each directory is looked at.
fn open_in(root: &Path, path: &Path, flags: OFlags) -> Result<TargetFile, OpenError> {
    let all = open_as(own_credentials(), root, path, flags);
    let own = open_as(own_credentials().without_capabilities(), root, path, flags);
    let outcome = |opened: &Result<TargetFile, OpenError>| match opened {
        Ok(file) => format!("{:?}", file.identity),
        Err(error) => format!("{error:?}"),
    };
    assert_eq!(outcome(&all), outcome(&own), "{}", path.display());
    own
}

fn open_as(credentials: Credentials, root: &Path, path: &Path, flags: OFlags) -> Result<TargetFile, OpenError> {
    let root = TargetRoot::new(reach(root, libc::O_DIRECTORY)?, credentials);
    root.open(&root.find(path, flags)?, path)
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A root directory that all may search.
fn open_root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    set_mode(root.path(), 0o755);
    root
}

#[test]
fn what_a_target_could_not_read_itself_is_not_read_for_it() {
    let root = open_root();
    let file = root.path().join("perf-7.map");
    std::fs::write(&file, b"x").unwrap();
    let owner = std::fs::metadata(&file).unwrap().uid();
    let open = |credentials, mode| {
        set_mode(&file, mode);
        open_as(credentials, root.path(), Path::new("/perf-7.map"), OFlags::NOFOLLOW)
    };
    // He has bound it over a path of his own.
    let refused = open(stranger(), 0o600).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, OpenError::Private { mode: 0o600, .. }) && text.contains("`chmod o+r` it"), "{text}");
    assert!(open(stranger(), 0o604).is_ok());
    assert!(open(own_credentials(), 0o600).is_ok() && open(own_credentials().without_capabilities(), 0o600).is_ok());
    assert_eq!(open(stranger().also(&[owner]), 0o600).is_ok(), owner != 0, "it has been this user, and not root");
}

#[test]
fn what_is_behind_a_directory_that_a_target_could_not_search_is_not_read_for_it() {
    let root = open_root();
    let hidden = root.path().join("hidden");
    std::fs::create_dir_all(hidden.join("deep")).unwrap();
    std::fs::write(hidden.join("deep/perf-7.map"), b"x").unwrap();
    symlink("/hidden/deep", root.path().join("tmp")).unwrap();
    let open = |credentials, mode| {
        set_mode(&hidden, mode);
        open_as(credentials, root.path(), Path::new("/tmp/perf-7.map"), OFlags::NOFOLLOW)
    };
    let refused = open(stranger(), 0o700).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, OpenError::Hidden { .. }) && text.contains("`chmod o+x` the directories"), "{text}");
    assert!(open(stranger(), 0o711).is_ok());
    assert!(open(own_credentials(), 0o700).is_ok() && open(own_credentials().without_capabilities(), 0o700).is_ok());
    // Nor what is not there is told from what is.
    let lacking = open_as(stranger(), root.path(), Path::new("/hidden/lacks"), OFlags::empty()).unwrap_err();
    assert!(matches!(lacking, OpenError::Hidden { .. }), "{lacking}");
    set_mode(&hidden, 0o755);
    set_mode(root.path(), 0o700);
    assert!(open(stranger(), 0o755).unwrap_err().is_private());
}

#[test]
fn a_way_has_an_end() {
    let root = open_root();
    symlink("loop", root.path().join("loop")).unwrap();
    let turns = open_in(root.path(), Path::new("/loop"), OFlags::empty()).unwrap_err();
    assert!(matches!(turns, OpenError::NotRegular { .. }), "{turns}");
    let deep = Path::new("/").join(["d"; 70].join("/"));
    std::fs::create_dir_all(root.path().join(deep.strip_prefix("/").unwrap())).unwrap();
    let deep = open_as(stranger(), root.path(), &deep, OFlags::empty()).unwrap_err();
    assert!(matches!(deep, OpenError::Io { .. }), "{deep}");
    let names = Path::new("/").join("../".repeat(5000));
    let names = open_as(stranger(), root.path(), &names, OFlags::empty()).unwrap_err();
    assert!(matches!(names, OpenError::Io { .. }), "{names}");
}

#[test]
fn a_link_that_somebody_else_has_put_where_all_may_is_not_followed() {
    let root = open_root();
    let (all, link) = (root.path().join("tmp"), root.path().join("tmp/link"));
    std::fs::create_dir(&all).unwrap();
    std::fs::write(root.path().join("file"), b"x").unwrap();
    symlink("/file", &link).unwrap();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let open = |owner, mode| {
        std::os::unix::fs::lchown(&link, Some(owner), None).unwrap();
        set_mode(&all, mode);
        open_as(stranger(), root.path(), Path::new("/tmp/link"), OFlags::empty())
    };
    assert!(matches!(open(4_000_009, 0o1777), Err(OpenError::Hidden { .. })));
    assert!(open(4_000_009, 0o755).is_ok() && open(4_000_001, 0o1777).is_ok() && open(0, 0o1777).is_ok());
}

const USER: u32 = 4_000_001;
const GROUP: u32 = 4_000_002;
const OTHER_GROUP: u32 = 4_000_003;

/// A process in a root of its own and without rights, which is stopped.
struct Tenant(libc::pid_t);

impl Tenant {
    fn start(root: &Path) -> Self {
        let root = CString::new(root.as_os_str().as_encoded_bytes()).unwrap();
        let groups = [OTHER_GROUP];
        // SAFETY: the new process makes nothing but system calls, with what was made before.
        let pid = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                let failed = libc::chroot(root.as_ptr()) != 0
                    || libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) != 0
                    || libc::syscall(libc::SYS_setgid, GROUP) != 0
                    || libc::syscall(libc::SYS_setuid, USER) != 0;
                if !failed {
                    libc::kill(libc::getpid(), libc::SIGSTOP);
                }
                libc::_exit(1);
            }
            pid
        };
        assert!(pid > 0);
        let (tenant, mut status) = (Self(pid), 0);
        // SAFETY: its status is written to a number.
        unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) };
        assert!(libc::WIFSTOPPED(status), "{status:x}");
        tenant
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        // SAFETY: numbers, of a process that this test has started and nobody has waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn a_perf_map_is_read_as_far_as_its_process_may_read_it() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let root = open_root();
    let (tmp, hidden) = (root.path().join("tmp"), root.path().join("hidden"));
    std::fs::create_dir(&tmp).unwrap();
    set_mode(&tmp, 0o777);
    let tenant = Tenant::start(root.path());
    let pid = Pid(tenant.0.try_into().unwrap());
    let open = |(owner, group): (u32, u32), mode| {
        let map = tmp.join("perf-7.map");
        std::fs::write(&map, b"1000 10 f").unwrap();
        std::os::unix::fs::chown(&map, Some(owner), Some(group)).unwrap();
        set_mode(&map, mode);
        open_perf_map(pid, 7, &[USER])
    };
    assert!(open((USER, GROUP), 0o600).is_ok() && open((0, 0), 0o644).is_ok());
    assert!(open((0, GROUP), 0o640).is_ok() && open((0, OTHER_GROUP), 0o640).is_ok());
    assert!(matches!(open((0, 0), 0o640), Err(OpenError::Private { owner: 0, mode: 0o640, .. })));
    assert!(matches!(open((0, OTHER_GROUP), 0o604), Err(OpenError::Private { .. })));
    assert!(matches!(open((4_000_009, 0), 0o644), Err(OpenError::ForeignOwner { owner: 4_000_009, .. })));
    // The file is its own user's, but lies where that could not look.
    assert!(open((USER, GROUP), 0o644).is_ok());
    std::fs::rename(&tmp, &hidden).unwrap();
    symlink("hidden", &tmp).unwrap();
    let found = |mode| {
        set_mode(&hidden, mode);
        open_perf_map(pid, 7, &[USER])
    };
    assert!(matches!(found(0o700), Err(OpenError::Hidden { .. })));
    assert!(found(0o711).is_ok());
    std::os::unix::fs::chown(&hidden, Some(0), Some(OTHER_GROUP)).unwrap();
    assert!(found(0o710).is_ok());
}

#[test]
fn the_file_behind_a_mapping_is_the_mapped_one() {
    let exe = procfs::exe(own()).unwrap().unwrap();
    let maps = procfs::maps(own()).unwrap();
    let mapping = maps.mappings.iter().find(|mapping| Path::new(&*mapping.path) == exe).unwrap();
    let opened = open_mapping(own(), &MapPlace::of(mapping)).unwrap();
    assert_eq!(opened.identity.inode, mapping.inode);
    let by_path = open_in_root(own(), &exe).unwrap();
    assert_eq!((by_path.via, by_path.identity.inode), (OpenedVia::Root, mapping.inode));
}

#[test]
fn a_replaced_file_is_refused() {
    let exe = procfs::exe(own()).unwrap().unwrap();
    let maps = procfs::maps(own()).unwrap();
    let mapped = maps.mappings.iter().find(|mapping| Path::new(&*mapping.path) == exe).unwrap();
    // Nothing is mapped there, so that only the path leads to the file.
    let moved = Mapping {
        start: mapped.start.max(jitprof_common::units::Avma(1)),
        end: jitprof_common::units::Avma(2),
        inode: mapped.inode + 1,
        ..mapped.clone()
    };
    let refused = open_mapping(own(), &MapPlace::of(&moved)).unwrap_err();
    assert!(matches!(refused, OpenError::Replaced { .. }), "{refused}");
}

/// Where this program is mapped.
fn own_mapping() -> MapPlace {
    let exe = procfs::exe(own()).unwrap().unwrap();
    let maps = procfs::maps(own()).unwrap();
    MapPlace::of(maps.mappings.iter().find(|mapping| Path::new(&*mapping.path) == exe).unwrap())
}

/// A page of a file, mapped.
struct Page(*mut libc::c_void);

impl Page {
    fn of(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let access = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that is there.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access.0, access.1, file.as_raw_fd(), 0) };
        assert_ne!(page, libc::MAP_FAILED);
        Self(page)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping that was made for this, which nobody else has.
        unsafe { libc::munmap(self.0, 4096) };
    }
}

/// Where this test has mapped a file of this name.
fn place_of(name: &str) -> MapPlace {
    let maps = procfs::maps(own()).unwrap();
    MapPlace::of(maps.mappings.iter().find(|mapping| mapping.path.ends_with(name)).unwrap())
}

#[test]
fn the_file_of_a_mapping_that_was_split_is_found_by_what_is_left_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("split.so");
    std::fs::write(&file, [7_u8; 4096]).unwrap();
    let page = Page::of(&file);
    let whole = place_of("/split.so");
    // Without the right to look through map_files there is its path alone.
    if open_mapped(own(), &whole).is_err() {
        return;
    }
    // Nothing is mapped there now, and its path leads nowhere.
    std::fs::remove_file(&file).unwrap();
    let split = MapPlace { start: Avma(4096), end: Avma(8192), ..whole };
    let opened = open_mapping(own(), &split).unwrap();
    assert_eq!((opened.via, opened.identity.inode), (OpenedVia::MapFiles, split.inode));
    // The number may be that of another file since.
    for inode in [split.inode, u64::MAX, 0] {
        let other = MapPlace { inode, path: "/no/such".into(), ..split.clone() };
        assert!(matches!(open_mapping(own(), &other), Err(OpenError::NotFound { .. })), "{other:?}");
    }
    drop(page);
    assert!(matches!(open_mapping(own(), &split), Err(OpenError::NotFound { .. })));
}

#[test]
fn what_a_process_has_mapped_is_not_read_for_a_file_that_its_path_leads_to() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (meta, path) = (file.as_file().metadata().unwrap(), file.path().to_str().unwrap().into());
    let device = Device::from_st_dev(meta.dev());
    let gone = MapPlace { start: Avma(4096), end: Avma(8192), path, inode: meta.ino(), device };
    let open = |place: &MapPlace| {
        let now = MappedNow::of(own());
        let absent = OpenError::NotFound { path: file.path().to_owned(), errno: Errno::NONE };
        let opened = open_found(&now, place, absent);
        (opened.is_ok(), now.mappings.get().is_some())
    };
    assert_eq!(open(&gone), (true, false));
    // By its number alone it may be another file than what is still mapped.
    let elsewhere = Device { minor: device.minor + 1, ..device };
    assert_eq!(open(&MapPlace { device: elsewhere, ..gone }), (true, true));
}

#[test]
fn what_is_mapped_may_be_read_whoever_has_mapped_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("module.so");
    std::fs::write(&file, [7_u8; 4096]).unwrap();
    set_mode(&file, 0o600);
    let meta = std::fs::metadata(&file).unwrap();
    let place = MapPlace { path: file.to_str().unwrap().into(), inode: meta.ino(), ..own_mapping() };
    let open =
        || TargetRoot::new(reach(Path::new("/"), 0).unwrap(), stranger()).open_mapped(&MappedNow::of(own()), &place);
    assert!(open().unwrap_err().is_private());
    let page = Page::of(&file);
    // Of overlayfs and btrfs the kernel says other devices of mappings than of files.
    let is_known = place_of("/module.so").device == Device::from_st_dev(meta.dev());
    assert_eq!(open().is_ok(), is_known);
    drop(page);
    assert!(open().unwrap_err().is_private());
}

#[test]
fn a_handle_is_of_the_mapped_file_or_there_is_none() {
    let exe = procfs::exe(own()).unwrap().unwrap();
    let maps = procfs::maps(own()).unwrap();
    let place = MapPlace::of(maps.mappings.iter().find(|mapping| Path::new(&*mapping.path) == exe).unwrap());
    let identity = open_mapping(own(), &place).unwrap().identity;
    // Without the right to look through map_files there is no handle, and never another file's.
    let Ok(handle) = handle_of_mapping(own(), &place, &identity) else { return };
    assert_eq!(FileIdentity::of(&handle.metadata().unwrap()), identity);
    let other = FileIdentity { inode: identity.inode + 1, ..identity };
    assert!(matches!(handle_of_mapping(own(), &place, &other), Err(OpenError::Replaced { .. })));
    let elsewhere = MapPlace { end: Avma(place.end.0 + 4096), ..place };
    assert!(matches!(handle_of_mapping(own(), &elsewhere, &identity), Err(OpenError::NotFound { .. })));
}

#[test]
fn what_the_kernel_makes_up_is_no_file_of_a_target() {
    // Whatever a target binds over a path in its root: what is read of the kernel's log is gone for all others.
    for path in ["/proc/version", "/proc/kmsg", "/proc/kcore", "/sys/kernel/notes"] {
        match open_in_root(own(), Path::new(path)) {
            Err(OpenError::NotRegular { .. } | OpenError::NotFound { .. }) => {}
            other => panic!("{path}: {other:?}"),
        }
    }
    let refused = open_in_root(own(), Path::new("/proc/version")).unwrap_err();
    assert!(matches!(refused, OpenError::NotRegular { .. }), "{refused}");
}

#[test]
fn symbolic_links_do_not_leave_the_root() {
    let root = tempfile::tempdir().unwrap();
    let outside = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(root.path().join("inside"), b"x").unwrap();
    symlink(outside.path(), root.path().join("absolute")).unwrap();
    symlink("../../../../../../etc/passwd", root.path().join("climbing")).unwrap();
    symlink("/inside", root.path().join("good")).unwrap();
    symlink("/proc/self/exe", root.path().join("magic")).unwrap();
    let open = |name: &str, flags| open_in(root.path(), Path::new(name), flags);
    assert!(matches!(open("/absolute", OFlags::empty()), Err(OpenError::NotFound { .. })));
    assert!(matches!(open("/climbing", OFlags::empty()), Err(OpenError::NotFound { .. })));
    assert!(matches!(open("/../../../etc/passwd", OFlags::empty()), Err(OpenError::NotFound { .. })));
    assert!(matches!(open("/magic", OFlags::empty()), Err(OpenError::NotFound { .. })));
    assert_eq!(open("/good", OFlags::empty()).unwrap().identity.len, 1);
    // What lies above a directory is found from where a link leads to.
    std::fs::create_dir_all(root.path().join("one/two")).unwrap();
    std::fs::write(root.path().join("one/file"), b"xx").unwrap();
    symlink("one/two", root.path().join("two")).unwrap();
    assert_eq!(open("/two/../file", OFlags::NOFOLLOW).unwrap().identity.len, 2);
    assert!(matches!(open("/inside/file", OFlags::empty()), Err(OpenError::NotFound { .. })));
    assert!(matches!(open("/good", OFlags::NOFOLLOW), Err(OpenError::NotRegular { .. })));
}

#[test]
fn magic_links_in_the_root_are_not_followed() {
    let link = format!("/{}/exe", own());
    let refused = open_in(Path::new("/proc"), Path::new(&link), OFlags::empty()).unwrap_err();
    assert!(matches!(refused, OpenError::NotRegular { .. }), "{refused}");
}

#[test]
fn nothing_but_regular_files_is_opened_and_nothing_blocks() {
    let root = tempfile::tempdir().unwrap();
    let fifo = root.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for name in ["/fifo", "/"] {
        let refused = open_in(root.path(), Path::new(name), OFlags::empty()).unwrap_err();
        assert!(matches!(refused, OpenError::NotRegular { .. }), "{name}: {refused}");
    }
    let refused = open_in_root(own(), Path::new("/dev/null")).unwrap_err();
    assert!(matches!(refused, OpenError::NotRegular { .. }), "{refused}");
}

#[test]
fn a_perf_map_of_somebody_else_is_ignored() {
    let path = Path::new("/tmp/perf-1.map");
    let refused = check_owner(path, 1000, &[0, 1001]).unwrap_err();
    assert_eq!(refused.to_string(), "/tmp/perf-1.map belongs to uid 1000, not to the target's uid 1001: ignored");
    assert!(check_owner(path, 1001, &[0, 1001]).is_ok());
    assert!(check_owner(path, 0, &[1001]).is_ok());
}

#[test]
fn device_numbers_split_as_glibc_does() {
    assert_eq!(Device::from_st_dev(0xfe00), Device { major: 0xfe, minor: 0 });
    assert_eq!(Device::from_st_dev(0x0000_1000_0020_0803), Device { major: 0x1008, minor: 0x203 });
}

#[test]
fn files_can_be_opened_in_a_root_unless_a_filter_forbids_it() {
    check_open_in_root().unwrap();
}

#[test]
fn what_a_path_leads_through_is_known_without_asking_it() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), b"x").unwrap();
    symlink(directory.path().join("file"), directory.path().join("link")).unwrap();
    let leads = |name: &str, holding: Option<Device>| {
        way_to(own(), &directory.path().join(name), |device| Some(device) == holding)
    };
    let own_device = Device::from_st_dev(std::fs::metadata(directory.path()).unwrap().dev());
    let ways = |holding| ["file", "lacks", "lacks/file"].map(|name| leads(name, holding));
    assert_eq!(ways(None), [Way::Clear, Way::Nowhere, Way::Nowhere], "nothing on the way holds anybody");
    assert_eq!(ways(Some(own_device)), [Way::Uncertain; 3]);
    let file = FileIdentity::of(&std::fs::metadata(directory.path().join("file")).unwrap());
    let ends = |name: &str| way_and_end(own(), &directory.path().join(name), |_| false).1;
    assert_eq!(["file", "lacks", "link"].map(ends), [Some((file.device, file.inode)), None, None]);
    assert_eq!(leads("link", None), Way::Uncertain, "where it leads is not known");
    assert_eq!(leads("../file", None), Way::Uncertain, "nor what lies above");
    let of_proc = Device::from_st_dev(std::fs::metadata("/proc").unwrap().dev());
    let through_proc = |path: &str| way_to(own(), Path::new(path), |device| device == of_proc);
    assert_eq!(["/proc/version", "/etc/passwd"].map(through_proc), [Way::Uncertain, Way::Clear]);
    assert_eq!(way_to(Pid(u32::MAX >> 2), Path::new("/tmp"), |_| true), Way::Clear, "there is no such process");
}
