//! Address spaces over time.

use proptest::prelude::*;

use super::{at, mapping};
use crate::engine::border::{Identified, MapPlace};
use crate::engine::files::Files;
use crate::engine::generated::{CodeOptions, GeneratedCode};
use crate::engine::mapped_paths::{MappedPaths, NO_PATH};
use crate::engine::process::Process;
use crate::engine::requests::Requests;
use crate::engine::space::{AddressSpace, Held};
use crate::process::open::FileIdentity;
use crate::process::{Device, Mapping, MappingKind, ProcessId};
use crate::profile::Holder;
use jitprof_common::units::{Avma, FileOffset, MonoNs, Pid};

const HOLDER: Holder = Holder::User(1000);

/// With room for every path, as what follows has.
fn map(space: &mut AddressSpace, mapping: Mapping, time: MonoNs) {
    space.mmap(mapping, time, &mut MappedPaths::default().of(HOLDER));
}

fn read(mappings: &[Mapping], time: MonoNs) -> AddressSpace {
    AddressSpace::from_mappings(mappings, time, &mut MappedPaths::default().of(HOLDER))
}

fn read_again(space: &mut AddressSpace, mappings: &[Mapping], time: MonoNs) {
    space.reconcile(mappings, time, &mut MappedPaths::default().of(HOLDER));
}

fn inode_at(space: &AddressSpace, addr: u64, time: u64) -> Option<u64> {
    space.lookup(Avma(addr), MonoNs(time)).map(|mapped| mapped.mapping.inode)
}

#[test]
fn a_mapping_over_the_middle_of_another_leaves_both_ends_with_their_offsets() {
    let mut space = AddressSpace::default();
    map(&mut space, mapping(0x1000, 0x9000, 1), MonoNs(10));
    map(&mut space, mapping(0x3000, 0x5000, 2), MonoNs(20));
    assert_eq!(inode_at(&space, 0x3000, 15), Some(1));
    assert_eq!(inode_at(&space, 0x3000, 20), Some(2));
    assert_eq!(inode_at(&space, 0x2fff, 25), Some(1));
    let tail = &space.lookup(Avma(0x5000), MonoNs(25)).unwrap().mapping;
    assert_eq!((tail.inode, tail.file_offset), (1, FileOffset(0x100 + 0x4000)));
    assert_eq!(inode_at(&space, 0x9000, 25), None);
    assert_eq!(inode_at(&space, 0x3000, 5), None, "before it was mapped");
}

#[test]
fn events_that_a_snapshot_already_holds_do_not_undo_it() {
    let mut space = read(&[mapping(0x1000, 0x2000, 2)], MonoNs(100));
    map(&mut space, mapping(0x1000, 0x2000, 1), MonoNs(90));
    space.exec(MonoNs(80));
    assert_eq!(inode_at(&space, 0x1000, 95), Some(2));
    map(&mut space, mapping(0x1000, 0x2000, 3), MonoNs(110));
    assert_eq!((inode_at(&space, 0x1000, 105), inode_at(&space, 0x1000, 110)), (Some(2), Some(3)));
}

#[test]
fn reconciling_ends_what_is_gone_and_begins_what_is_new() {
    let before = [mapping(0x1000, 0x2000, 1), mapping(0x3000, 0x4000, 2)];
    let after = [mapping(0x1000, 0x2000, 1), mapping(0x5000, 0x6000, 3)];
    let mut space = read(&before, MonoNs(10));
    read_again(&mut space, &after, MonoNs(50));
    assert_eq!((inode_at(&space, 0x1000, 20), inode_at(&space, 0x1000, 60)), (Some(1), Some(1)));
    assert_eq!((inode_at(&space, 0x3000, 20), inode_at(&space, 0x3000, 60)), (Some(2), None));
    assert_eq!((inode_at(&space, 0x5000, 20), inode_at(&space, 0x5000, 60)), (None, Some(3)));
}

#[test]
fn history_is_bounded_and_its_loss_is_counted() {
    let mut space = AddressSpace::default();
    // As a JIT that maps a page each millisecond.
    for time in 0..5000 {
        map(&mut space, mapping(0x1000, 0x2000, time), MonoNs(time * 1_000_000));
    }
    assert_eq!(space.evicted(), 4999 - 4096);
    assert_eq!(inode_at(&space, 0x1000, 4000 * 1_000_000), Some(4000));
    assert_eq!(inode_at(&space, 0x1000, 100 * 1_000_000), None);
    assert!(space.may_lack(MonoNs(100 * 1_000_000)) && !space.may_lack(MonoNs(4000 * 1_000_000)));
    assert!(!space.take_incomplete(MonoNs(u64::MAX)));
}

