//! The parameters of the sampler, with their ranges.

use plan::sampling::{RowSampling, share};

use super::{History, rng};
use crate::EngineError;

/// Most entries of a logit bias.
const LOGIT_BIAS_MAX: usize = 1024;
/// Most alternatives that log-probabilities are given for.
const TOP_LOGPROBS_MAX: usize = 20;
/// Most sequence breakers of DRY, and the most tokens of one.
const BREAKERS_MAX: usize = 4096;
const BREAKER_LEN_MAX: usize = 64;

/// How the next token is chosen. The default is the model's own distribution: temperature 1, everything else off.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// What the logits are divided by, 0 to 100; 0 takes the likeliest token.
    pub temperature: f32,
    /// Keep the k likeliest; 0 keeps all.
    pub top_k: usize,
    /// Keep the likeliest whose probabilities sum to p, above 0 and up to 1; 1 keeps all.
    pub top_p: f32,
    /// Keep those at least p times as likely as the likeliest, 0 to 1; 0 keeps all.
    pub min_p: f32,
    /// Keep the most typical whose probabilities sum to p, above 0 and up to 1; 1 keeps all.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the last `repeat_last_n` of prompt and text, 0.01
    /// to 100; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens generated within the last `repeat_last_n`, -2 to 2; 0 is off. The prompt
    /// does not count, as in the OpenAI interface.
    pub presence_penalty: f32,
    /// Subtracted as often as the token was generated within the last `repeat_last_n`, -2 to 2; 0 is off.
    pub frequency_penalty: f32,
    /// Tokens that these three penalties look back on; none = all, 0 = off.
    pub repeat_last_n: Option<usize>,
    /// Keep those whose logits are within so many standard deviations of the largest, up to 100; 0 and -1 keep all.
    pub top_n_sigma: f32,
    /// A penalty on going on with a repetition.
    pub dry: Dry,
    /// Exclude top choices.
    pub xtc: Xtc,
    /// A temperature that follows the candidates.
    pub dynatemp: Dynatemp,
    /// A text that is as surprising all the time, in place of the filters.
    pub mirostat: Mirostat,
    /// Added to the logits of these tokens, -100 to 100; -inf bans a token. Each id once.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random choices: the same seed gives the same text.
    pub seed: u64,
    /// Return log-probabilities: of the chosen token and of so many alternatives, up to 20.
    pub logprobs: Option<usize>,
    /// Whether these are of what the token was drawn from, behind all steps, and not of the model's own distribution.
    pub logprobs_after_steps: bool,
    /// The chain. A step that is left out must have its parameters at their neutral values.
    pub order: Vec<SamplerStep>,
}

/// DRY: a token that would lengthen a repetition of `allowed_length` or more tokens to length + 1 is made less likely
/// by multiplier · base^(length - allowed_length).
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// 0 to 100; 0 is off.
    pub multiplier: f32,
    /// 1 to 100.
    pub base: f32,
    /// Repeated tokens that go unpunished, at least 1.
    pub allowed_length: usize,
    /// Tokens looked back on, of prompt and text; none = all, 0 = off.
    pub last_n: Option<usize>,
    /// Token sequences that a repetition does not reach across: line ends, quotes, the marks between speakers.
    pub sequence_breakers: Vec<Vec<u32>>,
}

/// XTC: with some probability, drops all tokens that are at least as likely as the threshold, but the least likely of
/// them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    /// How often the step acts, 0 to 1; 0 is off.
    pub probability: f32,
    /// 0 to 1; above 0.5 it can never act.
    pub threshold: f32,
}

/// Dynamic temperature: where all candidates are as likely, the temperature plus the range; where one is certain, the
/// temperature less the range, but not below 0; between these by the share^exponent that the entropy has of the largest
/// entropy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dynatemp {
    /// 0 to 100; 0 is off.
    pub range: f32,
    /// 0 to 100.
    pub exponent: f32,
}

