//! The same quantity in record after record.

use std::collections::BTreeMap;

use crate::{Change, Record, Row};

/// What is followed through the records: on one machine, one name in one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity<'a> {
    /// The folder of the records.
    pub machine: &'a str,
    /// The name of the row.
    pub name: &'a str,
    /// The unit of the row: a figure in another one is another quantity.
    pub unit: &'a str,
}

/// A quantity in one record.
#[derive(Clone, Copy, Debug)]
pub struct Point<'a> {
    /// Where it stands.
    pub record: &'a Record,
    /// The figure.
    pub row: &'a Row,
}

/// Each quantity with its points, the oldest first.
#[derive(Clone, Debug)]
pub struct History<'a> {
    /// Rows that are tables of their own have no single figure, and are left out.
    pub quantities: BTreeMap<Quantity<'a>, Vec<Point<'a>>>,
}

impl<'a> History<'a> {
    /// The history that these records tell.
    pub fn of(records: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut quantities: BTreeMap<_, Vec<Point<'a>>> = BTreeMap::new();
        for record in records {
            for row in record.rows.iter().filter(|row| row.spread().is_some()) {
                let key = Quantity { machine: &record.machine, name: &row.name, unit: &row.unit };
                quantities.entry(key).or_default().push(Point { record, row });
            }
        }
        for points in quantities.values_mut() {
            points.sort_by(|a, b| (&a.record.date, &a.record.file).cmp(&(&b.record.date, &b.record.file)));
        }
        Self { quantities }
    }

    /// The newest figure of a quantity.
    pub fn newest(&self, machine: &str, name: &str, unit: &str) -> Option<Point<'a>> {
        let points = self.quantities.iter().find(|(key, _)| **key == Quantity { machine, name, unit })?.1;
        points.last().copied()
    }
}

impl Point<'_> {
    /// What changed since an earlier point of the same quantity; `None` where one of them has no figure.
    pub fn since(&self, earlier: &Point<'_>) -> Option<Change> {
        Some(Change::between(&earlier.row.spread()?, &self.row.spread()?, self.row.less_is_better()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(machine: &str, day: &str, row: &str) -> Record {
        let text = format!(r#"{{"device": {{"description": "d"}}, "run": {{"date": "{day}"}}, "rows": [{row}]}}"#);
        Record::read(machine, &format!("{day}-abc.json"), &text).unwrap()
    }

    #[test]
    fn points_of_a_quantity_follow_each_other_by_date() {
        let decode = |rates: [u32; 2]| {
            let [low, high] = rates;
            format!(
                r#"{{"test": "tg16", "model": "m", "format": "f16", "device": "cpu", "threads": 1,
                "tokens_per_s": {{"median": {low}, "min": {low}, "max": {high}}}, "samples": [{low}, {high}]}}"#
            )
        };
        let step = r#"{"name": "step", "unit": "ms a step", "value": 2.0, "worst": 2.1, "best": 1.9}"#;
        let records = [
            record("a", "2026-11-27", &decode([90, 90])),
            record("a", "2026-11-25", &decode([100, 100])),
            record("b", "2026-11-26", &decode([50, 50])),
            record("a", "2026-11-26", step),
        ];
        let history = History::of(&records);
        assert_eq!(history.quantities.len(), 3);
        let key = Quantity { machine: "a", name: "m f16 decode of 16, 1 thread", unit: "tokens/s" };
        let points = &history.quantities[&key];
        assert_eq!(points.iter().map(|point| point.record.day()).collect::<Vec<_>>(), ["2026-11-25", "2026-11-27"]);
        let change = points[1].since(&points[0]).unwrap();
        assert!(change.is_worse() && change.verdict() == "10.0 % slower", "{change:?}");
        assert_eq!(history.newest("a", key.name, key.unit).unwrap().row.samples, [90.0, 90.0]);
        assert!(history.newest("c", key.name, key.unit).is_none());
        let step = history.newest("a", "step", "ms a step").unwrap();
        assert!(step.row.less_is_better() && step.row.spread().unwrap().range == (1.9, 2.1));
    }
}
