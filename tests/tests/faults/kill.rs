//! F3, F4, D8, S12: the process is killed at every step of a turn and started again with the same data.

use serde_json::{Value, json};
use tests::client::{Session, of_type, types};
use tests::fixture::{Fixture, Plan};
use tests::history::assert_all_paired;
use tests::mcp::{Kind, Mcp, Outcome};
use tests::provider::Answer;

fn last(types: &[String]) -> &str {
    types.last().map_or("", String::as_str)
}

/// The type of the log's last event, read from the database while no server runs.
async fn last_recorded(fixture: &Fixture, session: &Session) -> String {
    last(&fixture.database().await.types(&session.id).await).to_owned()
}

/// The session serves the next caller.
async fn serves_the_next(session: &Session) {
    assert_eq!(session.send("next").await.text(), "ok");
}

#[tokio::test]
async fn before_the_message_is_recorded() {
    let mut fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut held = fixture.provider.hold(Answer::text("first"));
    let running = session.start_send("first").await;
    held.arrived().await;
    // The second call is accepted and waits, so it is not in the log.
    let second = fixture.second(&session).await;
    let mut waiting = second.start_send("second").await;
    assert!(waiting.is_silent());
    fixture.server.kill9();
    assert_eq!(last_recorded(&fixture, &session).await, "session.driver.register");
    fixture.server.restart().await;
    drop((running, waiting));
    // The turn that was running is carried on without a client. The call that was not recorded never runs.
    session.until_last("server.message.send").await;
    serves_the_next(&second).await;
    let events = session.events().await;
    let said: Vec<&Value> = of_type(&events, "client.message.send").iter().map(|e| &e["payload"]["content"]).collect();
    assert_eq!(said, ["first", "next"]);
    assert_all_paired(&fixture.provider);
}

#[tokio::test]
async fn during_the_provider_call() {
    let mut fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut held = fixture.provider.hold(Answer::text("never sent"));
    let _running = session.start_send("hello").await;
    held.arrived().await;
    fixture.server.kill9();
    assert_eq!(last_recorded(&fixture, &session).await, "provider.request");
    fixture.server.restart().await;
    // I6: the turn ends although no client waits, and the request that is recorded is sent again.
    let events = session.until_last("server.message.send").await;
    assert_eq!(
        types(&events)[2..],
        ["client.message.send", "provider.request", "provider.response", "server.message.send"]
    );
    assert_eq!(fixture.provider.requests().len(), 2);
    assert_eq!(fixture.provider.requests()[0].body, fixture.provider.requests()[1].body, "the same request again");
    serves_the_next(&session).await;
    assert_all_paired(&fixture.provider);
}

#[tokio::test]
async fn between_a_tools_request_and_response() {
    for kind in [Kind::Http, Kind::Sse, Kind::Stdio] {
        let mcp = Mcp::start("files", kind, &["ls"]).await;
        let mut fixture = Plan::default().mcp(&mcp).start().await;
        let session = fixture.driver().await;
        fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({"n": 1})), ("tu_2", "ls", json!({"n": 2}))]));
        let mut held = mcp.hold(Outcome::Text("never sent".to_owned()));
        let _running = session.start_send("hello").await;
        held.arrived().await;
        fixture.server.kill9();
        assert_eq!(last_recorded(&fixture, &session).await, "mcp.request", "{kind:?}");
        fixture.server.restart().await;
        let events = session.until_last("server.message.send").await;
        // The outcome of the first tool is unknown, so it is not run again. The second had not begun, so it runs.
        let calls: Vec<Value> = mcp.calls().iter().map(|call| call["arguments"]["n"].clone()).collect();
        assert_eq!(calls, [1, 2], "{kind:?}");
        let responses = of_type(&events, "mcp.response");
        assert_eq!(responses.iter().map(|e| e["payload"]["ok"] == true).collect::<Vec<_>>(), [false, true], "{kind:?}");
        let results = of_type(&events, "tool.result");
        assert_eq!(
            results.iter().map(|e| e["payload"]["is_error"] == true).collect::<Vec<_>>(),
            [true, false],
            "{kind:?}"
        );
        assert!(results[0]["payload"]["content"].to_string().contains("unknown"), "{}", results[0]);
        assert_eq!(fixture.provider.requests().len(), 2);
        assert_all_paired(&fixture.provider);
        serves_the_next(&session).await;
    }
}

