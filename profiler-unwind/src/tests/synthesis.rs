use super::recorded_frames;
use super::*;
use crate::builder::RowTableBuilder;
use crate::{JitSpace, rows_of_called_code, rows_of_code, rows_of_jit, rows_of_sized_code};
use jitprof_common::units::MonoNs;

const START: u64 = 0x7f00_0000_1000;

/// Rows by offset.
fn rows(code: &[u8]) -> Option<Vec<(u64, Rule)>> {
    let table = rows_of_code(Machine::X86_64, START, code)?;
    Some(table.rows().map(|(address, rule)| (address - START, rule)).collect())
}

fn sp(offset: i64) -> Rule {
    Rule::with_cfa(CfaKind::Sp, offset)
}

fn pushed(offset: i64) -> Rule {
    sp(offset).with_fp(FpKind::AtCfa, -16)
}

#[test]
fn a_frame_left_by_leave_has_a_row_for_each_state() {
    // endbr64; push rbp; mov rbp, rsp; sub rsp, 32; call; leave; ret
    let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20, 0xe8, 0, 0, 0, 0, 0xc9, 0xc3];
    let expected = [(0, Rule::ENTRY), (5, pushed(16)), (8, Rule::FRAME_POINTER), (18, Rule::ENTRY), (19, Rule::GAP)];
    assert_eq!(rows(&code).unwrap(), expected);
}

#[test]
fn v8s_epilogue_leaves_the_frame_before_it_returns() {
    // push rbp; mov rbp, rsp; push rsi; mov rsp, rbp; pop rbp; ret 8
    let code = [0x55, 0x48, 0x8b, 0xec, 0x56, 0x48, 0x8b, 0xe5, 0x5d, 0xc2, 8, 0];
    let expected = [(0, Rule::ENTRY), (1, pushed(16)), (4, Rule::FRAME_POINTER), (9, Rule::ENTRY), (12, Rule::GAP)];
    assert_eq!(rows(&code).unwrap(), expected);
}

#[test]
fn code_behind_a_return_keeps_the_frame_it_is_reached_with() {
    // push rbp; mov rbp, rsp; test eax, eax; je 1f; pop rbp; ret; 1: call; pop rbp; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x85, 0xc0, 0x74, 2, 0x5d, 0xc3, 0xe8, 0, 0, 0, 0, 0x5d, 0xc3];
    let frame = Rule::FRAME_POINTER;
    let expected = [
        (0, Rule::ENTRY),
        (1, pushed(16)),
        (4, frame),
        (9, Rule::ENTRY),
        (10, frame),
        (16, Rule::ENTRY),
        (17, Rule::GAP),
    ];
    assert_eq!(rows(&code).unwrap(), expected);
}

#[test]
fn a_function_without_a_frame_pointer_is_followed_by_its_stack_pointer() {
    // sub rsp, 8; call rcx; add rsp, 8; ret: CPython's trampoline
    let code = [0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3];
    assert_eq!(rows(&code).unwrap(), [(0, Rule::ENTRY), (4, sp(16)), (10, Rule::ENTRY), (11, Rule::GAP)]);
}

#[test]
fn beams_calls_on_the_c_stack_find_back_by_the_frame_pointer() {
    // sub rsp, 16; mov rbp, rsp; lea rsp, [rbx - 128]; call rax; mov rsp, rbp; add rsp, 16; ret
    let code = [
        0x48, 0x83, 0xec, 0x10, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x63, 0x80, 0xff, 0xd0, 0x48, 0x89, 0xec, 0x48, 0x83,
        0xc4, 0x10, 0xc3,
    ];
    // What the frame pointer was is lost.
    let kept = Rule { fp: FpKind::Lost, ..Rule::with_cfa(CfaKind::Fp, 24) };
    let away = Rule { cfa: CfaKind::FpAway, ..kept };
    let expected = [(0, Rule::ENTRY), (4, sp(24)), (7, kept), (11, away), (16, kept), (21, Rule::GAP)];
    assert_eq!(rows(&code).unwrap(), expected);
}

