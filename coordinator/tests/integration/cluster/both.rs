//! What either backend must do.

use crate::cluster::test_cluster::{LIMIT, TestCluster, expired, held, idle, message, run, told};
use crate::fixture::{until, within};
use coordinator::cluster::Progress;
use coordinator::cluster::{Call, Claim, Rejected};
use coordinator::log::Epoch;
use engine::event::EventNumber;
use engine::outcome::Outcome;
use engine::rpc::RpcError;
use engine::turn::Opening;

fn ended() -> Progress {
    Progress::Ended(EventNumber(7), Outcome::Unavailable)
}

fn refusal() -> RpcError {
    RpcError::not_open("closed")
}

pub(super) async fn calls_start_in_the_order_of_their_arrival(test: &mut TestCluster) {
    let calls = [test.message(), test.compact(), test.message()];
    let mut waiters = Vec::new();
    for call in &calls {
        waiters.push(test.enqueue(0, call).await);
    }
    let lease = test.lease(0).await;
    assert_eq!(lease.session(), test.session);
    assert_eq!(test.nodes[0].cluster.waiting(), 3);
    for (call, waiter) in calls.iter().zip(&mut waiters) {
        assert_eq!(waiter.progress(), Progress::Queued);
        assert_eq!(run(&lease, None).await, call.id);
        lease.tell(call.id, Progress::Running).await;
        told(waiter, |p| *p == Progress::Running).await;
        lease.tell(call.id, ended()).await;
        told(waiter, |p| *p == ended()).await;
    }
    idle(&lease).await;
    assert_eq!(test.nodes[0].cluster.waiting(), 0);
}

pub(super) async fn only_so_many_wait(test: &mut TestCluster) {
    let mut waiters = Vec::new();
    for _ in 0..LIMIT {
        waiters.push(test.enqueue(0, &test.message()).await);
    }
    assert_eq!(test.try_enqueue(0, &test.message()).await.err(), Some(Rejected::Full));
    let lease = test.lease(0).await;
    let first = run(&lease, None).await;
    lease.tell(first, Progress::Running).await;
    test.enqueue(0, &test.message()).await;
}

