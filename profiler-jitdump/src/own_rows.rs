//! Which of V8's source rows are a function's own.
//!
//! V8 gives every row of a code object the name of the function's script, also those of code inlined from another one,
//! whose line and column it tells (seen in Node 20 to 26). Nothing in the record says which rows are the function's. But
//! baseline code inlines nothing: its rows hold all positions of the function that can ever be in a row. So a row of
//! optimised code is believed where the function's baseline code has one at the same line and column.
//!
//! The addresses in baseline code's own rows are offsets into the bytecode, of which nothing says where in the code they
//! are. They name a line only if there is but one.

use super::debug_info::LOST;
use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::Arc;

/// Positions that are remembered; beyond, the memory of them begins anew. A large Node has some ten for each of 50,000
/// functions.
const MAX_POSITIONS: usize = 1 << 20;
/// Functions that are remembered.
const MAX_FUNCTIONS: usize = 1 << 17;
/// Columns in a position; a row farther to the right is in minified code, where lines say little.
const COLUMN_BITS: u32 = 12;

/// What V8's names of functions begin with.
const TAGS: [&[u8]; 6] = [b"JS", b"LazyCompile", b"Function", b"Script", b"Eval", b"InterpretedFunction"];
/// What those of WebAssembly end with.
const WASM_ENDS: [&[u8]; 2] = [b"-liftoff", b"-turbofan"];

/// A line and a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position(u32);

impl Position {
    fn line(self) -> u32 {
        self.0 >> COLUMN_BITS
    }

    /// `None` if it is too far down or to the right.
    pub(super) fn new(line: u32, column: i32) -> Option<Self> {
        let column = u32::try_from(column).ok().filter(|column| *column < 1 << COLUMN_BITS)?;
        (line < 1 << (u32::BITS - COLUMN_BITS)).then_some(Self(line << COLUMN_BITS | column))
    }
}

/// What V8's name for code says about its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    /// The rows' addresses mean nothing, and their positions are the function's.
    Bytecode,
    /// The rows' addresses are right, and their positions may be another function's.
    Optimised,
}

/// The positions of the functions of one dump.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnRows {
    /// By a hash of the function's name and place; none if several functions have that in common.
    known: Arc<HashMap<u64, Box<[Position]>>>,
    hasher: RandomState,
    positions: usize,
    /// Of a copy for a while, to whose owner what is known belongs: what it has learnt itself.
    ahead: Option<HashMap<u64, Box<[Position]>>>,
}

/// Which rows of a code object are believed.
#[derive(Clone, Debug)]
pub(super) enum Belief {
    /// All: they are not V8's, or of WebAssembly.
    All,
    /// None.
    Nothing,
    /// All are of this line.
    OneLine(u32),
    /// Those with positions of this function, and the one where it begins.
    Of(OwnPositions),
}

/// What is to be made of the rows of a code object.
#[derive(Clone, Debug)]
pub(super) struct Judgement {
    pub(super) belief: Belief,
    /// The line that holds where a row is not believed: the one on which the function begins if only the rows say in which
    /// file, else 0, since the name says both.
    pub(super) otherwise: u32,
    /// Which of the files all rows are of; `None`: each of its own.
    pub(super) file: Option<u32>,
    /// What that file is called, where only the end of its name is left.
    pub(super) called: Option<Arc<str>>,
}

impl Judgement {
    /// They are taken as they are.
    pub(super) const ALL: Self = Self { belief: Belief::All, otherwise: 0, file: None, called: None };
    const NOTHING: Self = Self { belief: Belief::Nothing, otherwise: 0, file: None, called: None };
}

/// The positions of one function.
#[derive(Clone, Debug)]
pub(super) struct OwnPositions {
    known: Arc<HashMap<u64, Box<[Position]>>>,
    key: u64,
    start: Position,
}

impl OwnPositions {
    /// Whether a position is the function's.
    pub(super) fn has(&self, position: Option<Position>) -> bool {
        let known = || self.known.get(&self.key);
        position.is_some_and(|position| {
            position == self.start || known().is_some_and(|known| known.binary_search(&position).is_ok())
        })
    }
}

impl OwnRows {
    /// A copy for a while, which costs nothing, and learns for itself alone.
    pub(super) fn borrowed(&self) -> Self {
        Self { ahead: Some(HashMap::new()), ..self.clone() }
    }

