//! Counts the same samples under other stacks.

use super::order::Row;
use super::table::{Profile, StackId};

impl Profile {
    /// Counts all samples anew: those of `rows[i]` under the stack that `stack(i)` gives, in time buckets of
    /// `bucket_ns` (0 means 1). `rows` must be all rows of this profile; the total stays the same.
    pub fn restack(&mut self, bucket_ns: u64, rows: &[Row], mut stack: impl FnMut(&mut Self, usize) -> StackId) {
        self.start_counting_anew(bucket_ns);
        for (index, row) in rows.iter().enumerate() {
            let stack = stack(self, index);
            self.add_weighted(row.time, stack, row.task, row.count, row.cpu_ns);
        }
    }
}
