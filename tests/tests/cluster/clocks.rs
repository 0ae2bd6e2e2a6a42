//! F24: one node's wall clock is an hour fast, another's an hour slow.
//!
//! What happens in a session is timed by the database's clock, which is right; what a process waits for, by a clock
//! that only counts. So nothing here may differ from a cluster of right clocks, whichever node owns the session.

use serde_json::{Value, json};
use std::time::{Duration, SystemTime};
use tests::checker::Accepted;
use tests::client::ids;
use tests::cluster::{Cluster, Plan, TAKEOVER, of_type};
use tests::history::assert_all_paired;
use tests::provider::Answer;
use tokio::time::Instant;

/// Nodes in the order of the cluster.
const CLOCKS: [i32; 3] = [3600, -3600, 0];
/// `BAE_TURN_TIMEOUT`.
const PAUSE: Duration = Duration::from_secs(3);
/// Far less than the clocks are off, far more than anything here takes.
const MINUTES: Duration = Duration::from_secs(300);

async fn start(plan: Plan) -> Cluster {
    // It may have to be installed.
    let plan = tokio::task::spawn_blocking(move || {
        let plan = plan.env("BAE_TURN_TIMEOUT", &PAUSE.as_secs().to_string());
        CLOCKS.iter().enumerate().filter(|(_, off)| **off != 0).fold(plan, |plan, (node, off)| plan.clock(node, *off))
    });
    let cluster = plan.await.unwrap().start().await;
    for (node, off) in cluster.nodes.iter().zip(CLOCKS) {
        let reply = node.api().get("/healthz", "").await;
        let shown = seconds_of_day(reply.header("date"));
        let right = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
        let day = 86_400;
        let wrong = (shown - right - i64::from(off)).rem_euclid(day);
        assert!(wrong < 60 || day - wrong < 60, "a clock that should be off by {off} s shows {}", reply.header("date"));
    }
    cluster
}

/// Of an HTTP date, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn seconds_of_day(date: &str) -> i64 {
    let time = date.split(' ').nth(4).unwrap_or_else(|| panic!("no time: {date}"));
    time.split(':').fold(0, |sum, part| sum * 60 + part.parse::<i64>().unwrap())
}

/// When the events of a session were recorded, in milliseconds, by their numbers.
async fn recorded(cluster: &Cluster, session: &str) -> Vec<i64> {
    let sql = "SELECT created_at FROM events WHERE session = decode($1, 'hex') ORDER BY number";
    let id = session.split_once('_').map_or(session, |(_, hex)| hex);
    sqlx::query_scalar(sql).bind(id).fetch_all(&cluster.pool).await.unwrap()
}

