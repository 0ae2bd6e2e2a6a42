//! Many at once, and what nobody asked for: races between nodes, orphans, old age.

use super::{CARRIED_ON, EXEC, Runtime, START, driver, exec, launch_tool, lifecycle_types, over_both, payloads, start};
use serde_json::{Value, json};
use std::time::Duration;
use tests::docker::IMAGE;
use tests::poll;
use tests::provider::Answer;

over_both!(fifty_starts_make_one, starts_and_stops_at_once, many_leave_nothing, old_age, removed_by_hand, orphans,);

/// Fifty starts of one session, over three nodes: one of them wins.
async fn fifty_starts_make_one(runtime: Runtime) {
    let cluster = runtime.cluster_plan().start().await;
    let session = cluster.driver().await;
    let start = |n: usize| {
        let session = cluster.at(&session, n % 3);
        async move { session.rpc(START, json!({"image": IMAGE})).await }
    };
    let outcomes = futures_util::future::join_all((0..50).map(start)).await;
    let (won, lost): (Vec<_>, Vec<_>) =
        outcomes.iter().partition(|outcome| outcome.frames.last().unwrap()["result"].is_object());
    assert_eq!((won.len(), lost.len()), (1, 49));
    for outcome in lost {
        let (code, text) = outcome.error();
        assert!(code == -32000 && text.contains("already running"), "{code} {text}");
    }
    let containers = runtime.of(&session.id).await;
    assert_eq!(containers.len(), 1);
    assert_eq!(lifecycle_types(&session.events().await), ["sandbox.start", "sandbox.running"]);
    session.delete().await.expect(200);
    assert_eq!(runtime.of(&session.id).await, []);
    cluster.check(&session).await;
}

/// Starts and stops through all nodes at once: at any time at most one, and at the end none.
async fn starts_and_stops_at_once(runtime: Runtime) {
    let cluster = runtime.cluster_plan().start().await;
    let session = cluster.driver().await;
    let client = |n: usize| {
        let session = cluster.at(&session, n % 3);
        async move {
            for _ in 0..4 {
                session.rpc(START, json!({"image": IMAGE})).await;
                session.rpc(EXEC, json!({"command": "true"})).await;
                session.rpc(super::STOP, json!({})).await;
            }
        }
    };
    futures_util::future::join_all((0..6).map(client)).await;
    session.rpc(super::STOP, json!({})).await;
    runtime.until(&session.id, 0, poll::DEADLINE).await;
    let mut runs = 0;
    for kind in lifecycle_types(&session.events().await) {
        match kind.as_str() {
            "sandbox.running" => runs += 1,
            "sandbox.stop" => runs -= 1,
            _ => {}
        }
        assert!((0..=1).contains(&runs), "{kind}");
    }
    assert_eq!(runs, 0);
    session.delete().await.expect(200);
    cluster.check(&session).await;
}

/// Many sandboxes started, used and closed: none is left. Ten times as many by hand.
async fn many_leave_nothing(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let many: usize = std::env::var("BAE_TEST_SANDBOXES").map_or(40, |n| n.parse().expect("a number"));
    let one = async |n: usize| {
        let session = driver(&fixture).await;
        start(&session).await;
        assert_eq!(exec(&session, &format!("exit {}", n % 7)).await.result()["exit_code"], n % 7);
        session.delete().await.expect(200);
        session.id
    };
    let mut ids = Vec::new();
    for some in (0..many).collect::<Vec<_>>().chunks(5) {
        ids.extend(futures_util::future::join_all(some.iter().map(|n| one(*n))).await);
    }
    for id in ids {
        assert_eq!(runtime.of(&id).await, []);
    }
}

/// A sandbox ends at its age; its session is told, and can start another.
async fn old_age(runtime: Runtime) {
    let fixture = runtime.plan().env("BAE_SANDBOX_MAX_AGE", "3").start().await;
    let session = driver(&fixture).await;
    let id = start(&session).await;
    runtime.until(&session.id, 0, CARRIED_ON).await;
    let events = session.events().await;
    assert_eq!(lifecycle_types(&events), ["sandbox.start", "sandbox.running", "sandbox.error"]);
    let error = payloads(&events, "sandbox.error").remove(0);
    assert_eq!((&error["sandbox_id"], &error["image"]), (&json!(id), &json!(IMAGE)));
    assert!(error["detail"].as_str().unwrap().contains("age"), "{error}");
    assert_eq!(exec(&session, "true").await.error().0, -32013);
    start(&session).await;
    session.delete().await.expect(200);
    assert_eq!(runtime.of(&session.id).await, []);
}

