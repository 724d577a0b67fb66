//! Which format a matrix gets: one for all, or the mixtures that llama.cpp's quantiser has, by their names.

use std::str::FromStr;

use plan::{Plan, WeightInfo};
use tensor::WeightFormat;

use crate::gguf_architectures;

/// What `--format` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mix {
    name: &'static str,
    /// What most matrices become.
    pub(crate) base: WeightFormat,
    /// The number that llama.cpp gives such a file.
    pub(crate) file_type: u32,
}

const fn mix(name: &'static str, base: WeightFormat, file_type: u32) -> Mix {
    Mix { name, base, file_type }
}

/// Every name.
pub(crate) const MIXES: [Mix; 24] = {
    use WeightFormat as W;
    [
        mix("f32", W::F32, 0),
        mix("f16", W::F16, 1),
        mix("bf16", W::BF16, 32),
        mix("q8_0", W::Q8_0, 7),
        mix("q6_k", W::Q6_K, 18),
        mix("q5_k", W::Q5_K, 16),
        mix("q5_1", W::Q5_1, 9),
        mix("q5_0", W::Q5_0, 8),
        mix("q4_k", W::Q4_K, 14),
        mix("q4_1", W::Q4_1, 3),
        mix("q4_0", W::Q4_0, 2),
        mix("iq4_nl", W::IQ4_NL, 25),
        mix("iq4_xs", W::IQ4_XS, 30),
        mix("mxfp4", W::MXFP4, 38),
        mix("nvfp4", W::NVFP4, 39),
        mix("q3_k", W::Q3_K, 11),
        mix("q2_k", W::Q2_K, 10),
        mix("q5_k_m", W::Q5_K, 17),
        mix("q5_k_s", W::Q5_K, 16),
        mix("q4_k_m", W::Q4_K, 15),
        mix("q4_k_s", W::Q4_K, 14),
        mix("q3_k_l", W::Q3_K, 13),
        mix("q3_k_m", W::Q3_K, 12),
        mix("q3_k_s", W::Q3_K, 11),
    ]
};

/// What is meant where only bits are said.
const BY_BITS: [(&str, &str); 4] = [("q4", "q4_k_m"), ("q5", "q5_k_m"), ("q6", "q6_k"), ("q8", "q8_0")];

/// Of which layers a rule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layers {
    All,
    /// All, of models where at least four heads of queries share one of keys and values: `attn_v` is small there.
    AllIfShared,
    /// So many.
    First(usize),
    /// One part in so many, from the first.
    FirstPart(usize),
    /// As that, where scales are chosen by importance.
    FirstPartWeighed(usize),
    /// As that, where they are not.
    FirstPartUnweighed(usize),
    /// The first and the last eighth, and every third between.
    Spread,
}

/// What llama.cpp's quantiser gives more bits than the rest of a file: in files of this name, matrices of this kind in
/// these layers become this. The first that fits counts.
///
/// Of eight experts, [`of_eight_experts`] comes before.
const RULES: [(&str, &str, Layers, WeightFormat); 24] = {
    use Layers::{All, AllIfShared, First, FirstPart, FirstPartUnweighed, FirstPartWeighed, Spread};
    use WeightFormat::{Q3_K, Q4_1, Q4_K, Q5_1, Q5_K, Q6_K};
    [
        ("q2_k", "attn_v", AllIfShared, Q4_K),
        ("q2_k", "attn_v", All, Q3_K),
        ("q2_k", "attn_output", All, Q3_K),
        ("q2_k", "ffn_down", All, Q3_K),
        ("q3_k_m", "attn_v", First(2), Q5_K),
        ("q3_k_m", "attn_v", All, Q4_K),
        ("q3_k_m", "attn_output", All, Q4_K),
        ("q3_k_m", "ffn_down", FirstPart(16), Q5_K),
        ("q3_k_m", "ffn_down", All, Q4_K),
        ("q3_k_l", "attn_v", All, Q5_K),
        ("q3_k_l", "attn_output", All, Q5_K),
        ("q3_k_l", "ffn_down", All, Q5_K),
        ("q4_k_s", "attn_v", First(4), Q5_K),
        ("q4_k_s", "ffn_down", FirstPart(8), Q5_K),
        ("q4_k_m", "attn_v", Spread, Q6_K),
        ("q4_k_m", "ffn_down", Spread, Q6_K),
        ("q5_k_m", "attn_v", Spread, Q6_K),
        ("q5_k_m", "ffn_down", Spread, Q6_K),
        ("iq4_nl", "attn_v", AllIfShared, Q5_K),
        ("iq4_nl", "ffn_down", FirstPartUnweighed(8), Q5_K),
        ("iq4_xs", "attn_v", AllIfShared, Q5_K),
        ("iq4_xs", "ffn_down", FirstPartUnweighed(8), Q5_K),
        ("q4_0", "ffn_down", FirstPartWeighed(8), Q4_1),
        ("q5_0", "ffn_down", FirstPartWeighed(8), Q5_1),
    ]
};

