//! `hotmetal quantize` of mixtures of experts as a user meets it: files read back, importance, refusals, memory.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use formats::gguf::Gguf;
use formats::{Checkpoint, Imatrix, SafetensorsWriter};
use plan::{AnyShape, Plan};
use serde_json::{Value, json};
use tensor::quant::Packing;
use tensor::{Tensor, WeightFormat};
use testing::Rng;

#[path = "../src/gguf_architectures.rs"]
mod gguf_architectures;
mod process;

/// The folder of the built-in model, whose tokenizer these tests use.
const BUILTIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/builtin");
const MODELS: [&str; 5] = ["mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "gpt_oss"];
const HIDDEN: usize = 64;
/// Features inside an expert.
const INNER: usize = 32;

/// Experts of a layer, and those that a token takes.
fn experts(model_type: &str) -> (usize, usize) {
    match model_type {
        "mixtral" => (8, 2),
        "glm4_moe" => (12, 3),
        _ => (6, 2),
    }
}

/// A small model with the vocabulary of the built-in one.
fn config(model_type: &str) -> Value {
    let (count, top_k) = experts(model_type);
    let mut config = json!({
        "model_type": model_type, "vocab_size": 4096, "hidden_size": HIDDEN, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
        "hidden_act": "silu", "eos_token_id": 2, "num_experts_per_tok": top_k, "moe_intermediate_size": INNER,
    });
    let more = match model_type {
        // Files of its name have the key of their number instead of that of their features.
        "mixtral" => json!({ "num_local_experts": count, "intermediate_size": INNER }),
        "qwen2_moe" => json!({ "num_experts": count, "shared_expert_intermediate_size": 64, "norm_topk_prob": false }),
        "qwen3_moe" => json!({ "num_experts": count, "norm_topk_prob": true }),
        "glm4_moe" => json!({
            "n_routed_experts": count, "n_shared_experts": 2, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
            "norm_topk_prob": true, "routed_scaling_factor": 1.8, "partial_rotary_factor": 0.5, "use_qk_norm": true,
            "attention_bias": true, "num_nextn_predict_layers": 1,
        }),
        "gpt_oss" => json!({
            "num_local_experts": count, "intermediate_size": INNER, "sliding_window": 8, "swiglu_limit": 7.0,
            "attention_bias": true,
            "rope_scaling": {
                "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.5, "truncate": false,
                "original_max_position_embeddings": 64,
            },
        }),
        other => panic!("no configuration of {other}"),
    };
    config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    config
}

/// Tensors of a folder: name, shape outermost first, values.
type Weights = Vec<(String, Vec<usize>, Vec<f32>)>;

/// Random weights of the model that `config` is of, in the order of its plan.
fn weights(config: &Value) -> Weights {
    let plan = models::build_plan(config, &AnyShape).expect("a model");
    let mut rng = Rng::new(2026);
    let weight = |weight: &plan::WeightInfo| {
        let is_norm = weight.name.ends_with("norm.weight");
        let deviation = if weight.shape.len() > 1 { (weight.shape[1] as f32).sqrt().recip() } else { 0.1 };
        let mean = if is_norm { 1.0 } else { 0.0 };
        let values = (0..weight.shape.iter().product()).map(|_| mean + deviation * rng.normal()).collect();
        (weight.name.clone(), weight.shape.clone(), values)
    };
    plan.weights.iter().map(weight).collect()
}

/// Makes a folder with the tokenizer of the built-in model, and returns its path.
fn folder(path: &Path, config: &Value, weights: &Weights) -> String {
    fs::create_dir(path).expect("room for a folder");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(Path::new(BUILTIN).join(file), path.join(file)).expect("a tokenizer");
    }
    fs::write(path.join("config.json"), config.to_string()).expect("room for a file");
    let mut writer = SafetensorsWriter::new();
    for (name, shape, values) in weights {
        let shape: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        writer.tensor(name, "F32", &shape, bytes.into());
    }
    fs::write(path.join("model.safetensors"), writer.to_bytes()).expect("room for a file");
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// What gpt-oss is published with: the experts of a layer in one tensor, transposed, gate and up by turns.
fn as_published(weights: Weights) -> Weights {
    let is_expert = |name: &str| name.contains(".mlp.experts.");
    let (experts, mut others): (Weights, Weights) = weights.into_iter().partition(|(name, ..)| is_expert(name));
    let by_name: HashMap<&str, &Vec<f32>> = experts.iter().map(|(name, _, values)| (name.as_str(), values)).collect();
    let (count, _) = self::experts("gpt_oss");
    for layer in 0..2 {
        let start = format!("model.layers.{layer}.mlp.experts");
        let of = |expert: usize, name: &str| by_name[format!("{start}.{expert}.{name}").as_str()];
        let (mut gate_up, mut gate_up_bias, mut down, mut down_bias) = (vec![], vec![], vec![], vec![]);
        for expert in 0..count {
            let (gate, up) = (of(expert, "gate_proj.weight"), of(expert, "up_proj.weight"));
            for feature in 0..HIDDEN {
                for output in 0..INNER {
                    gate_up.extend([gate[output * HIDDEN + feature], up[output * HIDDEN + feature]]);
                }
            }
            let (gate, up) = (of(expert, "gate_proj.bias"), of(expert, "up_proj.bias"));
            gate_up_bias.extend(gate.iter().zip(up).flat_map(|(&gate, &up)| [gate, up]));
            let weight = of(expert, "down_proj.weight");
            for feature in 0..INNER {
                down.extend((0..HIDDEN).map(|output| weight[output * INNER + feature]));
            }
            down_bias.extend_from_slice(of(expert, "down_proj.bias"));
        }
        others.extend([
            (format!("{start}.gate_up_proj"), vec![count, HIDDEN, 2 * INNER], gate_up),
            (format!("{start}.gate_up_proj_bias"), vec![count, 2 * INNER], gate_up_bias),
            (format!("{start}.down_proj"), vec![count, INNER, HIDDEN], down),
            (format!("{start}.down_proj_bias"), vec![count, HIDDEN], down_bias),
        ]);
    }
    others
}

fn open(path: &str) -> Checkpoint {
    let open = |path: &Path| Ok(mapped::map(path)?);
    Checkpoint::open(Path::new(path), &open, gguf_architectures::all()).expect("a model")
}

fn gguf(path: &str) -> Gguf {
    Gguf::read(fs::read(path).expect("it is there").into()).expect("a whole file")
}

/// The plan of a checkpoint, without the numbers of its rotary embedding, which files may say in two ways.
fn plan(checkpoint: &Checkpoint) -> Plan {
    let shape = |info: formats::TensorInfo| {
        (info.name, info.shape.iter().map(|&dim| usize::try_from(dim).expect("a dimension")).collect())
    };
    let shapes: HashMap<String, Vec<usize>> = checkpoint.tensor_infos().map(shape).collect();
    let mut plan = models::build_plan(&checkpoint.config, &shapes).expect("a plan");
    plan.ropes.clear();
    plan
}

fn json(path: &str) -> Value {
    serde_json::from_slice(&fs::read(path).expect("it is there")).expect("JSON")
}

fn fail(args: &[&str]) -> String {
    let output = process::output(&[&["quantize"], args].concat());
    assert!(!output.status.success(), "{args:?}");
    process::text(&output.stderr)
}

/// A text for importance and scores.
fn write_text(path: &str) {
    let text = "Once upon a time there was a little fox who lived in a wood beside a river. One day she met a bear. ";
    fs::write(path, text.repeat(6)).expect("room for a text");
}

#[test]
fn a_folder_becomes_a_file_of_the_same_plan_and_weights() {
    let root = tempfile::tempdir().expect("a folder");
    let at = |name: &str| root.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    for model_type in MODELS {
        let config = config(model_type);
        let weights = weights(&config);
        let published = if model_type == "gpt_oss" { as_published(weights.clone()) } else { weights.clone() };
        let source = folder(&root.path().join(model_type), &config, &published);
        let output = at(&format!("{model_type}.gguf"));
        process::succeed(&["quantize", &source, "-F", "f32", "-o", &output]);
        let (before, after) = (open(&source), open(&output));
        assert_eq!(plan(&before), plan(&after), "{model_type}");
        for (name, shape, values) in &weights {
            let found = after.tensor(name).expect("every tensor is there");
            assert!(found.to_f32() == *values && found.shape() == &shape[..], "{model_type}: {name}");
        }
        let (file, (count, top_k)) = (gguf(&output), experts(model_type));
        let architecture = gguf_architectures::names(model_type).architecture().expect("a name");
        assert_eq!(file.metadata().str("general.architecture").unwrap(), Some(architecture));
        let number = |key: &str| file.metadata().u64(&format!("{architecture}.{key}")).expect("a number");
        assert_eq!([number("expert_count"), number("expert_used_count")], [count, top_k].map(|n| Some(n as u64)));
        assert_eq!((number("block_count"), number("nextn_predict_layers")), (Some(2), None));
        assert_eq!(number("rope.dimension_count"), Some(if model_type == "glm4_moe" { 8 } else { 16 }));
        let last = file.tensor_info("blk.1.ffn_down_exps.weight").expect("a stack");
        assert_eq!(last.shape(), [count as u64, HIDDEN as u64, INNER as u64]);
        assert!(file.tensors().len() < 60, "{} tensors", file.tensors().len());
        match model_type {
            "qwen2_moe" => {
                let gate = file.tensor_info("blk.0.ffn_gate_inp_shexp.weight").expect("it is there");
                assert_eq!(gate.shape(), [HIDDEN as u64]);
                assert_eq!(number("expert_shared_feed_forward_length"), Some(64));
            }
            "glm4_moe" => {
                let scale = file.metadata().f64("glm4moe.expert_weights_scale").unwrap();
                assert_eq!((scale, number("expert_gating_func")), (Some(1.8), Some(2)));
                assert_eq!(file.metadata().bool("glm4moe.expert_weights_norm").unwrap(), Some(true));
                assert_eq!([number("expert_shared_count"), number("leading_dense_block_count")], [Some(2), Some(1)]);
                assert_eq!([number("expert_group_count"), number("expert_group_used_count")], [Some(4), Some(2)]);
            }
            "gpt_oss" => {
                let bias = file.tensor_info("blk.0.ffn_gate_exps.bias").expect("a stack");
                assert_eq!((bias.shape(), bias.ggml_type().name()), (vec![count as u64, INNER as u64], "F32"));
                assert_eq!(number("attention.sliding_window"), Some(8));
            }
            _ => {}
        }
        // Tensors are looked at, and there are few lines for many of them.
        let shown = process::succeed(&["inspect", &output]);
        assert!(shown.contains(&format!("{count} × [{HIDDEN} × {INNER}]")), "{shown}");
        assert!(shown.contains("runs here     yes") && !shown.contains("experts.1."), "{shown}");
    }
}

#[test]
fn packed_files_are_near_and_files_become_files_of_other_formats() {
    let root = tempfile::tempdir().expect("a folder");
    let at = |name: &str| root.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let text = at("text.txt");
    write_text(&text);
    for model_type in MODELS {
        let config = config(model_type);
        let source = folder(&root.path().join(model_type), &config, &weights(&config));
        let name = |end: &str| at(&format!("{model_type}.{end}"));
        let (plain, packed, again, receipt) = (name("f32.gguf"), name("q8_0.gguf"), name("again.gguf"), name("json"));
        process::succeed(&["quantize", &source, "-F", "f32", "-o", &plain]);
        let scored = ["--eval-text", &text, "--eval-ctx-size", "64", "--receipt", &receipt];
        let divergence = |format: &str, output: &str| {
            process::succeed(&[&["quantize", &source, "-F", format, "-o", output, "--force"], &scored[..]].concat());
            json(&receipt)["evaluation"]["against"]["kl_divergence"].as_f64().expect("a number")
        };
        // A token of a model that nobody trained takes another expert now and then: two have nearly the same score.
        let of_halves = divergence("f16", &packed);
        let of_bytes = divergence("q8_0", &packed);
        assert!(of_halves < 0.01 && of_bytes < 0.05, "{model_type}: {of_halves}, {of_bytes}");
        // From the file as from the folder.
        process::succeed(&["quantize", &plain, "-F", "q8_0", "-o", &again]);
        let (from_folder, from_file) = (gguf(&packed), gguf(&again));
        for info in from_folder.tensors() {
            let other = from_file.tensor_info(info.name()).expect("every tensor is there");
            let same = from_folder.tensor_bytes(info).unwrap() == from_file.tensor_bytes(other).unwrap();
            assert!(same && info.ggml_type() == other.ggml_type(), "{model_type}: {}", info.name());
        }
        let down = from_folder.tensor_info("blk.1.ffn_down_exps.weight").expect("a stack");
        let router = from_folder.tensor_info("blk.1.ffn_gate_inp.weight").expect("it is there");
        assert_eq!([down.ggml_type().name(), router.ggml_type().name()], ["Q8_0", "F32"]);
        // Every matrix on its own, and no bias of them.
        let chosen = ["--tensor", "experts.*.down_proj=f16"];
        let (mixed, chosen_wrong) = (name("mixed.gguf"), ["--tensor", "experts.*.nothing=f16"]);
        let chosen = if model_type == "mixtral" { ["--tensor", "experts.*.w2=f16"] } else { chosen };
        process::succeed(&[&["quantize", &packed, "-F", "q4_0", "-o", &mixed], &chosen[..]].concat());
        let file = gguf(&mixed);
        let type_of = |name: &str| file.tensor_info(name).expect("it is there").ggml_type().name();
        assert_eq!([type_of("blk.1.ffn_down_exps.weight"), type_of("blk.1.ffn_up_exps.weight")], ["F16", "Q4_0"]);
        let none = name("none");
        assert!(fail(&[&[&packed, "-F", "q4_0", "-o", &none], &chosen_wrong[..]].concat()).contains("nothing"));
        if model_type == "gpt_oss" {
            assert_eq!(type_of("blk.1.ffn_down_exps.bias"), "F32");
        }
        if model_type == "mixtral" {
            // Eight experts.
            assert_eq!([type_of("blk.1.attn_v.weight"), type_of("blk.1.attn_q.weight")], ["Q8_0", "Q4_0"]);
        }
        // What is loaded with --quant is what is written.
        let cache = at("cache");
        let loaded = |quant: &[&str]| {
            let args =
                [&["run", &source, "Once upon a time", "--temp", "0", "-n", "8", "--device", "cpu"], quant].concat();
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_hotmetal"));
            let output = command.args(args).env("XDG_CACHE_HOME", &cache).env("HF_HUB_OFFLINE", "1").output().unwrap();
            assert!(output.status.success(), "{}", process::text(&output.stderr));
            process::text(&output.stdout)
        };
        assert_eq!(loaded(&["--quant", "q8_0"]), loaded(&["--quant", "q8_0"]), "{model_type}");
    }
}

/// gpt-oss as it is published: experts in MXFP4, and all else in plain numbers.
#[test]
fn experts_in_mxfp4_keep_their_codes() {
    let root = tempfile::tempdir().expect("a folder");
    let at = |name: &str| root.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let mut config = config("gpt_oss");
    let plain = as_published(weights(&config));
    config["quantization_config"] = json!({
        "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    });
    let is_stack = |name: &str| name.ends_with(".gate_up_proj") || name.ends_with(".down_proj");
    let source = folder(&root.path().join("source"), &config, &Weights::new());
    let (mut writer, mut rng) = (SafetensorsWriter::new(), Rng::new(4));
    for (name, shape, values) in &plain {
        let dims: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
        if !is_stack(name) {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            writer.tensor(name, "F32", &dims, bytes.into());
            continue;
        }
        // (experts, in, out) of plain numbers; (experts, out, groups of in, bytes) of these.
        let [experts, features, outputs] = dims[..] else { panic!("{name}: {dims:?}") };
        let groups = experts * outputs * features / 32;
        let codes: Vec<u8> = (0..16 * groups).map(|_| rng.next_u64() as u8).collect();
        let scales: Vec<u8> = (0..groups).map(|_| 120 + (rng.next_u64() % 4) as u8).collect();
        writer.tensor(&format!("{name}_blocks"), "U8", &[experts, outputs, features / 32, 16], codes.into());
        writer.tensor(&format!("{name}_scales"), "U8", &[experts, outputs, features / 32], scales.into());
    }
    fs::write(Path::new(&source).join("model.safetensors"), writer.to_bytes()).expect("room for a file");
    let (packed, bytes, folder) = (at("packed.gguf"), at("bytes.gguf"), at("folder"));
    process::succeed(&["quantize", &source, "-F", "mxfp4", "-o", &packed]);
    process::succeed(&["quantize", &source, "-F", "q8_0", "-o", &bytes]);
    let (before, after, of_bytes) = (open(&source), open(&packed), open(&bytes));
    assert_eq!(plan(&before), plan(&after));
    for name in before.tensor_names().filter(|name| name.contains(".experts.") && name.ends_with(".weight")) {
        let (expected, found) = (before.tensor(name).unwrap(), after.tensor(name).unwrap());
        assert_eq!((expected.format(), found.format()), (WeightFormat::MXFP4, WeightFormat::MXFP4), "{name}");
        assert!(expected.bytes() == found.bytes(), "{name}");
        assert_eq!(of_bytes.tensor(name).unwrap().format(), WeightFormat::Q8_0);
    }
    let file = gguf(&packed);
    let type_of = |name: &str| file.tensor_info(name).expect("it is there").ggml_type().name();
    let names =
        ["blk.0.ffn_up_exps.weight", "blk.0.ffn_up_exps.bias", "blk.0.ffn_gate_inp.weight", "blk.0.attn_q.weight"];
    assert_eq!(names.map(type_of), ["MXFP4", "F32", "F32", "Q8_0"]);
    // A folder has them one by one, which is said.
    let output = process::output(&["quantize", &source, "-F", "int4_g32", "-o", &folder]);
    let said = process::text(&output.stderr);
    assert!(output.status.success() && said.contains("tensors of its own") && said.contains("gpt_oss"), "{said}");
    assert_eq!(plan(&open(&folder)), plan(&before));
}

#[test]
fn experts_in_nvfp4_have_a_scale_each() {
    let root = tempfile::tempdir().expect("a folder");
    let at = |name: &str| root.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let config = config("qwen3_moe");
    let mut weights = weights(&config);
    // Experts whose weights differ in size: one scale for all would lose the small ones.
    let up = |expert: usize| format!("model.layers.0.mlp.experts.{expert}.up_proj.weight");
    for (name, _, values) in &mut weights {
        if *name == up(3) {
            values.iter_mut().for_each(|value| *value *= 1e-6);
        }
    }
    let source = folder(&root.path().join("source"), &config, &weights);
    let (packed, again, back) = (at("packed.gguf"), at("again.gguf"), at("back.gguf"));
    process::succeed(&["quantize", &source, "-F", "nvfp4", "-o", &packed]);
    let (count, _) = experts("qwen3_moe");
    let file = gguf(&packed);
    assert_eq!(file.tensor_info("blk.0.ffn_up_exps.weight").unwrap().ggml_type().name(), "NVFP4");
    assert_eq!(file.tensor_info("blk.0.ffn_up_exps.scale").unwrap().shape(), [count as u64]);
    let read = open(&packed);
    for expert in 0..count {
        let expected = &weights.iter().find(|(name, ..)| *name == up(expert)).expect("an expert").2;
        let found = read.tensor(&up(expert)).expect("an expert").to_f32();
        let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x) * f64::from(x)).sum::<f64>();
        let lost = square(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / square(&mut expected.iter().copied());
        assert!(lost.sqrt() < 0.15, "expert {expert}: {}", lost.sqrt());
    }
    // It stays what it is, and becomes other formats.
    process::succeed(&["quantize", &packed, "-F", "nvfp4", "-o", &again]);
    let kept = gguf(&again);
    for info in file.tensors() {
        let other = kept.tensor_info(info.name()).expect("every tensor is there");
        assert!(file.tensor_bytes(info).unwrap() == kept.tensor_bytes(other).unwrap(), "{}", info.name());
    }
    process::succeed(&["quantize", &packed, "-F", "f32", "-o", &back]);
    let back = open(&back);
    for expert in 0..count {
        assert_eq!(back.tensor(&up(expert)).unwrap().to_f32(), read.tensor(&up(expert)).unwrap().to_f32());
    }
}

#[test]
fn importance_is_that_of_the_rows_that_chose_an_expert() {
    const WINDOW: usize = 64;
    let root = tempfile::tempdir().expect("a folder");
    let at = |name: &str| root.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let (text, imatrix) = (at("text.txt"), at("imatrix.gguf"));
    write_text(&text);
    let config = config("qwen3_moe");
    let weights = weights(&config);
    let source = folder(&root.path().join("source"), &config, &weights);
    let (packed, again, folder) = (at("packed.gguf"), at("again.gguf"), at("int4"));
    let window = WINDOW.to_string();
    let of_text = ["--imatrix-text", &text, "--imatrix-out", &imatrix, "--imatrix-ctx-size", &window];
    process::output(&[&["quantize", &source, "-F", "q4_0", "-o", &packed], &of_text[..]].concat());
    let kept = Imatrix::read(fs::read(&imatrix).expect("it is there").into()).expect("an importance matrix");
    let (count, top_k) = experts("qwen3_moe");
    let tokens = kept.chunks as f32 * WINDOW as f32;
    for layer in 0..2 {
        let entry = |kind: &str| &kept.entries[&format!("blk.{layer}.{kind}.weight")];
        let (gate, up, down) = (entry("ffn_gate_exps"), entry("ffn_up_exps"), entry("ffn_down_exps"));
        assert!(gate == up && gate.counts == down.counts && gate.counts.len() == count);
        assert_eq!((gate.sums.len(), down.sums.len()), (count * HIDDEN, count * INNER));
        assert_eq!(gate.counts.iter().sum::<f32>(), tokens * top_k as f32);
        // The router is given what the experts are: their sums are those of all rows, each as often as it was taken.
        let router = entry("ffn_gate_inp");
        assert_eq!(router.counts, [tokens]);
        for feature in 0..HIDDEN {
            let of_experts: f32 = gate.sums.chunks(HIDDEN).map(|sums| sums[feature]).sum();
            let expected = top_k as f32 * router.sums[feature];
            assert!((of_experts - expected).abs() <= 1e-4 * expected, "{of_experts}, not {expected}");
        }
    }
    // Each expert is packed with its own.
    let name = |expert: usize| format!("model.layers.1.mlp.experts.{expert}.down_proj.weight");
    let entry = &kept.entries["blk.1.ffn_down_exps.weight"];
    let means = entry.means();
    let mean = means.iter().map(|&mean| f64::from(mean)).sum::<f64>() / means.len() as f64;
    let importance: Vec<f32> = means.iter().map(|&value| (f64::from(value) / mean) as f32).collect();
    let stack = gguf(&packed).tensor("blk.1.ffn_down_exps.weight").expect("a stack");
    let each = stack.bytes().len() / count;
    for expert in 0..count {
        let values = &weights.iter().find(|(known, ..)| *known == name(expert)).expect("an expert").2;
        let own = &importance[expert * INNER..(expert + 1) * INNER];
        let expected = Tensor::packed(WeightFormat::Q4_0, vec![HIDDEN, INNER], values, Packing::Weighted(own)).unwrap();
        assert!(stack.bytes()[expert * each..(expert + 1) * each] == expected.bytes()[..], "expert {expert}");
    }
    process::succeed(&["quantize", &source, "-F", "q4_0", "-o", &again, "--imatrix", &imatrix]);
    assert!(gguf(&again).tensor("blk.1.ffn_down_exps.weight").unwrap().bytes() == stack.bytes());

    // In a folder each expert is a matrix of its own, and the router stays what it is.
    process::succeed(&["quantize", &source, "-F", "int4_g32", "-o", &folder, "--imatrix", &imatrix]);
    let written = open(&folder);
    assert_eq!(plan(&written), plan(&open(&source)));
    assert_eq!(written.tensor(&name(3)).unwrap().format(), WeightFormat::Q4_0);
    let router = "model.layers.0.mlp.gate";
    let ignored = written.quantization.as_ref().expect("it is quantised")["ignore"].as_array().expect("a list");
    assert!(ignored.contains(&router.into()) && ignored.len() == 3, "{ignored:?}");
    assert_eq!(written.tensor(&format!("{router}.weight")).unwrap().format(), WeightFormat::F32);
}

#[test]
fn what_a_file_cannot_say_is_refused_before_it_is_written() {
    let root = tempfile::tempdir().expect("a folder");
    let at = |name: &str| root.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let none = at("none.gguf");
    let refused = |name: &str, config: &Value| {
        let source = folder(&root.path().join(name), config, &weights(config));
        fail(&[&source, "-F", "q8_0", "-o", &none])
    };
    let mut config = self::config("qwen3_moe");
    config["norm_topk_prob"] = false.into();
    let error = refused("scores", &config);
    assert!(error.contains("`norm_topk_prob` is false") && error.contains("they mean true"), "{error}");
    // The model's default is what the file does not mean.
    config.as_object_mut().expect("an object").remove("norm_topk_prob");
    let error = refused("default", &config);
    assert!(error.contains("cannot be said in a GGUF file"), "{error}");
    // Every second layer is dense.
    config["norm_topk_prob"] = true.into();
    config["decoder_sparse_step"] = 2.into();
    let error = refused("sparse", &config);
    assert!(error.contains("cannot be said in a GGUF file"), "{error}");
    let left = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().to_str().unwrap().starts_with('.');
    assert!(!Path::new(&none).exists() && !fs::read_dir(root.path()).unwrap().any(left));
}

/// The system gives the process less than a stack of experts has, which are transposed besides: one is held at a time,
/// of mapped files too.
#[cfg(target_os = "linux")]
#[test]
fn memory_is_for_one_expert() {
    const EXPERTS: u64 = 64;
    const WIDTH: u64 = 1024;
    let root = tempfile::tempdir().expect("a folder");
    let source = root.path().join("source");
    let mut config = config("gpt_oss");
    for (field, value) in [
        ("hidden_size", WIDTH),
        ("intermediate_size", WIDTH),
        ("num_local_experts", EXPERTS),
        ("num_hidden_layers", 1),
        ("head_dim", 64),
    ] {
        config[field] = value.into();
    }
    config["tie_word_embeddings"] = true.into();
    folder(&source, &config, &Weights::new());
    let plan = models::build_plan(&config, &AnyShape).expect("a model");
    let start = "model.layers.0.mlp.experts";
    let stacks = [
        (format!("{start}.gate_up_proj"), vec![EXPERTS, WIDTH, 2 * WIDTH]),
        (format!("{start}.gate_up_proj_bias"), vec![EXPERTS, 2 * WIDTH]),
        (format!("{start}.down_proj"), vec![EXPERTS, WIDTH, WIDTH]),
        (format!("{start}.down_proj_bias"), vec![EXPERTS, WIDTH]),
    ];
    let others = plan.weights.iter().filter(|weight| !weight.name.starts_with(start));
    let others = others.map(|weight| (weight.name.clone(), weight.shape.iter().map(|&dim| dim as u64).collect()));
    let mut writer = SafetensorsWriter::new();
    for (name, shape) in others.chain(stacks) {
        let len = 2 * shape.iter().product::<u64>();
        writer.made_tensor(&name, "BF16", &shape, len, |_| Ok(()));
    }
    let (header, len) = (writer.header(), writer.bytes_before(writer.len()));
    let weights = source.join("model.safetensors");
    fs::write(&weights, header).expect("room for a header");
    fs::OpenOptions::new().write(true).open(&weights).unwrap().set_len(len).expect("a file with holes");

    let script = format!(
        "ulimit -d 98304; exec {} quantize {} -F q8_0 --plain -o {}",
        env!("CARGO_BIN_EXE_hotmetal"),
        source.display(),
        root.path().join("out.gguf").display()
    );
    let errors = fs::File::create(root.path().join("errors")).expect("room for a file");
    let mut child = std::process::Command::new("sh").args(["-c", &script]).stderr(errors).spawn().expect("a shell");
    let mut peak = 0;
    while child.try_wait().expect("a child").is_none() {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let pages =
            status.lines().find_map(|line| line.strip_prefix("RssFile:")?.trim().strip_suffix(" kB")?.parse().ok());
        peak = peak.max(pages.unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(child.wait().expect("a child").success(), "{}", fs::read_to_string(root.path().join("errors")).unwrap());
    // The program itself is some of it. The stacks have 384 MiB.
    assert!(peak > 0 && peak < 128 << 10, "{} MiB", peak >> 10);
}
