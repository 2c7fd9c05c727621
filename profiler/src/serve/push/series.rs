//! A window divided by the labels that its target tells apart.

use rustc_hash::FxHashMap;

use crate::profile::printable;
use crate::profile::{Profile, TaskId, label_of};

/// Series of one window at most: names of threads are the target's to choose, and receivers pay for each series.
const MAX_SERIES: usize = 500;
/// The value of every label of what is beyond that.
const OTHER: &str = "other";

/// The samples of one combination of values.
pub(super) struct Series {
    /// The names that were asked for and have a value, with it.
    pub(super) labels: Vec<(String, String)>,
    /// The samples of tasks with these labels.
    pub(super) profile: Profile,
}

/// Cuts a profile; samples of equal values of all `names` come together.
pub(super) fn series(profile: &Profile, names: &[String]) -> Vec<Series> {
    let mut numbers: FxHashMap<Vec<(String, String)>, usize> = FxHashMap::default();
    let mut of_task: FxHashMap<TaskId, usize> = FxHashMap::default();
    let mut labels = Vec::new();
    for row in profile.rows_without_time() {
        if of_task.contains_key(&row.task) {
            continue;
        }
        let task = profile.task_of(row.task);
        let value = |name: &String| Some((name.clone(), printable(&label_of(task, name)?).into_owned()));
        let mut values: Vec<_> = names.iter().filter_map(value).collect();
        if labels.len() >= MAX_SERIES && !numbers.contains_key(&values) {
            values = names.iter().map(|name| (name.clone(), OTHER.to_owned())).collect();
        }
        let number = *numbers.entry(values).or_insert_with_key(|values| {
            labels.push(values.clone());
            labels.len() - 1
        });
        of_task.insert(row.task, number);
    }
    let start = profile.meta().start;
    let series = labels.into_iter().enumerate().map(|(number, labels)| {
        let mut part = profile.select(start, |row| of_task.get(&row.task) == Some(&number));
        part.set_duration(profile.meta().duration);
        Series { labels, profile: part }
    });
    series.collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::profile;
    use super::*;

    #[test]
    fn samples_of_equal_labels_come_together_and_none_is_lost() {
        let profile = profile(&[("node", "c1", 3), ("node", "c2", 4), ("php", "c1", 5), ("node", "c1", 6)]);
        let names = ["comm".to_owned(), "container".to_owned(), "unit".to_owned()];
        let cut = series(&profile, &names);
        let mut totals: Vec<_> = cut.iter().map(|series| (series.labels.clone(), series.profile.total())).collect();
        totals.sort();
        let labels = |comm: &str, container: &str| {
            vec![("comm".to_owned(), comm.to_owned()), ("container".to_owned(), container.to_owned())]
        };
        assert_eq!(totals, [(labels("node", "c1"), 9), (labels("node", "c2"), 4), (labels("php", "c1"), 5)]);
        assert_eq!(series(&profile, &[]).len(), 1);
    }

    #[test]
    fn a_flood_of_names_ends_in_one_series_of_others() {
        let names: Vec<String> = (0..2000).map(|number| format!("n{number}")).collect();
        let tasks: Vec<_> = names.iter().map(|name| (&**name, "c", 1)).collect();
        let cut = series(&profile(&tasks), &["comm".to_owned()]);
        assert_eq!(cut.len(), MAX_SERIES + 1);
        assert_eq!(cut.iter().map(|series| series.profile.total()).sum::<u64>(), 2000);
        assert_eq!(cut.last().unwrap().labels, [("comm".to_owned(), OTHER.to_owned())]);
    }
}