/// What the names of matrices of experts end with, and of those of an expert that every token takes.
const EXPERTS: &str = "_exps";
const SHARED_EXPERTS: &str = "_shexp";

/// Mixtures in which `attn_output` has five bits where a layer has eight experts, as in llama.cpp; in all others it is
/// as the rest there.
const FIVE_BITS_OF_EIGHT_EXPERTS: [&str; 7] = ["q2_k", "q3_k_s", "q3_k_m", "iq4_nl", "iq4_xs", "q4_k_s", "q4_k_m"];

/// What a matrix of attention becomes where a layer has eight experts, as Mixtral's have: attention is a small part
/// there.
fn of_eight_experts(mix: &Mix, kind: &str) -> Option<WeightFormat> {
    match kind {
        "attn_v" | "attn_k" if mix.base.is_quantized() => Some(WeightFormat::Q8_0),
        "attn_output" if FIVE_BITS_OF_EIGHT_EXPERTS.contains(&mix.name) => Some(WeightFormat::Q5_K),
        "attn_output" => Some(mix.base),
        _ => None,
    }
}

/// Layers of models that llama.cpp takes for those of 70 billion parameters: `attn_v` has more bits there.
const LAYERS_OF_70B: usize = 80;

impl FromStr for Mix {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let short = BY_BITS.into_iter().find(|(short, _)| short.eq_ignore_ascii_case(name));
        let name = short.map_or(name, |(_, name)| name);
        let mix = MIXES.into_iter().find(|mix| mix.name.eq_ignore_ascii_case(name));
        mix.ok_or_else(|| {
            let shorts = BY_BITS.map(|(short, name)| format!("{short} ({name})")).join(", ");
            format!("expected one of {}; or {shorts}", MIXES.map(|mix| mix.name).join(", "))
        })
    }
}

/// What the rules ask of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Model {
    /// Layers.
    layers: usize,
    /// Whether the embeddings are the output matrix, too.
    tied: bool,
    /// Heads of queries that share one of keys and values.
    sharing: u64,
    /// Whether scales are chosen by importance.
    weighed: bool,
    /// Experts of a layer; none where it is no mixture.
    experts: u64,
}

impl Model {
    /// What they ask of a model of these matrices, by GGUF's names and with the number of rows, or of experts.
    pub(crate) fn of(matrices: impl Iterator<Item = (String, u64)>, weighed: bool) -> Self {
        let (mut layers, mut tied, mut queries, mut keys, mut experts) = (0, true, 0, 0, 0);
        for (name, rows) in matrices {
            tied &= name != "output.weight";
            if let Some((layer, kind)) = layer_of(&name) {
                layers = layers.max(layer + 1);
                match kind {
                    "attn_q" => queries = rows,
                    "attn_k" => keys = rows,
                    _ if kind.ends_with(EXPERTS) => experts = experts.max(rows),
                    _ => {}
                }
            }
        }
        Self { layers, tied, sharing: queries.checked_div(keys).unwrap_or(0), weighed, experts }
    }

