//! A virtual machine: from its start to a verdict.

use std::fs::File;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::emulator::Emulator;
use super::kernel::Kernel;

/// How long a machine may take. With a load of 13 on two CPUs the slowest needed a fifth of it.
const LIMIT: Duration = Duration::from_secs(600);
/// Pause between two looks at whether it has ended.
const POLL: Duration = Duration::from_millis(100);
/// Lines of the console that are shown when something failed.
const SHOWN_LINES: usize = 60;

/// Runs the checks on this kernel. Returns what it says that it is, and what the checks found in one line.
pub(super) fn run(kernel: &Kernel, folder: &Path) -> (Option<String>, Result<String>) {
    match attempt(kernel, folder) {
        // An emulated machine that stops before anything of ours runs says nothing about us. Twice it does.
        (None, Err(error)) => {
            eprintln!("{}: {error:#}; once more", kernel.name);
            attempt(kernel, folder)
        }
        done => done,
    }
}

fn attempt(kernel: &Kernel, folder: &Path) -> (Option<String>, Result<String>) {
    let log = folder.join(format!("{}.log", kernel.name));
    let console = start_machine(kernel, folder, &log).and_then(wait).and_then(|ended| {
        let bytes = std::fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
        Ok((ended, String::from_utf8_lossy(&bytes).into_owned()))
    });
    let (ended, console) = match console {
        Ok(found) => found,
        Err(error) => return (None, Err(error)),
    };
    let verdict = verdict(&console);
    if verdict.is_err() {
        let lines: Vec<&str> = console.lines().collect();
        let end = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
        eprintln!("--- the end of {}\n{end}\n---", log.display());
    }
    let verdict = match ended {
        Some(_) => verdict,
        None => {
            let so_far = verdict.unwrap_or_else(|error| error.to_string());
            Err(anyhow!("not done after {} s; {so_far}", LIMIT.as_secs()))
        }
    };
    (release(&console), verdict)
}

fn start_machine(kernel: &Kernel, folder: &Path, log: &Path) -> Result<Child> {
    let arch = kernel.arch;
    let emulator = Emulator::find(arch, folder).with_context(|| format!("there is no {}", arch.qemu))?;
    let mut qemu = emulator.command()?;
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

/// What the init says, line by line.
fn said(console: &str) -> impl Iterator<Item = Value> {
    console.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("GUEST ")?.trim()).ok())
}

/// Which kernel it says that it is.
fn release(console: &str) -> Option<String> {
    said(console).find_map(|line| line["kernel"].as_str().map(str::to_owned))
}

/// What the checks came to.
fn verdict(console: &str) -> Result<String> {
    let lines: Vec<Value> = said(console).collect();
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
    match of("failed").and_then(Value::as_u64) {
        _ if !failed.is_empty() => bail!("{}", failed.join(", ")),
        Some(0) => {}
        Some(count) => bail!("{count} checks failed"),
        None if lines.is_empty() => bail!("the kernel did not start the init"),
        None => bail!("ended before its checks did"),
    }
    let seconds = |key: &str| of(key).and_then(Value::as_f64).unwrap_or(f64::NAN);
    Ok(format!("up after {:.1} s, done after {:.1} s: {}", seconds("up_s"), seconds("end_s"), found.join("; ")))
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
        let console = [UP, GOOD, END].concat();
        assert_eq!(verdict(&console).unwrap(), "up after 2.5 s, done after 6.0 s: deep (5 of 5)");
        assert_eq!(release(&console).as_deref(), Some("6.1.0"));
    }

    #[test]
    fn a_failed_check_a_crash_and_a_kernel_that_never_came_up_fail() {
        for console in [[UP, BAD, END].concat(), [UP, GOOD].concat(), "Kernel panic\n".to_owned()] {
            assert!(verdict(&console).is_err(), "{console}");
        }
    }
}
