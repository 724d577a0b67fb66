//! Chat templates: a conversation turned into the text a model was trained on, byte for byte as Hugging Face's Jinja2
//! does it.
//!
//! The template library (`minijinja`) lexes, parses and runs; between parsing and running, every operator, filter and
//! method is replaced by one of ours with Python's meaning (`lower`, `ops`, `filters`, `methods`, `json`). The
//! configuration is that of `transformers`: blocks trimmed, the source's last newline dropped, `tojson` without HTML
//! escapes, `raise_exception`, `strftime_now`, `{% generation %}`, `break` and `continue`, and nothing that changes a
//! list or dict.
//!
//! A template is a program from a stranger. Whatever it and the conversation hold, a render ends with text or an
//! error: sources are bounded and scanned before anything recursive reads them (`scan`); each template has a thread
//! with a stack of known size and a boundary for panics (`worker`); steps, bytes copied and bytes printed are counted
//! (`value`). Because every operator is ours, the count holds for memory too: a string doubled in a loop is refused
//! before it is made.
//!
//! This module does not know tokens, models or HTTP, and reads no clock: the time is an argument.

mod args;
mod capabilities;
mod filters;
mod functions;
mod json;
mod lower;
mod methods;
mod ops;
mod prepare;
mod printf;
mod scan;
mod strftime;
mod value;
mod worker;

use serde_json::Value as Json;
use time::PrimitiveDateTime;

pub use capabilities::{Capabilities, Content};
use worker::{Job, Worker};

/// A compiled chat template. Cheap to share: renders take `&self`, from any thread, one at a time.
pub struct ChatTemplate {
    worker: Worker,
    limits: Limits,
    capabilities: Capabilities,
    source: String,
}

/// What one render is given.
#[derive(Clone, Debug)]
pub struct RenderInput<'a> {
    /// The conversation, as OpenAI's API has it: objects with `role`, `content`, `tool_calls`, `reasoning_content`, …
    pub messages: &'a [Json],
    /// Tools as OpenAI's API has them; `None` is what a template sees as `none`.
    pub tools: Option<&'a [Json]>,
    /// Documents for retrieval, as transformers passes them.
    pub documents: Option<&'a [Json]>,
    /// Whether to end with the start of an answer.
    pub add_generation_prompt: bool,
    /// The text of the token that begins a text; undefined for the template when there is none.
    pub bos_token: Option<&'a str>,
    /// The text of the token that ends a text; undefined for the template when there is none.
    pub eos_token: Option<&'a str>,
    /// Whether to think before answering; undefined for the template, which then decides, when `None`.
    pub enable_thinking: Option<bool>,
    /// Further variables, such as other special tokens or a request's `chat_template_kwargs`. They cannot replace
    /// `messages`, `tools`, `documents` or `add_generation_prompt`, but may set any other name.
    pub extra: serde_json::Map<String, Json>,
    /// The local time that `strftime_now` tells.
    pub now: PrimitiveDateTime,
}

impl<'a> RenderInput<'a> {
    /// A conversation alone: no tools, no documents, no special tokens, an answer to follow.
    pub fn new(messages: &'a [Json], now: PrimitiveDateTime) -> RenderInput<'a> {
        RenderInput {
            messages,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            bos_token: None,
            eos_token: None,
            enable_thinking: None,
            extra: serde_json::Map::new(),
            now,
        }
    }
}

/// What a template and its renders may use.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of template source. The longest in use have 30 KiB.
    pub source_bytes: usize,
    /// Steps of the template engine per render.
    pub fuel: u64,
    /// Bytes that a render may copy in all, beside 16 for each byte of input; lists and dicts count by what their
    /// elements take. A render's memory is bounded by it.
    pub budget_bytes: u64,
    /// Bytes of output that are always allowed; four times the input's bytes come on top.
    pub output_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { source_bytes: 256 << 10, fuel: 2_000_000, budget_bytes: 256 << 20, output_bytes: 1 << 20 }
    }
}

