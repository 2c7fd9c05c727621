//! Labels of samples back into tasks.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::proto::Label;
use super::PROCESS_START;
use super::error::PprofError;
use super::tables::Tables;
use super::wire::Message;
use crate::profile::{Labels, Task};
use jitprof_common::units::{Pid, Tid};

/// Labels of one sample that are looked at.
const MAX_LABELS: usize = 256;
/// The program of a file that names none.
const NO_NAME: &str = "[unknown]";

/// Tasks by the labels of their samples, each with what the caller makes of it.
pub(super) struct Tasks<'t, 'a, T> {
    tables: &'t Tables<'a>,
    /// Keys come from the file, so the hasher is the default one.
    known: HashMap<Vec<Label>, T>,
    /// Samples of a task mostly stand together.
    last: Option<(Vec<Label>, T)>,
    labels: Vec<Label>,
}

impl<'t, 'a, T: Copy> Tasks<'t, 'a, T> {
    pub(super) fn new(tables: &'t Tables<'a>) -> Self {
        Self { tables, known: HashMap::new(), last: None, labels: Vec::new() }
    }

    /// What `make` made of the task that a sample belongs to.
    pub(super) fn of(&mut self, sample: Message<'_>, make: impl FnOnce(Task) -> T) -> Result<T, PprofError> {
        self.read(sample)?;
        if let Some((labels, made)) = &self.last
            && *labels == self.labels
        {
            return Ok(*made);
        }
        let made = match self.known.get(&self.labels) {
            Some(made) => *made,
            None => {
                let made = make(self.task(sample.offset)?);
                self.known.insert(self.labels.clone(), made);
                made
            }
        };
        self.last = Some((std::mem::take(&mut self.labels), made));
        Ok(made)
    }

    fn read(&mut self, sample: Message<'_>) -> Result<(), PprofError> {
        self.labels.clear();
        sample.fields(|number, value| {
            if number != 3 {
                return Ok(());
            }
            let message = value.bytes(sample, "label")?;
            if self.labels.len() >= MAX_LABELS {
                return Err(PprofError::TooMany { field: "label", offset: message.offset, limit: MAX_LABELS });
            }
            let mut label = Label::default();
            message.fields(|number, value| {
                match number {
                    1 => label.key = value.number(message)?.cast_signed(),
                    2 => label.str = value.number(message)?.cast_signed(),
                    3 => label.num = value.number(message)?.cast_signed(),
                    4 => label.num_unit = value.number(message)?.cast_signed(),
                    _ => {}
                }
                Ok(())
            })?;
            self.labels.push(label);
            Ok(())
        })
    }

    fn task(&self, offset: usize) -> Result<Task, PprofError> {
        let string = |index: i64| self.tables.string(index.cast_unsigned(), "label", offset);
        let (mut pid, mut tid, mut process_start) = (0, 0, 0);
        let (mut comm, mut thread) = (None, None);
        let mut others: Vec<(&str, String)> = Vec::new();
        for label in &self.labels {
            let text = string(label.str)?;
            let number = u32::try_from(label.num).ok().filter(|_| label.str == 0);
            match (string(label.key)?, number) {
                ("pid", Some(number)) => pid = number,
                ("tid", Some(number)) => tid = number,
                (PROCESS_START, _) if label.str == 0 => process_start = label.num.cast_unsigned(),
                // jitprof writes `comm` before `thread` where it only repeats the thread's name.
                ("comm", _) if thread.is_none() && self.tables.jitprof != 0 => comm = Some(text),
                ("thread", _) if label.str != 0 => thread = Some(text),
                (key, _) if label.str != 0 => others.push((key, text.to_owned())),
                (key, _) => {
                    let unit = string(label.num_unit)?;
                    others.push((key, format!("{}{}{unit}", label.num, if unit.is_empty() { "" } else { " " })));
                }
            }
        }
        let suffix = format!("-{tid}");
        let thread = thread.map(|thread| thread.strip_suffix(suffix.as_str()).unwrap_or(thread));
        let comm = thread.or(comm).or_else(|| others.iter().find(|(key, _)| *key == "comm").map(|(_, comm)| &**comm));
        let comm = Arc::from(comm.unwrap_or_else(|| self.program()));
        let labels: Labels = others.iter().map(|(key, value)| (*key, value.as_str())).collect();
        Ok(Task { pid: Pid(pid), process_start, tid: Tid(tid), comm, labels: Arc::new(labels) })
    }

    /// The name of the program, for a file whose samples do not say whose they are.
    fn program(&self) -> &str {
        let mapping = self.tables.mappings.iter().next();
        let file = mapping.and_then(|mapping| self.tables.string(mapping.file, "mapping", 0).ok()).unwrap_or_default();
        file.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(NO_NAME)
    }
}
