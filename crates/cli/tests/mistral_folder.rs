//! A folder as Mistral publishes Devstral: weights in two layouts, `params.json` beside `config.json`, `tekken.json` and no
//! `tokenizer.json`, and no chat template. It runs, chats in Mistral's own format and calls tools.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use http_server::Server;
use serde_json::{Map, Value, json};
use testing::Rng;

mod http_server;
mod process;

const CHAT: &str = "/v1/chat/completions";
/// Special tokens, and all ids.
const SPECIALS: usize = 1000;

/// `tools/goldens/mistral_conversations.py` says what made it.
fn golden() -> Value {
    serde_json::from_str(include_str!("../../tokenizer/tests/golden/mistral_conversations.json")).expect("a golden")
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().expect("a list").iter().map(|text| text.as_str().expect("a text"))
}

/// The file that the golden's ids were made with.
fn tekken(golden: &Value, version: &str) -> Value {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let tokens = bytes.iter().map(|byte| &byte[..]).chain(texts(&golden["words"]).map(str::as_bytes));
    let base64 = base64::engine::general_purpose::STANDARD;
    let vocab: Vec<Value> = tokens
        .enumerate()
        .map(|(rank, bytes)| json!({"rank": rank, "token_bytes": base64.encode(bytes), "token_str": null}))
        .collect();
    let specials: Vec<Value> = texts(&golden["versions"][version]["specials"])
        .enumerate()
        .map(|(rank, text)| json!({"rank": rank, "token_str": text, "is_control": true}))
        .collect();
    json!({
        "config": {
            "pattern": golden["pattern"], "default_vocab_size": SPECIALS + vocab.len(),
            "default_num_special_tokens": SPECIALS, "version": format!("v{version}"),
        },
        "vocab": vocab,
        "special_tokens": specials,
    })
}

