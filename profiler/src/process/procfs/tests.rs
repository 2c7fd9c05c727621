use proptest::prelude::*;

use super::*;
use crate::process::access::Access;
use crate::process::{Device, Errno, MappingKind};
use jitprof_common::units::{Avma, FileOffset};

const MAPS: &[u8] = b"\
55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 r-xp 00000000 fe:00 10011663                   /tmp/jit-18264.dump (deleted)
7f0000002000-7f0000003000 r-xp 0000a000 08:11 42                         /opt/my app/lib x.so
7f0000003000-7f0000004000 rw-s 00000000 00:01 7                          /memfd:V8 code (deleted)
7f0000004000-7f0000005000 rwxp 00000000 00:00 0 
7f0000005000-7f0000006000 rwxp 00000000 00:00 0                          [anon:v8]
7f0000006000-7f0000007000 r--p 00000000 08:11 43                         /tmp/new\\012line
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
7ffd00030000-7ffd00032000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

#[test]
fn every_kind_of_line_is_understood() {
    let maps = parse_maps(MAPS);
    assert_eq!((maps.bad_lines, maps.truncated), (0, false));
    let kinds: Vec<_> = maps.mappings.iter().map(|mapping| mapping.kind).collect();
    use MappingKind::{Anonymous, File, Heap, NamedMemory, Stack, Vdso, Vsyscall};
    let expected = [Heap, File, File, NamedMemory, Anonymous, NamedMemory, File, Stack, Vdso, Vsyscall];
    assert_eq!(kinds, expected);

    let dump = &maps.mappings[1];
    assert_eq!((&*dump.path, dump.deleted, dump.inode), ("/tmp/jit-18264.dump", true, 10_011_663));
    assert_eq!(dump.device, Device { major: 0xfe, minor: 0 });
    let spaced = &maps.mappings[2];
    assert_eq!((&*spaced.path, spaced.file_offset), ("/opt/my app/lib x.so", FileOffset(0xa000)));
    assert_eq!(spaced.file_offset_of(Avma(0x7f00_0000_2010)), Some(FileOffset(0xa010)));
    assert_eq!(spaced.file_offset_of(Avma(0x7f00_0000_3000)), None);
    assert!(spaced.prot.execute && !spaced.prot.write && !spaced.prot.shared);
    assert!(maps.mappings[3].prot.shared);
    assert_eq!(&*maps.mappings[6].path, "/tmp/new\nline");
}

/// Counts how often it is read from.
struct Counting<'a>(&'a [u8], &'a mut usize);

impl Read for Counting<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        *self.1 += 1;
        self.0.read(into)
    }
}

#[test]
fn what_is_said_of_a_process_is_read_with_one_call_and_one_that_finds_its_end() {
    let (text, mut calls) = (vec![b'x'; 1500], 0);
    let read = read_up_to(Counting(&text, &mut calls), MAX_STATUS_BYTES).unwrap();
    assert_eq!((read, calls), ((text, false), 2));
    let (long, mut calls) = (vec![b'x'; 3 * AT_ONCE], 0);
    let (read, was_cut) = read_up_to(Counting(&long, &mut calls), 2 * AT_ONCE as u64).unwrap();
    assert_eq!((read.len(), was_cut), (2 * AT_ONCE, true));
}

#[test]
fn a_bad_line_costs_that_line_only() {
    let mut text = b"nonsense\n7f0000001000-7f0000001000 r-xp 0 00:00 0\n-1-2 r-xp 0 0:0 0\n".to_vec();
    text.extend_from_slice(MAPS);
    let maps = parse_maps(&text);
    assert_eq!((maps.bad_lines, maps.mappings.len()), (3, 10));
}

#[test]
fn more_mappings_than_the_bound_are_cut_and_said_so() {
    let mut text = Vec::new();
    for index in 0..100_001_u64 {
        let start = index * 0x2000;
        text.extend_from_slice(format!("{start:x}-{:x} r-xp 0 00:00 0\n", start + 0x1000).as_bytes());
    }
    let maps = parse_maps(&text);
    assert_eq!((maps.mappings.len(), maps.truncated), (100_000, true));
}

#[test]
fn truncation_and_flips_never_panic() {
    for end in 0..MAPS.len() {
        let maps = parse_maps(&MAPS[..end]);
        assert!(maps.mappings.len() + maps.bad_lines as usize <= 10);
    }
    for at in 0..MAPS.len() {
        for flip in [1, 0x20, 0x80, 0xff] {
            let mut text = MAPS.to_vec();
            text[at] ^= flip;
            let maps = parse_maps(&text);
            assert!(maps.mappings.len() >= 8, "one byte costs two lines at most");
        }
    }
}

