//! Flags that say how the next token is chosen. A flag that is absent leaves the model's own default
//! (`generation_config.json`), and where that is silent, ours.

use clap::Args;
use engine::SamplerStep;

/// Sampling flags; the names are llama.cpp's, with the OpenAI spellings as aliases.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Seed of the random choices; the same seed gives the same text [default: random, and reported]
    #[arg(long, short = 's', value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Randomness of the choice; 0 always takes the likeliest token
    #[arg(long = "temp", alias = "temperature", value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,

    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,

    /// Keep the likeliest tokens whose probabilities sum to P; 1 keeps all
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,

    /// Keep tokens at least P times as likely as the likeliest; 0 keeps all
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,

    /// Locally typical sampling, mass P; 1 keeps all
    #[arg(long = "typical", alias = "typical-p", value_name = "P", allow_negative_numbers = true)]
    pub(crate) typical_p: Option<f32>,

    /// Divide (or multiply, when negative) the logits of tokens seen before; 1 is off
    #[arg(long, alias = "repetition-penalty", value_name = "F", allow_negative_numbers = true)]
    pub(crate) repeat_penalty: Option<f32>,

    /// Tokens that the penalties look back on; 0 is off [default: -1, the whole context]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) repeat_last_n: Option<i64>,

    /// Subtract F from the logits of tokens seen before
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,

    /// Subtract F from the logits of tokens for each time they were seen
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,

    /// DRY: penalty on continuing a repeated sequence; 0 is off
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub(crate) dry_multiplier: Option<f32>,

    /// DRY: growth of the penalty with each repeated token
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub(crate) dry_base: Option<f32>,

    /// DRY: repeated tokens that go unpunished
    #[arg(long, value_name = "N")]
    pub(crate) dry_allowed_length: Option<usize>,

    /// DRY: tokens that it looks back on; 0 is off [default: -1, the whole context]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) dry_penalty_last_n: Option<i64>,

    /// DRY: text that ends a repetition; may be given several times [default: newline, ':', '"', '*']
    #[arg(long, value_name = "TEXT")]
    pub(crate) dry_sequence_breaker: Vec<String>,

    /// XTC: probability of dropping the likeliest tokens; 0 is off
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) xtc_probability: Option<f32>,

    /// XTC: tokens above this probability can be dropped, but for the last of them
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) xtc_threshold: Option<f32>,

    /// Keep tokens whose logits are within N standard deviations of the largest; 0 and -1 keep all
    #[arg(long = "top-nsigma", alias = "top-n-sigma", value_name = "N", allow_negative_numbers = true)]
    pub(crate) top_n_sigma: Option<f32>,

    /// Let the temperature follow the entropy of the tokens that are left, up and down by R; 0 is off
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub(crate) dynatemp_range: Option<f32>,

    /// Exponent of the share of the largest entropy that the dynamic temperature follows [default: 1]
    #[arg(long = "dynatemp-exp", alias = "dynatemp-exponent", value_name = "E", allow_negative_numbers = true)]
    pub(crate) dynatemp_exponent: Option<f32>,

    /// Mirostat 1 or 2: keep the surprise of the text near a target, in place of the filters; 0 is off
    #[arg(long, value_name = "N")]
    pub(crate) mirostat: Option<u8>,

    /// Mirostat: how fast it follows the error of a token [default: 0.1]
    #[arg(long = "mirostat-lr", alias = "mirostat-eta", value_name = "F", allow_negative_numbers = true)]
    pub(crate) mirostat_eta: Option<f32>,

    /// Mirostat: the target, in bits [default: 5]
    #[arg(long = "mirostat-ent", alias = "mirostat-tau", value_name = "F", allow_negative_numbers = true)]
    pub(crate) mirostat_tau: Option<f32>,

    /// Add a bias to a token's logit, as ID=BIAS (`15043=-1.5`, `15043=-inf` bans it); may be given several times
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_logit_bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,

    /// The order of the samplers, with semicolons between them, as in llama.cpp; one that is left out does nothing
    /// [default: penalties, dry, top_n_sigma, top_k, typical_p, top_p, min_p, xtc, temperature]
    #[arg(long, value_name = "LIST", value_parser = parse_samplers)]
    pub(crate) samplers: Option<SamplerOrder>,
}

