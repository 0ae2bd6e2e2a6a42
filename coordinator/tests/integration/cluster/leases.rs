//! Who owns a session, between several nodes.

use crate::cluster::test_cluster::{LEASE, TestCluster, over, run};
use crate::fixture::{ended, going_on, opening, until, within};
use coordinator::cluster::Lease;
use coordinator::log::Epoch;
use std::time::Duration;
use tokio::time::Instant;

async fn owner(test: &TestCluster) -> Option<String> {
    let last = test.nodes.last().expect("a node");
    last.cluster.owner(test.session).await.expect("redis answers")
}

async fn owned_by(test: &TestCluster, node: usize) {
    let name = test.nodes[node].name.clone();
    until("the owner", async || match owner(test).await {
        Some(owner) if owner == name => Ok(()),
        other => Err(other),
    })
    .await;
}

async fn taken_over(test: &mut TestCluster, node: usize) -> Lease {
    let started = Instant::now();
    let lease = test.lease(node).await;
    let took = started.elapsed();
    assert!(took < LEASE + Duration::from_secs(4), "the lease passed on after {took:?}");
    lease
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_nodes_one_serves() {
    let mut test = TestCluster::redis(2).await;
    for _ in 0..5 {
        let (first, second) = (test.message(), test.message());
        let (one, two) = tokio::join!(test.enqueue(0, &first), test.enqueue(1, &second));
        tokio::join!(
            test.nodes[0].cluster.ensure_owner(test.session),
            test.nodes[1].cluster.ensure_owner(test.session)
        );
        let name = owner(&test).await.expect("an owner");
        let (owner, other) = if test.nodes[0].name == name { (0, 1) } else { (1, 0) };
        let lease = test.lease(owner).await;
        test.no_lease(other);
        for _ in 0..2 {
            let call = run(&lease, None).await;
            assert!(call == first.id || call == second.id);
            lease.tell(call, over()).await;
        }
        drop((one, two));
        assert!(lease.release().await.is_ok());
        until("nobody owns it", async || match self::owner(&test).await {
            None => Ok(()),
            other => Err(other),
        })
        .await;
    }
    test.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed_until_its_node_dies() {
    let mut test = TestCluster::redis(2).await;
    let call = test.message();
    let _waiter = test.enqueue(1, &call).await;
    // Node 1 accepted it and serves; then only node 0 is left to serve a call of its own.
    let lease = test.lease(1).await;
    assert_eq!(run(&lease, None).await, call.id);
    let end = Instant::now() + 2 * LEASE;
    until("two lease times are over", async || if Instant::now() > end { Ok(()) } else { Err(()) }).await;
    owned_by(&test, 1).await;
    assert!(lease.confirm().await && lease.may_act(Epoch::UNOWNED.next()).await && !lease.lost.is_cancelled());
    test.nodes[1].kill();
    let next = test.message();
    let _next = test.enqueue(0, &next).await;
    let new = taken_over(&mut test, 0).await;
    assert!(!lease.confirm().await);
    assert_eq!(run(&new, None).await, next.id, "the dead node's call is skipped");
    test.end().await;
}

/// An owner frozen past its lease wakes up after another took over, whether or not that one still serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_owner_acts_no_more() {
    for still in [true, false] {
        let mut test = TestCluster::redis(2).await;
        test.nodes[0].cluster.ensure_owner(test.session).await;
        let old = test.lease(0).await;
        let row = test.fixture.own(test.session).await;
        let call = opening(test.session, row.epoch, test.key, engine::gate::GateFound::Free);
        test.fixture.log.append(call.clone()).await.expect("opened");
        assert!(old.may_act(row.epoch).await);
        test.nodes[0].freeze(true);
        until("the lease is over", async || match owner(&test).await {
            None => Ok(()),
            other => Err(other),
        })
        .await;
        test.nodes[1].cluster.ensure_owner(test.session).await;
        let new = test.lease(1).await;
        let taken = test.fixture.own(test.session).await;
        if !still {
            assert!(new.release().await.is_ok());
            until("the lease is released", async || match owner(&test).await {
                None => Ok(()),
                other => Err(other),
            })
            .await;
        } else {
            std::mem::forget(new);
        }
        test.nodes[0].freeze(false);
        if !still {
            owned_by(&test, 0).await;
        }
        until("it is told", async || {
            assert!(!old.may_act(row.epoch).await, "it acted past its lease");
            if old.lost.is_cancelled() { Ok(()) } else { Err("not lost") }
        })
        .await;
        assert!(test.fixture.log.append(going_on(&call, Some(ended()))).await.is_err(), "fenced");
        let own = coordinator::log::Append { epoch: taken.epoch, ..going_on(&call, Some(ended())) };
        test.fixture.log.append(own).await.expect("the new owner's");
        test.end().await;
    }
}

/// It had won the lease and read the epoch; then it froze, and another took over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_winner_pushes_nobody_away() {
    let mut test = TestCluster::redis(2).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let late = test.lease(0).await;
    let seen = test.nodes[0].log.row(test.session).await.expect("a row");
    assert!(late.confirm().await);
    test.nodes[0].freeze(true);
    let call = test.message();
    let _waiter = test.enqueue(1, &call).await;
    let new = taken_over(&mut test, 1).await;
    let row = test.fixture.own(test.session).await;
    assert!(test.nodes[0].log.take(test.session, seen.epoch).await.is_err(), "the epoch has moved");
    test.nodes[0].freeze(false);
    assert!(!late.confirm().await);
    within("it is told", late.lost.cancelled()).await;
    drop(late);
    assert!(new.confirm().await && new.may_act(row.epoch).await, "the release of the late one ends nothing");
    assert_eq!(run(&new, None).await, call.id);
    test.end().await;
}

