//! Servers that lag behind, are full, or take no more (F22, F23).

use serde_json::json;
use std::time::Duration;
use tests::checker::Accepted;
use tests::client::{ids, of_type as typed};
use tests::cluster::{Cluster, Plan, Proxy, said};
use tests::mcp::{Kind, Mcp, Outcome};
use tests::poll;
use tests::provider::Answer;
use tests::services::Service;

/// A replica of the cluster's Redis, and the proxy on its way to it.
async fn replica(cluster: &Cluster) -> (Service, Proxy) {
    let master = cluster.redis.as_ref().unwrap();
    master.redis_cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let (proxy, url) = Proxy::before(&master.url()).await;
    let replica = tokio::task::spawn_blocking(Service::redis).await.unwrap();
    let port = url.rsplit(':').next().unwrap();
    replica.redis_cli(&["REPLICAOF", "127.0.0.1", port]);
    poll::until(poll::DEADLINE, "the replica's first copy", async || {
        let info = replica.redis_cli(&["INFO", "replication"]);
        if info.contains("master_link_status:up") { Ok(()) } else { Err(info) }
    })
    .await;
    (replica, proxy)
}

/// F22: fail-over to a replica that lags. It never heard of `B` and of one session's lease, and still believes another
/// session to be a node's that is gone. One turn at a time, nothing lost, `A` before `B`, subscribers complete.
#[tokio::test]
async fn failover_to_a_replica_that_lags() {
    let plan = Plan::default().nodes(4).own_redis().proxied().env("BAE_LEASE", "5").env("BAE_SHUTDOWN_TIMEOUT", "1");
    let mut cluster = plan.start().await;
    let (replica, way) = replica(&cluster).await;
    let [known, unheard, moved] = [cluster.driver().await, cluster.driver().await, cluster.driver().await];
    let mut subscriptions = Vec::new();
    for node in 0..3 {
        subscriptions.push(cluster.at(&known, node).subscribe(None).await);
    }
    // Node 3 owns what will move; the replica knows of it, of the running turn and of `A`.
    assert_eq!(cluster.at(&moved, 3).send("warm").await.text(), "ok");
    let mut held = vec![cluster.provider.hold(Answer::text("known"))];
    let running = cluster.at(&known, 0).start_send("running").await;
    held[0].arrived().await;
    let first = cluster.at(&known, 1).start_send("A").await;
    poll::until(poll::DEADLINE, "the replica's copy of the queue", async || {
        let (keys, ours) = (replica.redis_cli(&["--scan"]), format!("{{{}}}:q", known.id));
        if keys.contains(&ours) { Ok(()) } else { Err(keys) }
    })
    .await;
    way.set(tests::cluster::Mode::Stall);
    cluster.nodes[3].server.terminate();
    assert!(cluster.nodes[3].server.ended().await.success());
    let mut others = Vec::new();
    for (session, node, text) in [(&unheard, 1, "unheard"), (&moved, 2, "moved")] {
        let mut one = cluster.provider.hold(Answer::text(text));
        others.push((session.clone(), text, cluster.at(session, node).start_send(text).await));
        one.arrived().await;
        held.push(one);
    }
    let second = cluster.at(&known, 2).start_send("B").await;
    assert_eq!(cluster.owner(&moved, 0).await, 2);
    assert!(!replica.redis_cli(&["--scan"]).contains(&format!("{{{}}}:o", unheard.id)), "the replica has heard of it");
    let epochs = [cluster.log(&known).await.epoch, cluster.log(&unheard).await.epoch];
    cluster.redis.as_mut().unwrap().stop();
    replica.redis_cli(&["REPLICAOF", "NO", "ONE"]);
    let believed = replica.redis_cli(&["GET", &lease_key(&replica, &moved)]);
    assert_eq!(believed, cluster.nodes[3].name, "the replica does not believe in the node that is gone");
    for node in &cluster.nodes[..3] {
        node.redis.as_ref().unwrap().retarget(&replica.url());
    }
    // Accepted by the new master.
    let third = cluster.at(&known, 0).start_send("C").await;
    held.iter().for_each(tests::provider::Held::release);
    assert_eq!(running.finish().await.text(), "known");
    for (frames, text) in [(first, "A"), (second, "B"), (third, "C")] {
        assert_eq!(frames.finish().await.text(), "ok", "{text}");
    }
    for (session, text, frames) in others {
        let answer = frames.finish().await.text();
        // Or that of a second question, by the next owner: what the replica believed has cost a lease.
        assert!(answer == text || (session.id == moved.id && answer == "ok"), "{text}: {answer}");
    }
    let log = cluster.log(&known).await;
    assert_eq!(log.violations(), []);
    assert_eq!(log.compare_accepted(&["running", "A", "B", "C"].map(Accepted::new)), []);
    assert_eq!([log.epoch, cluster.log(&unheard).await.epoch], epochs, "a running turn lost its owner");
    for stream in &mut subscriptions {
        let mut seen = Vec::new();
        while typed(&seen, "server.message.send").len() < 4 {
            seen.extend(stream.until_type("server.message.send").await);
        }
        assert_eq!(log.compare_stream(&ids(&seen)), []);
        assert_eq!(ids(&seen)[0], log.events.iter().find(|event| event.kind == "provider.request").unwrap().id);
    }
    for (session, wanted) in [(&unheard, vec!["unheard"]), (&moved, vec!["warm", "moved"])] {
        let log = cluster.log(session).await;
        assert_eq!((log.violations(), said(&log)), (Vec::new(), wanted));
        for node in 0..3 {
            assert_eq!(cluster.at(session, node).send(format!("after {node}")).await.text(), "ok");
        }
    }
}

