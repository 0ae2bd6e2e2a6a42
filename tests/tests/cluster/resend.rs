//! F9, S5: the same call sent again, to another node, is the same turn.

use tests::checker::Accepted;
use tests::cluster::{Cluster, Plan};
use tests::provider::Answer;

#[tokio::test]
async fn while_it_runs_and_after_its_end() {
    let cluster = Cluster::start().await;
    let session = cluster.driver().await;
    let mut held = cluster.provider.hold(Answer::text("once"));
    let first = cluster.at(&session, 0).start_once("hello", "key-1").await;
    held.arrived().await;
    let again = cluster.at(&session, 1).start_once("hello", "key-1").await;
    let third = cluster.at(&session, 2).start_once("hello", "key-1").await;
    let (code, _) = cluster.at(&session, 2).start_once("other words", "key-1").await.finish().await.error();
    assert_eq!(code, -32602);
    held.release();
    let outcome = first.finish().await;
    assert_eq!(outcome.text(), "once");
    for frames in [again, third] {
        assert_eq!(frames.finish().await.result(), outcome.result());
    }
    for node in 0..3 {
        let late = cluster.at(&session, node).start_once("hello", "key-1").await.finish().await;
        assert_eq!(late.result(), outcome.result(), "node {node}");
    }
    assert_eq!(cluster.provider.requests().len(), 1);
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&[Accepted::new("hello")]), []);
}

/// S5: the first waits on a node that is gone with its client; the resend keeps its place.
#[tokio::test]
async fn while_it_waits_on_a_node_that_dies() {
    waits(false).await;
}

/// S5 with Redis emptied in between: one turn, at its place.
#[tokio::test]
async fn while_it_waits_and_redis_is_emptied() {
    waits(true).await;
}

async fn waits(emptied: bool) {
    let plan = if emptied { Plan::default().own_redis() } else { Plan::default() };
    let mut cluster = plan.start().await;
    let (session, owner) = cluster.owned_session().await;
    let dies = cluster.other(&[owner]);
    let third = cluster.other(&[owner, dies]);
    let mut held = cluster.provider.hold(Answer::text("running"));
    let running = cluster.at(&session, third).start_send("running").await;
    held.arrived().await;
    let first = cluster.at(&session, dies).start_once("hello", "key-1").await;
    let behind = cluster.at(&session, third).start_send("behind").await;
    let mut again = cluster.at(&session, third).start_once("hello", "key-1").await;
    assert!(again.is_silent());
    if let Some(redis) = &cluster.redis {
        redis.redis_cli(&["FLUSHALL"]);
    }
    cluster.nodes[dies].server.kill9();
    drop(first);
    held.release();
    assert_eq!(running.finish().await.text(), "running");
    assert_eq!(again.finish().await.text(), "ok");
    assert_eq!(behind.finish().await.text(), "ok");
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&["warm", "running", "hello", "behind"].map(Accepted::new)), []);
}

/// The answer is lost with the node that held the client, the owner at that; the resend follows the turn that goes on.
#[tokio::test]
async fn after_the_owners_death() {
    let mut cluster = Cluster::start().await;
    let session = cluster.driver().await;
    let mut held = cluster.provider.hold(Answer::text("never sent"));
    let first = cluster.at(&session, 0).start_once("hello", "key-1").await;
    held.arrived().await;
    let owner = cluster.owner(&session, 0).await;
    cluster.nodes[owner].server.kill9();
    drop(first);
    let again = cluster.at(&session, cluster.other(&[owner])).start_once("hello", "key-1").await.finish().await;
    assert_eq!(again.text(), "ok");
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&[Accepted::new("hello")]), []);
}
