//! `hotmetal eval`: how well a model predicts a text, and how far it is from another.
//!
//! Method    that of llama.cpp's `perplexity`, so that figures compare: the text's tokens in windows of `--ctx-size`, each on its
//!           own, beginning with what the model expects before a text; every token of a window's second half is scored.
//! Measures  perplexity exp(mean of -ln p), ± its standard error; against another model, the mean of KL(other ‖ this) of whole
//!           distributions, and how often both have the same likeliest token.

use std::fmt::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use backend::Executable;
use clap::{Args, ValueEnum};
use formats::Checkpoint;
use indicatif::{ProgressBar, ProgressStyle};
use plan::sampling::{RowSampling, choose};
use plan::{KvLayout, StepInput, StepShape};
use serde_json::{Value as Json, json};
use tokenizer::Tokenizer;

use crate::load::facts::{KV_BLOCK_LEN, WINDOW, kv_format_of, main_format, text_windows};
use crate::load::find;
use crate::load::fits::{check_fits, smaller_context};
use crate::load::plan::check_head;
use crate::load::text::load_tokenizer;
use crate::model::args::ModelArgs;
use crate::model::load_weights;
use crate::model::settings::ModelSettings;
use crate::{files, output};

/// Rows of logits that are made at a time.
const ROWS: usize = 64;

/// Tell how well a model predicts a text: perplexity, and with --against its distance from another model
#[derive(Args, Clone, Debug)]
pub(crate) struct EvalArgs {
    /// A directory, a .gguf or .safetensors file, or a cached ORG/REPO or ORG/REPO:FILE; without it, the built-in model
    #[arg(value_name = "MODEL")]
    model: Option<String>,

    /// The text, in UTF-8
    #[arg(long, short = 'f', value_name = "FILE")]
    file: PathBuf,

    /// Another model of the same vocabulary, such as the one that MODEL was quantised from: adds the divergence from it
    #[arg(long, value_name = "MODEL")]
    against: Option<String>,

    /// Windows of the text at most [default: all]
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,

    /// How to print it
    #[arg(long, short = 'o', value_enum, value_name = "FORMAT", default_value_t = EvalFormat::Text)]
    output: EvalFormat,

    #[command(flatten)]
    model_args: ModelArgs,
}

/// How `eval` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EvalFormat {
    /// For people.
    Text,
    /// One object.
    Json,
}

/// Runs `hotmetal eval`.
pub(crate) fn eval(args: &EvalArgs) -> Result<()> {
    let text = files::read_text(&args.file, "", files::TEXT_BYTES_MAX)?;
    let scores = Task { text: &text, chunks: args.chunks, settings: &args.model_args.settings() }
        .score(args.model.as_deref(), args.against.as_deref())
        .with_context(|| format!("cannot score `{}`", args.file.display()))?;
    let report = match args.output {
        EvalFormat::Json => format!("{}\n", scores.as_json()),
        EvalFormat::Text => scores.as_text()?,
    };
    output::stdout(&report)?;
    Ok(())
}

/// A text that models are to predict.
pub(crate) struct Task<'a> {
    pub(crate) text: &'a str,
    /// Windows of it at most.
    pub(crate) chunks: Option<usize>,
    pub(crate) settings: &'a ModelSettings,
}

/// How well a model predicts a text.
pub(crate) struct Scores {
    name: String,
    format: String,
    device: String,
    /// Tokens in a window.
    window: usize,
    windows: usize,
    /// -ln p of each token that was scored.
    losses: Mean,
    against: Option<Distance>,
}

/// How far a model is from another.
struct Distance {
    name: String,
    /// What the other makes of the text.
    losses: Mean,
    /// KL(other ‖ model) at each token.
    divergences: Mean,
    /// Tokens at which both have the same likeliest.
    agreed: u64,
}

impl Distance {
    fn agreement(&self) -> f64 {
        self.agreed as f64 / self.divergences.count.max(1) as f64
    }
}

