//! How soon answers to what the engine has asked are taken.

use jitprof_jitdump::NextRead;

use crate::engine::border::{AnswerBody, Request};

/// How soon the answer to a request is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Haste {
    /// With what else comes.
    None,
    /// At once, but in a continuous recording: samples wait for it, which there they can.
    InRuns,
    /// At once, or with what is soon read besides: it is asked for more with what has come.
    Always,
}

impl Haste {
    pub(super) fn of(request: &Request) -> Self {
        match request {
            Request::Read { .. } | Request::Peek(_) => Self::Always,
            Request::Memory { .. } | Request::ReadRuntime { .. } | Request::DescribeFrames { .. } => Self::InRuns,
            _ => Self::None,
        }
    }

    /// The same where this has come of it, and `read` was asked for: most looks at files find nothing new, and each turn of a
    /// continuous recording costs more than such a look.
    pub(super) fn with(self, read: Option<NextRead>, body: &AnswerBody) -> Self {
        let is_news = match body {
            AnswerBody::Read(Ok(found)) => read.is_none_or(|next| found.is_news(next)),
            AnswerBody::Peeked(sight) => sight.brings_bytes(),
            _ => true,
        };
        if is_news { self } else { self.min(Self::InRuns) }
    }
}

/// What of a followed file is asked for.
pub(super) fn read_of(request: &Request) -> Option<NextRead> {
    if let Request::Read { next, .. } = request { Some(*next) } else { None }
}

#[cfg(test)]
mod tests {
    use jitprof_common::units::Avma;
    use jitprof_jitdump::FileBytes;
    use jitprof_jitdump::perfmap::PerfMapStream;

    use super::*;
    use crate::engine::border::Unread;
    use crate::peek::Sight;

    #[test]
    fn what_brings_nothing_ends_no_pause_of_a_continuous_recording() {
        let next = PerfMapStream::beginning_at(3, b"a\n").next_read();
        let read = |bytes: &[u8]| {
            let found = FileBytes { file_len: 9, offset: next.offset, bytes: bytes.to_vec(), ..FileBytes::default() };
            AnswerBody::Read(Ok(found))
        };
        let haste = |body: &AnswerBody| Haste::Always.with(Some(next), body);
        assert_eq!(haste(&read(b"a\n")), Haste::InRuns);
        let failed = AnswerBody::Read(Err(Unread::stalled("it does not answer")));
        assert_eq!([read(b"a\n1"), failed, AnswerBody::Stalled].map(|body| haste(&body)), [Haste::Always; 3]);
        let peeked = |sight| Haste::Always.with(None, &AnswerBody::Peeked(sight));
        let found = |then| Sight::Found { address: Avma(8), scanned: 1, then: Box::new(then) };
        assert_eq!([Sight::Unchanged, found(Sight::Unchanged)].map(peeked), [Haste::InRuns; 2]);
        assert_eq!(Haste::None.with(Some(next), &read(b"a\n")), Haste::None, "it is no more urgent by that");
    }
}
