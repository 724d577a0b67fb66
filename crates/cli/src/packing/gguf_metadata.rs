//! A checkpoint in safetensors as what a GGUF file says: metadata, vocabulary, names and the order of rows.
//!
//! Nothing is trusted to have been said right: the plan that the GGUF's keys give is compared with the plan of the
//! source, and its vocabulary must cut a text of many scripts into the same tokens. What cannot be said is refused.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use formats::gguf::{Array, GgufWriter, Value};
use formats::gguf_names::{self, Names};
use formats::{Checkpoint, TokenizerSource};
use plan::{Op, Plan, Rope, RopeScaling, RouteWeights, Scores};
use serde_json::Value as Json;
use tensor::{Tensor, WeightFormat};
use tokenizer::{EquivalentJson, ParseSpecial, Tokenizer};

use crate::gguf_architectures;
use crate::load::plan::{plan_of, plan_with_config};
use crate::load::text::{load_tokenizer, with_side_files};
use crate::output::note;

/// The source is a folder that says nothing of its vocabulary.
pub(super) const NO_TOKENIZER: &str = "the model has no tokenizer.json (nor tekken.json, vocab.json with merges.txt, or \
                                       tokenizer.model), which what is written takes its vocabulary from: put the one \
                                       that was published with it beside the weights";
/// What any two tokenizers that are not the same are likely to cut differently.
const PROBE: &str = "Hello, World!  It's 1234567 o'clock; we'll see—won't WE'RE they'd I'VE?\n\n\tfn main() { x += 0x1F; }\r\n   \
    naïve café cafe\u{301} Ünïcödé ÀÉÎ straße Ωμέγα Привет мир, как дела? שלום עולם مرحبا بالعالم ٣٤٥ \
    नमस्ते दुनिया สวัสดี 你好，世界！今日は良い天気ですね 안녕하세요 🦀🚀👩\u{200d}👩\u{200d}👧 a\u{200d}b $100.00 50% \
    #tag @user a_b-c/d\\e <|x|> [1,2,3] ½ ² ™ \u{a0}nbsp   end      of \n  ";

/// The writer of a GGUF file with everything but tensors.
pub(super) fn metadata(checkpoint: &Checkpoint, name: &str) -> Result<GgufWriter> {
    let plan = plan_of(checkpoint)?;
    let mut writer = GgufWriter::new();
    refuse_other_than_implied(&plan.model_type, &checkpoint.config)?;
    model(&mut writer, &plan, &checkpoint.config, name)?;
    vocabulary(checkpoint, &mut writer)?;
    if let Some(template) = &checkpoint.chat_templates.default {
        writer.metadata("tokenizer.chat_template", Value::String(template.clone()));
    }
    for (name, template) in &checkpoint.chat_templates.named {
        writer.metadata(&format!("tokenizer.chat_template.{name}"), Value::String(template.clone()));
    }
    Ok(writer)
}

