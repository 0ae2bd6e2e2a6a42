//! Owners that die or freeze in mid-turn (F1, F3, F4).

use serde_json::{Value, json};
use tests::checker::Accepted;
use tests::client::ids;
use tests::cluster::{Cluster, Plan, TAKEOVER, of_type, said};
use tests::history::assert_all_paired;
use tests::mcp::{Kind, Mcp, Outcome};
use tests::provider::Answer;
use tokio::time::Instant;

/// F3, F4: the owner dies during the provider call. Another asks again; the client that waits elsewhere notices
/// nothing.
#[tokio::test]
async fn killed_during_the_provider_call() {
    let mut cluster = Cluster::start().await;
    let (session, owner) = cluster.owned_session().await;
    let asked = cluster.other(&[owner]);
    let mut held = cluster.provider.hold(Answer::text("never sent"));
    let running = cluster.at(&session, asked).start_send("hello").await;
    held.arrived().await;
    assert_eq!(cluster.last(&session).await, "provider.request");
    assert_eq!(cluster.owner(&session, asked).await, owner, "the session stays where it is warm");
    let mut again = cluster.provider.hold(Answer::text("again"));
    let killed = Instant::now();
    cluster.nodes[owner].server.kill9();
    again.arrived().await;
    let took = killed.elapsed();
    again.release();
    let outcome = running.finish().await;
    assert_eq!(outcome.text(), "again");
    assert!(took < TAKEOVER, "taken over after {took:?}");
    assert_eq!(
        outcome.types(),
        ["client.message.send", "provider.request", "provider.response", "server.message.send"]
    );
    assert_ne!(cluster.owner(&session, asked).await, owner);
    let requests = cluster.provider.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[1].body, requests[2].body, "the same request again");
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&["warm", "hello"].map(Accepted::new)), []);
    assert_eq!(log.compare_stream(&ids(&outcome.live())), []);
    cluster.nodes[owner].start().await;
    assert_eq!(cluster.at(&session, owner).send("next").await.text(), "ok");
    cluster.check(&session).await;
}

/// The client's own node is the owner: nobody waits any more, and the turn is carried on all the same.
#[tokio::test]
async fn killed_with_nobody_waiting() {
    let mut cluster = Cluster::start().await;
    let session = cluster.driver().await;
    let mut held = cluster.provider.hold(Answer::text("never sent"));
    let running = cluster.at(&session, 0).start_send("hello").await;
    held.arrived().await;
    let owner = cluster.owner(&session, 0).await;
    cluster.nodes[owner].server.kill9();
    drop(running);
    cluster
        .until(&session, TAKEOVER, "the turn's end", |log| log.types().ends_with(&["server.message.send".into()]))
        .await;
    let other = cluster.other(&[owner]);
    assert_eq!(cluster.at(&session, other).send("next").await.text(), "ok");
    assert_eq!(said(&cluster.check(&session).await), ["hello", "next"]);
}

/// F3: the owner dies between a tool's request and its response: the tool is not run again.
#[tokio::test]
async fn killed_during_a_tool_call() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let mut cluster = Plan::default().mcp(&mcp).start().await;
    let (session, owner) = cluster.owned_session().await;
    let asked = cluster.other(&[owner]);
    cluster.provider.push(Answer::tools(&[("tu_1", "ls", json!({"n": 1})), ("tu_2", "ls", json!({"n": 2}))]));
    let mut held = mcp.hold(Outcome::Text("never sent".to_owned()));
    let running = cluster.at(&session, asked).start_send("hello").await;
    held.arrived().await;
    assert_eq!(cluster.last(&session).await, "mcp.request");
    cluster.nodes[owner].server.kill9();
    assert_eq!(running.finish().await.text(), "ok");
    let called: Vec<Value> = mcp.calls().iter().map(|call| call["arguments"]["n"].clone()).collect();
    assert_eq!(called, [1, 2], "the first was not run again, the second had not begun");
    let log = cluster.check(&session).await;
    let ok: Vec<bool> = of_type(&log, "mcp.response").iter().map(|response| response["ok"] == true).collect();
    assert_eq!(ok, [false, true]);
    let results = of_type(&log, "tool.result");
    assert!(results[0]["content"].to_string().contains("unknown"), "{}", results[0]);
    assert_all_paired(&cluster.provider);
}

