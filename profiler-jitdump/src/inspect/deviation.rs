//! What in a dump is not as the specification says, and who writes it so.
//!
//! The specification is perf's `tools/perf/Documentation/jitdump-specification.txt`, version 2.

use serde::Serialize;

/// How bad a deviation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A known producer writes it so in working order, and jitprof reads it as it is meant.
    Quirk,
    /// The file contradicts itself or the specification: something in it is lost or can be misread.
    Error,
}

/// A row of the catalogue.
struct Entry {
    name: &'static str,
    severity: Severity,
    /// What is so, and what comes of it.
    meaning: &'static str,
    /// Who is known to write it so; empty for nobody.
    producers: &'static str,
}

macro_rules! deviations {
    ($($(#[$doc:meta])* $variant:ident: $severity:ident $name:literal, $meaning:literal, $producers:literal;)*) => {
        /// One way in which a dump is not as the specification says.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Deviation {$(
            #[doc = $meaning]
            $variant,
        )*}

        impl Deviation {
            /// Every deviation that is known of.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            fn entry(self) -> Entry {
                match self {$(
                    Self::$variant => Entry {
                        name: $name,
                        severity: Severity::$severity,
                        meaning: $meaning,
                        producers: $producers,
                    },
                )*}
            }
        }
    };
}

