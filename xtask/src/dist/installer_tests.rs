//! contrib/install.sh, run with programs that are scripts.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// An unpacked archive, and an empty system beside it.
struct Unpacked {
    scratch: tempfile::TempDir,
}

impl Unpacked {
    fn new() -> Self {
        let unpacked = Self { scratch: tempfile::tempdir().unwrap() };
        let (archive, root) = (unpacked.archive(), Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
        for folder in ["man", "completions", "contrib/systemd"] {
            std::fs::create_dir_all(archive.join(folder)).unwrap();
        }
        std::fs::create_dir(unpacked.system()).unwrap();
        for name in ["contrib/jitprof.toml", "contrib/systemd/jitprof.service", "contrib/systemd/sysusers.conf"] {
            std::fs::copy(root.join(name), archive.join(name)).unwrap();
        }
        for name in ["LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY.md"] {
            std::fs::copy(root.join(name), archive.join(name)).unwrap();
        }
        std::fs::copy(root.join("contrib/install.sh"), archive.join("install.sh")).unwrap();
        let texts = ["man/jitprof.1", "completions/jitprof", "completions/_jitprof", "completions/jitprof.fish"];
        for name in texts.iter().chain(&["libjitprof_agent.so"]) {
            std::fs::write(archive.join(name), name).unwrap();
        }
        std::fs::write(archive.join("jitprof"), "#!/bin/sh\necho jitprof 0\n").unwrap();
        for name in ["jitprof", "install.sh"] {
            std::fs::set_permissions(archive.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        unpacked
    }

    fn archive(&self) -> PathBuf {
        self.scratch.path().join("jitprof-0-x86_64-linux")
    }

    fn system(&self) -> PathBuf {
        self.scratch.path().join("system")
    }

    fn install(&self, arguments: &[&str]) -> Output {
        let mut script = Command::new(self.archive().join("install.sh"));
        script.args(arguments).env("DESTDIR", self.system()).output().unwrap()
    }

    /// The same, which must succeed; what it said.
    fn installed(&self, arguments: &[&str]) -> String {
        let output = self.install(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Files and directories of the system.
    fn there(&self) -> BTreeSet<String> {
        let output = Command::new("find").arg(".").current_dir(self.system()).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

#[test]
fn a_dry_run_says_what_an_installation_does_and_does_nothing() {
    let unpacked = Unpacked::new();
    let before = unpacked.there();
    let said = unpacked.installed(&["--dry-run", "--service"]);
    assert_eq!(unpacked.there(), before);
    assert_eq!(unpacked.installed(&["--service"]), said);
    // Each file is one that was named, but for the list of them all.
    let named = |path: &str| said.contains(&format!("{}\n", unpacked.system().join(path).display()));
    for path in unpacked.there() {
        let file = unpacked.system().join(path.trim_start_matches("./"));
        if file.is_file() && !path.ends_with("share/jitprof/installed") {
            assert!(named(path.trim_start_matches("./")), "{path} was not named");
        }
    }
}

#[test]
fn what_was_installed_is_removed_to_the_last_directory_and_nothing_else() {
    let unpacked = Unpacked::new();
    let others = unpacked.system().join("usr/local/share/man/man1/other.1");
    std::fs::create_dir_all(others.parent().unwrap()).unwrap();
    std::fs::write(&others, "other").unwrap();
    let before = unpacked.there();
    // The second run adds to what the first one installed.
    unpacked.installed(&[]);
    unpacked.installed(&["--service"]);
    unpacked.installed(&["--uninstall", "--dry-run"]);
    assert!(unpacked.there().contains("./usr/local/bin/jitprof"));
    unpacked.installed(&["--uninstall"]);
    assert_eq!(unpacked.there(), before);
    let again = unpacked.install(&["--uninstall"]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("nothing was installed"));
}

#[test]
fn a_configuration_that_was_changed_outlives_both_a_second_installation_and_a_removal() {
    let unpacked = Unpacked::new();
    unpacked.installed(&["--prefix", "/opt/jitprof", "--service"]);
    let configuration = unpacked.system().join("etc/jitprof/jitprof.toml");
    std::fs::write(&configuration, "# mine\n").unwrap();
    assert!(unpacked.installed(&["--prefix=/opt/jitprof", "--service"]).contains("jitprof.toml: it is there"));
    assert!(unpacked.installed(&["--prefix=/opt/jitprof", "--uninstall"]).contains("jitprof.toml: it was changed"));
    assert_eq!(std::fs::read_to_string(&configuration).unwrap(), "# mine\n");
    assert!(!unpacked.system().join("opt").exists());
}

#[test]
fn the_unit_starts_the_program_of_its_prefix() {
    let unpacked = Unpacked::new();
    unpacked.installed(&["--prefix", "/opt/jitprof/", "--service"]);
    let unit = std::fs::read_to_string(unpacked.system().join("etc/systemd/system/jitprof.service")).unwrap();
    let commands: Vec<&str> = unit.lines().filter(|line| line.contains("bin/jitprof ")).collect();
    assert_eq!(commands.len(), 2);
    assert!(
        commands.iter().all(|line| line.contains("=/opt/jitprof/bin/jitprof serve --config /etc/")),
        "{commands:?}"
    );
}

#[test]
fn a_prefix_that_cannot_be_and_a_program_that_does_not_run_are_refused() {
    let unpacked = Unpacked::new();
    for wrong in [&["--prefix", "relative"][..], &["--prefix", "/with space"], &["--prefix"], &["--nonsense"]] {
        let output = unpacked.install(wrong);
        assert!(!output.status.success() && !output.stderr.is_empty(), "{wrong:?}");
    }
    std::fs::write(unpacked.archive().join("jitprof"), "\x7fELF of another machine").unwrap();
    let output = unpacked.install(&[]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("does not run here"));
    assert_eq!(unpacked.there().len(), 1);
}
