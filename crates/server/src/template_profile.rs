//! What a model's chat template shows and how it writes it, found out by rendering conversations in which it happens.

use serde_json::{Map, Value, json};
use tokenizer::Tokenizer;
use tokenizer::chat_template::{ChatTemplate, RenderInput};

use crate::clock::local_now;
use crate::dialect::{Controls, Reasoning, ShownCall, THINK_TAGS, ThoughtTags, ToolSyntax, shows_final_message};

/// How tools are shown to a model, and their calls read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolForm {
    /// By its chat template, in its own form.
    Own(ToolSyntax),
    /// By a text of ours in the system message: see [`crate::generic_tools`].
    Generic,
    /// Not at all.
    None,
}

impl ToolForm {
    /// How the model writes calls.
    pub(crate) fn syntax(self) -> Option<ToolSyntax> {
        match self {
            Self::Own(syntax) => Some(syntax),
            Self::Generic => Some(ToolSyntax::Hermes),
            Self::None => None,
        }
    }
}

/// How a model writes what is more than text; known by what its chat template makes of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TemplateProfile {
    pub(crate) tools: Option<ToolSyntax>,
    pub(crate) thinks: bool,
    /// What the template shows around thoughts, if it shows any.
    thought_tags: Option<&'static ThoughtTags>,
    /// Whether texts are messages with channels, as gpt-oss writes them.
    has_channels: bool,
    /// Whether the template can be told to let the model think or not.
    pub(crate) switches_thinking: bool,
    /// Whether the template writes something else for another `reasoning_effort`.
    pub(crate) takes_effort: bool,
    /// Whether the template ever shows what the model thought before.
    pub(crate) shows_reasoning: bool,
    /// Whether it shows the `name` in a message of each of [`NAMED_ROLES`].
    shows_names: [bool; NAMED_ROLES.len()],
    /// Whether it takes ids of calls only that are nine letters and digits, as Mistral's do.
    pub(crate) nine_letter_ids: bool,
    /// Whether it shows the id of a call where its name belongs, because the model's ids have the name in them: see
    /// `dialect/kimi.rs`.
    pub(crate) names_in_ids: bool,
    /// Whether it tells the model of the form of calls and shows none: they are part of the text.
    pub(crate) calls_are_text: bool,
    /// Whether it refuses two messages of a user in a row.
    pub(crate) alternates: bool,
    /// Whether it refuses a message of a user behind the result of a call.
    pub(crate) answers_results: bool,
    /// Whether it shows a system message at the beginning alone, and refuses or drops one that comes later.
    pub(crate) one_system: bool,
    /// Whether it fails on a tool without a description.
    pub(crate) needs_description: bool,
    /// Whether an answer may begin with a thought: the template knows thoughts, or the vocabulary has tokens for them.
    may_think: bool,
}

/// Roles whose messages may have a name.
const NAMED_ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

impl TemplateProfile {
    /// Found out by rendering a conversation in which all of it happens.
    pub(crate) fn of(template: &ChatTemplate) -> Self {
        let thought_tags = thought_tags(template);
        let (by_name, by_id) = (tool_syntax(template, false), tool_syntax(template, true));
        let names_in_ids = by_name.is_none() && by_id.is_some();
        let told = || told_syntax(template);
        let tools = by_name.or(by_id).or_else(told);
        Self {
            tools,
            names_in_ids,
            calls_are_text: tools.is_some() && by_name.or(by_id).is_none(),
            thinks: thought_tags.is_some() || has_channels(template),
            thought_tags,
            has_channels: has_channels(template),
            switches_thinking: switches_thinking(template),
            takes_effort: takes_effort(template),
            shows_reasoning: shows_reasoning(template),
            shows_names: NAMED_ROLES.map(|role| shows_name(template, role)),
            nine_letter_ids: takes_nine_letter_ids_only(template),
            alternates: alternates(template),
            answers_results: answers_results(template),
            one_system: one_system(template),
            needs_description: needs_description(template),
            may_think: thought_tags.is_some(),
        }
    }

    /// The same, of a model with this vocabulary: one that has tokens for thoughts may think, whatever its template
    /// shows.
    pub(crate) fn with_vocabulary(self, tokenizer: &Tokenizer) -> Self {
        let controls = Reasoning::Tagged.controls(self.thought_tags());
        let has_tokens = controls.iter().all(|marker| tokenizer.token_to_id(marker.text).is_some());
        Self { may_think: self.may_think || has_tokens, ..self }
    }