/// Everything that is about the model alone, and not its vocabulary. `config` is its config.json.
pub(crate) fn model(writer: &mut GgufWriter, plan: &Plan, config: &Json, name: &str) -> Result<()> {
    let names = gguf_architectures::names(&plan.model_type);
    let architecture = names.architecture().unwrap_or(&plan.model_type);
    writer.metadata("general.architecture", Value::String(architecture.into()));
    writer.metadata("general.name", Value::String(name.into()));
    let key = |name: &str| format!("{architecture}.{name}");
    let integer = |field: &str| config.get(field).and_then(Json::as_u64);
    let hidden_size = integer("hidden_size").context("config.json has no `hidden_size`")?;
    let heads = integer("num_attention_heads").context("config.json has no `num_attention_heads`")?;
    // Of a latent layer these are what heads have in the cache, as llama.cpp has it: one row for all.
    let [head_dim, value_dim] = match plan.kv_layers.first() {
        Some(layer) => [layer.key_dim() as u64, layer.value_dim() as u64],
        None => [hidden_size / heads.max(1); 2],
    };
    let kv_heads = plan.kv_layers.first().map_or(heads, |layer| layer.kv_heads() as u64);
    let integers = [
        ("block_count", Some(plan.kv_layers.len() as u64)),
        ("context_length", Some(plan.context_len as u64)),
        ("embedding_length", Some(hidden_size)),
        ("feed_forward_length", integer("intermediate_size")),
        ("attention.head_count", Some(heads)),
        ("attention.head_count_kv", Some(kv_heads)),
        ("attention.key_length", Some(head_dim)),
        ("attention.value_length", Some(value_dim)),
        ("rope.dimension_count", Some(plan.ropes.first().map_or(head_dim, |rope| rope.dims as u64))),
        ("vocab_size", Some(plan.vocab_size as u64)),
    ];
    for (name, value) in integers {
        if let Some(value) = value {
            writer.metadata(&key(name), number(name, value)?);
        }
    }
    latent(writer, plan, &key)?;
    experts(writer, plan, names)?;
    if let Some(window) = plan.ops.iter().find_map(|op| match op {
        Op::Attention { attention, .. } => attention.window,
        _ => None,
    }) {
        writer.metadata(&key("attention.sliding_window"), Value::U32(u32::try_from(window)?));
    }
    let epsilon = plan.ops.iter().find_map(|op| match op {
        Op::RmsNorm { norm, .. } => Some(norm.eps),
        _ => None,
    });
    // All of a model's are the same.
    writer.metadata(&key("attention.layer_norm_rms_epsilon"), Value::F32(epsilon.unwrap_or(1e-6)));
    let Some(rope) = plan.ropes.first().filter(|_| plan.ropes.len() == 1) else {
        bail!("the model has {} rotary embeddings, where a GGUF file says one", plan.ropes.len());
    };
    writer.metadata(&key("rope.freq_base"), Value::F32(rope.theta));
    let is_latent = plan.kv_layers.iter().any(|layer| layer.latent().is_some());
    rotary(writer, &key, rope, config, is_latent)
}

/// What the file says of latent attention: the widths of its heads, by the matrices that `plan` has for each of them.
fn latent(writer: &mut GgufWriter, plan: &Plan, key: &dyn Fn(&str) -> String) -> Result<()> {
    let Some(layer) = plan.kv_layers.first().and_then(|layer| layer.latent()) else { return Ok(()) };
    let shape = |name: &str| plan.weights.iter().find(|weight| weight.name.contains(name)).map(|w| &w.shape[..]);
    let (Some(&[_, nope]), Some(&[value, _])) = (shape(".k_b_proj.0."), shape(".v_b_proj.0.")) else {
        bail!("the model has no matrices for its heads");
    };
    let q_rank = shape(".q_a_proj.weight").and_then(|shape| shape.first());
    let integers = [
        ("attention.q_lora_rank", q_rank.copied()),
        ("attention.kv_lora_rank", Some(layer.dim)),
        ("attention.key_length_mla", Some(nope + layer.rope)),
        ("attention.value_length_mla", Some(value)),
    ];
    for (name, value) in integers {
        if let Some(value) = value {
            writer.metadata(&key(name), number(name, value as u64)?);
        }
    }
    Ok(())
}

fn number(name: &str, value: u64) -> Result<Value> {
    let value = u32::try_from(value).with_context(|| format!("`{name}` is {value}, which GGUF cannot say"))?;
    Ok(Value::U32(value))
}

/// Refuses a configuration that says otherwise than the model's GGUF files mean, which have no key for it.
fn refuse_other_than_implied(model_type: &str, config: &Json) -> Result<()> {
    let Some(model) = models::architectures().find(|model| model.model_type == model_type) else { return Ok(()) };
    let implied = (model.gguf.implied)();
    for (field, implied) in implied.as_object().into_iter().flatten() {
        let has_key = model.gguf.keys.iter().any(|(_, known)| known == field) || field == ROUTED_SCALE;
        // How experts are chosen follows from the number of groups, which has a key.
        let has_key = has_key || implied.is_object() || implied.is_null() || field == "topk_method";
        let found = config.get(field).filter(|found| !found.is_null() && !has_key);
        let same =
            |found: &Json| found == implied || found.as_f64().is_some_and(|found| implied.as_f64() == Some(found));
        if let Some(found) = found.filter(|found| !same(found)) {
            bail!(
                "config.json: `{field}` is {found}, and GGUF files of `{model_type}` have no key for it: they mean \
                 {implied}. Write safetensors (-o FOLDER/)"
            );
        }
    }
    Ok(())
}

