//! What a template can show, found out by rendering marked conversations and looking for the marks.

use std::cell::RefCell;

use serde_json::{Value as Json, json};
use time::PrimitiveDateTime;

use super::{ChatTemplate, RenderInput, TemplateError};

/// What a template can show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// A system message appears.
    pub system: bool,
    /// Offered tools appear.
    pub tools: bool,
    /// The assistant's tool calls appear, with their arguments.
    pub tool_calls: bool,
    /// Two tool calls in one message both appear.
    pub parallel_tool_calls: bool,
    /// Arguments of a call appear as a text alone: the template adds them to other texts, so that it fails on an object.
    pub text_arguments: bool,
    /// Results in messages of role `tool` appear.
    pub tool_results: bool,
    /// Reasoning of an earlier turn appears, or `enable_thinking` changes the prompt.
    pub thinking: bool,
    /// The shapes of content that appear.
    pub content: Content,
    /// An assistant message whose content is `null` is shown as one whose content is empty.
    pub null_content: bool,
}

/// The shapes of a message's content that a template shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Strings only: lists of parts are joined before rendering.
    Strings,
    /// Lists of parts only: strings are wrapped before rendering.
    Parts,
    /// Both, as they come.
    Both,
}

impl Default for Capabilities {
    /// Nothing is known to be shown, and nothing is changed before rendering.
    fn default() -> Capabilities {
        Capabilities {
            system: false,
            tools: false,
            tool_calls: false,
            parallel_tool_calls: false,
            text_arguments: false,
            tool_results: false,
            thinking: false,
            content: Content::Both,
            null_content: true,
        }
    }
}

/// Text that no template contains.
const MARK: &str = "mark5f1d0c";
const OTHER_MARK: &str = "other7b2e9a";

impl Capabilities {
    /// Renders what the template may or may not show. A render that fails shows nothing; one that exceeds a limit
    /// condemns the template.
    pub(super) fn probe(template: &ChatTemplate) -> Result<Capabilities, TemplateError> {
        let probe = Probe { template, exceeded: RefCell::new(None) };
        let capabilities = Capabilities::found(&probe);
        probe.exceeded.into_inner().map_or(Ok(capabilities), Err)
    }

    fn found(probe: &Probe<'_>) -> Capabilities {
        let user = |content: &str| json!({ "role": "user", "content": content });
        let part = json!([{ "type": "text", "text": MARK }]);
        let with_part = probe.render(&[json!({ "role": "user", "content": part })]);
        let with_string = probe.render(&[user(MARK)]);
        // A template that prints a list it does not understand shows the mark too, within brackets of its own.
        let parts_shown = with_part
            .as_ref()
            .is_some_and(|text| text.contains(MARK) && !text.contains("'type'") && !text.contains("\"type\""));
        let string_shown = with_string.is_some_and(|text| text.contains(MARK));
        let content = match (string_shown, parts_shown) {
            (true, true) => Content::Both,
            (false, true) => Content::Parts,
            _ => Content::Strings,
        };
        // From here on, conversations go through the same preparation as a user's.
        let shape = |content_text: &str| match content {
            Content::Parts => json!([{ "type": "text", "text": content_text }]),
            _ => json!(content_text),
        };
        let said = |role: &str, text: &str| json!({ "role": role, "content": shape(text) });

        // Mistral's templates want ids of nine characters.
        let call_with = |id: &str, mark: &str, as_text: bool| {
            let object = json!({ "value": mark });
            let arguments = if as_text { Json::from(object.to_string()) } else { object };
            json!({ "id": id, "type": "function", "function": { "name": "probe", "arguments": arguments } })
        };
        let answer =
            |content: Json, calls: Vec<Json>| json!({ "role": "assistant", "content": content, "tool_calls": calls });
        let result = |id: &str, text: &str| json!({ "role": "tool", "tool_call_id": id, "name": "probe", "content": shape(text) });

        // Some templates take no content beside tool calls, some no null: whatever shows the calls counts.
        let contents = [shape(""), Json::Null];
        let shows_calls = |calls: &[Json], marks: &[&str]| {
            contents.iter().any(|content| {
                let turn = answer(content.clone(), calls.to_vec());
                let messages = [said("user", "hello"), turn, result("call00001", "done"), result("call00002", "done")];
                let messages = &messages[..2 + calls.len()];
                probe.render(messages).is_some_and(|text| marks.iter().all(|mark| text.contains(mark)))
            })
        };
        let shows_call = |as_text| shows_calls(&[call_with("call00001", MARK, as_text)], &[MARK]);
        let text_arguments = !shows_call(false) && shows_call(true);
        let call = |id: &str, mark: &str| call_with(id, mark, text_arguments);
        let tool_results = contents.iter().any(|content| {
            let turn = answer(content.clone(), vec![call("call00001", "x")]);
            probe.shows(&[said("user", "hello"), turn, result("call00001", MARK)], MARK)
        });
        let null_content = {
            let with = |content: Json| {
                let turn = answer(content, vec![call("call00001", "x")]);
                probe.render(&[said("user", "hello"), turn, result("call00001", "done"), said("user", "and")])
            };
            let (null, empty) = (with(Json::Null), with(shape("")));
            // What fails with both is no better with the other.
            null == empty || (null.is_some() && empty.is_none())
        };

        Capabilities {
            system: probe.shows(&[said("system", MARK), said("user", "hello")], MARK),
            tools: probe.shows_tools(&said("user", "hello")),
            tool_calls: shows_calls(&[call("call00001", MARK)], &[MARK]),
            parallel_tool_calls: shows_calls(
                &[call("call00001", MARK), call("call00002", OTHER_MARK)],
                &[MARK, OTHER_MARK],
            ),
            text_arguments,
            tool_results,
            thinking: probe.shows_thinking(&said("user", "hello"), &shape("yes")),
            content,
            null_content,
        }
    }
}