    /// What stands around the model's thoughts.
    pub(crate) fn thought_tags(&self) -> &'static ThoughtTags {
        self.thought_tags.unwrap_or(&THINK_TAGS)
    }

    /// Whether the template shows the `name` in a message of this role.
    pub(crate) fn shows_name(&self, role: &str) -> bool {
        NAMED_ROLES.iter().zip(self.shows_names).any(|(&named, shows)| shows && named == role)
    }

    /// The ids of all tokens that the model writes something else with than text.
    pub(crate) fn controls(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let reasoning = match (self.has_channels, self.may_think) {
            (true, _) => Reasoning::Channels,
            (false, true) => Reasoning::Tagged,
            (false, false) => Reasoning::None,
        };
        Controls::of(reasoning, self.thought_tags(), self.tools, tokenizer)
            .tokens
            .into_iter()
            .map(|(id, _)| id)
            .collect()
    }

    /// How an answer to this rendered prompt may begin.
    pub(crate) fn reasoning(&self, prompt: &str) -> Reasoning {
        if self.has_channels {
            Reasoning::Channels
        } else if self.thought_tags().are_open_behind(prompt) {
            Reasoning::Open
        } else if self.may_think {
            Reasoning::Tagged
        } else {
            Reasoning::None
        }
    }
}

/// A conversation with the special tokens that some templates cannot do without.
fn probe(messages: &[Value]) -> RenderInput<'_> {
    RenderInput { bos_token: Some(""), eos_token: Some(""), ..RenderInput::new(messages, local_now()) }
}

