//! Redis emptied, restarted, stopped, stalled.

use crate::cluster::cast::{Cast, LEASE, LIMIT, idle, over, run};
use crate::world::{opening, until, within};
use coordinator::cluster::Progress;
use coordinator::cluster::{Claim, Rejected};
use sqlx::{Connection, Executor};
use std::time::Duration;
use tokio::time::Instant;

/// Calls A and B wait behind a turn when Redis forgets everything, and C comes first.
async fn order_survives(cast: &mut Cast, forget: impl AsyncFnOnce(&mut Cast)) {
    cast.nodes[0].cluster.adopt(cast.session).await;
    let lease = cast.lease(0).await;
    let row = cast.world.own(cast.session).await;
    cast.world
        .log
        .append(opening(cast.session, row.epoch, cast.key, engine::gate::GateFound::Free))
        .await
        .expect("a turn");
    assert!(lease.may_act(row.epoch).await);
    let (a, b, c) = (cast.message(), cast.message(), cast.message());
    let _a = cast.enqueue(0, &a).await;
    let _b = cast.enqueue(1, &b).await;
    forget(cast).await;
    let _c = cast.enqueue(1, &c).await;
    assert!(matches!(lease.claim(None).await, Claim::Wait), "nothing is popped before it has settled");
    cast.nodes[1].cluster.adopt(cast.session).await;
    cast.no_lease(1);
    assert!(!lease.lost.is_cancelled(), "the running turn goes on");
    assert!(lease.may_act(row.epoch).await);
    for call in [a, b, c] {
        assert_eq!(run(&lease, None).await, call.id);
        assert!(lease.may_act(row.epoch).await && lease.confirm().await);
        lease.tell(call.id, over()).await;
    }
    idle(&lease).await;
    cast.no_lease(1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_changes_no_order() {
    let mut cast = Cast::alone(2).await;
    order_survives(&mut cast, async |cast| cast.flush().await).await;
    cast.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_redis_changes_no_order() {
    let mut cast = Cast::alone(2).await;
    order_survives(&mut cast, async |cast| {
        let mut server = cast.server.take().expect("a server");
        let server = tokio::task::spawn_blocking(move || {
            server.stop();
            server.run();
            server
        });
        cast.server = Some(server.await.expect("restarted"));
    })
    .await;
    cast.end().await;
}

/// Two nodes meet in a new world: nobody takes a session with an open turn before its owner could say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_takes_an_open_turn_in_a_new_world() {
    let mut cast = Cast::alone(2).await;
    cast.flush().await;
    cast.nodes[1].cluster.adopt(cast.session).await;
    cast.no_lease(1);
    let settled = Instant::now();
    let lease = until("it settles", async || {
        cast.nodes[1].cluster.adopt(cast.session).await;
        cast.nodes[1].leases.try_recv().map_err(|error| error.to_string())
    })
    .await;
    assert!(settled.elapsed() > LEASE / 2, "after {:?}", settled.elapsed());
    assert!(lease.confirm().await);
    cast.end().await;
}

/// A node that starts alone need not wait for anybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_node_starts_at_once() {
    let started = Instant::now();
    let mut cast = Cast::redis(1).await;
    cast.nodes[0].cluster.adopt(cast.session).await;
    let _lease = cast.lease(0).await;
    assert!(started.elapsed() < LEASE + Duration::from_secs(3));
    let settling: bool =
        redis::cmd("EXISTS").arg(format!("{}settling", cast.prefix)).query_async(&mut cast.raw().await).await.unwrap();
    assert!(!settling);
    cast.end().await;
}

/// Calls wait, then are told so; what was accepted and what runs goes on; what was left meanwhile is not run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs() {
    let mut cast = Cast::alone(2).await;
    let (accepted, left) = (cast.message(), cast.message());
    cast.nodes[0].cluster.adopt(cast.session).await;
    let lease = cast.lease(0).await;
    let row = cast.world.own(cast.session).await;
    assert!(lease.may_act(row.epoch).await);
    let _accepted = cast.enqueue(1, &accepted).await;
    let leaves = cast.enqueue(1, &left).await;
    cast.server.as_ref().unwrap().signal("STOP");
    drop(leaves);
    let asked = Instant::now();
    let many = futures_util::future::join_all((0..4).map(|_| async {
        let call = cast.message();
        cast.try_enqueue(0, &call).await.err()
    }));
    assert_eq!(many.await, [Some(Rejected::Away); 4]);
    let (waited, bound) = (asked.elapsed(), Duration::from_secs(10));
    assert!(waited >= bound && waited < bound + Duration::from_secs(4), "{waited:?}");
    assert!(waited > LEASE && lease.may_act(row.epoch).await, "nobody took over, says the database");
    assert!(!lease.may_act(row.epoch - 1).await, "and it is asked");
    within("a word that nobody hears is not waited for", lease.tell(cast.message().id, Progress::Running)).await;
    cast.server.as_ref().unwrap().signal("CONT");
    until("redis is back", async || cast.nodes[0].cluster.nodes().await.map(drop)).await;
    assert!(lease.may_act(row.epoch).await, "the turn goes on at once");
    assert_eq!(run(&lease, None).await, accepted.id);
    lease.tell(accepted.id, over()).await;
    idle(&lease).await;
    assert!(!lease.lost.is_cancelled());
    cast.end().await;
}

