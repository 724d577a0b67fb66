//! Passes: plan in, plan with the same meaning out. Model files write textbook ops; what is fused, and when, is here.
//!
//! Each pass is one file that finds groups of ops whose intermediates nobody else reads. The meaning of a fused op is
//! the ops it replaces, in the same order of arithmetic: the reference interpreter gives the same bits for both.

mod latent_rope_write;
mod linear_residual;
mod logits;
mod moe;
mod norm_glu;
mod norm_linear;
mod restrict_outputs;
mod rewrite;
mod rope_kv_write;
mod shared_slots;

pub(crate) use rewrite::compact;

use crate::{Plan, WeightId, verify};

/// A pass of [`fuse`], by name. Passes are named after the op that they make; `moe` makes three.
#[derive(Clone, Copy, Debug)]
pub struct Fusion {
    /// As flags and reports call it.
    pub name: &'static str,
    run: fn(&mut Plan),
}

/// The passes of [`fuse`], in their order.
///
/// `logits` before `norm_linear`, which would take the final norm and the head; `norm_glu` before it for the same reason,
/// and before `linear_residual` only by habit: they share no op. `moe` before both, because it wants a norm whose result
/// is read by all of them.
pub static FUSIONS: [Fusion; 7] = [
    Fusion { name: "logits", run: logits::run },
    Fusion { name: "moe", run: moe::run },
    Fusion { name: "norm_glu", run: norm_glu::run },
    Fusion { name: "norm_linear", run: norm_linear::run },
    Fusion { name: "rope_kv_write", run: rope_kv_write::run },
    Fusion { name: "latent_rope_write", run: latent_rope_write::run },
    Fusion { name: "linear_residual", run: linear_residual::run },
];

/// Replaces textbook ops by the fused ops that backends are fast at. `plan` must pass [`verify`](verify()); the result
/// does, has the same weights in the same order, and computes the same numbers.
pub fn fuse(plan: Plan) -> Plan {
    fuse_without(plan, &[])
}

/// As [`fuse`], without the passes of these names: so that what a fusion is worth can be measured.
pub fn fuse_without(plan: Plan, left_out: &[&str]) -> Plan {
    let passes = FUSIONS.iter().filter(|fusion| !left_out.contains(&fusion.name));
    passes.fold(plan, |plan, fusion| run(plan, fusion.run))
}

/// Computes only the rows whose logits are wanted as soon as nothing else is: after the last layer's attention. Saves
/// the last layer's projections for all other rows of a prefill. Runs on textbook ops, before [`fuse`].
///
/// No op is changed but by the rows it is given, so a backend whose rows do not depend on their neighbours gives the
/// same bits with and without.
pub fn restrict_outputs(plan: Plan) -> Plan {
    run(plan, restrict_outputs::run)
}

/// Makes a shared expert one more of the routed ones, where its weights stand right behind theirs and `is_alike` says of each
/// kind of projection that one kernel reads all of them: there is less to launch. Runs on textbook ops, before [`fuse`].
///
/// The row gets the sum of all experts added, and not the shared one's part and then the others' sum: the numbers are the
/// same but for rounding.
pub fn share_slots(plan: Plan, is_alike: impl Fn(&[WeightId]) -> bool) -> Plan {
    run(plan, |plan| shared_slots::run(plan, &is_alike))
}