    /// What they ask of the model that `plan` computes.
    pub(crate) fn of_plan(plan: &Plan) -> Self {
        let names = gguf_architectures::names(&plan.model_type);
        let of = |weight: &WeightInfo| match names.gguf_expert(&weight.name) {
            Some((name, expert)) => (name, u64::from(expert) + 1),
            None => {
                let name = names.gguf_name(&weight.name).unwrap_or_default();
                (name, weight.shape.first().map_or(0, |&rows| rows as u64))
            }
        };
        Self::of(plan.weights.iter().map(of), false)
    }

    /// Whether the embeddings are the output matrix, too.
    pub(crate) fn is_tied(self) -> bool {
        self.tied
    }

    fn has(self, layer: usize, layers: Layers) -> bool {
        let in_part = |part: usize| layer < self.layers / part;
        match layers {
            Layers::All => true,
            Layers::AllIfShared => self.sharing >= 4,
            Layers::First(count) => layer < count,
            Layers::FirstPart(part) => in_part(part),
            Layers::FirstPartWeighed(part) => in_part(part) && self.weighed,
            Layers::FirstPartUnweighed(part) => in_part(part) && !self.weighed,
            Layers::Spread => in_part(8) || layer >= 7 * self.layers / 8 || (layer - self.layers / 8) % 3 == 2,
        }
    }
}

impl Mix {
    /// The name, as `--format` takes it.
    pub(crate) fn name(self) -> &'static str {
        self.name
    }

    /// What the matrix with this GGUF name becomes: a format of shorter blocks where those of its own do not divide its
    /// rows, F16 where those do not, either.
    pub(crate) fn format_of_rows(self, name: &str, model: Model, row_len: usize) -> Option<WeightFormat> {
        let format = self.format_of(name, model);
        let formats = [format, in_short_blocks(format), WeightFormat::F16];
        formats.into_iter().find(|format| row_len.is_multiple_of(format.block_len()))
    }

    fn format_of(self, name: &str, model: Model) -> WeightFormat {
        use WeightFormat::{F32, MXFP4, NVFP4, Q3_K, Q4_K, Q5_K, Q6_K, Q8_0};
        let kind = layer_of(name).map(|(_, kind)| kind);
        // The choice of experts is a jump: a rounding may take another one.
        if kind.is_some_and(|kind| kind == "ffn_gate_inp" || kind == "ffn_gate_inp_shexp") {
            return F32;
        }
        // What every token passes through is a small part of a mixture, and four bits lose most of it.
        if self.base == MXFP4 && model.experts > 0 && !kind.is_some_and(|kind| kind.ends_with(EXPERTS)) {
            return Q8_0;
        }
        // Embeddings are looked up without the scale that NVFP4 has beside a matrix.
        let is_embedding = name == "token_embd.weight" && (model.tied || self.base == NVFP4);
        if name == "output.weight" || is_embedding {
            // What every token passes through.
            return if self.base.is_quantized() && self.base != Q8_0 { Q6_K } else { self.base };
        }
        let Some((layer, kind)) = layer_of(name) else { return self.base };
        let of_experts = [EXPERTS, SHARED_EXPERTS].into_iter().find_map(|end| kind.strip_suffix(end));
        let kind = of_experts.unwrap_or(kind);
        if let Some(format) = of_eight_experts(&self, kind).filter(|_| model.experts == 8) {
            return format;
        }
        let rule =
            RULES.iter().find(|&&(mix, of, layers, _)| (mix, of) == (self.name, kind) && model.has(layer, layers));
        match rule.map_or(self.base, |&(.., format)| format) {
            Q3_K | Q4_K if kind == "attn_v" && model.layers == LAYERS_OF_70B => Q5_K,
            format => format,
        }
    }
}

