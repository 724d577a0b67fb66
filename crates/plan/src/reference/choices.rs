//! The experts that another device chose. A choice is a jump and not a rounding: where two scores are nearer to each other
//! than the noise of that device, it may choose the other one, and all that follows is another number. So the reference
//! takes the device's choices, says how many of them were not its own, and refuses those that no noise explains.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::Value;

/// The choices of a device in one step, and what the reference says of them.
#[derive(Debug, Default)]
pub struct Choices {
    /// By the reference's value of ids.
    ids: HashMap<Value, Chosen>,
    noise: f64,
    seen: RefCell<Seen>,
}

/// What a device made of a value of ids.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// (rows, top_k).
    pub ids: Vec<f32>,
    /// The rows of the reference's value that these are, where the device has not all of them.
    pub rows: Option<Vec<u32>>,
}

/// What came of a comparison of choices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Choices of experts that were compared.
    pub compared: usize,
    /// Those within the noise that were not the reference's own.
    pub flips: usize,
    /// The first that no noise explains.
    pub fault: Option<WrongChoice>,
}

impl Seen {
    /// Adds what came of later steps.
    pub fn add(&mut self, later: Self) {
        self.compared += later.compared;
        self.flips += later.flips;
        self.fault = self.fault.take().or(later.fault);
    }
}

/// An expert that was chosen in the place of another.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "row {row} took expert {found} in place {slot}, expected {expected}: the scores are further apart than the noise"
)]
pub struct WrongChoice {
    /// The row of the router.
    pub row: usize,
    /// The place among the row's experts.
    pub slot: usize,
    /// What the device chose.
    pub found: f64,
    /// What the reference chooses.
    pub expected: f64,
}

impl Choices {
    /// `ids` holds what the device made of each value of ids; values and rows that it lacks are left to the reference.
    /// `noise` is how far a logit of the device may be off, as a share of the root mean square of its row.
    pub fn new(ids: impl IntoIterator<Item = (Value, Chosen)>, noise: f64) -> Self {
        Self { ids: ids.into_iter().collect(), noise, seen: RefCell::default() }
    }

    /// What came of the steps that were run with these.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// The ids of a row of a value.
    pub(crate) fn of(&self, ids: Value, row: usize, top_k: usize) -> Option<Vec<f64>> {
        let chosen = self.ids.get(&ids)?;
        let place = match &chosen.rows {
            Some(rows) => rows.iter().position(|&known| known as usize == row)?,
            None => row,
        };
        let ids = chosen.ids.get(place * top_k..(place + 1) * top_k)?;
        Some(ids.iter().copied().map(f64::from).collect())
    }

    /// How far each logit may be off.
    pub(crate) fn errors(&self, logits: &[f64], experts: usize) -> Vec<f64> {
        let of_row = |row: &[f64]| {
            let square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            vec![self.noise * square.sqrt(); row.len()]
        };
        logits.chunks_exact(experts).flat_map(of_row).collect()
    }

    /// Notes that an expert was chosen where the reference chooses `expected`, for certain or not.
    pub(crate) fn compare(&self, (row, slot): (usize, usize), found: f64, expected: f64, is_certain: bool) {
        let seen = &mut *self.seen.borrow_mut();
        seen.compared += 1;
        if found != expected && is_certain && seen.fault.is_none() {
            seen.fault = Some(WrongChoice { row, slot, found, expected });
        }
        seen.flips += usize::from(found != expected && !is_certain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_a_device_lacks_are_left_to_the_reference() {
        let [all, some, none] = [0, 1, 2].map(Value);
        let ids = vec![5.0, 6.0, 7.0, 8.0];
        let chosen = |rows| Chosen { ids: ids.clone(), rows };
        let choices = Choices::new([(all, chosen(None)), (some, chosen(Some(vec![1, 4])))], 0.0);
        assert_eq!([0, 1, 2].map(|row| choices.of(all, row, 2)), [Some(vec![5.0, 6.0]), Some(vec![7.0, 8.0]), None]);
        assert_eq!([1, 4].map(|row| choices.of(some, row, 2)), [Some(vec![5.0, 6.0]), Some(vec![7.0, 8.0])]);
        assert_eq!([choices.of(some, 0, 2), choices.of(none, 0, 2)], [None, None]);
    }
}
