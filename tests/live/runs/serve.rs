//! The service: configuration, signals, push, faults.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use jitprof_tests::{
    Jitprof, Kept, Manner, Pprof, Receiver, Running, Scratch, Share, Target, assert_at_least_of_few, compile,
    free_address, get, path_from, target_file, wait_until,
};
use serde_json::Value;

/// Windows as short as they may be.
const QUICK: &str = "[window]\nlength = \"1s\"\ngrace = \"1s\"\n[sampling]\nfrequency = 97\n";

fn demo(scratch: &Scratch) -> Result<Target> {
    let mut command = Command::new(path_from("JITPROF_DEMO")?);
    command.args(["--secs", "120", "--generations", "1"]);
    Target::start(command, scratch)
}

/// A service with its address and configuration.
struct Service<'a> {
    running: Running<'a>,
    address: SocketAddr,
}

impl<'a> Service<'a> {
    fn start(scratch: &'a Scratch, config: &str) -> Result<Self> {
        Self::start_with(scratch, config, |_| Ok(()))
    }

    fn start_with(scratch: &'a Scratch, config: &str, change: impl FnOnce(&mut Command) -> Result<()>) -> Result<Self> {
        let address = free_address()?;
        std::fs::write(scratch.file("jitprof.toml"), config)?;
        let mut jitprof = Jitprof::new(
            scratch,
            ["serve", "--config", "jitprof.toml", "--token", "none", "--listen", &address.to_string()],
        )?;
        change(jitprof.command())?;
        let mut service = Self { running: jitprof.spawn()?, address };
        service.running.wait_for("the service to answer", || Ok(get(address, "/healthz").ok()))?;
        Ok(service)
    }

    /// A metric by its name and labels, such as `a_total{x="y"}`.
    fn metric(&self, name: &str) -> Result<Option<f64>> {
        let (status, page) = get(self.address, "/metrics")?;
        if status != 200 {
            bail!("/metrics answers {status}: {page}");
        }
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.map(str::parse).transpose()?)
    }

    fn wait_for_metric(&mut self, name: &str, holds: impl Fn(f64) -> bool) -> Result<f64> {
        let address = self.address;
        self.running.wait_for(name, || {
            let (_, page) = get(address, "/metrics")?;
            let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            let value: Option<f64> = value.map(str::parse).transpose()?;
            Ok(value.filter(|value| holds(*value)))
        })
    }

    fn wait_for_line(&mut self, words: &str) -> Result<()> {
        let file = self.running.said_file().to_owned();
        self.running.wait_for(words, || Ok(std::fs::read_to_string(&file)?.contains(words).then_some(())))
    }

    /// Ends it as systemd does; it must end well.
    fn end(self) -> Result<String> {
        self.running.signal(libc::SIGTERM)?;
        let finished = self.running.finish()?;
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
        Ok(finished.stderr)
    }
}

#[test]
fn the_shipped_configuration_is_accepted_and_a_wrong_one_is_named_with_its_line() -> Result<()> {
    let scratch = Scratch::new()?;
    let example = path_from("JITPROF_TARGETS")?.join("../../contrib/jitprof.toml");
    let check = |file: &str| Jitprof::new(&scratch, ["serve", "--check-config", "--config", file])?.run();
    let shipped = check(example.to_str().context("a path that is no text")?)?;
    assert_eq!(shipped.status.code(), Some(0), "{}", shipped.stderr);
    assert!(shipped.stdout.contains("frequency = 19") && shipped.stdout.contains("/var/lib/jitprof"));
    // What is shown is a configuration itself.
    std::fs::write(scratch.file("shown.toml"), &shipped.stdout)?;
    assert_eq!(check("shown.toml")?.stdout, shipped.stdout);
    std::fs::write(scratch.file("wrong.toml"), "[sampling]\nfrequency = 0\n")?;
    let wrong = check("wrong.toml")?;
    assert_eq!(wrong.status.code(), Some(1));
    assert!(wrong.stderr.contains("wrong.toml:2: sampling.frequency: must be from 1"), "{}", wrong.stderr);
    Ok(())
}

