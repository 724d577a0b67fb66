//! The reference interpreter passes the suite that it is the oracle of: so the suite itself, its bounds included, is
//! consistent.

use std::collections::HashSet;

use backend::Backend;
use backend::conformance::{Case, Part, Sample, cases, run_part, sampled};
use backend::reference::ReferenceBackend;

#[test]
fn ops() {
    run_part(&[&ReferenceBackend::new()], Part::Ops, Sample::of_today(12));
}

#[test]
fn models() {
    run_part(&[&ReferenceBackend::new()], Part::Models, Sample::of_today(12));
}

#[test]
fn caches() {
    run_part(&[&ReferenceBackend::new()], Part::Caches, Sample::of_today(12));
}

#[test]
fn batches() {
    run_part(&[&ReferenceBackend::new()], Part::Batches, Sample::of_today(15));
}

#[test]
fn refusals() {
    run_part(&[&ReferenceBackend::new()], Part::Refusals, Sample::ALL);
}

/// Each day's sample contains its share, each op, and each weight format or architecture, and little more.
#[test]
fn samples_leave_nothing_out() {
    const SHARE: u64 = 40;
    let claims = ReferenceBackend::new().claims();
    let all = cases(&claims, false);
    for part in [Part::Ops, Part::Models, Part::Batches] {
        let of_part: Vec<&Case> = all.iter().filter(|case| case.part == part).collect();
        let kind = |case: &Case| if part == Part::Ops { case.format.to_string() } else { case.name.clone() };
        let covered = |cases: &[&Case]| -> (HashSet<&'static str>, HashSet<String>) {
            (cases.iter().flat_map(|case| case.ops.clone()).collect(), cases.iter().map(|case| kind(case)).collect())
        };
        for day in [0, 17] {
            let sample = Sample::of_day(SHARE, day);
            let today = sampled(&claims, part, sample);
            assert_eq!(covered(&today.iter().collect::<Vec<_>>()), covered(&of_part), "{part} on day {day}");
            assert!(today.len() < of_part.len() / 4, "{part} on day {day}: {} of {}", today.len(), of_part.len());
            let names: HashSet<String> = today.iter().map(ToString::to_string).collect();
            for (index, case) in of_part.iter().enumerate().filter(|(index, _)| sample.has(*index)) {
                assert!(names.contains(&case.to_string()), "{part} on day {day}: case {index}, {case}");
            }
        }
    }
}
