//! `hotmetal serve` as a user meets it: a real process, a real socket, the built-in model.

mod http_server;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use http_server::{Server, command};
use serde_json::{Value, json};

fn refused(args: &[&str]) -> String {
    let output = command(args).output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8(output.stderr).expect("UTF-8")
}

/// A stream of so many tokens, of whose answer the first bytes have come.
fn begun_stream(server: &Server, max_tokens: usize, bytes: usize) -> TcpStream {
    let body = json!({"prompt": "Once", "max_tokens": max_tokens, "ignore_eos": true, "stream": true}).to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        server.address,
        body.len()
    );
    let mut stream = server.connect();
    stream.write_all(request.as_bytes()).expect("the server reads");
    stream.read_exact(&mut vec![0; bytes]).expect("an answer begins");
    stream
}

#[test]
fn the_server_says_what_run_says() {
    let prompt = "Once upon a time";
    let run = Command::new(env!("CARGO_BIN_EXE_hotmetal"))
        .args(["run", "--device", "cpu", "--raw", "--temp", "0", "-n", "40", "--output-format", "json", "-p", prompt])
        .output()
        .expect("the binary starts");
    let run: Value = serde_json::from_slice(&run.stdout).expect("JSON");
    let server = Server::start(&[]);
    let request = json!({"prompt": prompt, "max_tokens": 40, "temperature": 0, "return_token_ids": true});
    let answer = server.post("/v1/completions", &request);
    assert_eq!(answer["choices"][0]["text"], run["text"]);
    assert_eq!(answer["choices"][0]["token_ids"], run["token_ids"]);
    assert_eq!(answer["model"], "hotmetal-builtin");
    assert!(answer["x_hotmetal"]["device"].as_str().is_some_and(|device| !device.is_empty()), "{answer}");

    // A conversation, in a stream.
    let chat = json!({
        "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 30, "seed": 5, "stream": true,
        "stream_options": {"include_usage": true},
    });
    let (status, events) = server.send("POST", "/v1/chat/completions", &chat.to_string());
    assert_eq!(status, 200);
    assert!(events.ends_with("data: [DONE]\n\n"), "{events}");
    let events = events.split_terminator("\n\n").filter_map(|event| event.strip_prefix("data: {"));
    let events: Vec<Value> = events.map(|event| serde_json::from_str(&format!("{{{event}")).expect("JSON")).collect();
    let text: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert!(text.split_whitespace().count() > 5, "{text}");
    assert_eq!(events.last().expect("usage")["usage"]["completion_tokens"], 30);
}

#[test]
fn two_models_answer_beside_each_other_what_each_answers_alone() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/builtin");
    let two = Server::start(&[folder, folder, "--alias", "a", "--alias", "b"]);
    let (status, list) = two.get("/v1/models");
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let ids: Vec<_> = list["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
    assert_eq!((status, ids), (200, vec![&json!("a"), &json!("b")]));
    // One memory for both: what one of them may fill is not promised to the other too.
    let tokens = |index: usize| list["data"][index]["x_hotmetal"]["kv_tokens"].as_u64().expect("a count");
    assert!(tokens(0) > 0 && tokens(1) > 0);
    let body =
        |seed: usize| json!({"prompt": "Once upon a time", "max_tokens": 24, "seed": seed, "return_token_ids": true});
    let alone = Server::start(&[]);
    let expected: Vec<_> = (0..4).map(|seed| alone.post("/v1/completions", &body(seed))["choices"].clone()).collect();
    std::thread::scope(|scope| {
        for (client, name) in ["a", "b", "a", "b"].into_iter().enumerate() {
            let (two, expected, mut body) = (&two, &expected[client], body(client));
            scope.spawn(move || {
                body["model"] = json!(name);
                let answer = two.post("/v1/completions", &body);
                assert_eq!((&answer["model"], &answer["choices"]), (&json!(name), expected));
            });
        }
    });
    let (status, refusal) = two.send("POST", "/v1/completions", &json!({"prompt": "x", "model": "c"}).to_string());
    assert!(status == 404 && refusal.contains("`a`, `b` are"), "{refusal}");
    let clash = refused(&[folder, folder]);
    assert!(clash.contains("would be called `builtin`") && clash.contains("--alias"), "{clash}");
    let missing = refused(&["--port", "0", folder, "./nowhere.gguf"]);
    assert!(missing.contains("there is no model at `./nowhere.gguf`"), "{missing}");
}

