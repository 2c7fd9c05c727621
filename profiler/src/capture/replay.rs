//! The engine, driven by a capture.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jitprof_common::table::{Region, Span};
use jitprof_common::units::MonoNs;

use super::matching::Names;
use super::{CaptureError, CaptureReader, Entry, FoundRow, Header, RequestName};
use crate::engine::border::{Answer, AnswerBody, Counters, Order, Recorded, Request, RequestId, RowsAnswer, Window};
use crate::engine::tables::TableMemory;
use crate::engine::{Engine, Input, Output, Who};
use crate::process::open::{FileId, VDSO};
use crate::symbol::{NameAnswer, SymbolKey};

/// What a capture leads to.
#[derive(Debug)]
pub struct Replayed {
    /// How it was made.
    pub header: Header,
    /// What the run left behind.
    pub recorded: Recorded,
    /// Windows of a continuous recording.
    pub windows: Vec<Window>,
    /// Inputs taken up.
    pub inputs: u64,
    /// Whether several processes were meant.
    pub is_of_several: bool,
    /// It ends in the middle: the end of the run was made up.
    pub is_truncated: bool,
    /// What this engine has asked for and the one that was captured had not.
    pub strayed: Strayed,
}

/// What an engine has asked for that the one that was captured had not. With the same version, nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strayed {
    /// Requests that nobody has answered.
    pub requests: u64,
    /// Rows of files that nobody had looked up.
    pub rows: u64,
}

/// What was found in the rows of files, and how often something else was looked for.
#[derive(Debug, Default)]
struct Facts {
    found: HashMap<(FileId, u64), Option<u64>>,
    missing: u64,
}

/// Memory that answers as it did then.
struct Remembered(Arc<Mutex<Facts>>);

impl TableMemory for Remembered {
    fn write_rows(&mut self, _first: u32, _rows: &[u64]) {}

    fn write_regions(&mut self, _first: u32, _regions: &[Region]) {}

    fn find_row(&self, file: FileId, address: u64, _span: Span) -> Option<u64> {
        let mut facts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = facts.found.get(&(file, address)).copied();
        facts.missing += u64::from(found.is_none());
        found.flatten()
    }
}

/// Replays a capture, with time buckets of `bucket_ns` if the capture has larger ones. `look` sees every output.
///
/// # Errors
/// It is no capture, or damaged.
pub fn replay(
    file: impl Read,
    bucket_ns: Option<u64>,
    mut look: impl FnMut(&Output),
) -> Result<Replayed, CaptureError> {
    let (header, mut reader) = CaptureReader::new(file)?;
    let facts = Arc::new(Mutex::new(Facts::default()));
    let mut replayer = Replayer::new(&header, facts, bucket_ns);
    let mut inputs = 0;
    while let Some(entry) = reader.next_entry()? {
        replayer.take(entry, &mut look);
        inputs += 1;
    }
    let was_open = replayer.recorded.is_none();
    let recorded = replayer.end(&mut look);
    let several = match &header.options.who {
        Who::All | Who::Comm(_) | Who::Matching(_) => true,
        Who::Chosen => replayer.followed > 1,
    };
    // What was given up then has no answer now.
    for name in reader.unanswered() {
        if let Some(requests) = replayer.asked.get_mut(name) {
            requests.pop_front();
        }
    }
    let rows = replayer.facts.lock().unwrap_or_else(PoisonError::into_inner).missing;
    Ok(Replayed {
        header,
        recorded,
        windows: replayer.windows,
        inputs,
        is_of_several: several,
        is_truncated: reader.is_truncated() || was_open,
        strayed: Strayed { requests: replayer.asked.values().map(|ids| ids.len() as u64).sum(), rows },
    })
}

