//! From prompt ids to text: one request through the engine, streamed, with stop strings and timings.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use engine::{Dry, Dynatemp, Failure, FinishReason, Mirostat, Request, SamplerStep, SamplingParams, StopStrings, Xtc};
use serde_json::Value;
use tokenizer::{ParseSpecial, StreamDecoder};

use crate::model::settings::ModelSettings;
use crate::model::{self, Model};
use crate::output::note;
use crate::sampling_args::SamplingArgs;
use crate::{interrupt, units};

/// Where a repetition does not reach across, unless `--dry-sequence-breaker` says otherwise: llama.cpp's list.
const DRY_SEQUENCE_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// How to generate.
#[derive(Clone, Debug)]
pub(crate) struct GenerationOptions {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    /// Tokens that end the text besides the model's own.
    pub(crate) end_ids: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) seed: u64,
    sampling: SamplingParams,
}

impl GenerationOptions {
    /// What the flags say, on top of what the model's `generation_config.json` says, on top of our defaults.
    pub(crate) fn new(model: &Model, args: &SamplingArgs) -> Result<Self> {
        let seed = args.seed.unwrap_or_else(server::random_seed);
        let sampling = SamplingParams { seed, ..sampling_params(model, args)? };
        Ok(Self { max_tokens: None, stop: Vec::new(), end_ids: Vec::new(), ignore_eos: false, seed, sampling })
    }

    /// The likeliest token each time, whatever the model's defaults are.
    fn greedy(max_tokens: usize) -> Self {
        let sampling = SamplingParams::greedy();
        let (max_tokens, seed) = (Some(max_tokens), sampling.seed);
        Self { max_tokens, stop: Vec::new(), end_ids: Vec::new(), ignore_eos: true, seed, sampling }
    }
}

/// What a conversation can set.
const SETTINGS: &[&str] = &[
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "top_n_sigma",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "seed",
    "max_tokens",
    "stop",
];

impl GenerationOptions {
    /// Sets a parameter by its name in requests, or by llama.cpp's or Ollama's.
    ///
    /// # Errors
    /// A name that none has, with those that there are, and a value out of range; then nothing has changed.
    pub(crate) fn set(&mut self, name: &str, value: &str, vocab_size: usize) -> Result<()> {
        fn parsed<T: std::str::FromStr>(name: &str, value: &str) -> Result<T> {
            value.parse().ok().with_context(|| format!("{name}: expected a number, found `{value}`"))
        }
        let mut new = self.clone();
        let sampling = &mut new.sampling;
        match name {
            "temperature" | "temp" => sampling.temperature = parsed(name, value)?,
            "top_k" => sampling.top_k = parsed(name, value)?,
            "top_p" => sampling.top_p = parsed(name, value)?,
            "min_p" => sampling.min_p = parsed(name, value)?,
            "typical_p" | "typical" => sampling.typical_p = parsed(name, value)?,
            "repeat_penalty" | "repetition_penalty" => sampling.repetition_penalty = parsed(name, value)?,
            "repeat_last_n" => {
                sampling.repeat_last_n = if value == "-1" { None } else { Some(parsed(name, value)?) };
            }
            "presence_penalty" => sampling.presence_penalty = parsed(name, value)?,
            "frequency_penalty" => sampling.frequency_penalty = parsed(name, value)?,
            "top_n_sigma" => sampling.top_n_sigma = parsed(name, value)?,
            "dynatemp_range" => sampling.dynatemp.range = parsed(name, value)?,
            "dynatemp_exponent" => sampling.dynatemp.exponent = parsed(name, value)?,
            "mirostat" => sampling.mirostat.version = parsed(name, value)?,
            "mirostat_tau" => sampling.mirostat.tau = parsed(name, value)?,
            "mirostat_eta" => sampling.mirostat.eta = parsed(name, value)?,
            "seed" => new.seed = parsed(name, value)?,
            "max_tokens" | "num_predict" | "n_predict" => {
                new.max_tokens = if ["-1", "-2"].contains(&value) { None } else { Some(parsed(name, value)?) };
            }
            "stop" => new.stop = value.split_whitespace().map(str::to_owned).collect(),
            "num_ctx" | "ctx_size" => bail!("the context is chosen at the start: `hotmetal run --ctx-size {value}`"),
            _ => bail!("there is no parameter `{name}`; there are {}", SETTINGS.join(", ")),
        }
        new.sampling.seed = new.seed;
        new.sampling.check(vocab_size)?;
        *self = new;
        Ok(())
    }
}