/// What a slot held comes back after a restart, and the text is the same.
#[test]
fn a_slot_that_was_saved_comes_back_after_a_restart() {
    let folder = std::env::temp_dir().join(format!("hotmetal-slots-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.to_str().expect("UTF-8");
    let prompt = "Once upon a time there was a little bird who wanted to see the sea. ".repeat(4);
    let body = json!({"prompt": prompt, "n_predict": 16, "seed": 5, "id_slot": 1, "return_tokens": true});
    let first = Server::start(&["--slot-save-path", path]);
    let text = first.post("/completion", &body);
    let saved = first.post("/slots/1?action=save", &json!({"filename": "bird"}));
    assert!(saved["n_saved"].as_u64() > Some(32), "{saved}");
    drop(first);
    let second = Server::start(&["--slot-save-path", path]);
    let restored = second.post("/slots/1?action=restore", &json!({"filename": "bird"}));
    assert_eq!(restored["n_restored"], saved["n_saved"]);
    let again = second.post("/completion", &body);
    assert!(text["tokens_cached"] == 0 && again["tokens_cached"].as_u64() > Some(32), "{again}");
    assert_eq!(again["tokens"], text["tokens"]);
    drop(second);
    // Another format of the cache makes another file.
    let other = Server::start(&["--slot-save-path", path, "--kv-type", "f32"]);
    let (status, refusal) = other.send("POST", "/slots/1?action=restore", r#"{"filename": "bird"}"#);
    assert!(status == 400 && refusal.contains("another format of the cache"), "{refusal}");
    std::fs::remove_dir_all(&folder).expect("it is ours");
    let missing = refused(&["--slot-save-path", path]);
    assert!(missing.contains("is no folder"), "{missing}");
}

/// A step that takes longer than one may: nothing is planted, the plain reference takes its time for a long prompt.
#[test]
fn a_stuck_step_ends_the_program_with_status_1_and_one_message() {
    let server = Server::start_on("reference", &["--step-timeout", "1", "--batch-tokens", "2048"], &[]);
    let ids: Vec<_> = (0..1800).map(|index| 100 + index % 50).collect();
    let (status, answer) = server.send("POST", "/v1/completions", &json!({"prompt": ids, "max_tokens": 4}).to_string());
    assert_eq!(status, 500, "{answer}");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(answer["error"]["code"], "step_stuck", "{answer}");
    let message = "a step took longer than 1 s, so the device is taken to be stuck; restart the server";
    assert_eq!(answer["error"]["message"], message);
    let (status, notes) = server.wait();
    assert_eq!(status.code(), Some(1), "{notes}");
    let (ready, rest) = notes.split_once('\n').expect("lines");
    assert!(ready.starts_with("ready: "), "{notes}");
    assert_eq!(rest, format!("error: {message}\n"), "{notes}");
}

#[test]
fn what_is_not_http_or_not_for_us_is_turned_away_and_the_server_stays() {
    let server = Server::start(&[]);
    let status = |answer: &str| answer.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok()).unwrap_or(0);
    let close = "Connection: close\r\n\r\n";
    let address = server.address;
    assert_eq!(status(&server.raw(b"\x16\x03\x01\x02\x00garbage\r\n\r\n")), 400);
    assert_eq!(
        status(&server.raw(format!("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n{close}").as_bytes())),
        421
    );
    assert_eq!(status(&server.raw(format!("GET /v1/models HTTP/1.1\r\n{close}").as_bytes())), 421);
    let many: String = (0..100).map(|i| format!("X-{i}: 1\r\n")).collect();
    let many = server.raw(format!("GET /health HTTP/1.1\r\nHost: {address}\r\n{many}{close}").as_bytes());
    assert_eq!(status(&many), 431, "{many}");
    let lying = format!(
        "POST /tokenize HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: 1073741824\r\n{close}"
    );
    assert_eq!(status(&server.raw(lying.as_bytes())), 413);
    // Two lengths: what one reader takes for a body, another takes for a request.
    let smuggled = format!(
        "POST /tokenize HTTP/1.1\r\nHost: {address}\r\nContent-Length: 4\r\nContent-Length: 11\r\n{close}GET / HTTP/"
    );
    assert_eq!(status(&server.raw(smuggled.as_bytes())), 400);
    assert_eq!(server.get("/health").0, 200);
}

#[test]
fn what_is_far_too_large_is_refused_and_the_server_stays() {
    let server = Server::start(&[]);
    // Ten megabytes, all of them sent.
    let body = format!("{{\"prompt\": \"{}\"}}", "moon ".repeat(2 << 20));
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        server.address,
        body.len()
    );
    let mut stream = server.connect();
    stream.write_all(head.as_bytes()).expect("the server reads");
    // It need not read what it will not take.
    let _ = stream.write_all(body.as_bytes());
    let mut answer = vec![0; 12];
    match stream.read_exact(&mut answer) {
        Ok(()) => assert_eq!(answer, b"HTTP/1.1 413"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
    // A prompt of a hundred thousand tokens, as ids and as text, on each route that takes one.
    let (ids, text) = (json!(vec![7; 100_000]), "moon ".repeat(100_000));
    let messages = json!([{"role": "user", "content": text}]);
    let requests = [
        ("/v1/completions", json!({"prompt": ids, "max_tokens": 1}), "prompt"),
        ("/v1/completions", json!({"prompt": [[5], ids], "max_tokens": 1, "stream": true}), "prompt"),
        ("/v1/completions", json!({"prompt": text, "max_tokens": 0, "echo": true}), "prompt"),
        ("/v1/chat/completions", json!({"messages": messages}), "messages"),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 1}), "messages"),
        ("/v1/responses", json!({"input": text}), "input"),
        ("/v1/embeddings", json!({"input": ids}), "input"),
    ];
    for (path, body, param) in requests {
        let (status, answer) = server.send("POST", path, &body.to_string());
        assert_eq!(status, 400, "{path}: {answer:.300}");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["error"]["param"], param, "{path}: {answer}");
    }
    let counted = server.post("/tokenize", &json!({"prompt": text}));
    assert!(counted["count"].as_u64().is_some_and(|count| count >= 100_000), "{}", counted["count"]);
    assert_eq!(server.get("/health").0, 200);
    server.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 2}));
}

