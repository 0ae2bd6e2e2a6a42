//! A node whose network goes away: packets vanish, and nobody is told (F1, F22, F23).

use serde_json::json;
use std::time::Duration;
use tests::checker::Accepted;
use tests::client::ids;
use tests::cluster::{LEASE, Plan, TAKEOVER, of_type};
use tests::poll;
use tests::provider::Answer;
use tokio::time::{Instant, sleep_until};

/// Within this a node notices that nothing it is connected to answers any more, and that it does again.
const NOTICED: Duration = Duration::from_secs(15);

/// F1: the owner's cable is pulled under a running turn, for longer than its lease, and put back. Another goes on; what
/// the owner had in hand is fenced off, it begins nothing more, and serves again without a restart.
#[tokio::test]
async fn the_owners_cable_is_pulled() {
    let cluster = Plan::default().isolated().start().await;
    let network = cluster.network.as_ref().unwrap();
    let session = cluster.driver().await;
    cluster.at(&session, 0).send("warm").await.text();
    assert_eq!(cluster.owner(&session, 1).await, 0);
    let mut held = cluster.provider.hold(Answer::tools(&[("tu_old", "clock", json!({}))]));
    let mut subscription = cluster.at(&session, 2).subscribe(None).await;
    let running = cluster.at(&session, 1).start_send("hello").await;
    held.arrived().await;
    let pulled = Instant::now();
    network.pull();
    // Its answer is on its way to the isolated node and arrives when the cable is back; the other's question gets
    // another.
    held.release();
    let mut again = cluster.provider.hold(Answer::text("again"));
    again.arrived().await;
    assert!(pulled.elapsed() < TAKEOVER, "taken over after {:?}", pulled.elapsed());
    again.release();
    assert_eq!(running.finish().await.text(), "again");
    let mut held = cluster.provider.hold(Answer::text("the next turn"));
    let next = cluster.at(&session, 2).start_send("next").await;
    held.arrived().await;
    // How long it is away is the point here: its lease has run out by any clock.
    sleep_until(pulled + 3 * LEASE).await;
    let before = cluster.log(&session).await;
    network.plug();
    cluster.nodes[0].ready().await;
    let elsewhere = cluster.nodes[0].api().open(&cluster.key.secret, &json!({})).await;
    elsewhere.register().await;
    let after = cluster.log(&session).await;
    assert_eq!((after.epoch, after.types()), (before.epoch, before.types()), "the isolated owner has written");
    held.release();
    assert_eq!(next.finish().await.text(), "the next turn");
    assert_eq!(cluster.at(&session, 0).send("last").await.text(), "ok");
    assert_eq!(elsewhere.send("elsewhere").await.text(), "ok");
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.extend(subscription.until_type("server.message.send").await);
    }
    let log = cluster.log(&session).await;
    assert_eq!(log.violations(), []);
    assert_eq!(log.compare_accepted(&["warm", "hello", "next", "last"].map(Accepted::new)), []);
    assert_eq!(log.compare_stream(&ids(&seen)), []);
    assert!(of_type(&log, "tool.call").is_empty(), "the isolated owner's answer was taken");
    assert_eq!(cluster.provider.requests().len(), 6, "the isolated owner asked the provider");
}

/// F22, F23: connections that are open on this side only are noticed in bounded time while the network is away, and the
/// node finds its way back within seconds once it is there again, whatever the other side has forgotten.
#[tokio::test]
async fn half_open_connections_are_noticed() {
    let cluster = Plan::default().isolated().start().await;
    let (network, node) = (cluster.network.as_ref().unwrap(), &cluster.nodes[0]);
    let session = cluster.driver().await;
    cluster.at(&session, 0).send("warm").await.text();
    let mut subscription = cluster.at(&session, 0).subscribe(None).await;
    assert_eq!(network.get(node.server.port(), "/readyz").await.0, 200);
    let pulled = Instant::now();
    network.pull();
    let status = poll::until(NOTICED, "readiness off, seen from within", async || {
        match network.get(node.server.port(), "/readyz").await {
            (503, body) => Ok(body),
            other => Err(other),
        }
    })
    .await;
    assert!(status.contains("the database is not available") && status.contains("redis is not reachable"), "{status}");
    println!("noticed after {:?}: {status}", pulled.elapsed());
    // The servers' side ends all connections, and what tells the node so is lost.
    for proxy in [&node.redis, &node.postgres] {
        proxy.as_ref().unwrap().hang_up();
    }
    assert_eq!(cluster.at(&session, 1).send("meanwhile").await.text(), "ok");
    let plugged = Instant::now();
    network.plug();
    poll::until(NOTICED, "readiness on", async || match network.get(node.server.port(), "/readyz").await {
        (200, body) => Ok(body),
        other => Err(other),
    })
    .await;
    println!("ready again after {:?}", plugged.elapsed());
    assert_eq!(cluster.at(&session, 0).send("after").await.text(), "ok");
    // Its subscriber was never cut off from it for longer than a network forgives, and misses nothing.
    let mut seen = subscription.until_type("server.message.send").await;
    seen.extend(subscription.until_type("server.message.send").await);
    assert!(plugged.elapsed() < 2 * NOTICED, "{:?}", plugged.elapsed());
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&["warm", "meanwhile", "after"].map(Accepted::new)), []);
    assert_eq!(log.compare_stream(&ids(&seen)), []);
}
