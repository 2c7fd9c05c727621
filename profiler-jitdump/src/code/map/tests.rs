//! The map against a naive model: a list of all events, searched from end to end.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::code::{CodeInline, LineRow, SourceRows};

const SPAN: u64 = 96;
const LAST_TIME: u64 = 60;

fn load(time: u64, start: u64, size: u64, name: &str) -> CodeLoad {
    CodeLoad {
        time: MonoNs(time),
        start: Avma(start),
        size,
        name: name.to_owned(),
        code_index: 0,
        lines: SourceRows::default(),
        unit: None,
        eh_frame: None,
        code: None,
        origin: CodeOrigin::Jitdump,
    }
}

fn listed(time: u64, start: u64, size: u64, name: &str) -> CodeLoad {
    CodeLoad { origin: CodeOrigin::PerfMap, ..load(time, start, size, name) }
}

fn row(offset: u32, line: u32, file: &Arc<str>) -> LineRow {
    LineRow { offset, line, file: Arc::clone(file) }
}

fn name_at(map: &CodeMap, addr: u64, time: u64) -> Option<String> {
    map.lookup(Avma(addr), MonoNs(time)).map(|hit| hit.name().to_owned())
}

fn id_of(applied: Applied) -> CodeId {
    match applied {
        Applied::Loaded(id) | Applied::Known { id, .. } | Applied::Moved(Some(id)) => id,
        other => panic!("no object: {other:?}"),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Event(CodeEvent),
    EndAll(u64),
}

impl Step {
    fn time(&self) -> u64 {
        match self {
            Step::Event(CodeEvent::Load(load)) => load.time.0,
            Step::Event(CodeEvent::Inline(inline)) => inline.time.0,
            Step::Event(CodeEvent::Move { time, .. } | CodeEvent::Unload { time, .. } | CodeEvent::Close { time }) => {
                time.0
            }
            Step::EndAll(time) => *time,
        }
    }
}

fn run(map: &mut CodeMap, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Event(event) => {
                map.apply(event.clone());
            }
            Step::EndAll(time) => map.end_all(MonoNs(*time)),
        }
    }
}

#[derive(Clone, Debug)]
enum Content {
    Named(String),
    Left,
    From(u64),
}

#[derive(Clone, Debug)]
struct ModelPiece {
    start: u64,
    size: u64,
    from: u64,
    order: usize,
    content: Content,
}

impl ModelPiece {
    fn covers(&self, addr: u64) -> bool {
        self.start <= addr && addr < self.start + self.size
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.start + other.size && other.start < self.start + self.size
    }
}

#[derive(Debug, Default)]
struct Model {
    announced: Vec<ModelPiece>,
    listed: Vec<ModelPiece>,
    ends: Vec<u64>,
}

impl Model {
    fn of(steps: &[Step]) -> Self {
        let mut model = Self::default();
        for step in steps {
            match step {
                Step::EndAll(time) => model.ends.push(*time),
                Step::Event(CodeEvent::Load(load)) => model.load(load),
                Step::Event(CodeEvent::Move { time, old_start, new_start, size }) => {
                    let order = model.announced.len();
                    let piece = |start, order, content| ModelPiece { start, size: *size, from: time.0, order, content };
                    model.announced.push(piece(old_start.0, order, Content::Left));
                    model.announced.push(piece(new_start.0, order + 1, Content::From(old_start.0)));
                }
                Step::Event(CodeEvent::Unload { time, start, size }) => {
                    let (order, content) = (model.announced.len(), Content::Left);
                    model.announced.push(ModelPiece { start: start.0, size: *size, from: time.0, order, content });
                }
                // Neither says what lies where.
                Step::Event(CodeEvent::Inline(_) | CodeEvent::Close { .. }) => {}
            }
        }
        model
    }

    fn load(&mut self, load: &CodeLoad) {
        let perf = load.origin == CodeOrigin::PerfMap;
        let mut piece = ModelPiece {
            start: load.start.0,
            size: load.size,
            from: load.time.0,
            order: if perf { self.listed.len() } else { self.announced.len() },
            content: Content::Named(load.name.clone()),
        };
        if !perf {
            self.announced.push(piece);
            return;
        }
        // Of an unknown time, it is the newest program's.
        let seen = if load.time.0 == 0 { NEVER } else { load.time.0 };
        let image_start = self.ends.iter().copied().filter(|end| *end <= seen).max().unwrap_or(0);
        let is_over = self.ends.iter().any(|end| *end > seen);
        let visible = |old: &&ModelPiece| old.overlaps(&piece) && self.end(&self.listed, old) > old.from;
        let overlapped: Vec<&ModelPiece> = self.listed.iter().filter(visible).collect();
        let living = overlapped.iter().filter(|old| self.end(&self.listed, old) == NEVER);
        piece.from = match living.map(|old| old.from).max() {
            _ if overlapped.is_empty() => image_start,
            _ if is_over => load.time.0,
            newest => load.time.0.max(newest.unwrap_or(0)).max(image_start),
        };
        self.listed.push(piece);
    }