/// What the weights of all experts are multiplied by, in config.json.
const ROUTED_SCALE: &str = "routed_scaling_factor";

/// The number that `expert_gating_func` has where scores are sigmoids.
const GATING_SIGMOID: u32 = 2;

/// What the file says of a mixture of experts: the keys that the architecture has, by what `plan` computes.
fn experts(writer: &mut GgufWriter, plan: &Plan, names: Names) -> Result<()> {
    let (mut first_layer, mut count, mut inner, mut router) = (None, 0, 0, None);
    for op in &plan.ops {
        match op {
            Op::Route { router: found, .. } => router = router.or(Some(*found)),
            Op::ExpertLinear { experts, .. } if first_layer.is_none() => {
                let weight = plan.weight(experts.linear(0).weight);
                first_layer = Some(layer_of(&weight.name));
                (count, inner) = (experts.count, weight.shape.first().copied().unwrap_or(0));
            }
            _ => {}
        }
    }
    let (Some(router), Some(first_layer)) = (router, first_layer) else { return Ok(()) };
    let architecture = names.architecture().unwrap_or(&plan.model_type);
    let key = |name: &str| format!("{architecture}.{name}");
    let shared = plan
        .weights
        .iter()
        .find(|weight| names.gguf_name(&weight.name).is_some_and(|name| name.ends_with(".ffn_gate_shexp.weight")));
    let shared = shared.and_then(|weight| weight.shape.first().copied()).unwrap_or(0);
    let (groups, chosen_groups) = router.groups.map_or((1, 1), |groups| (groups.count, groups.chosen));
    let norm = matches!(router.weights, RouteWeights::Normalised { .. });
    let known = [
        ("expert_count", Value::U32(u32::try_from(count)?)),
        ("expert_used_count", Value::U32(u32::try_from(router.top_k)?)),
        ("expert_feed_forward_length", Value::U32(u32::try_from(inner)?)),
        ("expert_shared_feed_forward_length", Value::U32(u32::try_from(shared)?)),
        ("expert_shared_count", Value::U32(u32::try_from(shared / inner.max(1))?)),
        ("leading_dense_block_count", Value::U32(first_layer)),
        ("expert_group_count", Value::U32(u32::try_from(groups)?)),
        ("expert_group_used_count", Value::U32(u32::try_from(chosen_groups)?)),
        ("expert_weights_norm", Value::Bool(norm)),
    ];
    for (name, value) in known.into_iter().filter(|(name, _)| names.has_key(name)) {
        writer.metadata(&key(name), value);
    }
    // Elsewhere the scores follow from the architecture, and are not multiplied.
    if router.scores == Scores::Sigmoid {
        writer.metadata(&key("expert_gating_func"), Value::U32(GATING_SIGMOID));
    }
    if router.scores == Scores::Sigmoid || router.scale != 1.0 {
        writer.metadata(&key("expert_weights_scale"), Value::F32(router.scale));
    }
    Ok(())
}

/// The layer of a weight, by its name in checkpoints.
fn layer_of(name: &str) -> u32 {
    let layer = name.split_once("layers.").and_then(|(_, rest)| rest.split('.').next()?.parse().ok());
    layer.unwrap_or(0)
}

