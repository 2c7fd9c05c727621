//! A virtual machine: from its start to a verdict.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::kernel::Kernel;

/// How long a machine may take. With a load of 13 on two CPUs the slowest needed a fifth of it.
const LIMIT: Duration = Duration::from_secs(600);
/// Pause between two looks at whether it has ended.
const POLL: Duration = Duration::from_millis(100);
/// Lines of the console that are shown when something failed.
const SHOWN_LINES: usize = 60;

/// Runs the checks on this kernel and returns what they found in one line.
pub(super) fn run(kernel: &Kernel, folder: &Path) -> Result<String> {
    let log = folder.join(format!("{}.log", kernel.name));
    let ended = start_machine(kernel, folder, &log).and_then(wait)?;
    let bytes = std::fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let console = String::from_utf8_lossy(&bytes);
    let verdict = verdict(&console);
    if verdict.is_err() {
        let lines: Vec<&str> = console.lines().collect();
        let end = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
        eprintln!("--- the end of {}\n{end}\n---", log.display());
    }
    match ended {
        Some(_) => verdict,
        None => bail!("not done after {} s; {}", LIMIT.as_secs(), verdict.unwrap_or_else(|error| error.to_string())),
    }
}

fn start_machine(kernel: &Kernel, folder: &Path, log: &Path) -> Result<Child> {
    let arch = kernel.arch;
    let mut qemu = Command::new(arch.qemu);
    qemu.args(arch.machine).args(["-accel", "tcg,thread=multi", "-smp", "2", "-m", &kernel.memory_mib.to_string()]);
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-monitor", "none"]);
    qemu.args(["-no-reboot", "-nic", "none", "-kernel"]).arg(kernel.image(folder));
    qemu.arg("-initrd").arg(folder.join(format!("{}.cpio", arch.name)));
    // A panic ends the machine at once.
    qemu.args(["-append", &format!("console={} quiet panic=-1 rdinit=/init", arch.console)]);
    let console = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
    let errors = console.try_clone().context("cannot open the log twice")?;
    qemu.stdin(Stdio::null()).stdout(console).stderr(errors);
    qemu.spawn().with_context(|| format!("cannot start {}", arch.qemu))
}

/// Waits for its end; `None` if it had to be killed.
fn wait(mut machine: Child) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = machine.try_wait().context("cannot wait for qemu")? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            machine.kill().and_then(|()| machine.wait()).context("cannot end qemu")?;
            return Ok(None);
        }
        sleep(POLL);
    }
}

/// What the lines of the init say.
fn verdict(console: &str) -> Result<String> {
    let lines = console.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("GUEST ")?.trim()).ok());
    let lines: Vec<Value> = lines.collect();
    let mut found = Vec::new();
    let mut failed = Vec::new();
    for line in &lines {
        let text = |key: &str| line[key].as_str().unwrap_or_default();
        match line["ok"].as_bool() {
            Some(true) => found.push(format!("{} ({})", text("check"), text("note"))),
            Some(false) => failed.push(format!("{} ({})", text("check"), text("note"))),
            None => {}
        }
    }
    let of = |key: &str| lines.iter().find_map(|line| line.get(key));
    let kernel = of("kernel").and_then(Value::as_str).unwrap_or("a kernel that did not start the init");
    match of("failed").and_then(Value::as_u64) {
        _ if !failed.is_empty() => bail!("{kernel}: {}", failed.join(", ")),
        Some(0) => {}
        Some(count) => bail!("{kernel}: {count} checks failed"),
        None => bail!("{kernel}: ended before its checks did"),
    }
    let seconds = |key: &str| of(key).and_then(Value::as_f64).unwrap_or(f64::NAN);
    Ok(format!(
        "{kernel}, up after {:.1} s, done after {:.1} s: {}",
        seconds("up_s"),
        seconds("end_s"),
        found.join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: &str = "noise\r\nGUEST {\"up_s\":2.5,\"kernel\":\"6.1.0\"}\r\n";
    const GOOD: &str = "GUEST {\"check\":\"deep\",\"ok\":true,\"note\":\"5 of 5\"}\r\n";
    const BAD: &str = "GUEST {\"check\":\"deep\",\"ok\":false,\"note\":\"1 of 5\"}\r\n";
    const END: &str = "GUEST {\"end_s\":6.0,\"failed\":0}\r\n";

    #[test]
    fn a_machine_that_did_all_checks_passes() {
        let verdict = verdict(&[UP, GOOD, END].concat()).unwrap();
        assert_eq!(verdict, "6.1.0, up after 2.5 s, done after 6.0 s: deep (5 of 5)");
    }

    #[test]
    fn a_failed_check_a_crash_and_a_kernel_that_never_came_up_fail() {
        for console in [[UP, BAD, END].concat(), [UP, GOOD].concat(), "Kernel panic\n".to_owned()] {
            assert!(verdict(&console).is_err(), "{console}");
        }
    }
}
