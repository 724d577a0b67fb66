//! Errors in OpenAI's form: status, message, the field at fault, a code that programs can compare.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::EngineError;
use serde_json::{Value, json};
use tokenizer::TokenizerError;

use crate::quoting::{clipped, without_middle};

/// Seconds after which a client that was turned away may try again.
const RETRY_AFTER_S: u64 = 1;
/// The most bytes of an error's message, and of the path of the field at fault. Both quote what a client sent, which
/// may be megabytes: names of fields, keys of schemas, rules of grammars, paths.
const MESSAGE_BYTES_MAX: usize = 1500;
const PARAM_BYTES_MAX: usize = 250;

/// The interface in whose form a route writes its errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorForm {
    OpenAi,
    /// OpenAI's, with other types of errors.
    LlamaCpp,
    Anthropic,
    Ollama,
}

impl ErrorForm {
    /// The form of the route at this path.
    pub(crate) fn of(path: &str) -> Self {
        let inner = path.strip_prefix("/v1").unwrap_or(path);
        if inner.starts_with("/messages") {
            Self::Anthropic
        } else if inner.starts_with("/api/") {
            Self::Ollama
        } else if inner == path {
            // Its own routes, and those of OpenAI's interface by the names that its server has for them, too.
            Self::LlamaCpp
        } else {
            Self::OpenAi
        }
    }

    /// The schema of an error in this form.
    pub(crate) fn schema(self) -> &'static str {
        match self {
            Self::OpenAi | Self::LlamaCpp => "Error",
            Self::Anthropic => "AnthropicError",
            Self::Ollama => "OllamaError",
        }
    }
}

/// What a client is told instead of an answer.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    excess: Option<ContextExcess>,
    retry: bool,
}