/// What llama.cpp's quantiser takes instead of blocks of 256: blocks of 32, of as many bits or a few more.
fn in_short_blocks(format: WeightFormat) -> WeightFormat {
    use WeightFormat::{IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_0, Q4_K, Q5_0, Q5_1, Q5_K, Q8_0};
    match format {
        Q2_K | Q3_K => Q4_0,
        IQ4_XS => IQ4_NL,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        // Of Q6_K, and what llama.cpp has nothing for.
        _ => Q8_0,
    }
}

/// Layer and kind of a matrix: `blk.3.ffn_down.weight`.
fn layer_of(name: &str) -> Option<(usize, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, rest.strip_suffix(".weight")?))
}

#[cfg(test)]
mod tests {
    use formats::gguf::GgmlType;

    use super::*;

    const MODEL: Model = Model { layers: 32, tied: false, sharing: 1, weighed: false, experts: 0 };

    fn of(mix: &str, name: &str, model: Model) -> WeightFormat {
        mix.parse::<Mix>().unwrap().format_of(name, model)
    }

    #[test]
    fn mixtures_are_those_that_llama_cpp_makes() {
        use WeightFormat::{IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K};
        let shared = Model { sharing: 4, ..MODEL };
        let weighed = Model { weighed: true, ..MODEL };
        let of_70b = Model { layers: 80, sharing: 8, ..MODEL };
        // Of 32 layers: 0 to 3, 6, 9, …, 27, and 28 to 31.
        let chosen = |layer: usize| !(4..28).contains(&layer) || layer.is_multiple_of(3);
        for layer in 0..32 {
            let name = |kind: &str| format!("blk.{layer}.{kind}.weight");
            let (v, down, output) = (name("attn_v"), name("ffn_down"), name("attn_output"));
            let first = |count: usize, inside, outside| if layer < count { inside } else { outside };
            for (mix, base) in [("q4_k_m", Q4_K), ("Q5_K_M", Q5_K)] {
                let expected = if chosen(layer) { Q6_K } else { base };
                assert_eq!([of(mix, &v, MODEL), of(mix, &down, MODEL)], [expected; 2], "{layer}");
                assert_eq!([of(mix, &name("attn_q"), MODEL), of(mix, &output, MODEL)], [base; 2]);
            }
            assert_eq!([of("q4_k_s", &v, MODEL), of("q4_k_s", &down, MODEL)], [first(4, Q5_K, Q4_K); 2], "{layer}");
            assert_eq!(of("q3_k_m", &v, MODEL), first(2, Q5_K, Q4_K));
            assert_eq!([of("q3_k_m", &down, MODEL), of("q3_k_m", &output, MODEL)], [first(2, Q5_K, Q4_K), Q4_K]);
            assert_eq!([&v, &down, &output].map(|name| of("q3_k_l", name, MODEL)), [Q5_K; 3]);
            assert_eq!([&v, &down, &output].map(|name| of("q3_k_s", name, shared)), [Q3_K; 3]);
            assert_eq!([&v, &down, &output].map(|name| of("q2_k", name, MODEL)), [Q3_K; 3]);
            assert_eq!([of("q2_k", &v, shared), of("q2_k", &name("attn_k"), shared)], [Q4_K, Q2_K]);
            for (mix, base) in [("iq4_nl", IQ4_NL), ("iq4_xs", IQ4_XS)] {
                assert_eq!([of(mix, &v, MODEL), of(mix, &v, shared)], [base, Q5_K]);
                assert_eq!([of(mix, &down, MODEL), of(mix, &down, weighed)], [first(4, Q5_K, base), base]);
            }
            for (mix, base, better) in [("q4_0", Q4_0, Q4_1), ("q5_0", Q5_0, Q5_1)] {
                assert_eq!([of(mix, &down, MODEL), of(mix, &down, weighed)], [base, first(4, better, base)]);
            }
            // 70 billion parameters.
            assert_eq!([of("q3_k_s", &v, of_70b), of("q4_k_s", &v, of_70b), of("q2_k", &v, of_70b)], [Q5_K; 3]);
            assert_eq!([of("q3_k_s", &down, of_70b), of("q4_0", &v, of_70b)], [Q3_K, Q4_0]);
        }
        assert!("q4_k_xl".parse::<Mix>().unwrap_err().contains("q4_k_m"));
    }