#[test]
fn hotspots_compiled_code_saves_the_frame_pointer_by_a_store() {
    // sub rsp, 24; mov [rsp + 16], rbp; mov rbp, rsp; add rbp, 16; add rsp, 16; pop rbp; ret
    let code = [
        0x48, 0x81, 0xec, 0x18, 0, 0, 0, 0x48, 0x89, 0x6c, 0x24, 0x10, 0x48, 0x8b, 0xec, 0x48, 0x83, 0xc5, 0x10, 0x48,
        0x83, 0xc4, 0x10, 0x5d, 0xc3,
    ];
    let below = Rule::with_cfa(CfaKind::Fp, 32).with_fp(FpKind::AtCfa, -16);
    let stored = sp(32).with_fp(FpKind::AtCfa, -16);
    let expected = [
        (0, Rule::ENTRY),
        (7, sp(32)),
        (12, stored),
        (15, below),
        (19, Rule::FRAME_POINTER),
        (24, Rule::ENTRY),
        (25, Rule::GAP),
    ];
    assert_eq!(rows(&code).unwrap(), expected);
}

#[test]
fn beams_stack_is_followed_through_a_vector_register_to_memory_and_back() {
    // push rbp; mov rbp, rsp; movq xmm0, rsp; movq xmm1, rbp; punpcklqdq xmm0, xmm1; movups [r13 + 88], xmm0;
    // lea rsp, [rbx - 128]; call rax; mov rsp, [r13 + 88]; mov rbp, [r13 + 96]; leave; ret
    let code = [
        0x55, 0x48, 0x89, 0xe5, 0x66, 0x48, 0x0f, 0x6e, 0xc4, 0x66, 0x48, 0x0f, 0x6e, 0xcd, 0x66, 0x0f, 0x6c, 0xc1,
        0x41, 0x0f, 0x11, 0x45, 0x58, 0x48, 0x8d, 0x63, 0x80, 0xff, 0xd0, 0x49, 0x8b, 0x65, 0x58, 0x49, 0x8b, 0x6d,
        0x60, 0xc9, 0xc3,
    ];
    let away = Rule { cfa: CfaKind::FpAway, ..Rule::FRAME_POINTER };
    let expected = [
        (0, Rule::ENTRY),
        (1, pushed(16)),
        (4, Rule::FRAME_POINTER),
        (27, away),
        (33, Rule::FRAME_POINTER),
        (38, Rule::ENTRY),
        (39, Rule::GAP),
    ];
    assert_eq!(rows(&code).unwrap(), expected);
}

/// The same of code that is called wherever it is entered.
fn called_rows(code: &[u8]) -> Option<Vec<(u64, Rule)>> {
    let table = rows_of_called_code(Machine::X86_64, START, code)?;
    Some(table.rows().map(|(address, rule)| (address - START, rule)).collect())
}

#[test]
fn an_erlang_server_is_recognised_by_the_call_of_itself_at_its_end() {
    // 1: sub rsp, 8; call rax; add rsp, 8; jmp 1b
    let code = [0x48, 0x83, 0xec, 8, 0xff, 0xd0, 0x48, 0x83, 0xc4, 8, 0xeb, 0xf4];
    assert_eq!(rows(&code), None, "elsewhere it may be a part of another function");
    assert_eq!(called_rows(&code).unwrap(), [(0, Rule::ENTRY), (4, sp(16)), (10, Rule::ENTRY), (12, Rule::GAP)]);
    // A frame that is never taken down shows nothing: 1: sub rsp, 8; call rax; jmp 1b
    assert_eq!(called_rows(&[0x48, 0x83, 0xec, 8, 0xff, 0xd0, 0xeb, 0xf8]), None);
}

#[test]
fn a_stack_pointer_that_is_saved_before_paths_leave_it_at_different_depths_leads_on_where_it_lies_on_the_stack() {
    // C2's search for a string: sub rsp, 24; mov rcx, rsp; test eax, eax; je 1f; sub rsp, 16; 1: push rax; push rcx; nop;
    // pop rsp; add rsp, 24; ret
    let code = [
        0x48, 0x83, 0xec, 24, 0x48, 0x89, 0xe1, 0x85, 0xc0, 0x74, 4, 0x48, 0x83, 0xec, 16, 0x50, 0x51, 0x90, 0x5c,
        0x48, 0x83, 0xc4, 24, 0xc3,
    ];
    let expected = [
        (0, Rule::ENTRY),
        (4, sp(32)),
        (15, Rule::UNSUPPORTED),
        (17, Rule::with_saved_sp(0, 32)),
        (19, sp(32)),
        (23, Rule::ENTRY),
        (24, Rule::GAP),
    ];
    assert_eq!(rows(&code).unwrap(), expected);
}

