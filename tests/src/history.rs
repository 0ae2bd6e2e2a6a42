//! What must hold of every history that a provider is sent (F14).

use serde_json::Value;
use std::collections::HashSet;

/// What is wrong with a history in Anthropic's format: roles alternate from `user` on, every tool use is answered
/// exactly once in the next message, nothing else is answered, and nothing of the server's own bookkeeping is in it.
pub fn unpaired(messages: &Value) -> Option<String> {
    let Some(list) = messages.as_array() else { return Some("no array".to_owned()) };
    let blocks = |message: &Value, kind: &str, field: &str| -> Vec<String> {
        let blocks = message["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let ids = blocks.iter().filter(|block| block["type"] == kind);
        ids.map(|block| block[field].as_str().unwrap_or_default().to_owned()).collect()
    };
    let mut open: Vec<String> = Vec::new();
    for (index, message) in list.iter().enumerate() {
        let wrong = |what: &str| Some(format!("message {index} {what}"));
        let role = if index % 2 == 0 { "user" } else { "assistant" };
        let keys: HashSet<&str> = message.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
        if message["role"] != role || keys != HashSet::from(["role", "content"]) {
            return wrong(&format!("is no message of the {role}"));
        }
        let mut given = blocks(message, "tool_result", "tool_use_id");
        if role == "user" {
            open.sort();
            given.sort();
            if given != open {
                return wrong(&format!("answers {given:?}, not {open:?}"));
            }
            open.clear();
        } else {
            if !given.is_empty() {
                return wrong("has results");
            }
            open = blocks(message, "tool_use", "id");
        }
        let mut blocks = message["content"].as_array().into_iter().flatten();
        if blocks.any(|block| block.get("dispatch").is_some() || block.get("caller").is_some()) {
            return wrong("shows the server's own fields");
        }
    }
    (!open.is_empty()).then(|| format!("{open:?} unanswered"))
}

/// Fails when something is [wrong](unpaired).
pub fn assert_paired(messages: &Value) {
    assert_eq!(unpaired(messages), None, "{messages}");
}

/// [`assert_paired`] for every request that a mock provider has seen.
pub fn assert_all_paired(provider: &crate::provider::Provider) {
    let requests = provider.requests();
    assert!(!requests.is_empty(), "no provider request to look at");
    for request in requests {
        assert_paired(&request.json()["messages"]);
    }
}
