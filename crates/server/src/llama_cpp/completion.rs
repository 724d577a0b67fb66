//! `/completion`: texts that go on, in llama.cpp's own form.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};
use tokenizer::{Around, ParseSpecial};

use super::text::{self, NativeText, TextForm};
use super::{COMMON, samplers};
use crate::abandoned;
use crate::app::{App, Serving};
use crate::error::ApiError;
use crate::fields::{Field, Fields, applied, hint, only, wrong};
use crate::generation::{Plan, prepared};
use crate::grammar;
use crate::prompts;
use crate::sampling::{self, PROMPTS_MAX, Settings, described};
use crate::security::KeyNumber;
use crate::token_rules;

/// Why other names of a limit have no effect.
const LIMIT: &str = "`n_predict` says it";

/// Fields of this route alone. Programs that talk to many servers send the fields of all: with the values that ask for
/// nothing, they are taken.
pub(crate) const FIELDS: &[Field] = &[
    applied("prompt"),
    applied("n"),
    applied("n_cmpl"),
    applied("repetition_penalty"),
    applied("stop_token_ids"),
    applied("include_stop_str_in_output"),
    applied("skip_special_tokens"),
    applied("parse_special"),
    hint("max_new_tokens", LIMIT),
    hint("num_predict", LIMIT),
    hint("typical", "`typical_p` says it"),
    hint("smoothing_curve", "without `smoothing_factor` it says nothing"),
    hint("sse_ping_interval", "the server says itself when a stream shows that it lives"),
    only("smoothing_factor", is_zero, "this sampler is not here"),
    only("nsigma", is_off, "`top_n_sigma` says it"),
    only("tfs_z", is_one, "this sampler is not here; `typical_p` or `min_p` come close"),
    only("tfs", is_one, "this sampler is not here; `typical_p` or `min_p` come close"),
    only("top_a", is_zero, "this sampler is not here; `min_p` comes close"),
    only("epsilon_cutoff", is_zero, "this sampler is not here; `min_p` comes close"),
    only("eta_cutoff", is_zero, "this sampler is not here; `min_p` comes close"),
    only("penalty_alpha", is_zero, "contrastive search is not here"),
    only("no_repeat_ngram_size", is_zero, "`dry_multiplier` keeps a text from repeating itself"),
    only("guidance_scale", is_one, "a text is generated from one prompt"),
    only("negative_prompt", |value| value == "", "a text is generated from one prompt"),
    only("num_beams", is_one, "texts are sampled"),
    only("length_penalty", is_one, "it belongs to beam search"),
    only("lora", |value| value.as_array().is_some_and(Vec::is_empty), "adapters are not loaded here"),
];

const KNOWN: &[&[Field]] = &[sampling::COMMON, COMMON, grammar::FIELDS, token_rules::FIELDS, FIELDS];

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

/// llama.cpp's sampler with a limit in deviations does nothing below 0, and its clients write 0 for that, too.
fn is_off(value: &Value) -> bool {
    value.as_f64().is_some_and(|limit| limit <= 0.0)
}

/// Continues prompts.
pub(crate) async fn completion(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (serving, (mut plan, prompts, texts), notes, memory) = prepared(&app, key, request, prepare).await?;
    plan.memory = Some(memory);
    notes.report(&mut plan.settings.labels);
    text::respond(&app, serving, prompts, plan, texts).await
}

type Prepared = (Plan, Vec<Vec<u32>>, Vec<NativeText>);

fn prepare(mut body: Value, serving: &Arc<Serving>, key: u64) -> Result<Prepared, ApiError> {
    if let Some(body) = body.as_object_mut() {
        samplers::leave_out(body);
        count(body)?;
        if let Some(bias) = body.get_mut("logit_bias").filter(|bias| !bias.is_null()) {
            *bias = logit_bias(bias, serving)?;
        }
    }
    let mut fields = Fields::new(body, KNOWN)?;
    let mut settings = Settings::take(&mut fields, serving, key)?;
    let special = prompts::parse_special(&mut fields)?;
    let prompts = take_prompts(fields.required("prompt")?, special, serving)?;
    let (form, max_tokens) = TextForm::take(&mut fields)?;
    fields.finish(KNOWN)?;
    settings.check_length(max_tokens)?;
    form.ask(&mut settings, serving)?;
    settings.compile(serving)?;
    let (form, described) = (Arc::new(form), described(&settings, serving.most_tokens(max_tokens)));
    let each = prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt, settings.num_completions));
    let texts = each.map(|prompt| NativeText::new(serving, &form, prompt.clone(), false, described.clone())).collect();
    let plan = Plan {
        settings,
        max_tokens,
        // A prompt without text behind it puts the prompt into the cache.
        prompt_logprobs: (max_tokens == Some(0)).then_some(0),
        prompt_field: "prompt",
        max_tokens_field: "n_predict",
        memory: None,
    };
    Ok((plan, prompts, texts))
}