#[test]
fn windows_of_a_jit_program_reach_every_kind_of_target() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = demo(&scratch)?;
    let (pyroscope, otlp) = (Receiver::start(Manner::BusyTwice)?, Receiver::start(Manner::Takes)?);
    let spool = scratch.file("spool");
    std::fs::create_dir(&spool)?;
    std::fs::write(scratch.file("token"), "s3cret\n")?;
    let config = format!(
        "{QUICK}[selection]\npids = [{}]\n\
         [[push]]\nkind = \"pyroscope\"\nurl = \"{}\"\ntoken_file = \"{}\"\ntenant = \"t1\"\n\
         [[push]]\nkind = \"otlp\"\nurl = \"{}\"\n\
         [[push]]\nkind = \"directory\"\ndirectory = \"{}\"\n",
        target.said("pid")?,
        pyroscope.url(),
        scratch.file("token").display(),
        otlp.url(),
        spool.display()
    );
    let mut service = Service::start(&scratch, &config)?;
    for (name, kind) in [("pyroscope", "pyroscope"), ("otlp", "otlp"), ("directory", "directory")] {
        let metric = format!("jitprof_push_windows_total{{target=\"{name}\",kind=\"{kind}\"}}");
        service.wait_for_metric(&metric, |windows| windows >= 2.0)?;
    }
    let retries = service.metric("jitprof_push_retries_total{target=\"pyroscope\",kind=\"pyroscope\"}")?;
    assert_eq!(retries, Some(2.0), "it was busy twice");
    let said = service.end()?;
    assert!(said.contains("cannot push, will try again: 503"), "{said}");
    assert!(said.contains("reachable again"), "{said}");

    let pushed = pyroscope.requests();
    let first = pushed.first().context("nothing pushed")?;
    assert_eq!(first.path, "/push.v1.PusherService/Push");
    assert_eq!(first.headers["authorization"], "Bearer s3cret");
    assert_eq!(first.headers["x-scope-orgid"], "t1");
    assert_eq!(first.headers["content-type"], "application/proto");
    assert_eq!(first.body, pushed[1].body, "the same window is tried again");
    assert!(contains(&first.body, b"process_cpu") && contains(&first.body, b"jitdemo"));
    let exported = otlp.requests();
    assert_eq!(exported[0].path, "/v1development/profiles");
    assert_eq!(exported[0].headers["content-encoding"], "gzip");
    let mut body = Vec::new();
    flate2::read::GzDecoder::new(&exported[0].body[..]).read_to_end(&mut body)?;
    assert!(contains(&body, b"hot"), "names of generated code");
    let files: Vec<_> = std::fs::read_dir(&spool)?.collect::<Result<_, _>>()?;
    assert!(files.len() >= 2, "a file for each window: {files:?}");
    assert!(files.iter().all(|file| file.file_name().to_string_lossy().ends_with(".pb.gz")), "{files:?}");
    Ok(())
}

#[test]
fn a_target_that_never_answers_holds_up_neither_samples_nor_windows_nor_the_end() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = demo(&scratch)?;
    let silent = Receiver::start(Manner::Silent)?;
    let gone = free_address()?;
    let config = format!(
        "{QUICK}[selection]\npids = [{}]\n[shutdown]\ndeadline = \"2s\"\n\
         [[push]]\nkind = \"pyroscope\"\nurl = \"{}\"\ntimeout = \"60s\"\nqueue_windows = 2\n\
         [[push]]\nkind = \"otlp\"\nurl = \"http://{gone}\"\nqueue_windows = 2\n",
        target.said("pid")?,
        silent.url()
    );
    let mut service = Service::start(&scratch, &config)?;
    service.wait_for_metric("jitprof_windows_total", |windows| windows >= 8.0)?;
    assert_eq!(service.metric("jitprof_samples_lost_total")?, Some(0.0));
    assert_eq!(service.metric("jitprof_windows_dropped_total")?, Some(0.0));
    for (name, dropped_at_least) in [("pyroscope", 1.0), ("otlp", 1.0)] {
        let waiting = format!("jitprof_push_waiting_windows{{target=\"{name}\",kind=\"{name}\"}}");
        assert!(service.metric(&waiting)?.context("no queue")? <= 2.0, "bounded");
        let dropped =
            format!("jitprof_push_dropped_windows_total{{target=\"{name}\",kind=\"{name}\",reason=\"queue full\"}}");
        service.wait_for_metric(&dropped, |dropped| dropped >= dropped_at_least)?;
    }
    let said = service.end()?;
    assert!(said.contains("windows that still waited"), "{said}");
    // Tried many times, said once.
    assert_eq!(said.matches("cannot push, will try again").count(), 1, "{said}");
    Ok(())
}

