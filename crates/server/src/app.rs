//! The server's state: what is served, and whether it is.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use engine::{Engine, Pooling, SamplingParams};
use serde_json::{Map, Value};
use tokenizer::chat_template::ChatTemplate;
use tokenizer::{FimMarkers, ParseSpecial, Tokenizer};
use tokio::sync::{oneshot, watch};

use crate::clock::unix_time;
use crate::engine_thread::{EngineFailure, EngineHandle, IdleWork};
use crate::error::ApiError;
use crate::fields::{FieldPolicy, ignore};
use crate::grammar::Grammars;
use crate::loading::Loading;
use crate::memory::Memory;
use crate::metrics::{HttpMetrics, Metrics};
use crate::options::{Keep, Options};
use crate::slot_texts::Slots;
use crate::template_profile::{TemplateProfile, ToolForm};

/// Fields without effect, and refusals, that the log warns of at most: clients make the names.
const TOLD_MAX: usize = 256;

/// A route, the field that it refused, and the code of the refusal.
type Refusal = (String, Option<String>, Option<&'static str>);

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
    /// What is done once, while no request runs.
    pub idle_work: Option<IdleWork>,
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
    /// What tells it from another model, as it was loaded: two with the same compute the same. Only where slots are saved does
    /// anybody ask for it.
    pub identity: Option<String>,
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
            idle_work: None,
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
    /// Whether it answers requests that name another model.
    any_name: bool,
    /// Whether tools are described in words where the template shows none.
    generic_tools: bool,
    /// Variables of chat templates, where a request does not set them.
    pub(crate) template_defaults: Map<String, Value>,
    /// The seed of requests that give none.
    pub(crate) seed: Option<u64>,
    /// How vectors are pooled where a request does not say it, whatever the model was trained with.
    pub(crate) pooling_asked: Option<Pooling>,
    /// Whether texts go on where their context is full, and which tokens stay.
    pub(crate) context_shift: Option<Keep>,
    /// Tokens of a text at most.
    pub(crate) max_tokens: Option<usize>,
    /// Whether special tokens count in messages.
    pub(crate) special_in_messages: ParseSpecial,
    pub(crate) load_time: Duration,
    /// Bytes of its weights, if the loader says so.
    pub(crate) weight_bytes: Option<u64>,
    /// Seconds since 1970 when it was ready.
    pub(crate) created: u64,
    /// How its requests fared.
    pub(crate) metrics: Arc<Metrics>,
    /// The last texts of slots, if these can be saved.
    pub(crate) slots: Slots,
}

impl Serving {
    /// Starts the engine's thread of a model.
    fn start(model: ServedModel, slot: &ModelSlot, is_alone: bool, options: &Options) -> std::io::Result<Self> {
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
            idle_work,
            load_time,
        } = model;
        let hidden_size = engine.hidden_size();
        let vocab_size = engine.config().vocab_size;
        // A vocabulary may have more tokens than the model has logits, and a prompt none of those.
        let fim = tokenizer.fim().copied().filter(|fim| fim.ids().all(|id| (id as usize) < vocab_size));
        let engine = EngineHandle::start(engine, idle_work, options)?;
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
        Ok(Self {
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
            any_name: is_alone && !options.strict_model,
            generic_tools: options.generic_tools,
            template_defaults: options.template_defaults.clone(),
            seed: options.seed,
            pooling_asked: options.pooling,
            context_shift: options.context_shift,
            max_tokens: options.max_tokens,
            special_in_messages: options.special_in_messages,
            load_time,
            weight_bytes: slot.loading.weight_bytes(),
            created: unix_time(),
            metrics: Arc::clone(&slot.metrics),
            slots: Slots::default(),
        })
    }

    /// The template of a conversation, with tools or without: as in transformers, one named `tool_use` is for those with.
    pub(crate) fn template(&self, with_tools: bool) -> Option<&ChatTemplate> {
        let own = self.tool_use.as_ref().filter(|_| with_tools).map(|(template, _)| template);
        own.or(self.chat_template.as_ref())
    }

    /// The limit of a text: the smaller one of its request's limit and the server's.
    pub(crate) fn most_tokens(&self, wanted: Option<usize>) -> Option<usize> {
        [wanted, self.max_tokens].into_iter().flatten().min()
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
    /// All are loaded that are not loaded on demand, and these answer: one at least, or some are to be loaded on demand.
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
    pub(crate) models: Arc<Models>,
    /// Why there will be no models.
    not_loaded: RwLock<Option<String>>,
    has_served: AtomicBool,
    draining: AtomicBool,
    /// Turns true when streams have to end now.
    pub(crate) stop: watch::Sender<bool>,
    /// Fields without effect that the log has named.
    ignored: Mutex<HashSet<String>>,
    /// Those that the log has warned of.
    refusals: Mutex<HashSet<Refusal>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.models.lock().is_closed = true;
        self.models.changed.notify_all();
    }
}

