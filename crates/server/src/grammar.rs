//! Texts that keep to a grammar: JSON of a schema, a regular expression, a list of choices, a Lark grammar. The library
//! says which tokens may come next; what it cannot hold a text to is refused before anything is generated.

use std::fmt::{Debug, Formatter};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use engine::{Grammar, GrammarState};
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use tokenizer::Tokenizer;

use crate::abandoned;
use crate::error::ApiError;
use crate::fields::{self, Field, Fields, Rule, applied, hint, wrong};
use crate::masks::{MaskedText, PROBLEM_LEN_MAX};
use crate::quoting::clipped;
use crate::regex_weight::check_pattern;
use crate::schema::{AskedSchema, GRAMMAR_BYTES_MAX, asked_schema, bounded_space, too_long};
use crate::{gbnf, lark};

/// `response_format`.
// `schema` is where llama.cpp and others have it.
pub(crate) const RESPONSE_FORMAT: &[&[Field]] = &[&[applied("type"), applied("json_schema"), applied("schema")]];

/// `json_schema` of `response_format`.
pub(crate) const JSON_SCHEMA: &[&[Field]] = &[&[
    applied("name"),
    applied("schema"),
    hint("strict", "a schema is always held to"),
    hint("description", "the model is not shown the schema"),
]];

/// `structured_outputs`.
pub(crate) const STRUCTURED_OUTPUTS: &[&[Field]] =
    &[&[applied("json"), applied("regex"), applied("choice"), applied("grammar")]];

/// Fields that ask for a grammar; generating routes have them.
pub(crate) const FIELDS: &[Field] = &[
    applied("response_format"),
    applied("structured_outputs"),
    // vLLM's older names, and llama.cpp's name for a schema. A request may have one of all these fields.
    applied("guided_json"),
    applied("guided_regex"),
    applied("guided_choice"),
    applied("guided_grammar"),
    applied("json_schema"),
    // llama.cpp's name for a grammar in its notation.
    applied("grammar"),
    hint("guided_decoding_backend", "there is one"),
    hint("guided_whitespace_pattern", "space between the parts of JSON is bounded anyway"),
];

/// Bytes of compiled grammars that are kept: a client asks for the same schema with each request.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Bytes of one compiled grammar; each text that keeps to it has a copy.
const COMPILED_BYTES_MAX: usize = 24 << 20;
/// Time to compile a grammar. Unoptimised builds, which tests run, take a few times as long.
pub(crate) const COMPILE_TIME_MAX: Duration = Duration::from_secs(if cfg!(debug_assertions) { 8 } else { 1 });
/// Grammars that are being compiled at a time.
const COMPILING_MAX: usize = 4;
/// How often it is looked whether the client still waits for its grammar.
const CLIENT_LOOKS: Duration = Duration::from_millis(20);
/// Those besides that nobody waits for any more. They end by themselves; until then each has a thread and its memory.
const ABANDONED_MAX: usize = 16;
/// What the first step through the automaton may take: a million is a third of a second.
const FIRST_STEP_FUEL: u64 = 1_000_000;
/// Compilations that panicked since the process began.
static PANICS: AtomicUsize = AtomicUsize::new(0);
/// A grammar of 64 KiB whose rules are a chain has thousands of them, and the library goes down the chain by recursion,
/// a few kilobytes a rule. The system gives memory to what is used of this alone.
const COMPILE_STACK_BYTES: usize = 256 << 20;

/// Compilations that failed in a way that is a bug, since the process began.
pub(crate) fn num_panics() -> usize {
    PANICS.load(Ordering::Relaxed)
}

/// The vocabulary as grammars see it, made when the first is asked for, and those that were compiled last.
#[derive(Default)]
pub(crate) struct Grammars {
    /// Tokens that no text is written with, besides those that are special.
    controls: Vec<u32>,
    factory: OnceLock<Result<Arc<ParserFactory>, String>>,
    /// By what they were made of; the one that was asked for last stands last.
    kept: Mutex<Vec<(String, Arc<Compiled>)>>,
}

/// What a request asks its text to keep to.
pub(crate) struct Asked {
    /// The field that asks for it.
    pub(crate) name: &'static str,
    pub(crate) kind: AskedKind,
}

/// How that is said.
pub(crate) enum AskedKind {
    /// The text is JSON of this schema.
    Schema(AskedSchema),
    /// By a grammar of another kind.
    Other(TopLevelGrammar),
}

