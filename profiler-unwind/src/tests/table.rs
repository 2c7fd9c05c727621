use proptest::prelude::*;

use super::*;

const A: Rule = Rule::ENTRY;
const B: Rule = Rule::FRAME_POINTER;

type Borrowed<'a> = (Range<u64>, &'a [(u64, Rule)]);

fn table(pieces: &[Borrowed<'_>]) -> RowTable {
    let mut builder = RowTableBuilder::default();
    for (code, rules) in pieces {
        builder.add(code.clone(), rules.iter().copied());
    }
    builder.finish().0
}

fn pages(table: &RowTable) -> Vec<(u64, Vec<u64>)> {
    table.pages().map(|page| (page.page, page.rows.to_vec())).collect()
}

#[test]
fn the_first_row_of_a_page_carries_the_rule_in_effect() {
    let table = table(&[(0x1_8000..0x4_1000, &[(0x1_8000, A), (0x1_8004, B), (0x3_ffff, A)])]);
    let rows = |rows: &[(u16, Rule)]| rows.iter().map(|(low, rule)| rule.encode(*low)).collect::<Vec<_>>();
    assert_eq!(
        pages(&table),
        [
            (1, rows(&[(0, Rule::GAP), (0x8000, A), (0x8004, B)])),
            (2, rows(&[(0, B)])),
            (3, rows(&[(0, B), (0xffff, A)])),
            (4, rows(&[(0, A), (0x1000, Rule::GAP)])),
        ]
    );
    assert_eq!((table.len(), table.page_count()), (8, 4));
}

#[test]
fn pages_without_code_are_left_out() {
    let table = table(&[(0x1_0000..0x2_0000, &[(0x1_0000, A)]), (0x9_0000..0x9_0010, &[(0x9_0000, B)])]);
    assert_eq!(pages(&table), [(1, vec![A.encode(0)]), (9, vec![B.encode(0), Rule::GAP.encode(0x10)])]);
    let rows: Vec<_> = table.rows().collect();
    assert_eq!(rows, [(0x1_0000, A), (0x2_0000, Rule::GAP), (0x9_0000, B), (0x9_0010, Rule::GAP)]);
}

#[test]
fn code_that_ends_with_the_last_address_ends_there() {
    let end = u64::MAX;
    let table = table(&[(end - 2..end, &[(end - 2, A), (end - 1, B)])]);
    assert_eq!(table.rows().collect::<Vec<_>>(), [(end - 2, A), (end - 1, B), (end, Rule::GAP)]);
    assert_eq!(table.rule_at(end), Rule::GAP);
}

#[test]
fn equal_neighbours_are_joined_across_pieces_and_pages() {
    let table = table(&[(0x8000..0x1_8000, &[(0x8000, A), (0x9000, A)]), (0x1_8000..0x1_9000, &[(0x1_8000, A)])]);
    assert_eq!(table.rows().collect::<Vec<_>>(), [(0x8000, A), (0x1_9000, Rule::GAP)]);
}

#[test]
fn of_overlapping_pieces_the_one_that_begins_last_wins() {
    let table =
        table(&[(0x100..0x200, &[(0x100, A)]), (0x180..0x190, &[(0x180, B)]), (0x100..0x1000, &[(0x100, Rule::PLT)])]);
    let expected = [(0x100, A), (0x180, B), (0x190, Rule::GAP)];
    assert_eq!(table.rows().collect::<Vec<_>>(), expected);
}

#[test]
fn a_piece_is_cut_to_the_range_of_its_builder() {
    let mut builder = RowTableBuilder::within(0x1000..0x2000);
    builder.add(0x800..0x1800, [(0x800, A), (0x900, B), (0x1700, A)]);
    builder.add(0x1f00..0x3000, [(0x1f00, B), (0x2000, A)]);
    builder.add(0x2000..0x3000, [(0x2000, A)]);
    let rows: Vec<_> = builder.finish().0.rows().collect();
    let gap = Rule::GAP;
    assert_eq!(rows, [(0x1000, B), (0x1700, A), (0x1800, gap), (0x1f00, B), (0x2000, gap)]);
}

#[test]
fn a_full_table_ends_with_a_complete_page() {
    let mut builder = RowTableBuilder::default();
    // Every piece covers 64 Ki pages but for a few bytes.
    for piece in 0..80_u64 {
        builder.add(piece << 32..(piece + 1) << 32, [(piece << 32, if piece % 2 == 0 { A } else { B })]);
    }
    let (table, cut) = builder.finish();
    assert!(cut);
    assert!((63 << 16..=4 << 20).contains(&table.page_count()) && table.len() <= 4 << 20);
    assert_eq!((table.rule_at(0), table.rule_at((1 << 32) + 5)), (A, B));
    assert_eq!(table.rule_at(79 << 32), Rule::GAP);
}

#[test]
fn a_shifted_table_has_the_same_rules_elsewhere() {
    let original = table(&[(0xfff0..0x1_0010, &[(0xfff0, A), (0xfff8, B)]), (0x5_0000..0x6_0000, &[(0x5_0000, A)])]);
    for distance in [0, 1, 0x10, 0x1_0000, 0u64.wrapping_sub(0xfff0), 1 << 60] {
        let shifted = original.shifted(distance);
        let rows: Vec<_> = original.rows().map(|(address, rule)| (address.wrapping_add(distance), rule)).collect();
        assert_eq!(shifted.rows().collect::<Vec<_>>(), rows);
    }
    let beyond = original.shifted(u64::MAX - 0x1_0000);
    assert_eq!(beyond.rule_at(u64::MAX - 0x1_0000 + 0xfff0), A);
    assert!(beyond.rows().is_sorted_by_key(|(address, _)| address));
}

#[test]
fn tables_join_into_one() {
    let first = table(&[(0x100..0x110, &[(0x100, A)]), (0x2_0000..0x3_0000, &[(0x2_0000, B)])]);
    let second = table(&[(0x110..0x120, &[(0x110, B)])]);
    let mut builder = RowTableBuilder::within(0..0x2_8000);
    builder.add_table(&second);
    builder.add_table(&first);
    let rows: Vec<_> = builder.finish().0.rows().collect();
    let gap = Rule::GAP;
    assert_eq!(rows, [(0x100, A), (0x110, B), (0x120, gap), (0x2_0000, B), (0x2_8000, gap)]);
}

fn rules() -> impl Strategy<Value = Rule> {
    prop_oneof![Just(A), Just(B), Just(Rule::GAP), Just(Rule::PLT), Just(Rule::with_cfa(CfaKind::Sp, 64))]
}

type Piece = (Range<u64>, Vec<(u64, Rule)>);

fn piece() -> impl Strategy<Value = Piece> {
    let rules = proptest::collection::vec((0..0x2_0000_u64, rules()), 0..6);
    (0..0x4_0000_u64, 0..0x2_8000_u64, rules).prop_map(|(start, length, mut rules)| {
        // Round addresses meet each other and the ends of pages.
        let (start, length) = (start & !0xfff, length & !0x7ff);
        rules.sort_by_key(|(offset, _)| *offset);
        (start..start + length, rules.into_iter().map(|(offset, rule)| (start + (offset & !0xff), rule)).collect())
    })
}

/// The piece that counts at an address.
fn covering(pieces: &[Piece], address: u64) -> Option<&Piece> {
    let pieces = pieces.iter().filter(|(code, _)| !code.is_empty());
    let last_start = pieces.clone().map(|(code, _)| code.start).filter(|start| *start <= address).max();
    let winner = pieces.clone().find(|(code, _)| Some(code.start) == last_start);
    winner.filter(|(code, _)| code.contains(&address))
}

/// The documented meaning, by looking at every piece.
fn expected(pieces: &[Piece], address: u64) -> Rule {
    let Some((_, rules)) = covering(pieces, address) else { return Rule::GAP };
    rules.iter().rfind(|(from, _)| *from <= address).map_or(Rule::GAP, |(_, rule)| *rule)
}

proptest! {
    #[test]
    fn a_table_says_what_its_pieces_say(
        pieces in proptest::collection::vec(piece(), 0..8),
        others in proptest::collection::vec(0..0x8_0000_u64, 16),
    ) {
        let mut builder = RowTableBuilder::default();
        for (code, rules) in &pieces {
            builder.add(code.clone(), rules.iter().copied());
        }
        let code = [0x100..0x3_0000, 0x3_0000..0x3_0100, 0x4_0000..0x9_0000];
        let gaps = builder.gaps(&code, 1);
        let (table, cut) = builder.finish();
        prop_assert!(!cut);
        let edges = pieces.iter().flat_map(|(code, rules)| {
            [code.start, code.end].into_iter().chain(rules.iter().map(|(address, _)| *address))
        });
        for address in edges.flat_map(|edge| [edge.saturating_sub(1), edge]).chain(others) {
            let rule = expected(&pieces, address);
            let covered = covering(&pieces, address).is_some();
            let in_gap = gaps.iter().any(|gap| gap.contains(&address));
            let in_code = code.iter().any(|code| code.contains(&address));
            prop_assert_eq!(in_gap, in_code && !covered, "at {:#x} in {:x?}", address, gaps);
            prop_assert_eq!(table.rule_at(address), rule, "at {:#x}", address);
            let rows = table.rows().take_while(|(from, _)| *from <= address).last();
            prop_assert_eq!(rows.map_or(Rule::GAP, |(_, rule)| rule), rule, "rows at {:#x}", address);
        }
        let mut last_page = None;
        for page in table.pages() {
            prop_assert!(last_page < Some(page.page));
            prop_assert_eq!(page.rows[0] & 0xffff, 0);
            prop_assert!(page.rows.is_sorted_by_key(|row| row & 0xffff));
            prop_assert!(page.rows.windows(2).all(|pair| pair[0] >> 16 != pair[1] >> 16));
            prop_assert!(page.rows.iter().any(|row| row >> 16 != Rule::GAP.encode(0) >> 16));
            last_page = Some(page.page);
        }
    }
}