/// The models of a server, in their order. Whoever loads them on demand shares them.
pub(crate) struct Models {
    pub(crate) slots: Vec<ModelSlot>,
    seats: Mutex<Seats>,
    /// Notified of what whoever loads on demand waits for.
    pub(crate) changed: Condvar,
}

impl Models {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What of a model stays as it is.
pub(crate) struct ModelSlot {
    pub(crate) name: String,
    /// Whether it is loaded when a request asks for it, and not at the start.
    is_offered: bool,
    pub(crate) loading: Loading,
    metrics: Arc<Metrics>,
}

/// Where the models are, and who waits for one.
pub(crate) struct Seats {
    /// In the order of the slots.
    pub(crate) seats: Vec<Seat>,
    /// The models that requests wait for, in the order in which they were first asked for.
    pub(crate) wanted: VecDeque<Wanted>,
    /// Nobody is left who could ask.
    pub(crate) is_closed: bool,
    /// How long a model may be without requests, where one is then unloaded.
    pub(crate) idle_time_max: Option<Duration>,
    /// The program's version, where models are loaded on demand.
    pub(crate) version: Option<&'static str>,
}

/// Where a model is.
pub(crate) struct Seat {
    pub(crate) place: Place,
    pub(crate) last_used: Instant,
    /// Another model is to have its room, so it takes no new requests.
    pub(crate) leaves: bool,
    /// How often in succession it was found in use.
    pub(crate) found_in_use: u32,
}

/// Whether a model is loaded.
pub(crate) enum Place {
    /// It is loaded at the start, and is not there yet.
    First,
    /// It is not; the last attempt may have failed.
    Unloaded {
        has_failed: bool,
    },
    /// Somebody has asked for it.
    Loading,
    Ready(Arc<Serving>),
}

/// A model that requests wait for.
pub(crate) struct Wanted {
    pub(crate) index: usize,
    pub(crate) waiters: Vec<oneshot::Sender<Result<Arc<Serving>, ApiError>>>,
}

impl Seat {
    /// Whether nobody uses the model, or looks at it.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(&self.place, Place::Ready(serving) if Arc::strong_count(serving) == 1 && serving.engine.is_alone())
    }

    fn phase(&self, slot: &ModelSlot) -> ModelPhase {
        match &self.place {
            Place::First => ModelPhase::Loading(slot.loading.clone()),
            Place::Loading => ModelPhase::OnDemand(Absence::Loading(slot.loading.clone())),
            &Place::Unloaded { has_failed } => ModelPhase::OnDemand(Absence::Unloaded { has_failed }),
            Place::Ready(serving) => {
                serving.engine.failure().map_or_else(|| ModelPhase::Ready(Arc::clone(serving)), ModelPhase::Failed)
            }
        }
    }
}

/// How one of the models is.
pub(crate) enum ModelPhase {
    /// It is being loaded since the start.
    Loading(Loading),
    Ready(Arc<Serving>),
    Failed(EngineFailure),
    /// It is not loaded, and a request loads it.
    OnDemand(Absence),
}

/// How far a model is that a request loads.
pub(crate) enum Absence {
    Unloaded { has_failed: bool },
    Loading(Loading),
}