impl Task<'_> {
    /// Has the model of that name (none: the built-in one) predict the text, and `against` too.
    ///
    /// # Errors
    ///
    /// Where a model cannot be loaded, a text is shorter than a window, the vocabularies differ, or a logit is not finite.
    pub(crate) fn score(&self, model: Option<&str>, against: Option<&str>) -> Result<Scores> {
        let (mut checkpoint, name) = find::open(model, false)?;
        let tokenizer = self.tokenizer_of(&checkpoint)?;
        let mut model =
            Scored::load(&mut checkpoint, self.settings).with_context(|| format!("cannot load `{name}`"))?;
        let windows = text_windows(&tokenizer, self.text, model.window, self.chunks)?;
        let mut other = match against {
            None => None,
            Some(against) => {
                let (mut checkpoint, against) = find::open(Some(against), false)?;
                let other =
                    Scored::load(&mut checkpoint, self.settings).with_context(|| format!("cannot load `{against}`"))?;
                let tokenizer = self.tokenizer_of(&checkpoint)?;
                let found = text_windows(&tokenizer, self.text, model.window, self.chunks);
                if other.vocab_size != model.vocab_size || !found.is_ok_and(|found| found == windows) {
                    bail!("`{name}` and `{against}` have different vocabularies: their predictions cannot be compared");
                }
                let distance =
                    Distance { name: against, losses: Mean::default(), divergences: Mean::default(), agreed: 0 };
                Some((other, distance))
            }
        };
        let progress = ProgressBar::new(windows.len() as u64).with_style(
            ProgressStyle::with_template("{bar:30} {pos}/{len} windows, {eta} left, {msg}").expect("a valid template"),
        );
        let mut losses = Mean::default();
        for tokens in &windows {
            let first_scored = tokens.len() / 2;
            let positions = first_scored..tokens.len() - 1;
            model.start(&tokens[..first_scored])?;
            if let Some((other, _)) = &mut other {
                other.start(&tokens[..first_scored])?;
            }
            for start in positions.clone().step_by(ROWS) {
                let rows = start..(start + ROWS).min(positions.end);
                let logits = model.rows(tokens, rows.clone())?;
                let mut theirs = match &mut other {
                    Some((other, distance)) => Some((other.rows(tokens, rows.clone())?, distance)),
                    None => None,
                };
                let vocab_size = logits.len() / rows.len();
                for (index, position) in rows.enumerate() {
                    let of_row = index * vocab_size..(index + 1) * vocab_size;
                    let logits = &logits[of_row.clone()];
                    let next = tokens[position + 1] as usize;
                    let log_sum = log_sum_exp(logits)
                        .with_context(|| format!("a logit of the token after position {position} is not finite"))?;
                    losses.add(log_sum - f64::from(logits[next]));
                    if let Some((theirs, distance)) = &mut theirs {
                        let theirs = &theirs[of_row];
                        let their_log_sum = log_sum_exp(theirs).with_context(|| {
                            format!("a logit of the other model at position {position} is not finite")
                        })?;
                        distance.losses.add(their_log_sum - f64::from(theirs[next]));
                        distance.divergences.add(divergence(theirs, their_log_sum, logits, log_sum));
                        let likeliest = RowSampling::default();
                        distance.agreed += u64::from(choose(theirs, &likeliest) == choose(logits, &likeliest));
                    }
                }
            }
            progress.set_message(format!("perplexity {:.4}", losses.mean().exp()));
            progress.inc(1);
        }
        progress.finish_and_clear();
        let (window, windows) = (model.window, windows.len());
        let against = other.map(|(_, distance)| distance);
        Ok(Scores { name, format: model.format, device: model.device, window, windows, losses, against })
    }

    fn tokenizer_of(&self, checkpoint: &Checkpoint) -> Result<Tokenizer> {
        load_tokenizer(checkpoint.tokenizer.clone(), self.settings.allow_unknown_patterns)
    }
}

impl Scores {
    /// All figures.
    pub(crate) fn as_json(&self) -> Json {
        let against = self.against.as_ref().map(|against| {
            let (perplexity, error) = against.losses.perplexity();
            json!({
                "model": against.name, "perplexity": perplexity, "perplexity_error": error,
                "kl_divergence": against.divergences.mean(), "kl_divergence_error": against.divergences.standard_error(),
                "same_likeliest": against.agreement(),
            })
        });
        let (perplexity, error) = self.losses.perplexity();
        json!({
            "model": self.name, "format": self.format, "device": self.device, "ctx_size": self.window,
            "windows": self.windows, "tokens_scored": self.losses.count,
            "perplexity": perplexity, "perplexity_error": error, "nll": self.losses.mean(), "against": against,
        })
    }

    /// The figures, a line each.
    pub(crate) fn as_text(&self) -> Result<String> {
        let mut out = String::new();
        let (perplexity, error) = self.losses.perplexity();
        let (scored, windows, window) = (self.losses.count, self.windows, self.window);
        writeln!(out, "model        {} ({}), on {}", self.name, self.format, self.device)?;
        writeln!(out, "text         {scored} tokens scored, in {windows} windows of {window}")?;
        writeln!(out, "perplexity   {perplexity:.4} ± {error:.4}")?;
        if let Some(against) = &self.against {
            let (mean, error) = (against.divergences.mean(), against.divergences.standard_error());
            writeln!(out, "divergence   {mean:.6} ± {error:.6} from {}", against.name)?;
            writeln!(out, "agreement    {:.2} % of likeliest tokens", 100.0 * against.agreement())?;
            writeln!(out, "its own      {:.4} ± {:.4}", against.losses.perplexity().0, against.losses.perplexity().1)?;
        }
        Ok(out)
    }
}

/// A model whose logits are asked for.
struct Scored {
    executable: Box<dyn Executable>,
    device: String,
    format: String,
    window: usize,
    vocab_size: usize,
    table: Vec<u32>,
    input: StepInput,
}

