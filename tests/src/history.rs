//! What must hold of every history that a provider is sent (F14).

use serde_json::Value;
use std::collections::HashSet;

/// Fails unless roles alternate from `user` on, every tool use is answered exactly once in the next message, nothing else
/// is answered, and nothing of the server's own bookkeeping is in it. For Anthropic's format.
pub fn assert_paired(messages: &Value) {
    let list = messages.as_array().unwrap_or_else(|| panic!("not an array: {messages}"));
    let blocks = |message: &Value, kind: &str, field: &str| -> Vec<String> {
        let blocks = message["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let ids = blocks.iter().filter(|block| block["type"] == kind);
        ids.map(|block| block[field].as_str().expect("an id").to_owned()).collect()
    };
    let mut open: Vec<String> = Vec::new();
    for (index, message) in list.iter().enumerate() {
        let role = if index % 2 == 0 { "user" } else { "assistant" };
        assert_eq!(message["role"], role, "message {index} of {messages}");
        let keys: HashSet<&str> = message.as_object().expect("a message").keys().map(String::as_str).collect();
        assert_eq!(keys, HashSet::from(["role", "content"]), "message {index} of {messages}");
        let results = blocks(message, "tool_result", "tool_use_id");
        if role == "user" {
            let (mut wanted, mut given) = (open.clone(), results);
            wanted.sort();
            given.sort();
            assert_eq!(given, wanted, "results in message {index} of {messages}");
            open.clear();
        } else {
            assert!(results.is_empty(), "results in message {index} of {messages}");
            open = blocks(message, "tool_use", "id");
        }
        for block in message["content"].as_array().map(Vec::as_slice).unwrap_or_default() {
            assert!(block.get("dispatch").is_none() && block.get("caller").is_none(), "message {index} of {messages}");
        }
    }
    assert!(open.is_empty(), "unanswered {open:?} in {messages}");
}

/// [`assert_paired`] for every request that a mock provider has seen.
pub fn assert_all_paired(provider: &crate::provider::Provider) {
    let requests = provider.requests();
    assert!(!requests.is_empty(), "no provider request to look at");
    for request in requests {
        assert_paired(&request.json()["messages"]);
    }
}
