//! The events of the API: their numbers, and the fields of the structures that come with them on 64-bit machines.
//!
//! | field | LOAD 13, UPDATE 15 | V2 21 | V3 22 | INLINE 16 |
//! |---|---|---|---|---|
//! | method_id u32 | 0 | 0 | 0 | 0 |
//! | parent_method_id u32 | | | | 4 |
//! | method_name | 8 | 8 | 8 | 8 |
//! | method_load_address | 16 | 16 | 16 | 16 |
//! | method_size u32 | 24 | 24 | 24 | 24 |
//! | line_number_size u32, in entries | 28 | 28 | 28 | 28 |
//! | line_number_table | 32 | 32 | 32 | 32 |
//! | class_file_name | 48 | 40 | 40 | 40 |
//! | source_file_name | 56 | 48 | 48 | 48 |
//! | module_name | | 56 | 56 | |
//! | bytes | 64 | 64 | 72 | 56 |
//!
//! UPDATE_V2 17: address 0, size u32 8, type u32 12. UNLOAD 14: LLVM hands over a pointer to four bytes, the method's
//! number, although the header promises a whole structure. ENTER 19 and LEAVE 20 are from a call graph mode that
//! nothing has any more; they and everything unknown mean nothing.

/// The end of profiling, by the runtime's view. Loads may follow.
pub(crate) const SHUTDOWN: u32 = 2;
const LOAD: u32 = 13;
const UNLOAD: u32 = 14;
const UPDATE: u32 = 15;
const INLINE: u32 = 16;
const UPDATE_V2: u32 = 17;
const LOAD_V2: u32 = 21;
const LOAD_V3: u32 = 22;

/// The largest structure.
pub(crate) const MAX_BYTES: usize = 64;

/// Data and "end of file" as the content of an UPDATE_V2. The other kinds are code, the one before, and unknown.
const NO_CODE: [u32; 2] = [2, 4];

/// What an event says. Pointers are those of the runtime, and may be anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A method, or one more region of it.
    Load(Code),
    /// A method is gone, with all its regions.
    Unload {
        /// Its number.
        method: u32,
    },
    /// A method's code has changed within this range.
    Update {
        /// Its number.
        method: u32,
        /// First byte.
        address: u64,
        /// Bytes.
        size: u32,
    },
    /// The code at this address has changed, whatever it is.
    UpdateAt {
        /// First byte.
        address: u64,
        /// Bytes.
        size: u32,
    },
    /// A range of a method's code was inlined from another.
    Inline {
        /// The range and what was inlined.
        code: Code,
        /// The method, or inlined method, around it.
        parent: u32,
    },
}

/// The fields that say what some code is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Code {
    /// The method's number, 0 never.
    pub(crate) method: u32,
    /// First byte.
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) size: u32,
    /// Pointer to the name.
    pub(crate) name: u64,
    /// Pointer to the class' name, or 0.
    pub(crate) class: u64,
    /// Pointer to the source file's name, or 0.
    pub(crate) source: u64,
    /// Pointer to the module's name, or 0.
    pub(crate) module: u64,
    /// Pointer to the line table.
    pub(crate) lines: u64,
    /// Its entries.
    pub(crate) line_count: u32,
}

/// How many bytes there are to read for an event; `None` for those that mean nothing.
pub(crate) fn bytes_of(number: u32) -> Option<usize> {
    Some(match number {
        LOAD | LOAD_V2 | LOAD_V3 => 64,
        UPDATE => 28,
        INLINE => 56,
        UPDATE_V2 => 16,
        UNLOAD => 4,
        _ => return None,
    })
}

/// Reads the structure of an event from the bytes that [`bytes_of`] wants.
pub(crate) fn decode(number: u32, bytes: &[u8]) -> Option<Event> {
    let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let long = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let code = |class: usize, module: Option<usize>| {
        Some(Code {
            method: word(0)?,
            name: long(8)?,
            address: long(16)?,
            size: word(24)?,
            line_count: word(28)?,
            lines: long(32)?,
            class: long(class)?,
            source: long(class + 8)?,
            module: module.map_or(Some(0), long)?,
        })
    };
    Some(match number {
        LOAD => Event::Load(code(48, None)?),
        LOAD_V2 | LOAD_V3 => Event::Load(code(40, Some(56))?),
        INLINE => Event::Inline { code: code(40, None)?, parent: word(4)? },
        UNLOAD => Event::Unload { method: word(0)? },
        UPDATE => Event::Update { method: word(0)?, address: long(16)?, size: word(24)? },
        UPDATE_V2 if NO_CODE.contains(&word(12)?) => return None,
        UPDATE_V2 => Event::UpdateAt { address: long(0)?, size: word(8)? },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that are their own offsets, so that a field tells where it was read.
    fn offsets() -> Vec<u8> {
        (0..72).collect()
    }

    fn long_at(at: u8) -> u64 {
        u64::from_ne_bytes(std::array::from_fn(|index| at + u8::try_from(index).unwrap()))
    }

    fn word_at(at: u8) -> u32 {
        u32::from_ne_bytes(std::array::from_fn(|index| at + u8::try_from(index).unwrap()))
    }

    #[test]
    fn every_field_is_read_where_the_structure_has_it() {
        let code = |class, source, module| Code {
            method: word_at(0),
            name: long_at(8),
            address: long_at(16),
            size: word_at(24),
            line_count: word_at(28),
            lines: long_at(32),
            class: long_at(class),
            source: long_at(source),
            module,
        };
        let read = |number| decode(number, &offsets()[..bytes_of(number).unwrap()]).unwrap();
        assert_eq!(read(13), Event::Load(code(48, 56, 0)));
        assert_eq!(read(21), Event::Load(code(40, 48, long_at(56))));
        assert_eq!(read(22), read(21));
        assert_eq!(read(16), Event::Inline { code: code(40, 48, 0), parent: word_at(4) });
        assert_eq!(read(14), Event::Unload { method: word_at(0) });
        assert_eq!(read(15), Event::Update { method: word_at(0), address: long_at(16), size: word_at(24) });
        assert_eq!(read(17), Event::UpdateAt { address: long_at(0), size: word_at(8) });
    }

    #[test]
    fn legacy_and_unknown_events_mean_nothing() {
        for number in [0, 1, SHUTDOWN, 3, 12, 18, 19, 20, 23, u32::MAX] {
            assert_eq!((bytes_of(number), decode(number, &offsets())), (None, None), "{number}");
        }
        let mut update = offsets();
        update[12..16].copy_from_slice(&2_u32.to_ne_bytes());
        assert_eq!(decode(17, &update), None, "data is no code");
    }

    #[test]
    fn too_few_bytes_are_no_event() {
        for number in [13, 14, 15, 16, 17, 21, 22] {
            let bytes = bytes_of(number).unwrap();
            assert!(bytes <= MAX_BYTES);
            assert!((0..bytes).all(|length| decode(number, &offsets()[..length]).is_none()), "{number}");
        }
    }
}
