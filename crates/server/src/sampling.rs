//! The fields that every generating route has: how tokens are chosen, when a text ends, how it is sent.

use std::sync::Arc;

use engine::{CacheDomain, Dry, Dynatemp, Grammar, Mirostat, Request, SamplerStep, SamplingParams, Xtc};
use serde_json::{Map, Value, json};
use tokenizer::{FimMarkers, ParseSpecial};

use crate::app::Serving;
use crate::choice::TextOptions;
use crate::error::ApiError;
use crate::fields::{Field, Fields, applied, hint, ignore, only, wrong};
use crate::grammar::Asked;
use crate::options::Keep;
use crate::prompts::TooLong;
use crate::quoting::shown;
use crate::slot_texts::SlotText;
use crate::token_rules::TokenRules;

/// `stream_options`.
pub(crate) const STREAM_OPTIONS: &[&[Field]] = &[&[
    applied("include_usage"),
    applied("continuous_usage_stats"),
    hint("include_obfuscation", "chunks are not padded"),
]];

/// Prompts of one request.
pub(crate) const PROMPTS_MAX: usize = 64;
/// Bytes of `user`, and of `metadata` as JSON.
const LABEL_BYTES_MAX: usize = 4096;

/// Fields of what mirostat stands in the place of, and the values with which they ask for nothing.
const WITHOUT_MIROSTAT: [(&str, f64); 7] = [
    ("top_n_sigma", 0.0),
    ("top_k", 0.0),
    ("typical_p", 1.0),
    ("top_p", 1.0),
    ("min_p", 0.0),
    ("xtc_probability", 0.0),
    ("dynatemp_range", 0.0),
];

/// What `top_p`: 0 is taken for.
const TOP_P_LEAST: f32 = 1e-6;

/// Fields of all generating routes, those of llama.cpp's own among them.
pub(crate) const COMMON: &[Field] = &[
    applied("model"),
    applied("stream"),
    applied("stop"),
    applied("ignore_eos"),
    applied("seed"),
    applied("temperature"),
    applied("top_p"),
    applied("top_k"),
    applied("min_p"),
    applied("typical_p"),
    applied("presence_penalty"),
    applied("frequency_penalty"),
    applied("repeat_penalty"),
    applied("repeat_last_n"),
    applied("dry_multiplier"),
    applied("dry_base"),
    applied("dry_allowed_length"),
    applied("dry_penalty_last_n"),
    applied("dry_sequence_breakers"),
    applied("xtc_probability"),
    applied("xtc_threshold"),
    applied("top_n_sigma"),
    applied("dynatemp_range"),
    applied("dynatemp_exponent"),
    applied("id_slot"),
    applied("n_keep"),
    applied("mirostat"),
    applied("mirostat_tau"),
    applied("mirostat_eta"),
    applied("samplers"),
    applied("logit_bias"),
    applied("priority"),
    applied("cache_salt"),
    applied("user"),
    applied("metadata"),
    hint("cache_prompt", "the prefix cache serves all; `cache_salt` keeps a prompt apart"),
];

/// Fields of the generating routes of OpenAI's interface, besides.
pub(crate) const FIELDS: &[Field] = &[
    applied("stream_options"),
    applied("n"),
    applied("stop_token_ids"),
    applied("include_stop_str_in_output"),
    applied("skip_special_tokens"),
    applied("return_token_ids"),
    applied("timings_per_token"),
    applied("return_progress"),
    applied("verbose"),
    applied("repetition_penalty"),
    only("best_of", |value| value == 1, "each text is sampled once and none is thrown away"),
    hint("store", "nothing is stored here"),
    hint("service_tier", "there is one tier"),
    hint("prompt_cache_key", "the prefix cache serves all prompts; `cache_salt` keeps a prompt apart"),
    hint("prompt_cache_retention", "the prefix cache keeps what it has room for"),
    hint("safety_identifier", "nobody is told who asks"),
    hint("client_metadata", "nothing is kept"),
    hint("include", "answers hold all that there is"),
    only("use_beam_search", |value| value == false, "texts are sampled"),
    only("length_penalty", |value| value == 1 || value == 1.0, "it belongs to beam search"),
    applied("truncate_prompt_tokens"),
];

