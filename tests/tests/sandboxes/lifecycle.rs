//! Starting, stopping and sharing a session's sandbox.

use super::{BARE_IMAGE, EXEC, IMAGE, MISSING_IMAGE, START, STOP, driver, exec, lifecycle_types, payloads, sh, start};
use super::{Runtime, over_both};
use serde_json::{Value, json};
use tests::client::{of_type, types};
use tests::poll;

over_both!(
    start_exec_stop,
    refusals,
    images_that_do_not_start,
    provisioning,
    another_driver_on_another_node,
    a_revoked_key,
);

/// The whole life of a sandbox: results and events to the letter.
async fn start_exec_stop(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session = driver(&fixture).await;
    let before = session.events().await.len();
    let mut watcher = session.subscribe(None).await;
    let outcome = session.rpc(START, json!({"image": IMAGE})).await;
    let result = outcome.result().clone();
    let id = result["sandbox_id"].as_str().unwrap().to_owned();
    let started_at = result["started_at"].clone();
    assert_eq!(result, json!({"sandbox_id": id, "image": IMAGE, "started_at": started_at}));
    let events = session.events().await;
    assert_eq!(types(&events[before..]), ["session.sandbox.start", "session.sandbox.running"]);
    assert_eq!(events[before]["payload"], json!({"image": IMAGE, "dispatch": "remote"}));
    assert_eq!(events[before + 1]["payload"], json!({"image": IMAGE, "sandbox_id": id, "dispatch": "remote"}));
    assert_eq!(events[before + 1]["created_at"], started_at);
    for event in &events[before..] {
        assert_eq!(event["client_key_id"], json!(fixture.key.id));
        assert_eq!(watcher.next().await.unwrap()["params"], *event, "forwarded live");
    }
    assert_eq!(runtime.of(&session.id).await.len(), 1);

    let outcome = exec(&session, "echo out; echo err >&2; exit 7").await;
    assert_eq!(*outcome.result(), json!({"stdout": "out\n", "stderr": "err\n", "exit_code": 7}));
    assert_eq!(outcome.frames.len(), 1);
    assert_eq!(session.events().await.len(), events.len(), "no event on success");
    sh(&session, "echo kept >/tmp/file").await;
    assert_eq!(sh(&session, "cat /tmp/file; cd /; pwd").await, "kept\n/\n");

    let (code, text) = session.rpc(START, json!({"image": IMAGE})).await.error();
    let already = "a remote sandbox is already running for this session; call session.stopRemoteSandbox first";
    assert_eq!((code, text.as_str()), (-32000, already));
    assert_eq!(runtime.of(&session.id).await.len(), 1);

    let outcome = session.rpc(STOP, json!({})).await;
    assert_eq!(*outcome.result(), json!({"stopped": true, "image": IMAGE, "sandbox_id": id}));
    assert_eq!(runtime.of(&session.id).await, []);
    let events = session.events().await;
    assert_eq!(types(&events[before + 2..]), ["session.sandbox.stop", "session.sandbox.stopped"]);
    for event in &events[before + 2..] {
        let payload = json!({"image": IMAGE, "sandbox_id": id, "reason": "explicit", "dispatch": "remote"});
        assert_eq!(event["payload"], payload);
    }
    for (method, params) in [(STOP, json!({})), (EXEC, json!({"command": "true"}))] {
        let (code, text) = session.rpc(method, params).await.error();
        assert!(code == -32013 && text.starts_with("sandbox_not_running"), "{code} {text}");
    }

    let again = start(&session).await;
    assert_ne!(again, id);
    assert_eq!(exec(&session, "cat /tmp/file").await.result()["exit_code"], 1, "a new one");
    session.delete().await.expect(200);
    assert_eq!(runtime.of(&session.id).await, [], "gone when the closing is answered");
    let events = session.events().await;
    assert_eq!(types(&events[before + 6..]), ["session.sandbox.stop", "session.sandbox.stopped", "session.close"]);
    for event in &events[before + 6..before + 8] {
        let payload = json!({"image": IMAGE, "sandbox_id": again, "reason": "session_close", "dispatch": "remote"});
        assert_eq!(event["payload"], payload);
    }
    assert_eq!(
        session.rpc(START, json!({"image": IMAGE})).await.error(),
        (-32000, "session is closed, not open".into())
    );
}

