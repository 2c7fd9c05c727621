//! Recordings of real processes for tests, and what hostile processes might have in their place.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jitprof_common::units::Avma;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::recorded::Recorded;
use crate::{Budget, Memory, Reader};

/// What looking at one word may cost, which lies on two pages at most.
const ONE_WORD: Budget = Budget { pages: 2, steps: 1 };
/// In how many ways the value of a damaged word is made.
const WAYS: u8 = 7;
/// Damaged words of one recording.
const MAX_DAMAGES: usize = 100;

/// A word that is damaged: which one of those that a reading takes, how its value is made, and of what.
pub(crate) type Damage = (Index, u8, u64);

/// The memory of a recording, as in `php/debian-8.2`.
pub(crate) fn memory(name: &str) -> Recorded {
    let path = path(name, "mem");
    let file = fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Recorded::read(file).unwrap()
}

/// What was noted beside it, or what the program said.
pub(crate) fn beside(name: &str, extension: &str) -> String {
    let path = path(name, extension);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn path(name: &str, extension: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded").join(format!("{name}.{extension}"))
}

/// The version that stands behind the last `-` of a recording's name.
pub(crate) fn version_of(name: &str) -> &str {
    name.rsplit_once('-').unwrap().1
}

/// The words that a reading takes.
pub(crate) fn taken(memory: &Recorded, budget: Budget, read: impl FnOnce(&Reader<&Recorded>)) -> Vec<u64> {
    let reader = Reader::new(memory, budget);
    reader.note_words();
    read(&reader);
    reader.used_words().into_iter().collect()
}

/// Budgets of a reading: the whole one, and such as run out.
pub(crate) fn budgets(whole: Budget, pages: u32, steps: u64) -> impl Strategy<Value = Budget> {
    prop_oneof![Just(whole), (1..pages, 1..steps).prop_map(|(pages, steps)| Budget { pages, steps })]
}

/// Words to be damaged.
pub(crate) fn damages() -> impl Strategy<Value = Vec<Damage>> {
    prop::collection::vec((any::<Index>(), 0..WAYS, any::<u64>()), 1..MAX_DAMAGES)
}

/// Damages some of the words that a reading takes.
pub(crate) fn damage(memory: &mut Recorded, taken: &[u64], damages: &[Damage]) {
    for (word, way, value) in damages {
        let at = *word.get(taken);
        let other = taken[usize::try_from(value % taken.len() as u64).unwrap()];
        let with = match way {
            0 => *value,
            // A pointer to another place, to itself, and to another thing.
            1 => other,
            2 => at,
            3 => value_at(memory, other),
            // A length, and one that is none.
            4 => value & 0xf_ffff,
            5 => [0, 1, u64::MAX, u64::MAX >> 1][usize::try_from(value % 4).unwrap()],
            // A byte.
            _ => value_at(memory, at) ^ (value >> 8 & 0xff) << (value % 8 * 8),
        };
        memory.overwrite(Avma(at), &with.to_le_bytes());
    }
}

/// Memory that has these bytes from 0x1000 on, and nothing else.
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Memory for Bytes {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        let from = address.0.checked_sub(0x1000).and_then(|from| usize::try_from(from).ok());
        let part = from.and_then(|from| self.0.get(from..)).ok_or(io::ErrorKind::NotFound)?;
        let count = part.len().min(into.len());
        into[..count].copy_from_slice(&part[..count]);
        Ok(count)
    }
}

/// Reads again and again, each time with another one of the words that a reading takes damaged.
pub(crate) fn with_each_word_damaged(memory: &Recorded, taken: &[u64], read: impl Fn(&Recorded)) {
    let mut damaged = memory.clone();
    let others = taken.iter().rev();
    for (number, (at, other)) in taken.iter().zip(others).enumerate() {
        let before = value_at(memory, *at);
        // Two of the ways for each word: neighbours have others.
        let ways = [0, u64::MAX, *at, *other, before.wrapping_add(8)];
        for with in [ways[number % ways.len()], ways[(number + 2) % ways.len()]] {
            damaged.overwrite(Avma(*at), &with.to_le_bytes());
            read(&damaged);
        }
        damaged.overwrite(Avma(*at), &before.to_le_bytes());
    }
}

/// A word; 0 where there is none.
fn value_at(memory: &Recorded, at: u64) -> u64 {
    Reader::new(memory, ONE_WORD).u64(Avma(at)).unwrap_or(0)
}
