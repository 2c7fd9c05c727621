//! The functions of the demo and their source lines.

use crate::assembler::{Assembler, Frames, Function};

/// The file that all source lines belong to.
pub(crate) const SOURCE_FILE: &str = "demo.jit";

/// `fn outer(n) { middle(n); side(n) }`
pub(crate) fn outer(frames: Frames, middle: usize, side: usize) -> Function {
    let mut assembler = Assembler::new(frames, 10);
    assembler.line(11);
    assembler.call(middle);
    assembler.line(12);
    assembler.call(side);
    assembler.finish(13)
}

/// `fn middle(n) { leaf(3 * n) }`
pub(crate) fn middle(frames: Frames, leaf: usize) -> Function {
    let mut assembler = Assembler::new(frames, 20);
    assembler.line(21);
    assembler.call_with_triple(leaf);
    assembler.finish(22)
}

/// `fn side(n) { leaf(n) }`
pub(crate) fn side(frames: Frames, leaf: usize) -> Function {
    let mut assembler = Assembler::new(frames, 30);
    assembler.line(31);
    assembler.call(leaf);
    assembler.finish(32)
}

/// `n` rounds of xorshift32 from `seed`; `nops` bytes longer than it need be.
pub(crate) fn leaf(frames: Frames, first_line: i32, seed: u32, nops: usize) -> Function {
    let mut assembler = Assembler::leaf(frames, first_line);
    assembler.nops(nops);
    assembler.line(first_line + 1);
    assembler.xorshift_loop(seed);
    assembler.finish(first_line + 2)
}

/// `fn churned_outer(n) { inner(n); n rounds of xorshift32 }` with so many bytes of locals.
pub(crate) fn churned_outer(frames: Frames, inner: usize, room: u32) -> Function {
    let mut assembler = Assembler::with_room(frames, 70, room);
    assembler.line(71);
    assembler.call(inner);
    assembler.line(72);
    assembler.argument_again();
    assembler.xorshift_loop(room | 1);
    assembler.finish(73)
}

/// `n` rounds of xorshift32 with so many bytes of locals.
pub(crate) fn churned_inner(frames: Frames, room: u32) -> Function {
    let mut assembler = Assembler::with_room(frames, 80, room);
    assembler.line(81);
    assembler.xorshift_loop(room | 1);
    assembler.finish(82)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;

    type Compiled = extern "C" fn(u32) -> u32;

    fn xorshift(seed: u32, rounds: u32) -> u32 {
        (0..rounds).fold(seed, |x, _| {
            let x = x ^ (x << 13);
            let x = x ^ (x >> 17);
            x ^ (x << 5)
        })
    }

    #[test]
    fn generated_code_computes_what_its_source_says() {
        for frames in [Frames::Pointer, Frames::CfiOnly] {
            let mut region = Region::new(4096).unwrap();
            let at = |index: usize| index * 512;
            let (hot, cold, mid, sid, top) = (at(0), at(1), at(2), at(3), at(4));
            let (inner, churned) = (at(5), at(6));
            let functions = [
                (inner, churned_inner(frames, 1000)),
                (churned, churned_outer(frames, region.address(inner), 264)),
                (hot, leaf(frames, 40, 7, 12)),
                (cold, leaf(frames, 50, 9, 0)),
                (mid, middle(frames, region.address(hot))),
                (sid, side(frames, region.address(cold))),
                (top, outer(frames, region.address(mid), region.address(sid))),
            ];
            for (offset, function) in &functions {
                region.write(*offset, &function.code).unwrap();
            }
            region.make_executable().unwrap();
            let call = |offset: usize, n: u32| {
                // SAFETY: a function of this signature was written to the offset, and the region is executable.
                let compiled: Compiled = unsafe { std::mem::transmute(region.address(offset)) };
                compiled(n)
            };
            assert_eq!(call(hot, 100), xorshift(7, 100));
            assert_eq!(call(mid, 100), xorshift(7, 300), "middle triples");
            assert_eq!(call(top, 100), xorshift(9, 100), "outer returns what side does");
            assert_eq!(call(churned, 100), xorshift(265, 100), "it runs its own loop behind its call");
        }
    }

    #[test]
    fn lines_ascend_within_the_code() {
        let function = leaf(Frames::Pointer, 40, 7, 12);
        assert!(function.lines.is_sorted());
        assert!(function.lines.iter().all(|(offset, _)| *offset < function.code.len()));
    }
}
