//! Inlined parts of known objects.

use std::sync::Arc;

use super::super::event::CodeInline;
use super::super::inlines::Added;
use super::super::outcome::{Applied, DropReason};
use super::{CodeMap, MAX_LINE_ROWS, MAX_NAME_BYTES, object_bytes};

impl CodeMap {
    /// Adds an inlined part to the object that lies around it at its time.
    pub(super) fn inline(&mut self, mut inline: CodeInline) -> Applied {
        if inline.lines.len() > MAX_LINE_ROWS {
            inline.lines.truncate(MAX_LINE_ROWS);
        }
        if inline.name.len() > MAX_NAME_BYTES {
            inline.name.truncate(inline.name.floor_char_boundary(MAX_NAME_BYTES));
            self.stats.names_cut += 1;
        }
        if !self.has_room() {
            return self.drop_event(DropReason::Full);
        }
        let around = self.announced.at(inline.start.0, inline.time.0);
        let around = around.and_then(|piece| {
            let offset = u32::try_from(inline.start.0.checked_sub(piece.start)?).ok()?;
            let end = u64::from(offset).checked_add(inline.size)?;
            let inside = inline.size > 0 && end <= u64::from(piece.size) && piece.object.is_some();
            inside.then_some((piece.id(), offset))
        });
        let slot = around.and_then(|(piece, offset)| Some((self.announced.object_mut(&piece)?, offset)));
        let Some((Some(object), offset)) = slot else {
            return self.drop_event(DropReason::WithoutFunction);
        };
        let old_bytes = object_bytes(Some(object));
        let object = Arc::make_mut(object);
        let id = object.id;
        let added = Arc::make_mut(object.inlines.get_or_insert_default()).add(offset, inline);
        self.object_bytes = self.object_bytes.saturating_sub(old_bytes).saturating_add(object.bytes());
        match added {
            Added::Known => {
                self.stats.duplicates += 1;
                return Applied::Inlined(id, false);
            }
            Added::TooMany => return self.drop_event(DropReason::WithoutFunction),
            Added::New => {}
        }
        self.version += 1;
        self.stats.inlines += 1;
        Applied::Inlined(id, true)
    }
}
