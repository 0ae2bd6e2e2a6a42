//! Tool declarations: what a client may declare, what is stored of it, and what a model is offered.
//!
//! The rules are those of docs/api.md 12, 13.12 and 8.1. Only the fields named there are stored and sent to a provider,
//! and a field that is missing stays missing (D12). Schemas are passed on unchanged. Declarations belong to one client
//! of a session and are never combined with those of another.

mod schema;
pub mod subagent;

use crate::json::{self, Object, Raw};
use serde::de::{DeserializeOwned, Deserializer, Error};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashSet;
use subagent::SubagentTool;

/// The name of the server's own tool (docs/api.md 8.6), which no client may declare.
pub const SUBAGENT_STATUS: &str = "remote_subagent_status";

/// The schema of a tool that was declared without one.
const NO_PARAMETERS: &str = r#"{"type":"object","properties":{}}"#;

/// A tool that the client runs itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(expecting = "an object")]
pub struct ClientTool {
    /// Never blank.
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// For the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// An object, verbatim.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "schema")]
    pub input_schema: Option<Raw>,
}

/// A tool that the server runs in the session's sandbox, by executing `input.command` there.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "ClientTool")]
pub struct SandboxTool {
    /// Never blank.
    pub name: String,
    /// For the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON schema that requires a string `command`.
    pub input_schema: Raw,
}

impl TryFrom<ClientTool> for SandboxTool {
    type Error = String;

    fn try_from(tool: ClientTool) -> Result<Self, String> {
        let ClientTool { name, description, input_schema } = tool;
        match input_schema.filter(|schema| requires_command(schema)) {
            Some(input_schema) => Ok(Self { name, description, input_schema }),
            None => Err(format!(
                "the input_schema of sandbox tool `{name}` must declare a property `command` of type \"string\" and list it \
                 in `required`"
            )),
        }
    }
}

fn requires_command(schema: &RawValue) -> bool {
    let Some(schema) = Object::parse(schema) else { return false };
    let required = schema.get("required").and_then(json::array).unwrap_or_default();
    let properties = schema.get("properties").and_then(Object::parse);
    let command = properties.as_ref().and_then(|p| p.get("command")).and_then(Object::parse);
    required.into_iter().any(|name| json::string(name).as_deref() == Some("command"))
        && command.is_some_and(|command| command.str("type").as_deref() == Some("string"))
}

/// A tool as every provider request lists it: `{"name","description"?,"input_schema"}`. The schema is completed where
/// providers would refuse it.
pub fn offered(name: &str, description: Option<&str>, input_schema: Option<&RawValue>) -> Raw {
    let mut text = format!(r#"{{"name":{}"#, json::encode(name));
    if let Some(description) = description {
        text.push_str(r#","description":"#);
        text.push_str(json::encode(description).get());
    }
    text.push_str(r#","input_schema":"#);
    match input_schema {
        Some(schema) => text.push_str(schema::sendable(schema).get()),
        None => text.push_str(NO_PARAMETERS),
    }
    text.push('}');
    json::built(text)
}

/// All declarations of one client, checked. Stored as JSON text in the client's row.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Declarations {
    /// Tools that the client runs.
    #[serde(deserialize_with = "objects")]
    pub tools: Vec<ClientTool>,
    /// Tools that the server runs in the sandbox.
    #[serde(deserialize_with = "objects")]
    pub sandbox_tools: Vec<SandboxTool>,
    /// Tools by which the server launches subagents.
    #[serde(deserialize_with = "objects")]
    pub subagent_tools: Vec<SubagentTool>,
}

/// A declared tool, by who runs it.
#[derive(Debug, Clone, Copy)]
pub enum Tool<'a> {
    /// The client runs it.
    Client(&'a ClientTool),
    /// The session's sandbox runs it.
    Sandbox(&'a SandboxTool),
    /// It launches a subagent.
    Subagent(&'a SubagentTool),
}

impl<'a> Tool<'a> {
    /// The tool's name.
    pub fn name(self) -> &'a str {
        match self {
            Tool::Client(tool) => &tool.name,
            Tool::Sandbox(tool) => &tool.name,
            Tool::Subagent(tool) => &tool.name,
        }
    }

    /// The tool as a provider request lists it. The image and the commands of a subagent tool are left out (docs/api.md
    /// 8.2).
    pub fn offered(self) -> Raw {
        match self {
            Tool::Client(t) => offered(&t.name, t.description.as_deref(), t.input_schema.as_deref()),
            Tool::Sandbox(t) => offered(&t.name, t.description.as_deref(), Some(&t.input_schema)),
            Tool::Subagent(t) => offered(&t.name, t.description.as_deref(), t.input_schema.as_deref()),
        }
    }
}

impl Declarations {
    /// The tools in their order: those that the client runs, then sandbox tools, then subagent tools. Of several with
    /// the same name only the first is returned, because providers refuse a list with two.
    pub fn each(&self) -> impl Iterator<Item = Tool<'_>> {
        let client = self.tools.iter().map(Tool::Client);
        let sandbox = self.sandbox_tools.iter().map(Tool::Sandbox);
        let subagent = self.subagent_tools.iter().map(Tool::Subagent);
        let mut seen = HashSet::new();
        client.chain(sandbox).chain(subagent).filter(move |tool| seen.insert(tool.name()))
    }

    /// The tool with that name.
    pub fn get(&self, name: &str) -> Option<Tool<'_>> {
        self.each().find(|tool| tool.name() == name)
    }

    /// The stored form, version 1.
    pub fn store(&self) -> String {
        #[derive(Serialize)]
        struct Stored<'a> {
            v: u8,
            #[serde(flatten)]
            declarations: &'a Declarations,
        }
        json::encode(&Stored { v: 1, declarations: self }).get().to_owned()
    }

    /// Reads the stored form back.
    ///
    /// # Errors
    /// The text is not the stored form, or is of a newer version.
    pub fn load(stored: &str) -> Result<Self, Unreadable> {
        #[derive(Deserialize)]
        struct Version {
            v: u8,
        }
        match serde_json::from_str::<Version>(stored)?.v {
            1 => Ok(serde_json::from_str(stored)?),
            other => Err(Unreadable::Version(other)),
        }
    }
}