/// The parameters, but for the seed.
pub(crate) fn sampling_params(model: &Model, args: &SamplingArgs) -> Result<SamplingParams> {
    let from_model = |key: &str| -> Result<Option<f32>> {
        match model.generation_config.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number as f32)),
                None => bail!("generation_config.json: `{key}` is {value}, expected a number"),
            },
        }
    };
    // A model that recommends anything recommends the whole of it; ours is for models that are silent.
    let recommended = ["temperature", "top_k", "top_p", "min_p"].map(|key| model.generation_config.get(key));
    let silent = recommended.iter().all(Option::is_none);
    let default = |ours: f32, neutral: f32| if silent { ours } else { neutral };
    let whole = SamplingParams::default();
    let top_k = match from_model("top_k")? {
        Some(k) if k >= 0.0 => k as usize,
        _ => default(40.0, 0.0) as usize,
    };
    let replaced = args.replaced_by_mirostat();
    if args.mirostat.is_some_and(|version| version > 0) && !replaced.is_empty() {
        note(&format!(
            "without effect: {}, because --mirostat stands in the place of the filters",
            replaced.join(", ")
        ));
    }
    let breakers = match args.dry_sequence_breaker.as_slice() {
        [] => DRY_SEQUENCE_BREAKERS.map(str::to_owned).to_vec(),
        given => given.to_vec(),
    };
    let mut sequence_breakers = Vec::new();
    for text in &breakers {
        let ids = model.tokenizer.encode(text, ParseSpecial::No)?;
        if !ids.is_empty() {
            sequence_breakers.push(ids);
        }
    }
    let look_back = |flag: &str, given: Option<i64>| -> Result<Option<usize>> {
        match given {
            None | Some(-1) => Ok(None),
            Some(n) => {
                Ok(Some(usize::try_from(n).ok().with_context(|| format!("{flag} is {n}, expected -1 or more"))?))
            }
        }
    };
    let mut params = SamplingParams {
        temperature: args.temperature.or(from_model("temperature")?).unwrap_or(default(0.8, 1.0)),
        top_k: args.top_k.unwrap_or(top_k),
        top_p: args.top_p.or(from_model("top_p")?).unwrap_or(default(0.95, 1.0)),
        min_p: args.min_p.or(from_model("min_p")?).unwrap_or(default(0.05, 0.0)),
        typical_p: args.typical_p.or(from_model("typical_p")?).unwrap_or(whole.typical_p),
        repetition_penalty: args
            .repeat_penalty
            .or(from_model("repetition_penalty")?)
            .unwrap_or(whole.repetition_penalty),
        presence_penalty: args.presence_penalty.unwrap_or(whole.presence_penalty),
        frequency_penalty: args.frequency_penalty.unwrap_or(whole.frequency_penalty),
        repeat_last_n: look_back("--repeat-last-n", args.repeat_last_n)?,
        dry: Dry {
            multiplier: args.dry_multiplier.unwrap_or(whole.dry.multiplier),
            base: args.dry_base.unwrap_or(whole.dry.base),
            allowed_length: args.dry_allowed_length.unwrap_or(whole.dry.allowed_length),
            last_n: look_back("--dry-penalty-last-n", args.dry_penalty_last_n)?,
            sequence_breakers,
        },
        xtc: Xtc {
            probability: args.xtc_probability.unwrap_or(whole.xtc.probability),
            threshold: args.xtc_threshold.unwrap_or(whole.xtc.threshold),
        },
        top_n_sigma: args.top_n_sigma.unwrap_or(whole.top_n_sigma),
        dynatemp: Dynatemp {
            range: args.dynatemp_range.unwrap_or(whole.dynatemp.range),
            exponent: args.dynatemp_exponent.unwrap_or(whole.dynatemp.exponent),
        },
        mirostat: Mirostat {
            version: args.mirostat.unwrap_or(whole.mirostat.version),
            tau: args.mirostat_tau.unwrap_or(whole.mirostat.tau),
            eta: args.mirostat_eta.unwrap_or(whole.mirostat.eta),
        },
        logit_bias: args.logit_bias.clone(),
        ..whole
    };
    if let Some(order) = &args.samplers {
        let left_out: Vec<_> = SamplerStep::ALL.into_iter().filter(|step| !order.0.contains(step)).collect();
        left_out.into_iter().for_each(|step| params.switch_off(step));
        params.order.clone_from(&order.0);
    }
    Ok(params)
}