/// What a request asks of the engine and of the text.
pub(crate) struct Settings {
    pub(crate) sampling: SamplingParams,
    pub(crate) text: TextOptions,
    pub(crate) num_completions: usize,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) return_token_ids: bool,
    /// Each chunk of the routes of OpenAI's interface has the times so far, as llama.cpp names them.
    pub(crate) times_tokens: bool,
    /// A stream of those routes says how far the prompt is.
    pub(crate) shows_progress: bool,
    /// An answer of those routes tells what llama.cpp's own route says of a text.
    pub(crate) is_verbose: bool,
    /// The slot, in llama.cpp's words, that the text is the last one of.
    pub(crate) slot: usize,
    /// Which tokens stay where the context is shifted, if the request says so.
    pub(crate) keep: Option<Keep>,
    /// `user` and `metadata`, given back.
    pub(crate) labels: Map<String, Value>,
    /// What the text is to keep to, until that is compiled.
    pub(crate) asked: Option<Asked>,
    pub(crate) grammar: Option<Arc<dyn Grammar>>,
    /// What holds for single tokens, besides the grammar.
    rules: TokenRules,
    /// Tokens that end the text besides the model's own, and are not reported.
    ends: Vec<u32>,
    pub(crate) ignore_eos: bool,
    caller: u64,
    priority: i8,
    cache_domain: CacheDomain,
}

impl Settings {
    /// Takes the shared fields. `key` is the number of the API key that was shown.
    pub(crate) fn take(fields: &mut Fields, serving: &Serving, key: u64) -> Result<Self, ApiError> {
        serving.check_model(fields.string("model")?.as_deref())?;
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let (include_usage, continuous_usage) = stream_options(fields, stream)?;
        let mut text = TextOptions {
            // Some clients write an empty text where they mean none.
            stop: fields.strings("stop")?.unwrap_or_default().into_iter().filter(|stop| !stop.is_empty()).collect(),
            stop_token_ids: fields.token_ids("stop_token_ids")?.unwrap_or_default(),
            include_stop: fields.boolean("include_stop_str_in_output")?.unwrap_or(false),
            list_end: false,
            skip_special: fields.boolean("skip_special_tokens")?.unwrap_or(true),
            reply: None,
            controls: Vec::new(),
            one_call: false,
            reasoning_max: None,
            checked: None,
        };
        let asked = Asked::take(fields)?;
        text.checked = asked.as_ref().and_then(Asked::checked);
        // Said before anything is computed, in the words of those that watch for them.
        engine::StopStrings::new(&text.stop)?;
        Ok(Self {
            text,
            num_completions: fields.integer("n", 1, 1024)?.map_or(1, |n| n as usize),
            stream,
            include_usage,
            continuous_usage,
            return_token_ids: fields.boolean("return_token_ids")?.unwrap_or(false),
            times_tokens: false,
            shows_progress: false,
            is_verbose: false,
            slot: slot(fields)?,
            keep: keep(fields, serving)?,
            labels: labels(fields)?,
            ignore_eos: match fields.boolean("ignore_eos")?.unwrap_or(false) {
                true if asked.is_some() => {
                    let message = "`ignore_eos` would let the text go on where its grammar has ended";
                    return Err(ApiError::invalid("ignore_eos", message));
                }
                ignore_eos => ignore_eos,
            },
            asked,
            grammar: None,
            rules: TokenRules::take(fields, serving)?,
            ends: Vec::new(),
            caller: key,
            priority: priority(fields)?,
            cache_domain: cache_domain(key, fields.string("cache_salt")?.as_deref()),
            sampling: sampling(fields, serving)?,
        })
    }

    /// What a slot remembers of a text with this prompt; nothing of one that is kept apart by a salt.
    pub(crate) fn slot_text(&self, prompt: &[u32]) -> Option<SlotText> {
        let &Self { slot, cache_domain: domain, .. } = self;
        (domain == CacheDomain(self.caller)).then(|| SlotText { slot, domain, tokens: prompt.to_vec() })
    }

    /// Takes whether the answer has llama.cpp's times, progress and details, on the routes of OpenAI's interface.
    pub(crate) fn take_times(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        self.times_tokens = fields.boolean("timings_per_token")?.unwrap_or(false);
        self.shows_progress = fields.boolean("return_progress")?.unwrap_or(false);
        self.is_verbose = fields.boolean("verbose")?.unwrap_or(false);
        Ok(())
    }

    /// Compiles what the text is to keep to, if it is.
    pub(crate) fn compile(&mut self, serving: &Serving) -> Result<(), ApiError> {
        if let Some(asked) = self.asked.take() {
            let (name, vocab_size) = (asked.name, serving.engine.config().vocab_size);
            self.grammar = Some(serving.grammars.compile(name, asked.grammar(), &serving.tokenizer, vocab_size)?);
        }
        Ok(())
    }