#[test]
fn erlangs_calls_of_what_raises_errors_do_not_return() {
    // test eax, eax; je 1f; sub rsp, 8; test ecx, ecx; je 2f; add rsp, 8; ret; 2: call far; nop; 1: ret
    let code = [
        0x85, 0xc0, 0x74, 0x13, 0x48, 0x83, 0xec, 8, 0x85, 0xc9, 0x74, 5, 0x48, 0x83, 0xc4, 8, 0xc3, 0xe8, 0, 1, 0, 0,
        0x90, 0xc3,
    ];
    assert_eq!(rows(&code), None, "the two paths do not go together");
    let expected = [
        (0, Rule::ENTRY),
        (8, sp(16)),
        (16, Rule::ENTRY),
        (17, sp(16)),
        (22, Rule::GAP),
        (23, Rule::ENTRY),
        (24, Rule::GAP),
    ];
    assert_eq!(called_rows(&code).unwrap(), expected);
    // What is called may return where nothing keeps the return address in the function, and where it is in it.
    let mut without = code;
    without[22] = 0x66;
    assert_eq!(called_rows(&without), None);
}

#[test]
fn a_frame_pointer_that_is_written_and_not_saved_is_lost() {
    // mov rbp, rax; nop; ret
    let lost = Rule { fp: FpKind::Lost, ..Rule::ENTRY };
    assert_eq!(rows(&[0x48, 0x89, 0xc5, 0x90, 0xc3]).unwrap(), [(0, Rule::ENTRY), (3, lost), (5, Rule::GAP)]);
}

#[test]
fn what_looks_like_an_epilogue_inside_of_an_immediate_is_none() {
    // push rbp; mov rbp, rsp; movabs rax, 0xc35d...; pop rbp; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8, 0x5d, 0xc3, 0xc9, 0xc3, 0x5d, 0xc3, 0x5d, 0xc3, 0x5d, 0xc3];
    let expected = [(0, Rule::ENTRY), (1, pushed(16)), (4, Rule::FRAME_POINTER), (15, Rule::ENTRY), (16, Rule::GAP)];
    assert_eq!(rows(&code).unwrap(), expected);
}

#[test]
fn bytes_that_no_path_reaches_are_gaps() {
    // push rbp; mov rbp, rsp; pop rbp; ret; then a constant
    let code = [0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3, 0x55, 0x55, 0x55, 0x55];
    assert_eq!(rows(&code).unwrap().last(), Some(&(6, Rule::GAP)));
}

#[test]
fn code_that_does_not_add_up_is_left_alone() {
    let cases: [(&str, &[u8]); 7] = [
        ("nothing", &[]),
        ("a trace that ends with a jump", &[0x48, 0x83, 0xec, 8, 0xff, 0xe0]),
        ("a return without what was pushed", &[0x50, 0xc3]),
        ("two stacks at one address: test; je 1f; push; 1: pop; ret", &[0x85, 0xc0, 0x74, 1, 0x50, 0x58, 0xc3]),
        ("a loop that pushes: 1: push; jmp 1b", &[0x50, 0xeb, 0xfd]),
        ("no code", &[0x06, 0x06, 0x06]),
        ("cut off before it shows anything", &[0x55, 0x48, 0x89]),
    ];
    for (what, code) in cases {
        assert_eq!(rows(code), None, "{what}");
    }
    assert_eq!(rows_of_code(Machine::X86_64, u64::MAX, &[0xc3, 0xc3]), None);
    assert_eq!(rows(&vec![0x90; (1 << 20) + 1]), None);
}