/// What came of a prompt.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    /// The generated text, without what ended it.
    pub(crate) text: String,
    /// The generated ids, with what ended them.
    pub(crate) token_ids: Vec<u32>,
    pub(crate) prompt_token_ids: Vec<u32>,
    /// Tokens of the prompt that were in the cache already.
    pub(crate) cached_tokens: usize,
    /// `stop`, `length`, `context`, `cancelled` or `error`.
    pub(crate) finish_reason: &'static str,
    /// What failed, when something did.
    pub(crate) error: Option<String>,
    pub(crate) seed: u64,
    /// The sampling parameters that were really used.
    pub(crate) sampling: Value,
    /// From the submission to the first token.
    pub(crate) first_token_time: Duration,
    /// The steps that computed the prompt: they end with the first token.
    pub(crate) prompt_time: Duration,
    /// The steps after those.
    pub(crate) decode_time: Duration,
}

impl Generation {
    /// Tokens of the prompt that were computed.
    pub(crate) fn computed_prompt_tokens(&self) -> usize {
        self.prompt_token_ids.len() - self.cached_tokens.min(self.prompt_token_ids.len())
    }

    /// Tokens that took a step of their own: the first comes out of the prompt's last step.
    pub(crate) fn decode_steps(&self) -> usize {
        self.token_ids.len().saturating_sub(1)
    }

    /// `load 12 ms · prompt 14 tokens in 3.1 ms (4516 tok/s) · 128 tokens in 80 ms (1590 tok/s) · stop · seed 42`.
    pub(crate) fn statistics(&self, load_time: Duration) -> String {
        let rate = |n, d| units::per_second(n, d).map(|r| format!(" ({r:.0} tok/s)")).unwrap_or_default();
        let cached = match self.cached_tokens {
            0 => String::new(),
            n => format!(" + {n} cached"),
        };
        format!(
            "load {} · prompt {} tokens{cached} in {}{} · {} tokens in {}{} · {} · seed {}",
            units::duration(load_time),
            self.computed_prompt_tokens(),
            units::duration(self.prompt_time),
            rate(self.computed_prompt_tokens(), self.prompt_time),
            self.token_ids.len(),
            units::duration(self.decode_time),
            rate(self.decode_steps(), self.decode_time),
            self.finish_reason,
            self.seed,
        )
    }
}

