//! Short schedules that would break a plausible design, with real nodes (S1, S6, S7, S8, S11).

use serde_json::{Value, json};
use std::time::Duration;
use tests::checker::{Accepted, Log};
use tests::client::{Outcome, Session};
use tests::cluster::{Cluster, Mode, Plan, TAKES, of_type, said};
use tests::history::assert_all_paired;
use tests::mcp::{Kind, Mcp, Outcome as McpOutcome};
use tests::poll;
use tests::provider::Answer;
use tokio::time::{Instant, sleep_until};

/// What callers of a closing session are told.
const CLOSED: &str = "session is closed, not open";

/// S1: the owner's connection breaks while its append waits for the session's row; it looks, finds nothing and appends
/// again; then the first statement gets the row. The events are in the log once, and nobody took over.
#[tokio::test]
async fn an_appends_connection_breaks_while_it_waits() {
    let cluster = Plan::default().proxied().start().await;
    let (session, owner) = cluster.owned_session().await;
    let asked = cluster.other(&[owner]);
    let mut held = cluster.provider.hold(Answer::text("once"));
    let running = cluster.at(&session, asked).start_send("hello").await;
    held.arrived().await;
    let before = cluster.log(&session).await;
    let lock = cluster.lock(&session).await;
    held.release();
    cluster.waiting_for_lock(1).await;
    // The first statement stays in its place before the row, whoever is gone.
    cluster.nodes[owner].postgres.as_ref().unwrap().hang_up();
    cluster.waiting_for_lock(2).await;
    assert_eq!(cluster.log(&session).await, before, "written past a lock");
    lock.release().await;
    assert_eq!(running.finish().await.text(), "once");
    cluster.waiting_for_lock(0).await;
    let log = cluster.check(&session).await;
    assert_eq!((log.epoch, log.head), (before.epoch, before.head + 2), "{:?}", log.types());
    assert_eq!(cluster.at(&session, owner).send("next").await.text(), "ok");
    assert_eq!(cluster.provider.requests().len(), 3);
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&["warm", "hello", "next"].map(Accepted::new)), []);
}

/// S6: the node that received a DELETE is killed while the owner takes its time to stop.
#[tokio::test]
async fn a_closing_node_dies_while_the_owner_stops() {
    closing(false).await;
}

/// S6: the owner is killed while it takes its time to stop for a DELETE on another node.
#[tokio::test]
async fn the_owner_dies_while_it_stops_for_a_closing() {
    closing(true).await;
}

