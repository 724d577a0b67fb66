//! Command lines of llama.cpp and vLLM, as far as clap cannot say them: options of one dash with several letters, and
//! options that have no effect here, which are named in a note and left out.

use std::ffi::OsString;

/// What becomes of an option.
enum Meaning {
    /// It is called this here.
    Is(&'static str),
    /// It has no effect, because of this.
    NoEffect(Values, &'static str),
    /// The same, where its value is this one; others are refused as unknown.
    NoEffectIf(&'static str, &'static str),
}

/// The values that may follow an option as an argument of their own.
enum Values {
    None,
    /// Any, unless it looks like the next option.
    One,
    /// A word that switches something, so that a model's name behind the option is not taken for its value.
    Switch,
}

use Meaning::{Is, NoEffect, NoEffectIf};

const LAYERS: &str = "a model is computed on one device, as a whole: --device says which";
const ATTENTION: &str = "attention never writes its scores to memory here";
const CACHE: &str = "the KV cache is f16, or f32 with --kv-type f32";
const BATCH: &str = "--batch-tokens says how many tokens a step has";
const MEMORY: &str = "--kv-tokens and --ctx-size say how much memory the cache takes";

/// Options, with what they mean here.
const OPTIONS: &[(&str, Meaning)] = &[
    ("-hf", Is("--model")),
    ("-hfr", Is("--model")),
    ("--hf-repo", Is("--model")),
    ("-np", Is("--parallel")),
    ("-cnv", Is("--interactive")),
    ("--conversation", Is("--interactive")),
    ("-ngl", NoEffect(Values::One, LAYERS)),
    ("--gpu-layers", NoEffect(Values::One, LAYERS)),
    ("--n-gpu-layers", NoEffect(Values::One, LAYERS)),
    ("-fa", NoEffect(Values::Switch, ATTENTION)),
    ("--flash-attn", NoEffect(Values::Switch, ATTENTION)),
    ("-ctk", NoEffect(Values::One, CACHE)),
    ("--cache-type-k", NoEffect(Values::One, CACHE)),
    ("-ctv", NoEffect(Values::One, CACHE)),
    ("--cache-type-v", NoEffect(Values::One, CACHE)),
    ("-b", NoEffect(Values::One, BATCH)),
    ("--batch-size", NoEffect(Values::One, BATCH)),
    ("-ub", NoEffect(Values::One, BATCH)),
    ("--ubatch-size", NoEffect(Values::One, BATCH)),
    ("--jinja", NoEffect(Values::None, "chat templates are always rendered as Jinja")),
    ("--mlock", NoEffect(Values::None, "the system keeps what is used in memory")),
    ("--gpu-memory-utilization", NoEffect(Values::One, MEMORY)),
    ("--tensor-parallel-size", NoEffectIf("1", "a model is computed on one device")),
    ("--dtype", NoEffectIf("auto", "weights are computed in the format that they are stored in")),
];

/// The arguments in the words of `hotmetal run` and `hotmetal serve`, and what is to be said of those left out.
pub(crate) fn translated(args: impl Iterator<Item = OsString>) -> (Vec<OsString>, Vec<String>) {
    let mut args = args.peekable();
    let (mut ours, mut notes) = (Vec::new(), Vec::new());
    // The program and the command; of other commands, all is as it stands.
    ours.extend(args.by_ref().take(2));
    if !ours.get(1).is_some_and(|command| command == "run" || command == "serve") {
        ours.extend(args);
        return (ours, notes);
    }
    while let Some(arg) = args.next() {
        if arg == "--" {
            ours.push(arg);
            ours.extend(args);
            break;
        }
        let (name, value) = match arg.to_str().map(|arg| arg.split_once('=').unwrap_or((arg, ""))) {
            Some((name, value)) => (name, (!value.is_empty()).then_some(value)),
            None => ("", None),
        };
        match OPTIONS.iter().find(|(option, _)| *option == name).map(|(_, meaning)| meaning) {
            None => ours.push(arg),
            Some(Is(here)) => {
                ours.push((*here).into());
                ours.extend(value.map(OsString::from));
            }
            Some(NoEffect(values, because)) => {
                notes.push(format!("`{name}` has no effect here: {because}"));
                if value.is_none() {
                    args.next_if(|next| match values {
                        Values::None => false,
                        Values::One => !next.as_encoded_bytes().starts_with(b"-"),
                        Values::Switch => ["on", "off", "auto", "1", "0"].iter().any(|word| next == word),
                    });
                }
            }
            Some(NoEffectIf(only, because)) => {
                let given = value.map(OsString::from).or_else(|| args.next());
                if given.as_deref().is_some_and(|given| given == *only) {
                    notes.push(format!("`{name} {only}` has no effect here: {because}"));
                } else {
                    ours.push(name.into());
                    ours.extend(given);
                }
            }
        }
    }
    (ours, notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> (String, usize) {
        let (ours, notes) = translated(text.split(' ').map(OsString::from));
        (ours.iter().map(|arg| arg.to_str().unwrap()).collect::<Vec<_>>().join(" "), notes.len())
    }

    #[test]
    fn other_programs_options_are_ours_or_are_told() {
        for (theirs, ours, notes) in [
            ("hotmetal run -hf org/repo -p hi", "hotmetal run --model org/repo -p hi", 0),
            ("hotmetal serve -ngl 99 -fa -np 4 --hf-repo=org/repo", "hotmetal serve --parallel 4 --model org/repo", 2),
            ("hotmetal serve -fa m.gguf", "hotmetal serve m.gguf", 1),
            ("hotmetal serve -ctk q8_0 -fa on --jinja m.gguf", "hotmetal serve m.gguf", 3),
            ("hotmetal serve --dtype auto --tensor-parallel-size=1", "hotmetal serve", 2),
            (
                "hotmetal serve --dtype float8 --tensor-parallel-size 2",
                "hotmetal serve --dtype float8 --tensor-parallel-size 2",
                0,
            ),
            ("hotmetal run -cnv -- -ngl", "hotmetal run --interactive -- -ngl", 0),
            ("hotmetal bench -ngl 99", "hotmetal bench -ngl 99", 0),
            ("hotmetal", "hotmetal", 0),
        ] {
            assert_eq!(line(theirs), (ours.to_owned(), notes), "{theirs}");
        }
    }
}