#[test]
fn a_jump_out_of_a_function_counts_where_all_functions_are_called() {
    // sub rsp, 8; call rax; add rsp, 8; jmp rcx
    let code = [0x48, 0x83, 0xec, 8, 0xff, 0xd0, 0x48, 0x83, 0xc4, 8, 0xff, 0xe1];
    assert_eq!(rows(&code), None);
    let table = rows_of_called_code(Machine::X86_64, START, &code).unwrap();
    let rows: Vec<_> = table.rows().map(|(address, rule)| (address - START, rule)).collect();
    assert_eq!(rows, [(0, Rule::ENTRY), (4, sp(16)), (10, Rule::ENTRY), (12, Rule::GAP)]);
    // The same with something left on the stack says nothing.
    assert_eq!(rows_of_called_code(Machine::X86_64, START, &[0x50, 0xff, 0xe1]), None);
}

#[test]
fn frames_of_one_size_are_led_out_of_by_the_stack_pointer_behind_calls_too() {
    // With -XX:+PreserveFramePointer. push rbp; mov rbp, rsp; sub rsp, 16; call; nop; add rsp, 16; pop rbp; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 16, 0xe8, 0, 0, 0, 0, 0x90, 0x48, 0x83, 0xc4, 16, 0x5d, 0xc3];
    assert_eq!(rows(&code).unwrap()[2], (4, Rule::FRAME_POINTER), "what is called may take its arguments with it");
    let table = rows_of_sized_code(Machine::X86_64, START, &code).unwrap();
    let rows: Vec<_> = table.rows().map(|(address, rule)| (address - START, rule)).collect();
    let expected =
        [(0, Rule::ENTRY), (1, pushed(16)), (8, pushed(32)), (18, pushed(16)), (19, Rule::ENTRY), (20, Rule::GAP)];
    assert_eq!(rows, expected);
}

#[test]
fn samples_by_the_size_of_a_frame_stay_true_when_its_code_is_known() {
    let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 16, 0xe8, 0, 0, 0, 0, 0x90, 0x48, 0x83, 0xc4, 16, 0x5d, 0xc3];
    let end = START + code.len() as u64;
    let mut builder = RowTableBuilder::default();
    builder.add(START..end, [(START, Rule::ENTRY), (START + 8, pushed(32))]);
    let mut space = JitSpace::default();
    space.load(START, code.len() as u64, MonoNs(100), Some(builder.finish().0));
    space.flush(|_, _| {});
    space.mark_published(MonoNs(200), |_| {});
    assert!(space.is_sized(START, MonoNs(100)) && !space.is_sized(START, MonoNs(99)));
    let of_code = rows_of_sized_code(Machine::X86_64, START, &code).unwrap();
    assert!(space.refine(START, MonoNs(100), &of_code));
    space.flush(|_, _| {});
    space.mark_published(MonoNs(400), |_| {});
    for (offset, is_true) in [(0, true), (4, false), (8, true), (13, true), (14, true), (18, false), (19, false)] {
        assert_eq!(space.was_true(START + offset, MonoNs(300)), is_true, "{offset}");
    }
}

#[test]
fn what_code_does_not_show_stays_as_the_frames_size_has_it() {
    // push rbp; mov rbp, rsp; sub rsp, 16; call; mov rbp, [rsp + 8]; nop; (jump tables)
    let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 16, 0xe8, 0, 0, 0, 0, 0x48, 0x8b, 0x6c, 0x24, 8, 0x90];
    let of_code = rows_of_code(Machine::X86_64, START, &code).unwrap();
    assert_eq!(of_code.rule_at(START + 18), Rule::UNSUPPORTED);
    let size = code.len() as u64 + 16;
    for (rough, expected) in [(Some(pushed(32)), pushed(32)), (None, Rule::UNSUPPORTED)] {
        let mut space = JitSpace::default();
        let table = rough.map(|rule| {
            let mut builder = RowTableBuilder::default();
            builder.add(START..START + size, [(START, Rule::ENTRY), (START + 8, rule)]);
            builder.finish().0
        });
        space.load(START, size, MonoNs(100), table);
        assert!(space.refine(START, MonoNs(100), &of_code));
        let rows = space.functions().find_map(|(_, _, rows)| rows).unwrap();
        assert_eq!(rows.rule_at(START + 8), Rule::FRAME_POINTER);
        assert_eq!(rows.rule_at(START + 18), expected);
        assert_eq!(rows.rule_at(START + 20), rough.unwrap_or(Rule::GAP));
    }
}

