//! Client tools: the pause, its answer, its rejection, its abandonment.

use super::golden;
use serde_json::{Value, json};
use tests::client::{Session, of_type, types};
use tests::fixture::{Fixture, Plan};
use tests::mcp::{Kind, Mcp};
use tests::provider::Answer;
use tests::transcript::Transcript;

fn transcript(fixture: &Fixture) -> Transcript {
    Transcript::default().replace(&fixture.provider.url(), "[provider]")
}

fn message(content: Value) -> Value {
    json!({"message": {"role": "user", "content": content}})
}

fn result(id: &str, content: &str) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": content})
}

/// A paused turn of two client tools.
async fn paused(fixture: &Fixture) -> Session {
    let session = fixture.driver().await;
    fixture.provider.push(Answer::tools(&[("tu_a", "clock", json!({})), ("tu_b", "clock", json!({"zone": "UTC"}))]));
    let outcome = session.send("time?").await;
    assert_eq!(outcome.types().last().unwrap(), "server.message.send");
    session
}

#[tokio::test]
async fn pause_and_resume() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    fixture.provider.push(Answer::blocks(json!([
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "tu_1", "name": "clock", "input": {"zone": "UTC"}},
    ])));
    let mut t = transcript(&fixture);
    let outcome = t.rpc(&session, "session.sendMessage", message(json!("time?"))).await;
    assert_eq!(
        outcome.types(),
        ["client.message.send", "provider.request", "provider.response", "tool.call", "server.message.send"]
    );
    assert_eq!(outcome.result()["message"]["content"][1]["dispatch"], "client");
    let answer =
        message(json!([{"type": "tool_result", "tool_use_id": "tu_1", "content": "18:26", "x-extra": [1.10]}]));
    let outcome = t.rpc(&session, "session.sendMessage", answer).await;
    assert_eq!(
        outcome.types(),
        ["client.message.send", "tool.result", "provider.request", "provider.response", "server.message.send"]
    );
    assert_eq!(types(&outcome.live()), ["provider.request", "provider.response", "server.message.send"]);
    t.note("what the provider was sent: no dispatch");
    let sent = fixture.provider.last()["messages"].clone();
    t.value("messages", &sent);
    assert_eq!(
        sent[1]["content"][1],
        json!({"type": "tool_use", "id": "tu_1", "name": "clock", "input": {"zone": "UTC"}})
    );
    golden("pause", t);
}

#[tokio::test]
async fn a_mixed_turn() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    fixture.provider.push(Answer::tools(&[
        ("tu_1", "clock", json!({})),
        ("tu_2", "ls", json!({"path": "/data"})),
        ("tu_3", "clock", json!({"n": 3})),
    ]));
    let mut t = transcript(&fixture);
    let outcome = t.rpc(&session, "session.sendMessage", message(json!("time and files?"))).await;
    assert_eq!(
        outcome.types(),
        [
            "client.message.send",
            "provider.request",
            "provider.response",
            "tool.call",
            "tool.call",
            "tool.call",
            "mcp.request",
            "mcp.response",
            "tool.result",
            "server.message.send",
        ]
    );
    let dispatches: Vec<&Value> =
        outcome.result()["message"]["content"].as_array().unwrap().iter().map(|b| &b["dispatch"]).collect();
    assert_eq!(dispatches, ["client", "mcp", "client"]);

    t.note("the client answers its own, in another order, and mistakenly the server's, whose copy is dropped");
    let answer = message(
        json!([result("tu_3", "three"), result("tu_2", "forged"), result("tu_1", "one"), {"type": "text", "text": "and?"}]),
    );
    let outcome = t.rpc(&session, "session.sendMessage", answer).await;
    assert_eq!(outcome.text(), "ok");
    let sent = fixture.provider.last()["messages"][2].clone();
    t.value("the merged message", &sent);
    let ids: Vec<&Value> = sent["content"].as_array().unwrap().iter().map(|b| &b["tool_use_id"]).collect();
    assert_eq!(
        ids,
        [&json!("tu_1"), &json!("tu_2"), &json!("tu_3"), &Value::Null],
        "in the order of the uses, other blocks after them"
    );
    assert!(!sent.to_string().contains("forged"));
    let events = session.events().await;
    assert_eq!(of_type(&events, "tool.result").len(), 3, "server results are not logged twice");
    golden("mixed", t);
}

