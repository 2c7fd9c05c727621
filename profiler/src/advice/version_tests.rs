//! Paths, files and variables as real installations have them.

use proptest::prelude::*;

use super::*;

fn with_clues<T>(exe: &str, mapped: &[&str], test: impl FnOnce(&Clues<'_>) -> T) -> T {
    let mapped_files: Vec<String> = mapped.iter().map(|path| (*path).to_owned()).collect();
    test(&Clues { exe, mapped_files: &mapped_files, ..Clues::default() })
}

fn shown(exe: &str, mapped: &[&str]) -> Option<(&'static str, Option<String>)> {
    with_clues(exe, mapped, |clues| {
        let runtime = main_runtime(clues)?.runtime;
        Some((runtime.label(), version_in_paths(runtime, clues)))
    })
}

#[test]
fn the_program_is_the_main_runtime_and_a_library_only_in_other_programs() {
    let library = "/venv/wasmtime/linux-x86_64/_libwasmtime.so";
    assert_eq!(shown("/usr/bin/python3.13", &[library]), Some(("cpython", Some("3.13".to_owned()))));
    assert_eq!(shown("/app/server", &[library]), Some(("wasmtime", None)));
    assert_eq!(shown("/usr/bin/bash", &["/usr/lib/libc.so.6"]), None);
}

#[test]
fn paths_say_as_many_numbers_as_they_have() {
    let version = |exe, mapped: &[&str]| shown(exe, mapped).and_then(|(_, version)| version);
    let cases: [(&str, &[&str], Option<&str>); 12] = [
        ("/usr/bin/python3.13", &[], Some("3.13")),
        ("/usr/bin/python3.13 (deleted)", &[], Some("3.13")),
        ("/root/.pyenv/versions/3.13.0/bin/python3.13", &[], Some("3.13.0")),
        ("/root/.local/share/uv/python/cpython-3.12.4-linux-x86_64-gnu/bin/python3.12", &[], Some("3.12.4")),
        ("/usr/bin/uwsgi", &["/usr/lib/x86_64-linux-gnu/libpython3.12.so.1.0"], Some("3.12")),
        ("/home/u/.nvm/versions/node/v20.11.0/bin/node", &[], Some("20.11.0")),
        ("/opt/node-v22.1.0-linux-x64/bin/node", &[], Some("22.1.0")),
        ("/usr/bin/node", &[], None),
        ("/opt/jdk-21.0.2/bin/java", &[], Some("21.0.2")),
        ("/app/x", &["/usr/share/dotnet/shared/Microsoft.NETCore.App/8.0.4/libcoreclr.so"], Some("8.0.4")),
        ("/usr/sbin/php-fpm8.2", &[], Some("8.2")),
        ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", &[], None),
    ];
    for (exe, mapped, expected) in cases {
        assert_eq!(version(exe, mapped).as_deref(), expected, "{exe}");
    }
}

/// The version that an installation's only file of this path says.
fn in_file(exe: &str, mapped: &[&str], path: &str, text: &str) -> Option<String> {
    with_clues(exe, mapped, |clues| {
        let runtime = main_runtime(clues)?.runtime;
        version_files(runtime, clues).iter().find(|file| file.path == path)?.version(text.as_bytes())
    })
}

#[test]
fn installations_say_their_version_in_a_file() {
    let header =
        "#ifndef X\n#define NODE_MAJOR_VERSION 20\n#define NODE_MINOR_VERSION 11\n#define NODE_PATCH_VERSION 0\n";
    let node = in_file("/usr/local/bin/node", &[], "/usr/local/include/node/node_version.h", header);
    assert_eq!(node.as_deref(), Some("20.11.0"));
    let release = "IMPLEMENTOR=\"Debian\"\nJAVA_VERSION=\"17.0.2\"\n";
    let java = "/usr/lib/jvm/java-17-openjdk-amd64";
    let program = format!("{java}/bin/java");
    assert_eq!(in_file(&program, &[], &format!("{java}/release"), release).as_deref(), Some("17.0.2"));
    let library = format!("{java}/lib/server/libjvm.so");
    assert_eq!(in_file("/opt/idea", &[&library], &format!("{java}/release"), release).as_deref(), Some("17.0.2"));
    let erlang = ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", "/usr/lib/erlang/releases/25/OTP_VERSION");
    assert_eq!(in_file(erlang.0, &[], erlang.1, "25.2.3\n").as_deref(), Some("25.2.3"));
    assert_eq!(in_file(erlang.0, &[], erlang.1, "\u{202e}25\nrm"), None);
}

#[test]
fn of_the_environment_one_variable_is_read() {
    let environment = b"PATH=/bin\0XNODE_VERSION=1\0NODE_VERSION_X=2\0NODE_VERSION=20.11.0\0SECRET=x\0";
    assert_eq!(version_in_environment(environment, "NODE_VERSION").as_deref(), Some("20.11.0"));
    assert_eq!(version_in_environment(b"JAVA_VERSION=jdk-17.0.2+8\0", "JAVA_VERSION"), None);
    assert_eq!(version_in_environment(b"NODE_VERSION", "NODE_VERSION"), None);
    assert_eq!(version_in_environment(b"NODE_VERSION=1 password\0", "NODE_VERSION"), None);
}

proptest! {
    #[test]
    fn any_text_gives_a_short_version_or_none(exe in ".{0,80}", file in "(/|erts-|node/v|[0-9.]|libjvm.so|python){0,20}",
                                              text in prop::collection::vec(any::<u8>(), 0..300)) {
        let mapped_files = [file.clone()];
        for exe in [exe, file] {
            let clues = Clues { exe: &exe, mapped_files: &mapped_files, ..Clues::default() };
            let Some(runtime) = main_runtime(&clues).map(|main| main.runtime) else { continue };
            let files = version_files(runtime, &clues);
            let versions = files.iter().map(|file| file.version(&text)).chain([version_in_paths(runtime, &clues)]);
            for version in versions.flatten() {
                prop_assert!(version.len() <= 40 && version.starts_with(|c: char| c.is_ascii_digit()));
            }
        }
        if let Some(version) = version_in_environment(&text, "") {
            prop_assert!(version.len() <= 32);
        }
    }
}
