//! SIGTERM: what runs ends within the grace or is handed over, what waits goes on elsewhere (F5, F6).

use futures_util::future::join_all;
use serde_json::json;
use std::cell::Cell;
use tests::checker::Accepted;
use tests::client::Session;
use tests::cluster::{Plan, of_type};
use tests::history::assert_all_paired;
use tests::mcp::{Kind, Mcp};
use tests::poll;
use tests::provider::Answer;
use tokio::time::Instant;

/// The owner is told to go with a turn that ends within the grace, and with calls that wait.
#[tokio::test]
async fn a_turn_ends_within_the_grace() {
    let mut cluster = Plan::default().env("BAE_SHUTDOWN_TIMEOUT", "20").start().await;
    let (session, owner) = cluster.owned_session().await;
    let living = [cluster.other(&[owner]), cluster.other(&[owner, cluster.other(&[owner])])];
    let mut held = cluster.provider.hold(Answer::text("in time"));
    let running = cluster.at(&session, owner).start_send("running").await;
    held.arrived().await;
    let waiting =
        [cluster.at(&session, living[0]).start_send("A").await, cluster.at(&session, living[1]).start_send("B").await];
    cluster.nodes[owner].server.terminate();
    tests::poll::until(poll::DEADLINE, "draining", async || {
        let nodes = cluster.nodes[living[0]].admin().get("/admin/v1/nodes").await.expect(200).json();
        let items = nodes["items"].as_array().unwrap().clone();
        let own = items.iter().find(|item| item["node"] == cluster.nodes[owner].name.as_str());
        if own.is_none_or(|own| own["state"] == "draining") { Ok(()) } else { Err(nodes) }
    })
    .await;
    held.release();
    assert_eq!(running.finish().await.text(), "in time");
    for frames in waiting {
        assert_eq!(frames.finish().await.text(), "ok");
    }
    assert!(cluster.nodes[owner].server.ended().await.success());
    assert_ne!(cluster.owner(&session, living[0]).await, owner);
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&["warm", "running", "A", "B"].map(Accepted::new)), []);
    assert_eq!(cluster.provider.requests().len(), 4, "nothing was asked twice");
}

/// What outlasts the grace is handed over in mid-turn; the client that waits on another node notices nothing.
#[tokio::test]
async fn a_turn_is_handed_over() {
    // A Redis that no other test has taught anything.
    let plan = Plan::default().own_redis().env("BAE_SHUTDOWN_TIMEOUT", "1").env("BAE_LEASE", "10");
    let mut cluster = plan.start().await;
    let (session, owner) = cluster.owned_session().await;
    let asked = cluster.other(&[owner]);
    let mut held = cluster.provider.hold(Answer::text("never sent"));
    let mut again = cluster.provider.hold(Answer::text("handed over"));
    let running = cluster.at(&session, asked).start_send("running").await;
    held.arrived().await;
    let waiting = cluster.at(&session, asked).start_send("A").await;
    cluster.nodes[owner].server.terminate();
    held.abandoned().await;
    let given_up = Instant::now();
    again.arrived().await;
    println!("handed over within {:?}", given_up.elapsed());
    assert!(given_up.elapsed().as_secs() < 3, "waited for the lease: {:?}", given_up.elapsed());
    again.release();
    assert_eq!(running.finish().await.text(), "handed over");
    assert_eq!(waiting.finish().await.text(), "ok");
    assert!(cluster.nodes[owner].server.ended().await.success());
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&["warm", "running", "A"].map(Accepted::new)), []);
}

