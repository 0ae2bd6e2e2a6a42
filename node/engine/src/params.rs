//! The params of the methods (docs/api.md 13). They are parsed after the checks of the caller and the session have
//! passed.

use crate::ids::SubagentId;
use crate::json::{self, Object, Raw};
use crate::message::Role;
use crate::rpc::RpcError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest idempotency key, in bytes.
const MAX_IDEMPOTENCY_KEY: usize = 255;

fn read<T: DeserializeOwned>(params: &Raw) -> Result<T, RpcError> {
    if !params.get().starts_with('{') {
        return Err(RpcError::invalid_params("params must be an object"));
    }
    serde_json::from_str(params.get()).map_err(|error| RpcError::invalid_params(json::reason(&error)))
}

fn not_blank(name: &str, value: &str) -> Result<(), RpcError> {
    if value.trim().is_empty() {
        return Err(RpcError::invalid_params(format_args!("{name} must not be blank")));
    }
    Ok(())
}

/// Params of `session.sendMessage`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SendMessage {
    /// The role as the client wrote it, or `user` if it is missing.
    pub role: String,
    /// A string or an array of blocks, unchanged.
    pub content: Raw,
    /// Whether any block is a `tool_result`.
    pub answers: bool,
    /// A repeated call with the same key follows the first one instead of starting another.
    pub idempotency_key: Option<String>,
}

impl SendMessage {
    /// Reads them.
    ///
    /// # Errors
    /// `-32602`. Content that no provider would accept, such as none at all or tool uses, is refused here, so that only
    /// the call fails and not the session.
    pub fn parse(params: &Raw) -> Result<Self, RpcError> {
        #[derive(Deserialize)]
        struct Params {
            message: Message,
            #[serde(default)]
            idempotency_key: Option<String>,
        }
        #[derive(Deserialize)]
        struct Message {
            #[serde(default)]
            role: Option<String>,
            content: Raw,
        }
        let Params { message, idempotency_key } = read(params)?;
        let answers = check_content(&message.content)?;
        let role = message.role.unwrap_or_else(|| Role::User.as_str().to_owned());
        if !answers && role != Role::User.as_str() && role != Role::Assistant.as_str() {
            return Err(RpcError::invalid_params(format_args!("message.role is {role:?}; it must be \"user\"")));
        }
        let unusable = |key: &String| key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY || key.contains('\0');
        if idempotency_key.as_ref().is_some_and(unusable) {
            return Err(RpcError::invalid_params(format_args!(
                "idempotency_key must have 1 to {MAX_IDEMPOTENCY_KEY} bytes, none of them zero"
            )));
        }
        Ok(Self { role, content: message.content, answers, idempotency_key })
    }
}

/// Whether the content holds tool results. Content that cannot be made good for a provider is refused (docs/api.md 5.7).
fn check_content(content: &Raw) -> Result<bool, RpcError> {
    let refused = |what: &str| Err(RpcError::invalid_params(format_args!("message.content {what}")));
    if let Some(text) = json::string(content) {
        return match text.trim() {
            _ if text.is_empty() => refused("must not be empty"),
            "" => refused("must not be blank"),
            _ => Ok(false),
        };
    }
    let Some(blocks) = json::array(content) else {
        return refused("must be a string or an array of content blocks");
    };
    if blocks.is_empty() {
        return refused("must not be empty");
    }
    let (mut answers, mut says_something) = (false, false);
    for (i, block) in blocks.iter().enumerate() {
        let wrong = |what: &str| Err(RpcError::invalid_params(format_args!("message.content[{i}] {what}")));
        let Some(members) = Object::parse(block) else { return wrong("is not an object") };
        match members.str("type").as_deref() {
            None => return wrong("has no string field `type`"),
            Some("tool_use") => return wrong("is a tool_use block; only the model writes those"),
            Some("text") => match members.get("text") {
                Some(text) if text.get().starts_with('"') => {
                    says_something |= json::string(text).is_none_or(|text| !text.trim().is_empty());
                }
                _ => return wrong("is a text block without a string field `text`"),
            },
            Some("tool_result") => {
                if let Err(what) = check_result(&members) {
                    return wrong(what);
                }
                answers = true;
            }
            Some(_) => says_something = true,
        }
    }
    if answers || says_something { Ok(answers) } else { refused("must not be blank") }
}