impl Scored {
    fn load(checkpoint: &mut Checkpoint, settings: &ModelSettings) -> Result<Self> {
        check_head(checkpoint.has_head, "the model")?;
        let (plan, backend, weights) = load_weights(checkpoint, settings)?;
        let window = settings.cache.ctx_size.unwrap_or(WINDOW.min(plan.context_len));
        if window < 4 || window > plan.context_len {
            bail!("--ctx-size {window}: expected 4 to {}, which the model was made for", plan.context_len);
        }
        let format = kv_format_of(settings.cache.format, &weights);
        let kv = KvLayout { format, block_len: KV_BLOCK_LEN, num_blocks: window.div_ceil(KV_BLOCK_LEN) };
        let largest = StepShape { tokens: window, sequences: 1, outputs: ROWS };
        check_fits(&*backend, &plan, &weights, &kv, largest, &smaller_context)?;
        let (device, format) = (backend.device().description.clone(), main_format(&weights).to_string());
        let vocab_size = plan.vocab_size;
        let table = (0..kv.num_blocks as u32).collect();
        let executable = backend.load(Arc::new(plan), weights, kv)?;
        Ok(Self { executable, device, format, window, vocab_size, table, input: StepInput::default() })
    }

    /// Computes the beginning of a window, of which nothing is scored.
    fn start(&mut self, tokens: &[u32]) -> Result<()> {
        self.step(tokens, 0..tokens.len(), tokens.len() - 1).map(drop)
    }

    /// The logits at `rows` of the window, (rows, vocab_size), once those before are computed.
    fn rows(&mut self, tokens: &[u32], rows: Range<usize>) -> Result<&[f32]> {
        self.step(tokens, rows, 0)
    }

    fn step(&mut self, tokens: &[u32], rows: Range<usize>, first_output: usize) -> Result<&[f32]> {
        self.input.clear();
        let len = rows.len();
        self.input.push_sequence(&tokens[rows.clone()], rows.start, &self.table[..rows.end.div_ceil(KV_BLOCK_LEN)]);
        self.input.output_rows.extend(first_output as u32..len as u32);
        Ok(self.executable.replay(&self.input)?)
    }
}

/// ln Σ exp(logit); `None` where a logit is not finite.
fn log_sum_exp(logits: &[f32]) -> Option<f64> {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    let log_sum = f64::from(max) + sum.ln();
    (log_sum.is_finite() && logits.iter().all(|logit| logit.is_finite())).then_some(log_sum)
}

/// Σ p · (ln p - ln q), p being `theirs` and q `ours`, each with its [`log_sum_exp`].
fn divergence(theirs: &[f32], their_log_sum: f64, ours: &[f32], our_log_sum: f64) -> f64 {
    let terms = theirs.iter().zip(ours).map(|(&theirs, &ours)| {
        let (p, q) = (f64::from(theirs) - their_log_sum, f64::from(ours) - our_log_sum);
        p.exp() * (p - q)
    });
    terms.sum()
}

/// A mean and its standard error (Welford).
#[derive(Default)]
struct Mean {
    count: u64,
    mean: f64,
    squares: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    fn mean(&self) -> f64 {
        self.mean
    }

    /// exp(mean), and the error of it that a small change of the exponent has.
    fn perplexity(&self) -> (f64, f64) {
        let perplexity = self.mean.exp();
        (perplexity, perplexity * self.standard_error())
    }

    fn standard_error(&self) -> f64 {
        let count = self.count as f64;
        if self.count < 2 { 0.0 } else { (self.squares / (count - 1.0) / count).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_errors_are_the_textbook_ones() {
        let mut mean = Mean::default();
        [1.0, 2.0, 3.0, 6.0].into_iter().for_each(|value| mean.add(value));
        assert_eq!(mean.mean(), 3.0);
        // Squares of differences 4 + 1 + 0 + 9, over 3 and over 4.
        assert!((mean.standard_error() - (14.0f64 / 12.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn divergence_is_zero_from_itself_and_known_for_two_coins() {
        let coin = |p: f64| [p.ln() as f32 + 7.0, (1.0 - p).ln() as f32 + 7.0];
        let of = |p: f64, q: f64| {
            let (p, q) = (coin(p), coin(q));
            divergence(&p, log_sum_exp(&p).unwrap(), &q, log_sum_exp(&q).unwrap())
        };
        assert!(of(0.3, 0.3).abs() < 1e-9);
        let expected = 0.5 * (0.5f64 / 0.25).ln() + 0.5 * (0.5f64 / 0.75).ln();
        assert!((of(0.5, 0.25) - expected).abs() < 1e-6);
        assert!(log_sum_exp(&[0.0, f32::NAN]).is_none() && log_sum_exp(&[0.0, f32::INFINITY]).is_none());
    }
}