#[test]
fn a_server_that_is_killed_cuts_its_streams_visibly_and_starts_again() {
    let mut server = Server::start(&[]);
    let mut stream = begun_stream(&server, 1500, 600);
    server.child.kill().expect("it runs");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    let rest = String::from_utf8_lossy(&rest);
    // No client can take this for a whole answer: neither the last event nor the last chunk has come.
    assert!(!rest.contains("[DONE]") && !rest.contains("finish_reason\":\"") && !rest.ends_with("0\r\n\r\n"), "{rest}");
    drop(server);
    let again = Server::start(&[]);
    let answer = again.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 4}));
    assert_eq!(answer["usage"]["completion_tokens"], 4);
}

#[cfg(unix)]
#[test]
fn a_signal_lets_answers_end_and_a_second_one_does_not() {
    // The answer takes a while, longer on a busy machine, and is whole.
    let server = Server::start(&["--drain-timeout", "600"]);
    let mut stream = begun_stream(&server, 600, 16);
    let mut busy = server.connect();
    server.signal("-TERM");
    server.await_refusal();
    // A connection that was open already is not used for anything new.
    let _ = busy.write_all(format!("GET /v1/models HTTP/1.1\r\nHost: {}\r\n\r\n", server.address).as_bytes());
    let mut refusal = String::new();
    let _ = busy.read_to_string(&mut refusal);
    assert!(refusal.is_empty() || refusal.starts_with("HTTP/1.1 503"), "{refusal}");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the answer ends");
    assert!(rest.contains("data: [DONE]") && rest.contains("\"finish_reason\":\"length\""), "{rest}");
    let (status, notes) = server.wait();
    assert!(status.success() && notes.contains("shutting down"), "{status} {notes}");

    // With no time to drain, the stream is told so.
    let server = Server::start(&["--drain-timeout", "0"]);
    let mut stream = begun_stream(&server, 1500, 16);
    server.signal("-TERM");
    let mut rest = String::new();
    let _ = stream.read_to_string(&mut rest);
    assert!(rest.contains("\"code\":\"draining\"") && rest.contains("data: [DONE]"), "{rest}");
    assert!(server.wait().0.success());

    // Twice, whichever of the two it is.
    for (first, second) in [("-INT", "-INT"), ("-TERM", "-TERM"), ("-TERM", "-INT")] {
        let server = Server::start(&[]);
        let mut stream = begun_stream(&server, 1500, 16);
        server.signal(first);
        // Two of the same that the server has not heard yet are one.
        server.await_note("shutting down");
        server.signal(second);
        let (status, notes) = server.wait();
        assert_eq!(status.code(), Some(130), "{first} {second}: {notes}");
        let mut rest = String::new();
        let _ = stream.read_to_string(&mut rest);
        assert!(!rest.contains("[DONE]"), "the answer was whole before {second}");
    }
}

