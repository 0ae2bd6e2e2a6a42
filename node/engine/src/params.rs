//! The params of the methods (docs/api.md 13): parsed once the checks that come before them have passed.

use crate::ids::{EventId, SubagentId};
use crate::json::{self, Object, Raw};
use crate::message::Role;
use crate::rpc::RpcError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest idempotency key, in bytes.
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
    /// As the client wrote it, `user` when missing.
    pub role: String,
    /// A string or an array of blocks, verbatim.
    pub content: Raw,
    /// Whether any block is a `tool_result`.
    pub answers: bool,
    /// Makes a retry follow the first call instead of starting another.
    pub idempotency_key: Option<String>,
}

impl SendMessage {
    /// Reads them.
    ///
    /// # Errors
    /// `-32602`. What no provider could take (no content, tool uses of a client's own making) is refused here, so that it
    /// costs a call and not the session.
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

/// Whether the content holds tool results.
fn check_content(content: &Raw) -> Result<bool, RpcError> {
    if let Some(text) = json::string(content) {
        return if text.is_empty() {
            Err(RpcError::invalid_params("message.content must not be empty"))
        } else {
            Ok(false)
        };
    }
    let Some(blocks) = json::array(content) else {
        return Err(RpcError::invalid_params("message.content must be a string or an array of content blocks"));
    };
    if blocks.is_empty() {
        return Err(RpcError::invalid_params("message.content must not be empty"));
    }
    let mut answers = false;
    for (i, block) in blocks.iter().enumerate() {
        let wrong = |what: &str| Err(RpcError::invalid_params(format_args!("message.content[{i}] {what}")));
        let Some(members) = Object::parse(block) else { return wrong("is not an object") };
        match members.str("type").as_deref() {
            None => return wrong("has no string field `type`"),
            Some("tool_use") => return wrong("is a tool_use block; only the model writes those"),
            Some("tool_result") if members.str("tool_use_id").is_none() => {
                return wrong("is a tool_result without a string field `tool_use_id`");
            }
            Some("text") if members.str("text").is_none_or(|text| text.is_empty()) => {
                return wrong("is a text block without text; providers take none");
            }
            Some("tool_result") => answers = true,
            Some(_) => {}
        }
    }
    Ok(answers)
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
    /// Replay what came after this event.
    #[serde(default)]
    pub since_event_id: Option<EventId>,
    /// Whether clients' own events are forwarded live; the deployment's default when missing (docs/api.md 3.9).
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
/// `-32602` for a missing or blank one.
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
/// `-32602` for a missing one.
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

/// Params of `session.cancelSubagent`: the subagent; none when the text is no id the server could have made.
///
/// # Errors
/// `-32602` for a missing or blank one.
pub fn cancel_subagent(params: &Raw) -> Result<Option<SubagentId>, RpcError> {
    #[derive(Deserialize)]
    struct Params {
        subagent_id: String,
    }
    let Params { subagent_id } = read(params)?;
    not_blank("subagent_id", &subagent_id)?;
    Ok(subagent_id.parse().ok())
}

/// A state a client reports of its local sandbox.
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
    /// Null only for an unsandboxed run.
    pub image: Option<String>,
    /// The container, where there is one.
    #[serde(default)]
    pub container_id: Option<String>,
    /// What went wrong.
    #[serde(default)]
    pub detail: Option<String>,
    /// The client ran it on its own host (docs/api.md 9.5).
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

/// A state a client reports of its local subagent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LocalSubagentState {
    /// About to start.
    Start,
    /// It runs.
    Running,
    /// It ended by itself, well.
    Completed,
    /// It ended by itself, badly.
    Failed,
    /// It was stopped.
    Cancelled,
}

/// Params of `session.reportLocalSubagent`.
#[derive(Debug, Clone, Deserialize)]
pub struct LocalSubagent {
    /// What happened.
    pub state: LocalSubagentState,
    /// The client's own id of it.
    pub subagent_id: String,
    /// Which CLI.
    pub harness: String,
    /// Which model it runs.
    pub model: String,
    /// Free text.
    #[serde(default)]
    pub detail: Option<String>,
    /// Echoed, not validated.
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
