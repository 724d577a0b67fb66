//! Valid checkpoints in every form give the same names, configuration and numbers.

mod valid;

use std::{fs, path::Path};

use bytes::Bytes;
use formats::{
    Checkpoint, TokenizerSource,
    gguf::{Array, Gguf, GgufWriter, Value},
    safetensors,
};
use serde_json::json;
use tensor::{Tensor, WeightFormat};
use valid::{HEAD_DIM, HEADS, HIDDEN, KV_HEADS};

fn open_gguf(writer: &GgufWriter) -> Checkpoint {
    Checkpoint::from_bytes(&[("model.gguf", writer.to_bytes())], &valid::ARCHITECTURES).unwrap()
}

fn assert_same(found: &Tensor, expected: &Tensor, name: &str) {
    assert_eq!((found.format(), found.shape()), (expected.format(), expected.shape()), "{name}");
    assert_eq!(found.bytes(), expected.bytes(), "{name}");
}

#[test]
fn safetensors_give_back_what_was_written_single_and_sharded() {
    for folder in [valid::folder(), valid::sharded_folder()] {
        let checkpoint = Checkpoint::from_bytes(&folder, &valid::ARCHITECTURES).unwrap();
        assert_eq!(checkpoint.tensor_names().len(), valid::tensors().len());
        for (name, expected) in valid::tensors() {
            assert_same(&checkpoint.tensor(&name).unwrap(), &expected, &name);
        }
        assert_eq!(checkpoint.config["hidden_size"], 32);
        assert_eq!(checkpoint.eos_token_ids().unwrap(), [2, 1]);
        let bytes: usize = valid::tensors().iter().map(|(_, tensor)| tensor.bytes().len()).sum();
        assert_eq!(checkpoint.total_bytes(), bytes as u64);
    }
    let checkpoint = Checkpoint::from_bytes(&valid::folder(), &valid::ARCHITECTURES).unwrap();
    assert_eq!(checkpoint.chat_templates.default.as_deref(), Some("{{ messages }}"));
    assert_eq!(checkpoint.metadata, [("format".to_string(), "pt".to_string())]);
    let TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config } = checkpoint.tokenizer else { panic!() };
    assert_eq!((&tokenizer_json[..], &tokenizer_config["eos_token"]), (&b"{}"[..], &json!("</s>")));
}

#[test]
fn a_vocabulary_is_found_in_any_of_its_files() {
    let without = |names: &[&str]| {
        let mut folder = valid::folder();
        folder.retain(|(name, _)| *name != "tokenizer.json");
        let files = ["tokenizer.model", "merges.txt", "vocab.json", "added_tokens.json", "tekken.json"];
        folder.extend(files.into_iter().map(|name| (name, bytes::Bytes::from(format!("bytes of {name}")))));
        folder.retain(|(name, _)| !names.contains(name));
        Checkpoint::from_bytes(&folder, &valid::ARCHITECTURES).unwrap().tokenizer
    };
    let TokenizerSource::Tekken { tekken_json } = without(&[]) else { panic!() };
    assert_eq!(tekken_json, "bytes of tekken.json");
    let TokenizerSource::VocabMerges { vocab_json, merges_txt, beside } = without(&["tekken.json"]) else { panic!() };
    assert_eq!((&vocab_json[..], &merges_txt[..]), (&b"bytes of vocab.json"[..], &b"bytes of merges.txt"[..]));
    assert_eq!(beside.added_tokens.as_deref(), Some(&b"bytes of added_tokens.json"[..]));
    assert_eq!((&beside.tokenizer_config["eos_token"], beside.special_tokens_map), (&json!("</s>"), None));
    for either in ["vocab.json", "merges.txt"] {
        let TokenizerSource::SentencePiece { model, .. } = without(&["tekken.json", either]) else { panic!() };
        assert_eq!(model, "bytes of tokenizer.model");
    }
    let none = without(&["tekken.json", "vocab.json", "tokenizer.model"]);
    assert!(matches!(none, TokenizerSource::None));
}

