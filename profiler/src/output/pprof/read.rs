//! pprof files back into profiles: jitprof's own as they were, other programs' as far as they say the same things.

use std::io::Read;
use std::num::NonZeroU32;
use std::time::{Duration, UNIX_EPOCH};

use super::error::PprofError;
use super::kinds;
use super::labels::Tasks;
use super::sources::{ReadLimits, unpack};
use super::tables::{Line, Location, Tables};
use super::values::Values;
use super::wire::Message;
use crate::profile::{
    FrameId, FrameRef, ModuleRef, Profile, ProfileMeta, Row, SampledEvent, SourceRef, StackId, Task, TaskId,
};
use crate::symbol::FrameKind;
use jitprof_common::units::MonoNs;

/// Stands for the callers that a stack had beyond the limit.
const TOO_DEEP: &str = "[stack too deep to be read]";
/// A frame of another program's file that has no name.
const UNKNOWN: &str = "[unknown]";
/// The frequency of a file that does not say one.
const UNKNOWN_HZ: NonZeroU32 = NonZeroU32::new(100).expect("100 is not 0");

/// A pprof file over its unpacked bytes.
#[derive(Debug)]
pub(crate) struct PprofFile<'a> {
    tables: Tables<'a>,
    limits: ReadLimits,
    meta: ProfileMeta,
    values: Values,
}

/// A sample's locations and values, as the file has them.
#[derive(Default)]
struct Sample {
    locations: Vec<u64>,
    values: Vec<u64>,
}

/// What was already made of the file's tables in the profile at hand.
struct Made {
    frames: Vec<Option<FrameId>>,
    /// Frames of locations without lines.
    bare: Vec<Option<FrameId>>,
    work: u64,
}

/// Reads a pprof file, gzipped or not, of any program. It has no times: all samples count at the start, which is 0 on
/// the samples' clock.
///
/// # Errors
/// [`PprofError`].
pub fn read_pprof(source: impl Read) -> Result<Profile, PprofError> {
    let mut raw = Vec::new();
    unpack(source, &ReadLimits::FILE, &mut raw)?;
    let file = PprofFile::parse(&raw, ReadLimits::FILE)?;
    let mut profile = Profile::new(file.meta().clone(), u64::MAX);
    file.merge_into(&mut profile, MonoNs(0), |_| true)?;
    Ok(profile)
}

impl<'a> PprofFile<'a> {
    /// Reads everything but the samples.
    ///
    /// # Errors
    /// [`PprofError`].
    pub(crate) fn parse(raw: &'a [u8], limits: ReadLimits) -> Result<Self, PprofError> {
        let tables = Tables::parse(raw, limits)?;
        let values = Values::of(&tables)?;
        let meta = meta(&tables, &values)?;
        Ok(Self { tables, limits, meta, values })
    }

    /// What the file says about the run. Its clock begins at 0.
    pub(crate) fn meta(&self) -> &ProfileMeta {
        &self.meta
    }

    /// What was merged into the file, as the archive numbers it.
    #[cfg(feature = "serve")]
    pub(crate) fn parts(&self) -> &[u64] {
        &self.tables.parts
    }

    /// Adds the samples of the tasks that pass, all at `time`.
    ///
    /// # Errors
    /// [`PprofError`]; what came before the fault is added.
    pub(crate) fn merge_into(
        &self,
        profile: &mut Profile,
        time: MonoNs,
        mut passes: impl FnMut(&Task) -> bool,
    ) -> Result<(), PprofError> {
        let mut made = Made {
            frames: vec![None; self.tables.lines.len()],
            bare: vec![None; self.tables.locations.len()],
            work: 0,
        };
        let mut tasks: Tasks<'_, '_, Option<TaskId>> = Tasks::new(&self.tables);
        let mut sample = Sample::default();
        self.tables.samples(|message| {
            let task = tasks.of(message, |task| passes(&task).then(|| profile.task(task)))?;
            let Some(task) = task else { return Ok(()) };
            profile.set_holder(Some(profile.holder_of(task)));
            sample.read(message)?;
            let (count, cpu_ns) = self.values.of_sample(&sample.values, message)?;
            let stack = self.stack(profile, &mut made, &sample.locations, message)?;
            profile.add_row(Row { time, task, stack, count, cpu_ns });
            Ok(())
        })
    }

