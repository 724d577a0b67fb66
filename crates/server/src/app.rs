//! The server's state: what is served, and whether it is.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use engine::{Engine, SamplingParams};
use serde_json::Value;
use tokenizer::chat_template::ChatTemplate;
use tokenizer::{FimMarkers, ParseSpecial, Tokenizer};
use tokio::sync::watch;

use crate::clock::unix_time;
use crate::engine_thread::{EngineFailure, EngineHandle};
use crate::error::ApiError;
use crate::fields::FieldPolicy;
use crate::grammar::Grammars;
use crate::loading::Loading;
use crate::memory::Memory;
use crate::metrics::{HttpMetrics, Metrics};
use crate::options::Options;
use crate::template_profile::{TemplateProfile, ToolForm};

/// Fields without effect that the log names, at most: clients make the names.
const IGNORED_TOLD_MAX: usize = 256;

/// A loaded model, for [`App::ready`].
pub struct ServedModel {
    /// What clients call it.
    pub name: String,
    /// What it runs on, in words.
    pub device: String,
    /// Its version, as reports say it: of the program.
    pub version: &'static str,
    /// What a request that says nothing of its sampling gets.
    pub defaults: SamplingParams,
    /// Text to token ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// How a conversation is written, if the model holds any.
    pub chat_template: Option<ChatTemplate>,
    /// The template of conversations with tools, if the model has one for them (`tool_use`).
    pub tool_template: Option<ChatTemplate>,
    /// Why the template that the model has cannot be used, if it has such a one.
    pub template_fault: Option<String>,
    /// Whether it generates, and does not only make vectors of texts.
    pub has_head: bool,
    /// The pooling that the model was trained with, by its name, if it was trained to make vectors of texts.
    pub pooling: Option<String>,
    /// Whether such vectors are brought to length 1, if the model's files say so.
    pub normalize: Option<bool>,
    /// What its files are, if the loader says so.
    pub files: Option<ModelFiles>,
    /// The engine, with the model in it.
    pub engine: Engine,
    /// How long loading took.
    pub load_time: Duration,
}

/// What the files of a model are, for routes that describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFiles {
    /// The architecture, by its name in transformers: `qwen3`.
    pub architecture: String,
    /// Numbers in its weights.
    pub parameters: u64,
    /// The format of most of its matrices, as they were loaded: `Q4_0`.
    pub format: String,
}

impl ServedModel {
    /// A model that generates and of which nothing else is said: it holds no conversations, and requests get the engine's
    /// own sampling.
    pub fn new(name: impl Into<String>, tokenizer: Arc<Tokenizer>, engine: Engine) -> Self {
        Self {
            name: name.into(),
            device: "unknown".to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            defaults: SamplingParams::default(),
            tokenizer,
            chat_template: None,
            tool_template: None,
            template_fault: None,
            has_head: true,
            pooling: None,
            normalize: None,
            files: None,
            engine,
            load_time: Duration::ZERO,
        }
    }
}

/// A model that is being served.
pub(crate) struct Serving {
    pub(crate) name: String,
    pub(crate) device: String,
    pub(crate) version: &'static str,
    pub(crate) defaults: SamplingParams,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) chat_template: Option<ChatTemplate>,
    /// The template of conversations with tools, and how the model writes with it, where these are others.
    tool_use: Option<(ChatTemplate, TemplateProfile)>,
    /// Why the template that the model has cannot be used, if it has such a one.
    pub(crate) template_fault: Option<String>,
    /// Whether it generates.
    pub(crate) has_head: bool,
    pub(crate) engine: EngineHandle,
    /// The pooling that the model was trained with.
    pub(crate) pooling: Option<String>,
    pub(crate) normalize: Option<bool>,
    pub(crate) files: Option<ModelFiles>,
    /// The width of embeddings, if the device gives any.
    pub(crate) hidden_size: Option<usize>,
    pub(crate) grammars: Grammars,
    /// How the model writes reasoning and calls of tools.
    profile: TemplateProfile,
    /// The tokens that mark a gap, if the model has them.
    pub(crate) fim: Option<FimMarkers>,
    /// Whether tools are described in words where the template shows none.
    generic_tools: bool,
    /// Whether special tokens count in messages.
    pub(crate) special_in_messages: ParseSpecial,
    pub(crate) load_time: Duration,
    /// Bytes of its weights, if the loader says so.
    pub(crate) weight_bytes: Option<u64>,
    /// Seconds since 1970 when it was ready.
    pub(crate) created: u64,
    /// How its requests fared.
    pub(crate) metrics: Metrics,
}

