//! A hub on the loopback interface, which can misbehave; and the program, run against it as a real process.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The commit that `main` is at.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Must appear in no output whatsoever.
pub(crate) const TOKEN: &str = "hf_canaryCANARYcanary";

/// A file of the repository `org/repo`.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// Whether it is in large-file storage: then it has a SHA-256 and its bytes come from `/cdn/` by a redirect.
    pub(crate) lfs: bool,
}

impl File {
    pub(crate) fn etag(&self) -> String {
        if self.lfs {
            hex(&Sha256::digest(&self.bytes))
        } else {
            hex(&Sha1::new_with_prefix(format!("blob {}\0", self.bytes.len())).chain_update(&self.bytes).finalize())
        }
    }
}

/// A small file kept in git.
pub(crate) fn text(name: &str, content: &str) -> File {
    File { name: name.into(), bytes: content.into(), lfs: false }
}

/// A file in large-file storage, of bytes that differ from name to name.
pub(crate) fn weights(name: &str, size: usize) -> File {
    let mut state = name.bytes().fold(1_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    File { name: name.into(), bytes: std::iter::repeat_with(next).take(size).collect(), lfs: true }
}

/// A model that is computed.
pub(crate) const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 12,
    "num_hidden_layers": 1, "num_attention_heads": 2}"#;

/// A checkpoint of two shards, with files beside it that no pull wants.
pub(crate) fn checkpoint() -> Vec<File> {
    vec![
        text(".gitattributes", "*.safetensors filter=lfs"),
        text("README.md", "# A model"),
        text("config.json", CONFIG),
        weights("model-00001-of-00002.safetensors", 300_000),
        weights("model-00002-of-00002.safetensors", 200_001),
        text("model.safetensors.index.json", r#"{"weight_map": {}}"#),
        text("tokenizer.json", "{}"),
        weights("pytorch_model.bin", 1000),
    ]
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    /// How many requests of the same method and path came before.
    pub(crate) earlier: usize,
}

impl Request {
    /// The offset that a Range header asks for.
    pub(crate) fn offset(&self) -> usize {
        let range = self.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
        range.and_then(|range| range.strip_suffix('-')?.parse().ok()).unwrap_or(0)
    }

    /// Whether it asks for the bytes of `file`.
    pub(crate) fn is_get_of(&self, file: &str) -> bool {
        self.method == "GET" && self.path.starts_with("/cdn/") && self.path.contains(file)
    }
}

/// What the server does with a request.
pub(crate) enum Act {
    /// As it should.
    Serve,
    /// The right headers, and the connection is reset after so many bytes of the body.
    CutAfter(usize),
    /// All bytes with status 200, whatever the range.
    IgnoreRange,
    /// One byte is another.
    Corrupt,
    /// The body comes in pieces of 16 KiB with this pause between them.
    Slowly(Duration),
    /// Another answer: status, further headers, body.
    Answer(u16, Vec<(&'static str, String)>, String),
    /// The connection is closed without a word.
    HangUp,
    /// The connection stays open without a word.
    Silence,
}

type Misbehave = dyn Fn(&Request) -> Act + Send + Sync;

/// A running server. It ends with the test's process.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) url: String,
    log: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Serves `files` as `org/repo`; `misbehave` decides about each request.
    pub(crate) fn start(files: Vec<File>, misbehave: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        Self::start_with_cdn(files, None, misbehave)
    }

    /// The same, with the bytes of large files at another server.
    pub(crate) fn start_with_cdn(
        files: Vec<File>,
        cdn: Option<&Server>,
        misbehave: impl Fn(&Request) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Self { url: url.clone(), log: Arc::default() };
        let (log, files, misbehave): (_, _, Arc<Misbehave>) =
            (server.log.clone(), Arc::new(files), Arc::new(misbehave));
        let cdn = cdn.map_or(url, |cdn| cdn.url.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, files, misbehave, cdn) = (log.clone(), files.clone(), misbehave.clone(), cdn.clone());
                thread::spawn(move || {
                    if let Some(request) = read_request(&stream, &log) {
                        // The client may be killed, or have enough: that is the point of some tests.
                        let _ = answer(&stream, &files, &cdn, &request, misbehave(&request));
                    }
                });
            }
        });
        server
    }

    /// Every request so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }

    /// The requests for the bytes of large files.
    pub(crate) fn gets(&self) -> Vec<Request> {
        self.requests().into_iter().filter(|request| request.is_get_of("")).collect()
    }
}

fn read_request(stream: &TcpStream, log: &Mutex<Vec<Request>>) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut log = log.lock().unwrap();
    let earlier = log.iter().filter(|r| r.method == method && r.path == path).count();
    let request = Request { method, path, headers, earlier };
    log.push(request.clone());
    Some(request)
}

