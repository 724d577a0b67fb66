//! Data to stdout, everything else to stderr. A reader that goes away (`hotmetal run | head`) ends the program quietly.
//! On a terminal the words "error:", "warning:" and "hint:" that begin a line of stderr have colours.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use clap::builder::styling::{AnsiColor, Style};

/// Why nothing more can be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    /// Whoever read our output has gone: nobody is left to tell.
    #[error("the reader of the output went away")]
    ReaderGone,
    /// Anything else, such as a full disk behind a redirection.
    #[error("cannot write the output: {0}; is the disk full?")]
    Failed(io::Error),
}

impl From<io::Error> for OutputError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::ReaderGone } else { Self::Failed(error) }
    }
}

/// Writes `text` to stdout at once, so that a stream reads as it comes.
pub(crate) fn stdout(text: &str) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes a line to stderr. A closed stderr is nobody's loss.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", if is_coloured() { coloured(line) } else { line.to_owned() });
}

/// When what goes to stderr has colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colours {
    /// On a terminal, unless NO_COLOR is set or TERM is `dumb`.
    #[default]
    Auto,
    Always,
    Never,
}

impl Colours {
    /// What the arguments ask for, before they are parsed, because errors of parsing have colours too. A word that is none
    /// of these is an error of parsing.
    pub(crate) fn in_args(args: &[OsString]) -> Self {
        let args = args.iter().take_while(|arg| *arg != "--").filter_map(|arg| arg.to_str());
        let mut found = Self::default();
        let mut is_value = false;
        for arg in args {
            let value = arg.strip_prefix("--color=").or(is_value.then_some(arg));
            found = value.and_then(|value| Self::from_str(value, false).ok()).unwrap_or(found);
            is_value = arg == "--color";
        }
        found
    }

    /// As clap takes it, for help and for errors of parsing.
    pub(crate) fn of_clap(self) -> clap::ColorChoice {
        match self {
            Self::Auto => clap::ColorChoice::Auto,
            Self::Always => clap::ColorChoice::Always,
            Self::Never => clap::ColorChoice::Never,
        }
    }

    fn is_on(self, is_terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => is_terminal && no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb"),
        }
    }
}

/// Whether stderr has colours; not before [`choose_colours`].
static IS_COLOURED: AtomicBool = AtomicBool::new(false);

/// Decides once whether stderr has colours.
pub(crate) fn choose_colours(colours: Colours) {
    let (no_color, term) = (std::env::var_os("NO_COLOR"), std::env::var_os("TERM"));
    let is_on = colours.is_on(io::stderr().is_terminal(), no_color.as_deref(), term.as_deref());
    IS_COLOURED.store(is_on, Ordering::Relaxed);
}

/// Whether stderr has colours.
pub(crate) fn is_coloured() -> bool {
    IS_COLOURED.load(Ordering::Relaxed)
}

/// A line whose first word has its colour, if it is one that has.
fn coloured(line: &str) -> String {
    let words = [("error:", AnsiColor::Red), ("warning:", AnsiColor::Yellow), ("hint:", AnsiColor::Cyan)];
    for (word, colour) in words {
        if let Some(rest) = line.strip_prefix(word) {
            let style = Style::new().bold().fg_color(Some(colour.into()));
            return format!("{style}{word}{style:#}{rest}");
        }
    }
    line.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_colours_unless_somebody_says_no() {
        let on = |colours: Colours, is_terminal, no_color: Option<&str>, term: Option<&str>| {
            colours.is_on(is_terminal, no_color.map(OsStr::new), term.map(OsStr::new))
        };
        assert!(on(Colours::Auto, true, None, Some("xterm-256color")));
        assert!(on(Colours::Auto, true, Some(""), None));
        assert!(!on(Colours::Auto, false, None, Some("xterm")));
        assert!(!on(Colours::Auto, true, Some("1"), Some("xterm")));
        assert!(!on(Colours::Auto, true, None, Some("dumb")));
        // What somebody asks for on the command line counts more than what is set for all programs.
        assert!(on(Colours::Always, false, Some("1"), Some("dumb")));
        assert!(!on(Colours::Never, true, None, None));
    }

    #[test]
    fn the_flag_is_found_before_the_arguments_are_parsed() {
        let found = |args: &[&str]| Colours::in_args(&args.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(found(&["hotmetal", "run"]), Colours::Auto);
        assert_eq!(found(&["hotmetal", "--color", "never", "run"]), Colours::Never);
        assert_eq!(found(&["hotmetal", "run", "--color=always"]), Colours::Always);
        assert_eq!(found(&["hotmetal", "run", "--color", "blue"]), Colours::Auto);
        assert_eq!(found(&["hotmetal", "run", "--", "--color", "never"]), Colours::Auto);
        assert_eq!(found(&["hotmetal", "run", "--color"]), Colours::Auto);
    }

    #[test]
    fn only_the_first_word_has_a_colour() {
        assert_eq!(coloured("error: no error: here"), "\u{1b}[1m\u{1b}[31merror:\u{1b}[0m no error: here");
        assert_eq!(coloured("warning: x"), "\u{1b}[1m\u{1b}[33mwarning:\u{1b}[0m x");
        assert_eq!(coloured("no error: here"), "no error: here");
    }
}