/// Only a session that somebody waits for has to be served elsewhere at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_draining_node_passes_on_is_what_is_wanted() {
    let mut test = TestCluster::redis(2).await;
    let idle = test.another().await;
    test.nodes[0].cluster.ensure_owner(idle).await;
    let unwanted = test.lease(0).await;
    let call = test.message();
    let _waiter = test.enqueue(0, &call).await;
    let wanted = test.lease(0).await;
    test.nodes[0].cluster.drain();
    unwanted.pass_on();
    wanted.pass_on();
    let lease = test.lease(1).await;
    assert_eq!(lease.session(), test.session);
    assert_eq!(run(&lease, None).await, call.id);
    assert_eq!(test.nodes[1].cluster.owner(idle).await.expect("answered"), None);
    test.no_lease(1);
    test.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_node_hands_over_at_once() {
    let mut test = TestCluster::redis(2).await;
    let call = test.message();
    let _waiter = test.enqueue(0, &call).await;
    let lease = test.lease(0).await;
    test.nodes[0].cluster.drain();
    lease.hand_over();
    let lease = test.lease(1).await;
    assert_eq!(run(&lease, None).await, call.id, "its client still waits at the old node");
    lease.tell(call.id, over()).await;
    assert!(lease.release().await.is_ok());
    // A call that comes in the drain is accepted, and served elsewhere.
    let late = test.message();
    let _late = test.enqueue(0, &late).await;
    let lease = test.lease(1).await;
    assert_eq!(run(&lease, None).await, late.id);
    test.no_lease(0);
    test.end().await;
}

/// What a node gives up with its last breath is offered to others, not left to expire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaving_node_releases_everything() {
    let mut test = TestCluster::redis(2).await;
    let mut held = Vec::new();
    let mut sessions = Vec::new();
    for _ in 0..50 {
        let session = test.another().await;
        test.nodes[0].cluster.ensure_owner(session).await;
        held.push(test.lease(0).await);
        sessions.push(session);
    }
    let leaving = test.nodes.remove(0);
    leaving.cluster.drain();
    held.into_iter().for_each(Lease::hand_over);
    leaving.leave().await;
    for _ in 0..50 {
        let lease = test.lease(0).await;
        assert!(sessions.contains(&lease.session()));
        std::mem::forget(lease);
    }
    test.end().await;
}

/// The node takes no more leases: what it is given all the same goes to another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_with_a_node_that_serves_no_more() {
    let mut test = TestCluster::redis(2).await;
    test.nodes[0].leases.close();
    let call = test.message();
    let _waiter = test.enqueue(0, &call).await;
    test.nodes[0].cluster.drain();
    let lease = test.lease(1).await;
    assert_eq!(run(&lease, None).await, call.id);
    test.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_reaches_the_owner_elsewhere() {
    let mut test = TestCluster::redis(2).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let lease = test.lease(0).await;
    let (cluster, session) = (test.nodes[1].cluster.clone(), test.session);
    let error = engine::rpc::RpcError::not_open("closed");
    let stopping = tokio::spawn(async move { cluster.stop(session, &error).await });
    within("the owner is told", lease.stop.cancelled()).await;
    assert!(!stopping.is_finished());
    drop(lease);
    within("the stop ends", stopping).await.expect("no panic");
    assert_eq!(owner(&test).await, None);
    test.end().await;
}