#[test]
fn a_class_of_tokenizers_may_be_in_the_models_configuration() {
    let class = |model_type: &str, tokenizer_class: Option<&str>, tokenizer_config: &str| {
        let mut config: serde_json::Value = serde_json::from_str(valid::CONFIG).unwrap();
        config["model_type"] = model_type.into();
        config["tokenizer_class"] = tokenizer_class.into();
        let mut folder = valid::folder();
        folder.retain(|(name, _)| !["tokenizer.json", "tokenizer_config.json", "config.json"].contains(name));
        let file = |text: &str| bytes::Bytes::from(text.to_owned());
        folder.extend([("config.json", file(&config.to_string())), ("tokenizer_config.json", file(tokenizer_config))]);
        folder.extend([("vocab.json", file("{}")), ("merges.txt", file("#version: 0.2"))]);
        let TokenizerSource::VocabMerges { beside, .. } =
            Checkpoint::from_bytes(&folder, &valid::ARCHITECTURES).unwrap().tokenizer
        else {
            panic!()
        };
        beside.tokenizer_config["tokenizer_class"].clone()
    };
    assert_eq!(class("qwen3", None, "{}"), "Qwen2Tokenizer");
    assert_eq!(class("qwen3", Some("X"), "{}"), "X");
    assert_eq!(class("qwen3", Some("X"), r#"{"tokenizer_class": "Y"}"#), "Y");
    assert_eq!(class("other", None, "{}"), json!(null));
}

#[test]
fn gguf_gives_checkpoint_names_configuration_and_vocabulary() {
    let checkpoint = open_gguf(&valid::gguf_writer("qwen2"));
    for (name, expected) in valid::tensors() {
        assert_same(&checkpoint.tensor(&name).unwrap(), &expected, &name);
    }
    let expected = json!({
        "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 512,
        "head_dim": 8, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 3, "hidden_act": "silu", "tie_word_embeddings": true,
        "attention_bias": false, "mlp_bias": false, "bos_token_id": 1, "eos_token_id": 2, "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
    });
    assert_eq!(checkpoint.config, expected);
    assert_eq!(checkpoint.generation_config, json!({"bos_token_id": 1, "eos_token_id": [2]}));
    assert_eq!(checkpoint.chat_templates.default.as_deref(), Some("{{ messages }}"));
    let TokenizerSource::Gguf(vocabulary) = &checkpoint.tokenizer else { panic!() };
    assert_eq!(vocabulary.tokens.iter().collect::<Vec<_>>(), ["<unk>", "<s>", "é"]);
    assert_eq!((&vocabulary.scores[..], &vocabulary.token_types[..]), (&[0.0, -1.0, -2.5][..], &[2, 3, 1][..]));
    assert_eq!(
        (vocabulary.bos_token_id, vocabulary.add_bos_token, vocabulary.add_eos_token),
        (Some(1), Some(true), None)
    );
}

#[test]
fn gguf_names_the_tokens_of_a_gap_by_either_of_their_keys() {
    let fim = |ids: &[(&str, u32)]| {
        let mut writer = valid::gguf_writer("qwen2");
        for &(name, id) in ids {
            writer.metadata(&format!("tokenizer.ggml.{name}_token_id"), Value::U32(id));
        }
        let TokenizerSource::Gguf(vocabulary) = open_gguf(&writer).tokenizer else { panic!() };
        let found = vocabulary.fim;
        [found.prefix, found.suffix, found.middle, found.pad, found.repo, found.file_sep]
    };
    assert_eq!(fim(&[]), [None; 6]);
    let all = [("fim_pre", 0), ("fim_suf", 1), ("fim_mid", 2), ("fim_pad", 2), ("fim_rep", 1), ("fim_sep", 0)];
    assert_eq!(fim(&all), [0, 1, 2, 2, 1, 0].map(Some));
    let older = [("prefix", 2), ("suffix", 1), ("middle", 0)];
    assert_eq!(fim(&older), [Some(2), Some(1), Some(0), None, None, None]);
    assert_eq!(fim(&[&older[..], &all[..1]].concat())[0], Some(0), "the newer name counts");
    // The vocabulary has three tokens: an id beyond them is missing, and the file is read.
    assert_eq!(fim(&[("fim_pre", 3), ("fim_suf", 1)])[..2], [None, Some(1)]);
}

/// The rows of a tensor as the converter of the `llama` architecture stores them.
fn converted(tensor: &Tensor, heads: usize) -> Tensor {
    let rows = tensor.shape()[0];
    let (row_bytes, head_dim) = (tensor.bytes().len() / rows, rows / heads);
    let mut bytes = Vec::new();
    for head in 0..heads {
        for pair in 0..head_dim / 2 {
            for half in 0..2 {
                let row = head * head_dim + half * head_dim / 2 + pair;
                bytes.extend_from_slice(&tensor.bytes()[row * row_bytes..][..row_bytes]);
            }
        }
    }
    Tensor::new(tensor.format(), tensor.shape().to_vec(), bytes.into()).unwrap()
}

#[test]
fn rows_of_q_and_k_of_the_llama_architecture_come_back_in_the_checkpoints_order() {
    let mut writer = GgufWriter::new();
    let layer = |name: &str| format!("model.layers.0.self_attn.{name}");
    let rows = |heads| heads * HEAD_DIM;
    let tensors = [
        ("blk.0.attn_q.weight", layer("q_proj.weight"), HEADS, WeightFormat::Q8_0, vec![rows(HEADS), HIDDEN]),
        ("blk.0.attn_q.bias", layer("q_proj.bias"), HEADS, WeightFormat::F32, vec![rows(HEADS)]),
        ("blk.0.attn_k.weight", layer("k_proj.weight"), KV_HEADS, WeightFormat::BF16, vec![rows(KV_HEADS), HIDDEN]),
        ("blk.0.attn_k.bias", layer("k_proj.bias"), KV_HEADS, WeightFormat::F16, vec![rows(KV_HEADS)]),
        ("blk.0.attn_v.weight", layer("v_proj.weight"), 0, WeightFormat::F16, vec![rows(KV_HEADS), HIDDEN]),
    ];
    writer.metadata("general.architecture", Value::String("llama".into()));
    writer.metadata("llama.attention.head_count", Value::U32(HEADS as u32));
    writer.metadata("llama.attention.head_count_kv", Value::U32(KV_HEADS as u32));
    for (start, (gguf_name, _, heads, format, shape)) in tensors.iter().enumerate() {
        let tensor = valid::ramp(*format, shape, start as i32);
        writer.tensor(gguf_name, &if *heads == 0 { tensor } else { converted(&tensor, *heads) });
    }
    let checkpoint = open_gguf(&writer);
    for (start, (_, name, _, format, shape)) in tensors.iter().enumerate() {
        assert_same(&checkpoint.tensor(name).unwrap(), &valid::ramp(*format, shape, start as i32), name);
    }
}

#[test]
fn tensors_are_views_of_the_file() {
    let file = valid::gguf_writer("qwen2").to_bytes();
    let inside = |bytes: &Bytes| file.as_ptr_range().contains(&bytes.as_ptr());
    let checkpoint = Checkpoint::from_bytes(&[("model.gguf", file.clone())], &valid::ARCHITECTURES).unwrap();
    for (name, _) in valid::tensors() {
        assert!(inside(checkpoint.tensor(&name).unwrap().bytes()), "{name} was copied");
    }
}

/// LongRoPE has two tables, and says by a key of its own what scores grow by.
#[test]
fn the_tables_of_longrope_are_those_of_config_json() {
    let mut writer = valid::gguf_writer("llama");
    writer.metadata("llama.rope.scaling.type", Value::String("longrope".into()));
    writer.metadata("llama.rope.scaling.original_context_length", Value::U32(4096));
    writer.metadata("llama.rope.scaling.attn_factor", Value::F32(1.25));
    for (name, factors) in [("short", [1.0, 1.0, 1.5, 2.0]), ("long", [1.0, 2.0, 4.0, 8.0])] {
        let tensor = Tensor::from_f32(WeightFormat::F32, vec![4], &factors).unwrap();
        writer.tensor(&format!("rope_factors_{name}.weight"), &tensor);
    }
    let checkpoint = open_gguf(&writer);
    let expected = json!({
        "rope_type": "longrope", "original_max_position_embeddings": 4096, "attention_factor": 1.25,
        "short_factor": [1.0, 1.0, 1.5, 2.0], "long_factor": [1.0, 2.0, 4.0, 8.0],
    });
    assert_eq!(checkpoint.config["rope_scaling"], expected);
    assert_eq!(checkpoint.config.get("rope_freq_factors"), None);
}

#[test]
fn rope_tables_are_configuration_not_weights() {
    let mut writer = valid::gguf_writer("llama");
    writer.tensor("rope_freqs.weight", &Tensor::from_f32(WeightFormat::F32, vec![4], &[1.0, 1.0, 2.5, 8.0]).unwrap());
    let checkpoint = open_gguf(&writer);
    assert_eq!(checkpoint.config["rope_freq_factors"], json!([1.0, 1.0, 2.5, 8.0]));
    assert_eq!(checkpoint.ignored(), ["rope_freqs.weight"]);
    assert!(checkpoint.tensor_names().all(|name| !name.contains("rope")));

    let mut tensors = valid::tensors();
    let inv_freq = "model.layers.0.self_attn.rotary_emb.inv_freq";
    tensors.push((inv_freq.into(), valid::ramp(WeightFormat::F32, &[4], 0)));
    let mut folder = valid::folder();
    folder[1].1 = safetensors::write(&tensors, &[]).unwrap();
    let checkpoint = Checkpoint::from_bytes(&folder, &valid::ARCHITECTURES).unwrap();
    assert_eq!(checkpoint.ignored(), [inv_freq]);
    assert!(checkpoint.tensor(inv_freq).is_err());
}

#[test]
fn metadata_says_more_than_the_architecture() {
    let with = |keys: &[(&str, Value)]| {
        let mut writer = valid::gguf_writer("llama");
        keys.iter().for_each(|(key, value)| {
            writer.metadata(key, value.clone());
        });
        open_gguf(&writer).config
    };
    let sliding = with(&[("llama.attention.sliding_window", Value::U32(4096))]);
    assert_eq!((&sliding["model_type"], &sliding["sliding_window"]), (&json!("mistral"), &json!(4096)));
    assert_eq!(with(&[("llama.expert_count", Value::U32(8))])["model_type"], "mixtral");
    let scaled = with(&[
        ("llama.rope.scaling.type", Value::String("yarn".into())),
        ("llama.rope.scaling.factor", Value::F32(4.0)),
        ("llama.rope.scaling.original_context_length", Value::U32(8192)),
    ]);
    let expected = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192});
    assert_eq!(scaled["rope_scaling"], expected);
    // `attn_factor` multiplies what YaRN gives by itself, 0.1 · ln 4 + 1; in config.json the product stands.
    let multiplied = with(&[
        ("llama.rope.scaling.type", Value::String("yarn".into())),
        ("llama.rope.scaling.factor", Value::F32(4.0)),
        ("llama.rope.scaling.attn_factor", Value::F32(0.5)),
    ]);
    let found = multiplied["rope_scaling"]["attention_factor"].as_f64().unwrap();
    assert!((found - 0.5 * (0.1 * 4f64.ln() + 1.0)).abs() < 1e-9, "{found}");
    // A factor without a type is linear, under its newer name and under the older one.
    for key in ["llama.rope.scaling.factor", "llama.rope.scale_linear"] {
        assert_eq!(with(&[(key, Value::F32(4.0))])["rope_scaling"], json!({"rope_type": "linear", "factor": 4.0}));
        assert_eq!(with(&[(key, Value::F32(1.0))])["rope_scaling"], serde_json::Value::Null);
    }
    // Without a scaling to explain it, `attn_factor` is handed on: no model computes it, and each refuses it by name.
    let alone = |factor| with(&[("llama.rope.scaling.attn_factor", Value::F32(factor))]);
    assert_eq!(alone(0.5)["rope_scaling"], json!({"attention_factor": 0.5}));
    assert_eq!(alone(1.0)["rope_scaling"], serde_json::Value::Null);
    assert_eq!(with(&[("llama.rope.dimension_count", Value::U32(4))])["partial_rotary_factor"], 0.5);
    let many_ends = with(&[("tokenizer.ggml.eot_token_id", Value::U32(0))]);
    assert_eq!(many_ends["eos_token_id"], 2);
}

