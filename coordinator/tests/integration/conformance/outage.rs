//! F23, as far as one process sees it: the server goes away under load and comes back.

use crate::fixture::{Fixture, event, until, within};
use coordinator::Error;
use coordinator::log::{Log, Side};
use engine::event::EventType;
use engine::ids::{EventId, KeyId, SessionId};
use sqlx::{Connection as _, PgConnection};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tests::services::Service;

/// Writes until told to stop: what was acknowledged, and what may or may not be there.
async fn writer(
    log: Log,
    session: SessionId,
    key: KeyId,
    stop: Arc<AtomicBool>,
    failures: Arc<AtomicUsize>,
) -> (Vec<EventId>, Vec<EventId>, Vec<EventId>) {
    let (mut written, mut unknown, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    while !stop.load(Ordering::SeqCst) {
        let report = event(key, EventType::SandboxRunning);
        let id = report.id;
        match log.append_free(session, key, vec![report], Side::Nothing).await {
            Ok(_) => written.push(id),
            Err(Error::Unknown) => unknown.push(id),
            Err(Error::Unavailable(_)) => refused.push(id),
            Err(other) => panic!("{other:?}"),
        }
        if written.last() != Some(&id) {
            failures.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    }
    (written, unknown, refused)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_under_load_loses_and_doubles_nothing() {
    let mut server = tokio::task::spawn_blocking(|| Service::postgres_with(&["max_connections=60"])).await.unwrap();
    let fixture = Fixture::on(&server.url(), |_| ()).await;
    let (stop, failures) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut writers = Vec::new();
    for _ in 0..12 {
        let (session, key) = fixture.session().await;
        let run = writer(fixture.log.clone(), session, key, Arc::clone(&stop), Arc::clone(&failures));
        writers.push((session, tokio::spawn(run)));
    }
    let session = writers[0].0;
    for _ in 0..2 {
        let head = fixture.log.row(session).await.unwrap().head;
        until("writes go on", async || match fixture.log.row(session).await {
            Ok(row) if row.head > head.plus(20) => Ok(()),
            other => Err(other.map(|row| row.head)),
        })
        .await;
        let before = failures.load(Ordering::SeqCst);
        server = tokio::task::spawn_blocking(move || (server.stop(), server).1).await.unwrap();
        let read = within("a read without a server", fixture.log.row(session)).await;
        assert!(matches!(read, Err(Error::Unavailable(_))), "{read:?}");
        until("callers are told", async || match failures.load(Ordering::SeqCst) - before {
            0 => Err(0),
            told => Ok(told),
        })
        .await;
        server = tokio::task::spawn_blocking(move || (server.run(), server).1).await.unwrap();
        until("the database answers again", async || fixture.log.row(session).await.map(drop)).await;
    }
    stop.store(true, Ordering::SeqCst);
    for (session, writer) in writers {
        let (written, unknown, refused) = within("a writer", writer).await.unwrap();
        let log = fixture.contiguous(session).await;
        let there = |id: &EventId| log.contains(id);
        assert!(written.iter().all(there), "an acknowledged event is lost");
        assert!(!refused.iter().any(there), "an event that was refused is there");
        let more = unknown.iter().filter(|id| there(id)).count();
        assert_eq!(log.len(), 1 + written.len() + more, "an event twice, or one that nobody wrote");
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_free_connections_is_unavailable_until_it_has_some() {
    let server = tokio::task::spawn_blocking(|| Service::postgres_with(&["max_connections=12"])).await.unwrap();
    let fixture = Fixture::on(&server.url(), |_| ()).await;
    let (session, key) = fixture.session().await;
    let mut others = Vec::new();
    while let Ok(connection) = PgConnection::connect(&format!("{}/postgres", server.url())).await {
        others.push(connection);
    }
    assert!(others.len() > 5, "{}", others.len());
    let report = |log: Log| async move {
        let events = vec![event(key, EventType::SandboxRunning)];
        log.append_free(session, key, events, Side::Nothing).await.map(drop)
    };
    let reads: Vec<_> = (0..20)
        .map(|_| {
            let log = fixture.log.clone();
            tokio::spawn(async move { log.row(session).await.map(drop) })
        })
        .collect();
    let mut refused = 0;
    for read in reads {
        match within("a read", read).await.unwrap() {
            Ok(()) => {}
            Err(Error::Unavailable(_)) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(refused > 0, "nobody needed another connection");
    drop(others);
    until("connections are free", async || report(fixture.log.clone()).await).await;
    assert_eq!(fixture.contiguous(session).await.len(), 2);
    fixture.end().await;
}