/// A turn on node 1 is inside a call of an MCP server whose process does not want to end; node 2 receives the DELETE.
async fn closing(owner_dies: bool) {
    let mcp = Mcp::start("files", Kind::StubbornStdio, &["ls"]).await;
    let mut cluster = Plan::default().mcp(&mcp).start().await;
    let session = cluster.driver().await;
    assert!(mcp.processes().is_empty(), "only the owner keeps a process for the session");
    let mut subscription = cluster.at(&session, 0).subscribe(None).await;
    cluster.provider.push(Answer::tools(&[("tu_1", "ls", json!({}))]));
    let mut held = mcp.hold(McpOutcome::Text("never sent".to_owned()));
    let running = cluster.at(&session, 1).start_send("running").await;
    held.arrived().await;
    assert_eq!(cluster.owner(&session, 0).await, 1);
    let running = if owner_dies {
        // Its own client is gone with it.
        drop(running);
        None
    } else {
        Some(running)
    };
    let queued = cluster.at(&session, 0).start_send("queued").await;
    let at = cluster.at(&session, 2);
    let delete =
        at.api().request("DELETE", &session.path("")).header("authorization", format!("Bearer {}", session.key));
    let deleting = tokio::spawn(delete.send());
    cluster.until(&session, poll::DEADLINE, "the closing's mark", |log| log.state == "closing").await;
    // Everybody is told from here on, on every node.
    let report = json!({"state": "running", "image": "late"});
    let refused = cluster.at(&session, 0).rpc("session.reportLocalSandbox", report).await;
    assert_eq!(refused.error(), (-32000, CLOSED.to_owned()));
    assert_eq!(cluster.at(&session, 0).send("late").await.error(), (-32000, CLOSED.to_owned()));
    cluster.at(&session, 0).delete().await.problem(409, "session_closed");
    assert!(!mcp.processes().is_empty(), "it has stopped already");
    assert_eq!(cluster.log(&session).await.state, "closing", "it was over before the kill");
    let dies = if owner_dies { 1 } else { 2 };
    cluster.nodes[dies].server.kill9();
    if owner_dies {
        assert_eq!(deleting.await.unwrap().expect("an answer to the DELETE").status(), 200);
    } else {
        deleting.await.unwrap().expect_err("an answer of a dead node");
    }
    for frames in running.into_iter().chain([queued]) {
        assert_eq!(frames.finish().await.error(), (-32000, CLOSED.to_owned()));
    }
    cluster.until(&session, poll::DEADLINE, "the closing's end", |log| log.state == "closed").await;
    let closed = subscription.until_type("session.close").await;
    assert!(subscription.next().await.is_none(), "a subscription goes on after session.close");
    for node in [0, 3 - dies] {
        cluster.at(&session, node).delete().await.problem(409, "session_closed");
    }
    // Only the dead owner's, which nobody has told.
    ends(&mcp, usize::from(owner_dies)).await;
    mcp.hang_up();
    ends(&mcp, 0).await;
    let log = cluster.check(&session).await;
    assert_eq!(said(&log), ["running"]);
    assert_eq!(log.types().iter().filter(|kind| *kind == "session.close").count(), 1);
    assert_eq!(log.types().last().unwrap(), "session.close");
    assert!(!log.types().contains(&"session.sandbox.running".to_owned()));
    assert_eq!(log.compare_stream(&tests::client::ids(&closed)), []);
}

/// Waits until no more than so many of an MCP server's processes are left.
async fn ends(mcp: &Mcp, left: usize) {
    poll::until(poll::DEADLINE, "the end of an MCP server's processes", async || {
        let running = mcp.processes();
        if running.len() <= left { Ok(()) } else { Err(running) }
    })
    .await;
}

/// When a client acts, before or after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    Leaves,
    Answers,
}

/// S7: the answer to a pause reaches node 2 in the moment in which the pause expires on node 1, and the caller there
/// that would reclaim it leaves. The answer is taken, or the caller's turn has retired the pause; it is retired for
/// nobody else.
#[tokio::test]
async fn an_answer_meets_its_deadline() {
    let cluster = Plan::default().env("BAE_TURN_TIMEOUT", "1").start().await;
    let session = cluster.driver().await;
    let other = cluster.second(&session, 1).await;
    // Node 1 serves the session.
    cluster.at(&session, 1).send("warm").await.text();
    assert_eq!(cluster.owner(&session, 0).await, 1);
    let (mut taken, mut reclaimed) = (0, 0);
    for offset in [-400, -60, -25, -10, -4, 0, 4, 10, 25, 60] {
        for first in [First::Leaves, First::Answers] {
            let round = format!("{offset} {first:?}");
            let id = format!("tu {round}").replace(' ', "_");
            cluster.provider.push(Answer::tools(&[(&id, "clock", json!({}))]));
            cluster.at(&session, 0).send(format!("pause {round}")).await.result();
            let waiting = cluster.at(&other, 1).start_send(format!("reclaims {round}")).await;
            let left = cluster.pause_left(&session).await + offset;
            // The moment is the point here.
            sleep_until(Instant::now() + Duration::from_millis(u64::try_from(left).unwrap_or_default())).await;
            let answering = cluster.at(&session, 2);
            let answer = match first {
                First::Leaves => {
                    drop(waiting);
                    answering.answer(&[(&id, "noon")]).await
                }
                First::Answers => {
                    let answer = tokio::spawn(async move { answering.answer(&[(&id, "noon")]).await });
                    tokio::task::yield_now().await;
                    drop(waiting);
                    answer.await.unwrap()
                }
            };
            if was_taken(&cluster, &session, &round, &answer).await {
                taken += 1;
            } else {
                reclaimed += 1;
            }
            assert!(offset > -400 || reclaimed == 0, "{round}: retired before its time");
        }
    }
    println!("{taken} answers were taken, {reclaimed} pauses reclaimed");
    assert_eq!(cluster.at(&session, 0).send("last").await.text(), "ok");
    let log = cluster.check(&session).await;
    assert_eq!(of_type(&log, "session.error").len(), reclaimed, "retired for nobody");
    assert_all_paired(&cluster.provider);
}

