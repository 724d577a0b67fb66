//! `hotmetal run`: one prompt, or a conversation.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tokenizer::ParseSpecial;

use crate::generate::{Generation, GenerationOptions};
use crate::load::find::{self, names_a_model};
use crate::load::plan::check_head;
use crate::model::args::ModelArgs;
use crate::model::{self, Model};
use crate::output::{note, stdout};
use crate::sampling_args::SamplingArgs;
use crate::{files, interrupt, repl, units};

/// Generate text from a prompt.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// A directory, a .gguf or .safetensors file, or a cached ORG/REPO or ORG/REPO:FILE; without it the built-in model runs
    #[arg(value_name = "MODEL")]
    first: Option<String>,

    /// The prompt; without it, -p, -f or standard input
    #[arg(value_name = "PROMPT")]
    second: Option<String>,

    /// The model, when the first argument is to be the prompt
    #[arg(long, short = 'm', value_name = "MODEL")]
    model: Option<String>,

    /// The prompt
    #[arg(long, short = 'p', value_name = "TEXT")]
    prompt: Option<String>,

    /// Read the prompt from a file
    #[arg(long, short = 'f', value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,

    /// Hold a conversation; /help lists its commands
    #[arg(long, short = 'i', visible_alias = "chat", conflicts_with_all = ["file", "raw"])]
    interactive: bool,

    /// The system message
    #[arg(long, alias = "system-prompt", value_name = "TEXT")]
    system: Option<String>,

    /// Read the system message from a file
    #[arg(long, value_name = "FILE", conflicts_with = "system")]
    system_file: Option<PathBuf>,

    /// Read \n, \r, \t, \\, \', \" and \xHH in the prompt, in the system message and in --stop as the characters that
    /// they stand for
    #[arg(long, short = 'e')]
    escape: bool,

    /// Continue the prompt as it is, without the chat template
    #[arg(long)]
    raw: bool,

    /// Write the text between the prompt and this text, with a model that was trained to fill in the middle; no chat
    /// template
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["interactive", "system", "system_file", "think", "no_parse_special"])]
    suffix: Option<String>,

    /// With --raw: take the texts of special tokens (such as <|im_end|>) as text, not as those tokens
    #[arg(long, requires = "raw")]
    no_parse_special: bool,

    /// Let models that can, think first (or not); without it the template decides
    #[arg(long, value_name = "BOOL")]
    think: Option<bool>,

    /// Generate at most N tokens [default: until the model ends or the context is full]
    #[arg(long = "max-tokens", short = 'n', aliases = ["n-predict", "predict"], value_name = "N")]
    max_tokens: Option<usize>,

    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// Go on past end-of-text tokens
    #[arg(long)]
    ignore_eos: bool,

    /// What goes to standard output
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    output_format: OutputFormat,

    #[command(flatten)]
    model_args: ModelArgs,

    #[command(flatten)]
    sampling: SamplingArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// The text, as it is generated.
    Text,
    /// One object with text, token ids, finish reason, seed and timings.
    Json,
    /// Nothing: for timing.
    None,
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let (model_name, positional_prompt) = split_positionals(args)?;
    let unescaped = |text: String| if args.escape { unescape(&text) } else { text };
    let prompt = read_prompt(args, positional_prompt)?.map(unescaped);
    let system = system_message(args)?.map(unescaped);
    // A gap may be at the beginning.
    let prompt = prompt.or_else(|| args.suffix.is_some().then(String::new));
    let interactive = args.interactive || (prompt.is_none() && std::io::stdin().is_terminal());
    if interactive && args.output_format != OutputFormat::Text {
        bail!("a conversation is text: --output-format goes with a prompt (-p, -f or standard input)");
    }
    // Before the weights are touched: what is missing should not cost a load. A model that is not there comes first,
    // because its name may have been meant as the prompt.
    if let Some(name) = &model_name {
        find::locate(name)?;
    }
    if !interactive && prompt.is_none() {
        bail!("no prompt: give one as an argument, with -p TEXT, with -f FILE or on standard input, or chat with -i");
    }
    let mut model = model::load(model_name.as_deref(), &args.model_args.settings())?;
    check_head(model.has_head, &model.name)?;
    let mut options = GenerationOptions::new(&model, &args.sampling)?;
    options.max_tokens = args.max_tokens;
    options.stop = args.stop.iter().cloned().map(unescaped).collect();
    options.ignore_eos = args.ignore_eos;
    interrupt::install();
    if interactive {
        return repl::run(&mut model, options, system.as_deref(), args.think, prompt);
    }
    let prompt = prompt.unwrap_or_default();
    let prompt_ids = if let Some(suffix) = &args.suffix {
        let (ids, ends) = model.encode_gap(&prompt, suffix)?;
        if !args.ignore_eos {
            options.end_ids = ends;
        }
        ids
    } else if args.raw {
        if system.is_some() {
            bail!("--system needs the chat template: leave out --raw, or put the text into the prompt");
        }
        model.encode_raw(&prompt, ParseSpecial::where_asked(!args.no_parse_special))?
    } else {
        let mut messages = Vec::new();
        messages.extend(system.map(|text| json!({"role": "system", "content": text})));
        messages.push(json!({"role": "user", "content": prompt}));
        model.encode_chat(&messages, args.think)?
    };
    one_prompt(&mut model, prompt_ids, &options, args.output_format)
}