#[test]
fn a_vocabulary_alone_is_a_checkpoint_without_tensors() {
    let mut writer = GgufWriter::new();
    writer
        .metadata("general.architecture", Value::String("llama".into()))
        .metadata("tokenizer.ggml.model", Value::String("gpt2".into()))
        .metadata("tokenizer.ggml.tokens", Value::Array(Array::of_strings(["a", "b"])))
        .metadata("tokenizer.ggml.merges", Value::Array(Array::of_strings(["a b"])));
    let checkpoint = open_gguf(&writer);
    assert_eq!(checkpoint.config["vocab_size"], 2);
    assert_eq!(checkpoint.tensor_names().len(), 0);
}

#[test]
fn headers_alone_tell_names_shapes_and_configuration() {
    let whole = valid::gguf_writer("llama").to_bytes();
    let data_start = Gguf::read(whole.clone()).unwrap().tensors()[0].range().start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, &whole[..data_start as usize + 10]).unwrap();
    let open = |path: &Path| Ok(mapped::map(path)?);
    assert!(Checkpoint::open(&path, &open, &valid::ARCHITECTURES).is_err());
    let checkpoint = Checkpoint::open_headers(&path, &open, &valid::ARCHITECTURES).unwrap();
    assert_eq!(checkpoint.config["hidden_size"], 32);
    let info = checkpoint.tensor_infos().find(|info| info.name == "model.norm.weight").unwrap();
    assert_eq!((info.source_name.as_str(), info.type_name, info.bytes), ("output_norm.weight", "F32", 128));
    assert!(checkpoint.tensor("model.norm.weight").is_err());
}

