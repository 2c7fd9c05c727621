//! Rows from code bytes against what random functions do when they run.
//!
//! A function is built from balanced pieces, written as bytes for the rows, and run by the few lines that its
//! instructions need. At each instruction that is run, the row must lead to the CFA that the run began with.

use std::collections::BTreeMap;

use jitprof_common::row::Row;
use proptest::prelude::*;

use super::*;
use crate::rows_of_code;

const START: u64 = 0x7f00_0000_1000;
const STACK: u64 = 0x7ffe_0000_1008;
/// Other stacks, one below and one above the thread's.
const OTHER_STACKS: [u64; 2] = [0x7f12_0000_0000, 0x7fff_0000_0000];
const CALLERS_FP: u64 = 0xca11_e125;
/// Where oneDNN's kernels keep the stack pointer that they came with.
const SLOT: u64 = 0x98;
/// Loops end by then.
const MOST_STEPS: usize = 2000;

/// What an instruction does; other registers hold anything.
#[derive(Clone, Copy, Debug)]
enum Do {
    Push,
    Pop,
    PushFp,
    PopFp,
    SetFp,
    BackFromFp,
    Leave,
    /// `add`, `sub` or `lea`, by the way it is written.
    Move(i32, Way),
    /// `lea rsp, [rbp - n]`.
    LeaFromFp(i32),
    Align,
    /// `mov rsp, rdi`: to another stack.
    Switch,
    StoreFp,
    LoadSp,
    StoreOther(u8),
    ClobberFp,
    Call,
    Nop,
    /// `je`, over what follows.
    Skip(usize),
    /// `jne`, to where the loop began.
    Again(usize),
    Return,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Immediate,
    Lea,
}

impl Do {
    fn bytes(self) -> Vec<u8> {
        let with = |code: &[u8], value: i32| [code, &value.to_le_bytes()].concat();
        match self {
            Self::Push => vec![0x50],
            Self::Pop => vec![0x58],
            Self::PushFp => vec![0x55],
            Self::PopFp => vec![0x5d],
            Self::SetFp => vec![0x48, 0x89, 0xe5],
            Self::BackFromFp => vec![0x48, 0x89, 0xec],
            Self::Leave => vec![0xc9],
            Self::Move(bytes, Way::Lea) => with(&[0x48, 0x8d, 0xa4, 0x24], bytes),
            Self::Move(bytes @ ..0, Way::Immediate) => with(&[0x48, 0x81, 0xec], -bytes),
            Self::Move(bytes, Way::Immediate) => with(&[0x48, 0x81, 0xc4], bytes),
            Self::LeaFromFp(bytes) => with(&[0x48, 0x8d, 0xa5], bytes),
            Self::Align => vec![0x48, 0x83, 0xe4, 0xc0],
            Self::Switch => vec![0x48, 0x89, 0xfc],
            Self::StoreFp => with(&[0x48, 0x89, 0xac, 0x24], SLOT as i32),
            Self::LoadSp => with(&[0x48, 0x8b, 0xa4, 0x24], SLOT as i32),
            Self::StoreOther(at) => with(&[0x48, 0x89, 0x84, 0x24], at.into()),
            Self::ClobberFp => vec![0x48, 0x89, 0xc5],
            Self::Call => vec![0xff, 0xd0],
            Self::Nop => vec![0x90],
            // The distance is filled in when all is written.
            Self::Skip(_) => with(&[0x0f, 0x84], 0),
            Self::Again(_) => with(&[0x0f, 0x85], 0),
            Self::Return => vec![0xc3],
        }
    }
}

/// A piece that leaves the stack as it found it.
#[derive(Clone, Debug)]
enum Piece {
    Kept(Vec<Piece>),
    KeptFp(Vec<Piece>),
    Room(u8, Way, Vec<Piece>),
    If(Vec<Piece>),
    Loop(Vec<Piece>),
    Store(u8),
    Clobber,
    Call,
}

fn way() -> impl Strategy<Value = Way> {
    prop_oneof![Just(Way::Immediate), Just(Way::Lea)]
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let leaf = prop_oneof![
        2 => (0..0x11_u8).prop_map(|slot| Piece::Store(slot * 8)),
        3 => Just(Piece::Clobber),
        1 => Just(Piece::Call),
    ];
    let piece = leaf.prop_recursive(4, 24, 4, |piece| {
        let inner = || prop::collection::vec(piece.clone(), 0..4);
        prop_oneof![
            inner().prop_map(Piece::Kept),
            inner().prop_map(Piece::KeptFp),
            (1..9_u8, way(), inner()).prop_map(|(slots, way, inner)| Piece::Room(slots * 8, way, inner)),
            inner().prop_map(Piece::If),
            inner().prop_map(Piece::Loop),
        ]
    });
    prop::collection::vec(piece, 0..6)
}