/// What the service says of the names of one process.
fn naming_of(service: &Service<'_>, pid: u32) -> Result<Option<Value>> {
    let (status, answer) = get(service.address, "/api/status")?;
    if status != 200 {
        bail!("/api/status answers {status}: {answer}");
    }
    let answer: Value = serde_json::from_str(&answer)?;
    let all = answer["naming"].as_array().context("no naming")?;
    Ok(all.iter().find(|process| process["pid"] == pid).cloned())
}

#[test]
fn programs_that_nobody_prepared_have_names_and_it_is_said_by_what_and_why_not() -> Result<()> {
    let (scratch, other) = (Scratch::new()?, Scratch::new()?);
    let start = |program: &str, script: &str, scratch: &Scratch| {
        let mut command = Command::new(path_from(program)?);
        command.arg(target_file(script)?).arg("600");
        Target::start(command, scratch)
    };
    let node = start("JITPROF_NODE", "node/burn.js", &scratch)?;
    let python = start("JITPROF_PYTHON", "python/burn.py", &other)?;
    let selected = format!("{QUICK}[selection]\npids = [{}, {}]\n", node.said("pid")?, python.said("pid")?);
    let by_tables = "jitprof_jit_frames_named_total{by=\"runtime\"}";
    let mut service = Service::start(&scratch, &selected)?;
    service.wait_for_metric(by_tables, |frames| frames >= 2000.0)?;
    for (target, runtime) in [(&node, "V8 "), (&python, "CPython ")] {
        let naming = naming_of(&service, target.pid()?)?.with_context(|| format!("nothing of {runtime}"))?;
        assert!(naming["runtime"].as_str().is_some_and(|name| name.starts_with(runtime)), "{naming}");
        let named = naming["named"]["runtime"].as_u64().unwrap_or(0);
        let unnamed: u64 = naming["unnamed"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum();
        assert!(named >= 500, "{naming}");
        assert_at_least_of_few(runtime, Share { part: named, whole: named + unnamed }, 0.995);
    }
    let address = service.address.to_string();
    let asked = Scratch::new()?;
    let snapshot = ["snapshot", "--listen", &address, "-o", "-", "--format", "folded"];
    let taken = Jitprof::new(&asked, snapshot)?.run()?;
    for name in ["leafHot", "leaf_hot"] {
        assert!(taken.stdout.contains(name), "{name}: {} {}", taken.stdout, taken.stderr);
    }
    service.end()?;

    // Without its tables a Node has code without names, and it is said whose that is and what it needs.
    let without = selected.replace("[sampling]\n", "[sampling]\nread_runtime = false\n");
    let mut service = Service::start(&scratch, &without)?;
    service.wait_for_metric("jitprof_jit_frames_total{name=\"unknown\"}", |frames| frames >= 500.0)?;
    assert_eq!(service.metric(by_tables)?.unwrap_or(0.0), 0.0);
    let address = service.address;
    let said = service.running.wait_for("whose code has no names", || {
        let (_, said) = get(address, "/api/unnamed")?;
        let said: Value = serde_json::from_str(&said)?;
        Ok(said["processes"][0]["advice"].is_string().then_some(said))
    })?;
    assert_eq!(said["processes"][0]["pid"], node.pid()?, "{said}");
    assert!(said["processes"][0]["advice"].as_str().is_some_and(|text| text.contains("--perf-prof")), "{said}");
    service.end()?;
    Ok(())
}

#[test]
fn a_reload_changes_what_can_be_changed_and_a_bad_file_changes_nothing() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = demo(&scratch)?;
    let quick = format!("{QUICK}[selection]\npids = [{}]\n", target.said("pid")?);
    let mut service = Service::start(&scratch, &quick)?;
    let frequency = "jitprof_sampling_frequency_hertz";
    service.wait_for_metric(frequency, |hertz| hertz == 97.0)?;

    std::fs::write(scratch.file("jitprof.toml"), quick.replace("frequency", "frequenzy"))?;
    service.running.signal(libc::SIGHUP)?;
    service.wait_for_metric("jitprof_reloads_total{result=\"refused\"}", |refused| refused == 1.0)?;
    service.wait_for_line("the configuration stays as it was: jitprof.toml:5: sampling.frequenzy: unknown field")?;

    let spool = scratch.file("spool");
    std::fs::create_dir(&spool)?;
    let push = format!("[[push]]\nkind = \"directory\"\ndirectory = \"{}\"\n", spool.display());
    let changed = quick.replace("frequency = 97", "frequency = 49").replace("length = \"1s\"", "length = \"2s\"");
    std::fs::write(scratch.file("jitprof.toml"), changed + &push)?;
    service.running.signal(libc::SIGHUP)?;
    service.wait_for_metric(frequency, |hertz| hertz == 49.0)?;
    service.wait_for_metric("jitprof_push_windows_total{target=\"directory\",kind=\"directory\"}", |n| n >= 1.0)?;
    service.wait_for_line("`window` has changed, which takes a restart")?;
    assert_eq!(service.metric("jitprof_samples_lost_total")?, Some(0.0));
    service.end()?;
    Ok(())
}