impl Serving {
    /// The template of a conversation, with tools or without: as in transformers, one named `tool_use` is for those with.
    pub(crate) fn template(&self, with_tools: bool) -> Option<&ChatTemplate> {
        let own = self.tool_use.as_ref().filter(|_| with_tools).map(|(template, _)| template);
        own.or(self.chat_template.as_ref())
    }

    /// How the model writes in a conversation, with tools or without.
    pub(crate) fn profile(&self, with_tools: bool) -> &TemplateProfile {
        let own = self.tool_use.as_ref().filter(|_| with_tools).map(|(_, profile)| profile);
        own.unwrap_or(&self.profile)
    }

    /// How tools are shown to the model, and its calls read.
    pub(crate) fn tool_form(&self) -> ToolForm {
        let shows = self.template(true).is_some_and(ChatTemplate::supports_tools);
        match self.profile(true).tools.filter(|_| shows) {
            Some(syntax) => ToolForm::Own(syntax),
            None if self.generic_tools && self.chat_template.is_some() => ToolForm::Generic,
            None => ToolForm::None,
        }
    }
}

/// How far the server is.
#[derive(Clone)]
pub(crate) enum Phase {
    /// Not all models are loaded; these are not.
    Loading {
        what: Vec<String>,
    },
    /// All are loaded, and these answer: one at least.
    Ready(Vec<Arc<Serving>>),
    Draining,
    Failed {
        why: String,
    },
}

/// A server without a socket. Cheap to clone.
#[derive(Clone)]
pub struct App {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) options: Options,
    /// What is done about fields of requests that their route does not know.
    pub(crate) field_policy: FieldPolicy,
    pub(crate) metrics: HttpMetrics,
    /// What requests take until an engine has them.
    pub(crate) memory: Memory,
    pub(crate) started: Instant,
    models: Vec<ModelSlot>,
    /// Why there will be no models.
    not_loaded: RwLock<Option<String>>,
    draining: AtomicBool,
    /// Turns true when streams have to end now.
    pub(crate) stop: watch::Sender<bool>,
    /// Fields without effect that the log has named.
    ignored: Mutex<HashSet<String>>,
}

/// Where a model is, once it is loaded.
struct ModelSlot {
    name: String,
    model: OnceLock<Arc<Serving>>,
    loading: Loading,
}

/// How one of the models is.
pub(crate) enum ModelPhase<'a> {
    Loading(&'a Loading),
    Ready(&'a Arc<Serving>),
    Failed(EngineFailure),
}

impl ModelSlot {
    fn phase(&self) -> ModelPhase<'_> {
        let Some(serving) = self.model.get() else { return ModelPhase::Loading(&self.loading) };
        serving.engine.failure().map_or(ModelPhase::Ready(serving), ModelPhase::Failed)
    }

    /// The model, if it answers now.
    fn serving(&self) -> Result<Arc<Serving>, ApiError> {
        match self.phase() {
            ModelPhase::Ready(serving) => Ok(Arc::clone(serving)),
            ModelPhase::Loading(_) => Err(loading(&self.name)),
            ModelPhase::Failed(failure) => Err(ApiError::unavailable("failed", failure.to_string())),
        }
    }
}

/// Why a model could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ReadyError {
    /// [`App::new`] was told of no such model, or it is served already.
    #[error("`{name}` is no model that this server waits for")]
    Unexpected {
        /// The model's name.
        name: String,
    },
    /// The engine's thread cannot be started.
    #[error("cannot start the engine's thread")]
    Thread(#[from] std::io::Error),
}

