//! The conversation of `hotmetal run -i`: a prompt line with history, and commands that begin with a slash.

use std::path::Path;

use anyhow::{Context, Result};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use crate::generate::{Generation, GenerationOptions};
use crate::model::Model;
use crate::output::{note, stdout};
use crate::{files, interrupt};

const HELP: &str = "\
/help           this list
/clear          forget the conversation (the system message stays)
/system [TEXT]  set the system message and begin anew; without TEXT, show it
/regen          answer the last message again
/save FILE      write the conversation to FILE as JSON
/stats          figures of the last answer
/bye            leave (so does Ctrl-D)
Ctrl-C stops an answer. A line that ends in \\ goes on in the next.";

/// What a line of input asks for.
#[derive(Debug, PartialEq, Eq)]
enum Command<'a> {
    Help,
    Clear,
    System(Option<&'a str>),
    Regenerate,
    Save(&'a str),
    Stats,
    Leave,
    Unknown(&'a str),
    Say(&'a str),
}

fn parse(line: &str) -> Command<'_> {
    let line = line.trim();
    if !line.starts_with('/') {
        return Command::Say(line);
    }
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    match word {
        "/help" | "/?" => Command::Help,
        "/clear" => Command::Clear,
        "/system" => Command::System((!rest.is_empty()).then_some(rest)),
        "/regen" => Command::Regenerate,
        "/save" => Command::Save(rest),
        "/stats" => Command::Stats,
        "/bye" | "/exit" | "/quit" => Command::Leave,
        _ => Command::Unknown(word),
    }
}

/// The messages so far, as the chat template wants them.
struct Conversation {
    system: Option<String>,
    turns: Vec<Value>,
}

impl Conversation {
    fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        system.chain(self.turns.iter().cloned()).collect()
    }

    fn ends_with(&self, role: &str) -> bool {
        self.turns.last().is_some_and(|turn| turn["role"] == role)
    }
}

/// Holds the conversation until the user leaves. `first` is a message that the command line gave.
pub(crate) fn run(
    model: &mut Model,
    mut options: GenerationOptions,
    system: Option<&str>,
    think: Option<bool>,
    first: Option<String>,
) -> Result<()> {
    let mut editor = DefaultEditor::new().context("cannot open the terminal for a conversation")?;
    let mut conversation = Conversation { system: system.map(str::to_owned), turns: Vec::new() };
    let mut last: Option<Generation> = None;
    note(&format!("{} on {}. /help lists the commands.", model.name, model.device));
    let mut pending = first;
    loop {
        let line = match pending.take() {
            Some(line) => line,
            None => match read_line(&mut editor)? {
                Some(line) => line,
                None => return Ok(()),
            },
        };
        match parse(&line) {
            Command::Say("") => continue,
            Command::Help => note(HELP),
            Command::Clear => {
                conversation.turns.clear();
                note("forgotten");
            }
            Command::System(None) => note(conversation.system.as_deref().unwrap_or("(no system message)")),
            Command::System(Some(text)) => {
                conversation.system = Some(text.to_owned());
                conversation.turns.clear();
                note("system message set; the conversation begins anew");
            }
            Command::Save("") => note("/save needs a file name"),
            Command::Save(path) => match save(&conversation, Path::new(path)) {
                Ok(()) => note(&format!("saved to {path}")),
                Err(error) => note(&format!("error: {error:#}")),
            },
            Command::Stats => match &last {
                Some(generation) => note(&generation.statistics(model.load_time)),
                None => note("no answer yet"),
            },
            Command::Leave => return Ok(()),
            Command::Unknown(word) => note(&format!("unknown command {word}; /help lists them")),
            Command::Regenerate => {
                if conversation.ends_with("assistant") {
                    conversation.turns.pop();
                }
                if !conversation.ends_with("user") {
                    note("nothing to answer yet");
                    continue;
                }
                // The same seed would give the same answer.
                options.seed = options.seed.wrapping_add(1);
                last = answer(model, &options, &mut conversation, think)?.or(last);
            }
            Command::Say(text) => {
                conversation.turns.push(json!({"role": "user", "content": text}));
                last = answer(model, &options, &mut conversation, think)?.or(last);
            }
        }
    }
}

/// One line, with continuations; `None` when the user leaves.
fn read_line(editor: &mut DefaultEditor) -> Result<Option<String>> {
    let mut text = String::new();
    loop {
        let prompt = if text.is_empty() { "> " } else { "… " };
        match editor.readline(prompt) {
            Ok(line) => match line.strip_suffix('\\') {
                Some(begun) => {
                    text.push_str(begun);
                    text.push('\n');
                }
                None => {
                    text.push_str(&line);
                    // History is a convenience: a line that cannot be kept is still answered.
                    let _ = editor.add_history_entry(&text);
                    return Ok(Some(text));
                }
            },
            Err(ReadlineError::Interrupted) if text.is_empty() => note("(Ctrl-D or /bye leaves)"),
            Err(ReadlineError::Interrupted) => text.clear(),
            Err(ReadlineError::Eof) => return Ok(None),
            Err(error) => return Err(error).context("cannot read from the terminal"),
        }
    }
}

/// Answers the conversation and appends the answer. What cannot be answered (too long, say) is reported and taken back.
fn answer(
    model: &mut Model,
    options: &GenerationOptions,
    conversation: &mut Conversation,
    think: Option<bool>,
) -> Result<Option<Generation>> {
    interrupt::reset();
    let generated = model
        .encode_chat(&conversation.messages(), think)
        .and_then(|ids| model.generate(ids, options, &mut |text| Ok(stdout(text)?)));
    let generation = match generated {
        Ok(generation) => generation,
        Err(error) if error.downcast_ref::<crate::output::OutputError>().is_some() => return Err(error),
        Err(error) => {
            note(&format!("error: {error:#}"));
            conversation.turns.pop();
            return Ok(None);
        }
    };
    stdout("\n")?;
    if let Some(error) = &generation.error {
        note(&format!("error: {error}"));
    }
    conversation.turns.push(json!({"role": "assistant", "content": generation.text}));
    Ok(Some(generation))
}

fn save(conversation: &Conversation, path: &Path) -> Result<()> {
    let json = serde_json::to_string_pretty(&json!({"messages": conversation.messages()}))?;
    files::write(path, (json + "\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_messages() {
        assert_eq!(parse("  hello /help "), Command::Say("hello /help"));
        assert_eq!(parse("/help"), Command::Help);
        assert_eq!(parse("/system  You are brief. "), Command::System(Some("You are brief.")));
        assert_eq!(parse("/system"), Command::System(None));
        assert_eq!(parse("/save a b.json"), Command::Save("a b.json"));
        assert_eq!(parse("/nope x"), Command::Unknown("/nope"));
        assert_eq!(parse("/regen"), Command::Regenerate);
        assert_eq!(parse(""), Command::Say(""));
    }

    #[test]
    fn the_system_message_comes_first_and_stays() {
        let mut conversation = Conversation { system: Some("S".into()), turns: vec![] };
        conversation.turns.push(json!({"role": "user", "content": "U"}));
        assert_eq!(conversation.messages()[0]["role"], "system");
        assert!(conversation.ends_with("user") && !conversation.ends_with("assistant"));
    }
}