/// A prompt that is too long.
#[derive(Clone, Copy, Debug)]
struct ContextExcess {
    /// Tokens of the prompt, at least.
    prompt: usize,
    /// Tokens that the context holds.
    context: usize,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let message = without_middle(message.into(), MESSAGE_BYTES_MAX);
        Self { status, kind, message, param: None, code: None, excess: None, retry: false }
    }

    fn at(self, param: impl Into<String>) -> Self {
        Self { param: Some(without_middle(param.into(), PARAM_BYTES_MAX)), ..self }
    }

    /// A field with a value that cannot be used.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(message).at(param)
    }

    /// A field, or a value of it, that nothing here would apply.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::invalid(param, message) }
    }

    /// A prompt of `prompt` tokens, at least, that the context of `context` does not hold.
    pub(crate) fn context_exceeded(
        param: impl Into<String>,
        message: impl Into<String>,
        prompt: usize,
        context: usize,
    ) -> Self {
        let excess = Some(ContextExcess { prompt, context });
        Self { code: Some("context_length_exceeded"), excess, ..Self::invalid(param, message) }
    }

    /// A request that cannot be used, for a reason beyond one field.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A refusal with a status of its own.
    pub(crate) fn refused(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::new(status, "invalid_request_error", message) }
    }

    /// A field whose value asks for more than is done for one request.
    pub(crate) fn refused_field(param: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::invalid(param, message) }
    }

    /// A model that is not served here.
    pub(crate) fn no_such_model(asked: &str, served: &[&str]) -> Self {
        let are = if served.len() == 1 { "is" } else { "are" };
        let asked = clipped(asked, 200);
        let message = format!("the model `{asked}` is not served here; `{}` {are}", served.join("`, `"));
        Self::refused(StatusCode::NOT_FOUND, "model_not_found", message).at("model")
    }

    /// Not now, but perhaps later.
    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        Self { code: Some(code), retry: true, ..error }
    }

    /// What nobody reads: the client has gone.
    pub(crate) fn abandoned() -> Self {
        Self::unavailable("abandoned", "the client has gone")
    }

    /// More is waiting than may.
    pub(crate) fn too_many(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { code: Some("queue_full"), retry: true, ..error }
    }

    /// It took longer than a request may.
    pub(crate) fn timed_out(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message);
        Self { code: Some("timeout"), ..error }
    }

    /// Something failed that the client has no part in.
    pub(crate) fn internal(code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message) }
    }

    /// The field at fault.
    pub(crate) fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// What programs compare.
    pub(crate) fn code(&self) -> Option<&'static str> {
        self.code
    }

    /// The same, about a field inside `outer`.
    pub(crate) fn within(self, outer: &str) -> Self {
        let path = self.param.as_ref().map_or(outer.to_owned(), |inner| format!("{outer}.{inner}"));
        self.at(path)
    }

    /// What an EngineError's own name for a field is in a request.
    pub(crate) fn with_param(mut self, from: &str, to: &str) -> Self {
        if self.param.as_deref() == Some(from) {
            self.param = Some(to.to_owned());
        }
        self
    }

    /// The same, with the field at fault under another name.
    pub(crate) fn map_param(self, rename: impl FnOnce(&str) -> String) -> Self {
        match self.param.as_deref().map(rename) {
            Some(param) => self.at(param),
            None => self,
        }
    }

    /// Anthropic's form, with the field at fault besides.
    pub(crate) fn to_anthropic_json(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "api_error",
        };
        let Self { message, param, code, .. } = self;
        json!({"type": "error", "error": {"type": kind, "message": message, "param": param, "code": code}})
    }

    /// Ollama's form, whose clients read a text; with the field at fault and the code besides.
    pub(crate) fn to_ollama_json(&self) -> Value {
        let Self { message, param, code, .. } = self;
        json!({"error": message, "param": param, "code": code})
    }

    /// llama.cpp's form: OpenAI's, with the types of errors that its clients look for.
    pub(crate) fn to_llama_cpp_json(&self) -> Value {
        let mut json = self.to_json();
        let kind = match self.status {
            _ if self.excess.is_some() => "exceed_context_size_error",
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::NOT_IMPLEMENTED => "not_supported_error",
            StatusCode::SERVICE_UNAVAILABLE => "unavailable_error",
            _ => return json,
        };
        json["error"]["type"] = kind.into();
        json
    }

    /// The answer on a route whose interface writes errors in this form.
    pub(crate) fn into_response_in(self, form: ErrorForm) -> Response {
        let body = match form {
            ErrorForm::OpenAi => self.to_json(),
            ErrorForm::LlamaCpp => self.to_llama_cpp_json(),
            ErrorForm::Anthropic => self.to_anthropic_json(),
            ErrorForm::Ollama => self.to_ollama_json(),
        };
        self.response(&body)
    }

    fn response(&self, body: &Value) -> Response {
        let mut response = json_response(self.status, body);
        if self.retry {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    /// OpenAI's form, with llama.cpp's members of a prompt that is too long.
    pub(crate) fn to_json(&self) -> Value {
        let Self { message, kind, param, code, excess, .. } = self;
        let mut json = json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
        if let &Some(ContextExcess { prompt, context }) = excess {
            json["error"]["n_prompt_tokens"] = prompt.into();
            json["error"]["n_ctx"] = context.into();
        }
        json
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.response(&self.to_json());
        // For those who write errors in another form.
        response.extensions_mut().insert(self);
        response
    }
}

/// A response with a JSON body.
pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::QueueFull { .. } => Self::too_many(message),
            EngineError::ContextExceeded { prompt, context, .. } => {
                Self::context_exceeded("max_tokens", message, prompt, context)
            }
            EngineError::EmptyPrompt => Self::invalid("prompt", message),
            EngineError::UnknownToken { what, .. } => Self::invalid(what, message),
            EngineError::Parameter { name, .. } => Self::invalid(name, message),
            EngineError::Config { .. } | EngineError::Backend(_) => Self::internal("engine", message),
        }
    }
}

impl From<TokenizerError> for ApiError {
    fn from(error: TokenizerError) -> Self {
        if matches!(error, TokenizerError::Abandoned) {
            return Self::abandoned();
        }
        Self::bad_request(error.to_string())
    }
}
