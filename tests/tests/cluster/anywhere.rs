//! Any node takes any request.

use serde_json::json;
use std::time::Duration;
use tests::client::{Frames, ids, types};
use tests::cluster::{Cluster, said};
use tests::poll;
use tests::provider::Answer;

/// How long a revocation or an unsubscribe may take to reach all nodes.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Waits for a stream's end; returns the last frame.
async fn ends_at_once(what: &str, frames: Frames) -> Option<serde_json::Value> {
    let outcome = tokio::time::timeout(AT_ONCE, frames.finish()).await;
    outcome.unwrap_or_else(|_| panic!("{what}: not within {AT_ONCE:?}")).frames.last().cloned()
}

#[tokio::test]
async fn every_request_on_another_node() {
    let cluster = Cluster::start().await;
    let session = cluster.driver().await;
    let mut subscription = cluster.at(&session, 0).subscribe(None).await;
    let outcome = cluster.at(&session, 2).send("hello").await;
    assert_eq!(outcome.text(), "ok");
    let seen = subscription.until_type("server.message.send").await;
    assert_eq!(types(&seen), ["provider.request", "provider.response", "server.message.send"]);
    assert_eq!(outcome.live(), seen);
    let second = cluster.second(&session, 2).await;
    let events = cluster.at(&session, 1).events().await;
    assert_eq!(events.last().unwrap()["event_type"], "session.driver.register");
    let mut drivers = Vec::new();
    for node in 0..3 {
        let api = cluster.nodes[node].api();
        drivers.push(api.get(&session.path("/participants"), &session.key).await.expect(200).json());
    }
    assert_eq!(drivers[0]["drivers"].as_array().unwrap().len(), 2);
    assert!(drivers.iter().all(|one| *one == drivers[0]), "{drivers:?}");
    // A client's tools, changed on one node, are what the next turn on another is asked with.
    let tools = json!({"tools": [{"name": "weather", "description": "w", "input_schema": {"type": "object"}}]});
    cluster.at(&session, 1).rpc("session.updateClientTools", tools).await.result();
    cluster.at(&session, 0).send("again").await.text();
    assert_eq!(cluster.provider.last()["tools"][0]["name"], "weather");
    assert_eq!(cluster.at(&second, 1).send("and I").await.text(), "ok");
    let log = cluster.check(&session).await;
    assert_eq!(said(&log), ["hello", "again", "and I"]);
    assert_eq!(log.compare_stream(&ids(&seen)), []);
}

#[tokio::test]
async fn unsubscribe_from_another_node() {
    let cluster = Cluster::start().await;
    let session = cluster.driver().await;
    let mut streams = Vec::new();
    for node in 0..3 {
        streams.push(cluster.at(&session, node).subscribe(None).await);
    }
    session.send("hello").await.text();
    for stream in &mut streams {
        stream.until_type("server.message.send").await;
    }
    assert_eq!(cluster.at(&session, 1).rpc("session.unsubscribe", json!({})).await.result()["unsubscribed"], true);
    for stream in streams {
        ends_at_once("a subscription after session.unsubscribe", stream).await;
    }
    cluster.check(&session).await;
}

/// A session is closed through a node that neither owns it nor holds its caller: everybody is told, wherever they wait.
#[tokio::test]
async fn delete_through_another_node() {
    let cluster = Cluster::start().await;
    let (session, owner) = cluster.owned_session().await;
    let asked = cluster.other(&[owner]);
    let third = cluster.other(&[owner, asked]);
    let mut streams = Vec::new();
    for node in 0..3 {
        streams.push(cluster.at(&session, node).subscribe(None).await);
    }
    let mut held = cluster.provider.hold(Answer::text("never sent"));
    let running = cluster.at(&session, asked).start_send("running").await;
    held.arrived().await;
    assert_eq!(cluster.last(&session).await, "provider.request");
    let waiting =
        [cluster.at(&session, owner).start_send("A").await, cluster.at(&session, third).start_send("B").await];
    let reply = cluster.at(&session, third).delete().await.expect(200);
    assert_eq!(reply.json()["state"], "closed");
    held.abandoned().await;
    for frames in waiting.into_iter().chain([running]) {
        assert_eq!(frames.finish().await.error(), (-32000, "session is closed, not open".to_owned()));
    }
    for mut stream in streams {
        stream.until_type("session.close").await;
        ends_at_once("a subscription of a closed session", stream).await;
    }
    for node in 0..3 {
        cluster.at(&session, node).delete().await.problem(409, "session_closed");
        let error = cluster.at(&session, node).send("late").await.error();
        assert_eq!(error, (-32000, "session is closed, not open".to_owned()));
    }
    let log = cluster.check(&session).await;
    assert_eq!((log.state.as_str(), said(&log)), ("closed", vec!["warm", "running"]));
}