/// Mirostat: instead of all steps but penalties, DRY and the temperature itself, leaves out what is too surprising for a
/// text whose surprise is to stay near a target. Each text has a bound of its own, which moves with each token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// 1 or 2; 0 is off.
    pub version: u8,
    /// The target in bits, 0 to 100.
    pub tau: f32,
    /// How fast the bound follows, 0 to 100.
    pub eta: f32,
}

/// A step of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SamplerStep {
    /// Repetition, presence and frequency penalties.
    Penalties,
    /// DRY.
    Dry,
    /// Top-n-sigma.
    TopNSigma,
    /// Top-k.
    TopK,
    /// Locally typical sampling.
    Typical,
    /// Top-p.
    TopP,
    /// Min-p.
    MinP,
    /// Exclude top choices.
    Xtc,
    /// Temperature.
    Temperature,
}

impl SamplerStep {
    /// All steps, in the default order (llama.cpp's).
    pub const ALL: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::Typical,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// The name that flags and messages use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::Typical => "typical_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
            Self::Temperature => "temperature",
        }
    }
}

/// The likeliest tokens, of which one is chosen, and those whose logits change before it is known which these are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head<'a> {
    /// Tokens that the first filter keeps.
    kept: usize,
    /// A bias is added to these.
    biased: &'a [(u32, f32)],
    /// Penalties look back on these, and change no others.
    window: &'a [u32],
}

impl Head<'_> {
    /// As many of the likeliest hold all that are kept, whichever of the changed were among them.
    pub(super) fn len(&self) -> usize {
        self.kept.saturating_add(self.biased.len()).saturating_add(self.window.len())
    }

    /// The tokens whose logits may change.
    pub(super) fn changed(&self) -> impl Iterator<Item = u32> {
        self.biased.iter().map(|&(id, _)| id).chain(self.window.iter().copied())
    }
}

/// What a chain begins with that any token may survive.
#[derive(Clone, Copy, Debug)]
pub(super) enum WholeVocabulary<'a> {
    /// A draw from all; nothing comes before it but the temperature.
    Draw,
    /// Top-p of all. Then come these steps.
    TopP(&'a [SamplerStep]),
    /// Min-p of all. Then come these steps.
    MinP(&'a [SamplerStep]),
}

/// Whether so many alternatives may be asked for.
pub(crate) fn check_top_logprobs(name: &'static str, count: Option<usize>) -> Result<(), EngineError> {
    match count.filter(|&count| count > TOP_LOGPROBS_MAX) {
        Some(count) => Err(EngineError::parameter(name, count, format!("at most {TOP_LOGPROBS_MAX}"))),
        None => Ok(()),
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: Some(64),
            top_n_sigma: 0.0,
            dry: Dry::default(),
            xtc: Xtc { probability: 0.0, threshold: 0.1 },
            dynatemp: Dynatemp { range: 0.0, exponent: 1.0 },
            mirostat: Mirostat { version: 0, tau: 5.0, eta: 0.1 },
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
            logprobs_after_steps: false,
            order: SamplerStep::ALL.to_vec(),
        }
    }
}

impl Default for Dry {
    fn default() -> Self {
        Self { multiplier: 0.0, base: 1.75, allowed_length: 2, last_n: None, sequence_breakers: Vec::new() }
    }
}

impl SamplingParams {
    /// The likeliest token each time.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Brings the parameters of `step` to their neutral values, so that the chain may leave it out.
    pub fn switch_off(&mut self, step: SamplerStep) {
        let neutral = Self::default();
        match step {
            SamplerStep::Penalties => {
                self.repetition_penalty = neutral.repetition_penalty;
                self.presence_penalty = neutral.presence_penalty;
                self.frequency_penalty = neutral.frequency_penalty;
            }
            SamplerStep::Dry => self.dry.multiplier = neutral.dry.multiplier,
            SamplerStep::TopNSigma => self.top_n_sigma = neutral.top_n_sigma,
            SamplerStep::TopK => self.top_k = neutral.top_k,
            SamplerStep::Typical => self.typical_p = neutral.typical_p,
            SamplerStep::TopP => self.top_p = neutral.top_p,
            SamplerStep::MinP => self.min_p = neutral.min_p,
            SamplerStep::Xtc => self.xtc.probability = neutral.xtc.probability,
            SamplerStep::Temperature => {
                self.temperature = neutral.temperature;
                self.dynatemp.range = neutral.dynatemp.range;
            }
        }
    }