/// Stored declarations that cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// They are not the JSON of stored declarations.
    #[error("stored tool declarations are not readable: {0}")]
    Json(#[from] serde_json::Error),
    /// They were written by a newer version.
    #[error("stored tool declarations have version {0}; this program reads version 1")]
    Version(u8),
}

/// Why a tool may not be declared. The text is the `detail` of a REST problem and, after the name of the error, the
/// message of a JSON-RPC error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// The name is that of the server's own tool.
    #[error("tool name `{SUBAGENT_STATUS}` is reserved for the server; give the tool another name")]
    Reserved,
    /// The profile does not list the tool.
    #[error("tool `{0}` is not in the profile's allowed_tools; add it to the profile or do not declare it")]
    NotAllowed(String),
}

/// Checks the tools that a client wants to run itself: no name may be reserved, and the profile must list each. An
/// empty list allows no tool.
///
/// # Errors
/// The first tool that may not be declared.
pub fn check_allowed(tools: &[ClientTool], allowed_tools: &[String]) -> Result<(), Forbidden> {
    check_reserved(tools.iter().map(|tool| tool.name.as_str()))?;
    match tools.iter().find(|tool| !allowed_tools.contains(&tool.name)) {
        Some(tool) => Err(Forbidden::NotAllowed(tool.name.clone())),
        None => Ok(()),
    }
}

/// Checks that no tool of any kind has a reserved name (docs/api.md 8.1).
///
/// # Errors
/// `Reserved` if one has.
pub fn check_reserved<'a>(mut names: impl Iterator<Item = &'a str>) -> Result<(), Forbidden> {
    if names.any(|name| name == SUBAGENT_STATUS) { Err(Forbidden::Reserved) } else { Ok(()) }
}

/// Deserializes a list of objects. Serde itself would also accept an array of a struct's fields in place of an object.
///
/// # Errors
/// An element is not an object, or not one of this type.
pub fn objects<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let elements = Vec::<&RawValue>::deserialize(deserializer)?;
    let read = |element: &&RawValue| match element.get() {
        text if text.starts_with('[') => Err(Error::custom("invalid type: sequence, expected an object")),
        text => serde_json::from_str(text).map_err(|error| Error::custom(json::reason(&error))),
    };
    elements.iter().map(read).collect()
}

/// The most characters of a tool's name (docs/api.md 11).
const MAX_NAME: usize = 64;

/// Whether every provider takes the name: `^[a-zA-Z0-9_-]{1,64}$` (docs/api.md 11).
pub fn is_sendable_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
}

/// The name as providers take it: every other character becomes `_`, and what is too long is cut.
pub fn sendable_name(name: &str) -> Cow<'_, str> {
    if is_sendable_name(name) {
        return Cow::Borrowed(name);
    }
    let sendable = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let text: String = name.chars().take(MAX_NAME).map(sendable).collect();
    Cow::Owned(if text.is_empty() { "_".into() } else { text })
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    if name.trim().is_empty() { Err(Error::custom("a tool's `name` must not be blank")) } else { Ok(name) }
}