/// Its model never comes: the template is a pipe that nobody writes to. And a large file of keys, a pipe as well, is read
/// before anything else.
#[cfg(unix)]
#[test]
fn a_signal_while_the_model_loads_ends_the_server_within_a_second() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let pipe = pipe.to_str().expect("UTF-8");
    for (signal, args) in [
        ("-TERM", ["--chat-template", pipe]),
        ("-INT", ["--chat-template", pipe]),
        ("-HUP", ["--chat-template", pipe]),
        ("-TERM", ["--api-key-file", pipe]),
    ] {
        let is_loading = args[0] == "--chat-template";
        let times = [(); 3].map(|()| {
            let server = if is_loading { Server::start_loading(&args) } else { Server::start_unheard(&args) };
            if is_loading {
                let (status, health) = server.get("/health");
                assert_eq!(status, 503, "{health}");
            }
            let begun = Instant::now();
            server.signal(signal);
            let (status, notes) = server.wait();
            let time = begun.elapsed();
            assert!(status.success() == is_loading, "{signal} {args:?}: {status} {notes}");
            assert!(!notes.contains("error"), "{notes}");
            time
        });
        // The machine may have been busy at one of them.
        assert!(times.iter().min() < Some(&Duration::from_secs(1)), "{signal} {args:?}: {times:?}");
    }
}

/// Texts of seven megabytes are tokenized, and one is compared with a grammar that takes long to compile.
#[cfg(unix)]
#[test]
fn a_signal_while_requests_are_prepared_ends_the_server_within_a_second() {
    let text = json!({"prompt": "moon, sea and ".repeat(500_000)}).to_string();
    let slow =
        json!({"prompt": "a", "structured_outputs": {"regex": "(a?){4000}a{4000}"}, "max_tokens": 1}).to_string();
    let times = [(); 3].map(|()| {
        let server = Server::start(&["--drain-timeout", "0"]);
        let begun = [("/tokenize", &text), ("/tokenize", &text), ("/v1/completions", &slow)].map(|(path, body)| {
            let mut stream = server.connect();
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                server.address,
                body.len()
            );
            stream.write_all((head + body).as_bytes()).expect("the server reads");
            stream
        });
        std::thread::sleep(Duration::from_millis(20));
        let is_answered = |stream: &TcpStream| {
            stream.set_nonblocking(true).expect("a socket");
            stream.peek(&mut [0]).is_ok()
        };
        assert!(!begun.iter().all(is_answered), "nothing is prepared any more");
        let begun = Instant::now();
        server.signal("-TERM");
        let (status, notes) = server.wait();
        assert!(status.success(), "{status} {notes}");
        begun.elapsed()
    });
    // The machine may have been busy at one of them.
    assert!(times.iter().min() < Some(&Duration::from_secs(1)), "{times:?}");
}

