//! The conversation of `hotmetal run -i`: a prompt line with history, and commands that begin with a slash.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::generate::{Generation, GenerationOptions};
use crate::model::Model;
use crate::output::{note, stdout};
use crate::prompt_line::PromptLine;
use crate::word_wrap::WordWrap;
use crate::{files, interrupt};

const HELP: &str = "\
/help           this list
/clear          forget the conversation (the system message stays)
/system [TEXT]  set the system message and begin anew; without TEXT, show it
/regen          answer the last message again
/save FILE      write the conversation to FILE as JSON
/load FILE      go on with a conversation that /save wrote
/set NAME VALUE set a parameter of the answers (temperature, top_p, seed, max_tokens, stop, …)
/set nohistory  keep what is typed in no file; /set history keeps it again
/set nowordwrap leave the lines of answers to the terminal; /set wordwrap breaks them between words again
/stats          figures of the last answer
/bye            leave (so does Ctrl-D)
Ctrl-C stops an answer, and Tab completes a command. \"\"\" begins and ends a message of several lines; a line that
ends in \\ goes on in the next.";

/// What Tab completes.
const COMMANDS: &[&str] = &["/bye", "/clear", "/help", "/load", "/regen", "/save", "/set", "/stats", "/system"];

/// What a line of input asks for.
#[derive(Debug, PartialEq, Eq)]
enum Command<'a> {
    Help,
    Clear,
    System(Option<&'a str>),
    Regenerate,
    Save(&'a str),
    Load(&'a str),
    Set(&'a str, &'a str),
    KeepHistory(bool),
    WrapWords(bool),
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
        "/load" => Command::Load(rest),
        "/set" => parse_set(rest),
        "/stats" => Command::Stats,
        "/bye" | "/exit" | "/quit" => Command::Leave,
        _ => Command::Unknown(word),
    }
}

/// `NAME VALUE`, and what Ollama's users type: `parameter NAME VALUE`, `system TEXT`.
fn parse_set(rest: &str) -> Command<'_> {
    let split = |text: &'_ str| -> (usize, usize) {
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        (end, text.len() - text[end..].trim_start().len())
    };
    let (end, next) = split(rest);
    match (&rest[..end], &rest[next..]) {
        ("history", "") => Command::KeepHistory(true),
        ("nohistory", "") => Command::KeepHistory(false),
        ("wordwrap", "") => Command::WrapWords(true),
        ("nowordwrap", "") => Command::WrapWords(false),
        ("system", text) => Command::System((!text.is_empty()).then_some(text)),
        ("parameter", setting) => {
            let (end, next) = split(setting);
            Command::Set(&setting[..end], &setting[next..])
        }
        (name, value) => Command::Set(name, value),
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
    // What a script writes is in the script.
    let keeps = std::io::IsTerminal::is_terminal(&std::io::stdin());
    let mut line = PromptLine::new(COMMANDS, keeps.then(files::history_file).flatten())?;
    let mut conversation = Conversation { system: system.map(str::to_owned), turns: Vec::new() };
    let mut last: Option<Generation> = None;
    // In a file, lines are as the model writes them.
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
    let mut wraps = is_terminal;
    note(&format!("{} on {}. /help lists the commands.", model.name, model.device));
    let mut pending = first;
    loop {
        let text = match pending.take() {
            Some(text) => text,
            None => match line.read()? {
                Some(text) => text,
                None => return Ok(()),
            },
        };
        match parse(&text) {
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
            Command::Load("") => note("/load needs a file name"),
            Command::Load(path) => match load(Path::new(path)) {
                Ok(loaded) => {
                    note(&format!(
                        "{} messages of {path}; the conversation goes on from there",
                        loaded.messages().len()
                    ));
                    conversation = loaded;
                }
                Err(error) => note(&format!("error: {error:#}")),
            },
            Command::Set(name, value) => match options.set(name, value, model.engine.config().vocab_size) {
                Ok(()) => note(&format!("{name} is {value}")),
                Err(error) => note(&format!("error: {error:#}")),
            },
            Command::KeepHistory(keep) => {
                line.keep_history(keep.then(files::history_file).flatten());
                note(if keep { "what is typed is kept in a file" } else { "what is typed is kept in no file" });
            }
            Command::WrapWords(wrap) => {
                wraps = wrap && is_terminal;
                note(match (wrap, is_terminal) {
                    (true, true) => "answers are broken between words",
                    (true, false) => "answers are not broken, because they go to no terminal",
                    (false, _) => "answers have the lines that the model writes",
                });
            }
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
                last = answer(model, &options, &mut conversation, think, wraps)?.or(last);
            }
            Command::Say(text) => {
                conversation.turns.push(json!({"role": "user", "content": text}));
                last = answer(model, &options, &mut conversation, think, wraps)?.or(last);
            }
        }
    }
}