    fn end(&self, layer: &[ModelPiece], piece: &ModelPiece) -> u64 {
        let later = layer.iter().filter(|other| (other.from, other.order) > (piece.from, piece.order));
        let replaced = later.filter(|other| other.overlaps(piece)).map(|other| other.from).min();
        let ended = self.ends.iter().copied().filter(|end| *end > piece.from).min();
        replaced.into_iter().chain(ended).min().unwrap_or(NEVER)
    }

    fn name<'a>(&'a self, piece: &'a ModelPiece) -> Option<&'a str> {
        match &piece.content {
            Content::Named(name) => Some(name),
            Content::Left => None,
            Content::From(old) => {
                let before = self
                    .announced
                    .iter()
                    .filter(|other| other.covers(*old) && (other.from, other.order) < (piece.from, piece.order - 1));
                let source = before.max_by_key(|other| (other.from, other.order))?;
                let there = source.start == *old && self.end(&self.announced, source) >= piece.from;
                if there { self.name(source) } else { None }
            }
        }
    }

    /// Every piece as (start, end address, from, end, name), the announced layer first.
    fn rectangles(&self) -> [Vec<Rectangle>; 2] {
        [&self.announced, &self.listed].map(|layer| {
            let rectangle = |piece: &ModelPiece| Rectangle {
                start: piece.start,
                end_addr: piece.start + piece.size,
                from: piece.from,
                end: self.end(layer, piece),
                name: self.name(piece).map(str::to_owned),
            };
            layer.iter().map(rectangle).collect()
        })
    }
}

#[derive(Debug)]
struct Rectangle {
    start: u64,
    end_addr: u64,
    from: u64,
    end: u64,
    name: Option<String>,
}

impl Rectangle {
    fn covers(&self, addr: u64) -> bool {
        self.start <= addr && addr < self.end_addr
    }
}

fn expected(layers: &[Vec<Rectangle>; 2], addr: u64, time: u64) -> Option<(u64, u64, &str)> {
    layers.iter().find_map(|layer| {
        let piece = layer.iter().find(|piece| piece.covers(addr) && piece.from <= time && time < piece.end)?;
        Some((piece.start, piece.from, piece.name.as_deref()?))
    })
}

fn expected_later(layers: &[Vec<Rectangle>; 2], addr: u64, time: u64) -> Option<u64> {
    layers.iter().find_map(|layer| {
        let later = layer.iter().filter(|piece| piece.covers(addr) && piece.from > time && piece.end > piece.from);
        later.filter(|piece| piece.name.is_some()).map(|piece| piece.from).min()
    })
}

fn found(map: &CodeMap, addr: u64, time: u64) -> Option<(u64, u64, &str)> {
    let hit = map.lookup(Avma(addr), MonoNs(time))?;
    assert!(hit.offset < hit.size() && hit.start().0 + hit.offset == addr);
    Some((hit.start().0, hit.since().0, hit.name()))
}

fn assert_agrees(map: &CodeMap, model: &Model, since: u64) -> Result<(), TestCaseError> {
    let rectangles = model.rectangles();
    for addr in 0..SPAN + 40 {
        for time in since..=LAST_TIME + 2 {
            let expected = expected(&rectangles, addr, time);
            prop_assert_eq!(found(map, addr, time), expected, "address {} at {}", addr, time);
        }
    }
    Ok(())
}

fn any_load(times: impl Strategy<Value = u64>) -> impl Strategy<Value = Step> {
    (times, 0..SPAN, 1..34_u64, 0..1000_u32).prop_map(|(time, start, size, name)| {
        Step::Event(CodeEvent::Load(load(time, start, size, &format!("f{name}"))))
    })
}

fn any_line() -> impl Strategy<Value = Step> {
    (0..LAST_TIME, 0..SPAN, 1..34_u64, 0..1000_u32).prop_map(|(time, start, size, name)| {
        Step::Event(CodeEvent::Load(listed(time, start, size, &format!("p{name}"))))
    })
}

fn any_unload() -> impl Strategy<Value = Step> {
    (0..LAST_TIME, 0..SPAN, 1..34_u64)
        .prop_map(|(time, start, size)| Step::Event(CodeEvent::Unload { time: MonoNs(time), start: Avma(start), size }))
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => any_load(0..LAST_TIME),
        3 => any_line(),
        1 => any_unload(),
        1 => (1..LAST_TIME).prop_map(Step::EndAll),
    ];
    prop::collection::vec(step, 0..60)
}

