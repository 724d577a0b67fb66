//! The prompt line of a conversation: messages of several lines, Tab, and a history that stays from one conversation to
//! the next.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::Validator;
use rustyline::{Editor, Helper};

use crate::files;
use crate::output::note;

/// What begins and ends a message of several lines.
const FENCE: &str = "\"\"\"";
/// Messages that the history keeps.
const KEPT: usize = 1000;
/// Bytes of the file of the history that are read.
const HISTORY_BYTES_MAX: u64 = 16 << 20;

/// Reads messages and commands from the terminal, or from standard input.
pub(crate) struct PromptLine {
    editor: Editor<Commands, MemHistory>,
    history: Option<History>,
}

impl PromptLine {
    /// A prompt whose Tab completes these commands; `history` is the file that keeps what is typed, if one does.
    pub(crate) fn new(commands: &'static [&'static str], history: Option<PathBuf>) -> Result<Self> {
        let mut editor = Editor::with_history(rustyline::Config::default(), MemHistory::new())
            .context("cannot open the terminal for a conversation")?;
        editor.set_helper(Some(Commands(commands)));
        let history = history.map(|path| History { path });
        for entry in history.iter().flat_map(History::read) {
            // A line that cannot be kept is a convenience less, here and below.
            let _ = editor.add_history_entry(entry);
        }
        Ok(Self { editor, history })
    }

    /// Keeps what is typed from now on in `history`, or nowhere.
    pub(crate) fn keep_history(&mut self, history: Option<PathBuf>) {
        self.history = history.map(|path| History { path });
    }

    /// One message or command; `None` when the user leaves. A line that ends in `\` goes on in the next, and one that begins
    /// with `"""` goes on until a line that ends so.
    pub(crate) fn read(&mut self) -> Result<Option<String>> {
        let mut message = Message::default();
        loop {
            match self.editor.readline(if message.is_begun() { "… " } else { "> " }) {
                Ok(line) => {
                    let Some(text) = message.add(&line) else { continue };
                    if !text.trim().is_empty() {
                        let _ = self.editor.add_history_entry(&text);
                        if let Some(history) = &self.history {
                            history.append(&text);
                        }
                    }
                    return Ok(Some(text));
                }
                Err(ReadlineError::Interrupted) if !message.is_begun() => note("(Ctrl-D or /bye leaves)"),
                Err(ReadlineError::Interrupted) => message = Message::default(),
                Err(ReadlineError::Eof) => return Ok(None),
                Err(error) => return Err(error).context("cannot read from the terminal"),
            }
        }
    }
}

/// A message of several lines that the user is still typing.
#[derive(Debug, Default)]
struct Message {
    lines: Vec<String>,
    is_fenced: bool,
}

impl Message {
    fn is_begun(&self) -> bool {
        self.is_fenced || !self.lines.is_empty()
    }

    /// Adds a line; returns the message if that was the last of it.
    fn add(&mut self, line: &str) -> Option<String> {
        let mut line = line;
        if !self.is_begun()
            && let Some(rest) = line.strip_prefix(FENCE)
        {
            self.is_fenced = true;
            line = rest;
            if line.is_empty() {
                return None;
            }
        }
        let end = if self.is_fenced { line.strip_suffix(FENCE) } else { None };
        let goes_on = match (self.is_fenced, end) {
            (true, Some(last)) => {
                line = last;
                false
            }
            (true, None) => true,
            (false, _) => match line.strip_suffix('\\') {
                Some(begun) => {
                    line = begun;
                    true
                }
                None => false,
            },
        };
        // Before a fence of its own, a line that is empty belongs to the fence.
        if goes_on || !line.is_empty() || !self.is_fenced {
            self.lines.push(line.to_owned());
        }
        if goes_on {
            return None;
        }
        Some(std::mem::take(self).lines.join("\n"))
    }
}

/// The file of the history: a JSON string on each line, because a message may have several lines.
struct History {
    path: PathBuf,
}

