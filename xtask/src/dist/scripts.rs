//! What package managers run when they install, upgrade and remove: the user of the service is made, systemd reads its
//! units again, a service that runs is started anew by an upgrade and stopped by a removal. Nothing is enabled: a profiler
//! of the whole host starts when somebody says so.

/// After files were installed; the user stays when they are removed, as numbers of users are not used twice.
const INSTALLED: &str = "if command -v systemd-sysusers >/dev/null; then systemd-sysusers jitprof.conf || :; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi
";
/// After an upgrade.
const UPGRADED: &str = "if [ -d /run/systemd/system ]; then systemctl try-restart jitprof.service || :; fi
";
/// Before the last version is removed. Without a systemd that runs only links are taken away.
const REMOVING: &str = "if [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now jitprof.service || :
elif command -v systemctl >/dev/null; then
    systemctl --no-reload disable jitprof.service || :
fi
";
/// After files were removed.
const REMOVED: &str = "if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi
";
/// What the service has recorded, which is other people's data, and its token.
const PURGED: &str = "rm -rf /var/lib/jitprof /run/jitprof
";

/// `postinst`, `prerm` and `postrm` of Debian's packages.
pub(super) fn debian() -> [(&'static str, String); 3] {
    [
        (
            "postinst",
            format!(
                "#!/bin/sh\nset -e\nif [ \"$1\" = configure ]; then\n{INSTALLED}if [ -n \"$2\" ]; then\n{UPGRADED}fi\nfi\n"
            ),
        ),
        ("prerm", format!("#!/bin/sh\nset -e\nif [ \"$1\" = remove ]; then\n{REMOVING}fi\n")),
        (
            "postrm",
            format!(
                "#!/bin/sh\nset -e\nif [ \"$1\" = remove ]; then\n{REMOVED}fi\nif [ \"$1\" = purge ]; then\n{PURGED}fi\n"
            ),
        ),
    ]
}

/// `%post`, `%preun` and `%postun` of an RPM; the argument is how many versions stay.
pub(super) fn rpm() -> [String; 3] {
    [
        INSTALLED.to_owned(),
        format!("if [ \"$1\" = 0 ]; then\n{REMOVING}fi\n"),
        format!("{REMOVED}if [ \"$1\" != 0 ]; then\n{UPGRADED}fi\n"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_shell_can_read_them_all() {
        for script in debian().into_iter().map(|(_, script)| script).chain(rpm()) {
            let output = Command::new("sh").args(["-n", "-c", &script]).output().unwrap();
            assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