/// How a function keeps its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// By sp alone.
    Plain,
    /// A frame pointer that is never used for something else.
    Standard,
    /// `mov rbp, rsp` somewhere, and rbp is used for something else later.
    Reused,
    /// The same on another stack, which keeps the thread's stack pointer (oneDNN).
    Switched,
}

#[derive(Default)]
struct Writer {
    code: Vec<Do>,
    /// Whether rbp may be written, and pushed as anything else.
    fp_is_free: bool,
    /// Not behind a standard frame that is given up later: callees may take their arguments off the stack (V8), so that a
    /// call leaves nothing but the frame pointer.
    calls: bool,
    /// Bytes above sp that are the function's own.
    room: i32,
}

impl Writer {
    fn pieces(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            self.piece(piece);
        }
    }

    fn piece(&mut self, piece: &Piece) {
        match piece {
            Piece::Kept(inner) => self.deeper(8, (Do::Push, Do::Pop), inner),
            Piece::KeptFp(inner) if self.fp_is_free => self.deeper(8, (Do::PushFp, Do::PopFp), inner),
            Piece::KeptFp(inner) => self.pieces(inner),
            Piece::Room(bytes, way, inner) => {
                let bytes = i32::from(*bytes);
                self.deeper(bytes, (Do::Move(-bytes, *way), Do::Move(bytes, *way)), inner);
            }
            Piece::If(inner) => {
                let at = self.code.len();
                self.between(Do::Skip(0), inner, Do::Nop);
                self.code[at] = Do::Skip(self.code.len());
            }
            Piece::Loop(inner) => {
                let at = self.code.len();
                self.between(Do::Nop, inner, Do::Again(at));
            }
            Piece::Store(at) if i32::from(*at) < self.room => self.code.push(Do::StoreOther(*at)),
            Piece::Store(_) => {}
            Piece::Clobber if self.fp_is_free => self.code.push(Do::ClobberFp),
            Piece::Clobber => {}
            Piece::Call if self.calls => self.code.push(Do::Call),
            Piece::Call => {}
        }
    }

    fn deeper(&mut self, bytes: i32, (before, behind): (Do, Do), inner: &[Piece]) {
        self.room += bytes;
        self.between(before, inner, behind);
        self.room -= bytes;
    }

    fn between(&mut self, before: Do, inner: &[Piece], behind: Do) {
        self.code.push(before);
        self.pieces(inner);
        self.code.push(behind);
    }
}

#[derive(Clone, Debug)]
struct Shape {
    style: Style,
    pushes: (u8, u8),
    room: u8,
    way: Way,
    aligns: bool,
    both: bool,
    body: Vec<Piece>,
}

fn shape() -> impl Strategy<Value = Shape> {
    let style = prop_oneof![Just(Style::Plain), Just(Style::Standard), Just(Style::Reused), Just(Style::Switched)];
    (style, (0..3_u8, 0..4_u8), 0..9_u8, way(), any::<(bool, bool)>(), pieces()).prop_map(
        |(style, pushes, room, way, (aligns, both), body)| Shape { style, pushes, room, way, aligns, both, body },
    )
}

fn function(shape: &Shape) -> Vec<Do> {
    let mut to = Writer { fp_is_free: shape.style != Style::Standard, ..Writer::default() };
    let room = 8 * i32::from(shape.room);
    to.calls = matches!(shape.style, Style::Plain | Style::Standard) || shape.pushes.1 > 0;
    to.room = if shape.style == Style::Switched { room + 0x100 } else { room };
    let pushes = |to: &mut Writer, count: u8| (0..count).for_each(|_| to.code.push(Do::Push));
    let pops = |to: &mut Writer, count: u8| (0..count).for_each(|_| to.code.push(Do::Pop));
    pushes(&mut to, shape.pushes.0);
    to.code.push(Do::PushFp);
    if shape.style == Style::Standard {
        to.code.extend([Do::SetFp, Do::Move(-room, shape.way)]);
        pushes(&mut to, shape.pushes.1);
        to.pieces(&shape.body);
        match (shape.aligns, shape.both) {
            (true, _) => to.code.push(Do::Leave),
            (false, true) => to.code.extend([Do::LeaFromFp(-8), Do::Pop, Do::PopFp]),
            (false, false) => to.code.extend([Do::BackFromFp, Do::PopFp]),
        }
    } else {
        pushes(&mut to, shape.pushes.1);
        match shape.style {
            Style::Switched => {
                to.code.push(Do::SetFp);
                let at = to.code.len();
                if shape.both {
                    to.code.extend([Do::Skip(at + 2), Do::Switch]);
                }
                to.code.push(if shape.aligns { Do::Align } else { Do::Switch });
                to.code.extend([Do::Move(-room - 0x100, shape.way), Do::StoreFp]);
                to.pieces(&shape.body);
                to.code.push(Do::LoadSp);
            }
            style => {
                if style == Style::Reused {
                    to.code.push(Do::SetFp);
                }
                to.code.push(Do::Move(-room, shape.way));
                to.pieces(&shape.body);
                to.code.push(Do::Move(room, shape.way));
            }
        }
        pops(&mut to, shape.pushes.1);
        to.code.push(Do::PopFp);
    }
    pops(&mut to, shape.pushes.0);
    to.code.push(Do::Return);
    to.code
}

