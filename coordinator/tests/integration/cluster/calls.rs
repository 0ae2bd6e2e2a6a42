//! Calls that wait, between several nodes.

use crate::cluster::test_cluster::{LEASE, LIMIT, TestCluster, idle, over, run, told};
use crate::fixture::{until, within};
use coordinator::cluster::Progress;
use coordinator::cluster::{Claim, Rejected};
use engine::event::EventNumber;
use engine::outcome::Outcome;
use engine::rpc::RpcError;
use redis::AsyncCommands;

async fn waits(test: &TestCluster) -> u64 {
    test.raw().await.zcard(test.at("q")).await.expect("counted")
}

/// A call's own append has been committed by its owner, on that node.
async fn started(test: &TestCluster, node: usize, call: &coordinator::cluster::Call) -> coordinator::log::Append {
    let log = &test.nodes[node].log;
    let row = log.row(test.session).await.expect("a row");
    let row = log.take(test.session, row.epoch).await.expect("taken");
    let mut append = crate::fixture::opening(test.session, row.epoch, call.key, engine::gate::GateFound::Free);
    append.call = call.id;
    log.append(append.clone()).await.expect("opened");
    append
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_all_nodes_start_in_their_order() {
    let mut test = TestCluster::redis(3).await;
    let calls = [test.message(), test.message(), test.message(), test.message()];
    let mut waiters = Vec::new();
    for (n, call) in calls.iter().enumerate() {
        waiters.push(test.enqueue(n % 3, call).await);
    }
    let lease = test.lease(0).await;
    for call in &calls[..2] {
        assert_eq!(run(&lease, None).await, call.id);
        lease.tell(call.id, over()).await;
    }
    // Another owner goes on where the first stopped.
    lease.hand_over();
    let node = until("another owner", async || {
        let owner = test.nodes[1].cluster.owner(test.session).await.expect("answered");
        test.nodes.iter().position(|node| Some(&node.name) == owner.as_ref()).filter(|node| *node != 0).ok_or(owner)
    })
    .await;
    let lease = test.lease(node).await;
    for call in &calls[2..] {
        assert_eq!(run(&lease, None).await, call.id);
        lease.tell(call.id, over()).await;
    }
    test.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_on_another_node_joins_and_keeps_the_place() {
    let mut test = TestCluster::redis(2).await;
    let first = test.keyed("k", 1);
    let waiter = test.enqueue(0, &first).await;
    let _behind = test.enqueue(0, &test.message()).await;
    let mut joined = test.enqueue(1, &test.keyed("k", 1)).await;
    assert_eq!(joined.call(), first.id);
    assert_eq!(test.try_enqueue(1, &test.keyed("k", 2)).await.err(), Some(Rejected::OtherParams));
    drop(waiter);
    let lease = test.lease(0).await;
    until("the first caller has left", async || match test.nodes[0].cluster.waiting() {
        1 => Ok(()),
        n => Err(n),
    })
    .await;
    assert_eq!(run(&lease, None).await, first.id);
    lease.tell(first.id, Progress::Refused(RpcError::internal())).await;
    told(&mut joined, |p| *p == Progress::Refused(RpcError::internal())).await;
    test.end().await;
}

/// Also when only the retry is left to make it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joined_call_outlives_its_node_and_an_emptied_redis() {
    let mut test = TestCluster::alone(2).await;
    let first = test.keyed("k", 1);
    let _waiter = test.enqueue(0, &first).await;
    let _lease = test.lease(0).await;
    let _joined = test.enqueue(1, &test.keyed("k", 1)).await;
    test.nodes[0].kill();
    test.flush().await;
    let lease = test.lease(1).await;
    assert_eq!(run(&lease, None).await, first.id);
    test.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_nodes_call_is_skipped_and_a_frozen_ones_accepted_anew() {
    let mut test = TestCluster::redis(2).await;
    let (frozen, next) = (test.message(), test.message());
    let mut theirs = test.enqueue(1, &frozen).await;
    let lease = test.lease(1).await;
    assert!(lease.release().await.is_err(), "somebody waits");
    test.nodes[1].freeze(true);
    let _next = test.enqueue(0, &next).await;
    let lease = test.lease(0).await;
    assert_eq!(run(&lease, None).await, next.id, "the frozen node counts as dead");
    lease.tell(next.id, over()).await;
    idle(&lease).await;
    assert_eq!(theirs.progress(), Progress::Queued);
    test.nodes[1].freeze(false);
    assert_eq!(run(&lease, None).await, frozen.id, "its client still waits");
    lease.tell(frozen.id, Progress::Refused(RpcError::internal())).await;
    told(&mut theirs, |p| *p == Progress::Refused(RpcError::internal())).await;
    test.end().await;
}

/// Dropped and never claimed, or claimed and run: never both, never neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_and_claiming_exclude_each_other() {
    let mut test = TestCluster::redis(2).await;
    let keep = test.enqueue(0, &test.message()).await;
    let lease = test.lease(0).await;
    let first = run(&lease, None).await;
    lease.tell(first, over()).await;
    for _ in 0..40 {
        let call = test.message();
        let waiter = test.enqueue(1, &call).await;
        let (claim, ()) = tokio::join!(lease.claim(None), async { drop(waiter) });
        match claim {
            Claim::Run(claimed) => {
                assert_eq!(claimed.id, call.id);
                lease.tell(call.id, over()).await;
            }
            Claim::Wait => {}
            other @ Claim::Refuse(_) => panic!("{other:?}"),
        }
        idle(&lease).await;
    }
    drop(keep);
    test.end().await;
}

/// A claim by an owner that died before it recorded anything binds nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_owners_claim_does_not_keep_a_call_that_is_left() {
    let mut test = TestCluster::redis(2).await;
    let (call, next) = (test.message(), test.message());
    test.nodes[1].cluster.ensure_owner(test.session).await;
    let waiter = test.enqueue(0, &call).await;
    let lease = test.lease(1).await;
    assert_eq!(run(&lease, None).await, call.id);
    test.nodes[1].kill();
    drop(waiter);
    let _next = test.enqueue(0, &next).await;
    let lease = test.lease(0).await;
    assert_eq!(run(&lease, None).await, next.id, "nobody waits for the other");
    lease.tell(next.id, over()).await;
    idle(&lease).await;
    test.end().await;
}

