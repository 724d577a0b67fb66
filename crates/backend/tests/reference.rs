//! The reference interpreter passes the suite that it is the oracle of: so the suite itself, its bounds included, is
//! consistent.

use backend::conformance::{self, Claims};
use backend::reference::ReferenceBackend;
use plan::KvFormat;
use tensor::WeightFormat;
use testing::ActivationRounding;

fn claims() -> Claims {
    Claims {
        formats: WeightFormat::ALL.to_vec(),
        kv_formats: vec![KvFormat::F32, KvFormat::F16],
        block_lens: vec![16, 5],
        activations: |_| ActivationRounding::F32,
        bit_exact: true,
    }
}

#[test]
fn ops() {
    conformance::ops(&ReferenceBackend::new(), &claims());
}

#[test]
fn models() {
    conformance::models(&ReferenceBackend::new(), &claims());
}

#[test]
fn caches() {
    conformance::caches(&ReferenceBackend::new(), &claims());
}

#[test]
fn batches() {
    conformance::batches(&ReferenceBackend::new(), &claims());
}

#[test]
fn refusals() {
    conformance::refusals(&ReferenceBackend::new(), &claims());
}
