//! F14: in the next request to the provider every tool use has exactly one result, whatever happened in between.

use serde_json::json;
use tests::client::of_type;
use tests::fixture::{Fixture, Plan};
use tests::history::assert_all_paired;
use tests::mcp::{Kind, Mcp, Outcome};
use tests::provider::{Answer, Provider};

/// One conversation with a crash during a tool call, a timeout, a client that leaves, a fallback, compactions and a
/// plain message instead of tool results.
#[tokio::test]
async fn one_thing_after_another() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let spare = Provider::start().await;
    let mut fixture =
        Plan::default().mcp(&mcp).fallback("spare", "anthropic", &spare).env("BAE_TURN_TIMEOUT", "1").start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;

    // The server crashes between a tool's request and its response, in a round that has a client tool as well.
    fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({})), ("tu_2", "clock", json!({}))]));
    let mut held = mcp.hold(Outcome::Text("lost".to_owned()));
    let turn = session.start_send("crash").await;
    held.arrived().await;
    fixture.server.crash().await;
    drop(turn);
    session.until_last("server.message.send").await;
    // The pause expires. The turn of the second driver goes to the fallback, whose answer uses tools too.
    fixture.provider.push(Answer::status(400));
    spare.push(Answer::tools(&[("tu_3", "clock", json!({})), ("tu_4", "ls", json!({}))]));
    second.send("reclaim").await;
    // A plain message gives the pause up, and its client leaves while the provider is asked.
    let mut held = fixture.provider.hold(Answer::tools(&[("tu_5", "clock", json!({}))]));
    let turn = second.start_send("plain").await;
    held.arrived().await;
    drop(turn);
    held.release();
    second.until_last("server.message.send").await;
    // The pause expires while compactions are asked for, and the conversation goes on after one was made.
    tests::poll::until(tests::poll::DEADLINE, "the pause's expiry", async || {
        let outcome = session.rpc("session.compact", json!({})).await;
        if outcome.frames.len() == 1 { Err(outcome) } else { Ok(()) }
    })
    .await;
    fixture.provider.push(Answer::tools(&[("tu_6", "ls", json!({}))]));
    assert_eq!(session.send("after it all").await.text(), "ok");
    assert_all_paired(&fixture.provider);
    assert_all_paired(&spare);
    let events = session.events().await;
    assert_eq!(of_type(&events, "tool.call").len(), 6);
    assert_eq!(of_type(&events, "tool.result").len(), 6, "every call is paired in the log too");
}

/// A tool use that the output limit cut off is never answered, and later requests are valid all the same.
#[tokio::test]
async fn a_truncated_tool_use() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let half =
        json!([{"type": "text", "text": "I will"}, {"type": "tool_use", "id": "tu_1", "name": "clock", "input": {}}]);
    fixture.provider.push(Answer::blocks(half).truncated());
    session.send("go").await;
    assert_eq!(session.send("on").await.text(), "ok");
    assert_all_paired(&fixture.provider);
}

/// An answer has two tool uses with the same id, and another one uses an id that was used before.
#[tokio::test]
async fn ids_that_repeat() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    for _ in 0..2 {
        fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({}))]));
        assert_eq!(session.send("go").await.text(), "ok");
    }
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
    session.send("go").await;
    assert_eq!(session.answer(&[("tu_1", "now")]).await.text(), "ok");
    assert_all_paired(&fixture.provider);
    assert!(fixture.provider.last().to_string().contains("now"));
}

/// D12: a tool that was declared by its name alone is sent without nulls, and unknown fields of a tool are not sent.
#[tokio::test]
async fn tool_declarations_upstream() {
    let fixture = Fixture::start().await;
    let schema = r#"{"b":1,"a":1.10,"type":"object","properties":{}}"#;
    let body = format!(
        r#"{{"tools":[{{"name":"clock"}},{{"name":"weather","description":"W","input_schema":{schema},"x":1}}]}}"#
    );
    let request = fixture
        .api
        .request("POST", "/api/v1/sessions")
        .header("authorization", format!("Bearer {}", fixture.key.secret));
    let reply = fixture.api.send(request.header("content-type", "application/json").body(body)).await.expect(201);
    let session = fixture.api.session(&reply);
    session.register().await;
    session.send("go").await.text();
    let request = &fixture.provider.requests()[0];
    let sent = request.json()["tools"].clone();
    assert!(!sent[0].to_string().contains("null"), "{sent}");
    assert_eq!(sent[0]["name"], "clock");
    assert!(sent[0]["input_schema"].is_object(), "the vendor requires one: {sent}");
    assert!(sent[1].get("x").is_none(), "{sent}");
    assert!(request.text().contains(schema), "the schema is passed on as it came: {}", request.text());
}