/// F5: one long turn of many tool rounds survives the replacement of each node, twice over.
#[tokio::test]
async fn rolling_restarts_during_one_turn() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let mut cluster = Plan::default().mcp(&mcp).env("BAE_SHUTDOWN_TIMEOUT", "1").start().await;
    let session = cluster.driver().await;
    let answer = |round: usize| Answer::tools(&[(&format!("tu_{round}"), "ls", json!({"round": round}))]);
    let mut held = cluster.provider.hold(answer(0));
    let running = cluster.at(&session, 0).start_send("work").await;
    for round in 0..6 {
        held.arrived().await;
        let owner = cluster.owner(&session, 0).await;
        // The question comes again and is answered; the next round's waits.
        cluster.provider.push(answer(round));
        let next = cluster.provider.hold(if round == 5 { Answer::text("done") } else { answer(round + 1) });
        cluster.nodes[owner].server.terminate();
        cluster.nodes[owner].server.ended().await;
        held = next;
        cluster.nodes[owner].start().await;
    }
    held.arrived().await;
    held.release();
    drop(running);
    let log =
        cluster.until(&session, poll::DEADLINE, "the turn's end", |log| log.phase == "idle" && log.head > 4).await;
    assert_eq!(log.types().last().unwrap(), "server.message.send");
    assert_eq!(of_type(&log, "tool.result").len(), 6);
    assert_eq!(mcp.calls().len(), 6, "each tool ran once");
    assert_all_paired(&cluster.provider);
    cluster.check(&session).await;
}

/// Sends a message through one node after the other, beginning with `first`, until a node answers it. A refusal on the
/// way must say that the call may be repeated.
async fn send_until_answered(nodes: &[Session], first: usize, text: &str) {
    let mut asked = (0..nodes.len()).cycle().skip(first);
    poll::until(poll::DEADLINE, "the answer of a node", async || {
        let params = json!({"message": {"content": text}, "idempotency_key": text});
        let node = &nodes[asked.next().expect("a node")];
        let outcome = node.try_rpc("session.sendMessage", params).await;
        let last = outcome.as_ref().ok().and_then(|outcome| outcome.frames.last());
        if last.is_some_and(|frame| frame.get("result").is_some()) {
            return Ok(());
        }
        let refused = last.and_then(|frame| frame.get("error"));
        assert!(refused.is_none_or(|error| error["data"]["retryable"] == true), "{outcome:?}");
        Err(outcome)
    })
    .await;
}

/// F6: every node is replaced in turn under load. Clients send again, to another node, what a node did not answer. Each
/// message is in the log once, and nothing fails.
#[tokio::test]
async fn rolling_restart_under_load() {
    let mut cluster = Plan::default().env("BAE_SHUTDOWN_TIMEOUT", "5").start().await;
    let mut sessions = Vec::new();
    for index in 0..3 {
        let session = cluster.driver().await;
        let nodes: Vec<Session> = (0..3).map(|node| cluster.at(&session, (index + node) % 3)).collect();
        sessions.push((session, nodes));
    }
    let stopped = Cell::new(false);
    let load = join_all(sessions.iter().map(async |(_, nodes)| {
        let mut sent = 0;
        while !stopped.get() {
            send_until_answered(nodes, sent % nodes.len(), &sent.to_string()).await;
            sent += 1;
        }
        sent
    }));
    let restarts = async {
        for node in 0..3 {
            for (session, _) in &sessions {
                let before = cluster.log(session).await.calls.len();
                let more = |log: &tests::checker::Log| log.calls.len() > before + 1;
                cluster.until(session, poll::DEADLINE, "load", more).await;
            }
            cluster.nodes[node].server.terminate();
            assert!(cluster.nodes[node].server.ended().await.success());
            cluster.nodes[node].start().await;
        }
        stopped.set(true);
    };
    let (sent, ()) = tokio::join!(load, restarts);
    for ((session, _), sent) in sessions.iter().zip(sent) {
        let log = cluster.log(session).await;
        let accepted: Vec<Accepted> = (0..sent).map(|number: usize| Accepted::new(&number.to_string())).collect();
        assert_eq!(log.violations(), []);
        assert_eq!(log.compare_accepted(&accepted), []);
        println!("{sent} messages");
    }
}