impl Asked {
    /// What the finished text is to be looked at for.
    pub(crate) fn checked(&self) -> Option<Arc<Value>> {
        match &self.kind {
            AskedKind::Schema(schema) => schema.checked.clone(),
            AskedKind::Other(_) => None,
        }
    }

    /// The grammar of the whole text.
    pub(crate) fn grammar(self) -> TopLevelGrammar {
        match self.kind {
            AskedKind::Schema(schema) => TopLevelGrammar::from_json_schema(bounded_space(schema.held)),
            AskedKind::Other(grammar) => grammar,
        }
    }

    /// Takes the one field that asks for it. Two such fields in a request are refused.
    pub(crate) fn take(fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        let mut found: Option<(&'static str, Value)> = None;
        for field in FIELDS.iter().filter(|field| matches!(field.rule, Rule::Applied)) {
            let Some(value) = fields.take(field.name) else { continue };
            if let Some((other, _)) = found {
                let message = format!("`{}` and `{other}` cannot both say what the text is", field.name);
                return Err(ApiError::invalid(field.name, message));
            }
            found = Some((field.name, value));
        }
        let Some((name, value)) = found else { return Ok(None) };
        let kind = match name {
            "response_format" => match response_format(value)? {
                Some(schema) => AskedKind::Schema(schema),
                None => return Ok(None),
            },
            "structured_outputs" => structured_outputs(value)?,
            // What llama.cpp takes for none.
            "grammar" if value == "" => return Ok(None),
            "grammar" => structured_outputs_named("grammar", json!({"grammar": value}))?,
            "json_schema" => AskedKind::Schema(asked_schema(name, value)?),
            _ => guided(name, value)?,
        };
        Ok(Some(Self { name, kind }))
    }
}

/// One of vLLM's older fields.
fn guided(name: &'static str, value: Value) -> Result<AskedKind, ApiError> {
    let inner = name.strip_prefix("guided_").unwrap_or(name);
    // A schema may come as its text.
    let value = match value {
        Value::String(text) if inner == "json" => serde_json::from_str(&text)
            .map_err(|error| ApiError::invalid(name, format!("`{name}` is not JSON: {error}")))?,
        value => value,
    };
    structured_outputs_named(name, json!({inner: value}))
}

/// What another field says as a member of vLLM's would. Its name stands in errors and notes.
fn structured_outputs_named(name: &str, outputs: Value) -> Result<AskedKind, ApiError> {
    let rename = |path: &str| match path.strip_prefix("structured_outputs.") {
        Some(rest) => format!("{name}{}", rest.split_once('.').map_or("", |(member, _)| &rest[member.len()..])),
        None => name.to_owned(),
    };
    fields::inner(rename, || structured_outputs(outputs))
}

impl Grammars {
    /// Of a model that writes something else than text with `controls`: a grammar asks for them by their ids, and the
    /// text that they have is written with others.
    pub(crate) fn new(controls: Vec<u32>) -> Self {
        Self { controls, ..Self::default() }
    }

    fn factory(&self, tokenizer: &Tokenizer, vocab_size: usize) -> Result<&Arc<ParserFactory>, ApiError> {
        let made = self.factory.get_or_init(|| {
            factory(tokenizer, vocab_size, &self.controls).map(Arc::new).map_err(|error| error.to_string())
        });
        made.as_ref().map_err(|error| {
            ApiError::unsupported(
                "response_format",
                format!("this model's vocabulary cannot be held to a grammar: {error}"),
            )
        })
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
        let factory = Arc::clone(self.factory(tokenizer, vocab_size)?);
        static COMPILE_SLOTS: LazyLock<CompileSlots> = LazyLock::new(CompileSlots::default);
        let compiled = in_time(&COMPILE_SLOTS, COMPILE_TIME_MAX, name, move || compiled(&factory, grammar))?;
        let compiled = compiled.map_err(|problem| {
            let first_line = problem.lines().next().unwrap_or_default();
            ApiError::unsupported(
                name,
                format!("`{name}` cannot be honoured: {}", clipped(first_line, PROBLEM_LEN_MAX)),
            )
        })?;
        if compiled.bytes > COMPILED_BYTES_MAX {
            let message = format!("`{name}` takes too much memory when it is compiled; ask for a simpler one");
            return Err(ApiError::refused_field(name, "grammar_too_complex", message));
        }
        let compiled = Arc::new(compiled);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push((source, Arc::clone(&compiled)));
        let mut bytes: usize = kept.iter().map(|(source, compiled)| source.len() + compiled.bytes).sum();
        while bytes > KEPT_BYTES_MAX {
            let (source, oldest) = kept.remove(0);
            bytes -= source.len() + oldest.bytes;
        }
        Ok(compiled)
    }