fn one_prompt(
    model: &mut Model,
    prompt_ids: Vec<u32>,
    options: &GenerationOptions,
    format: OutputFormat,
) -> Result<()> {
    let mut ends_in_newline = true;
    let generation = model.generate(prompt_ids, options, &mut |text| {
        if format == OutputFormat::Text && !text.is_empty() {
            ends_in_newline = text.ends_with('\n');
            stdout(text)?;
        }
        Ok(())
    })?;
    match format {
        OutputFormat::Text if !ends_in_newline => stdout("\n")?,
        OutputFormat::Json => stdout(&format!("{}\n", to_json(&generation, model)))?,
        _ => {}
    }
    note(&generation.statistics(model.load_time));
    if let Some(error) = &generation.error {
        bail!("generation failed after {} tokens: {error}", generation.token_ids.len());
    }
    Ok(())
}

/// With one positional argument it is the model if it names one, and the prompt otherwise.
fn split_positionals(args: &RunArgs) -> Result<(Option<String>, Option<String>)> {
    let (first, second) = (args.first.clone(), args.second.clone());
    if args.model.is_some() {
        if second.is_some() {
            bail!("with --model there is one positional argument, the prompt; found two");
        }
        return Ok((args.model.clone(), first));
    }
    let Some(only) = first else { return Ok((None, None)) };
    if second.is_some() || names_a_model(&only) {
        return Ok((Some(only), second));
    }
    if args.prompt.is_some() || args.file.is_some() {
        // The prompt is elsewhere, so this was meant as a model: let the loader say what is wrong with it.
        return Ok((Some(only), None));
    }
    Ok((None, Some(only)))
}

fn read_prompt(args: &RunArgs, positional: Option<String>) -> Result<Option<String>> {
    let flag = args.prompt.is_some() || args.file.is_some();
    if flag && positional.is_some() {
        bail!("the prompt is given twice: as an argument and with -p or -f");
    }
    if let Some(text) = args.prompt.clone().or(positional) {
        return Ok(Some(text));
    }
    if let Some(path) = &args.file {
        return text_of(path, "the prompt file").map(Some);
    }
    if std::io::stdin().is_terminal() || args.interactive {
        return Ok(None);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read the prompt from standard input as UTF-8 text")?;
    let text = text.trim_end_matches(['\n', '\r']).to_owned();
    Ok((!text.is_empty()).then_some(text))
}

/// A file's text, without its last newline, which is an editor's.
fn text_of(path: &Path, what: &str) -> Result<String> {
    let text = files::read_text(path, what, files::TEXT_BYTES_MAX)?;
    Ok(text.strip_suffix('\n').map_or(text.clone(), |text| text.trim_end_matches('\r').to_owned()))
}

fn system_message(args: &RunArgs) -> Result<Option<String>> {
    match &args.system_file {
        Some(path) => text_of(path, "the system message in").map(Some),
        None => Ok(args.system.clone()),
    }
}

/// The text with its escapes read, which are llama.cpp's; a backslash before anything else stays as it is.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        let (read, length) = match behind {
            _ if byte != b'\\' => (byte, 1),
            [b'n', ..] => (b'\n', 2),
            [b'r', ..] => (b'\r', 2),
            [b't', ..] => (b'\t', 2),
            [quoted @ (b'\'' | b'"' | b'\\'), ..] => (*quoted, 2),
            [b'x', digits @ ..] if digits.len() >= 2 => match hex(&digits[..2]) {
                Some(read) if digits[0] != b'+' => (read, 4),
                _ => (byte, 1),
            },
            _ => (byte, 1),
        };
        bytes.push(read);
        rest = &rest[length..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn to_json(generation: &Generation, model: &Model) -> Value {
    let ms = |d: std::time::Duration| (d.as_secs_f64() * 1e6).round() / 1e3;
    let rate = |n, d| units::per_second(n, d).map(|rate| (rate * 100.0).round() / 100.0);
    json!({
        "model": model.name,
        "text": generation.text,
        "token_ids": generation.token_ids,
        "prompt_token_ids": generation.prompt_token_ids,
        "finish_reason": generation.finish_reason,
        "seed": generation.seed,
        "cached_tokens": generation.cached_tokens,
        "sampling": generation.sampling,
        "device": model.device,
        "context_len": model.context_len,
        "timings": {
            "load_ms": ms(model.load_time),
            "prompt_ms": ms(generation.prompt_time),
            "decode_ms": ms(generation.decode_time),
            "ttft_ms": ms(generation.first_token_time),
            "total_ms": ms(generation.prompt_time + generation.decode_time),
            "prompt_tokens_per_s": rate(generation.computed_prompt_tokens(), generation.prompt_time),
            "decode_tokens_per_s": rate(generation.decode_steps(), generation.decode_time),
        },
        "error": generation.error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_those_of_llama_cpp() {
        for (written, read) in [
            (r"a\nb\tc\r", "a\nb\tc\r"),
            (r#"\'\"\\n"#, "'\"\\n"),
            (r"\x41\xc3\xa9", "A\u{e9}"),
            (r"\x4 \x+1 \q \", r"\x4 \x+1 \q \"),
            ("plain \u{e9}", "plain \u{e9}"),
        ] {
            assert_eq!(unescape(written), read, "{written}");
        }
    }
}