    /// That a text may be as long as `min_tokens` asks for, where it has at most `max_tokens`.
    pub(crate) fn check_length(&self, max_tokens: Option<usize>) -> Result<(), ApiError> {
        match (self.rules.min_tokens(), max_tokens) {
            (least, Some(most)) if least > most => Err(ApiError::invalid(
                "min_tokens",
                format!("`min_tokens` is {least}, and the text has at most {most} tokens"),
            )),
            _ => Ok(()),
        }
    }

    /// Ends the text at each token that marks a gap: none of them is part of what fills one.
    pub(crate) fn end_at(&mut self, markers: &FimMarkers) {
        if !self.ignore_eos {
            self.ends.extend(markers.ids());
        }
    }

    /// The engine's request for one prompt.
    pub(crate) fn request(&self, prompt: Vec<u32>, max_tokens: Option<usize>, scored: Option<usize>) -> Request {
        let stop_token_ids = [&*self.text.stop_token_ids, &*self.ends].concat();
        Request {
            max_tokens,
            prompt_logprobs: scored,
            reports_prompt: self.shows_progress && self.stream,
            grammar: self.rules.over(self.grammar.clone(), &stop_token_ids),
            stop_token_ids,
            ignore_eos: self.ignore_eos,
            num_completions: self.num_completions,
            // The keys take turns.
            caller: Some(self.caller),
            priority: self.priority,
            cache_domain: self.cache_domain,
            ..Request::new(prompt, self.sampling.clone())
        }
    }
}

/// Which tokens stay where the context is shifted, if it ever is.
fn keep(fields: &mut Fields, serving: &Serving) -> Result<Option<Keep>, ApiError> {
    let count = fields.integer("n_keep", -1, i64::from(u32::MAX))?;
    if count.is_some() && serving.context_shift.is_none() {
        ignore("n_keep");
        return Ok(None);
    }
    Ok(count.map(Keep::of))
}

/// Any place in the batch serves any text: a slot is no more than this number, and 0 where a request gives none, or leaves it to
/// the server by -1.
fn slot(fields: &mut Fields) -> Result<usize, ApiError> {
    let given = fields.integer("id_slot", -1, i64::from(u16::MAX))?;
    Ok(given.and_then(|id| id.try_into().ok()).unwrap_or(0))
}

/// `generation_settings` of an answer in llama.cpp's form.
pub(crate) fn described(settings: &Settings, max_tokens: Option<usize>) -> Value {
    let mut described = describe(&settings.sampling);
    for (name, value) in [
        ("seed", json!(settings.sampling.seed)),
        ("n_predict", max_tokens.map_or(json!(-1), |most| json!(most))),
        ("stop", json!(settings.text.stop)),
        ("ignore_eos", json!(settings.ignore_eos)),
        ("stream", json!(settings.stream)),
    ] {
        described[name] = value;
    }
    described
}

/// Whether a stream ends with its usage, and whether each chunk has it.
fn stream_options(fields: &mut Fields, stream: bool) -> Result<(bool, bool), ApiError> {
    let Some(options) = fields.take("stream_options") else { return Ok((false, false)) };
    if !stream {
        ignore("stream_options");
        return Ok((false, false));
    }
    let within = |error: ApiError| error.within("stream_options");
    let mut options = Fields::inside("stream_options", options, STREAM_OPTIONS)?;
    let include = options.boolean("include_usage").map_err(within)?.unwrap_or(false);
    let continuous = options.boolean("continuous_usage_stats").map_err(within)?.unwrap_or(false);
    if continuous && !include {
        ignore("stream_options.continuous_usage_stats");
    }
    Ok((include, include && continuous))
}

/// Takes `truncate_prompt_tokens`: a prompt keeps its last so many tokens, or as many as fit for -1.
pub(crate) fn too_long(fields: &mut Fields, serving: &Serving) -> Result<TooLong, ApiError> {
    let most = serving.engine.config().context_len.saturating_sub(1);
    let is_said = fields.has("truncate_prompt_tokens");
    Ok(match fields.token_limit("truncate_prompt_tokens", 1)? {
        Some(count) => TooLong::LosesBeginning(count),
        None if is_said => TooLong::LosesBeginning(most),
        None => TooLong::Refused,
    })
}

/// In vLLM's sense: lower goes first.
pub(crate) fn priority(fields: &mut Fields) -> Result<i8, ApiError> {
    Ok(fields.integer("priority", -127, 127)?.map_or(0, |priority| -(priority as i8)))
}

