//! All routes: their handlers, their fields, and what the document at `/openapi.json` says of them. The only file that
//! knows them all; the state ([`App`]) knows no handler, and handlers know the state.

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{any, get, post};

use crate::app::App;
use crate::error::{ApiError, json_response};
use crate::fields::Rule;
use crate::openapi::{self, BodyRoute, ReadRoute};
use crate::options::Options;
use crate::sse::Framing;
use crate::{
    anthropic, chat, completions, embeddings, grammar, infill, info, llama_cpp, ollama, page, responses, sampling,
    score, security, token_rules, tokens, tools,
};

/// The media types of streams.
const EVENTS: Option<&str> = Some(Framing::Events.media_type());
const LINES: Option<&str> = Some(Framing::Lines.media_type());

/// Routes of other servers by which clients change which models there are. They are refused by any method, with what to
/// do instead, and are not in the document.
pub(crate) const REFUSED_ROUTES: &[&str] =
    &["/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/{*digest}"];

/// All routes that take a body, with their fields.
pub(crate) const BODY_ROUTES: &[BodyRoute] = &[
    BodyRoute {
        path: "/v1/chat/completions",
        aliases: &["/chat/completions"],
        handler: || post(chat::chat_completions),
        summary: "Answer a conversation",
        known: &[
            sampling::COMMON,
            sampling::FIELDS,
            grammar::FIELDS,
            token_rules::FIELDS,
            tools::FIELDS,
            chat::PROMPT_FIELDS,
            chat::FIELDS,
        ],
        required: &["messages"],
        answer: "ChatCompletion",
        stream: EVENTS,
    },
    BodyRoute {
        path: "/v1/completions",
        aliases: &[],
        handler: || post(completions::completions),
        summary: "Continue texts or token ids, echo or score them",
        known: &[sampling::COMMON, sampling::FIELDS, grammar::FIELDS, token_rules::FIELDS, completions::FIELDS],
        required: &["prompt"],
        answer: "Completion",
        stream: EVENTS,
    },
    BodyRoute {
        path: "/completion",
        // Of OpenAI's interface, the path without a version is llama.cpp's own.
        aliases: &["/completions"],
        handler: || post(llama_cpp::completion),
        summary: "Continue texts or token ids, in llama.cpp's form",
        known: &[sampling::COMMON, llama_cpp::COMMON, grammar::FIELDS, token_rules::FIELDS, llama_cpp::FIELDS],
        required: &["prompt"],
        answer: "Infill",
        stream: EVENTS,
    },
    BodyRoute {
        path: "/infill",
        aliases: &[],
        handler: || post(infill::infill),
        summary: "Fill a gap in a text, in llama.cpp's form",
        known: &[sampling::COMMON, llama_cpp::COMMON, grammar::FIELDS, infill::FIELDS],
        required: &["input_prefix", "input_suffix"],
        answer: "Infill",
        stream: EVENTS,
    },
    BodyRoute {
        path: "/v1/responses",
        aliases: &["/responses"],
        handler: || post(responses::responses),
        summary: "Answer a conversation, in items",
        known: &[responses::FIELDS],
        required: &["input"],
        answer: "Response",
        stream: EVENTS,
    },
    BodyRoute {
        path: "/v1/messages",
        aliases: &["/messages"],
        handler: || post(anthropic::messages),
        summary: "Answer a conversation, in Anthropic's form",
        known: &[anthropic::PROMPT_FIELDS, anthropic::FIELDS],
        required: &["messages", "max_tokens"],
        answer: "Message",
        stream: EVENTS,
    },
    BodyRoute {
        path: "/v1/messages/count_tokens",
        aliases: &["/messages/count_tokens"],
        handler: || post(anthropic::count_tokens),
        summary: "Count the tokens of a conversation, in Anthropic's form",
        known: &[anthropic::PROMPT_FIELDS],
        required: &["messages"],
        answer: "TokenCount",
        stream: None,
    },
    BodyRoute {
        path: "/v1/embeddings",
        aliases: &["/embeddings"],
        handler: || post(embeddings::embeddings),
        summary: "Vectors of texts, pooled from the model's hidden states",
        known: &[embeddings::FIELDS],
        required: &["input"],
        answer: "EmbeddingList",
        stream: None,
    },
    BodyRoute {
        path: "/pooling",
        aliases: &["/v1/pooling"],
        handler: || post(embeddings::pooling),
        summary: "Vectors of texts, in vLLM's form",
        known: &[embeddings::FIELDS, embeddings::POOLING],
        required: &["input"],
        answer: "EmbeddingList",
        stream: None,
    },
    BodyRoute {
        path: "/v1/score",
        aliases: &["/score"],
        handler: || post(score::score),
        summary: "How near texts are, by a model of vectors",
        known: &[score::COMMON, score::SCORE],
        required: &["text_1", "text_2"],
        answer: "Scores",
        stream: None,
    },
    BodyRoute {
        path: "/v1/rerank",
        aliases: &["/rerank", "/v2/rerank", "/reranking", "/v1/reranking"],
        handler: || post(score::rerank),
        summary: "Texts in the order in which they are near to a query, by a model of vectors",
        known: &[score::COMMON, score::RERANK],
        required: &["query", "documents"],
        answer: "Ranking",
        stream: None,
    },
    BodyRoute {
        path: "/tokenize",
        aliases: &[],
        handler: || post(tokens::tokenize),
        summary: "A text or a conversation as token ids",
        known: &[tokens::TOKENIZE, chat::PROMPT_FIELDS],
        required: &[],
        answer: "Tokens",
        stream: None,
    },
    BodyRoute {
        path: "/detokenize",
        aliases: &[],
        handler: || post(tokens::detokenize),
        summary: "Token ids as text",
        known: &[tokens::DETOKENIZE],
        required: &["tokens"],
        answer: "Detokenized",
        stream: None,
    },
    BodyRoute {
        path: "/apply-template",
        aliases: &[],
        handler: || post(tokens::apply_template),
        summary: "The text that the model would see of a conversation",
        known: &[tokens::APPLY_TEMPLATE, chat::PROMPT_FIELDS],
        required: &["messages"],
        answer: "Rendered",
        stream: None,
    },
    BodyRoute {
        path: "/v1/chat/completions/input_tokens",
        aliases: &["/chat/completions/input_tokens"],
        handler: || post(tokens::input_tokens),
        summary: "Count the tokens of a conversation, in llama.cpp's form",
        known: &[tokens::APPLY_TEMPLATE, chat::PROMPT_FIELDS],
        required: &["messages"],
        answer: "TokenCount",
        stream: None,
    },
    BodyRoute {
        path: "/api/chat",
        aliases: &[],
        handler: || post(ollama::chat),
        summary: "Answer a conversation, in Ollama's form",
        known: &[ollama::COMMON, ollama::CHAT],
        required: &[],
        answer: "OllamaChat",
        stream: LINES,
    },
    BodyRoute {
        path: "/api/generate",
        aliases: &[],
        handler: || post(ollama::generate),
        summary: "Answer or continue a text, in Ollama's form",
        known: &[ollama::COMMON, ollama::GENERATE],
        required: &[],
        answer: "OllamaText",
        stream: LINES,
    },
    BodyRoute {
        path: "/api/embed",
        aliases: &[],
        handler: || post(ollama::embed),
        summary: "Vectors of texts, in Ollama's form",
        known: &[ollama::EMBED],
        required: &[],
        answer: "OllamaVectors",
        stream: None,
    },
    BodyRoute {
        path: "/api/embeddings",
        aliases: &[],
        handler: || post(ollama::embeddings),
        summary: "The vector of a text, in Ollama's older form",
        known: &[ollama::EMBEDDINGS],
        required: &[],
        answer: "OllamaVector",
        stream: None,
    },
    BodyRoute {
        path: "/api/show",
        aliases: &[],
        handler: || post(ollama::show),
        summary: "What a model is and can, in Ollama's form",
        known: &[ollama::SHOW],
        required: &[],
        answer: "OllamaModel",
        stream: None,
    },
];