#[test]
fn every_kind_of_path_opens() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path| Ok(mapped::map(path)?);
    let opens = |path: &Path| {
        Checkpoint::open(path, &open, &valid::ARCHITECTURES).unwrap().tensor("model.norm.weight").unwrap()
    };
    let write = |name: &str, files: &[(&str, Bytes)]| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        files.iter().for_each(|(file, bytes)| fs::write(path.join(file), bytes).unwrap());
        path
    };
    let single = write("single", &valid::folder());
    let sharded = write("sharded", &valid::sharded_folder());
    let gguf = write("gguf", &[("any-name.gguf", valid::gguf_writer("llama").to_bytes()), ("README.md", "x".into())]);
    fs::write(gguf.join("sha256-1234"), valid::gguf_writer("llama").to_bytes()).unwrap();
    for path in [
        single.clone(),
        single.join("model.safetensors"),
        sharded.clone(),
        sharded.join("model.safetensors.index.json"),
        sharded.join("model-00002-of-00002.safetensors"),
        gguf.clone(),
        gguf.join("any-name.gguf"),
        gguf.join("sha256-1234"),
    ] {
        assert_eq!(opens(&path).shape(), [HIDDEN], "{}", path.display());
    }
}

#[test]
fn what_is_read_can_be_written_again() {
    let file = valid::gguf_writer("llama").to_bytes();
    let again = GgufWriter::from_gguf(&Gguf::read(file.clone()).unwrap()).unwrap().to_bytes();
    assert_eq!(file, again);
    let file = valid::folder().remove(1).1;
    let again = safetensors::rewrite(&safetensors::Safetensors::read(file.clone()).unwrap()).unwrap();
    assert_eq!(file, again);
}