/// Where a Redis keeps a session's lease.
fn lease_key(redis: &Service, session: &tests::client::Session) -> String {
    let (keys, ours) = (redis.redis_cli(&["--scan"]), format!("{{{}}}:o", session.id));
    keys.lines()
        .find(|key| key.ends_with(&ours))
        .unwrap_or_else(|| panic!("no lease of {}: {keys}", session.id))
        .to_owned()
}

/// F23: no node gets a database connection. Callers are told, readiness says why, and the turn that runs, and what
/// waits behind it, goes on by itself once there are connections again.
#[tokio::test]
async fn the_connection_limit_is_reached() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let cluster = Plan::default().mcp(&mcp).role().start().await;
    let session = cluster.driver().await;
    let mut subscription = cluster.at(&session, 2).subscribe(None).await;
    let mut held = cluster.provider.hold(Answer::tools(&[("tu_1", "ls", json!({}))]));
    let running = cluster.at(&session, 0).start_send("running").await;
    held.arrived().await;
    let waiting = cluster.at(&session, 1).start_send("waiting").await;
    let before = cluster.log(&session).await;
    cluster.refuse_connections().await;
    held.release();
    for node in &cluster.nodes {
        let reasons = poll::until(poll::DEADLINE, "readiness off", async || {
            let reply = node.api().get("/readyz", "").await;
            if reply.status == 503 { Ok(reply.json()["reasons"].clone()) } else { Err(reply.body) }
        })
        .await;
        assert_eq!(reasons, json!(["the database is not available"]));
        node.api().post("/api/v1/sessions", &cluster.key.secret, &json!({})).await.problem_of(503);
        let params = json!({"message": {"content": "refused"}});
        let refused = session.on(&node.api()).try_rpc("session.sendMessage", params).await;
        match refused {
            // Who is asking cannot be told.
            Err(status) => assert!(status.starts_with("503"), "{status}"),
            Ok(outcome) => {
                assert_eq!(outcome.frames.last().unwrap()["error"]["data"]["retryable"], true, "{outcome:?}")
            }
        }
        assert_eq!(node.api().get("/healthz", "").await.status, 200, "a node is not restarted for it");
    }
    assert_eq!(cluster.log(&session).await, before, "something was written");
    cluster.allow_connections().await;
    for node in &cluster.nodes {
        node.ready().await;
    }
    assert_eq!(running.finish().await.text(), "ok");
    assert_eq!(waiting.finish().await.text(), "ok");
    for node in 0..3 {
        assert_eq!(cluster.at(&session, node).send(format!("after {node}")).await.text(), "ok");
    }
    let mut seen = Vec::new();
    while typed(&seen, "server.message.send").len() < 5 {
        seen.extend(subscription.until_type("server.message.send").await);
    }
    let log = cluster.check(&session).await;
    let all = ["running", "waiting", "after 0", "after 1", "after 2"];
    assert_eq!(log.compare_accepted(&all.map(Accepted::new)), []);
    assert_eq!(log.compare_stream(&ids(&seen)), []);
    assert_eq!(mcp.calls().len(), 1, "the tool ran once");
    assert_eq!(log.epoch, before.epoch, "the turn lost its owner");
}

