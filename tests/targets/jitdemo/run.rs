//! One run: emit the functions, say that we are ready, and run the generations.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::Arguments;
use crate::announce::{Announcer, Format, cpu_ns, now_ns};
use crate::assembler::{Frames, Function};
use crate::churn::Churn;
use crate::functions;
use crate::memory::Region;
use crate::trace_log::{ENTER, EXIT, GENERATION_EVEN, GENERATION_ODD, INTERPRET, RENDER, TraceLog, WORKER};

/// Offsets of the two leaves in their region, the same for every generation.
const HOT: usize = 0;
const COLD: usize = 1024;
/// Functions start at multiples of this, as compilers have it.
const ALIGNMENT: usize = 16;
/// More than any function with its unwinding information.
const FUNCTION_ROOM: usize = 256;
/// Rounds that each of `--functions` does when it is called.
const FLOOD_ROUNDS: u32 = 8;

/// Generated code with this signature.
pub(crate) type Compiled = extern "C" fn(u32) -> u32;

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let length = Length { ns: nanoseconds(arguments.secs)?, of_cpu: arguments.cpu };
    let mut demo = Demo::new(arguments)?;
    let (outer, worker_outer) = demo.emit_callers()?;
    demo.flood(arguments.functions)?;
    demo.fixed.make_executable()?;
    demo.call_flood();
    let mut generation = demo.emit_generation(0)?;

    let big_endian = arguments.trace_big_endian;
    let log = arguments.trace_log.as_deref().map(|path| TraceLog::create(path, big_endian)).transpose()?;
    let log = log.map(Arc::new);
    let start = Totals { calls: 0, wall_ns: now_ns(), cpu_ns: cpu_ns() };
    let mut deadline = start.wall_ns.saturating_add(length.ns);
    let child = if arguments.fork { Some(fork(outer, arguments.iterations, deadline, length)?) } else { None };
    for _ in 0..arguments.threads {
        let (iterations, log) = (arguments.iterations, log.clone());
        let spans = move |_| WORKER;
        thread::Builder::new().spawn(move || loop_until(worker_outer, iterations, deadline, log.as_deref(), spans))?;
    }
    if let Some(pairs) = arguments.churn {
        let mut churn = Churn::new(arguments.slots, demo.frames, &mut demo.announcer)?;
        demo.announce_ready(child)?;
        let calls = churn.run(pairs, deadline, &mut demo.announcer)?;
        println!("functions emitted: {}", churn.functions());
        return demo.finish(0, &Totals { calls, wall_ns: now_ns() - start.wall_ns, cpu_ns: cpu_ns() - start.cpu_ns });
    }
    demo.announce_ready(child)?;

    let exec_time = if arguments.exec_again { now_ns().midpoint(deadline) } else { u64::MAX };
    let mut calls = 0_u64;
    loop {
        let last = generation.number + 1 >= arguments.generations;
        let switch = Duration::from_millis(arguments.generation_ms.into());
        let switch = if last { u64::MAX } else { generation.start_ns + switch.as_nanos() as u64 };
        let span = if generation.number.is_multiple_of(2) { GENERATION_EVEN } else { GENERATION_ODD };
        let mark = |type_id, time| log.iter().for_each(|log| log.log(span, type_id, time, 0, generation.number.into()));
        mark(ENTER, now_ns());
        let spans = |calls: u64| if calls % 4 == 3 { INTERPRET } else { RENDER };
        let now = loop {
            let until = deadline.min(switch).min(exec_time);
            let pause = until.min(demo.announcer.next_due_ns());
            calls += loop_until(outer, arguments.iterations, pause, log.as_deref(), spans);
            let now = now_ns();
            demo.announcer.write_due(now)?;
            let rest = if now >= deadline { length.rest_ns(start.cpu_ns) } else { 0 };
            if rest > 0 {
                deadline = now + rest;
            } else if now >= until {
                break now;
            }
        };
        mark(EXIT, now);
        demo.report(&generation, now)?;
        if now >= exec_time {
            return exec_again(deadline.saturating_sub(now));
        }
        if now >= deadline {
            break;
        }
        generation = demo.emit_generation(generation.number + 1)?;
    }
    let totals = Totals { calls, wall_ns: now_ns() - start.wall_ns, cpu_ns: cpu_ns() - start.cpu_ns };
    demo.finish(generation.number + 1, &totals)?;
    child.map_or(Ok(()), wait_for)
}

