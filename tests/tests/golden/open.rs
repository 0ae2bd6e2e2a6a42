//! `POST /api/v1/sessions`.

use super::golden;
use serde_json::{Value, json};
use tests::fixture::{Fixture, Plan, clock};
use tests::transcript::Transcript;

fn subagent_tool() -> Value {
    json!({
        "name": "launch_subagent", "description": "Launch", "input_schema": {"type": "object"}, "image": "bae-subagents:latest",
        "subagents": [
            {"harness": "claude", "command_template": "claude --model {model} --print", "prompt_via": "stdin", "timeout_secs": 600},
            {"harness": "codex", "command_template": "codex exec --model {model} {prompt}", "prompt_via": "arg"},
        ],
    })
}

fn sandbox_tool() -> Value {
    json!({
        "name": "run_shell_command", "description": "Run",
        "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    })
}

#[tokio::test]
async fn a_full_body() {
    let fixture = Plan::default().profile("mcp_servers", json!(["filesystem"])).start().await;
    let mut t = Transcript::default();
    let body = json!({
        "client_version": "1.0.0", "tools": [clock()], "sandbox_tools": [sandbox_tool()],
        "subagent_tools": [subagent_tool()], "compaction": {"mode": "auto", "size": 128000}, "unknown": 1,
    });
    let reply =
        t.rest(&fixture.api, "POST", "/api/v1/sessions", &fixture.key.secret, Some(body)).await.expect(201).json();
    let profile = &reply["profile"];
    assert_eq!(profile["provider"], json!({"provider": "anthropic", "model": "mock-main"}));
    let path = format!("/api/v1/sessions/{}/events", reply["session_id"].as_str().unwrap());
    t.rest(&fixture.api, "GET", &path, reply["session_key"].as_str().unwrap(), None).await.expect(200);

    t.note("nothing at all, and null for the optional fields");
    t.rest(&fixture.api, "POST", "/api/v1/sessions", &fixture.key.secret, Some(json!({}))).await.expect(201);
    let nulls = json!({"client_version": null, "compaction": null});
    t.rest(&fixture.api, "POST", "/api/v1/sessions", &fixture.key.secret, Some(nulls)).await.expect(201);
    let client = json!({"compaction": {"mode": "client"}});
    t.rest(&fixture.api, "POST", "/api/v1/sessions", &fixture.key.secret, Some(client)).await.expect(201);
    let prompt = json!({"compaction": {"mode": "client", "prompt": "short"}});
    t.rest(&fixture.api, "POST", "/api/v1/sessions", &fixture.key.secret, Some(prompt)).await.expect(201);
    golden("open", t);
}

#[tokio::test]
async fn malformed_bodies() {
    let fixture = Fixture::start().await;
    let mut t = Transcript::default();
    t.note("not JSON, or the wrong content type: the raw rejection text");
    for (kind, body) in
        [(Some("application/json"), "{"), (Some("application/json"), ""), (Some("text/plain"), "{}"), (None, "{}")]
    {
        let mut request = fixture
            .api
            .request("POST", "/api/v1/sessions")
            .header("authorization", format!("Bearer {}", fixture.key.secret));
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        let what = format!("POST /api/v1/sessions, {}: {body:?}", kind.unwrap_or("no content type"));
        t.request(&fixture.api, &what, request.body(body)).await.problem(400, "bad_request");
    }
    let with_charset = fixture
        .api
        .request("POST", "/api/v1/sessions")
        .header("authorization", format!("Bearer {}", fixture.key.secret));
    let with_charset = with_charset.header("content-type", "application/json; charset=utf-8").body("{}");
    fixture.api.send(with_charset).await.expect(201);

    t.note("fields");
    for body in [
        json!([]),
        json!({"tools": {}}),
        json!({"tools": [{"description": "no name"}]}),
        json!({"client_version": 1}),
        json!({"subagent_tools": "x"}),
    ] {
        let detail = t
            .rest(&fixture.api, "POST", "/api/v1/sessions", &fixture.key.secret, Some(body))
            .await
            .problem(400, "bad_request");
        assert!(detail.starts_with("invalid request body: "), "{detail}");
    }
    t.note("compaction");
    for compaction in [
        json!("auto"),
        json!({}),
        json!({"mode": "sometimes"}),
        json!({"mode": "auto"}),
        json!({"mode": "auto", "size": "big"}),
        json!({"mode": "auto", "size": 1.5}),
        json!({"mode": "auto", "size": -1}),
        json!({"mode": "client", "prompt": 1}),
    ] {
        let body = json!({"compaction": compaction});
        let detail = t
            .rest(&fixture.api, "POST", "/api/v1/sessions", &fixture.key.secret, Some(body))
            .await
            .problem(400, "bad_request");
        assert!(detail.starts_with("invalid compaction config: "), "{detail}");
        if compaction == json!({"mode": "auto"}) {
            assert_eq!(detail, "invalid compaction config: missing field `size`");
        }
    }
    t.note("a size under 1,000 tokens; no session is made for it");
    let small = json!({"compaction": {"mode": "auto", "size": 999}});
    t.rest(&fixture.api, "POST", "/api/v1/sessions", &fixture.key.secret, Some(small))
        .await
        .problem(400, "bad_request");
    let list = fixture.admin.get("/admin/v1/sessions").await.expect(200).json();
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list}");
    golden("open_malformed", t);
}

#[tokio::test]
async fn refused_tools() {
    let fixture = Fixture::start().await;
    let mut t = Transcript::default();
    let open = "/api/v1/sessions";
    let body = json!({"tools": [clock(), {"name": "rm"}]});
    t.rest(&fixture.api, "POST", open, &fixture.key.secret, Some(body)).await.problem(403, "tool_not_allowed");

    t.note("sandbox tools are not checked against allowed_tools, but need a string `command`");
    t.rest(&fixture.api, "POST", open, &fixture.key.secret, Some(json!({"sandbox_tools": [sandbox_tool()]})))
        .await
        .expect(201);
    for schema in [
        json!({"type": "object"}),
        json!({"type": "object", "properties": {"command": {"type": "number"}}, "required": ["command"]}),
        json!({"type": "object", "properties": {"command": {"type": "string"}}}),
    ] {
        let body = json!({"sandbox_tools": [{"name": "sh", "input_schema": schema}]});
        t.rest(&fixture.api, "POST", open, &fixture.key.secret, Some(body)).await.expect(400);
    }

    t.note("subagent declarations (docs/api.md 8.1)");
    t.rest(&fixture.api, "POST", open, &fixture.key.secret, Some(json!({"subagent_tools": [subagent_tool()]})))
        .await
        .expect(201);
    let broken = |change: fn(&mut Value)| {
        let mut tool = subagent_tool();
        change(&mut tool);
        json!({"subagent_tools": [tool]})
    };
    for body in [
        broken(|tool| tool["name"] = json!(" ")),
        broken(|tool| tool["image"] = json!("")),
        broken(|tool| tool["subagents"] = json!([])),
        broken(|tool| tool["subagents"][0]["harness"] = json!("")),
        broken(|tool| tool["subagents"][0]["harness"] = json!("codex")),
        broken(|tool| tool["subagents"][0]["prompt_via"] = json!("file")),
        broken(|tool| tool["subagents"][0]["command_template"] = json!("claude {prompt}")),
        broken(|tool| tool["subagents"][0]["command_template"] = json!("claude {mode}")),
        broken(|tool| tool["subagents"][1]["command_template"] = json!("codex {model}")),
        broken(|tool| tool["subagents"][1]["command_template"] = json!("codex {prompt} {prompt}")),
        broken(|tool| tool["subagents"][0]["timeout_secs"] = json!(0)),
        broken(|tool| tool["subagents"][0]["timeout_secs"] = json!(-1)),
    ] {
        t.rest(&fixture.api, "POST", open, &fixture.key.secret, Some(body))
            .await
            .problem(422, "invalid_subagent_tools");
    }
    t.note("the reserved name, for a tool of any kind");
    for body in [
        json!({"sandbox_tools": [{"name": "remote_subagent_status", "input_schema": sandbox_tool()["input_schema"]}]}),
        broken(|tool| tool["name"] = json!("remote_subagent_status")),
        json!({"tools": [{"name": "remote_subagent_status"}]}),
    ] {
        t.rest(&fixture.api, "POST", open, &fixture.key.secret, Some(body)).await.problem(422, "reserved_tool_name");
    }
    golden("open_tools", t);
}

#[tokio::test]
async fn unavailable_provider_and_profile() {
    let fixture = Fixture::start().await;
    let profile =
        fixture.admin.profile(&json!({"name": "lost", "primary_provider": "nowhere", "allowed_tools": []})).await;
    let key = fixture.admin.key("lost", &profile).await;
    let mut t = Transcript::default();
    t.rest(&fixture.api, "POST", "/api/v1/sessions", &key.secret, Some(json!({})))
        .await
        .problem(422, "primary_provider_unavailable");
    t.note("recorded for audit, every time, as a session in state error");
    t.rest(&fixture.api, "POST", "/api/v1/sessions", &key.secret, Some(json!({})))
        .await
        .problem(422, "primary_provider_unavailable");
    audit(&fixture, &mut t, 2).await;

    t.note("the profile deleted under the key (the admin API refuses to, so in the database)");
    fixture.lose_profile(&profile).await;
    t.rest(&fixture.api, "POST", "/api/v1/sessions", &key.secret, Some(json!({})))
        .await
        .problem(422, "profile_unavailable");
    audit(&fixture, &mut t, 3).await;
    golden("open_unavailable", t);
}

async fn audit(fixture: &Fixture, t: &mut Transcript, count: usize) {
    let list = fixture.admin.get("/admin/v1/sessions?state=error").await.expect(200).json();
    assert_eq!(list["items"].as_array().unwrap().len(), count, "{list}");
    let mut newest: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect();
    newest.sort_unstable();
    t.value("the log of the failed session", &json!(fixture.admin.events(newest[count - 1]).await));
}

/// 500 and -32603: a write that the database refuses; nothing half-written, recovery without a restart (F23).
#[tokio::test]
async fn a_refused_write() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut t = Transcript::default();
    let fault = fixture.fail_inserts("session.open").await;
    t.rest(&fixture.api, "POST", "/api/v1/sessions", &fixture.key.secret, Some(json!({})))
        .await
        .problem(500, "internal");
    fault.undo().await;
    let list = fixture.admin.get("/admin/v1/sessions").await.expect(200).json();
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list}");
    fixture.api.open(&fixture.key.secret, &json!({})).await;

    let fault = fixture.fail_inserts("session.sandbox.running").await;
    let report = json!({"state": "running", "image": "x"});
    let (code, message) = t.rpc(&session, "session.reportLocalSandbox", report.clone()).await.error();
    assert_eq!((code, message.as_str()), (-32603, "Internal error"));
    fault.undo().await;
    assert_eq!(t.rpc(&session, "session.reportLocalSandbox", report).await.result()["reported"], true);
    golden("internal", t);
}