#[test]
fn what_is_mapped_from_paths_without_room_is_known_without_them_and_counted_and_nobody_elses_is() {
    let mut paths = MappedPaths::default();
    let long = |number: u64| {
        let path = format!("/{number:04095}").into();
        Mapping { path, ..mapping(number * 0x1000, (number + 1) * 0x1000, number) }
    };
    let mut greedy = AddressSpace::default();
    for number in 1..=4096 {
        greedy.mmap(long(number), at(number), &mut paths.of(HOLDER));
    }
    let kept = greedy.live().filter(|mapped| *mapped.mapping.path != *NO_PATH).count() as u64;
    assert!((2000..3000).contains(&kept), "{kept}");
    assert_eq!((greedy.size(), greedy.evicted()), (4096, 4096 - kept));
    assert!(!greedy.may_lack(at(5000)));
    let seen = |space: &AddressSpace| [1, 4096].map(|number| inode_at(space, number * 0x1000, at(5000).0));
    assert_eq!(seen(&greedy), [Some(1), Some(4096)]);
    let without = |number: u64| greedy.lookup(Avma(number * 0x1000), at(5000)).unwrap().mapping.path.as_ptr();
    assert_eq!(without(4095), without(4096), "it is there once");
    // Another user's has what both have, and what is its own.
    let own = mapping(4096 * 0x1000, 4097 * 0x1000, 9);
    let mut other = AddressSpace::from_mappings(&[long(1), own], at(10), &mut paths.of(Holder::User(1001)));
    assert_eq!((seen(&other), other.evicted()), ([Some(1), Some(9)], 0));
    let path = |space: &AddressSpace| space.live().next().map(|mapped| mapped.mapping.path.as_ptr());
    assert_eq!(path(&greedy), path(&other));
    // What it does not map any more makes room.
    greedy.exec(at(6000));
    greedy.evict_before(at(6001));
    paths.sweep();
    other.reconcile(&(1..=1000).map(long).collect::<Vec<_>>(), at(6002), &mut paths.of(Holder::User(1001)));
    assert_eq!((other.live().count(), other.evicted()), (1000, 0));
    paths.assert_sound();
}

#[test]
fn many_who_leave_no_room_for_paths_cost_nobody_a_mapping() {
    let long = |number: u64| {
        let path = format!("/{number:04095}").into();
        Mapping { path, ..mapping(number * 0x1000, (number + 1) * 0x1000, number) }
    };
    let mut paths = MappedPaths::default();
    // Each process of root's is a holder of its own.
    let of_root = |pid| Holder::Process(Pid(pid), 0);
    for pid in 0..20 {
        let first = u64::from(pid) * 1000 + 1;
        let own: Vec<Mapping> = (first..first + 1000).map(long).collect();
        let space = AddressSpace::from_mappings(&own, at(10), &mut paths.of(of_root(pid)));
        assert_eq!((space.size(), space.may_lack(at(11))), (1000, false));
    }
    paths.assert_sound();
}

#[test]
fn a_file_that_was_mapped_without_room_for_its_path_has_it_from_who_has_room() {
    let called = |start, path: &str| Mapping { path: path.into(), ..mapping(start, start + 0x1000, 7) };
    let space = read(&[called(0x1000, NO_PATH), called(0x3000, "/lib/a.so")], at(1));
    let id = ProcessId { pid: Pid(1), start: at(0) };
    let process = Process::new(id, space, GeneratedCode::new(CodeOptions::default()));
    let identity = FileIdentity {
        device: Device::default(),
        st_dev: 0,
        inode: 7,
        uid: 0,
        len: 4096,
        changed: (0, 0),
        modified: (0, 0),
        block_size: 4096,
    };
    let (mut files, mut requests) = (Files::new(None), Requests::default());
    let paths = [0x1000, 0x3000, 0x1000].map(|start| {
        let mapped = process.space.lookup(Avma(start), at(2)).unwrap();
        let which = (&mapped.link, MapPlace::of(&mapped.mapping), files.new_file());
        let found = Identified { identity, is_settled: false, modified_at: MonoNs(0), opened: None };
        files.take_identity((id, Some(&process)), which, Ok(found), (at(2), at(3)), &mut requests);
        files.module(mapped.link.file().unwrap()).unwrap().path.to_string()
    });
    assert_eq!(paths, [NO_PATH, "/lib/a.so", "/lib/a.so"]);
}