/// The whole life of a session whose first owner is that node.
async fn owned_by(first: usize) {
    let mut cluster = start(Plan::default()).await;
    let session = cluster.driver().await;
    let second = cluster.second(&session, 1).await;
    assert_eq!(cluster.at(&session, first).send("warm").await.text(), "ok");
    assert_eq!(cluster.owner(&session, 2).await, first);
    let mut accepted = vec![Accepted::new("warm")];

    // The queue's order, over all nodes, with a resend while it waits, to a node with another clock.
    let mut held = cluster.provider.hold(Answer::text("running"));
    let running = cluster.at(&session, 0).start_send("running").await;
    held.arrived().await;
    let mut waiting = Vec::new();
    for (node, text) in [(1, "A"), (0, "B"), (2, "C"), (1, "D"), (0, "E")] {
        waiting.push(cluster.at(&session, node).start_once(text, text).await);
    }
    let again = cluster.at(&session, 2).start_once("A", "A").await;
    held.release();
    assert_eq!(running.finish().await.text(), "running");
    let mut results = Vec::new();
    for frames in waiting {
        results.push(frames.finish().await.result().clone());
    }
    assert_eq!(again.finish().await.result(), &results[0]);
    for node in 0..3 {
        let late = cluster.at(&session, node).start_once("B", "B").await.finish().await;
        assert_eq!(late.result(), &results[1], "sent again to {node}");
    }
    accepted.extend(["running", "A", "B", "C", "D", "E"].map(Accepted::new));

    // A pause is neither over at once, nor an hour later.
    cluster.provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
    cluster.at(&session, 1).send("answered").await.result();
    let behind = cluster.at(&second, 0).start_send("behind").await;
    assert_eq!(cluster.at(&session, 2).answer(&[("tu_1", "noon")]).await.text(), "ok");
    assert_eq!(behind.finish().await.text(), "ok");
    cluster.provider.push(Answer::tools(&[("tu_2", "clock", json!({}))]));
    let paused = Instant::now();
    cluster.at(&session, 2).send("never answered").await.result();
    let outcome = cluster.at(&second, 1).send("reclaims").await;
    assert_eq!(outcome.text(), "ok");
    assert!(paused.elapsed() >= PAUSE, "the pause was over after {:?}", paused.elapsed());
    accepted.extend(["answered", "behind", "never answered", "reclaims"].map(Accepted::new));

    // The owner is killed while the model is asked, and again with a pause that it began: the others, whose clocks
    // differ from its, carry on in time and wait for the pause's end.
    let owner = cluster.owner(&session, 2).await;
    assert_eq!(owner, first);
    let asked = cluster.other(&[owner]);
    let mut held = cluster.provider.hold(Answer::text("never sent"));
    let mut resumed = cluster.provider.hold(Answer::tools(&[("tu_3", "clock", json!({}))]));
    let running = cluster.at(&session, asked).start_send("taken over").await;
    held.arrived().await;
    let killed = Instant::now();
    cluster.nodes[owner].server.kill9();
    resumed.arrived().await;
    assert!(killed.elapsed() < TAKEOVER, "taken over after {:?}", killed.elapsed());
    resumed.release();
    running.finish().await.result();
    let next = cluster.owner(&session, asked).await;
    assert_ne!(next, owner);
    cluster.nodes[next].server.kill9();
    let last = cluster.other(&[owner, next]);
    assert_eq!(cluster.at(&second, last).send("after two deaths").await.text(), "ok");
    accepted.extend(["taken over", "after two deaths"].map(Accepted::new));
    for node in [owner, next] {
        cluster.nodes[node].start().await;
    }
    for node in 0..3 {
        let text = format!("node {node}");
        assert_eq!(cluster.at(&session, node).send(text.as_str()).await.text(), "ok");
        accepted.push(Accepted::new(&text));
    }

    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&accepted), []);
    let errors = of_type(&log, "session.error");
    assert!(errors.len() == 2 && errors.iter().all(|e| e["reason"] == "driver_turn_abandoned"), "{errors:?}");
    assert_all_paired(&cluster.provider);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as i64;
    let times = recorded(&cluster, &session.id).await;
    assert!(times.is_sorted(), "{times:?}");
    assert!(times.iter().all(|time| (now - time).unsigned_abs() < MINUTES.as_millis() as u64), "{times:?} at {now}");
    for (index, event) in log.events.iter().enumerate().filter(|(_, event)| event.kind == "session.error") {
        // The pause began with the message that asks for the tool, and was reclaimed when it was over.
        let began = log.events[..index].iter().rposition(|event| event.kind == "server.message.send").expect("a pause");
        let lasted = times[index] - times[began];
        // One statement reads the clock for the deadline and again for the event; a loaded machine may pause it in
        // between.
        let (least, most) = (PAUSE - Duration::from_secs(1), PAUSE + TAKEOVER + Duration::from_secs(20));
        let range = least.as_millis() as i64..most.as_millis() as i64;
        assert!(range.contains(&lasted), "{} ended a pause after {lasted} ms", event.payload);
    }
    // Every node shows the same, from any event on.
    let shown: Vec<Vec<Value>> = vec![
        cluster.at(&session, 0).events().await,
        cluster.at(&session, 1).events().await,
        cluster.at(&session, 2).events().await,
    ];
    assert!(shown.iter().all(|events| *events == shown[0]));
    let all = ids(&shown[0]);
    for node in 0..3 {
        let params = json!({"since_event_id": all[2], "include_client_events": true});
        let mut replay = cluster.at(&session, node).start("session.subscribe", params).await;
        for id in &all[3..] {
            assert_eq!(replay.next().await.expect("another event")["params"]["id"], *id, "node {node}");
        }
    }
}

/// F24: the fast node is the owner first.
#[tokio::test]
async fn the_fast_node_owns() {
    owned_by(0).await;
}

/// F24: the slow node is the owner first.
#[tokio::test]
async fn the_slow_node_owns() {
    owned_by(1).await;
}

/// F24: a node whose clock is right is the owner first.
#[tokio::test]
async fn the_right_node_owns() {
    owned_by(2).await;
}

/// F24: a provider that asks to come back at a certain time means its own clock, whatever the node's shows.
#[tokio::test]
async fn a_date_to_come_back_at() {
    let cluster = start(Plan::default().provider("max_retries = 1")).await;
    for node in 0..3 {
        let session = cluster.driver().await;
        let later = Answer::status(503)
            .header("date", "Sun, 06 Nov 1994 08:49:37 GMT")
            .header("retry-after", "Sun, 06 Nov 1994 08:49:40 GMT");
        let mut first = cluster.provider.hold(later);
        let mut second = cluster.provider.hold(Answer::text("later"));
        let running = cluster.at(&session, node).start_send(format!("node {node}")).await;
        first.arrived().await;
        let asked = Instant::now();
        first.release();
        second.arrived().await;
        assert!(asked.elapsed() >= Duration::from_secs(3), "node {node} asked again after {:?}", asked.elapsed());
        second.release();
        assert_eq!(running.finish().await.text(), "later", "node {node}");
        assert_eq!(cluster.owner(&session, node).await, node);
        let log = cluster.log(&session).await;
        assert_eq!((log.violations(), of_type(&log, "provider.response").len()), (Vec::new(), 1), "one attempt");
    }
}