    /// Whether the likeliest of those that are left is the choice, at a temperature that is 0 whatever they are.
    pub(super) fn takes_likeliest(&self) -> bool {
        self.temperature == 0.0 && !self.has_dynatemp()
    }

    /// Whether the temperature follows the candidates. With mirostat it is one number, as in llama.cpp.
    pub(super) fn has_dynatemp(&self) -> bool {
        self.dynatemp.range > 0.0 && !self.has_mirostat()
    }

    /// Whether mirostat stands in the place of the filters.
    pub(super) fn has_mirostat(&self) -> bool {
        self.mirostat.version != 0
    }

    /// Whether `step` is run: with mirostat, those are not that leave candidates out.
    pub(super) fn runs(&self, step: SamplerStep) -> bool {
        !self.has_mirostat() || matches!(step, SamplerStep::Penalties | SamplerStep::Dry | SamplerStep::Temperature)
    }

    /// Whether the likeliest token is the choice, whatever the other steps do: top-n-sigma, top-k, top-p and min-p always
    /// keep it.
    pub(super) fn is_plain_greedy(&self) -> bool {
        self.takes_likeliest()
            && self.logit_bias.is_empty()
            && [SamplerStep::Penalties, SamplerStep::Dry, SamplerStep::Typical, SamplerStep::Xtc]
                .iter()
                .all(|&step| self.is_neutral(step))
    }

    /// Whether a device that knows nothing but the likeliest token can choose.
    pub(crate) fn is_likeliest(&self) -> bool {
        self.is_plain_greedy() && self.logprobs.is_none()
    }

    /// Whether a device can choose, which knows no penalties, DRY, top-n-sigma, typical sampling, XTC, dynamic temperature,
    /// mirostat, biases and log-probabilities, and filters in the default order alone.
    pub(crate) fn is_for_device(&self) -> bool {
        const STEPS: [SamplerStep; 4] =
            [SamplerStep::TopK, SamplerStep::TopP, SamplerStep::MinP, SamplerStep::Temperature];
        let mut steps = STEPS.iter();
        // Each of those that do something comes behind the one before.
        let mut active = self.order.iter().filter(|&&step| !self.is_neutral(step));
        let in_order = active.all(|step| steps.any(|known| known == step));
        self.is_likeliest()
            || (self.temperature > 0.0
                && !self.has_dynatemp()
                && !self.has_mirostat()
                && in_order
                && self.logit_bias.is_empty()
                && self.logprobs.is_none())
    }

    /// How a device chooses the `index`-th token of a completion, as the sampler would, where it can.
    pub(crate) fn of_device(&self, completion: usize, index: usize) -> RowSampling {
        if self.is_likeliest() {
            return RowSampling::default();
        }
        RowSampling {
            temperature: self.temperature,
            // More than there are tokens keeps all.
            top_k: u32::try_from(self.top_k).unwrap_or(0),
            top_p: share(self.top_p),
            min_p_ln: self.min_p.ln(),
            pick: rng::draws(self.seed, completion, index).pick,
        }
    }