/// Loads, and moves of what some load put somewhere (or of nothing), all at different times.
fn any_steps_with_moves() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..5_u32, 0..12_u64, 0..12_u64, 1..10_u64);
    let steps = prop::collection::vec(step, 1..50).prop_map(|steps| {
        let timed = steps.into_iter().zip(1_u64..);
        let steps = timed.map(|((what, slot, other, size), time)| match what {
            0 => Step::Event(CodeEvent::Move {
                time: MonoNs(time),
                old_start: Avma(slot * 8),
                new_start: Avma(other * 8),
                size,
            }),
            1 => Step::Event(CodeEvent::Unload { time: MonoNs(time), start: Avma(slot * 8), size }),
            _ => Step::Event(CodeEvent::Load(load(time, slot * 8, size, &format!("f{time}")))),
        });
        steps.collect::<Vec<_>>()
    });
    steps.prop_flat_map(|steps| Just(steps).prop_shuffle())
}

/// Few cases by default, because each compares some 8000 look-ups; more with PROPTEST_CASES.
fn config() -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(32),
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_order_of_arrival_agrees_with_the_model(steps in any_steps()) {
        let mut map = CodeMap::new();
        run(&mut map, &steps);
        assert_agrees(&map, &Model::of(&steps), 0)?;
    }

    #[test]
    fn moves_agree_with_the_model_in_any_order_of_arrival(steps in any_steps_with_moves()) {
        let mut map = CodeMap::new();
        run(&mut map, &steps);
        assert_agrees(&map, &Model::of(&steps), 0)?;
        // Settling what is in doubt changes no answer.
        map.prune_before(MonoNs(0));
        assert_agrees(&map, &Model::of(&steps), 0)?;
    }

    #[test]
    fn events_out_of_order_give_the_map_that_ordered_ones_give(steps in any_steps_with_moves()) {
        let mut ordered = steps.clone();
        ordered.sort_by_key(Step::time);
        let (mut out_of_order, mut in_order) = (CodeMap::new(), CodeMap::new());
        run(&mut out_of_order, &steps);
        run(&mut in_order, &ordered);
        for addr in 0..SPAN + 40 {
            for time in 0..=LAST_TIME {
                prop_assert_eq!(found(&out_of_order, addr, time), found(&in_order, addr, time));
            }
        }
    }

    #[test]
    fn pruning_keeps_every_answer_from_its_time_on(steps in any_steps_with_moves(), cut in 0..50_usize, at in 0..50_u64) {
        let mut map = CodeMap::new();
        let (first, rest) = steps.split_at(cut.min(steps.len()));
        run(&mut map, first);
        map.prune_before(MonoNs(at));
        let rest: Vec<Step> = rest.iter().filter(|step| step.time() >= at).cloned().collect();
        run(&mut map, &rest);
        let all: Vec<Step> = first.iter().chain(&rest).cloned().collect();
        assert_agrees(&map, &Model::of(&all), at)?;
    }

    #[test]
    fn a_child_inherits_what_lives_and_then_goes_its_own_way(
        mut steps in any_steps(),
        ours in prop::collection::vec(any_load(30..LAST_TIME), 0..20),
        theirs in prop::collection::vec(any_load(30..LAST_TIME), 0..20),
    ) {
        steps.retain(|step| step.time() <= 30);
        let mut parent = CodeMap::new();
        run(&mut parent, &steps);
        let mut child = parent.fork(MonoNs(30));
        run(&mut parent, &ours);
        run(&mut child, &theirs);
        assert_agrees(&parent, &Model::of(&[steps.clone(), ours].concat()), 0)?;
        assert_agrees(&child, &Model::of(&[steps, theirs].concat()), 30)?;
    }

    #[test]
    fn a_child_gets_the_functions_that_moved(steps in any_steps_with_moves()) {
        let mut parent = CodeMap::new();
        run(&mut parent, &steps);
        let child = parent.fork(MonoNs(LAST_TIME));
        assert_agrees(&child, &Model::of(&steps), LAST_TIME)?;
    }

    #[test]
    fn repeated_announcements_change_nothing(steps in any_steps_with_moves()) {
        let (mut once, mut twice) = (CodeMap::new(), CodeMap::new());
        run(&mut once, &steps);
        run(&mut twice, &[steps.clone(), steps.clone()].concat());
        for addr in 0..SPAN + 40 {
            for time in 0..=LAST_TIME {
                prop_assert_eq!(found(&once, addr, time), found(&twice, addr, time));
            }
        }
        prop_assert_eq!(twice.stats().duplicates, steps.len() as u64);
        prop_assert_eq!(once.functions().count(), twice.functions().count());
    }

    #[test]
    fn the_nearest_later_code_is_the_first(steps in any_steps(), addr in 0..SPAN, time in 0..LAST_TIME) {
        let mut map = CodeMap::new();
        run(&mut map, &steps);
        let rectangles = Model::of(&steps).rectangles();
        let nearest = map.lookup_nearest(Avma(addr), MonoNs(time));
        let expected = match expected(&rectangles, addr, time) {
            Some(_) => Some(0),
            None => expected_later(&rectangles, addr, time).map(|from| from - time),
        };
        prop_assert_eq!(nearest.map(|nearest| nearest.later_by_ns), expected);
    }
}

