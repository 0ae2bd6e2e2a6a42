//! Remote subagents: launched by a turn, reported by the status tool, cancelled.

use super::{CANCEL, Runtime, launch_tool, lifecycle_types, over_both, payloads, told};
use serde_json::{Value, json};
use std::time::Duration;
use tests::client::{Session, of_type, types};
use tests::fixture::Fixture;
use tests::poll;
use tests::provider::Answer;
use tests::server::ADMIN_KEY;

over_both!(
    from_launch_to_report,
    prompts,
    endings,
    cancelling,
    the_admin_port_lists_and_ends,
    cancelled_as_it_ends,
    the_bound_and_the_closing,
    containers_that_are_lost,
);

const STATUS: &str = "remote_subagent_status";

type Harness = (&'static str, &'static str, &'static str, Option<u64>);

async fn session(fixture: &Fixture, harnesses: &[Harness]) -> Session {
    fixture.driver_with(json!({"subagent_tools": [launch_tool(harnesses)]})).await
}

/// Has the model launch one; returns what the tool answered.
async fn try_launch(
    fixture: &Fixture,
    session: &Session,
    tool_use: &'static str,
    harness: &str,
    model: &str,
    prompt: &str,
) -> (String, bool) {
    let input = json!({"harness": harness, "model": model, "prompt": prompt});
    fixture.provider.push(Answer::tools(&[(tool_use, "launch_subagent", input)]));
    assert_eq!(session.send(tool_use).await.text(), "ok");
    told(&fixture.provider, tool_use)
}

/// The same; returns its id.
async fn launch(
    fixture: &Fixture,
    session: &Session,
    tool_use: &'static str,
    harness: &str,
    model: &str,
    prompt: &str,
) -> String {
    let (text, is_error) = try_launch(fixture, session, tool_use, harness, model, prompt).await;
    assert!(!is_error, "{text}");
    let started: Value = serde_json::from_str(&text).unwrap();
    let id = started["subagent_id"].as_str().unwrap().to_owned();
    assert_eq!(started, json!({"subagent_id": id, "harness": harness, "model": model, "status": "started"}));
    id
}

/// Waits for the terminal event of a subagent; returns its type, without `session.subagent.`, and its payload.
async fn ended(session: &Session, id: &str) -> (String, Value) {
    let find = |events: &[Value]| {
        let terminal = ["completed", "failed", "cancelled"].map(|kind| format!("session.subagent.{kind}"));
        let about = |event: &&Value| {
            terminal.iter().any(|kind| event["event_type"] == kind.as_str()) && event["payload"]["subagent_id"] == id
        };
        events.iter().filter(about).cloned().collect::<Vec<_>>()
    };
    let events = session.until("the subagent's end", |events| !find(events).is_empty()).await;
    let mut found = find(&events);
    assert_eq!(found.len(), 1, "{found:?}");
    let event = found.remove(0);
    let kind = event["event_type"].as_str().unwrap().strip_prefix("session.subagent.").unwrap().to_owned();
    (kind, event["payload"].clone())
}

/// Has the model ask for the status; returns the text, and whether it is an error.
async fn status(fixture: &Fixture, session: &Session, tool_use: &'static str, input: Value) -> (String, bool) {
    fixture.provider.push(Answer::tools(&[(tool_use, STATUS, input)]));
    assert_eq!(session.send(tool_use).await.text(), "ok");
    told(&fixture.provider, tool_use)
}

/// The reports of the status tool.
async fn reports(fixture: &Fixture, session: &Session, tool_use: &'static str) -> Vec<Value> {
    let (text, is_error) = status(fixture, session, tool_use, json!({})).await;
    assert!(!is_error, "{text}");
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value.as_object().unwrap().len(), 1);
    value["subagents"].as_array().unwrap().clone()
}

/// Whether the last request to the provider offered the status tool.
fn offered(fixture: &Fixture) -> bool {
    let last = fixture.provider.last();
    last["tools"].as_array().is_some_and(|tools| tools.iter().any(|tool| tool["name"] == STATUS))
}

