//! Choices among ways to launch a kernel that were measured on the device at hand, in the place of what cost models say.
//!
//! A backend asks [`Tuning::choose`] wherever it has several ways to compute the same thing. A tuner first lets the
//! backend record what it chooses among ([`Tuning::watch`]), then tries each candidate ([`Tuning::set`]). Both speak of
//! text, so that a table is read by people and outlives the types of a kernel: what names no candidate is passed over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a backend chooses among at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunable {
    /// The kernel and the shape it is launched for: `gemm_narrow_q4_0_t8 rows=8 k=4096 n=14336`.
    pub key: String,
    /// Each way once: `height=64 cluster=2`.
    pub candidates: Vec<String>,
    /// The one that is taken where nothing was measured.
    pub default: usize,
}

/// Measured choices, shared by all that compute on a device.
#[derive(Debug, Default)]
pub struct Tuning(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By key.
    choices: BTreeMap<String, String>,
    /// What has been chosen among, while somebody watches.
    watched: Option<BTreeMap<String, Tunable>>,
    /// Keys whose choice was taken.
    taken: BTreeSet<String>,
    /// Keys whose choice names none of the candidates.
    unknown: BTreeSet<String>,
}

impl Tuning {
    /// A table of choices by key.
    pub fn new(choices: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(Mutex::new(State { choices: choices.into_iter().collect(), ..State::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is whole when the lock is let go.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether [`Tuning::choose`] can say anything but `default` for `key`, or, where it `counts`, anybody wants to hear
    /// of it: finding the candidates may take longer than choosing.
    pub fn is_asked(&self, key: &str, counts: bool) -> bool {
        let state = self.state();
        (counts && state.watched.is_some()) || state.choices.contains_key(key)
    }

    /// Which of `candidates` to take for `key`: the one in the table, or `default`. Where it `counts`, somebody who
    /// watches hears of it: not where sizes are asked for of what may never be computed.
    pub fn choose(&self, key: &str, candidates: &dyn Fn() -> Vec<String>, default: usize, counts: bool) -> usize {
        let mut state = self.state();
        if let Some(watched) = &mut state.watched
            && counts
            && !watched.contains_key(key)
        {
            let tunable = Tunable { key: key.to_owned(), candidates: candidates(), default };
            watched.insert(key.to_owned(), tunable);
        }
        let Some(choice) = state.choices.get(key) else { return default };
        let found = candidates().iter().position(|candidate| candidate == choice);
        let seen = if found.is_some() { &mut state.taken } else { &mut state.unknown };
        if counts && !seen.contains(key) {
            seen.insert(key.to_owned());
        }
        found.unwrap_or(default)
    }

    /// Takes `choice` for `key` from now on, or what is taken without a table.
    pub fn set(&self, key: &str, choice: Option<&str>) {
        let mut state = self.state();
        match choice {
            Some(choice) => state.choices.insert(key.to_owned(), choice.to_owned()),
            None => state.choices.remove(key),
        };
    }

    /// Records from now on what is chosen among.
    pub fn watch(&self) {
        self.state().watched = Some(BTreeMap::new());
    }

    /// Returns what was recorded since [`Tuning::watch`], by key, and stops recording.
    pub fn watched(&self) -> Vec<Tunable> {
        self.state().watched.take().unwrap_or_default().into_values().collect()
    }

    /// Choices of the table, by key.
    pub fn choices(&self) -> Vec<(String, String)> {
        self.state().choices.clone().into_iter().collect()
    }

    /// How many keys had their choice taken so far.
    pub fn num_taken(&self) -> usize {
        self.state().taken.len()
    }

    /// Keys whose choice named no candidate: the table is of other kernels.
    pub fn unknown(&self) -> Vec<String> {
        self.state().unknown.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates() -> Vec<String> {
        ["a", "b", "c"].map(str::to_owned).to_vec()
    }

    #[test]
    fn the_table_decides_where_it_names_a_candidate() {
        let of = |key: &str, choice: &str| (key.to_owned(), choice.to_owned());
        let tuning = Tuning::new([of("x", "c"), of("y", "gone")]);
        assert!(tuning.is_asked("x", true) && tuning.is_asked("x", false) && !tuning.is_asked("z", true));
        let chosen = ["x", "y", "z"].map(|key| tuning.choose(key, &candidates, 1, true));
        assert_eq!(chosen, [2, 1, 1]);
        assert_eq!((tuning.num_taken(), tuning.unknown()), (1, vec!["y".to_owned()]));
        tuning.set("x", None);
        tuning.set("z", Some("a"));
        assert_eq!(["x", "z"].map(|key| tuning.choose(key, &candidates, 1, true)), [1, 0]);
        assert_eq!(tuning.choices(), [of("y", "gone"), of("z", "a")]);
    }

    #[test]
    fn who_watches_hears_of_each_place_once() {
        let tuning = Tuning::default();
        assert!(!tuning.is_asked("x", true));
        tuning.choose("before", &candidates, 0, true);
        tuning.watch();
        assert!(tuning.is_asked("x", true) && !tuning.is_asked("x", false));
        for key in ["y", "x", "y"] {
            tuning.choose(key, &candidates, 2, true);
        }
        tuning.choose("z", &candidates, 2, false);
        let seen = tuning.watched();
        assert_eq!(seen.iter().map(|tunable| &*tunable.key).collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(seen[0], Tunable { key: "x".to_owned(), candidates: candidates(), default: 2 });
        assert!(tuning.watched().is_empty() && !tuning.is_asked("x", true));
    }
}