/// Refuses a file whose header does not give the plan of the source, before its tensors are written. Of frequencies
/// that are in tensors a header says nothing: [`check`] compares them when the file is whole.
pub(super) fn check_header(source: &Checkpoint, header: Vec<u8>) -> Result<()> {
    let config = Checkpoint::config_of_gguf_header(header.into(), gguf_architectures::all())?;
    let mut written = match plan_with_config(source, &config) {
        Ok(written) => written,
        // Another layer would have the experts, or none.
        Err(error) if matches!(error.downcast_ref(), Some(models::ModelError::Build(_))) => {
            return Err(error.context(UNSAYABLE));
        }
        // The factors of LongRoPE, perhaps.
        Err(_) => return Ok(()),
    };
    let mut source = plan_of(source)?;
    source.ropes.clear();
    written.ropes.clear();
    compare(&source, &mut written)
}

/// What the file says of the rotary embedding beside its base. `config` is the source's config.json.
/// Latent attention multiplies scores by what other models multiply cosines by.
fn rotary(
    writer: &mut GgufWriter,
    key: &dyn Fn(&str) -> String,
    rope: &Rope,
    config: &Json,
    is_latent: bool,
) -> Result<()> {
    let parameters = ["rope_parameters", "rope_scaling"].into_iter().find_map(|field| config.get(field)?.as_object());
    let parameter = |name: &str| parameters.and_then(|parameters| parameters.get(name));
    let kind = parameter("rope_type").or_else(|| parameter("type")).and_then(Json::as_str);
    let mut table = |name: &str, factors: &[f32]| -> Result<()> {
        writer.tensor(name, &Tensor::from_f32(WeightFormat::F32, vec![factors.len()], factors)?);
        Ok(())
    };
    match &rope.scaling {
        RopeScaling::None => {
            if kind == Some("dynamic") {
                note(
                    "the file does not say that the rotary embedding is dynamic, because GGUF cannot: its context is the \
                     trained one",
                );
            }
        }
        RopeScaling::Linear { factor } => {
            writer.metadata(&key("rope.scaling.type"), Value::String("linear".into()));
            writer.metadata(&key("rope.scaling.factor"), Value::F32(*factor));
        }
        RopeScaling::Yarn { factor, original_max_position_embeddings, beta_fast, beta_slow, truncate: _ } => {
            writer.metadata(&key("rope.scaling.type"), Value::String("yarn".into()));
            writer.metadata(&key("rope.scaling.factor"), Value::F32(*factor));
            let original = Value::U32(*original_max_position_embeddings as u32);
            writer.metadata(&key("rope.scaling.original_context_length"), original);
            writer.metadata(&key("rope.scaling.yarn_beta_fast"), Value::F32(*beta_fast));
            writer.metadata(&key("rope.scaling.yarn_beta_slow"), Value::F32(*beta_slow));
            let scale = parameter("mscale_all_dim").and_then(Json::as_f64).filter(|_| is_latent);
            if let Some(scale) = scale.filter(|&scale| scale != 0.0) {
                writer.metadata(&key("rope.scaling.yarn_log_multiplier"), Value::F32((0.1 * scale) as f32));
            }
            // The key multiplies what YaRN gives by itself.
            let own = if is_latent { 1.0 } else { models::yarn_attention_factor((*factor).into(), 1.0) as f32 };
            writer.metadata(&key("rope.scaling.attn_factor"), Value::F32(rope.attention_factor / own));
        }
        RopeScaling::Factors(_) if matches!(kind, Some("longrope" | "su")) => {
            for (field, name) in
                [("short_factor", gguf_names::ROPE_FACTORS_SHORT), ("long_factor", gguf_names::ROPE_FACTORS_LONG)]
            {
                let list = parameter(field).and_then(Json::as_array).with_context(|| format!("no `{field}`"))?;
                let factors: Vec<f32> = list.iter().filter_map(Json::as_f64).map(|factor| factor as f32).collect();
                table(name, &factors)?;
            }
            let beside = config.get("original_max_position_embeddings").filter(|value| !value.is_null());
            let original = beside.or_else(|| parameter("original_max_position_embeddings")).and_then(Json::as_u64);
            writer.metadata(&key("rope.scaling.type"), Value::String("longrope".into()));
            writer.metadata(&key("rope.scaling.attn_factor"), Value::F32(rope.attention_factor));
            if let Some(original) = original {
                let original = Value::U32(u32::try_from(original)?);
                writer.metadata(&key("rope.scaling.original_context_length"), original);
            }
        }
        RopeScaling::Llama3 { .. } | RopeScaling::Factors(_) => table(gguf_names::ROPE_FREQS, &factors(rope))?,
    }
    Ok(())
}

