//! Values against the schemas of an OpenAPI document.
//!
//! Written by hand because this test is stricter than the documents, which a library would take at their word: an
//! object of an answer that lists its properties has no others, unless it says so, and a keyword that is not checked
//! here is an error.

use regex::Regex;
use serde_json::Value;

/// `components/schemas` of a document.
pub(super) struct Schemas<'a> {
    pub components: &'a Value,
    /// Whether objects have the documented properties only. The server ignores others in requests.
    pub closed: bool,
}

impl Schemas<'_> {
    /// Fails unless the value fits; the error says where it does not.
    pub(super) fn check(&self, schema: &Value, value: &Value) -> Result<(), String> {
        for (keyword, wanted) in schema.as_object().ok_or("a schema is no object")? {
            self.keyword(keyword, wanted, schema, value)?;
        }
        Ok(())
    }

    /// Fails unless every reference of the document leads somewhere.
    pub(super) fn check_references(&self, part: &Value) {
        match part {
            Value::Object(members) => {
                if let Some(reference) = members.get("$ref") {
                    self.resolve(reference).unwrap();
                }
                members.values().for_each(|member| self.check_references(member));
            }
            Value::Array(items) => items.iter().for_each(|item| self.check_references(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn resolve(&self, reference: &Value) -> Result<&Value, String> {
        let name = reference.as_str().and_then(|text| text.strip_prefix("#/components/schemas/"));
        name.and_then(|name| self.components.get(name)).ok_or_else(|| format!("{reference} leads nowhere"))
    }

    fn keyword(&self, keyword: &str, wanted: &Value, schema: &Value, value: &Value) -> Result<(), String> {
        let fits = match keyword {
            "description" | "default" => true,
            "$ref" => return self.check(self.resolve(wanted)?, value),
            "type" => match wanted {
                Value::Array(types) => types.iter().any(|wanted| is(wanted, value)),
                wanted => is(wanted, value),
            },
            "const" => wanted == value,
            "enum" => list(wanted).contains(value),
            "oneOf" => list(wanted).iter().filter(|schema| self.check(schema, value).is_ok()).count() == 1,
            "pattern" => {
                let pattern = Regex::new(wanted.as_str().unwrap_or_default()).map_err(|error| error.to_string())?;
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            "minimum" => value.as_f64().is_none_or(|number| Some(number) >= wanted.as_f64()),
            "minItems" => value.as_array().is_none_or(|items| Some(items.len() as u64) >= wanted.as_u64()),
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    self.check(wanted, item).map_err(|error| format!("[{i}]{error}"))?;
                }
                true
            }
            "required" => {
                let missing =
                    |name: &&Value| value.as_object().is_some_and(|v| !v.contains_key(name.as_str().unwrap_or("")));
                match list(wanted).iter().find(missing) {
                    Some(name) => return Err(format!(": {name} is missing in {value}")),
                    None => true,
                }
            }
            "properties" => {
                for (name, member) in value.as_object().into_iter().flatten() {
                    match (wanted.get(name), schema.get("additionalProperties")) {
                        (Some(schema), _) => self.check(schema, member).map_err(|error| format!(".{name}{error}"))?,
                        (None, Some(_)) => {}
                        (None, None) if self.closed => return Err(format!(".{name} is not documented")),
                        (None, None) => {}
                    }
                }
                true
            }
            "additionalProperties" => {
                let known = |name: &String| schema["properties"].get(name).is_some();
                for (name, member) in value.as_object().into_iter().flatten().filter(|(name, _)| !known(name)) {
                    if *wanted != Value::Bool(true) {
                        self.check(wanted, member).map_err(|error| format!(".{name}{error}"))?;
                    }
                }
                true
            }
            other => return Err(format!("the keyword {other} is not checked")),
        };
        if fits { Ok(()) } else { Err(format!(": {value} does not fit {keyword} {wanted}")) }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn is(wanted: &Value, value: &Value) -> bool {
    match wanted.as_str().unwrap_or_default() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        _ => false,
    }
}

#[test]
fn objects_are_closed() {
    use serde_json::json;
    let components = json!({"Name": {"type": "string", "pattern": "^[a-z]+$"}});
    let schemas = Schemas { components: &components, closed: true };
    let schema = json!({
        "type": "object", "required": ["a"],
        "properties": {"a": {"$ref": "#/components/schemas/Name"}, "b": {"type": ["integer", "null"], "minimum": 1}},
    });
    let open = json!({"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"type": "array"}});
    for (schema, value, fits) in [
        (&schema, json!({"a": "x"}), true),
        (&schema, json!({"a": "x", "b": null}), true),
        (&schema, json!({"a": "X"}), false),
        (&schema, json!({"a": "x", "b": 0}), false),
        (&schema, json!({"b": 1}), false),
        (&schema, json!({"a": "x", "c": 1}), false),
        (&open, json!({"a": 1, "c": []}), true),
        (&open, json!({"a": 1, "c": {}}), false),
        (&json!({"type": "string", "maxLength": 3}), json!("a"), false),
        (&json!({"$ref": "#/components/schemas/None"}), json!("a"), false),
    ] {
        assert_eq!(schemas.check(schema, &value).is_ok(), fits, "{schema} {value}");
    }
}
