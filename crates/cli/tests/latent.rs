//! Models with latent attention as a user meets them: folders with `kv_b_proj`, GGUF files with its halves apart, as
//! they are written now, and together, as they were before.

use std::fs;
use std::path::Path;

use formats::gguf::{Gguf, GgufWriter, Value as Key};
use formats::{Checkpoint, SafetensorsWriter};
use plan::{AnyShape, Plan};
use serde_json::{Value, json};
use tensor::{Tensor, WeightFormat};
use testing::Rng;

#[path = "../src/gguf_architectures.rs"]
mod gguf_architectures;
mod process;

/// The folder of the built-in model, whose tokenizer these tests use.
const BUILTIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/builtin");
const MODELS: [&str; 3] = ["glm4_moe_lite", "deepseek_v2", "deepseek_v3"];
const HEADS: usize = 3;
const NOPE: usize = 32;
const ROPE: usize = 8;
const VALUE: usize = 64;
const RANK: usize = 32;

/// A small model with the vocabulary of the built-in one.
fn config(model_type: &str) -> Value {
    let is_v2 = model_type == "deepseek_v2";
    let mut config = json!({
        "model_type": model_type, "vocab_size": 4096, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "kv_lora_rank": RANK,
        "q_lora_rank": if is_v2 { None } else { Some(32) }, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE,
        "v_head_dim": VALUE, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
        "norm_topk_prob": !is_v2, "routed_scaling_factor": 1.8, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu", "eos_token_id": [2, 3],
    });
    if is_v2 {
        config["topk_method"] = json!("group_limited_greedy");
    }
    if model_type == "deepseek_v3" {
        config["rope_scaling"] = json!({
            "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 4, "beta_slow": 0.5,
            "mscale": 0.7, "mscale_all_dim": 0.7,
        });
    }
    config
}

/// What `head`'s rows of `kv_b_proj` are, of its matrices: those of keys transposed, then those of values.
fn rows_of_head(keys: &Tensor, values: &Tensor) -> Vec<f32> {
    let (transposed, values) = (keys.to_f32(), values.to_f32());
    let keys = (0..NOPE * RANK).map(|at| transposed[at % RANK * NOPE + at / RANK]);
    keys.chain(values).collect()
}

/// Makes a folder as the model is published, and returns its path.
fn folder(path: &Path, config: &Value) -> String {
    fs::create_dir(path).expect("room for a folder");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(Path::new(BUILTIN).join(file), path.join(file)).expect("a tokenizer");
    }
    fs::write(path.join("config.json"), config.to_string()).expect("room for a file");
    let plan = models::build_plan(config, &AnyShape).expect("a model");
    let mut rng = Rng::new(2026);
    let mut writer = SafetensorsWriter::new();
    let mut add = |name: &str, shape: &[usize]| {
        let is_norm = name.ends_with("norm.weight");
        let deviation = if shape.len() > 1 { (shape[1] as f32).sqrt().recip() } else { 0.1 };
        let mean = if is_norm { 1.0 } else { 0.0 };
        let values = (0..shape.iter().product::<usize>()).map(|_| mean + deviation * rng.normal());
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        let shape: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
        writer.tensor(name, "F32", &shape, bytes.into());
    };
    let is_half = |name: &str| [".k_b_proj.", ".v_b_proj."].iter().any(|half| name.contains(half));
    for weight in plan.weights.iter().filter(|weight| !is_half(&weight.name)) {
        add(&weight.name, &weight.shape);
    }
    for layer in 0..2 {
        add(&format!("model.layers.{layer}.self_attn.kv_b_proj.weight"), &[HEADS * (NOPE + VALUE), RANK]);
    }
    fs::write(path.join("model.safetensors"), writer.to_bytes()).expect("room for a file");
    path.to_str().expect("a path in UTF-8").to_owned()
}

fn open(path: &str) -> Checkpoint {
    let open = |path: &Path| Ok(mapped::map(path)?);
    Checkpoint::open(Path::new(path), &open, gguf_architectures::all()).expect("a model")
}

/// The plan of a checkpoint, without the numbers of its rotary embedding, which files may say in two ways, and without
/// the name that files share.
fn plan(checkpoint: &Checkpoint) -> Plan {
    let shape = |info: formats::TensorInfo| {
        (info.name, info.shape.iter().map(|&dim| usize::try_from(dim).expect("a dimension")).collect())
    };
    let shapes: std::collections::HashMap<String, Vec<usize>> = checkpoint.tensor_infos().map(shape).collect();
    let plan = models::build_plan(&checkpoint.config, &shapes).expect("a plan");
    Plan { ropes: vec![], model_type: String::new(), ..plan }
}

/// The file as llama.cpp's converter wrote it before heads shared a row: keys and values of all heads in one tensor.
fn as_before(new: &str, old: &str) {
    let checkpoint = open(new);
    let gguf = Gguf::read(fs::read(new).expect("it is there").into()).expect("a whole file");
    let mut writer = GgufWriter::new();
    for (key, value) in gguf.metadata().iter() {
        let number = |n: usize| Key::U32(u32::try_from(n).expect("a small number"));
        match key.strip_prefix("deepseek2.attention.") {
            Some("head_count_kv") => writer.metadata(key, number(HEADS)),
            Some("key_length") => writer.metadata(key, number(NOPE + ROPE)),
            Some("value_length") => writer.metadata(key, number(VALUE)),
            Some("key_length_mla" | "value_length_mla") => continue,
            _ => writer.metadata(key, value.clone()),
        };
    }
    for info in gguf.tensors().iter().filter(|info| !info.name().contains("attn_v_b")) {
        let Some(layer) = info.name().strip_suffix(".attn_k_b.weight").and_then(|start| start.strip_prefix("blk."))
        else {
            writer.tensor(info.name(), &gguf.tensor(info.name()).expect("it is there"));
            continue;
        };
        let half = |kind: &str, head: usize| {
            let name = format!("model.layers.{layer}.self_attn.{kind}_b_proj.{head}.weight");
            checkpoint.tensor(&name).expect("every head is there")
        };
        let rows: Vec<f32> = (0..HEADS).flat_map(|head| rows_of_head(&half("k", head), &half("v", head))).collect();
        let shape = vec![HEADS * (NOPE + VALUE), RANK];
        let whole = Tensor::from_f32(WeightFormat::F32, shape, &rows).expect("a matrix");
        writer.tensor(&format!("blk.{layer}.attn_kv_b.weight"), &whole);
    }
    fs::write(old, writer.to_bytes()).expect("room for a file");
}

