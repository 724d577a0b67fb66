//! `pull`, `list`, `rm` and `completions` as real processes, against a hub that misbehaves in every way we know of.

mod hub_server;
#[cfg(unix)]
mod pseudo_terminal;

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use formats::gguf::{Array, GgufWriter, Value};
use hub_server::{Act, COMMIT, CONFIG, Ended, File, Home, Server, TOKEN, checkpoint, names_under, text, weights};

/// Blobs under their final names have the content that the name promises; with `refs/main`, all of `files` are there.
fn check_cache(home: &Home, files: &[File]) {
    for file in files {
        if let Ok(found) = fs::read(home.repo().join("blobs").join(file.etag())) {
            assert!(found == file.bytes, "the blob of {} is wrong", file.name);
        }
    }
    if home.repo().join("refs/main").exists() {
        for file in files {
            let found = fs::read(home.snapshot().join(&file.name));
            assert!(found.is_ok_and(|found| found == file.bytes), "{} is not there", file.name);
        }
    }
}

/// A repository of one large GGUF file.
fn one_gguf(size: usize) -> Vec<File> {
    vec![weights("m-Q8_0.gguf", size)]
}

#[test]
fn a_whole_checkpoint_is_pulled_into_the_layout_of_hugging_face() {
    let server = Server::start(checkpoint(), |_| Act::Serve);
    let home = Home::new(&server);
    let pulled = home.run(&["pull", "org/repo"]).succeeded();
    assert_eq!(pulled.stdout, format!("{}\n", home.snapshot().display()));

    let wanted: Vec<File> = checkpoint()
        .into_iter()
        .filter(|f| f.name.starts_with("model") || f.name.ends_with("n.json") || f.name == "config.json")
        .collect();
    let mut names: Vec<String> = wanted.iter().map(|file| format!("snapshots/{COMMIT}/{}", file.name)).collect();
    names.extend(wanted.iter().map(|file| format!("blobs/{}", file.etag())));
    names.push("refs/main".into());
    names.push(format!("snapshots/{COMMIT}/tokenizer.json"));
    names.push(format!("blobs/{}", text("tokenizer.json", "{}").etag()));
    names.sort();
    names.dedup();
    assert_eq!(names_under(&home.repo()), names);
    assert_eq!(fs::read_to_string(home.repo().join("refs/main")).unwrap(), COMMIT);
    check_cache(&home, &wanted);
    #[cfg(unix)]
    assert_eq!(
        fs::read_link(home.snapshot().join("config.json")).unwrap().to_str().unwrap(),
        format!("../../blobs/{}", text("config.json", CONFIG).etag())
    );

    // Again: nothing is downloaded.
    let before = server.gets().len();
    let again = home.run(&["pull", "org/repo"]).succeeded();
    assert!(again.stderr.contains("nothing to download"), "{again:?}");
    assert_eq!((server.gets().len(), again.stdout), (before, pulled.stdout));
}

#[test]
fn a_commit_is_pulled_without_a_ref_and_a_branch_with_one() {
    let server = Server::start(one_gguf(1000), |_| Act::Serve);
    let home = Home::new(&server);
    home.run(&["pull", "org/repo", "--revision", COMMIT]).succeeded();
    assert!(!home.repo().join("refs").exists());
    home.run(&["pull", "org/repo", "--revision", "refs/pr/1"]).succeeded();
    assert_eq!(fs::read_to_string(home.repo().join("refs/refs/pr/1")).unwrap(), COMMIT);
    assert!(server.requests().iter().any(|r| r.path == "/api/models/org/repo/revision/refs%2Fpr%2F1"));
    home.run(&["pull", "org/repo", "--revision", "../../x"]).failed(&["cannot be a revision"]);
}

