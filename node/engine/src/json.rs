//! JSON that is passed on unchanged (docs/api.md 1.4), and functions to look into it without encoding it again.
//!
//! Values stay text (`RawValue`), so that the order of keys, the form of numbers, escapes and nesting survive. Nothing
//! here recurses, so that deep nesting cannot overflow the stack. JSON from outside enters through [`read`], which
//! removes line breaks between tokens: a line break inside a value would break the framing of NDJSON streams.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::{RawValue, to_raw_value};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// An immutable JSON text, shared.
pub type Raw = Arc<RawValue>;

/// The text without raw line breaks. In valid JSON these are only between tokens, so the value stays the same.
pub fn one_line(text: &str) -> Cow<'_, str> {
    if text.bytes().any(|b| matches!(b, b'\n' | b'\r')) {
        Cow::Owned(text.replace(['\n', '\r'], ""))
    } else {
        Cow::Borrowed(text)
    }
}

/// Parses bytes from outside as one JSON value and puts it on one line. Line breaks are removed only after parsing,
/// because a raw line break inside a string makes the text invalid, which must not be hidden.
///
/// # Errors
/// The bytes are not one JSON value in UTF-8.
pub fn read(bytes: &[u8]) -> Result<Raw, serde_json::Error> {
    let raw: &RawValue = serde_json::from_slice(bytes)?;
    Ok(RawValue::from_string(one_line(raw.get()).into_owned())?.into())
}

/// Parses a whole text as one JSON value.
///
/// # Errors
/// The text is not one JSON value.
pub fn parse(text: &str) -> Result<Raw, serde_json::Error> {
    serde_json::from_str::<&RawValue>(text).map(|raw| Arc::from(raw.to_owned()))
}

/// The message of a parse error without the line and column. Those would mislead a reader who sees only one field of a
/// body.
pub fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

/// Encodes a value as JSON. A value that JSON cannot express becomes `null`; no type that is encoded here contains one.
pub fn encode<T: serde::Serialize + ?Sized>(value: &T) -> Raw {
    Arc::from(to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned()))
}

/// Wraps a text that was put together from JSON texts. If it is not JSON, which would be a defect of the caller, the
/// result is `null`.
pub fn built(text: String) -> Raw {
    match RawValue::from_string(text) {
        Ok(raw) => Arc::from(raw),
        Err(error) => {
            debug_assert!(false, "built text is not JSON: {error}");
            Arc::from(RawValue::NULL.to_owned())
        }
    }
}

/// The decoded string, if the value is a string.
pub fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    let text = raw.get();
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str::<String>(text).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// The elements, if the value is an array.
pub fn array(raw: &RawValue) -> Option<Vec<&RawValue>> {
    serde_json::from_str(raw.get()).ok()
}

/// The array `[a,b,c]` of these elements.
pub fn join<'a>(elements: impl IntoIterator<Item = &'a RawValue>) -> Raw {
    let mut text = String::from("[");
    for (i, element) in elements.into_iter().enumerate() {
        if i > 0 {
            text.push(',');
        }
        text.push_str(element.get());
    }
    text.push(']');
    built(text)
}

/// The members of an object in their order, with all of those that have the same name.
#[derive(Debug, Clone, Default)]
pub struct Object<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Object<'a> {
    /// The members, if the value is an object.
    pub fn parse(raw: &'a RawValue) -> Option<Self> {
        raw.get().starts_with('{').then(|| serde_json::from_str(raw.get()).ok()).flatten()
    }

    /// The member of that name. Of several the last one counts, as with most parsers.
    pub fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| *value)
    }

    /// The member of that name, if it is a string.
    pub fn str(&self, key: &str) -> Option<Cow<'a, str>> {
        self.get(key).and_then(string)
    }

    /// The object without these members; the others stay in their order.
    pub fn without(&self, keys: &[&str]) -> Raw {
        self.write(keys, &[])
    }

    /// The object with these members set: members of the same names are removed, the new ones are added at the end.
    pub fn with(&self, members: &[(&str, &RawValue)]) -> Raw {
        self.write(&members.iter().map(|(key, _)| *key).collect::<Vec<_>>(), members)
    }

    fn write(&self, remove: &[&str], add: &[(&str, &RawValue)]) -> Raw {
        let kept = self.0.iter().filter(|(key, _)| !remove.contains(&key.as_ref())).map(|(k, v)| (k.as_ref(), *v));
        let mut text = String::from("{");
        for (key, value) in kept.chain(add.iter().copied()) {
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(encode(key).get());
            text.push(':');
            text.push_str(value.get());
        }
        text.push('}');
        built(text)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(Key(key)) = map.next_key()? {
                    members.push((key, map.next_value()?));
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// A member name, borrowed when it has no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl<'de> Visitor<'de> for Name {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member name")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_order_and_text() {
        let raw = parse(r#"{"b":1.10,"a":"\u00e9","dispatch":"x","n":12345678901234567890123}"#).expect("valid");
        let object = Object::parse(&raw).expect("object");
        assert_eq!(object.str("a").as_deref(), Some("é"));
        assert_eq!(object.without(&["dispatch"]).get(), r#"{"b":1.10,"a":"\u00e9","n":12345678901234567890123}"#);
        assert_eq!(object.with(&[("b", &encode(&2))]).get().matches("\"b\"").count(), 1);
    }

    #[test]
    fn line_breaks_between_tokens_go() {
        assert_eq!(one_line("{\r\n \"a\": \"x\\ny\"\n}"), r#"{ "a": "x\ny"}"#);
    }

    #[test]
    fn depth_does_not_recurse() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let raw = parse(&format!("{{\"a\":{deep}}}")).expect("valid");
        assert_eq!(Object::parse(&raw).and_then(|o| o.get("a").map(|v| v.get().len())), Some(200_000));
    }
}