/// Every continuation that does not answer exactly the paused ids: an error, and the session fails.
#[tokio::test]
async fn rejected_continuations() {
    let fixture = Fixture::start().await;
    let mut t = transcript(&fixture);
    for (what, content) in [
        ("missing", json!([result("tu_a", "1")])),
        ("duplicate", json!([result("tu_a", "1"), result("tu_a", "2"), result("tu_b", "3")])),
        ("unexpected", json!([result("tu_a", "1"), result("tu_b", "2"), result("tu_c", "3")])),
    ] {
        let session = paused(&fixture).await;
        t.note(what);
        let (code, text) = t.rpc(&session, "session.sendMessage", message(content)).await.error();
        assert!(code == -32000 && text.starts_with("tool result merge invalid"), "{code} {text}");
        rejected(&fixture, &session, &mut t).await;
    }
    let session = paused(&fixture).await;
    t.note("role not user (docs/api.md 3.6)");
    let content = json!([result("tu_a", "1"), result("tu_b", "2")]);
    let params = json!({"message": {"role": "assistant", "content": content}});
    assert_eq!(t.rpc(&session, "session.sendMessage", params).await.error().0, -32000);
    rejected(&fixture, &session, &mut t).await;
    golden("merge_invalid", t);
}

async fn rejected(fixture: &Fixture, session: &Session, t: &mut Transcript) {
    let events = session.events().await;
    let last = events.last().unwrap();
    t.value("last event", last);
    assert_eq!(
        (&last["event_type"], &last["payload"]["reason"]),
        (&json!("session.error"), &json!("tool_result_merge_invalid"))
    );
    assert_eq!(fixture.admin.state(&session.id).await, "error");
}

/// A plain message of the owner gives the pause up: error results for the client's tools, and the session stays open.
#[tokio::test]
async fn a_plain_message_abandons() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({})), ("tu_2", "ls", json!({}))]));
    session.send("go").await;
    let mut t = transcript(&fixture);
    let outcome = t.rpc(&session, "session.sendMessage", message(json!("never mind"))).await;
    assert_eq!(outcome.text(), "ok");
    let sent = fixture.provider.last()["messages"][2].clone();
    t.value("the merged message", &sent);
    let blocks = sent["content"].as_array().unwrap();
    assert_eq!(blocks[0]["tool_use_id"], "tu_1");
    assert_eq!(blocks[0]["is_error"], true);
    assert_eq!(blocks[1]["tool_use_id"], "tu_2");
    assert_eq!(blocks[2], json!({"type": "text", "text": "never mind"}));
    assert_eq!(fixture.admin.state(&session.id).await, "open");
    assert_eq!(of_type(&session.events().await, "tool.result").len(), 2);
    golden("pause_given_up", t);
}

#[tokio::test]
async fn results_that_nothing_waits_for() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut t = transcript(&fixture);
    let outcome = t.rpc(&session, "session.sendMessage", message(json!([result("tu_9", "late")]))).await;
    let expected =
        "tool result merge invalid: no paused turn is awaiting tool results (it may have timed out and been retired)";
    assert_eq!(outcome.error(), (-32000, expected.to_owned()));
    assert_eq!(session.types().await, ["session.open", "session.driver.register"]);
    assert_eq!(session.send("an ordinary message").await.text(), "ok");
    golden("merge_nothing_paused", t);
}

/// docs/api.md 3.5: another driver's message takes an expired pause over; the old owner comes too late.
#[tokio::test]
async fn an_expired_pause() {
    let fixture = Plan::default().env("BAE_TURN_TIMEOUT", "1").start().await;
    let first = paused(&fixture).await;
    let second = fixture.second(&first).await;
    let mut t = transcript(&fixture);
    let outcome = t.rpc(&second, "session.sendMessage", message(json!("my turn"))).await;
    assert_eq!(outcome.text(), "ok");
    let events = outcome.events();
    let error = of_type(&events, "session.error")[0].clone();
    assert_eq!(error["payload"], json!({"reason": "driver_turn_abandoned", "owner_client_key_id": fixture.key.id}));
    assert_eq!(error["client_key_id"], json!(fixture.key.id), "attributed to the old owner");
    assert_eq!(of_type(&events, "tool.result").len(), 2);
    let sent = fixture.provider.last()["messages"][2].clone();
    t.value("the merged message", &sent);
    let abandoned = "Client tool call was abandoned before returning a result.";
    assert!(
        sent["content"][0].to_string().contains(abandoned) && sent["content"][1].to_string().contains(abandoned),
        "{sent}"
    );
    assert_eq!(sent["content"][0]["is_error"], true);
    t.note("the old owner's late answer");
    let outcome =
        t.rpc(&first, "session.sendMessage", message(json!([result("tu_a", "1"), result("tu_b", "2")]))).await;
    assert!(outcome.error().1.starts_with("tool result merge invalid: no paused turn"), "{outcome:?}");
    assert_eq!(fixture.admin.state(&first.id).await, "open");
    golden("pause_expired", t);
}
