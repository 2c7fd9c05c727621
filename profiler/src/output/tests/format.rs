use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;

use super::*;

fn names_in(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn write_text(path: &Path, text: &str) -> Result<(), OutputError> {
    write_to(&Destination::File(path.to_owned()), |writer| Ok(writer.write_all(text.as_bytes())?))
}

#[test]
fn a_format_is_chosen_by_extension_or_name() {
    let of = |name: &str| Format::from_path(Path::new(name)).ok();
    assert_eq!(of("a/b.c.svg"), Some(Format::Svg));
    assert_eq!(of("X.SVG"), Some(Format::Svg));
    assert_eq!(of("stacks.folded"), Some(Format::Folded));
    assert_eq!(of("stacks.txt"), Some(Format::Folded));
    assert_eq!(of("cpu.pb.gz"), Some(Format::Pprof));
    assert_eq!(of("cpu.pprof"), Some(Format::Pprof));
    assert_eq!(of("profile.json"), Some(Format::Firefox));
    assert_eq!((of("profile"), of("a.gz"), of("svg"), of("-")), (None, None, None, None));
    for name in Format::NAMES {
        assert_eq!(name.parse::<Format>().unwrap().to_string(), name);
    }
    let error = "html".parse::<Format>().unwrap_err().to_string();
    assert!(error.contains("svg, folded, pprof, firefox"), "{error}");
}

#[test]
fn a_colour_scheme_is_kind_or_a_palette_of_inferno() {
    assert_eq!("kind".parse::<ColorScheme>().unwrap(), ColorScheme::ByKind);
    assert!(matches!("java".parse::<ColorScheme>().unwrap(), ColorScheme::Palette(_)));
    assert!("mauve".parse::<ColorScheme>().unwrap_err().to_string().contains("aqua"));
}

#[test]
fn a_dash_is_stdout() {
    assert_eq!(Destination::from_argument(Path::new("-")), Destination::Stdout);
    assert_eq!(Destination::from_argument(Path::new("./-")), Destination::File("./-".into()));
}

#[test]
fn a_file_is_replaced_whole_and_nothing_else_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.svg");
    write_text(&path, "one").unwrap();
    write_text(&path, "two").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "two");
    assert_eq!(names_in(directory.path()), ["out.svg"]);
}

#[test]
fn a_failed_write_leaves_the_old_file_and_no_temporary_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.svg");
    write_text(&path, "old").unwrap();
    let error = write_to(&Destination::File(path.clone()), |writer| {
        writer.write_all(b"half")?;
        Err(OutputError::NoSamples)
    });
    assert!(matches!(error, Err(OutputError::NoSamples)));
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(names_in(directory.path()), ["out.svg"]);
}

#[test]
fn the_check_leaves_nothing_behind_and_touches_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.svg");
    check_writable(&Destination::File(path.clone())).unwrap();
    assert!(names_in(directory.path()).is_empty());
    fs::write(&path, "old").unwrap();
    check_writable(&Destination::File(path.clone())).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}

#[test]
fn a_relative_path_without_a_directory_is_checked_in_the_present_one() {
    check_writable(&Destination::File("jitprof-test-out.svg".into())).unwrap();
    assert!(!Path::new("jitprof-test-out.svg").exists());
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let (victim, link) = (directory.path().join("victim"), directory.path().join("out.svg"));
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, &link).unwrap();
    let destination = Destination::File(link.clone());
    let error = check_writable(&destination).unwrap_err().to_string();
    assert!(error.contains("symbolic link") && error.contains("name the file itself"), "{error}");
    write_text(&link, "evil").unwrap_err();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn an_own_link_to_an_own_fifo_is_followed() {
    let directory = tempfile::tempdir().unwrap();
    let (fifo, link) = (directory.path().join("fifo"), directory.path().join("out.svg"));
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600), 0)
        .unwrap();
    symlink(&fifo, &link).unwrap();
    check_writable(&Destination::File(link.clone())).unwrap();
    let reader = std::thread::spawn(move || fs::read_to_string(fifo).unwrap());
    write_text(&link, "ours").unwrap();
    assert_eq!(reader.join().unwrap(), "ours");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn own_descriptors_are_written_under_any_of_their_names() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&writer);
    for directory in ["/dev/fd", "/proc/self/fd"] {
        let path = Path::new(directory).join(number.to_string());
        check_writable(&Destination::File(path.clone())).unwrap();
        write_text(&path, "ours").unwrap();
    }
    drop(writer);
    let mut got = String::new();
    std::io::Read::read_to_string(&mut reader, &mut got).unwrap();
    assert_eq!(got, "oursours");
    for name in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        assert_eq!(Destination::from_argument(Path::new(name)), Destination::Stdout, "{name}");
    }
    check_writable(&Destination::File("/dev/fd/12345".into())).unwrap_err();
}