/// Random weights in BF16, as a file of safetensors.
fn weights(tensors: &[(String, Vec<usize>)], rng: &mut Rng) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::<u8>::new());
    for (name, shape) in tensors {
        let start = data.len();
        let (mean, deviation) = if shape.len() == 1 { (1.0, 0.1) } else { (0.0, 0.2) };
        for _ in 0..shape.iter().product::<usize>() {
            let value: f32 = mean + deviation * rng.normal();
            data.extend(((value.to_bits() >> 16) as u16).to_le_bytes());
        }
        header.insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, data.len()]}));
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// Makes the folder, and returns its path.
fn folder(root: &Path, golden: &Value, version: &str) -> String {
    let folder = root.join(format!("Devstral-v{version}"));
    fs::create_dir(&folder).expect("room for a folder");
    let write = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).expect("room for a file");
    let vocab = SPECIALS + 256 + texts(&golden["words"]).count();
    let (hidden, inner, heads, kv_heads, head_dim) = (32, 48, 4, 2, 8);
    write("config.json", json!({
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": vocab, "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 1e9,
        "sliding_window": null, "tie_word_embeddings": false, "hidden_act": "silu", "torch_dtype": "bfloat16",
        "bos_token_id": 1, "eos_token_id": 2, "use_cache": true,
    }).to_string().as_bytes());
    write("generation_config.json", br#"{"_from_model_config": true, "bos_token_id": 1, "eos_token_id": 2}"#);
    write(
        "params.json",
        json!({"dim": hidden, "n_layers": 2, "vocab_size": vocab, "rope_theta": 1e9}).to_string().as_bytes(),
    );
    write("tekken.json", tekken(golden, version).to_string().as_bytes());
    write("SYSTEM_PROMPT.txt", b"You are Devstral.");

    let mut layers: Vec<Vec<(String, Vec<usize>)>> = Vec::new();
    for layer in 0..2 {
        let named = |name: &str, shape: Vec<usize>| (format!("model.layers.{layer}.{name}.weight"), shape);
        layers.push(vec![
            named("self_attn.q_proj", vec![heads * head_dim, hidden]),
            named("self_attn.k_proj", vec![kv_heads * head_dim, hidden]),
            named("self_attn.v_proj", vec![kv_heads * head_dim, hidden]),
            named("self_attn.o_proj", vec![hidden, heads * head_dim]),
            named("mlp.gate_proj", vec![inner, hidden]),
            named("mlp.up_proj", vec![inner, hidden]),
            named("mlp.down_proj", vec![hidden, inner]),
            named("input_layernorm", vec![hidden]),
            named("post_attention_layernorm", vec![hidden]),
        ]);
    }
    layers[0].push(("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]));
    layers[1].push(("model.norm.weight".to_owned(), vec![hidden]));
    layers[1].push(("lm_head.weight".to_owned(), vec![vocab, hidden]));
    let mut rng = Rng::new(2507);
    let mut map = Map::new();
    for (index, tensors) in (1..).zip(&layers) {
        let shard = format!("model-{index:05}-of-00002.safetensors");
        write(&shard, &weights(tensors, &mut rng));
        map.extend(tensors.iter().map(|(name, _)| (name.clone(), shard.clone().into())));
    }
    write(
        "model.safetensors.index.json",
        json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string().as_bytes(),
    );
    // The same weights under Mistral's own names; here they would give other texts.
    let own = [("tok_embeddings.weight".to_owned(), vec![vocab, hidden]), ("norm.weight".to_owned(), vec![hidden])];
    write("consolidated.safetensors", &weights(&own, &mut rng));
    folder.to_str().expect("a path in UTF-8").to_owned()
}

fn tool() -> Value {
    let parameters = json!({"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"],
        "additionalProperties": false});
    json!({"type": "function", "function": {"name": "get_weather", "description": "Now", "parameters": parameters}})
}

#[test]
fn the_official_layout_of_devstral_runs_chats_and_calls_tools() {
    let golden = golden();
    let root = tempfile::tempdir().expect("a folder");
    for version in ["7", "11", "13"] {
        let source = folder(root.path(), &golden, version);
        let inspected = process::succeed(&["inspect", &source]);
        assert!(inspected.contains("tekken.json"), "{inspected}");
        for more in [&["--raw"][..], &[]] {
            let output = process::output(&[&["run", &source, "Hello", "-n", "4", "--temp", "0"], more].concat());
            assert!(output.status.success(), "v{version} {more:?}: {}", process::text(&output.stderr));
        }

        let server = Server::start(&[&source]);
        let conversations = golden["conversations"].as_array().expect("a list");
        let expected = golden["versions"][version]["ids"].as_array().expect("ids of each");
        assert_eq!(conversations.len(), expected.len());
        for (conversation, expected) in conversations.iter().zip(expected) {
            let mut body = conversation.clone();
            body["max_tokens"] = 1.into();
            body["return_token_ids"] = true.into();
            let answer = server.post(CHAT, &body);
            assert_eq!(&answer["prompt_token_ids"], expected, "v{version}: {conversation}");
        }

        let asked = json!({"role": "user", "content": "How warm is it?"});
        let mut body = json!({"messages": [asked], "tools": [tool()], "tool_choice": "required", "max_tokens": 100,
            "seed": 1, "return_token_ids": true});
        let answer = server.post(CHAT, &body);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "v{version}: {answer}");
        let call = &choice["message"]["tool_calls"][0];
        let arguments = call["function"]["arguments"].as_str().expect("a text");
        let arguments: Value = serde_json::from_str(arguments).expect("JSON");
        assert!(arguments == json!({"unit": "C"}) || arguments == json!({"unit": "F"}), "{arguments}");
        assert_eq!(call["function"]["name"], "get_weather");
        let id = call["id"].as_str().expect("an id");
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        // What the model wrote, in the form of its version.
        let ids: Vec<u64> = choice["token_ids"].as_array().expect("ids").iter().filter_map(Value::as_u64).collect();
        let (calls, args, call_id) = (9, 32, 33);
        let markers: Vec<u64> = ids.iter().copied().filter(|&id| id < SPECIALS as u64 && id != 2).collect();
        let form: &[u64] = match version {
            "7" => &[calls],
            "11" => &[calls, call_id, args],
            _ => &[calls, args],
        };
        assert_eq!(markers, form, "v{version}: {ids:?}");

        // The call and its result go back, and the model is told both.
        let result = json!({"role": "tool", "tool_call_id": id, "content": "12 °C"});
        let messages = body["messages"].as_array_mut().expect("a list");
        messages.extend([choice["message"].clone(), result]);
        body["tool_choice"] = "auto".into();
        body["max_tokens"] = 1.into();
        let answer = server.post(CHAT, &body);
        let shown = server.post("/detokenize", &json!({"tokens": answer["prompt_token_ids"]}));
        let shown = shown["prompt"].as_str().expect("a text");
        let unit = arguments["unit"].as_str().expect("a text");
        let told = match version {
            "7" => format!(
                "[TOOL_CALLS][{{\"name\": \"get_weather\", \"arguments\": {{\"unit\": \"{unit}\"}}, \"id\": \"{id}\"}}]</s>\
                 [TOOL_RESULTS]{id}[TOOL_CONTENT]12 °C[/TOOL_RESULTS]"
            ),
            "11" => format!(
                "[TOOL_CALLS]get_weather[CALL_ID]{id}[ARGS]{{\"unit\": \"{unit}\"}}</s>\
                 [TOOL_RESULTS]{id}[TOOL_CONTENT]12 °C[/TOOL_RESULTS]"
            ),
            _ => format!("[TOOL_CALLS]get_weather[ARGS]{{\"unit\": \"{unit}\"}}</s>[TOOL_RESULTS]12 °C[/TOOL_RESULTS]"),
        };
        assert!(shown.ends_with(&told), "v{version}: {shown}");
    }
}

/// The file that is made of such a folder has the format in it, as a template.
#[test]
fn a_gguf_of_such_a_folder_chats_as_the_folder_does() {
    let golden = golden();
    let root = tempfile::tempdir().expect("a folder");
    let source = folder(root.path(), &golden, "13");
    let file = format!("{source}.gguf");
    process::succeed(&["quantize", &source, "-F", "bf16", "--plain", "-o", &file]);
    let server = Server::start(&[&file]);
    let (conversations, ids) = (&golden["conversations"], &golden["versions"]["13"]["ids"]);
    for index in [1, 6] {
        let mut body = conversations[index].clone();
        body["max_tokens"] = 1.into();
        body["return_token_ids"] = true.into();
        assert_eq!(server.post(CHAT, &body)["prompt_token_ids"], ids[index], "{body}");
    }
}