fn run(mut plan: Plan, pass: impl FnOnce(&mut Plan)) -> Plan {
    pass(&mut plan);
    compact(&mut plan);
    if let Err(error) = verify(&plan) {
        panic!("a pass broke the plan: {error}\n{plan}");
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_plans::{HIDDEN, PLAIN_ROUTER, VOCAB, decoder, latent, mixture, plan_of};
    use crate::{Activation, Graph, Heads, Op, Rope, RopeScaling, RouteWeights, Router, Rows, Scores, Value};

    fn op_names(plan: &Plan) -> Vec<&'static str> {
        plan.ops.iter().map(|op| op.name()).collect()
    }

    #[test]
    fn a_decoder_becomes_the_fused_ops() {
        let text = fuse(decoder()).to_string();
        let expected = "\
v0 = embed(; embed_tokens.weight)
v1, v2, v3 = norm_linear(v0; 0.input_layernorm.weight, 0.q_proj.weight, 0.q_proj.bias, 0.k_proj.weight, 0.k_proj.bias, 0.v_proj.weight, 0.v_proj.bias)
v4 = rope_kv_write(v1, v2, v3; 0.q_norm.weight, 0.k_norm.weight)
v5 = attention(v4; )
v6 = linear_residual(v5, v0; 0.o_proj.weight)
v7 = norm_glu(v6; 0.post_attention_layernorm.weight, 0.gate_proj.weight, 0.up_proj.weight)
v8 = linear_residual(v7, v6; 0.down_proj.weight)
";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.ends_with("v17 = logits(v16; norm.weight, embed_tokens.weight)\n"), "{text}");
    }

    #[test]
    fn latent_attention_becomes_the_fused_ops() {
        let fused = fuse(latent());
        let expected = [
            "embed",
            "norm_linear",
            "latent_rope_write",
            "head_linear",
            "mla_attention",
            "head_linear",
            "linear_residual",
            "logits",
        ];
        assert_eq!(op_names(&fused), expected, "{fused}");
        assert_eq!(fuse(fused.clone()), fused);
    }

    #[test]
    fn the_last_layer_is_restricted_to_output_rows() {
        let plan = fuse(restrict_outputs(decoder()));
        let expected =
            ["select_outputs", "select_outputs", "linear_residual", "norm_glu", "linear_residual", "norm_linear"];
        assert!(op_names(&plan).ends_with(&expected), "{plan}");
        // Nothing else is left to restrict.
        assert_eq!(restrict_outputs(decoder()), restrict_outputs(restrict_outputs(decoder())));
    }

    /// Every weight is there, and the square ones have their columns backwards.
    struct Backwards;

    impl crate::WeightSource for Backwards {
        fn shape(&self, _: &str) -> Option<Vec<usize>> {
            None
        }

        fn order(&self, name: &str) -> Option<&[u32]> {
            match name {
                "q.weight" | "k.weight" => Some(&[3, 2, 1, 0]),
                "o.weight" => Some(&[1, 0, 3, 2]),
                _ => None,
            }
        }

        fn has_everything(&self) -> bool {
            true
        }
    }

    #[test]
    fn what_columns_of_an_order_of_their_own_multiply_is_gathered_once() {
        let plan: Result<_, crate::BuildError> = Graph::build("test", 8, &Backwards, |g, w| {
            let x = g.embed(w.get("table", [4, 4])?, 4);
            let h = g.rms_norm(x, w.norm("norm", 4, 1e-6)?);
            let mut linear = |name, x| Ok::<_, crate::BuildError>(g.linear(x, w.linear(name, 4, 4, false)?, 4));
            let (q, k, v) = (linear("q", h)?, linear("k", h)?, linear("v", h)?);
            let sum = g.glu(q, k, Activation::Relu);
            let sum = g.glu(sum, v, Activation::Relu);
            let o = g.linear(sum, w.linear("o", 4, 4, false)?, 4);
            let x = g.add(x, o);
            Ok(g.select_outputs(x))
        });
        let plan = plan.expect("every weight is there");
        assert_eq!(plan.orders, [[3, 2, 1, 0], [1, 0, 3, 2]]);
        let fused = fuse(plan.clone());
        let expected = [
            "embed",
            "rms_norm",
            "gather_columns",
            "linear",
            "linear",
            "linear",
            "glu",
            "glu",
            "gather_columns",
            "linear_residual",
            "select_outputs",
        ];
        assert_eq!(op_names(&fused), expected, "{fused}");
        // Rows are treated alone, so those of no output need not be gathered.
        let restricted = fuse(restrict_outputs(plan.clone()));
        assert_eq!(op_names(&restricted)[..2], ["embed", "select_outputs"], "{restricted}");
        let mut wrong = plan;
        wrong.orders[1][2] = 4;
        let error = crate::verify(&wrong).unwrap_err().to_string();
        assert!(error.contains("its order names column 4 of 4"), "{error}");
        wrong.orders.pop();
        assert!(crate::verify(&wrong).unwrap_err().to_string().contains("uses order 1, but the plan has 1"));
    }

    #[test]
    fn a_mixture_becomes_the_fused_ops() {
        let fused = fuse(mixture());
        let expected = [
            "embed",
            "moe_route",
            "moe_glu",
            "moe_down",
            "norm_glu",
            "norm_linear",
            "linear",
            "gate_rows",
            "add",
            "norm_glu",
            "linear_residual",
            "moe_route",
            "moe_glu",
            "moe_down",
            "logits",
        ];
        let (mut found, mut wanted) = (op_names(&fused), expected.to_vec());
        assert_eq!(found[..4], wanted[..4], "{fused}");
        // The order of independent ops is not what this is about.
        found.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(found, wanted, "{fused}");
        assert_eq!(fuse(fused.clone()), fused);
        // Of the last layer only the rows that are wanted.
        let restricted = fuse(restrict_outputs(mixture()));
        let all = restricted
            .ops
            .iter()
            .filter(|op| op.outputs().iter().any(|&out| restricted.value(out).rows == Rows::Tokens));
        assert_eq!(all.map(Op::name).collect::<Vec<_>>(), ["embed"], "{restricted}");
    }

    /// One layer of experts and a shared one, with weights in this order.
    fn with_shared_expert(shared_first: bool) -> Plan {
        plan_of(|g, w| {
            let names = ["gate", "up", "down"];
            let linear = |name: &str| w.at("shared").linear(name, VOCAB, VOCAB, false);
            let mut shared = vec![];
            if shared_first {
                shared = names.map(linear).into_iter().collect::<Result<_, _>>()?;
            }
            let mut stacks = vec![];
            for name in names {
                stacks.push(w.experts(|expert| format!("{expert}.{name}"), 4, [VOCAB; 2], false)?);
                if !shared_first {
                    shared.push(linear(name)?);
                }
            }
            let x = g.embed(w.get("table", [VOCAB, VOCAB])?, VOCAB);
            let h = g.rms_norm(x, w.norm("norm", VOCAB, 1e-6)?);
            let (gate, up) = (g.linear(h, shared[0], VOCAB), g.linear(h, shared[1], VOCAB));
            let units = g.glu(gate, up, Activation::Silu);
            let of_shared = g.linear(units, shared[2], VOCAB);
            let logits = g.linear(h, w.linear("router", 4, VOCAB, false)?, 4);
            let router = Router { scores: Scores::Sigmoid, scale: 1.8, ..PLAIN_ROUTER };
            let (ids, weights) = g.route(logits, router);
            let (gate, up) = (g.expert_linear(h, ids, stacks[0], VOCAB), g.expert_linear(h, ids, stacks[1], VOCAB));
            let units = g.glu(gate, up, Activation::Silu);
            let down = g.expert_linear(units, ids, stacks[2], VOCAB);
            let sum = g.combine(down, weights);
            let x = g.add(x, of_shared);
            let x = g.add(sum, x);
            Ok(g.select_outputs(x))
        })
    }

    #[test]
    fn a_shared_expert_becomes_one_of_the_routed_ones_where_its_weights_stand_behind_theirs() {
        let shared = share_slots(with_shared_expert(false), |weights| weights.len() == 5);
        assert_eq!(op_names(&fuse(shared.clone())), ["embed", "moe_route", "moe_glu", "moe_down", "select_outputs"]);
        let router =
            shared.ops.iter().find_map(|op| if let Op::Route { router, .. } = op { Some(router) } else { None });
        assert_eq!(router.map(|router| (router.top_k, router.shared)), Some((2, 1)));
        // Nothing more is left to do.
        assert_eq!(share_slots(shared.clone(), |_| true), shared);
        // Weights that one kernel does not read, or that stand elsewhere.
        for (plan, is_alike) in
            [(with_shared_expert(false), false), (with_shared_expert(true), true), (mixture(), true)]
        {
            assert_eq!(share_slots(plan.clone(), |_| is_alike), plan);
        }
    }

    #[test]
    fn a_shared_expert_among_the_routed_ones_gives_the_same_numbers() {
        use crate::reference::Interpreter;
        use crate::{KvLayout, StepInput};
        let plan = with_shared_expert(false);
        let mut rng = testing::Rng::new(4);
        let random = |weight: &crate::WeightInfo| {
            let values: Vec<f32> = (0..weight.shape.iter().product()).map(|_| rng.normal()).collect();
            tensor::Tensor::from_f32(tensor::WeightFormat::F32, weight.shape.clone(), &values).unwrap()
        };
        let weights: Vec<_> = plan.weights.iter().map(random).collect();
        let kv = KvLayout { format: crate::KvFormat::F32, block_len: 4, num_blocks: 2 };
        let mut step = StepInput::default();
        step.push_sequence(&[3, 1, 2], 0, &[0]);
        step.output_rows = vec![0, 1, 2];
        let run =
            |plan: Plan| Interpreter::new(std::sync::Arc::new(plan), weights.clone(), kv).unwrap().run(&step).unwrap();
        let (expected, found) = (run(plan.clone()), run(share_slots(plan.clone(), |_| true)));
        let largest = expected.iter().fold(0f64, |most, x| most.max(x.abs()));
        assert!(expected.iter().zip(&found).all(|(a, b)| (a - b).abs() <= 1e-12 * largest), "{expected:?} {found:?}");
    }

    #[test]
    fn experts_whose_row_others_read_stay_as_they_are() {
        let plan = plan_of(|g, w| {
            let x = g.embed(w.get("table", [VOCAB, VOCAB])?, VOCAB);
            let h = g.rms_norm(x, w.norm("norm", VOCAB, 1e-6)?);
            let logits = g.linear(h, w.linear("gate", 4, VOCAB, false)?, 4);
            let router = Router { top_k: 1, weights: RouteWeights::Scores, ..PLAIN_ROUTER };
            let (ids, weights) = g.route(logits, router);
            let up = w.experts(|expert| format!("experts.{expert}"), 4, [VOCAB, VOCAB], false)?;
            let y = g.expert_linear(h, ids, up, VOCAB);
            let y = g.combine(y, weights);
            let y = g.add(h, y);
            Ok(g.select_outputs(y))
        });
        // One slice of one expert is as wide as the row, so the sum is `moe_down` all the same.
        let expected = ["embed", "rms_norm", "linear", "route", "moe_down", "select_outputs"];
        assert_eq!(op_names(&fuse(plan)), expected);
    }

    #[test]
    fn a_pass_that_is_left_out_makes_none_of_its_ops() {
        let without = fuse_without(decoder(), &["norm_glu", "linear_residual"]);
        let names = op_names(&without);
        assert!(names.contains(&"glu") && names.contains(&"add") && names.contains(&"norm_linear"), "{without}");
        assert!(!names.contains(&"norm_glu") && !names.contains(&"linear_residual"), "{without}");
        assert_eq!(without.weights, fuse(decoder()).weights);
        let all: Vec<_> = FUSIONS.iter().map(|fusion| fusion.name).collect();
        assert_eq!(fuse_without(decoder(), &all), decoder());
        // What is left out is made by no other pass, but for `moe`, which makes more than one op.
        for fusion in FUSIONS.iter().filter(|fusion| fusion.name != "moe") {
            let plans = [decoder(), latent()].map(|plan| fuse_without(plan, &[fusion.name]));
            assert!(plans.iter().all(|plan| !op_names(plan).contains(&fusion.name)), "{}", fusion.name);
        }
    }

    #[test]
    fn fusing_twice_is_fusing_once() {
        assert_eq!(fuse(fuse(decoder())), fuse(decoder()));
    }

    #[test]
    fn logits_are_found_in_each_order() {
        type Tail = fn(&mut Graph, &crate::Weights<'_>, Value) -> Value;
        let norm_select: Tail = |g, w, x| {
            let x = g.rms_norm(x, w.norm("norm", HIDDEN, 1e-6).unwrap());
            let x = g.select_outputs(x);
            g.linear(x, w.linear("head", VOCAB, HIDDEN, true).unwrap(), VOCAB)
        };
        let select_norm: Tail = |g, w, x| {
            let x = g.select_outputs(x);
            let x = g.rms_norm(x, w.norm("norm", HIDDEN, 1e-6).unwrap());
            g.linear(x, w.linear("head", VOCAB, HIDDEN, true).unwrap(), VOCAB)
        };
        let select_last: Tail = |g, w, x| {
            let x = g.rms_norm(x, w.norm("norm", HIDDEN, 1e-6).unwrap());
            let x = g.linear(x, w.linear("head", VOCAB, HIDDEN, true).unwrap(), VOCAB);
            g.select_outputs(x)
        };
        for tail in [norm_select, select_norm, select_last] {
            let plan = plan_of(|g, w| {
                let x = g.embed(w.get("table", [VOCAB, HIDDEN])?, HIDDEN);
                Ok(tail(g, w, x))
            });
            assert_eq!(op_names(&fuse(plan)), ["embed", "logits"]);
        }
    }

    /// Every intermediate below has a second reader, which a fused op would leave without it.
    #[test]
    fn what_others_read_is_not_fused_away() {
        let square = |g: &mut Graph, w: &crate::Weights<'_>, name: &str, x| {
            Ok::<_, crate::BuildError>(g.linear(x, w.linear(name, VOCAB, VOCAB, false)?, VOCAB))
        };
        // The normalised row is also added.
        let plan = plan_of(|g, w| {
            let x = g.embed(w.get("table", [VOCAB, VOCAB])?, VOCAB);
            let h = g.rms_norm(x, w.norm("norm", VOCAB, 1e-6)?);
            let y = square(g, w, "proj", h)?;
            let sum = g.add(h, y);
            Ok(g.select_outputs(sum))
        });
        assert_eq!(op_names(&fuse(plan)), ["embed", "rms_norm", "linear_residual", "select_outputs"]);

        // The projection is also added to itself.
        let plan = plan_of(|g, w| {
            let x = g.embed(w.get("table", [VOCAB, VOCAB])?, VOCAB);
            let y = square(g, w, "proj", x)?;
            let sum = g.add(y, y);
            Ok(g.select_outputs(sum))
        });
        assert_eq!(op_names(&fuse(plan)), ["embed", "linear", "add", "select_outputs"]);

        // The gate is also its own up, and the gate of a second unit.
        let plan = plan_of(|g, w| {
            let x = g.embed(w.get("table", [VOCAB, VOCAB])?, VOCAB);
            let h = g.rms_norm(x, w.norm("norm", VOCAB, 1e-6)?);
            let gate = square(g, w, "gate", h)?;
            let up = square(g, w, "up", h)?;
            let a = g.glu(gate, up, Activation::Silu);
            let b = g.glu(gate, gate, Activation::Silu);
            let y = g.glu(a, b, Activation::Silu);
            Ok(g.select_outputs(y))
        });
        assert_eq!(op_names(&fuse(plan)), ["embed", "norm_linear", "glu", "glu", "glu", "select_outputs"]);
    }

    #[test]
    fn a_norm_of_slices_is_not_taken_for_a_norm_of_rows() {
        let plan = plan_of(|g, w| {
            let x = g.embed(w.get("table", [VOCAB, HIDDEN])?, HIDDEN);
            let h = g.rms_norm(x, w.norm("norm", HIDDEN / 3, 1e-6)?);
            let h = g.select_outputs(h);
            Ok(g.linear(h, w.linear("head", VOCAB, HIDDEN, false)?, VOCAB))
        });
        assert_eq!(op_names(&fuse(plan)), ["embed", "rms_norm", "select_outputs", "linear"]);
    }

    #[test]
    fn a_turned_query_that_others_read_earlier_stays_apart_from_the_cache_write() {
        let heads = Heads { heads: 2, kv_heads: 2, head_dim: 4, scale: 0.5, window: None, sinks: None };
        let rope = Rope { head_dim: 4, dims: 4, theta: 100.0, scaling: RopeScaling::None, attention_factor: 1.0 };
        let plan = plan_of(|g, w| {
            let embed = |g: &mut Graph, name: &str| Ok::<_, crate::BuildError>(g.embed(w.get(name, [8, 8])?, 8));
            let (q, k, v) = (embed(g, "q")?, embed(g, "k")?, embed(g, "v")?);
            let (q, k) = (g.rope(q, &rope), g.rope(k, &rope));
            let v = g.add(v, q);
            let o = g.attention(q, k, v, heads);
            Ok(g.select_outputs(o))
        });
        let names = op_names(&fuse(plan));
        assert_eq!(names[3..], ["rope", "rope", "add", "kv_write", "attention", "select_outputs"]);
    }
}