    /// Calls `visit` with each task and the CPU time of its samples, without looking at their stacks.
    ///
    /// # Errors
    /// [`PprofError`].
    #[cfg(feature = "serve")]
    pub(crate) fn cpu_by_task(&self, mut visit: impl FnMut(&Task, u64)) -> Result<(), PprofError> {
        let mut tasks: Tasks<'_, '_, usize> = Tasks::new(&self.tables);
        let mut sums: Vec<(Task, u64)> = Vec::new();
        let mut sample = Sample::default();
        self.tables.samples(|message| {
            let at = tasks.of(message, |task| {
                sums.push((task, 0));
                sums.len() - 1
            })?;
            sample.read(message)?;
            let (_, cpu_ns) = self.values.of_sample(&sample.values, message)?;
            sums[at].1 = sums[at].1.saturating_add(cpu_ns);
            Ok(())
        })?;
        sums.iter().for_each(|(task, cpu_ns)| visit(task, *cpu_ns));
        Ok(())
    }

    fn stack(
        &self,
        profile: &mut Profile,
        made: &mut Made,
        locations: &[u64],
        message: Message<'_>,
    ) -> Result<StackId, PprofError> {
        let mut frames = 0;
        let mut kept = 0;
        for &id in locations {
            if frames >= self.limits.stack_frames {
                break;
            }
            frames += self.location(id, message)?.1.lines.len().max(1);
            kept += 1;
        }
        let mut stack = profile.stack_root();
        if kept < locations.len() {
            let frame = profile.intern_frame_ref(&note(TOO_DEEP));
            stack = profile.push(stack, frame);
        }
        made.work = made.work.saturating_add(u64::try_from(frames).unwrap_or(u64::MAX));
        if made.work > self.limits.frames {
            let limit = usize::try_from(self.limits.frames).unwrap_or(usize::MAX);
            return Err(PprofError::TooMany { field: "frames of all samples", offset: message.offset, limit });
        }
        for &id in locations[..kept].iter().rev() {
            let (at, location) = self.location(id, message)?;
            if location.lines.is_empty() {
                let frame = match made.bare[at] {
                    Some(frame) => frame,
                    None => *made.bare[at].insert(self.bare_frame(profile, location)?),
                };
                stack = profile.push(stack, frame);
                continue;
            }
            // The innermost inlined function comes first, the one that holds them all last.
            let lines = location.lines.clone();
            let first = lines.end.saturating_sub(self.limits.stack_frames).max(lines.start);
            for line in (first..lines.end).rev() {
                let frame = match made.frames[line] {
                    Some(frame) => frame,
                    None => *made.frames[line].insert(self.frame(profile, location, line)?),
                };
                stack = profile.push(stack, frame);
            }
        }
        Ok(stack)
    }

    fn location(&self, id: u64, message: Message<'_>) -> Result<(usize, &Location), PprofError> {
        let locations = &self.tables.locations;
        let at = locations.position(id);
        at.and_then(|at| Some((at, locations.at(at)?))).ok_or(PprofError::Index {
            field: message.name,
            offset: message.offset,
            what: "location",
            index: id,
        })
    }

    fn frame(&self, profile: &mut Profile, location: &Location, at: usize) -> Result<FrameId, PprofError> {
        let Line { offset, function: id, line, column } = self.tables.lines[at];
        let missing = PprofError::Index { field: "line", offset, what: "function", index: id };
        let function = self.tables.functions.get(id).ok_or(missing)?;
        let string = |index| self.tables.string(index, "function", offset);
        let module = self.module(location)?;
        let (name, system_name) = (string(function.name)?, string(function.system_name)?);
        let file = string(function.file)?;
        let (kind, tier) = match self.tables.jitprof {
            0 => (kinds::guessed(module.map(|module| module.path)), None),
            _ => kinds::decode(function.kind),
        };
        // jitprof's own names have the tier's mark in front; other programs' system name is not demangled.
        let name = if self.tables.jitprof == 0 { name } else { system_name };
        let is_inlined = at + 1 < location.lines.end || location.inlined;
        let line = u32::try_from(line).unwrap_or(0);
        let column = u32::try_from(column).ok().and_then(NonZeroU32::new);
        let frame = FrameRef {
            name: if name.is_empty() { UNKNOWN } else { name },
            kind,
            tier,
            inlined: is_inlined,
            module,
            source: (!file.is_empty()).then_some(SourceRef { file, line, column }),
            address: location.address,
        };
        Ok(profile.intern_frame_ref(&frame))
    }