pub(crate) fn labels(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut labels = Map::new();
    labels.extend(fields.string("user")?.map(|user| ("user".to_owned(), user.into())));
    labels.extend(fields.object("metadata")?.map(|metadata| ("metadata".to_owned(), metadata.into())));
    for (name, value) in &labels {
        let bytes = value.to_string().len();
        if bytes > LABEL_BYTES_MAX {
            return Err(ApiError::invalid(
                name,
                format!("`{name}` has {bytes} bytes, at most {LABEL_BYTES_MAX} are kept"),
            ));
        }
    }
    Ok(labels)
}

/// Prompts of one key, and of one salt within it, share cached prefixes.
pub(crate) fn cache_domain(key: u64, salt: Option<&str>) -> CacheDomain {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let Some(salt) = salt else { return CacheDomain(key) };
    let mut hasher = DefaultHasher::new();
    (key, salt).hash(&mut hasher);
    // Out of the way of the keys' own numbers.
    CacheDomain(hasher.finish() | 1 << 63)
}

fn sampling(fields: &mut Fields, serving: &Serving) -> Result<SamplingParams, ApiError> {
    let defaults = serving.defaults.clone();
    let asks = |&(name, nothing): &(&'static str, f64)| {
        let said = fields.number_of(name)?;
        // A negative one is off, too, wherever 0 is.
        (said > 0.0 || nothing > 0.0).then_some(name).filter(|_| said != nothing)
    };
    let without_mirostat: Vec<&str> = WITHOUT_MIROSTAT.iter().filter_map(asks).collect();
    let (repetition_penalty, repetition_field) =
        match (fields.number("repetition_penalty")?, fields.number("repeat_penalty")?) {
            (Some(a), Some(b)) if a != b => {
                return Err(ApiError::invalid("repeat_penalty", "`repeat_penalty` contradicts `repetition_penalty`"));
            }
            (None, Some(penalty)) => (penalty, "repeat_penalty"),
            (penalty, _) => (penalty.unwrap_or(defaults.repetition_penalty), "repetition_penalty"),
        };
    let look_back = |found: Option<i64>, default| match found {
        None => default,
        Some(-1) => None,
        Some(count) => Some(count as usize),
    };
    let sampling = SamplingParams {
        temperature: fields.number("temperature")?.unwrap_or(defaults.temperature),
        // vLLM writes -1 where llama.cpp writes 0.
        top_k: fields.integer("top_k", -1, i64::from(u32::MAX))?.map_or(defaults.top_k, |k| k.max(0) as usize),
        // A mass of nothing keeps the likeliest token, which is what those who write 0 want.
        top_p: fields.number("top_p")?.map_or(defaults.top_p, |p| if p == 0.0 { TOP_P_LEAST } else { p }),
        min_p: fields.number("min_p")?.unwrap_or(defaults.min_p),
        typical_p: fields.number("typical_p")?.unwrap_or(defaults.typical_p),
        repetition_penalty,
        presence_penalty: fields.number("presence_penalty")?.unwrap_or(defaults.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty")?.unwrap_or(defaults.frequency_penalty),
        repeat_last_n: look_back(fields.integer("repeat_last_n", -1, i64::from(u32::MAX))?, defaults.repeat_last_n),
        dry: Dry {
            multiplier: fields.number("dry_multiplier")?.unwrap_or(defaults.dry.multiplier),
            base: fields.number("dry_base")?.unwrap_or(defaults.dry.base),
            allowed_length: fields.count("dry_allowed_length")?.unwrap_or(defaults.dry.allowed_length),
            last_n: look_back(fields.integer("dry_penalty_last_n", -1, i64::from(u32::MAX))?, defaults.dry.last_n),
            sequence_breakers: match fields.strings("dry_sequence_breakers")? {
                Some(texts) => sequence_breakers(&texts, serving)?,
                None => defaults.dry.sequence_breakers,
            },
        },
        xtc: Xtc {
            probability: fields.number("xtc_probability")?.unwrap_or(defaults.xtc.probability),
            threshold: fields.number("xtc_threshold")?.unwrap_or(defaults.xtc.threshold),
        },
        top_n_sigma: fields.number("top_n_sigma")?.unwrap_or(defaults.top_n_sigma),
        dynatemp: Dynatemp {
            range: fields.number("dynatemp_range")?.unwrap_or(defaults.dynatemp.range),
            exponent: fields.number("dynatemp_exponent")?.unwrap_or(defaults.dynatemp.exponent),
        },
        mirostat: Mirostat {
            version: fields.integer("mirostat", 0, 2)?.map_or(defaults.mirostat.version, |version| version as u8),
            tau: fields.number("mirostat_tau")?.unwrap_or(defaults.mirostat.tau),
            eta: fields.number("mirostat_eta")?.unwrap_or(defaults.mirostat.eta),
        },
        logit_bias: fields.object("logit_bias")?.map_or(Ok(defaults.logit_bias), logit_bias)?,
        // llama.cpp and LM Studio write -1 for one that nobody chose.
        seed: fields
            .integer("seed", -1, i64::MAX)?
            .and_then(|seed| u64::try_from(seed).ok())
            .or(serving.seed)
            .unwrap_or_else(random_seed),
        logprobs: None,
        logprobs_after_steps: false,
        order: fields.strings("samplers")?.map_or(Ok(defaults.order), |names| order(&names))?,
    };
    let checked = sampling.check(serving.engine.config().vocab_size);
    checked.map_err(|error| ApiError::from(error).with_param("repetition_penalty", repetition_field))?;
    if sampling.mirostat.version != 0 {
        without_mirostat.into_iter().for_each(ignore);
    }
    Ok(sampling)
}

fn sequence_breakers(texts: &[String], serving: &Serving) -> Result<Vec<Vec<u32>>, ApiError> {
    let encode = |text: &String| serving.tokenizer.encode(text, ParseSpecial::No);
    let breakers = texts.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    match breakers.iter().position(Vec::is_empty) {
        Some(index) => Err(ApiError::invalid(
            format!("dry_sequence_breakers[{index}]"),
            "a sequence breaker has to be a text of at least one token",
        )),
        None => Ok(breakers),
    }
}

/// `{"15043": -1.5}`; -100 bans a token, as in OpenAI's interface.
fn logit_bias(map: Map<String, Value>) -> Result<Vec<(u32, f32)>, ApiError> {
    let entry = |(id, bias): (String, Value)| {
        let malformed = || wrong("logit_bias", &json!(id), "token ids as keys and numbers as values");
        let bias = bias.as_f64().ok_or_else(malformed)? as f32;
        let id = id.parse().map_err(|_| malformed())?;
        Ok((id, if bias == -100.0 { f32::NEG_INFINITY } else { bias }))
    };
    map.into_iter().map(entry).collect()
}

fn order(names: &[String]) -> Result<Vec<SamplerStep>, ApiError> {
    let step = |name: &String| {
        let found = SamplerStep::ALL.into_iter().find(|step| step.name() == name);
        found.ok_or_else(|| {
            let known = SamplerStep::ALL.map(SamplerStep::name).join(", ");
            ApiError::invalid("samplers", format!("there is no sampler `{}`; there are: {known}", shown(name)))
        })
    };
    names.iter().map(step).collect()
}

/// A seed that nobody chose: the standard library's own randomness. 32 bits, so that it is easy to type.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() & 0xffff_ffff
}