    /// What is to be believed of the rows of code with this name, which name these files; `positions` are theirs, with
    /// each row's line.
    pub(super) fn judge(
        &mut self,
        name: &[u8],
        files: &[Arc<str>],
        positions: impl ExactSizeIterator<Item = (u32, Option<Position>)>,
    ) -> Judgement {
        let Some((tier, function)) = split_name(name) else { return Judgement::ALL };
        let Some(begin) = std::str::from_utf8(function).ok().and_then(begin_of) else { return Judgement::NOTHING };
        // Node 26 gives the first row of another script the name of the row before: no row's own name counts.
        let is_own = |file: &&Arc<str>| {
            let end = file.trim_start_matches(LOST);
            !end.is_empty() && (!begin.has_file || begin.place.ends_with(end))
        };
        let Some((index, file)) = files.iter().enumerate().find(|(_, file)| is_own(file)) else {
            return Judgement::NOTHING;
        };
        let key = self.hasher.hash_one((function, if begin.has_file { "" } else { file }));
        let belief = match tier {
            None => Belief::Nothing,
            Some(Tier::Optimised) => {
                let ahead = self.ahead.as_ref().and_then(|ahead| ahead.get(&key)).cloned();
                let known = ahead.map_or_else(|| Arc::clone(&self.known), |own| Arc::new(HashMap::from([(key, own)])));
                Belief::Of(OwnPositions { known, key, start: begin.position })
            }
            Some(Tier::Bytecode) => self.learn(key, positions),
        };
        let otherwise = if begin.has_file { 0 } else { begin.position.line() };
        let called = begin.file_name().filter(|_| file.starts_with(LOST)).map(Arc::from);
        Judgement { belief, otherwise, file: u32::try_from(index).ok(), called }
    }

    fn learn(&mut self, key: u64, positions: impl ExactSizeIterator<Item = (u32, Option<Position>)>) -> Belief {
        let mut lines: Option<(u32, u32)> = None;
        let mut own = Vec::with_capacity(positions.len());
        for (line, position) in positions {
            let (low, high) = lines.unwrap_or((line, line));
            lines = Some((low.min(line), high.max(line)));
            own.extend(position);
        }
        own.sort_unstable();
        own.dedup();
        match &mut self.ahead {
            Some(ahead) => {
                let before = ahead.get(&key).or_else(|| self.known.get(&key));
                let is_another = before.is_some_and(|before| **before != *own);
                ahead.insert(key, if is_another { Box::default() } else { own.into_boxed_slice() });
            }
            None => self.remember(key, own),
        }
        match lines {
            Some((low, high)) if low == high => Belief::OneLine(low),
            _ => Belief::Nothing,
        }
    }

    /// Two functions of the same name at the same place are two texts in one file: whose positions are whose is not known.
    fn remember(&mut self, key: u64, own: Vec<Position>) {
        if self.positions + own.len() > MAX_POSITIONS || self.known.len() >= MAX_FUNCTIONS {
            self.known = Arc::default();
            self.positions = 0;
        }
        match Arc::make_mut(&mut self.known).entry(key) {
            Entry::Occupied(known) if **known.get() == *own => {}
            Entry::Occupied(mut known) => {
                self.positions -= known.get().len();
                known.insert(Box::default());
            }
            Entry::Vacant(entry) => {
                self.positions += own.len();
                entry.insert(own.into_boxed_slice());
            }
        }
    }
}

/// The tier of a JavaScript function's code, if it has a known mark, and the rest of its name, which says where the
/// function begins. `None` for what is not JavaScript.
fn split_name(name: &[u8]) -> Option<(Option<Tier>, &[u8])> {
    let (tag, rest) = name.split_at_checked(memchr::memchr(b':', name)?)?;
    let rest = rest.get(1..)?;
    if !TAGS.contains(&tag) || WASM_ENDS.iter().any(|end| rest.ends_with(end)) {
        return None;
    }
    // Code that a running loop has gone over to is marked so since V8 13.
    let marked = rest.strip_prefix(b"o").filter(|rest| matches!(rest.first(), Some(b'*' | b'+'))).unwrap_or(rest);
    let tier = match marked.first() {
        Some(b'^' | b'~') => Some(Tier::Bytecode),
        Some(b'*' | b'+') => Some(Tier::Optimised),
        _ => None,
    };
    let function = if tier.is_some() { marked.get(1..)? } else { rest };
    Some((tier, function.strip_prefix(b"'").unwrap_or(function)))
}