fn schema<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Raw>, D::Error> {
    match Option::<Raw>::deserialize(deserializer)? {
        Some(schema) if !schema.get().starts_with('{') => {
            Err(Error::custom("a tool's `input_schema` must be an object"))
        }
        schema => Ok(schema),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> Result<ClientTool, String> {
        serde_json::from_str(text).map_err(|error| json::reason(&error))
    }

    fn listed(text: &str) -> String {
        Tool::Client(&client(text).unwrap()).offered().get().to_owned()
    }

    #[test]
    fn only_known_fields_are_offered() {
        assert_eq!(listed(r#"{"name":"t"}"#), r#"{"name":"t","input_schema":{"type":"object","properties":{}}}"#);
        assert_eq!(
            listed(r#"{"input_schema":null,"cache_control":{},"description":null,"name":"t"}"#),
            r#"{"name":"t","input_schema":{"type":"object","properties":{}}}"#
        );
        let schema = r#"{"type":"object","properties":{},"b":1.10, "a":"\ud800","n":12345678901234567890123}"#;
        assert_eq!(
            listed(&format!(r#"{{"name":"t","description":"é","input_schema":{schema}}}"#)),
            format!(r#"{{"name":"t","description":"é","input_schema":{schema}}}"#)
        );
    }

    #[test]
    fn unusable_declarations_are_refused() {
        for (text, why) in [
            (r#"{"description":"d"}"#, "missing field `name`"),
            (r#"{"name":" \t"}"#, "a tool's `name` must not be blank"),
            (r#"{"name":"t","input_schema":[]}"#, "a tool's `input_schema` must be an object"),
            (r#"{"name":"t","description":1}"#, "invalid type: integer `1`, expected a string"),
        ] {
            assert_eq!(client(text).unwrap_err(), why);
        }
        #[derive(Deserialize)]
        struct List(#[serde(deserialize_with = "objects")] Vec<ClientTool>);
        let error = serde_json::from_str::<List>(r#"[["t"]]"#).map(|list| list.0).unwrap_err();
        assert_eq!(json::reason(&error), "invalid type: sequence, expected an object");
    }

    #[test]
    fn a_sandbox_tool_takes_a_command() {
        let parse = |schema: &str| {
            serde_json::from_str::<SandboxTool>(&format!(r#"{{"name":"run","input_schema":{schema}}}"#))
                .map_err(|error| json::reason(&error))
        };
        let good = r#"{"type":"object","properties":{"command":{"type":"string"}},"required":["x","command"]}"#;
        assert_eq!(parse(good).unwrap().input_schema.get(), good);
        for bad in [
            "null",
            "{}",
            r#"{"properties":{"command":{"type":"string"}}}"#,
            r#"{"properties":{"command":{"type":"string"}},"required":["comand"]}"#,
            r#"{"properties":{"command":{"type":"array"}},"required":["command"]}"#,
            r#"{"properties":[],"required":"command"}"#,
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.starts_with("the input_schema of sandbox tool `run` must declare"), "{bad}: {error}");
        }
    }

    #[test]
    fn stored_declarations_read_back() {
        let schema = r#"{"properties":{"command":{"type":"string"}},"required":["command"], "n":1.10}"#;
        let text = format!(
            r#"{{"v":1,"tools":[{{"name":"a"}},{{"name":"b","description":"d"}}],"sandbox_tools":[{{"name":"b","input_schema":{schema}}},{{"name":"s","input_schema":{schema}}}],"subagent_tools":[{{"name":"l","image":"i","subagents":[{{"harness":"h","command_template":"c","prompt_via":"stdin","timeout_secs":9}}]}}]}}"#
        );
        let declarations = Declarations::load(&text).unwrap();
        assert_eq!(declarations.store(), text);
        assert_eq!(declarations.each().map(Tool::name).collect::<Vec<_>>(), ["a", "b", "s", "l"]);
        assert!(matches!(declarations.get("b"), Some(Tool::Client(_))));
        assert!(matches!(declarations.get("l"), Some(Tool::Subagent(_))));
        assert!(declarations.get("x").is_none());
        assert_eq!(
            declarations.get("l").unwrap().offered().get(),
            r#"{"name":"l","input_schema":{"type":"object","properties":{}}}"#
        );
        assert!(matches!(Declarations::load(r#"{"v":2,"tools":7}"#), Err(Unreadable::Version(2))));
    }

    #[test]
    fn the_profile_and_the_server_limit_names() {
        let tools = [client(r#"{"name":"a"}"#).unwrap(), client(r#"{"name":"b"}"#).unwrap()];
        assert_eq!(check_allowed(&tools, &["b".into(), "a".into()]), Ok(()));
        assert_eq!(check_allowed(&tools, &["a".into()]), Err(Forbidden::NotAllowed("b".into())));
        assert_eq!(check_allowed(&tools, &[]), Err(Forbidden::NotAllowed("a".into())));
        let status = [client(r#"{"name":"remote_subagent_status"}"#).unwrap()];
        assert_eq!(check_allowed(&status, &[SUBAGENT_STATUS.into()]), Err(Forbidden::Reserved));
    }
}
