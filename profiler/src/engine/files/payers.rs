//! Who pays for files.
//!
//! The owner of a file may be one of a user's 65,536 subordinate ids: so it is the user who maps it first. But anybody may map
//! what others may read: as soon as its owner maps it, he pays, and nobody else does any more.

use super::{Entry, Files, MAX_FILES};
use crate::engine::border::Output;
use crate::engine::process::Process;
use crate::engine::requests::Requests;
use crate::owners::Held;
use crate::process::open::FileId;

/// Files that one user other than root pays for: who maps thousands of files of his own leaves room for the others'. Fewer where
/// others have many.
pub(super) const MAX_FILES_OF_OWNER: usize = 2 << 10;
/// So many a user may have while there is room for any, whatever others have.
pub(super) const FEW_FILES: usize = 64;

/// Whether a user other than root may have one more file.
pub(super) fn may_have_more(held: Held) -> bool {
    held.own < MAX_FILES_OF_OWNER && held.leaves_room(MAX_FILES, FEW_FILES)
}

impl Files {
    /// Has files paid for by who is to. To be called before anything is done with those that have been opened.
    pub(in crate::engine) fn charge(&mut self, requests: &mut Requests) {
        for file in std::mem::take(&mut self.charges) {
            if let Some(payer) = self.entries.get(&file).and_then(|entry| entry.payer) {
                requests.output(Output::Charge(file, payer));
            }
        }
    }

    /// It is known who runs a process: he pays for those of the files that it maps that are his own.
    pub(in crate::engine) fn claim_mapped(&mut self, process: &Process) {
        let files = process.space.live().filter_map(|mapped| mapped.link.file());
        files.for_each(|file| self.claim(file, process));
    }

    /// A file, and what it is a copy of, are paid for by its owner if it is he who maps it.
    pub(super) fn claim(&mut self, file: FileId, process: &Process) {
        let owner = self.entries.get(&file).and_then(|entry| entry.identity).map(|identity| identity.uid);
        let payer = owner.filter(|owner| process.is_of_owner(*owner)).and_then(|owner| process.payer_of(owner));
        if let Some(payer) = payer {
            [file, self.original(file)].into_iter().for_each(|one| self.give_to_owner(one, payer));
        }
    }

    pub(super) fn give_to_owner(&mut self, file: FileId, payer: u32) {
        let unclaimed = self.entries.get(&file).filter(|entry| !entry.is_claimed && entry.identity.is_some());
        let Some(before) = unclaimed.map(Entry::owner) else { return };
        if before != payer {
            if !may_have_more(self.held_by(payer)) {
                return;
            }
            self.count_out(before);
            *self.of_owner.entry(payer).or_default() += 1;
            // What was refused to the other one is not refused to him.
            self.reopened.push(file);
        }
        if let Some(entry) = self.entries.get_mut(&file) {
            (entry.payer, entry.is_claimed) = (Some(payer), true);
            self.charges.push(file);
        }
    }

    /// An owner pays for one file less.
    pub(super) fn count_out(&mut self, owner: u32) {
        if let Some(count) = self.of_owner.get_mut(&owner) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.of_owner.remove(&owner);
            }
        }
    }

    pub(super) fn held_by(&self, owner: u32) -> Held {
        let of = |owner: u32| self.of_owner.get(&owner).copied().unwrap_or(0);
        let users = self.by_identity.len().saturating_sub(of(0));
        Held { own: of(owner), kind: if owner == 0 { of(0) } else { users }, all: self.entries.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_users_map_thousands_of_files_a_new_one_has_some() {
        let mut all = 4000;
        let root = all;
        let mut take = |most: usize| {
            let own = (0..most).find(|own| !may_have_more(Held { own: *own, kind: all - root + own, all: all + own }));
            all += own.unwrap_or(most);
            own.unwrap_or(most)
        };
        let greedy: Vec<usize> = (0..10).map(|_| take(usize::MAX)).collect();
        assert_eq!(greedy[..4], [2048, 2048, 2048, 1024], "{greedy:?}");
        assert!((0..40).all(|_| take(FEW_FILES) == FEW_FILES), "{greedy:?}");
        assert!(all <= MAX_FILES);
    }
}
