//! A backend that does not compute everything yet: models that ask for more are refused by name, and the suite leaves out
//! their cases and no others.

use std::collections::BTreeSet;
use std::sync::Arc;

use backend::conformance::{Part, cases};
use backend::reference::ReferenceBackend;
use backend::{Backend, BackendError, Claims, DeviceInfo, Executable, Feature, check_load};
use plan::{KvLayout, Op, Plan};
use tensor::{Tensor, WeightFormat};
use testing::{GOLDEN_KV, MODEL_TYPES, tiny_model};

/// The reference, with what few models ask for left out.
struct Lacking(ReferenceBackend);

impl Backend for Lacking {
    fn device(&self) -> &DeviceInfo {
        self.0.device()
    }

    fn supports(&self, op: &Op, formats: &[WeightFormat]) -> bool {
        self.0.supports(op, formats)
    }

    fn claims(&self) -> Claims {
        let lacks = &[Feature::AttentionSinks, Feature::PartialRotation, Feature::LatentAttention];
        Claims { lacks, formats: vec![WeightFormat::F32], ..self.0.claims() }
    }

    fn load(&self, plan: Arc<Plan>, weights: Vec<Tensor>, kv: KvLayout) -> Result<Box<dyn Executable>, BackendError> {
        check_load(self, &plan, &weights)?;
        self.0.load(plan, weights, kv)
    }
}

#[test]
fn models_that_ask_for_more_are_refused_by_name() {
    let backend = Lacking(ReferenceBackend::new());
    for model_type in MODEL_TYPES {
        let (plan, weights) = tiny_model(model_type, 1, WeightFormat::F32);
        let lacking = match backend.load(plan, weights, GOLDEN_KV) {
            Ok(_) => None,
            Err(BackendError::Lacks { feature, .. }) => Some(feature),
            Err(other) => panic!("{model_type}: {other}"),
        };
        let expected = match model_type {
            "gpt_oss" => Some(Feature::AttentionSinks),
            "glm4_moe" => Some(Feature::PartialRotation),
            "deepseek_v2" | "deepseek_v3" | "glm4_moe_lite" => Some(Feature::LatentAttention),
            _ => None,
        };
        assert_eq!(lacking, expected, "{model_type}");
    }
}

#[test]
fn the_suite_leaves_out_what_a_backend_lacks() {
    let lacking = Lacking(ReferenceBackend::new()).claims();
    let names = |claims: &Claims, part| {
        let cases = cases(claims, false).into_iter().filter(move |case| case.part == part);
        cases.map(|case| case.name).collect::<BTreeSet<_>>()
    };
    let ops = &["with sinks", "rope of the first", "latent attention", "matrices of their own"][..];
    for (part, lacks) in [(Part::Ops, ops), (Part::Models, &["gpt_oss", "glm4_moe", "deepseek"])] {
        let all = names(&Claims { lacks: &[], ..lacking.clone() }, part);
        let (left_out, run): (BTreeSet<_>, BTreeSet<_>) =
            all.into_iter().partition(|name| lacks.iter().any(|&lacks| name.contains(lacks)));
        assert!(left_out.len() >= 2, "{part}: {left_out:?}");
        assert_eq!(names(&lacking, part), run);
    }
}
