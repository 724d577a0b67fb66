//! The grammar of a call whose arguments a dialect writes one by one, each between marks of its own, where a string
//! stands as it is and anything else as JSON.

use serde_json::Value;

use super::function::is_string;
use super::grammar::{Callable, GrammarWriter, quoted};
use super::marker::Marker;
use crate::error::ApiError;

/// What of a schema such a form can hold: it writes members one by one, so only what says which there are.
const OBJECT: &[&str] = &["type", "properties", "required", "additionalProperties", "$defs", "definitions"];
/// Keywords that say something about an object and hold it to nothing.
const ANNOTATIONS: &[&str] = &["$schema", "$id", "$comment", "title", "description", "default", "examples"];
/// What of a schema a string can be held to that stands there as it is.
const STRING: &[&str] = &["type", "enum", "const", "minLength", "maxLength"];

/// A parameter of a tool.
pub(super) struct Member<'a> {
    pub(super) name: &'a str,
    pub(super) is_required: bool,
    /// All its values are strings.
    pub(super) is_string: bool,
    /// Its schema, with the definitions that it refers to.
    pub(super) schema: Value,
}

/// The parameters of a tool, in the order in which its schema lists them. A schema that says more of the arguments than
/// which there are is an error that names its place.
pub(super) fn members(tool: &Callable) -> Result<Vec<Member<'_>>, ApiError> {
    let schema = tool.parameters.as_object().into_iter().flatten();
    for (keyword, value) in schema {
        let is_known = OBJECT.contains(&keyword.as_str()) || ANNOTATIONS.contains(&keyword.as_str());
        if !is_known || (keyword == "type" && value != "object") {
            return Err(cannot(tool, keyword, &format!("`{keyword}`")));
        }
    }
    let required = tool.parameters["required"].as_array().into_iter().flatten();
    let required: Vec<&str> = required.filter_map(Value::as_str).collect();
    let properties = tool.parameters["properties"].as_object();
    let is_property = |name: &&&str| properties.is_some_and(|properties| properties.contains_key(**name));
    if let Some(missing) = required.iter().find(|name| !is_property(name)) {
        return Err(cannot(tool, "required", &format!("`{missing}`, which is no property")));
    }
    let mut members = Vec::new();
    for (name, schema) in properties.into_iter().flatten() {
        let (is_required, is_string) = (required.contains(&name.as_str()), is_string(schema));
        let mut schema = schema.clone();
        // What it refers to stands beside the properties.
        for definitions in ["$defs", "definitions"] {
            if let (Some(schema), Some(found)) = (schema.as_object_mut(), tool.parameters.get(definitions)) {
                schema.insert(definitions.to_owned(), found.clone());
            }
        }
        members.push(Member { name, is_required, is_string, schema });
    }
    Ok(members)
}

/// The arguments of a call, each with what `begin` writes before its value and with `end` behind it.
pub(super) fn marked_members(
    writer: &mut GrammarWriter,
    tool: &Callable,
    begin: impl Fn(&GrammarWriter, &Member) -> String,
    end: Marker,
) -> Result<String, ApiError> {
    let mut written = Vec::new();
    for member in members(tool)? {
        let begins = begin(writer, &member);
        let value = if member.is_string {
            text_value(writer, tool, &member, end)?
        } else {
            let json = writer.json(member.schema);
            format!("{json} {}", writer.marker(end))
        };
        let optional = if member.is_required { "" } else { "?" };
        written.push(format!("({begins} {value}){optional}"));
    }
    Ok(written.join(" "))
}

fn cannot(tool: &Callable, keyword: &str, what: &str) -> ApiError {
    let message = format!("this model writes arguments one by one, and they cannot be held to {what} there");
    ApiError::unsupported(format!("{}.{keyword}", tool.at), message)
}

/// A string as it is, and the marker behind it.
pub(super) fn text_value(
    writer: &mut GrammarWriter,
    tool: &Callable,
    member: &Member,
    end: Marker,
) -> Result<String, ApiError> {
    let schema = &member.schema;
    let cannot =
        |keyword: &str| cannot(tool, &format!("properties.{}.{keyword}", member.name), &format!("`{keyword}`"));
    let keywords = schema.as_object().into_iter().flatten().map(|(keyword, _)| keyword.as_str());
    let is_known = |k: &&str| STRING.contains(k) || ANNOTATIONS.contains(k) || matches!(*k, "$defs" | "definitions");
    if let Some(other) = keywords.into_iter().find(|keyword| !is_known(keyword)) {
        return Err(cannot(other));
    }
    let constant = schema.get("const").map(std::slice::from_ref);
    let values = constant.or_else(|| schema["enum"].as_array().map(Vec::as_slice));
    if let Some(values) = values {
        let values: Vec<_> = values.iter().filter_map(Value::as_str).map(quoted).collect();
        if values.is_empty() {
            return Err(cannot("enum"));
        }
        return Ok(format!("({}) {}", values.join(" | "), writer.marker(end)));
    }
    let length = |keyword: &str| schema.get(keyword).map(|value| value.as_u64().ok_or_else(|| cannot(keyword)));
    let (least, most) = (length("minLength").transpose()?, length("maxLength").transpose()?);
    if least.is_none() && most.is_none() {
        return Ok(writer.text_until(end));
    }
    let ends = writer.marker(end);
    if most == Some(0) {
        return Ok(ends);
    }
    let most = most.map_or(String::new(), |most| most.to_string());
    let least = least.unwrap_or(0);
    let text = writer.rule("TEXT", "", &format!("/(?s:.{{{},{most}}})/", least.max(1)));
    let optional = if least == 0 { "?" } else { "" };
    Ok(format!("{text}{optional} {ends}"))
}
