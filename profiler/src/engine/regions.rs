//! Lists of executable mappings, made to fit the BPF program's limit.

use jitprof_common::table::Region;

/// Adds a region behind the others; one that goes on where the last one ends, with the same rows, is joined to it.
pub(super) fn push(regions: &mut Vec<Region>, region: Region) {
    match regions.last_mut().filter(|last| last.end == region.start && is_same(last, &region)) {
        Some(last) => last.end = region.end,
        None => regions.push(region),
    }
}

/// At most `limit` regions, and how many were left out.
///
/// Neighbours with the same rows are joined over what lies between them, the nearest first: nothing there is code, and
/// that a word points there is noticed later, in userspace. If that does not suffice, those with rows and then the
/// largest stay.
pub(super) fn fit(mut regions: Vec<Region>, limit: usize) -> (Vec<Region>, u64) {
    let surplus = regions.len().saturating_sub(limit);
    if surplus == 0 {
        return (regions, 0);
    }
    let mut distances: Vec<u64> = regions
        .windows(2)
        .filter_map(|pair| match pair {
            [a, b] if is_same(a, b) => Some(b.start.saturating_sub(a.end)),
            _ => None,
        })
        .collect();
    distances.sort_unstable();
    // All that lie as near as the last one needed; more than needed may be joined.
    if let Some(nearest) = distances.get(surplus - 1).or(distances.last()).copied() {
        regions.dedup_by(|next, last| {
            let joined = is_same(last, next) && next.start.saturating_sub(last.end) <= nearest;
            if joined {
                last.end = next.end;
            }
            joined
        });
    }
    let left_out = regions.len().saturating_sub(limit);
    if left_out > 0 {
        regions.sort_by_key(|region| (region.object == 0, std::cmp::Reverse(region.end - region.start)));
        regions.truncate(limit);
        regions.sort_by_key(|region| region.start);
    }
    (regions, u64::try_from(left_out).unwrap_or(u64::MAX))
}

fn is_same(a: &Region, b: &Region) -> bool {
    (a.object, a.bias, a.flags) == (b.object, b.bias, b.flags)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn region(start: u64, end: u64, object: u32, bias: u64) -> Region {
        Region { start, end, bias, object, flags: 0 }
    }

    #[test]
    fn pieces_of_generated_code_are_joined_over_what_lies_between_them() {
        let pieces: Vec<Region> = (0..20_000_u64).map(|at| region(at * 0x2000, at * 0x2000 + 0x1000, 9, 0)).collect();
        let (fitted, left_out) = fit(pieces, 8192);
        assert_eq!(left_out, 0);
        assert_eq!(fitted, [region(0, 19_999 * 0x2000 + 0x1000, 9, 0)]);
    }

    #[test]
    fn of_different_files_the_largest_stay_in_order_and_the_rest_is_counted() {
        let files: Vec<Region> = (0..10_u64)
            .map(|at| region(at * 0x10_0000, at * 0x10_0000 + 0x1000 * (10 - at), u32::from(at != 0), at * 0x10_0000))
            .collect();
        let (fitted, left_out) = fit(files.clone(), 4);
        assert_eq!((fitted.as_slice(), left_out), (&files[1..5], 6), "a file without rows goes first");
    }

    proptest! {
        #[test]
        fn a_fitted_list_is_sorted_within_its_limit_and_right_about_every_address_it_covers(
            parts in proptest::collection::vec((1u64..5, 1u64..5, 0u32..3), 0..60),
            limit in 1usize..20,
        ) {
            let (mut all, mut at) = (Vec::new(), 0);
            for (distance, length, object) in parts {
                push(&mut all, region(at + distance, at + distance + length, object, u64::from(object)));
                at += distance + length;
            }
            let (fitted, left_out) = fit(all.clone(), limit);
            prop_assert!(fitted.len() <= limit);
            prop_assert!(fitted.windows(2).all(|pair| pair[0].end <= pair[1].start));
            if left_out == 0 {
                for one in &all {
                    let found = fitted.iter().find(|other| other.start <= one.start && one.end <= other.end);
                    prop_assert!(found.is_some_and(|found| is_same(found, one)), "{:?} in {:?}", one, fitted);
                }
            }
        }
    }
}
