//! Tools that the server dispatches itself.

use super::golden;
use serde_json::{Value, json};
use tests::client::of_type;
use tests::fixture::Plan;
use tests::mcp::{Kind, Mcp, Outcome};
use tests::provider::Answer;
use tests::transcript::Transcript;

#[tokio::test]
async fn mcp_rounds() {
    let files = Mcp::start("files", Kind::Http, &["ls", "cat"]).await;
    let fixture = Plan::default().mcp(&files).start().await;
    let session = fixture.driver().await;
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]");
    files.push(Outcome::Text("a.txt".to_owned()));
    files.push(Outcome::IsError("no such file".to_owned()));
    fixture.provider.push(Answer::blocks(json!([
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "tu_1", "name": "ls", "input": {"path": "/data"}},
        {"type": "tool_use", "id": "tu_2", "name": "cat", "input": {"path": "b.txt"}},
    ])));
    fixture.provider.push(Answer::tools(&[("tu_3", "ls", json!({"deep": 1.10}))]));
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "files?"}})).await;
    assert_eq!(
        outcome.types(),
        [
            "client.message.send",
            "provider.request",
            "provider.response",
            "tool.call",
            "tool.call",
            "mcp.request",
            "mcp.response",
            "tool.result",
            "mcp.request",
            "mcp.response",
            "tool.result",
            "provider.request",
            "provider.response",
            "tool.call",
            "mcp.request",
            "mcp.response",
            "tool.result",
            "provider.request",
            "provider.response",
            "server.message.send",
        ]
    );
    t.note("a later turn still sees the rounds (docs/api.md 4.2)");
    session.send("again").await.text();
    let messages = fixture.provider.last()["messages"].clone();
    t.value("messages", &messages);
    assert_eq!(messages.as_array().unwrap().len(), 7);
    golden("mcp", t);
}

/// The three transports look the same from outside.
#[tokio::test]
async fn mcp_transports() {
    for kind in [Kind::Http, Kind::Sse, Kind::Stdio] {
        let mcp = Mcp::start("files", kind, &["ls"]).await;
        let fixture = Plan::default().mcp(&mcp).start().await;
        let session = fixture.driver().await;
        fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({"path": "/"}))]));
        let outcome = session.send("go").await;
        assert_eq!(outcome.text(), "ok", "{kind:?}");
        let tools = fixture.provider.requests()[0].json()["tools"].clone();
        let tool = tools.as_array().unwrap().iter().find(|tool| tool["name"] == "ls").unwrap().clone();
        assert_eq!(tool["description"], "mock tool ls");
        assert_eq!(mcp.calls()[0]["arguments"], json!({"path": "/"}), "{kind:?}");
        let events = outcome.events();
        assert_eq!(of_type(&events, "mcp.response")[0]["payload"]["ok"], true, "{kind:?}");
    }
}

#[tokio::test]
async fn tools_with_nobody_behind_them() {
    let fixture = Plan::default().profile("mcp_servers", json!(["not-configured"])).start().await;
    let command = json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]});
    let session = fixture.driver_with(json!({"sandbox_tools": [{"name": "sh", "input_schema": command}]})).await;
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]");
    fixture.provider.push(Answer::tools(&[("tu_1", "nothing", json!({})), ("tu_2", "sh", json!({"command": "ls"}))]));
    fixture.provider.push(Answer::tools(&[("tu_3", "sh", json!({"command": 7}))]));
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "go"}})).await;
    assert_eq!(outcome.text(), "ok", "these never end the turn");
    let events = outcome.events();
    let results: Vec<String> = of_type(&events, "tool.result").iter().map(|e| e["payload"].to_string()).collect();
    assert!(results[0].contains("MCP error: no MCP server is configured for tool 'nothing'"), "{results:?}");
    let no_sandbox = "sandbox error: no remote sandbox is running for tool 'sh'; call session.startRemoteSandbox first";
    assert!(results[1].contains(no_sandbox), "{results:?}");
    let asked = of_type(&events, "mcp.request");
    assert_eq!((asked.len(), &asked[0]["payload"]["server_name"]), (1, &Value::Null), "docs/api.md 6");
    let answered = &of_type(&events, "mcp.response")[0]["payload"];
    assert_eq!((&answered["server_name"], &answered["ok"]), (&Value::Null, &json!(false)));
    assert!(results.iter().all(|r| r.contains(r#""is_error":true"#)));
    golden("tools_unserved", t);
}

/// MCP connections are the session's: made once when it is created, not again for a joiner; headers may name the
/// environment.
#[tokio::test]
async fn mcp_is_connected_once() {
    for kind in [Kind::Http, Kind::Sse] {
        let mcp = Mcp::start("files", kind, &["ls"]).await;
        let fixture = Plan::default()
            .mcp(&mcp)
            .toml("headers = { Authorization = \"Bearer ${MCP_TOKEN}\" }")
            .env("MCP_TOKEN", "from-the-environment")
            .start()
            .await;
        let session = fixture.driver().await;
        let second = fixture.second(&session).await;
        fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({}))]));
        assert_eq!(second.send("go").await.text(), "ok", "a joiner's turn uses the session's MCP tools");
        assert_eq!((mcp.opened(), mcp.calls().len()), (1, 1), "{kind:?}");
        assert_eq!(mcp.authorization().as_deref(), Some("Bearer from-the-environment"), "{kind:?}");
        let log = fixture.server.log() + &serde_json::to_string(&session.events().await).unwrap();
        assert!(!log.contains("from-the-environment"));
    }
}
