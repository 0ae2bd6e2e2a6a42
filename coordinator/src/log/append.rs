//! Appending: one write that moves the session's head under its conditions and inserts the events behind it.

use super::{Log, now};
use crate::Error;
use engine::event::{Event, NewEvent, Payload};
use engine::ids::{CallId, KeyId, SessionId};
use engine::outcome::Outcome;
use engine::request::Chain;
use engine::turn::Gate;
use sqlx::Row as _;
use sqlx::sqlite::SqliteConnection;
use std::sync::Arc;

/// An append of a turn.
#[derive(Debug, Clone)]
pub struct Append {
    /// Whose log.
    pub session: SessionId,
    /// The owner's epoch.
    pub epoch: i64,
    /// The call whose events these are.
    pub call: CallId,
    /// Given by the append that opens the call.
    pub open: Option<CallRow>,
    /// The events, in order.
    pub events: Vec<NewEvent>,
    /// What a `provider.request` among them may refer to.
    pub chain: Option<Chain>,
    /// What becomes of the call.
    pub next: Next,
}

/// What is recorded of a call when it opens, and the gate it found.
#[derive(Debug, Clone)]
pub struct CallRow {
    /// Whose call.
    pub key: KeyId,
    /// The idempotency key and the digest of the params it came with.
    pub idempotency: Option<(String, [u8; 32])>,
    /// The caller's trace.
    pub traceparent: Option<String>,
    /// Must still hold in the append; expiry is judged with the database's clock.
    pub gate: Gate,
}

/// What an append makes of its call.
#[derive(Debug, Clone)]
pub enum Next {
    /// It goes on.
    Running,
    /// It is over and the gate is free.
    Idle(Outcome),
    /// It is over and its client keeps the gate for that many milliseconds.
    Paused(Outcome, i64),
    /// It is over and the session has failed.
    Error(Outcome),
}

/// What an append outside of turns changes beside the log.
#[derive(Debug, Clone)]
pub enum Side {
    /// Nothing.
    Nothing,
    /// A client joins: its declarations and its session key's digest.
    Join {
        /// Stored declarations.
        declarations: String,
        /// Digest of the new session key.
        digest: [u8; 32],
    },
    /// A client registers as a driver; registered already means that nothing is appended.
    Register,
}

/// The update of a turn's append, with the condition of its kind.
macro_rules! update {
    ($condition:literal) => {
        concat!(
            "UPDATE sessions SET head = head + $3, phase = $5, state = $6, call = $4, owner = $7, deadline = ",
            now!(),
            " + $8, takeovers = 0, handed_over = 0 WHERE id = $1 AND epoch = $2 AND state = 'open' AND ",
            $condition,
            " RETURNING head, ",
            now!(),
            " AS now"
        )
    };
}

const GO_ON: &str = update!("phase = 'running' AND call = $4");
const OPEN_FREE: &str = update!("phase = 'idle'");
const OPEN_OWN: &str = update!("phase = 'paused' AND owner = $9");
const OPEN_EXPIRED: &str = update!("phase = 'paused' AND deadline <= CAST(unixepoch('subsec') * 1000 AS INTEGER)");
const FREE: &str = concat!(
    "UPDATE sessions SET head = head + $2 WHERE id = $1 AND state = 'open' RETURNING head, ",
    now!(),
    " AS now"
);
const ADD_EVENT: &str = "INSERT INTO events (id, session, number, epoch, call, client_key, kind, from_client, payload, created_at) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

impl Log {
    /// Appends a turn's events and publishes them. Returns them as committed.
    ///
    /// # Errors
    /// `Fenced`, `NotOpen`; `Refused` when the gate is not as the opening call found it; `Duplicate` when another call has
    /// its idempotency key; `Unavailable` with nothing applied.
    pub async fn append(&self, append: Append) -> Result<Vec<Arc<Event>>, Error> {
        let feeds = Arc::clone(&self.feeds);
        let (session, ended) = (append.session, matches!(append.next, Next::Error(_)));
        let outcome = match &append.next {
            Next::Running => None,
            Next::Idle(outcome) | Next::Paused(outcome, _) | Next::Error(outcome) => Some(outcome.clone()),
        };
        self.db
            .write(
                move |c| Box::pin(async move { turn(c, &append).await }),
                move |events: &Vec<Arc<Event>>| feeds.publish(session, events, ended, outcome),
            )
            .await
    }

    /// Appends events that are no part of a turn, from any node, and publishes them.
    ///
    /// # Errors
    /// `NotOpen`, `NotFound`; `Unavailable` with nothing applied.
    pub async fn append_free(
        &self,
        session: SessionId,
        key: KeyId,
        events: Vec<NewEvent>,
        side: Side,
    ) -> Result<Vec<Arc<Event>>, Error> {
        let feeds = Arc::clone(&self.feeds);
        self.db
            .write(
                move |c| Box::pin(async move { free(c, session, key, &events, &side).await }),
                move |events: &Vec<Arc<Event>>| feeds.publish(session, events, false, None),
            )
            .await
    }
}