/// F1: an owner frozen past its lease wakes up after another has finished its turn, and begun one more.
#[tokio::test]
async fn a_frozen_owner_wakes_up() {
    let cluster = Cluster::start().await;
    let (session, owner) = cluster.owned_session().await;
    let asked = cluster.other(&[owner]);
    let mut held = cluster.provider.hold(Answer::tools(&[("tu_1", "clock", json!({}))]));
    let running = cluster.at(&session, asked).start_send("hello").await;
    held.arrived().await;
    assert_eq!(cluster.last(&session).await, "provider.request");
    cluster.nodes[owner].server.freeze().await;
    // Its answer arrives while it is frozen; another node takes the session, asks again and gets another answer.
    held.release();
    assert_eq!(running.finish().await.text(), "ok");
    assert_ne!(cluster.owner(&session, asked).await, owner);
    let mut held = cluster.provider.hold(Answer::text("the next turn"));
    let next = cluster.at(&session, asked).start_send("next").await;
    held.arrived().await;
    let before = cluster.log(&session).await;
    cluster.nodes[owner].server.thaw();
    // It serves again, and what it does with its old turn it has done by the time it has taken part in another
    // session's.
    cluster.nodes[owner].ready().await;
    let other = cluster.nodes[owner].api().open(&cluster.key.secret, &json!({})).await;
    other.register().await;
    let after = cluster.log(&session).await;
    assert_eq!(after.types(), before.types(), "something of the frozen owner reached the log");
    held.release();
    assert_eq!(next.finish().await.text(), "the next turn");
    assert_eq!(cluster.at(&session, owner).send("last").await.text(), "ok");
    assert_eq!(cluster.provider.requests().len(), 5, "the woken owner asked the provider");
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&["warm", "hello", "next", "last"].map(Accepted::new)), []);
    assert!(of_type(&log, "tool.call").is_empty());
}

/// I6: how long takeovers take, over several kills.
#[tokio::test]
async fn takeover_times() {
    let mut cluster = Cluster::start().await;
    let session = cluster.driver().await;
    cluster.at(&session, 0).send("warm").await.text();
    let mut times = Vec::new();
    for round in 0..5 {
        let owner = cluster.owner(&session, 0).await;
        let asked = cluster.other(&[owner]);
        let mut held = cluster.provider.hold(Answer::text("never sent"));
        let running = cluster.at(&session, asked).start_send(format!("round {round}")).await;
        held.arrived().await;
        let mut again = cluster.provider.hold(Answer::text("again"));
        let killed = Instant::now();
        cluster.nodes[owner].server.kill9();
        again.arrived().await;
        times.push(killed.elapsed());
        again.release();
        assert_eq!(running.finish().await.text(), "again", "round {round}");
        cluster.nodes[owner].start().await;
    }
    times.sort();
    let (p50, p99) = (times[times.len() / 2], times[times.len() - 1]);
    println!("takeover after kill -9, lease {:?}: p50 {p50:?}, p99 {p99:?} of {times:?}", tests::cluster::LEASE);
    assert!(p99 < TAKEOVER, "{times:?}");
    cluster.check(&session).await;
}

/// S12: an answer that kills every node that reads it does not walk through the cluster for ever.
#[tokio::test]
async fn a_turn_that_kills_its_nodes() {
    let mut cluster = Cluster::start().await;
    let session = cluster.driver().await;
    let mut helds: Vec<_> = (0..6).map(|_| cluster.provider.hold(Answer::text("deadly"))).collect();
    let running = cluster.at(&session, 0).start_once("deadly", "key-1").await;
    for held in helds.iter_mut().take(5) {
        held.arrived().await;
        let owner = cluster.owner(&session, 0).await;
        cluster.nodes[owner].server.kill9();
        cluster.nodes[owner].start().await;
    }
    let done = |log: &tests::checker::Log| log.state == "error";
    let log = cluster.until(&session, tests::poll::DEADLINE, "the turn's end", done).await;
    assert_eq!(
        of_type(&log, "session.error"),
        [&json!({"reason": "turn_recovery_failed", "takeovers": 5})],
        "{:?}",
        log.types()
    );
    assert!(!helds[5].has_arrived(), "asked a sixth time");
    // The caller's node may have died; the call, sent again to any, is answered.
    drop(running);
    cluster.at(&session, 1).start_once("deadly", "key-1").await.finish().await.result();
    cluster.check(&session).await;
}