/// The answer is in the log, but the terminal frame waits for an automatic compaction.
#[tokio::test]
async fn after_the_answer_before_the_terminal_frame() {
    let mut fixture = Fixture::start().await;
    let session = fixture.driver_with(json!({"compaction": {"mode": "auto", "size": 1000}})).await;
    fixture.provider.push(Answer::text("the answer").usage(2000, 0));
    let mut held = fixture.provider.hold(Answer::text("never sent"));
    let mut running = session.start_send("hello").await;
    held.arrived().await;
    running.until_type("session.compaction.started").await;
    fixture.server.kill9();
    let recorded = fixture.database().await.types(&session.id).await;
    assert_eq!(last(&recorded), "provider.request");
    assert!(recorded.contains(&"server.message.send".to_owned()), "{recorded:?}");
    fixture.provider.otherwise(Answer::text("a summary"));
    fixture.server.restart().await;
    let events = session.until_last("session.compaction.completed").await;
    assert_eq!(of_type(&events, "session.compaction.started").len(), 1, "{:?}", types(&events));
    fixture.provider.otherwise(Answer::text("ok"));
    serves_the_next(&session).await;
    assert_all_paired(&fixture.provider);
}

#[tokio::test]
async fn during_a_manual_compaction() {
    let mut fixture = Fixture::start().await;
    let session = fixture.driver().await;
    session.send("hello").await.text();
    let mut held = fixture.provider.hold(Answer::text("never sent"));
    let _running = session.start("session.compact", json!({})).await;
    held.arrived().await;
    fixture.server.kill9();
    assert_eq!(last_recorded(&fixture, &session).await, "provider.request");
    fixture.server.restart().await;
    let events = session.until_last("session.compaction.completed").await;
    assert_eq!(of_type(&events, "session.compaction.started").len(), 1);
    serves_the_next(&session).await;
    assert_all_paired(&fixture.provider);
}

/// D8: a pause of a round with tools of both kinds survives a restart: the results of the server's tools, the MCP
/// tools, the pause's owner and its deadline.
#[tokio::test]
async fn while_a_mixed_turn_is_paused() {
    let mcp = Mcp::start("files", Kind::Stdio, &["ls"]).await;
    let mut fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    mcp.push(Outcome::Text("the server's own result".to_owned()));
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({})), ("tu_2", "ls", json!({}))]));
    session.send("pause").await;
    fixture.server.kill9();
    assert_eq!(last_recorded(&fixture, &session).await, "server.message.send");
    fixture.server.restart().await;
    fixture.provider.push(Answer::tools(&[("tu_3", "ls", json!({}))]));
    assert_eq!(session.answer(&[("tu_1", "the client's result")]).await.text(), "ok");
    let sent = fixture.provider.requests()[1].json();
    let merged = sent["messages"][2]["content"].clone();
    assert_eq!((&merged[0]["tool_use_id"], &merged[1]["tool_use_id"]), (&json!("tu_1"), &json!("tu_2")));
    assert!(merged[1].to_string().contains("the server's own result"), "{merged}");
    assert!(sent["tools"].to_string().contains("mock tool ls"), "the MCP tools are offered again: {}", sent["tools"]);
    assert_eq!(mcp.calls().len(), 2, "and can be called");
    assert_all_paired(&fixture.provider);
}

/// A pause expires although the server was restarted meanwhile, because its deadline is stored.
#[tokio::test]
async fn while_a_pause_runs_out() {
    let mut fixture = Plan::default().env("BAE_TURN_TIMEOUT", "1").start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
    session.send("pause").await;
    fixture.server.crash().await;
    let outcome = second.send("mine").await;
    assert_eq!(outcome.text(), "ok");
    assert_eq!(of_type(&outcome.events(), "session.error")[0]["payload"]["reason"], "driver_turn_abandoned");
    assert_all_paired(&fixture.provider);
}

/// F4: what a takeover produces belongs to the interrupted call, and the next call has a result of its own.
#[tokio::test]
async fn output_belongs_to_its_own_turn() {
    let mut fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    let mut held = fixture.provider.hold(Answer::text("never sent"));
    let _running = session.start_once("interrupted", "key-1").await;
    held.arrived().await;
    fixture.server.kill9();
    let mut resumed = fixture.provider.hold(Answer::text("first"));
    fixture.provider.push(Answer::text("second"));
    fixture.server.restart().await;
    resumed.arrived().await;
    let mut queued = second.start_send("another").await;
    assert!(queued.is_silent(), "it waits for the turn that was taken over");
    resumed.release();
    let other = queued.finish().await;
    assert_eq!((other.text().as_str(), other.types().len()), ("second", 4));
    let own = session.start_once("interrupted", "key-1").await.finish().await;
    assert_eq!(own.text(), "first");
    assert_eq!(own.types(), ["client.message.send", "provider.request", "provider.response", "server.message.send"]);
    let shared = own.events().iter().any(|event| other.events().contains(event));
    assert!(!shared);
}

