//! What may still be done at one object file, or one section.

/// Steps that are left. Each stands for a value that is taken, or for so many bytes as cost as much.
#[derive(Debug)]
pub(crate) struct Steps {
    left: u64,
    /// Something was not done, as there were not enough for it.
    were_too_few: bool,
}

impl Steps {
    pub(crate) fn new(left: u64) -> Self {
        Self { left, were_too_few: false }
    }

    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Whether there were not enough for something.
    pub(crate) fn were_too_few(&self) -> bool {
        self.were_too_few
    }

    /// None, if there are not so many.
    pub(crate) fn take(&mut self, count: usize) -> Option<()> {
        let left = u64::try_from(count).ok().and_then(|count| self.left.checked_sub(count));
        self.were_too_few |= left.is_none();
        self.left = left?;
        Some(())
    }

    /// Does something with half of them, so that the other half is left for what is behind it.
    pub(crate) fn with_half<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let mut half = Self::new(self.left / 2);
        self.left -= half.left;
        let done = work(&mut half);
        self.left += half.left;
        self.were_too_few |= half.were_too_few;
        done
    }
}