struct Replayer {
    engine: Engine,
    facts: Arc<Mutex<Facts>>,
    names: Names,
    /// Requests of this engine that wait for their answer.
    asked: HashMap<RequestName, VecDeque<RequestId>>,
    /// Answers that this engine has not asked for yet.
    kept: HashMap<RequestName, VecDeque<Captured>>,
    /// This engine's number of each file of the capture.
    files: HashMap<FileId, FileId>,
    /// What this engine calls the file that a request may open.
    opening: HashMap<RequestName, FileId>,
    /// Addresses whose names this engine waits for, and names that came before it has asked.
    unnamed: HashSet<SymbolKey>,
    named: HashMap<SymbolKey, NameAnswer>,
    /// The same of files' rows.
    unbuilt: HashSet<FileId>,
    built: HashMap<FileId, RowsAnswer>,
    publication: u64,
    recorded: Option<Recorded>,
    windows: Vec<Window>,
    last: MonoNs,
    counters: Counters,
    followed: usize,
    /// The engine that was captured may have asked for other rows of code, or for none.
    is_of_another: bool,
}

/// An answer of the capture, and what the file is called there that may have been opened for it.
type Captured = (Answer, Option<FileId>);

impl Replayer {
    fn new(header: &Header, facts: Arc<Mutex<Facts>>, bucket_ns: Option<u64>) -> Self {
        let memory: Box<dyn TableMemory> = Box::new(Remembered(Arc::clone(&facts)));
        let mut options = header.options.clone();
        options.bucket_ns = options.bucket_ns.min(bucket_ns.unwrap_or(u64::MAX));
        Self {
            engine: Engine::new(options, Some(memory), header.now),
            facts,
            names: Names::default(),
            asked: HashMap::new(),
            kept: HashMap::new(),
            files: HashMap::from([(VDSO, VDSO)]),
            opening: HashMap::new(),
            unnamed: HashSet::new(),
            named: HashMap::new(),
            unbuilt: HashSet::new(),
            built: HashMap::new(),
            publication: 0,
            recorded: None,
            windows: Vec::new(),
            last: header.now,
            counters: Counters::default(),
            followed: 0,
            is_of_another: header.version != env!("CARGO_PKG_VERSION"),
        }
    }

    fn take(&mut self, entry: Entry<'_>, look: &mut impl FnMut(&Output)) {
        self.learn(&entry.found);
        match entry.input {
            Input::Answer(answer) => {
                if let Some((name, opens)) = entry.answers {
                    self.take_answer(name, (answer, opens), look);
                }
            }
            Input::Names(names) => {
                let names = names.into_iter().filter_map(|answer| self.translated(answer)).collect::<Vec<_>>();
                let (wanted, others): (Vec<_>, Vec<_>) =
                    names.into_iter().partition(|answer| self.unnamed.remove(&answer.key));
                self.named.extend(others.into_iter().map(|answer| (answer.key, answer)));
                self.hand_in(Input::Names(wanted), look);
            }
            Input::Rows(answer) => {
                let Some(file) = self.files.get(&answer.file).copied() else { return };
                let answer = RowsAnswer { file, ..answer };
                if self.unbuilt.remove(&file) {
                    self.hand_in(Input::Rows(answer), look);
                } else {
                    self.built.insert(file, answer);
                }
            }
            // What was in force then is so of all that this engine has published by now.
            Input::Published { at, .. } => {
                self.hand_in(Input::Published { publication: self.publication, at }, look);
            }
            other => self.hand_in(other, look),
        }
    }

    fn learn(&mut self, found: &[FoundRow]) {
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        for FoundRow { file, address, row } in found {
            if let Some(file) = self.files.get(file) {
                facts.found.insert((*file, *address), *row);
            }
        }
    }

    fn translated(&self, answer: NameAnswer) -> Option<NameAnswer> {
        let key = match answer.key {
            SymbolKey::File(file, offset) => SymbolKey::File(*self.files.get(&file)?, offset),
            kernel @ SymbolKey::Kernel(_) => kernel,
        };
        Some(NameAnswer { key, ..answer })
    }

    fn take_answer(&mut self, name: RequestName, captured: Captured, look: &mut impl FnMut(&Output)) {
        match self.asked.get_mut(&name).and_then(VecDeque::pop_front) {
            Some(request) => self.answer((name, request), captured, look),
            None => self.kept.entry(name).or_default().push_back(captured),
        }
    }

    fn answer(
        &mut self,
        (name, request): (RequestName, RequestId),
        (answer, opens): Captured,
        look: &mut impl FnMut(&Output),
    ) {
        if let (Some(theirs), Some(ours)) = (opens, self.opening.get(&name)) {
            self.files.entry(theirs).or_insert(*ours);
        }
        self.hand_in(Input::Answer(Answer { request, ..answer }), look);
    }

