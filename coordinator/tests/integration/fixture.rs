//! A database of one case alone, and the words the cases are written in.

use coordinator::accounts::{Accounts, Digest, ProfileFields};
use coordinator::feed::Feeds;
use coordinator::log::{Append, CallRow, Epoch, Log, NewSession, Row, Side, State};
use coordinator::{Db, Error, PostgresSettings, fresh_id};
use engine::event::{Event, EventNumber, EventType, NewEvent};
use engine::gate::{End, GateAfter, GateFound};
use engine::ids::{CallId, EventId, KeyId, ProfileId, SessionId};
use engine::json;
use engine::open::Compaction;
use engine::outcome::Outcome;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tests::services;
use tokio::time::Instant;

/// Generous for a loaded machine; nothing that works takes this long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) struct Fixture {
    pub db: Db,
    pub log: Log,
    pub accounts: Accounts,
    place: Place,
}

enum Place {
    File(PathBuf),
    Server { base: String, name: String },
}

impl Fixture {
    pub(crate) async fn sqlite() -> Self {
        let dir = std::env::temp_dir().join(format!("bae-conformance-{}", uuid::Uuid::now_v7().simple()));
        let db = Db::open(&dir.join("bae.db")).await.expect("an SQLite file");
        Self::of(db, Place::File(dir))
    }

    pub(crate) async fn postgres() -> Self {
        let base = tokio::task::spawn_blocking(services::postgres).await.expect("a Postgres server");
        Self::on(&base, |_| ()).await
    }

    /// On that server, with other settings.
    pub(crate) async fn on(base: &str, change: impl FnOnce(&mut PostgresSettings)) -> Self {
        let name = make_database(base).await;
        let mut settings = PostgresSettings::new(format!("{base}/{name}").into());
        change(&mut settings);
        let db = Db::connect(&settings).await.expect("a Postgres database");
        Self::of(db, Place::Server { base: base.to_owned(), name })
    }

    fn of(db: Db, place: Place) -> Self {
        let log = Log::new(db.clone(), Arc::new(Feeds::default()));
        Self { accounts: Accounts::new(db.clone()), db, log, place }
    }

    /// The database's name on its server.
    pub(crate) fn name(&self) -> &str {
        match &self.place {
            Place::File(_) => panic!("a file has no name on a server"),
            Place::Server { name, .. } => name,
        }
    }

    /// Where it is.
    pub(crate) fn url(&self) -> String {
        match &self.place {
            Place::File(dir) => format!("sqlite:{}", dir.join("bae.db").display()),
            Place::Server { base, name } => format!("{base}/{name}"),
        }
    }