/// One that ends well: events, status, and that it is reported once.
async fn from_launch_to_report(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let template = "printf 'model %s\\n' {model}; printf warned >&2; until [ -e /tmp/go ]; do sleep 0.1; done; cat";
    let session = session(&fixture, &[("claude", template, "stdin", None)]).await;
    session.send("nothing yet").await.text();
    assert!(!offered(&fixture));
    let before = session.events().await.len();
    let id = launch(&fixture, &session, "tu_1", "claude", "m 1", "the prompt").await;
    assert!(offered(&fixture), "offered from the next question on");
    let events = session.events().await;
    assert_eq!(
        types(&events[before..]),
        [
            "client.message.send",
            "provider.request",
            "provider.response",
            "tool.call",
            "session.subagent.start",
            "session.subagent.running",
            "tool.result",
            "provider.request",
            "provider.response",
            "server.message.send"
        ]
    );
    let payload = json!({"dispatch": "remote", "subagent_id": id, "harness": "claude", "model": "m 1", "detail": null});
    assert_eq!(payloads(&events, "subagent.start"), std::slice::from_ref(&payload));
    assert_eq!(payloads(&events, "subagent.running"), std::slice::from_ref(&payload));
    let call = of_type(&events, "tool.call")[0]["payload"].clone();
    assert_eq!((&call["dispatch"], &call["server_name"]), (&json!("subagent"), &Value::Null));

    let running = json!({
        "subagent_id": id, "harness": "claude", "model": "m 1", "status": "running", "exit_code": null,
        "stdout": "", "stderr": "", "truncated": false, "reason": null, "detail": null,
    });
    assert_eq!(reports(&fixture, &session, "tu_2").await, std::slice::from_ref(&running));
    assert_eq!(reports(&fixture, &session, "tu_3").await, [running], "a running one is reported again and again");

    let container = runtime.container(&id).await;
    runtime.touch(&container, "/tmp/go").await;
    let mut expected = payload.clone();
    expected["exit_code"] = json!(0);
    assert_eq!(ended(&session, &id).await, ("completed".to_owned(), expected));
    runtime.until(&session.id, 0, poll::DEADLINE).await;
    let done = json!({
        "subagent_id": id, "harness": "claude", "model": "m 1", "status": "completed", "exit_code": 0,
        "stdout": "model m 1\nthe prompt", "stderr": "warned", "truncated": false, "reason": null, "detail": null,
    });
    assert_eq!(reports(&fixture, &session, "tu_4").await, [done]);
    assert!(!offered(&fixture), "forgotten");
    let (text, is_error) = status(&fixture, &session, "tu_5", json!({"subagent_id": id})).await;
    assert!(is_error && text.contains("unknown subagent_id"), "{text}");
    session.send("after").await.text();
    assert!(!offered(&fixture));
    let (code, text) = session.rpc(CANCEL, json!({"subagent_id": id})).await.error();
    assert!(code == -32014 && text.starts_with("subagent_not_found"), "{code} {text}");
    assert_eq!(lifecycle_types(&session.events().await), ["subagent.start", "subagent.running", "subagent.completed"]);
    session.delete().await.expect(200);
}

