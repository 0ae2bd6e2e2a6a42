//! Postgres alone: answers that are lost, rows that are locked, inserts that fail.

use crate::conformance::proxy::Proxy;
use crate::fixture::{DEADLINE, Fixture, ended, event, going_on, opening, says, until, within};
use coordinator::log::{Append, Epoch};
use coordinator::{Error, PostgresSettings};
use engine::event::{EventNumber, EventType, NewEvent};
use engine::gate::{End, GateAfter, GateFound};
use engine::ids::{KeyId, SessionId};
use engine::outcome::Outcome;
use futures_util::FutureExt;
use futures_util::future::join_all;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};
use std::sync::Arc;
use std::time::Duration;
use tests::services;

/// Every kind of append: it is the last of the steps, the ones before it happen undisturbed.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Free,
    Opening,
    OpeningAndEnding,
    GoingOn,
    Ending,
}

const KINDS: [Kind; 5] = [Kind::Free, Kind::Opening, Kind::OpeningAndEnding, Kind::GoingOn, Kind::Ending];

enum Step {
    Free(SessionId, KeyId, Vec<NewEvent>),
    Turn(Box<Append>),
}

async fn step(fixture: &Fixture, kind: Kind, marker: &str) -> (SessionId, Step) {
    let (session, key) = fixture.session().await;
    let marked = says(key, &format!(r#"{{"marker":"{marker}"}}"#));
    let epoch = fixture.own(session).await.epoch;
    let mut open = opening(session, epoch, key, GateFound::Free);
    if let Some(row) = &mut open.open {
        row.idempotency = Some(("once".into(), [1; 32]));
    }
    let mut append = match kind {
        Kind::Free => return (session, Step::Free(session, key, vec![marked, event(key, EventType::SandboxRunning)])),
        Kind::Opening => open,
        Kind::OpeningAndEnding => Append { end: Some(ended()), ..open },
        Kind::GoingOn | Kind::Ending => {
            fixture.log.append(open.clone()).await.unwrap();
            going_on(&open, if matches!(kind, Kind::Ending) { Some(ended()) } else { None })
        }
    };
    append.events.push(marked);
    (session, Step::Turn(Box::new(append)))
}

impl Step {
    fn ids(&self) -> Vec<engine::ids::EventId> {
        let events = match self {
            Step::Free(_, _, events) => events,
            Step::Turn(append) => &append.events,
        };
        events.iter().map(|event| event.id).collect()
    }

    async fn run(self, log: coordinator::log::Log) -> Result<Vec<Arc<engine::event::Event>>, Error> {
        match self {
            Step::Free(session, key, events) => {
                log.append_free(session, key, events, coordinator::log::Side::Nothing).await
            }
            Step::Turn(append) => log.append(*append).await,
        }
    }
}

/// Another session of the database, with a transaction open.
async fn locker(fixture: &Fixture, session: SessionId) -> PgConnection {
    let mut connection =
        PgConnection::connect(&format!("{}/{}", services::plain_postgres().url(), fixture.name())).await.unwrap();
    connection.execute("BEGIN").await.unwrap();
    let lock = "SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE";
    sqlx::query(lock).bind(session.0.as_slice()).fetch_one(&mut connection).await.unwrap();
    connection
}

/// Returns once exactly so many statements wait for a lock in this database.
async fn waiting(fixture: &Fixture, number: i64) {
    let mut connection =
        PgConnection::connect(&format!("{}/postgres", services::plain_postgres().url())).await.unwrap();
    let count = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock'";
    let probe = async || {
        let row = sqlx::query(count).bind(fixture.name()).fetch_one(&mut connection).await.unwrap();
        let waiting: i64 = row.get(0);
        if waiting == number { Ok(()) } else { Err(waiting) }
    };
    until("statements that wait for a lock", probe).await;
}

async fn proxied() -> (Proxy, Fixture) {
    let server = tokio::task::spawn_blocking(services::plain_postgres).await.expect("a Postgres server");
    let proxy = Proxy::to(server.port()).await;
    let fixture = Fixture::on(&proxy.url(), |_| ()).await;
    (proxy, fixture)
}

/// S1: the connection breaks while the statement waits for the row's lock; it is repeated; then both get the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_whose_connection_broke_while_it_waited_is_applied_once() {
    let (proxy, fixture) = proxied().await;
    for (index, kind) in KINDS.into_iter().enumerate() {
        let marker = format!("broken-{index}");
        let (session, step) = step(&fixture, kind, &marker).await;
        let (before, ids) = (fixture.contiguous(session).await, step.ids());
        let mut lock = locker(&fixture, session).await;
        proxy.cut_when_sent(&marker);
        let appending = tokio::spawn(step.run(fixture.log.clone()));
        within("the cut", proxy.cuts(index + 1)).await;
        waiting(&fixture, 2).await;
        lock.execute("COMMIT").await.unwrap();
        let written =
            within("the append", appending).await.unwrap().unwrap_or_else(|error| panic!("{kind:?}: {error:?}"));
        waiting(&fixture, 0).await;
        let log = fixture.contiguous(session).await;
        assert_eq!(log, [before, ids.clone()].concat(), "{kind:?}");
        let told: Vec<_> = written.iter().map(|event| (event.number, event.event.id)).collect();
        let numbers = (log.len() - ids.len() + 1..).map(|number| EventNumber::START.plus(number));
        assert_eq!(told, numbers.zip(ids).collect::<Vec<_>>(), "{kind:?}");
    }
    fixture.end().await;
}

/// It was applied, and only its answer was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_whose_answer_was_lost_is_applied_once() {
    let (proxy, fixture) = proxied().await;
    for (index, kind) in KINDS.into_iter().enumerate() {
        let marker = format!("lost-{index}");
        let (session, step) = step(&fixture, kind, &marker).await;
        let (before, ids) = (fixture.contiguous(session).await, step.ids());
        let (mut reader, row) = coordinator::reader::Reader::open(&fixture.log, session, async {}).await.unwrap();
        proxy.cut_when_answered(&marker);
        let written = within("the append", step.run(fixture.log.clone())).await;
        let written = written.unwrap_or_else(|error| panic!("{kind:?}: {error:?}"));
        within("the cut", proxy.cuts(index + 1)).await;
        assert_eq!(fixture.contiguous(session).await, [before, ids.clone()].concat(), "{kind:?}");
        assert_eq!(written[0].number, row.head.next());
        assert_eq!(reader.head().number, row.head.plus(ids.len()), "published");
        let shown = reader.read(reader.head().number).await.unwrap();
        assert_eq!(shown.iter().map(|shown| shown.event.event.id).collect::<Vec<_>>(), ids);
    }
    fixture.end().await;
}

