//! Reading JSON in these tests with no code of the product's: what is compared stays text.

use engine::event::Event;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// The members of an object, each as its text.
#[derive(Debug, Clone)]
pub(crate) struct Fields(BTreeMap<String, Box<RawValue>>);

impl Fields {
    pub(crate) fn of(json: &str) -> Self {
        Self(serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}")))
    }

    /// None where the text is no object.
    pub(crate) fn maybe(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok().map(Self)
    }

    pub(crate) fn payload(event: &Event) -> Self {
        Self::of(&event.event.payload.text())
    }

    /// The names, sorted.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The member's text.
    pub(crate) fn raw(&self, name: &str) -> &str {
        self.0.get(name).unwrap_or_else(|| panic!("no member {name} in {:?}", self.0)).get()
    }

    /// The member, which is a string.
    pub(crate) fn str(&self, name: &str) -> String {
        string(self.raw(name))
    }

    /// Whether the member is that string.
    pub(crate) fn is(&self, name: &str, value: &str) -> bool {
        self.0.get(name).is_some_and(|raw| serde_json::from_str::<String>(raw.get()).is_ok_and(|text| text == value))
    }

    /// The member, which is a number or null.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        serde_json::from_str(self.raw(name)).unwrap_or_else(|error| panic!("{error}: {}", self.raw(name)))
    }

    pub(crate) fn bool(&self, name: &str) -> bool {
        serde_json::from_str(self.raw(name)).unwrap_or_else(|error| panic!("{error}: {}", self.raw(name)))
    }

    /// The elements of the member, which is an array.
    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        list(self.raw(name))
    }
}

/// The elements of an array, each as its text.
pub(crate) fn list(json: &str) -> Vec<String> {
    let list: Vec<Box<RawValue>> = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"));
    list.iter().map(|element| element.get().to_owned()).collect()
}

pub(crate) fn string(json: &str) -> String {
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

/// The text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Content as blocks: a string is one text block.
pub(crate) fn blocks(content: &str) -> Vec<String> {
    if content.starts_with('[') { list(content) } else { vec![format!(r#"{{"type":"text","text":{content}}}"#)] }
}

/// `[a,b]`.
pub(crate) fn array(elements: &[String]) -> String {
    format!("[{}]", elements.join(","))
}