    /// Runs SQL beside the product; ids as `<hex>`.
    pub(crate) async fn raw(&self, sql: &str) {
        let done = match &self.place {
            Place::File(_) => {
                let mut connection = sqlx::SqliteConnection::connect(&self.url()).await.expect("the file");
                let sql = sql.replace('<', "X'").replace('>', "'");
                connection.execute(AssertSqlSafe(sql)).await.map(|done| done.rows_affected())
            }
            Place::Server { .. } => {
                let mut connection = sqlx::PgConnection::connect(&self.url()).await.expect("the database");
                let sql = sql.replace('<', "'\\x").replace('>', "'");
                connection.execute(AssertSqlSafe(sql)).await.map(|done| done.rows_affected())
            }
        };
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub(crate) async fn end(self) {
        self.db.close().await;
        match self.place {
            Place::File(dir) => std::fs::remove_dir_all(dir).expect("the test's folder"),
            Place::Server { base, name } => {
                let mut connection =
                    sqlx::PgConnection::connect(&format!("{base}/postgres")).await.expect("the server");
                let drop = format!("DROP DATABASE {name} WITH (FORCE)");
                connection.execute(AssertSqlSafe(drop)).await.expect("the test's database dropped");
            }
        }
    }

    pub(crate) async fn profile(&self) -> ProfileId {
        let made = self.accounts.create_profile(fields(&uuid::Uuid::now_v7().simple().to_string())).await;
        made.expect("a profile").id
    }

    pub(crate) async fn key(&self, profile: ProfileId) -> KeyId {
        let digest = Digest([fresh_id(), fresh_id()].concat().try_into().expect("32 bytes"));
        self.accounts.create_key("key".into(), "bae_1234".into(), digest, profile).await.expect("a client key").id
    }

    /// An open session and the key that opened it.
    pub(crate) async fn session(&self) -> (SessionId, KeyId) {
        let profile = self.profile().await;
        let key = self.key(profile).await;
        (self.session_of(profile, key, State::Open).await, key)
    }

    pub(crate) async fn session_of(&self, profile: ProfileId, key: KeyId, state: State) -> SessionId {
        let session = new_session(profile, key, state);
        let id = session.id;
        self.log.create(session).await.expect("a session");
        id
    }

    /// Becomes the owner.
    pub(crate) async fn own(&self, session: SessionId) -> Row {
        let row = self.log.row(session).await.expect("the session's row");
        self.log.take(session, row.epoch).await.expect("the session taken")
    }

    /// The whole log: number and id, in order.
    pub(crate) async fn events(&self, session: SessionId) -> Vec<Arc<Event>> {
        let mut events = Vec::new();
        loop {
            let after = events.last().map_or(EventNumber::START, |event: &Arc<Event>| event.number);
            let page = self.log.page(session, after, 100).await.expect("a page");
            if page.events.is_empty() {
                return events;
            }
            events.extend(page.events);
        }
    }

    /// The log's ids; its numbers are 1, 2, 3 … and its head is the last.
    pub(crate) async fn contiguous(&self, session: SessionId) -> Vec<EventId> {
        let events = self.events(session).await;
        let numbers: Vec<_> = events.iter().map(|event| event.number).collect();
        assert_eq!(
            numbers,
            (1..=events.len()).map(|n| EventNumber::START.plus(n)).collect::<Vec<_>>(),
            "numbers with a hole"
        );
        assert_eq!(
            self.log.row(session).await.expect("the row").head,
            EventNumber::START.plus(events.len()),
            "the head"
        );
        events.iter().map(|event| event.event.id).collect()
    }

    pub(crate) async fn free(
        &self,
        session: SessionId,
        key: KeyId,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Arc<Event>>, Error> {
        self.log.append_free(session, key, events, Side::Nothing).await
    }
}

async fn make_database(base: &str) -> String {
    let name = format!("bae_test_{}", uuid::Uuid::now_v7().simple());
    let mut connection = sqlx::PgConnection::connect(&format!("{base}/postgres")).await.expect("the server");
    let create = format!("CREATE DATABASE {name}");
    connection.execute(AssertSqlSafe(create)).await.expect("a database of the test's own");
    name
}

pub(crate) fn new_session(profile: ProfileId, key: KeyId, state: State) -> NewSession {
    NewSession {
        id: SessionId(fresh_id()),
        profile,
        key,
        state,
        client_version: Some("1.0".into()),
        compaction: Compaction::default(),
        mcp_tools: Vec::new(),
        declarations: engine::tools::Declarations::default().store(),
        digest: Some([fresh_id(), fresh_id()].concat().try_into().expect("32 bytes")),
        event: event(key, EventType::SessionOpen),
    }
}

pub(crate) fn fields(name: &str) -> ProfileFields {
    ProfileFields {
        name: name.into(),
        primary_provider: "main".into(),
        fallback_providers: vec!["second".into()],
        mcp_servers: vec![],
        allowed_tools: vec!["clock \"ünïcode\"".into()],
        available_sandboxes: vec!["image:1".into()],
    }
}

pub(crate) fn event(key: KeyId, kind: EventType) -> NewEvent {
    let payload = engine::event::Payload::Json(json::encode(&serde_json::json!({"kind": kind.as_str()})));
    NewEvent { id: EventId(fresh_id()), key, kind, payload, from_client: false }
}

pub(crate) fn says(key: KeyId, payload: &str) -> NewEvent {
    let payload = engine::event::Payload::Json(json::parse(payload).expect("JSON"));
    NewEvent { id: EventId(fresh_id()), key, kind: EventType::ClientMessage, payload, from_client: true }
}

/// A turn's append of one message that opens a call.
pub(crate) fn opening(session: SessionId, epoch: Epoch, key: KeyId, gate: GateFound) -> Append {
    Append {
        session,
        epoch,
        call: CallId(fresh_id()),
        open: Some(CallRow { key, idempotency: None, traceparent: None, gate }),
        events: vec![says(key, r#"{"role":"user","content":"hi"}"#)],
        chain: None,
        reported: Vec::new(),
        end: None,
    }
}

/// The next append of that call.
pub(crate) fn going_on(before: &Append, end: Option<End>) -> Append {
    let key = before.events[0].key;
    Append {
        open: None,
        events: vec![event(key, EventType::ProviderResponse)],
        chain: None,
        reported: Vec::new(),
        end,
        ..before.clone()
    }
}

pub(crate) fn ended() -> End {
    End { outcome: Outcome::Unavailable, gate: GateAfter::Free }
}

/// Asks until it answers `Ok`; its `Err` is what the panic reports.
pub(crate) async fn until<T, S: Debug>(what: &str, mut probe: impl AsyncFnMut() -> Result<T, S>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        match probe().await {
            Ok(value) => return value,
            Err(state) => assert!(Instant::now() < end, "{what}: not in time; last state: {state:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("{what}: not in time"))
}