/// The samplers that do something, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SamplerOrder(pub(crate) Vec<SamplerStep>);

impl SamplingArgs {
    /// The flags that were given and that mirostat stands in the place of.
    pub(crate) fn replaced_by_mirostat(&self) -> Vec<&'static str> {
        let asks = |value: Option<f32>, nothing: f32| value.is_some_and(|value| value != nothing);
        let all = [
            ("--top-nsigma", self.top_n_sigma.is_some_and(|limit| limit > 0.0)),
            ("--top-k", self.top_k.is_some_and(|k| k > 0)),
            ("--typical", asks(self.typical_p, 1.0)),
            ("--top-p", asks(self.top_p, 1.0)),
            ("--min-p", asks(self.min_p, 0.0)),
            ("--xtc-probability", asks(self.xtc_probability, 0.0)),
            ("--dynatemp-range", asks(self.dynatemp_range, 0.0)),
        ];
        all.into_iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| flag).collect()
    }
}

/// Names as in `samplers` of a request, or llama.cpp's other ones.
fn parse_samplers(text: &str) -> Result<SamplerOrder, String> {
    let mut order = Vec::new();
    for name in text.split(';').map(str::trim).filter(|name| !name.is_empty()) {
        let own = match name.replace('-', "_").as_str() {
            "typ" | "typ_p" | "typical" => "typical_p".to_owned(),
            "nucleus" => "top_p".to_owned(),
            "temp" => "temperature".to_owned(),
            "top_nsigma" => "top_n_sigma".to_owned(),
            own => own.to_owned(),
        };
        let step = SamplerStep::ALL.into_iter().find(|step| step.name() == own).ok_or_else(|| {
            let known = SamplerStep::ALL.map(SamplerStep::name).join(", ");
            format!("there is no sampler `{name}`; there are {known}")
        })?;
        if order.contains(&step) {
            return Err(format!("`{name}` is named twice"));
        }
        order.push(step);
    }
    Ok(SamplerOrder(order))
}

/// `ID=BIAS`, or llama.cpp's `ID+BIAS` and `ID-BIAS`.
fn parse_logit_bias(text: &str) -> Result<(u32, f32), String> {
    let malformed = || format!("expected ID=BIAS such as 15043=-1.5, found `{text}`");
    let split = text.find(['=', '+', '-']).ok_or_else(malformed)?;
    let (id, bias) = text.split_at(split);
    let bias = bias.strip_prefix('=').unwrap_or(bias);
    match (id.parse(), bias.parse::<f32>()) {
        (Ok(id), Ok(bias)) if !bias.is_nan() => Ok((id, bias)),
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_mirostat_replaces_are_those_that_ask_for_something() {
        let args = SamplingArgs { top_k: Some(0), top_p: Some(0.9), min_p: Some(0.0), ..SamplingArgs::default() };
        assert_eq!(args.replaced_by_mirostat(), ["--top-p"]);
        let args = SamplingArgs { top_n_sigma: Some(-1.0), dynatemp_range: Some(0.5), ..args };
        assert_eq!(args.replaced_by_mirostat(), ["--top-p", "--dynatemp-range"]);
    }

    #[test]
    fn samplers_have_our_names_and_llama_cpps() {
        let order = parse_samplers("top-k; typ_p;temp").unwrap();
        assert_eq!(order.0, [SamplerStep::TopK, SamplerStep::Typical, SamplerStep::Temperature]);
        assert_eq!(parse_samplers("").unwrap().0, []);
        for (bad, because) in [("top_k;tfs_z", "`tfs_z`"), ("typ;typical", "named twice")] {
            assert!(parse_samplers(bad).unwrap_err().contains(because), "{bad}");
        }
    }

    #[test]
    fn logit_bias_takes_both_dialects() {
        assert_eq!(parse_logit_bias("5=1.5"), Ok((5, 1.5)));
        assert_eq!(parse_logit_bias("5=-1.5"), Ok((5, -1.5)));
        assert_eq!(parse_logit_bias("5+2"), Ok((5, 2.0)));
        assert_eq!(parse_logit_bias("5-inf"), Ok((5, f32::NEG_INFINITY)));
        for bad in ["", "5", "x=1", "5=", "5=nan", "-5=1"] {
            assert!(parse_logit_bias(bad).is_err(), "{bad}");
        }
    }
}