/// S12: after five takeovers without progress the turn ends with an error.
#[tokio::test]
async fn a_turn_that_kills_its_server() {
    let mut fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut helds: Vec<_> = (0..6).map(|_| fixture.provider.hold(Answer::text("deadly"))).collect();
    let _running = session.start_once("deadly", "key-1").await;
    for (crash, held) in helds.iter_mut().take(5).enumerate() {
        held.arrived().await;
        fixture.server.kill9();
        assert_eq!(last_recorded(&fixture, &session).await, "provider.request", "crash {crash}");
        fixture.server.restart().await;
    }
    let events = session.until_last("session.error").await;
    assert_eq!(events.last().unwrap()["payload"], json!({"reason": "turn_recovery_failed", "takeovers": 5}));
    assert_eq!(fixture.admin.state(&session.id).await, "error");
    let mut t = tests::transcript::Transcript::default().replace(&fixture.provider.url(), "[provider]");
    t.value("the log", &json!(events[2..]));
    t.note("the call, sent again, is answered like that of an exhausted provider");
    let outcome = session.start_once("deadly", "key-1").await.finish().await;
    t.frames(&outcome);
    assert_eq!(outcome.result()["message"]["content"].as_array().unwrap().len(), 1);
    crate::golden::golden("turn_recovery_failed", t);
    // Another session of the same server still works.
    drop(helds);
    assert_eq!(fixture.driver().await.send("hello").await.text(), "deadly");
}

/// F5: a turn of many rounds that makes progress between restarts is completed, however many there are.
#[tokio::test]
async fn progress_resets_the_count() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let mut fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    let answer = |round: usize| Answer::tools(&[(&format!("tu_{round}"), "ls", json!({"round": round}))]);
    let mut held = fixture.provider.hold(answer(0));
    let _running = session.start_send("work").await;
    for round in 0..7 {
        held.arrived().await;
        fixture.server.kill9();
        // After the restart the same request is sent again and is answered. The request of the next round is held back.
        fixture.provider.push(answer(round));
        held = fixture.provider.hold(answer(round + 1));
        fixture.server.restart().await;
    }
    held.arrived().await;
    fixture.server.kill9();
    fixture.server.restart().await;
    let events = session.until_last("server.message.send").await;
    assert_eq!(of_type(&events, "tool.result").len(), 7);
    assert_eq!(of_type(&events, "provider.request").len(), 8);
    assert_eq!(mcp.calls().len(), 7, "each tool ran once");
    assert_all_paired(&fixture.provider);
}

/// F6: after SIGTERM a running turn can finish within `BAE_SHUTDOWN_TIMEOUT`, and no new call is accepted.
#[tokio::test]
async fn a_drain_lets_turns_finish() {
    let mut fixture = Plan::default().env("BAE_SHUTDOWN_TIMEOUT", "15").start().await;
    let session = fixture.driver().await;
    let mut held = fixture.provider.hold(Answer::text("in time"));
    let running = session.start_send("hello").await;
    let subscription = session.subscribe(None).await;
    held.arrived().await;
    fixture.server.terminate();
    // Subscriptions end at once; the turn goes on.
    subscription.finish().await;
    held.release();
    assert_eq!(running.finish().await.text(), "in time");
    assert!(fixture.server.ended().await.success());
    fixture.server.restart().await;
    serves_the_next(&session).await;
}

/// A turn that takes longer than `BAE_SHUTDOWN_TIMEOUT` is given up and carried on after the next start.
#[tokio::test]
async fn a_drain_hands_the_rest_over() {
    let mut fixture = Plan::default().env("BAE_SHUTDOWN_TIMEOUT", "1").start().await;
    let session = fixture.driver().await;
    let mut held = fixture.provider.hold(Answer::text("never sent"));
    let _running = session.start_send("hello").await;
    held.arrived().await;
    fixture.server.terminate();
    assert!(fixture.server.ended().await.success());
    assert_eq!(last_recorded(&fixture, &session).await, "provider.request");
    fixture.server.restart().await;
    let events = session.until_last("server.message.send").await;
    assert_eq!(of_type(&events, "provider.request").len(), 1);
    serves_the_next(&session).await;
}