/// Two at once, while it loads and while a stream goes on.
#[cfg(unix)]
#[test]
fn a_second_signal_ends_the_server_at_once() {
    let server = Server::start(&["--drain-timeout", "600"]);
    let _stream = begun_stream(&server, 1500, 16);
    server.signal("-TERM");
    server.await_note("shutting down");
    let begun = Instant::now();
    server.signal("-TERM");
    let (status, notes) = server.wait();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(status.code(), Some(130), "{notes}");
}

#[test]
fn a_key_of_the_environment_protects_and_is_not_shown() {
    let key = "a-key-of-the-environment";
    let with = |key: &str| {
        let mut command = command(&["--port", "0", "--host", "0.0.0.0", "--device", "cpu"]);
        command.env("HOTMETAL_API_KEY", key);
        command
    };
    for (key, why) in [("short", "at least 16"), ("a key with spaces in it", "visible ASCII"), ("", "is empty")] {
        let output = with(key).output().expect("the binary starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("HOTMETAL_API_KEY") && error.contains(why), "{error}");
        assert!(key.is_empty() || !error.contains(key), "{error}");
    }
    for (key, why) in [("short", "at least 16"), ("", "is empty"), ("long-enough-to-be-one,short", "at least 16")] {
        let error = refused(&["--port", "0", "--host", "0.0.0.0", "--device", "cpu", "--api-key", key]);
        assert!(error.contains("--api-key") && error.contains(why), "{error}");
    }
    // The server takes each of the keys: this one, those of a file, and those of the command line.
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "a-key-of-some-length\n").expect("written");
    let args =
        ["--api-key-file", keys.to_str().expect("UTF-8"), "--api-key", "one-key-of-the-line,other-key-of-the-line"];
    let server = Server::start_as(&args, &[("HOTMETAL_API_KEY", key)]);
    let ask = |header: &str| {
        let request = format!("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n");
        server.raw(request.as_bytes())[9..12].to_owned()
    };
    assert_eq!(ask(""), "401");
    assert_eq!(ask("Authorization: Bearer a-key-of-the-environmenu\r\n"), "401");
    for key in [key, "a-key-of-some-length", "one-key-of-the-line", "other-key-of-the-line"] {
        assert_eq!(ask(&format!("Authorization: Bearer {key}\r\n")), "200");
    }
}

/// As llama-server takes it: who is on this machine has other ways.
#[cfg(unix)]
#[test]
fn a_short_key_protects_a_loopback_address_with_a_warning() {
    let server = Server::start(&["--api-key", "long-enough-to-be-one,short"]);
    let ask = |key: &str| {
        let header = format!("Authorization: Bearer {key}");
        let request = format!("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{header}\r\nConnection: close\r\n\r\n");
        server.raw(request.as_bytes())[9..12].to_owned()
    };
    assert_eq!((&*ask("short"), &*ask("shorter"), &*ask("long-enough-to-be-one")), ("200", "401", "200"));
    server.signal("-TERM");
    let (_, notes) = server.wait();
    assert!(notes.contains("an API key has 5 bytes and can be guessed"), "{notes}");
}

#[test]
fn a_key_protects_what_a_file_holds_and_prompts_are_in_no_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "a-key-of-some-length\n\nanother-key-of-it\n").expect("written");
    let server = Server::start(&["--api-key-file", keys.to_str().expect("UTF-8"), "-vvv"]);
    assert_eq!(server.get("/v1/models").0, 401);
    let canary = "xylophone canary";
    let body = json!({"messages": [{"role": "user", "content": canary}], "max_tokens": 4, "user": canary}).to_string();
    let answer = server.raw(
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer another-key-of-it\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .as_bytes(),
    );
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    #[cfg(unix)]
    {
        server.signal("-TERM");
        let (_, notes) = server.wait();
        assert!(notes.contains("answered"), "{notes}");
        assert!(!notes.contains("xylophone") && !notes.contains("another-key"), "{notes}");
    }
}