/// Gigabytes of a model that cannot be computed are not fetched.
#[test]
fn a_model_that_is_not_computed_is_refused_before_its_weights() {
    let mut files = checkpoint();
    let config = files.iter_mut().find(|file| file.name == "config.json").unwrap();
    config.bytes = CONFIG.replace("llama", "mamba").into();
    let server = Server::start(files, |_| Act::Serve);
    let home = Home::new(&server);
    let named = ["`config.json` of org/repo", "architecture `mamba` is not supported", "--anyway"];
    home.run(&["pull", "org/repo"]).failed(&named);
    let weights =
        |server: &Server| server.gets().iter().filter(|request| request.path.contains(".safetensors")).count();
    assert_eq!(weights(&server), 0, "{:?}", server.gets());
    home.run(&["pull", "org/repo", "--anyway"]).succeeded();
    assert_ne!(weights(&server), 0);
    assert!(home.snapshot().join("model-00001-of-00002.safetensors").exists());
}

#[test]
fn the_header_of_a_large_gguf_file_is_looked_at_first() {
    let gguf = |architecture: &str| {
        let mut writer = GgufWriter::new();
        writer.metadata("general.architecture", Value::String(architecture.into()));
        // A vocabulary that reaches beyond what is read first.
        let tokens: Vec<String> = (0..100_000).map(|index| format!("token number {index}")).collect();
        writer.metadata("tokenizer.ggml.model", Value::String("gpt2".into()));
        writer.metadata("tokenizer.ggml.tokens", Value::Array(Array::of_strings(tokens.iter().map(String::as_str))));
        for (key, value) in [
            ("embedding_length", 8),
            ("feed_forward_length", 12),
            ("block_count", 1),
            ("attention.head_count", 2),
            ("context_length", 64),
        ] {
            writer.metadata(&format!("{architecture}.{key}"), Value::U32(value));
        }
        let mut bytes = writer.to_bytes().to_vec();
        bytes.resize(17 << 20, 0);
        vec![File { name: "m.gguf".into(), bytes, lfs: true }]
    };
    for (architecture, is_computed) in [("llama", true), ("mamba", false)] {
        let server = Server::start(gguf(architecture), |_| Act::Serve);
        let home = Home::new(&server);
        let pulled = home.run(&["pull", "org/repo"]);
        if is_computed {
            pulled.succeeded();
        } else {
            pulled.failed(&["`m.gguf` of org/repo", "architecture `mamba` is not supported"]);
            assert!(!home.snapshot().join("m.gguf").exists());
        }
    }
    // A file that is not GGUF is fetched, because loading it names the fault.
    let server = Server::start(one_gguf(17 << 20), |_| Act::Serve);
    Home::new(&server).run(&["pull", "org/repo"]).succeeded();
}

