//! A session's record as Postgres holds it. With `database` the only place of this crate that knows table and column
//! names.

use serde_json::Value;
use sqlx::postgres::PgPool;

/// An event's row.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// Its place in the session.
    pub number: i64,
    /// `evt_…`
    pub id: String,
    /// Under which ownership it was written; none if it is no part of a turn.
    pub epoch: Option<i64>,
    /// The call it belongs to, in hexadecimal.
    pub call: Option<String>,
    /// Its type.
    pub kind: String,
    /// Whether the live filter drops it.
    pub from_client: bool,
    /// As stored.
    pub payload: Value,
}

impl Recorded {
    /// What a client's message says: its content, or the text behind the tool results that it is sent with.
    pub fn text(&self) -> Option<&str> {
        let content = (self.kind == "client.message.send").then(|| &self.payload["content"])?;
        let block = content.as_array().and_then(|blocks| blocks.iter().find(|block| block["type"] == "text"));
        content.as_str().or_else(|| block?["text"].as_str())
    }
}

/// A call's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// In hexadecimal.
    pub id: String,
    /// What its client named it.
    pub idempotency_key: Option<String>,
    /// Number of its first event.
    pub first: i64,
    /// Number of its last event, once it is over.
    pub last: Option<i64>,
    /// How it ended.
    pub outcome: Option<String>,
}

/// A session's record.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// Number of the newest event, as the session's row says.
    pub head: i64,
    /// The session's ownership.
    pub epoch: i64,
    /// `open`, `closing`, `closed`, `error`.
    pub state: String,
    /// `idle`, `running`, `paused`.
    pub phase: String,
    /// In order of their numbers.
    pub events: Vec<Recorded>,
    /// In order of their first events.
    pub calls: Vec<Call>,
}

type EventRow = (i64, String, Option<i64>, Option<String>, String, bool, String);
type CallRow = (String, Option<String>, i64, Option<i64>, Option<String>);

impl Log {
    /// Reads it all at one moment.
    pub async fn read(pool: &PgPool, session: &str) -> Self {
        Self::try_read(pool, session).await.unwrap_or_else(|error| panic!("the record of {session}: {error}"))
    }

    /// The same while the database may be away.
    ///
    /// # Errors
    /// The database's.
    pub async fn try_read(pool: &PgPool, session: &str) -> sqlx::Result<Self> {
        let id = session.split_once('_').map_or(session, |(_, hex)| hex);
        let mut snapshot = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let (head, epoch, state, phase): (i64, i64, String, String) =
            sqlx::query_as("SELECT head, epoch, state, phase FROM sessions WHERE id = decode($1, 'hex')")
                .bind(id)
                .fetch_one(&mut *snapshot)
                .await?;
        let events: Vec<EventRow> = sqlx::query_as(
            "SELECT number, 'evt_' || encode(id, 'hex'), epoch, encode(call, 'hex'), kind, from_client, payload \
             FROM events WHERE session = decode($1, 'hex') ORDER BY number",
        )
        .bind(id)
        .fetch_all(&mut *snapshot)
        .await?;
        let calls: Vec<CallRow> = sqlx::query_as(
            "SELECT encode(id, 'hex'), idempotency_key, first_event, last_event, outcome \
             FROM calls WHERE session = decode($1, 'hex') ORDER BY first_event",
        )
        .bind(id)
        .fetch_all(&mut *snapshot)
        .await?;
        snapshot.rollback().await?;
        let recorded = |(number, id, epoch, call, kind, from_client, payload): EventRow| Recorded {
            number,
            id,
            epoch,
            call,
            kind,
            from_client,
            payload: serde_json::from_str(&payload).unwrap_or(Value::Null),
        };
        let call =
            |(id, idempotency_key, first, last, outcome): CallRow| Call { id, idempotency_key, first, last, outcome };
        Ok(Self {
            head,
            epoch,
            state,
            phase,
            events: events.into_iter().map(recorded).collect(),
            calls: calls.into_iter().map(call).collect(),
        })
    }

    /// The types in order.
    pub fn types(&self) -> Vec<String> {
        self.events.iter().map(|event| event.kind.clone()).collect()
    }
}
