//! Where on a native stack a thread has come to another list of frames than the one that the loops further out are of.
//!
//! A subinterpreter of CPython has a thread's state of its own, and its functions run above the loop that has called it. A
//! greenlet has its own list, and its stack is copied to where the one of who has started it was. Both are called by
//! functions of a library that say where one list ends and the next one begins.

/// The libraries that run other interpreters, up to the dot: up to 3.12, from 3.13 on, and CPython's own tests.
const OF_INTERPRETERS: [&str; 4] = ["_xxsubinterpreters", "_interpreters", "_testcapi", "_testinternalcapi"];
/// In the name of a library that exchanges the lists of a thread, and copies the native stacks that go with them to and fro
/// above frames of its own: gevent, eventlet and SQLAlchemy do so by it.
const OF_GREENLETS: &str = "greenlet";
/// How the names of the first library's functions begin where it is a part of CPython's module: up to 3.14, and since...
const PREFIXES: [&str; 2] = ["interp_", "_interpreters_"];
/// ...and how they go on that run another interpreter.
const RUN_ANOTHER: [&str; 7] = ["exec", "run_string", "run_func", "call", "create", "destroy", "decref"];

/// What has exchanged a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExchangedBy {
    /// A call of another interpreter.
    Interpreters,
    /// A switch to a greenlet, or the call that it has begun with.
    Greenlets,
}

impl ExchangedBy {
    /// By the name of the file that a frame is in.
    pub(super) fn of_library(file: &str) -> Option<Self> {
        let name = file.split('.').next().unwrap_or(file);
        match OF_INTERPRETERS.contains(&name) {
            true => Some(Self::Interpreters),
            false => file.contains(OF_GREENLETS).then_some(Self::Greenlets),
        }
    }
}

/// Whether a function of CPython's own module runs another interpreter. What a compiler has made of it has a dot.
pub(super) fn runs_another_interpreter(function: &str) -> bool {
    let name = function.split('.').next().unwrap_or(function);
    PREFIXES.iter().any(|prefix| name.strip_prefix(prefix).is_some_and(|rest| RUN_ANOTHER.contains(&rest)))
}

/// Behind how many loops of a native stack, from the innermost, lists may have been exchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exchanged {
    by_interpreters: Vec<usize>,
    by_greenlets: Vec<usize>,
    /// A thread is found by the state that it had first.
    keeps_first: bool,
}

impl Exchanged {
    /// Of a runtime whose samples have the list of a thread's [first state](crate::runtime::ListCapture::keeps_first), or of
    /// the one that runs.
    pub(super) const fn new(keeps_first: bool) -> Self {
        Self { by_interpreters: Vec::new(), by_greenlets: Vec::new(), keeps_first }
    }

    /// There is a frame that may have exchanged it, behind so many loops.
    pub(super) fn note(&mut self, by: ExchangedBy, inner: usize) {
        match by {
            ExchangedBy::Interpreters => self.by_interpreters.push(inner),
            ExchangedBy::Greenlets => self.by_greenlets.push(inner),
        }
    }

    /// Whether it may have been behind so many loops.
    pub(super) fn is_behind(&self, inner: usize) -> bool {
        inner > 0 && (self.by_interpreters.contains(&inner) || self.by_greenlets.contains(&inner))
    }

    /// Whether the list is of the outermost loops, and not of the innermost: other interpreters run above them.
    pub(super) fn keeps_outermost(&self) -> bool {
        self.keeps_first && !self.by_interpreters.is_empty()
    }

    /// Whether it cannot be known which list it is: one greenlet gives way to another, which exchanges the stack first, or
    /// there are some within the first interpreter or the others.
    pub(super) fn is_unsure(&self) -> bool {
        self.by_greenlets.contains(&0) || (self.keeps_outermost() && !self.by_greenlets.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_exchange_lists_are_known_by_their_names() {
        let by = ExchangedBy::of_library;
        for file in ["_interpreters.cpython-313-x86_64-linux-gnu.so", "_xxsubinterpreters.so", "_testcapi.so"] {
            assert_eq!(by(file), Some(ExchangedBy::Interpreters), "{file}");
        }
        for file in ["_greenlet.cpython-312-x86_64-linux-gnu.so", "greenlet.so"] {
            assert_eq!(by(file), Some(ExchangedBy::Greenlets), "{file}");
        }
        for file in ["libpython3.13.so.1.0", "_interpchannels.so", "my_interpreters.so", ""] {
            assert_eq!(by(file), None, "{file}");
        }
    }

    #[test]
    fn functions_that_run_another_interpreter_are_known_by_their_names() {
        for name in ["interp_run_string", "interp_exec.lto_priv.0", "_interpreters_exec", "interp_create"] {
            assert!(runs_another_interpreter(name), "{name}");
        }
        for name in ["interp_list_all", "interp_", "exec", "PyRun_StringFlags", ""] {
            assert!(!runs_another_interpreter(name), "{name}");
        }
    }

    #[test]
    fn while_greenlets_switch_nobody_knows_whose_list_it_is() {
        let of = |keeps_first, noted: &[(ExchangedBy, usize)]| {
            let mut exchanged = Exchanged::new(keeps_first);
            noted.iter().for_each(|(by, inner)| exchanged.note(*by, *inner));
            exchanged
        };
        let (greenlet, interpreter) = (ExchangedBy::Greenlets, ExchangedBy::Interpreters);
        assert!(of(false, &[(greenlet, 0), (greenlet, 2)]).is_unsure());
        assert!(!of(false, &[(interpreter, 0), (greenlet, 2)]).is_unsure());
        assert!(of(true, &[(greenlet, 1), (interpreter, 2)]).is_unsure());
        assert!(!of(true, &[(greenlet, 1)]).is_unsure() && !of(true, &[(greenlet, 1)]).keeps_outermost());
        let inner = of(true, &[(interpreter, 0), (interpreter, 2)]);
        assert!(inner.keeps_outermost() && inner.is_behind(2) && !inner.is_behind(0) && !inner.is_behind(1));
    }
}