#[test]
fn damaged_numbers_are_found_when_asked_for() {
    let mut tensors = valid::tensors();
    let mut values = tensors[0].1.to_f32();
    values[40] = f32::INFINITY;
    tensors[0].1 = Tensor::from_f32(WeightFormat::F16, vec![3, HIDDEN], &values).unwrap();
    let mut folder = valid::folder();
    folder[1].1 = safetensors::write(&tensors, &[]).unwrap();
    let checkpoint = Checkpoint::from_bytes(&folder, &valid::ARCHITECTURES).unwrap();
    let error = checkpoint.check_finite("model.embed_tokens.weight").unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    let expected = "tensor `model.embed_tokens.weight` holds inf at element 40: the file is damaged, fetch it again";
    assert_eq!(cause, expected);
    checkpoint.check_finite("model.norm.weight").unwrap();
}

#[test]
fn a_scale_that_is_infinite_is_found_in_a_block_format() {
    let mut bytes = valid::ramp(WeightFormat::Q8_0, &[2, 64], 0).bytes().to_vec();
    bytes[3 * 34..3 * 34 + 2].copy_from_slice(&0x7c00u16.to_le_bytes());
    let mut writer = valid::gguf_writer("qwen2");
    writer.tensor("blk.0.ffn_up.weight", &Tensor::new(WeightFormat::Q8_0, vec![2, 64], bytes.into()).unwrap());
    let checkpoint = open_gguf(&writer);
    let error = checkpoint.check_finite("model.layers.0.mlp.up_proj.weight").unwrap_err();
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("holds inf at element 96"));
    assert_eq!(checkpoint.weight_files().collect::<Vec<_>>(), ["model.gguf"]);
}