#[test]
fn v8s_baseline_code_gets_its_frame_from_a_builtin() {
    // mov $0x28, %ebx; movabs $.., %r12; call; push %rax; mov -8(%rbp), %r8; jmp *%rcx
    let mut code = vec![0xbb, 0x28, 0, 0, 0, 0x49, 0xbc, 1, 2, 3, 4, 5, 6, 7, 8, 0xe8, 0, 0, 0, 0];
    code.extend([0x50, 0x4c, 0x8b, 0x45, 0xf8, 0x58, 0xff, 0xe1]);
    assert_eq!(rows(&code).unwrap(), [(0, Rule::ENTRY), (15, Rule::GAP)]);
    let called = rows_of_called_code(Machine::X86_64, START, &code).unwrap();
    assert_eq!(called.rule_at(START + 20), Rule::GAP);
    // A frame without registers: xor %ebx, %ebx.
    code.splice(..5, [0x33, 0xdb]);
    assert_eq!(rows(&code).unwrap(), [(0, Rule::ENTRY), (12, Rule::GAP)]);
}

#[test]
fn the_head_of_an_erlang_function_ends_with_its_entry() {
    // call func_info; data; jmp +6; call breakpoint
    let mut code = vec![0xe8, 0x9b, 0xff, 0xff, 0xff, 0x0f, 0x1f, 0];
    code.extend([
        0, 0, 0, 0, 0, 0, 0, 0, 0xcb, 0xed, 2, 0, 0, 0, 0, 0, 0xcb, 0x22, 8, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
    ]);
    code.extend([0xeb, 6, 0, 0xe8, 0x90, 0xff, 0xff, 0xff]);
    assert_eq!(rows(&code).unwrap(), [(40, Rule::ENTRY), (48, Rule::GAP)]);
    // Without the call in front it is something else.
    code[0] = 0x90;
    assert_eq!(rows(&code), None);
}

#[test]
fn onednns_kernels_are_followed_over_the_stack_they_move_to() {
    let code = [
        0x53, 0x55, 0x41, 0x54, // 0: push rbx; push rbp; push r12
        0x48, 0x89, 0xe5, // 4: mov rbp, rsp
        0x48, 0x81, 0xfa, 0xfc, 0, 0, 0, // 7: cmp rdx, 252
        0x7f, 0x0c, // 14: jg 1f
        0x48, 0x29, 0xc4, // 16: sub rsp, rax
        0x48, 0x81, 0xe4, 0, 0xf0, 0xff, 0xff, // 19: and rsp, -4096
        0xeb, 0x05, // 26: jmp 2f
        0x48, 0x8b, 0x64, 0x24, 0x68, // 28: 1: mov rsp, [rsp + 0x68]
        0x48, 0x89, 0xac, 0x24, 0x58, 0, 0, 0, // 33: 2: mov [rsp + 0x58], rbp
        0x48, 0x89, 0x7c, 0x24, 0x08, // 41: 3: mov [rsp + 8], rdi
        0x48, 0x8d, 0x2c, 0x08, // 46: lea rbp, [rax + rcx]
        0x50, // 50: push rax
        0x5a, // 51: pop rdx
        0x75, 0xf3, // 52: jne 3b
        0x48, 0x8b, 0xa4, 0x24, 0x58, 0, 0, 0, // 54: mov rsp, [rsp + 0x58]
        0x41, 0x5c, 0x5d, 0x5b, 0xc3, // 62: pop r12; pop rbp; pop rbx; ret
    ];
    let saved = |rule: Rule| rule.with_fp(FpKind::AtCfa, -24);
    let kept = |slot| saved(Rule::with_saved_sp(slot, 32));
    let expected = [
        (0, Rule::ENTRY),
        (1, sp(16)),
        (2, saved(sp(24))),
        (4, saved(sp(32))),
        (7, saved(Rule::with_cfa(CfaKind::Fp, 32))),
        (33, saved(Rule::with_cfa(CfaKind::FpAway, 32))),
        // The loop is entered with the frame pointer, and goes on without.
        (41, kept(0x58)),
        (51, kept(0x60)),
        (52, kept(0x58)),
        (62, saved(sp(32))),
        (64, saved(sp(24))),
        (65, sp(16)),
        (66, Rule::ENTRY),
        (67, Rule::GAP),
    ];
    assert_eq!(rows(&code).unwrap(), expected);
    // Something else is written over the place: the return cannot be vouched for.
    let mut other = code;
    other[45] = 0x54;
    assert_eq!(rows(&other), None);
}