/// The memory is full: leases are kept and nodes count as alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_loses_no_lease() {
    let mut cast = Cast::alone(2).await;
    cast.nodes[0].cluster.adopt(cast.session).await;
    let lease = cast.lease(0).await;
    let mut raw = cast.raw().await;
    let set = |bytes: &str| redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).to_owned();
    let _: String = set("1").query_async(&mut raw).await.expect("set");
    let end = Instant::now() + 2 * LEASE;
    until("two lease times are over", async || if Instant::now() > end { Ok(()) } else { Err(()) }).await;
    assert!(lease.may_act(1).await && lease.confirm().await && !lease.lost.is_cancelled());
    assert_eq!(cast.nodes[1].cluster.nodes().await.expect("answered").len(), 2);
    let _: String = set("0").query_async(&mut raw).await.expect("set");
    let call = cast.message();
    let _waiter = cast.enqueue(1, &call).await;
    assert_eq!(run(&lease, None).await, call.id);
    cast.end().await;
}

/// Another server's clock is behind: what it has to tell is heard all the same, and what was heard takes no room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_goes_on_under_another_clock() {
    let mut cast = Cast::alone(2).await;
    cast.nodes[0].cluster.adopt(cast.session).await;
    let lease = cast.lease(0).await;
    let inbox = format!("{}inbox:{}", cast.prefix, cast.nodes[0].name);
    let wake = format!("{{\"v\":1,\"frame\":{{\"Wake\":\"{}\"}}}}", cast.session);
    let late = ["99999999999999-0", "99999999999999-1"];
    for id in late {
        let add = redis::cmd("XADD").arg(&inbox).arg(id).arg("f").arg(&wake).to_owned();
        let _: String = add.query_async(&mut cast.raw().await).await.expect("added");
    }
    within("it is heard", lease.woken()).await;
    until("it is trimmed", async || {
        match redis::cmd("XLEN").arg(&inbox).query_async::<u64>(&mut cast.raw().await).await {
            Ok(0) => Ok(()),
            other => Err(other),
        }
    })
    .await;
    let mut server = cast.server.take().expect("a server");
    let restarted = tokio::task::spawn_blocking(move || {
        server.stop();
        server.run();
        server
    });
    cast.server = Some(restarted.await.expect("restarted"));
    let call = cast.message();
    let _waiter = cast.enqueue(1, &call).await;
    assert_eq!(run(&lease, None).await, call.id);
    lease.tell(call.id, over()).await;
    // From here on nothing but the inbox tells of this.
    cast.nodes[1].cluster.revoked(cast.key, &engine::rpc::RpcError::internal()).await;
    let signals = cast.nodes[0].signals.as_mut().expect("a node of a cluster");
    assert!(within("a signal", signals.recv()).await.is_some());
    cast.end().await;
}

/// The next master knows what the last one knew, but for what was written last; whoever meets it first finds that out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_over_server_settles_before_any_heartbeat() {
    let mut cast = Cast::alone(2).await;
    cast.nodes[0].cluster.adopt(cast.session).await;
    let lease = cast.lease(0).await;
    let call = cast.message();
    let _waiter = cast.enqueue(1, &call).await;
    assert_eq!(run(&lease, None).await, call.id);
    lease.unclaim(call.id).await;
    for node in &cast.nodes {
        node.freeze(true);
    }
    let world = format!("{}world", cast.prefix);
    let (mut raw, last) = (cast.raw().await, "0123456789abcdef0123456789abcdef01234567");
    let _: () = redis::cmd("SET").arg(&world).arg(last).query_async(&mut raw).await.expect("set");
    assert!(matches!(lease.claim(None).await, Claim::Wait), "nothing is popped before it has settled");
    for node in &cast.nodes {
        node.freeze(false);
    }
    assert_eq!(run(&lease, None).await, call.id);
    lease.tell(call.id, over()).await;
    cast.end().await;
}

/// What was accepted comes back before what is new, into a queue that is full by then, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_takes_back_what_it_had_accepted() {
    let mut cast = Cast::alone(2).await;
    cast.nodes[0].cluster.adopt(cast.session).await;
    let lease = cast.lease(0).await;
    let row = cast.world.own(cast.session).await;
    assert!(lease.may_act(row.epoch).await);
    let (mut calls, mut waiters) = (Vec::new(), Vec::new());
    for _ in 0..LIMIT {
        calls.push(cast.message());
        waiters.push(cast.enqueue(1, calls.last().unwrap()).await);
    }
    cast.nodes[1].freeze(true);
    cast.flush().await;
    for _ in 0..LIMIT {
        calls.push(cast.message());
        waiters.push(cast.enqueue(0, calls.last().unwrap()).await);
    }
    cast.nodes[1].freeze(false);
    for call in calls {
        assert_eq!(run(&lease, None).await, call.id);
        lease.tell(call.id, over()).await;
    }
    cast.end().await;
}

/// Its heartbeats do not wait for it: a node that hears nothing from the database lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_hangs_makes_no_node_look_dead() {
    let mut cast = Cast::redis(2).await;
    cast.nodes[0].cluster.adopt(cast.session).await;
    let lease = cast.lease(0).await;
    let mut lock = sqlx::SqliteConnection::connect(&cast.world.url()).await.expect("the file");
    lock.execute("BEGIN IMMEDIATE").await.expect("locked");
    let end = Instant::now() + 2 * LEASE;
    until("two lease times are over", async || {
        let members = cast.nodes[0].cluster.nodes().await.expect("redis answers");
        assert_eq!(members.len(), 2, "{members:?}");
        if Instant::now() > end { Ok(()) } else { Err(()) }
    })
    .await;
    lock.execute("ROLLBACK").await.expect("unlocked");
    assert!(lease.confirm().await);
    cast.end().await;
}