#[test]
fn a_server_that_would_be_open_or_cannot_work_is_not_started() {
    for host in ["0.0.0.0", "::", "192.0.2.1"] {
        let error = refused(&["--host", host, "--port", "0"]);
        assert!(error.contains("--api-key-file") && error.contains("--no-auth"), "{error}");
    }
    assert!(refused(&["--api-key-file", "/nonexistent"]).contains("cannot read the keys"));
    // Files without end, wherever a file is named.
    #[cfg(unix)]
    for (flag, what) in [("--api-key-file", "the keys in `/dev/zero`"), ("--chat-template", "`/dev/zero`")] {
        let error = refused(&["--port", "0", "--device", "cpu", flag, "/dev/zero"]);
        assert!(error.contains(what) && error.contains("more than 4.00 MiB"), "{flag}: {error}");
    }
    for count in ["0", "-1", "many"] {
        let output = command(&[&format!("--max-connections={count}")]).output().expect("the binary starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{count}: {error}");
        assert!(error.contains("--max-connections") && error.contains(count), "{count}: {error}");
    }
    let error = refused(&["./nothing.gguf", "--port", "0"]);
    assert!(error.contains("there is no model at `./nothing.gguf`"), "{error}");
    let error = refused(&["--port", "0", "--device", "cpu", "--temp", "-1"]);
    assert!(error.contains("temperature is -1"), "{error}");
    let error = refused(&["--port", "0", "--device", "cpu", "--parallel", "0"]);
    assert!(error.contains("max_sequences is 0"), "{error}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    assert!(refused(&["--port", &port]).contains("--port chooses another"));
}

/// Each `curl` of the documentation, sent as it stands there.
#[test]
fn the_examples_of_the_documentation_work() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/serving.md");
    let text = std::fs::read_to_string(document).expect("the document is there").replace("\\\n", "");
    let server = Server::start(&[]);
    let mut tried = 0;
    for example in text.split("```sh\n").skip(1).filter_map(|block| block.split("```").next()) {
        let path = example.split("http://127.0.0.1:8080").nth(1).and_then(|rest| rest.split_whitespace().next());
        let body = example.split("-d '").nth(1).and_then(|rest| rest.split('\'').next());
        let (path, body) = (path.expect("a path"), body.expect("a body"));
        let (status, answer) = server.send("POST", path, body);
        assert_eq!(status, 200, "{example}{answer}");
        tried += 1;
    }
    assert!(tried >= 4, "{tried} examples");
}

/// The Python of the documentation, run as it stands there by `HOTMETAL_PYTHON` or `python3`, where that has the packages.
#[expect(clippy::print_stderr, reason = "a skipped example says why")]
#[test]
fn the_python_of_the_documentation_works() {
    let python = std::env::var("HOTMETAL_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/serving.md");
    let text = std::fs::read_to_string(document).expect("the document is there");
    let examples: Vec<&str> = text.split("```python\n").skip(1).filter_map(|block| block.split("```").next()).collect();
    assert!(examples.len() >= 3, "{} examples", examples.len());
    let server = Server::start(&[]);
    for example in examples {
        let package = example.split_whitespace().nth(1).expect("an import");
        let has_it = Command::new(&python).args(["-c", &format!("import {package}")]).output();
        if !has_it.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: {python} has no package `{package}`");
            continue;
        }
        let program = example.replace("127.0.0.1:8080", &server.address.to_string());
        let output = Command::new(&python).args(["-c", &program]).output().expect("it ran before");
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.trim().len() > 3, "{example}{out}{error}");
    }
}

