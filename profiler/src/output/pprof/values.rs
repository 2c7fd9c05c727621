//! Which of a sample's values are its count and its CPU time.

use super::error::PprofError;
use super::tables::Tables;
use super::wire::Message;

/// The places of the values that count, and how they are meant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    count: Option<usize>,
    time: Option<usize>,
    /// Nanoseconds of one unit of the time.
    unit_ns: u64,
    /// Time between two samples, if the file says so.
    pub(super) period_ns: Option<u64>,
    /// Nanoseconds in spans of a trace log, which are counts.
    pub(super) is_span_time: bool,
}

impl Values {
    /// The time is the value called `cpu`, else the default one, else the last that is a time; the count is the first
    /// that has the unit `count`.
    pub(super) fn of(tables: &Tables<'_>) -> Result<Self, PprofError> {
        let string = |index| tables.string(index, "sample type", 0);
        let mut types = Vec::with_capacity(tables.sample_types.len());
        for value_type in &tables.sample_types {
            types.push((string(value_type.kind)?, string(value_type.unit)?));
        }
        let default_type = tables.string(tables.default_type, "default sample type", 0)?;
        let times = || types.iter().enumerate().filter(|(_, (_, unit))| unit_ns(unit).is_some()).map(|(at, _)| at);
        let named = |name: &str| times().find(|&at| types[at].0 == name);
        let time = named("cpu").or_else(|| named(default_type)).or_else(|| times().next_back());
        let count = types.iter().position(|(_, unit)| *unit == "count");
        if time.is_none() && count.is_none() {
            let mut known = types.iter().map(|(name, unit)| format!("{name}/{unit}"));
            let first = known.next().unwrap_or_else(|| "no values at all".to_owned());
            return Err(PprofError::Values(known.take(4).fold(first, |list, next| list + ", " + &next)));
        }
        let period_unit = tables.period_type.unwrap_or_default().unit;
        let period_unit_ns = unit_ns(string(period_unit)?).unwrap_or(0);
        let period_ns = tables.period.checked_mul(period_unit_ns).filter(|period| (1..=1 << 62).contains(period));
        Ok(Self {
            count,
            time,
            unit_ns: time.and_then(|at| unit_ns(types[at].1)).unwrap_or(1),
            period_ns,
            is_span_time: count.is_none() && time.is_some_and(|at| types[at].0 == "span"),
        })
    }

    /// Samples, at least one, and the CPU time that they stand for.
    pub(super) fn of_sample(&self, values: &[u64], message: Message<'_>) -> Result<(u64, u64), PprofError> {
        let value = |at: Option<usize>| match at.map(|at| values.get(at)) {
            None => Ok(None),
            Some(None) => Err(message.fault(0, "there are fewer values than sample types")),
            Some(Some(value)) => match u64::try_from(value.cast_signed()) {
                Ok(value) => Ok(Some(value)),
                Err(_) => Err(PprofError::Negative { offset: message.offset }),
            },
        };
        let (count, time) = (value(self.count)?, value(self.time)?);
        let cpu_ns = time.map(|time| time.saturating_mul(self.unit_ns));
        let period_ns = self.period_ns.unwrap_or(0);
        Ok(match (count, cpu_ns) {
            (_, Some(cpu_ns)) if self.is_span_time => (cpu_ns, cpu_ns),
            (Some(count), Some(cpu_ns)) => (count.max(1), cpu_ns),
            (Some(count), None) => (count, count.saturating_mul(period_ns)),
            (None, Some(cpu_ns)) => (cpu_ns.checked_div(period_ns).unwrap_or(1).max(1), cpu_ns),
            (None, None) => (0, 0),
        })
    }
}

fn unit_ns(unit: &str) -> Option<u64> {
    match unit {
        "nanoseconds" | "nanosecond" | "ns" => Some(1),
        "microseconds" | "microsecond" | "us" => Some(1_000),
        "milliseconds" | "millisecond" | "ms" => Some(1_000_000),
        "seconds" | "second" | "s" => Some(1_000_000_000),
        _ => None,
    }
}
