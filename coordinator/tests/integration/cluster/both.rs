//! What either backend must do.

use crate::cluster::cast::{Cast, LIMIT, expired, held, idle, message, run, told};
use crate::world::{until, within};
use coordinator::cluster::Progress;
use coordinator::cluster::{Call, Claim, Rejected};
use engine::outcome::Outcome;
use engine::rpc::RpcError;
use engine::turn::Opening;

fn ended() -> Progress {
    Progress::Ended(7, Outcome::Unavailable)
}

fn refusal() -> RpcError {
    RpcError::not_open("closed")
}

pub async fn calls_start_in_the_order_of_their_arrival(cast: &mut Cast) {
    let calls = [cast.message(), cast.compact(), cast.message()];
    let mut waiters = Vec::new();
    for call in &calls {
        waiters.push(cast.enqueue(0, call).await);
    }
    let lease = cast.lease(0).await;
    assert_eq!(lease.session(), cast.session);
    assert_eq!(cast.nodes[0].cluster.waiting(), 3);
    for (call, waiter) in calls.iter().zip(&mut waiters) {
        assert_eq!(waiter.progress(), Progress::Queued);
        assert_eq!(run(&lease, None).await, call.id);
        lease.tell(call.id, Progress::Running).await;
        told(waiter, |p| *p == Progress::Running).await;
        lease.tell(call.id, ended()).await;
        told(waiter, |p| *p == ended()).await;
    }
    idle(&lease).await;
    assert_eq!(cast.nodes[0].cluster.waiting(), 0);
}

pub async fn only_so_many_wait(cast: &mut Cast) {
    let mut waiters = Vec::new();
    for _ in 0..LIMIT {
        waiters.push(cast.enqueue(0, &cast.message()).await);
    }
    assert_eq!(cast.try_enqueue(0, &cast.message()).await.err(), Some(Rejected::Full));
    let lease = cast.lease(0).await;
    let first = run(&lease, None).await;
    lease.tell(first, Progress::Running).await;
    cast.enqueue(0, &cast.message()).await;
}

pub async fn a_call_that_was_left_never_starts(cast: &mut Cast) {
    let (first, second) = (cast.message(), cast.message());
    let waiter = cast.enqueue(0, &first).await;
    let _second = cast.enqueue(0, &second).await;
    let lease = cast.lease(0).await;
    drop(waiter);
    until("one waits", async || match cast.nodes[0].cluster.waiting() {
        1 => Ok(()),
        n => Err(n),
    })
    .await;
    // Either it is dropped by now or it is claimed and runs; it is never both. What follows it is served in any case.
    let mut next = run(&lease, None).await;
    if next == first.id {
        lease.tell(first.id, Progress::Running).await;
        next = run(&lease, None).await;
    }
    assert_eq!(next, second.id);
    lease.tell(second.id, Progress::Running).await;
    idle(&lease).await;
    let waiter = cast.enqueue(0, &cast.message()).await;
    assert!(lease.wanted().await);
    drop(waiter);
    idle(&lease).await;
}

pub async fn a_claimed_call_is_not_dropped(cast: &mut Cast) {
    let call = cast.message();
    let waiter = cast.enqueue(0, &call).await;
    let lease = cast.lease(0).await;
    assert_eq!(run(&lease, None).await, call.id);
    drop(waiter);
    lease.tell(call.id, Progress::Running).await;
    let mut late = cast.nodes[0].cluster.follow(cast.session, call.id);
    lease.tell(call.id, ended()).await;
    told(&mut late, |p| *p == ended()).await;
    idle(&lease).await;
}

pub async fn nothing_is_given_back_for_nobody(cast: &mut Cast) {
    let (call, other) = (cast.message(), cast.message());
    let waiter = cast.enqueue(0, &call).await;
    let lease = cast.lease(0).await;
    assert_eq!(run(&lease, expired(cast.key)).await, call.id);
    drop(waiter);
    // What is done for the one that left is done before this.
    let _other = cast.enqueue(0, &other).await;
    until("the leaving is known", async || match cast.nodes[0].cluster.waiting() {
        1 => Ok(()),
        n => Err(n),
    })
    .await;
    settled(cast).await;
    lease.unclaim(call.id).await;
    assert_eq!(run(&lease, None).await, other.id, "the one that was left is dropped");
}

