//! The texts that the client prints for events and errors: what happened and what to do about it, for people who do not
//! know the event catalogue.

use serde_json::Value;

/// Whether a `session.error` with this reason leaves the session in the state `error`, which accepts no messages.
pub(super) fn ends_session(reason: &str) -> bool {
    matches!(
        reason,
        "turn_recovery_failed"
            | "provider_config"
            | "all_providers_failed"
            | "loop_limit"
            | "profile_unavailable"
            | "tool_result_merge_invalid"
    )
}

/// The text of a `session.error`; `None` if another event has the same news.
pub(super) fn of_error(payload: &Value) -> Option<String> {
    let reason = field(payload, "reason");
    let detail = payload["detail"].as_str().map(|detail| format!(": {detail}")).unwrap_or_default();
    let text = match reason {
        // Every failed attempt has a `provider.response` event, whose text is printed.
        "provider_call_failed" => return None,
        "all_providers_failed" => format!("No provider answered ({} tried).", payload["attempts"]),
        "turn_recovery_failed" => {
            format!("The turn was taken over {} times after crashes, so it was given up.", payload["takeovers"])
        }
        "provider_config" => format!("The server's provider is not set up rightly{detail}."),
        "loop_limit" => {
            format!("The model called tools {} times in one turn; that is the limit.", payload["max_iterations"])
        }
        "profile_unavailable" => "The session's profile was deleted.".to_owned(),
        "primary_provider_unavailable" => "The profile names a provider that the server does not have.".to_owned(),
        "driver_turn_abandoned" => {
            let owner = payload["owner_client_key_id"].as_str().map_or("A client", |key| key);
            format!("{} did not answer its tool calls in time, so they were given up.", name(owner))
        }
        "tool_result_merge_invalid" => format!("The tool results did not fit the paused turn{detail}."),
        "compaction_store_failed" => {
            "The summary could not be stored; the conversation goes on uncompacted.".to_owned()
        }
        other => format!("The server reports {other}{detail}."),
    };
    Some(if ends_session(reason) { format!("{text} This session is over; open a new one.") } else { text })
}

/// The text of a `provider.response` whose attempt failed.
pub(super) fn of_failed_attempt(payload: &Value) -> String {
    let provider = field(payload, "provider");
    // The provider's own message says more than the server's, if there is one.
    let error = payload["body"]["error"]["message"].as_str().or_else(|| payload["error"].as_str());
    let error = error.unwrap_or("no reason given");
    match payload["status"].as_u64() {
        Some(529) => format!("Provider {provider} is overloaded (529): {error}"),
        Some(429) => format!("Provider {provider} asks for fewer requests (429): {error}"),
        Some(status @ (401 | 403)) => format!("Provider {provider} refused the key ({status}): {error}"),
        Some(status) => format!("Provider {provider} failed ({status}): {error}"),
        None => format!("Provider {provider} could not be reached: {error}"),
    }
}

/// The text of a JSON-RPC error: what it means for the person, or else the server's own message.
pub(super) fn of_rpc_error(code: i64, message: &str) -> String {
    match code {
        -32000 if message.contains("no paused turn is awaiting") => {
            "The turn did not wait for that answer any longer; your next message goes on from here.".to_owned()
        }
        -32000 if message.contains("not open") => format!("Nothing was sent: {message}. Open a new session."),
        -32020 => "A turn is waiting for a tool's answer; compact when it is done.".to_owned(),
        -32603 => "The server failed inside; try again.".to_owned(),
        _ => format!("The server refused it: {message} ({code})"),
    }
}

/// The text of a sandbox, subagent or compaction event; `None` for other types.
pub(super) fn of_lifecycle(event_type: &str, payload: &Value) -> Option<String> {
    let (image, detail) = (field(payload, "image"), field(payload, "detail"));
    let agent = format!("{} subagent {}", field(payload, "harness"), field(payload, "subagent_id"));
    Some(match event_type {
        "session.sandbox.start" => format!("Sandbox {image} is being started."),
        "session.sandbox.running" => format!("Sandbox {image} is running."),
        "session.sandbox.stopped" => format!("Sandbox {image} has stopped."),
        "session.sandbox.error" => format!("Sandbox {image} failed: {detail}"),
        "session.subagent.start" => format!("{agent} is being started."),
        "session.subagent.completed" => format!("{agent} is done."),
        "session.subagent.failed" => format!("{agent} failed: {}", field(payload, "reason")),
        "session.subagent.cancelled" => format!("{agent} was cancelled."),
        "session.compaction.started" => match payload["threshold_tokens"].as_u64() {
            Some(threshold) => format!("The conversation has passed {threshold} tokens and is being compacted."),
            None => "The conversation is being compacted.".to_owned(),
        },
        "session.compaction.completed" => {
            format!("{} messages were compacted into the summary.", payload["compacted_message_count"])
        }
        _ => return None,
    })
}

/// A client key's id, shortened to stand in front of every message.
pub(super) fn name(key_id: &str) -> String {
    let digits = key_id.strip_prefix("key_").unwrap_or(key_id);
    let tail: String = digits.chars().skip(digits.chars().count().saturating_sub(4)).collect();
    format!("key_…{tail}")
}

fn field<'a>(payload: &'a Value, field: &str) -> &'a str {
    payload[field].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_are_explained() {
        let failed = json!({"reason": "all_providers_failed", "attempts": 2});
        let expected = "No provider answered (2 tried). This session is over; open a new one.";
        assert_eq!(of_error(&failed).as_deref(), Some(expected));
        let abandoned = json!({"reason": "driver_turn_abandoned", "owner_client_key_id": "key_0123abcd"});
        let expected = "key_…abcd did not answer its tool calls in time, so they were given up.";
        assert_eq!(of_error(&abandoned).as_deref(), Some(expected));
        assert_eq!(of_error(&json!({"reason": "new", "detail": "x"})).as_deref(), Some("The server reports new: x."));
        assert_eq!(of_error(&json!({"reason": "provider_call_failed"})), None);
    }

    #[test]
    fn attempts_tell_status_and_provider() {
        let overloaded = json!({"provider": "main", "status": 529, "error": "Overloaded"});
        assert_eq!(of_failed_attempt(&overloaded), "Provider main is overloaded (529): Overloaded");
        let body = json!({"type": "error", "error": {"type": "x", "message": "Busy"}});
        let overloaded = json!({"provider": "main", "status": 529, "error": "HTTP 529", "body": body});
        assert_eq!(of_failed_attempt(&overloaded), "Provider main is overloaded (529): Busy");
        let unreachable = json!({"provider": "main", "status": null, "error": "refused"});
        assert_eq!(of_failed_attempt(&unreachable), "Provider main could not be reached: refused");
    }
}