/// Sampling parameters as answers and reports name them.
pub fn describe(sampling: &SamplingParams) -> Value {
    // As it was written: 0.7, where the f32 nearest to it has more digits than anybody asked for.
    let number = |value: f32| json!(value.to_string().parse::<f64>().unwrap_or(value.into()));
    let bias: Map<String, Value> = sampling
        .logit_bias
        .iter()
        .map(|&(id, bias)| (id.to_string(), if bias.is_finite() { number(bias) } else { json!(-100) }))
        .collect();
    json!({
        "temperature": number(sampling.temperature), "top_k": sampling.top_k, "top_p": number(sampling.top_p),
        "min_p": number(sampling.min_p), "typical_p": number(sampling.typical_p),
        "repetition_penalty": number(sampling.repetition_penalty),
        "presence_penalty": number(sampling.presence_penalty),
        "frequency_penalty": number(sampling.frequency_penalty), "repeat_last_n": sampling.repeat_last_n,
        "dry_multiplier": number(sampling.dry.multiplier), "dry_base": number(sampling.dry.base),
        "dry_allowed_length": sampling.dry.allowed_length, "dry_penalty_last_n": sampling.dry.last_n,
        "dry_sequence_breakers": sampling.dry.sequence_breakers,
        "xtc_probability": number(sampling.xtc.probability), "xtc_threshold": number(sampling.xtc.threshold),
        "top_n_sigma": number(sampling.top_n_sigma), "dynatemp_range": number(sampling.dynatemp.range),
        "dynatemp_exponent": number(sampling.dynatemp.exponent), "mirostat": sampling.mirostat.version,
        "mirostat_tau": number(sampling.mirostat.tau), "mirostat_eta": number(sampling.mirostat.eta),
        "logit_bias": bias,
        "samplers": sampling.order.iter().map(|step| step.name()).collect::<Vec<_>>(),
    })
}
