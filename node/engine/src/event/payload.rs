//! The payloads of events (docs/api.md 6): one struct for each type of event, used by everything that writes or reads
//! one.
//!
//! The text that a struct serializes to is what the database stores and what clients see, so the order of its fields is
//! part of the stored form and must not change. Parts that pass through verbatim are raw JSON. Two payloads have no
//! struct here: a `provider.request` is a [`Request`](crate::request::Request), because it is stored as the difference
//! from the request before it, and the `tool.result` of a client is the block that the client sent, with members added.

mod lifecycle;
mod model;

use crate::event::EventType;
use crate::round::{ToolResult, ToolUse};
use serde::Serialize;
use serde::de::{Deserialize, Deserializer};

pub use lifecycle::{
    CommandOutput, Dispatched, DriverRegister, Image, RemoteSandboxRunning, RemoteSandboxStop, RemoteSandboxStopped,
    SandboxAvailable, SandboxError, SandboxRequest, SandboxResponse, SandboxRunning, SandboxStart, SandboxStopped,
    SessionClose, SessionError, SessionJoin, SessionOpen, SubagentCancelled, SubagentCompleted, SubagentFailed,
    SubagentRunning, SubagentStart, remote_subagent,
};
pub use model::{
    ClientMessage, CompactionCompleted, CompactionReason, CompactionStarted, McpLost, McpRequest, McpResponse,
    ProviderResponse, Purpose, ServerMessage, Synthetic, Trigger,
};

/// A payload that knows which type of event it belongs to; see [`NewEvent::of`](crate::event::NewEvent::of).
pub trait EventPayload: Serialize {
    /// The type of the events that carry it.
    const TYPE: EventType;
}

macro_rules! payloads {
    ($($payload:ident is $kind:ident;)*) => {
        $(impl EventPayload for $payload { const TYPE: EventType = EventType::$kind; })*
    };
}

payloads! {
    ClientMessage is ClientMessage;
    ServerMessage is ServerMessage;
    ProviderResponse is ProviderResponse;
    ToolUse is ToolCall;
    ToolResult is ToolResult;
    McpRequest is McpRequest;
    McpResponse is McpResponse;
    McpLost is McpResponse;
    SandboxRequest is SandboxRequest;
    SandboxResponse is SandboxResponse;
    SessionOpen is SessionOpen;
    SessionJoin is SessionJoin;
    DriverRegister is DriverRegister;
    SandboxAvailable is SandboxAvailable;
    SandboxStart is SandboxStart;
    SandboxRunning is SandboxRunning;
    SandboxStopped is SandboxStopped;
    RemoteSandboxRunning is SandboxRunning;
    RemoteSandboxStop is SandboxStop;
    RemoteSandboxStopped is SandboxStopped;
    SandboxError is SandboxError;
    SubagentStart is SubagentStart;
    SubagentRunning is SubagentRunning;
    SubagentCompleted is SubagentCompleted;
    SubagentFailed is SubagentFailed;
    SubagentCancelled is SubagentCancelled;
    CompactionStarted is CompactionStarted;
    CompactionCompleted is CompactionCompleted;
    SessionClose is SessionClose;
    SessionError is SessionError;
}

/// Reads a member that may be null, so that it can be told from one that is missing.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests;