/// F23: the disk is full: nothing can be inserted. Callers are told, nothing is half-written, and the turn that runs
/// goes on by itself once there is room.
#[tokio::test]
async fn the_disk_is_full() {
    full_disk(None).await;
}

/// F23: it becomes full between a tool's call and its answer.
#[tokio::test]
async fn the_disk_is_full_for_a_tools_answer() {
    full_disk(Some("mcp.response")).await;
}

async fn full_disk(kind: Option<&str>) {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let cluster = Plan::default().mcp(&mcp).start().await;
    let session = cluster.driver().await;
    let idle = cluster.driver().await;
    let mut subscription = cluster.at(&session, 2).subscribe(None).await;
    let mut held = cluster.provider.hold(Answer::tools(&[("tu_1", "ls", json!({}))]));
    let mut tool = mcp.hold(Outcome::Text("listed".to_owned()));
    let running = cluster.at(&session, 0).start_send("running").await;
    held.arrived().await;
    let waiting = cluster.at(&session, 1).start_send("waiting").await;
    if kind.is_some() {
        held.release();
        tool.arrived().await;
    }
    cluster.fill_disk(kind).await;
    let (before, before_idle) = (cluster.log(&session).await, cluster.log(&idle).await);
    held.release();
    tool.release();
    // Its owner meets the full disk, again and again.
    let owner = cluster.owner(&session, 0).await;
    poll::until(poll::DEADLINE, "a failed append", async || {
        let log = cluster.nodes[owner].server.log();
        let told = log.matches("an append failed").count();
        if told > 2 { Ok(()) } else { Err(told) }
    })
    .await;
    if kind.is_none() {
        for (node, server) in cluster.nodes.iter().enumerate() {
            server.ready().await;
            server.api().post("/api/v1/sessions", &cluster.key.secret, &json!({})).await.problem_of(503);
            let refused = cluster.at(&idle, node).send("refused").await;
            let error = &refused.frames.last().unwrap()["error"];
            assert_eq!((&error["code"], &error["data"]["retryable"]), (&json!(-32603), &json!(true)), "{error}");
            let report = json!({"state": "running", "image": "refused"});
            let refused = cluster.at(&idle, node).rpc("session.reportLocalSandbox", report).await;
            assert_eq!(refused.frames.last().unwrap()["error"]["data"]["retryable"], true, "{refused:?}");
        }
    }
    let now = cluster.log(&session).await;
    assert_eq!((&now.events, now.head, &now.phase), (&before.events, before.head, &before.phase), "half-written");
    assert_eq!(cluster.log(&idle).await.events, before_idle.events, "half-written");
    cluster.free_disk().await;
    assert_eq!(running.finish().await.text(), "ok");
    assert_eq!(waiting.finish().await.text(), "ok");
    for session in [&session, &idle] {
        assert_eq!(cluster.at(session, 2).send("after").await.text(), "ok");
    }
    let mut seen = Vec::new();
    while typed(&seen, "server.message.send").len() < 3 {
        seen.extend(subscription.until_type("server.message.send").await);
    }
    let log = cluster.log(&session).await;
    assert_eq!(log.violations(), []);
    assert_eq!(log.compare_accepted(&["running", "waiting", "after"].map(Accepted::new)), []);
    assert_eq!(log.compare_stream(&ids(&seen)), []);
    assert_eq!(log.epoch, before.epoch, "the turn lost its owner");
    assert_eq!(mcp.calls().len(), 1, "the tool ran once");
    let log = cluster.log(&idle).await;
    assert_eq!((log.violations(), said(&log)), (Vec::new(), vec!["after"]));
    assert_eq!(cluster.provider.requests().len(), 5, "a question was asked twice");
    tokio::time::timeout(Duration::from_secs(5), async { cluster.at(&idle, 0).delete().await.expect(200) })
        .await
        .unwrap();
}