#[tokio::test]
async fn revocation_on_another_node() {
    let cluster = Cluster::start().await;
    let session = cluster.driver().await;
    let mut streams = Vec::new();
    for node in 0..3 {
        streams.push(cluster.at(&session, node).subscribe(None).await);
        // Each node has the key in its cache.
        cluster.nodes[node].api().get(&session.path("/participants"), &session.key).await.expect(200);
    }
    cluster.nodes[2].admin().revoke(&cluster.key).await;
    let revoked = tokio::time::Instant::now();
    for stream in streams {
        ends_at_once("a subscription of a revoked key", stream).await;
    }
    for node in &cluster.nodes {
        for (path, key) in [(session.path("/participants"), &session.key), (session.path("/events"), &session.key)] {
            poll::until(AT_ONCE, "the key's end", async || match node.api().get(&path, key).await.status {
                401 => Ok(()),
                status => Err(status),
            })
            .await;
        }
    }
    assert!(revoked.elapsed() < 3 * AT_ONCE, "{:?}", revoked.elapsed());
    cluster.check(&session).await;
}

/// A pause that is reached on one node is resumed on another, and outlives its owner (S2).
#[tokio::test]
async fn pause_here_resume_there() {
    let mut cluster = Cluster::start().await;
    let session = cluster.driver().await;
    for round in ["alive", "killed"] {
        cluster.provider.push(Answer::tools(&[(&format!("tu_{round}"), "clock", json!({}))]));
        let paused = cluster.at(&session, 0).send(format!("pause {round}")).await;
        assert_eq!(paused.result()["message"]["content"][0]["type"], "tool_use", "{paused:?}");
        let second = cluster.second(&session, 2).await;
        let mut waiting = second.start_send(format!("behind {round}")).await;
        let (mut ask, mut answer) = (0, 1);
        if round == "killed" {
            let owner = cluster.owner(&session, 2).await;
            ask = cluster.other(&[owner, 2]);
            answer = ask;
            cluster.nodes[owner].server.kill9();
            if owner == 2 {
                // The waiting client's node: it left with it.
                waiting = cluster.at(&second, ask).start_send("behind killed".to_owned()).await;
            }
        }
        let outcome = cluster.at(&session, answer).answer(&[(&format!("tu_{round}"), "noon")]).await;
        assert_eq!(outcome.text(), "ok", "{round}, asked {ask}");
        assert_eq!(waiting.finish().await.text(), "ok", "{round}");
    }
    let log = cluster.check(&session).await;
    assert_eq!(said(&log), ["pause alive", "behind alive", "pause killed", "behind killed"]);
}

/// S2: a caller behind another's pause is served when the pause expires, although the owner has died in between.
#[tokio::test]
async fn a_pause_expires_after_its_owners_death() {
    let mut cluster = tests::cluster::Plan::default().env("BAE_TURN_TIMEOUT", "3").start().await;
    let session = cluster.driver().await;
    cluster.provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
    cluster.at(&session, 0).send("pause").await.result();
    let owner = cluster.owner(&session, 0).await;
    let node = cluster.other(&[owner]);
    let second = cluster.second(&session, node).await;
    let waiting = second.start_send("behind").await;
    cluster.nodes[owner].server.kill9();
    let outcome = waiting.finish().await;
    assert_eq!(outcome.text(), "ok");
    let log = cluster.check(&session).await;
    assert_eq!(said(&log), ["pause", "behind"]);
    assert!(log.types().contains(&"session.error".to_owned()), "{:?}", log.types());
}

/// F7: reports and joins through every node go on beside a turn and never stop or enter it.
#[tokio::test]
async fn writers_on_every_node_beside_a_turn() {
    let cluster = Cluster::start().await;
    let session = cluster.driver().await;
    let mut subscription = cluster.at(&session, 2).subscribe(None).await;
    let mut held = cluster.provider.hold(Answer::text("undisturbed"));
    let running = cluster.at(&session, 0).start_send("work").await;
    held.arrived().await;
    let writers = (0..20).map(|number| {
        let (cluster, session) = (&cluster, &session);
        async move {
            if number % 5 == 0 {
                cluster.second(session, number % 3).await;
            }
            for count in 0..5 {
                let report = json!({"state": "running", "image": format!("{number}-{count}")});
                let at = cluster.at(session, (number + count) % 3);
                at.rpc("session.reportLocalSandbox", report).await.result();
            }
        }
    });
    futures_util::future::join_all(writers).await;
    held.release();
    let outcome = running.finish().await;
    assert_eq!(outcome.text(), "undisturbed");
    assert_eq!(outcome.types().len(), 4, "{:?}", outcome.types());
    let seen = subscription.until_type("server.message.send").await;
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_stream(&ids(&seen)), []);
    assert_eq!(log.types().iter().filter(|kind| *kind == "session.sandbox.running").count(), 100);
}
