//! The reference interpreter passes the suite that it is the oracle of: so the suite itself, its bounds included, is
//! consistent.

use backend::conformance::{Part, Sample, run_part};
use backend::reference::ReferenceBackend;

#[test]
fn ops() {
    run_part(&[&ReferenceBackend::new()], Part::Ops, Sample::of_today(3));
}

#[test]
fn models() {
    run_part(&[&ReferenceBackend::new()], Part::Models, Sample::of_today(3));
}

#[test]
fn caches() {
    run_part(&[&ReferenceBackend::new()], Part::Caches, Sample::of_today(3));
}

#[test]
fn batches() {
    run_part(&[&ReferenceBackend::new()], Part::Batches, Sample::of_today(5));
}

#[test]
fn refusals() {
    run_part(&[&ReferenceBackend::new()], Part::Refusals, Sample::ALL);
}