async fn turn(c: &mut SqliteConnection, append: &Append) -> Result<Vec<Arc<Event>>, Error> {
    let (phase, state, outcome, pause) = match &append.next {
        Next::Running => ("running", "open", None, None),
        Next::Idle(outcome) => ("idle", "open", Some(outcome), None),
        Next::Paused(outcome, time) => ("paused", "open", Some(outcome), Some(*time)),
        Next::Error(outcome) => ("idle", "error", Some(outcome), None),
    };
    let key = append.events.last().map_or(KeyId([0; 16]), |event| event.key);
    let gate = append.open.as_ref().map(|open| open.gate);
    let update = match gate {
        None => GO_ON,
        Some(Gate::Free) => OPEN_FREE,
        Some(Gate::Own) => OPEN_OWN,
        Some(Gate::Expired) => OPEN_EXPIRED,
    };
    let update = sqlx::query(update)
        .bind(append.session.0.as_slice())
        .bind(append.epoch)
        .bind(append.events.len() as i64)
        .bind(append.call.0.as_slice())
        .bind(phase)
        .bind(state)
        .bind(pause.map(|_| key.0.to_vec()))
        .bind(pause);
    let update = match &append.open {
        Some(open) if gate == Some(Gate::Own) => update.bind(open.key.0.as_slice()),
        Some(_) | None => update,
    };
    let row = update.fetch_optional(&mut *c).await?;
    let Some(row) = row else { return Err(refusal(c, append.session, Some(append.epoch)).await?) };
    let (head, now): (i64, i64) = (row.try_get("head")?, row.try_get("now")?);
    let first = head - append.events.len() as i64 + 1;
    if let Some(open) = &append.open {
        let (idempotency, digest) = open.idempotency.as_ref().map(|(key, digest)| (key, digest.to_vec())).unzip();
        sqlx::query(
            "INSERT INTO calls (id, session, client_key, idempotency_key, params_digest, traceparent, first_event, created_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(append.call.0.as_slice())
        .bind(append.session.0.as_slice())
        .bind(open.key.0.as_slice())
        .bind(idempotency)
        .bind(digest)
        .bind(&open.traceparent)
        .bind(first)
        .bind(now)
        .execute(&mut *c)
        .await?;
    }
    let inserted = Inserted { session: append.session, epoch: Some(append.epoch), call: Some(append.call), first, now };
    let events = insert(c, inserted, &append.events, append.chain.as_ref()).await?;
    if let Some(outcome) = outcome {
        sqlx::query("UPDATE calls SET last_event = $2, outcome = $3 WHERE id = $1")
            .bind(append.call.0.as_slice())
            .bind(head)
            .bind(engine::json::encode(outcome).get())
            .execute(&mut *c)
            .await?;
    }
    Ok(events)
}

async fn free(
    c: &mut SqliteConnection,
    session: SessionId,
    key: KeyId,
    events: &[NewEvent],
    side: &Side,
) -> Result<Vec<Arc<Event>>, Error> {
    if matches!(side, Side::Register) && !register(c, session, key).await? {
        return Ok(Vec::new());
    }
    let row = sqlx::query(FREE).bind(session.0.as_slice()).bind(events.len() as i64).fetch_optional(&mut *c).await?;
    let Some(row) = row else { return Err(refusal(c, session, None).await?) };
    let (head, now): (i64, i64) = (row.try_get("head")?, row.try_get("now")?);
    if let Side::Join { declarations, digest } = side {
        super::sessions::add_client(c, session, key, declarations, digest, now).await?;
    }
    let inserted = Inserted { session, epoch: None, call: None, first: head - events.len() as i64 + 1, now };
    insert(c, inserted, events, None).await
}

/// Whether this is the client's first registration.
async fn register(c: &mut SqliteConnection, session: SessionId, key: KeyId) -> Result<bool, Error> {
    let done = sqlx::query(concat!(
        "UPDATE clients SET driver_since = ",
        now!(),
        " WHERE session = $1 AND client_key = $2 AND driver_since IS NULL"
    ))
    .bind(session.0.as_slice())
    .bind(key.0.as_slice())
    .execute(c)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Where events go.
#[derive(Clone, Copy)]
pub(super) struct Inserted {
    pub session: SessionId,
    pub epoch: Option<i64>,
    pub call: Option<CallId>,
    pub first: i64,
    pub now: i64,
}

/// Inserts events behind the head that was just moved.
pub(super) async fn insert(
    c: &mut SqliteConnection,
    to: Inserted,
    events: &[NewEvent],
    chain: Option<&Chain>,
) -> Result<Vec<Arc<Event>>, Error> {
    let mut committed = Vec::with_capacity(events.len());
    for (number, event) in (to.first..).zip(events) {
        let stored;
        let payload = match &event.payload {
            Payload::Json(raw) => raw.get(),
            Payload::Request(request) => {
                stored = request.store(chain);
                &stored
            }
        };
        sqlx::query(ADD_EVENT)
            .bind(event.id.0.as_slice())
            .bind(to.session.0.as_slice())
            .bind(number)
            .bind(to.epoch)
            .bind(to.call.map(|call| call.0.to_vec()))
            .bind(event.key.0.as_slice())
            .bind(event.kind.as_str())
            .bind(event.from_client)
            .bind(payload)
            .bind(to.now)
            .execute(&mut *c)
            .await?;
        committed.push(Arc::new(Event {
            number: number as u64,
            session: to.session,
            call: to.call,
            created_at: to.now,
            event: event.clone(),
        }));
    }
    Ok(committed)
}

/// Why a conditional update found no row.
async fn refusal(c: &mut SqliteConnection, session: SessionId, epoch: Option<i64>) -> Result<Error, Error> {
    let row = sqlx::query("SELECT state, epoch FROM sessions WHERE id = $1")
        .bind(session.0.as_slice())
        .fetch_optional(c)
        .await?;
    let Some(row) = row else { return Ok(Error::NotFound) };
    let state = super::State::parse(row.try_get("state")?)?;
    Ok(match state {
        super::State::Open if epoch.is_some_and(|epoch| row.try_get("epoch").is_ok_and(|now: i64| now != epoch)) => {
            Error::Fenced
        }
        super::State::Open => Error::Refused,
        other => Error::NotOpen(other.shown()),
    })
}