#[test]
fn what_has_no_place_gets_one_for_itself_that_only_its_owner_reads() {
    let path = Path::new("/nowhere/that/is/out.svg");
    let place = |text: &str| write_aside(path, |writer| Ok(writer.write_all(text.as_bytes())?)).unwrap();
    let (one, other) = (place("one"), place("other"));
    assert_ne!(one, other);
    for (place, text) in [(&one, "one"), (&other, "other")] {
        assert_eq!((place.file_name(), fs::read_to_string(place).unwrap().as_str()), (path.file_name(), text));
        let directory = place.parent().unwrap();
        assert_eq!(fs::metadata(directory).unwrap().permissions().mode() & 0o777, 0o700);
        fs::remove_dir_all(directory).unwrap();
    }
    write_aside(Path::new("/"), |_| Ok(())).unwrap_err();
    write_aside(path, |_| Err(OutputError::NoSamples)).unwrap_err();
}

#[test]
fn a_link_planted_under_the_temporary_name_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let victim = directory.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let planted = directory.path().join(format!(".jitprof-{}-0.tmp", std::process::id()));
    symlink(&victim, &planted).unwrap();
    let path = directory.path().join("out.svg");
    write_text(&path, "ours").unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(fs::read_to_string(&path).unwrap(), "ours");
}

#[test]
fn a_link_planted_after_the_check_is_replaced_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let (victim, path) = (directory.path().join("victim"), directory.path().join("out.svg"));
    fs::write(&victim, "precious").unwrap();
    write_to(&Destination::File(path.clone()), |writer| {
        symlink(&victim, &path).unwrap();
        Ok(writer.write_all(b"ours")?)
    })
    .unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(fs::read_to_string(&path).unwrap(), "ours");
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
}

#[test]
fn a_device_is_written_and_never_replaced() {
    write_text(Path::new("/dev/null"), "gone").unwrap();
    check_writable(&Destination::File("/dev/null".into())).unwrap();
    assert!(fs::symlink_metadata("/dev/null").unwrap().file_type().is_char_device());
}

#[test]
fn errors_name_the_path_the_reason_and_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let check = |path: &Path| check_writable(&Destination::File(path.to_owned())).unwrap_err().to_string();
    let missing = check(&directory.path().join("no/such/out.svg"));
    assert!(missing.contains("no/such/out.svg") && missing.contains("os error 2"), "{missing}");
    assert!(missing.contains("create the directory first"), "{missing}");
    assert!(check(directory.path()).contains("it is a directory; name a file in it"));
    let long = check(&directory.path().join(format!("{}/x.svg", "n".repeat(300))));
    assert!(long.contains("shorter name"), "{long}");
    fs::write(directory.path().join("file"), "").unwrap();
    let not_a_directory = check(&directory.path().join("file/out.svg"));
    assert!(not_a_directory.contains("a part of the path is a file"), "{not_a_directory}");
    let slash = check(Path::new(&format!("{}/", directory.path().join("new.svg").display())));
    assert!(slash.contains("is a directory; name a file in it"), "{slash}");
}

#[test]
fn nobody_is_sent_to_create_a_directory_where_none_can_be() {
    for path in ["/proc/jitprof/out.svg", "/proc/jitprof/deeper/out.svg", "/proc/jitprof.svg", "/dev/fd/12345"] {
        let error = check_writable(&Destination::File(path.into())).unwrap_err().to_string();
        assert!(error.contains("nobody can create files there; give another path with -o"), "{error}");
    }
}

#[test]
fn a_full_disk_is_reported_with_the_path() {
    let error = write_text(Path::new("/dev/full"), "x").unwrap_err().to_string();
    assert!(error.contains("cannot write /dev/full") && error.contains("free some space"), "{error}");
}

#[test]
fn a_directory_without_write_permission_is_found_by_the_check() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o500)).unwrap();
    let result = check_writable(&Destination::File(directory.path().join("out.svg")));
    // Root may write everywhere; everybody else may not.
    if let Err(error) = result {
        assert!(error.to_string().contains("where you may create files"), "{error}");
    }
    assert!(names_in(directory.path()).is_empty());
}
