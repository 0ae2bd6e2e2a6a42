//! I7: calls accepted on different nodes start in the order of their acceptance, whoever owns the session (S3, S10).

use tests::checker::Accepted;
use tests::client::{Frames, Session};
use tests::cluster::{Cluster, TAKEOVER, said};
use tests::poll;
use tests::provider::Answer;

/// Queues `texts` behind what runs, the one after the other, each through the next of `nodes`.
async fn queue(cluster: &Cluster, session: &Session, nodes: &[usize], texts: &[&str]) -> Vec<Frames> {
    let mut waiting = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        waiting.push(cluster.at(session, nodes[index % nodes.len()]).start_send(*text).await);
    }
    waiting
}

#[tokio::test]
async fn accepted_on_different_nodes() {
    let cluster = Cluster::start().await;
    let session = cluster.driver().await;
    let mut held = cluster.provider.hold(Answer::text("first"));
    let running = cluster.at(&session, 2).start_send("0").await;
    held.arrived().await;
    let texts = ["1", "2", "3", "4", "5", "6"];
    let mut waiting = queue(&cluster, &session, &[1, 0, 2], &texts).await;
    assert!(waiting.iter_mut().all(Frames::is_silent));
    held.release();
    assert_eq!(running.finish().await.text(), "first");
    for frames in waiting {
        let outcome = frames.finish().await;
        assert_eq!((outcome.text().as_str(), outcome.types().len()), ("ok", 4));
    }
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&["0", "1", "2", "3", "4", "5", "6"].map(Accepted::new)), []);
}

/// S3: nothing depends on the owner that accepted them, nor on its having woken anybody.
#[tokio::test]
async fn across_the_owners_death() {
    let mut cluster = Cluster::start().await;
    let (session, owner) = cluster.owned_session().await;
    let living = [cluster.other(&[owner]), cluster.other(&[owner, cluster.other(&[owner])])];
    let mut held = cluster.provider.hold(Answer::text("never sent"));
    let running = cluster.at(&session, living[0]).start_send("0").await;
    held.arrived().await;
    let texts = ["1", "2", "3", "4", "5", "6"];
    // Every third one's node is the one that dies, and its client leaves with it.
    let nodes = [living[0], living[1], owner];
    let waiting = queue(&cluster, &session, &nodes, &texts).await;
    cluster.nodes[owner].server.kill9();
    assert_eq!(running.finish().await.text(), "ok");
    for (index, frames) in waiting.into_iter().enumerate() {
        if index % 3 != 2 {
            assert_eq!(frames.finish().await.text(), "ok", "call {}", index + 1);
        }
    }
    // What the dead node's clients had asked for has started by now, or never will.
    assert_eq!(cluster.at(&session, living[1]).send("last").await.text(), "ok");
    let log = cluster.check(&session).await;
    let mut accepted: Vec<Accepted> = ["warm", "0"].map(Accepted::new).into();
    accepted
        .extend(texts.map(|text| if ["3", "6"].contains(&text) { Accepted::left(text) } else { Accepted::new(text) }));
    accepted.push(Accepted::new("last"));
    assert_eq!(log.compare_accepted(&accepted), []);
}

/// S3: the owner dies idle, with nothing open in the log; the next call is served.
#[tokio::test]
async fn an_idle_owner_dies() {
    let mut cluster = Cluster::start().await;
    let (session, owner) = cluster.owned_session().await;
    cluster.nodes[owner].server.kill9();
    let other = cluster.at(&session, cluster.other(&[owner]));
    let outcome = tokio::time::timeout(TAKEOVER, other.send("next")).await.expect("served in time");
    assert_eq!(outcome.text(), "ok");
    assert_eq!(said(&cluster.check(&session).await), ["warm", "next"]);
}

/// S10: a frozen node's calls are skipped as if it were dead; it wakes, its clients still there, and they are served,
/// once.
#[tokio::test]
async fn a_frozen_nodes_calls() {
    let cluster = Cluster::start().await;
    let (session, owner) = cluster.owned_session().await;
    let frozen = cluster.other(&[owner]);
    let third = cluster.other(&[owner, frozen]);
    let mut held = cluster.provider.hold(Answer::text("running"));
    let running = cluster.at(&session, third).start_send("running").await;
    held.arrived().await;
    let asleep = cluster.at(&session, frozen).start_send("asleep").await;
    let awake = cluster.at(&session, third).start_send("awake").await;
    cluster.nodes[frozen].server.freeze().await;
    poll::until(poll::DEADLINE, "the frozen node's end in the cluster's eyes", async || {
        let nodes = cluster.nodes[third].admin().get("/admin/v1/nodes").await.expect(200).body;
        if nodes.contains(&cluster.nodes[frozen].name) { Err(nodes) } else { Ok(()) }
    })
    .await;
    held.release();
    assert_eq!(running.finish().await.text(), "running");
    assert_eq!(awake.finish().await.text(), "ok");
    cluster.nodes[frozen].server.thaw();
    assert_eq!(asleep.finish().await.text(), "ok");
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&["warm", "running", "awake", "asleep"].map(Accepted::new)), []);
}

/// S9: clients on other nodes leave in the moment their calls are claimed: never recorded, or run to the end.
#[tokio::test]
async fn leaving_in_the_moment_of_the_claim() {
    let cluster = Cluster::start().await;
    let session = cluster.driver().await;
    let mut accepted = Vec::new();
    for round in 0..15 {
        let mut held = cluster.provider.hold(Answer::text("a"));
        let (first, leaves) = (format!("first {round}"), format!("leaves {round}"));
        let running = cluster.at(&session, round % 3).start_send(first.as_str()).await;
        held.arrived().await;
        let leaving = cluster.at(&session, (round + 1) % 3).start_send(leaves.as_str()).await;
        held.release();
        if round % 2 == 0 {
            running.finish().await;
            drop(leaving);
        } else {
            drop(leaving);
            running.finish().await;
        }
        accepted.extend([Accepted::new(&first), Accepted::left(&leaves)]);
    }
    assert_eq!(cluster.at(&session, 2).send("last").await.text(), "ok");
    accepted.push(Accepted::new("last"));
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&accepted), []);
    assert_eq!(cluster.provider.requests().len(), log.calls.len(), "every recorded message was answered, once");
}

/// S13: a pause is reached while compacts and messages of several nodes wait: the compacts are answered at once.
#[tokio::test]
async fn a_pause_answers_waiting_compacts() {
    let cluster = Cluster::start().await;
    let session = cluster.driver().await;
    let second = cluster.second(&session, 2).await;
    let mut held = cluster.provider.hold(Answer::tools(&[("tu_1", "clock", serde_json::json!({}))]));
    let running = cluster.at(&session, 0).start_send("pause").await;
    held.arrived().await;
    let (mut compacts, mut messages) = (Vec::new(), Vec::new());
    for node in 0..3 {
        let at = cluster.at(&second, node);
        compacts.push(at.start("session.compact", serde_json::json!({})).await);
        messages.push(at.start_send(format!("message {node}")).await);
    }
    held.release();
    running.finish().await;
    for compact in compacts {
        assert_eq!(compact.finish().await.error().0, -32020);
    }
    assert!(messages.iter_mut().all(Frames::is_silent));
    assert_eq!(cluster.at(&session, 1).answer(&[("tu_1", "noon")]).await.text(), "ok");
    for message in messages {
        assert_eq!(message.finish().await.text(), "ok");
    }
    let log = cluster.check(&session).await;
    assert_eq!(said(&log), ["pause", "message 0", "message 1", "message 2"]);
}
