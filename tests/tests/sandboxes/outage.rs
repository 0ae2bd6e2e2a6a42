//! A runtime that hangs, or dies and comes back, and pods that the cluster cannot start.

use super::{CARRIED_ON, EXEC, Runtime, START, STOP, exec, lifecycle_types, payloads, sh, start};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tests::client::Session;
use tests::docker::{Dockerd, IMAGE};
use tests::fixture::Fixture;
use tests::kubernetes::Cluster;
use tests::poll;

/// Everything that is asked of a stopped runtime is answered this long after it goes on, at the latest.
const BOUNDED: Duration = Duration::from_secs(40);

async fn set_up(runtime: &Runtime) -> Fixture {
    runtime.plan().env("BAE_SANDBOX_EXEC_TIMEOUT", "5").start().await
}

/// The terminal frame of a call that may take longer than usual, and how long it took.
async fn slow(session: &Session, method: &str, params: Value, limit: Duration) -> (Value, Duration) {
    let began = Instant::now();
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let request = session.api().request("POST", &session.path("/rpc")).body(request.to_string());
    let request = request.header("authorization", format!("Bearer {}", session.key));
    let answer = async { request.send().await.expect("an answer").text().await.expect("a body") };
    let text = tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| panic!("{method}: not within {limit:?}"));
    (serde_json::from_str(text.trim()).expect("a frame"), began.elapsed())
}

#[tokio::test]
async fn a_daemon_stopped_for_a_minute() {
    let daemon = Dockerd::start(&[]);
    stopped_for(Runtime::docker_at(&daemon.host()), Duration::from_secs(60), |signal| daemon.signal(signal)).await;
}

#[tokio::test]
async fn an_api_server_stopped_for_a_minute() {
    let cluster = Cluster::start();
    let runtime = Runtime::kubernetes_of(&cluster.kubeconfig()).await;
    stopped_for(runtime, Duration::from_secs(60), |signal| cluster.signal("kube-apiserver", signal)).await;
}

/// It hangs while a sandbox starts, a command begins, a sandbox is stopped and a session is closed.
async fn stopped_for(runtime: Runtime, time: Duration, signal: impl Fn(&str)) {
    let fixture = set_up(&runtime).await;
    let limit = time + BOUNDED;
    let [starting, running, stopping, closing] =
        [fixture.driver().await, fixture.driver().await, fixture.driver().await, fixture.driver().await];
    for session in [&running, &stopping, &closing] {
        start(session).await;
    }
    signal("STOP");
    let hang = async {
        // The fault itself.
        tokio::time::sleep(time).await;
        signal("CONT");
    };
    let close = async {
        let began = Instant::now();
        let request = closing.api().request("DELETE", &closing.path(""));
        let request = request.header("authorization", format!("Bearer {}", closing.key));
        let answer = tokio::time::timeout(limit, request.send()).await.expect("in time").expect("an answer");
        (answer.status().as_u16(), began.elapsed())
    };
    let (started, ran, stopped, closed, ()) = tokio::join!(
        slow(&starting, START, json!({"image": IMAGE}), limit),
        slow(&running, EXEC, json!({"command": "echo ran"}), limit),
        slow(&stopping, STOP, json!({}), limit),
        close,
        hang
    );
    println!("started {started:?}, ran {ran:?}, stopped {stopped:?}, closed {closed:?}");
    assert_eq!(closed.0, 200);
    let code = |frame: &Value| frame["error"]["code"].clone();
    assert!(started.0["result"].is_object() || code(&started.0) == -32012, "{started:?}");
    assert!(ran.0["result"]["stdout"] == "ran\n" || code(&ran.0) == -32000, "{ran:?}");
    assert!(stopped.0["result"]["stopped"] == true || code(&stopped.0) == -32000, "{stopped:?}");
    runtime.until(&closing.id, 0, Duration::from_secs(90)).await;
    runtime.until(&stopping.id, 0, Duration::from_secs(90)).await;
    let count = usize::from(started.0["result"].is_object());
    runtime.until(&starting.id, count, Duration::from_secs(90)).await;
    // Everything goes on.
    if count == 0 {
        start(&starting).await;
    }
    start(&stopping).await;
    for session in [&starting, &running, &stopping] {
        assert_eq!(sh(session, "echo on").await, "on\n");
        session.delete().await.expect(200);
        assert_eq!(runtime.of(&session.id).await, []);
    }
}

