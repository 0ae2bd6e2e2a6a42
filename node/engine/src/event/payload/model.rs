//! What passes between the client, the model and its tools.

use super::nullable;
use crate::ids::EventId;
use crate::json::Raw;
use crate::message::Role;
use crate::provider::{Usage, Wire};
use crate::request::Kind;
use serde::{Deserialize, Serialize};

/// `client.message.send`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientMessage {
    /// The role as the client wrote it.
    pub role: String,
    /// A string or blocks, unchanged. If the message continues a paused turn, merged with the results of the round.
    pub content: Raw,
}

/// `server.message.send`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerMessage {
    /// The speaker in the history.
    pub role: Role,
    /// A string or blocks.
    pub content: Raw,
    /// Why the server wrote the message, if neither the model nor a client did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<Synthetic>,
}

impl ServerMessage {
    /// A message with what the model said.
    pub fn assistant(content: Raw) -> Self {
        Self { role: Role::Assistant, content, synthetic: None }
    }
}

/// Why the server wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Synthetic {
    /// It stands before a compaction's summary.
    CompactionPreamble,
    /// It carries the results of a pause that was given up.
    AbandonedToolResults,
}

/// What a provider attempt was for, where it was not a turn's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// A summary of the history.
    Compaction,
}

/// `provider.response`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProviderResponse {
    /// The number of the attempt, as in the request.
    pub attempt: u32,
    /// Whether the provider was the primary one or a fallback, as in the request.
    pub kind: Kind,
    /// The wire format of `body`.
    pub provider: Wire,
    /// Whether the answer can be used.
    pub ok: bool,
    /// The HTTP status, if there was an answer.
    pub status: Option<u16>,
    /// Why the answer cannot be used; missing where it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The body of the answer, unchanged. Null if it was not JSON.
    #[serde(default)]
    pub body: Option<Raw>,
    /// The tokens used, null if the provider did not say; missing where the answer cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    pub usage: Option<Option<Usage>>,
    /// What the attempt was for, if not for the answer of a turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<Purpose>,
}

impl ProviderResponse {
    /// What a stored one says of the size of the history: nothing if it failed or was a compaction's; else the tokens
    /// it used, if the provider said. The body, which may be large, is not read.
    ///
    /// # Errors
    /// The text is not that of a `provider.response`.
    pub fn history_usage(stored: &str) -> Result<Option<Option<u64>>, serde_json::Error> {
        #[derive(Deserialize)]
        struct Response {
            ok: bool,
            #[serde(default)]
            usage: Option<Usage>,
            #[serde(default)]
            purpose: Option<Purpose>,
        }
        let response: Response = serde_json::from_str(stored)?;
        Ok((response.ok && response.purpose.is_none()).then(|| response.usage.map(Usage::sum)))
    }
}

/// `mcp.request`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct McpRequest {
    /// Always `tools/call`.
    pub method: String,
    /// The server that is called.
    pub server_name: Option<String>,
    /// The name of the tool.
    pub tool: String,
    /// The arguments, unchanged.
    pub input: Raw,
}

/// `mcp.response`: `result` or `error`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct McpResponse {
    /// The server that was called.
    pub server_name: Option<String>,
    /// Whether the tool succeeded.
    pub ok: bool,
    /// The answer of the server, unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Raw>,
    /// Why the server did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// `mcp.response` of a call whose node was lost. It has members of [`McpResponse`] in another order, which stored
/// events have too and which must not change.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct McpLost {
    /// A text that says that the outcome is unknown.
    pub error: String,
    /// Always false.
    pub ok: bool,
    /// The server that was called.
    pub server_name: Option<String>,
}

/// Who asked for a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// A client.
    Client,
    /// The server.
    Auto,
}

/// Why a compaction started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionReason {
    /// A client called `session.compact`.
    Manual,
    /// The usage exceeds the session's size.
    TokenThreshold,
    /// The last automatic compaction failed, and the usage has grown since.
    RetryAfterFailure,
}

/// `session.compaction.started`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CompactionStarted {
    /// Why the compaction started.
    pub reason: CompactionReason,
    /// For an automatic compaction, the number of tokens that the usage exceeds.
    pub threshold_tokens: Option<u64>,
    /// The tokens that the newest answer used, if the provider said.
    #[serde(default)]
    pub token_count: Option<u64>,
    /// Who asked for the compaction.
    pub trigger: Trigger,
}

/// `session.compaction.completed`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CompactionCompleted {
    /// How many messages the summary stands for.
    pub compacted_message_count: usize,
    /// The tokens of the request for the summary, if the provider said.
    pub input_tokens: Option<u64>,
    /// The event at which the history starts from now on.
    pub preamble_event_id: EventId,
    /// The event with the summary.
    pub summary_event_id: EventId,
    /// The tokens of the summary, if the provider said.
    pub summary_tokens: Option<u64>,
}

impl CompactionCompleted {
    /// The event where the history starts, of a stored one; none if it does not say.
    pub fn history_start(stored: &str) -> Option<EventId> {
        #[derive(Deserialize)]
        struct Completed {
            preamble_event_id: EventId,
        }
        serde_json::from_str::<Completed>(stored).ok().map(|completed| completed.preamble_event_id)
    }
}