#[test]
fn a_snapshot_is_fetched_over_a_socket_and_a_cut_closes_the_window_now() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = demo(&scratch)?;
    let spool = scratch.file("spool");
    std::fs::create_dir(&spool)?;
    // Nothing is written within the test's time unless it is asked for.
    let config = format!(
        "[window]\nlength = \"1h\"\n[sampling]\nfrequency = 97\n[selection]\npids = [{}]\n\
         [[push]]\nkind = \"directory\"\ndirectory = \"{}\"\n",
        target.said("pid")?,
        spool.display()
    );
    std::fs::write(scratch.file("jitprof.toml"), config)?;
    let socket = format!("unix:{}", scratch.file("http.sock").display());
    let mut running = Jitprof::new(&scratch, ["serve", "--config", "jitprof.toml", "--listen", &socket])?.spawn()?;
    let asked = Scratch::new()?;
    let snapshot = ["snapshot", "--listen", &socket, "-o", "-", "--format", "folded"];
    let folded = running.wait_for("a snapshot with samples", || {
        let finished = Jitprof::new(&asked, snapshot)?.run()?;
        Ok((finished.status.code() == Some(0) && finished.stdout.contains("hot")).then_some(finished.stdout))
    })?;
    assert!(
        folded.lines().all(|line| line.rsplit_once(' ').is_some_and(|(_, n)| n.parse::<u64>().is_ok())),
        "{folded}"
    );
    running.signal(libc::SIGUSR1)?;
    running.wait_for("a file", || Ok(std::fs::read_dir(&spool)?.next().transpose()?.map(drop)))?;
    running.signal(libc::SIGTERM)?;
    assert_eq!(running.finish()?.status.code(), Some(0));
    let nobody = Jitprof::new(&asked, snapshot)?.run()?;
    assert_eq!(nobody.status.code(), Some(1));
    assert!(nobody.stderr.contains("no service answers at unix:"), "{}", nobody.stderr);
    Ok(())
}

