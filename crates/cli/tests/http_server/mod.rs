//! `hotmetal serve` as a process of its own, and requests to it over its socket.
#![allow(dead_code, reason = "each test has use for a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A server on a port of its own. Killed with the test.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    /// What it has said on stderr after the address.
    notes: Arc<Mutex<String>>,
    listener: Option<JoinHandle<()>>,
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmetal"));
    command.arg("serve").args(args).stdin(Stdio::null()).env("HF_HUB_OFFLINE", "1").env_remove("HOTMETAL_API_KEY");
    command
}

impl Server {
    /// Starts a server, waits until it is ready.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_as(args, &[])
    }

    /// The same, with these variables in its environment.
    pub(crate) fn start_as(args: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_on("cpu", args, variables)
    }

    /// The same, on this device.
    pub(crate) fn start_on(device: &str, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let server = Self::listening(device, args, variables);
        await_that(|| server.get("/health").0 == 200, || "the model is never ready".to_owned());
        server
    }

    /// Starts a server, and does not wait for its model.
    pub(crate) fn start_loading(args: &[&str]) -> Self {
        Self::listening("cpu", args, &[])
    }

    /// Starts a server that does not come to listen, and waits until it is asleep.
    #[cfg(unix)]
    pub(crate) fn start_unheard(args: &[&str]) -> Self {
        let mut command = command(&["--port", "0", "--device", "cpu"]);
        let child = command.args(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        std::thread::sleep(Duration::from_millis(500));
        Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), notes: Arc::default(), listener: None }
    }

    fn listening(device: &str, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = command(&["--port", "0", "--device", device])
            .args(args)
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        let address = line.split("http://").nth(1).and_then(|rest| rest.split([',', '\n']).next());
        let address = address.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("an address in `{line}`"));
        let notes = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&notes);
        let listener = std::thread::spawn(move || {
            for line in lines.lines() {
                let line = line.expect("notes are UTF-8") + "\n";
                heard.lock().expect("nobody panics with it").push_str(&line);
            }
        });
        Self { child, address, notes, listener: Some(listener) }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("somebody listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        stream
    }

    /// Sends bytes, and returns all that comes back until the server closes.
    pub(crate) fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).expect("the server reads");
        let mut answer = Vec::new();
        // A server that refuses may close before it has read all.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n",
            self.address
        );
        let answer = self.raw((head + body).as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("an answer, found `{answer}`"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, if head.contains("chunked") { unchunked(body) } else { body.to_owned() })
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.send("GET", path, "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.send("POST", path, &body.to_string());
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).expect("JSON")
    }

    #[cfg(unix)]
    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill");
        assert!(sent.success());
    }

    /// Returns once it has said so.
    pub(crate) fn await_note(&self, note: &str) {
        await_that(|| self.notes().contains(note), || format!("it never says `{note}`, but `{}`", self.notes()));
    }

    fn notes(&self) -> String {
        self.notes.lock().expect("nobody panics with it").clone()
    }

    /// Returns once it refuses connections, after which it answers nothing new on others.
    pub(crate) fn await_refusal(&self) {
        await_that(|| TcpStream::connect(self.address).is_err(), || "it goes on to listen".to_owned());
    }

    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let mut status = None;
        let has_ended = || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        };
        await_that(has_ended, || "the server does not end".to_owned());
        if let Some(listener) = self.listener.take() {
            listener.join().expect("notes");
        }
        (status.expect("it has ended"), self.notes())
    }
}

/// Returns once it is so; after a minute fails with what is wrong.
fn await_that(mut is_so: impl FnMut() -> bool, wrong: impl Fn() -> String) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", wrong());
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unchunked(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk's size");
        if size == 0 {
            break;
        }
        text.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    text
}
