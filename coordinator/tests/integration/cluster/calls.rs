//! Calls that wait, between several nodes.

use crate::cluster::cast::{Cast, LEASE, LIMIT, idle, over, run, told};
use crate::world::{until, within};
use coordinator::cluster::Progress;
use coordinator::cluster::{Claim, Rejected};
use engine::outcome::Outcome;
use engine::rpc::RpcError;
use redis::AsyncCommands;

async fn waits(cast: &Cast) -> u64 {
    cast.raw().await.zcard(cast.at("q")).await.expect("counted")
}

/// A call's own append has been committed by its owner, on that node.
async fn started(cast: &Cast, node: usize, call: &coordinator::cluster::Call) -> coordinator::log::Append {
    let log = &cast.nodes[node].log;
    let row = log.row(cast.session).await.expect("a row");
    let row = log.take(cast.session, row.epoch).await.expect("taken");
    let mut append = crate::world::opening(cast.session, row.epoch, call.key, engine::gate::GateFound::Free);
    append.call = call.id;
    log.append(append.clone()).await.expect("opened");
    append
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_all_nodes_start_in_their_order() {
    let mut cast = Cast::redis(3).await;
    let calls = [cast.message(), cast.message(), cast.message(), cast.message()];
    let mut waiters = Vec::new();
    for (n, call) in calls.iter().enumerate() {
        waiters.push(cast.enqueue(n % 3, call).await);
    }
    let lease = cast.lease(0).await;
    for call in &calls[..2] {
        assert_eq!(run(&lease, None).await, call.id);
        lease.tell(call.id, over()).await;
    }
    // Another owner goes on where the first stopped.
    lease.hand_over();
    let node = until("another owner", async || {
        let owner = cast.nodes[1].cluster.owner(cast.session).await.expect("answered");
        cast.nodes.iter().position(|node| Some(&node.name) == owner.as_ref()).filter(|node| *node != 0).ok_or(owner)
    })
    .await;
    let lease = cast.lease(node).await;
    for call in &calls[2..] {
        assert_eq!(run(&lease, None).await, call.id);
        lease.tell(call.id, over()).await;
    }
    cast.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_on_another_node_joins_and_keeps_the_place() {
    let mut cast = Cast::redis(2).await;
    let first = cast.keyed("k", 1);
    let waiter = cast.enqueue(0, &first).await;
    let _behind = cast.enqueue(0, &cast.message()).await;
    let mut joined = cast.enqueue(1, &cast.keyed("k", 1)).await;
    assert_eq!(joined.call(), first.id);
    assert_eq!(cast.try_enqueue(1, &cast.keyed("k", 2)).await.err(), Some(Rejected::OtherParams));
    drop(waiter);
    let lease = cast.lease(0).await;
    until("the first caller has left", async || match cast.nodes[0].cluster.waiting() {
        1 => Ok(()),
        n => Err(n),
    })
    .await;
    assert_eq!(run(&lease, None).await, first.id);
    lease.tell(first.id, Progress::Refused(RpcError::internal())).await;
    told(&mut joined, |p| *p == Progress::Refused(RpcError::internal())).await;
    cast.end().await;
}

/// Also when only the retry is left to make it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joined_call_outlives_its_node_and_an_emptied_redis() {
    let mut cast = Cast::alone(2).await;
    let first = cast.keyed("k", 1);
    let _waiter = cast.enqueue(0, &first).await;
    let _lease = cast.lease(0).await;
    let _joined = cast.enqueue(1, &cast.keyed("k", 1)).await;
    cast.nodes[0].kill();
    cast.flush().await;
    let lease = cast.lease(1).await;
    assert_eq!(run(&lease, None).await, first.id);
    cast.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_nodes_call_is_skipped_and_a_frozen_ones_accepted_anew() {
    let mut cast = Cast::redis(2).await;
    let (frozen, next) = (cast.message(), cast.message());
    let mut theirs = cast.enqueue(1, &frozen).await;
    let lease = cast.lease(1).await;
    assert!(lease.release().await.is_err(), "somebody waits");
    cast.nodes[1].freeze(true);
    let _next = cast.enqueue(0, &next).await;
    let lease = cast.lease(0).await;
    assert_eq!(run(&lease, None).await, next.id, "the frozen node counts as dead");
    lease.tell(next.id, over()).await;
    idle(&lease).await;
    assert_eq!(theirs.progress(), Progress::Queued);
    cast.nodes[1].freeze(false);
    assert_eq!(run(&lease, None).await, frozen.id, "its client still waits");
    lease.tell(frozen.id, Progress::Refused(RpcError::internal())).await;
    told(&mut theirs, |p| *p == Progress::Refused(RpcError::internal())).await;
    cast.end().await;
}

/// Dropped and never claimed, or claimed and run: never both, never neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_and_claiming_exclude_each_other() {
    let mut cast = Cast::redis(2).await;
    let keep = cast.enqueue(0, &cast.message()).await;
    let lease = cast.lease(0).await;
    let first = run(&lease, None).await;
    lease.tell(first, over()).await;
    for _ in 0..40 {
        let call = cast.message();
        let waiter = cast.enqueue(1, &call).await;
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
    cast.end().await;
}

/// A claim by an owner that died before it recorded anything binds nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_owners_claim_does_not_keep_a_call_that_is_left() {
    let mut cast = Cast::redis(2).await;
    let (call, next) = (cast.message(), cast.message());
    cast.nodes[1].cluster.adopt(cast.session).await;
    let waiter = cast.enqueue(0, &call).await;
    let lease = cast.lease(1).await;
    assert_eq!(run(&lease, None).await, call.id);
    cast.nodes[1].kill();
    drop(waiter);
    let _next = cast.enqueue(0, &next).await;
    let lease = cast.lease(0).await;
    assert_eq!(run(&lease, None).await, next.id, "nobody waits for the other");
    lease.tell(next.id, over()).await;
    idle(&lease).await;
    cast.end().await;
}

/// Nothing depends on one wake-up: the owner died between two calls, or its inbox was trimmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_wake_up_is_made_good() {
    let mut cast = Cast::redis(2).await;
    cast.nodes[0].cluster.adopt(cast.session).await;
    let lease = cast.lease(0).await;
    idle(&lease).await;
    // The first wake-up is deleted before it can be read.
    cast.nodes[0].freeze(true);
    let call = cast.message();
    let _waiter = cast.enqueue(1, &call).await;
    let inbox = format!("{}inbox:{}", cast.prefix, cast.nodes[0].name);
    let _: u64 = cast.raw().await.del(inbox).await.expect("deleted");
    cast.nodes[0].freeze(false);
    within("the owner is woken again", lease.woken()).await;
    assert_eq!(run(&lease, None).await, call.id);
    lease.tell(call.id, over()).await;
    let next = cast.message();
    let _next = cast.enqueue(1, &next).await;
    cast.nodes[0].kill();
    let lease = cast.lease(1).await;
    assert_eq!(run(&lease, None).await, next.id);
    cast.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_elsewhere_follow_start_and_end() {
    let mut cast = Cast::redis(2).await;
    cast.nodes[0].cluster.adopt(cast.session).await;
    let call = cast.message();
    let (_reader, _) = cast.nodes[1].open_reader(cast.session).await.expect("watched");
    let mut waiter = cast.enqueue(1, &call).await;
    let lease = cast.lease(0).await;
    assert_eq!(run(&lease, None).await, call.id);
    let append = started(&cast, 0, &call).await;
    told(&mut waiter, |p| *p == Progress::Running).await;
    lease.tell(call.id, Progress::Running).await;
    cast.nodes[0].log.append(crate::world::going_on(&append, Some(crate::world::ended()))).await.expect("ended");
    assert_eq!(told(&mut waiter, |p| matches!(p, Progress::Ended(..))).await, Progress::Ended(3, Outcome::Unavailable));
    assert_eq!(waits(&cast).await, 0);
    cast.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loser_follows_the_winner_elsewhere() {
    let mut cast = Cast::redis(2).await;
    cast.nodes[0].cluster.adopt(cast.session).await;
    let (call, winner) = (cast.message(), cast.message());
    let mut waiter = cast.enqueue(1, &call).await;
    let lease = cast.lease(0).await;
    assert_eq!(run(&lease, None).await, call.id);
    lease.tell(call.id, Progress::Follow(winner.id)).await;
    told(&mut waiter, |p| *p == Progress::Follow(winner.id)).await;
    assert_eq!(waits(&cast).await, 0);
    cast.end().await;
}

/// Each waiter is told about its own call: one that came after is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_elsewhere_is_refused_by_name() {
    let mut cast = Cast::redis(2).await;
    cast.nodes[0].cluster.adopt(cast.session).await;
    let lease = cast.lease(0).await;
    let mut early = [cast.enqueue(1, &cast.message()).await, cast.enqueue(1, &cast.message()).await];
    cast.nodes[1].freeze(true);
    lease.refuse_all(&RpcError::internal()).await;
    let late = cast.message();
    let waiter = cast.enqueue(1, &late).await;
    cast.nodes[1].freeze(false);
    for waiter in &mut early {
        told(waiter, |p| *p == Progress::Refused(RpcError::internal())).await;
    }
    assert_eq!(run(&lease, None).await, late.id);
    assert_eq!(waiter.progress(), Progress::Queued);
    cast.end().await;
}

/// A queue entry that outlived the start of its call goes away, whoever made it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_started_call_does_not_stay_in_the_queue() {
    let mut cast = Cast::redis(2).await;
    cast.nodes[0].cluster.adopt(cast.session).await;
    let call = cast.message();
    let mut waiter = cast.enqueue(1, &call).await;
    let lease = cast.lease(0).await;
    assert_eq!(run(&lease, None).await, call.id);
    started(&cast, 0, &call).await;
    // The owner's word is lost: node 1 looks into the log.
    told(&mut waiter, |p| *p == Progress::Running).await;
    assert_eq!(cast.nodes[1].cluster.waiting(), 0);
    // The owner finds the entry again, and the log knows the call.
    assert_eq!(run(&lease, None).await, call.id);
    assert!(cast.nodes[0].log.call(call.id).await.expect("read").is_some());
    lease.tell(call.id, Progress::Running).await;
    idle(&lease).await;
    cast.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_expire() {
    let mut cast = Cast::redis(2).await;
    let _waiter = cast.enqueue(0, &cast.keyed("k", 1)).await;
    let _reader = cast.nodes[1].open_reader(cast.session).await.expect("watched");
    let _lease = cast.lease(0).await;
    assert!(waits(&cast).await == 1);
    let mut raw = cast.raw().await;
    let keys: Vec<String> = raw.keys(format!("{}*", cast.prefix)).await.expect("keys");
    assert!(keys.len() > 8, "{keys:?}");
    for key in keys {
        let (name, lives): (&str, i64) = (&key[cast.prefix.len()..], raw.ttl(&key).await.expect("ttl"));
        let bounded = name == "world" || name == "nodes";
        assert_eq!(lives > 0 || (lives == 0 && name.starts_with("alive")), !bounded, "{name} lives for {lives}");
        assert!(!name.ends_with(":o") || lives <= LEASE.as_secs() as i64);
    }
    cast.end().await;
}

/// However many wait: at a free gate the first is claimed without a look at the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_looks_at_the_first_call_alone() {
    let mut cast = Cast::alone(1).await;
    let (calls, mut waiters) = ([(); LIMIT].map(|()| cast.message()), Vec::new());
    for call in &calls {
        waiters.push(cast.enqueue(0, call).await);
    }
    let lease = cast.lease(0).await;
    cast.nodes[0].freeze(true);
    let mut raw = cast.raw().await;
    let _: () = redis::cmd("CONFIG").arg("RESETSTAT").query_async(&mut raw).await.expect("reset");
    assert_eq!(run(&lease, None).await, calls[0].id);
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut raw).await.expect("stats");
    let hget = stats.lines().find(|line| line.starts_with("cmdstat_hget:")).expect("entries were read");
    assert!(hget.starts_with("cmdstat_hget:calls=3,"), "what it is, who waits, the entry: {hget}");
    cast.nodes[0].freeze(false);
    cast.end().await;
}