    /// What a choice depends on, where a filter keeps a fixed number of the likeliest and nothing but biases and penalties
    /// comes before it.
    pub(super) fn head<'a>(&'a self, history: History<'a>) -> Option<Head<'a>> {
        let mut window: &[u32] = &[];
        let mut widen = |last_n| {
            let other = history.window(last_n);
            window = if other.len() > window.len() { other } else { window };
        };
        let mut only_likeliest = false;
        if self.has_mirostat() && !self.takes_likeliest() {
            return None;
        }
        for &step in self.order.iter().filter(|&&step| self.runs(step) && !self.is_neutral(step)) {
            match step {
                SamplerStep::Penalties if !only_likeliest => widen(self.repeat_last_n),
                SamplerStep::Dry if !only_likeliest => widen(self.dry.last_n),
                SamplerStep::TopK if !only_likeliest => {
                    return Some(Head { kept: self.top_k, biased: &self.logit_bias, window });
                }
                // Whom else these keep is no matter where the likeliest is taken, unless a later step looks at them.
                SamplerStep::TopNSigma | SamplerStep::TopK | SamplerStep::TopP | SamplerStep::MinP
                    if self.takes_likeliest() =>
                {
                    only_likeliest = true;
                }
                _ => return None,
            }
        }
        self.takes_likeliest().then_some(Head { kept: 1, biased: &self.logit_bias, window })
    }