    #[cfg(test)]
    pub(crate) fn num_kept(&self) -> usize {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether what is kept is within its bound.
    #[cfg(test)]
    pub(crate) fn is_within_bound(&self) -> bool {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().map(|(_, compiled)| compiled.bytes).sum::<usize>() <= KEPT_BYTES_MAX
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
    let limits = factory.limits_mut();
    limits.verbose_errors = false;
    // A state takes one or two kilobytes, and each text has its own.
    limits.max_lexer_states = 20_000;
    Ok(factory)
}

/// Grammars that are being compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Compiling {
    /// Those that somebody waits for.
    awaited: usize,
    /// Those that took too long. The library cannot be stopped, but it ends, because what it is given is bounded.
    abandoned: usize,
}

/// How many grammars may be compiled at a time, and how many are.
#[derive(Clone, Default)]
struct CompileSlots(Arc<Mutex<Compiling>>);

/// The right to compile one grammar. It is free again when the compilation ends, even if nobody waits for that any
/// more.
struct CompileSlot {
    slots: CompileSlots,
    state: Arc<Mutex<SlotState>>,
}

/// Changes under the lock of all slots.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum SlotState {
    #[default]
    Awaited,
    Abandoned,
    Over,
}

impl CompileSlots {
    fn lock(&self) -> MutexGuard<'_, Compiling> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<CompileSlot> {
        let mut compiling = self.lock();
        if compiling.awaited >= COMPILING_MAX || compiling.abandoned >= ABANDONED_MAX {
            return None;
        }
        compiling.awaited += 1;
        Some(CompileSlot { slots: self.clone(), state: Arc::default() })
    }

    /// Goes from one state to the next, unless the compilation is over. `state` is changed here alone, under this lock.
    fn set(&self, state: &Mutex<SlotState>, next: SlotState) {
        let mut compiling = self.lock();
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        match *state {
            SlotState::Awaited => compiling.awaited -= 1,
            SlotState::Abandoned => compiling.abandoned -= 1,
            // It ended just when its waiter left.
            SlotState::Over => return,
        }
        if next == SlotState::Abandoned {
            compiling.abandoned += 1;
        }
        *state = next;
    }
}

impl Drop for CompileSlot {
    fn drop(&mut self) {
        self.slots.set(&self.state, SlotState::Over);
    }
}

/// Compiles on a thread of its own, for as long as that may take.
fn in_time<T: Send + 'static>(
    slots: &CompileSlots,
    time_max: Duration,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let busy = || ApiError::unavailable("busy_compiling", "too many grammars are being compiled; try again");
    let slot = slots.take().ok_or_else(busy)?;
    let state = Arc::clone(&slot.state);
    let (send, receive) = mpsc::channel();
    let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(COMPILE_STACK_BYTES);
    let started = thread.spawn(move || {
        let made = std::panic::catch_unwind(AssertUnwindSafe(work));
        // The slot is free before anybody hears of the end. Where nobody waits any more, nobody is told.
        drop(slot);
        let _ = send.send(made.map_err(drop));
    });
    started.map_err(|error| {
        tracing::warn!(%error, "no thread to compile a grammar");
        ApiError::unavailable("busy_compiling", "no thread can be started to compile the grammar; try again")
    })?;
    let end = Instant::now() + time_max;
    let ended = loop {
        let left = end.saturating_duration_since(Instant::now());
        match receive.recv_timeout(left.min(CLIENT_LOOKS)) {
            Err(RecvTimeoutError::Timeout) if abandoned::is_abandoned() => {
                slots.set(&state, SlotState::Abandoned);
                return Err(ApiError::abandoned());
            }
            Err(RecvTimeoutError::Timeout) if left > CLIENT_LOOKS => {}
            ended => break ended,
        }
    };
    match ended {
        Ok(Ok(made)) => Ok(made),
        Ok(Err(())) | Err(RecvTimeoutError::Disconnected) => {
            let count = PANICS.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::error!(field = name, count, "the compiler of grammars failed in a way that is a bug");
            let message = format!("the grammar of `{name}` cannot be compiled");
            Err(ApiError::refused_field(name, "grammar_failed", message))
        }
        Err(RecvTimeoutError::Timeout) => {
            slots.set(&state, SlotState::Abandoned);
            let seconds = time_max.as_secs();
            let message = format!("`{name}` takes longer than {seconds} s to compile; ask for a simpler one");
            Err(ApiError::refused_field(name, "grammar_too_complex", message))
        }
    }
}

