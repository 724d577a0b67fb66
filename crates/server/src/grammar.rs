//! Texts that keep to a grammar: JSON of a schema, a regular expression, a list of choices, a Lark grammar. The library
//! says which tokens may come next; what it cannot hold a text to is refused before anything is generated.

use std::fmt::{Debug, Formatter};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use engine::{Grammar, GrammarState, TokenSet};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use tokenizer::Tokenizer;

use crate::error::ApiError;
use crate::fields::{Field, Fields, applied, hint, wrong};

/// Bytes of a grammar, or of a schema as JSON.
const GRAMMAR_BYTES_MAX: usize = 64 << 10;

/// Fields that ask for a grammar; generating routes have them.
pub(crate) const FIELDS: &[Field] = &[applied("response_format"), applied("structured_outputs")];

/// Compiled grammars that are kept: a client asks for the same schema with each request.
const KEPT_MAX: usize = 64;

/// The vocabulary as grammars see it, made when the first is asked for, and those that were compiled last.
#[derive(Default)]
pub(crate) struct Grammars {
    /// Tokens that no text is written with, besides those that are special.
    controls: Vec<u32>,
    factory: OnceLock<Result<ParserFactory, String>>,
    /// By what they were made of; the one that was asked for last stands last.
    kept: Mutex<Vec<(String, Arc<Compiled>)>>,
}

impl Grammars {
    /// Of a model that writes something else than text with `controls`: a grammar asks for them by their ids, and the text that
    /// they have is written with others.
    pub(crate) fn new(controls: Vec<u32>) -> Self {
        Self { controls, ..Self::default() }
    }

    fn factory(&self, tokenizer: &Tokenizer, vocab_size: usize) -> Result<&ParserFactory, ApiError> {
        let made = self
            .factory
            .get_or_init(|| factory(tokenizer, vocab_size, &self.controls).map_err(|error| error.to_string()));
        made.as_ref().map_err(|error| {
            ApiError::unsupported(
                "response_format",
                format!("this model's vocabulary cannot be held to a grammar: {error}"),
            )
        })
    }

    /// Takes the fields that ask for a grammar; compiles it.
    pub(crate) fn take(
        &self,
        fields: &mut Fields,
        tokenizer: &Tokenizer,
        vocab_size: usize,
    ) -> Result<Option<Arc<dyn Grammar>>, ApiError> {
        let format = fields.take("response_format");
        let structured = fields.take("structured_outputs");
        let (name, wanted) = match (format, structured) {
            (Some(_), Some(_)) => {
                let message = "`structured_outputs` and `response_format` cannot both say what the text is";
                return Err(ApiError::invalid("structured_outputs", message));
            }
            (Some(format), None) => ("response_format", response_format(format)?),
            (None, Some(outputs)) => ("structured_outputs", Some(structured_outputs(outputs)?)),
            (None, None) => return Ok(None),
        };
        wanted.map(|wanted| self.compile(name, wanted, tokenizer, vocab_size)).transpose()
    }

