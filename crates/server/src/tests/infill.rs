//! Fill in the middle: `suffix` of completions, and llama.cpp's `/infill`. The tokens that the model is given, by what
//! it answers to the same ids, and the text that comes back.

use engine::null::Script;
use tokenizer::ParseSpecial;

use super::forced_calls::tokenizer_with;
use super::*;

const QWEN: [&str; 6] =
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"];
const PREFIX: u32 = VOCAB_SIZE as u32;
const SUFFIX: u32 = PREFIX + 1;
const MIDDLE: u32 = PREFIX + 2;
const REPO: u32 = PREFIX + 4;
const FILE_SEP: u32 = PREFIX + 5;

/// A model whose vocabulary has these tokens behind those of the built-in one.
struct Coder {
    app: App,
    tokenizer: Arc<Tokenizer>,
    script: Script,
}

impl Coder {
    /// One whose answer depends on each token before it.
    fn new(tokens: &[&str]) -> Self {
        Self::made(tokens, None, false)
    }

    /// One that says what it is told to.
    fn talking(faults: Option<Faults>) -> Self {
        Self::made(&QWEN, faults, true)
    }

    fn made(tokens: &[&str], faults: Option<Faults>, talks: bool) -> Self {
        let (tokenizer, vocab_size) = tokenizer_with(tokens);
        let config = EngineConfig { vocab_size, ..config() };
        let script = Script::default();
        let mut executable = NullExecutable::new(config.kv, vocab_size);
        if talks {
            executable = executable.saying(Arc::clone(&script));
        }
        if let Some(faults) = faults {
            executable = executable.with_faults(faults);
        }
        // The matrix of fields sends names that are no model's.
        let app = loading(Options { strict_model: true, ..Options::default() });
        let engine = Engine::new(Box::new(executable), config.clone()).unwrap();
        let model = ServedModel {
            tokenizer: Arc::clone(&tokenizer),
            engine,
            pooling: Some("mean".to_owned()),
            ..served(config, None, chat_template())
        };
        app.ready(model).unwrap();
        Self { app, tokenizer, script }
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, ParseSpecial::No).unwrap()
    }

    /// Lets the model say `text` and then this token, again and again.
    async fn prepare(&self, text: &str, then: u32) {
        idle(&self.app).await;
        let mut ids = self.ids(text);
        ids.push(then);
        *self.script.lock().unwrap() = ids.into();
    }

    /// What the model answers to these ids.
    async fn continued(&self, ids: &[u32]) -> String {
        let body = json!({"prompt": ids, "max_tokens": 8, "seed": 3});
        let answer = ok(&self.app, TEXT, &body).await;
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    }

    /// Both forms of a stream's answer: all but the last event, and the last.
    async fn stream(&self, body: &Value) -> (Vec<Value>, Value) {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let response = send(&self.app, request(Method::POST, INFILL, &body.to_string())).await;
        assert_eq!(
            (response.status(), response.headers()["content-type"].as_bytes()),
            (StatusCode::OK, &b"text/event-stream"[..])
        );
        let bytes = bytes(response).await;
        let text = std::str::from_utf8(&bytes).unwrap();
        let events = text.split_terminator("\n\n").filter(|event| !event.starts_with(':'));
        let mut events: Vec<Value> =
            events.map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()).collect();
        let last = events.pop().unwrap();
        (events, last)
    }
}

/// A server that fills gaps, for the matrix of fields.
pub(super) fn app_with_marks() -> App {
    Coder::new(&QWEN).app
}

fn gap() -> Value {
    json!({"input_prefix": "Once upon a time", "input_suffix": " and so it was.", "n_predict": 8, "seed": 3})
}

