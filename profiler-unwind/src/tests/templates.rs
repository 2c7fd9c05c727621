use super::recorded_frames;
use super::*;
use crate::{Templates, rows_of_code, rows_of_jit};

/// sub rsp, 8; call rcx; add rsp, 8; ret
const TRAMPOLINE: [u8; 11] = [0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3];
const START: u64 = 0x7000_0000;

fn templates(codes: &[&[u8]]) -> Templates {
    let mut templates = Templates::default();
    for code in codes {
        templates.add(START, code, &rows_of_code(Machine::X86_64, START, code).unwrap());
    }
    templates
}

#[test]
fn a_copy_is_found_from_any_of_its_bytes_and_has_its_templates_rows() {
    let templates = templates(&[&TRAMPOLINE]);
    let (memory_start, at) = (0x5000_0000_u64, 32);
    let mut memory = vec![0xcc; 64];
    memory[at..at + TRAMPOLINE.len()].copy_from_slice(&TRAMPOLINE);
    let start = memory_start + at as u64;
    for offset in 0..memory.len() as u64 {
        let copy = templates.find(memory_start, &memory, memory_start + offset);
        let inside = (32..32 + TRAMPOLINE.len() as u64).contains(&offset);
        assert_eq!(copy.is_some(), inside, "{offset}");
        if let Some(copy) = copy {
            assert_eq!((copy.start, copy.size), (start, TRAMPOLINE.len()));
            assert_eq!(copy.rows, rows_of_code(Machine::X86_64, start, &TRAMPOLINE).unwrap());
        }
    }
}

#[test]
fn other_bytes_and_other_alignment_are_no_copy() {
    let templates = templates(&[&TRAMPOLINE]);
    for at in 0..TRAMPOLINE.len() {
        let mut code = TRAMPOLINE;
        code[at] ^= 1;
        assert_eq!(templates.find(START, &code, START), None, "byte {at}");
    }
    assert_eq!(templates.find(START + 1, &TRAMPOLINE, START + 1), None);
    for length in 0..TRAMPOLINE.len() {
        assert_eq!(templates.find(START, &TRAMPOLINE[..length], START), None, "{length} bytes");
    }
}

#[test]
fn of_two_templates_the_longer_one_counts() {
    let longer = [&TRAMPOLINE[..], &TRAMPOLINE[..]].concat();
    let templates = templates(&[&TRAMPOLINE, &longer]);
    assert_eq!(templates.find(START, &longer, START + 1).map(|copy| copy.size), Some(22));
    assert_eq!(templates.find(START, &longer[..21], START + 1).map(|copy| copy.size), Some(11));
}

/// Half of the functions are taken for unrecorded: whatever is found for them must say what their own record says.
#[test]
fn copies_in_recorded_dumps_get_the_rows_that_were_recorded_for_them() {
    let name = "cpython3.13.0-burn";
    for (name, loads, least) in
        [(name.to_owned(), fixture(name), 105)].into_iter().chain(named_dumps().map(|(path, loads)| (path, loads, 0)))
    {
        let mut templates = Templates::default();
        let mut copies = 0;
        for (index, load) in loads.iter().enumerate() {
            let (Some(code), Some(eh)) = (&load.code, &load.eh_frame) else { continue };
            let Some(recorded) = rows_of_jit(Machine::X86_64, load.start.0, load.size, recorded_frames(eh)) else {
                continue;
            };
            if index % 2 == 0 {
                templates.add(load.start.0, code, &recorded);
                continue;
            }
            let middle = load.start.0 + load.size / 2;
            let Some(copy) = templates.find(load.start.0, code, middle) else { continue };
            assert_eq!(copy.start, load.start.0, "{name} {}", load.name);
            for address in copy.start..copy.start + copy.size as u64 {
                let (found, own) = (copy.rows.rule_at(address), recorded.rule_at(address));
                assert_eq!(found, own, "{name} {} at {address:#x}", load.name);
            }
            copies += 1;
        }
        println!("{name}: {copies} copies");
        assert!(copies >= least, "{name}: {copies} copies");
    }
}