    #[test]
    fn experts_are_as_the_matrices_of_that_name_and_routers_stay_exact() {
        use WeightFormat::{F32, MXFP4, Q4_K, Q6_K, Q8_0};
        let model = Model { experts: 64, ..MODEL };
        for mix in MIXES {
            assert_eq!(mix.format_of("blk.3.ffn_gate_inp.weight", model), F32, "{}", mix.name);
            assert_eq!(mix.format_of("blk.3.ffn_gate_inp_shexp.weight", model), F32, "{}", mix.name);
        }
        for kind in ["ffn_down_exps", "ffn_down_shexp"] {
            assert_eq!([0, 4].map(|layer| of("q4_k_m", &format!("blk.{layer}.{kind}.weight"), model)), [Q6_K, Q4_K]);
        }
        let names = ["blk.0.ffn_up_exps.weight", "blk.0.attn_q.weight", "token_embd.weight", "output.weight"];
        assert_eq!(names.map(|name| of("mxfp4", name, model)), [MXFP4, Q8_0, Q8_0, Q8_0]);
        let experts = [("blk.0.ffn_up_exps.weight".to_owned(), 64)].into_iter();
        assert_eq!(Model::of(experts, false).experts, 64);
        // A plan has each by itself.
        let config = serde_json::json!({
            "model_type": "qwen3_moe", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "num_experts": 6,
            "num_experts_per_tok": 2, "moe_intermediate_size": 4, "norm_topk_prob": true,
        });
        let model = Model::of_plan(&models::build_plan(&config, &plan::AnyShape).unwrap());
        assert_eq!((model.experts, model.sharing, model.layers), (6, 2, 1));
    }

