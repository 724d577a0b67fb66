//! Random weights in the exact shapes of published models: what is timed depends on shapes and formats, not on values.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail};
use formats::gguf_names::Names;
use lab::patterns::{Pattern, Random, SEED};
use plan::{AnyShape, Plan, WeightInfo};
use serde_json::{Map, Value};
use tensor::{Tensor, WeightFormat};

use crate::packing::mix::{MIXES, Mix, Model};
use crate::{gguf_architectures, units};

/// `config.json` of each model, as published, without what does not change the computation.
const SHAPES: &str = include_str!("shapes.json");

/// The `config.json` of the model that `name` stands for.
pub(super) fn config_of(name: &str) -> Result<Value> {
    let mut shapes: Map<String, Value> = serde_json::from_str(SHAPES).context("the table of shapes is malformed")?;
    let Some(config) = shapes.remove(name) else {
        let known: Vec<_> = shapes.keys().map(String::as_str).collect();
        bail!("there is no shape `{name}`; this build has: {}", known.join(", "));
    };
    Ok(config)
}

/// The textbook plan of that model.
pub(super) fn plan_of(name: &str) -> Result<Plan> {
    Ok(models::build_plan(&config_of(name)?, &AnyShape)?)
}

/// The format of that name, in any case.
pub(super) fn format_of(name: &str) -> Result<WeightFormat> {
    let known = WeightFormat::ALL;
    known.into_iter().find(|format| format.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
        let names = known.map(|format| format.name().to_ascii_lowercase()).join(", ");
        anyhow!("there is no weight format `{name}`; this build has: {names}")
    })
}

/// What the matrices of a model are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixFormats {
    /// All in this one, which GGUF does not have.
    One(WeightFormat),
    /// Q4_0 as files of INT4 in groups of 128 are read: with the same scale for four blocks.
    Int4,
    /// Q5_0 as files of INT4 with zero points in groups of 128 are read.
    Int4Asym,
    /// Experts in this one and all else in BF16, as gpt-oss is published.
    ExpertsIn(WeightFormat),
    /// As `quantize` writes them: what a file of that name has in its head, too.
    Mix(Mix),
}

impl MatrixFormats {
    const INT4: &str = "int4";
    const INT4_ASYM: &str = "int4_asym";
    const MXFP4_EXPERTS: &str = "mxfp4+bf16";
    /// Weights that share a scale in [`Self::Int4`] and [`Self::Int4Asym`].
    const INT4_GROUP: usize = 128;

    /// What `--format` calls `name`, in any case.
    pub(super) fn named(name: &str) -> Result<Self> {
        if name.eq_ignore_ascii_case(Self::INT4) {
            return Ok(Self::Int4);
        }
        if name.eq_ignore_ascii_case(Self::INT4_ASYM) {
            return Ok(Self::Int4Asym);
        }
        if name.eq_ignore_ascii_case(Self::MXFP4_EXPERTS) {
            return Ok(Self::ExpertsIn(WeightFormat::MXFP4));
        }
        if let Ok(mix) = name.parse() {
            return Ok(Self::Mix(mix));
        }
        format_of(name).map(Self::One).map_err(|_| {
            let formats = WeightFormat::ALL.map(|format| format.name().to_ascii_lowercase());
            let mixes = MIXES.map(Mix::name).into_iter().filter(|name| format_of(name).is_err());
            let others = [Self::INT4, Self::INT4_ASYM, Self::MXFP4_EXPERTS];
            let names: Vec<_> = formats.iter().map(String::as_str).chain(others).chain(mixes).collect();
            anyhow!("there is no weight format `{name}`; this build has: {}", names.join(", "))
        })
    }

    /// The name that `--format` takes.
    pub(super) fn name(self) -> String {
        match self {
            Self::One(format) => format.name().to_ascii_lowercase(),
            Self::Int4 => Self::INT4.to_owned(),
            Self::Int4Asym => Self::INT4_ASYM.to_owned(),
            Self::ExpertsIn(_) => Self::MXFP4_EXPERTS.to_owned(),
            Self::Mix(mix) => mix.name().to_owned(),
        }
    }

    /// What most matrices are in.
    pub(super) fn base(self) -> WeightFormat {
        match self {
            Self::One(format) | Self::ExpertsIn(format) => format,
            Self::Int4 => WeightFormat::Q4_0,
            Self::Int4Asym => WeightFormat::Q5_0,
            Self::Mix(mix) => mix.base,
        }
    }

