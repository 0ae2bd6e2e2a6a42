//! Redis emptied, restarted, stopped, stalled.

use crate::cluster::test_cluster::{LEASE, LIMIT, TestCluster, idle, over, run};
use crate::fixture::{until, within};
use coordinator::cluster::Progress;
use coordinator::cluster::{Claim, Rejected};
use coordinator::log::Epoch;
use sqlx::{Connection, Executor};
use std::time::Duration;
use tokio::time::Instant;

/// Two calls wait behind a turn when Redis forgets everything, and a third call comes first. The calls keep their
/// order.
async fn order_survives(test: &mut TestCluster, forget: impl AsyncFnOnce(&mut TestCluster)) {
    let mut busy = test.busy().await;
    forget(test).await;
    let third = test.message();
    let _third = test.enqueue(1, &third).await;
    busy.waiting.push(third);
    assert!(matches!(busy.lease.claim(None).await, Claim::Wait), "no call is claimed in the grace period");
    test.nodes[1].cluster.ensure_owner(test.session).await;
    test.no_lease(1);
    assert!(!busy.lease.lost.is_cancelled(), "the running turn goes on");
    assert!(busy.lease.may_act(busy.epoch).await);
    busy.serves_all_in_order().await;
    test.no_lease(1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_changes_no_order() {
    let mut test = TestCluster::alone(2).await;
    order_survives(&mut test, async |test| test.flush().await).await;
    test.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_redis_changes_no_order() {
    let mut test = TestCluster::alone(2).await;
    order_survives(&mut test, async |test| {
        let mut server = test.server.take().expect("a server");
        let server = tokio::task::spawn_blocking(move || {
            server.stop();
            server.run();
            server
        });
        test.server = Some(server.await.expect("restarted"));
    })
    .await;
    test.end().await;
}

/// Two nodes meet in a new fixture: nobody takes a session with an open turn before its owner could say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_takes_an_unfinished_turn_after_a_new_server_run() {
    let mut test = TestCluster::alone(2).await;
    test.flush().await;
    test.nodes[1].cluster.ensure_owner(test.session).await;
    test.no_lease(1);
    let lost = Instant::now();
    let lease = until("the grace period is over", async || {
        test.nodes[1].cluster.ensure_owner(test.session).await;
        test.nodes[1].leases.try_recv().map_err(|error| error.to_string())
    })
    .await;
    assert!(lost.elapsed() > LEASE / 2, "after {:?}", lost.elapsed());
    assert!(lease.confirm().await);
    test.end().await;
}

/// A node that starts alone need not wait for anybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_node_starts_at_once() {
    let started = Instant::now();
    let mut test = TestCluster::redis(1).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let _lease = test.lease(0).await;
    assert!(started.elapsed() < LEASE + Duration::from_secs(3));
    let grace_period: bool =
        redis::cmd("EXISTS").arg(format!("{}settling", test.prefix)).query_async(&mut test.raw().await).await.unwrap();
    assert!(!grace_period);
    test.end().await;
}

/// Calls wait, then are told so; what was accepted and what runs goes on; what was left meanwhile is not run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs() {
    let mut test = TestCluster::alone(2).await;
    let (accepted, left) = (test.message(), test.message());
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let lease = test.lease(0).await;
    let earlier = test.fixture.log.row(test.session).await.unwrap().epoch;
    let row = test.fixture.own(test.session).await;
    assert!(lease.may_act(row.epoch).await);
    let _accepted = test.enqueue(1, &accepted).await;
    let leaves = test.enqueue(1, &left).await;
    test.server.as_ref().unwrap().signal("STOP");
    drop(leaves);
    let asked = Instant::now();
    let many = futures_util::future::join_all((0..4).map(|_| async {
        let call = test.message();
        test.try_enqueue(0, &call).await.err()
    }));
    assert_eq!(many.await, [Some(Rejected::CoordinationUnavailable); 4]);
    let (waited, bound) = (asked.elapsed(), Duration::from_secs(10));
    assert!(waited >= bound && waited < bound + Duration::from_secs(4), "{waited:?}");
    assert!(waited > LEASE && lease.may_act(row.epoch).await, "nobody took over, says the database");
    assert!(!lease.may_act(earlier).await, "and it is asked");
    within("a word that nobody hears is not waited for", lease.tell(test.message().id, Progress::Running)).await;
    test.server.as_ref().unwrap().signal("CONT");
    until("redis is back", async || test.nodes[0].cluster.nodes().await.map(drop)).await;
    assert!(lease.may_act(row.epoch).await, "the turn goes on at once");
    assert_eq!(run(&lease, None).await, accepted.id);
    lease.tell(accepted.id, over()).await;
    idle(&lease).await;
    assert!(!lease.lost.is_cancelled());
    test.end().await;
}

