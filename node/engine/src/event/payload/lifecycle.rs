//! What becomes of sessions, sandboxes and subagents.

use super::nullable;
use crate::ids::{KeyId, SandboxId, SubagentId};
use crate::json::Raw;
use crate::provider::Wire;
use serde::{Deserialize, Serialize};

/// `session.open`: what the client says of itself. Only the names of its tools are recorded here.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionOpen {
    /// The client's version.
    pub client_version: Option<String>,
    /// The names of the tools that the server runs in the sandbox.
    pub sandbox_tools: Vec<String>,
    /// The names of the tools by which the server launches subagents.
    pub subagent_tools: Vec<String>,
    /// The names of the tools that the client runs.
    pub tools: Vec<String>,
}

/// `session.join`: the same as [`SessionOpen`], but of a client that joins.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionJoin(pub SessionOpen);

/// `session.driver.register`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DriverRegister {}

/// `session.close`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionClose {
    /// The reason, from a closed set (docs/api.md 6).
    pub reason: String,
}

/// `session.error`. Each reason has members of its own, and a constructor that sets them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SessionError {
    /// How many attempts were made, over all providers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    /// What is wrong, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// How many requests to providers one call may make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_iterations: Option<u32>,
    /// The client key whose pause was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner_client_key_id: Option<KeyId>,
    /// The wire format that failed, or the registry entry that is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    provider: Option<String>,
    /// The reason, from a closed set (docs/api.md 6).
    reason: String,
    /// How many times the call was taken over after a crash.
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

    /// A call made as many requests to providers as it may.
    pub fn loop_limit(max_iterations: u32) -> Self {
        Self { max_iterations: Some(max_iterations), ..Self::new("loop_limit") }
    }

    /// The primary provider and all fallbacks failed.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The image.
    pub name: String,
    /// `pending`, `available` or `error`.
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
    /// The image that is started.
    pub image: String,
}

/// `session.sandbox.running` of a sandbox at the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RemoteSandboxRunning {
    /// Always `remote`.
    pub dispatch: Dispatched,
    /// Its image.
    pub image: String,
    /// Its id.
    pub sandbox_id: SandboxId,
}

/// `session.sandbox.stop`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RemoteSandboxStop {
    /// Always `remote`.
    pub dispatch: Dispatched,
    /// Its image.
    pub image: String,
    /// `explicit` or `session_close`.
    pub reason: String,
    /// Its id.
    pub sandbox_id: SandboxId,
}

/// `session.sandbox.stopped` of a sandbox at the server: as [`RemoteSandboxStop`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RemoteSandboxStopped(pub RemoteSandboxStop);

/// `session.sandbox.running`, as a client reports it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxRunning {
    /// The container, if there is one.
    pub container_id: Option<String>,
    /// A text that the client or the server adds, in any form.
    pub detail: Option<String>,
    /// Whether it runs at the client or at the server.
    pub dispatch: Dispatched,
    /// Null for an unsandboxed run.
    pub image: Option<String>,
    /// Whether the client runs tools on its own host. The member is left out if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsandboxed: bool,
}

/// `session.sandbox.stopped`: the same members as [`SandboxRunning`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SandboxStopped(pub SandboxRunning);

/// `session.sandbox.error`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxError {
    /// The container, if there is one. The member is only in what a client reports.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    pub container_id: Option<Option<String>>,
    /// What went wrong.
    pub detail: Option<String>,
    /// Whether it runs at the client or at the server.
    pub dispatch: Dispatched,
    /// Null for an unsandboxed run.
    pub image: Option<String>,
    /// Only of the server's own: what failed, `start`, `stop` or `exec`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Only of the server's own: its id, if it had started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Shown only where the client runs tools on its own host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsandboxed: bool,
}

/// `sandbox.request`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxRequest {
    /// The name of the tool.
    pub tool: String,
    /// The arguments, unchanged.
    pub input: Raw,
    /// The `command` among the arguments, if it is a string.
    pub command: Option<String>,
}

/// `sandbox.response`: `error` or `result`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxResponse {
    /// Why the command was not run to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether the command ended with exit code 0.
    pub ok: bool,
    /// What came of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<CommandOutput>,
    /// The sandbox, if there was one.
    pub sandbox_id: Option<SandboxId>,
}

/// What a command in a sandbox wrote, and how it ended.
#[derive(Clone, Serialize, Deserialize)]
pub struct CommandOutput {
    /// As far as it is kept.
    pub stdout: String,
    /// As far as it is kept.
    pub stderr: String,
    /// The process's exit code.
    pub exit_code: i64,
}

/// Without the output, which belongs to the user.
impl std::fmt::Debug for CommandOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommandOutput").field("exit_code", &self.exit_code).finish_non_exhaustive()
    }
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
    /// The model that it uses.
    pub model: String,
    /// The subagent's id: the server's, or for a local subagent the client's own.
    pub subagent_id: String,
}

/// The subagent that a stored `session.subagent.start` is about; none for one that runs at a client and is only
/// reported.
pub fn remote_subagent(stored: &str) -> Option<SubagentId> {
    let start: SubagentStart = serde_json::from_str(stored).ok()?;
    if start.dispatch == Dispatched::Remote { start.subagent_id.parse().ok() } else { None }
}

/// `session.subagent.running`: the same members as [`SubagentStart`].
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
    /// The exit code of its process.
    pub exit_code: i64,
    /// The command-line agent.
    pub harness: String,
    /// The model that it used.
    pub model: String,
    /// The subagent's id: the server's, or for a local subagent the client's own.
    pub subagent_id: String,
}

/// `session.subagent.failed`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SubagentFailed {
    /// What went wrong.
    pub detail: Option<String>,
    /// Whether it runs at the client or at the server.
    pub dispatch: Dispatched,
    /// The exit code of its process, if there was one.
    pub exit_code: Option<i64>,
    /// The command-line agent.
    pub harness: String,
    /// The model that it used.
    pub model: String,
    /// Why it failed or was cancelled, if that was said.
    pub reason: Option<String>,
    /// The subagent's id: the server's, or for a local subagent the client's own.
    pub subagent_id: String,
}

/// `session.subagent.cancelled`: the same members as [`SubagentFailed`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SubagentCancelled(pub SubagentFailed);