#[test]
fn a_reload_at_the_same_address_is_a_new_object_and_the_old_one_stays_findable() {
    let mut map = CodeMap::new();
    let first = id_of(map.apply(CodeEvent::Load(load(10, 0x1000, 64, "old"))));
    let second = id_of(map.apply(CodeEvent::Load(load(20, 0x1000, 64, "new"))));
    assert_ne!(first, second);
    assert_eq!(name_at(&map, 0x1010, 9), None);
    assert_eq!(name_at(&map, 0x1010, 19).as_deref(), Some("old"));
    assert_eq!(name_at(&map, 0x1010, 20).as_deref(), Some("new"));
    let old = map.lookup(Avma(0x1010), MonoNs(15)).expect("known");
    assert_eq!((old.id, old.offset, old.ended()), (first, 0x10, Some(MonoNs(20))));
}

#[test]
fn an_object_overwritten_in_part_is_gone_as_a_whole() {
    let mut map = CodeMap::new();
    map.apply(CodeEvent::Load(load(10, 0x1000, 64, "old")));
    map.apply(CodeEvent::Load(load(20, 0x1020, 64, "new")));
    assert_eq!(name_at(&map, 0x1000, 19).as_deref(), Some("old"));
    assert_eq!(name_at(&map, 0x1000, 20), None);
}

#[test]
fn a_peeked_object_read_again_from_the_file_is_upgraded_not_doubled() {
    let mut map = CodeMap::new();
    let peeked = CodeLoad { origin: CodeOrigin::Peeked, ..load(10, 0x1000, 64, "f") };
    let id = id_of(map.apply(CodeEvent::Load(peeked)));
    let file: Arc<str> = "f.js".into();
    let read = CodeLoad { lines: [row(4, 7, &file)].into_iter().collect(), ..load(10, 0x1000, 64, "f") };
    assert_eq!(map.apply(CodeEvent::Load(read.clone())), Applied::Known { id, upgraded: true });
    assert_eq!(map.apply(CodeEvent::Load(read)), Applied::Known { id, upgraded: false });
    let hit = map.lookup(Avma(0x1000), MonoNs(10)).expect("known");
    assert_eq!(hit.origin(), CodeOrigin::Jitdump);
    assert_eq!(hit.line(8), Some((&file, 7)));
    assert_eq!(map.functions().count(), 1);
    assert_eq!(map.stats().duplicates, 2);
}

#[test]
fn a_moved_object_keeps_its_id_name_and_lines() {
    let mut map = CodeMap::new();
    let file: Arc<str> = "a.c".into();
    let lines = [row(0, 3, &file)].into_iter().collect();
    let id = id_of(map.apply(CodeEvent::Load(CodeLoad { lines, ..load(10, 0x1000, 64, "f") })));
    let event = CodeEvent::Move { time: MonoNs(20), old_start: Avma(0x1000), new_start: Avma(0x1020), size: 64 };
    assert_eq!(map.apply(event), Applied::Moved(Some(id)));
    let before = map.lookup(Avma(0x1008), MonoNs(19)).expect("at the old place");
    let after = map.lookup(Avma(0x1028), MonoNs(20)).expect("at the new place");
    assert_eq!((before.id, after.id), (id, id));
    assert_eq!((after.start(), after.loaded(), after.since()), (Avma(0x1020), MonoNs(10), MonoNs(20)));
    assert_eq!(after.line(8), Some((&file, 3)));
    assert_eq!(name_at(&map, 0x1008, 20), None);
}