/// A node whose way to Redis was broken accepts calls again before its next heartbeat has said that it is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_accepted_before_the_next_heartbeat_keeps_its_place() {
    let mut cast = Cast::redis(2).await;
    cast.nodes[0].cluster.adopt(cast.session).await;
    let lease = cast.lease(0).await;
    cast.nodes[1].freeze(true);
    let mut raw = cast.raw().await;
    let alive: Vec<String> = raw.keys(format!("{}alive:*", cast.prefix)).await.expect("keys");
    let _: u64 = raw.del(alive).await.expect("deleted");
    let calls = [cast.message(), cast.message()];
    let _waiters = [cast.enqueue(1, &calls[0]).await, cast.enqueue(0, &calls[1]).await];
    for call in &calls {
        assert_eq!(run(&lease, None).await, call.id);
        lease.tell(call.id, over()).await;
    }
    cast.end().await;
}

/// However many of a node's calls wait in a session: each look finds all of them, and wakes the owner once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_wakes_an_owner_once() {
    let mut cast = Cast::alone(2).await;
    cast.nodes[0].cluster.adopt(cast.session).await;
    let lease = cast.lease(0).await;
    let (calls, mut waiters) = ([(); LIMIT].map(|()| cast.message()), Vec::new());
    for call in &calls {
        waiters.push(cast.enqueue(1, call).await);
    }
    let mut raw = cast.raw().await;
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
    cast.end().await;
}