/// Gives the number of texts of each prompt its other name.
fn count(body: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(count) = body.get("n_cmpl").filter(|count| !count.is_null()).cloned() else { return Ok(()) };
    match body.get("n").filter(|other| !other.is_null()) {
        Some(other) if *other != count => Err(ApiError::invalid("n", "`n` is another name of `n_cmpl`")),
        _ if count.as_u64().is_none_or(|count| !(1..=1024).contains(&count)) => {
            Err(wrong("n_cmpl", &count, "a whole number from 1 to 1024"))
        }
        _ => {
            body.shift_remove("n_cmpl");
            body.insert("n".to_owned(), count);
            Ok(())
        }
    }
}

/// The biases of tokens, which may be named by a text, whose tokens then have it all: an object, or a list of pairs.
/// `false` bans a token.
fn logit_bias(given: &Value, serving: &Serving) -> Result<Value, ApiError> {
    let expected = "pairs of a token (an id or a text) and a number or false";
    let pairs: Vec<(Value, Value)> = match given {
        Value::Object(map) => map.iter().map(|(token, bias)| (token.as_str().into(), bias.clone())).collect(),
        Value::Array(pairs) => {
            let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
                Some([token, bias]) => Ok((token.clone(), bias.clone())),
                _ => Err(wrong("logit_bias", pair, expected)),
            };
            pairs.iter().map(pair).collect::<Result<_, _>>()?
        }
        other => return Err(wrong("logit_bias", other, format!("an object, or {expected}"))),
    };
    let mut biases = Map::new();
    for (token, bias) in pairs {
        let bias = match bias {
            Value::Bool(false) => json!(-100),
            Value::Number(_) => bias,
            other => return Err(wrong("logit_bias", &other, expected)),
        };
        let ids = match &token {
            Value::Number(id) => vec![id.to_string()],
            Value::String(text) if text.parse::<u32>().is_ok() => vec![text.clone()],
            Value::String(text) => {
                let ids = serving.tokenizer.encode(text, ParseSpecial::Yes)?;
                ids.iter().map(u32::to_string).collect()
            }
            other => return Err(wrong("logit_bias", other, expected)),
        };
        ids.into_iter().for_each(|id| drop(biases.insert(id, bias.clone())));
    }
    Ok(biases.into())
}

/// The prompts: one text, one list of ids and texts, or a list of either.
fn take_prompts(given: Value, special: ParseSpecial, serving: &Serving) -> Result<Vec<Vec<u32>>, ApiError> {
    const EXPECTED: &str = "a text, a list of token ids and texts, or a list of either";
    let several = match given {
        // Several texts are several prompts, and ids among them make one of all.
        Value::Array(items) if !items.is_empty() && !items.iter().any(Value::is_number) => items,
        Value::Array(items) if items.is_empty() => return Err(empty("prompt")),
        one => vec![one],
    };
    if several.len() > PROMPTS_MAX {
        let message = format!("`prompt` is a list of {}, at most {PROMPTS_MAX} are taken", several.len());
        return Err(ApiError::invalid("prompt", message));
    }
    let prompt = |given: Value| {
        abandoned::check()?;
        let ids = match given {
            Value::String(text) => encode(&text, special, Around::Prefix, serving)?,
            Value::Array(pieces) => mixed(pieces, special, serving)?,
            Value::Object(mut object) => {
                if object.get("multimodal_data").is_some_and(|data| data.as_array().is_none_or(|data| !data.is_empty()))
                {
                    let message = "this model takes text only";
                    return Err(ApiError::unsupported("prompt.multimodal_data", message));
                }
                match object.shift_remove("prompt_string") {
                    Some(Value::String(text)) => encode(&text, special, Around::Prefix, serving)?,
                    other => return Err(wrong("prompt.prompt_string", &other.unwrap_or_default(), "a text")),
                }
            }
            other => return Err(wrong("prompt", &other, EXPECTED)),
        };
        if ids.is_empty() { Err(empty("prompt")) } else { Ok(ids) }
    };
    several.into_iter().map(prompt).collect()
}

fn empty(name: &str) -> ApiError {
    ApiError::invalid(name, format!("`{name}` has no tokens, and the model needs at least one"))
}

fn encode(text: &str, special: ParseSpecial, around: Around, serving: &Serving) -> Result<Vec<u32>, ApiError> {
    let bounds = abandoned::bounds(serving.engine.config().context_len);
    let ids = serving.tokenizer.encode_within(text, special, around, &bounds);
    ids.map_err(|error| prompts::too_long(error, "prompt", "prompt", serving))
}

/// A prompt of ids and texts. What stands before every text stands before this one if it begins with a text.
fn mixed(pieces: Vec<Value>, special: ParseSpecial, serving: &Serving) -> Result<Vec<u32>, ApiError> {
    let bounds = abandoned::bounds(serving.engine.config().context_len);
    let mut ids = Vec::with_capacity(pieces.len());
    for (index, piece) in pieces.into_iter().enumerate() {
        match piece {
            Value::String(text) if index == 0 => ids = encode(&text, special, Around::Prefix, serving)?,
            Value::String(text) => {
                let inside = serving.tokenizer.encode_inside(&text, special, &bounds);
                ids.extend(inside.map_err(|error| prompts::too_long(error, "prompt", "prompt", serving))?);
            }
            id => match id.as_u64().and_then(|id| u32::try_from(id).ok()) {
                Some(id) => ids.push(id),
                None => return Err(wrong("prompt", &id, "token ids and texts")),
            },
        }
    }
    Ok(ids)
}