#[test]
fn a_move_of_something_unknown_gets_its_name_when_the_load_arrives() {
    let mut map = CodeMap::new();
    let event = CodeEvent::Move { time: MonoNs(20), old_start: Avma(0x1000), new_start: Avma(0x2000), size: 64 };
    assert_eq!(map.apply(event), Applied::Moved(None));
    assert_eq!(name_at(&map, 0x2000, 30), None);
    map.apply(CodeEvent::Load(load(10, 0x1000, 64, "f")));
    assert_eq!(name_at(&map, 0x2000, 30).as_deref(), Some("f"));
    assert_eq!(name_at(&map, 0x1000, 30), None);
    assert_eq!((map.stats().moves_of_unknown, map.stats().out_of_order), (1, 1));
}

#[test]
fn a_perf_map_fills_only_what_no_jitdump_covers() {
    let mut map = CodeMap::new();
    map.apply(CodeEvent::Load(listed(0, 0x1000, 64, "listed")));
    map.apply(CodeEvent::Load(load(50, 0x1000, 32, "announced")));
    assert_eq!(name_at(&map, 0x1000, 49).as_deref(), Some("listed"));
    assert_eq!(name_at(&map, 0x1000, 50).as_deref(), Some("announced"));
    assert_eq!(name_at(&map, 0x1030, 50).as_deref(), Some("listed"));
}

#[test]
fn a_later_line_of_a_perf_map_holds_from_when_it_was_seen() {
    let mut map = CodeMap::new();
    map.apply(CodeEvent::Load(listed(100, 0x1000, 64, "first")));
    map.apply(CodeEvent::Load(listed(200, 0x1000, 32, "second")));
    assert_eq!(name_at(&map, 0x1000, 0).as_deref(), Some("first"));
    assert_eq!(name_at(&map, 0x1000, 199).as_deref(), Some("first"));
    assert_eq!(name_at(&map, 0x1000, 200).as_deref(), Some("second"));
    // Without a time the last writer wins for good.
    map.apply(CodeEvent::Load(listed(0, 0x3000, 64, "first")));
    map.apply(CodeEvent::Load(listed(0, 0x3000, 64, "second")));
    assert_eq!(name_at(&map, 0x3000, 0).as_deref(), Some("second"));
}

#[test]
fn exec_ends_everything_and_records_of_the_old_image_that_come_afterwards() {
    let mut map = CodeMap::new();
    map.apply(CodeEvent::Load(load(10, 0x1000, 64, "old")));
    map.apply(CodeEvent::Load(listed(0, 0x5000, 64, "old line")));
    map.end_all(MonoNs(50));
    map.apply(CodeEvent::Load(load(40, 0x2000, 64, "late")));
    map.apply(CodeEvent::Load(load(60, 0x3000, 64, "new")));
    map.apply(CodeEvent::Load(listed(0, 0x6000, 64, "new line")));
    assert_eq!(name_at(&map, 0x1000, 49).as_deref(), Some("old"));
    assert_eq!(name_at(&map, 0x2000, 49).as_deref(), Some("late"));
    for gone in [0x1000, 0x2000, 0x5000] {
        assert_eq!(name_at(&map, gone, 50), None);
    }
    assert_eq!(name_at(&map, 0x3000, 60).as_deref(), Some("new"));
    assert_eq!((name_at(&map, 0x6000, 49), name_at(&map, 0x6000, 50).as_deref()), (None, Some("new line")));
}

#[test]
fn a_line_of_zero_means_unknown_and_rows_out_of_order_are_sorted() {
    let mut map = CodeMap::new();
    let file: Arc<str> = "a.erl".into();
    let lines = [row(16, 9, &file), row(4, 5, &file), row(32, 0, &file)].into_iter().collect();
    map.apply(CodeEvent::Load(CodeLoad { lines, ..load(1, 0x1000, 64, "f") }));
    let hit = map.lookup(Avma(0x1000), MonoNs(1)).expect("known");
    let line = |offset| hit.line(offset).map(|(_, line)| line);
    assert_eq!(
        [line(3), line(4), line(15), line(16), line(31), line(32), line(1 << 40)],
        [None, Some(5), Some(5), Some(9), Some(9), None, None]
    );
}

#[test]
fn impossible_sizes_and_addresses_are_counted_not_taken() {
    let mut map = CodeMap::new();
    let cases = [(0x1000, 0), (0x1000, MAX_CODE_BYTES + 1), (u64::MAX, 1), (MAX_ADDRESS - 1, 2), (0, u64::MAX)];
    for (start, size) in cases {
        assert!(matches!(map.apply(CodeEvent::Load(load(1, start, size, "f"))), Applied::Dropped(_)));
        let event = CodeEvent::Move { time: MonoNs(1), old_start: Avma(0), new_start: Avma(start), size };
        assert!(matches!(map.apply(event), Applied::Dropped(_)));
    }
    assert_eq!((map.stats().dropped_empty, map.stats().dropped_implausible), (2, 8));
    assert_eq!(map.functions().count(), 0);
    let latest = load(u64::MAX, MAX_ADDRESS - 2, 2, "last");
    assert!(matches!(map.apply(CodeEvent::Load(latest)), Applied::Loaded(_)));
    assert_eq!(name_at(&map, MAX_ADDRESS - 1, u64::MAX).as_deref(), Some("last"));
}

