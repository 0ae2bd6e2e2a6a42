//! What becomes of sessions, sandboxes and subagents.

use super::nullable;
use crate::ids::{KeyId, SubagentId};
use crate::json::Raw;
use crate::provider::Wire;
use serde::{Deserialize, Serialize};

/// `session.open`: what the client says of itself. Of its tools the names are shown.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionOpen {
    /// The client's version.
    pub client_version: Option<String>,
    /// Tools that the server runs in the sandbox.
    pub sandbox_tools: Vec<String>,
    /// Tools that the server launches subagents with.
    pub subagent_tools: Vec<String>,
    /// Tools that the client runs.
    pub tools: Vec<String>,
}

/// `session.join`: as [`SessionOpen`], of another client.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionJoin(pub SessionOpen);

/// `session.driver.register`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DriverRegister {}

/// `session.close`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionClose {
    /// Why.
    pub reason: String,
}

/// `session.error`. Each reason has its own members; made by the constructor of that reason.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SessionError {
    /// Provider attempts made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// Provider round trips that one call may make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_iterations: Option<u32>,
    /// Whose pause was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner_client_key_id: Option<KeyId>,
    /// The wire format that failed, or the registry entry that is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    provider: Option<String>,
    /// Why.
    reason: String,
    /// Times that the call was taken over after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    takeovers: Option<u32>,
}

const COMPACTION_STORE_FAILED: &str = "compaction_store_failed";

impl SessionError {
    fn new(reason: &str) -> Self {
        Self { reason: reason.to_owned(), ..Self::default() }
    }

    /// The profile was deleted under the session, or before it was opened.
    pub fn profile_unavailable() -> Self {
        Self::new("profile_unavailable")
    }

    /// The session was not opened, because its profile's primary provider is not configured.
    pub fn primary_provider_unavailable(entry: &str, detail: &str) -> Self {
        let (provider, detail) = (Some(entry.to_owned()), Some(detail.to_owned()));
        Self { provider, detail, ..Self::new("primary_provider_unavailable") }
    }

    /// The tool results that a client sent do not fit the paused turn.
    pub fn tool_result_merge_invalid(detail: &str) -> Self {
        Self { detail: Some(detail.to_owned()), ..Self::new("tool_result_merge_invalid") }
    }

    /// A pause was taken over from its owner.
    pub fn driver_turn_abandoned(owner: KeyId) -> Self {
        Self { owner_client_key_id: Some(owner), ..Self::new("driver_turn_abandoned") }
    }

    /// The nodes that ran the turn were lost too often.
    pub fn turn_recovery_failed(takeovers: u32) -> Self {
        Self { takeovers: Some(takeovers), ..Self::new("turn_recovery_failed") }
    }

    /// The primary provider's attempt failed; fallbacks follow.
    pub fn provider_call_failed(provider: Wire, detail: String) -> Self {
        let provider = Some(provider.as_str().to_owned());
        Self { provider, detail: Some(detail), ..Self::new("provider_call_failed") }
    }

    /// The primary provider does not resolve.
    pub fn provider_config(detail: &str) -> Self {
        Self { detail: Some(detail.to_owned()), ..Self::new("provider_config") }
    }

    /// One call made as many round trips as it may.
    pub fn loop_limit(max_iterations: u32) -> Self {
        Self { max_iterations: Some(max_iterations), ..Self::new("loop_limit") }
    }

    /// Every provider of the walk failed.
    pub fn all_providers_failed(attempts: u32) -> Self {
        Self { attempts: Some(attempts), ..Self::new("all_providers_failed") }
    }

    /// The result of a compaction could not be stored.
    pub fn compaction_store_failed() -> Self {
        Self::new(COMPACTION_STORE_FAILED)
    }

    /// Whether it is [`SessionError::compaction_store_failed`], which alone leaves the session as it was.
    pub fn is_compaction_store_failed(&self) -> bool {
        self.reason == COMPACTION_STORE_FAILED
    }
}

/// Where a sandbox or a subagent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dispatched {
    /// At the client.
    Local,
    /// At the server.
    Remote,
}