/// It dies with its containers and comes back: what ran is gone and said to be, and starts again.
#[tokio::test]
async fn killed_and_back() {
    let mut daemon = Dockerd::start(&[]);
    let runtime = Runtime::docker_at(&daemon.host());
    let fixture = set_up(&runtime).await;
    let session = fixture.driver().await;
    let id = start(&session).await;
    daemon.kill();
    let (code, text) = exec(&session, "true").await.error();
    assert!(code == -32000 && text.starts_with("sandbox exec failed: "), "{code} {text}");
    let other = fixture.driver().await;
    let (code, text) = other.rpc(START, json!({"image": IMAGE})).await.error();
    assert!(code == -32012 && text.starts_with("sandbox_start_failed: "), "{code} {text}");
    daemon.run();
    // A command, or the reconciler, finds out that it is gone; then another can be started.
    poll::until(poll::DEADLINE, "the end of what ran", async || {
        let (code, text) = exec(&session, "true").await.error();
        if code == -32013 { Ok(()) } else { Err(text) }
    })
    .await;
    let errors = payloads(&session.events().await, "sandbox.error");
    let last = errors.last().expect("an event that tells of it");
    assert_eq!((&last["sandbox_id"], &last["phase"]), (&json!(id), &json!("exec")), "{errors:?}");
    for session in [&session, &other] {
        start(session).await;
        assert_eq!(sh(session, "echo works").await, "works\n");
        session.delete().await.expect(200);
        assert_eq!(runtime.of(&session.id).await, []);
    }
}

/// A pod that cannot be removed, as that of a machine that is lost: nobody waits for it, and it goes when it can.
#[tokio::test]
async fn a_pod_that_stays() {
    let runtime = Runtime::kubernetes().await;
    let fixture = runtime.plan().start().await;
    let [one, other] = [fixture.driver().await, fixture.driver().await];
    let id = start(&one).await;
    let pod = runtime.container(&id).await;
    runtime.hold_back(&pod, true).await;
    let began = Instant::now();
    // Its processes have a second to end.
    let (code, text) = poll::until(poll::DEADLINE, "a command is refused", async || {
        let outcome = exec(&one, "true").await;
        let frame = outcome.frames.last().expect("a frame");
        if frame["error"].is_object() { Ok(outcome.error()) } else { Err(frame.clone()) }
    })
    .await;
    assert!(code == -32013 || (code == -32000 && text.starts_with("sandbox exec failed: ")), "{code} {text}");
    let again = start(&one).await;
    assert_eq!(sh(&one, "echo works").await, "works\n");
    // The reconciler goes on as well.
    let lost = start(&other).await;
    runtime.remove(&runtime.container(&lost).await).await;
    other.until("the end of the other one", |events| payloads(events, "sandbox.error").len() == 1).await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert_eq!(payloads(&one.events().await, "sandbox.error").len(), 1);
    assert_eq!(runtime.of(&one.id).await.len(), 2);
    runtime.hold_back(&pod, false).await;
    runtime.until(&one.id, 1, CARRIED_ON).await;
    runtime.container(&again).await;
    one.delete().await.expect(200);
    assert_eq!(runtime.of(&one.id).await, []);
}

/// A pod that no node takes, for it wants a node that there is not, or more than there is.
#[tokio::test]
async fn pods_that_no_node_takes() {
    let runtime = Runtime::kubernetes().await;
    for (setting, value) in [("BAE_SANDBOX_NODE_SELECTOR", "bae.test/pool=none"), ("BAE_SANDBOX_RUNTIME_CLASS", "none")]
    {
        let plan = runtime.plan().env("BAE_SANDBOX_START_TIMEOUT", "3").env(setting, value);
        let fixture = plan.start().await;
        let session = fixture.driver().await;
        let (frame, took) = slow(&session, START, json!({"image": IMAGE}), BOUNDED).await;
        let text = frame["error"]["message"].as_str().unwrap_or_default();
        let detail = text.strip_prefix("sandbox_start_failed: ").unwrap_or_else(|| panic!("{frame}"));
        let why = if setting.ends_with("SELECTOR") { "no node can take it" } else { "RuntimeClass" };
        assert!(frame["error"]["code"] == -32012 && detail.contains(why), "{frame}");
        assert!(took < Duration::from_secs(20), "{took:?}");
        let events = session.events().await;
        assert_eq!(lifecycle_types(&events), ["sandbox.start", "sandbox.error"]);
        assert_eq!(payloads(&events, "sandbox.error")[0]["detail"], detail);
        assert_eq!(runtime.of(&session.id).await, []);
    }
}