#[test]
fn names_and_lines_are_bounded_and_the_cut_is_counted() {
    let mut map = CodeMap::new();
    let file: Arc<str> = "a".into();
    let lines = (0..70_000).map(|offset| row(offset, 1 + offset % 2, &file)).collect();
    let long = "ä".repeat(MAX_NAME_BYTES);
    map.apply(CodeEvent::Load(CodeLoad { lines, ..load(1, 0x1000, 64, &long) }));
    let hit = map.lookup(Avma(0x1000), MonoNs(1)).expect("known");
    assert_eq!(hit.name().len(), MAX_NAME_BYTES);
    assert_eq!((map.stats().names_cut, map.stats().line_rows_dropped), (1, 70_000 - MAX_LINE_ROWS as u64));
}

#[test]
fn a_full_map_gives_up_the_ended_first_and_then_says_so() {
    let mut map = CodeMap::with_limit(64 << 10);
    for time in 0..10_000 {
        map.apply(CodeEvent::Load(load(time, 0x1000, 64, "again")));
    }
    assert_eq!(map.stats().dropped_full, 0);
    assert!(map.stats().evicted > 9_000);
    assert_eq!(name_at(&map, 0x1000, 9_999).as_deref(), Some("again"));
    for at in 0..10_000_u64 {
        map.apply(CodeEvent::Load(load(20_000, 0x10_000 + at * 64, 64, "more")));
    }
    assert!(map.stats().dropped_full > 0);
    assert!(map.bytes() <= 66 << 10, "{} bytes", map.bytes());
}

#[test]
fn a_full_map_gives_no_code_a_name_that_it_has_lost() {
    let mut map = CodeMap::with_limit(32 << 10);
    let mut at = 0x10_000;
    while map.stats().dropped_full == 0 {
        map.apply(CodeEvent::Load(load(1, at, 64, "old")));
        at += 64;
    }
    let unload = |start| CodeEvent::Unload { time: MonoNs(10), start: Avma(start), size: 64 };
    map.apply(unload(0x10_000));
    map.apply(CodeEvent::Load(load(10, 0x10_040, 64, "new")));
    // Where nothing is, nothing has to end.
    for number in 0..10_000 {
        map.apply(unload(0x100_0000 + number * 64));
    }
    for (start, before) in [(0x10_000, "old"), (0x10_040, "old"), (0x10_080, "old")] {
        assert_eq!(name_at(&map, start, 5).as_deref(), Some(before));
    }
    assert_eq!(name_at(&map, 0x10_000, 20), None);
    assert_eq!(name_at(&map, 0x10_040, 20), None, "it was refused, and is not the one before");
    assert_eq!(name_at(&map, 0x10_080, 20).as_deref(), Some("old"));
    assert!(map.bytes() <= 34 << 10, "{} bytes", map.bytes());
}

#[test]
fn what_ended_long_ago_goes_before_what_samples_may_ask_for() {
    const SECOND: u64 = 1_000_000_000;
    let mut map = CodeMap::with_limit(64 << 10);
    let mut time = 0;
    while map.stats().evicted == 0 {
        time += SECOND / 10;
        map.apply(CodeEvent::Load(load(time, 0x1000, 64, &format!("at {time}"))));
    }
    let earlier = time - 9 * SECOND;
    assert_eq!(name_at(&map, 0x1000, earlier), Some(format!("at {earlier}")));
    assert_eq!(name_at(&map, 0x1000, SECOND / 10), None);
}