impl ModelPhase {
    /// The model, if it answers now.
    pub(crate) fn serving(self, name: &str) -> Result<Arc<Serving>, ApiError> {
        match self {
            Self::Ready(serving) => Ok(serving),
            Self::Loading(_) => Err(loading(name)),
            Self::Failed(failure) => Err(ApiError::unavailable("failed", failure.to_string())),
            Self::OnDemand(_) => {
                let message = format!("`{name}` is not loaded; a request that generates with it loads it");
                Err(ApiError::unavailable("not_loaded", message))
            }
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
    /// holds. The models `offered` are loaded on demand, the others at the start.
    pub(crate) fn with_routes(
        options: Options,
        models: &[&str],
        offered: &[&str],
        is_generation_field: fn(&str) -> bool,
    ) -> Self {
        assert!(!models.is_empty() || !offered.is_empty(), "a server serves a model");
        let (mut slots, mut seats) = (Vec::new(), Vec::new());
        let all = models.iter().map(|name| (name, false)).chain(offered.iter().map(|name| (name, true)));
        for (name, is_offered) in all {
            let (name, loading, metrics) = ((*name).to_owned(), Loading::default(), Arc::default());
            slots.push(ModelSlot { name, is_offered, loading, metrics });
            let place = if is_offered { Place::Unloaded { has_failed: false } } else { Place::First };
            seats.push(Seat { place, last_used: Instant::now(), leaves: false, found_in_use: 0 });
        }
        let seats = Seats { seats, wanted: VecDeque::new(), is_closed: false, idle_time_max: None, version: None };
        let inner = Inner {
            field_policy: FieldPolicy { strict: options.strict_fields, is_generation_field },
            memory: Memory::new(options.prepare_bytes_max, options.prepare_time_max),
            options,
            metrics: HttpMetrics::default(),
            started: Instant::now(),
            models: Arc::new(Models { slots, seats: Mutex::new(seats), changed: Condvar::new() }),
            not_loaded: RwLock::new(None),
            has_served: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            stop: watch::Sender::new(false),
            ignored: Mutex::default(),
            refusals: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Starts the engine's thread of one of the models and serves it from now on.
    pub fn ready(&self, model: ServedModel) -> Result<(), ReadyError> {
        let awaited = |&index: &usize| matches!(self.inner.models.lock().seats[index].place, Place::First);
        let index = self.index_of(&model.name).filter(awaited);
        let index = index.ok_or_else(|| ReadyError::Unexpected { name: model.name.clone() })?;
        self.inner.seat(index, model)?;
        Ok(())
    }

    /// Where whoever loads the model of this name says how far it is. Of another name, nobody looks at it.
    pub fn loading(&self, name: &str) -> Loading {
        let index = self.index_of(name);
        index.map_or_else(Loading::default, |index| self.inner.models.slots[index].loading.clone())
    }

    fn index_of(&self, name: &str) -> Option<usize> {
        self.inner.models.slots.iter().position(|slot| slot.name == name)
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
            if told.len() < TOLD_MAX && told.insert(general.clone()) {
                tracing::warn!(field = general, "a field of requests is taken without effect");
            }
        }
    }

    /// Says in the log that a request was refused: as a warning the first time that `route` refuses this field for this
    /// reason, if it is the client's, because clients try again and again.
    pub(crate) fn note_refusal(&self, id: &str, route: &str, error: &ApiError) {
        let (param, code) = (error.param(), error.code());
        let mut told = self.inner.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        // One that comes too early is none of these: it is served later.
        let is_of_the_request = error.status.is_client_error() && error.status.as_u16() != 429;
        let is_new = is_of_the_request
            && told.len() < TOLD_MAX
            && told.insert((route.to_owned(), param.map(str::to_owned), code));
        drop(told);
        match is_new {
            true => tracing::warn!(%id, route, param, code, "refused"),
            false => tracing::info!(%id, route, param, code, "refused"),
        }
    }

    /// Takes no new request from now on; those under way go on, but for those that wait until a model is loaded.
    pub fn drain(&self) {
        self.inner.draining.store(true, Ordering::Release);
        for waiter in self.inner.models.lock().wanted.drain(..).flat_map(|wanted| wanted.waiters) {
            // Whoever has gone needs no answer.
            let _ = waiter.send(Err(draining()));
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.inner.draining.load(Ordering::Acquire)
    }

    /// What `work` makes of a request, unless requests are ended before: then `work` is dropped.
    pub(crate) async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let mut stop = self.inner.stop.subscribe();
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => Err(draining()),
            made = work => made,
        }
    }

    /// Ends the requests under way, each with an error that says so.
    pub fn stop_requests(&self) {
        self.inner.stop.send_replace(true);
    }

    pub(crate) fn phase(&self) -> Phase {
        if let Some(why) = self.inner.not_loaded.read().unwrap_or_else(PoisonError::into_inner).clone() {
            return Phase::Failed { why };
        }
        let (mut loading, mut ready, mut failure, mut is_on_demand) = (Vec::new(), Vec::new(), None, false);
        for (name, phase) in self.models() {
            match phase {
                ModelPhase::Loading(_) => loading.push(name.to_owned()),
                ModelPhase::Ready(serving) => ready.push(serving),
                ModelPhase::Failed(found) => failure = failure.or(Some(found)),
                ModelPhase::OnDemand(_) => is_on_demand = true,
            }
        }
        match failure {
            // As long as some other answers, or will, there is a server.
            Some(failure) if ready.is_empty() && loading.is_empty() && !is_on_demand => {
                Phase::Failed { why: failure.to_string() }
            }
            _ if self.is_draining() => Phase::Draining,
            _ if loading.is_empty() => Phase::Ready(ready),
            _ => Phase::Loading { what: loading },
        }
    }

    /// How each model is, in their order.
    pub(crate) fn models(&self) -> Vec<(&str, ModelPhase)> {
        let models = &self.inner.models;
        let seats = models.lock();
        models.slots.iter().zip(&seats.seats).map(|(slot, seat)| (&*slot.name, seat.phase(slot))).collect()
    }

    /// How long each model that is loaded may still be without requests, where one is then unloaded.
    pub(crate) fn expiries(&self) -> Vec<(&str, Duration)> {
        let models = &self.inner.models;
        let seats = models.lock();
        let Some(most) = seats.idle_time_max else { return Vec::new() };
        let left = |seat: &Seat| most.saturating_sub(seat.last_used.elapsed());
        models.slots.iter().zip(&seats.seats).map(|(slot, seat)| (&*slot.name, left(seat))).collect()
    }

    /// Whether there has been a model, ever.
    pub(crate) fn has_served(&self) -> bool {
        self.inner.has_served.load(Ordering::Acquire)
    }

    /// Why nothing can be served any more: a model was not loaded, or all engines have failed.
    pub fn failure(&self) -> Option<String> {
        match self.phase() {
            Phase::Failed { why } => Some(why),
            _ => None,
        }
    }

    /// Seconds since 1970 when the server started.
    pub(crate) fn started_at(&self) -> u64 {
        unix_time().saturating_sub(self.inner.started.elapsed().as_secs())
    }

    /// The models that answer now, of which there is one at least, or one that is loaded on demand.
    pub(crate) fn serving_any(&self) -> Result<Vec<Arc<Serving>>, ApiError> {
        match self.phase() {
            Phase::Ready(serving) => Ok(serving),
            Phase::Draining => Err(draining()),
            Phase::Failed { why } => Err(ApiError::unavailable("failed", why)),
            Phase::Loading { what } => {
                let (mut found, mut is_on_demand) = (Vec::new(), false);
                for (_, phase) in self.models() {
                    match phase {
                        ModelPhase::Ready(serving) => found.push(serving),
                        ModelPhase::OnDemand(_) => is_on_demand = true,
                        ModelPhase::Loading(_) | ModelPhase::Failed(_) => {}
                    }
                }
                if found.is_empty() && !is_on_demand { Err(loading(&what.join("`, `"))) } else { Ok(found) }
            }
        }
    }

    /// Which model a request means that asks for `asked`: for none the first one, unless there are several, and all of
    /// them are loaded on demand.
    pub(crate) fn meant(&self, asked: Option<&str>) -> Result<usize, ApiError> {
        let slots = &self.inner.models.slots;
        match (asked, &**slots) {
            (Some(asked), _) => {
                let found = slots.iter().position(|slot| is_name_of(&slot.name, asked));
                found.ok_or_else(|| self.no_such_model(asked))
            }
            (None, [first, _, ..]) if first.is_offered => {
                let names: Vec<_> = slots.iter().map(|slot| &*slot.name).collect();
                let message = format!("`model` has to name one of the models here: `{}`", names.join("`, `"));
                Err(ApiError::invalid("model", message))
            }
            (None, _) => Ok(0),
        }
    }

    /// The model that a request means which asks for `asked`, if it answers now.
    pub(crate) fn serving(&self, asked: Option<&str>) -> Result<Arc<Serving>, ApiError> {
        self.serving_any()?;
        let index = self.meant(asked)?;
        let Models { slots, .. } = &*self.inner.models;
        let phase = self.inner.models.lock().seats[index].phase(&slots[index]);
        phase.serving(&slots[index].name)
    }

    /// Which model the request with this body means. What is wrong with the field itself is said by whoever reads the
    /// fields, each in its turn.
    pub(crate) fn meant_by(&self, body: &Value) -> Result<usize, ApiError> {
        match &*self.inner.models.slots {
            [_] => self.meant(None),
            // Ollama's older clients write `name`.
            [first, ..] if first.is_offered && body["model"].is_null() => self.meant(body["name"].as_str()),
            _ => self.meant(body["model"].as_str()),
        }
    }

    /// The most memory that encoding takes for each byte of a text, whichever of the models is meant.
    pub(crate) fn encoding_bytes(&self) -> usize {
        let seats = self.inner.models.lock();
        let bytes = |seat: &Seat| match &seat.place {
            Place::Ready(serving) => Some(serving.tokenizer.memory_per_byte()),
            _ => None,
        };
        seats.seats.iter().filter_map(bytes).max().unwrap_or_default()
    }

    /// The program's version, once there is a model, or one that is loaded on demand.
    pub(crate) fn version(&self) -> Result<&'static str, ApiError> {
        let of_model = self.serving_any()?.first().map(|serving| serving.version);
        Ok(of_model.or(self.inner.models.lock().version).unwrap_or_default())
    }

    pub(crate) fn no_such_model(&self, asked: &str) -> ApiError {
        let names: Vec<_> = self.inner.models.slots.iter().map(|slot| &*slot.name).collect();
        ApiError::no_such_model(asked, &names)
    }
}

impl Inner {
    /// Starts the engine's thread of a model and puts it into its place.
    pub(crate) fn seat(&self, index: usize, model: ServedModel) -> std::io::Result<Arc<Serving>> {
        let slots = &self.models.slots;
        // A name that is offered on demand was chosen from a list, and so is the only one of such a list.
        let is_alone = matches!(&**slots, [slot] if !slot.is_offered);
        let serving = Arc::new(Serving::start(model, &slots[index], is_alone, &self.options)?);
        let mut seats = self.models.lock();
        let seat = &mut seats.seats[index];
        (seat.place, seat.last_used, seat.leaves) = (Place::Ready(Arc::clone(&serving)), Instant::now(), false);
        self.has_served.store(true, Ordering::Release);
        Ok(serving)
    }
}

/// Whether a request that names `asked` means the model of this name. Clients of Ollama write a name without a tag with
/// the tag `latest`.
fn is_name_of(name: &str, asked: &str) -> bool {
    asked == name || asked.strip_suffix(":latest") == Some(name)
}

/// Why nothing new is answered.
pub(crate) fn draining() -> ApiError {
    ApiError::unavailable("draining", "the server is shutting down")
}

pub(crate) fn loading(names: &str) -> ApiError {
    ApiError::unavailable("loading", format!("`{names}` is still being loaded"))
}

impl Serving {
    /// Whether this model answers a request that names `asked`. Where there is no other, it does whatever the name is,
    /// which is then without effect: programs have a name of OpenAI's or Anthropic's written in.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if self.any_name && !self.is_named(asked) => {
                ignore("model");
                Ok(())
            }
            asked => self.check_name(asked),
        }
    }

    /// Whether a request that asks what `asked` is means this model.
    pub(crate) fn check_name(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if !self.is_named(asked) => Err(ApiError::no_such_model(asked, &[&self.name])),
            _ => Ok(()),
        }
    }

    /// Whether `asked` is a name of this model.
    pub(crate) fn is_named(&self, asked: &str) -> bool {
        is_name_of(&self.name, asked)
    }
}