/// How long a process runs.
#[derive(Clone, Copy)]
struct Length {
    ns: u64,
    /// It is to use that much CPU time, too.
    of_cpu: bool,
}

impl Length {
    /// What is left of it by CPU time, which was `start_ns` when it began.
    fn rest_ns(self, start_ns: u64) -> u64 {
        if self.of_cpu { self.ns.saturating_sub(cpu_ns() - start_ns) } else { 0 }
    }
}

fn nanoseconds(seconds: f64) -> Result<u64> {
    let duration = Duration::try_from_secs_f64(seconds).context("--secs is no length of time")?;
    u64::try_from(duration.as_nanos()).context("--secs is too long")
}

/// The leaves that run between two switches.
struct Generation {
    number: u32,
    /// Just before the first call.
    start_ns: u64,
    leaves: [Leaf; 2],
}

/// What the hot loop did, or the clocks at its start.
struct Totals {
    /// Calls of `outer` by the first thread of this process.
    calls: u64,
    wall_ns: u64,
    /// Of all threads of this process.
    cpu_ns: u64,
}

struct Leaf {
    name: String,
    address: usize,
    size: usize,
}

struct Demo<'a> {
    arguments: &'a Arguments,
    frames: Frames,
    announcer: Announcer,
    schedule: Box<dyn Write>,
    /// What is never replaced.
    fixed: Region,
    fixed_used: usize,
    flood: Vec<Compiled>,
    /// The two leaves of the current generation, on pages of their own because these change between writable and
    /// executable.
    leaves: Region,
}

impl<'a> Demo<'a> {
    fn new(arguments: &'a Arguments) -> Result<Self> {
        let (format, default) = if arguments.perf_map { (Format::PerfMap, "/tmp") } else { (Format::Jitdump, ".") };
        let folder = arguments.dir.as_deref().unwrap_or(Path::new(default));
        let mut announcer = Announcer::create(folder, format, arguments.stdio, arguments.damage)?;
        announcer.hold(arguments.delay_ms);
        if arguments.delete {
            announcer.unlink()?;
        }
        let schedule: Box<dyn Write> = match &arguments.schedule {
            Some(path) => Box::new(
                OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(path)
                    .with_context(|| format!("cannot open {}", path.display()))?,
            ),
            None => Box::new(std::io::stdout()),
        };
        let rooms = usize::try_from(arguments.functions)?.checked_add(16).context("--functions is too large")?;
        let size = rooms.checked_mul(FUNCTION_ROOM).context("--functions is too large")?;
        Ok(Self {
            arguments,
            frames: if arguments.no_frame_pointer { Frames::CfiOnly } else { Frames::Pointer },
            announcer,
            schedule,
            fixed: Region::new(size)?,
            fixed_used: 0,
            flood: Vec::new(),
            leaves: Region::new(2 * COLD)?,
        })
    }

    /// Emits what calls the leaves: `outer` for this thread, and `worker_outer` with leaves of its own.
    fn emit_callers(&mut self) -> Result<(Compiled, Compiled)> {
        let frames = self.frames;
        let (mut hot, mut cold) = (self.leaves.address(HOT), self.leaves.address(COLD));
        if self.arguments.copies {
            [hot, cold] = [self.place(&hot_leaf(frames, 0, 0))?, self.place(&cold_leaf(frames, 0, 0))?];
        }
        let middle = self.emit("middle", functions::middle(frames, hot))?;
        let side = self.emit("side", functions::side(frames, cold))?;
        let outer = self.emit("outer", functions::outer(frames, middle, side))?;
        let hot = self.emit("worker_leaf_hot", functions::leaf(frames, 40, 3, 0))?;
        let cold = self.emit("worker_leaf_cold", functions::leaf(frames, 50, 5, 0))?;
        let middle = self.emit("worker_middle", functions::middle(frames, hot))?;
        let side = self.emit("worker_side", functions::side(frames, cold))?;
        let worker_outer = self.emit("worker_outer", functions::outer(frames, middle, side))?;
        Ok((compiled(outer), compiled(worker_outer)))
    }