#[test]
fn templates_in_a_folder_of_their_own_have_the_names_of_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    valid::folder().iter().for_each(|(name, bytes)| write(name, bytes));
    let listed = r#"[{"name": "default", "template": "D"}, {"name": "tool_use", "template": "old"}, {"name": "rag", "template": "R"}]"#;
    write("tokenizer_config.json", format!(r#"{{"chat_template": {listed}}}"#).as_bytes());
    let templates = || {
        Checkpoint::open(folder.path(), &|path| Ok(fs::read(path)?.into()), &valid::ARCHITECTURES)
            .unwrap()
            .chat_templates
    };
    let named = |list: &[(&str, &str)]| -> Vec<(String, String)> {
        list.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    };
    assert_eq!(templates().named, named(&[("tool_use", "old"), ("rag", "R")]));
    fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    write("additional_chat_templates/tool_use.jinja", b"T");
    write("additional_chat_templates/brief.jinja", b"B");
    write("additional_chat_templates/notes.txt", b"\xff");
    assert_eq!(templates().named, named(&[("tool_use", "T"), ("rag", "R"), ("brief", "B")]));
    assert_eq!(templates().default.as_deref(), Some("D"));
    write("additional_chat_templates/brief.jinja", b"\xff");
    let error = Checkpoint::open(folder.path(), &|path| Ok(fs::read(path)?.into()), &valid::ARCHITECTURES).unwrap_err();
    assert!(error.to_string().contains("additional_chat_templates/brief.jinja"), "{error}");
}

#[test]
fn gguf_has_templates_by_name_and_integers_of_any_width() {
    let mut writer = GgufWriter::new();
    let nested = Array::of_arrays([&Array::of_i32(&[1, -2]), &Array::of_f32(&[])]);
    writer
        .metadata("general.architecture", Value::String("qwen3".into()))
        .metadata("tokenizer.chat_template.tool_use", Value::String("T".into()))
        .metadata("qwen3.block_count", Value::I8(3))
        .metadata("qwen3.embedding_length", Value::I16(48))
        .metadata("qwen3.attention.head_count", Value::Array(Array::of_i32(&[4, 4, 4])))
        .metadata("qwen3.feed_forward_length", Value::U8(200))
        .metadata("x.nested", Value::Array(nested.clone()));
    let checkpoint = open_gguf(&writer);
    assert_eq!(checkpoint.chat_templates.named, [("tool_use".to_string(), "T".to_string())]);
    let numbers = ["num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"];
    assert_eq!(numbers.map(|key| checkpoint.config[key].as_u64()), [Some(3), Some(48), Some(4), Some(4), Some(12)]);
    assert!(checkpoint.metadata.contains(&("x.nested".into(), "2 × Array".into())));

    let gguf = Gguf::read(writer.to_bytes()).unwrap();
    assert_eq!((gguf.version(), gguf.alignment()), (3, 32));
    let inner: Vec<Value> = nested.values("x.nested").map(Result::unwrap).collect();
    assert_eq!(inner, [Value::Array(Array::of_i32(&[1, -2])), Value::Array(Array::of_f32(&[]))]);
    assert_eq!(gguf.metadata().get("x.nested"), Some(&Value::Array(nested)));
    assert_eq!(gguf.metadata().i32s("qwen3.attention.head_count").unwrap(), Some(vec![4, 4, 4]));
}

#[test]
fn a_format_that_safetensors_does_not_have_is_not_written() {
    let tensors = [("x".to_string(), valid::ramp(WeightFormat::Q8_0, &[1, 32], 0))];
    let error = safetensors::write(&tensors, &[]).unwrap_err().to_string();
    assert_eq!(error, "tensor `x` is of type Q8_0, which no reader here covers; covered are F32, F16, BF16");
}

/// The valid file in three parts: the first with all keys and no tensor, as `--no-tensor-first-split` makes it.
fn in_parts(folder: &Path) -> Vec<std::path::PathBuf> {
    let whole = Gguf::read(valid::gguf_writer("llama").to_bytes()).unwrap();
    let split = |writer: &mut GgufWriter, no: u16| {
        writer.metadata("split.no", Value::U16(no)).metadata("split.count", Value::U16(3));
        writer.metadata("split.tensors.count", Value::I32(i32::try_from(whole.tensors().len()).unwrap()));
    };
    let mut parts = [GgufWriter::new(), GgufWriter::new(), GgufWriter::new()];
    for (key, value) in whole.metadata().iter() {
        parts[0].metadata(key, value.clone());
    }
    for (index, info) in whole.tensors().iter().enumerate() {
        let bytes = whole.tensor_bytes(info).unwrap();
        parts[1 + index % 2].raw_tensor(info.name(), info.ggml_type(), info.dims(), bytes);
    }
    let path = |no: u16| folder.join(format!("m-{:05}-of-00003.gguf", no + 1));
    let mut paths = Vec::new();
    for (no, writer) in (0..).zip(&mut parts) {
        split(writer, no);
        fs::write(path(no), writer.to_bytes()).unwrap();
        paths.push(path(no));
    }
    paths
}

#[test]
fn a_gguf_model_in_parts_is_one_from_any_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let paths = in_parts(folder.path());
    let whole = open_gguf(&valid::gguf_writer("llama"));
    let read = |path: &Path| Ok(Bytes::from(fs::read(path)?));
    for path in paths.iter().map(|path| path.as_path()).chain([folder.path()]) {
        let checkpoint = Checkpoint::open(path, &read, &valid::ARCHITECTURES).unwrap();
        assert_eq!((&checkpoint.config, checkpoint.weight_files().len()), (&whole.config, 3), "{}", path.display());
        assert!(checkpoint.tensor_names().eq(whole.tensor_names()));
        for name in whole.tensor_names() {
            assert_eq!(checkpoint.tensor(name).unwrap().bytes(), whole.tensor(name).unwrap().bytes(), "{name}");
        }
    }
}

#[test]
fn a_part_that_is_missing_or_anothers_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let paths = in_parts(folder.path());
    let read = |path: &Path| Ok(Bytes::from(fs::read(path)?));
    let fails = |path: &Path| {
        let error = Checkpoint::open(path, &read, &valid::ARCHITECTURES).unwrap_err();
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{error}{cause}")
    };
    let second = fs::read(&paths[1]).unwrap();
    fs::remove_file(&paths[1]).unwrap();
    for path in [&paths[0], &paths[2]] {
        let message = fails(path);
        assert!(message.contains("m-00002-of-00003.gguf") && message.contains("fetch it"), "{message}");
    }
    fs::copy(&paths[2], &paths[1]).unwrap();
    assert!(fails(&paths[0]).contains("`split.no`"), "{}", fails(&paths[0]));
    let renamed = folder.path().join("other.gguf");
    fs::write(&renamed, second).unwrap();
    assert!(fails(&renamed).contains("part 2 of a GGUF file split into 3"), "{}", fails(&renamed));
}