#[test]
fn a_frame_pointer_given_up_leaves_the_stack_pointer() {
    // push rbp; mov rbp, rsp; push rbx; mov rbp, rax; lea rsp, [rsp - 16]; add rsp, 16; pop rbx; pop rbp; ret
    let code = [
        0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x89, 0xc5, 0x48, 0x8d, 0x64, 0x24, 0xf0, 0x48, 0x83, 0xc4, 0x10, 0x5b,
        0x5d, 0xc3,
    ];
    let expected = [
        (0, Rule::ENTRY),
        (1, pushed(16)),
        (4, Rule::FRAME_POINTER),
        (8, pushed(24)),
        (13, pushed(40)),
        (17, pushed(24)),
        (18, pushed(16)),
        (19, Rule::ENTRY),
        (20, Rule::GAP),
    ];
    assert_eq!(rows(&code).unwrap(), expected);
}

#[test]
fn paths_that_differ_in_the_stack_pointer_alone_have_the_frame_pointer() {
    // push rbp; mov rbp, rsp; 1: push rax; jne 1b; leave; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x50, 0x75, 0xfd, 0xc9, 0xc3];
    let expected = [(0, Rule::ENTRY), (1, pushed(16)), (4, Rule::FRAME_POINTER), (8, Rule::ENTRY), (9, Rule::GAP)];
    assert_eq!(rows(&code).unwrap(), expected);
    // The same, and rbp is used for something else: nothing leads on from there, and it is not guessed.
    let reused = [0x55, 0x48, 0x89, 0xe5, 0x50, 0x75, 0xfd, 0x48, 0x89, 0xc5, 0xc3];
    assert_eq!(rows(&reused).unwrap()[3], (10, Rule::GAP));
}

#[test]
fn a_frame_pointer_read_back_from_the_frame_shows_where_the_stack_pointer_is_behind_a_call() {
    // HotSpot's stubs: push rbp; mov rbp, rsp; sub rsp, 16; mov [rsp + 8], rbp; call; mov rbp, [rsp + 8]; add rsp, 16;
    // pop rbp; ret
    let code = [
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 16, 0x48, 0x89, 0x6c, 0x24, 8, 0xe8, 0, 0, 0, 0, 0x48, 0x8b, 0x6c,
        0x24, 8, 0x48, 0x83, 0xc4, 16, 0x5d, 0xc3,
    ];
    let framed = [(0, Rule::ENTRY), (1, pushed(16)), (4, Rule::FRAME_POINTER), (28, Rule::ENTRY), (29, Rule::GAP)];
    assert_eq!(rows(&code).unwrap(), framed);
    // Another place, a place that is written to meanwhile, and one that is not where it was if the call takes its
    // arguments away: rbp may be the caller's.
    let (mut other, mut written, mut pushed) = (code.to_vec(), code.to_vec(), code.to_vec());
    other[22] = 0;
    written.splice(18..18, [0x48, 0x89, 0x44, 0x24, 8]);
    pushed.splice(13..13, [0x50]);
    for (what, code) in [("other", other), ("written", written), ("pushed", pushed)] {
        let rows = rows(&code).unwrap();
        assert_eq!(rows[2], (4, Rule::FRAME_POINTER), "{what}");
        assert!(rows[3..].iter().all(|(_, rule)| *rule != Rule::FRAME_POINTER), "{what}");
        assert_eq!(rows[3].1, Rule::UNSUPPORTED, "{what}");
    }
}

