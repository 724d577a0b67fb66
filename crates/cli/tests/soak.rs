//! Many clients at a time on the built-in model, some of whom leave in the middle: each answer is the one that its request
//! gets alone, nothing is lost, and nothing is left when all have gone. A few seconds, or `HOTMETAL_SOAK_SECONDS`.

mod http_server;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http_server::Server;
use serde_json::{Value, json};

const CLIENTS: u64 = 64;
/// Different requests; each is asked alone first.
const REQUESTS: u64 = 100;
/// Everybody leaves this often. What is allocated once is there after half of the rounds.
const ROUNDS: usize = 4;
/// What may be in memory after the last round besides what is there after half of them, if these took long enough.
const GROWTH_KB: u64 = 4 << 10;
const SETTLES: u64 = 240;

/// Pseudorandom numbers (splitmix64), so that a failure can be had again.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// A request of some route: long or short, greedy or drawn, with stop strings, several answers, log-probabilities, a grammar, a
/// tool, a priority.
fn request(number: u64) -> (&'static str, Value) {
    let random = &mut Random(number);
    let story =
        ["Once upon a time, in a green valley", "The moon was out and", "A little fox"][random.below(3) as usize];
    let text = format!("{} {}", story.repeat(1 + random.below(12) as usize), random.below(20));
    let (max, seed) = (1 + random.below(32), random.below(1000));
    let temperature = random.below(3) as f64 / 2.0;
    let messages = json!([{"role": "user", "content": text}]);
    let place = json!({"type": "object", "additionalProperties": false, "required": ["place", "days"], "properties": {
        "place": {"enum": ["the sea", "the valley", "the moon"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}});
    let tool =
        json!({"type": "function", "function": {"name": "look_at", "description": "Looks.", "parameters": place}});
    let (path, mut body) = match random.below(10) {
        6 => (
            "/v1/chat/completions",
            json!({
                "messages": messages, "max_tokens": 40, "seed": seed, "temperature": temperature, "tools": [tool],
                "tool_choice": "required",
            }),
        ),
        7 => (
            "/v1/messages",
            json!({
                "messages": messages, "max_tokens": max, "seed": seed, "tool_choice": {"type": "auto"},
                "tools": [{"name": "look_at", "description": "Looks.", "input_schema": place}],
            }),
        ),
        8 => (
            "/v1/completions",
            json!({
                "prompt": text, "max_tokens": max, "seed": seed, "temperature": temperature, "n": 2,
                // Of many, so that some are compiled again.
                "structured_outputs": {"regex": format!("[a-z ]{{4,{}}}\\.", 5 + random.below(200))},
            }),
        ),
        9 => (
            "/v1/chat/completions",
            json!({
                "messages": messages, "max_tokens": 40, "seed": seed, "temperature": temperature,
                "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": place}},
            }),
        ),
        0 => (
            "/v1/chat/completions",
            json!({
                "messages": messages, "max_tokens": max, "seed": seed, "temperature": temperature, "stop": ["e ", " th"],
            }),
        ),
        1 => (
            "/v1/chat/completions",
            json!({
                "messages": messages, "max_tokens": max, "seed": seed, "n": 1 + random.below(3),
            }),
        ),
        2 => (
            "/v1/messages",
            json!({
                "messages": messages, "max_tokens": max, "seed": seed, "temperature": temperature, "stop_sequences": ["."],
            }),
        ),
        3 => (
            "/v1/responses",
            json!({
                "input": text, "max_output_tokens": max, "seed": seed, "temperature": temperature,
            }),
        ),
        4 => ("/v1/embeddings", json!({"input": [text, story]})),
        _ => (
            "/v1/completions",
            json!({
                "prompt": text, "max_tokens": max, "seed": seed, "temperature": temperature, "logprobs": 1, "echo": true,
                "frequency_penalty": 0.5,
            }),
        ),
    };
    // Who goes first changes nothing of what is said.
    body["priority"] = json!(random.below(5) as i64 - 2);
    (path, body)
}

/// What of an answer must always be the same.
fn essence(answer: &Value) -> Value {
    let text = |choice: &Value| {
        let calls = arguments(&choice["message"]);
        json!([choice["text"], choice["message"]["content"], calls, choice["finish_reason"], choice["logprobs"]])
    };
    let choices: Vec<Value> = answer["choices"].as_array().into_iter().flatten().map(text).collect();
    let output: Vec<Value> =
        answer["output"].as_array().into_iter().flatten().map(|item| item["content"][0]["text"].clone()).collect();
    json!([choices, output, answer["content"], answer["data"], answer["stop_reason"], answer["status"]])
}

/// What a message or a piece of one calls its tools with. The ids of calls are never the same.
fn arguments(message: &Value) -> String {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    calls.filter_map(|call| call["function"]["arguments"].as_str()).collect()
}

/// The text of a stream: its answers one after the other, each by its number.
fn streamed(body: &str) -> Vec<String> {
    let mut texts: Vec<String> = vec![String::new()];
    let data = body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    for event in data {
        let event: Value = serde_json::from_str(event).expect("an event is JSON");
        assert!(event["error"].is_null(), "{event}");
        let choices = event["choices"].as_array().into_iter().flatten();
        let text_of = |text: &Value| text.as_str().unwrap_or_default().to_owned();
        let mut found: Vec<(usize, String)> = choices
            .map(|choice| {
                let text =
                    text_of(&choice["text"]) + &text_of(&choice["delta"]["content"]) + &arguments(&choice["delta"]);
                (choice["index"].as_u64().expect("an index") as usize, text)
            })
            .collect();
        match event["type"].as_str() {
            Some("content_block_delta") => found.push((0, text_of(&event["delta"]["text"]))),
            Some("response.output_text.delta") => found.push((0, text_of(&event["delta"]))),
            _ => {}
        }
        for (index, text) in found {
            texts.resize(texts.len().max(index + 1), String::new());
            texts[index].push_str(&text);
        }
    }
    texts
}

