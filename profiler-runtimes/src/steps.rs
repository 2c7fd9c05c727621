//! What may still be done at one object file, or one section.

/// Steps that are left. Each stands for a value that is taken, or for so many bytes as cost as much.
#[derive(Debug)]
pub(crate) struct Steps(u64);

impl Steps {
    pub(crate) fn new(left: u64) -> Self {
        Self(left)
    }

    pub(crate) fn left(&self) -> u64 {
        self.0
    }

    /// None, if there are not so many.
    pub(crate) fn take(&mut self, count: usize) -> Option<()> {
        self.0 = self.0.checked_sub(u64::try_from(count).ok()?)?;
        Some(())
    }

    /// Does something with half of them, so that the other half is left for what is behind it.
    pub(crate) fn with_half<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let mut half = Self(self.0 / 2);
        self.0 -= half.0;
        let done = work(&mut half);
        self.0 += half.0;
        done
    }
}
