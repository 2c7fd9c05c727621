//! `--repair`: the copy, and what was left out of it.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::JitdumpError;
use super::source::{POLL_BYTES, Source};
use crate::cli::say::say_part;
use crate::output::{Destination, OutputError, check_writable, write_to};
use jitprof_jitdump::{ParserOptions, Piece, RepairAccount, Repairer};

/// Bytes copied at once.
const CHUNK: usize = 256 << 10;

/// Writes the repaired copy and says on standard error what was repaired.
pub(super) fn run(source: &Source, output: &Path) -> Result<(), JitdumpError> {
    let destination = Destination::from_argument(output);
    check_writable(&destination)?;
    let mut account = RepairAccount::default();
    let mut failed = None;
    let written = write_to(&destination, |out| match copy(source, out) {
        Ok(done) => {
            account = done;
            Ok(())
        }
        Err(CopyError::Output(error)) => Err(OutputError::Write(error)),
        Err(CopyError::Input(error)) => {
            failed = Some(error);
            Err(OutputError::NoSamples)
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    written?;
    say_part!("{}", text(&account));
    Ok(())
}

/// A failure of one side of the copy; only the input's names the dump.
enum CopyError {
    Input(JitdumpError),
    Output(io::Error),
}

fn copy(source: &Source, out: &mut dyn Write) -> Result<RepairAccount, CopyError> {
    let read = |error| CopyError::Input(source.failed(error));
    let file_len = source.file.metadata().map_err(read)?.len();
    let mut repairer = Repairer::new(file_len);
    let mut tail = source.tail(ParserOptions::default()).map_err(CopyError::Input)?;
    let mut buffer = vec![0; CHUNK];
    let mut pieces = Vec::new();
    loop {
        let progress = tail.poll(POLL_BYTES, &mut |_, step| repairer.step(step, &mut |piece| pieces.push(piece)));
        let more = progress.map_err(read)?.more && tail.offset().0 < file_len;
        for piece in pieces.drain(..) {
            write_piece(source, piece, &mut buffer, out)?;
        }
        if !more {
            break;
        }
    }
    let account = repairer.finish(tail.offset(), tail.parser().is_lost(), &mut |piece| pieces.push(piece));
    for piece in pieces {
        write_piece(source, piece, &mut buffer, out)?;
    }
    Ok(account)
}

fn write_piece(source: &Source, piece: Piece, buffer: &mut [u8], out: &mut dyn Write) -> Result<(), CopyError> {
    let (mut offset, mut len) = match piece {
        Piece::Bytes(bytes) => return out.write_all(&bytes).map_err(CopyError::Output),
        Piece::Copy { offset, len } => (offset.0, len),
    };
    while len > 0 {
        let want = usize::try_from(len).unwrap_or(usize::MAX).min(buffer.len());
        let part = buffer.get_mut(..want).unwrap_or_default();
        source.file.read_exact_at(part, offset).map_err(|error| CopyError::Input(source.failed(error)))?;
        out.write_all(part).map_err(CopyError::Output)?;
        offset = offset.saturating_add(want as u64);
        len -= want as u64;
    }
    Ok(())
}

fn text(account: &RepairAccount) -> String {
    let mut text = format!("jitprof: {} records written\n", account.records);
    let changes = [
        (account.lost_stretches, "stretches without records left out"),
        (account.damaged, "damaged records left out"),
        (account.headers, "further file headers left out"),
        (account.other_format, "records of another byte order or clock left out"),
        (account.unclaimed, "lines and unwinding data of lost functions left out"),
        (account.torn, "torn record at the end left out"),
        (account.unreadable_lines, "unreadable DEBUG_INFO left out"),
        (account.names_mended, "DEBUG_INFO with names from freed memory mended"),
        (account.moved, "DEBUG_INFO moved to their functions"),
    ];
    for (count, what) in changes.into_iter().filter(|(count, _)| *count > 0) {
        // Writing into a String does not fail.
        writeln!(text, "         {count} {what}").expect("invariant: memory is written to");
    }
    text
}