impl History {
    /// The messages in the file, oldest first; none where it cannot be read.
    fn read(&self) -> Vec<String> {
        let Ok(text) = files::read_text(&self.path, "the history", HISTORY_BYTES_MAX) else { return Vec::new() };
        let entries: Vec<String> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let kept = entries[entries.len().saturating_sub(KEPT)..].to_vec();
        if entries.len() >= 2 * KEPT {
            let lines: String = kept.iter().map(|entry| line_of(entry)).collect();
            let _ = files::write(&self.path, lines.as_bytes());
        }
        kept
    }

    /// Appends a message. Other conversations may do so at the same time.
    fn append(&self, entry: &str) {
        if let Err(error) = try_append(&self.path, &line_of(entry)) {
            tracing::warn!("the history cannot be kept in `{}`: {error}", self.path.display());
        }
    }
}

fn line_of(entry: &str) -> String {
    serde_json::Value::from(entry).to_string() + "\n"
}

fn try_append(path: &Path, line: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    // What somebody asks a model is nobody else's business.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(line.as_bytes())
}

/// Completes the word at the beginning of a line.
struct Commands(&'static [&'static str]);

impl Completer for Commands {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &rustyline::Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let begun = &line[..at];
        let candidates = self.0.iter().filter(|command| begun.starts_with('/') && command.starts_with(begun));
        let pair = |command: &&str| Pair { display: (*command).to_owned(), replacement: format!("{command} ") };
        Ok((0, candidates.map(pair).collect()))
    }
}

impl Hinter for Commands {
    type Hint = String;
}

impl Highlighter for Commands {}

impl Validator for Commands {}

impl Helper for Commands {}

#[cfg(test)]
mod tests {
    use rustyline::history::History as _;

    use super::*;

    fn messages(lines: &[&str]) -> Vec<String> {
        let mut message = Message::default();
        lines.iter().filter_map(|line| message.add(line)).collect()
    }

    #[test]
    fn a_message_has_several_lines_between_fences_or_behind_backslashes() {
        assert_eq!(messages(&["one", "two"]), ["one", "two"]);
        assert_eq!(messages(&["one\\", "two"]), ["one\ntwo"]);
        assert_eq!(messages(&["\"\"\"one", "  two\\", "", "three\"\"\"", "four"]), ["one\n  two\\\n\nthree", "four"]);
        assert_eq!(messages(&["\"\"\"", "one", "\"\"\""]), ["one"]);
        assert_eq!(messages(&["\"\"\"one\"\"\""]), ["one"]);
        assert_eq!(messages(&["\"\"\"", "/clear", "say \"\"\" twice", "\"\"\""]), ["/clear\nsay \"\"\" twice"]);
        assert_eq!(messages(&["\"\"\"open"]), Vec::<String>::new());
    }

    #[test]
    fn tab_completes_commands_and_nothing_else() {
        let commands = Commands(&["/save", "/set", "/stats"]);
        let history = MemHistory::new();
        let context = rustyline::Context::new(&history);
        let completed = |line: &str| {
            let (start, pairs) = commands.complete(line, line.len(), &context).unwrap();
            assert_eq!(start, 0);
            pairs.into_iter().map(|pair| pair.replacement).collect::<Vec<_>>()
        };
        assert_eq!(completed("/s"), ["/save ", "/set ", "/stats "]);
        assert_eq!(completed("/se"), ["/set "]);
        assert!(completed("").is_empty() && completed("s").is_empty() && completed("/x").is_empty());
        assert_eq!(history.len(), 0);
    }

    #[test]
    fn the_history_stays_and_does_not_grow_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let history = History { path: folder.path().join("hotmetal/history") };
        assert!(history.read().is_empty());
        history.append("one\ntwo");
        history.append("\"three\" ☃");
        assert_eq!(history.read(), ["one\ntwo", "\"three\" ☃"]);
        #[cfg(unix)]
        {
            let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&history.path).unwrap().permissions());
            assert_eq!(mode & 0o777, 0o600);
        }
        // A line that is no message is passed over.
        try_append(&history.path, "not JSON\n").unwrap();
        for index in 0..2 * KEPT {
            history.append(&index.to_string());
        }
        let read = history.read();
        assert_eq!((read.len(), read.last().map(String::as_str)), (KEPT, Some("1999")));
        assert_eq!(fs::read_to_string(&history.path).unwrap().lines().count(), KEPT);
    }
}