/// All routes that are only read.
pub(crate) const READ_ROUTES: &[ReadRoute] = &[
    ReadRoute {
        path: "/v1/models",
        aliases: &["/models"],
        handler: || get(info::models),
        summary: "What is served",
        answer: Ok("ModelList"),
        model_query: None,
        is_open: false,
    },
    ReadRoute {
        path: "/v1/models/{*model}",
        aliases: &["/models/{*model}"],
        handler: || get(info::model),
        summary: "What is served, if it is this",
        answer: Ok("Model"),
        model_query: None,
        is_open: false,
    },
    ReadRoute {
        path: "/tokenizer_info",
        aliases: &[],
        handler: || get(tokens::tokenizer_info),
        summary: "Special tokens, and what the chat template can show",
        answer: Ok("Object"),
        model_query: Some("Whose tokens; the first model's without it"),
        is_open: false,
    },
    ReadRoute {
        path: "/health",
        // As vLLM and Sagemaker call it, too.
        aliases: &["/v1/health", "/ping"],
        handler: || get(info::health),
        summary: "Whether requests are answered",
        answer: Ok("Health"),
        model_query: Some("Of this model alone"),
        is_open: true,
    },
    ReadRoute {
        path: "/load",
        aliases: &[],
        handler: || get(info::load),
        summary: "How many texts run or wait, in vLLM's form",
        answer: Ok("Object"),
        model_query: Some("Of this model; of all without it"),
        is_open: false,
    },
    ReadRoute {
        path: "/version",
        aliases: &[],
        handler: || get(info::version),
        summary: "The program's version",
        answer: Ok("Version"),
        model_query: None,
        is_open: false,
    },
    ReadRoute {
        path: "/api/tags",
        aliases: &[],
        handler: || get(ollama::tags),
        summary: "What is served, in Ollama's form",
        answer: Ok("OllamaModels"),
        model_query: None,
        is_open: false,
    },
    ReadRoute {
        path: "/api/ps",
        aliases: &[],
        handler: || get(ollama::ps),
        summary: "What is loaded, in Ollama's form",
        answer: Ok("OllamaModels"),
        model_query: None,
        is_open: false,
    },
    ReadRoute {
        path: "/api/version",
        aliases: &[],
        handler: || get(ollama::version),
        summary: "The version of Ollama's interface that is followed",
        answer: Ok("Version"),
        model_query: None,
        is_open: false,
    },
    ReadRoute {
        path: "/props",
        aliases: &[],
        handler: || get(llama_cpp::props),
        summary: "Defaults and chat template, in llama.cpp's form",
        answer: Ok("Object"),
        model_query: Some("Of this model; of the first without it"),
        is_open: false,
    },
    ReadRoute {
        path: "/slots",
        aliases: &[],
        handler: || get(llama_cpp::slots),
        summary: "Places for texts, in llama.cpp's form",
        answer: Ok("List"),
        model_query: Some("Of this model; of the first without it"),
        is_open: false,
    },
    ReadRoute {
        path: "/metrics",
        aliases: &[],
        handler: || get(info::metrics),
        summary: "Counters and distributions, in Prometheus' format",
        answer: Err("text/plain"),
        model_query: None,
        is_open: false,
    },
    ReadRoute {
        path: "/openapi.json",
        aliases: &[],
        handler: || get(openapi_document),
        summary: "This document",
        answer: Ok("Object"),
        model_query: None,
        is_open: false,
    },
    ReadRoute {
        path: "/",
        aliases: &[],
        handler: || get(page::index),
        summary: "A page to talk to the model",
        // A sentence for clients that look whether this is Ollama's interface.
        answer: Err("text/html, text/plain"),
        model_query: None,
        is_open: true,
    },
];