/// A long and awkward prompt arrives byte for byte, and is seen nowhere else; a model's name stays data.
async fn prompts(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session = session(
        &fixture,
        &[
            ("stdin", "cat >/tmp/in; md5sum </tmp/in; tail -c 60 /tmp/in; [ ! -e /pwned ] # {model}", "stdin", None),
            ("arg", "printf '%s|' {model} {prompt}; ls -d /pwned", "arg", None),
            ("wait", "cat >/dev/null; sleep 1000", "stdin", None),
            ("model", "printf '%s' {model}; ls -d /pwned", "stdin", None),
        ],
    )
    .await;
    let piece = "line 'one' \"two\" `touch /pwned` $(touch /pwned) {model} {prompt} \\ \u{1}\u{7f} ünï\n\r\t";
    let prompt: String = piece.repeat(200_000 / piece.len() + 1);
    let id = launch(&fixture, &session, "tu_1", "stdin", "'; touch /pwned; '", &prompt).await;
    assert_eq!(ended(&session, &id).await.0, "completed");
    let report = reports(&fixture, &session, "tu_2").await.remove(0);
    let sum = std::process::Command::new("sh")
        .args(["-c", "md5sum <\"$0\""])
        .arg({
            let file = fixture.server.dir.join("prompt");
            std::fs::write(&file, &prompt).unwrap();
            file
        })
        .output()
        .unwrap();
    let mut expected = String::from_utf8(sum.stdout).unwrap();
    expected.push_str(&prompt[prompt.len() - 60..]);
    assert_eq!(report["stdout"], expected.as_str());

    let awkward = "'; touch /pwned; '";
    for (tool_use, harness, model, prompt, out) in [
        (
            "tu_3",
            "arg",
            awkward,
            "it's {model}\n$(touch /pwned)",
            format!("{awkward}|it's {{model}}\n$(touch /pwned)|"),
        ),
        ("tu_4", "model", "`touch /pwned` {prompt}", "p", "`touch /pwned` {prompt}".to_owned()),
    ] {
        let id = launch(&fixture, &session, tool_use, harness, model, prompt).await;
        let (kind, payload) = ended(&session, &id).await;
        assert_eq!((kind.as_str(), &payload["reason"]), ("failed", &json!("nonzero_exit")), "there is no /pwned");
        let tool_use: &'static str = Box::leak(format!("{tool_use}_status").into_boxed_str());
        let report = reports(&fixture, &session, tool_use).await.remove(0);
        assert_eq!(report["stdout"], out.as_str());
    }

    let secret = "the secret words of the prompt";
    let id = launch(&fixture, &session, "tu_5", "wait", "m", secret).await;
    let inspected = runtime.inspect(&runtime.container(&id).await).await;
    assert!(!inspected.contains(secret), "{inspected}");
    assert!(!fixture.server.log().contains(secret) && !fixture.server.log().contains("/pwned"));
    session.delete().await.expect(200);
    assert_eq!(runtime.of(&session.id).await, []);
}

