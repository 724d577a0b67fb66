//! Calls of tools: what may be offered, how the model is made to call, and how it writes a call.

use std::sync::Arc;

use engine::Grammar;
use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use crate::app::Serving;
use crate::dialect::{Callable, Controls, Reasoning, forced_call};
use crate::error::ApiError;
use crate::fields::{Field, Fields, applied, hint, ignore, wrong};
use crate::schema;
use crate::template_profile::ToolForm;

/// A tool.
pub(crate) const TOOL: &[&[Field]] = &[&[applied("type"), applied("function"), hint("cache_control", CACHED)]];

/// `function` of a tool.
pub(crate) const FUNCTION: &[&[Field]] = &[&[
    applied("name"),
    applied("description"),
    applied("parameters"),
    hint("strict", "arguments are held to their schema where `tool_choice` makes the model call"),
]];

const TOOLS_MAX: usize = 128;
const TOOL_BYTES_MAX: usize = 64 << 10;
const NAME_BYTES_MAX: usize = 64;

/// Fields of routes that generate with tools; `tools` itself belongs to the conversation.
pub(crate) const FIELDS: &[Field] = &[applied("tool_choice"), applied("parallel_tool_calls")];

/// Why `cache_control` has no effect.
pub(crate) const CACHED: &str = "the prefix cache serves all prompts";

/// Takes `tools`, as the template is shown them.
pub(crate) fn take(fields: &mut Fields, serving: &Serving) -> Result<Vec<Value>, ApiError> {
    let tools = match fields.take("tools") {
        None => return Ok(Vec::new()),
        Some(Value::Array(tools)) => tools,
        Some(other) => return Err(wrong("tools", &other, "a list of tools")),
    };
    if tools.len() > TOOLS_MAX {
        return Err(ApiError::invalid(
            "tools",
            format!("`tools` has {} tools, at most {TOOLS_MAX} are taken", tools.len()),
        ));
    }
    if !tools.is_empty() && serving.tool_form() == ToolForm::None {
        let message =
            "this model's chat template cannot show tools, and the server was started with --no-generic-tools";
        return Err(ApiError::unsupported("tools", message));
    }
    let num_given = tools.len();
    let mut taken = Vec::with_capacity(num_given);
    for (index, tool) in tools.into_iter().enumerate() {
        let at = format!("tools[{index}]");
        match tool["type"].as_str() {
            // The server runs none of its own, and the model may do without.
            Some(kind) if kind != "function" => ignore(at),
            _ => {
                let mut tool = check(&at, tool)?;
                if serving.profile(true).needs_description && tool["function"]["description"].is_null() {
                    tool["function"]["description"] = "".into();
                }
                taken.push(tool);
            }
        }
    }
    if taken.is_empty() && num_given > 0 {
        let message = "none of `tools` is a function, and the server runs no tools of its own";
        return Err(ApiError::unsupported("tools", message));
    }
    Ok(taken)
}

fn check(at: &str, tool: Value) -> Result<Value, ApiError> {
    let bytes = tool.to_string().len();
    if bytes > TOOL_BYTES_MAX {
        return Err(ApiError::invalid(at, format!("`{at}` has {bytes} bytes, at most {TOOL_BYTES_MAX} are taken")));
    }
    let inside = format!("{at}.function");
    let within = |error: ApiError| error.within(&inside);
    let mut fields = Fields::inside(at, tool.clone(), TOOL)?;
    let function = fields.required("function").map_err(|error| error.within(at))?;
    let mut function = Fields::inside(&inside, function, FUNCTION)?;
    let name = function.string("name").map_err(within)?.unwrap_or_default();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_name) {
        let expected = format!("1 to {NAME_BYTES_MAX} letters, digits, `_`, `-` or `.`");
        return Err(wrong(&format!("{inside}.name"), &json!(name), expected));
    }
    function.string("description").map_err(within)?;
    function.object("parameters").map_err(within)?;
    // Some templates print a tool as it is: it keeps its order, and nothing without effect.
    let mut shown = tool["function"].as_object().cloned().unwrap_or_default();
    shown.retain(|name, value| !value.is_null() && matches!(&**name, "name" | "description" | "parameters"));
    Ok(json!({"type": "function", "function": shown}))
}

/// What `tool_choice` and `parallel_tool_calls` say.
#[derive(Clone, Debug, Default)]
pub(crate) struct ToolChoice {
    /// No tool is offered.
    pub(crate) none: bool,
    /// The text ends behind its first call.
    pub(crate) one_call: bool,
    forced: Option<Forced>,
}