impl App {
    /// [`App::new`], for routes of which those that generate apply the fields for whose names `is_generation_field`
    /// holds.
    pub(crate) fn with_routes(options: Options, models: &[&str], is_generation_field: fn(&str) -> bool) -> Self {
        assert!(!models.is_empty(), "a server serves a model");
        let slot =
            |&name: &&str| ModelSlot { name: name.to_owned(), model: OnceLock::new(), loading: Loading::default() };
        let inner = Inner {
            field_policy: FieldPolicy { strict: options.strict_fields, is_generation_field },
            memory: Memory::new(options.prepare_bytes_max, options.prepare_time_max),
            options,
            metrics: HttpMetrics::default(),
            started: Instant::now(),
            models: models.iter().map(slot).collect(),
            not_loaded: RwLock::new(None),
            draining: AtomicBool::new(false),
            stop: watch::Sender::new(false),
            ignored: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Starts the engine's thread of one of the models and serves it from now on.
    pub fn ready(&self, model: ServedModel) -> Result<(), ReadyError> {
        let ServedModel {
            name,
            device,
            version,
            defaults,
            tokenizer,
            chat_template,
            tool_template,
            template_fault,
            has_head,
            pooling,
            normalize,
            files,
            engine,
            load_time,
        } = model;
        let slot = self.inner.models.iter().find(|slot| slot.name == name && slot.model.get().is_none());
        let slot = slot.ok_or_else(|| ReadyError::Unexpected { name: name.clone() })?;
        let hidden_size = engine.hidden_size();
        let vocab_size = engine.config().vocab_size;
        // A vocabulary may have more tokens than the model has logits, and a prompt none of those.
        let fim = tokenizer.fim().copied().filter(|fim| fim.ids().all(|id| (id as usize) < vocab_size));
        let engine = EngineHandle::start(engine, &self.inner.options)?;
        let profile_of = |template: &ChatTemplate| TemplateProfile::of(template).with_vocabulary(&tokenizer);
        let none = || TemplateProfile::default().with_vocabulary(&tokenizer);
        let profile = chat_template.as_ref().map_or_else(none, profile_of);
        let tool_use = tool_template.map(|template| {
            let profile = profile_of(&template);
            (template, profile)
        });
        let mut controls = profile.controls(&tokenizer);
        controls.extend(tool_use.iter().flat_map(|(_, profile)| profile.controls(&tokenizer)));
        let grammars = Grammars::new(controls);
        let serving = Serving {
            name,
            device,
            version,
            defaults,
            tokenizer,
            chat_template,
            tool_use,
            template_fault,
            has_head,
            engine,
            pooling,
            normalize,
            files,
            hidden_size,
            grammars,
            profile,
            fim,
            generic_tools: self.inner.options.generic_tools,
            special_in_messages: self.inner.options.special_in_messages,
            load_time,
            weight_bytes: slot.loading.weight_bytes(),
            created: unix_time(),
            metrics: Metrics::default(),
        };
        slot.model.set(Arc::new(serving)).map_err(|_| ReadyError::Unexpected { name: slot.name.clone() })
    }

    /// Where whoever loads the model of this name says how far it is. Of another name, nobody looks at it.
    pub fn loading(&self, name: &str) -> Loading {
        let slot = self.inner.models.iter().find(|slot| slot.name == name);
        slot.map_or_else(Loading::default, |slot| slot.loading.clone())
    }

    /// Says that no model will be served, and why.
    pub fn failed(&self, why: &str) {
        *self.inner.not_loaded.write().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
    }

    /// Says once in the log of each field that it was taken without effect: clients send the same with each request.
    pub(crate) fn note_ignored(&self, paths: &[String]) {
        if paths.is_empty() {
            return;
        }
        let mut told = self.inner.ignored.lock().unwrap_or_else(PoisonError::into_inner);
        for path in paths {
            // `messages[17].name` is news only once.
            let mut inside = false;
            let general: String = path
                .chars()
                .filter(|&c| {
                    inside = (inside || c == '[') && c != ']';
                    !inside || c == '['
                })
                .collect();
            if told.len() < IGNORED_TOLD_MAX && told.insert(general.clone()) {
                tracing::info!(field = general, "a field of requests is taken without effect");
            }
        }
    }

    /// Takes no new request from now on; those under way go on.
    pub fn drain(&self) {
        self.inner.draining.store(true, Ordering::Release);
    }

    /// Ends the requests under way, each with an error that says so.
    pub fn stop_requests(&self) {
        self.inner.stop.send_replace(true);
    }

    pub(crate) fn phase(&self) -> Phase {
        if let Some(why) = self.inner.not_loaded.read().unwrap_or_else(PoisonError::into_inner).clone() {
            return Phase::Failed { why };
        }
        let (mut loading, mut ready, mut failure) = (Vec::new(), Vec::new(), None);
        for (name, phase) in self.models() {
            match phase {
                ModelPhase::Loading(_) => loading.push(name.to_owned()),
                ModelPhase::Ready(serving) => ready.push(Arc::clone(serving)),
                ModelPhase::Failed(found) => failure = failure.or(Some(found)),
            }
        }
        match failure {
            // As long as some other answers, or will, there is a server.
            Some(failure) if ready.is_empty() && loading.is_empty() => Phase::Failed { why: failure.to_string() },
            _ if self.inner.draining.load(Ordering::Acquire) => Phase::Draining,
            _ if loading.is_empty() => Phase::Ready(ready),
            _ => Phase::Loading { what: loading },
        }
    }

    /// How each model is, in their order.
    pub(crate) fn models(&self) -> impl Iterator<Item = (&str, ModelPhase<'_>)> {
        self.inner.models.iter().map(|slot| (&*slot.name, slot.phase()))
    }

    /// Whether there has been a model, ever.
    pub(crate) fn has_served(&self) -> bool {
        self.inner.models.iter().any(|slot| slot.model.get().is_some())
    }

    /// Why nothing can be served any more: a model was not loaded, or all engines have failed.
    pub fn failure(&self) -> Option<String> {
        match self.phase() {
            Phase::Failed { why } => Some(why),
            _ => None,
        }
    }

    /// The models that answer now, of which there is one at least.
    pub(crate) fn serving_any(&self) -> Result<Vec<Arc<Serving>>, ApiError> {
        match self.phase() {
            Phase::Ready(serving) => Ok(serving),
            Phase::Draining => Err(ApiError::unavailable("draining", "the server is shutting down")),
            Phase::Failed { why } => Err(ApiError::unavailable("failed", why)),
            Phase::Loading { what } => {
                let found: Vec<_> = self.inner.models.iter().filter_map(|slot| slot.serving().ok()).collect();
                if found.is_empty() { Err(loading(&what.join("`, `"))) } else { Ok(found) }
            }
        }
    }

    /// The model that a request means which asks for `asked`, the first one if for none, if it answers now.
    pub(crate) fn serving(&self, asked: Option<&str>) -> Result<Arc<Serving>, ApiError> {
        self.serving_any()?;
        let models = &self.inner.models;
        let found = asked.map_or(models.first(), |asked| models.iter().find(|slot| is_name_of(&slot.name, asked)));
        found.ok_or_else(|| self.no_such_model(asked.unwrap_or_default()))?.serving()
    }

    /// The model that the request with this body means. What is wrong with the field itself is said by whoever reads the
    /// fields, each in its turn.
    pub(crate) fn serving_of(&self, body: &Value) -> Result<Arc<Serving>, ApiError> {
        match &*self.inner.models {
            [_] => self.serving(None),
            _ => self.serving(body["model"].as_str()),
        }
    }

    /// The most memory that encoding takes for each byte of a text, whichever of the models is meant.
    pub(crate) fn encoding_bytes(&self) -> usize {
        let models = self.inner.models.iter().filter_map(|slot| slot.model.get());
        models.map(|serving| serving.tokenizer.memory_per_byte()).max().unwrap_or_default()
    }

    /// The program's version, once there is a model.
    pub(crate) fn version(&self) -> Result<&'static str, ApiError> {
        Ok(self.serving_any()?.first().map_or("", |serving| serving.version))
    }

    pub(crate) fn no_such_model(&self, asked: &str) -> ApiError {
        let names: Vec<_> = self.inner.models.iter().map(|slot| &*slot.name).collect();
        ApiError::no_such_model(asked, &names)
    }
}

/// Whether a request that names `asked` means the model of this name. Clients of Ollama write a name without a tag with
/// the tag `latest`.
fn is_name_of(name: &str, asked: &str) -> bool {
    asked == name || asked.strip_suffix(":latest") == Some(name)
}

fn loading(names: &str) -> ApiError {
    ApiError::unavailable("loading", format!("`{names}` is still being loaded"))
}

impl Serving {
    /// Whether a request that names `asked` means this model.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if !is_name_of(&self.name, asked) => Err(ApiError::no_such_model(asked, &[&self.name])),
            _ => Ok(()),
        }
    }
}
