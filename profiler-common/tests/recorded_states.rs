//! Recorded states of real processes, walked by the step that the BPF program runs.
//!
//! A state (`states/NAME.state`) is registers, the words of the stack, executable mappings, the rows that look-ups found
//! with the range that each holds for, and the frames that are to be found. All of it is from a stopped process:
//! `states/record.py` has gdb write it down, with the frames that gdb's own unwinder finds, and the tool
//! `record_state` adds the rows that jitprof makes of the process' files and its dump, and holds the frames against gdb's.
//! Behind generated code, about which gdb knows nothing, the names are what can be checked: they are the chain that the
//! target is known to have.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;

use jitprof_common::machine::Machine;
use jitprof_common::row::Row;
use jitprof_common::stop::StopReason;
use jitprof_common::unwind::{Frame, ReadFault, Registers, StackMemory, UnwindRules, step};

/// A state, and which of its reads is to fail.
#[derive(Default)]
struct State {
    registers: Option<Registers>,
    words: BTreeMap<u64, u64>,
    code: Vec<(u64, u64)>,
    rows: Vec<(u64, u64, u64)>,
    golden: Vec<(u64, String)>,
    stop: String,
    reads: Cell<usize>,
    faulty: Option<usize>,
}

impl StackMemory for State {
    fn read_u64(&self, address: u64) -> Result<u64, ReadFault> {
        let read = self.reads.replace(self.reads.get() + 1);
        if self.faulty == Some(read) {
            return Err(ReadFault);
        }
        self.words.get(&address).copied().ok_or(ReadFault)
    }
}

impl UnwindRules for State {
    fn row(&self, lookup_pc: u64) -> Row {
        let found = self.rows.iter().find(|(start, end, _)| (*start..*end).contains(&lookup_pc));
        found.map_or(Row::GAP, |(_, _, row)| Row(*row))
    }

    fn is_code(&self, lookup_pc: u64) -> bool {
        self.code.iter().any(|(start, end)| (*start..*end).contains(&lookup_pc))
    }

    fn machine(&self) -> Machine {
        Machine::X86_64
    }

    fn code_mask(&self) -> u64 {
        u64::MAX
    }
}

impl State {
    fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/states").join(format!("{name}.state"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut state = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |index: usize| u64::from_str_radix(words[index], 16).expect("a hexadecimal number");
            match words[0] {
                "registers" => state.registers = Some(Registers { pc: number(1), sp: number(2), fp: number(3), lr: 0 }),
                "frame" => state.golden.push((number(1), words[2..].join(" "))),
                "stop" => state.stop = words[1].to_owned(),
                "code" => state.code.push((number(1), number(2))),
                "row" => state.rows.push((number(1), number(2), number(3))),
                "stack" => {
                    let values = (2..words.len()).map(number);
                    state.words.extend((number(1)..).step_by(8).zip(values));
                }
                _ => {}
            }
        }
        state
    }

    fn walk(&self) -> (Vec<u64>, StopReason) {
        self.reads.set(0);
        let mut frame = Frame::sampled(self.registers.expect("registers"));
        let mut pcs = vec![frame.registers.pc];
        loop {
            match step(frame, self, self) {
                Ok(caller) => {
                    assert!(pcs.len() < 1024, "a walk ends");
                    pcs.push(caller.registers.pc);
                    frame = caller;
                }
                Err(reason) => return (pcs, reason),
            }
        }
    }
}

/// Walks a state, then walks it again with each of its reads failing.
#[track_caller]
fn check(name: &str, functions: &[&str]) {
    let mut state = State::read(name);
    let golden: Vec<u64> = state.golden.iter().map(|(pc, _)| *pc).collect();
    let (pcs, stop) = state.walk();
    assert_eq!(pcs, golden, "{name}");
    assert_eq!(format!("{stop:?}"), state.stop, "{name}");
    assert_eq!(stop, StopReason::EndOfStack, "{name}: these are whole stacks");
    let mut names = state.golden.iter().map(|(_, name)| name.as_str());
    for function in functions {
        assert!(names.any(|name| name == *function), "{name}: {function} is missing, or not where it should be");
    }

    let reads = state.reads.get();
    assert!(reads + 1 >= golden.len(), "{name}: each caller is read");
    let mut visited = 0;
    for read in 0..reads {
        state.faulty = Some(read);
        let (pcs, stop) = state.walk();
        visited += usize::from(state.reads.get() > read);
        assert_eq!(stop, StopReason::ReadFault, "{name}: read {read} of {reads} fails");
        assert!(pcs.len() < golden.len() && golden.starts_with(&pcs), "{name}: wrong frames after read {read}");
    }
    assert_eq!(visited, reads, "{name}: every read has failed once");
}

#[test]
fn c_without_frame_pointers_inside_of_qsort() {
    check("qsort", &["work_a", "compare_a", "msort_with_tmp", "sort_a", "l8", "l4", "l1", "run", "main", "_start"]);
}

#[test]
fn the_second_instruction_of_a_function() {
    check("prologue", &["l3", "l2", "l1", "run", "main", "_start"]);
}

#[test]
fn the_last_instructions_of_a_function() {
    check("epilogue", &["compare_a", "msort_with_tmp", "sort_a", "l8", "run", "main", "_start"]);
}

#[test]
fn a_slot_of_the_procedure_linkage_table() {
    check("plt", &["qsort@plt", "sort_b", "l8", "run", "main", "_start"]);
}

#[test]
fn a_signal_handler() {
    check("signal", &["burn_signal", "signal_work", "on_signal", "__restore_rt", "__pthread_kill_implementation"]);
}

#[test]
fn a_signal_handler_on_a_stack_of_its_own() {
    check("sigaltstack", &["burn_timer", "timer_work", "on_timer", "__restore_rt", "run", "main", "_start"]);
}

#[test]
fn the_vdso() {
    check("vdso", &["clock_gettime", "__GI___clock_gettime", "run", "main", "_start"]);
}

#[test]
fn an_exception_on_its_way() {
    check("exception", &["_Unwind_RaiseException", "__cxa_throw", "middle_throw", "catcher", "run", "main", "_start"]);
}

#[test]
fn cpython_between_its_trampolines() {
    check(
        "python",
        &[
            "_PyEval_EvalFrameDefault",
            "py::leaf_hot: burn.py",
            "py::middle: burn.py",
            "py::outer: burn.py",
            "py::main: burn.py",
        ],
    );
}

#[test]
fn optimised_code_of_node() {
    check(
        "node",
        &["JS:*leafCold burn.js:14:18", "JS:*sideCold burn.js:20:18", "JS:*outer burn.js:21:15", "Builtin:JSEntry"],
    );
}