/// The text has to be a call.
#[derive(Clone, Debug)]
enum Forced {
    /// Of any of the tools.
    Any,
    /// Of the one with this name.
    Named(String),
}

impl ToolChoice {
    /// Takes the fields that say whether, which and how many of `tools` are called.
    pub(crate) fn take(fields: &mut Fields, tools: &[Value]) -> Result<Self, ApiError> {
        let parallel = fields.boolean("parallel_tool_calls")?;
        let choice = fields.take("tool_choice");
        if tools.is_empty() {
            return match (parallel, choice) {
                (_, Some(choice)) if choice != "none" && choice != "auto" => {
                    Err(ApiError::invalid("tool_choice", "`tool_choice` goes with `tools`"))
                }
                (parallel, choice) => {
                    // Clients send them with each request, whether or not it has tools.
                    if parallel.is_some() {
                        ignore("parallel_tool_calls");
                    }
                    if choice.is_some_and(|choice| choice == "auto") {
                        ignore("tool_choice");
                    }
                    Ok(Self { none: true, ..Self::default() })
                }
            };
        }
        let one_call = parallel == Some(false);
        match choice.as_ref() {
            None => Ok(Self { one_call, ..Self::default() }),
            Some(Value::String(choice)) if choice == "auto" => Ok(Self { one_call, ..Self::default() }),
            Some(Value::String(choice)) if choice == "none" => Ok(Self { none: true, one_call, ..Self::default() }),
            Some(Value::String(choice)) if choice == "required" => {
                Ok(Self { none: false, one_call, forced: Some(Forced::Any) })
            }
            Some(choice @ Value::Object(_)) => {
                let name = choice["function"]["name"].as_str().unwrap_or_default();
                let is_offered = tools.iter().any(|tool| tool["function"]["name"] == name);
                let whole = *choice == json!({"type": "function", "function": {"name": name}});
                if !is_offered || !whole {
                    let expected = "{\"type\": \"function\", \"function\": {\"name\": …}} with the name of a tool";
                    return Err(wrong("tool_choice", choice, expected));
                }
                Ok(Self { none: false, one_call, forced: Some(Forced::Named(name.to_owned())) })
            }
            Some(other) => Err(wrong("tool_choice", other, "none, auto, required or a function")),
        }
    }

    /// Whether the text has to be a call.
    pub(crate) fn is_forced(&self) -> bool {
        self.forced.is_some()
    }

    /// What holds the text to a call, if it has to be one: of one of `tools`, or of the one that is named, with arguments of
    /// its schema, behind what the model thinks if the prompt has let it begin to. With `answer`, the schema of an answer,
    /// the text is such a call or JSON of that, as the model likes.
    pub(crate) fn grammar(
        &self,
        tools: &[Value],
        answer: Option<Value>,
        reasoning: Reasoning,
        serving: &Serving,
    ) -> Result<Option<Arc<dyn Grammar>>, ApiError> {
        if self.forced.is_none() && answer.is_none() {
            return Ok(None);
        }
        let Some(syntax) = serving.tool_form().syntax() else {
            let message = "this server does not read calls of tools in the form that this model writes them";
            return Err(ApiError::unsupported("tool_choice", message));
        };
        let mut meant = Vec::new();
        for (index, tool) in tools.iter().enumerate() {
            let function = &tool["function"];
            if let Some(Forced::Named(name)) = &self.forced
                && function["name"] != *name
            {
                continue;
            }
            let at = format!("tools[{index}].function.parameters");
            let parameters = match &function["parameters"] {
                schema @ Value::Object(_) => schema::prepared(&at, schema)?.schema,
                _ => json!({"type": "object"}),
            };
            meant.push(Callable { name: function["name"].as_str().unwrap_or_default().to_owned(), at, parameters });
        }
        let tags = serving.profile(true).thought_tags();
        let controls = Controls::of(reasoning, tags, Some(syntax), &serving.tokenizer);
        let name = if answer.is_some() { "response_format" } else { "tool_choice" };
        let lark = forced_call(&meant, answer, syntax, (reasoning, tags), &controls)?;
        let grammar = TopLevelGrammar::from_lark(lark);
        let vocab_size = serving.engine.config().vocab_size;
        serving.grammars.compile(name, grammar, &serving.tokenizer, vocab_size).map(Some)
    }
}