/// Requests as lm-eval's `local-completions` sends them give the log-likelihoods that `eval` has of the same windows.
#[test]
fn lm_evals_requests_score_a_text_as_eval_does() {
    const WINDOW: usize = 64;
    let hotmetal = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_hotmetal")).args(args).output().expect("the binary starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let text = hotmetal(&["run", "Once upon a time", "--device", "cpu", "--temp", "0", "-n", "160"]).repeat(3);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("text.txt");
    std::fs::write(&file, &text).expect("written");
    let file = file.to_str().expect("UTF-8");
    let window = WINDOW.to_string();
    let eval = hotmetal(&["eval", "-f", file, "--device", "cpu", "--ctx-size", &window, "-o", "json"]);
    let eval: Value = serde_json::from_str(&eval).expect("JSON");

    let server = Server::start(&[]);
    let ids = |text: &str, special: bool| -> Vec<u64> {
        let answer = server.post("/tokenize", &json!({"prompt": text, "add_special_tokens": special}));
        answer["tokens"].as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id")).collect()
    };
    let prefix = ids("", true);
    let windows: Vec<Vec<u64>> =
        ids(&text, false).chunks_exact(WINDOW - prefix.len()).map(|ids| [&prefix[..], ids].concat()).collect();
    assert_eq!(windows.len() as u64, eval["windows"].as_u64().expect("a count"));
    let (mut sum, mut count) = (0.0, 0);
    for batch in windows.chunks(3) {
        let body = json!({
            "model": "hotmetal-builtin", "prompt": batch, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234,
            "echo": true,
        });
        let answer = server.post("/v1/completions", &body);
        for (index, window) in batch.iter().enumerate() {
            let choice = &answer["choices"][index];
            let scores = choice["logprobs"]["token_logprobs"].as_array().expect("scores");
            assert_eq!((choice["index"].as_u64(), scores.len()), (Some(index as u64), window.len() + 1));
            // As lm-eval cuts them: the context, and the token that was generated.
            let scores = &scores[WINDOW / 2 + 1..scores.len() - 1];
            sum += scores.iter().map(|score| score.as_f64().expect("a number")).sum::<f64>();
            count += scores.len() as u64;
        }
    }
    assert_eq!(count, eval["tokens_scored"].as_u64().expect("a count"));
    let (found, expected) = (-sum / count as f64, eval["nll"].as_f64().expect("a number"));
    assert!((found - expected).abs() < 1e-5, "{found}, and {expected} of eval");
}