/// Each check, in its order, with the driver there.
async fn refusals(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    fixture
        .admin
        .profile(&json!({"name": "other", "primary_provider": "main", "available_sandboxes": ["alpine"]}))
        .await;
    let session = fixture.api.open(&fixture.key.secret, &json!({})).await;
    for (method, params) in [(START, json!({"image": IMAGE})), (STOP, json!({})), (EXEC, json!({"command": "true"}))] {
        let expected = (-32001, format!("call session.registerDriver before {method}"));
        assert_eq!(session.rpc(method, params).await.error(), expected);
    }
    session.register().await;
    for params in [json!({}), json!({"image": ""}), json!({"image": " "}), json!({"image": 3})] {
        assert_eq!(session.rpc(START, params).await.error().0, -32602);
    }
    for image in ["nothing", "alpine"] {
        let (code, text) = session.rpc(START, json!({"image": image})).await.error();
        assert!(code == -32011 && text.starts_with("sandbox_image_not_allowed: "), "{code} {text}");
    }
    assert_eq!(runtime.of(&session.id).await, []);
    start(&session).await;
    for params in [json!({}), json!({"command": 3}), json!({"command": null})] {
        assert_eq!(session.rpc(EXEC, params).await.error().0, -32602);
    }
    let (code, _) = session.rpc(START, json!({"image": "nothing"})).await.error();
    assert_eq!(code, -32011, "the image is looked at before what runs");
    fixture.lose_profile(&fixture.profile).await;
    let (code, text) = session.rpc(START, json!({"image": IMAGE})).await.error();
    assert!(code == -32000 && text.starts_with("profile_unavailable: "), "{code} {text}");
    assert_eq!(sh(&session, "echo on").await, "on\n", "what runs goes on");
}

/// An image that cannot be had, and one in which nothing can be started.
async fn images_that_do_not_start(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session = driver(&fixture).await;
    for image in [MISSING_IMAGE, BARE_IMAGE] {
        let before = session.events().await.len();
        let (code, text) = session.rpc(START, json!({"image": image})).await.error();
        let detail = text.strip_prefix("sandbox_start_failed: ").unwrap_or_else(|| panic!("{text}"));
        assert!(code == -32012 && !detail.is_empty(), "{code} {text}");
        let events = session.events().await;
        assert_eq!(types(&events[before..]), ["session.sandbox.start", "session.sandbox.error"]);
        let payload = json!({"image": image, "phase": "start", "detail": detail, "dispatch": "remote"});
        assert_eq!(events[before + 1]["payload"], payload);
        assert_eq!(runtime.of(&session.id).await, []);
    }
    start(&session).await;
}