    /// The format of a matrix.
    fn of(self, weight: &WeightInfo, names: Names, model: Model) -> Result<WeightFormat> {
        let row_len = weight.shape.last().copied().unwrap_or_default();
        let format = match self {
            Self::One(format) => row_len.is_multiple_of(format.block_len()).then_some(format),
            Self::Int4 | Self::Int4Asym => row_len.is_multiple_of(Self::INT4_GROUP).then_some(self.base()),
            Self::Mix(mix) => mix.format_of_rows(&names.gguf_tensor(&weight.name).unwrap_or_default(), model, row_len),
            Self::ExpertsIn(format) => {
                // The heads of latent attention are a stack, too.
                let of_expert = names.gguf_expert(&weight.name).is_some_and(|(name, _)| name.contains("_exps."));
                let format = if of_expert { format } else { WeightFormat::BF16 };
                row_len.is_multiple_of(format.block_len()).then_some(format)
            }
        };
        format.with_context(|| {
            let (name, format) = (&weight.name, self.name());
            format!("rows of `{name}` have {row_len} weights, which do not divide into {format}: use another --format")
        })
    }

    fn pattern(self, format: WeightFormat) -> Pattern {
        let pattern = Pattern::new(format);
        match self {
            Self::One(_) | Self::Mix(_) | Self::ExpertsIn(_) => pattern,
            Self::Int4 => pattern.with_shared_scales(Self::INT4_GROUP / format.block_len()),
            Self::Int4Asym => pattern.with_zero_points(Self::INT4_GROUP / format.block_len()),
        }
    }
}

