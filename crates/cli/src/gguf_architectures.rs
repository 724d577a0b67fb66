//! The registry of models as `formats` asks for it, which knows no models: what GGUF files call each architecture.
//!
//! Tests of this crate and of `models` include this file, so that they read files as the program does.

use std::sync::LazyLock;

use formats::gguf_names::{Architecture, Names};

static ARCHITECTURES: LazyLock<Vec<Architecture>> = LazyLock::new(|| {
    let of_model = |model: models::Architecture| Architecture {
        model_type: model.model_type,
        class: model.class,
        names: model.gguf.architectures,
        keys: model.gguf.keys,
        layer_tensors: model.gguf.layer_tensors,
        expert_tensors: model.gguf.expert_tensors,
        alternates_experts: model.gguf.alternates_experts,
        tensor_flags: model.gguf.tensor_flags,
        implied: model.gguf.implied,
        pairs_rows: model.gguf.pairs_rows,
    };
    models::architectures().map(of_model).collect()
});

/// Every architecture in the registry.
pub(crate) fn all() -> &'static [Architecture] {
    &ARCHITECTURES
}

/// What GGUF files of the model with this `model_type` call its parts.
pub(crate) fn names(model_type: &str) -> Names {
    Names::of_model(model_type, all())
}
