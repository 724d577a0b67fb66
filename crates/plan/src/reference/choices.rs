//! The experts that another device chose. A choice is a jump and not a rounding: where two scores are nearer to each other
//! than the noise of that device, it may choose the other one, and all that follows is another number. So the reference
//! takes the device's choices, says how many of them were not its own, and refuses those that no noise explains.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::Value;

/// The choices of a device in one step, and what the reference says of them.
#[derive(Debug, Default)]
pub struct Choices {
    ids: HashMap<Value, Vec<f64>>,
    noise: f64,
    seen: RefCell<Seen>,
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
    /// `ids` holds what the device made of each value of ids, (rows, top_k); values that it lacks are left to the
    /// reference. `noise` is how far a logit of the device may be off, as a share of the root mean square of its row.
    pub fn new(ids: impl IntoIterator<Item = (Value, Vec<f32>)>, noise: f64) -> Self {
        let wide = |ids: Vec<f32>| ids.into_iter().map(f64::from).collect();
        let ids = ids.into_iter().map(|(value, ids)| (value, wide(ids))).collect();
        Self { ids, noise, seen: RefCell::default() }
    }

    /// What came of the steps that were run with these.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    pub(crate) fn of(&self, ids: Value) -> Option<&[f64]> {
        self.ids.get(&ids).map(Vec::as_slice)
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