#[test]
fn a_frame_pointer_that_may_be_the_callers_is_not_followed() {
    // BEAM without frame pointers: je 1f; mov rbp, rsp; lea rsp, [rbx - 128]; call rax; mov rsp, rbp;
    // 1: mov [r13 + 88], rsp; lea rsp, [rbx - 128]; call rax; mov rsp, [r13 + 88]; ret
    let code = [
        0x74, 12, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x63, 0x80, 0xff, 0xd0, 0x48, 0x89, 0xec, 0x49, 0x89, 0x65, 0x58, 0x48,
        0x8d, 0x63, 0x80, 0xff, 0xd0, 0x49, 0x8b, 0x65, 0x58, 0xc3,
    ];
    let table = rows_of_called_code(Machine::X86_64, START, &code).unwrap();
    // What the process says of its stack leads on; in code of anybody else the same bytes say nothing.
    let parked = Rule { fp: FpKind::Lost, ..Rule::with_cfa(CfaKind::Parked, 8) };
    for offset in [22, 24] {
        assert_eq!(table.rule_at(START + offset), parked, "{offset}");
    }
    let of_others = rows_of_code(Machine::X86_64, START, &code).unwrap();
    assert_eq!(of_others.rule_at(START + 22), Rule::UNSUPPORTED);
    assert_eq!(table.rule_at(START + 28), Rule { fp: FpKind::Lost, ..Rule::ENTRY });
    // sub rsp, 8; mov rbp, rsp; lea rsp, [rbx - 128]; call rax; mov rsp, rbp; call [rax + r12 * 8]; add rsp, 8; ret: Erlang's
    // own calls do not keep that copy.
    let code = [
        0x48, 0x83, 0xec, 8, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x63, 0x80, 0xff, 0xd0, 0x48, 0x89, 0xec, 0x42, 0xff, 0x14,
        0xe0, 0x48, 0x83, 0xc4, 8, 0xc3,
    ];
    let table = rows_of_called_code(Machine::X86_64, START, &code).unwrap();
    let lost = |cfa, offset| Rule { fp: FpKind::Lost, ..Rule::with_cfa(cfa, offset) };
    let rules = [11, 13, 16, 20].map(|offset| table.rule_at(START + offset));
    let by_sp = lost(CfaKind::Sp, 16);
    assert_eq!(rules, [lost(CfaKind::FpAway, 16), lost(CfaKind::FpAway, 16), by_sp, by_sp]);
    // push rbp; mov rbp, rsp; push rax; call rax; pop rdx; mov rbp, [rsp]; jmp rax: the call may have left anything there.
    let code = [0x55, 0x48, 0x89, 0xe5, 0x50, 0xff, 0xd0, 0x5a, 0x48, 0x8b, 0x2c, 0x24, 0xff, 0xe0];
    assert_eq!(rows(&code).unwrap()[3..], [(12, Rule::UNSUPPORTED), (14, Rule::GAP)]);
}

#[test]
fn code_before_the_last_address_has_its_rows() {
    // sub rsp, 8; call rcx; add rsp, 8; ret
    let code = [0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3];
    let start = u64::MAX - code.len() as u64;
    let rows = rows_of_code(Machine::X86_64, start, &code).unwrap();
    assert_eq!((rows.rule_at(start), rows.rule_at(u64::MAX - 1)), (Rule::ENTRY, Rule::ENTRY));
    assert_eq!(rows.rule_at(u64::MAX), Rule::GAP);
    assert_eq!(rows_of_code(Machine::X86_64, start + 1, &code), None);
}

#[test]
fn a_popped_return_address_ends_what_is_known() {
    // push rbp; mov rbp, rsp; leave; pop r10; lea rsp, [rsp + rcx*8]; push r10; ret: V8, arguments by number
    let code = [0x55, 0x48, 0x89, 0xe5, 0xc9, 0x41, 0x5a, 0x48, 0x8d, 0x24, 0xcc, 0x41, 0x52, 0xc3];
    let known = rows(&code).unwrap();
    assert_eq!(known[3..], [(5, Rule::ENTRY), (7, Rule::UNSUPPORTED), (14, Rule::GAP)]);
}

/// How many functions have code, how many of those are recognised, and how many if all are known to be called.
fn recognised<'a>(loads: impl Iterator<Item = &'a CodeLoad>) -> (usize, usize, usize) {
    let (mut all, mut found, mut called) = (0, 0, 0);
    for load in loads {
        let Some(code) = load.code.as_deref() else { continue };
        all += 1;
        found += usize::from(rows_of_code(Machine::X86_64, load.start.0, code).is_some());
        called += usize::from(rows_of_called_code(Machine::X86_64, load.start.0, code).is_some());
    }
    (all, found, called)
}