/// Nothing depends on one wake-up: the owner died between two calls, or its inbox was trimmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_wake_up_is_made_good() {
    let mut test = TestCluster::redis(2).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let lease = test.lease(0).await;
    idle(&lease).await;
    // The first wake-up is deleted before it can be read.
    test.nodes[0].freeze(true);
    let call = test.message();
    let _waiter = test.enqueue(1, &call).await;
    let inbox = format!("{}inbox:{}", test.prefix, test.nodes[0].name);
    let _: u64 = test.raw().await.del(inbox).await.expect("deleted");
    test.nodes[0].freeze(false);
    within("the owner is woken again", lease.woken()).await;
    assert_eq!(run(&lease, None).await, call.id);
    lease.tell(call.id, over()).await;
    let next = test.message();
    let _next = test.enqueue(1, &next).await;
    test.nodes[0].kill();
    let lease = test.lease(1).await;
    assert_eq!(run(&lease, None).await, next.id);
    test.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_elsewhere_follow_start_and_end() {
    let mut test = TestCluster::redis(2).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let call = test.message();
    let (_reader, _) = test.nodes[1].open_reader(test.session).await.expect("watched");
    let mut waiter = test.enqueue(1, &call).await;
    let lease = test.lease(0).await;
    assert_eq!(run(&lease, None).await, call.id);
    let append = started(&test, 0, &call).await;
    told(&mut waiter, |p| *p == Progress::Running).await;
    lease.tell(call.id, Progress::Running).await;
    test.nodes[0].log.append(crate::fixture::going_on(&append, Some(crate::fixture::ended()))).await.expect("ended");
    assert_eq!(
        told(&mut waiter, |p| matches!(p, Progress::Ended(..))).await,
        Progress::Ended(EventNumber(3), Outcome::Unavailable)
    );
    assert_eq!(waits(&test).await, 0);
    test.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loser_follows_the_winner_elsewhere() {
    let mut test = TestCluster::redis(2).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let (call, winner) = (test.message(), test.message());
    let mut waiter = test.enqueue(1, &call).await;
    let lease = test.lease(0).await;
    assert_eq!(run(&lease, None).await, call.id);
    lease.tell(call.id, Progress::Follow(winner.id)).await;
    told(&mut waiter, |p| *p == Progress::Follow(winner.id)).await;
    assert_eq!(waits(&test).await, 0);
    test.end().await;
}

/// Each waiter is told about its own call: one that came after is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_elsewhere_is_refused_by_name() {
    let mut test = TestCluster::redis(2).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let lease = test.lease(0).await;
    let mut early = [test.enqueue(1, &test.message()).await, test.enqueue(1, &test.message()).await];
    test.nodes[1].freeze(true);
    lease.refuse_all(&RpcError::internal()).await;
    let late = test.message();
    let waiter = test.enqueue(1, &late).await;
    test.nodes[1].freeze(false);
    for waiter in &mut early {
        told(waiter, |p| *p == Progress::Refused(RpcError::internal())).await;
    }
    assert_eq!(run(&lease, None).await, late.id);
    assert_eq!(waiter.progress(), Progress::Queued);
    test.end().await;
}

