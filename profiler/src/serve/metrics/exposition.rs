//! Prometheus' text format, version 0.0.4.
//!
//! Written here because the well-kept crates hold the numbers themselves, in registries of their own; these numbers
//! are counted elsewhere and only read when somebody asks.

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only grows. Its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A page of metrics.
#[derive(Debug, Default)]
pub(super) struct Page(String);

impl Page {
    /// A metric without labels.
    pub(super) fn one(&mut self, kind: Kind, name: &str, help: &str, value: impl Into<Number>) {
        self.family(kind, name, help).value(&[], value);
    }

    /// A metric with labels; its values follow.
    pub(super) fn family<'a>(&'a mut self, kind: Kind, name: &'a str, help: &str) -> Family<'a> {
        let kind = if kind == Kind::Counter { "counter" } else { "gauge" };
        self.0.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        Family { page: &mut self.0, name }
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// A metric whose values are written.
pub(super) struct Family<'a> {
    page: &'a mut String,
    name: &'a str,
}

impl Family<'_> {
    /// Adds a line: the value that the metric has under these labels.
    pub(super) fn value(&mut self, labels: &[(&str, &str)], value: impl Into<Number>) {
        self.page.push_str(self.name);
        for (index, (name, text)) in labels.iter().enumerate() {
            self.page.push(if index == 0 { '{' } else { ',' });
            self.page.push_str(name);
            self.page.push_str("=\"");
            for letter in text.chars() {
                match letter {
                    '\\' => self.page.push_str("\\\\"),
                    '"' => self.page.push_str("\\\""),
                    '\n' => self.page.push_str("\\n"),
                    letter => self.page.push(letter),
                }
            }
            self.page.push('"');
        }
        if !labels.is_empty() {
            self.page.push('}');
        }
        match value.into() {
            Number::Count(count) => self.page.push_str(&format!(" {count}\n")),
            Number::Real(real) => self.page.push_str(&format!(" {real}\n")),
        }
    }
}

/// A metric's value; counts are written without a fraction.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Count(u64),
    Real(f64),
}

impl From<u64> for Number {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<usize> for Number {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<f64> for Number {
    fn from(real: f64) -> Self {
        Self::Real(real)
    }
}

impl From<bool> for Number {
    fn from(is: bool) -> Self {
        Self::Count(is.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_values_stay_inside_their_quotes() {
        let mut page = Page::default();
        page.one(Kind::Gauge, "a", "A.", 0.5);
        let mut family = page.family(Kind::Counter, "b_total", "B.");
        family.value(&[("comm", "x\"} 1\nevil 2\\")], 3_u64);
        family.value(&[("comm", "é"), ("pid", "7")], u64::MAX);
        assert_eq!(
            page.finish(),
            "# HELP a A.\n# TYPE a gauge\na 0.5\n# HELP b_total B.\n# TYPE b_total counter\n\
             b_total{comm=\"x\\\"} 1\\nevil 2\\\\\"} 3\nb_total{comm=\"é\",pid=\"7\"} 18446744073709551615\n"
        );
    }
}