/// What the frequency of each pair is divided by.
fn factors(rope: &Rope) -> Vec<f32> {
    let plain = Rope { scaling: RopeScaling::None, ..rope.clone() }.frequencies();
    plain.iter().zip(rope.frequencies()).map(|(plain, scaled)| (plain / scaled) as f32).collect()
}

/// Refuses a file whose keys do not give the plan of the source.
pub(super) fn check(source: &Checkpoint, written: &Checkpoint) -> Result<()> {
    let (mut source, mut written) = (plan_of(source)?, plan_of(written)?);
    // Frequencies may be said in two ways. What scores grow by is compared with them.
    let turns = |plan: &mut Plan| -> Vec<Vec<f32>> {
        let ropes = std::mem::take(&mut plan.ropes);
        let numbers = |rope: &Rope| {
            let frequencies = rope.frequencies().into_iter().map(|frequency| frequency as f32);
            frequencies.chain([rope.attention_factor]).collect()
        };
        ropes.iter().map(numbers).collect()
    };
    let (turns, found) = (turns(&mut source), turns(&mut written));
    let near =
        |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= a.abs() * 1e-6);
    let same_turns = turns.len() == found.len() && turns.iter().zip(&found).all(|(a, b)| near(a, b));
    if !same_turns {
        bail!("{UNSAYABLE}: the rotary embedding would be another");
    }
    compare(&source, &mut written)
}

const UNSAYABLE: &str = "what config.json says of the model cannot be said in a GGUF file";

/// Refuses plans that are not the same. Their ropes are not compared.
fn compare(source: &Plan, written: &mut Plan) -> Result<()> {
    // Mistral's models have another name there.
    written.model_type.clone_from(&source.model_type);
    if source != written {
        let different = source.ops.iter().zip(&written.ops).find(|(a, b)| a != b);
        let which = different.map(|(a, b)| format!(": `{a:?}` would be read as `{b:?}`")).unwrap_or_default();
        bail!("{UNSAYABLE}{which}");
    }
    Ok(())
}

/// Adds `tokenizer.ggml.*`.
fn vocabulary(checkpoint: &Checkpoint, writer: &mut GgufWriter) -> Result<()> {
    let original = load_tokenizer(checkpoint.tokenizer.clone(), true)?;
    let eos = checkpoint.eos_token_ids()?.first().copied().or(original.eos_ids().first().copied());
    let read_json = |json: &[u8]| {
        let json: Json = serde_json::from_slice(json).context("tokenizer.json is not JSON")?;
        Vocabulary::read(&json, &original, eos)
    };
    let read = match &checkpoint.tokenizer {
        TokenizerSource::HuggingFace { tokenizer_json, .. } => read_json(tokenizer_json)?,
        TokenizerSource::Tekken { tekken_json } => {
            Vocabulary::from_gguf(&tokenizer::GgufVocabulary::from_tekken(tekken_json)?, eos)
        }
        TokenizerSource::VocabMerges { vocab_json, merges_txt, beside } => with_side_files(beside, |beside| {
            let json = EquivalentJson::from_vocab_merges(vocab_json, merges_txt, beside)?;
            read_json(&json.tokenizer_json)
        })?,
        TokenizerSource::SentencePiece { model, beside } => with_side_files(beside, |beside| {
            Ok(Vocabulary::from_gguf(&tokenizer::GgufVocabulary::from_sentence_piece(model, beside)?, eos))
        })?,
        TokenizerSource::Gguf(_) | TokenizerSource::None => bail!(NO_TOKENIZER),
    };
    let expected = original.encode(PROBE, ParseSpecial::Yes)?;
    // Byte-level vocabularies name the pattern that cuts words: the first name that cuts as the original does.
    let names: Vec<Option<&str>> = match read.model {
        "llama" => vec![None],
        _ => known_names().into_iter().map(Some).collect(),
    };
    for name in names {
        let tokenizer = Tokenizer::from_gguf(read.as_gguf(name, &original));
        let same = |tokenizer: &Tokenizer| {
            let starts = tokenizer.prefix_ids() == original.prefix_ids();
            starts && tokenizer.encode(PROBE, ParseSpecial::Yes).is_ok_and(|found| found == expected)
        };
        if tokenizer.is_ok_and(|tokenizer| same(&tokenizer)) {
            read.write(name, &original, writer);
            return Ok(());
        }
    }
    bail!("the vocabulary cuts words in a way that GGUF has no name for: its file would give other tokens");
}