#[test]
fn a_full_map_keeps_what_is_asked_for_and_refuses_what_comes() {
    let mut map = CodeMap::with_limit(64 << 10);
    map.keep_from(MonoNs(100));
    let mut time = 0;
    while map.stats().dropped_full == 0 {
        time += 1;
        map.apply(CodeEvent::Load(load(time, 0x1000, 64, &format!("at {time}"))));
    }
    let name = |map: &CodeMap, time| name_at(map, 0x1000, time);
    assert_eq!((name(&map, 98), name(&map, 100)), (None, Some("at 100".to_owned())));
    assert_eq!(name(&map, time - 1), Some(format!("at {}", time - 1)));
    assert_eq!(map.stats().evicted, 99, "what ended before somebody asked");
    // A pass over all that ended is made when more of it may go, not with each event.
    for _ in 0..10_000 {
        map.apply(CodeEvent::Load(load(time, 0x1000, 64, "refused")));
    }
    assert_eq!((map.stats().evicted, name(&map, 100)), (99, Some("at 100".to_owned())));
    assert_eq!((map.stats().loads, map.stats().dropped_full), (time - 1, 10_001), "what is refused is counted");
    assert!((100..time).all(|time| name(&map, time) == Some(format!("at {time}"))));
    assert!(map.bytes() <= 69 << 10, "{} bytes", map.bytes());
    map.keep_from(MonoNs(time - 10));
    map.apply(CodeEvent::Load(load(time + 1, 0x1000, 64, "later")));
    assert_eq!(name(&map, time + 1).as_deref(), Some("later"));
    assert_eq!((name(&map, 100), name(&map, time - 5)), (None, Some(format!("at {}", time - 5))));
}

#[test]
fn a_child_of_a_map_that_keeps_what_is_asked_for_keeps_what_has_ended_since_it_was_made() {
    let mut parent = CodeMap::with_limit(64 << 10);
    parent.keep_from(MonoNs(5));
    parent.apply(CodeEvent::Load(load(1, 0x1000, 64, "parents")));
    let mut child = parent.fork(MonoNs(10));
    for time in 11..1011 {
        child.apply(CodeEvent::Load(load(time, 0x1000, 64, &format!("at {time}"))));
    }
    let stats = *child.stats();
    assert_eq!((stats.evicted, stats.loads + stats.dropped_full), (0, 1000));
    assert!(stats.dropped_full > 0);
    for (time, name) in [(10, "parents"), (11, "at 11"), (100, "at 100")] {
        assert_eq!(name_at(&child, 0x1000, time).as_deref(), Some(name));
    }
}

#[test]
fn a_flood_of_huge_records_out_of_order_costs_a_bounded_search() {
    let mut map = CodeMap::new();
    for at in 0..20_000_u64 {
        map.apply(CodeEvent::Load(load(1000 + at, 0x10_000 + at * 16, 16, "f")));
        map.apply(CodeEvent::Load(load(50_000 + at, 0x10_000 + at * 16, 16, "g")));
    }
    let huge = load(10, 0x10_000, 1 << 20, "huge");
    assert_eq!(map.apply(CodeEvent::Load(huge)), Applied::Dropped(DropReason::Crowded));
    assert_eq!(name_at(&map, 0x10_000, 1000).as_deref(), Some("f"));
}

#[test]
fn the_version_changes_with_answers_only() {
    let mut map = CodeMap::new();
    map.apply(CodeEvent::Load(load(10, 0x1000, 64, "f")));
    let version = map.version();
    map.apply(CodeEvent::Load(load(10, 0x1000, 64, "f")));
    map.apply(CodeEvent::Close { time: MonoNs(11) });
    map.prune_before(MonoNs(20));
    assert_eq!(map.version(), version);
    map.apply(CodeEvent::Load(load(10, 0x2000, 64, "g")));
    assert_ne!(map.version(), version);
}

#[test]
fn pruned_memory_is_given_back_in_the_estimate() {
    let mut map = CodeMap::new();
    map.apply(CodeEvent::Load(load(0, 0x1000, 64, "again")));
    let one = map.bytes();
    for time in 1..100 {
        map.apply(CodeEvent::Load(load(time, 0x1000, 64, "again")));
    }
    assert_eq!(map.ended(), 99);
    map.prune_before(MonoNs(50));
    assert_eq!((map.ended(), name_at(&map, 0x1000, 50).as_deref()), (49, Some("again")));
    map.prune_before(MonoNs(1000));
    assert_eq!((map.bytes(), map.living(), map.stats().pruned), (one, 1, 99));
}

#[test]
fn what_ends_after_pruning_at_a_time_before_it_is_pruned_the_next_time() {
    let mut map = CodeMap::new();
    map.apply(CodeEvent::Load(load(10, 0x1000, 64, "f")));
    map.apply(CodeEvent::Load(load(100, 0x1000, 64, "g")));
    map.prune_before(MonoNs(50));
    assert_eq!(map.ended(), 1);
    // It ends what was to end at 100, and is ended there itself.
    map.apply(CodeEvent::Load(load(30, 0x1020, 64, "h")));
    assert_eq!(map.ended(), 2);
    map.prune_before(MonoNs(50));
    assert_eq!((map.ended(), map.stats().pruned), (1, 1));
    map.prune_before(MonoNs(99));
    assert_eq!(map.ended(), 1);
    map.end_all(MonoNs(200));
    map.prune_before(MonoNs(199));
    assert_eq!((map.ended(), map.stats().pruned), (1, 2));
    map.prune_before(MonoNs(200));
    assert_eq!((map.ended(), map.living(), map.stats().pruned), (0, 0, 3));
}

