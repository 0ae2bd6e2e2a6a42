//! The sandbox methods, with no sandbox driver configured.

use super::golden;
use serde_json::json;
use tests::client::{of_type, types};
use tests::fixture::{Fixture, Plan};
use tests::transcript::Transcript;

#[tokio::test]
async fn registering_announces_the_images() {
    let fixture = Plan::default().profile("available_sandboxes", json!(["python:3.12", "alpine"])).start().await;
    let session = fixture.api.open(&fixture.key.secret, &json!({})).await;
    let mut t = Transcript::default();
    session.register().await;
    session.register().await;
    let events = session.events().await;
    assert_eq!(types(&events), ["session.open", "session.driver.register", "session.sandbox.available"]);
    t.value("event", &events[2]);
    let images = events[2]["payload"]["images"].as_array().unwrap();
    for image in images {
        assert_eq!((&image["status"], &image["detail"]), (&json!("error"), &json!("no sandbox driver is configured")));
    }
    assert_eq!(images.len(), 2);
    t.note("only right after a first registration; none when the list is empty");
    let plain = Fixture::start().await;
    assert_eq!(plain.driver().await.types().await, ["session.open", "session.driver.register"]);
    golden("sandbox_available", t);
}

#[tokio::test]
async fn starting_in_order_of_checks() {
    let fixture = Plan::default().profile("available_sandboxes", json!(["python:3.12"])).start().await;
    fixture
        .admin
        .profile(&json!({"name": "other", "primary_provider": "main", "available_sandboxes": ["alpine"]}))
        .await;
    let session = fixture.api.open(&fixture.key.secret, &json!({})).await;
    let mut t = Transcript::default();
    let start = "session.startRemoteSandbox";
    assert_eq!(
        t.rpc(&session, start, json!({})).await.error(),
        (-32001, format!("call session.registerDriver before {start}"))
    );
    session.register().await;
    for params in [json!({}), json!({"image": ""}), json!({"image": "  "}), json!({"image": null}), json!({"image": 3})]
    {
        assert_eq!(t.rpc(&session, start, params).await.error().0, -32602);
    }
    t.note("an image of no profile, and one of another profile");
    for image in ["nothing", "alpine"] {
        let (code, text) = t.rpc(&session, start, json!({"image": image})).await.error();
        assert!(code == -32011 && text.starts_with("sandbox_image_not_allowed"), "{code} {text}");
    }
    let before = session.events().await.len();
    t.note("allowed, but there is no driver");
    let outcome = t.rpc(&session, start, json!({"image": "python:3.12"})).await;
    assert_eq!(outcome.error(), (-32012, "sandbox_start_failed: no sandbox driver is configured".to_owned()));
    let events = session.events().await;
    assert_eq!(types(&events[before..]), ["session.sandbox.start", "session.sandbox.error"]);
    t.value("events", &json!(events[before..]));
    assert_eq!(events[before]["payload"], json!({"image": "python:3.12", "dispatch": "remote"}));
    assert_eq!(events[before + 1]["payload"]["phase"], "start");
    t.note("profile before image");
    fixture.lose_profile(&fixture.profile).await;
    let (code, text) = t.rpc(&session, start, json!({"image": "nothing"})).await.error();
    assert!(code == -32000 && text.starts_with("profile_unavailable: "), "{code} {text}");
    t.note("state before params");
    session.delete().await.expect(200);
    assert_eq!(t.rpc(&session, start, json!({})).await.error(), (-32000, "session is closed, not open".to_owned()));
    golden("sandbox_start", t);
}

#[tokio::test]
async fn stopping_and_running_without_one() {
    let fixture = Fixture::start().await;
    let session = fixture.api.open(&fixture.key.secret, &json!({})).await;
    let mut t = Transcript::default();
    for (method, params) in
        [("session.stopRemoteSandbox", json!({})), ("session.execRemoteSandbox", json!({"command": "ls"}))]
    {
        let expected = (-32001, format!("call session.registerDriver before {method}"));
        assert_eq!(t.rpc(&session, method, params).await.error(), expected);
    }
    session.register().await;
    for params in [json!({}), json!({"command": 7}), json!({"command": null})] {
        assert_eq!(t.rpc(&session, "session.execRemoteSandbox", params).await.error().0, -32602);
    }
    for (method, params) in
        [("session.stopRemoteSandbox", json!({})), ("session.execRemoteSandbox", json!({"command": "ls"}))]
    {
        let (code, text) = t.rpc(&session, method, params).await.error();
        assert!(code == -32013 && text.starts_with("sandbox_not_running"), "{code} {text}");
    }
    assert_eq!(session.types().await.len(), 2, "nothing is logged");
    golden("sandbox_not_running", t);
}

#[tokio::test]
async fn local_reports() {
    let fixture = Fixture::start().await;
    let session = fixture.api.open(&fixture.key.secret, &json!({})).await;
    let mut t = Transcript::default();
    let report = "session.reportLocalSandbox";
    assert_eq!(
        t.rpc(&session, report, json!({})).await.error(),
        (-32001, format!("call session.registerDriver before {report}"))
    );
    session.register().await;
    let second = fixture.second(&session).await;
    let mut watcher = session.subscribe(None).await;
    for params in [
        json!({"state": "running", "image": "anything:at-all", "container_id": "c1", "detail": null}),
        json!({"state": "stopped", "image": "anything:at-all"}),
        json!({"state": "error", "image": "anything:at-all", "detail": "it broke"}),
        json!({"state": "running", "image": null, "unsandboxed": true}),
    ] {
        assert_eq!(*t.rpc(&second, report, params).await.result(), json!({"reported": true}));
        t.next(&mut watcher, 1).await;
    }
    t.note("invalid");
    for params in [
        json!({}),
        json!({"state": "paused", "image": "x"}),
        json!({"state": "running"}),
        json!({"state": "running", "image": null}),
        json!({"state": "running", "image": 7}),
        json!({"state": "running", "image": "x", "unsandboxed": true}),
        json!({"state": "running", "image": "x", "container_id": 7}),
    ] {
        let (code, text) = t.rpc(&session, report, params).await.error();
        assert!(code == -32602 && text.starts_with("Invalid params: "), "{code} {text}");
    }
    let events = session.events().await;
    let running = of_type(&events, "session.sandbox.running");
    assert_eq!(running.len(), 2);
    assert_eq!(
        running[0]["payload"],
        json!({"dispatch": "local", "image": "anything:at-all", "container_id": "c1", "detail": null})
    );
    assert_ne!(running[0]["client_key_id"], json!(fixture.key.id), "attributed to the caller");
    golden("local_sandbox", t);
}