struct Probe<'t> {
    template: &'t ChatTemplate,
    /// The limit that some render exceeded. Nothing is rendered after that.
    exceeded: RefCell<Option<TemplateError>>,
}

impl Probe<'_> {
    fn input<'a>(messages: &'a [Json]) -> RenderInput<'a> {
        let mut input = RenderInput::new(messages, PrimitiveDateTime::MIN);
        input.bos_token = Some("");
        input.eos_token = Some("");
        input
    }

    fn render_input(&self, input: &RenderInput<'_>) -> Option<String> {
        if self.exceeded.borrow().is_some() {
            return None;
        }
        match self.template.render_messages(input.messages.to_vec(), input, 0) {
            Ok(text) => Some(text),
            Err(error @ (TemplateError::Exhausted { .. } | TemplateError::OutputTooLarge { .. })) => {
                self.exceeded.replace(Some(error));
                None
            }
            Err(_) => None,
        }
    }

    fn render(&self, messages: &[Json]) -> Option<String> {
        if let Some(text) = self.render_input(&Self::input(messages)) {
            return Some(text);
        }
        // Some templates are for conversations with tools only.
        let tools = [tool("probe")];
        let mut input = Self::input(messages);
        input.tools = Some(&tools);
        self.render_input(&input)
    }

    fn shows(&self, messages: &[Json], mark: &str) -> bool {
        self.render(messages).is_some_and(|text| text.contains(mark))
    }

    fn shows_tools(&self, user: &Json) -> bool {
        let tools = [tool(MARK)];
        let messages = [user.clone()];
        let mut input = Self::input(&messages);
        input.tools = Some(&tools);
        self.render_input(&input).is_some_and(|text| text.contains(MARK))
    }

    fn shows_thinking(&self, user: &Json, answer: &Json) -> bool {
        let messages = [user.clone()];
        let with = |enable_thinking| {
            let mut input = Self::input(&messages);
            input.enable_thinking = Some(enable_thinking);
            self.render_input(&input)
        };
        let thought = json!({ "role": "assistant", "content": answer, "reasoning_content": MARK, "thinking": MARK });
        let mut input_messages = vec![user.clone(), thought];
        let at_the_end = self.shows(&input_messages, MARK);
        input_messages.push(user.clone());
        let before_a_call = || {
            // gpt-oss shows what led to a tool call, and nothing else.
            let call =
                json!({ "id": "call00001", "type": "function", "function": { "name": "probe", "arguments": {} } });
            let thought =
                json!({ "role": "assistant", "reasoning_content": MARK, "thinking": MARK, "tool_calls": [call] });
            let result = json!({ "role": "tool", "tool_call_id": "call00001", "name": "probe", "content": answer });
            self.shows(&[user.clone(), thought, result], MARK)
        };
        at_the_end || self.shows(&input_messages, MARK) || before_a_call() || with(true) != with(false)
    }
}

/// A tool as OpenAI's API has it.
fn tool(name: &str) -> Json {
    let value = json!({ "type": "string", "description": "a value" });
    let parameters = json!({ "type": "object", "properties": { "value": value }, "required": ["value"] });
    json!({ "type": "function", "function": { "name": name, "description": "a tool", "parameters": parameters } })
}