fn with(body: &Value, change: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_suffix_is_shown_as_each_family_wants_it() {
    let (before, behind) = ("Once upon a time", " and so it was.");
    let families: [(&[&str], bool); 3] = [
        (&QWEN, false),
        (&["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"], false),
        // Nothing marks the middle.
        (&["[PREFIX]", "[SUFFIX]"], true),
    ];
    for (tokens, suffix_first) in families {
        let model = Coder::new(tokens);
        let (prefix, suffix) = (model.ids(before), model.ids(behind));
        let expected = match suffix_first {
            false => [&[PREFIX][..], &prefix, &[SUFFIX], &suffix, &[MIDDLE]].concat(),
            true => [&[SUFFIX][..], &suffix, &[PREFIX], &prefix].concat(),
        };
        let said = model.continued(&expected).await;
        let fill = async |prompt: Value| {
            let body = json!({"prompt": prompt, "suffix": behind, "max_tokens": 8, "seed": 3});
            ok(&model.app, TEXT, &body).await
        };
        let answer = fill(json!(before)).await;
        assert_eq!(answer["choices"][0]["text"], said, "{tokens:?}");
        assert_eq!(answer["usage"]["prompt_tokens"], expected.len());
        // Ids, several prompts, and nothing in front of the gap.
        assert_eq!(fill(json!(prefix)).await["choices"][0]["text"], said);
        let several = fill(json!([before, "Twice"])).await;
        assert_eq!(several["choices"][0]["text"], said);
        assert_eq!(several["choices"][1]["text"], fill(json!("Twice")).await["choices"][0]["text"]);
        assert_ne!(several["choices"][1]["text"], said);
        assert_eq!(fill(json!("")).await["usage"]["prompt_tokens"], expected.len() - prefix.len());
        // `/infill` asks the same.
        let native = ok(&model.app, INFILL, &gap()).await;
        assert_eq!((&native["content"], &native["tokens_evaluated"]), (&json!(said), &json!(expected.len())));
        assert_eq!(native["prompt"], model.tokenizer.decode(&expected, false));
    }
}

#[tokio::test]
async fn a_suffix_is_refused_where_nothing_marks_a_gap() {
    let app = app();
    let body = json!({"prompt": "Once", "suffix": " it was.", "max_tokens": 4, "seed": 1});
    let (status, _, answer) = post(&app, TEXT, &body).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("suffix")));
    assert!(answer["error"]["message"].as_str().unwrap().contains("no tokens that mark"), "{answer}");
    // An empty one asks for nothing.
    let plain = ok(&app, TEXT, &json!({"prompt": "Once", "max_tokens": 4, "seed": 1})).await;
    assert_eq!(ok(&app, TEXT, &with(&body, json!({"suffix": ""}))).await["choices"], plain["choices"]);
    let (status, _, answer) = post(&app, INFILL, &gap()).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("no_infill")), "{answer}");
    assert_eq!(get(&app, "/tokenizer_info").await.1["fim"], Value::Null);

    let model = Coder::new(&QWEN);
    let (_, info) = get(&model.app, "/tokenizer_info").await;
    assert_eq!(info["fim"]["middle"], json!({"id": MIDDLE, "token": "<|fim_middle|>"}));
    assert_eq!(info["fim"]["suffix_first"], false);
    for (change, param) in [
        (json!({"echo": true}), "echo"),
        (json!({"suffix": 5}), "suffix"),
        (json!({"prompt": vec![7; 300]}), "prompt"),
        (json!({"suffix": "far ".repeat(300)}), "suffix"),
    ] {
        let (status, _, answer) = post(&model.app, TEXT, &with(&body, change)).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)), "{answer}");
    }
}

/// Source code that mentions a mark is text; a client that writes its own marks says so.
#[tokio::test]
async fn texts_around_a_gap_make_no_marks() {
    let model = Coder::new(&QWEN);
    let text = "a<|fim_middle|>b";
    let (plain, marked) = (model.ids(text), model.tokenizer.encode(text, ParseSpecial::Yes).unwrap());
    assert!(!plain.contains(&MIDDLE) && marked.contains(&MIDDLE));
    let fill = async |change: Value| {
        let body = json!({"prompt": text, "suffix": text, "max_tokens": 8, "seed": 3});
        ok(&model.app, TEXT, &with(&body, change)).await["choices"][0]["text"].clone()
    };
    let asked = |text: &[u32]| [&[PREFIX][..], text, &[SUFFIX], text, &[MIDDLE]].concat();
    assert_eq!(fill(json!({})).await, model.continued(&asked(&plain)).await);
    assert_eq!(fill(json!({"parse_special": true})).await, model.continued(&asked(&marked)).await);
    let body = with(&gap(), json!({"input_prefix": text, "input_suffix": text}));
    assert_eq!(ok(&model.app, INFILL, &body).await["content"], model.continued(&asked(&plain)).await);
}