/// Whether the answer of this round was taken. If not, the caller's turn has told why.
async fn was_taken(cluster: &Cluster, session: &Session, round: &str, answer: &Outcome) -> bool {
    let idle = |log: &Log| log.phase == "idle" && log.calls.iter().all(|call| call.last.is_some());
    let log = cluster.until(session, poll::DEADLINE, "the round's end", idle).await;
    assert_eq!(log.state, "open", "{round}: {:?}", log.types());
    let pause = format!("pause {round}");
    let paused = log.events.iter().position(|event| event.text() == Some(&pause)).expect("the pause");
    let later = &log.events[paused + 1..];
    let retired = later.iter().find(|event| event.kind == "session.error");
    let last = answer.frames.last().expect("a terminal frame");
    match retired {
        None => {
            assert_eq!(answer.text(), "ok", "{round}: the answer was not taken, and nobody retired the pause");
            true
        }
        Some(error) => {
            let reclaims = format!("reclaims {round}");
            let opened = later.iter().find(|event| event.text() == Some(&reclaims)).expect("the caller's message");
            assert_eq!(error.payload["reason"], "driver_turn_abandoned", "{round}");
            assert_eq!(error.call, opened.call, "{round}: retired by another call");
            let refused = last["error"]["message"].as_str().unwrap_or_else(|| panic!("{round}: {last}"));
            assert!(refused.starts_with("tool result merge invalid: no paused turn is awaiting"), "{round}: {refused}");
            false
        }
    }
}

/// S8: another key's compact, through a node that does not own the session, reclaims the expired pause of a mixed turn.
#[tokio::test]
async fn a_compact_reclaims_a_mixed_pause() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let cluster = Plan::default().mcp(&mcp).env("BAE_TURN_TIMEOUT", "1").start().await;
    let session = cluster.driver().await;
    let other = cluster.second(&session, 2).await;
    let mut subscription = cluster.at(&session, 0).subscribe(None).await;
    mcp.push(McpOutcome::Text("listed".to_owned()));
    cluster.provider.push(Answer::tools(&[
        ("tu_1", "clock", json!({"n": 1})),
        ("tu_2", "ls", json!({"n": 2})),
        ("tu_3", "clock", json!({"n": 3})),
    ]));
    cluster.at(&session, 1).send("pause").await.result();
    assert_eq!(cluster.owner(&session, 0).await, 1);
    assert_eq!(cluster.at(&other, 2).rpc("session.compact", json!({})).await.error().0, -32020);
    poll::until(poll::DEADLINE, "the pause's end", async || match cluster.pause_left(&session).await {
        left @ 1.. => Err(left),
        _ => Ok(()),
    })
    .await;
    cluster.provider.push(Answer::text("all that was said"));
    let compacted = cluster.at(&other, 2).rpc("session.compact", json!({})).await;
    assert_eq!(compacted.result()["event_type"], "session.compaction.completed", "{compacted:?}");
    assert_eq!(
        tests::client::types(&compacted.live()),
        [
            "session.error",
            "server.message.send",
            "tool.result",
            "tool.result",
            "session.compaction.started",
            "provider.request",
            "provider.response",
            "server.message.send",
            "server.message.send",
            "session.compaction.completed",
        ]
    );
    // The summary is asked for over a history in which the server's own result stands between the two abandoned ones.
    let asked = cluster.provider.last();
    let results: Vec<Value> = asked["messages"][2]["content"].as_array().expect("results").clone();
    let ids: Vec<&Value> = results.iter().map(|block| &block["tool_use_id"]).filter(|id| !id.is_null()).collect();
    assert_eq!(ids, ["tu_1", "tu_2", "tu_3"], "{asked}");
    assert!(results[1].to_string().contains("listed"), "{asked}");
    assert!(results[0]["is_error"] == true && results[2]["is_error"] == true, "{asked}");
    assert_all_paired(&cluster.provider);
    // The owner is too late, and is told so; then all goes on from the summary.
    let late = cluster.at(&session, 0).answer(&[("tu_1", "noon"), ("tu_3", "noon")]).await.error();
    assert_eq!(late.0, -32000, "{late:?}");
    assert_eq!(cluster.at(&session, 0).send("next").await.text(), "ok");
    assert_all_paired(&cluster.provider);
    assert!(cluster.provider.last()["messages"].to_string().contains("all that was said"));
    let mut seen = subscription.until_type("session.compaction.completed").await;
    seen.extend(subscription.until_type("server.message.send").await);
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_stream(&tests::client::ids(&seen)), []);
    assert_eq!(said(&log), ["pause", "next"]);
    assert_eq!(mcp.calls().len(), 1);
}

