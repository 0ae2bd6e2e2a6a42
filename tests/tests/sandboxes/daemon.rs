//! A Docker daemon that hangs, or dies and comes back.

use super::{Daemon, EXEC, START, STOP, exec, payloads, plan, sh, start};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tests::client::Session;
use tests::docker::{Dockerd, IMAGE};
use tests::fixture::Fixture;
use tests::poll;

/// Everything that is asked of a stopped daemon is answered in this time.
const BOUNDED: Duration = Duration::from_secs(60);

async fn set_up(daemon: &Dockerd) -> Fixture {
    plan().env("DOCKER_HOST", &daemon.host()).env("BAE_SANDBOX_EXEC_TIMEOUT", "5").start().await
}

/// The terminal frame of a call that may take longer than usual, and how long it took.
async fn slow(session: &Session, method: &str, params: Value) -> (Value, Duration) {
    let began = Instant::now();
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let request = session.api().request("POST", &session.path("/rpc")).body(request.to_string());
    let request = request.header("authorization", format!("Bearer {}", session.key));
    let answer = async { request.send().await.expect("an answer").text().await.expect("a body") };
    let text =
        tokio::time::timeout(BOUNDED, answer).await.unwrap_or_else(|_| panic!("{method}: not within {BOUNDED:?}"));
    (serde_json::from_str(text.trim()).expect("a frame"), began.elapsed())
}

/// It hangs for 20 s while a sandbox starts, a command begins, a sandbox is stopped and a session is closed.
#[tokio::test]
async fn stopped_for_twenty_seconds() {
    let daemon = Dockerd::start(&[]);
    let fixture = set_up(&daemon).await;
    let containers = Daemon::at(&daemon.host());
    let [starting, running, stopping, closing] =
        [fixture.driver().await, fixture.driver().await, fixture.driver().await, fixture.driver().await];
    for session in [&running, &stopping, &closing] {
        start(session).await;
    }
    daemon.signal("STOP");
    let hang = async {
        // The fault itself.
        tokio::time::sleep(Duration::from_secs(20)).await;
        daemon.signal("CONT");
    };
    let close = async {
        let began = Instant::now();
        let request = closing.api().request("DELETE", &closing.path(""));
        let request = request.header("authorization", format!("Bearer {}", closing.key));
        let answer = tokio::time::timeout(BOUNDED, request.send()).await.expect("in time").expect("an answer");
        (answer.status().as_u16(), began.elapsed())
    };
    let (started, ran, stopped, closed, ()) = tokio::join!(
        slow(&starting, START, json!({"image": IMAGE})),
        slow(&running, EXEC, json!({"command": "echo ran"})),
        slow(&stopping, STOP, json!({})),
        close,
        hang
    );
    println!("started {started:?}, ran {ran:?}, stopped {stopped:?}, closed {closed:?}");
    assert_eq!(closed.0, 200);
    let code = |frame: &Value| frame["error"]["code"].clone();
    assert!(started.0["result"].is_object() || code(&started.0) == -32012, "{started:?}");
    assert!(ran.0["result"]["stdout"] == "ran\n" || code(&ran.0) == -32000, "{ran:?}");
    assert!(stopped.0["result"]["stopped"] == true || code(&stopped.0) == -32000, "{stopped:?}");
    containers.until(&closing.id, 0, Duration::from_secs(90)).await;
    containers.until(&stopping.id, 0, Duration::from_secs(90)).await;
    let count = usize::from(started.0["result"].is_object());
    containers.until(&starting.id, count, Duration::from_secs(90)).await;
    // Everything goes on.
    if count == 0 {
        start(&starting).await;
    }
    start(&stopping).await;
    for session in [&starting, &running, &stopping] {
        assert_eq!(sh(session, "echo on").await, "on\n");
        session.delete().await.expect(200);
        assert_eq!(containers.of(&session.id).await, []);
    }
}

/// It dies with its containers and comes back: what ran is gone and said to be, and starts again.
#[tokio::test]
async fn killed_and_back() {
    let mut daemon = Dockerd::start(&[]);
    let fixture = set_up(&daemon).await;
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
        assert_eq!(Daemon::at(&daemon.host()).of(&session.id).await, []);
    }
}