deviations! {
    // The file and its header.
    NoMagic: Error "no-magic", "the file does not begin with the magic; no reader takes it", "";
    Version: Error "version", "the version is neither 1 nor 2", "";
    VersionForPerf: Quirk "version-2", "the version is 2 as the specification says; perf knows 1 and refuses the file",
        "Mono before 2023";
    UnwindingInVersion1: Quirk "unwinding-in-version-1",
        "UNWINDING_INFO, which version 2 added, in a file of version 1",
        "everybody: V8, CPython, LLVM";
    HeaderSize: Error "header-size", "the header's size is below 40 or far above; 40 is assumed", "";
    LongHeader: Quirk "long-header", "the header is longer than 40 bytes", "";
    NoMachine: Quirk "no-machine", "the ELF machine is 0; perf writes its images for the machine that it runs on",
        "CPython";
    Padding: Quirk "header-padding", "the header's reserved word is not 0", "V8 (0xdeadbeef), jitprof's agent (jpag)";
    Flags: Error "flags",
        "reserved flag bits are set; perf refuses the file", "LLVM ORC before January 2026 (uninitialised)";
    HeaderTime: Quirk "header-time",
        "the header's time is of another clock than the records'", "V8, CPython (wall clock, µs)";
    AnotherHeader: Quirk "another-header",
        "a file header among the records: another producer appended; perf stops here",
        "wasmtime, oneDNN (several engines, or the file of a recycled pid)";
    TornEnd: Quirk "torn-end", "the file ends inside of a record",
        "V8, CPython, the JVM agent, SpiderMonkey, QEMU (4 KiB of stdio buffer) while they run or when they are killed";

    // What is lost because the file is damaged.
    LostSequence: Error "lost-sequence", "no record where one has to begin; what lies before the next one is lost",
        "CPython (os.fork() writes the inherited buffer twice)";
    DamagedRecord: Error "damaged-record", "a record contradicts itself; it is skipped by its size", "";

    // What any record can deviate in.
    UnknownType: Quirk "unknown-type", "a type that the specification does not have; perf warns and skips it", "";
    Extension: Quirk "extension", "a record of jitprof's own; perf warns and skips it", "jitprof's agent";
    LongRecord: Quirk "long-record", "the record is longer than what it holds", "";
    AfterClose: Error "after-close", "a record behind CLOSE, which marks the end", "";
    TimeZero: Quirk "time-zero",
        "a record without a time; it is taken for as old as the one before", "Mono before 2023";
    TimeDescends: Quirk "time-descends", "the time is earlier than that of a record before it",
        "threads that take the time before they take turns: .NET, LLVM";
    FlagOverNanoseconds: Quirk "flag-over-nanoseconds", "the header says counter ticks and the times are nanoseconds",
        "libxsmm before August 2026";

    // The body of a LOAD.
    OtherPid: Quirk "other-pid", "a record of another pid than the header's",
        "wasmtime (file of a recycled pid), children of a fork that go on writing";
    NoThread: Quirk "no-thread", "the tid is larger than a thread id can be", "Erlang/OTP (a cut pthread_t)";
    Vma: Quirk "vma", "vma is not code_addr; readers that place code by vma misplace it", "LLVM before 19 (0)";
    EmptyName: Quirk "empty-name", "the function has no name", "";
    NotAscii: Quirk "not-ascii", "a name is not ASCII", "V8 (names of the user's program), .NET";
    WithoutCode: Quirk "without-code", "the code bytes are left out", "the JVM agent";
    CodeIndex: Quirk "code-index", "code_index was that of another function; perf takes both for one",
        "producers with several writers, and Erlang/OTP";

    // A MOVE and the function that it moves.
    MoveOfNothing: Error "move-of-nothing", "no function is where the MOVE takes it from", "";
    MoveSize: Error "move-size", "MOVE changes the code's size", "";
    MoveIndex: Error "move-index", "MOVE names another code_index than the function's LOAD", "";

    // A DEBUG_INFO and the function that follows.
    DebugUnclaimed: Error "debug-unclaimed", "no LOAD of this address follows the DEBUG_INFO; its lines are lost", "";
    DebugOfAnother: Quirk "debug-of-another",
        "the DEBUG_INFO right before a LOAD is of another function; perf mixes them up",
        "LLVM ORC (the lines of a batch, then its functions)";
    DebugBias: Quirk "debug-bias",
        "line addresses are too high by an ELF header's size (0x40); perf 6's lines are off by it",
        "V8, LLVM, QEMU";
    FreedName: Quirk "freed-name", "file names from freed memory, with NULs in them; perf goes astray in the record",
        "V8 (11.3, Node 20)";
    DebugCut: Error "debug-cut", "an entry of the DEBUG_INFO makes no sense; it and those behind it are lost", "";
    SameFile: Quirk "same-file", "a file name FF 00, for: the same as before; perf takes it literally",
        "nobody was seen; perf's header has it";
    LineBelow1: Quirk "line-below-1", "a line number below 1: the code belongs to no line",
        "Erlang/OTP (ends each function), LLVM";
    RowBeforeCode: Quirk "row-before-code",
        "a line begins before its function", "Erlang/OTP (rows mark return addresses)";
    RowBehindCode: Quirk "row-behind-code", "a line begins at the function's end or behind; it is dropped", "";
    DebugPadding: Quirk "debug-padding", "bytes behind the last entry", "V8 (padded to 8)";

    // An UNWINDING_INFO and the functions that follow.
    UnwindingUnclaimed: Error "unwinding-unclaimed", "no LOAD follows the UNWINDING_INFO", "";
    FrameFirst: Quirk "frame-first", ".eh_frame stands before .eh_frame_hdr; perf reads it so", "V8, CPython";
    UnwindingOfBatch: Quirk "unwinding-of-batch", "one UNWINDING_INFO for several LOADs; perf gives it to the first",
        "LLVM ORC";
    UnwindingUnreadable: Error "unwinding-unreadable", "there is no .eh_frame_hdr where one has to be", "";
    UnwindingShifted: Error "unwinding-shifted",
        "the FDE is of another address than the function; it is moved there", "";
    UnwindingElsewhere: Error "unwinding-elsewhere", "no FDE is of the function", "";
    MappedSize: Quirk "mapped-size", "mapped_size is neither 0 nor the data's size", "CPython (rounded up)";
    NotMapped: Quirk "not-mapped", "mapped_size is 0, so that only a header should be there, and there is an .eh_frame",
        "LLVM ORC";
    UnwindingPadding: Quirk "unwinding-padding", "bytes behind the data", "V8, CPython (padded to 8)";
}

impl Deviation {
    /// Its name, for people and programs.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// How bad it is.
    pub fn severity(self) -> Severity {
        self.entry().severity
    }

    /// What is so, and what comes of it.
    pub fn meaning(self) -> &'static str {
        self.entry().meaning
    }

    /// Who is known to write it so; `None` if nobody.
    pub fn producers(self) -> Option<&'static str> {
        Some(self.entry().producers).filter(|producers| !producers.is_empty())
    }
}
