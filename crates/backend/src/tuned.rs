//! What is launched where there are several ways: the one that was measured best on the device, or the one that a cost
//! model says.

use crate::Tuning;

/// A table of measured choices, or none. It lives as long as the program, because a device is opened once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tuned {
    table: Option<&'static Tuning>,
    /// Whether what is asked may never be launched: sizes of weights that are not there yet.
    is_supposed: bool,
}

impl PartialEq for Tuned {
    fn eq(&self, other: &Self) -> bool {
        let same = match (self.table, other.table) {
            (Some(a), Some(b)) => std::ptr::eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        same && self.is_supposed == other.is_supposed
    }
}

impl Eq for Tuned {}

impl Tuned {
    /// No table.
    pub const NONE: Self = Self { table: None, is_supposed: false };

    /// By `table`.
    pub fn by(table: &'static Tuning) -> Self {
        Self { table: Some(table), is_supposed: false }
    }

    /// Whether there is no table.
    pub fn is_none(self) -> bool {
        self.table.is_none()
    }

    /// Choices in the table; `None` where that has none.
    pub fn num_choices(self) -> Option<usize> {
        self.table.map(|table| table.choices().len()).filter(|&choices| choices > 0)
    }

    /// For questions about what may never be launched.
    pub fn supposed(self) -> Self {
        Self { is_supposed: true, ..self }
    }

    /// Whether [`Tuned::pick`] has anything to look up for `key`.
    pub fn is_asked(self, key: &str) -> bool {
        self.table.is_some_and(|table| table.is_asked(key, !self.is_supposed))
    }

    /// One of `candidates`: what the table has for the key, or the one at `default`. `label` names a candidate, and no
    /// two alike.
    pub fn pick<V>(
        self,
        key: impl FnOnce() -> String,
        mut candidates: Vec<V>,
        label: impl Fn(&V) -> String,
        default: usize,
    ) -> Option<V> {
        if default >= candidates.len() {
            return None;
        }
        let place = match self.table {
            Some(table) if candidates.len() > 1 => {
                let labels = || candidates.iter().map(&label).collect();
                table.choose(&key(), &labels, default, !self.is_supposed)
            }
            _ => default,
        };
        Some(candidates.swap_remove(place))
    }

    /// The same of candidates with their costs: the cheapest without a table, the first of several.
    pub fn pick_cheapest<V>(
        self,
        key: impl FnOnce() -> String,
        candidates: Vec<(usize, V)>,
        label: impl Fn(&V) -> String,
    ) -> Option<V> {
        let (default, _) = candidates.iter().enumerate().min_by_key(|(_, (cost, _))| *cost)?;
        self.pick(key, candidates, |(_, candidate)| label(candidate), default).map(|(_, candidate)| candidate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(choices: &[(&str, &str)]) -> &'static Tuning {
        let choices = choices.iter().map(|&(key, choice)| (key.to_owned(), choice.to_owned()));
        Box::leak(Box::new(Tuning::new(choices)))
    }

    #[test]
    fn the_cheapest_is_taken_unless_another_was_measured_best() {
        let candidates = || vec![(3, "a"), (1, "b"), (1, "c")];
        let of = |tuned: Tuned| tuned.pick_cheapest(|| "x".to_owned(), candidates(), |&name| name.to_owned());
        assert_eq!(of(Tuned::NONE), Some("b"));
        assert_eq!(of(Tuned::by(table(&[("y", "a")]))), Some("b"));
        assert_eq!(of(Tuned::by(table(&[("x", "a")]))), Some("a"));
        assert_eq!(of(Tuned::by(table(&[("x", "gone")]))), Some("b"));
        assert_eq!(Tuned::NONE.pick(String::new, Vec::<u8>::new(), |_| String::new(), 0), None);
    }

    #[test]
    fn what_is_supposed_follows_the_table_and_is_not_heard_of() {
        let table = table(&[("x", "a")]);
        table.watch();
        let of = |tuned: Tuned| tuned.pick(|| "x".to_owned(), vec!["b", "a"], |&name| name.to_owned(), 0);
        assert_eq!(of(Tuned::by(table).supposed()), Some("a"));
        assert!(table.watched().is_empty());
        table.watch();
        assert_eq!(of(Tuned::by(table)), Some("a"));
        assert_eq!(table.watched().len(), 1);
    }
}
