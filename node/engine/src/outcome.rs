//! How a call ended. The outcome is stored in the call's row, and the terminal frame for the caller is made from it.

use crate::ids::EventId;
use crate::rpc::RpcError;
use serde::{Deserialize, Serialize};

/// The text of the assistant message that a call ends with when no provider answered (docs/api.md 5.5).
pub const UNAVAILABLE: &str =
    "The model provider is unavailable. This session has ended in an error; its events say why.";

/// The end of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The result's `message` is the payload of this `server.message.send`.
    Message(EventId),
    /// The result's `message` says that the provider is unavailable.
    Unavailable,
    /// The result is this `session.compaction.completed` event.
    Compacted(EventId),
    /// The call is answered with this error.
    Error(RpcError),
}

impl Outcome {
    /// The `message` of an [`Outcome::Unavailable`].
    pub fn unavailable_message() -> String {
        format!(r#"{{"role":"assistant","content":[{{"type":"text","text":"{UNAVAILABLE}"}}]}}"#)
    }
}