    /// A grammar that texts can be held to; `name` is the field that asks for it.
    pub(crate) fn compile(
        &self,
        name: &str,
        grammar: TopLevelGrammar,
        tokenizer: &Tokenizer,
        vocab_size: usize,
    ) -> Result<Arc<dyn Grammar>, ApiError> {
        let source = serde_json::to_string(&grammar).unwrap_or_default();
        if let Some(kept) = self.kept(&source) {
            return Ok(kept);
        }
        let mut matcher = Matcher::new(self.factory(tokenizer, vocab_size)?.create_parser(grammar));
        let problem = matcher.get_error().or_else(|| matcher.grammar_warnings().into_iter().next());
        match problem {
            Some(problem) => {
                let first_line = problem.lines().next().unwrap_or_default();
                Err(ApiError::unsupported(name, format!("`{name}` cannot be honoured: {first_line}")))
            }
            None => {
                let compiled = Arc::new(Compiled(Mutex::new(matcher)));
                let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() == KEPT_MAX {
                    kept.remove(0);
                }
                kept.push((source, Arc::clone(&compiled)));
                Ok(compiled)
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn num_kept(&self) -> usize {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The grammar that was made of `source`, if it is kept.
    fn kept(&self, source: &str) -> Option<Arc<Compiled>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let place = kept.iter().position(|(known, _)| known == source)?;
        let found = kept.remove(place);
        let compiled = Arc::clone(&found.1);
        kept.push(found);
        Some(compiled)
    }
}

fn factory(
    tokenizer: &Tokenizer,
    vocab_size: usize,
    controls: &[u32],
) -> Result<ParserFactory, Box<dyn std::error::Error + Send + Sync>> {
    let eos = tokenizer.eos_ids();
    let Some(&main_eos) = eos.first() else { return Err("it has no token that ends a text".into()) };
    let bytes = |id: usize| {
        let id = id as u32;
        let mut bytes = tokenizer.token_bytes(id).unwrap_or_default();
        if tokenizer.is_special(id) || controls.contains(&id) {
            // Only a grammar that names the token can ask for it; its text is another thing.
            bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
        }
        bytes
    };
    let words: Vec<Vec<u8>> = (0..vocab_size).map(bytes).collect();
    let trie = TokTrie::from(&TokRxInfo::new(vocab_size as u32, main_eos), &words).with_eos_tokens(eos);
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory = ParserFactory::new_simple(&env)?;
    factory.quiet();
    // Errors are shown to clients and written to logs; texts are not.
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// OpenAI's field: text, any JSON object, or JSON of a schema.
fn response_format(format: Value) -> Result<Option<TopLevelGrammar>, ApiError> {
    const KNOWN: &[&[Field]] = &[&[applied("type"), applied("json_schema")]];
    const SCHEMA: &[&[Field]] = &[&[
        applied("name"),
        applied("schema"),
        hint("strict", "a schema is always held to"),
        hint("description", "the model is not shown the schema"),
    ]];
    let within = |error: ApiError| error.within("response_format");
    let mut fields = Fields::inside("response_format", format, KNOWN)?;
    let kind = fields.string("type").map_err(within)?.unwrap_or_default();
    let grammar = match kind.as_str() {
        "text" => None,
        "json_object" => Some(TopLevelGrammar::from_json_schema(bounded_space(json!({"type": "object"})))),
        "json_schema" => {
            let within = |error: ApiError| error.within("response_format.json_schema");
            let schema = fields.required("json_schema").map_err(|error| error.within("response_format"))?;
            let mut schema = Fields::inside("response_format.json_schema", schema, SCHEMA)?;
            schema.string("name").map_err(within)?;
            let schema = schema.required("schema").map_err(within)?;
            Some(schema_grammar("response_format.json_schema.schema", schema)?)
        }
        other => {
            let expected = "text, json_object or json_schema";
            return Err(wrong("response_format.type", &json!(other), expected));
        }
    };
    fields.finish(KNOWN).map_err(within)?;
    Ok(grammar)
}

/// vLLM's field: one of `json`, `regex`, `choice` and `grammar` (Lark).
fn structured_outputs(outputs: Value) -> Result<TopLevelGrammar, ApiError> {
    const KNOWN: &[&[Field]] = &[&[applied("json"), applied("regex"), applied("choice"), applied("grammar")]];
    let within = |error: ApiError| error.within("structured_outputs");
    let at = |name: &str| format!("structured_outputs.{name}");
    let mut fields = Fields::inside("structured_outputs", outputs, KNOWN)?;
    let bounded = |name: &str, text: String| {
        if text.len() <= GRAMMAR_BYTES_MAX { Ok(text) } else { Err(too_long(&at(name), text.len())) }
    };
    let grammar = if let Some(schema) = fields.take("json") {
        schema_grammar(&at("json"), schema)?
    } else if let Some(regex) = fields.string("regex").map_err(within)? {
        TopLevelGrammar::from_regex(&bounded("regex", regex)?)
    } else if let Some(choices) = fields.strings("choice").map_err(within)? {
        if choices.is_empty() {
            return Err(ApiError::invalid(at("choice"), "there has to be a choice"));
        }
        bounded("choice", choices.join("|"))?;
        TopLevelGrammar::from_regex(&choices.iter().map(|choice| escaped(choice)).collect::<Vec<_>>().join("|"))
    } else if let Some(lark) = fields.string("grammar").map_err(within)? {
        TopLevelGrammar::from_lark(bounded("grammar", lark)?)
    } else {
        let message = "`structured_outputs` has to have one of json, regex, choice and grammar";
        return Err(ApiError::invalid("structured_outputs", message));
    };
    fields.finish(KNOWN).map_err(within)?;
    Ok(grammar)
}

/// A text as a regular expression that matches it alone, between slashes too.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        // With a backslash those two mean the edges of a word.
        if character.is_ascii_punctuation() && !matches!(character, '<' | '>') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

fn schema_grammar(at: &str, schema: Value) -> Result<TopLevelGrammar, ApiError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(wrong(at, &schema, "a JSON schema"));
    }
    let bytes = schema.to_string().len();
    if bytes > GRAMMAR_BYTES_MAX {
        return Err(too_long(at, bytes));
    }
    check_keywords(at, &schema)?;
    Ok(TopLevelGrammar::from_json_schema(bounded_space(schema)))
}

/// Keywords with one schema in them, with a list of schemas, and with schemas by name.
const INNER: [&[&str]; 3] = [
    &["items", "additionalItems", "additionalProperties"],
    &["anyOf", "oneOf", "allOf", "prefixItems", "items"],
    &["properties", "patternProperties", "$defs", "definitions"],
];
/// Other keywords that a text is held to.
const HELD: &[&str] = &[
    "$ref",
    "const",
    "enum",
    "type",
    "minItems",
    "maxItems",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];
/// Those that say something about a value and hold it to nothing, of JSON Schema and of OpenAPI.
const ANNOTATIONS: &[&str] = &[
    "$schema",
    "$id",
    "id",
    "$anchor",
    "$comment",
    "title",
    "description",
    "default",
    "example",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "contentEncoding",
    "discriminator",
];

/// Refuses a keyword that is not one: the library takes what it does not know for an annotation, and so a misspelt
/// `maxLenght` would hold the text to nothing.
pub(crate) fn check_keywords(at: &str, schema: &Value) -> Result<(), ApiError> {
    let Value::Object(schema) = schema else { return Ok(()) };
    for (keyword, value) in schema {
        let at = format!("{at}.{keyword}");
        let is = |kind: usize| INNER[kind].contains(&keyword.as_str());
        match value {
            Value::Array(items) if is(1) => {
                items
                    .iter()
                    .enumerate()
                    .try_for_each(|(index, item)| check_keywords(&format!("{at}[{index}]"), item))?;
            }
            Value::Object(named) if is(2) => {
                named.iter().try_for_each(|(name, inner)| check_keywords(&format!("{at}.{name}"), inner))?;
            }
            // Of the wrong type, they are refused when the schema is compiled.
            inner if is(0) || is(1) || is(2) => check_keywords(&at, inner)?,
            _ if HELD.contains(&keyword.as_str()) || ANNOTATIONS.contains(&keyword.as_str()) => {}
            _ => {
                let message = format!("`{keyword}` is no keyword of a schema that texts can be held to here");
                return Err(ApiError::unsupported(at, message));
            }
        }
    }
    Ok(())
}

/// A schema whose JSON may have a space or a new line, with its indentation, between its parts: where any space may stand,
/// a model can go on with that until it is cut.
pub(crate) fn bounded_space(mut schema: Value) -> Value {
    if let Value::Object(map) = &mut schema {
        // The library's own options; a client's would replace them.
        map.insert("x-guidance".to_owned(), json!({"whitespace_pattern": "(?: |\\n[ \\t]{0,32})?"}));
    }
    schema
}

fn too_long(at: &str, bytes: usize) -> ApiError {
    ApiError::invalid(at, format!("`{at}` has {bytes} bytes, at most {GRAMMAR_BYTES_MAX} are taken"))
}

/// A grammar at the beginning of a text.
struct Compiled(Mutex<Matcher>);

impl Debug for Compiled {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compiled(..)")
    }
}

impl Grammar for Compiled {
    fn start(&self) -> Box<dyn GrammarState> {
        Box::new(State(self.0.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()))
    }
}

/// A text on its way through a grammar.
struct State(Matcher);

impl Debug for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("State(..)")
    }
}

impl GrammarState for State {
    fn allow(&mut self, allowed: &mut TokenSet) -> Result<(), String> {
        let mask = self.0.compute_mask_or_eos().map_err(|error| error.to_string())?;
        allowed.insert_words(mask.as_slice());
        Ok(())
    }

    fn accept(&mut self, token_id: u32) -> Result<(), String> {
        // Where the text could only end, the token that ends it is no part of it.
        if self.0.is_stopped() {
            return Ok(());
        }
        self.0.consume_token(token_id).map_err(|error| error.to_string())
    }
}