/// What the unit and the image start is a server, with the flags that stand there.
#[test]
fn the_packaged_commands_start_a_server() {
    let packaging = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/");
    let read = |name: &str| std::fs::read_to_string(format!("{packaging}{name}")).expect("it is there");
    let unit = read("hotmetal.service");
    let start =
        unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/hotmetal serve ")).expect("a start");
    let image = read("Dockerfile");
    let start_of_image = image.lines().find_map(|line| line.strip_prefix("CMD [\"serve\", ")).expect("a command");
    let start_of_image = start_of_image.replace(['"', ',', ']'], "");
    // Nobody else is to reach what a test starts.
    assert_eq!(start_of_image, "--host 0.0.0.0");
    let args: Vec<&str> = start.split(' ').filter(|arg| !["--port", "8080"].contains(arg)).collect();
    assert_eq!(Server::start(&args).get("/health").0, 200);
    assert!(refused(&["--port", "0", "--host", "0.0.0.0"]).contains("--no-auth"));
    let check = image.lines().find(|line| line.starts_with("HEALTHCHECK")).expect("a check");
    assert!(check.contains("http://127.0.0.1:8080/health") && image.contains("\nUSER 10001"));
    // The image is built by the toolchain that the project is, which lies in the one that it is built on.
    let toolchain = std::fs::read_to_string(format!("{packaging}../rust-toolchain.toml")).expect("it is there");
    let channel =
        toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).expect("a channel").replace('"', "");
    for line in [format!("FROM rust:{channel}-slim-bookworm AS build"), format!("ENV RUSTUP_TOOLCHAIN={channel}")] {
        assert!(image.lines().any(|found| found == line), "{line}");
    }
    // In Kubernetes, the flags start a server, and the route leads to the service by a name that the server answers under.
    let cluster = read("kubernetes.yaml");
    let flags =
        cluster.split("          args:\n").nth(1).and_then(|rest| rest.split("          env:").next()).expect("flags");
    let flags: Vec<&str> = flags.lines().filter_map(|line| line.trim().strip_prefix("- ")).collect();
    assert_eq!(flags[..2], ["serve", "/models/model.gguf"]);
    let of_this_machine = |flag: &&&str| !["--host=0.0.0.0", "--port=8080", "--device=cuda"].contains(flag);
    let flags: Vec<&str> = flags[2..].iter().filter(of_this_machine).copied().collect();
    let server = Server::start(&flags);
    let route = cluster.split("kind: HTTPRoute").nth(1).expect("a route");
    let name = route.split("hostnames:\n    - ").nth(1).and_then(|rest| rest.lines().next()).expect("a name");
    for (host, status) in [(name, "200"), ("another.example.org", "421")] {
        let answer =
            server.raw(format!("GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
    }
    assert!(
        cluster.contains("kind: Service\nmetadata:\n  name: hotmetal\n")
            && cluster.contains("    - name: http\n      port: 8080\n")
    );
    assert!(route.contains("        - name: hotmetal\n          port: 8080\n") && route.contains("request: 3600s"));
    // What the gateway waits for and takes is what the server does, by its defaults.
    let gateway = read("nginx.conf");
    for line in
        ["server 127.0.0.1:8080;", "proxy_buffering off;", "proxy_read_timeout 3600s;", "client_max_body_size 8m;"]
    {
        assert!(gateway.lines().any(|found| found.trim() == line), "{line}");
    }
}

/// `bench serve` against a server of ours, as json, as a table and as a page.
#[test]
fn bench_serve_says_what_clients_see() {
    let server = Server::start(&[]);
    let url = format!("http://{}", server.address);
    let bench = |more: &[&str]| {
        let args = ["bench", "serve", "--base-url", &url, "--input-len", "12", "--output-len", "6"];
        let command = Command::new(env!("CARGO_BIN_EXE_hotmetal")).args(args).args(more).output();
        let output = command.expect("the binary starts");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    let page = std::env::temp_dir().join(format!("hotmetal-bench-serve-{}.html", std::process::id()));
    let path = page.to_str().expect("UTF-8");
    for endpoint in ["completions", "chat"] {
        let text =
            bench(&["-n", "12", "--max-concurrency", "4", "-o", "json", "--endpoint", endpoint, "--report", path]);
        let result: Value = serde_json::from_str(&text).expect("JSON");
        let count = |name: &str| result[name].as_f64().unwrap_or_else(|| panic!("{name} in {text}"));
        assert_eq!((count("completed"), count("failed"), count("total_output_tokens")), (12.0, 0.0, 72.0));
        assert!(count("total_input_tokens") >= 12.0 * 12.0 && count("output_throughput") > 0.0);
        for metric in ["ttft", "tpot", "itl", "e2el"] {
            assert!(count(&format!("median_{metric}_ms")) <= count(&format!("p99_{metric}_ms")), "{text}");
        }
        assert!(count("median_ttft_ms") <= count("median_e2el_ms"));
        assert!((1.0..=4.0).contains(&count("steady_concurrency")), "{text}");
        assert!((0.0..=count("duration")).contains(&count("steady_duration")), "{text}");
        let html = std::fs::read_to_string(&page).expect("the page");
        assert!(html.contains("<svg") && html.contains("time to first token") && html.contains("mean_ttft_ms"));
    }
    std::fs::remove_file(&page).expect("it was written");
    let table = bench(&["-n", "4", "--request-rate", "100", "--goodput", "ttft:60000"]);
    assert!(table.contains("| time to first token |") && table.contains("| request_goodput |"), "{table}");
    let lines = bench(&["-n", "4", "--clients", "1,3"]);
    assert!(["| 1 | 4 | 0 |", "| 3 | 4 | 0 |"].iter().all(|line| lines.contains(line)), "{lines}");
    let results = bench(&["-n", "4", "--clients", "1,3", "-o", "json"]);
    let results: Value = serde_json::from_str(&results).expect("JSON");
    assert_eq!((&results[0]["max_concurrency"], &results[1]["max_concurrency"]), (&json!(1), &json!(3)));
}