#[test]
fn without_the_token_of_this_start_other_users_see_nothing_and_with_it_no_absolute_addresses() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = demo(&scratch)?;
    // The demo hardly ever enters the kernel: a window with both in it was waited for up to 90 s.
    let mut command = Command::new(compile(&scratch, "cc", "native/calls.c", &["-O1", "-g"])?);
    command.arg("120");
    let calls = Target::start(command, &scratch)?;
    let address = free_address()?;
    let pids = format!("{}, {}", target.said("pid")?, calls.said("pid")?);
    std::fs::write(scratch.file("jitprof.toml"), format!("{QUICK}[selection]\npids = [{pids}]\n"))?;
    let arguments = ["serve", "--config", "jitprof.toml", "--listen", &address.to_string()];
    let mut jitprof = Jitprof::new(&scratch, arguments)?;
    jitprof.command().env("RUNTIME_DIRECTORY", scratch.file("run"));
    let mut running = jitprof.spawn()?;
    running.wait_for("the service to answer", || Ok(get(address, "/healthz").ok()))?;
    for path in ["/", "/profile?from=-1m", "/api/status", "/metrics", "/debug/pprof/profile?seconds=1"] {
        assert_eq!(get(address, path)?.0, 401, "{path}");
    }
    let file = scratch.file("run").join(format!("token-{}", address.port()));
    assert_eq!(std::fs::metadata(&file)?.permissions().mode() & 0o777, 0o600);
    let token = std::fs::read_to_string(&file)?;
    assert_eq!(get(address, &format!("/api/status?token={}", token.trim()))?.0, 200);
    // It finds the token itself, as its user may read it.
    let asked = Scratch::new()?;
    let folded = ["snapshot", "--listen", &address.to_string(), "-o", "now.pb.gz"];
    let pprof = running.wait_for("generated code and kernel code in a snapshot", || {
        let mut snapshot = Jitprof::new(&asked, folded)?;
        snapshot.command().env("RUNTIME_DIRECTORY", scratch.file("run"));
        if snapshot.run()?.status.code() != Some(0) {
            return Ok(None);
        }
        let pprof = Pprof::read(&asked.file("now.pb.gz"))?;
        let has = |part: &str| pprof.strings.iter().any(|string| string.contains(part));
        Ok((has("leaf_hot") && has("[kernel.kallsyms]")).then_some(pprof))
    })?;
    assert!(pprof.highest_address < 1 << 40, "{:#x} is no offset in a file", pprof.highest_address);
    let said = std::fs::read_to_string(running.said_file())?;
    assert!(said.contains("the token is in ") && !said.contains(token.trim()), "{said}");
    running.signal(libc::SIGTERM)?;
    assert_eq!(running.finish()?.status.code(), Some(0));
    assert!(!file.exists());
    Ok(())
}

#[test]
fn systemd_is_told_what_happens() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = demo(&scratch)?;
    let config = format!("{QUICK}[selection]\npids = [{}]\n", target.said("pid")?);
    let path = scratch.file("notify");
    let socket = UnixDatagram::bind(&path)?;
    socket.set_nonblocking(true)?;
    let mut service = Service::start_with(&scratch, &config, |command| {
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "3000000");
        Ok(())
    })?;
    let mut heard = String::new();
    let mut hear = |words: &str| {
        wait_until(words, || {
            let mut datagram = [0; 4096];
            while let Ok(length) = socket.recv(&mut datagram) {
                heard.push_str(&String::from_utf8_lossy(&datagram[..length]));
            }
            Ok(heard.find(words).map(|at| heard.drain(..at + words.len())).map(drop))
        })
    };
    hear("READY=1")?;
    hear("WATCHDOG=1")?;
    service.wait_for_metric("jitprof_windows_total", |windows| windows >= 1.0)?;
    hear("STATUS=97 Hz, ")?;
    service.running.signal(libc::SIGHUP)?;
    hear("RELOADING=1")?;
    hear("MONOTONIC_USEC=")?;
    hear("READY=1")?;
    service.running.signal(libc::SIGTERM)?;
    hear("STOPPING=1")?;
    assert_eq!(service.running.finish()?.status.code(), Some(0));
    Ok(())
}