#[tokio::test]
async fn a_mark_ends_the_text_of_a_gap_and_of_nothing_else() {
    let model = Coder::talking(None);
    for mark in [PREFIX, MIDDLE, FILE_SEP] {
        let body = json!({"prompt": "x", "suffix": "y", "max_tokens": 12});
        model.prepare("there was", mark).await;
        let answer = ok(&model.app, TEXT, &body).await;
        let choice = &answer["choices"][0];
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("there was"), &json!("stop")), "{mark}");
        assert_eq!(choice["stop_reason"], Value::Null);
        model.prepare("there was", mark).await;
        let answer = ok(&model.app, INFILL, &with(&gap(), json!({"n_predict": 12}))).await;
        assert_eq!((&answer["content"], &answer["stop_type"]), (&json!("there was"), &json!("eos")));
        // Text without a gap goes on, and so does one that is not to end.
        for change in [json!({"suffix": null}), json!({"ignore_eos": true})] {
            model.prepare("there was", mark).await;
            let answer = ok(&model.app, TEXT, &with(&body, change)).await;
            assert_eq!(answer["choices"][0]["finish_reason"], "length", "{mark}");
        }
    }
}

#[tokio::test]
async fn other_files_stand_before_the_gap_as_those_of_a_repository() {
    let files = json!([{"filename": "a.py", "text": "x = 1\n"}, {"text": "y = 2"}]);
    let body = with(&gap(), json!({"input_extra": files, "prompt": " there"}));
    let model = Coder::new(&QWEN);
    let ids = |text: &str| model.ids(text);
    let around = |prefix: Vec<u32>, suffix: Vec<u32>, begun: Vec<u32>| {
        [&[PREFIX][..], &prefix, &[SUFFIX], &suffix, &[MIDDLE], &begun].concat()
    };
    let sides = around(ids("Once upon a time"), ids(" and so it was."), ids(" there"));
    let files = [
        &[REPO][..],
        &ids("myproject\n"),
        &[FILE_SEP],
        &ids("a.py\nx = 1\n"),
        &[FILE_SEP],
        &ids("filename\ny = 2\n"),
        &[FILE_SEP],
        &ids("filename\n"),
    ]
    .concat();
    let answer = ok(&model.app, INFILL, &body).await;
    let expected = [files, sides].concat();
    assert_eq!(answer["content"], model.continued(&expected).await);
    assert_eq!((&answer["tokens_evaluated"], &answer["truncated"]), (&json!(expected.len()), &json!(false)));
    // Without tokens for files, they are text.
    let model = Coder::new(&QWEN[..3]);
    let answer = ok(&model.app, INFILL, &body).await;
    let sides = around(ids("Once upon a time"), ids(" and so it was."), ids(" there"));
    let expected = [ids("a.py\nx = 1\n"), ids("y = 2\n"), sides].concat();
    assert_eq!(answer["content"], model.continued(&expected).await);
    for (extra, param) in [
        (json!("x"), "input_extra"),
        (json!([{"filename": "a.py"}]), "input_extra[0].text"),
        (json!([{"text": "a"}, {"text": 5}]), "input_extra[1].text"),
        (json!([{"text": "a", "filename": 5}]), "input_extra[0].filename"),
        (json!([5]), "input_extra[0]"),
    ] {
        let (status, _, answer) = post(&model.app, INFILL, &with(&gap(), json!({"input_extra": extra}))).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)), "{answer}");
    }
}

