//! One name for all experts of a layer whose names differ only in their number: a mixture has thousands of experts. The
//! heads of latent attention have matrices of their own, and are named in the same way.

/// What stands in front of the number of an expert, or of a head, in the names of checkpoints.
const NUMBERED: [&str; 3] = [".experts.", ".k_b_proj.", ".v_b_proj."];

/// `model.layers.0.mlp.experts.*.up_proj.weight` for each of `model.layers.0.mlp.experts.N.up_proj.weight`; `None` for
/// the name of a tensor that is not one of several experts or heads.
pub(crate) fn of_any_expert(name: &str) -> Option<String> {
    let (kind, before, rest) = NUMBERED.into_iter().find_map(|kind| {
        let (before, rest) = name.split_once(kind)?;
        Some((kind, before, rest))
    })?;
    let (number, after) = rest.split_once('.')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| format!("{before}{kind}*.{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_expert_is_left_out_and_nothing_else() {
        let of = |name: &str| of_any_expert(name);
        let all = Some("model.layers.3.mlp.experts.*.up_proj.weight".to_owned());
        assert_eq!(of("model.layers.3.mlp.experts.12.up_proj.weight"), all);
        let w1 = Some("model.layers.0.block_sparse_moe.experts.*.w1.weight".to_owned());
        assert_eq!(of("model.layers.0.block_sparse_moe.experts.0.w1.weight"), w1);
        let heads = Some("model.layers.0.self_attn.k_b_proj.*.weight".to_owned());
        assert_eq!(of("model.layers.0.self_attn.k_b_proj.19.weight"), heads);
        let others = ["model.layers.3.mlp.experts.down_proj", "model.layers.3.mlp.shared_experts.up_proj.weight"];
        assert_eq!(others.map(of), [None, None]);
    }
}