    /// A location whose function is not known.
    fn bare_frame(&self, profile: &mut Profile, location: &Location) -> Result<FrameId, PprofError> {
        let module = self.module(location)?;
        let file = module.map(|module| module.path.rsplit('/').next().unwrap_or(module.path));
        let name = file.filter(|file| !file.is_empty()).map_or_else(|| UNKNOWN.to_owned(), |file| format!("[{file}]"));
        let kind = kinds::guessed(module.map(|module| module.path));
        let address = location.address;
        let frame = FrameRef { name: &name, kind, module, address, ..note("") };
        Ok(profile.intern_frame_ref(&frame))
    }

    fn module(&self, location: &Location) -> Result<Option<ModuleRef<'_>>, PprofError> {
        let (offset, index) = (location.offset, location.mapping);
        if index == 0 {
            return Ok(None);
        }
        let missing = PprofError::Index { field: "location", offset, what: "mapping", index };
        let mapping = self.tables.mappings.get(index).ok_or(missing)?;
        let path = self.tables.string(mapping.file, "mapping", offset)?;
        let build_id = self.tables.string(mapping.build_id, "mapping", offset)?;
        if path.is_empty() && build_id.is_empty() {
            return Ok(None);
        }
        Ok(Some(ModuleRef { path, build_id: (!build_id.is_empty()).then_some(build_id) }))
    }
}

impl Sample {
    fn read(&mut self, message: Message<'_>) -> Result<(), PprofError> {
        self.locations.clear();
        self.values.clear();
        message.fields(|number, value| {
            let (list, name) = match number {
                1 => (&mut self.locations, "sample location"),
                2 => (&mut self.values, "sample value"),
                _ => return Ok(()),
            };
            value.repeated(message, name, |number| {
                list.push(number);
                Ok(())
            })
        })
    }
}

fn note(name: &str) -> FrameRef<'_> {
    FrameRef { name, kind: FrameKind::Note, tier: None, inlined: false, module: None, source: None, address: 0 }
}

fn meta(tables: &Tables<'_>, values: &Values) -> Result<ProfileMeta, PprofError> {
    let comment = |at: usize| match tables.comments.get(at) {
        Some(&index) => tables.string(index, "comment", 0).map(Some),
        None => Ok(None),
    };
    let (title, how) = (comment(0)?.unwrap_or("pprof"), comment(1)?.unwrap_or_default());
    let period_hz = values.period_ns.and_then(|period| u32::try_from((1_000_000_000 + period / 2) / period).ok());
    let mut frequency_hz = period_hz.and_then(NonZeroU32::new).unwrap_or(UNKNOWN_HZ);
    let mut event = if values.is_span_time { SampledEvent::SpanTime } else { SampledEvent::CpuClock };
    if tables.jitprof != 0
        && let Some((name, hz)) = how.strip_prefix("event: ").and_then(|how| how.split_once(", "))
    {
        // The period is rounded to nanoseconds, from which a high frequency does not come back.
        let told = hz.strip_suffix(" Hz").and_then(|hz| hz.parse().ok());
        frequency_hz = told.unwrap_or(frequency_hz);
        if name == SampledEvent::Cycles.name() {
            event = SampledEvent::Cycles;
        }
    }
    Ok(ProfileMeta {
        title: title.to_owned(),
        // A time before 1970 is a negative number, which no recording has.
        start_time: UNIX_EPOCH + Duration::from_nanos(positive(tables.time_ns)),
        start: MonoNs(0),
        duration: Duration::from_nanos(positive(tables.duration_ns)),
        frequency_hz,
        event,
    })
}

/// A signed number of the file that cannot be negative.
fn positive(number: u64) -> u64 {
    u64::try_from(number.cast_signed()).unwrap_or(0)
}
