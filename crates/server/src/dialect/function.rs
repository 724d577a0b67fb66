//! The functions that a request offers, as far as calls of them depend on it.

use serde_json::Value;

/// A function that is offered, as far as reading its calls depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Its parameters that are strings: some dialects write those as they are, and the rest as JSON.
    pub(crate) strings: Vec<String>,
}

impl Function {
    /// Those that `tools` offer.
    pub(crate) fn offered(tools: &[Value]) -> Vec<Self> {
        let function = |tool: &Value| {
            let function = &tool["function"];
            let properties = function["parameters"]["properties"].as_object().into_iter().flatten();
            let strings = properties.filter(|(_, schema)| is_string(schema)).map(|(name, _)| name.clone()).collect();
            Some(Self { name: function["name"].as_str()?.to_owned(), strings })
        };
        tools.iter().filter_map(function).collect()
    }
}

/// Whether all values of a schema are strings.
pub(super) fn is_string(schema: &Value) -> bool {
    let values = schema["enum"].as_array();
    schema["type"] == "string"
        || schema["const"].is_string()
        || values.is_some_and(|values| values.iter().all(Value::is_string))
}

/// Whether a name may contain this character.
pub(super) fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.')
}