#[test]
fn a_name_full_of_parentheses_does_not_shift_the_fields_of_stat() {
    let text = b"42 (a) R 1 (\n)) S 7 42 42 0 -1 2097216 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0 18446744073709551615\n";
    let stat = Stat::parse(text).unwrap();
    assert_eq!((stat.pid, stat.comm.as_str(), stat.state), (Pid(42), "a) R 1 (\n)", 'S'));
    assert_eq!((stat.parent, stat.start_ticks), (Pid(7), 12345));
    assert!(stat.is_kernel_thread() && !stat.is_dead());
    for end in 0..text.len() - 30 {
        assert!(Stat::parse(&text[..end]).is_none(), "cut at {end}");
    }
}

#[test]
fn status_gives_the_innermost_pid_and_all_uids() {
    let text = b"Name:\tTgid:\\n5\nUmask:\t0022\nTgid:\t900\nPid:\t900\nUid:\t1000\t1001\t1002\t1003\nNStgid:\t900\t1\nNSpid:\t900\t17\t1\n";
    let status = Status::parse(text).unwrap();
    assert_eq!((status.tgid, status.own_pid()), (Pid(900), 1));
    assert_eq!((status.real_uid, status.effective_uid, status.fs_uid), (1000, 1001, 1003));
    let without = Status::parse(b"Tgid:\t900\nUid:\t0\t0\t0\t0\n").unwrap();
    assert_eq!(without.own_pid(), 900);
}

#[test]
fn a_process_has_the_ids_and_capabilities_that_its_status_says() {
    let of = |text: &str| Credentials::parse(text.as_bytes()).unwrap();
    let one = of("Uid:\t1000\t1001\t1002\t1003\nGid:\t50\t51\t51\t51\nFDSize:\t64\nGroups:\t60 61 \n");
    assert_eq!((&*one.uids, &*one.gids), (&[1000, 1001, 1002, 1003][..], &[50, 51, 51, 51, 60, 61][..]));
    assert_eq!(one.also(&[0, 2000]).uids, [1000, 1001, 1002, 1003, 2000], "it was root for the time of `su`");
    // What it has permitted it may take up again.
    let root =
        |caps: &str| of(&format!("Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nCapPrm:\t{caps}\nCapEff:\t0\nSeccomp:\t0\n"));
    let reads_all = ["000001ffffffffff", "0000000000000004", "0000000000000002"].map(|caps| root(caps).reads_all);
    assert_eq!(reads_all, [true; 3]);
    assert_eq!(["0000000000000000", "00000000fffffff9", "x"].map(|caps| root(caps).reads_all), [false; 3]);
    assert!(!root("000001ffffffffff").without_capabilities().reads_all && Credentials::of_all().reads_all);
    // There is more of the last number than was read.
    let cut = of("Uid:\t1000\t1000\t1000\t1000\nGid:\t50\t50\t50\t50\nGroups:\t60 4");
    assert_eq!(cut.gids, [50; 4]);
    assert!(Credentials::parse(b"Uid:\t0\t0\t0\t0\n").is_none());
}

/// A process' directory as the kernel could show it.
struct Shown(tempfile::TempDir);

impl Shown {
    /// `users` is a file of its user namespace.
    fn new(status: &str, users: &str) -> Self {
        let shown = Self(tempfile::tempdir().unwrap());
        fs::create_dir(shown.0.path().join("ns")).unwrap();
        std::os::unix::fs::symlink(users, shown.0.path().join("ns/user")).unwrap();
        shown.with("status", status)
    }

    fn with(self, name: &str, text: &str) -> Self {
        fs::write(self.0.path().join(name), text).unwrap();
        self
    }

    fn directory(&self) -> File {
        File::open(self.0.path()).unwrap()
    }
}

#[test]
fn a_process_in_many_groups_has_its_capabilities_and_its_own_number_nevertheless() {
    let shown = |count: u32| {
        let groups: Vec<String> = (0..count).map(|group| (1_000_000 + group).to_string()).collect();
        let ids = format!("Tgid:\t900\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t{} \n", groups.join(" "));
        Shown::new(&format!("{ids}NSpid:\t900\t7\nCapPrm:\t0000000000000004\n"), "/proc/self/ns/user")
    };
    let (many, all) = (shown(3000), shown(65_536));
    assert!(status_in(&all.directory()).is_some_and(|status| status.own_pid() == 7));
    let [many, all] = [many, all].map(|shown| credentials_in(&shown.directory()).unwrap());
    assert!(many.reads_all && many.gids.contains(&1_002_999));
    assert!(all.reads_all && all.gids.len() < 5000, "{}", all.gids.len());
}