/// What was sent to Redis without waiting has arrived: a leaving behind it has.
async fn settled(cast: &Cast) {
    let session = cast.another().await;
    let waiter = cast.nodes[0].cluster.enqueue(session, message(cast.key)).await.expect("accepted");
    drop(waiter);
    if cast.prefix.is_empty() || cast.nodes[0].signals.is_none() {
        return;
    }
    let key = format!("{}{{{session}}}:q", cast.prefix);
    let mut raw = cast.raw().await;
    until("a leaving behind it has arrived", async || {
        match redis::cmd("EXISTS").arg(&key).query_async::<u8>(&mut raw).await {
            Ok(0) => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

pub async fn a_call_that_is_given_back_keeps_its_place(cast: &mut Cast) {
    let (first, second) = (cast.message(), cast.message());
    let _waiters = (cast.enqueue(0, &first).await, cast.enqueue(0, &second).await);
    let lease = cast.lease(0).await;
    assert_eq!(run(&lease, None).await, first.id);
    lease.unclaim(first.id).await;
    assert_eq!(run(&lease, None).await, first.id);
}

pub async fn a_retry_joins_the_first(cast: &mut Cast) {
    let (first, retry, other) = (cast.keyed("k", 1), cast.keyed("k", 1), cast.keyed("k", 2));
    let waiter = cast.enqueue(0, &first).await;
    let _behind = cast.enqueue(0, &cast.message()).await;
    let mut joined = cast.enqueue(0, &retry).await;
    assert_eq!(joined.call(), first.id);
    assert_eq!(cast.try_enqueue(0, &other).await.err(), Some(Rejected::OtherParams));
    let else_ones = Call { key: engine::ids::KeyId([9; 16]), ..cast.keyed("k", 2) };
    assert_eq!(cast.enqueue(0, &else_ones).await.call(), else_ones.id, "a key names a call of one client");
    drop(waiter);
    let lease = cast.lease(0).await;
    assert_eq!(run(&lease, None).await, first.id, "it keeps its place when the first caller leaves");
    lease.tell(first.id, Progress::Running).await;
    told(&mut joined, |p| *p == Progress::Running).await;
    lease.tell(first.id, ended()).await;
    told(&mut joined, |p| *p == ended()).await;
}

pub async fn a_pause_answers_compacts_and_waits_for_its_owner(cast: &mut Cast) {
    let other = cast.world.key(cast.world.profile().await).await;
    let calls = [message(other), cast.compact(), Call { opening: Opening::Compact(None), ..message(other) }];
    let mut waiters = Vec::new();
    for call in &calls {
        waiters.push(cast.enqueue(0, call).await);
    }
    let lease = cast.lease(0).await;
    let refused = until("compacts are answered", async || match lease.claim(held(cast.key)).await {
        Claim::Refuse(calls) => Ok(calls),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert_eq!(refused, [calls[1].id, calls[2].id]);
    for call in refused {
        lease.tell(call, Progress::Refused(refusal())).await;
    }
    for waiter in &mut waiters[1..] {
        told(waiter, |p| *p == Progress::Refused(refusal())).await;
    }
    assert!(matches!(lease.claim(held(cast.key)).await, Claim::Wait));
    assert!(lease.wanted().await);
    let answer = cast.message();
    let _answered = cast.enqueue(0, &answer).await;
    assert_eq!(run(&lease, held(cast.key)).await, answer.id);
}

pub async fn an_owners_answer_comes_first_past_the_deadline(cast: &mut Cast) {
    let other = cast.world.key(cast.world.profile().await).await;
    let (waits, compacts, answer) = (message(other), cast.compact(), cast.message());
    let _waiters = [cast.enqueue(0, &waits).await, cast.enqueue(0, &compacts).await, cast.enqueue(0, &answer).await];
    let lease = cast.lease(0).await;
    for expected in [answer, waits, compacts] {
        assert_eq!(run(&lease, expired(cast.key)).await, expected.id);
        lease.tell(expected.id, Progress::Running).await;
    }
}

pub async fn a_stop_answers_everybody(cast: &mut Cast) {
    let (first, second) = (cast.message(), cast.message());
    let _running = cast.enqueue(0, &first).await;
    let mut waiting = cast.enqueue(0, &second).await;
    let lease = cast.lease(0).await;
    assert_eq!(run(&lease, None).await, first.id);
    lease.tell(first.id, Progress::Running).await;
    let (cluster, session) = (cast.nodes[0].cluster.clone(), cast.session);
    let stopping = tokio::spawn(async move { cluster.stop(session, &refusal()).await });
    told(&mut waiting, |p| *p == Progress::Refused(refusal())).await;
    within("the owner is told", lease.stop.cancelled()).await;
    assert!(!stopping.is_finished(), "it waits for the owner");
    drop(lease);
    within("the stop ends", stopping).await.expect("no panic");
    assert_eq!(cast.nodes[0].cluster.waiting(), 0);
}

pub async fn a_revoked_keys_calls_are_dropped(cast: &mut Cast) {
    let other = cast.world.key(cast.world.profile().await).await;
    let (theirs, mine) = (message(other), cast.message());
    let mut dropped = cast.enqueue(0, &theirs).await;
    let _waits = cast.enqueue(0, &mine).await;
    let lease = cast.lease(0).await;
    cast.nodes[0].cluster.revoked(other, &refusal()).await;
    told(&mut dropped, |p| *p == Progress::Refused(refusal())).await;
    settled(cast).await;
    assert_eq!(run(&lease, None).await, mine.id);
}

pub async fn one_lease_at_a_time(cast: &mut Cast) {
    let _first = cast.enqueue(0, &cast.message()).await;
    let lease = cast.lease(0).await;
    let _second = cast.enqueue(0, &cast.message()).await;
    within("the owner is woken", lease.woken()).await;
    cast.nodes[0].cluster.adopt(cast.session).await;
    cast.no_lease(0);
    let name = cast.nodes[0].name.clone();
    assert_eq!(cast.nodes[0].cluster.owner(cast.session).await.expect("answered"), Some(name));
    assert!(lease.confirm().await && lease.may_act(1).await);
}

pub async fn a_lease_with_waiting_calls_is_not_given_up(cast: &mut Cast) {
    let call = cast.message();
    let waiter = cast.enqueue(0, &call).await;
    let lease = cast.lease(0).await;
    let lease = lease.release().await.expect_err("somebody waits");
    drop(waiter);
    idle(&lease).await;
    assert!(lease.release().await.is_ok());
    let cluster = cast.nodes[0].cluster.clone();
    until("nobody owns it", async || match cluster.owner(cast.session).await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

pub async fn an_owner_that_panicked_is_replaced(cast: &mut Cast) {
    let call = cast.message();
    let _waiter = cast.enqueue(0, &call).await;
    let lease = cast.lease(0).await;
    let panicked = tokio::spawn(async move {
        let _lease = lease;
        std::panic::panic_any("on purpose");
    });
    assert!(panicked.await.is_err());
    let lease = cast.lease(0).await;
    assert_eq!(run(&lease, None).await, call.id);
}

/// Whatever is still on its way about the lease that was given up, it is not the next one that ends.
pub async fn calls_are_served_again_right_after_a_release(cast: &mut Cast) {
    for _ in 0..20 {
        let call = cast.message();
        let waiter = cast.enqueue(0, &call).await;
        let lease = cast.lease(0).await;
        assert!(lease.confirm().await, "a lease that was taken");
        assert_eq!(run(&lease, None).await, call.id);
        lease.tell(call.id, Progress::Running).await;
        lease.tell(call.id, ended()).await;
        drop(waiter);
        assert!(lease.release().await.is_ok());
    }
}