#[tokio::test]
async fn an_answer_has_llama_cpps_shape_and_its_stream_says_the_same() {
    let model = Coder::talking(None);
    let body = with(&gap(), json!({"n_predict": 30, "temperature": 0, "return_tokens": true}));
    let said = "there was\na kangaroo";
    for (change, then, content, stop_type, word) in [
        (json!({}), 2, said, "eos", ""),
        (json!({"stop": ["\n"]}), 2, "there was", "word", "\n"),
        (json!({"n_predict": model.ids(said).len()}), 300, said, "limit", ""),
    ] {
        let body = with(&body, change);
        model.prepare(said, then).await;
        let whole = ok(&model.app, INFILL, &body).await;
        assert_eq!(
            (&whole["content"], &whole["stop_type"], &whole["stopping_word"], &whole["stop"]),
            (&json!(content), &json!(stop_type), &json!(word), &json!(true)),
            "{whole}"
        );
        assert_eq!(whole["has_new_line"], content.contains('\n'));
        assert_eq!((&whole["model"], &whole["index"], &whole["truncated"]), (&json!(MODEL), &json!(0), &json!(false)));
        assert_eq!(whole["tokens"].as_array().unwrap().len(), whole["tokens_predicted"].as_u64().unwrap() as usize);
        let settings = &whole["generation_settings"];
        assert_eq!((&settings["n_predict"], &settings["temperature"]), (&body["n_predict"], &json!(0.0)));
        assert_eq!(settings["seed"], 3);
        let timings = &whole["timings"];
        assert_eq!(timings["predicted_n"], whole["tokens_predicted"]);
        let counted = timings["prompt_n"].as_u64().unwrap() + timings["cache_n"].as_u64().unwrap();
        assert_eq!(json!(counted), whole["tokens_evaluated"]);
        assert!(timings["prompt_ms"].as_f64().unwrap() > 0.0);

        model.prepare(said, then).await;
        let (events, last) = model.stream(&body).await;
        let text: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
        assert_eq!(text, content);
        assert!(events.len() > 1 && events.iter().all(|event| event["stop"] == false), "{events:?}");
        assert_eq!((&last["content"], &last["stop"]), (&json!(""), &json!(true)));
        for name in ["stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated", "truncated", "has_new_line"]
        {
            assert_eq!(last[name], whole[name], "{name}");
        }
        let tokens: Vec<Value> = events.iter().flat_map(|event| event["tokens"].as_array().unwrap().clone()).collect();
        assert!(whole["tokens"].as_array().unwrap().starts_with(&tokens));
    }
    // No more of it than the client wants.
    model.prepare(said, 2).await;
    let fields = json!({"response_fields": ["content", "timings/predicted_n", "nothing/there"]});
    let answer = ok(&model.app, INFILL, &with(&body, fields)).await;
    let names: Vec<&String> = answer.as_object().unwrap().keys().collect();
    assert_eq!(names, ["content", "timings/predicted_n", "x_hotmetal"]);
    assert_eq!(answer["content"], said);
    // A prompt for the cache alone.
    let answer = ok(&model.app, INFILL, &with(&gap(), json!({"n_predict": 0}))).await;
    assert_eq!((&answer["content"], &answer["tokens_predicted"]), (&json!(""), &json!(0)));
    assert_eq!(answer["stop_type"], "limit");
    idle(&model.app).await;
}

#[tokio::test]
async fn a_line_that_is_indented_too_little_ends_the_text() {
    let model = Coder::talking(None);
    let said = "x = 1\n    y = 2\n\n  z = 3\nw = 4";
    for (least, content) in
        [(0, said), (1, "x = 1\n    y = 2\n\n  z = 3\n"), (4, "x = 1\n    y = 2\n\n  "), (5, "x = 1\n    ")]
    {
        let body = with(&gap(), json!({"n_indent": least, "n_predict": 60}));
        model.prepare(said, 2).await;
        let answer = ok(&model.app, INFILL, &body).await;
        assert_eq!(answer["content"], content, "{least}");
        assert_eq!(answer["stop_type"], if least == 0 { "eos" } else { "limit" });
        model.prepare(said, 2).await;
        let (events, _) = model.stream(&body).await;
        let text: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
        assert_eq!(text, content, "{least}");
    }
    idle(&model.app).await;
}

