//! The queue of a session: the order of calls, what waiting callers get, and pauses while others wait (D5, D6, S7, S9,
//! S13, F7).

use serde_json::json;
use tests::client::{of_type, types};
use tests::fixture::{Fixture, Plan};
use tests::history::assert_all_paired;
use tests::poll::{DEADLINE, until};
use tests::provider::Answer;

#[tokio::test]
async fn calls_are_served_in_order_and_wait_in_silence() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    let mut held = fixture.provider.hold(Answer::text("0"));
    fixture.provider.script((1..=6).map(|n| Answer::text(&n.to_string())));
    let running = session.start_send("0").await;
    held.arrived().await;
    let mut waiting = Vec::new();
    for number in 1..=6 {
        let client = if number % 2 == 0 { &session } else { &second };
        waiting.push(client.start_send(number.to_string()).await);
    }
    // Another request is answered meanwhile, and the waiting callers get no byte.
    session.rpc("session.reportLocalSandbox", json!({"state": "running", "image": "x"})).await.result();
    assert!(waiting.iter_mut().all(tests::client::Frames::is_silent));
    held.release();
    assert_eq!(running.finish().await.text(), "0");
    for (index, frames) in waiting.into_iter().enumerate() {
        let outcome = frames.finish().await;
        assert_eq!(outcome.text(), (index + 1).to_string());
        assert_eq!(outcome.types().len(), 4, "exactly its own events: {:?}", outcome.types());
    }
    assert_eq!(session.said().await, ["0", "1", "2", "3", "4", "5", "6"]);
    assert_all_paired(&fixture.provider);
}

/// D5: a queued message whose client has left is not recorded.
#[tokio::test]
async fn a_waiting_client_leaves() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut held = fixture.provider.hold(Answer::text("a"));
    let running = session.start_send("first").await;
    held.arrived().await;
    let second = fixture.second(&session).await;
    drop(second.start_send("gone").await);
    let stays = second.start_send("stays").await;
    held.release();
    running.finish().await;
    assert_eq!(stays.finish().await.text(), "ok");
    assert_eq!(session.said().await, ["first", "stays"]);
    assert_all_paired(&fixture.provider);
}

/// D6: a queued call runs when the pause before it expires, although no other request comes.
#[tokio::test]
async fn the_deadline_wakes_the_next() {
    let fixture = Plan::default().env("BAE_TURN_TIMEOUT", "1").start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    let mut held = fixture.provider.hold(Answer::tools(&[("tu_1", "clock", json!({}))]));
    let running = session.start_send("pause").await;
    held.arrived().await;
    let next = second.start_send("mine").await;
    let after = session.start_send("and the owner's plain one, which waited before the pause began").await;
    held.release();
    running.finish().await;
    // While a turn is paused, its owner's messages go first, so this one gives the pause up.
    assert_eq!(after.finish().await.text(), "ok");
    assert_eq!(next.finish().await.text(), "ok");

    fixture.provider.push(Answer::tools(&[("tu_2", "clock", json!({}))]));
    session.send("pause again").await;
    let outcome = second.send("mine again").await;
    assert_eq!(outcome.text(), "ok");
    assert_eq!(of_type(&outcome.events(), "session.error")[0]["payload"]["reason"], "driver_turn_abandoned");
    assert_all_paired(&fixture.provider);
}

/// S7: the only caller that waited for a pause to expire has left, so the owner's answer is still accepted afterwards.
#[tokio::test]
async fn an_expired_pause_is_not_retired_for_nobody() {
    let fixture = Plan::default().env("BAE_TURN_TIMEOUT", "1").start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
    session.send("pause").await;
    drop(second.start_send("never mind").await);
    // A server that retires a pause for nobody does so soon after the deadline, so the pause is over for some time
    // here.
    let database = fixture.database().await;
    until(DEADLINE, "the time after the pause", async || match database.pause_left(&session.id).await {
        left @ -300.. => Err(left),
        _ => Ok(()),
    })
    .await;
    let outcome = session.answer(&[("tu_1", "late, but in time")]).await;
    assert_eq!(outcome.text(), "ok");
    assert!(of_type(&session.events().await, "session.error").is_empty());
    assert_eq!(session.said().await.len(), 2);
}

/// S9: a client leaves just when its call is claimed. The call is then either not recorded or run to its end.
#[tokio::test]
async fn leaving_in_the_moment_of_the_claim() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    for round in 0..20u64 {
        let mut held = fixture.provider.hold(Answer::text("a"));
        let running = session.start_send("first").await;
        held.arrived().await;
        let leaving = second.start_send(format!("leaving {round}")).await;
        held.release();
        if round % 2 == 0 {
            running.finish().await;
        } else {
            tokio::task::yield_now().await;
        }
        drop(leaving);
    }
    assert_eq!(session.send("last").await.text(), "ok");
    let events = session.events().await;
    let sent = of_type(&events, "client.message.send").len();
    assert_eq!(of_type(&events, "server.message.send").len(), sent, "every recorded message was answered");
    assert_eq!(fixture.provider.requests().len(), sent, "and none twice");
    assert_all_paired(&fixture.provider);
}

