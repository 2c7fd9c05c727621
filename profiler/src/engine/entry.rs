//! Functions at which a thread or a process begins: a stack that reaches one of them is complete.

use jitprof_common::stop::StopReason;

use crate::symbol::Frame;

/// Where each program begins, whatever it is linked to.
const START: &str = "_start";
/// The C library's functions that no program calls one of its own, in the library or linked into a program.
const OF_LIBC: [&str; 5] =
    ["__libc_start_call_main", "__clone", "__clone3", "__clone_internal", "libc_start_main_stage2"];
/// Go starts threads without the C library. It may be in a library. Other languages' functions have no such name
/// unless somebody wants it so, and then only his own stacks end there.
const OF_GO: [&str; 3] = ["runtime.mstart", "runtime.clone", "runtime.rt0_go"];
/// Go's stacks of its own: a goroutine's returns to the first; each thread's scheduler has one that the second sets anew
/// and behind which older calls have left what they left.
const STACKS_OF_GO: [&str; 2] = ["runtime.goexit", "runtime.mcall"];
/// The C library's functions whose names are anybody's: glibc's, and the last one musl's.
const IN_LIBC: [&str; 4] = ["start_thread", "clone", "clone3", "start"];
/// How the names of the C library's functions begin that nothing but a program's `_start` calls.
const CALLS_MAIN: &str = "__libc_start_main";
/// Generated code that lies below everything on the stack of an Erlang process, by its module and name.
const ENTRY_POINT_OF_BEAM: &str = "erts_beamasm:normal_exit/0";
/// BEAM's scheduler, which runs Erlang's processes. It never returns: it aligns the stack, keeps nothing of its caller, and
/// sets the frame pointer to zero, so its caller is nowhere to be found.
const SCHEDULER_OF_BEAM: &str = "global::process_main";
/// How the names of the files begin in which those are.
const LIBC_FILES: [&str; 7] = ["libc.so", "libc-", "libpthread", "ld-musl", "libc.musl", "ld-linux", "ld-2."];

/// Whether threads begin in a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// They do not, as far as is known.
    No,
    /// They do.
    Yes,
    /// It is the outermost one of a stack of its own: whatever seems to have called it is left over.
    Outermost,
    /// They do, and it is the C library's that calls `main`: what called it is where the process begins, named or not.
    Main,
    /// They may, if the stack ends as it does there.
    Perhaps,
    /// It has the name of one in which they do, and may be the C library's: where that is linked into the program.
    Linked,
}

impl Entry {
    /// Of generated code, of the program that is Erlang's or another one: a name alone is what anybody announces.
    pub(super) fn of_generated(name: &str, is_of_beam: bool) -> Self {
        match name {
            _ if !is_of_beam => Self::No,
            SCHEDULER_OF_BEAM => Self::Perhaps,
            name if name.starts_with(ENTRY_POINT_OF_BEAM) => Self::Yes,
            _ => Self::No,
        }
    }

    /// Whether a stack that ends behind it for this reason is complete. A zero alone proves nothing: code that uses the
    /// frame pointer as any register may have it there (PHP's traces, Erlang without `+JPperf true`).
    pub(super) fn completes(self, stop: StopReason) -> bool {
        let is_zero = matches!(stop, StopReason::ZeroFramePointer | StopReason::ZeroReturnAddress);
        stop == StopReason::EndOfStack
            || matches!(self, Self::Yes | Self::Outermost | Self::Main)
            || (matches!(self, Self::Perhaps | Self::Linked) && is_zero)
    }

    /// The same in a process that has mapped the C library, or not: who has it needs no other one in a program.
    pub(super) fn beside(self, is_c_library_mapped: bool) -> Self {
        if self == Self::Linked && is_c_library_mapped { Self::No } else { self }
    }

    /// Of native code that called what is at `self`. A program without symbols has no name for its `_start`, and not every
    /// linker's start files say that a stack ends there.
    pub(super) fn of_caller(self, caller: Self) -> Self {
        if self == Self::Main && caller == Self::No { Self::Perhaps } else { caller }
    }

    /// Of native code.
    pub(super) fn of(frame: &Frame) -> Self {
        // A symbol without its version: `__libc_start_main@@GLIBC_2.34`.
        let name = frame.name.split('@').next().unwrap_or(&frame.name);
        if STACKS_OF_GO.contains(&name) {
            return Self::Outermost;
        }
        if OF_GO.contains(&name) {
            return Self::Yes;
        }
        let calls_main = name.starts_with(CALLS_MAIN);
        let is_start = name == START;
        let is_of_libc = calls_main || is_start || OF_LIBC.contains(&name);
        if !is_of_libc && !IN_LIBC.contains(&name) {
            return Self::No;
        }
        let path = frame.module.as_ref().map_or("", |module| &*module.path);
        // A program may have the C library linked into it; a library that defines such a function does so for itself.
        let is_its = is_c_library(path) || ((calls_main || is_start) && !is_library(path));
        match (is_its, calls_main) {
            (false, _) => Self::Linked,
            (true, true) => Self::Main,
            (true, false) => Self::Yes,
        }
    }
}