/// A sandbox that is removed by hand is said to be gone, by the next command or before, and another can be started.
async fn removed_by_hand(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session = driver(&fixture).await;
    for round in 1..=2 {
        let id = start(&session).await;
        runtime.remove(&runtime.container(&id).await).await;
        let (code, text) = exec(&session, "true").await.error();
        assert!(code == -32013 || (code == -32000 && text.starts_with("sandbox exec failed: ")), "{code} {text}");
        let errors = payloads(&session.events().await, "sandbox.error");
        assert_eq!(errors.len(), round, "told once: {errors:?}");
        let error = errors.last().unwrap();
        assert_eq!((&error["sandbox_id"], &error["phase"]), (&json!(id), &json!("exec")));
        assert_eq!(exec(&session, "true").await.error().0, -32013);
    }
    // Nobody runs a command: it is noticed all the same.
    let id = start(&session).await;
    runtime.remove(&runtime.container(&id).await).await;
    session.until("the third error", |events| payloads(events, "sandbox.error").len() == 3).await;
}

/// A container of this deployment that no row names is removed; another deployment's is left alone.
async fn orphans(runtime: Runtime) {
    let fixture = runtime.plan().start().await;
    let session = driver(&fixture).await;
    let id = start(&session).await;
    let real = runtime.container(&id).await;
    let mut made = Vec::new();
    for (n, deployment) in [None, Some("another-deployment")].into_iter().enumerate() {
        let forged = format!("{}dea{n}", &id[..id.len() - 4]);
        runtime.forge(&real, &id, &forged, deployment).await;
        made.push(forged);
    }
    runtime.until(&session.id, 2, Duration::from_secs(60)).await;
    runtime.container(&id).await;
    runtime.remove(&runtime.container(&made[1]).await).await;
    assert_eq!(super::sh(&session, "echo on").await, "on\n");
    session.delete().await.expect(200);
    assert_eq!(runtime.of(&session.id).await, []);
}

/// A registry that does not answer holds up nothing but its own images.
#[tokio::test]
async fn a_registry_that_hangs() {
    let mut fixture = Runtime::docker().plan().start().await;
    let tool = launch_tool(&[("quick", "echo done", "stdin", None)]);
    let session = fixture.driver_with(json!({"subagent_tools": [tool]})).await;
    let registry = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = registry.local_addr().unwrap().port();
    // It takes connections, says nothing, and keeps them.
    let (asked, mut was_asked) = tokio::sync::watch::channel(0);
    let serving = tokio::spawn(async move {
        let mut all = Vec::new();
        while let Ok((connection, _)) = registry.accept().await {
            all.push(connection);
            asked.send_modify(|count| *count += 1);
        }
    });
    let images: Vec<String> = (0..3).map(|n| format!("127.0.0.1:{port}/slow/image{n}:1")).collect();
    let mut names = vec![IMAGE.to_owned()];
    names.extend(images);
    let profile = json!({"name": "slow", "primary_provider": "main", "available_sandboxes": names});
    fixture.admin.profile(&profile).await;
    poll::within("the registry is asked", was_asked.wait_for(|count| *count > 0)).await.unwrap();
    let input = json!({"harness": "quick", "model": "m", "prompt": "p"});
    for n in 0..2 {
        let began = std::time::Instant::now();
        fixture.provider.push(Answer::tools(&[("tu_1", "launch_subagent", input.clone())]));
        session.send(format!("launch {n}")).await.text();
        session
            .until("the subagent's end", |events: &[Value]| payloads(events, "subagent.completed").len() == n + 1)
            .await;
        let took = began.elapsed();
        assert!(took < Duration::from_secs(12), "{n}: {took:?}");
    }
    // Nor does the node's end wait for it.
    let began = std::time::Instant::now();
    fixture.server.terminate();
    assert!(fixture.server.ended().await.success());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    serving.abort();
}