/// How one can end otherwise, with what is told of it.
async fn endings(runtime: Runtime) {
    let fixture = runtime.plan().env("BAE_SUBAGENT_TIMEOUT", "3").start().await;
    let session = session(
        &fixture,
        &[
            ("fails", "printf some; echo why >&2; exit 9", "stdin", None),
            ("slow", "printf begun; trap '' TERM; sleep 1000", "stdin", Some(2)),
            ("default", "sleep 1000", "stdin", None),
            ("much", "yes | head -c 200000; printf '€' | head -c 2 >&2", "stdin", Some(60)),
            (
                "edge",
                "head -c 65535 /dev/zero | tr '\\0' x; printf '€more'; head -c 65536 /dev/zero | tr '\\0' e >&2",
                "stdin",
                Some(60),
            ),
            ("missing", "no-such-program {model}", "stdin", None),
            ("killed", "kill -9 $$", "stdin", None),
        ],
    )
    .await;
    let one = async |tool_use: &'static str, harness: &'static str| {
        let id = launch(&fixture, &session, tool_use, harness, "m", "p").await;
        let (kind, payload) = ended(&session, &id).await;
        assert_eq!(payload["subagent_id"], id.as_str());
        let status: &'static str = Box::leak(format!("{tool_use}_status").into_boxed_str());
        let mut reports = reports(&fixture, &session, status).await;
        assert_eq!(reports.len(), 1);
        runtime.until(&session.id, 0, poll::DEADLINE).await;
        (kind, payload, reports.remove(0))
    };
    let (kind, payload, report) = one("tu_fails", "fails").await;
    let id = &payload["subagent_id"];
    assert_eq!(kind, "failed");
    assert_eq!(
        payload,
        json!({
            "dispatch": "remote", "subagent_id": id, "harness": "fails", "model": "m", "detail": null,
            "reason": "nonzero_exit", "exit_code": 9,
        })
    );
    assert_eq!(
        report,
        json!({
            "subagent_id": id, "harness": "fails", "model": "m", "status": "failed", "exit_code": 9,
            "stdout": "some", "stderr": "why\n", "truncated": false, "reason": "nonzero_exit", "detail": null,
        })
    );

    for (tool_use, harness, stdout) in [("tu_slow", "slow", "begun"), ("tu_default", "default", "")] {
        let (kind, payload, report) = one(tool_use, harness).await;
        assert_eq!(
            (kind.as_str(), &payload["reason"], &payload["exit_code"]),
            ("failed", &json!("timeout"), &Value::Null)
        );
        assert_eq!((&report["status"], &report["reason"]), (&json!("timed_out"), &json!("timeout")));
        assert_eq!((&report["exit_code"], &report["stdout"]), (&Value::Null, &json!(stdout)));
    }

    let (kind, _, report) = one("tu_much", "much").await;
    assert_eq!(kind, "completed");
    assert_eq!(report["stdout"].as_str().unwrap(), "y\n".repeat(32_768));
    assert_eq!((&report["truncated"], &report["exit_code"]), (&json!(true), &json!(0)));
    let (_, _, report) = one("tu_edge", "edge").await;
    assert_eq!(report["stdout"].as_str().unwrap().len(), 65_535, "no character is cut in two");
    assert_eq!((report["stderr"].as_str().unwrap().len(), &report["truncated"]), (65_536, &json!(true)));
    let (kind, payload, report) = one("tu_missing", "missing").await;
    assert_eq!((kind.as_str(), &payload["exit_code"]), ("failed", &json!(127)));
    assert!(report["stderr"].as_str().unwrap().contains("not found"), "{report}");
    let (kind, payload, _) = one("tu_killed", "killed").await;
    assert_eq!((kind.as_str(), &payload["exit_code"]), ("failed", &json!(137)));
}

/// Cancelling one that runs, one that has ended, and one that nobody knows.
async fn cancelling(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session =
        session(&fixture, &[("wait", "trap '' TERM; sleep 1000", "stdin", None), ("quick", "true", "stdin", None)])
            .await;
    let id = launch(&fixture, &session, "tu_1", "wait", "m", "p").await;
    let second = fixture.second(&session).await;
    let outcome = second.rpc(CANCEL, json!({"subagent_id": id})).await;
    assert_eq!(*outcome.result(), json!({"cancelled": true, "subagent_id": id, "was_running": true}));
    assert_eq!(runtime.of(&session.id).await, []);
    let (kind, payload) = ended(&session, &id).await;
    assert_eq!(kind, "cancelled");
    assert_eq!(
        payload,
        json!({
            "dispatch": "remote", "subagent_id": id, "harness": "wait", "model": "m", "detail": null,
            "reason": "explicit", "exit_code": null,
        })
    );
    let events = session.events().await.len();
    for _ in 0..2 {
        let outcome = session.rpc(CANCEL, json!({"subagent_id": id})).await;
        assert_eq!(*outcome.result(), json!({"cancelled": true, "subagent_id": id, "was_running": false}));
    }
    assert_eq!(session.events().await.len(), events, "no new event");
    let report = reports(&fixture, &session, "tu_2").await.remove(0);
    let told = (&report["status"], &report["reason"], &report["exit_code"]);
    assert_eq!(told, (&json!("cancelled"), &json!("explicit"), &Value::Null));
    assert_eq!(session.rpc(CANCEL, json!({"subagent_id": id})).await.error().0, -32014, "forgotten");

    let quick = launch(&fixture, &session, "tu_3", "quick", "m", "p").await;
    assert_eq!(ended(&session, &quick).await.0, "completed");
    let outcome = session.rpc(CANCEL, json!({"subagent_id": quick})).await;
    assert_eq!(*outcome.result(), json!({"cancelled": true, "subagent_id": quick, "was_running": false}));
    for id in [format!("sba_{}", "0".repeat(32)), "sba_local".to_owned()] {
        let (code, text) = session.rpc(CANCEL, json!({"subagent_id": id})).await.error();
        assert!(code == -32014 && text.starts_with("subagent_not_found"), "{code} {text}");
    }
    // Another session's is unknown here.
    let other = fixture.driver().await;
    assert_eq!(other.rpc(CANCEL, json!({"subagent_id": quick})).await.error().0, -32014);
}

