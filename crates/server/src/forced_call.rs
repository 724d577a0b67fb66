//! Grammars of a call that a model has to make, in the form that it writes calls.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::grammar::escaped;
use crate::reply::Controls;
use crate::reply::{
    ARGS, CALL_ID, CHANNEL_END, CHANNEL_MESSAGE, CHANNEL_NAME, CHANNEL_START, CHANNEL_TYPE, DEEPSEEK_CALL,
    DEEPSEEK_CALL_END, DEEPSEEK_CALLS, DEEPSEEK_CALLS_END, DEEPSEEK_SEPARATOR, GLM_KEY, GLM_KEY_END, GLM_VALUE,
    GLM_VALUE_END, Marker, Reasoning, THINK_END, TOOL_CALL, TOOL_CALL_END, TOOL_CALLS, ToolSyntax,
};
use crate::schema::bounded_space;

/// A tool that may be called.
pub(crate) struct Callable {
    pub(crate) name: String,
    /// Where in the request the schema of its arguments stands.
    pub(crate) at: String,
    pub(crate) parameters: Value,
}

/// What of a schema GLM's form can hold: it writes members one by one, so only what says which there are.
const GLM_OBJECT: &[&str] = &["type", "properties", "required", "additionalProperties", "$defs", "definitions"];
/// Keywords that say something about an object and hold it to nothing.
const GLM_ANNOTATIONS: &[&str] = &["$schema", "$id", "$comment", "title", "description", "default", "examples"];
/// What of a schema a string can be held to that stands there as it is.
const GLM_STRING: &[&str] = &["type", "enum", "const", "minLength", "maxLength"];

/// A grammar that is being written.
struct Writer<'a> {
    controls: &'a Controls,
    rules: String,
    count: usize,
}

/// The grammar, in Lark's notation, of a call of one of `tools`, or of JSON of the schema `answer`.
pub(crate) fn lark(
    tools: &[Callable],
    answer: Option<Value>,
    syntax: ToolSyntax,
    reasoning: Reasoning,
    controls: &Controls,
) -> Result<String, ApiError> {
    let mut writer = Writer { controls, rules: String::new(), count: 0 };
    let before = writer.before(reasoning);
    let mut calls = match syntax {
        ToolSyntax::Hermes | ToolSyntax::Llama3 | ToolSyntax::MistralList => vec![writer.object(tools, syntax)],
        _ => tools.iter().map(|tool| writer.call(tool, syntax)).collect::<Result<_, _>>()?,
    };
    calls.extend(answer.map(|schema| writer.answer(schema, reasoning)));
    Ok(format!("start: {before} ({})\n{}", calls.join(" | "), writer.rules))
}