/// Why a template was refused or a render failed.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The source is longer than [`Limits::source_bytes`].
    #[error("the chat template has {found} bytes, at most {max} are allowed")]
    SourceTooLarge {
        /// Bytes of the source.
        found: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The source is deeper or longer in one place than any real template.
    #[error("line {line} of the chat template: more than {max} {what}, which no real template has")]
    TooComplex {
        /// Line of the source, from 1.
        line: usize,
        /// What was counted.
        what: &'static str,
        /// How many are allowed.
        max: usize,
    },
    /// The source is not Jinja, or uses what chat templates have no use for.
    #[error("line {line} of the chat template: {message}")]
    Syntax {
        /// Line of the source, from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// The template refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    Raised {
        /// The template's own words.
        message: String,
    },
    /// The template did something that Python refuses.
    #[error("line {line} of the chat template: {message}")]
    Render {
        /// Line of the source, from 1; 0 when unknown.
        line: usize,
        /// What went wrong there.
        message: String,
    },
    /// The render used more steps or copied more bytes than [`Limits`] allows.
    #[error("the chat template was stopped: it takes more {what} than a render may")]
    Exhausted {
        /// What was used up.
        what: &'static str,
    },
    /// The render printed more than four times its input and [`Limits::output_bytes`].
    #[error("the chat template was stopped: its output exceeds {max} bytes")]
    OutputTooLarge {
        /// Bytes allowed for this input.
        max: u64,
    },
    /// A message is not what OpenAI's API allows, or not what this template can show.
    #[error("message {index}: {problem}")]
    Message {
        /// Index of the message, from 0.
        index: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The input nests deeper than JSON from outside may.
    #[error("the conversation nests more than {max} deep")]
    InputTooDeep {
        /// How deep it may be.
        max: usize,
    },
    /// The template library panicked; nothing else is affected.
    #[error("the chat template makes the template engine fail: this is a defect, please report the template")]
    Panicked,
    /// The thread of the template could not be started.
    #[error("no thread for the chat template can be started: {source}")]
    Thread {
        /// The system's reason.
        source: std::io::Error,
    },
}

impl TemplateError {
    fn from_syntax(error: &minijinja::Error) -> TemplateError {
        let message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
        TemplateError::Syntax { line: error.line().unwrap_or(0), message }
    }
}

impl ChatTemplate {
    /// Compiles a template under the default [`Limits`] and finds out what it can show.
    ///
    /// # Errors
    ///
    /// When the source is too long or too deep, is not a template, or exceeds a limit on a conversation of two words.
    pub fn new(source: &str) -> Result<ChatTemplate, TemplateError> {
        ChatTemplate::with_limits(source, Limits::default())
    }

    /// Compiles a template under `limits`.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::new`].
    pub fn with_limits(source: &str, limits: Limits) -> Result<ChatTemplate, TemplateError> {
        if source.len() > limits.source_bytes {
            return Err(TemplateError::SourceTooLarge { found: source.len(), max: limits.source_bytes });
        }
        let worker = Worker::start(normalized(source), limits.clone())?;
        let mut template =
            ChatTemplate { worker, limits, capabilities: Capabilities::default(), source: source.to_owned() };
        template.capabilities = Capabilities::probe(&template)?;
        Ok(template)
    }

    /// Renders a conversation.
    ///
    /// Messages are first brought into the shape that transformers passes, and that this template can show: string
    /// `arguments` of tool calls that hold a JSON object become that object (or its text, where the template takes only
    /// texts), reasoning is put under each of its names, a `null` content becomes an empty one where the template would print `None`, and lists of text parts
    /// become strings (joined by newlines) where the template takes only strings.
    ///
    /// # Errors
    ///
    /// When the template refuses the conversation or fails on it, or a limit is exceeded.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<String, TemplateError> {
        // Depth first: copying a value recurses.
        let bytes = input_bytes(input)?;
        let messages = prepare::messages(input.messages, &self.capabilities)?;
        self.render_messages(messages, input, bytes)
    }

    /// Whether the template looks up this variable anywhere. If not, to set it changes nothing. (One that it looks up may
    /// still be a variable of its own, such as a loop's.)
    pub fn reads(&self, name: &str) -> bool {
        self.worker.reads(name)
    }

    /// The text that the template was compiled from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What the template can show, found out by rendering when it was loaded.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Whether tools offered to the model appear in its prompt. If not, tool use cannot work with this template.
    pub fn supports_tools(&self) -> bool {
        self.capabilities.tools
    }

    /// Whether a system message appears in the prompt.
    pub fn supports_system(&self) -> bool {
        self.capabilities.system
    }

    /// Whether past tool calls of the assistant appear in the prompt.
    pub fn supports_tool_calls(&self) -> bool {
        self.capabilities.tool_calls
    }

    /// Whether thinking can be switched, or past reasoning is shown.
    pub fn supports_thinking(&self) -> bool {
        self.capabilities.thinking
    }

    /// What a user should be told when this template is loaded, one sentence each.
    pub fn warnings(&self) -> Vec<&'static str> {
        let missing = [
            (self.capabilities.tools, "this chat template cannot show tools: the model will not know of any"),
            (self.capabilities.system, "this chat template cannot show a system message"),
        ];
        missing.into_iter().filter(|(supported, _)| !supported).map(|(_, warning)| warning).collect()
    }

    /// Whether tools are looked up by the name and in the form that SmolLM3's template has for them: functions alone. A
    /// request may say by itself which of its two forms of tools the template is to show.
    fn takes_xml_tools(&self, variables: &serde_json::Map<String, Json>) -> bool {
        let is_said = [XML_TOOLS, "python_tools"].iter().any(|name| variables.contains_key(*name));
        self.reads(XML_TOOLS) && !self.reads("tools") && !is_said
    }

    /// Renders messages as they are.
    fn render_messages(
        &self,
        messages: Vec<Json>,
        input: &RenderInput<'_>,
        bytes: u64,
    ) -> Result<String, TemplateError> {
        let mut variables = serde_json::Map::new();
        let tokens = [("bos_token", input.bos_token), ("eos_token", input.eos_token)];
        for (name, token) in tokens {
            if let Some(token) = token {
                variables.insert(name.to_owned(), token.into());
            }
        }
        if let Some(enable_thinking) = input.enable_thinking {
            variables.insert("enable_thinking".to_owned(), enable_thinking.into());
        }
        variables.extend(input.extra.clone());
        let or_null = |items: Option<&[Json]>| items.map_or(Json::Null, |items| Json::Array(items.to_vec()));
        variables.insert("messages".to_owned(), Json::Array(messages));
        variables.insert("tools".to_owned(), or_null(input.tools));
        if let Some(tools) = input.tools.filter(|_| self.takes_xml_tools(&variables)) {
            let functions = tools.iter().map(|tool| tool.get("function").unwrap_or(tool).clone()).collect();
            variables.insert(XML_TOOLS.to_owned(), Json::Array(functions));
        }
        variables.insert("documents".to_owned(), or_null(input.documents));
        variables.insert("add_generation_prompt".to_owned(), input.add_generation_prompt.into());
        let output_bytes_max = self.limits.output_bytes.saturating_add(bytes.saturating_mul(4));
        self.worker.render(Job {
            variables,
            now: input.now,
            output_bytes_max,
            budget_bytes: self.limits.budget_bytes.saturating_add(bytes.saturating_mul(16)),
        })
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("capabilities", &self.capabilities).finish_non_exhaustive()
    }
}

