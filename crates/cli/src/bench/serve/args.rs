//! The flags of `bench serve`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use super::timings::Goal;
use crate::bench::workload::Lengths;

/// Requests of a measurement with few clients.
const NUM_PROMPTS: usize = 100;
/// Times between arrivals beyond this are a burst of all, and then nothing for longer than anybody waits.
const BURSTINESS_MIN: f64 = 0.01;

/// Put load on a server of OpenAI's interface, and measure what its clients see
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// The server; HOTMETAL_API_KEY or OPENAI_API_KEY holds its key, if it wants one
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(super) base_url: String,

    /// Start a `hotmetal serve` for the measurement, of random weights in the exact shapes of this model, and end it
    #[arg(long, value_name = "NAME", conflicts_with = "base_url")]
    pub(super) shape: Option<String>,

    /// Format of the matrices of --shape, as for `bench` [default: q8_0]
    #[arg(long, value_name = "FORMAT", requires = "shape")]
    pub(super) format: Option<String>,

    /// Flags of that `hotmetal serve`, behind `--`, such as `-- --device cuda --parallel 64`; without any it has its
    /// defaults
    #[arg(last = true, value_name = "FLAG", requires = "shape")]
    pub(super) server_flags: Vec<String>,

    /// The model's name [default: the first that the server names]
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,

    /// The route that is asked
    #[arg(long, value_enum, default_value_t = Endpoint::Completions)]
    pub(super) endpoint: Endpoint,

    /// Requests [default: 100, or four for each of --max-concurrency if that is more]
    #[arg(long, short = 'n', value_name = "N")]
    num_prompts: Option<usize>,

    /// Requests that arrive in a second, at random (a Poisson process) [default: all at once]
    #[arg(long, value_name = "R")]
    pub(super) request_rate: Option<f64>,

    /// Requests under way at a time; several numbers, such as 1,64,256, are measured one after the other [default: no
    /// bound]
    #[arg(long, aliases = ["concurrency", "clients"], value_name = "N", value_delimiter = ',')]
    max_concurrency: Vec<usize>,

    /// How evenly: the shape of the gamma distribution of the times between arrivals; below 1 they come in bursts, and
    /// more is more even
    #[arg(long, value_name = "SHAPE", default_value_t = 1.0, requires = "request_rate")]
    pub(super) burstiness: f64,

    /// Words of a prompt: N, LEAST-MOST, or lognormal:MEDIAN:SIGMA, with :MOST or without; the server counts its tokens
    #[arg(long, alias = "random-input-len", value_name = "LENGTH", default_value = "128")]
    pub(super) input_len: Lengths,

    /// Tokens of an answer, in the same words
    #[arg(long, alias = "random-output-len", value_name = "LENGTH", default_value = "64")]
    pub(super) output_len: Lengths,

    /// Take prompts from a file, chosen at random: objects with `prompt` and `output_len`, or ShareGPT's, one a line or
    /// in a list; where it says how long an answer is, --output-len does not
    #[arg(long, alias = "dataset-path", value_name = "FILE", conflicts_with_all = ["input_len", "range_ratio"])]
    pub(super) dataset: Option<PathBuf>,

    /// Lengths of one N are uniform, from (1 - R) to (1 + R) of those
    #[arg(long, alias = "random-range-ratio", value_name = "R", default_value_t = 0.0)]
    pub(super) range_ratio: f64,

    /// Words that prompts begin with, before their own
    #[arg(long, alias = "random-prefix-len", value_name = "N", default_value_t = 0)]
    pub(super) prefix_len: usize,

    /// So many different beginnings, one of which each prompt has
    #[arg(long, value_name = "N", default_value_t = 1, requires = "prefix_len")]
    pub(super) num_prefixes: usize,

    /// Of arrivals, lengths, words and sampling
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Of sampling
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(super) temperature: f32,

    /// Let answers end where the model ends them; otherwise the server is told not to (`ignore_eos`)
    #[arg(long)]
    pub(super) allow_eos: bool,

    /// What a good request keeps to, in milliseconds: `ttft:200 tpot:50 e2el:5000`
    #[arg(long, value_name = "WHAT:MS", num_args = 1..)]
    pub(super) goodput: Vec<Goal>,

    /// How the result is printed
    #[arg(long, short = 'o', value_enum, default_value_t = OutputFormat::Md)]
    pub(super) output: OutputFormat,

    /// Write the result as a page with plots, too
    #[arg(long, value_name = "OUT.html")]
    pub(super) report: Option<PathBuf>,
}

/// One measurement of those that the flags ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// Requests.
    pub(super) num_prompts: usize,
    /// Requests under way at a time.
    pub(super) max_concurrency: Option<usize>,
    /// Of arrivals, lengths, words and sampling: another one each, so that no server knows a prompt from before.
    pub(super) seed: u64,
}

/// The route that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Endpoint {
    Completions,
    Chat,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    Md,
    Json,
}

impl ServeArgs {
    /// What is measured, one after the other.
    pub(super) fn loads(&self) -> Vec<Load> {
        let counts = self.max_concurrency.iter().map(|&count| Some(count));
        let counts: Vec<_> = if self.max_concurrency.is_empty() { vec![None] } else { counts.collect() };
        let load = |(seed, max_concurrency): (u64, Option<usize>)| {
            let by_default = max_concurrency.map_or(0, |count| count.saturating_mul(4)).max(NUM_PROMPTS);
            let num_prompts = self.num_prompts.unwrap_or(by_default);
            Load { num_prompts, max_concurrency, seed: self.seed.wrapping_add(seed << 32) }
        };
        (0..).zip(counts).map(load).collect()
    }

    /// Refuses values that contradict each other or mean nothing.
    pub(super) fn check(&self) -> Result<()> {
        if self.request_rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
            bail!("--request-rate has to be above 0; without it all requests are sent at once");
        }
        if self.max_concurrency.contains(&0) || self.num_prompts == Some(0) || self.num_prefixes == 0 {
            bail!("--max-concurrency, --num-prompts and --num-prefixes have to be at least 1");
        }
        if self.report.is_some() && self.max_concurrency.len() > 1 {
            bail!("--report is a page of one measurement: give one --max-concurrency, or leave --report out");
        }
        if self.num_prefixes > 1 && self.prefix_len == 0 {
            bail!(
                "--num-prefixes {} makes beginnings of no words: --prefix-len says how long they are",
                self.num_prefixes
            );
        }
        if !(self.burstiness >= BURSTINESS_MIN && self.burstiness.is_finite()) {
            bail!("--burstiness is {}, expected at least {BURSTINESS_MIN}; 1 is a Poisson process", self.burstiness);
        }
        if !(0.0..1.0).contains(&self.range_ratio) {
            bail!("--range-ratio is {}, expected from 0 to below 1", self.range_ratio);
        }
        let is_spread = [self.input_len, self.output_len].iter().all(|lengths| !matches!(lengths, Lengths::About(_)));
        if self.range_ratio > 0.0 && is_spread {
            bail!("--range-ratio is about lengths of one number, and --input-len and --output-len are spread already");
        }
        Ok(())
    }
}