/// How many scripts a server has run so far.
async fn scripts_run(test: &TestCluster) -> u64 {
    let stats: redis::InfoDict =
        redis::cmd("INFO").arg("commandstats").query_async(&mut test.raw().await).await.expect("answered");
    let calls = |text: String| text.strip_prefix("calls=")?.split(',').next()?.parse::<u64>().ok();
    stats.get::<String>("cmdstat_evalsha").and_then(calls).unwrap_or(0)
}

async fn leases_of(node: &mut crate::cluster::test_cluster::Node, leases: &mut Vec<Lease>) {
    while let Ok(lease) = node.leases.try_recv() {
        leases.push(lease);
    }
}

/// One node looks at what a dead one has left: nodes that live share it, and who looks again asks in few questions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn living_nodes_share_what_a_dead_one_left() {
    const SESSIONS: usize = 900;
    let mut test = TestCluster::alone(3).await;
    test.nodes[2].cluster.drain();
    until("the third node takes no more", async || {
        let nodes = test.nodes[0].cluster.nodes().await.expect("answered");
        if nodes.iter().any(|node| node.draining) { Ok(()) } else { Err(nodes) }
    })
    .await;
    let sessions: Vec<_> = (0..SESSIONS).map(|_| engine::ids::SessionId(coordinator::fresh_id())).collect();
    test.nodes[0].cluster.adopt(&sessions).await;
    let (mut first, mut second, mut third) = (Vec::new(), Vec::new(), Vec::new());
    until("all have owners", async || {
        leases_of(&mut test.nodes[0], &mut first).await;
        leases_of(&mut test.nodes[1], &mut second).await;
        leases_of(&mut test.nodes[2], &mut third).await;
        let all = first.len() + second.len();
        if all == SESSIONS { Ok(()) } else { Err(all) }
    })
    .await;
    assert_eq!(third.len(), 0, "a draining node takes nothing");
    assert!(first.len().abs_diff(second.len()) <= SESSIONS / 10, "{} and {}", first.len(), second.len());

    let (started, before) = (Instant::now(), scripts_run(&test).await);
    test.nodes[0].cluster.adopt(&sessions).await;
    let (scripts, time) = (scripts_run(&test).await - before, started.elapsed());
    // Besides, each of three nodes sends two heartbeats and two renewals in a second.
    let others = 3 * (time.as_secs() + 1) * 5;
    assert!(scripts <= 5 + others, "{scripts} scripts for {SESSIONS} sessions in {time:?}");
    for lease in first.into_iter().chain(second) {
        std::mem::forget(lease);
    }
    test.end().await;
}

/// Each session is looked at by some node, whatever the size of the cluster, but not by all of a large one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_nodes_a_few_look_at_each_session() {
    let mut test = TestCluster::redis(7).await;
    let sessions: Vec<_> = (0..200).map(|_| engine::ids::SessionId(coordinator::fresh_id())).collect();
    for node in 0..7 {
        test.nodes[node].cluster.adopt(&sessions).await;
    }
    let mut leases = Vec::new();
    until("all have owners", async || {
        for node in &mut test.nodes {
            leases_of(node, &mut leases).await;
        }
        if leases.len() == sessions.len() { Ok(()) } else { Err(leases.len()) }
    })
    .await;
    leases.into_iter().for_each(std::mem::forget);
    test.end().await;
}

/// A renewal that reached Redis after the release made the lease again, for an owner that is gone. Whoever calls next does
/// not wait until it has expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_outlived_its_owner_holds_nobody_up() {
    let mut test = TestCluster::redis(2).await;
    let mut raw = test.raw().await;
    let revived = redis::cmd("SET").arg(test.at("o")).arg(&test.nodes[0].name).arg("PX").arg(600_000).to_owned();
    let _: String = revived.query_async(&mut raw).await.expect("set");
    let call = test.message();
    let _waiter = test.enqueue(1, &call).await;
    let lease = test.lease(0).await;
    assert_eq!(run(&lease, None).await, call.id);
    test.end().await;
}