/// S11: a node wins the lease and freezes before its epoch update; another takes over and starts a turn; the first
/// wakes, and its update arrives. The turn goes on, under the same owner.
#[tokio::test]
async fn frozen_between_lease_and_epoch() {
    between_lease_and_epoch(true).await;
}

/// S11: it is not frozen, but cut off from both servers.
#[tokio::test]
async fn cut_off_between_lease_and_epoch() {
    between_lease_and_epoch(false).await;
}

async fn between_lease_and_epoch(frozen: bool) {
    let cluster = Plan::default().proxied().start().await;
    let session = cluster.driver().await;
    let stalls = cluster.nodes[1].postgres.as_ref().unwrap();
    stalls.stall_when_sent(TAKES);
    let first = cluster.at(&session, 1).start_send("first").await;
    stalls.stalled().await;
    assert_eq!(cluster.owner(&session, 0).await, 1, "it has the lease");
    let redis = cluster.nodes[1].redis.as_ref().unwrap();
    if frozen {
        cluster.nodes[1].server.freeze().await;
    } else {
        redis.set(Mode::Stall);
    }
    assert_eq!(cluster.log(&session).await.epoch, 0);
    let mut held = cluster.provider.hold(Answer::text("in peace"));
    let second = cluster.at(&session, 2).start_send("second").await;
    held.arrived().await;
    let owner = cluster.owner(&session, 0).await;
    let before = cluster.log(&session).await;
    assert_ne!(owner, 1);
    assert_eq!((before.epoch, before.phase.as_str()), (1, "running"));
    stalls.set(Mode::Pass);
    if frozen {
        cluster.nodes[1].server.thaw();
    } else {
        redis.set(Mode::Pass);
    }
    // It serves again, and has tried what it was about to by the time it has taken part in another session's turn.
    cluster.nodes[1].ready().await;
    let elsewhere = cluster.nodes[1].api().open(&cluster.key.secret, &json!({})).await;
    elsewhere.register().await;
    assert_eq!(elsewhere.send("elsewhere").await.text(), "ok");
    let log = cluster.log(&session).await;
    assert_eq!((log.epoch, log.types()), (before.epoch, before.types()), "the woken node pushed the owner away");
    assert_eq!(cluster.owner(&session, 0).await, owner);
    held.release();
    assert_eq!(second.finish().await.text(), "in peace");
    assert_eq!(first.finish().await.text(), "ok");
    let log = cluster.log(&session).await;
    assert_eq!(log.violations(), []);
    assert_eq!(log.compare_accepted(&["second", "first"].map(Accepted::new)), []);
    assert_eq!(cluster.provider.requests().len(), 3, "a question was asked twice");
}