fn compiled(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Compiled, String> {
    let limits = factory.limits().clone();
    let init = GrammarInit::Serialized(grammar);
    let (grammar, lexemes) =
        init.to_internal(Some(factory.tok_env().clone()), limits.clone()).map_err(|error| error.to_string())?;
    check_first_step(factory, lexemes.clone(), limits)?;
    let init = GrammarInit::Internal(grammar, lexemes);
    let parser = factory.create_parser_from_init_default(init).map_err(|error| error.to_string())?;
    let bytes = parser.parser.lexer_stats().num_bytes;
    let mut matcher = Matcher::new(Ok(parser));
    match matcher.get_error().or_else(|| matcher.grammar_warnings().into_iter().next()) {
        Some(problem) => Err(problem),
        None => Ok(Compiled { matcher: Arc::new(Mutex::new(matcher)), bytes }),
    }
}

/// Takes the first step through the automaton, as making the parser does. There it has no bound, and there are regular
/// expressions (multiples of several numbers, repetitions of several lengths at once) for which it would never end.
fn check_first_step(factory: &ParserFactory, mut lexemes: LexerSpec, mut limits: ParserLimits) -> Result<(), String> {
    lexemes.add_extra_lexemes(&factory.extra_lexemes());
    let mut automaton = lexemes.to_regex_vec(&mut limits).map_err(|error| error.to_string())?;
    automaton.set_fuel(FIRST_STEP_FUEL);
    let start = automaton.initial_state(&lexemes.all_lexemes());
    for byte in 0..=u8::MAX {
        automaton.transition(start, byte);
        if automaton.has_error() {
            return Err("its automaton has too many states; ask for a simpler one".to_owned());
        }
    }
    Ok(())
}

/// OpenAI's field: text, any JSON object, or JSON of a schema.
fn response_format(format: Value) -> Result<Option<AskedSchema>, ApiError> {
    let within = |error: ApiError| error.within("response_format");
    let mut fields = Fields::inside("response_format", format, RESPONSE_FORMAT)?;
    let kind = fields.string("type").map_err(within)?.unwrap_or_default();
    let grammar = match kind.as_str() {
        "text" => None,
        "json_object" => match fields.take("schema") {
            Some(schema) => Some(asked_schema("response_format.schema", schema)?),
            None => Some(AskedSchema { held: json!({"type": "object"}), checked: None }),
        },
        "json_schema" if fields.has("schema") && !fields.has("json_schema") => {
            let schema = fields.required("schema").map_err(within)?;
            Some(asked_schema("response_format.schema", schema)?)
        }
        "json_schema" => {
            let within = |error: ApiError| error.within("response_format.json_schema");
            let schema = fields.required("json_schema").map_err(|error| error.within("response_format"))?;
            let mut schema = Fields::inside("response_format.json_schema", schema, JSON_SCHEMA)?;
            schema.string("name").map_err(within)?;
            let schema = schema.required("schema").map_err(within)?;
            Some(asked_schema("response_format.json_schema.schema", schema)?)
        }
        other => {
            let expected = "text, json_object or json_schema";
            return Err(wrong("response_format.type", &json!(other), expected));
        }
    };
    fields.finish(RESPONSE_FORMAT).map_err(within)?;
    Ok(grammar)
}

/// vLLM's field: one of `json`, `regex`, `choice` and `grammar` (Lark, or GBNF).
fn structured_outputs(outputs: Value) -> Result<AskedKind, ApiError> {
    let within = |error: ApiError| error.within("structured_outputs");
    let at = |name: &str| format!("structured_outputs.{name}");
    let mut fields = Fields::inside("structured_outputs", outputs, STRUCTURED_OUTPUTS)?;
    let bounded = |name: &str, text: String| {
        if text.len() <= GRAMMAR_BYTES_MAX { Ok(text) } else { Err(too_long(&at(name), text.len())) }
    };
    let grammar = if let Some(schema) = fields.take("json") {
        fields.finish(STRUCTURED_OUTPUTS).map_err(within)?;
        return asked_schema(&at("json"), schema).map(AskedKind::Schema);
    } else if let Some(regex) = fields.string("regex").map_err(within)? {
        let regex = bounded("regex", regex)?;
        check_pattern(&at("regex"), &regex)?;
        TopLevelGrammar::from_regex(&regex)
    } else if let Some(choices) = fields.strings("choice").map_err(within)? {
        if choices.is_empty() {
            return Err(ApiError::invalid(at("choice"), "there has to be a choice"));
        }
        bounded("choice", choices.join("|"))?;
        TopLevelGrammar::from_regex(&choices.iter().map(|choice| escaped(choice)).collect::<Vec<_>>().join("|"))
    } else if let Some(text) = fields.string("grammar").map_err(within)? {
        let (text, at) = (bounded("grammar", text)?, at("grammar"));
        let text = if gbnf::is_gbnf(&text) { gbnf::to_lark(&at, &text)? } else { text };
        TopLevelGrammar::from_lark(lark::prepared(&at, &text)?)
    } else {
        let message = "`structured_outputs` has to have one of json, regex, choice and grammar";
        return Err(ApiError::invalid("structured_outputs", message));
    };
    fields.finish(STRUCTURED_OUTPUTS).map_err(within)?;
    Ok(AskedKind::Other(grammar))
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

/// A grammar at the beginning of a text.
struct Compiled {
    matcher: Arc<Mutex<Matcher>>,
    bytes: usize,
}

impl Debug for Compiled {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compiled(..)")
    }
}

impl Grammar for Compiled {
    fn start(&self) -> Box<dyn GrammarState> {
        let matcher = Arc::clone(&self.matcher);
        // A copy of the whole automaton, as far as it is known.
        Box::new(MaskedText::new(move || matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever takes too long keeps nobody else out, and is counted until it ends.
    #[test]
    fn abandoned_work_gives_up_its_place() {
        let slots = CompileSlots::default();
        let brief = Duration::from_millis(20);
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..COMPILING_MAX + 1 {
            let held = Arc::clone(&held);
            let late = in_time(&slots, brief, "f", move || held.lock().unwrap().recv().is_ok());
            assert_eq!(late.unwrap_err().code(), Some("grammar_too_complex"));
        }
        assert_eq!(*slots.lock(), Compiling { awaited: 0, abandoned: COMPILING_MAX + 1 });
        assert_eq!(in_time(&slots, COMPILE_TIME_MAX, "f", || 7).unwrap(), 7);
        for _ in COMPILING_MAX + 1..ABANDONED_MAX {
            let held = Arc::clone(&held);
            in_time(&slots, brief, "f", move || held.lock().unwrap().recv().is_ok()).unwrap_err();
        }
        let full = in_time(&slots, COMPILE_TIME_MAX, "f", || 7).unwrap_err();
        assert_eq!((full.status.as_u16(), full.code()), (503, Some("busy_compiling")));
        drop(release);
        let begun = std::time::Instant::now();
        while *slots.lock() != Compiling::default() {
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", slots.lock());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(in_time(&slots, COMPILE_TIME_MAX, "f", || 7).unwrap(), 7);
    }

    #[test]
    fn a_client_that_has_gone_leaves_its_place_to_others() {
        let slots = CompileSlots::default();
        let (release, held) = mpsc::channel::<()>();
        let client = abandoned::Waits::default();
        let work = client.watch(|| in_time(&slots, Duration::from_secs(3600), "f", move || held.recv().is_ok()));
        drop(client);
        // Not after an hour.
        work().unwrap_err();
        assert_eq!(*slots.lock(), Compiling { awaited: 0, abandoned: 1 });
        drop(release);
    }

    #[test]
    fn a_compiler_that_panics_is_not_one_that_is_slow() {
        let slots = CompileSlots::default();
        let before = PANICS.load(Ordering::Relaxed);
        let failed = in_time(&slots, Duration::from_secs(60), "f", || -> u8 { panic!("as a test") }).unwrap_err();
        assert_eq!((failed.status.as_u16(), failed.code(), failed.param()), (400, Some("grammar_failed"), Some("f")));
        assert_eq!(PANICS.load(Ordering::Relaxed), before + 1);
        assert_eq!(*slots.lock(), Compiling::default());
    }
}