#[test]
fn without_file_descriptors_it_says_so_once_and_recovers() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = demo(&scratch)?;
    let config = format!("{QUICK}[selection]\npids = [{}]\n", target.said("pid")?);
    // Hard and soft, so that it cannot be raised.
    let limit = libc::rlimit { rlim_cur: 96, rlim_max: 96 };
    let mut service = Service::start_with(&scratch, &config, |command| {
        // SAFETY: setrlimit is async-signal-safe and reads what it is given.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NOFILE, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        Ok(())
    })?;
    let windows = service.wait_for_metric("jitprof_windows_total", |windows| windows >= 1.0)?;
    let mut kept = Kept::connect(service.address)?;
    let held: Vec<_> = (0..96).map(|_| TcpStream::connect(service.address)).collect::<Result<_, _>>()?;
    service.wait_for_line("file descriptors are in use")?;
    service.running.wait_for("windows without file descriptors", || {
        let page = kept.get("/metrics")?;
        let value = page.lines().find_map(|line| line.strip_prefix("jitprof_windows_total "));
        Ok(value.map(str::parse::<f64>).transpose()?.filter(|now| *now >= windows + 3.0))
    })?;
    drop(held);
    service.wait_for_line("there are enough file descriptors again")?;
    service.wait_for_metric("jitprof_windows_total", |now| now >= windows + 6.0)?;
    assert_eq!(service.metric("jitprof_samples_lost_total")?, Some(0.0));
    let said = service.end()?;
    assert!(said.matches("cannot accept connections").count() <= 3, "not for each try: {said}");
    assert_eq!(said.matches("file descriptors are in use").count(), 1, "{said}");
    Ok(())
}

#[test]
fn a_user_with_five_capabilities_profiles_others_and_only_the_recording_keeps_them() -> Result<()> {
    const NOBODY: &str = "65534";
    const CAPABILITIES: &str = "+bpf,+perfmon,+sys_ptrace,+dac_read_search,+syslog";
    let scratch = Scratch::new()?;
    let target = demo(&scratch)?;
    let binary = scratch.file("jitprof");
    std::fs::copy(path_from("JITPROF_BIN")?, &binary)?;
    let address = free_address()?;
    let config = format!("{QUICK}[selection]\npids = [{}]\n", target.said("pid")?);
    std::fs::write(scratch.file("jitprof.toml"), config)?;
    let words = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--inh-caps", CAPABILITIES, "--ambient-caps"];
    let mut jitprof = Jitprof::at("setpriv".as_ref(), &scratch, words);
    jitprof.command().arg(CAPABILITIES).arg(&binary).args([
        "serve",
        "--config",
        "jitprof.toml",
        "--token",
        "none",
        "--listen",
    ]);
    jitprof.command().arg(address.to_string());
    let mut service = Service { running: jitprof.spawn()?, address };
    service.running.wait_for("the service to answer", || Ok(get(address, "/healthz").ok()))?;
    service.wait_for_metric("jitprof_process_cpu_seconds_total{comm=\"jitdemo\"}", |seconds| seconds > 0.5)?;
    service.wait_for_metric("jitprof_jit_frames_total{name=\"known\"}", |frames| frames > 20.0)?;
    assert_eq!(service.metric("jitprof_jit_frames_total{name=\"unknown\"}")?, Some(0.0));

    let pid = service.running.pid();
    let mut with = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = std::fs::read_to_string(task?.path().join("status"))?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        assert_eq!(field("NoNewPrivs:"), "1", "{status}");
        if field("CapPrm:") != "0000000000000000" {
            with.push(field("Name:").to_owned());
        }
    }
    assert!(with.iter().any(|name| name == "record"), "{with:?}");
    let outside = ["jitprof", "archive", "serve"];
    assert!(with.iter().all(|name| !outside.contains(&&**name)), "{with:?} have capabilities");
    service.end()?;
    Ok(())
}

