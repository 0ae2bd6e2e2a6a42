//! What must hold of every prefix of every session's log, whatever happened to the session. Checked at each reading.

use serde_json::Value;
use std::collections::HashSet;

/// Fails unless `events`, a log from its beginning, is one that the API allows.
pub fn check(events: &[Value]) {
    let mut ids = HashSet::new();
    let mut request: Option<&Value> = None;
    let mut mcp: Option<&Value> = None;
    let mut calls: Vec<&Value> = Vec::new();
    for (index, event) in events.iter().enumerate() {
        let kind = event["event_type"].as_str().unwrap_or_else(|| panic!("no type: {event}"));
        let payload = &event["payload"];
        let fail = |what: &str| panic!("{what}: event {index} of {:?}\n{event}", crate::client::types(events));
        if !ids.insert(event["id"].as_str().unwrap_or_default()) {
            fail("an id twice");
        }
        match kind {
            "session.close" if index + 1 != events.len() => fail("something follows session.close"),
            "session.open" if index != 0 => fail("a second opening"),
            "client.message.send" | "provider.request" if request.is_some() || mcp.is_some() => {
                fail("two turns interleave")
            }
            "provider.request" => request = Some(payload),
            "provider.response" => match request.take() {
                Some(asked) if ["attempt", "kind", "provider"].iter().all(|field| asked[field] == payload[field]) => {}
                _ => fail("a response to no request"),
            },
            "mcp.request" if mcp.is_some() => fail("two tool calls at once"),
            "mcp.request" => mcp = Some(payload),
            "mcp.response" => match mcp.take() {
                Some(asked) if asked["server_name"] == payload["server_name"] => {}
                _ => fail("a response to no request"),
            },
            "tool.call" => calls.push(&payload["id"]),
            "tool.result" => match calls.iter().position(|id| **id == payload["tool_use_id"]) {
                Some(at) => drop(calls.remove(at)),
                None => fail("a result of no call"),
            },
            _ => {}
        }
    }
}