/// An image of `session.sandbox.available`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Image {
    /// Why it cannot be started.
    pub detail: String,
    /// The image.
    pub name: String,
    /// `error`, as long as there is no driver.
    pub status: String,
}

/// `session.sandbox.available`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxAvailable {
    /// The profile's images.
    pub images: Vec<Image>,
}

/// `session.sandbox.start`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxStart {
    /// Whether it runs at the client or at the server.
    pub dispatch: Dispatched,
    /// What is started.
    pub image: String,
}

/// `session.sandbox.running`, as a client reports it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxRunning {
    /// The container, where there is one.
    pub container_id: Option<String>,
    /// A text that the client or the server adds, in any form.
    pub detail: Option<String>,
    /// Whether it runs at the client or at the server.
    pub dispatch: Dispatched,
    /// Null for an unsandboxed run.
    pub image: Option<String>,
    /// Shown only where the client runs tools on its own host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsandboxed: bool,
}

/// `session.sandbox.stopped`: as [`SandboxRunning`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SandboxStopped(pub SandboxRunning);

/// `session.sandbox.error`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxError {
    /// Only in a client's report: the container, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    pub container_id: Option<Option<String>>,
    /// What went wrong.
    pub detail: Option<String>,
    /// Whether it runs at the client or at the server.
    pub dispatch: Dispatched,
    /// Null for an unsandboxed run.
    pub image: Option<String>,
    /// Only of the server's own: what failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Shown only where the client runs tools on its own host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsandboxed: bool,
}

/// `sandbox.request`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxRequest {
    /// The tool.
    pub tool: String,
    /// Its arguments, verbatim.
    pub input: Raw,
    /// The command among them, if it is a string.
    pub command: Option<String>,
}

/// `sandbox.response` of a tool use that no sandbox ran.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxResponse {
    /// Why.
    pub error: String,
    /// Whether the tool succeeded.
    pub ok: bool,
    /// The sandbox, if there was one.
    pub sandbox_id: Option<String>,
}

/// `session.subagent.start`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SubagentStart {
    /// A text that the client or the server adds, in any form.
    pub detail: Option<String>,
    /// Whether it runs at the client or at the server.
    pub dispatch: Dispatched,
    /// The command-line agent.
    pub harness: String,
    /// The model it uses.
    pub model: String,
    /// The server's id of it, or the client's own.
    pub subagent_id: String,
}

/// The remote subagent that a stored `session.subagent.*` event is about; none for one that runs at a client and is
/// only reported.
pub fn remote_subagent(stored: &str) -> Option<SubagentId> {
    #[derive(Deserialize)]
    struct Lifecycle {
        dispatch: Dispatched,
        subagent_id: String,
    }
    let event: Lifecycle = serde_json::from_str(stored).ok()?;
    if event.dispatch == Dispatched::Remote { event.subagent_id.parse().ok() } else { None }
}

/// `session.subagent.running`: as [`SubagentStart`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SubagentRunning(pub SubagentStart);

/// `session.subagent.completed`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SubagentCompleted {
    /// A text that the client or the server adds, in any form.
    pub detail: Option<String>,
    /// Whether it runs at the client or at the server.
    pub dispatch: Dispatched,
    /// The process's exit code.
    pub exit_code: i64,
    /// The command-line agent.
    pub harness: String,
    /// The model it used.
    pub model: String,
    /// The server's id of it, or the client's own.
    pub subagent_id: String,
}

/// `session.subagent.failed`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SubagentFailed {
    /// What went wrong.
    pub detail: Option<String>,
    /// Whether it runs at the client or at the server.
    pub dispatch: Dispatched,
    /// The process's exit code, if it ran.
    pub exit_code: Option<i64>,
    /// The command-line agent.
    pub harness: String,
    /// The model it used.
    pub model: String,
    /// Why.
    pub reason: Option<String>,
    /// The server's id of it, or the client's own.
    pub subagent_id: String,
}

/// `session.subagent.cancelled`: as [`SubagentFailed`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SubagentCancelled(pub SubagentFailed);