/// Names of the windows in files.
fn window_files(scratch: &Scratch) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for day in std::fs::read_dir(scratch.file("archive"))?.collect::<Result<Vec<_>, _>>()? {
        if day.path().is_dir() {
            let files = std::fs::read_dir(day.path())?.collect::<Result<Vec<_>, _>>()?;
            let names_of_day = files.iter().map(|file| format!("{:?}/{:?}", day.file_name(), file.file_name()));
            names.extend(names_of_day.filter(|name| !name.contains(".merged-") && !name.contains(".tmp-")));
        }
    }
    Ok(names)
}

#[test]
fn a_wall_clock_that_is_set_costs_no_window() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = demo(&scratch)?;
    let library = compile(&scratch, "cc", "native/wallclock.c", &["-shared", "-fPIC", "-O1"])?;
    let ahead = scratch.file("ahead");
    // In place: the service has the file mapped.
    let clock_file = File::options().create(true).truncate(false).write(true).open(&ahead)?;
    let set = |seconds: i64| clock_file.write_all_at(&seconds.to_ne_bytes(), 0);
    set(0)?;
    let config = format!(
        "{QUICK}[selection]\npids = [{}]\n[storage]\ndirectory = {:?}\nmax_age = \"10m\"\n",
        target.said("pid")?,
        scratch.file("archive")
    );
    let unix_s = || SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_secs());
    let begin = unix_s()?;
    // Another clock for the service only: the machine's belongs to everything that runs beside it.
    let mut service = Service::start_with(&scratch, &config, |command| {
        command.env("LD_PRELOAD", &library).env("WALLCLOCK_FILE", &ahead);
        Ok(())
    })?;
    let mut known = BTreeSet::new();
    // Ahead of the files' greatest age, back, and behind what was written so far.
    for ahead_s in [0, 7200, 0, -3600, 0] {
        set(ahead_s)?;
        let windows = service.metric("jitprof_windows_total")?.unwrap_or(0.0);
        // The first two of these may have begun before.
        service.wait_for_metric("jitprof_windows_total", |now| now >= windows + 5.0)?;
        let files = window_files(&scratch)?;
        assert!(known.is_subset(&files), "with {ahead_s} s, files are gone: {:?}", known.difference(&files));
        assert!(files.len() >= known.len() + 4, "with {ahead_s} s, windows are written: {files:?}");
        known = files;
        let (status, recent) = get(service.address, "/profile?from=-4s&format=folded")?;
        assert!(status == 200 && recent.contains("leaf_hot"), "with {ahead_s} s, what is recent is found: {recent}");
        if ahead_s >= 0 {
            // Over HTTP the future is not shown.
            let end = unix_s()? + 1;
            let (status, first) = get(service.address, &format!("/profile?from={begin}&to={end}&format=folded"))?;
            assert!(status == 200 && first.contains("leaf_hot"), "with {ahead_s} s, what was before is found: {first}");
        }
        assert_eq!(get(service.address, "/healthz")?.0, 200);
    }
    let (from, to) = (begin - 3600, begin - 3480);
    let (status, then) = get(service.address, &format!("/profile?from={from}&to={to}&format=folded"))?;
    assert!(status == 200 && then.contains("leaf_hot"), "windows keep the time they were given: {then}");
    for lost in ["samples_lost", "windows_dropped", "archive_windows_dropped", "archive_writes_failed"] {
        assert_eq!(service.metric(&format!("jitprof_{lost}_total"))?, Some(0.0), "{lost}");
    }
    let said = service.end()?;
    assert!(!said.contains(" WARN ") && !said.contains(" ERROR "), "{said}");
    Ok(())
}

fn contains(bytes: &[u8], words: &[u8]) -> bool {
    bytes.windows(words.len()).any(|window| window == words)
}