impl Writer<'_> {
    /// A marker: the token, where it counts as one.
    fn marker(&self, marker: Marker) -> String {
        let token = self.controls.tokens.iter().find(|(_, text)| *text == marker.text);
        token.map_or_else(|| quoted(marker.text), |(id, _)| format!("<[{id}]>"))
    }

    /// A rule of its own; returns its name.
    fn rule(&mut self, name: &str, attributes: &str, body: &str) -> String {
        let name = format!("{name}{}", self.count);
        self.count += 1;
        self.rules.push_str(&format!("{name}{attributes}: {body}\n"));
        name
    }

    fn json(&mut self, schema: Value) -> String {
        self.rule("json", "", &format!("%json {}", bounded_space(schema)))
    }

    /// Any text up to a marker, and the marker.
    fn text_until(&mut self, marker: Marker) -> String {
        let end = self.marker(marker);
        if end.starts_with('<') {
            let text = self.rule("TEXT", "", "/(?s:.+)/");
            return format!("{text}? {end}");
        }
        self.rule("text", "[lazy]", &format!("/(?s:.*){}/", escaped(marker.text)))
    }

    /// What may, or has to, stand before the call.
    fn before(&mut self, reasoning: Reasoning) -> String {
        match reasoning {
            // Whether it begins to think is the model's to say where nothing forces it; here it is to call.
            Reasoning::None | Reasoning::Tagged => String::new(),
            Reasoning::Open => {
                let thoughts = self.text_until(THINK_END);
                let space = self.rule("SPACE", "", "/\\n{1,2}/");
                format!("{thoughts} {space}?")
            }
            Reasoning::Channels => {
                let [channel, begins, starts] =
                    [CHANNEL_NAME, CHANNEL_MESSAGE, CHANNEL_START].map(|marker| self.marker(marker));
                let thoughts = self.text_until(CHANNEL_END);
                format!("({channel} \"analysis\" {begins} {thoughts} {starts} \"assistant\")?")
            }
        }
    }

    /// A call that is an object with name and arguments.
    fn object(&mut self, tools: &[Callable], syntax: ToolSyntax) -> String {
        let arguments = if syntax == ToolSyntax::Llama3 { "parameters" } else { "arguments" };
        let call = |(index, tool): (usize, &Callable)| {
            let parameters = moved(&tool.parameters, &format!("anyOf/{index}/properties/{arguments}"));
            let properties =
                Map::from_iter([("name".to_owned(), json!({"const": tool.name})), (arguments.to_owned(), parameters)]);
            json!({
                "type": "object", "properties": properties, "required": ["name", arguments], "additionalProperties": false,
            })
        };
        let object = self.json(json!({"anyOf": tools.iter().enumerate().map(call).collect::<Vec<_>>()}));
        match syntax {
            ToolSyntax::Hermes => {
                let (begins, ends) = (format!("{}\n", TOOL_CALL.text), format!("\n{}", TOOL_CALL_END.text));
                format!("{} {object} {}", quoted(&begins), quoted(&ends))
            }
            ToolSyntax::MistralList => format!("{} \"[\" {object} \"]\"", self.marker(TOOL_CALLS)),
            _ => object,
        }
    }

    /// An answer that is JSON of this schema.
    fn answer(&mut self, schema: Value, reasoning: Reasoning) -> String {
        let json = self.json(schema);
        if reasoning != Reasoning::Channels {
            return json;
        }
        let [channel, begins] = [CHANNEL_NAME, CHANNEL_MESSAGE].map(|marker| self.marker(marker));
        format!("{channel} \"final\" {begins} {json}")
    }

    /// A call that is a name and arguments.
    fn call(&mut self, tool: &Callable, syntax: ToolSyntax) -> Result<String, ApiError> {
        let name = quoted(&tool.name);
        Ok(match syntax {
            ToolSyntax::Glm => {
                let members = self.members(tool)?;
                format!("{} {name} {members} {}", self.marker(TOOL_CALL), self.marker(TOOL_CALL_END))
            }
            ToolSyntax::DeepSeek => {
                let arguments = self.json(tool.parameters.clone());
                let [calls, call, separator, end, ends] =
                    [DEEPSEEK_CALLS, DEEPSEEK_CALL, DEEPSEEK_SEPARATOR, DEEPSEEK_CALL_END, DEEPSEEK_CALLS_END]
                        .map(|marker| self.marker(marker));
                format!("{calls} {call} {name} {separator} {arguments} {end} {ends}")
            }
            ToolSyntax::Harmony => {
                let arguments = self.json(tool.parameters.clone());
                let [channel, kind, begins] =
                    [CHANNEL_NAME, CHANNEL_TYPE, CHANNEL_MESSAGE].map(|marker| self.marker(marker));
                let header = quoted(&format!("commentary to=functions.{} ", tool.name));
                // The token that would end the message ends the text.
                format!("{channel} {header} {kind} \"json\" {begins} {arguments}")
            }
            ToolSyntax::MistralIds => {
                let arguments = self.json(tool.parameters.clone());
                let id = self.rule("ID", "", "/[a-zA-Z0-9]{9}/");
                let [calls, before_id, separator] = [TOOL_CALLS, CALL_ID, ARGS].map(|marker| self.marker(marker));
                format!("{calls} {name} {before_id} {id} {separator} {arguments}")
            }
            _ => {
                let arguments = self.json(tool.parameters.clone());
                format!("{} {name} {} {arguments}", self.marker(TOOL_CALLS), self.marker(ARGS))
            }
        })
    }

    /// The members of GLM's arguments, in the order in which the schema lists them.
    fn members(&mut self, tool: &Callable) -> Result<String, ApiError> {
        let cannot = |keyword: &str, what: &str| {
            let message = format!("this model writes arguments one by one, and they cannot be held to {what} there");
            ApiError::unsupported(format!("{}.{keyword}", tool.at), message)
        };
        let schema = tool.parameters.as_object().into_iter().flatten();
        for (keyword, value) in schema {
            let is_known = GLM_OBJECT.contains(&keyword.as_str()) || GLM_ANNOTATIONS.contains(&keyword.as_str());
            if !is_known || (keyword == "type" && value != "object") {
                return Err(cannot(keyword, &format!("`{keyword}`")));
            }
        }
        let required = tool.parameters["required"].as_array().into_iter().flatten();
        let required: Vec<&str> = required.filter_map(Value::as_str).collect();
        let properties = tool.parameters["properties"].as_object();
        let is_property = |name: &&&str| properties.is_some_and(|properties| properties.contains_key(**name));
        if let Some(missing) = required.iter().find(|name| !is_property(name)) {
            return Err(cannot("required", &format!("`{missing}`, which is no property")));
        }
        let mut members = Vec::new();
        for (name, schema) in properties.into_iter().flatten() {
            let value = if is_string(schema) {
                self.string(schema, &|keyword| {
                    cannot(&format!("properties.{name}.{keyword}"), &format!("`{keyword}`"))
                })?
            } else {
                let mut schema = schema.clone();
                // What it refers to stands beside the properties.
                for definitions in ["$defs", "definitions"] {
                    if let (Some(schema), Some(found)) = (schema.as_object_mut(), tool.parameters.get(definitions)) {
                        schema.insert(definitions.to_owned(), found.clone());
                    }
                }
                let json = self.json(schema);
                format!("{json} {}", self.marker(GLM_VALUE_END))
            };
            let [key, key_end, begins] = [GLM_KEY, GLM_KEY_END, GLM_VALUE].map(|marker| self.marker(marker));
            let member = format!("({key} {} {key_end} {begins} {value})", quoted(name));
            members.push(if required.contains(&name.as_str()) { member } else { format!("{member}?") });
        }
        Ok(members.join(" "))
    }

    /// A string as it is, and the marker behind it.
    fn string(&mut self, schema: &Value, cannot: &dyn Fn(&str) -> ApiError) -> Result<String, ApiError> {
        let keywords = schema.as_object().into_iter().flatten().map(|(keyword, _)| keyword.as_str());
        if let Some(other) = keywords.into_iter().find(|k| !GLM_STRING.contains(k) && !GLM_ANNOTATIONS.contains(k)) {
            return Err(cannot(other));
        }
        let constant = schema.get("const").map(std::slice::from_ref);
        let values = constant.or_else(|| schema["enum"].as_array().map(Vec::as_slice));
        if let Some(values) = values {
            let values: Vec<_> = values.iter().filter_map(Value::as_str).map(quoted).collect();
            if values.is_empty() {
                return Err(cannot("enum"));
            }
            return Ok(format!("({}) {}", values.join(" | "), self.marker(GLM_VALUE_END)));
        }
        let length = |keyword: &str| schema.get(keyword).map(|value| value.as_u64().ok_or_else(|| cannot(keyword)));
        let (least, most) = (length("minLength").transpose()?, length("maxLength").transpose()?);
        if least.is_none() && most.is_none() {
            return Ok(self.text_until(GLM_VALUE_END));
        }
        let end = self.marker(GLM_VALUE_END);
        if most == Some(0) {
            return Ok(end);
        }
        let most = most.map_or(String::new(), |most| most.to_string());
        let least = least.unwrap_or(0);
        let text = self.rule("TEXT", "", &format!("/(?s:.{{{},{most}}})/", least.max(1)));
        let optional = if least == 0 { "?" } else { "" };
        Ok(format!("{text}{optional} {end}"))
    }
}

/// Whether GLM writes such a value as it is, and not as JSON; as [`crate::tools::functions`] reads it.
pub(crate) fn is_string(schema: &Value) -> bool {
    let values = schema["enum"].as_array();
    schema["type"] == "string"
        || schema["const"].is_string()
        || values.is_some_and(|values| values.iter().all(Value::is_string))
}

/// A schema that stands at `place` in another: what it refers to in itself is there now.
fn moved(schema: &Value, place: &str) -> Value {
    match schema {
        Value::Object(members) => {
            let member = |(keyword, value): (&String, &Value)| {
                let value = match (keyword.as_str(), value) {
                    // Those hold values, not schemas.
                    ("enum" | "const" | "default" | "example" | "examples", _) => value.clone(),
                    ("$ref", Value::String(to)) => match to.strip_prefix('#') {
                        Some(rest) => format!("#/{place}{rest}").into(),
                        None => value.clone(),
                    },
                    _ => moved(value, place),
                };
                (keyword.clone(), value)
            };
            members.iter().map(member).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(|item| moved(item, place)).collect(),
        _ => schema.clone(),
    }
}

/// A text as Lark quotes it, which is as JSON does.
fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}
