//! The keywords of JSON Schema and of OpenAPI, by what is done about them here.

use serde_json::{Map, Value};

/// Keywords with one schema in them, with a list of schemas, and with schemas by name.
pub(crate) const INNER: [&[&str]; 3] = [
    &["items", "additionalItems", "additionalProperties"],
    &["anyOf", "oneOf", "allOf", "prefixItems", "items"],
    &["properties", "patternProperties", "$defs", "definitions"],
];
/// Other keywords that a text is held to.
pub(crate) const HELD: &[&str] = &[
    "$ref",
    "const",
    "enum",
    "type",
    "minItems",
    "maxItems",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];
/// Those that say something about a value and hold it to nothing, of JSON Schema and of OpenAPI.
pub(crate) const ANNOTATIONS: &[&str] = &[
    "$schema",
    "$id",
    "id",
    "$anchor",
    "$comment",
    "$vocabulary",
    "title",
    "description",
    "default",
    "example",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "contentEncoding",
    "contentSchema",
    "discriminator",
    "xml",
    "externalDocs",
    "nullable",
];
/// Those that no grammar here holds a text to.
pub(crate) const UNCHECKED: &[&str] = &[
    "not",
    "if",
    "then",
    "else",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
];
/// Forms of strings that a grammar knows; others are annotations, as the standard has it.
pub(crate) const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// The schemas that stand in a schema.
pub(crate) fn inner(schema: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let [single, lists, named] = INNER.map(|keywords| keywords.iter().filter_map(move |keyword| schema.get(*keyword)));
    let lists = lists.filter_map(Value::as_array).flatten();
    lists.chain(named.filter_map(Value::as_object).flat_map(Map::values)).chain(single)
}
