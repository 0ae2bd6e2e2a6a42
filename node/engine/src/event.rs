//! Events of a session's log: the closed set of types (docs/api.md 6), what is appended, what is read back.

pub mod payload;

use crate::ids::{CallId, EventId, KeyId, SessionId};
use crate::json::{Raw, encode};
use crate::request::Request;
use crate::time::UnixMillis;
use payload::EventPayload;
use std::borrow::Cow;
use std::fmt::Write;
use std::str::FromStr;
use std::sync::Arc;

macro_rules! event_types {
    ($($name:ident = $text:literal,)*) => {
        /// The type of an event. Client libraries may treat an unknown one as an error, so the set is closed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum EventType { $($name,)* }

        impl EventType {
            /// Every type, in the order of the API's table.
            pub const ALL: &'static [EventType] = &[$(EventType::$name,)*];

            /// The name on the wire and in the database.
            pub fn as_str(self) -> &'static str {
                match self { $(EventType::$name => $text,)* }
            }
        }

        impl FromStr for EventType {
            type Err = UnknownEventType;

            fn from_str(text: &str) -> Result<Self, UnknownEventType> {
                match text { $($text => Ok(EventType::$name),)* _ => Err(UnknownEventType(text.to_owned())) }
            }
        }
    };
}

event_types! {
    ClientMessage = "client.message.send",
    ServerMessage = "server.message.send",
    ProviderRequest = "provider.request",
    ProviderResponse = "provider.response",
    ToolCall = "tool.call",
    ToolResult = "tool.result",
    McpRequest = "mcp.request",
    McpResponse = "mcp.response",
    SandboxRequest = "sandbox.request",
    SandboxResponse = "sandbox.response",
    SessionOpen = "session.open",
    SessionJoin = "session.join",
    DriverRegister = "session.driver.register",
    SandboxAvailable = "session.sandbox.available",
    SandboxStart = "session.sandbox.start",
    SandboxRunning = "session.sandbox.running",
    SandboxStop = "session.sandbox.stop",
    SandboxStopped = "session.sandbox.stopped",
    SandboxError = "session.sandbox.error",
    SubagentStart = "session.subagent.start",
    SubagentRunning = "session.subagent.running",
    SubagentCompleted = "session.subagent.completed",
    SubagentFailed = "session.subagent.failed",
    SubagentCancelled = "session.subagent.cancelled",
    CompactionStarted = "session.compaction.started",
    CompactionCompleted = "session.compaction.completed",
    SessionClose = "session.close",
    SessionError = "session.error",
}

/// The database holds an event type this version does not know.
#[derive(Debug, thiserror::Error)]
#[error("unknown event type {0:?}; a newer version wrote it")]
pub struct UnknownEventType(String);

/// What an event says.
#[derive(Debug, Clone)]
pub enum Payload {
    /// JSON text, as it is stored and shown.
    Json(Raw),
    /// A `provider.request`, whose `messages` are shared with the history and rendered only where somebody reads them.
    Request(Arc<Request>),
}

impl Payload {
    /// The JSON text shown to readers.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Payload::Json(raw) => Cow::Borrowed(raw.get()),
            Payload::Request(request) => Cow::Owned(request.payload()),
        }
    }
}

/// An event that is to be appended. Its id is made before the append, so that an append whose outcome is unknown can be
/// repeated word for word.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// Unique in the table.
    pub id: EventId,
    /// Whom it is attributed to.
    pub key: KeyId,
    /// Its type.
    pub kind: EventType,
    /// What it says.
    pub payload: Payload,
    /// Whether a client made it: such events are not forwarded live (docs/api.md 3.9).
    pub from_client: bool,
}

impl NewEvent {
    /// An event that the server made, of the type that the payload belongs to.
    pub fn of<P: EventPayload>(id: EventId, key: KeyId, payload: &P) -> Self {
        Self { id, key, kind: P::TYPE, payload: Payload::Json(encode(payload)), from_client: false }
    }
}

/// A committed event.
#[derive(Debug, Clone)]
pub struct Event {
    /// 1, 2, 3 … within its session, with no hole.
    pub number: u64,
    /// The session whose log holds it.
    pub session: SessionId,
    /// The `sendMessage` or `compact` call that produced it, if one did; never shown to clients.
    pub call: Option<CallId>,
    /// By the database's clock.
    pub created_at: UnixMillis,
    /// The event itself.
    pub event: NewEvent,
}

impl Event {
    /// The EventView of the API as one line of JSON.
    pub fn view(&self) -> String {
        let payload = self.event.payload.text();
        let mut text = String::with_capacity(payload.len() + 256);
        let (id, session, key, kind) = (self.event.id, self.session, self.event.key, self.event.kind.as_str());
        let _ = write!(
            text,
            r#"{{"id":"{id}","session_id":"{session}","client_key_id":"{key}","event_type":"{kind}","payload":{payload},"created_at":"{}"}}"#,
            self.created_at.rfc3339()
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_round_trip() {
        for kind in EventType::ALL {
            assert_eq!(kind.as_str().parse::<EventType>().ok(), Some(*kind));
        }
    }
}