    /// `n_expert == 8` in llama.cpp's quantiser.
    #[test]
    fn attention_has_more_bits_beside_eight_experts() {
        use WeightFormat::{F16, IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
        let eight = Model { experts: 8, sharing: 4, ..MODEL };
        let [q, k, v, output] = ["q", "k", "v", "output"].map(|kind| format!("blk.9.attn_{kind}.weight"));
        for mix in MIXES.into_iter().filter(|mix| mix.base.is_quantized()) {
            assert_eq!([&k, &v].map(|name| mix.format_of(name, eight)), [Q8_0; 2], "{}", mix.name);
            let rest = if mix.base == WeightFormat::MXFP4 { Q8_0 } else { mix.base };
            assert_eq!(mix.format_of(&q, eight), rest, "{}", mix.name);
        }
        assert_eq!([of("f16", &v, eight), of("f16", &output, eight)], [F16; 2]);
        for (mix, base, expected) in [
            ("q2_k", Q2_K, Q5_K),
            ("q3_k_s", Q3_K, Q5_K),
            ("q3_k_m", Q3_K, Q5_K),
            ("q3_k_l", Q3_K, Q3_K),
            ("q4_k_s", Q4_K, Q5_K),
            ("q4_k_m", Q4_K, Q5_K),
            ("q5_k_m", Q5_K, Q5_K),
            ("q6_k", Q6_K, Q6_K),
            ("q4_0", Q4_0, Q4_0),
            ("iq4_nl", IQ4_NL, Q5_K),
            ("iq4_xs", IQ4_XS, Q5_K),
        ] {
            assert_eq!([of(mix, &output, eight), of(mix, &q, eight)], [expected, base], "{mix}");
        }
        // The experts themselves are as of other mixtures.
        let others = Model { experts: 64, ..eight };
        let down = "blk.0.ffn_down_exps.weight";
        assert_eq!([of("q4_k_m", down, eight), of("q4_k_m", down, others)], [Q6_K; 2]);
        assert_eq!([of("q3_k_l", &output, others), of("q4_k_m", &k, others)], [Q5_K, Q4_K]);
    }

    #[test]
    fn the_head_has_six_bits_and_embeddings_that_are_no_head_are_as_the_rest() {
        use WeightFormat::{BF16, Q4_0, Q4_K, Q5_1, Q6_K, Q8_0};
        let tied = Model { tied: true, ..MODEL };
        for (mix, base, head) in [
            ("q4_k_m", Q4_K, Q6_K),
            ("q4_0", Q4_0, Q6_K),
            ("q5_1", Q5_1, Q6_K),
            ("q8_0", Q8_0, Q8_0),
            ("bf16", BF16, BF16),
        ] {
            assert_eq!([of(mix, "output.weight", MODEL), of(mix, "token_embd.weight", tied)], [head; 2], "{mix}");
            assert_eq!(of(mix, "token_embd.weight", MODEL), base, "{mix}");
        }
        assert_eq!(of("nvfp4", "token_embd.weight", MODEL), Q6_K);
    }

    #[test]
    fn rules_are_of_mixtures_that_there_are_and_a_model_is_seen_by_its_matrices() {
        let names = gguf_architectures::names("llama");
        for (mix, kind, ..) in RULES {
            assert!(mix.parse::<Mix>().is_ok_and(|found| found.name == mix), "{mix}");
            assert_ne!(names.checkpoint_name(&format!("blk.0.{kind}.weight")), format!("blk.0.{kind}.weight"));
        }
        let matrices = [("token_embd.weight", 99), ("blk.0.attn_q.weight", 896), ("blk.1.attn_k.weight", 128)];
        let named = || matrices.into_iter().map(|(name, rows)| (name.to_owned(), rows));
        let model = Model::of(named(), true);
        assert_eq!(model, Model { layers: 2, tied: true, sharing: 7, weighed: true, experts: 0 });
        let untied = named().chain([("output.weight".to_owned(), 99)]);
        assert!(!Model::of(untied, false).tied);
    }

    #[test]
    fn rows_that_blocks_of_256_do_not_divide_have_shorter_blocks_of_about_as_many_bits() {
        use WeightFormat::{F16, IQ4_NL, NVFP4, Q4_0, Q4_K, Q5_0, Q5_1, Q8_0};
        let of = |mix: &str, name: &str, row_len| {
            let model = Model { layers: 24, tied: true, ..MODEL };
            mix.parse::<Mix>().unwrap().format_of_rows(name, model, row_len).unwrap()
        };
        let name = "blk.3.attn_q.weight";
        let shorter =
            [("q2_k", Q4_0), ("q3_k", Q4_0), ("iq4_xs", IQ4_NL), ("q4_k", Q5_0), ("q5_k", Q5_1), ("q6_k", Q8_0)];
        for (mix, format) in shorter {
            assert_eq!(of(mix, name, 896), format, "{mix}");
            assert_eq!(of(mix, name, 900), F16, "{mix}");
        }
        assert_eq!((of("q4_k", name, 1024), of("q4_0", name, 896), of("nvfp4", name, 896)), (Q4_K, Q4_0, NVFP4));
        assert_eq!((of("q4_k", "token_embd.weight", 896), of("nvfp4", name, 96)), (Q8_0, Q8_0));
    }

    #[test]
    fn bits_alone_stand_for_a_mixture() {
        for (short, name) in [("q4", "q4_k_m"), ("Q5", "q5_k_m"), ("q6", "q6_k"), ("q8", "q8_0")] {
            assert_eq!(short.parse::<Mix>().unwrap().name(), name);
        }
        assert!("q7".parse::<Mix>().unwrap_err().contains("q4 (q4_k_m)"));
    }

    #[test]
    fn every_format_of_gguf_can_be_asked_for() {
        for format in WeightFormat::ALL.into_iter().filter(|&format| GgmlType::holding(format).is_some()) {
            assert_eq!(format.name().parse::<Mix>().unwrap().base, format);
        }
    }
}
