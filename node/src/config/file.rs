//! The configuration file's form. Unknown keys are refused: a misspelt one would be silently without effect.

use super::{Usage, registry, telemetry};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub server: BTreeMap<String, Plain>,
    pub providers: registry::Providers,
    pub mcp: registry::Mcp,
    pub telemetry: telemetry::Table,
}

/// A setting in `[server]`, as the text that an environment variable would hold.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Plain {
    Text(String),
    Whole(i64),
    Part(f64),
    Switch(bool),
}

impl Plain {
    pub fn text(&self) -> String {
        match self {
            Plain::Text(text) => text.clone(),
            Plain::Whole(number) => number.to_string(),
            Plain::Part(number) => number.to_string(),
            Plain::Switch(on) => on.to_string(),
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

/// Parses a file's text. The message names the line, and shows nothing of it.
pub(super) fn parse(text: &str) -> Result<File, Usage> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
        Usage::new(format!("configuration file, line {line}: {}", error.message()))
    })
}