/// The usual ones first: several names stand for one pattern.
fn known_names() -> Vec<&'static str> {
    let usual = ["llama-bpe", "qwen2", "tekken", "gpt-2", "smollm"];
    let others = tokenizer::known_pre_tokenizers().into_iter().filter(|name| !usual.contains(name));
    usual.into_iter().chain(others).collect()
}

/// A vocabulary as GGUF has it.
struct Vocabulary {
    model: &'static str,
    tokens: Vec<String>,
    scores: Vec<f32>,
    types: Vec<i32>,
    merges: Vec<String>,
    add_space_prefix: bool,
    eos: Option<u32>,
}

impl Vocabulary {
    fn read(json: &Json, original: &Tokenizer, eos: Option<u32>) -> Result<Self> {
        let model = &json["model"];
        let Some(vocab) = model["vocab"].as_object().filter(|_| model["type"] == "BPE") else {
            bail!("tokenizer.json is no byte-pair encoding, and GGUF vocabularies are made of that alone");
        };
        let pieces = model["byte_fallback"] == true;
        let added: Vec<&Json> = json["added_tokens"].as_array().into_iter().flatten().collect();
        let ids = vocab.values().chain(added.iter().map(|token| &token["id"])).filter_map(Json::as_u64);
        // Embeddings may have rows beyond the last token.
        let len = ids.max().map_or(0, |last| last as usize + 1).max(original.vocab_size());
        if len > 1 << 24 {
            bail!("tokenizer.json has an id of {len}, beyond any vocabulary");
        }
        let mut tokens: Vec<String> = (0..len).map(|id| format!("[PAD{id}]")).collect();
        let mut types = vec![5; len];
        for (text, id) in vocab {
            let Some(id) = id.as_u64().map(|id| id as usize) else { bail!("tokenizer.json has a token without an id") };
            tokens[id].clone_from(text);
            types[id] = if pieces && is_byte(text) { 6 } else { 1 };
        }
        for token in added {
            let (Some(id), Some(text)) = (token["id"].as_u64(), token["content"].as_str()) else {
                bail!("tokenizer.json has an added token without id or content");
            };
            tokens[id as usize] = if pieces { text.replace(' ', "▁") } else { text.to_owned() };
            types[id as usize] = if token["special"] == true { 3 } else { 4 };
        }
        if let Some(unknown) = original.unk_id().filter(|_| pieces) {
            types[unknown as usize] = 2;
        }
        let merges: Vec<String> = model["merges"].as_array().into_iter().flatten().filter_map(merge).collect();
        let scores = if pieces { scores(&tokens, &merges) } else { Vec::new() };
        let add_space_prefix = json["normalizer"].to_string().contains("\"Prepend\"")
            || json["pre_tokenizer"].to_string().contains("\"Metaspace\"");
        let model = if pieces { "llama" } else { "gpt2" };
        let merges = if pieces { Vec::new() } else { merges };
        Ok(Self { model, tokens, scores, types, merges, add_space_prefix, eos })
    }

    fn from_gguf(vocabulary: &tokenizer::GgufVocabulary, eos: Option<u32>) -> Self {
        let texts = |texts: &tokenizer::Texts| texts.iter().map(str::to_owned).collect();
        Self {
            model: if vocabulary.model == "llama" { "llama" } else { "gpt2" },
            tokens: texts(&vocabulary.tokens),
            scores: vocabulary.scores.clone(),
            types: vocabulary.token_types.clone(),
            merges: texts(&vocabulary.merges),
            add_space_prefix: vocabulary.add_space_prefix.unwrap_or(false),
            eos,
        }
    }

