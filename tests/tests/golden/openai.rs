//! The OpenAI wire format (docs/api.md 5.1, 5.6).

use super::golden;
use serde_json::json;
use tests::client::of_type;
use tests::fixture::Plan;
use tests::mcp::{Kind, Mcp};
use tests::provider::Answer;
use tests::transcript::Transcript;

#[tokio::test]
async fn tools_and_results_are_translated() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let fixture = Plan::default().openai().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]");
    fixture.provider.push(Answer::blocks(json!([
        {"type": "text", "text": "One moment."},
        {"type": "tool_use", "id": "call_1", "name": "clock", "input": {"zone": "UTC"}},
        {"type": "tool_use", "id": "call_2", "name": "ls", "input": {"path": "/"}},
    ])));
    let paused = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "time?"}})).await;
    let content = &paused.result()["message"]["content"];
    assert_eq!(content[0], json!({"type": "text", "text": "One moment."}));
    assert_eq!(
        content[1],
        json!({"type": "tool_use", "id": "call_1", "name": "clock", "input": {"zone": "UTC"}, "dispatch": "client"})
    );
    let request = &fixture.provider.requests()[0];
    assert_eq!(request.path, "/v1/chat/completions");
    assert_eq!(request.header("authorization"), Some("Bearer token-main"));
    t.value("first request", &request.json());
    session.answer(&[("call_1", "18:26")]).await.text();
    let body = fixture.provider.last();
    t.value("second request", &body);
    let roles: Vec<&str> = body["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool"]);
    let usage = &of_type(&session.events().await, "provider.response")[0]["payload"]["usage"].clone();
    assert_eq!(*usage, json!({"input_tokens": 10, "output_tokens": 5}));
    golden("openai", t);
}

#[tokio::test]
async fn empty_tools_are_omitted() {
    let fixture = Plan::default().openai().start().await;
    let session = fixture.driver_with(json!({})).await;
    fixture.provider.push(Answer::text("plain").without_usage());
    let outcome = session.send("go").await;
    assert!(fixture.provider.last().get("tools").is_none(), "{}", fixture.provider.last());
    assert!(of_type(&outcome.events(), "provider.response")[0]["payload"]["usage"].is_null());
}

/// Arguments that are no JSON object never reach a tool as something else.
#[tokio::test]
async fn malformed_arguments() {
    let fixture = Plan::default().openai().start().await;
    let call = |arguments: &str| {
        let function = json!({"name": "clock", "arguments": arguments});
        let message = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function", "function": function}]});
        Answer::raw(&json!({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}).to_string())
    };
    let session = fixture.driver().await;
    fixture.provider.push(call(""));
    let outcome = session.send("empty arguments").await;
    assert_eq!(outcome.result()["message"]["content"][0]["input"], json!({}));
    let session = fixture.driver().await;
    fixture.provider.push(call("{\"zone\": 1.10}"));
    session.send("a number's text").await;
    let log = fixture.api.get(&session.path("/events?limit=200"), &session.key).await.body;
    assert!(log.contains(r#""input":{"zone": 1.10}"#) || log.contains(r#""input":{"zone":1.10}"#), "{log}");
}
