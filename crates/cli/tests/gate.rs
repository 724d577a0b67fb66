//! `hotmetal bench --record`, `bench history` and `hotmetal gate` as a user meets them: records that are written, read
//! again and compared, and regressions that are planted and caught: a step that became slower, a wrong bit, and a NaN deep
//! in a text. Each gate is also run without its regression, because one that is always shut catches nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use process::{output, succeed, text};
use serde_json::{Value, json};

mod process;

/// The records of machine `m` below `folder`.
fn records(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(folder.join("m")).expect("a machine's folder").map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn a_result_is_recorded_and_its_history_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let record = format!("--record={}", folder.path().display());
    let bench = ["bench", "-p", "8", "-n", "4", "-r", "2", "--threads", "1", "-o", "json", "--machine", "m", &record];
    let measured = output(&bench);
    let stderr = text(&measured.stderr);
    assert!(measured.status.success() && stderr.contains("recorded in `"), "{stderr}");
    let printed: Value = serde_json::from_str(&text(&measured.stdout)).unwrap();
    let [path] = &records(folder.path())[..] else { panic!("one record") };
    let kept: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(kept, printed, "a record is what is printed");
    assert_eq!(kept["schema"], 1);

    // The same a day later, 20 % slower.
    let mut later = kept;
    let date = later["run"]["date"].as_str().unwrap().replacen("20", "21", 1);
    for row in later["rows"].as_array_mut().unwrap() {
        row["samples"] = json!([80.0, 80.0]);
    }
    later["run"]["date"] = json!(date);
    later["run"]["commit"] = json!("abc");
    fs::write(folder.path().join(format!("m/{}-abc.json", &date[..10])), later.to_string()).unwrap();
    let root = folder.path().to_str().unwrap();
    let history: Value = serde_json::from_str(&succeed(&["bench", "history", root, "-o", "json"])).unwrap();
    let names: Vec<_> = history.as_array().unwrap().iter().map(|line| line["name"].as_str().unwrap()).collect();
    let (decode, prefill) = ("built-in model bf16 decode of 4, 1 thread", "built-in model bf16 prefill 8, 1 thread");
    assert_eq!(names, [decode, decode, prefill, prefill]);
    let last = &history[1];
    assert_eq!((&last["commit"], &last["value"]), (&json!("abc"), &json!(80.0)));
    assert!(last["verdict"].is_string() && history[0]["verdict"].is_null(), "{history}");
    let table = succeed(&["bench", "history", root, "--only", "prefill", "--machine", "m"]);
    assert!(table.contains("## m\n") && table.contains(prefill) && !table.contains(decode), "{table}");
    let stderr = text(&output(&["bench", "history", root, "--only", "nosuch"]).stderr);
    assert!(stderr.contains("2 records of m"), "{stderr}");

    // What cannot be kept is printed all the same.
    let blocked = folder.path().join("file");
    fs::write(&blocked, "").unwrap();
    let record = format!("--record={}", blocked.display());
    let failed = output(&["bench", "-p", "0", "-n", "1", "-r", "1", "--threads", "1", "-o", "json", &record]);
    let stderr = text(&failed.stderr);
    assert!(!failed.status.success() && stderr.contains("cannot make the folder"), "{stderr}");
    assert!(serde_json::from_str::<Value>(&text(&failed.stdout)).unwrap()["rows"].is_array());
}

/// Runs `hotmetal gate` with JSON as its output, and with `variables` in its environment: whether it passed, what it
/// printed, and what it said beside it.
fn gate(flags: &[&str], variables: &[(&str, &str)]) -> (bool, Value, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmetal"));
    command.arg("gate").args(flags).args(["-o", "json"]).stdin(Stdio::null());
    let output = command.env("HF_HUB_OFFLINE", "1").envs(variables.iter().copied()).output().expect("it starts");
    let stderr = text(&output.stderr);
    let verdict = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    (output.status.success(), verdict, stderr)
}

/// Whether the check `id` passed, and what it found.
fn check<'a>(verdict: &'a Value, id: &str) -> (bool, &'a str) {
    let checks = verdict["gate"]["checks"].as_array().expect("checks");
    let check = checks.iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("no {id} in {verdict}"));
    (check["passed"].as_bool().expect("a verdict"), check["found"].as_str().expect("words"))
}

