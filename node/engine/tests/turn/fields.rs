//! The payloads' members, exactly those of the table in docs/api.md 6, and who a client's events come from.

use crate::read::Fields;
use engine::event::{Event, EventType};

fn members(kind: EventType, payload: &Fields) -> Vec<&'static str> {
    let ok = payload.has("ok") && payload.bool("ok");
    match kind {
        EventType::ClientMessage => vec!["content", "role"],
        EventType::ServerMessage if payload.has("synthetic") => vec!["content", "role", "synthetic"],
        EventType::ServerMessage => vec!["content", "role"],
        EventType::ProviderRequest => {
            vec!["attempt", "base_url", "kind", "max_tokens", "messages", "model", "provider", "tools"]
        }
        EventType::ProviderResponse if ok => vec!["attempt", "body", "kind", "ok", "provider", "status", "usage"],
        EventType::ProviderResponse => vec!["attempt", "body", "error", "kind", "ok", "provider", "status"],
        EventType::ToolCall => vec!["dispatch", "id", "input", "name", "server_name"],
        EventType::ToolResult => vec!["content", "dispatch", "is_error", "server_name", "tool_use_id"],
        EventType::McpRequest => vec!["input", "method", "server_name", "tool"],
        EventType::McpResponse if payload.has("error") => vec!["error", "ok", "server_name"],
        EventType::McpResponse => vec!["ok", "result", "server_name"],
        EventType::SandboxRequest => vec!["command", "input", "tool"],
        EventType::SandboxResponse if payload.has("error") => vec!["error", "ok", "sandbox_id"],
        EventType::SandboxResponse => vec!["ok", "result", "sandbox_id"],
        EventType::SubagentStart | EventType::SubagentRunning => {
            vec!["detail", "dispatch", "harness", "model", "subagent_id"]
        }
        EventType::SubagentFailed => {
            vec!["detail", "dispatch", "exit_code", "harness", "model", "reason", "subagent_id"]
        }
        EventType::CompactionStarted => vec!["reason", "threshold_tokens", "token_count", "trigger"],
        EventType::CompactionCompleted => {
            vec!["compacted_message_count", "input_tokens", "preamble_event_id", "summary_event_id", "summary_tokens"]
        }
        EventType::SessionError => match payload.str("reason").as_str() {
            "provider_call_failed" => vec!["detail", "provider", "reason"],
            "all_providers_failed" => vec!["attempts", "reason"],
            "driver_turn_abandoned" => vec!["owner_client_key_id", "reason"],
            "loop_limit" => vec!["max_iterations", "reason"],
            "turn_recovery_failed" => vec!["reason", "takeovers"],
            "compaction_store_failed" => vec!["reason"],
            "provider_config" | "tool_result_merge_invalid" => vec!["detail", "reason"],
            other => panic!("no turn has the reason {other}"),
        },
        other => panic!("no turn makes {}", other.as_str()),
    }
}

/// Checks one event of a call.
pub(crate) fn check(event: &Event) {
    let (kind, payload) = (event.event.kind, Fields::payload(event));
    let mut expected = members(kind, &payload);
    let optional: &[&str] = match kind {
        EventType::ProviderRequest => &["normalized", "purpose"],
        EventType::ProviderResponse => &["purpose"],
        _ => &[],
    };
    expected.extend(optional.iter().filter(|name| payload.has(name)));
    // A client's own block keeps whatever it holds beside.
    if kind == EventType::ToolResult && event.event.from_client {
        expected.push("type");
        expected.extend(payload.has("extra").then_some("extra"));
    }
    expected.sort_unstable();
    assert_eq!(payload.names(), expected, "{}", kind.as_str());
    assert!(!payload.has("purpose") || payload.is("purpose", "compaction"));
    if event.event.from_client {
        assert!(matches!(kind, EventType::ClientMessage | EventType::ToolResult), "{} of a client", kind.as_str());
    }
    let view = Fields::of(&event.view());
    assert_eq!(view.names(), ["client_key_id", "created_at", "event_type", "id", "payload", "session_id"]);
    assert_eq!(view.raw("payload"), event.event.payload.text());
}