#[tokio::test]
async fn a_text_that_takes_too_long_ends_with_its_line() {
    let slow: Faults = Box::new(|_, _| {
        std::thread::sleep(Duration::from_millis(5));
        None
    });
    let model = Coder::talking(Some(slow));
    let say = async |text: &str, change: Value| {
        model.prepare(text, 300).await;
        let answer = ok(&model.app, INFILL, &with(&gap(), with(&json!({"n_predict": 60}), change))).await;
        answer["tokens_predicted"].as_u64().unwrap()
    };
    let late = json!({"t_max_predict_ms": 20});
    assert!((4..60).contains(&say("a\n", late.clone()).await), "it ends some steps after its time");
    assert_eq!(say("a", late).await, 60, "no line has ended");
    for never in [0, -1, 600_000] {
        assert_eq!(say("a\n", json!({"t_max_predict_ms": never})).await, 60, "{never}");
    }
    idle(&model.app).await;
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_is_cut_and_the_answer_says_so() {
    let model = Coder::new(&QWEN);
    let (before, behind) = ("one two three ".repeat(60), " four five six".repeat(60));
    let body = json!({"input_prefix": before, "input_suffix": behind, "n_predict": 40, "seed": 3, "ignore_eos": true});
    let answer = ok(&model.app, INFILL, &body).await;
    // 256 tokens of context less 40 and three marks: 213, a quarter of them behind the gap.
    let (prefix, suffix) = (model.ids(&before), model.ids(&behind));
    let expected = [&[PREFIX][..], &prefix[prefix.len() - 160..], &[SUFFIX], &suffix[..53], &[MIDDLE]].concat();
    assert_eq!((&answer["truncated"], &answer["tokens_evaluated"]), (&json!(true), &json!(216)));
    assert_eq!((&answer["tokens_predicted"], &answer["stop_type"]), (&json!(40), &json!("limit")));
    assert_eq!(answer["prompt"], model.tokenizer.decode(&expected, false));
    let request = with(&body, json!({"prompt": "one ".repeat(400)}));
    let (status, _, answer) = post(&model.app, INFILL, &request).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("prompt")), "{answer}");
    assert_eq!(answer["error"]["code"], "context_length_exceeded");
}

/// The request of llama.vim, with a chunk of its ring.
#[tokio::test]
async fn the_request_of_an_editors_plugin_is_answered() {
    let model = Coder::new(&QWEN);
    let body = json!({
        "id_slot": 0, "input_prefix": "def add(a, b):\n", "input_suffix": "\nprint(add(1, 2))\n", "prompt": "    ",
        "input_extra": [{"text": "import os\n", "time": [1, 2], "filename": "b.py"}], "n_predict": 16, "stop": [],
        "n_indent": 4, "top_k": 40, "top_p": 0.9, "stream": false, "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": true, "t_max_prompt_ms": 500, "t_max_predict_ms": 60_000,
        "response_fields": ["content", "timings/prompt_n", "timings/predicted_ms", "truncated", "tokens_cached"],
    });
    let answer = ok(&model.app, INFILL, &body).await;
    assert!(answer["content"].is_string() && answer["timings/predicted_ms"].is_number(), "{answer}");
    assert_eq!(answer["truncated"], false);
    let facts = &answer["x_hotmetal"];
    assert_eq!(
        (&facts["sampling"]["samplers"], &facts["sampling"]["top_p"]),
        (&json!(["top_k", "top_p"]), &json!(0.9))
    );
    // The model's defaults are of samplers that the request leaves out.
    assert_eq!(facts["sampling"]["temperature"], 1.0);
    let ignored = json!(["samplers.infill", "cache_prompt", "t_max_prompt_ms", "input_extra[0].time"]);
    assert_eq!(facts["ignored"], ignored);
    // What it says itself of one that it leaves out has no effect, and is reported: plugins send it.
    let answer = ok(&model.app, INFILL, &with(&body, json!({"temperature": 0.5}))).await;
    assert_eq!(answer["x_hotmetal"]["sampling"]["temperature"], 1.0);
    assert!(answer["x_hotmetal"]["ignored"].as_array().unwrap().contains(&json!("temperature")), "{answer}");
    for (change, param) in [
        (json!({"input_prefix": null}), "input_prefix"),
        (json!({"input_suffix": 5}), "input_suffix"),
        (json!({"max_tokens": 5}), "max_tokens"),
        (json!({"n_probs": 2000}), "n_probs"),
        (json!({"grammar": "root ::= b"}), "grammar"),
        (json!({"mirostat": 3}), "mirostat"),
        (json!({"n": 2}), "n"),
        (json!({"suffix": "x"}), "suffix"),
    ] {
        let (status, _, answer) = post(&model.app, INFILL, &with(&body, change)).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)), "{answer}");
    }
    // Defaults that say what is done anyway.
    let defaults = json!({"mirostat": 0, "n_probs": 0, "min_keep": 0, "dynatemp_range": 0.0, "grammar": "", "n": 1});
    ok(&model.app, INFILL, &with(&body, defaults)).await;
}
