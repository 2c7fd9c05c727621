//! A dump of any bytes, looked at and mended: no panic, code without overlaps, and a copy with a sound header.
//!
//! The first byte says whether the dump still grows. Good seeds are those of `jitdump`.
#![no_main]

use jitprof_jitdump::{
    Deviation, Inspection, Inspector, Living, Parser, ParserOptions, Piece, ReaderOptions, Repairer, Step,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((control, bytes)) = input.split_first() else {
        return;
    };
    inspect(bytes, control & 1 != 0);
    let mended = mend(bytes);
    let inspection = inspect(&mended, false);
    for gone in [Deviation::NoMagic, Deviation::HeaderSize, Deviation::Flags] {
        // Who loses its way in the copy, too, can meet another header in a function's code.
        let found = inspection.findings.get(gone);
        assert!(found.is_none_or(|found| found.places.iter().all(|place| place.offset.0 > 0)));
    }
});

fn walk(bytes: &[u8], mut out: impl FnMut(u64, &Step<'_>)) -> Parser {
    let mut parser = Parser::new(ParserOptions::default());
    loop {
        let at = parser.offset();
        let window = usize::try_from(at.0).ok().and_then(|at| bytes.get(at..));
        match window.map(|window| parser.step(window)) {
            None | Some(Step::NeedMore { .. }) => return parser,
            Some(step) => out(at.0, &step),
        }
    }
}

fn inspect(bytes: &[u8], grows: bool) -> Inspection {
    let mut inspector = Inspector::new(ReaderOptions::default(), 3);
    let mut living = Living::at(u64::MAX);
    let parser = walk(bytes, |at, step| {
        inspector.step(jitprof_common::units::FileOffset(at), step, &mut |_| {});
        living.step(step);
    });
    let (code, _) = living.finish();
    assert!(code.windows(2).all(|pair| pair[0].end <= pair[1].start));
    inspector.finish(parser.offset(), bytes.len() as u64, grows)
}

fn mend(bytes: &[u8]) -> Vec<u8> {
    let mut mended = Vec::new();
    let mut repairer = Repairer::new(bytes.len() as u64);
    let mut add = |piece: Piece| match piece {
        Piece::Bytes(new) => mended.extend(new),
        Piece::Copy { offset, len } => {
            let start = usize::try_from(offset.0).unwrap_or(usize::MAX);
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            mended.extend(&bytes[start..start + len]);
        }
    };
    let parser = walk(bytes, |_, step| repairer.step(step, &mut add));
    repairer.finish(parser.offset(), parser.is_lost(), &mut add);
    mended
}