/// Images are looked for in the background; everybody sees what became of them.
async fn provisioning(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let status = async || {
        let reply = fixture.admin.get("/admin/v1/sandbox-status").await.expect(200).json();
        let items = reply["items"].as_array().unwrap().clone();
        let own = items.into_iter().find(|item| item["profile_id"] == fixture.profile.as_str());
        own.expect("the profile's item")["images"].as_array().unwrap().clone()
    };
    let settled = |images: Vec<Value>| {
        if images.iter().all(|image| image["status"] != "pending") { Ok(images) } else { Err(images) }
    };
    let mut images = poll::until(poll::DEADLINE, "the images' status", async || settled(status().await)).await;
    images.sort_by_key(|image| image["name"].to_string());
    let detail = images[0]["detail"].clone();
    assert!(detail.as_str().is_some_and(|detail| !detail.is_empty()), "{images:?}");
    assert_eq!(
        images,
        [
            json!({"name": MISSING_IMAGE, "status": "error", "detail": detail}),
            json!({"name": BARE_IMAGE, "status": "available"}),
            json!({"name": IMAGE, "status": "available"}),
        ]
    );
    let session = driver(&fixture).await;
    session.register().await;
    let events = session.events().await;
    let told = of_type(&events, "session.sandbox.available");
    assert_eq!(told.len(), 1);
    let mut told = told[0]["payload"]["images"].as_array().unwrap().clone();
    told.sort_by_key(|image| image["name"].to_string());
    assert_eq!(told, images);
    // Replacing the profile looks again.
    let profile = json!({"name": "main", "primary_provider": "main", "available_sandboxes": [IMAGE]});
    fixture.admin.put(&format!("/admin/v1/profiles/{}", fixture.profile), &profile).await.expect(200);
    let images = poll::until(poll::DEADLINE, "the image's status", async || settled(status().await)).await;
    assert_eq!(images, [json!({"name": IMAGE, "status": "available"})]);
}

/// A second client uses, and stops, the same sandbox through other nodes.
async fn another_driver_on_another_node(runtime: Runtime) {
    let cluster = runtime.cluster_plan().start().await;
    let session = cluster.driver().await;
    let id = start(&cluster.at(&session, 0)).await;
    sh(&cluster.at(&session, 0), "echo one >/tmp/file").await;
    let second = cluster.second(&session, 1).await;
    assert_eq!(sh(&second, "cat /tmp/file").await, "one\n");
    let (code, text) = cluster.at(&second, 2).rpc(START, json!({"image": IMAGE})).await.error();
    assert!(code == -32000 && text.contains("already running"), "{code} {text}");
    let stopped = cluster.at(&second, 2).rpc(STOP, json!({})).await;
    assert_eq!(stopped.result()["sandbox_id"], id.as_str());
    assert_eq!(runtime.of(&session.id).await, []);
    assert_eq!(exec(&session, "true").await.error().0, -32013);
    let events = session.events().await;
    assert_eq!(lifecycle_types(&events), ["sandbox.start", "sandbox.running", "sandbox.stop", "sandbox.stopped"]);
    let keys: Vec<&Value> = events
        .iter()
        .filter(|event| event["event_type"].as_str().unwrap().starts_with("session.sandbox.sto"))
        .map(|event| &event["client_key_id"])
        .collect();
    assert_ne!(keys[0], &json!(cluster.key.id), "who stops it");
    // A driver on the third node starts the next, with the first one's image.
    start(&cluster.at(&second, 2)).await;
    assert_eq!(payloads(&session.events().await, "sandbox.running").len(), 2);
    session.delete().await.expect(200);
    assert_eq!(runtime.of(&session.id).await, []);
    cluster.check(&session).await;
}

/// A key that is revoked takes its session's sandbox with it.
async fn a_revoked_key(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session = driver(&fixture).await;
    let id = start(&session).await;
    fixture.admin.revoke(&fixture.key).await;
    runtime.until(&session.id, 0, poll::DEADLINE).await;
    let events = poll::until(poll::DEADLINE, "the closing", async || {
        let events = fixture.admin.events(&session.id).await;
        if events.last().is_some_and(|event| event["event_type"] == "session.close") {
            Ok(events)
        } else {
            Err(types(&events))
        }
    })
    .await;
    assert_eq!(lifecycle_types(&events), ["sandbox.start", "sandbox.running", "sandbox.stop", "sandbox.stopped"]);
    let payload = json!({"image": IMAGE, "sandbox_id": id, "reason": "session_close", "dispatch": "remote"});
    assert_eq!(payloads(&events, "sandbox.stopped"), [payload]);
    assert_eq!(events.last().unwrap()["payload"]["reason"], "client_key_revoked");
}
