//! `hotmetal serve --models-dir`: a real process, a folder with the built-in model under two names and a broken file.
#![cfg(unix)]

mod http_server;

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use http_server::{Server, command};
use serde_json::{Value, json};
use tempfile::TempDir;

const BUILTIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/builtin");

/// A folder with the models `alpha` and `beta`, and the file `broken.gguf`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["alpha", "beta"] {
        let model = folder.path().join(name);
        fs::create_dir(&model).expect("a folder in it");
        for file in fs::read_dir(BUILTIN).expect("the built-in model").map(|entry| entry.expect("a file").path()) {
            fs::copy(&file, model.join(file.file_name().expect("a name"))).expect("a copy");
        }
    }
    fs::write(folder.path().join("broken.gguf"), "this is no model").expect("a file");
    folder
}

fn started(folder: &Path, args: &[&str]) -> Server {
    let folder = folder.to_str().expect("UTF-8");
    Server::start(&[&["--models-dir", folder], args].concat())
}

/// The state of each model, as `/v1/models` has it.
fn states(server: &Server) -> Vec<String> {
    let list: Value = serde_json::from_str(&server.get("/v1/models").1).expect("JSON");
    let models = list["data"].as_array().expect("a list").iter();
    models.map(|model| format!("{} {}", model["id"], model["status"]["value"]).replace('"', "")).collect()
}

fn body(model: &str, max_tokens: usize) -> Value {
    json!({"model": model, "prompt": "Once upon a time", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}

/// Waits until a condition holds.
fn await_that(holds: impl Fn() -> bool, what: &str) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether the process has the file mapped.
#[cfg(target_os = "linux")]
fn has_mapped(server: &Server, path: &Path) -> bool {
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.child.id())).expect("it runs");
    maps.contains(path.to_str().expect("UTF-8"))
}

#[test]
fn models_of_a_folder_are_loaded_when_they_are_asked_for_and_take_turns() {
    let folder = folder();
    let server = started(folder.path(), &["--models-max", "1"]);
    assert_eq!(states(&server), ["alpha unloaded", "beta unloaded", "broken unloaded"]);
    let alone = Server::start(&[]);
    let expected = alone.post(
        "/v1/completions",
        &json!({"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0,
        "ignore_eos": true}),
    )["choices"]
        .clone();
    assert_eq!(server.post("/v1/completions", &body("alpha", 24))["choices"], expected);
    assert_eq!(states(&server), ["alpha loaded", "beta unloaded", "broken unloaded"]);
    #[cfg(target_os = "linux")]
    assert!(has_mapped(&server, &folder.path().join("alpha/model.safetensors")));
    assert_eq!(server.post("/v1/completions", &body("beta", 24))["choices"], expected);
    assert_eq!(states(&server), ["alpha unloaded", "beta loaded", "broken unloaded"]);
    #[cfg(target_os = "linux")]
    assert!(!has_mapped(&server, &folder.path().join("alpha/model.safetensors")), "its weights are still there");

    // A broken file answers with what is wrong, says not where it lies, and nobody leaves for it.
    let (status, answer) = server.send("POST", "/v1/completions", &body("broken", 8).to_string());
    assert!(status == 500 && answer.contains("model_not_loaded") && answer.contains("not a GGUF file"), "{answer}");
    assert!(!answer.contains(folder.path().to_str().expect("UTF-8")), "{answer}");
    assert_eq!(states(&server), ["alpha unloaded", "beta loaded", "broken unloaded"]);

    // A stream under way is not cut off by a request for another model.
    let request =
        json!({"model": "beta", "prompt": "Once", "max_tokens": 600, "ignore_eos": true, "stream": true}).to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{request}",
        server.address,
        request.len()
    );
    let mut stream = server.connect();
    stream.write_all(head.as_bytes()).expect("the server reads");
    stream.read_exact(&mut [0; 400]).expect("an answer begins");
    assert_eq!(server.post("/v1/completions", &body("alpha", 24))["choices"], expected);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the stream goes on to its end");
    assert!(rest.contains("data: [DONE]") && rest.contains("\"finish_reason\":\"length\""), "{rest}");

    // Many at a time for both.
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                let answer = server.post("/v1/completions", &body(["alpha", "beta"][client % 2], 24));
                assert_eq!(&answer["choices"], expected);
            });
        }
    });
}

#[test]
fn a_model_that_nobody_uses_is_unloaded_and_comes_again() {
    let folder = folder();
    let server = started(folder.path(), &["--sleep-idle-seconds", "1"]);
    let first = server.post("/v1/completions", &body("alpha", 24));
    await_that(|| states(&server)[0] == "alpha unloaded", "it is never unloaded");
    server.await_note("unloaded: alpha");
    #[cfg(target_os = "linux")]
    await_that(|| !has_mapped(&server, &folder.path().join("alpha/model.safetensors")), "its weights are still there");
    assert_eq!(server.post("/v1/completions", &body("alpha", 24))["choices"], first["choices"]);

    // A model of the command line, too.
    let server = Server::start(&["--sleep-idle-seconds", "1"]);
    await_that(|| states(&server)[0] == "hotmetal-builtin unloaded", "it is never unloaded");
    assert_eq!(server.get("/health").0, 200);
    let answer = server.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 4}));
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    assert_eq!(states(&server), ["hotmetal-builtin loaded"]);
}

/// Its model never comes: the template is a pipe that nobody writes to.
#[test]
fn a_signal_while_a_model_loads_ends_the_server_and_who_waits_is_told() {
    let folder = folder();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let server = started(folder.path(), &["--chat-template", pipe.to_str().expect("UTF-8")]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.send("POST", "/v1/completions", &body("alpha", 8).to_string()));
        await_that(|| states(&server)[0] == "alpha loading", "it is never loaded");
        let begun = Instant::now();
        server.signal("-TERM");
        let (status, answer) = waiting.join().expect("an answer");
        assert!(status == 503 && answer.contains("draining"), "{answer}");
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    });
    let (status, notes) = server.wait();
    assert!(status.success(), "{status} {notes}");
}

#[test]
fn what_cannot_be_offered_is_refused_with_the_remedy() {
    let folder = folder();
    let path = folder.path().to_str().expect("UTF-8");
    let refused = |args: &[&str], code: i32| {
        let output = command(&[&["--port", "0"], args].concat()).output().expect("the binary starts");
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let alpha = format!("{path}/alpha");
    let clash = refused(&["--models-dir", path, &alpha], 1);
    assert!(clash.contains("would be called `alpha`") && clash.contains("--alias"), "{clash}");
    let many =
        refused(&["--models-dir", path, "--models-max", "1", BUILTIN, &alpha, "--alias", "x", "--alias", "y"], 1);
    assert!(many.contains("--models-max 1"), "{many}");
    assert!(refused(&["--models-dir", &format!("{path}/none")], 1).contains("--models-dir"));
    assert!(refused(&["--models-max", "2"], 2).contains("--models-dir"));
    assert!(refused(&["--sleep-idle-seconds", "0"], 2).contains("-1 for never"));
}