/// Checks a `tool_result` block. Any JSON may be its content; what formats do not know is sent as its text.
fn check_result(result: &Object<'_>) -> Result<(), &'static str> {
    if result.str("tool_use_id").is_none() {
        return Err("is a tool_result without a string field `tool_use_id`");
    }
    match result.get("is_error").map(serde_json::value::RawValue::get) {
        None | Some("true" | "false" | "null") => {}
        Some(_) => return Err("is a tool_result whose `is_error` is neither true nor false"),
    }
    let parts = result.get("content").and_then(json::array).unwrap_or_default();
    for part in parts.into_iter().filter_map(Object::parse) {
        if part.str("type").as_deref() == Some("image") && part.get("source").and_then(Object::parse).is_none() {
            return Err("is a tool_result with an image that has no object `source`");
        }
    }
    Ok(())
}

/// Params of `session.compact`: the instruction to use, if one is given.
///
/// # Errors
/// `-32602`.
pub fn compact(params: &Raw) -> Result<Option<String>, RpcError> {
    #[derive(Deserialize)]
    struct Params {
        #[serde(default)]
        prompt: Option<String>,
    }
    Ok(read::<Params>(params)?.prompt)
}

/// Params of `session.subscribe`.
#[derive(Debug, Clone, Deserialize)]
pub struct Subscribe {
    /// First replay the events after this one. A text that is not the id of an event replays the whole log, as the id of
    /// an event of another session does (docs/api.md 3.9).
    #[serde(default)]
    pub since_event_id: Option<String>,
    /// Whether events that clients made are forwarded live. If missing, the server's setting decides (docs/api.md 3.9).
    #[serde(default)]
    pub include_client_events: Option<bool>,
}

impl Subscribe {
    /// Reads them.
    ///
    /// # Errors
    /// `-32602`.
    pub fn parse(params: &Raw) -> Result<Self, RpcError> {
        read(params)
    }
}

/// Params of `session.startRemoteSandbox`: the image.
///
/// # Errors
/// `-32602` if the image is missing or blank.
pub fn start_remote_sandbox(params: &Raw) -> Result<String, RpcError> {
    #[derive(Deserialize)]
    struct Params {
        image: String,
    }
    let Params { image } = read(params)?;
    not_blank("image", &image)?;
    Ok(image)
}

/// Params of `session.execRemoteSandbox`: the command.
///
/// # Errors
/// `-32602` if the command is missing.
pub fn exec_remote_sandbox(params: &Raw) -> Result<String, RpcError> {
    #[derive(Deserialize)]
    struct Params {
        command: String,
    }
    Ok(read::<Params>(params)?.command)
}

/// Params of the methods that take none.
///
/// # Errors
/// `-32602` if they are not an object.
pub fn none(params: &Raw) -> Result<(), RpcError> {
    #[derive(Deserialize)]
    struct Params {}
    read::<Params>(params).map(drop)
}

/// Params of `session.cancelSubagent`: the subagent. None if the text does not have the form of such an id.
///
/// # Errors
/// `-32602` if the id is missing or blank.
pub fn cancel_subagent(params: &Raw) -> Result<Option<SubagentId>, RpcError> {
    #[derive(Deserialize)]
    struct Params {
        subagent_id: String,
    }
    let Params { subagent_id } = read(params)?;
    not_blank("subagent_id", &subagent_id)?;
    Ok(subagent_id.parse().ok())
}

/// The state of a client's own sandbox, as it reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LocalSandboxState {
    /// It runs.
    Running,
    /// It was stopped.
    Stopped,
    /// It failed.
    Error,
}

/// Params of `session.reportLocalSandbox`.
#[derive(Debug, Clone, Deserialize)]
pub struct LocalSandbox {
    /// What happened.
    pub state: LocalSandboxState,
    /// The image. Null only if there is no sandbox (`unsandboxed`).
    pub image: Option<String>,
    /// The container, if there is one.
    #[serde(default)]
    pub container_id: Option<String>,
    /// What went wrong.
    #[serde(default)]
    pub detail: Option<String>,
    /// Whether the client runs tools on its own host, without a sandbox (docs/api.md 9.5).
    #[serde(default)]
    pub unsandboxed: bool,
}