impl App {
    /// A server that is loading `models`, which have different names; the first is what requests get that name none.
    /// Everything but its health is answered by 503 until there is the model that is asked for.
    ///
    /// # Panics
    ///
    /// Without any model.
    pub fn new(options: Options, models: &[&str]) -> Self {
        Self::with_routes(options, models, &[], is_generation_field)
    }

    /// The same, with the models `offered` behind them, each of which is loaded when a request asks for it
    /// ([`App::load_on_demand`]).
    ///
    /// # Panics
    ///
    /// Without any model.
    pub fn with_offered(options: Options, models: &[&str], offered: &[&str]) -> Self {
        Self::with_routes(options, models, offered, is_generation_field)
    }

    /// All routes, behind the layer that checks host, origin and key.
    pub fn router(&self) -> Router {
        let mut routes = Router::new();
        for route in BODY_ROUTES {
            for path in std::iter::once(&route.path).chain(route.aliases) {
                routes = routes.route(path, (route.handler)());
            }
        }
        for route in READ_ROUTES {
            for path in std::iter::once(&route.path).chain(route.aliases) {
                routes = routes.route(path, (route.handler)());
            }
        }
        routes = routes.route("/slots/{id_slot}", post(llama_cpp::slots::act));
        // Parts of the page at `/`, and no interface: the document does not list them.
        for file in page::FILES.iter().filter(|_| self.inner.options.has_page) {
            routes = routes.route(file.path, get(move |headers: HeaderMap| async move { file.response(&headers) }));
        }
        for path in REFUSED_ROUTES {
            routes = routes.route(path, any(ollama::refused));
        }
        let routes = routes.fallback(info::not_found).method_not_allowed_fallback(info::method_not_allowed);
        security::protect(routes.with_state(self.clone()), self, is_open)
    }
}

/// Whether a route that generates applies a field of this name.
fn is_generation_field(name: &str) -> bool {
    let applies = |route: &BodyRoute, name: &str| {
        let mut fields = route.known.iter().copied().flatten();
        fields.any(|field| field.name == name && matches!(field.rule, Rule::Applied))
    };
    // A slot says where a text is remembered, and nothing of the text.
    name != "id_slot" && BODY_ROUTES.iter().any(|route| applies(route, "temperature") && applies(route, name))
}

/// Whether the route at this path is answered without a key.
fn is_open(path: &str) -> bool {
    READ_ROUTES.iter().any(|route| route.is_open && (route.path == path || route.aliases.contains(&path)))
        || page::FILES.iter().any(|file| file.path == path)
}

async fn openapi_document(State(app): State<App>) -> Result<Response, ApiError> {
    document(&app)
}

/// The document of all routes. A function of its own, because the type of a handler may not depend on the tables that
/// name it.
fn document(app: &App) -> Result<Response, ApiError> {
    let document = openapi::document(app.version()?, BODY_ROUTES, READ_ROUTES);
    Ok(json_response(StatusCode::OK, &document))
}
