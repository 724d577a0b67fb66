//! The server's state: what is served, and whether it is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::{get, post};
use engine::{Engine, SamplingParams};
use tokenizer::Tokenizer;
use tokenizer::chat_template::ChatTemplate;
use tokio::sync::watch;

use crate::engine_thread::EngineHandle;
use crate::error::ApiError;
use crate::generation::unix_time;
use crate::grammar::Grammars;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::tools::Dialect;
use crate::{anthropic, chat, completions, embeddings, info, openapi, page, responses, security, tokens};

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
    /// The pooling that the model was trained with, by its name, if it was trained to make vectors of texts.
    pub pooling: Option<String>,
    /// Whether such vectors are brought to length 1, if the model's files say so.
    pub normalize: Option<bool>,
    /// The engine, with the model in it.
    pub engine: Engine,
    /// How long loading took.
    pub load_time: Duration,
}

/// A model that is being served.
pub(crate) struct Serving {
    pub(crate) name: String,
    pub(crate) device: String,
    pub(crate) version: &'static str,
    pub(crate) defaults: SamplingParams,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) chat_template: Option<ChatTemplate>,
    pub(crate) engine: EngineHandle,
    /// The pooling that the model was trained with.
    pub(crate) pooling: Option<String>,
    pub(crate) normalize: Option<bool>,
    /// The width of embeddings, if the device gives any.
    pub(crate) hidden_size: Option<usize>,
    pub(crate) grammars: Grammars,
    /// How the model writes reasoning and calls of tools.
    pub(crate) dialect: Dialect,
    pub(crate) load_time: Duration,
    /// Seconds since 1970 when it was ready.
    pub(crate) created: u64,
}

/// How far the server is.
#[derive(Clone)]
pub(crate) enum Phase {
    Loading { what: String },
    Ready(Arc<Serving>),
    Draining,
    Failed { why: String },
}

/// A server without a socket. Cheap to clone.
#[derive(Clone)]
pub struct App {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) metrics: Metrics,
    pub(crate) started: Instant,
    phase: RwLock<Phase>,
    draining: AtomicBool,
    /// Turns true when streams have to end now.
    pub(crate) stop: watch::Sender<bool>,
}

impl App {
    /// A server that is loading `model`: everything but its health is answered by 503.
    pub fn new(options: Options, model: &str) -> Self {
        let inner = Inner {
            options,
            metrics: Metrics::default(),
            started: Instant::now(),
            phase: RwLock::new(Phase::Loading { what: model.to_owned() }),
            draining: AtomicBool::new(false),
            stop: watch::Sender::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Starts the engine's thread and serves the model from now on.
    pub fn ready(&self, model: ServedModel) -> std::io::Result<()> {
        let ServedModel {
            name,
            device,
            version,
            defaults,
            tokenizer,
            chat_template,
            pooling,
            normalize,
            engine,
            load_time,
        } = model;
        let hidden_size = engine.hidden_size();
        let engine = EngineHandle::start(engine, self.inner.options.step_time_max)?;
        let dialect = chat_template.as_ref().map_or_else(Dialect::default, Dialect::of);
        let serving = Serving {
            name,
            device,
            version,
            defaults,
            tokenizer,
            chat_template,
            engine,
            pooling,
            normalize,
            hidden_size,
            grammars: Grammars::default(),
            dialect,
            load_time,
            created: unix_time(),
        };
        self.set_phase(Phase::Ready(Arc::new(serving)));
        Ok(())
    }

    /// Says that no model will be served, and why.
    pub fn failed(&self, why: &str) {
        self.set_phase(Phase::Failed { why: why.to_owned() });
    }

    /// Takes no new request from now on; those under way go on.
    pub fn drain(&self) {
        self.inner.draining.store(true, Ordering::Release);
    }

    /// Ends the requests under way, each with an error that says so.
    pub fn stop_requests(&self) {
        self.inner.stop.send_replace(true);
    }

    /// All routes, behind the layer that checks host, origin and key.
    pub fn router(&self) -> Router {
        let routes = Router::new()
            .route("/v1/chat/completions", post(chat::chat_completions))
            .route("/v1/completions", post(completions::completions))
            .route("/v1/embeddings", post(embeddings::embeddings))
            .route("/v1/responses", post(responses::responses))
            .route("/v1/messages", post(anthropic::messages))
            .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
            .route("/v1/models", get(info::models))
            .route("/v1/models/{*model}", get(info::model))
            .route("/tokenize", post(tokens::tokenize))
            .route("/detokenize", post(tokens::detokenize))
            .route("/tokenizer_info", get(tokens::tokenizer_info))
            .route("/apply-template", post(tokens::apply_template))
            .route("/", get(page::index))
            .route("/app.js", get(page::script))
            .route("/app.css", get(page::style))
            .route("/openapi.json", get(openapi::openapi))
            .route("/health", get(info::health))
            .route("/version", get(info::version))
            .route("/metrics", get(info::metrics))
            .fallback(info::not_found)
            .method_not_allowed_fallback(info::method_not_allowed)
            .with_state(self.clone());
        security::protect(routes, self)
    }

    pub(crate) fn phase(&self) -> Phase {
        let phase = self.inner.phase.read().unwrap_or_else(PoisonError::into_inner).clone();
        let failure = match &phase {
            Phase::Ready(serving) => serving.engine.failure(),
            _ => None,
        };
        match (failure, &phase) {
            (Some(failure), _) => Phase::Failed { why: failure.to_string() },
            // A server that has failed shuts down too, and says why as long as it says anything.
            (None, Phase::Failed { .. }) => phase,
            _ if self.inner.draining.load(Ordering::Acquire) => Phase::Draining,
            _ => phase,
        }
    }

    /// Whether there has been a model, ever.
    pub(crate) fn has_served(&self) -> bool {
        matches!(*self.inner.phase.read().unwrap_or_else(PoisonError::into_inner), Phase::Ready(_))
    }

    /// Why nothing can be served any more: the model was not loaded, or the engine has failed.
    pub fn failure(&self) -> Option<String> {
        match self.phase() {
            Phase::Failed { why } => Some(why),
            _ => None,
        }
    }

    /// The model, if there is one now.
    pub(crate) fn serving(&self) -> Result<Arc<Serving>, ApiError> {
        match self.phase() {
            Phase::Ready(serving) => Ok(serving),
            Phase::Loading { what } => Err(ApiError::unavailable("loading", format!("`{what}` is still being loaded"))),
            Phase::Draining => Err(ApiError::unavailable("draining", "the server is shutting down")),
            Phase::Failed { why } => Err(ApiError::unavailable("failed", why)),
        }
    }

    fn set_phase(&self, phase: Phase) {
        *self.inner.phase.write().unwrap_or_else(PoisonError::into_inner) = phase;
    }
}

impl Serving {
    /// Whether a request that names `asked` means this model.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if asked != self.name => Err(ApiError::no_such_model(asked, &self.name)),
            _ => Ok(()),
        }
    }
}