/// The dialect of a call, which has an id, or one in which the name is as Kimi writes it.
fn tool_syntax(template: &ChatTemplate, name_in_id: bool) -> Option<ToolSyntax> {
    let id = if name_in_id { "functions.called_function:0" } else { "call00001" };
    let function = |name: &str| {
        let parameters = json!({"type": "object", "properties": {"listed_key": {"type": "string"}}, "required": []});
        json!({"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}})
    };
    let call = json!({"id": id, "type": "function",
        "function": {"name": "called_function", "arguments": {"called_key": "called_value"}}});
    let messages = [
        json!({"role": "user", "content": "x"}),
        json!({"role": "assistant", "content": "", "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": id, "name": "called_function", "content": "y"}),
    ];
    let tools = [function("listed_function")];
    let text = template.render(&RenderInput { tools: Some(&tools), ..probe(&messages) }).ok()?;
    let (before, after) = text.split_once("called_function")?;
    ToolSyntax::recognised(&ShownCall { before, after })
}

/// The dialect of which a template tells that describes tools and shows no calls.
fn told_syntax(template: &ChatTemplate) -> Option<ToolSyntax> {
    let user = [json!({"role": "user", "content": "x"})];
    let (_, _, tool) = probe_call();
    let tools = [tool];
    let text = template.render(&RenderInput { tools: Some(&tools), ..probe(&user) }).ok()?;
    ToolSyntax::told_in(&text)
}

fn thought_tags(template: &ChatTemplate) -> Option<&'static ThoughtTags> {
    let user = json!({"role": "user", "content": "x"});
    let thought = json!({"role": "assistant", "content": "y", "reasoning_content": "z"});
    let asked = [user.clone()];
    let answered = [user, thought];
    let renders = [
        probe(&asked),
        RenderInput { enable_thinking: Some(false), ..probe(&asked) },
        RenderInput { add_generation_prompt: false, ..probe(&answered) },
    ];
    let texts: Vec<String> = renders.iter().filter_map(|input| template.render(input).ok()).collect();
    ThoughtTags::shown_in(&texts)
}

/// A call, its result, and the tool that was called, as templates that check them want them.
fn probe_call() -> (Value, Value, Value) {
    let function = json!({"name": "called_function", "arguments": {"called_key": "called_value"}});
    let call = json!({"id": "call00001", "type": "function", "function": function});
    let result = json!({"role": "tool", "tool_call_id": "call00001", "content": "y"});
    let tool = json!({"type": "function", "function": {
        "name": "called_function", "description": "d", "parameters": {"type": "object", "properties": {}}}});
    (call, result, tool)
}

fn takes_nine_letter_ids_only(template: &ChatTemplate) -> bool {
    let takes = |id: &str| {
        let (mut call, mut result, tool) = probe_call();
        call["id"] = id.into();
        result["tool_call_id"] = id.into();
        let calls = |content: Value| json!({"role": "assistant", "content": content, "tool_calls": [call.clone()]});
        let tools = [tool];
        [json!(""), Value::Null].into_iter().any(|content| {
            let messages = [json!({"role": "user", "content": "x"}), calls(content), result.clone()];
            template.render(&RenderInput { tools: Some(&tools), ..probe(&messages) }).is_ok()
        })
    };
    takes("call00001") && !takes("call_0123456789abcdef01234567")
}

fn shows_reasoning(template: &ChatTemplate) -> bool {
    const THOUGHT: &str = "mark5f1d0c";
    let user = || json!({"role": "user", "content": "x"});
    let (call, result, tool) = probe_call();
    let answer = json!({"role": "assistant", "content": "y", "reasoning_content": THOUGHT});
    let calls = |content: Value| json!({"role": "assistant", "content": content, "reasoning_content": THOUGHT, "tool_calls": [call]});
    // Some templates show it only while the turn goes on, and some take no content beside a call or no null.
    let conversations = [
        vec![user(), answer.clone()],
        vec![user(), answer, user()],
        vec![user(), calls(json!("")), result.clone()],
        vec![user(), calls(Value::Null), result],
    ];
    let shows = |messages: &Vec<Value>, add_generation_prompt| {
        let tools = [tool.clone()];
        let tools = messages.iter().any(|message| message["role"] == "tool").then_some(&tools[..]);
        let input = RenderInput { tools, add_generation_prompt, ..probe(messages) };
        template.render(&input).is_ok_and(|text| text.contains(THOUGHT))
    };
    conversations.iter().any(|messages| shows(messages, true) || shows(messages, false))
}

fn shows_name(template: &ChatTemplate, role: &str) -> bool {
    const NAME: &str = "mark5f1d0c";
    let said = |role: &str| json!({"role": role, "content": "x"});
    let (call, result, tool) = probe_call();
    let calls = |content: Value| json!({"role": "assistant", "content": content, "tool_calls": [call]});
    let conversations = [
        vec![said("system"), said("user"), said("assistant"), said("user")],
        vec![said("user"), calls(json!("")), result.clone()],
        vec![said("user"), calls(Value::Null), result],
    ];
    conversations.into_iter().any(|mut messages| {
        for message in messages.iter_mut().filter(|message| message["role"] == role) {
            message["name"] = NAME.into();
        }
        let tools = [tool.clone()];
        let tools = messages.iter().any(|message| message["role"] == "tool").then_some(&tools[..]);
        template.render(&RenderInput { tools, ..probe(&messages) }).is_ok_and(|text| text.contains(NAME))
    })
}

fn alternates(template: &ChatTemplate) -> bool {
    let user = json!({"role": "user", "content": "x"});
    let takes = |messages: &[Value]| template.render(&probe(messages)).is_ok();
    takes(std::slice::from_ref(&user)) && !takes(&[user.clone(), user])
}

/// Mistral's templates count turns of a user and of the assistant, and calls are none.
fn answers_results(template: &ChatTemplate) -> bool {
    let user = json!({"role": "user", "content": "x"});
    let takes = |goes_on: bool| {
        let (call, result, tool) = probe_call();
        [json!(""), Value::Null].into_iter().any(|content| {
            let answer = json!({"role": "assistant", "content": content, "tool_calls": [call]});
            let mut messages = vec![user.clone(), answer, result.clone()];
            messages.extend(goes_on.then(|| user.clone()));
            template.render(&RenderInput { tools: Some(std::slice::from_ref(&tool)), ..probe(&messages) }).is_ok()
        })
    };
    takes(false) && !takes(true)
}

fn one_system(template: &ChatTemplate) -> bool {
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    let shows = |messages: &[Value], marks: &[&str]| {
        let text = template.render(&probe(messages));
        text.is_ok_and(|text| marks.iter().all(|mark| text.contains(mark)))
    };
    let (first, user, answer) = (said("system", "mark5f1d0c"), said("user", "x"), said("assistant", "y"));
    let (second, third) = (said("system", "mark6e2c1b"), said("system", "mark7d3b2a"));
    // As programs send them: several at the beginning, one between two turns, and one behind the last turn.
    let many = [first.clone(), second.clone(), user.clone(), answer, third.clone(), user.clone()];
    let last = [first.clone(), user.clone(), third];
    shows(&[first, user], &["mark5f1d0c"])
        && !(shows(&many, &["mark5f1d0c", "mark6e2c1b", "mark7d3b2a"]) && shows(&last, &["mark5f1d0c", "mark7d3b2a"]))
}

fn needs_description(template: &ChatTemplate) -> bool {
    let user = [json!({"role": "user", "content": "x"})];
    let takes = |function: Value| {
        let tool = [json!({"type": "function", "function": function})];
        template.render(&RenderInput { tools: Some(&tool), ..probe(&user) }).is_ok()
    };
    let parameters = json!({"type": "object", "properties": {}});
    takes(json!({"name": "f", "description": "", "parameters": parameters}))
        && !takes(json!({"name": "f", "parameters": parameters}))
}

fn has_channels(template: &ChatTemplate) -> bool {
    let messages = [json!({"role": "user", "content": "x"}), json!({"role": "assistant", "content": "shown_text"})];
    let input = RenderInput { add_generation_prompt: false, ..probe(&messages) };
    template.render(&input).is_ok_and(|text| shows_final_message(&text, "shown_text"))
}

fn switches_thinking(template: &ChatTemplate) -> bool {
    let messages = [json!({"role": "user", "content": "x"})];
    let rendered =
        |thinks: bool| template.render(&RenderInput { enable_thinking: Some(thinks), ..probe(&messages) }).ok();
    rendered(true) != rendered(false)
}

fn takes_effort(template: &ChatTemplate) -> bool {
    let messages = [json!({"role": "user", "content": "x"})];
    let rendered = |effort: &str| {
        let extra = Map::from_iter([("reasoning_effort".to_owned(), effort.into())]);
        template.render(&RenderInput { extra, ..probe(&messages) }).ok()
    };
    rendered("low") != rendered("high")
}