/// The texts of a whole answer, as [`streamed`] has them.
fn texts(answer: &Value) -> Vec<String> {
    let text = |choice: &Value| {
        let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap_or_default();
        text.to_owned() + &arguments(&choice["message"])
    };
    if let Some(choices) = answer["choices"].as_array() {
        return choices.iter().map(text).collect();
    }
    let text = answer["content"][0]["text"].as_str().or(answer["output"][0]["content"][0]["text"].as_str());
    vec![text.unwrap_or_default().to_owned()]
}

fn metric(server: &Server, name: &str) -> f64 {
    let text = server.get("/metrics").1;
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

/// Kilobytes that the server has in memory, where the system says so.
fn resident_kb(server: &Server) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?.parse().ok()
}

#[expect(clippy::print_stderr, reason = "a long run says what it did")]
#[test]
fn every_client_gets_the_answer_that_it_gets_alone() {
    let seconds = std::env::var("HOTMETAL_SOAK_SECONDS").ok().and_then(|value| value.parse().ok()).unwrap_or(4);
    let template = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/serving/tools.jinja");
    let sizes = ["--kv-tokens", "768", "--ctx-size", "512", "--batch-tokens", "64", "--parallel", "12"];
    let server = Server::start(&[&sizes[..], &["--chat-template", template]].concat());
    let alone: Vec<(&str, Value, Value)> = (0..REQUESTS)
        .map(|number| {
            let (path, body) = request(number);
            let answer = server.post(path, &body);
            (path, body, answer)
        })
        .collect();
    let (whole, streams, left, again) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let mut resident = Vec::new();
    for round in 0..ROUNDS {
        let end = Instant::now() + Duration::from_secs(seconds) / ROUNDS as u32;
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (server, alone) = (&server, &alone);
                let (whole, streams, left, again) = (&whole, &streams, &left, &again);
                scope.spawn(move || {
                    let random = &mut Random(client << 32 | (round as u64) << 48);
                    while Instant::now() < end {
                        let (path, body, expected) = &alone[random.below(REQUESTS) as usize];
                        let has_stream = *path != "/v1/embeddings";
                        let mut body = body.clone();
                        let what = random.below(10);
                        if what >= 5 && has_stream {
                            body["stream"] = json!(true);
                        }
                        if what >= 8 {
                            leave(server, path, &body, random);
                            left.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        let (status, answer) = server.send("POST", path, &body.to_string());
                        if status == 429 {
                            again.fetch_add(1, Ordering::Relaxed);
                            std::thread::sleep(Duration::from_millis(20));
                            continue;
                        }
                        assert_eq!(status, 200, "{path} {body}: {answer}");
                        if body["stream"] == true {
                            assert_eq!(streamed(&answer), texts(expected), "{path} {body}");
                            streams.fetch_add(1, Ordering::Relaxed);
                        } else {
                            let answer: Value = serde_json::from_str(&answer).expect("JSON");
                            assert_eq!(essence(&answer), essence(expected), "{path} {body}");
                            whole.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let emptied = Instant::now();
        while metric(&server, "hotmetal_kv_blocks_used{") + metric(&server, "vllm:num_requests_running{") > 0.0 {
            assert!(emptied.elapsed() < Duration::from_secs(20), "blocks are held when all have gone");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(metric(&server, "vllm:num_requests_waiting{"), 0.0);
        resident.extend(resident_kb(&server));
    }
    let [whole, streams, left, again] = [whole, streams, left, again].map(|count| count.load(Ordering::Relaxed));
    eprintln!(
        "{seconds} s: {whole} whole answers and {streams} streams equal to those alone, {left} clients left, {again} were told \
         to try again; {} preemptions; kB in memory after each round: {resident:?}",
        metric(&server, "vllm:num_preemptions_total{"),
    );
    assert!(whole > 20 && streams > 10 && left > 10, "{whole} whole, {streams} streamed, {left} left");
    if let (Some(&settled), Some(&now)) = (resident.get(ROUNDS / 2 - 1), resident.last()) {
        let room = if seconds >= SETTLES { GROWTH_KB } else { 8 * GROWTH_KB };
        assert!(now <= settled + room, "kB in memory after each round: {resident:?}");
    }
}

/// Sends a request, reads a little of the answer or nothing, and goes.
fn leave(server: &Server, path: &str, body: &Value, random: &mut Random) {
    let mut stream = server.connect();
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        server.address,
        body.len()
    );
    // A part of the request, or all of it.
    let sent = if random.below(6) == 0 { random.below(request.len() as u64) as usize } else { request.len() };
    let _ = stream.write_all(&request.as_bytes()[..sent]);
    let _ = stream.set_read_timeout(Some(Duration::from_millis(1 + random.below(60))));
    let mut some = vec![0; random.below(2000) as usize];
    let _ = stream.read(&mut some);
}