#[test]
fn a_slower_program_shuts_the_gate() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    // One thread, because several wait for each other on a machine that other tests keep busy.
    let flags = ["--only", "p3,p5", "-r", "3", "--threads", "1", "--records", root, "--machine", "m", "--wave"];
    let (is_open, first, stderr) = gate(&[&flags[..], &["first"]].concat(), &[]);
    assert!(is_open, "{stderr}");
    assert!(check(&first, "P3").0 && check(&first, "P3").1.contains("512 tokens"), "{first}");
    assert!(check(&first, "P5").1.contains("nothing to compare with"), "{first}");
    let names: Vec<_> = first["rows"].as_array().unwrap().iter().map(|row| row["test"].clone()).collect();
    assert_eq!(names, ["tg16", "tg128", "tg512"]);

    // The record as if the program had been so many times as fast as its best, each time, by its share of the memory too.
    let [path] = &records(folder.path())[..] else { panic!("one record") };
    let kept: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let record_faster = |factor: f64| {
        let mut record = kept.clone();
        for row in record["rows"].as_array_mut().unwrap() {
            let faster = |value: &Value| json!(factor * value.as_f64().unwrap());
            let best = row["samples"].as_array().unwrap().iter().map(|sample| sample.as_f64().unwrap());
            let best = best.fold(0.0, f64::max);
            row["samples"] = json!(vec![factor * best; 3]);
            row["roofline_share"] = faster(&row["roofline_share"]);
        }
        fs::write(path, record.to_string()).unwrap();
    };
    // Twenty times: the tests that run beside this one may halve its speed, which is not to decide anything.
    record_faster(0.05);
    let (is_open, verdict, stderr) = gate(&flags[..flags.len() - 1], &[]);
    assert!(is_open && check(&verdict, "P5").1.contains("faster"), "{verdict} {stderr}");
    record_faster(20.0);
    let (is_open, verdict, stderr) = gate(&[&flags[..], &["second"]].concat(), &[]);
    assert!(!is_open && stderr.contains("the gate is shut: P5 failed"), "{verdict} {stderr}");
    assert_eq!(verdict["gate"]["passed"], false);
    let (passed, found) = check(&verdict, "P5");
    assert!(!passed && found.contains("built-in model bf16 decode of 512, 1 thread: "), "{found}");
    assert!(found.contains(" % slower than on 20"), "{found}");
    // Kept all the same: a gate that was shut is part of the history.
    assert_eq!(records(folder.path()).len(), 2);
    let stderr = text(&output(&["gate", "--capture", "x.gputrace"]).stderr);
    assert!(stderr.contains("--capture traces one step"), "{stderr}");
}

#[test]
fn a_wrong_bit_shuts_the_gate() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/golden/qwen3");
    let flags = [model, "--only", "p1,p2", "--threads", "1"];
    let (is_open, verdict, stderr) = gate(&flags, &[]);
    assert!(is_open, "{verdict} {stderr}");
    assert!(check(&verdict, "P1").1.starts_with("128 greedy tokens are those of reference"), "{verdict}");

    // The eleventh weight of the matrix in F32: bit 27 makes its exponent 16 larger or smaller.
    let fault = format!("model.layers.1.mlp.down_proj.weight:{}", 10 * 32 + 27);
    let (is_open, verdict, stderr) = gate(&flags, &[("HOTMETAL_PLANT_WRONG_BIT", &fault)]);
    assert!(!is_open && stderr.contains("the gate is shut: P1, P2 failed"), "{stderr}");
    let (_, found) = check(&verdict, "P1");
    assert!(found.contains(" and reference has ") || found.contains("beyond their tolerance"), "{found}");
    // The op that has the weight, and none before it.
    let (_, found) = check(&verdict, "P2");
    assert!(found.ends_with("of layer 1 in step 0 is the first that is beyond its tolerance"), "{found}");
    assert!(found.contains(": linear"), "{found}");
}

/// Numbers in a row of the embedding of [`counting_model`]: a code for the token, and one for whether it is poisonous.
const WIDTH: usize = 64;
const VOCABULARY: usize = 4096;

/// How far the next token of [`counting_model`] is from the last: texts that begin with different tokens seldom meet.
const STRIDE: usize = 5;

