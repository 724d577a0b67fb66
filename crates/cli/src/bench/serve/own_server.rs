//! A `hotmetal serve` of random weights, in a process of its own, for as long as a measurement takes.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::super::shapes::MatrixFormats;
use super::super::startup::ModelFile;
use super::client::Client;
use crate::output::note;

/// Time between two questions whether the server is ready.
const PAUSE: Duration = Duration::from_millis(50);

/// The process and the file that it serves; both go when this does.
pub(super) struct OwnServer {
    process: Child,
    pub(super) base_url: String,
    _file: ModelFile,
}

impl OwnServer {
    /// Writes the model and starts a server of it on a free port, with these flags besides; it is not ready yet.
    pub(super) fn start(shape: &str, format: Option<&str>, flags: &[String]) -> Result<Self> {
        let formats = MatrixFormats::named(format.unwrap_or("q8_0"))?;
        note(&format!("writing a file of {shape} in {}", formats.name()));
        let file = ModelFile::write(shape, formats, cpu::available_bytes().unwrap_or(u64::MAX))?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.arg("serve").arg(file.path()).args(["--port", "0", "--alias", shape]).args(flags);
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start this program again")?;
        let stderr = process.stderr.take().context("the server has no messages")?;
        // From here on the process ends with this, whatever happens.
        let mut server = Self { process, base_url: String::new(), _file: file };
        server.base_url = address_of(stderr)?;
        Ok(server)
    }

    /// Waits until the server answers. Fails if its process ends first; it has said why.
    pub(super) fn await_ready(&mut self, client: &Client) -> Result<()> {
        while !client.is_served() {
            if let Some(status) = self.process.try_wait().context("cannot ask how the server is")? {
                bail!("the server ended before it was ready ({status}); its message is above");
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // One that has ended already cannot be ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The address that the server names in its first messages. Passes all messages on, as long as there are any.
fn address_of(stderr: ChildStderr) -> Result<String> {
    let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
    let mut found = None;
    for line in lines.by_ref() {
        note(&line);
        found = line.split_once("http://").map(|(_, rest)| {
            let address = rest.split([',', ' ']).next().unwrap_or_default();
            format!("http://{address}")
        });
        if found.is_some() {
            break;
        }
    }
    let found = found.context("the server ended before it listened; its message is above")?;
    std::thread::spawn(move || lines.for_each(|line| note(&line)));
    Ok(found)
}