    /// What is done with the whole vocabulary, where it is one of the simple things and no single logit is changed before.
    pub(super) fn whole_vocabulary(&self) -> Option<WholeVocabulary<'_>> {
        if self.takes_likeliest() || self.has_mirostat() || !self.logit_bias.is_empty() {
            return None;
        }
        let mut active = self.order.iter().enumerate().filter(|&(_, &step)| !self.is_neutral(step));
        let (index, first) = match active.next() {
            None => return Some(WholeVocabulary::Draw),
            Some((index, &first)) => (index, first),
        };
        let left = &self.order[index + 1..];
        match first {
            SamplerStep::Temperature if active.next().is_none() && !self.has_dynatemp() => Some(WholeVocabulary::Draw),
            SamplerStep::TopP => Some(WholeVocabulary::TopP(left)),
            SamplerStep::MinP => Some(WholeVocabulary::MinP(left)),
            _ => None,
        }
    }

    /// Whether `step` does nothing with these parameters.
    fn is_neutral(&self, step: SamplerStep) -> bool {
        match step {
            SamplerStep::Penalties => {
                self.repeat_last_n == Some(0)
                    || (self.repetition_penalty == 1.0 && self.presence_penalty == 0.0 && self.frequency_penalty == 0.0)
            }
            SamplerStep::Dry => self.dry.multiplier == 0.0 || self.dry.last_n == Some(0),
            SamplerStep::TopNSigma => self.top_n_sigma <= 0.0,
            SamplerStep::TopK => self.top_k == 0,
            SamplerStep::Typical => self.typical_p == 1.0,
            SamplerStep::TopP => self.top_p == 1.0,
            SamplerStep::MinP => self.min_p == 0.0,
            SamplerStep::Xtc => self.xtc.probability == 0.0,
            SamplerStep::Temperature => (self.temperature == 1.0 || self.temperature == 0.0) && !self.has_dynatemp(),
        }
    }

    /// Whether every parameter is in its range and every id in the vocabulary.
    pub fn check(&self, vocab_size: usize) -> Result<(), EngineError> {
        let within = |name, found: f32, least: f32, most: f32| {
            let expected = format!("from {least} to {most}");
            if (least..=most).contains(&found) { Ok(()) } else { Err(EngineError::parameter(name, found, expected)) }
        };
        let share = |name, found: f32| {
            let fits = found > 0.0 && found <= 1.0;
            if fits { Ok(()) } else { Err(EngineError::parameter(name, found, "above 0 and at most 1")) }
        };
        within("temperature", self.temperature, 0.0, 100.0)?;
        share("top_p", self.top_p)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        share("typical_p", self.typical_p)?;
        within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        within("xtc_probability", self.xtc.probability, 0.0, 1.0)?;
        within("xtc_threshold", self.xtc.threshold, 0.0, 1.0)?;
        within("top_n_sigma", self.top_n_sigma, -1.0, 100.0)?;
        within("dynatemp_range", self.dynatemp.range, 0.0, 100.0)?;
        within("dynatemp_exponent", self.dynatemp.exponent, 0.0, 100.0)?;
        within("mirostat_tau", self.mirostat.tau, 0.0, 100.0)?;
        within("mirostat_eta", self.mirostat.eta, 0.0, 100.0)?;
        if self.mirostat.version > 2 {
            return Err(EngineError::parameter("mirostat", self.mirostat.version, "1 or 2, or 0, which is off"));
        }
        check_top_logprobs("top_logprobs", self.logprobs)?;
        self.check_dry(vocab_size)?;
        self.check_logit_bias(vocab_size)?;
        self.check_order()
    }

    fn check_dry(&self, vocab_size: usize) -> Result<(), EngineError> {
        let Dry { multiplier, base, allowed_length, sequence_breakers, .. } = &self.dry;
        if !(0.0..=100.0).contains(multiplier) {
            return Err(EngineError::parameter("dry_multiplier", multiplier, "from 0 to 100"));
        }
        if !(1.0..=100.0).contains(base) {
            return Err(EngineError::parameter("dry_base", base, "from 1 to 100"));
        }
        if *allowed_length == 0 {
            return Err(EngineError::parameter("dry_allowed_length", 0, "at least 1"));
        }
        if sequence_breakers.len() > BREAKERS_MAX {
            let found = format!("a list of {}", sequence_breakers.len());
            return Err(EngineError::parameter("dry_sequence_breakers", found, format!("at most {BREAKERS_MAX}")));
        }
        for breaker in sequence_breakers {
            if breaker.is_empty() || breaker.len() > BREAKER_LEN_MAX {
                let found = format!("one of {} tokens", breaker.len());
                let expected = format!("of 1 to {BREAKER_LEN_MAX} tokens each");
                return Err(EngineError::parameter("dry_sequence_breakers", found, expected));
            }
            if let Some(&id) = breaker.iter().find(|&&id| id as usize >= vocab_size) {
                return Err(EngineError::UnknownToken { what: "dry_sequence_breakers", id, vocab_size });
            }
        }
        Ok(())
    }

    fn check_logit_bias(&self, vocab_size: usize) -> Result<(), EngineError> {
        if self.logit_bias.len() > LOGIT_BIAS_MAX {
            let found = format!("a list of {}", self.logit_bias.len());
            return Err(EngineError::parameter("logit_bias", found, format!("at most {LOGIT_BIAS_MAX} entries")));
        }
        let mut seen = std::collections::HashSet::new();
        for &(id, bias) in &self.logit_bias {
            if id as usize >= vocab_size {
                return Err(EngineError::UnknownToken { what: "logit_bias", id, vocab_size });
            }
            if !(-100.0..=100.0).contains(&bias) && bias != f32::NEG_INFINITY {
                let found = format!("{bias} for token {id}");
                return Err(EngineError::parameter("logit_bias", found, "from -100 to 100, or -inf to ban a token"));
            }
            if !seen.insert(id) {
                return Err(EngineError::parameter("logit_bias", format!("given twice for token {id}"), "given once"));
            }
        }
        Ok(())
    }

    fn check_order(&self) -> Result<(), EngineError> {
        for (index, step) in self.order.iter().enumerate() {
            if self.order[..index].contains(step) {
                let found = format!("a list with {} twice", step.name());
                return Err(EngineError::parameter("samplers", found, "a list with each step once"));
            }
        }
        for step in SamplerStep::ALL {
            if !self.order.contains(&step) && !self.is_neutral(step) {
                let found = format!("a list without {}", step.name());
                let expected = format!("one with it, or {} at its neutral value", step.name());
                return Err(EngineError::parameter("samplers", found, expected));
            }
        }
        Ok(())
    }
}