    /// Emits further functions with names as long as real ones.
    fn flood(&mut self, count: u32) -> Result<()> {
        for index in 0..count {
            let name = format!("flood_{index:06} /srv/app/lib/module{:03}.js:{}", index % 997, index % 4000);
            let address = self.emit(&name, functions::leaf(self.frames, 60, index, 0))?;
            self.flood.push(compiled(address));
        }
        Ok(())
    }

    fn call_flood(&self) {
        for function in &self.flood {
            std::hint::black_box(function(FLOOD_ROUNDS));
        }
    }

    /// Writes a function into the fixed region and returns its address.
    fn place(&mut self, function: &Function) -> Result<usize> {
        let image = image(function);
        let offset = self.fixed_used;
        self.fixed.write(offset, &image)?;
        self.fixed_used = (offset + image.len()).next_multiple_of(ALIGNMENT);
        Ok(self.fixed.address(offset))
    }

    /// Writes a function into the fixed region, announces it and returns its address.
    fn emit(&mut self, name: &str, function: Function) -> Result<usize> {
        let address = self.place(&function)?;
        self.announcer.announce(&format!("{}{name}", self.arguments.name_prefix), address, &function)?;
        Ok(address)
    }

    /// Replaces both leaves. The announcement is complete before the code can run, and the old code has stopped
    /// before: between two generations no leaf runs.
    fn emit_generation(&mut self, number: u32) -> Result<Generation> {
        // Sizes differ from one generation to the next, so that old and new code overlap without being the same range.
        let nops = usize::try_from(number % 4)? * 12;
        let hot = hot_leaf(self.frames, number, nops);
        let cold = cold_leaf(self.frames, number, nops);
        self.leaves.make_writable()?;
        self.leaves.write(HOT, &image(&hot))?;
        self.leaves.write(COLD, &image(&cold))?;
        self.leaves.make_executable()?;
        let mut leaf = |kind: &str, offset: usize, function: &Function| -> Result<Leaf> {
            let name = format!("{}leaf_{kind}_g{number}", self.arguments.name_prefix);
            let address = self.leaves.address(offset);
            self.announcer.announce(&name, address, function)?;
            Ok(Leaf { name, address, size: function.code.len() })
        };
        let leaves = [leaf("hot", HOT, &hot)?, leaf("cold", COLD, &cold)?];
        Ok(Generation { number, start_ns: now_ns(), leaves })
    }

    fn announce_ready(&mut self, child: Option<libc::pid_t>) -> Result<()> {
        let mut line = format!("ready pid={} dump={}", std::process::id(), self.announcer.path().display());
        if let Some(child) = child {
            line.push_str(&format!(" child={child}"));
        }
        let mut stdout = std::io::stdout();
        writeln!(stdout, "{line}").and_then(|()| stdout.flush()).context("cannot write to stdout")
    }

    /// Writes the schedule's lines of a generation that has ended.
    fn report(&mut self, generation: &Generation, end_ns: u64) -> Result<()> {
        let (gen_, start_ns) = (generation.number, generation.start_ns);
        for Leaf { name, address, size } in &generation.leaves {
            let name = serde_json::Value::from(name.as_str());
            writeln!(
                self.schedule,
                r#"{{"gen":{gen_},"name":{name},"address":{address},"size":{size},"start_ns":{start_ns},"end_ns":{end_ns}}}"#
            )
            .context("cannot write the schedule")?;
        }
        self.schedule.flush().context("cannot write the schedule")
    }

