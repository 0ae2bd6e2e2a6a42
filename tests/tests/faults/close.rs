//! D7, S6: a session is closed, or a key is revoked, while calls run and wait.

use serde_json::json;
use tests::client::{of_type, types};
use tests::fixture::{Fixture, Plan};
use tests::mcp::{Kind, Mcp, Outcome};
use tests::provider::Answer;

/// D7: closing during a provider call ends the turn; nothing is logged after `session.close`.
#[tokio::test]
async fn during_a_provider_call() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    let mut held = fixture.provider.hold(Answer::text("too late"));
    let running = session.start_send("work").await;
    held.arrived().await;
    let queued = second.start_send("waiting").await;
    let compact = second.start("session.compact", json!({})).await;
    let watcher = session.subscribe(None).await;
    session.delete().await.expect(200);
    let closed = (-32000, "session is closed, not open".to_owned());
    assert_eq!(running.finish().await.error(), closed);
    assert_eq!(queued.finish().await.error(), closed);
    assert_eq!(compact.finish().await.error(), closed);
    assert_eq!(types(&watcher.finish().await.live()), ["session.close"]);
    held.release();
    assert_eq!(session.delete().await.problem(409, "session_closed"), "session is already closed");
    let report = json!({"state": "running", "image": "x"});
    assert_eq!(session.rpc("session.reportLocalSandbox", report).await.error(), closed);
    let events = session.events().await;
    assert_eq!(types(&events).last().unwrap(), "session.close");
    assert_eq!(of_type(&events, "session.close").len(), 1);
}

#[tokio::test]
async fn during_a_tool_call() {
    let mcp = Mcp::start("files", Kind::Stdio, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    let mut held = mcp.hold(Outcome::Text("too late".to_owned()));
    fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({}))]));
    let running = session.start_send("work").await;
    held.arrived().await;
    let children = || {
        let path = format!("/proc/{0}/task/{0}/children", fixture.server.pid());
        std::fs::read_to_string(path).map(|list| list.split_whitespace().count()).unwrap_or_default()
    };
    session.delete().await.expect(200);
    assert_eq!(running.finish().await.error(), (-32000, "session is closed, not open".to_owned()));
    assert_eq!(session.types().await.last().unwrap(), "session.close");
    // The session's MCP process ends too.
    tests::poll::until(tests::poll::DEADLINE, "the MCP process's end", async || match children() {
        0 => Ok(()),
        count => Err(count),
    })
    .await;
}

#[tokio::test]
async fn during_a_pause() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
    session.send("pause").await;
    let queued = second.start_send("waiting").await;
    second.delete().await.expect(200);
    let closed = (-32000, "session is closed, not open".to_owned());
    assert_eq!(queued.finish().await.error(), closed);
    assert_eq!(session.answer(&[("tu_1", "late")]).await.error(), closed);
    assert_eq!(session.types().await.last().unwrap(), "session.close");
}

/// Of two DELETEs at the same time one closes the session and the other is answered with a conflict.
#[tokio::test]
async fn twice_at_once() {
    let fixture = Fixture::start().await;
    for _ in 0..5 {
        let session = fixture.driver().await;
        let (one, two) = tokio::join!(session.delete(), session.delete());
        let mut statuses = [one.status, two.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409]);
        assert_eq!(of_type(&session.events().await, "session.close").len(), 1);
    }
}

/// A key is revoked while its turn runs: its streams and queued calls end at once, and the turn still ends in the log.
#[tokio::test]
async fn revoked_in_a_turn() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let key = fixture.admin.key("second", &fixture.profile).await;
    let second = fixture.api.join(&session.id, &key.secret, &json!({})).await;
    second.register().await;
    let mut held = fixture.provider.hold(Answer::text("unseen"));
    let running = second.start_send("work").await;
    held.arrived().await;
    let queued = second.start_send("dropped").await;
    let kept = session.start_send("kept").await;
    fixture.admin.revoke(&key).await;
    running.finish().await;
    queued.finish().await;
    held.release();
    assert_eq!(kept.finish().await.text(), "ok");
    let events = session.events().await;
    let said: Vec<_> =
        of_type(&events, "client.message.send").iter().map(|e| e["payload"]["content"].clone()).collect();
    assert_eq!(said, ["work", "kept"]);
    assert_eq!(of_type(&events, "server.message.send").len(), 2);
}

/// A pause counts as expired when the key of its owner is revoked.
#[tokio::test]
async fn revoked_in_a_pause() {
    let fixture = Plan::default().env("BAE_TURN_TIMEOUT", "600").start().await;
    let session = fixture.driver().await;
    let key = fixture.admin.key("second", &fixture.profile).await;
    let second = fixture.api.join(&session.id, &key.secret, &json!({"tools": [tests::fixture::clock()]})).await;
    second.register().await;
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
    second.send("pause").await;
    let waiting = session.start_send("next").await;
    fixture.admin.revoke(&key).await;
    let outcome = waiting.finish().await;
    assert_eq!(outcome.text(), "ok");
    assert_eq!(of_type(&outcome.events(), "session.error")[0]["payload"]["reason"], "driver_turn_abandoned");
    tests::history::assert_all_paired(&fixture.provider);
}

/// S6: stopping the running turn takes seconds. Meanwhile a queued call, a report and a second DELETE arrive, and then
/// the server is killed.
#[tokio::test]
async fn killed_while_closing() {
    let mcp = Mcp::start("files", Kind::StubbornStdio, &["ls"]).await;
    let mut fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({}))]));
    session.send("start the process").await.text();
    let mut held = fixture.provider.hold(Answer::text("too late"));
    let running = session.start_send("work").await;
    held.arrived().await;
    let queued = second.start_send("waiting").await;
    let deleting = tokio::spawn({
        let session = session.clone();
        async move {
            let request = session.api().request("DELETE", &session.path(""));
            request
                .header("authorization", format!("Bearer {}", session.key))
                .send()
                .await
                .map(|answer| answer.status().as_u16())
        }
    });
    let database = fixture.database().await;
    tests::poll::until(tests::poll::DEADLINE, "the mark of closing", async || {
        if database.is_closing(&session.id).await { Ok(()) } else { Err(session.types().await) }
    })
    .await;
    // From here on every request is told that the session is closed.
    let closed = (-32000, "session is closed, not open".to_owned());
    assert_eq!(running.finish().await.error(), closed);
    assert_eq!(queued.finish().await.error(), closed);
    let report = json!({"state": "running", "image": "x"});
    assert_eq!(session.rpc("session.reportLocalSandbox", report).await.error(), closed);
    assert_eq!(session.send("more").await.error(), closed);
    assert_eq!(session.delete().await.problem(409, "session_closed"), "session is already closed");
    assert!(database.is_closing(&session.id).await, "all this happened while it was closing");
    fixture.server.crash().await;
    assert!(deleting.await.unwrap().is_err(), "the first DELETE was cut");
    let events = session.until_last("session.close").await;
    assert_eq!(of_type(&events, "session.close").len(), 1);
    assert_eq!(events.last().unwrap()["payload"], json!({"reason": "client_close"}));
    assert_eq!(session.delete().await.problem(409, "session_closed"), "session is already closed");
    assert_eq!(fixture.admin.state(&session.id).await, "closed");
}