/// The bytes, and where each instruction begins.
fn assembled(code: &[Do]) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut starts) = (Vec::new(), Vec::new());
    for what in code {
        starts.push(bytes.len());
        bytes.extend(what.bytes());
    }
    for (index, what) in code.iter().enumerate() {
        if let Do::Skip(target) | Do::Again(target) = *what {
            let end = starts[index] + 6;
            let distance = i32::try_from(starts[target] as i64 - end as i64).unwrap();
            bytes[end - 4..end].copy_from_slice(&distance.to_le_bytes());
        }
    }
    (bytes, starts)
}

/// The part of a machine that matters.
struct Machine86 {
    sp: u64,
    fp: u64,
    words: BTreeMap<u64, u64>,
    other: u64,
}

impl Machine86 {
    fn read(&self, address: u64) -> u64 {
        self.words.get(&address).copied().unwrap_or(0xdead)
    }

    fn push(&mut self, value: u64) {
        self.sp -= 8;
        self.words.insert(self.sp, value);
    }

    fn pop(&mut self) -> u64 {
        self.sp += 8;
        self.read(self.sp - 8)
    }

    /// Runs an instruction that does not jump.
    fn run(&mut self, what: Do) {
        match what {
            Do::Push => self.push(0xabc),
            Do::Pop => drop(self.pop()),
            Do::PushFp => self.push(self.fp),
            Do::PopFp => self.fp = self.pop(),
            Do::SetFp => self.fp = self.sp,
            Do::BackFromFp => self.sp = self.fp,
            Do::Leave => {
                self.sp = self.fp;
                self.fp = self.pop();
            }
            Do::Move(bytes, _) => self.sp = self.sp.wrapping_add_signed(bytes.into()),
            Do::LeaFromFp(bytes) => self.sp = self.fp.wrapping_add_signed(bytes.into()),
            Do::Align => self.sp &= !63,
            Do::Switch => self.sp = self.other,
            Do::StoreFp => drop(self.words.insert(self.sp + SLOT, self.fp)),
            Do::LoadSp => self.sp = self.read(self.sp + SLOT),
            Do::StoreOther(at) => drop(self.words.insert(self.sp + u64::from(at), 0x5707e)),
            Do::ClobberFp => self.fp = 0xc10b,
            Do::Call | Do::Nop | Do::Skip(_) | Do::Again(_) | Do::Return => {}
        }
    }

    /// The CFA by a row, with the caller's frame pointer; `None` if the row does not lead on.
    fn caller(&self, row: Row) -> Option<(u64, u64)> {
        let offset = row.cfa_offset_bytes();
        let cfa = match row.cfa_kind() {
            kind if kind == CfaKind::Sp as u8 => self.sp.wrapping_add_signed(offset),
            kind if [CfaKind::Fp as u8, CfaKind::FpAway as u8].contains(&kind) => self.fp.wrapping_add_signed(offset),
            kind if kind == CfaKind::SpSaved as u8 => {
                let (slot, beyond) = row.saved_sp_bytes();
                self.read(self.sp + slot) + beyond
            }
            _ => return None,
        };
        let is_saved = row.fp_kind() == FpKind::AtCfa as u8;
        Some((cfa, if is_saved { self.read(cfa.wrapping_add_signed(row.fp_offset_bytes())) } else { self.fp }))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn rows_from_bytes_lead_to_where_the_run_began(
        shape in shape(),
        turns in prop::collection::vec(any::<bool>(), 1..40),
        above in any::<bool>(),
    ) {
        let code = function(&shape);
        let (bytes, starts) = assembled(&code);
        let table = rows_of_code(Machine::X86_64, START, &bytes);
        prop_assert!(table.is_some(), "not recognised: {code:?}");
        let table = table.unwrap();
        let mut machine =
            Machine86 { sp: STACK - 8, fp: CALLERS_FP, words: BTreeMap::new(), other: OTHER_STACKS[usize::from(above)] };
        let (mut at, mut turns) = (0, turns.into_iter().cycle());
        for step in 0..MOST_STEPS {
            let row = Row(table.rule_at(START + starts[at] as u64).encode(0));
            match machine.caller(row) {
                Some(caller) => prop_assert_eq!(caller, (STACK, CALLERS_FP), "at {} of {:?}", at, code),
                None => prop_assert!(false, "nothing known at {at} of {code:?}"),
            }
            let jumps = step + 200 < MOST_STEPS && turns.next() == Some(true);
            at = match code[at] {
                Do::Return => break,
                Do::Skip(target) | Do::Again(target) if jumps => target,
                what => {
                    machine.run(what);
                    at + 1
                }
            };
        }
    }
}