#[test]
fn a_file_that_was_changed_in_the_cache_is_found() {
    let server = Server::start(checkpoint(), |_| Act::Serve);
    let home = Home::new(&server);
    home.run(&["pull", "org/repo"]).succeeded();
    let sound = home.run(&["list", "--verify"]).succeeded();
    assert_eq!(sound.stdout, "5 files are as they were published\n");
    for name in ["config.json", "model-00002-of-00002.safetensors"] {
        let path = home.snapshot().join(name);
        let mut bytes = fs::read(&path).unwrap();
        bytes[3] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let named =
        ["org/repo: config.json: damaged", "model-00002-of-00002.safetensors: damaged", "2 of 5 files are damaged"];
    home.run(&["list", "--verify"]).failed(&named);
}

#[test]
fn connections_cut_at_random_bytes_are_resumed_where_they_ended() {
    let file = weights("m-Q8_0.gguf", 1_000_000);
    let size = file.bytes.len();
    let server = Server::start(vec![file.clone()], move |request| {
        // 1, 131, 17161, … bytes: at least one each time, and never all before the 13th time.
        let count = (request.earlier * request.earlier * 131 + 1).min(size / 7);
        if request.is_get_of("") && request.earlier < 12 { Act::CutAfter(count) } else { Act::Serve }
    });
    let home = Home::new(&server);
    let pulled = home.run(&["pull", "org/repo"]).succeeded();
    assert!(pulled.stderr.contains("trying again"));
    check_cache(&home, &[file]);
    let offsets: Vec<usize> = server.gets().iter().map(hub_server::Request::offset).collect();
    assert!(offsets.len() == 13 && offsets.is_sorted() && offsets[1] > 0, "{offsets:?}");
}

#[test]
fn a_server_that_hangs_up_or_is_busy_is_asked_again() {
    let server = Server::start(checkpoint(), |request| match (request.earlier, request.method.as_str()) {
        (0, "HEAD") => Act::HangUp,
        (0, _) => Act::Answer(503, vec![("Retry-After", "0".into())], "busy".into()),
        (1, _) => Act::Answer(429, vec![], "slow down".into()),
        _ => Act::Serve,
    });
    let home = Home::new(&server);
    home.run(&["pull", "org/repo"]).succeeded();
}

#[test]
fn a_server_that_stays_broken_is_given_up_with_its_own_words() {
    let server = Server::start(checkpoint(), |_| Act::Answer(500, vec![], "the database\x1b[31m is away".into()));
    let home = Home::new(&server);
    let ended = home.run(&["pull", "org/repo"]);
    assert_eq!(ended.stderr.matches("trying again").count(), 5);
    ended.failed(&["answered 500: the database\\u{1b}[31m is away"]);
    assert_eq!(server.requests().len(), 6);
}

#[test]
fn a_silent_server_is_not_waited_for_without_end() {
    let server = Server::start(one_gguf(100_000), |request| {
        if request.is_get_of("") && request.earlier == 0 { Act::Silence } else { Act::Serve }
    });
    let home = Home::new(&server);
    let started = Instant::now();
    let mut pull = home.command(&["pull", "org/repo"]);
    let pulled = Ended::of(pull.env("HF_HUB_DOWNLOAD_TIMEOUT", "1")).succeeded();
    assert!(pulled.stderr.contains("timeout"), "{pulled:?}");
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_wrong_checksum_is_tried_once_more_and_never_kept() {
    let file = weights("m-Q8_0.gguf", 50_000);
    let server = Server::start(vec![file.clone()], |request| {
        if request.is_get_of("") && request.earlier == 0 { Act::Corrupt } else { Act::Serve }
    });
    let home = Home::new(&server);
    let pulled = home.run(&["pull", "org/repo"]).succeeded();
    assert!(pulled.stderr.contains("wrong checksum"), "{pulled:?}");
    check_cache(&home, std::slice::from_ref(&file));

    let server =
        Server::start(vec![file.clone()], |request| if request.is_get_of("") { Act::Corrupt } else { Act::Serve });
    let home = Home::new(&server);
    home.run(&["pull", "org/repo"]).failed(&["m-Q8_0.gguf", "wrong checksum", &file.etag()]);
    assert_eq!(names_under(&home.repo()), [""; 0]);
}

#[test]
fn a_small_file_is_checked_against_its_git_hash() {
    let lie = Act::Answer(200, vec![], r#"{"model_type": "other"}"#.into());
    let lie = std::sync::Mutex::new(Some(lie));
    let server = Server::start(vec![text("config.json", r#"{"model_type": "llama"}"#)], move |request| {
        let is_get = request.method == "GET" && request.path.ends_with("config.json");
        if is_get { lie.lock().unwrap().take().unwrap_or(Act::Serve) } else { Act::Serve }
    });
    let home = Home::new(&server);
    let pulled = home.run(&["pull", "org/repo:config.json"]).succeeded();
    assert!(pulled.stderr.contains("wrong checksum"), "{pulled:?}");
    assert_eq!(fs::read_to_string(pulled.stdout.trim()).unwrap(), r#"{"model_type": "llama"}"#);
}

#[test]
fn a_part_that_a_crash_garbled_is_begun_anew() {
    let file = weights("m-Q8_0.gguf", 50_000);
    let server = Server::start(vec![file.clone()], |_| Act::Serve);
    for garbled in [vec![0; 20_000], vec![7; 50_000], vec![7; 60_000]] {
        let home = Home::new(&server);
        fs::create_dir_all(home.repo().join("blobs")).unwrap();
        fs::write(home.repo().join(format!("blobs/{}.incomplete", file.etag())), garbled).unwrap();
        home.run(&["pull", "org/repo"]).succeeded();
        check_cache(&home, std::slice::from_ref(&file));
        assert!(!home.repo().join(format!("blobs/{}.incomplete", file.etag())).exists());
    }
}

#[test]
fn a_server_that_ignores_ranges_starts_the_file_again() {
    let file = weights("m-Q8_0.gguf", 50_000);
    let server = Server::start(vec![file.clone()], |request| match (request.is_get_of(""), request.earlier) {
        (true, 0) => Act::CutAfter(20_000),
        (true, _) => Act::IgnoreRange,
        _ => Act::Serve,
    });
    let home = Home::new(&server);
    home.run(&["pull", "org/repo"]).succeeded();
    check_cache(&home, &[file]);
    assert_eq!(server.gets().iter().map(hub_server::Request::offset).collect::<Vec<_>>(), [0, 20_000]);
}

#[test]
fn refusals_say_what_to_do() {
    let refuse = |status: u16, code: &'static str| {
        Server::start(checkpoint(), move |_| Act::Answer(status, vec![("X-Error-Code", code.into())], String::new()))
    };
    let pull = |server: &Server, token: Option<&str>| {
        let home = Home::new(server);
        Ended::of(home.command(&["pull", "org/repo", "--revision", "v9"]).envs(token.map(|token| ("HF_TOKEN", token))))
    };
    let page = |server: &Server| format!("{}/org/repo", server.url);

    let server = refuse(401, "GatedRepo");
    pull(&server, None).failed(&["HF_TOKEN", "gated", &page(&server), "hf/token", "401"]);
    pull(&server, Some(TOKEN)).failed(&["ask for it at", &page(&server)]);
    let server = refuse(401, "RepoNotFound");
    pull(&server, Some(TOKEN)).failed(&["does not exist", "not valid"]);
    let server = refuse(403, "GatedRepo");
    pull(&server, Some(TOKEN)).failed(&["ask for it at", &page(&server), "403"]);
    let server = refuse(404, "RepoNotFound");
    pull(&server, None).failed(&["no such repository", "404"]);
    let server = refuse(404, "RevisionNotFound");
    pull(&server, None).failed(&["no revision `v9`"]);
    assert_eq!(server.requests().len(), 1, "a refusal is not repeated");
}

#[test]
fn an_unreachable_or_senseless_hub_is_one_clear_error() {
    let server = Server::start(checkpoint(), |_| Act::Answer(200, vec![], "<html>".into()));
    let home = Home::new(&server);
    home.run(&["pull", "org/repo"]).failed(&["not understood"]);
    let at = |endpoint: &str| Ended::of(home.command(&["pull", "org/repo"]).env("HF_ENDPOINT", endpoint));
    at("http://127.0.0.1:1").failed(&["cannot reach http://127.0.0.1:1/api/models/org/repo/revision/main", "proxy"]);
    at("127.0.0.1:1").failed(&["HF_ENDPOINT is `127.0.0.1:1`"]);
}

#[test]
fn the_token_goes_to_the_endpoint_and_to_no_other_host() {
    let file = weights("m-Q8_0.gguf", 50_000);
    let cdn = Server::start(vec![file.clone()], |_| Act::Serve);
    let server = Server::start_with_cdn(vec![file.clone()], Some(&cdn), |_| Act::Serve);
    let home = Home::new(&server);
    Ended::of(home.command(&["pull", "org/repo"]).env("HF_TOKEN", TOKEN)).succeeded();
    check_cache(&home, std::slice::from_ref(&file));
    let authorization = |server: &Server| -> Vec<Option<String>> {
        server.requests().iter().map(|request| request.headers.get("authorization").cloned()).collect()
    };
    assert_eq!(authorization(&server), vec![Some(format!("Bearer {TOKEN}")); 3]);
    assert_eq!(authorization(&cdn), [None]);

    // The same address under another name is another host.
    let other_name = server.url.replace("127.0.0.1", "localhost");
    let location = format!("{other_name}/api/models/org/repo/revision/main");
    let first = Server::start(vec![], move |_| Act::Answer(307, vec![("Location", location.clone())], String::new()));
    let before = server.requests().len();
    let home = Home::new(&first);
    Ended::of(home.command(&["pull", "org/repo"]).env("HF_TOKEN", TOKEN)).failed(&[]);
    assert_eq!(authorization(&first)[0], Some(format!("Bearer {TOKEN}")));
    let later = &authorization(&server)[before..];
    assert!(!later.is_empty() && later.iter().all(Option::is_none), "{later:?}");
}

#[test]
fn redirects_end() {
    let server =
        Server::start(vec![], |request| Act::Answer(302, vec![("Location", request.path.clone())], String::new()));
    Home::new(&server).run(&["pull", "org/repo"]).failed(&["redirect", "too many"]);
    assert!(server.requests().len() < 20);
    let server =
        Server::start(vec![], |_| Act::Answer(302, vec![("Location", "file:///etc/passwd".into())], String::new()));
    Home::new(&server).run(&["pull", "org/repo"]).failed(&["no web address"]);
}

#[test]
fn no_name_from_a_server_leads_outside_the_cache() {
    for name in ["../../../evil.safetensors", "/tmp/evil.gguf", "a/../../evil", "a\\..\\evil", "C:evil", "x\u{1b}[2J"] {
        let server = Server::start(vec![text("config.json", CONFIG), weights(name, 10)], |_| Act::Serve);
        let home = Home::new(&server);
        home.run(&["pull", "org/repo"]).failed(&["refused"]);
        assert!(!home.cache().exists(), "{name}");
    }
    // As a checksum and as a commit.
    for etag in ["../../evil", ".hidden", "a/b", ""] {
        let server = Server::start(one_gguf(10), move |request| match request.method.as_str() {
            "HEAD" => {
                Act::Answer(200, vec![("ETag", format!("\"{etag}\"")), ("X-Repo-Commit", COMMIT.into())], String::new())
            }
            _ => Act::Serve,
        });
        let home = Home::new(&server);
        home.run(&["pull", "org/repo"]).failed(&["etag"]);
        assert!(!home.cache().exists());
    }
    // One that is no checksum is not the name either: two files may have the same.
    let server = Server::start(one_gguf(10), |request| match request.method.as_str() {
        "HEAD" => Act::Answer(
            200,
            vec![("ETag", "\"abc\"".into()), ("X-Repo-Commit", COMMIT.into()), ("X-Linked-Size", "10".into())],
            String::new(),
        ),
        _ => Act::Serve,
    });
    let home = Home::new(&server);
    let pulled = home.run(&["pull", "org/repo", "--anyway"]).succeeded();
    assert!(pulled.stderr.contains("gave no checksum"), "{}", pulled.stderr);
    let blobs = names_under(&home.repo().join("blobs"));
    assert!(blobs.len() == 1 && blobs[0].starts_with("unchecked-") && blobs[0].len() == 74, "{blobs:?}");
    let listing = r#"{"sha": "../../evil", "siblings": [{"rfilename": "m.gguf"}]}"#;
    let server = Server::start(vec![], move |_| Act::Answer(200, vec![], listing.into()));
    Home::new(&server).run(&["pull", "org/repo"]).failed(&["commit `../../evil`"]);
}

#[test]
fn arguments_that_are_no_models_are_refused() {
    let server = Server::start(checkpoint(), |_| Act::Serve);
    let home = Home::new(&server);
    for argument in ["./x", "/etc/passwd", "a/b/c", "..", "org/repo:../x", "org/repo:", "C:\\x"] {
        home.run(&["pull", argument]).failed(&["cannot pull"]);
        home.run(&["rm", "-y", argument]).failed(&["cannot remove", "by name"]);
    }
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn a_quantization_is_chosen_by_name_and_a_doubtful_choice_is_listed() {
    let files = vec![weights("m-Q4_0.gguf", 4000), weights("m-Q8_0.gguf", 8000), text("README.md", "x")];
    let server = Server::start(files, |_| Act::Serve);
    let home = Home::new(&server);
    home.run(&["pull", "org/repo"]).failed(&["several models", "\n  m-Q4_0.gguf\n  m-Q8_0.gguf"]);
    home.run(&["pull", "org/repo:Q5_0"]).failed(&["no single quantization `Q5_0`", "m-Q8_0.gguf"]);
    let pulled = home.run(&["pull", "org/repo:q8_0"]).succeeded();
    assert_eq!(pulled.stdout, format!("{}\n", home.snapshot().join("m-Q8_0.gguf").display()));
    home.run(&["pull", "org/repo:m-Q4_0.gguf"]).succeeded();
    assert_eq!(names_under(&home.snapshot()), ["m-Q4_0.gguf", "m-Q8_0.gguf"]);

    // Removing one leaves the other.
    home.run(&["rm", "-y", "org/repo:Q8_0"]).succeeded();
    assert_eq!(names_under(&home.snapshot()), ["m-Q4_0.gguf"]);
    assert_eq!(names_under(&home.repo().join("blobs")), [weights("m-Q4_0.gguf", 4000).etag()]);
    home.run(&["rm", "-y", "org/repo:Q8_0"]).failed(&["org/repo:Q8_0 is not in the cache", "hotmetal list"]);
}

#[test]
fn offline_gives_what_is_here_and_asks_nobody() {
    let server = Server::start(one_gguf(1000), |_| Act::Serve);
    let home = Home::new(&server);
    let offline = || Ended::of(home.command(&["pull", "org/repo"]).env("HF_HUB_OFFLINE", "1"));
    offline().failed(&["org/repo is not in the cache", "HF_HUB_OFFLINE is set"]);
    let path = home.run(&["pull", "org/repo"]).succeeded().stdout;
    let before = server.requests().len();
    assert_eq!(offline().succeeded().stdout, path);
    assert_eq!(server.requests().len(), before);
}

#[test]
fn a_pull_that_cannot_fit_is_refused_before_its_first_byte() {
    let server = Server::start(one_gguf(1000), |request| {
        let headers = vec![("X-Linked-ETag", "a".repeat(64)), ("X-Linked-Size", "1000000000000000000".into())];
        if request.method == "HEAD" { Act::Answer(302, headers, String::new()) } else { Act::Serve }
    });
    Home::new(&server).run(&["pull", "org/repo"]).failed(&[
        "not enough space",
        "1,000,000,000,000,000,000 bytes",
        "HF_HUB_CACHE",
    ]);
    assert_eq!(server.gets().len(), 0);
}

#[cfg(unix)]
#[test]
fn a_disk_that_fills_up_is_told_and_the_next_pull_resumes() {
    let file = weights("m-Q8_0.gguf", 400_000);
    let server = Server::start(vec![file.clone()], |_| Act::Serve);
    let home = Home::new(&server);
    // No file may grow over 64 blocks of 512 (in some shells 1,024) bytes; the signal that would come with it is ignored.
    let mut shell = Command::new("/bin/sh");
    home.prepare(&mut shell).args([
        "-c",
        "trap '' XFSZ; ulimit -f 64; exec \"$0\" pull org/repo",
        env!("CARGO_BIN_EXE_hotmetal"),
    ]);
    Ended::of(&mut shell).failed(&["cannot write", &file.etag(), "bytes", "are missing", "pull again"]);
    check_cache(&home, std::slice::from_ref(&file));
    let pulled = home.run(&["pull", "org/repo"]).succeeded();
    assert!(pulled.stderr.contains("resumed at"), "{pulled:?}");
    check_cache(&home, &[file]);
    assert!(server.gets().last().unwrap().offset() >= 32_768);
}

#[test]
fn a_pull_killed_at_200_random_moments_is_always_resumed() {
    let files =
        vec![text("config.json", CONFIG), weights("model.safetensors", 600_000), text("tokenizer.json", "{\"a\": 1}")];
    let server = Server::start(files.clone(), |_| Act::Slowly(Duration::from_micros(200)));
    let started = Instant::now();
    Home::new(&server).run(&["pull", "org/repo"]).succeeded();
    let whole_us = started.elapsed().as_micros() as u64; // on this machine, as busy as it is
    let mut home = Home::new(&server);
    let mut random = 12345_u64;
    let mut completed = 0;
    for _ in 0..200 {
        let mut pull = home.command(&["pull", "org/repo"]).spawn().unwrap();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        thread::sleep(Duration::from_micros((random >> 33) % (whole_us * 5 / 4)));
        let ended = pull.try_wait().unwrap();
        pull.kill().unwrap(); // SIGKILL
        pull.wait().unwrap();
        check_cache(&home, &files);
        if let Some(status) = ended {
            assert!(status.success());
            assert!(home.repo().join("refs/main").exists());
            completed += 1;
            home = Home::new(&server);
        }
    }
    home.run(&["pull", "org/repo"]).succeeded();
    check_cache(&home, &files);
    assert!(home.repo().join("refs/main").exists());
    let resumed = server.gets().iter().filter(|get| get.offset() > 0).count();
    assert!(resumed > 0, "no download was ever cut off in the middle ({completed} pulls completed)");
}

#[test]
fn one_line_counts_on_a_terminal_and_two_stay_in_a_file() {
    let server = Server::start(checkpoint(), |_| Act::Slowly(Duration::from_millis(20)));
    let home = Home::new(&server);
    let pulled = home.run(&["pull", "org/repo"]).succeeded();
    let [begin, end] = &pulled.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{pulled:?}") };
    assert!(begin.starts_with("org/repo at main (") && begin.ends_with(" to download"), "{begin}");
    assert!(end.starts_with("org/repo: ") && end.contains(" KiB in ") && end.ends_with("/s)"), "{end}");
    #[cfg(unix)]
    {
        let home = Home::new(&server);
        let mut command = home.command(&["pull", "org/repo"]);
        let (code, shown) = pseudo_terminal::talk(command.env("TERM", "xterm"), 100, &[]);
        assert_eq!(code, Some(0), "{shown}");
        // Which file, what there is of how much, how fast, and how long it will take.
        let mut counted = shown.split('\r').filter(|line| line.contains("/5 model-0000") && line.contains(" KiB/s"));
        let last = counted.next_back().unwrap_or_else(|| panic!("no line counts: {shown:?}"));
        assert!(last.contains(" KiB/488.44 KiB ") && last.trim_end().ends_with('s'), "{last:?}");
        let lines: Vec<&str> = shown.lines().collect();
        assert!(shown.ends_with(&format!("{}\r\n", home.snapshot().display())), "{lines:?}");
    }
}

#[test]
fn two_pulls_at_once_share_the_work() {
    let files = one_gguf(1_000_000);
    let server = Server::start(files.clone(), |_| Act::Slowly(Duration::from_millis(4)));
    let home = Home::new(&server);
    let pulls: Vec<_> = (0..3).map(|_| home.command(&["pull", "org/repo"]).spawn().unwrap()).collect();
    for pull in pulls {
        Ended::from(pull.wait_with_output().unwrap()).succeeded();
    }
    check_cache(&home, &files);
    assert_eq!(server.gets().len(), 1);
}

#[test]
fn rm_waits_for_no_pull_but_refuses() {
    let server = Server::start(one_gguf(200_000), |_| Act::Slowly(Duration::from_millis(200)));
    let home = Home::new(&server);
    let mut pull = home.command(&["pull", "org/repo"]).spawn().unwrap();
    while server.gets().is_empty() {
        thread::sleep(Duration::from_millis(5));
    }
    home.run(&["rm", "-y", "org/repo"]).failed(&["is being pulled by another process"]);
    assert!(pull.wait().unwrap().success());
    let removed = home.run(&["rm", "--yes", "org/repo"]).succeeded();
    assert!(removed.stderr.contains("195 KiB freed"), "{removed:?}");
    assert_eq!(names_under(&home.cache()), [""; 0]);
}

#[test]
fn rm_asks_a_person_or_wants_yes() {
    let server = Server::start(one_gguf(1000), |_| Act::Serve);
    let home = Home::new(&server);
    home.run(&["pull", "org/repo"]).succeeded();
    home.run(&["rm", "org/repo"]).failed(&["--yes"]);
    assert!(home.snapshot().exists());
    home.run(&["rm", "-y", "org/other"]).failed(&["org/other is not in the cache"]);
}

#[test]
fn rm_of_a_revision_keeps_the_blobs_that_another_shows() {
    let files = vec![text("config.json", CONFIG), weights("model.safetensors", 5000)];
    let server = Server::start(files.clone(), |_| Act::Serve);
    let home = Home::new(&server);
    home.run(&["pull", "org/repo"]).succeeded();
    // An older revision with the same configuration and other weights.
    let old = home.repo().join("snapshots").join("a".repeat(40));
    fs::create_dir_all(&old).unwrap();
    fs::copy(home.snapshot().join("model.safetensors"), home.repo().join("blobs/old")).unwrap();
    #[cfg(unix)]
    for (blob, name) in [(files[0].etag(), "config.json"), ("old".into(), "model.safetensors")] {
        std::os::unix::fs::symlink(format!("../../blobs/{blob}"), old.join(name)).unwrap();
    }
    fs::write(home.repo().join("refs/v1"), "a".repeat(40)).unwrap();

    let removed = home.run(&["rm", "-y", "org/repo", "--revision", "v1"]).succeeded();
    assert!(removed.stderr.contains("freed"), "{removed:?}");
    let mut blobs: Vec<String> = files.iter().map(File::etag).collect();
    blobs.sort();
    assert_eq!(names_under(&home.repo().join("blobs")), blobs);
    assert_eq!(names_under(&home.repo().join("refs")), ["main"]);
    check_cache(&home, &files);
}

#[test]
fn list_shows_what_is_here() {
    let server = Server::start(vec![weights("m-Q8_0.gguf", 2048), weights("m-Q4_0.gguf", 1024)], |_| Act::Serve);
    let home = Home::new(&server);
    let empty = home.run(&["list"]).succeeded();
    assert!(empty.stdout.is_empty() && empty.stderr.contains("hotmetal pull"), "{empty:?}");
    assert_eq!(home.run(&["list", "--output-format", "json"]).succeeded().stdout, "[]\n");

    home.run(&["pull", "org/repo:Q8_0"]).succeeded();
    home.run(&["pull", "org/repo:Q4_0"]).succeeded();
    fs::create_dir_all(home.cache().join("models--org--other/blobs")).unwrap();
    fs::write(home.cache().join("models--org--other/blobs/x.incomplete"), [0; 3072]).unwrap();
    fs::create_dir_all(home.cache().join("datasets--org--data/blobs")).unwrap();
    let listed = home.run(&["list"]).succeeded().stdout;
    let rows: Vec<Vec<&str>> =
        listed.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect();
    assert_eq!(rows[0], ["MODEL", "REVISION", "SIZE", "FORMAT", "LAST USED"]);
    assert_eq!(rows[1], ["org/other", "-", "3.00 KiB", "unfinished: pull again or rm", "-"]);
    assert_eq!(rows[2], ["org/repo", "main", "3.00 KiB", "GGUF Q4_0, Q8_0", "just now"]);
    assert_eq!(rows.len(), 3);

    let json: serde_json::Value =
        serde_json::from_str(&home.run(&["list", "--output-format", "json"]).succeeded().stdout).unwrap();
    assert_eq!(json[0]["format"], "incomplete");
    assert_eq!(json[1]["model"], "org/repo");
    assert_eq!(json[1]["commit"], COMMIT);
    assert_eq!(json[1]["revisions"][0], "main");
    assert_eq!(json[1]["size_bytes"], 3072);
    assert_eq!(json[1]["path"], home.snapshot().to_str().unwrap());
    assert!(json[1]["last_used"].as_str().unwrap().contains('T'));
}

#[test]
fn a_proxy_from_the_environment_is_used() {
    let files = one_gguf(5000);
    let proxy = Server::start(files.clone(), |_| Act::Serve);
    let home = Home::new(&proxy);
    let mut pull = home.command(&["pull", "org/repo"]);
    // The name exists nowhere: only the proxy can answer for it. The token is for that name alone.
    pull.env("HF_ENDPOINT", "http://hub.invalid").env("http_proxy", &proxy.url).env("no_proxy", "localhost");
    let ended = Ended::of(&mut pull);
    assert!(!proxy.requests().is_empty(), "the proxy was not asked: {ended:?}");
    assert!(proxy.requests()[0].path.contains("hub.invalid"), "{:?}", proxy.requests()[0]);
}

#[test]
fn completions_are_printed_for_each_shell() {
    let server = Server::start(vec![], |_| Act::Serve);
    let home = Home::new(&server);
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = home.run(&["completions", shell]).succeeded().stdout;
        assert!(script.contains("hotmetal") && script.contains("pull"), "{shell}");
    }
    assert_eq!(home.run(&["completions", "cmd"]).code, Some(2));
}
