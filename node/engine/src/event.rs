//! Events of a session's log: the closed set of types (docs/api.md 6), what is appended, what is read back.

pub mod payload;

use crate::ids::{CallId, EventId, KeyId, SessionId};
use crate::json::{Raw, encode};
use crate::request::Request;
use crate::time::UnixMillis;
use payload::EventPayload;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt::{self, Write};
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

/// The content of an event.
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
    /// Its id, which no other event has.
    pub id: EventId,
    /// The client key that it is attributed to.
    pub key: KeyId,
    /// Its type.
    pub kind: EventType,
    /// Its content.
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

/// The place of an event in its session's log: 1, 2, 3 … with no hole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EventNumber(pub i64);

impl EventNumber {
    /// Before the first event: the head of an empty log, and where whoever reads a whole log begins.
    pub const START: Self = Self(0);

    /// The number of the event that follows.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// What a reader has seen when the event with this number is the next one.
    #[must_use]
    pub fn previous(self) -> Self {
        Self((self.0 - 1).max(Self::START.0))
    }

    /// The number of the event that many places behind: an append numbers its events from its first one on.
    #[must_use]
    pub fn plus(self, places: usize) -> Self {
        Self(self.0 + places as i64)
    }

    /// How many events follow `earlier`, up to this one.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        u64::try_from(self.0 - earlier.0).unwrap_or(0)
    }
}

impl fmt::Display for EventNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The error for a text that is not the number of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the number of an event")]
pub struct InvalidNumber;

impl FromStr for EventNumber {
    type Err = InvalidNumber;

    fn from_str(text: &str) -> Result<Self, InvalidNumber> {
        let number: i64 = text.parse().map_err(|_| InvalidNumber)?;
        if number < 0 { Err(InvalidNumber) } else { Ok(Self(number)) }
    }
}

/// A committed event.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its place in the log.
    pub number: EventNumber,
    /// The session whose log holds it.
    pub session: SessionId,
    /// The `sendMessage` or `compact` call that produced it, if one did; never shown to clients.
    pub call: Option<CallId>,
    /// When it was committed, by the database's clock.
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
    fn numbers_are_read_as_they_are_printed() {
        for number in [EventNumber::START, EventNumber(7), EventNumber(i64::MAX)] {
            assert_eq!(number.to_string().parse(), Ok(number));
        }
        for text in ["", "-1", "x", "1.0", "9223372036854775808"] {
            assert_eq!(text.parse::<EventNumber>(), Err(InvalidNumber), "{text}");
        }
    }

    #[test]
    fn types_round_trip() {
        for kind in EventType::ALL {
            assert_eq!(kind.as_str().parse::<EventType>().ok(), Some(*kind));
        }
    }
}
