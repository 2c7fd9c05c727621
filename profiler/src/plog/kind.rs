//! What a trace type means, told by its name. The public description lists no types, so these are guesses that the user
//! can overrule.

use std::fmt;
use std::str::FromStr;

/// What an entry of a type stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A span opens.
    Begin,
    /// The span opened last with the same trace id and designator closes.
    End,
    /// The entry is a whole span.
    Span,
    /// The entry stands for one point in time, without a duration.
    Mark,
    /// The designator is a number that changes over time.
    Counter,
    /// Not told by the name: a span if the entry has a duration, else a mark.
    Unknown,
    /// Left out, because the user wants it so.
    Ignored,
}

/// A word of a type's name, and what it says. Whole words: `ENDING` and `EXTEND` are progress reports of the vendor's
/// application, not ends.
const WORDS: [(&str, Kind); 25] = [
    ("ENTER", Kind::Begin),
    ("BEGIN", Kind::Begin),
    ("START", Kind::Begin),
    ("EXIT", Kind::End),
    ("LEAVE", Kind::End),
    ("END", Kind::End),
    ("FINISH", Kind::End),
    ("DONE", Kind::End),
    ("SPAN", Kind::Span),
    ("MARK", Kind::Mark),
    ("INSTANT", Kind::Mark),
    ("TITLE", Kind::Mark),
    ("PROGRESS", Kind::Mark),
    ("EXTEND", Kind::Mark),
    ("ENDING", Kind::Mark),
    ("ABORT", Kind::Mark),
    ("ABORTED", Kind::Mark),
    ("ABORTING", Kind::Mark),
    ("VALUE", Kind::Counter),
    ("AMOUNT", Kind::Counter),
    ("COUNT", Kind::Counter),
    ("COUNTER", Kind::Counter),
    ("ADD", Kind::Counter),
    ("SUB", Kind::Counter),
    ("TOTAL", Kind::Counter),
];

impl Kind {
    /// The kind that a type's name suggests.
    pub fn of_name(name: &str) -> Self {
        let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
        let known = |word: &str| WORDS.iter().find(|(known, _)| word.eq_ignore_ascii_case(known));
        words.find_map(known).map_or(Self::Unknown, |(_, kind)| *kind)
    }

    /// The word that [`KindRule`] takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::End => "end",
            Self::Span => "span",
            Self::Mark => "mark",
            Self::Counter => "counter",
            Self::Unknown => "unknown",
            Self::Ignored => "ignore",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the user says about a type: `NAME=kind`, the name as in the log or, for a log without names, its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindRule {
    /// The type's name, compared without case, or its number.
    pub name: String,
    /// What entries of the type stand for.
    pub kind: Kind,
}

impl FromStr for KindRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kinds = [Kind::Begin, Kind::End, Kind::Span, Kind::Mark, Kind::Counter, Kind::Ignored];
        let all = || kinds.map(Kind::name).join(", ");
        let Some((name, kind)) = text.rsplit_once('=') else {
            return Err(format!("write it as NAME=KIND, where KIND is one of {}", all()));
        };
        match kinds.into_iter().find(|known| known.name() == kind) {
            Some(kind) => Ok(Self { name: name.to_owned(), kind }),
            None => Err(format!("{kind:?} is none of {}", all())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_of_a_name_tell_the_kind() {
        assert_eq!(Kind::of_name("ENTER"), Kind::Begin);
        assert_eq!(Kind::of_name("trace-exit"), Kind::End);
        assert_eq!(Kind::of_name("ADD_VALUE"), Kind::Counter);
        for mark in ["TITLE", "PROGRESS", "EXTEND", "ENDING", "ABORTING", "MARK"] {
            assert_eq!(Kind::of_name(mark), Kind::Mark, "{mark}");
        }
        for unknown in ["INVALID", "", "ACQUIRE", "type#3", "EXITED"] {
            assert_eq!(Kind::of_name(unknown), Kind::Unknown, "{unknown}");
        }
    }

    #[test]
    fn rules_are_read_and_wrong_ones_say_what_there_is() {
        assert_eq!("A=B=span".parse(), Ok(KindRule { name: "A=B".to_owned(), kind: Kind::Span }));
        assert!("x".parse::<KindRule>().unwrap_err().contains("counter"));
        assert!("x=unknown".parse::<KindRule>().unwrap_err().contains("ignore"));
    }
}
