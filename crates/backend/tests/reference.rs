//! The reference interpreter passes the suite that it is the oracle of: so the suite itself, its bounds included, is
//! consistent.

use backend::conformance::{Part, run_part};
use backend::reference::ReferenceBackend;

#[test]
fn ops() {
    run_part(&[&ReferenceBackend::new()], Part::Ops);
}

#[test]
fn models() {
    run_part(&[&ReferenceBackend::new()], Part::Models);
}

#[test]
fn caches() {
    run_part(&[&ReferenceBackend::new()], Part::Caches);
}

#[test]
fn batches() {
    run_part(&[&ReferenceBackend::new()], Part::Batches);
}

#[test]
fn refusals() {
    run_part(&[&ReferenceBackend::new()], Part::Refusals);
}