fn inline(start: u64, size: u64, method: u32, parent: u32, name: &str) -> CodeEvent {
    CodeEvent::Inline(CodeInline {
        time: MonoNs(10),
        start: Avma(start),
        size,
        method,
        parent,
        name: name.to_owned(),
        source: None,
        lines: SourceRows::default(),
    })
}

#[test]
fn names_of_files_that_tables_bring_are_memory_of_the_code_and_of_its_parts() {
    let lines = |file: &str| SourceRows::of(vec![file.into()], [(0, 1, 0)]);
    let bytes = |file: &str| {
        let mut map = CodeMap::new();
        map.apply(CodeEvent::Load(CodeLoad { lines: lines(file), ..load(10, 0x1000, 64, "f") }));
        let CodeEvent::Inline(part) = inline(0x1010, 8, 2, 1, "part") else { panic!("no part") };
        map.apply(CodeEvent::Inline(CodeInline { lines: lines(file), ..part }));
        map.bytes()
    };
    assert_eq!(bytes(&"f".repeat(1001)), bytes("f") + 2 * 1000);
}

fn chain(map: &CodeMap, addr: u64, time: u64) -> Vec<String> {
    let hit = map.lookup(Avma(addr), MonoNs(time));
    hit.into_iter()
        .flat_map(|hit| hit.inlined(hit.offset).map(|part| part.name().to_owned()).collect::<Vec<_>>())
        .collect()
}

#[test]
fn inlined_parts_nest_by_range_and_equal_ones_by_parent() {
    let parts = [
        inline(0x1010, 0x30, 2, 1, "outer"),
        inline(0x1010, 0x30, 3, 2, "same"),
        inline(0x1018, 8, 4, 3, "inner"),
        inline(0x1050, 8, 5, 1, "other"),
    ];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
        let mut map = CodeMap::new();
        map.apply(CodeEvent::Load(load(10, 0x1000, 0x100, "f")));
        for index in order {
            map.apply(parts[index].clone());
        }
        assert_eq!(chain(&map, 0x1018, 20), ["outer", "same", "inner"]);
        assert_eq!(chain(&map, 0x1057, 20), ["other"]);
        assert_eq!(chain(&map, 0x1058, 20), Vec::<String>::new());
    }
}

#[test]
fn as_many_parts_of_one_range_are_kept_as_are_soon_gone_over_wherever_they_come() {
    let mut map = CodeMap::new();
    map.apply(CodeEvent::Load(load(10, 0x1000, 0x100, "f")));
    let mut kept = |start: u64| {
        let parts = (2..1000).map(|method| inline(start, 8, method, method - 1, "part"));
        parts.filter(|part| matches!(map.apply(part.clone()), Applied::Inlined(_, true))).count()
    };
    let (behind, before) = (kept(0x1010), kept(0x1008));
    assert!(behind == before && (64..500).contains(&behind), "{behind} {before}");
    assert_eq!(chain(&map, 0x1010, 20).len(), behind);
}

#[test]
fn inlined_parts_end_with_their_object_and_stay_with_its_past() {
    let mut map = CodeMap::new();
    map.apply(CodeEvent::Load(load(10, 0x1000, 0x100, "f")));
    map.apply(inline(0x1010, 8, 2, 1, "part"));
    let child = map.fork(MonoNs(15));
    map.apply(CodeEvent::Load(load(20, 0x1000, 0x100, "f")));
    map.apply(CodeEvent::Unload { time: MonoNs(30), start: Avma(0x1000), size: 0x100 });
    assert_eq!(chain(&map, 0x1010, 19), ["part"]);
    assert_eq!(chain(&map, 0x1010, 20), Vec::<String>::new());
    assert_eq!((name_at(&map, 0x1010, 29), name_at(&map, 0x1010, 30)), (Some("f".into()), None));
    assert_eq!(chain(&child, 0x1010, 40), ["part"]);
}

#[test]
fn a_part_that_lies_in_no_object_is_counted() {
    let mut map = CodeMap::new();
    map.apply(CodeEvent::Load(load(10, 0x1000, 0x100, "f")));
    for part in [inline(0x10f8, 9, 2, 1, "over"), inline(0x2000, 8, 2, 1, "none"), inline(0x1000, 0, 2, 1, "empty")] {
        assert_eq!(map.apply(part), Applied::Dropped(DropReason::WithoutFunction));
    }
    assert_eq!(map.stats().dropped_without_function, 3);
}
