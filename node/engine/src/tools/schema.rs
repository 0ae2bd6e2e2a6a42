//! Schemas of tools as both wire formats take them (docs/api.md 5.7).
//!
//! A provider that refuses the schema of one tool refuses the whole request. At its top a schema must be an object with
//! `type` `object` and `properties`, and must have no alternatives: `anyOf`, `oneOf` and `allOf` are taken apart, so that
//! the properties of all branches are offered. What a tool's own server checks is not lost by that: it gets the input
//! as the model wrote it.

use crate::json::{self, Object, Raw};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Keywords that must not stand at the top of a schema.
const ALTERNATIVES: [&str; 3] = ["anyOf", "oneOf", "allOf"];
const REFUSED: [&str; 5] = ["anyOf", "oneOf", "allOf", "enum", "not"];

/// The schema as it is sent: itself, if formats take it.
pub(super) fn sendable(schema: &RawValue) -> Cow<'_, RawValue> {
    let Some(top) = Object::parse(schema) else {
        return Cow::Owned((*json::built(super::NO_PARAMETERS.into())).to_owned());
    };
    let object = top.str("type").as_deref() == Some("object");
    let properties = top.get("properties").and_then(Object::parse);
    if object && properties.is_some() && REFUSED.iter().all(|key| top.get(key).is_none()) {
        return Cow::Borrowed(schema);
    }
    let mut all = properties.unwrap_or_default();
    let branches = ALTERNATIVES.iter().filter_map(|key| top.get(key)).filter_map(json::array).flatten();
    for branch in
        branches.filter_map(Object::parse).filter_map(|branch| branch.get("properties")).filter_map(Object::parse)
    {
        for (name, property) in branch.0 {
            if all.get(&name).is_none() {
                all.0.push((name, property));
            }
        }
    }
    let properties = all.without(&[]);
    let rest = top.without(&REFUSED);
    let kind: Raw = json::encode("object");
    let whole = Object::parse(&rest).unwrap_or_default().with(&[("type", &kind), ("properties", &properties)]);
    Cow::Owned((*whole).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(schema: &str) -> String {
        sendable(&json::parse(schema).expect("json")).get().to_owned()
    }

    #[test]
    fn a_complete_schema_is_not_touched() {
        for schema in [
            r#"{"type":"object","properties":{}}"#,
            r#"{ "properties":{"a":{"anyOf":[{},{}]}}, "type":"object", "required":["a"],"n":1.10}"#,
        ] {
            assert_eq!(sent(schema), schema);
        }
    }

    #[test]
    fn the_rest_is_completed() {
        let bare = r#"{"type":"object","properties":{}}"#;
        for schema in
            ["{}", r#"{"type":"object"}"#, r#"{"type":["object","null"]}"#, r#"{"type":"string"}"#, "true", "7"]
        {
            assert_eq!(sent(schema), bare, "{schema}");
        }
        assert_eq!(
            sent(r#"{"properties":{"a":{}},"required":["a"]}"#),
            r#"{"required":["a"],"type":"object","properties":{"a":{}}}"#
        );
        assert_eq!(
            sent(
                r#"{"$defs":{"d":{}},"anyOf":[{"properties":{"a":{"n":1}}},{"properties":{"a":{},"b":{"$ref":"x"}}},7]}"#
            ),
            r#"{"$defs":{"d":{}},"type":"object","properties":{"a":{"n":1},"b":{"$ref":"x"}}}"#
        );
    }
}