/// Whether a file is called as the C library, or a part of it.
pub(super) fn is_c_library(path: &str) -> bool {
    LIBC_FILES.iter().any(|libc| name_of(path).starts_with(libc))
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_library(path: &str) -> bool {
    let file = name_of(path);
    file.ends_with(".so") || file.ends_with(".node") || file.contains(".so.")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::symbol::{FrameKind, Module};

    fn entry(name: &str, path: &str) -> Entry {
        let module = Some(Arc::new(Module { path: path.into(), build_id: None }));
        let (kind, name) = (FrameKind::Native, Arc::from(name));
        Entry::of(&Frame { name, kind, tier: None, inlined: false, module, source: None, address: 0 })
    }

    #[test]
    fn what_calls_the_function_that_calls_main_is_where_a_process_begins() {
        let main = entry("__libc_start_main_impl", "/usr/lib/x86_64-linux-gnu/libc.so.6");
        let nameless = main.of_caller(entry("[deno+0x1b8e029]", "/usr/bin/deno"));
        assert!(main.completes(StopReason::ZeroFramePointer) && nameless.completes(StopReason::ZeroFramePointer));
        assert!(!nameless.completes(StopReason::NotExecutable), "only where the stack ends as it does there");
        assert!(!nameless.of_caller(Entry::No).completes(StopReason::ZeroFramePointer), "no further than one frame");
        assert!(!entry("main", "/usr/bin/deno").of_caller(Entry::No).completes(StopReason::ZeroFramePointer));
    }

    #[test]
    fn a_name_that_anybody_may_choose_counts_in_the_c_library_only() {
        assert_eq!(entry("start_thread", "/usr/lib/x86_64-linux-gnu/libc.so.6"), Entry::Yes);
        assert_eq!(entry("start_thread", "/lib/x86_64-linux-gnu/libpthread-2.28.so"), Entry::Yes);
        assert_eq!(entry("start", "/lib/ld-musl-x86_64.so.1"), Entry::Yes);
        assert_eq!(entry("start", "/opt/game/engine"), Entry::Linked);
        assert_eq!(entry("clone", "/usr/lib/libgit2.so"), Entry::Linked);
        assert_eq!(entry("main", "/usr/lib/x86_64-linux-gnu/libc.so.6"), Entry::No);
        assert_eq!(entry("__libc_start_main@@GLIBC_2.34", "/opt/static"), Entry::Main);
        assert_eq!(entry("runtime.mstart", "/opt/server"), Entry::Yes);
        assert_eq!(entry("runtime.goexit", "/opt/libserver.so"), Entry::Outermost);
    }

    #[test]
    fn a_library_has_no_beginning_of_a_process_of_its_own() {
        for name in ["_start", "__clone", "__libc_start_main", "__libc_start_call_main"] {
            for library in ["/usr/lib/libplugin.so", "/usr/lib/libplugin.so.2", "/srv/addon.node"] {
                assert_eq!(entry(name, library), Entry::Linked, "{name} in {library}");
            }
        }
        assert_eq!(entry("_start", "/lib64/ld-linux-x86-64.so.2"), Entry::Yes);
        assert_eq!(entry("_start", "/lib/x86_64-linux-gnu/ld-2.31.so"), Entry::Yes);
        assert_eq!(entry("__libc_start_main_impl", "/lib/libc-2.28.so"), Entry::Main);
    }

    #[test]
    fn a_program_has_no_c_library_of_its_own_beside_the_one_it_maps() {
        let zero = StopReason::ZeroFramePointer;
        for name in ["start_thread", "clone", "clone3", "start", "__clone", "__libc_start_call_main"] {
            let own = entry(name, "/opt/program");
            assert!(own.beside(false).completes(zero) && !own.beside(true).completes(zero), "{name}");
            assert!(!own.beside(false).completes(StopReason::ReadFault), "{name}");
        }
        // These are each program's own.
        for name in ["_start", "__libc_start_main"] {
            assert!(entry(name, "/opt/program").beside(true).completes(StopReason::ReadFault), "{name}");
        }
        assert!(entry("start_thread", "/lib/libc.so.6").beside(true).completes(StopReason::ReadFault));
        assert!(Entry::of_generated("global::process_main", true).beside(true).completes(zero));
    }

    #[test]
    fn a_zero_alone_completes_no_stack() {
        let zero = StopReason::ZeroFramePointer;
        assert!(!Entry::No.completes(zero) && Entry::Perhaps.completes(zero) && Entry::Yes.completes(zero));
        assert!(Entry::Yes.completes(StopReason::ReadFault) && !Entry::Perhaps.completes(StopReason::ReadFault));
        assert!(Entry::No.completes(StopReason::EndOfStack));
        assert_eq!(Entry::of_generated("erts_beamasm:normal_exit/0", true), Entry::Yes);
        assert_eq!(
            Entry::of_generated("global::process_main", true),
            Entry::Perhaps,
            "only where it has set it to zero"
        );
        assert_eq!(Entry::of_generated("global:process_main/0", true), Entry::No);
        assert_eq!(Entry::of_generated("start_thread", true), Entry::No);
        for name in [ENTRY_POINT_OF_BEAM, SCHEDULER_OF_BEAM] {
            assert_eq!(Entry::of_generated(name, false), Entry::No, "another program has announced {name}");
        }
    }
}