#[test]
fn recorded_functions_are_recognised() {
    for (name, least_percent) in
        [("wasmtime50", 100), ("cpython3.13.0-burn", 100), ("llvm14-nofp-g", 100), ("llvm14-fp", 100)]
    {
        let (all, found, _) = recognised(fixture(name).iter());
        println!("{name}: {found} of {all}");
        assert!(all > 0 && found * 100 >= all * least_percent, "{name}: {found} of {all}");
    }
    // PHP's traces are jumped into from within another function's frame.
    for load in fixture("php-tracing").iter().filter(|load| load.name.contains("TRACE-")) {
        assert_eq!(rows_of_code(Machine::X86_64, load.start.0, load.code.as_deref().unwrap()), None, "{}", load.name);
    }
}

/// Where a runtime recorded EH frames, the rows from its code bytes must say the same wherever both speak.
#[test]
fn rows_from_bytes_agree_with_recorded_eh_frames() {
    let dumps = [("cpython".to_owned(), fixture("cpython3.13.0-burn"))].into_iter().chain(named_dumps());
    for (name, loads) in dumps {
        let (mut same, mut other) = (0_u32, Vec::new());
        for load in &loads {
            let (Some(eh), Some(code)) = (&load.eh_frame, &load.code) else { continue };
            let recorded = rows_of_jit(Machine::X86_64, load.start.0, load.size, recorded_frames(eh)).unwrap();
            let Some(made) = rows_of_code(Machine::X86_64, load.start.0, code) else { continue };
            for address in load.start.0..load.start.0 + load.size {
                let (recorded, made) = (recorded.rule_at(address), made.rule_at(address));
                // V8's record is wrong while the return address is in a register; the bytes show that it is not on the stack.
                if recorded == Rule::GAP || matches!(made.cfa, CfaKind::Gap | CfaKind::Unsupported) {
                    continue;
                }
                if (recorded.cfa, recorded.cfa_offset) == (made.cfa, made.cfa_offset) {
                    same += 1;
                } else {
                    other.push((load.name.clone(), address - load.start.0, recorded, made));
                }
            }
        }
        println!("{name}: {same} bytes agree, {} do not", other.len());
        assert!(other.is_empty(), "{name}: {:?}", &other[..other.len().min(5)]);
        assert!(same > 2000 || name != "cpython", "{same}");
    }
}

/// Prints the shares of recognised functions of the dumps named in `JITPROF_UNWIND_DUMPS`.
#[test]
fn shares_of_named_dumps_are_printed() {
    for (path, loads) in named_dumps() {
        let started = std::time::Instant::now();
        let (all, found, called) = recognised(loads.iter());
        println!("{path}: {found} and {called} of {all}, {:?}", started.elapsed());
        assert!(found <= called && called <= all);
        let kinds = ["JS:*", "JS:^", "Builtin:", "BytecodeHandler:", "/", "CodeInfo", "codeHeader", "JIT$$", "TRACE-"];
        for kind in kinds.into_iter().filter(|kind| loads.iter().any(|load| load.name.contains(kind))) {
            let of_kind = loads.iter().filter(|load| load.name.contains(kind));
            let plain =
                of_kind.filter(|load| kind != "/" || !load.name.contains("CodeInfo") && !load.name.starts_with("JS"));
            println!("    {kind} {:?}", recognised(plain));
        }
    }
}

#[test]
fn any_change_of_a_recorded_functions_bytes_is_survived() {
    for load in fixture("wasmtime50").iter().take(3) {
        let code = load.code.as_deref().unwrap();
        for length in 0..code.len() {
            drop(rows_of_code(Machine::X86_64, load.start.0, &code[..length]));
        }
        for at in 0..code.len() {
            for flip in [0x01, 0x08, 0x80, 0xff] {
                let mut changed = code.to_vec();
                changed[at] ^= flip;
                if let Some(table) = rows_of_code(Machine::X86_64, load.start.0, &changed) {
                    assert!(table.rows().all(|(address, _)| address - load.start.0 <= load.size));
                }
            }
        }
    }
}
