//! What a run of jitprof left behind.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::folded::Folded;
use crate::pprof::Pprof;
use crate::profiler::Finished;
use crate::scratch::Scratch;
use crate::share::{Share, assert_at_least, assert_at_least_of_few};

/// Stacks shown when a test fails.
const SHOWN_STACKS: usize = 12;

/// A recording, read back. When a test panics, it shows itself.
#[derive(Debug)]
pub struct Recording {
    /// Folded stacks.
    pub folded: Folded,
    /// pprof.
    pub pprof: Pprof,
    /// The account, as JSON.
    pub account: Value,
    /// What jitprof and a program that it launched said on stdout.
    pub stdout: String,
    /// What jitprof said.
    pub stderr: String,
    /// The flamegraph's path.
    pub svg: PathBuf,
}

impl Recording {
    /// Reads the files, and checks that they agree: taken = delivered + lost, and every delivered sample is in every
    /// output.
    pub(crate) fn read(scratch: &Scratch, finished: Finished) -> Result<Self> {
        if !finished.status.success() {
            bail!("jitprof failed ({}): {}", finished.status, finished.stderr);
        }
        let read = |name: &str| std::fs::read_to_string(scratch.file(name)).with_context(|| format!("reading {name}"));
        let recording = Self {
            folded: Folded::parse(&read("out.folded")?)?,
            pprof: Pprof::read(&scratch.file("out.pb.gz"))?,
            account: serde_json::from_str(&read("out.account")?).context("the account is no JSON")?,
            stdout: finished.stdout,
            stderr: finished.stderr,
            svg: scratch.file("out.svg"),
        };
        recording.assert_adds_up();
        Ok(recording)
    }

    fn assert_adds_up(&self) {
        let (taken, delivered) = (self.number("/samples/taken"), self.number("/samples/delivered"));
        let lost = self.number("/samples/lost_ring_full") + self.number("/samples/lost_malformed");
        assert_eq!(taken, delivered + lost, "taken = delivered + lost");
        assert_eq!(self.number("/samples/lost_malformed"), 0, "both sides of the ring agree about a sample's form");
        assert_eq!(self.folded.total(), delivered, "folded total = delivered");
        assert_eq!(u64::try_from(self.pprof.total), Ok(delivered), "pprof total = delivered");
        let stacks =
            self.number("/stacks/complete") + self.sum("/stacks/cut") + self.number("/stacks/without_user_part");
        assert_eq!(stacks, delivered, "every delivered sample's stack is accounted for");
        let unexpected =
            ["/profile_overflow/rows", "/profile_overflow/stacks", "/profile_overflow/frames", "/symbols/panics"];
        for count in unexpected {
            assert_eq!(self.number(count), 0, "{count}");
        }
    }

    /// A number of the account, by JSON pointer.
    ///
    /// # Panics
    /// The account has none there.
    #[track_caller]
    pub fn number(&self, pointer: &str) -> u64 {
        let value = self.account.pointer(pointer).and_then(Value::as_u64);
        value.unwrap_or_else(|| panic!("the account has no number at {pointer}"))
    }

    /// The sum of an object's numbers.
    ///
    /// # Panics
    /// The account has no object there.
    #[track_caller]
    pub fn sum(&self, pointer: &str) -> u64 {
        let value = self.account.pointer(pointer).and_then(Value::as_object);
        let object = value.unwrap_or_else(|| panic!("the account has no object at {pointer}"));
        object.values().filter_map(Value::as_u64).sum()
    }

    /// The account of what a process announced.
    ///
    /// # Panics
    /// There is none.
    #[track_caller]
    pub fn source(&self, pid: u32) -> &Value {
        let sources = self.account["sources"].as_array().map(Vec::as_slice).unwrap_or_default();
        let source = sources.iter().find(|source| source["pid"] == pid);
        source.unwrap_or_else(|| panic!("the account has no announcements of process {pid}"))
    }

    /// Samples whose innermost frame is generated code and has a name, of all such.
    pub fn named_leaves(&self) -> Share {
        let named = self.number("/jit/leaves_named");
        Share { part: named, whole: named + self.number("/jit/leaves_unnamed") }
    }

    /// Frames of generated code with a name, of all such.
    pub fn named_frames(&self) -> Share {
        let named = self.sum("/jit/named");
        Share { part: named, whole: named + self.sum("/jit/unnamed") }
    }

    /// Complete stacks, of all that have a user part.
    pub fn complete(&self) -> Share {
        let complete = self.number("/stacks/complete");
        Share { part: complete, whole: complete + self.sum("/stacks/cut") }
    }

    /// Asserts what is promised of every target with frame pointers: 99.5 % of stacks complete, of innermost frames and
    /// of all frames of generated code named.
    ///
    /// # Panics
    /// If it is not so.
    #[track_caller]
    pub fn assert_whole(&self) {
        assert_at_least("complete stacks", self.complete(), 0.995);
        self.assert_named();
    }

    /// Asserts what is promised of every target: 99.5 % of generated code named.
    ///
    /// # Panics
    /// If it is not so.
    #[track_caller]
    pub fn assert_named(&self) {
        // Where the time goes to native code, or to an interpreter, there are few.
        assert_at_least_of_few("named leaves", self.named_leaves(), 0.995);
        assert_at_least("named frames", self.named_frames(), 0.995);
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let account = serde_json::to_string_pretty(&self.account).unwrap_or_default();
            eprintln!("--- jitprof said\n{}--- account\n{account}", self.stderr);
            eprintln!("--- largest stacks\n{}---", self.folded.largest(SHOWN_STACKS));
        }
    }
}