    /// Writes the totals and closes the announcements.
    fn finish(mut self, generations: u32, totals: &Totals) -> Result<()> {
        let Totals { calls, wall_ns, cpu_ns } = totals;
        writeln!(
            self.schedule,
            r#"{{"done":true,"calls":{calls},"generations":{generations},"wall_ns":{wall_ns},"cpu_ns":{cpu_ns}}}"#
        )
        .context("cannot write the totals")?;
        self.announcer.close()
    }
}

/// The hot leaf of a generation.
fn hot_leaf(frames: Frames, number: u32, nops: usize) -> Function {
    functions::leaf(frames, 40, number | 1, nops)
}

/// The cold leaf of a generation.
fn cold_leaf(frames: Frames, number: u32, nops: usize) -> Function {
    functions::leaf(frames, 50, number | 2, nops)
}

/// A function as it lies in memory: the code, and its unwinding information where the record says that it is.
pub(crate) fn image(function: &Function) -> Vec<u8> {
    let mut image = function.code.clone();
    image.resize(image.len().next_multiple_of(8), 0xcc);
    image.extend(function.unwinding.section(function.code.len()));
    image
}

pub(crate) fn compiled(address: usize) -> Compiled {
    // SAFETY: callers pass the address of a function that was emitted with this signature, and call it only after its
    // region was made executable; regions are never unmapped.
    unsafe { std::mem::transmute::<usize, Compiled>(address) }
}

/// Calls the function until the time has come, and says how often. Each call goes into the log under the name that `span`
/// gives for its number.
fn loop_until(
    function: Compiled,
    iterations: u32,
    deadline_ns: u64,
    log: Option<&TraceLog>,
    span: impl Fn(u64) -> u32,
) -> u64 {
    let mut calls = 0_u64;
    // Begins somewhere else each time, so that short generations do not repeat each other.
    let mut noise = now_ns();
    while now_ns() < deadline_ns {
        // A tenth to nineteen tenths of `iterations`, at random: calls of similar length fall into step with a
        // profiler's clock, and the shares that it sees are far off.
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let varied = u64::from(iterations / 10) + (noise >> 33) % (u64::from(iterations) * 9 / 5 + 1);
        let varied = u32::try_from(varied).map_or(iterations, |varied| varied.max(1));
        std::hint::black_box(match log {
            Some(log) => log.timed(span(calls), calls, || function(varied)),
            None => function(varied),
        });
        calls += 1;
    }
    calls
}

/// Starts a child that runs the code it inherited and announces nothing.
fn fork(outer: Compiled, iterations: u32, mut deadline_ns: u64, length: Length) -> Result<libc::pid_t> {
    // SAFETY: this process has one thread so far, so the child inherits no lock in use.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()).context("cannot fork"),
        0 => {
            loop {
                loop_until(outer, iterations, deadline_ns, None, |_| 0);
                // Its own CPU time, which began with it.
                match length.rest_ns(0) {
                    0 => break,
                    rest => deadline_ns = now_ns() + rest,
                }
            }
            // SAFETY: ends the child without running destructors, which would flush the parent's buffer twice.
            unsafe { libc::_exit(0) }
        }
        child => Ok(child),
    }
}

fn wait_for(child: libc::pid_t) -> Result<()> {
    let mut status = 0;
    // SAFETY: the kernel writes the integer that the pointer refers to.
    if unsafe { libc::waitpid(child, &mut status, 0) } != child || status != 0 {
        bail!("the child failed (status {status})");
    }
    Ok(())
}

/// Replaces this process image by a new one that runs for the rest of the time.
fn exec_again(rest_ns: u64) -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let rest = Duration::from_nanos(rest_ns).as_secs_f64();
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--exec-again");
    let mut command = Command::new(program);
    command.args(arguments).arg(format!("--secs={rest}")).arg("--name-prefix=again_");
    Err(command.exec()).context("cannot execute this program again")
}