/// A model in BF16 that writes the token [`STRIDE`] behind the last one, for ever: a token's row in the head is the code of
/// the token before it, and the layer adds nothing. Its values are beyond all numbers where a token is `poisonous`, so what follows
/// on such a token is NaN.
fn counting_model(folder: &Path, poisonous: Option<usize>) {
    let mut rng = testing::Rng::new(7);
    let mut embedding: Vec<f32> = (0..VOCABULARY * WIDTH).map(|_| f32::from(rng.below(2) as u8) * 2.0 - 1.0).collect();
    embedding.iter_mut().skip(WIDTH - 1).step_by(WIDTH).for_each(|flag| *flag = 0.0);
    let (most, last) = embedding.split_at((VOCABULARY - STRIDE) * WIDTH);
    let head = [last, most].concat();
    if let Some(token) = poisonous {
        embedding[(token + 1) * WIDTH - 1] = 1.0;
    }
    let mut values = vec![0.0; WIDTH * WIDTH];
    values[WIDTH - 1] = 3e38;
    let [zeros, ones] = [0.0, 1.0].map(|value| vec![value; WIDTH * WIDTH]);
    let (square, row) = (vec![WIDTH, WIDTH], vec![WIDTH]);
    let layer = "model.layers.0";
    let tensors = [
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, WIDTH], &embedding),
        ("lm_head.weight".to_owned(), vec![VOCABULARY, WIDTH], &head),
        ("model.norm.weight".to_owned(), row.clone(), &ones),
        (format!("{layer}.input_layernorm.weight"), row.clone(), &ones),
        (format!("{layer}.post_attention_layernorm.weight"), row, &ones),
        (format!("{layer}.self_attn.q_proj.weight"), square.clone(), &zeros),
        (format!("{layer}.self_attn.k_proj.weight"), square.clone(), &zeros),
        (format!("{layer}.self_attn.v_proj.weight"), square.clone(), &values),
        (format!("{layer}.self_attn.o_proj.weight"), square.clone(), &zeros),
        (format!("{layer}.mlp.gate_proj.weight"), square.clone(), &zeros),
        (format!("{layer}.mlp.up_proj.weight"), square.clone(), &zeros),
        (format!("{layer}.mlp.down_proj.weight"), square, &zeros),
    ];
    let (mut header, mut data) = (serde_json::Map::new(), vec![]);
    for (name, shape, numbers) in tensors {
        let begin = data.len();
        let numbers = &numbers[..shape.iter().product()];
        data.extend(
            numbers.iter().flat_map(|number| [number.to_bits().to_le_bytes()[2], number.to_bits().to_le_bytes()[3]]),
        );
        header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()]}));
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    fs::write(folder.join("model.safetensors"), file).expect("room for a file");
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "head_dim": WIDTH,
        "intermediate_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "vocab_size": VOCABULARY, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    });
    fs::write(folder.join("config.json"), config.to_string()).expect("room for a file");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let builtin = Path::new(env!("CARGO_MANIFEST_DIR")).join("builtin").join(file);
        fs::copy(builtin, folder.join(file)).expect("room for a file");
    }
}

#[test]
fn a_nan_at_token_300_shuts_the_gate() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().to_str().unwrap();
    counting_model(folder.path(), None);
    let flags = [model, "--only", "p1,p3", "--threads", "1"];
    let (is_open, verdict, stderr) = gate(&flags, &[]);
    assert!(is_open, "{verdict} {stderr}");
    let prompt = ["run", "--raw", "-p", "Once upon a time", "--model", model, "--temp", "0", "--ignore-eos"];
    let run = |tokens: &str| succeed_in_json(&[&prompt[..], &["-n", tokens, "--output-format", "json"]].concat());
    let text = run("301");
    let ids: Vec<usize> =
        text["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as usize).collect();
    assert!(ids.len() == 301 && ids.windows(2).all(|pair| pair[1] == pair[0] + STRIDE), "{ids:?}");

    // The model reads the token before it to write token 300; 128 tokens are as they were.
    counting_model(folder.path(), Some(ids[299]));
    assert_eq!(run("300")["token_ids"].as_array().unwrap().len(), 300);
    let (is_open, verdict, stderr) = gate(&flags, &[]);
    assert!(!is_open && stderr.contains("the gate is shut: P3 failed"), "{verdict} {stderr}");
    let position = text["prompt_token_ids"].as_array().unwrap().len() + 300;
    let (passed, found) = check(&verdict, "P3");
    assert!(!passed && found.contains(&format!("the logits after {position} tokens hold NaN")), "{found}");
}

fn succeed_in_json(args: &[&str]) -> Value {
    let output = output(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}
