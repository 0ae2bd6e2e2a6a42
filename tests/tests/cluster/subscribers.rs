//! F12, F13: subscribers that stop reading, and subscribers by the thousand.

use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};
use tests::checker::Log;
use tests::client::{Frames, Session, ids, types};
use tests::cluster::{Cluster, Plan};
use tests::files;

/// Reports of a local sandbox, each with so many bytes of detail.
async fn report(session: &Session, count: usize, bytes: usize) {
    let detail = "x".repeat(bytes);
    for _ in 0..count {
        let report = json!({"state": "error", "image": "x", "detail": detail});
        session.rpc("session.reportLocalSandbox", report).await.result();
    }
}

/// What a session's readers see live after event `number`.
fn live_after(log: &Log, number: i64) -> Vec<String> {
    let live = log.events.iter().filter(|event| event.number > number && !event.from_client);
    live.map(|event| event.id.clone()).collect()
}

/// F12: a subscriber on another node than the owner's stops reading: that node's memory stays flat, that stream ends
/// with `lagged`, and its neighbours get everything. For events that travel between nodes, and for ones that are too
/// large to.
#[tokio::test]
async fn one_that_stops_reading() {
    let cluster = Cluster::start().await;
    for (count, bytes) in [(400, 40 << 10), (60, 512 << 10)] {
        let session = cluster.driver().await;
        session.send("warm").await.text();
        let owner = cluster.owner(&session, 0).await;
        let watched = cluster.other(&[owner]);
        let third = cluster.other(&[owner, watched]);
        let mut stopped = cluster.at(&session, watched).subscribe(None).await;
        let mut reading = Vec::new();
        for node in [watched, third] {
            let reader = cluster.at(&session, node).subscribe(None).await;
            reading.push(tokio::spawn(reader.finish()));
        }
        let before = cluster.log(&session).await.head;
        let writer = cluster.at(&session, owner);
        report(&writer, count / 3, bytes).await;
        let memory = cluster.nodes[watched].server.resident();
        report(&writer, count - count / 3, bytes).await;
        let grown = cluster.nodes[watched].server.resident().saturating_sub(memory);
        let published = (count - count / 3) * bytes;
        assert!(grown < 16 << 20, "{} KiB were published, and the node grew by {} KiB", published >> 10, grown >> 10);
        assert_eq!(writer.send("a turn").await.text(), "ok");
        writer.delete().await.expect(200);
        let log = cluster.log(&session).await;
        assert_eq!(log.violations(), []);
        for task in reading {
            let seen = ids(&task.await.unwrap().live());
            assert_eq!(log.compare_stream(&seen), []);
            assert_eq!(seen.len(), live_after(&log, before).len(), "who reads gets everything");
        }
        let mut frames = Vec::new();
        while let Some(frame) = stopped.next().await {
            frames.push(frame);
        }
        let lagged =
            json!({"jsonrpc": "2.0", "error": {"code": -32000, "message": "lagged; reconnect with since_event_id"}});
        assert_eq!(frames.pop(), Some(lagged), "after {} events of {bytes} bytes", frames.len());
        let seen: Vec<Value> = frames.iter().map(|frame| frame["params"].clone()).collect();
        assert_eq!(log.compare_stream(&ids(&seen)), []);
        assert!(seen.len() < count, "it ended while events were left");
    }
}

/// Connections of the nodes to the database.
async fn postgres_connections(cluster: &Cluster) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
               AND application_name <> 'the test' AND backend_type = 'client backend'";
    let mut connection = cluster.pool.acquire().await.unwrap();
    sqlx::query("SET application_name = 'the test'").execute(&mut *connection).await.unwrap();
    sqlx::query_scalar(sql).fetch_one(&mut *connection).await.unwrap()
}

fn redis_connections(cluster: &Cluster) -> usize {
    cluster.redis.as_ref().unwrap().redis_cli(&["CLIENT", "LIST"]).lines().count()
}

/// F13: five thousand subscribers on one node, fifty in each of a hundred sessions: as many connections to Redis as
/// with none, no more to Postgres than its pool has, and everybody gets a turn's events. The node starts with the open
/// files that a login shell allows.
#[tokio::test]
async fn five_thousand() {
    const SESSIONS: usize = 100;
    const EACH: usize = 50;
    files::allow(2 * (SESSIONS * EACH) as u64);
    let cluster = Plan::default().own_redis().soft_files(1024).start().await;
    let sessions: Vec<Session> = stream::iter(0..SESSIONS).map(|_| cluster.driver()).buffered(8).collect().await;
    let before = redis_connections(&cluster);
    let watchers = sessions.iter().flat_map(|session| std::iter::repeat_n(cluster.at(session, 2), EACH));
    let mut streams: Vec<Frames> =
        stream::iter(watchers).map(|at| async move { at.subscribe(None).await }).buffered(32).collect().await;
    assert_eq!(redis_connections(&cluster), before, "with {} subscribers", streams.len());
    // One session in each ten, through each node in turn.
    for (index, session) in sessions.iter().enumerate().step_by(10) {
        assert_eq!(cluster.at(session, index / 10 % 3).send("hello").await.text(), "ok");
        let log = cluster.log(session).await;
        assert_eq!(log.violations(), []);
        for watcher in &mut streams[index * EACH..(index + 1) * EACH] {
            let seen = watcher.until_type("server.message.send").await;
            assert_eq!(ids(&seen), live_after(&log, 2), "{:?}", types(&seen));
        }
    }
    assert_eq!(redis_connections(&cluster), before, "after turns");
    let connections = postgres_connections(&cluster).await;
    assert!(connections <= 3 * 5 + 1, "{connections} connections to Postgres");
    assert!(
        streams.iter_mut().enumerate().all(|(index, watcher)| (index / EACH).is_multiple_of(10) || watcher.is_silent())
    );
}

/// What does not travel between nodes is read from the database once per node, however many of its clients watch.
#[tokio::test]
async fn many_on_one_node_are_one_reader() {
    const SUBSCRIBERS: usize = 40;
    const TURNS: i64 = 5;
    let cluster = Plan::default().own_postgres().start().await;
    sqlx::query("CREATE EXTENSION pg_stat_statements").execute(&cluster.pool).await.unwrap();
    let session = cluster.driver().await;
    session.send("warm").await.text();
    let owner = cluster.owner(&session, 0).await;
    let watched = cluster.other(&[owner]);
    let mut streams = Vec::new();
    for _ in 0..SUBSCRIBERS {
        streams.push(cluster.at(&session, watched).subscribe(None).await);
    }
    sqlx::query("SELECT pg_stat_statements_reset()").execute(&cluster.pool).await.unwrap();
    for turn in 0..TURNS {
        cluster.at(&session, owner).send(format!("turn {turn}")).await.text();
        for stream in &mut streams {
            let seen = stream.until_type("server.message.send").await;
            assert_eq!(types(&seen), ["provider.request", "provider.response", "server.message.send"]);
        }
    }
    let sql = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE query LIKE '%bytes_before%'";
    let pages: i64 = sqlx::query_scalar(sql).fetch_one(&cluster.pool).await.unwrap();
    // The watching node and the owner's caller; now and then a signal comes before the one it follows.
    assert!((TURNS..=4 * TURNS).contains(&pages), "{pages} pages for {TURNS} turns and {SUBSCRIBERS} subscribers");
    cluster.check(&session).await;
}