/// Where a function begins.
struct Begin<'a> {
    position: Position,
    /// The function's name and its file.
    place: &'a str,
    /// Of text that was evaluated only the rows name a file.
    has_file: bool,
}

impl<'a> Begin<'a> {
    /// The name of its file, without the directories.
    fn file_name(&self) -> Option<&'a str> {
        self.place.rsplit(['/', ' ']).next().filter(|_| self.has_file)
    }
}

/// Where a function begins that is called `NAME FILE:LINE:COLUMN`.
fn begin_of(function: &str) -> Option<Begin<'_>> {
    let (rest, column) = function.rsplit_once(':')?;
    let (place, line) = rest.rsplit_once(':')?;
    let position = Position::new(line.parse().ok()?, column.parse().ok()?)?;
    Some(Begin { position, place, has_file: !place.is_empty() && !place.ends_with(' ') })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(all: &[(u32, i32)]) -> Vec<(u32, Option<Position>)> {
        all.iter().map(|(line, column)| (*line, Position::new(*line, *column))).collect()
    }

    /// Whether each position is believed of code of this name.
    fn believed(own: &mut OwnRows, name: &str, all: &[(u32, i32)]) -> Vec<bool> {
        let file = name.split(' ').next_back().and_then(|place| place.split(':').next()).unwrap_or_default();
        judged(own, name, file, all).0
    }

    /// The same of rows that name a file, and the line that holds elsewhere.
    fn judged(own: &mut OwnRows, name: &str, file: &str, all: &[(u32, i32)]) -> (Vec<bool>, u32) {
        let Judgement { belief, otherwise, .. } =
            own.judge(name.as_bytes(), &[Arc::from(file)], positions(all).into_iter());
        let believed = match belief {
            Belief::All => vec![true; all.len()],
            Belief::Nothing => vec![false; all.len()],
            Belief::OneLine(line) => all.iter().map(|(of, _)| *of == line).collect(),
            Belief::Of(own) => positions(all).into_iter().map(|(_, position)| own.has(position)).collect(),
        };
        (believed, otherwise)
    }

    #[test]
    fn a_file_of_whose_name_only_the_end_is_left_is_called_as_in_the_functions_name() {
        let mut own = OwnRows::default();
        let mut called = |name: &str, file: &str| {
            let judgement = own.judge(name.as_bytes(), &[Arc::from(file)], positions(&[(1, 1)]).into_iter());
            (judgement.file, judgement.called.as_deref().map(str::to_owned))
        };
        assert_eq!(called("JS:*f /app/worker.js:1:1", "…ker.js"), (Some(0), Some("worker.js".to_owned())));
        assert_eq!(called("JS:*f /app/worker.js:1:1", "worker.js"), (Some(0), None));
        assert_eq!(called("JS:*f /app/worker.js:1:1", "…other.js"), (None, None));
        assert_eq!(called("JS:*f :1:1", "…ker.js"), (Some(0), None), "nothing else names it");
    }

    #[test]
    fn a_row_of_optimised_code_is_believed_where_baseline_code_has_been() {
        let mut own = OwnRows::default();
        // Baseline code of several lines tells its positions, and none of its rows is at its place.
        assert_eq!(believed(&mut own, "JS:^f /a.js:3:10", &[(4, 5), (5, 9)]), [false; 2]);
        let rows = [(3, 10), (4, 5), (4, 6), (400, 5), (5, 9)];
        for tier in ["*", "+", "*'", "+'", "o+", "o*'"] {
            let name = format!("JS:{tier}f /a.js:3:10");
            assert_eq!(believed(&mut own, &name, &rows), [true, true, false, false, true], "{name}");
        }
        // Nothing is known of a function that never had baseline code but where it begins.
        assert_eq!(believed(&mut own, "JS:*g /a.js:3:10", &rows), [true, false, false, false, false]);
        assert_eq!(believed(&mut own, "JS:f /a.js:3:10", &rows), [false; 5], "of a tier that is not known");
        // On one line it does not matter where.
        assert_eq!(believed(&mut own, "JS:^g /a.js:7:10", &[(7, 15), (7, 19)]), [true; 2]);
    }

    #[test]
    fn two_functions_of_one_name_prove_nothing() {
        let mut own = OwnRows::default();
        believed(&mut own, "JS:^f gen.js:1:20", &[(1, 30), (2, 9)]);
        believed(&mut own, "JS:^f gen.js:1:20", &[(1, 30), (2, 9)]);
        assert_eq!(believed(&mut own, "JS:*f gen.js:1:20", &[(2, 9)]), [true], "the same text again");
        believed(&mut own, "JS:^f gen.js:1:20", &[(1, 30), (2, 8)]);
        assert_eq!(believed(&mut own, "JS:*f gen.js:1:20", &[(2, 8), (2, 9)]), [false; 2]);
        assert_eq!(believed(&mut own, "JS:* :1:20", &[(1, 20)]), [false], "of no file");
    }

    #[test]
    fn all_rows_are_of_the_file_that_the_name_ends_with() {
        let mut own = OwnRows::default();
        believed(&mut own, "JS:^f /app/a.js:1:1", &[(1, 3), (2, 3)]);
        let files = ["b.js", "a.js", "/app/a.js"].map(Arc::from);
        let mut of = |name: &str| own.judge(name.as_bytes(), &files, positions(&[(2, 3)]).into_iter()).file;
        assert_eq!(of("JS:*f /app/a.js:1:1"), Some(1), "what is left of an overwritten name is enough");
        assert_eq!(of("JS:*f /app/c.js:1:1"), None);
        assert_eq!(of("leaf"), None);
    }

    #[test]
    fn text_that_was_evaluated_is_known_by_the_file_that_its_rows_name() {
        let mut own = OwnRows::default();
        assert_eq!(judged(&mut own, "JS:^ :1:20", "gen_1.js", &[(2, 5), (3, 9)]), (vec![false; 2], 1));
        assert_eq!(judged(&mut own, "JS:^ :1:20", "gen_2.js", &[(2, 6), (3, 7)]), (vec![false; 2], 1));
        let rows = [(1, 20), (2, 5), (2, 6)];
        assert_eq!(judged(&mut own, "JS:* :1:20", "gen_1.js", &rows), (vec![true, true, false], 1));
        assert_eq!(judged(&mut own, "JS:* :1:20", "gen_2.js", &rows), (vec![true, false, true], 1));
        // Where the name has a file, it is said by that.
        assert_eq!(judged(&mut own, "JS:*f /a.js:3:10", "a.js", &rows), (vec![false; 3], 0));
    }

    #[test]
    fn what_is_not_javascript_is_taken_as_it_is() {
        let mut own = OwnRows::default();
        for name in ["leaf_hot", "Function:wasm-function[3]-3-turbofan", "", ":"] {
            assert_eq!(believed(&mut own, name, &[(9, 1)]), [true], "{name}");
        }
    }

    #[test]
    fn a_copy_knows_what_was_known_and_learns_for_itself_alone() {
        let mut own = OwnRows::default();
        believed(&mut own, "JS:^f /a.js:1:1", &[(1, 3), (2, 3)]);
        let mut copy = own.borrowed();
        believed(&mut copy, "JS:^g /a.js:5:1", &[(5, 3), (6, 3)]);
        assert_eq!(believed(&mut copy, "JS:*f /a.js:1:1", &[(2, 3)]), [true]);
        assert_eq!(believed(&mut copy, "JS:*g /a.js:5:1", &[(6, 3), (7, 3)]), [true, false]);
        assert_eq!(believed(&mut own, "JS:*g /a.js:5:1", &[(6, 3)]), [false]);
        believed(&mut copy, "JS:^f /a.js:1:1", &[(1, 3), (2, 4)]);
        assert_eq!(believed(&mut copy, "JS:*f /a.js:1:1", &[(2, 3), (2, 4)]), [false; 2], "two texts");
        assert_eq!(believed(&mut own, "JS:*f /a.js:1:1", &[(2, 3), (2, 4)]), [true, false]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut own = OwnRows::default();
        for function in 0..3 * MAX_FUNCTIONS {
            let rows = [(1, 1), (2, 2), (3, i32::try_from(function % 4000).unwrap())];
            believed(&mut own, &format!("JS:^f /a.js:1:{function}"), &rows);
        }
        assert!(own.known.len() <= MAX_FUNCTIONS && own.positions <= MAX_POSITIONS);
        assert_eq!(own.positions, own.known.values().map(|known| known.len()).sum::<usize>());
    }
}
