//! What a person sees on a terminal and no file has: colours, and answers that are broken between words.

#![cfg(unix)]

mod pseudo_terminal;

use std::process::{Command, Output, Stdio};

use pseudo_terminal::talk;

/// The binary, offline, on a terminal that can do what most can.
fn hotmetal(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmetal"));
    command.args(args).env("HF_HUB_OFFLINE", "1").env("TERM", "xterm").env_remove("NO_COLOR");
    command
}

/// Its output where that is no terminal.
fn piped(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("the binary starts")
}

/// How an error begins where it has a colour.
const RED: &str = "\u{1b}[1m\u{1b}[31merror:\u{1b}[0m ";

#[test]
fn errors_have_a_colour_on_a_terminal_alone() {
    let missing = ["inspect", "missing.gguf"];
    let (code, shown) = talk(&mut hotmetal(&missing), 80, &[]);
    assert_eq!(code, Some(1));
    assert!(shown.starts_with(RED), "{shown:?}");
    let plain = |command: &mut Command| {
        let (_, shown) = talk(command, 80, &[]);
        assert!(shown.starts_with("error: ") && !shown.contains('\u{1b}'), "{shown:?}");
    };
    plain(hotmetal(&missing).env("NO_COLOR", "1"));
    plain(hotmetal(&missing).env("TERM", "dumb"));
    plain(&mut hotmetal(&["inspect", "missing.gguf", "--color", "never"]));
    plain(&mut hotmetal(&["--color=never", "no-such-command"]));
    let stderr = piped(&mut hotmetal(&missing)).stderr;
    assert!(stderr.starts_with(b"error: "), "{}", String::from_utf8_lossy(&stderr));
    for args in [["--color", "always", "inspect", "missing.gguf"], ["run", "--color", "always", "missing.gguf"]] {
        let stderr = piped(hotmetal(&args).env("NO_COLOR", "1")).stderr;
        assert!(stderr.starts_with(RED.as_bytes()), "{}", String::from_utf8_lossy(&stderr));
    }
    // The parser's own errors obey the flag too, and refuse what is no such word.
    let stderr = piped(&mut hotmetal(&["--color", "always", "no-such-command"])).stderr;
    assert!(stderr.starts_with(b"\x1b["), "{}", String::from_utf8_lossy(&stderr));
    let refused = piped(&mut hotmetal(&["inspect", "--color", "blue", "x"]));
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("invalid value 'blue' for '--color <WHEN>'"));
}

#[test]
fn an_answer_is_broken_between_words_on_a_terminal_alone() {
    const COLUMNS: u16 = 32;
    let message = "Tell me a story about a sheep.";
    let options = ["-n", "60", "--temp", "0"];
    let file = piped(hotmetal(&["run", "-p", message]).args(options)).stdout;
    let file = String::from_utf8(file).expect("a text");
    let whole = file.trim_end();
    assert!(whole.lines().any(|line| line.len() > usize::from(COLUMNS)), "{whole}");

    let (code, shown) =
        talk(hotmetal(&["run", "-i", "-p", message]).args(options), COLUMNS, &[("commands.", ""), ("> ", "\u{4}")]);
    assert_eq!(code, Some(0), "{shown}");
    let (_, answer) = shown.split_once("lists the commands.\r\n").expect("the conversation begins with its help");
    // The prompt is drawn with escape sequences before it.
    let answer = &answer[..answer.find(['\u{1b}', '>']).expect("a prompt follows")];
    assert!(answer.lines().all(|line| line.chars().count() <= usize::from(COLUMNS)), "{answer}");
    // The words are the same, and none is cut.
    assert!(answer.split_whitespace().eq(whole.split_whitespace()), "{answer}");

    let end = &whole[whole.len() - 12..];
    let typed = format!("{message}\r");
    let script = [("> ", "/set nowordwrap\r"), ("the model writes", ""), ("> ", &*typed), (end, ""), ("> ", "\u{4}")];
    let (code, shown) = talk(hotmetal(&["run", "-i"]).args(options), COLUMNS, &script);
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.replace("\r\n", "\n").contains(whole), "{shown}");
}
