//! From a checkpoint to its plan: the ops of its architecture over the tensors that the file has.

use std::collections::HashMap;

use anyhow::{Result, bail};
use formats::Checkpoint;
use plan::{Plan, WeightId, WeightSource};
use tensor::WeightFormat;

/// What the model files ask a checkpoint.
struct Headers<'a> {
    shapes: HashMap<String, Vec<usize>>,
    checkpoint: &'a Checkpoint,
}

impl<'a> Headers<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Self {
        // A dimension beyond the address space fits no configuration, and is refused as the wrong shape that it is.
        let dimension = |&d: &u64| usize::try_from(d).unwrap_or(usize::MAX);
        let shapes = checkpoint.tensor_infos().map(|info| (info.name, info.shape.iter().map(dimension).collect()));
        Self { shapes: shapes.collect(), checkpoint }
    }
}

impl WeightSource for Headers<'_> {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.shapes.get(name).cloned()
    }

    fn order(&self, name: &str) -> Option<&[u32]> {
        self.checkpoint.order(name)
    }
}

/// Refuses a model without a head, for what needs one.
pub(crate) fn check_head(has_head: bool, name: &str) -> Result<()> {
    if !has_head {
        bail!(
            "`{name}` was saved without its head, so it generates no text: `hotmetal serve` makes vectors of texts with it \
             (/v1/embeddings)"
        );
    }
    Ok(())
}

/// The plan of a checkpoint's tensors if its configuration were `config`.
pub(crate) fn plan_with_config(checkpoint: &Checkpoint, config: &serde_json::Value) -> Result<Plan> {
    Ok(models::build_plan(config, &Headers::of(checkpoint))?)
}

/// The textbook plan of a checkpoint. Every tensor must be read by some op.
pub(crate) fn plan_of(checkpoint: &Checkpoint) -> Result<Plan> {
    let plan = plan_with_config(checkpoint, &checkpoint.config)?;
    let mut unread = models::unread(&plan, checkpoint.tensor_names());
    if checkpoint.quantization.is_some() {
        // AutoGPTQ gives every projection a bias, of zeros where the model has none.
        unread.retain(|name| !(name.ends_with(".bias") && is_zero(checkpoint, name)));
    }
    if let Some(first) = unread.first() {
        bail!(
            "{} tensors are not part of a `{}` model as its configuration describes it, the first of them `{first}`: \
             the configuration or the weights are another model's",
            unread.len(),
            plan.model_type,
        );
    }
    Ok(plan)
}

/// What flags call the pass [`plan::share_slots`].
pub(crate) const SHARED_SLOT: &str = "shared_slot";
/// What flags call the pass [`plan::restrict_outputs`].
const RESTRICT_OUTPUTS: &str = "restrict_outputs";

/// What passes share and none can do without, with the reason.
const NEEDED: [(&str, &str); 2] = [
    (
        "rewrite",
        "every pass replaces ops by it, and behind each it takes away what nobody reads: the plan would be refused",
    ),
    ("verify", "it holds what a pass made to the rules of plans: a wrong plan would be computed"),
];

/// The passes of [`optimised`] that make fused ops or save some, and that can be left out: every plan means the same
/// without.
pub(crate) fn passes() -> impl Iterator<Item = &'static str> {
    [RESTRICT_OUTPUTS, SHARED_SLOT].into_iter().chain(plan::FUSIONS.iter().map(|fusion| fusion.name))
}

/// The pass of that name. An error says why it cannot be left out, or which can be.
pub(crate) fn pass(name: &str) -> Result<&'static str, String> {
    if let Some((_, why)) = NEEDED.iter().find(|(needed, _)| *needed == name) {
        return Err(format!("{name} cannot be left out: {why}"));
    }
    let known = || passes().collect::<Vec<_>>().join(", ");
    passes().find(|&pass| pass == name).ok_or_else(|| format!("expected pass=PASS with one of {}", known()))
}

/// The plan that computes what `textbook` means, of weights in these formats, in their order: without the passes whose names
/// `left_out` has.
pub(crate) fn optimised(textbook: Plan, formats: &[WeightFormat], left_out: &[&str]) -> Plan {
    let restricted = match left_out.contains(&RESTRICT_OUTPUTS) {
        true => textbook,
        false => plan::restrict_outputs(textbook),
    };
    plan::fuse_without(with_shared_slots(restricted, formats, left_out), left_out)
}

/// The same in textbook ops, where shared experts are among the routed ones if these are all in one format.
pub(crate) fn with_shared_slots(textbook: Plan, formats: &[WeightFormat], left_out: &[&str]) -> Plan {
    if left_out.contains(&SHARED_SLOT) {
        return textbook;
    }
    plan::share_slots(textbook, |weights| {
        let format = |weight: &WeightId| formats.get(weight.index());
        weights.iter().all(|weight| format(weight).is_some() && format(weight) == format(&weights[0]))
    })
}

/// Whether a tensor can be read and is nothing but zeros.
fn is_zero(checkpoint: &Checkpoint, name: &str) -> bool {
    checkpoint.tensor(name).is_ok_and(|tensor| tensor.to_f32().iter().all(|&value| value == 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pass_can_be_left_out_or_says_why_it_cannot() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../plan/src/passes");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let names: Vec<_> = files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        assert!(names.len() > plan::FUSIONS.len(), "{names:?}");
        for name in names.iter().filter(|name| *name != "mod") {
            // Flags say one slot, and the file is about all of them.
            let name = name.strip_suffix('s').filter(|&name| name == SHARED_SLOT).unwrap_or(name);
            match pass(name) {
                Ok(found) => assert_eq!(found, name),
                Err(why) => assert!(why.starts_with(&format!("{name} cannot be left out: ")), "{why}"),
            }
        }
    }
}