#[test]
fn capabilities_in_another_user_namespace_count_for_what_has_its_owner_and_its_group_there() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let meta = file.as_file().metadata().unwrap();
    let (owner, group) = (meta.uid(), meta.gid());
    let shown = |capabilities: &str| {
        let (user, group) = ("4000001\t".repeat(4), "4000002\t".repeat(4));
        Shown::new(&format!("Uid:\t{user}\nGid:\t{group}\nCapPrm:\t{capabilities}\n"), "/proc/self/ns/pid")
    };
    let may = |shown: &Shown| {
        let found = credentials_in(&shown.directory()).unwrap();
        !found.reads_all && found.may(Access::Read, file.as_file(), &meta)
    };
    let (all, none) = ("0000000000000004", "0000000000000000");
    let may_with = |capabilities, users: u32, groups: u32| {
        let [users, groups] = [users, groups].map(|first| format!("0 {first} 1\n"));
        may(&shown(capabilities).with("uid_map", &users).with("gid_map", &groups))
    };
    assert!(may_with(all, owner, group));
    assert!(!may_with(all, owner + 1, group) && !may_with(all, owner, group + 1) && !may_with(none, owner, group));
    assert!(!may(&shown(all)), "it is not known of whom it is root");
}

#[test]
fn capabilities_in_a_user_namespace_of_its_own_are_not_counted_outside() {
    let own = credentials_in(&File::open("/proc/self").unwrap()).unwrap();
    assert_eq!(own.reads_all, Credentials::parse(&fs::read("/proc/self/status").unwrap()).unwrap().reads_all);
    let mut started = std::process::Command::new("unshare");
    started.args(["--user", "--map-root-user", "sleep", "60"]);
    let started = started.stderr(std::process::Stdio::null()).spawn();
    let Ok(mut child) = started else { return };
    let directory = File::open(proc_path(Pid(child.id()), "")).unwrap();
    let own_users = users_in(&File::open("/proc/self").unwrap());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while users_in(&directory) == own_users && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let (found, is_there) = (credentials_in(&directory), child.try_wait().unwrap().is_none());
    drop(child.kill());
    drop(child.wait());
    // Not every machine lets a process make one.
    assert!(!is_there || found.is_some_and(|found| !found.reads_all && !found.uids.is_empty()));
}

#[test]
fn our_own_process_can_be_read() {
    let own = Pid(std::process::id());
    let stat = stat(own).unwrap();
    assert_eq!(stat.pid, own);
    assert!(!stat.is_kernel_thread());
    let now = crate::process::monotonic_now();
    assert!(stat.start() <= now && now.0 - stat.start().0 < 3_600_000_000_000, "started within the hour");
    assert_eq!(status(own).unwrap().tgid, own);
    let exe = exe(own).unwrap().unwrap();
    assert!(maps(own).unwrap().mappings.iter().any(|mapping| *mapping.path == *exe.to_str().unwrap()));
    assert!(threads(own).unwrap().contains(&Tid(own.0)));
    assert!(!comm(own).unwrap().is_empty());
    assert!(!cmdline(own).unwrap().is_empty());
    assert_eq!(pid_namespace(own).unwrap(), namespace(own, "ns/pid").unwrap());
    assert_ne!(mount_namespace(own).unwrap(), pid_namespace(own).unwrap());
}

#[test]
fn a_process_that_is_not_there_is_named() {
    // Above pid_max's largest value.
    let nobody = Pid(0x40_0001);
    let failed = maps(nobody).unwrap_err();
    assert!(
        matches!(failed, ProcError::NoSuchProcess(pid, errno) if pid == nobody && errno == Errno::from_raw(libc::ENOENT)),
        "{failed}"
    );
    assert!(matches!(exe(nobody), Err(ProcError::NoSuchProcess(..))));
}

#[test]
fn a_descriptor_is_found_by_its_file() {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, b"12345").unwrap();
    let meta = file.metadata().unwrap();
    let own = Pid(std::process::id());
    let fds = fds_of_file(own, meta.dev(), meta.ino()).unwrap();
    let fd = u32::try_from(std::os::fd::AsRawFd::as_raw_fd(&file)).unwrap();
    assert_eq!(fds, [fd]);
    assert_eq!(fd_position(own, fd).unwrap(), 5);
    assert_eq!(fd_target(own, fd).unwrap(), (meta.dev(), meta.ino()));
}

proptest! {
    #[test]
    fn no_bytes_panic_a_parser(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let maps = parse_maps(&bytes);
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        prop_assert_eq!(maps.mappings.len() + usize::try_from(maps.bad_lines).unwrap(), lines);
        prop_assert!(Stat::parse(&bytes).is_none_or(|stat| stat.comm.len() <= 3 * bytes.len()));
        prop_assert!(Status::parse(&bytes).is_none_or(|status| !status.ns_pids.is_empty()));
    }
}