/// What runs is listed on the admin port, and can be ended from there.
async fn the_admin_port_lists_and_ends(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session = session(&fixture, &[("wait", "sleep 1000", "stdin", None)]).await;
    let subagent = launch(&fixture, &session, "tu_1", "wait", "m", "p").await;
    let sandbox = super::start(&session).await;
    let call = async |method: &str, path: &str| fixture.admin.0.call(method, path, ADMIN_KEY, None).await;
    let list = async |kind: &str| call("GET", &format!("/admin/v1/{kind}")).await.expect(200).json();
    let shown = json!({"sandbox_id": sandbox, "session_id": session.id, "image": super::IMAGE, "state": "running"});
    assert_eq!(list("sandboxes").await, json!({"items": [shown], "next_cursor": null}));
    let shown = json!({"subagent_id": subagent, "session_id": session.id, "harness": "wait", "model": "m"});
    assert_eq!(list("subagents").await, json!({"items": [shown], "next_cursor": null}));
    for (kind, id) in [("sandboxes", &sandbox), ("subagents", &subagent)] {
        call("DELETE", &format!("/admin/v1/{kind}/{id}")).await.expect(204);
        assert_eq!(list(kind).await["items"], json!([]));
        call("DELETE", &format!("/admin/v1/{kind}/{id}")).await.expect(404);
    }
    assert_eq!(runtime.of(&session.id).await, []);
    assert_eq!(ended(&session, &subagent).await.0, "cancelled");
    let events = session.events().await;
    assert_eq!(super::payloads(&events, "sandbox.stopped")[0]["reason"], "explicit");
}

/// Two cancellations at once, and the end in the very moment: one terminal event, nothing left.
async fn cancelled_as_it_ends(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session = session(&fixture, &[("short", "sleep 0.{model}", "stdin", None)]).await;
    for (n, tool_use) in ["tu_0", "tu_1", "tu_2", "tu_3"].into_iter().enumerate() {
        let id = launch(&fixture, &session, tool_use, "short", &format!("{}", n * 2 + 1), "p").await;
        let cancel = || session.rpc(CANCEL, json!({"subagent_id": id}));
        let (first, second) = tokio::join!(cancel(), cancel());
        let ran = [first, second].iter().filter(|outcome| outcome.result()["was_running"] == true).count();
        let (kind, _) = ended(&session, &id).await;
        assert_eq!(ran, usize::from(kind == "cancelled"), "{kind}");
        reports(&fixture, &session, Box::leak(format!("{tool_use}_status").into_boxed_str())).await;
    }
    runtime.until(&session.id, 0, poll::DEADLINE).await;
    let events = session.events().await;
    assert_eq!(lifecycle_types(&events).len(), 12, "{:?}", lifecycle_types(&events));
}