    fn as_gguf(&self, pre: Option<&str>, original: &Tokenizer) -> tokenizer::GgufVocabulary {
        tokenizer::GgufVocabulary {
            model: self.model.to_owned(),
            pre: pre.unwrap_or_default().to_owned(),
            tokens: self.tokens.iter().map(String::as_str).collect(),
            scores: self.scores.clone(),
            token_types: self.types.clone(),
            merges: self.merges.iter().map(String::as_str).collect(),
            bos_id: original.bos_id(),
            eos_id: self.eos,
            eot_id: None,
            eom_id: None,
            unk_id: original.unk_id(),
            pad_id: original.pad_id(),
            add_bos: Some(!original.prefix_ids().is_empty()),
            add_eos: Some(false),
            add_space_prefix: Some(self.add_space_prefix),
            fim: tokenizer::FimIds::default(),
        }
    }

    fn write(&self, pre: Option<&str>, original: &Tokenizer, writer: &mut GgufWriter) {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let strings = |list: &[String]| Value::Array(Array::of_strings(list.iter().map(String::as_str)));
        writer.metadata(&key("model"), Value::String(self.model.into()));
        if let Some(pre) = pre {
            writer.metadata(&key("pre"), Value::String(pre.into()));
        }
        writer.metadata(&key("tokens"), strings(&self.tokens));
        if !self.scores.is_empty() {
            writer.metadata(&key("scores"), Value::Array(Array::of_f32(&self.scores)));
        }
        writer.metadata(&key("token_type"), Value::Array(Array::of_i32(&self.types)));
        if !self.merges.is_empty() {
            writer.metadata(&key("merges"), strings(&self.merges));
        }
        let ids = [
            ("bos_token_id", original.bos_id()),
            ("eos_token_id", self.eos),
            ("unknown_token_id", original.unk_id()),
            ("padding_token_id", original.pad_id()),
        ];
        // Other programs know the texts of some families' marks alone, and all ids.
        let fim = original
            .fim()
            .map_or([None; 6], |fim| [Some(fim.prefix), Some(fim.suffix), fim.middle, fim.pad, fim.repo, fim.file_sep]);
        let marks = [
            "fim_pre_token_id",
            "fim_suf_token_id",
            "fim_mid_token_id",
            "fim_pad_token_id",
            "fim_rep_token_id",
            "fim_sep_token_id",
        ];
        for (name, id) in ids.into_iter().chain(marks.into_iter().zip(fim)) {
            if let Some(id) = id {
                writer.metadata(&key(name), Value::U32(id));
            }
        }
        writer.metadata(&key("add_bos_token"), Value::Bool(!original.prefix_ids().is_empty()));
        writer.metadata(&key("add_eos_token"), Value::Bool(false));
        if self.model == "llama" {
            writer.metadata(&key("add_space_prefix"), Value::Bool(self.add_space_prefix));
        }
    }
}

/// `<0x0A>`.
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// A merge as `a b`, from that or from a pair.
fn merge(json: &Json) -> Option<String> {
    match json {
        Json::String(text) => Some(text.clone()),
        Json::Array(pair) => match pair.as_slice() {
            [a, b] => Some(format!("{} {}", a.as_str()?, b.as_str()?)),
            _ => None,
        },
        _ => None,
    }
}

/// Scores that merge in the order of `merges`: a piece's is less the rank of the first merge that makes it.
fn scores(tokens: &[String], merges: &[String]) -> Vec<f32> {
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for (rank, merge) in merges.iter().enumerate() {
        if let Some((a, b)) = merge.split_once(' ') {
            ranks.entry(format!("{a}{b}")).or_insert(rank);
        }
    }
    let last = merges.len();
    let score = |token: &String| -(ranks.get(token).copied().unwrap_or(last) as f32);
    tokens.iter().map(score).collect()
}
