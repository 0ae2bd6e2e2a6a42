//! Tests of how the events of a session are shown to a person.

use serde_json::json;

use super::*;

const ME: &str = "key_00000000000000000000000000001111";
const OTHER: &str = "key_00000000000000000000000000002222";

struct Log {
    transcript: Transcript,
    number: u32,
}

impl Log {
    fn new() -> Log {
        let mut transcript = Transcript::default();
        transcript.set_own_key(ME);
        Log { transcript, number: 0 }
    }

    fn event(&mut self, key: &str, kind: &str, payload: Value) -> Event {
        self.number += 1;
        let id = format!("evt_{}", self.number);
        let event = json!({
            "id": id, "session_id": "ses_1", "client_key_id": key, "event_type": kind, "payload": payload, "created_at": "t",
        });
        serde_json::from_str(&event.to_string()).unwrap()
    }

    fn tell(&mut self, key: &str, kind: &str, payload: Value) -> Vec<String> {
        let event = self.event(key, kind, payload);
        let lines = self.transcript.render(&event);
        assert_eq!(self.transcript.render(&event), [], "told twice");
        lines
            .into_iter()
            .map(|line| line.name.map_or_else(|| line.text.clone(), |name| format!("{name}> {}", line.text)))
            .collect()
    }
}

#[test]
fn a_simple_turn_reads_as_a_conversation() {
    let mut log = Log::new();
    let nothing: [&str; 0] = [];
    assert_eq!(log.tell(ME, "client.message.send", json!({"role": "user", "content": "hello"})), ["you> hello"]);
    assert!(log.transcript.running());
    assert_eq!(log.tell(ME, "provider.request", json!({"messages": []})), nothing);
    let body = json!({"stop_reason": "end_turn", "content": [{"type": "text", "text": "hi"}]});
    assert_eq!(log.tell(ME, "provider.response", json!({"ok": true, "body": body})), nothing);
    let content = json!([{"type": "text", "text": "hi"}]);
    assert_eq!(log.tell(ME, "server.message.send", json!({"role": "assistant", "content": content})), ["model> hi"]);
    assert!(!log.transcript.running());
    let others = json!({"role": "user", "content": [{"type": "text", "text": "me too"}]});
    assert_eq!(log.tell(OTHER, "client.message.send", others), ["key_…2222> me too"]);
}

#[test]
fn what_was_typed_here_is_not_told_again() {
    let mut log = Log::new();
    log.transcript.add_pending_message("hello");
    let merged =
        json!([{"type": "tool_result", "tool_use_id": "a", "content": "x"}, {"type": "text", "text": "hello"}]);
    let told = log.tell(ME, "client.message.send", json!({"role": "user", "content": merged}));
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(log.tell(ME, "client.message.send", json!({"content": "hello"})), ["you> hello"]);
}

#[test]
fn words_with_tool_calls_are_told_once() {
    let mut log = Log::new();
    let blocks = json!([
        {"type": "text", "text": "I call it."},
        {"type": "tool_use", "id": "a", "name": "ask_user", "input": {"question": "why?"}, "dispatch": "client"},
    ]);
    let body = json!({"stop_reason": "tool_use", "content": blocks});
    assert_eq!(log.tell(ME, "provider.response", json!({"ok": true, "body": body})), ["model> I call it."]);
    let call = json!({"id": "a", "name": "ask_user", "input": {"question": "why?"}, "dispatch": "client", "server_name": null});
    assert_eq!(log.tell(ME, "tool.call", call), ["→ ask_user {\"question\":\"why?\"} [client]"]);
    assert_eq!(log.tell(ME, "server.message.send", json!({"role": "assistant", "content": blocks})), [""; 0]);
    let calls = log.transcript.waiting_calls(&Tools::all());
    assert_eq!((calls.len(), calls[0].question()), (1, "why?"));
    assert_eq!(log.transcript.waits_for(), None);
    let result = json!({"tool_use_id": "a", "dispatch": "client", "is_error": false, "content": "because\nof it"});
    assert_eq!(log.tell(ME, "tool.result", result), ["← ask_user: because of it"]);
    log.tell(ME, "client.message.send", json!({"content": []}));
    assert_eq!(log.transcript.waiting_calls(&Tools::all()), []);
}

#[test]
fn anothers_pause_is_not_ours() {
    let mut log = Log::new();
    let blocks = json!([{"type": "tool_use", "id": "a", "name": "ask_user", "input": {}, "dispatch": "client"}]);
    log.tell(OTHER, "server.message.send", json!({"role": "assistant", "content": blocks}));
    assert_eq!(log.transcript.waiting_calls(&Tools::all()), []);
    assert_eq!(log.transcript.waits_for(), Some(OTHER));
    log.tell(OTHER, "session.error", json!({"reason": "driver_turn_abandoned", "owner_client_key_id": OTHER}));
    assert_eq!(log.transcript.waits_for(), None);
    assert!(!log.transcript.ended());
}

#[test]
fn compactions_show_their_summary() {
    let mut log = Log::new();
    let started = json!({"trigger": "client", "reason": "manual", "token_count": 10, "threshold_tokens": null});
    assert_eq!(log.tell(ME, "session.compaction.started", started), ["The conversation is being compacted."]);
    let preamble =
        json!({"role": "user", "content": [{"type": "text", "text": "…"}], "synthetic": "compaction_preamble"});
    assert_eq!(log.tell(ME, "server.message.send", preamble), [""; 0]);
    let summary = json!({"role": "assistant", "content": [{"type": "text", "text": "All\nof it."}]});
    assert_eq!(log.tell(ME, "server.message.send", summary), ["Summary: All of it."]);
    let completed = json!({"compacted_message_count": 4});
    assert_eq!(
        log.tell(ME, "session.compaction.completed", completed),
        ["4 messages were compacted into the summary."]
    );
}

#[test]
fn the_end_of_a_session_is_noticed() {
    let mut log = Log::new();
    let failed = json!({"ok": false, "provider": "main", "status": 529, "error": "Overloaded", "body": null});
    assert_eq!(log.tell(ME, "provider.response", failed), ["Provider main is overloaded (529): Overloaded"]);
    assert!(!log.transcript.ended());
    log.tell(ME, "session.error", json!({"reason": "all_providers_failed", "attempts": 1}));
    assert!(log.transcript.ended());
    let mut log = Log::new();
    let closed = log.tell(ME, "session.close", json!({"reason": "client_key_revoked"}));
    assert_eq!(closed, ["The session is closed: its key was revoked."]);
    assert!(log.transcript.ended());
}

#[test]
fn control_characters_cannot_steer_the_terminal() {
    let mut log = Log::new();
    let told = log.tell(OTHER, "client.message.send", json!({"content": "a\u{1b}[2Jb\r\nc"}));
    assert_eq!(told, ["key_…2222> a\u{fffd}[2Jb\u{fffd}\nc"]);
}
