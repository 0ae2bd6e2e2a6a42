//! Reads the configuration file. Unknown keys are refused, because a misspelt one would have no effect without a word.

use super::{Usage, registry, telemetry};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub(crate) server: BTreeMap<String, TomlValue>,
    pub(crate) providers: registry::Providers,
    pub(crate) mcp: registry::Mcp,
    pub(crate) telemetry: telemetry::Table,
}

/// A value in `[server]`. Settings there may be written with their TOML type or as text.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum TomlValue {
    Text(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
}

impl TomlValue {
    /// The text that an environment variable would hold.
    pub(crate) fn text(&self) -> String {
        match self {
            TomlValue::Text(text) => text.clone(),
            TomlValue::Integer(number) => number.to_string(),
            TomlValue::Float(number) => number.to_string(),
            TomlValue::Boolean(on) => on.to_string(),
        }
    }
}

/// Reads a file; one that does not exist counts as empty.
pub(super) fn read(path: &Path) -> Result<String, Usage> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => {
            Err(Usage::new(format!("cannot read the configuration file {}: {error}; fix or remove it", path.display())))
        }
    }
}

/// Parses a file's text. The error names the line and does not quote it, because it may hold a secret.
pub(super) fn parse(text: &str) -> Result<File, Usage> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
        Usage::new(format!("configuration file, line {line}: {}", without_value(error.message())))
    })
}

/// A parser's message without the value that it refuses: ``integer `3`, expected a string`` becomes `integer, expected
/// a string`.
fn without_value(message: &str) -> String {
    let kinds = ["invalid type: ", "invalid value: "];
    let refused = kinds.iter().find_map(|kind| Some((kind, message.strip_prefix(kind)?)));
    let Some((kind, rest)) = refused else { return message.to_owned() };
    let (value, expected) = rest.rsplit_once(", expected ").unwrap_or((rest, "something else"));
    let name = value.split(['`', '"']).next().unwrap_or_default().trim_end();
    format!("{kind}{name}, expected {expected}")
}