impl LocalSandbox {
    /// Reads them.
    ///
    /// # Errors
    /// `-32602`.
    pub fn parse(params: &Raw) -> Result<Self, RpcError> {
        let this: Self = read(params)?;
        match (&this.image, this.unsandboxed) {
            (Some(_), true) => Err(RpcError::invalid_params("image must be null when unsandboxed is true")),
            (None, false) => Err(RpcError::invalid_params("missing field `image`")),
            (Some(image), false) => not_blank("image", image).map(|()| this),
            (None, true) => Ok(this),
        }
    }
}

/// The state of a client's own subagent, as it reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LocalSubagentState {
    /// It is about to start.
    Start,
    /// It runs.
    Running,
    /// It ended by itself and succeeded.
    Completed,
    /// It ended by itself and failed.
    Failed,
    /// It was stopped.
    Cancelled,
}

/// Params of `session.reportLocalSubagent`.
#[derive(Debug, Clone, Deserialize)]
pub struct LocalSubagent {
    /// What happened.
    pub state: LocalSubagentState,
    /// The id that the client gave it.
    pub subagent_id: String,
    /// The command-line agent.
    pub harness: String,
    /// The model that it uses.
    pub model: String,
    /// A text for people.
    #[serde(default)]
    pub detail: Option<String>,
    /// Why it ended; recorded without a check.
    #[serde(default)]
    pub reason: Option<String>,
    /// The process's exit code.
    #[serde(default)]
    pub exit_code: Option<i64>,
}

impl LocalSubagent {
    /// Reads them.
    ///
    /// # Errors
    /// `-32602`.
    pub fn parse(params: &Raw) -> Result<Self, RpcError> {
        let this: Self = read(params)?;
        not_blank("subagent_id", &this.subagent_id)?;
        not_blank("harness", &this.harness)?;
        not_blank("model", &this.model)?;
        Ok(this)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(params: &str) -> Result<SendMessage, RpcError> {
        SendMessage::parse(&json::parse(params).expect("json"))
    }

    #[test]
    fn messages() {
        let plain = message(r#"{"message":{"content":"hi"},"idempotency_key":null}"#).expect("valid");
        assert_eq!((plain.role.as_str(), plain.answers), ("user", false));
        let answer = r#"{"message":{"role":"x","content":[{"type":"tool_result","tool_use_id":"t","content":1.10}]}}"#;
        assert!(message(answer).expect("valid").answers);
        for bad in [
            "[]",
            "{}",
            r#"{"message":{}}"#,
            r#"{"message":{"content":null}}"#,
            r#"{"message":{"content":""}}"#,
            r#"{"message":{"content":[]}}"#,
            r#"{"message":{"content":[3]}}"#,
            r#"{"message":{"content":[{"type":"tool_use","id":"t"}]}}"#,
            r#"{"message":{"content":[{"type":"text","text":""}]}}"#,
            r#"{"message":{"content":[{"type":"tool_result"}]}}"#,
            r#"{"message":{"role":7,"content":"x"}}"#,
            r#"{"message":{"role":"system","content":"x"}}"#,
            r#"{"message":{"content":"x"},"idempotency_key":""}"#,
        ] {
            assert_eq!(message(bad).expect_err(bad).code, -32602, "{bad}");
        }
    }

    #[test]
    fn reports() {
        let sandbox = |text: &str| LocalSandbox::parse(&json::parse(text).expect("json"));
        assert!(sandbox(r#"{"state":"running","image":"a"}"#).is_ok());
        assert!(sandbox(r#"{"state":"running","image":null,"unsandboxed":true}"#).is_ok());
        assert!(sandbox(r#"{"state":"running","unsandboxed":true,"image":"a"}"#).is_err());
        assert!(sandbox(r#"{"state":"running"}"#).is_err());
        assert!(sandbox(r#"{"state":"paused","image":"a"}"#).is_err());
    }
}