fn greedy(model: &str) -> String {
    let output =
        process::output(&["run", model, "Once upon a time", "--temp", "0", "-n", "12", "--device", "cpu", "--raw"]);
    assert!(output.status.success(), "{model}: {}", process::text(&output.stderr));
    process::text(&output.stdout)
}

#[test]
fn a_folder_and_files_of_both_kinds_are_the_same_model() {
    let root = tempfile::tempdir().expect("a folder");
    let at = |name: &str| root.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    for model_type in MODELS {
        let source = folder(&root.path().join(model_type), &config(model_type));
        let (new, old) = (at(&format!("{model_type}.gguf")), at(&format!("{model_type}-old.gguf")));
        process::succeed(&["quantize", &source, "-F", "f32", "-o", &new]);
        as_before(&new, &old);
        let [folder, new_file, old_file] = [&source, &new, &old].map(|path| open(path));
        assert_eq!(plan(&folder), plan(&new_file), "{model_type}");
        assert_eq!(plan(&folder), plan(&old_file), "{model_type}");
        for weight in plan(&folder).weights {
            let expected = folder.tensor(&weight.name).expect("every tensor is there");
            for other in [&new_file, &old_file] {
                let found = other.tensor(&weight.name).expect("every tensor is there");
                assert!(found.to_f32() == expected.to_f32(), "{model_type}: {}", weight.name);
            }
        }
        let file = Gguf::read(fs::read(&new).expect("it is there").into()).expect("a whole file");
        let architecture = gguf_architectures::names(model_type).architecture().expect("a name");
        let number = |key: &str| file.metadata().u64(&format!("{architecture}.{key}")).expect("a number");
        let found = ["head_count_kv", "key_length", "value_length", "key_length_mla", "value_length_mla"];
        let found = found.map(|key| number(&format!("attention.{key}")));
        assert_eq!(found, [1, RANK + ROPE, RANK, NOPE + ROPE, VALUE].map(|n| Some(n as u64)));
        let stack = |name: &str| file.tensor_info(&format!("blk.1.{name}.weight")).expect("a stack").shape();
        assert_eq!(stack("attn_k_b"), [HEADS, RANK, NOPE].map(|dim| dim as u64));
        assert_eq!(stack("attn_v_b"), [HEADS, VALUE, RANK].map(|dim| dim as u64));
        let text = greedy(&source);
        assert_eq!([greedy(&new), greedy(&old)], [text.clone(), text], "{model_type}");
    }
}

/// In Q8_0, the values' half stays as it is and the keys' half becomes F16; where both are apart, both stay.
#[test]
fn quantised_heads_are_read_from_both_kinds_of_files() {
    let root = tempfile::tempdir().expect("a folder");
    let at = |name: &str| root.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let source = folder(&root.path().join("source"), &config("deepseek_v3"));
    let (new, old, [new_q8, old_q8]) = (at("new.gguf"), at("old.gguf"), ["new-q8.gguf", "old-q8.gguf"].map(at));
    process::succeed(&["quantize", &source, "-F", "f32", "-o", &new]);
    as_before(&new, &old);
    process::succeed(&["quantize", &new, "-F", "q8_0", "-o", &new_q8]);
    process::succeed(&["quantize", &old, "-F", "q8_0", "-o", &old_q8]);
    let exact = open(&source);
    for (file, keys_format) in [(new_q8, WeightFormat::Q8_0), (old_q8, WeightFormat::F16)] {
        let packed = open(&file);
        for (name, format) in [("k_b_proj", keys_format), ("v_b_proj", WeightFormat::Q8_0)] {
            let name = format!("model.layers.1.self_attn.{name}.2.weight");
            let info = packed.tensor_infos().find(|info| info.name == name).expect("it is listed");
            let (found, expected) = (packed.tensor(&name).expect("a head"), exact.tensor(&name).expect("a head"));
            assert_eq!((found.format(), info.format), (format, Some(format)), "{file}: {name}");
            let worst = found.to_f32().iter().zip(expected.to_f32()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 5e-3, "{file}: {name} is off by {worst}");
        }
        assert!(greedy(&file).len() > 10);
    }
}

#[test]
fn inspect_and_plan_know_the_rows_of_the_cache() {
    let root = tempfile::tempdir().expect("a folder");
    let source = folder(&root.path().join("source"), &config("glm4_moe_lite"));
    let text = process::succeed(&["inspect", &source]);
    assert!(text.contains("model.layers.1.self_attn.k_b_proj.*.weight"), "{text}");
    let text = process::succeed(&["plan", &source, "--device", "cpu"]);
    // Two layers of 40 numbers in four bytes each.
    assert!(text.contains("320 B a token"), "{text}");
}