/// The source as Jinja reads it: every end of line a newline (the lexer drops the last one), and the newline after
/// `{% raw %}` kept, which the lexer would trim as it does after other blocks.
fn normalized(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    for (index, piece) in source.split("{%").enumerate() {
        out.push_str(if index > 0 { "{%" } else { "" });
        let tag = piece.trim_start_matches(['-', '+']).trim_start().strip_prefix("raw");
        match tag.and_then(|tag| tag.trim_start().strip_prefix("%}\n")) {
            Some(rest) => {
                out.push_str(&piece[..piece.len() - rest.len()]);
                out.push('\n');
                out.push_str(rest);
            }
            None => out.push_str(piece),
        }
    }
    out
}

/// SmolLM3's name for tools that are called as JSON.
const XML_TOOLS: &str = "xml_tools";

/// How deep the input may be; `serde_json` reads no deeper.
const INPUT_DEPTH_MAX: usize = 128;

/// Bytes of text in the input, and a few per value.
fn input_bytes(input: &RenderInput<'_>) -> Result<u64, TemplateError> {
    const VALUE_BYTES: usize = 8;
    let tools = input.tools.unwrap_or_default();
    let roots =
        input.messages.iter().chain(tools).chain(input.documents.unwrap_or_default()).chain(input.extra.values());
    // A stack of our own: the depth is what is being checked.
    let mut open: Vec<(&Json, usize)> = roots.map(|root| (root, 1)).collect();
    let mut bytes = 0;
    while let Some((value, depth)) = open.pop() {
        if depth > INPUT_DEPTH_MAX {
            return Err(TemplateError::InputTooDeep { max: INPUT_DEPTH_MAX });
        }
        bytes += VALUE_BYTES;
        match value {
            Json::String(text) => bytes += text.len(),
            Json::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Json::Object(entries) => {
                bytes += entries.keys().map(String::len).sum::<usize>();
                open.extend(entries.values().map(|item| (item, depth + 1)));
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }
    Ok(bytes as u64)
}