fn answer(stream: &TcpStream, files: &[File], cdn: &str, request: &Request, act: Act) -> std::io::Result<()> {
    match act {
        Act::HangUp => return Ok(()),
        Act::Silence => {
            thread::sleep(Duration::from_secs(60));
            return Ok(());
        }
        _ => {}
    }
    if let Act::Answer(status, headers, body) = act {
        return send(stream, request, status, &headers, body.as_bytes());
    }
    // A proxy's client asks for the whole address.
    let path =
        request.path.strip_prefix("http://").map_or(request.path.as_str(), |rest| &rest[rest.find('/').unwrap()..]);
    if path.starts_with("/api/models/org/repo/revision/") {
        let siblings: Vec<Value> = files.iter().map(|file| json!({"rfilename": file.name})).collect();
        let body = json!({"id": "org/repo", "sha": COMMIT, "siblings": siblings}).to_string();
        return send(stream, request, 200, &[], body.as_bytes());
    }
    let find = |prefix: &str| {
        let name = path.strip_prefix(prefix)?.split('?').next()?;
        files.iter().find(|file| file.name == name)
    };
    if let Some(file) = find(&format!("/org/repo/resolve/{COMMIT}/")) {
        let described = [("X-Repo-Commit", COMMIT.to_owned()), ("ETag", format!("\"{}\"", file.etag()))];
        if !file.lfs {
            return send(stream, request, 200, &described, &file.bytes);
        }
        let linked = [
            described[0].clone(),
            ("X-Linked-ETag", format!("\"{}\"", file.etag())),
            ("X-Linked-Size", file.bytes.len().to_string()),
            ("Location", format!("{cdn}/cdn/{}?Signature=secret", file.name)),
        ];
        return send(stream, request, 302, &linked, b"");
    }
    match find("/cdn/") {
        Some(file) => send_bytes(stream, request, &file.bytes, act),
        None => send(stream, request, 404, &[("X-Error-Code", "RepoNotFound".into())], b""),
    }
}

fn send_bytes(mut stream: &TcpStream, request: &Request, all: &[u8], act: Act) -> std::io::Result<()> {
    let offset = if let Act::IgnoreRange = act { 0 } else { request.offset() };
    if offset >= all.len() {
        return send(stream, request, 416, &[], b"");
    }
    let mut body = all[offset..].to_vec();
    let mut head =
        format!("HTTP/1.1 {}\r\nContent-Length: {}\r\n", if offset > 0 { "206 Partial" } else { "200 OK" }, body.len());
    if offset > 0 {
        write!(head, "Content-Range: bytes {offset}-{}/{}\r\n", all.len() - 1, all.len()).unwrap();
    }
    stream.write_all((head + "Connection: close\r\n\r\n").as_bytes())?;
    match act {
        Act::CutAfter(count) => body.truncate(count),
        Act::Corrupt => body[0] ^= 1,
        Act::Slowly(pause) => {
            for piece in body.chunks(1 << 14) {
                stream.write_all(piece)?;
                thread::sleep(pause);
            }
            return Ok(());
        }
        _ => {}
    }
    stream.write_all(&body)
}

fn send(
    mut stream: &TcpStream,
    request: &Request,
    status: u16,
    headers: &[(&str, String)],
    body: &[u8],
) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} Status\r\nContent-Length: {}\r\nConnection: close\r\n", body.len());
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    stream.write_all((head + "\r\n").as_bytes())?;
    if request.method != "HEAD" {
        stream.write_all(body)?;
    }
    // The client's last bytes are read before closing, or else its answer may be lost in a reset.
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.read_to_end(&mut Vec::new()).map(drop)
}

/// A cache of its own, and the program with nothing else in its environment.
pub(crate) struct Home {
    folder: tempfile::TempDir,
    endpoint: String,
}

impl Home {
    pub(crate) fn new(server: &Server) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), endpoint: server.url.clone() }
    }

    /// The cache folder.
    pub(crate) fn cache(&self) -> PathBuf {
        self.folder.path().join("hf/hub")
    }

    /// The folder of `org/repo` in it.
    pub(crate) fn repo(&self) -> PathBuf {
        self.cache().join("models--org--repo")
    }

    pub(crate) fn snapshot(&self) -> PathBuf {
        self.repo().join("snapshots").join(COMMIT)
    }

    /// Makes `program` see this home and no other variable.
    pub(crate) fn prepare<'a>(&self, program: &'a mut Command) -> &'a mut Command {
        program
            .env_clear()
            .env("HOME", self.folder.path())
            .env("HF_HOME", self.folder.path().join("hf"))
            .env("HF_ENDPOINT", &self.endpoint)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
    }

    /// The program with these arguments, ready to be changed and run.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hotmetal"));
        self.prepare(&mut command).args(arguments);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        Ended::of(&mut self.command(arguments))
    }
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::from(command.output().unwrap())
    }

    /// It succeeded, with this on stdout.
    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// It failed with exit code 1, one error that holds all of `parts`, and nothing on stdout.
    #[track_caller]
    pub(crate) fn failed(self, parts: &[&str]) -> Self {
        assert_eq!(self.code, Some(1), "{self:#?}");
        assert_eq!(self.stdout, "", "{self:#?}");
        assert_eq!(self.stderr.matches("error: ").count(), 1, "{self:#?}");
        for part in parts {
            assert!(self.stderr.contains(part), "`{part}` is missing: {self:#?}");
        }
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let ended = Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) };
        for secret in [TOKEN, "Signature=secret"] {
            assert!(!ended.stdout.contains(secret) && !ended.stderr.contains(secret), "a secret is shown: {ended:#?}");
        }
        ended
    }
}

/// The names of all files and links under `folder`, sorted, with `/`.
pub(crate) fn names_under(folder: &Path) -> Vec<String> {
    fn walk(folder: &Path, prefix: &str, names: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = format!("{prefix}{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                walk(&entry.path(), &format!("{name}/"), names);
            } else {
                names.push(name);
            }
        }
    }
    let mut names = Vec::new();
    walk(folder, "", &mut names);
    names.sort();
    names
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