/// S1, later still: the network delivers the first statement when its repetition was applied long ago.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_that_comes_late_is_not_applied_again() {
    let (proxy, fixture) = proxied().await;
    for (index, kind) in KINDS.into_iter().enumerate() {
        let marker = format!("late-{index}");
        let (session, step) = step(&fixture, kind, &marker).await;
        let (before, ids) = (fixture.contiguous(session).await, step.ids());
        proxy.hold_back(&marker);
        let written = within("the append", step.run(fixture.log.clone())).await;
        written.unwrap_or_else(|error| panic!("{kind:?}: {error:?}"));
        let after = [before, ids].concat();
        assert_eq!(fixture.contiguous(session).await, after, "{kind:?}");
        within("the late delivery", proxy.deliver()).await;
        assert_eq!(fixture.contiguous(session).await, after, "{kind:?}");
    }
    fixture.end().await;
}

/// An opening whose repetition is refused because the pause goes on could still come once it is over: nobody may be
/// told that it was not applied. Who takes the session anew fences it off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_that_may_still_come_is_not_called_refused() {
    let (proxy, fixture) = proxied().await;
    for taken in [false, true] {
        let (session, owner) = fixture.session().await;
        let epoch = fixture.own(session).await.epoch;
        let open = opening(session, epoch, owner, GateFound::Free);
        fixture.log.append(open.clone()).await.unwrap();
        fixture
            .log
            .append(going_on(
                &open,
                Some(End {
                    outcome: Outcome::Unavailable,
                    gate: GateAfter::Paused(std::time::Duration::from_secs(60)),
                }),
            ))
            .await
            .unwrap();
        let mut reclaim = opening(session, epoch, owner, GateFound::ExpiredPause);
        reclaim.events.push(says(owner, r#"{"marker":"reclaims"}"#));
        proxy.hold_back("reclaims");
        let done = within("the append", fixture.log.append(reclaim)).await;
        assert!(matches!(done, Err(Error::Unknown)), "{done:?}");
        assert_eq!(fixture.contiguous(session).await.len(), 3);
        if taken {
            fixture.own(session).await;
        }
        fixture.log.expire_pauses_of(owner).await.unwrap();
        within("the late delivery", proxy.deliver()).await;
        assert_eq!(fixture.contiguous(session).await.len(), if taken { 3 } else { 5 }, "taken anew: {taken}");
    }
    fixture.end().await;
}

/// A network that swallows everything: all ends in bounded time, and goes on once it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_waits_for_ever() {
    let server = tokio::task::spawn_blocking(services::plain_postgres).await.expect("a Postgres server");
    let proxy = Proxy::to(server.port()).await;
    let brief = |settings: &mut PostgresSettings| {
        (settings.statement_timeout, settings.acquire_timeout) = (Duration::from_secs(1), Duration::from_secs(1));
        settings.max_connections = 4;
    };
    let fixture = Fixture::on(&proxy.url(), brief).await;
    let (session, key) = fixture.session().await;
    proxy.swallow();
    let report = event(key, EventType::SandboxRunning);
    let done = within("an append", fixture.free(session, key, vec![report.clone()])).await;
    assert!(matches!(done, Err(Error::Unknown)), "{done:?}");
    // More than there are connections, twice.
    for _ in 0..2 {
        let reads = within("reads", join_all((0..6).map(|_| fixture.log.row(session)))).await;
        assert!(reads.iter().all(|read| matches!(read, Err(Error::Unavailable(_)))), "{reads:?}");
        let writes = within("writes", join_all((0..6).map(|_| fixture.log.take(session, Epoch::UNOWNED)))).await;
        let lost = |write: &_| matches!(write, Err(Error::Unavailable(_) | Error::Unknown));
        assert!(writes.iter().all(lost), "{writes:?}");
    }
    proxy.pass();
    until("the database is back", async || fixture.free(session, key, vec![report.clone()]).await).await;
    assert_eq!(fixture.contiguous(session).await.len(), 2);
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_held_too_long_is_a_definite_failure() {
    let server = tokio::task::spawn_blocking(services::plain_postgres).await.expect("a Postgres server");
    let fixture = Fixture::on(&server.url(), |settings| settings.lock_timeout = Duration::from_millis(200)).await;
    let (session, key) = fixture.session().await;
    let mut lock = locker(&fixture, session).await;
    let report = event(key, EventType::SandboxRunning);
    let done = within("an append", fixture.free(session, key, vec![report.clone()])).await;
    assert!(matches!(done, Err(Error::Unavailable(_))), "{done:?}");
    let taken = within("a write", fixture.log.take(session, Epoch::UNOWNED)).await;
    assert!(matches!(taken, Err(Error::Unavailable(_))), "{taken:?}");
    assert_eq!(fixture.log.row(session).await.unwrap().head, EventNumber(1), "readers wait for nobody");
    lock.execute("COMMIT").await.unwrap();
    fixture.free(session, key, vec![report]).await.unwrap();
    assert_eq!(fixture.contiguous(session).await.len(), 2);
    fixture.end().await;
}

/// Appends that share a statement: one whose row is locked waits alone, one that fails fails alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_do_not_wait_or_fail_for_each_other() {
    let server = tokio::task::spawn_blocking(services::plain_postgres).await.expect("a Postgres server");
    let patient = |settings: &mut PostgresSettings| {
        // Two statements at a time: whoever comes meanwhile shares the next.
        settings.max_connections = 4;
        (settings.lock_timeout, settings.statement_timeout) = (DEADLINE, DEADLINE);
    };
    let fixture = Fixture::on(&server.url(), patient).await;
    let full = "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS \
        $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$; \
        CREATE TRIGGER full_disk BEFORE INSERT ON events FOR EACH ROW WHEN (NEW.kind = 'tool.call') \
        EXECUTE FUNCTION full_disk()";
    for statement in full.split_inclusive("$$;") {
        fixture.raw(statement).await;
    }
    let mut sessions = Vec::new();
    for _ in 0..40 {
        sessions.push(fixture.session().await);
    }
    let mut lock = locker(&fixture, sessions[7].0).await;
    let appends: Vec<_> = sessions
        .iter()
        .enumerate()
        .map(|(index, (session, key))| {
            let (log, session, key) = (fixture.log.clone(), *session, *key);
            let last = if index % 10 == 3 { EventType::ToolCall } else { EventType::ToolResult };
            let events = vec![event(key, EventType::SandboxRunning), event(key, last)];
            tokio::spawn(async move { log.append_free(session, key, events, coordinator::log::Side::Nothing).await })
        })
        .collect();
    let mut locked = None;
    for (index, append) in appends.into_iter().enumerate() {
        if index == 7 {
            locked = Some(append);
            continue;
        }
        let done = within("an append beside a locked one", append).await.unwrap();
        assert_eq!(done.is_ok(), index % 10 != 3, "{index}: {done:?}");
        let length = fixture.contiguous(sessions[index].0).await.len();
        assert_eq!(length, if done.is_ok() { 3 } else { 1 }, "{index}: half-written");
    }
    lock.execute("COMMIT").await.unwrap();
    within("the locked one", locked.unwrap()).await.unwrap().unwrap();
    assert_eq!(fixture.contiguous(sessions[7].0).await.len(), 3);
    fixture.end().await;
}

/// A statement that was abandoned, or a transaction, never reaches the next who uses its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_leaves_spoils_no_connection() {
    let fixture = Fixture::postgres().await;
    let (session, key) = fixture.session().await;
    for _ in 0..200 {
        let mut read = Box::pin(fixture.log.row(session).fuse());
        let mut write = Box::pin(fixture.log.declare(session, key, "{}".into()).fuse());
        let _ = (futures_util::poll!(read.as_mut()), futures_util::poll!(write.as_mut()));
        tokio::task::yield_now().await;
        let _ = (futures_util::poll!(read.as_mut()), futures_util::poll!(write.as_mut()));
    }
    assert_eq!(within("a read", fixture.log.row(session)).await.unwrap().head, EventNumber(1));
    let mut connection = PgConnection::connect(&format!("{}/postgres", services::postgres())).await.unwrap();
    let idle = format!(
        "SELECT 1 FROM pg_stat_activity WHERE datname = '{}' AND state LIKE 'idle in transaction%'",
        fixture.name()
    );
    until("no transaction is left open", async || {
        let open = connection.fetch_all(AssertSqlSafe(idle.clone())).await.unwrap().len();
        if open == 0 { Ok(()) } else { Err(open) }
    })
    .await;
    fixture.end().await;
}