#[test]
fn what_was_lost_is_missing_until_it_is_read_again_or_another_program_runs() {
    let mut space = read(&[mapping(0x1000, 0x2000, 1)], at(10));
    assert!(!space.may_lack(at(5)));
    space.lose(at(20));
    // A look that began before the loss.
    read_again(&mut space, &[mapping(0x1000, 0x2000, 1)], at(19));
    assert!(space.may_lack(at(21)) && space.fork(at(22)).may_lack(at(23)));
    read_again(&mut space, &[mapping(0x1000, 0x2000, 1)], at(30));
    assert!(space.may_lack(at(29)) && !space.may_lack(at(30)) && !space.fork(at(31)).may_lack(at(31)));
    space.lose(at(40));
    space.exec(at(50));
    assert!(space.may_lack(at(49)) && !space.may_lack(at(50)));
}

/// What is mapped at each of 64 pages, at each time: the same by brute force.
#[derive(Default)]
struct Naive(Vec<(u64, u64, u64, u64)>);

impl Naive {
    fn at(&self, page: u64, time: u64) -> Option<u64> {
        let seen = self.0.iter().rev().find(|(from, start, end, _)| *from <= time && (*start..*end).contains(&page));
        seen.map(|(_, _, _, inode)| *inode).filter(|inode| *inode != 0)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_address_space_equals_a_list_of_everything_that_happened(
        steps in prop::collection::vec((0..64_u64, 1..20_u64, 0..9_u8), 1..80)
    ) {
        let (mut space, mut naive) = (AddressSpace::default(), Naive::default());
        for (index, (start, len, what)) in steps.iter().enumerate() {
            let (time, inode) = (10 * (index as u64 + 1), index as u64 + 1);
            let (from, to) = (start * 0x1000, (start + len) * 0x1000);
            match what {
                0 => {
                    space.exec(MonoNs(time));
                    naive.0.push((time, 0, 1000, 0));
                }
                1 | 2 => {
                    space.unmap(Avma(from), Avma(to), MonoNs(time));
                    naive.0.push((time, *start, start + len, 0));
                }
                _ => {
                    map(&mut space, mapping(from, to, inode), MonoNs(time));
                    naive.0.push((time, *start, start + len, inode));
                }
            }
        }
        for time in (0..=steps.len() as u64).flat_map(|step| [10 * step, 10 * step + 5]) {
            for page in 0..90 {
                let found = space.lookup(Avma(page * 0x1000 + 7), MonoNs(time)).map(|mapped| &mapped.mapping);
                prop_assert_eq!(found.map(|mapped| mapped.inode), naive.at(page, time), "page {} at {}", page, time);
                if let Some(found) = found {
                    let original = steps[found.inode as usize - 1].0 * 0x1000;
                    prop_assert_eq!(found.file_offset.0, 0x100 + found.start.0 - original);
                }
            }
        }
    }
}

#[test]
fn a_file_that_has_got_the_number_of_what_was_mapped_there_before_is_another_one() {
    let of = |generation| Mapping { generation, ..mapping(0x1000, 0x3000, 1) };
    for (first, second, differs) in
        [(Some(1), Some(2), true), (Some(1), Some(1), false), (Some(1), None, false), (None, Some(2), false)]
    {
        let mut space = AddressSpace::default();
        map(&mut space, of(first), MonoNs(100));
        let link = space.lookup(Avma(0x1000), MonoNs(100)).unwrap().link.clone();
        let held = |space: &AddressSpace, begun, done| {
            space.held_its_number_too(Avma(0x1000), &link, MonoNs(begun), MonoNs(done))
        };
        assert!(!held(&space, 90, 150), "it is alone");
        map(&mut space, of(second), MonoNs(200));
        assert_eq!(held(&space, 150, 250), differs, "{first:?} {second:?}");
        assert!(!held(&space, 110, 150));
    }
}

#[test]
fn what_was_found_at_a_place_counts_if_the_mapping_was_there_all_the_time() {
    let mut space = AddressSpace::default();
    map(&mut space, mapping(0x1000, 0x3000, 1), MonoNs(100));
    let link = space.lookup(Avma(0x1000), MonoNs(100)).unwrap().link.clone();
    let held = |space: &AddressSpace, begun, done| space.held(Avma(0x1000), &link, MonoNs(begun), MonoNs(done));
    assert_eq!(held(&space, 110, 120), Held::Throughout);
    assert_eq!(held(&space, 90, 120), Held::InPart, "what was there before may have been looked at");
    assert_eq!(held(&space, 80, 90), Held::NotAtAll);
    map(&mut space, mapping(0x1000, 0x2000, 2), MonoNs(200));
    assert_eq!(held(&space, 110, 120), Held::Throughout);
    assert_eq!(held(&space, 110, 210), Held::InPart);
    assert_eq!(held(&space, 210, 220), Held::NotAtAll);
    let rest = space.lookup(Avma(0x2000), MonoNs(300)).unwrap();
    assert!(std::sync::Arc::ptr_eq(&rest.link, &link), "a part of a mapping is of the same file");
    assert_eq!(
        space.of_link(Avma(0x1000), &link).map(|mapped| mapped.mapping.inode),
        Some(1),
        "also when it has ended"
    );
}

#[test]
fn a_child_has_what_its_parent_had_mapped_and_not_what_either_maps_later() {
    let mut parent = AddressSpace::default();
    map(&mut parent, mapping(0x1000, 0x2000, 1), at(10));
    let mut child = parent.fork(at(20));
    map(&mut parent, mapping(0x1000, 0x2000, 2), at(30));
    map(&mut child, mapping(0x3000, 0x4000, 3), at(30));
    let seen = |space: &AddressSpace| [0x1000, 0x3000].map(|addr| inode_at(space, addr, at(40).0));
    assert_eq!((seen(&parent), seen(&child)), ([Some(2), None], [Some(1), Some(3)]));
    // A sample whose clock was a little ahead of the fork.
    assert_eq!(inode_at(&child, 0x1000, at(19).0), Some(1));
}

#[test]
fn a_runtime_that_flips_its_pages_between_writable_and_executable_changes_nothing() {
    let generated = |start, end| Mapping { kind: MappingKind::Anonymous, inode: 0, ..mapping(start, end, 0) };
    let mut space = AddressSpace::default();
    map(&mut space, generated(0x1000, 0x9000), at(10));
    for time in 20..30 {
        map(&mut space, generated(0x2000, 0x3000), at(time));
    }
    assert_eq!(space.size(), 1);
}

#[test]
fn code_is_walked_as_another_until_the_kernel_knows_that_it_has_taken_its_place() {
    let mut space = AddressSpace::default();
    let walked_as_another = |space: &AddressSpace, time| space.was_walked_as_another(Avma(0x1000), MonoNs(time));
    map(&mut space, mapping(0x1000, 0x3000, 1), MonoNs(100));
    assert!(!walked_as_another(&space, 100), "there was nothing");
    // Reading takes some time, in which the list of another publication is made.
    space.withdraw_with(1);
    map(&mut space, mapping(0x1000, 0x3000, 2), MonoNs(200));
    space.confirm(1, MonoNs(210));
    assert!(!walked_as_another(&space, 199) && walked_as_another(&space, 900));
    assert!(!walked_as_another(&space, 209), "the kernel knew nothing of this process");
    space.withdraw_with(2);
    map(&mut space, mapping(0x1000, 0x3000, 2), MonoNs(300));
    assert!(walked_as_another(&space, 299), "nothing is in force yet");
    space.confirm(2, MonoNs(310));
    assert!(walked_as_another(&space, 250) && !walked_as_another(&space, 310));
    assert!(!walked_as_another(&space, 300), "what was mapped again is the same");
    space.withdraw_with(3);
    space.confirm(3, MonoNs(320));
    assert!(walked_as_another(&space, 250) && !walked_as_another(&space, 400));
    // Its other half goes on.
    map(&mut space, mapping(0x2000, 0x3000, 3), MonoNs(500));
    assert!(!walked_as_another(&space, 510));
    assert!(space.was_walked_as_another(Avma(0x2000), MonoNs(510)));
}