/// Weights for `plan`, in its order: matrices in `formats`, vectors in F32. Fails when they are larger than `memory_bytes`.
pub(super) fn random_weights(plan: &Plan, formats: MatrixFormats, memory_bytes: u64) -> Result<Vec<Tensor>> {
    let (model, names) = (Model::of_plan(plan), gguf_architectures::names(&plan.model_type));
    let mut total = 0u64;
    for weight in &plan.weights {
        let format = if weight.shape.len() > 1 { formats.of(weight, names, model)? } else { WeightFormat::F32 };
        total += Tensor::byte_len(format, &weight.shape)? as u64;
    }
    if total > memory_bytes {
        let (needed, found, format) = (units::bytes(total), units::bytes(memory_bytes), formats.name());
        bail!("the weights take {needed} in {format}, but this machine has {found} of memory; use a smaller --format");
    }
    let mut patterns = BTreeMap::new();
    let mut random = Random(SEED);
    let mut weights = Vec::with_capacity(plan.weights.len());
    for weight in &plan.weights {
        weights.push(match weight.shape.as_slice() {
            &[len] => {
                // Norms and biases near 1: what a norm multiplies with keeps the activations where they are.
                let values: Vec<f32> = (0..len).map(|_| 1.0 + (random.next() % 100) as f32 * 1e-3).collect();
                Tensor::from_f32(WeightFormat::F32, vec![len], &values)?
            }
            shape => {
                let format = formats.of(weight, names, model)?;
                let pattern = patterns.entry(format.name()).or_insert_with(|| formats.pattern(format));
                Tensor::new(format, shape.to_vec(), pattern.cut(Tensor::byte_len(format, shape)?, random.next())?)?
            }
        });
    }
    Ok(weights)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use backend::{Backend, Observed};
    use cpu::{CpuBackend, CpuOptions};
    use plan::{KvFormat, KvLayout, Op, StepInput};
    use tensor::quant::q5_0;

    use super::*;

    /// Rows that choose independently go to 32 · (1 - (1 - 4/32)^rows) experts. Weights that all begin at the same place of
    /// a pattern, which repeats with their rows, make layers alike. Then the rows go to fewer experts, and a step is faster.
    #[test]
    fn rows_of_a_mixture_go_to_as_many_experts_as_unlike_texts_do() {
        const STEPS: usize = 24;
        const FILLED: usize = 104;
        let mut config = config_of("moe-small").unwrap();
        for (name, size) in [("hidden_size", 256), ("moe_intermediate_size", 128), ("vocab_size", 8192)] {
            config[name] = size.into();
        }
        let plan = std::sync::Arc::new(models::build_plan(&config, &AnyShape).unwrap());
        let formats = MatrixFormats::One(WeightFormat::Q8_0);
        let weights = random_weights(&plan, formats, u64::MAX).unwrap();
        let vocab_size = plan.vocab_size;
        for (rows, expected) in [(2usize, 7.5), (8, 21.0), (24, 30.7)] {
            let kv = KvLayout { format: KvFormat::F32, block_len: FILLED + STEPS, num_blocks: rows };
            let backend = CpuBackend::new(CpuOptions::default()).unwrap();
            let mut executable = backend.load(plan.clone(), weights.clone(), kv).unwrap();
            let mut tokens: Vec<u32> = (1..=rows as u32).collect();
            let (mut experts, mut layers) = (0, 0);
            let mut random = Random(5);
            for row in 0..rows {
                let text: Vec<u32> = (0..FILLED).map(|_| (random.next() % 8192) as u32).collect();
                let mut input = StepInput::default();
                input.push_sequence(&text, 0, &[row as u32]);
                input.output_rows.push(FILLED as u32 - 1);
                executable.compile(input.shape().bucket()).unwrap();
                executable.replay(&input).unwrap();
            }
            for position in FILLED..FILLED + STEPS {
                let mut input = StepInput::default();
                for (row, &token) in (0..).zip(&tokens) {
                    input.push_sequence(&[token], position, &[row]);
                    input.output_rows.push(row);
                }
                executable.compile(input.shape().bucket()).unwrap();
                let mut count = |op: usize, what: Observed, found: &[f32]| {
                    if let Op::Route { ids, .. } | Op::MoeRoute { ids, .. } = plan.ops[op]
                        && matches!(what, Observed::Value(value) if value == ids)
                    {
                        experts += found.iter().map(|id| *id as u32).collect::<BTreeSet<_>>().len();
                        layers += 1;
                    }
                };
                let logits = executable.replay_observed(&input, &mut count).unwrap();
                let likeliest = |logits: &[f32]| {
                    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
                    best.map_or(0, |(id, _)| id as u32)
                };
                tokens = logits.chunks_exact(vocab_size).map(likeliest).collect();
            }
            let found = experts as f64 / layers as f64;
            assert!((found / expected - 1.0).abs() < 0.06, "{rows} rows: {found} experts, not {expected}");
        }
    }

    /// Parameters as the published checkpoints have them: a wrong shape would show here.
    #[test]
    fn each_shape_has_the_parameters_of_its_model() {
        let published = [
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen3-0.6b", 596_049_920),
            ("llama-3.2-1b", 1_235_814_400),
            ("llama-3.1-8b", 8_030_261_248),
            ("devstral-small", 23_572_403_200_usize),
            ("mixtral-8x7b", 46_702_792_704),
            ("qwen3-30b-a3b", 30_532_122_624),
            ("gpt-oss-20b", 20_914_757_184),
            ("gpt-oss-120b", 116_829_156_672),
            ("glm-4.5-air", 106_852_251_264),
            ("glm-4.7-flash", 29_943_393_920),
            ("deepseek-v2-lite", 15_706_484_224),
            ("moe-small", 978_481_152),
            ("tiny", 131_648),
            ("tiny-moe", 312_896),
        ];
        let shapes: Map<String, Value> = serde_json::from_str(SHAPES).unwrap();
        assert_eq!(shapes.len(), published.len());
        for (name, expected) in published {
            let plan = plan_of(name).unwrap();
            let found: usize = plan.weights.iter().map(|weight| weight.shape.iter().product::<usize>()).sum();
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn weights_beyond_the_memory_are_refused_before_they_are_made() {
        let plan = plan_of("devstral-small").unwrap();
        let formats = MatrixFormats::One(WeightFormat::F32);
        let error = random_weights(&plan, formats, 1 << 30).unwrap_err().to_string();
        assert!(error.contains("GiB in f32, but this machine has 1.00 GiB"), "{error}");
    }

    #[test]
    fn int4_has_one_scale_and_zero_point_for_128_weights() {
        let mut plan = plan_of("qwen2.5-0.5b").unwrap();
        plan.weights.retain(|weight| weight.name.starts_with("model.layers.0.mlp."));
        let int4 = MatrixFormats::named("INT4").unwrap();
        for weight in random_weights(&plan, int4, u64::MAX).unwrap() {
            let scales: Vec<[u8; 2]> = weight.bytes().chunks_exact(18).map(|block| [block[0], block[1]]).collect();
            assert!(scales.chunks_exact(4).all(|group| group.iter().all(|scale| *scale == group[0])));
            assert!(scales.chunks_exact(4).any(|group| group[0] != scales[0]));
        }
        let int4_asym = MatrixFormats::named("int4_asym").unwrap();
        for weight in random_weights(&plan, int4_asym, u64::MAX).unwrap() {
            let values = weight.to_f32();
            for (group, blocks) in values.chunks_exact(128).zip(weight.as_slice::<q5_0::Block>().chunks_exact(4)) {
                let scale = blocks[0].scale.to_f32();
                assert!(blocks.iter().all(|block| block.scale.to_f32() == scale));
                let far = |sign: f32| group.iter().map(|value| value / scale * sign).fold(f32::MIN, f32::max);
                assert!(far(1.0) + far(-1.0) < 15.5 && far(1.0) > 4.0 && far(-1.0) > 4.0);
            }
        }
        plan.weights[0].shape = vec![4, 96];
        let error = random_weights(&plan, int4, u64::MAX).unwrap_err().to_string();
        assert!(error.contains("have 96 weights, which do not divide into int4"), "{error}");
    }

    #[test]
    fn a_mixture_is_that_of_quantize() {
        let formats = |shape: &str| {
            let (plan, mixture) = (plan_of(shape).unwrap(), MatrixFormats::named("q4_k_m").unwrap());
            let (model, names) = (Model::of_plan(&plan), gguf_architectures::names(&plan.model_type));
            let matrices = plan.weights.iter().filter(|weight| weight.shape.len() > 1);
            matrices.map(|weight| mixture.of(weight, names, model).unwrap()).collect::<Vec<_>>()
        };
        let count = |formats: &[WeightFormat], of| formats.iter().filter(|&&format| format == of).count();
        let of_1b = formats("llama-3.2-1b");
        // The embeddings, which are the output matrix, and half of the layers' values and down projections.
        assert_eq!(count(&of_1b, WeightFormat::Q6_K), 1 + 2 * 8);
        assert_eq!(count(&of_1b, WeightFormat::Q4_K), of_1b.len() - 17);
        // Rows of 896 are no whole blocks of 256; those of the down projections are. The head and half of the values have six
        // bits, for which there are eight.
        let of_half_b = formats("qwen2.5-0.5b");
        assert_eq!(count(&of_half_b, WeightFormat::Q8_0), 1 + 12);
        assert_eq!(count(&of_half_b, WeightFormat::Q5_0), of_half_b.len() - 24 - 13);
        // As large as the file of llama.cpp, but for vectors and metadata.
        let plan = plan_of("qwen2.5-0.5b").unwrap();
        let matrices = plan.weights.iter().filter(|weight| weight.shape.len() > 1);
        let bytes = matrices.zip(of_half_b).map(|(weight, format)| Tensor::byte_len(format, &weight.shape).unwrap());
        assert_eq!(bytes.sum::<usize>(), 391_573_504);
        let error = MatrixFormats::named("q7").unwrap_err().to_string();
        assert!(error.contains("q4_0") && error.contains("int4, int4_asym, mxfp4+bf16, q5_k_m"), "{error}");
    }

    #[test]
    fn the_head_is_that_of_a_file_of_this_name() {
        let others = |shape: &str, format: &str| {
            let (plan, formats) = (plan_of(shape).unwrap(), MatrixFormats::named(format).unwrap());
            let matrices = plan.weights.iter().filter(|weight| weight.shape.len() > 1);
            let (model, names) = (Model::of_plan(&plan), gguf_architectures::names(&plan.model_type));
            let of = |weight: &WeightInfo| (weight.name.clone(), formats.of(weight, names, model).unwrap());
            matrices.map(of).filter(|&(_, of)| of != formats.base()).collect::<Vec<_>>()
        };
        let embeddings = "model.embed_tokens.weight".to_owned();
        for format in ["q4_0", "Q4_1", "q5_0", "mxfp4", "nvfp4"] {
            assert_eq!(others("llama-3.2-1b", format), [(embeddings.clone(), WeightFormat::Q6_K)], "{format}");
            // 896 is not divided by 256.
            assert_eq!(others("qwen2.5-0.5b", format), [(embeddings.clone(), WeightFormat::Q8_0)], "{format}");
        }
        for format in ["f32", "bf16", "q8_0", "fp8", "int4"] {
            assert_eq!(others("qwen2.5-0.5b", format), [], "{format}");
        }
        assert_eq!(MatrixFormats::named("fp8").unwrap(), MatrixFormats::One(WeightFormat::FP8));
    }
}