pub(super) async fn a_call_that_was_left_never_starts(test: &mut TestCluster) {
    let (first, second) = (test.message(), test.message());
    let waiter = test.enqueue(0, &first).await;
    let _second = test.enqueue(0, &second).await;
    let lease = test.lease(0).await;
    drop(waiter);
    until("one waits", async || match test.nodes[0].cluster.waiting() {
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
    let waiter = test.enqueue(0, &test.message()).await;
    assert!(lease.wanted().await);
    drop(waiter);
    idle(&lease).await;
}

pub(super) async fn a_claimed_call_is_not_dropped(test: &mut TestCluster) {
    let call = test.message();
    let waiter = test.enqueue(0, &call).await;
    let lease = test.lease(0).await;
    assert_eq!(run(&lease, None).await, call.id);
    drop(waiter);
    lease.tell(call.id, Progress::Running).await;
    let mut late = test.nodes[0].cluster.follow(test.session, call.id);
    lease.tell(call.id, ended()).await;
    told(&mut late, |p| *p == ended()).await;
    idle(&lease).await;
}

pub(super) async fn nothing_is_given_back_for_nobody(test: &mut TestCluster) {
    let (call, other) = (test.message(), test.message());
    let waiter = test.enqueue(0, &call).await;
    let lease = test.lease(0).await;
    assert_eq!(run(&lease, expired(test.key)).await, call.id);
    drop(waiter);
    // What is done for the one that left is done before this.
    let _other = test.enqueue(0, &other).await;
    until("the leaving is known", async || match test.nodes[0].cluster.waiting() {
        1 => Ok(()),
        n => Err(n),
    })
    .await;
    await_earlier_commands(test).await;
    lease.unclaim(call.id).await;
    assert_eq!(run(&lease, None).await, other.id, "the one that was left is dropped");
}

/// Waits until what was sent to Redis before has arrived: commands arrive in order, and one sent now has.
async fn await_earlier_commands(test: &TestCluster) {
    let session = test.another().await;
    let waiter = test.nodes[0].cluster.enqueue(session, message(test.key)).await.expect("accepted");
    drop(waiter);
    if test.prefix.is_empty() || test.nodes[0].signals.is_none() {
        return;
    }
    let key = format!("{}{{{session}}}:q", test.prefix);
    let mut raw = test.raw().await;
    until("a leaving behind it has arrived", async || {
        match redis::cmd("EXISTS").arg(&key).query_async::<u8>(&mut raw).await {
            Ok(0) => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

pub(super) async fn a_call_that_is_given_back_keeps_its_place(test: &mut TestCluster) {
    let (first, second) = (test.message(), test.message());
    let _waiters = (test.enqueue(0, &first).await, test.enqueue(0, &second).await);
    let lease = test.lease(0).await;
    assert_eq!(run(&lease, None).await, first.id);
    lease.unclaim(first.id).await;
    assert_eq!(run(&lease, None).await, first.id);
}

pub(super) async fn a_retry_joins_the_first(test: &mut TestCluster) {
    let (first, retry, other) = (test.keyed("k", 1), test.keyed("k", 1), test.keyed("k", 2));
    let waiter = test.enqueue(0, &first).await;
    let _behind = test.enqueue(0, &test.message()).await;
    let mut joined = test.enqueue(0, &retry).await;
    assert_eq!(joined.call(), first.id);
    assert_eq!(test.try_enqueue(0, &other).await.err(), Some(Rejected::OtherParams));
    let else_ones = Call { key: engine::ids::KeyId([9; 16]), ..test.keyed("k", 2) };
    assert_eq!(test.enqueue(0, &else_ones).await.call(), else_ones.id, "a key names a call of one client");
    drop(waiter);
    let lease = test.lease(0).await;
    assert_eq!(run(&lease, None).await, first.id, "it keeps its place when the first caller leaves");
    lease.tell(first.id, Progress::Running).await;
    told(&mut joined, |p| *p == Progress::Running).await;
    lease.tell(first.id, ended()).await;
    told(&mut joined, |p| *p == ended()).await;
}

pub(super) async fn a_pause_answers_compacts_and_waits_for_its_owner(test: &mut TestCluster) {
    let other = test.fixture.key(test.fixture.profile().await).await;
    let calls = [message(other), test.compact(), Call { opening: Opening::Compact(None), ..message(other) }];
    let mut waiters = Vec::new();
    for call in &calls {
        waiters.push(test.enqueue(0, call).await);
    }
    let lease = test.lease(0).await;
    let refused = until("compacts are answered", async || match lease.claim(held(test.key)).await {
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
    assert!(matches!(lease.claim(held(test.key)).await, Claim::Wait));
    assert!(lease.wanted().await);
    let answer = test.message();
    let _answered = test.enqueue(0, &answer).await;
    assert_eq!(run(&lease, held(test.key)).await, answer.id);
}

pub(super) async fn an_owners_answer_comes_first_past_the_deadline(test: &mut TestCluster) {
    let other = test.fixture.key(test.fixture.profile().await).await;
    let (waits, compacts, answer) = (message(other), test.compact(), test.message());
    let _waiters = [test.enqueue(0, &waits).await, test.enqueue(0, &compacts).await, test.enqueue(0, &answer).await];
    let lease = test.lease(0).await;
    for expected in [answer, waits, compacts] {
        assert_eq!(run(&lease, expired(test.key)).await, expected.id);
        lease.tell(expected.id, Progress::Running).await;
    }
}

pub(super) async fn a_stop_answers_everybody(test: &mut TestCluster) {
    let (first, second) = (test.message(), test.message());
    let _running = test.enqueue(0, &first).await;
    let mut waiting = test.enqueue(0, &second).await;
    let lease = test.lease(0).await;
    assert_eq!(run(&lease, None).await, first.id);
    lease.tell(first.id, Progress::Running).await;
    let (cluster, session) = (test.nodes[0].cluster.clone(), test.session);
    let stopping = tokio::spawn(async move { cluster.stop(session, &refusal()).await });
    told(&mut waiting, |p| *p == Progress::Refused(refusal())).await;
    within("the owner is told", lease.stop.cancelled()).await;
    assert!(!stopping.is_finished(), "it waits for the owner");
    drop(lease);
    within("the stop ends", stopping).await.expect("no panic");
    assert_eq!(test.nodes[0].cluster.waiting(), 0);
}

pub(super) async fn a_revoked_keys_calls_are_dropped(test: &mut TestCluster) {
    let other = test.fixture.key(test.fixture.profile().await).await;
    let (theirs, mine) = (message(other), test.message());
    let mut dropped = test.enqueue(0, &theirs).await;
    let _waits = test.enqueue(0, &mine).await;
    let lease = test.lease(0).await;
    test.nodes[0].cluster.revoked(other, &refusal()).await;
    told(&mut dropped, |p| *p == Progress::Refused(refusal())).await;
    await_earlier_commands(test).await;
    assert_eq!(run(&lease, None).await, mine.id);
}

pub(super) async fn one_lease_at_a_time(test: &mut TestCluster) {
    let _first = test.enqueue(0, &test.message()).await;
    let lease = test.lease(0).await;
    let _second = test.enqueue(0, &test.message()).await;
    within("the owner is woken", lease.woken()).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    test.no_lease(0);
    let name = test.nodes[0].name.clone();
    assert_eq!(test.nodes[0].cluster.owner(test.session).await.expect("answered"), Some(name));
    assert!(lease.confirm().await && lease.may_act(Epoch::UNOWNED.next()).await);
}

pub(super) async fn a_lease_with_waiting_calls_is_not_given_up(test: &mut TestCluster) {
    let call = test.message();
    let waiter = test.enqueue(0, &call).await;
    let lease = test.lease(0).await;
    let lease = lease.release().await.expect_err("somebody waits");
    drop(waiter);
    idle(&lease).await;
    assert!(lease.release().await.is_ok());
    let cluster = test.nodes[0].cluster.clone();
    until("nobody owns it", async || match cluster.owner(test.session).await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

pub(super) async fn an_owner_that_panicked_is_replaced(test: &mut TestCluster) {
    let call = test.message();
    let _waiter = test.enqueue(0, &call).await;
    let lease = test.lease(0).await;
    let panicked = tokio::spawn(async move {
        let _lease = lease;
        std::panic::panic_any("on purpose");
    });
    assert!(panicked.await.is_err());
    let lease = test.lease(0).await;
    assert_eq!(run(&lease, None).await, call.id);
}

/// Whatever is still on its way about the lease that was given up, it is not the next one that ends.
pub(super) async fn calls_are_served_again_right_after_a_release(test: &mut TestCluster) {
    for _ in 0..20 {
        let call = test.message();
        let waiter = test.enqueue(0, &call).await;
        let lease = test.lease(0).await;
        assert!(lease.confirm().await, "a lease that was taken");
        assert_eq!(run(&lease, None).await, call.id);
        lease.tell(call.id, Progress::Running).await;
        lease.tell(call.id, ended()).await;
        drop(waiter);
        assert!(lease.release().await.is_ok());
    }
}
