//! Subagents: local reports, cancelling, `session.updateClientTools`, and launches with no sandbox driver configured.

use super::golden;
use serde_json::{Value, json};
use tests::client::{of_type, types};
use tests::fixture::{Fixture, Plan, clock};
use tests::provider::Answer;
use tests::transcript::Transcript;

#[tokio::test]
async fn local_reports() {
    let fixture = Fixture::start().await;
    let session = fixture.api.open(&fixture.key.secret, &json!({})).await;
    let mut t = Transcript::default();
    let report = "session.reportLocalSubagent";
    assert_eq!(
        t.rpc(&session, report, json!({})).await.error(),
        (-32001, format!("call session.registerDriver before {report}"))
    );
    session.register().await;
    let base = json!({"subagent_id": "sba_local", "harness": "claude", "model": "claude-sonnet-5"});
    let with = |more: Value| {
        let mut params = base.clone();
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    for more in [
        json!({"state": "start", "detail": null, "reason": null, "exit_code": null}),
        json!({"state": "running"}),
        json!({"state": "completed", "exit_code": 0}),
        json!({"state": "failed", "reason": "timeout", "detail": "too slow"}),
        json!({"state": "failed", "reason": "anything the client says", "exit_code": 3}),
        json!({"state": "cancelled", "reason": "explicit"}),
    ] {
        assert_eq!(*t.rpc(&session, report, with(more)).await.result(), json!({"reported": true}));
    }
    let events = session.events().await;
    t.value("events", &json!(events[2..]));
    assert_eq!(
        types(&events[2..]),
        ["start", "running", "completed", "failed", "failed", "cancelled"]
            .map(|state| format!("session.subagent.{state}"))
    );
    assert!(events[2..].iter().all(|event| event["payload"]["dispatch"] == "local"));
    t.note("invalid");
    for params in [
        with(json!({})),
        with(json!({"state": "paused"})),
        with(json!({"state": "start", "subagent_id": ""})),
        with(json!({"state": "start", "harness": ""})),
        with(json!({"state": "start", "model": ""})),
        with(json!({"state": "start", "model": null})),
        with(json!({"state": "completed", "exit_code": "zero"})),
    ] {
        let (code, text) = t.rpc(&session, report, params).await.error();
        assert!(code == -32602 && text.starts_with("Invalid params: "), "{code} {text}");
    }
    golden("local_subagent", t);
}

#[tokio::test]
async fn cancelling() {
    let fixture = Fixture::start().await;
    let session = fixture.api.open(&fixture.key.secret, &json!({})).await;
    let mut t = Transcript::default();
    let cancel = "session.cancelSubagent";
    assert_eq!(
        t.rpc(&session, cancel, json!({})).await.error(),
        (-32001, format!("call session.registerDriver before {cancel}"))
    );
    session.register().await;
    for params in [json!({}), json!({"subagent_id": 7}), json!({"subagent_id": ""})] {
        assert_eq!(t.rpc(&session, cancel, params).await.error().0, -32602);
    }
    let unknown = format!("sba_{}", "0".repeat(32));
    let (code, text) = t.rpc(&session, cancel, json!({"subagent_id": unknown})).await.error();
    assert!(code == -32014 && text.starts_with("subagent_not_found"), "{code} {text}");
    golden("cancel_subagent", t);
}

#[tokio::test]
async fn updating_tools() {
    let fixture = Fixture::start().await;
    let session = fixture.api.open(&fixture.key.secret, &json!({"tools": [clock()]})).await;
    let mut t = Transcript::default();
    let update = "session.updateClientTools";
    assert_eq!(
        t.rpc(&session, update, json!({})).await.error(),
        (-32001, format!("call session.registerDriver before {update}"))
    );
    session.register().await;
    for params in [
        json!({}),
        json!({"tools": null}),
        json!({"tools": {}}),
        json!({"tools": [{}]}),
        json!({"tools": [{"name": ""}]}),
        json!({"tools": [{"name": 1}]}),
    ] {
        let (code, text) = t.rpc(&session, update, params).await.error();
        assert!(code == -32602 && text.starts_with("Invalid params: "), "{code} {text}");
    }
    for name in ["rm", "remote_subagent_status"] {
        let (code, text) = t.rpc(&session, update, json!({"tools": [{"name": name}]})).await.error();
        assert!(code == -32015 && text.starts_with("tool_not_allowed"), "{code} {text}");
    }
    session.send("with the declared tool").await.text();
    assert_eq!(fixture.provider.last()["tools"][0]["name"], "clock");
    t.note("a full replacement, from the next provider call on");
    assert_eq!(
        *t.rpc(&session, update, json!({"tools": [{"name": "weather"}]})).await.result(),
        json!({"updated": true})
    );
    session.send("with another").await.text();
    let tools = fixture.provider.last()["tools"].clone();
    assert_eq!((tools.as_array().unwrap().len(), &tools[0]["name"]), (1, &json!("weather")));
    t.note("empty");
    assert_eq!(*t.rpc(&session, update, json!({"tools": []})).await.result(), json!({"updated": true}));
    session.send("with none").await.text();
    assert_eq!(fixture.provider.last()["tools"].as_array().map(Vec::len).unwrap_or_default(), 0);
    assert!(of_type(&session.events().await, "session.subagent.start").is_empty());
    golden("update_tools", t);
}

#[tokio::test]
async fn launches() {
    let fixture = Plan::default().profile("available_sandboxes", json!(["agents"])).start().await;
    let declaration = json!({
        "name": "launch_subagent", "description": "Launch", "input_schema": {"type": "object"}, "image": "agents",
        "subagents": [{"harness": "claude", "command_template": "claude --model {model}"}],
    });
    let mut elsewhere = declaration.clone();
    elsewhere["name"] = json!("launch_elsewhere");
    elsewhere["image"] = json!("not-allowed");
    let session = fixture.driver_with(json!({"subagent_tools": [declaration, elsewhere]})).await;
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]");
    let good = json!({"harness": "claude", "model": "m", "prompt": "p"});
    fixture.provider.push(Answer::tools(&[
        ("tu_1", "launch_subagent", json!({"harness": "unknown", "model": "m", "prompt": "p"})),
        ("tu_2", "launch_subagent", json!({"harness": "claude", "model": " ", "prompt": "p"})),
        ("tu_3", "launch_subagent", json!({"harness": "claude", "model": "m"})),
        ("tu_4", "launch_elsewhere", good.clone()),
    ]));
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "launch"}})).await;
    assert_eq!(outcome.text(), "ok");
    let events = outcome.events();
    assert!(
        types(&events).iter().all(|kind| !kind.starts_with("session.subagent")),
        "no lifecycle event: {:?}",
        types(&events)
    );
    let results = of_type(&events, "tool.result");
    assert_eq!(results.len(), 4);
    assert!(
        results.iter().all(|event| event["payload"]["is_error"] == true && event["payload"]["dispatch"] == "subagent")
    );
    t.note("the model sees name, description and schema only");
    let tools = fixture.provider.requests()[0].json()["tools"].clone();
    t.value("tools", &tools);
    assert_eq!(
        tools[0],
        json!({"name": "launch_subagent", "description": "Launch", "input_schema": {"type": "object", "properties": {}}})
    );
    t.note("a launch that is allowed, with no driver to start it");
    fixture.provider.push(Answer::tools(&[("tu_5", "launch_subagent", good)]));
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "launch"}})).await;
    assert_eq!(outcome.text(), "ok");
    golden("launch_subagent", t);
}