impl Model {
    /// Generates from `prompt_ids`; `on_text` gets the text as it is decided, never half a character nor a part of a
    /// stop string. Ctrl-C ends it early.
    pub(crate) fn generate(
        &mut self,
        prompt_ids: Vec<u32>,
        options: &GenerationOptions,
        on_text: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Generation> {
        let mut request =
            Request::new(prompt_ids.clone(), SamplingParams { seed: options.seed, ..options.sampling.clone() });
        request.max_tokens = options.max_tokens;
        request.ignore_eos = options.ignore_eos;
        request.stop_token_ids.clone_from(&options.end_ids);
        let mut stop_strings = StopStrings::new(&options.stop)?;
        let mut generation = Generation {
            text: String::new(),
            token_ids: Vec::new(),
            prompt_token_ids: prompt_ids,
            cached_tokens: 0,
            finish_reason: "cancelled",
            error: None,
            seed: options.seed,
            sampling: server::describe_sampling(&request.sampling),
            first_token_time: Duration::ZERO,
            prompt_time: Duration::ZERO,
            decode_time: Duration::ZERO,
        };
        let mut decoder = StreamDecoder::new(self.tokenizer.clone(), true);
        let mut emit = |generation: &mut Generation, text: &str| {
            generation.text.push_str(text);
            on_text(text)
        };
        let begun = Instant::now();
        let id = self.engine.submit(request)?;
        let mut stopped = false;
        let mut outputs = Vec::new();
        'steps: while self.engine.has_work() {
            if interrupt::requested() {
                break;
            }
            self.engine.step_into(&mut outputs);
            for output in outputs.drain(..) {
                generation.cached_tokens = output.usage.cached_tokens;
                if let Some(token) = &output.token {
                    if generation.token_ids.is_empty() {
                        generation.prompt_time = begun.elapsed();
                        generation.first_token_time = generation.prompt_time;
                    }
                    generation.token_ids.push(token.id);
                    let ends_text = matches!(output.finish, Some(FinishReason::Stop { .. }));
                    let piece = if ends_text { String::new() } else { decoder.push(token.id) };
                    let piece = stop_strings.push(&piece);
                    if let Err(error) = emit(&mut generation, piece.text) {
                        self.engine.cancel(id);
                        return Err(error);
                    }
                    if piece.stopped.is_some() {
                        stopped = true;
                        break 'steps;
                    }
                }
                if let Some(finish) = output.finish {
                    (generation.finish_reason, generation.error) = describe(&finish);
                }
            }
        }
        self.engine.cancel(id);
        generation.decode_time = begun.elapsed() - generation.prompt_time;
        if stopped {
            generation.finish_reason = "stop";
        } else {
            let last = stop_strings.push(&decoder.finish());
            emit(&mut generation, last.text)?;
            if last.stopped.is_some() {
                generation.finish_reason = "stop";
            } else {
                emit(&mut generation, stop_strings.finish())?;
            }
        }
        Ok(generation)
    }
}

fn describe(finish: &FinishReason) -> (&'static str, Option<String>) {
    match finish {
        FinishReason::Stop { .. } => ("stop", None),
        FinishReason::Length => ("length", None),
        FinishReason::Context => ("context", None),
        FinishReason::Cancelled => ("cancelled", None),
        FinishReason::Error(failure) => ("error", Some(explained(failure))),
    }
}

/// A failure, and what finds its cause.
fn explained(failure: &Failure) -> String {
    match failure {
        Failure::Numeric { .. } | Failure::NumericState { .. } => {
            format!("{failure}; --check-tensors looks for a weight that is the cause")
        }
        Failure::NoTokenLeft | Failure::Grammar(_) | Failure::Backend(_) => failure.to_string(),
    }
}

/// Generates greedily from the built-in model and compares with what Hugging Face transformers generated. They may part
/// only at a token that the reference itself was unsure of. Returns how many were equal.
pub(crate) fn compare_with_golden(golden: &str, settings: &ModelSettings) -> Result<usize> {
    /// Logits closer than this may change places between correct programs (the reference computes in F32).
    const UNSURE_MARGIN: f64 = 1e-2;
    #[derive(serde::Deserialize)]
    struct Golden {
        prompts: Vec<Prompt>,
    }
    #[derive(serde::Deserialize)]
    struct Prompt {
        prompt_token_ids: Vec<u32>,
        greedy_token_ids: Vec<u32>,
        greedy_margins: Vec<f64>,
    }
    let golden: Golden = serde_json::from_str(golden).context("the golden file is malformed")?;
    let mut model = model::load(None, settings)?;
    let mut equal = 0;
    for Prompt { prompt_token_ids, greedy_token_ids, greedy_margins } in golden.prompts {
        let options = GenerationOptions::greedy(greedy_token_ids.len());
        let found = model.generate(prompt_token_ids, &options, &mut |_| Ok(()))?.token_ids;
        let differs = (0..greedy_token_ids.len()).find(|&at| found.get(at) != Some(&greedy_token_ids[at]));
        if let Some(at) = differs
            && greedy_margins.get(at).is_none_or(|&margin| margin > UNSURE_MARGIN)
        {
            bail!("token {at} is {:?}, but transformers chose {}", found.get(at), greedy_token_ids[at]);
        }
        equal += differs.unwrap_or(greedy_token_ids.len());
    }
    Ok(equal)
}