/// Answers the conversation and appends the answer, whose lines are broken between words if `wraps`. What cannot be
/// answered (too long, say) is reported and taken back.
fn answer(
    model: &mut Model,
    options: &GenerationOptions,
    conversation: &mut Conversation,
    think: Option<bool>,
    wraps: bool,
) -> Result<Option<Generation>> {
    interrupt::reset();
    let mut wrap = wraps.then(WordWrap::default);
    let mut write = |text: &str| match &mut wrap {
        Some(wrap) => Ok(stdout(&wrap.push(text, columns()))?),
        None => Ok(stdout(text)?),
    };
    let generated =
        model.encode_chat(&conversation.messages(), think).and_then(|ids| model.generate(ids, options, &mut write));
    if let Some(wrap) = &mut wrap {
        stdout(&wrap.finish(columns()))?;
    }
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

/// Columns of the terminal, which may change while an answer is written.
fn columns() -> usize {
    usize::from(console::Term::stdout().size().1)
}

fn save(conversation: &Conversation, path: &Path) -> Result<()> {
    let json = serde_json::to_string_pretty(&json!({"messages": conversation.messages()}))?;
    files::write(path, (json + "\n").as_bytes())
}

/// Reads what [`save`] writes, and other lists of messages with texts.
fn load(path: &Path) -> Result<Conversation> {
    let text = files::read_text(path, "the conversation", files::RESULT_BYTES_MAX)?;
    let named = || format!("`{}`", path.display());
    let json: Value = serde_json::from_str(&text).with_context(|| format!("{} is not JSON", named()))?;
    let messages = json["messages"].as_array().with_context(|| format!("{} has no list `messages`", named()))?;
    let mut conversation = Conversation { system: None, turns: Vec::new() };
    for (index, message) in messages.iter().enumerate() {
        let field = |name: &str| {
            message[name].as_str().with_context(|| format!("{}: messages[{index}].{name} is not a text", named()))
        };
        match field("role")? {
            "system" if index == 0 => conversation.system = Some(field("content")?.to_owned()),
            role @ ("user" | "assistant") => {
                conversation.turns.push(json!({"role": role, "content": field("content")?}));
            }
            role => bail!(
                "{}: messages[{index}].role is `{role}`; a conversation here has user and assistant, and system first",
                named()
            ),
        }
    }
    Ok(conversation)
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
        assert_eq!(parse("/load a b.json"), Command::Load("a b.json"));
        assert_eq!(parse("/set temperature  0.5 "), Command::Set("temperature", "0.5"));
        assert_eq!(parse("/set parameter top_k 5"), Command::Set("top_k", "5"));
        assert_eq!(parse("/set"), Command::Set("", ""));
        assert_eq!(parse("/set stop a b"), Command::Set("stop", "a b"));
        assert_eq!(parse("/set system You are brief."), Command::System(Some("You are brief.")));
        assert_eq!(parse("/set nohistory"), Command::KeepHistory(false));
        assert_eq!(parse("/set nowordwrap"), Command::WrapWords(false));
    }

    #[test]
    fn every_command_of_the_help_is_completed() {
        for line in HELP.lines().filter(|line| line.starts_with('/')) {
            let word = line.split_whitespace().next().unwrap();
            assert!(COMMANDS.contains(&word), "{word}");
            assert!(!matches!(parse(word), Command::Unknown(_) | Command::Say(_)), "{word}");
        }
    }

    #[test]
    fn a_saved_conversation_is_loaded_and_another_file_is_refused_by_its_field() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.json");
        let mut conversation = Conversation { system: Some("S".into()), turns: vec![] };
        conversation.turns.push(json!({"role": "user", "content": "U"}));
        conversation.turns.push(json!({"role": "assistant", "content": "A"}));
        save(&conversation, &path).unwrap();
        let loaded = load(&path).unwrap();
        assert_eq!(loaded.messages(), conversation.messages());
        for (text, field) in [
            ("[]", "no list `messages`"),
            ("{", "is not JSON"),
            (r#"{"messages": [{"role": "tool", "content": "x"}]}"#, "messages[0].role is `tool`"),
            (r#"{"messages": [{"role": "user", "content": []}]}"#, "messages[0].content is not a text"),
            (
                r#"{"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]}"#,
                "messages[1].role",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = load(&path).err().expect("no conversation");
            assert!(format!("{error:#}").contains(field), "{error:#}");
        }
    }

    #[test]
    fn the_system_message_comes_first_and_stays() {
        let mut conversation = Conversation { system: Some("S".into()), turns: vec![] };
        conversation.turns.push(json!({"role": "user", "content": "U"}));
        assert_eq!(conversation.messages()[0]["role"], "system");
        assert!(conversation.ends_with("user") && !conversation.ends_with("assistant"));
    }
}
