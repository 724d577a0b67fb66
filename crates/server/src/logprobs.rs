//! Log-probabilities as OpenAI's two interfaces, llama.cpp's and vLLM's write them.

use engine::{TokenLogprob, TokenLogprobs};
use serde_json::{Map, Value, json};
use tokenizer::Tokenizer;

use crate::choice::PlacedToken;
use crate::error::ApiError;
use crate::fields::Fields;

/// A token as text: its bytes, with U+FFFD where they are part of a character only.
pub(crate) fn token_text(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(&tokenizer.token_bytes(id).unwrap_or_default()).into_owned()
}

/// `choices[].logprobs` of a chat completion.
pub(crate) fn chat(tokenizer: &Tokenizer, tokens: &[PlacedToken]) -> Value {
    let entry = |id: u32, logprob: f32| {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        json!({"token": String::from_utf8_lossy(&bytes), "logprob": logprob, "bytes": bytes})
    };
    let content: Vec<Value> = tokens
        .iter()
        .filter_map(|placed| {
            let TokenLogprobs { logprob, top } = placed.token.logprobs.as_ref()?;
            let top: Vec<Value> = top.iter().map(|top| entry(top.id, top.logprob)).collect();
            let mut entry = entry(placed.token.id, *logprob);
            entry["top_logprobs"] = top.into();
            Some(entry)
        })
        .collect();
    json!({"content": content, "refusal": null})
}

/// `completion_probabilities` of llama.cpp's own routes: log-probabilities, or probabilities behind all samplers.
pub(crate) fn native(tokenizer: &Tokenizer, tokens: &[PlacedToken], after_samplers: bool) -> Vec<Value> {
    let entry = |id: u32, logprob: f32| {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        let mut entry = json!({"id": id, "token": String::from_utf8_lossy(&bytes), "bytes": bytes});
        match after_samplers {
            true => entry["prob"] = json!(logprob.exp()),
            false => entry["logprob"] = json!(logprob),
        }
        entry
    };
    let token = |placed: &PlacedToken| {
        let TokenLogprobs { logprob, top } = placed.token.logprobs.as_ref()?;
        let mut token = entry(placed.token.id, *logprob);
        let list = if after_samplers { "top_probs" } else { "top_logprobs" };
        token[list] = top.iter().map(|top| entry(top.id, top.logprob)).collect();
        Some(token)
    };
    tokens.iter().filter_map(token).collect()
}

/// Takes vLLM's `prompt_logprobs`: how many alternatives to each token of the prompt are shown.
pub(crate) fn asked_of_prompt(fields: &mut Fields, stream: bool) -> Result<Option<usize>, ApiError> {
    let asked = fields.integer("prompt_logprobs", 0, 20)?.map(|count| count as usize);
    if asked.is_some() && stream {
        let message = "`prompt_logprobs` stand in a whole answer: send `stream`: false";
        return Err(ApiError::invalid("prompt_logprobs", message));
    }
    Ok(asked)
}

/// The log-probabilities of a prompt, as vLLM writes them.
pub(crate) struct Scored {
    ids: Vec<u32>,
    /// Of the tokens from the second on.
    logprobs: Vec<TokenLogprobs>,
}

impl Scored {
    /// Those of a prompt of which none is known yet.
    pub(crate) fn new(ids: &[u32]) -> Self {
        Self { ids: ids.to_vec(), logprobs: Vec::new() }
    }

    /// Takes those that come next.
    pub(crate) fn push(&mut self, logprobs: Vec<TokenLogprobs>) {
        self.logprobs.extend(logprobs);
    }

    /// A list over the tokens: nothing of the first, of each other one an object by token ids, which has the token itself
    /// and the likeliest. The rank of a token is known where it is among these.
    pub(crate) fn to_json(&self, tokenizer: &Tokenizer) -> Value {
        let entry = |id: u32, logprob: f32, rank: Option<usize>| json!({"logprob": logprob, "rank": rank, "decoded_token": token_text(tokenizer, id)});
        let token = |(&id, TokenLogprobs { logprob, top }): (&u32, &TokenLogprobs)| {
            let ranked = |(index, top): (usize, &TokenLogprob)| {
                (top.id.to_string(), entry(top.id, top.logprob, Some(index + 1)))
            };
            let mut map: Map<String, Value> = top.iter().enumerate().map(ranked).collect();
            map.entry(id.to_string()).or_insert_with(|| entry(id, *logprob, None));
            Value::Object(map)
        };
        let rest = self.ids.iter().skip(1).zip(&self.logprobs).map(token);
        std::iter::once(Value::Null).chain(rest).collect()
    }
}

/// `choices[].logprobs` of a completion: lists over tokens.
#[derive(Debug, Default)]
pub(crate) struct TextLogprobs {
    tokens: Vec<String>,
    logprobs: Vec<Option<f32>>,
    top: Vec<Value>,
    offsets: Vec<usize>,
}

impl TextLogprobs {
    /// Adds a token whose text begins after `offset` characters. The first of a prompt has no log-probability.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, id: u32, logprobs: Option<&TokenLogprobs>, offset: usize) {
        let text = token_text(tokenizer, id);
        let top = logprobs.filter(|logprobs| !logprobs.top.is_empty()).map(|logprobs| {
            // OpenAI's interface names the chosen token among the likeliest, whether it is one or not. Of tokens with one
            // text, the likelier stands for all.
            let chosen = TokenLogprob { id, logprob: logprobs.logprob };
            let mut map = Map::new();
            for TokenLogprob { id, logprob } in logprobs.top.iter().chain([&chosen]) {
                map.entry(token_text(tokenizer, *id)).or_insert_with(|| json!(logprob));
            }
            Value::Object(map)
        });
        self.tokens.push(text);
        self.logprobs.push(logprobs.map(|logprobs| logprobs.logprob));
        self.top.push(top.unwrap_or_default());
        self.offsets.push(offset);
    }

    pub(crate) fn into_json(self) -> Value {
        json!({
            "tokens": self.tokens, "token_logprobs": self.logprobs, "top_logprobs": self.top, "text_offset": self.offsets,
        })
    }
}