/// The memory is full: leases are kept and nodes count as alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_loses_no_lease() {
    let mut test = TestCluster::alone(2).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let lease = test.lease(0).await;
    let mut raw = test.raw().await;
    let set = |bytes: &str| redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).to_owned();
    let _: String = set("1").query_async(&mut raw).await.expect("set");
    let end = Instant::now() + 2 * LEASE;
    until("two lease times are over", async || if Instant::now() > end { Ok(()) } else { Err(()) }).await;
    assert!(lease.may_act(Epoch::UNOWNED.next()).await && lease.confirm().await && !lease.lost.is_cancelled());
    assert_eq!(test.nodes[1].cluster.nodes().await.expect("answered").len(), 2);
    let _: String = set("0").query_async(&mut raw).await.expect("set");
    let call = test.message();
    let _waiter = test.enqueue(1, &call).await;
    assert_eq!(run(&lease, None).await, call.id);
    test.end().await;
}

/// Another server's clock is behind: what it has to tell is heard all the same, and what was heard takes no room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_goes_on_under_another_clock() {
    let mut test = TestCluster::alone(2).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let lease = test.lease(0).await;
    let inbox = format!("{}inbox:{}", test.prefix, test.nodes[0].name);
    let wake = format!("{{\"v\":1,\"frame\":{{\"Wake\":\"{}\"}}}}", test.session);
    let late = ["99999999999999-0", "99999999999999-1"];
    for id in late {
        let add = redis::cmd("XADD").arg(&inbox).arg(id).arg("f").arg(&wake).to_owned();
        let _: String = add.query_async(&mut test.raw().await).await.expect("added");
    }
    within("it is heard", lease.woken()).await;
    until("it is trimmed", async || {
        match redis::cmd("XLEN").arg(&inbox).query_async::<u64>(&mut test.raw().await).await {
            Ok(0) => Ok(()),
            other => Err(other),
        }
    })
    .await;
    let mut server = test.server.take().expect("a server");
    let restarted = tokio::task::spawn_blocking(move || {
        server.stop();
        server.run();
        server
    });
    test.server = Some(restarted.await.expect("restarted"));
    let call = test.message();
    let _waiter = test.enqueue(1, &call).await;
    assert_eq!(run(&lease, None).await, call.id);
    lease.tell(call.id, over()).await;
    // From here on nothing but the inbox tells of this.
    test.nodes[1].cluster.revoked(test.key, &engine::rpc::RpcError::internal()).await;
    let signals = test.nodes[0].signals.as_mut().expect("a node of a cluster");
    assert!(within("a signal", signals.recv()).await.is_some());
    test.end().await;
}

/// The next master knows what the last one knew, but for what was written last; whoever meets it first finds that out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_over_server_has_a_grace_period_before_any_heartbeat() {
    let mut test = TestCluster::alone(2).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let lease = test.lease(0).await;
    let call = test.message();
    let _waiter = test.enqueue(1, &call).await;
    assert_eq!(run(&lease, None).await, call.id);
    lease.unclaim(call.id).await;
    for node in &test.nodes {
        node.freeze(true);
    }
    let known_run = format!("{}world", test.prefix);
    let (mut raw, last) = (test.raw().await, "0123456789abcdef0123456789abcdef01234567");
    let _: () = redis::cmd("SET").arg(&known_run).arg(last).query_async(&mut raw).await.expect("set");
    assert!(matches!(lease.claim(None).await, Claim::Wait), "no call is claimed in the grace period");
    for node in &test.nodes {
        node.freeze(false);
    }
    assert_eq!(run(&lease, None).await, call.id);
    lease.tell(call.id, over()).await;
    test.end().await;
}

/// What was accepted comes back before what is new, into a queue that is full by then, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_takes_back_what_it_had_accepted() {
    let mut test = TestCluster::alone(2).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let lease = test.lease(0).await;
    let row = test.fixture.own(test.session).await;
    assert!(lease.may_act(row.epoch).await);
    let (mut calls, mut waiters) = (Vec::new(), Vec::new());
    for _ in 0..LIMIT {
        calls.push(test.message());
        waiters.push(test.enqueue(1, calls.last().unwrap()).await);
    }
    test.nodes[1].freeze(true);
    test.flush().await;
    for _ in 0..LIMIT {
        calls.push(test.message());
        waiters.push(test.enqueue(0, calls.last().unwrap()).await);
    }
    test.nodes[1].freeze(false);
    for call in calls {
        assert_eq!(run(&lease, None).await, call.id);
        lease.tell(call.id, over()).await;
    }
    test.end().await;
}

/// Its heartbeats do not wait for it: a node that hears nothing from the database lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_hangs_makes_no_node_look_dead() {
    let mut test = TestCluster::redis(2).await;
    test.nodes[0].cluster.ensure_owner(test.session).await;
    let lease = test.lease(0).await;
    let mut lock = sqlx::SqliteConnection::connect(&test.fixture.url()).await.expect("the file");
    lock.execute("BEGIN IMMEDIATE").await.expect("locked");
    let end = Instant::now() + 2 * LEASE;
    until("two lease times are over", async || {
        let members = test.nodes[0].cluster.nodes().await.expect("redis answers");
        assert_eq!(members.len(), 2, "{members:?}");
        if Instant::now() > end { Ok(()) } else { Err(()) }
    })
    .await;
    lock.execute("ROLLBACK").await.expect("unlocked");
    assert!(lease.confirm().await);
    test.end().await;
}