    fn hand_in(&mut self, input: Input<'_>, look: &mut impl FnMut(&Output)) {
        match &input {
            Input::Turn(now) => self.last = *now,
            Input::Counters(counters) => self.counters = counters.clone(),
            // The others are children of these.
            Input::Order(Order::Follow { pids, awaited: true }) => self.followed += pids.len(),
            _ => {}
        }
        self.engine.handle(input);
        while let Some(output) = self.engine.poll_output() {
            look(&output);
            self.obey(output, look);
        }
    }

    /// Gives what this engine asks for, if it has come already.
    fn obey(&mut self, output: Output, look: &mut impl FnMut(&Output)) {
        match output {
            Output::Request(request, what) => {
                let (name, opens) = self.names.of(&what);
                if let Some(file) = opens {
                    self.opening.insert(name, file);
                }
                match (self.kept.get_mut(&name).and_then(VecDeque::pop_front), what) {
                    (Some(captured), _) => self.answer((name, request), captured, look),
                    // They follow from the code alone, and another version's capture may never have them.
                    (None, Request::CodeRows(code)) if self.is_of_another => {
                        let (at, body) = (self.last, AnswerBody::CodeRows(code.rows()));
                        self.hand_in(Input::Answer(Answer { request, begun: at, done: at, body }), look);
                    }
                    (None, _) => self.asked.entry(name).or_default().push_back(request),
                }
            }
            Output::Name(keys) => {
                let known: Vec<NameAnswer> = keys.iter().filter_map(|key| self.named.remove(key)).collect();
                self.unnamed.extend(keys);
                for answer in &known {
                    self.unnamed.remove(&answer.key);
                }
                if !known.is_empty() {
                    self.hand_in(Input::Names(known), look);
                }
            }
            Output::BuildRows { file, .. } => match self.built.remove(&file) {
                Some(answer) => self.hand_in(Input::Rows(answer), look),
                None => {
                    self.unbuilt.insert(file);
                }
            },
            Output::Publish(publication) => self.publication = publication,
            Output::Finished(recorded) => self.recorded = Some(*recorded),
            Output::Window(window) => self.windows.push(*window),
            _ => {}
        }
    }

    /// What the run left behind; if its end was not captured, it ends here.
    fn end(&mut self, look: &mut impl FnMut(&Output)) -> Recorded {
        if let Some(recorded) = self.recorded.take() {
            return recorded;
        }
        let began = self.engine.began_at();
        let duration = Duration::from_nanos(self.last.0.saturating_sub(began.0));
        let order = Order::Finish { read_limit: Duration::ZERO, names_limit: Duration::ZERO, duration };
        self.hand_in(Input::Order(order), look);
        self.hand_in(Input::Turn(self.last), look);
        self.hand_in(Input::Counters(self.counters.clone()), look);
        self.recorded.take().expect("invariant: an engine that is told to finish, and given the counts, does")
    }
}

#[cfg(test)]
mod tests {
    use jitprof_common::units::{Avma, Pid};

    use super::*;
    use crate::capture::machine_name;
    use crate::capture::tests::options;
    use crate::engine::border::CodePieces;
    use crate::process::ProcessId;

    #[test]
    fn rows_of_code_that_another_version_has_not_asked_for_are_made_on_the_spot() {
        for (version, waits) in [("0.0.1", false), (env!("CARGO_PKG_VERSION"), true)] {
            let (version, machine) = (version.to_owned(), machine_name().to_owned());
            let header = Header { version, machine, options: options(), now: MonoNs(1) };
            let mut replayer = Replayer::new(&header, Arc::default(), None);
            let process = ProcessId { pid: Pid(7), start: MonoNs(1) };
            let pieces = vec![(Avma(0x1000), vec![0xc3].into())];
            let code = CodePieces { process, user: None, is_called: false, pieces };
            let order = Output::Request(RequestId(9), Request::CodeRows(Box::new(code)));
            replayer.obey(order, &mut |_: &Output| {});
            assert_eq!(replayer.asked.len(), usize::from(waits), "of the same version they come when they came then");
        }
    }
}