/// A queue entry that outlived the start of its call goes away, whoever made it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_started_call_does_not_stay_in_the_queue() {
    let mut test = TestCluster::redis(2).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let call = test.message();
    let mut waiter = test.enqueue(1, &call).await;
    let lease = test.lease(0).await;
    assert_eq!(run(&lease, None).await, call.id);
    started(&test, 0, &call).await;
    // The owner's word is lost: node 1 looks into the log.
    told(&mut waiter, |p| *p == Progress::Running).await;
    assert_eq!(test.nodes[1].cluster.waiting(), 0);
    // The owner finds the entry again, and the log knows the call.
    assert_eq!(run(&lease, None).await, call.id);
    assert!(test.nodes[0].log.call(call.id).await.expect("read").is_some());
    lease.tell(call.id, Progress::Running).await;
    idle(&lease).await;
    test.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_expire() {
    let mut test = TestCluster::redis(2).await;
    let _waiter = test.enqueue(0, &test.keyed("k", 1)).await;
    let _reader = test.nodes[1].open_reader(test.session).await.expect("watched");
    let _lease = test.lease(0).await;
    assert!(waits(&test).await == 1);
    let mut raw = test.raw().await;
    let keys: Vec<String> = raw.keys(format!("{}*", test.prefix)).await.expect("keys");
    assert!(keys.len() > 8, "{keys:?}");
    for key in keys {
        let (name, lives): (&str, i64) = (&key[test.prefix.len()..], raw.ttl(&key).await.expect("ttl"));
        let bounded = name == "world" || name == "nodes";
        assert_eq!(lives > 0 || (lives == 0 && name.starts_with("alive")), !bounded, "{name} lives for {lives}");
        assert!(!name.ends_with(":o") || lives <= LEASE.as_secs() as i64);
    }
    test.end().await;
}

/// However many wait: at a free gate the first is claimed without a look at the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_looks_at_the_first_call_alone() {
    let mut test = TestCluster::alone(1).await;
    let (calls, mut waiters) = ([(); LIMIT].map(|()| test.message()), Vec::new());
    for call in &calls {
        waiters.push(test.enqueue(0, call).await);
    }
    let lease = test.lease(0).await;
    test.nodes[0].freeze(true);
    let mut raw = test.raw().await;
    let _: () = redis::cmd("CONFIG").arg("RESETSTAT").query_async(&mut raw).await.expect("reset");
    assert_eq!(run(&lease, None).await, calls[0].id);
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut raw).await.expect("stats");
    let hget = stats.lines().find(|line| line.starts_with("cmdstat_hget:")).expect("entries were read");
    assert!(hget.starts_with("cmdstat_hget:calls=3,"), "what it is, who waits, the entry: {hget}");
    test.nodes[0].freeze(false);
    test.end().await;
}

/// A node whose way to Redis was broken accepts calls again before its next heartbeat has said that it is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_accepted_before_the_next_heartbeat_keeps_its_place() {
    let mut test = TestCluster::redis(2).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let lease = test.lease(0).await;
    test.nodes[1].freeze(true);
    let mut raw = test.raw().await;
    let alive: Vec<String> = raw.keys(format!("{}alive:*", test.prefix)).await.expect("keys");
    let _: u64 = raw.del(alive).await.expect("deleted");
    let calls = [test.message(), test.message()];
    let _waiters = [test.enqueue(1, &calls[0]).await, test.enqueue(0, &calls[1]).await];
    for call in &calls {
        assert_eq!(run(&lease, None).await, call.id);
        lease.tell(call.id, over()).await;
    }
    test.end().await;
}

/// However many of a node's calls wait in a session: each look finds all of them, and wakes the owner once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_wakes_an_owner_once() {
    let mut test = TestCluster::alone(2).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let lease = test.lease(0).await;
    let (calls, mut waiters) = ([(); LIMIT].map(|()| test.message()), Vec::new());
    for call in &calls {
        waiters.push(test.enqueue(1, call).await);
    }
    let mut raw = test.raw().await;
    let _: () = redis::cmd("CONFIG").arg("RESETSTAT").query_async(&mut raw).await.expect("reset");
    until("some looks", async || {
        let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut raw).await.expect("stats");
        let calls = |command: &str| -> usize {
            let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
            line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
        };
        let (wakes, found) = (calls("xadd"), calls("zscore"));
        if wakes < 4 {
            return Err((wakes, found));
        }
        assert!(found > wakes * (LIMIT - 1), "{found} calls found, {wakes} wakes");
        Ok(())
    })
    .await;
    assert_eq!(run(&lease, None).await, calls[0].id);
    test.end().await;
}