/// S13: a turn pauses while compactions and messages wait. The compactions are refused at once, the messages go on
/// waiting.
#[tokio::test]
async fn a_pause_answers_waiting_compacts() {
    let fixture = Plan::default().env("BAE_TURN_TIMEOUT", "600").start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    let mut held = fixture.provider.hold(Answer::tools(&[("tu_1", "clock", json!({}))]));
    let running = session.start_send("pause").await;
    held.arrived().await;
    let mut calls = Vec::new();
    for index in 0..3 {
        calls.push((
            second.start("session.compact", json!({})).await,
            second.start_send(format!("message {index}")).await,
        ));
    }
    held.release();
    running.finish().await;
    let mut messages = Vec::new();
    for (compact, message) in calls {
        let (code, text) = compact.finish().await.error();
        assert_eq!((code, text.as_str()), (-32020, "turn in progress: resolve the paused turn before compacting"));
        messages.push(message);
    }
    assert!(messages.iter_mut().all(tests::client::Frames::is_silent));
    assert_eq!(session.answer(&[("tu_1", "now")]).await.text(), "ok");
    for message in messages {
        assert_eq!(message.finish().await.text(), "ok");
    }
    let said = session.said().await;
    assert_eq!(said[2..], ["message 0", "message 1", "message 2"]);
    assert_all_paired(&fixture.provider);
}

/// A compaction waits for a running turn like a message, and a message for a compaction.
#[tokio::test]
async fn compactions_take_their_place_in_the_queue() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    let mut held = fixture.provider.hold(Answer::text("a"));
    let running = session.start_send("first").await;
    held.arrived().await;
    let mut compact = second.start("session.compact", json!({})).await;
    let message = session.start_send("after").await;
    assert!(compact.is_silent());
    held.release();
    running.finish().await;
    assert_eq!(compact.finish().await.result()["event_type"], "session.compaction.completed");
    assert_eq!(message.finish().await.text(), "ok");
    let order: Vec<String> = session
        .types()
        .await
        .into_iter()
        .filter(|t| t.starts_with("session.comp") || t.starts_with("client."))
        .collect();
    assert_eq!(
        order,
        ["client.message.send", "session.compaction.started", "session.compaction.completed", "client.message.send"]
    );
}

/// F7: reports, joins and registrations work while a turn runs, and do not disturb it.
#[tokio::test]
async fn others_write_beside_a_turn() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut held = fixture.provider.hold(Answer::text("undisturbed"));
    let running = session.start_send("work").await;
    held.arrived().await;
    let writers = (0..20).map(|number| {
        let (fixture, session) = (&fixture, &session);
        async move {
            if number % 5 == 0 {
                fixture.second(session).await;
            }
            for count in 0..5 {
                let report = json!({"state": "running", "image": format!("{number}-{count}")});
                session.rpc("session.reportLocalSandbox", report).await.result();
            }
        }
    });
    futures_util::future::join_all(writers).await;
    held.release();
    let outcome = running.finish().await;
    assert_eq!(outcome.text(), "undisturbed");
    assert_eq!(
        outcome.types(),
        ["client.message.send", "provider.request", "provider.response", "server.message.send"]
    );
    assert_eq!(types(&outcome.live()), ["provider.request", "provider.response", "server.message.send"]);
    let events = session.events().await;
    assert_eq!(of_type(&events, "session.sandbox.running").len(), 100);
    assert_eq!(of_type(&events, "session.join").len(), 4);
}

/// I8: a session's queue is bounded. The call that is too many is refused at once, and the others keep their places.
#[tokio::test]
async fn a_full_queue() {
    let fixture = Plan::default().env("BAE_MAX_QUEUED_CALLS", "3").start().await;
    let session = fixture.driver().await;
    let mut held = fixture.provider.hold(Answer::text("a"));
    let running = session.start_send("running").await;
    held.arrived().await;
    let mut waiting = Vec::new();
    for number in 0..3 {
        waiting.push(session.start_send(format!("waiting {number}")).await);
    }
    assert_eq!(session.send("one too many").await.error(), (-32000, "too many queued calls".to_owned()));
    assert!(waiting.iter_mut().all(tests::client::Frames::is_silent));
    held.release();
    running.finish().await;
    for frames in waiting {
        assert_eq!(frames.finish().await.text(), "ok");
    }
    assert_eq!(session.said().await, ["running", "waiting 0", "waiting 1", "waiting 2"]);
}