/// The number that may run is bounded; what runs is told, and ends with the session.
async fn the_bound_and_the_closing(runtime: Runtime) {
    let fixture = runtime.plan().env("BAE_MAX_SUBAGENTS_PER_SESSION", "2").start().await;
    let session = session(&fixture, &[("wait", "sleep 1000 & sleep 1000", "stdin", None)]).await;
    let first = launch(&fixture, &session, "tu_1", "wait", "m", "p").await;
    let input = json!({"harness": "wait", "model": "m", "prompt": "p"});
    // Two in one answer: the second is one too many.
    fixture
        .provider
        .push(Answer::tools(&[("tu_2", "launch_subagent", input.clone()), ("tu_3", "launch_subagent", input.clone())]));
    session.send("two").await.text();
    let (text, is_error) = told(&fixture.provider, "tu_2");
    assert!(!is_error, "{text}");
    let (text, is_error) = told(&fixture.provider, "tu_3");
    assert!(is_error && text.contains('2'), "{text}");
    let (text, is_error) = try_launch(&fixture, &session, "tu_4", "wait", "m", "p").await;
    assert!(is_error, "{text}");
    let events = session.events().await;
    assert_eq!(payloads(&events, "subagent.start").len(), 2, "no lifecycle event of what was refused");
    assert_eq!(runtime.of(&session.id).await.len(), 2);
    let ids: Vec<Value> = reports(&fixture, &session, "tu_5").await.iter().map(|r| r["subagent_id"].clone()).collect();
    assert_eq!((ids.len(), &ids[0]), (2, &json!(first)), "in the order of their launches");

    // One ends, and there is room again.
    session.rpc(CANCEL, json!({"subagent_id": first})).await.result();
    let third = launch(&fixture, &session, "tu_6", "wait", "m", "p").await;
    let before = session.events().await.len();
    session.delete().await.expect(200);
    assert_eq!(runtime.of(&session.id).await, []);
    let events = session.events().await;
    assert_eq!(types(&events[before..]), ["session.subagent.cancelled", "session.subagent.cancelled", "session.close"]);
    let mut cancelled: Vec<String> = Vec::new();
    for event in &events[before..before + 2] {
        let payload = &event["payload"];
        assert_eq!((&payload["reason"], &payload["exit_code"]), (&json!("session_close"), &Value::Null));
        cancelled.push(payload["subagent_id"].as_str().unwrap().to_owned());
    }
    assert!(cancelled.contains(&third), "{cancelled:?}");
}

/// A container that cannot be started, and one that is removed by hand.
async fn containers_that_are_lost(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let mut bare = launch_tool(&[("none", "true", "stdin", None)]);
    bare["name"] = json!("launch_bare");
    bare["image"] = json!(super::BARE_IMAGE);
    let tools = json!([launch_tool(&[("wait", "sleep 1000", "stdin", None)]), bare]);
    let session = fixture.driver_with(json!({"subagent_tools": tools})).await;
    fixture.provider.push(Answer::tools(&[(
        "tu_1",
        "launch_bare",
        json!({"harness": "none", "model": "m", "prompt": "p"}),
    )]));
    assert_eq!(session.send("launch").await.text(), "ok");
    let (text, is_error) = told(&fixture.provider, "tu_1");
    assert!(is_error && text.starts_with("subagent error: "), "{text}");
    let events = session.events().await;
    assert_eq!(lifecycle_types(&events), ["subagent.start", "subagent.failed"]);
    let failed = payloads(&events, "subagent.failed").remove(0);
    assert_eq!((&failed["reason"], &failed["exit_code"]), (&json!("spawn_failed"), &Value::Null));
    assert!(failed["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{failed}");
    assert_eq!(runtime.of(&session.id).await, []);
    assert!(!offered(&fixture), "what did not start is not tracked");

    let id = launch(&fixture, &session, "tu_2", "wait", "m", "p").await;
    runtime.remove(&runtime.container(&id).await).await;
    let (kind, payload) = ended(&session, &id).await;
    assert_eq!((kind.as_str(), &payload["exit_code"]), ("failed", &Value::Null));
    assert!(payload["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{payload}");
    let report = reports(&fixture, &session, "tu_3").await.remove(0);
    assert_eq!(report["status"], "failed");

    // A session that fails takes its subagents with it.
    launch(&fixture, &session, "tu_4", "wait", "m", "p").await;
    fixture.provider.push(Answer::status(400));
    session.send("fails").await;
    runtime.until(&session.id, 0, Duration::from_secs(20)).await;
    assert_eq!(fixture.admin.state(&session.id).await, "error");
}
