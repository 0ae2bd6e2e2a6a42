//! The append as separate statements inside a write transaction.
//!
//! SQLite uses this for all appends, Postgres for those that change the rows of clients or of subagents too. The first statement moves the
//! session's head if the conditions of the append hold. If it changes no row, nothing else is written.

use super::{Append, Side, refusal};
use crate::Error;
use crate::db::sql::{Connection, Sql, millis, sql};
use crate::log::Epoch;
use crate::log::gate_columns::GateColumns;
use crate::log::subagents::FORGET;
use engine::event::{Event, EventNumber, NewEvent, Payload};
use engine::gate::GateFound;
use engine::ids::{CallId, KeyId, SessionId};
use engine::request::DeltaChain;
use engine::time::UnixMillis;
use std::sync::Arc;

/// The statement that moves the head for an append of a turn, with the condition that the gate has to meet.
macro_rules! update {
    ($($condition:tt),+) => {
        sql!(
            "UPDATE sessions SET head = head + $3, phase = $5, state = $6, call = $4, owner = $7, deadline = ",
            now,
            " + $8, takeovers = 0, handed_over = 0 WHERE id = $1 AND epoch = $2 AND state = 'open' AND ",
            $($condition,)+
            " RETURNING head, ",
            now,
            " AS now"
        )
    };
}

const GO_ON: Sql = update!("phase = 'running' AND call = $4");
const OPEN_FREE: Sql = update!("phase = 'idle'");
const OPEN_OWN: Sql = update!("phase = 'paused' AND owner = $9");
const OPEN_EXPIRED: Sql = update!("phase = 'paused' AND deadline <= ", now);
const FREE: Sql =
    sql!("UPDATE sessions SET head = head + $2 WHERE id = $1 AND state = 'open' RETURNING head, ", now, " AS now");
const FREE_OR_CLOSING: Sql = sql!(
    "UPDATE sessions SET head = head + $2 WHERE id = $1 AND state IN ('open', 'closing') RETURNING head, ",
    now,
    " AS now"
);
const REGISTER: Sql =
    sql!("UPDATE clients SET driver_since = ", now, " WHERE session = $1 AND client_key = $2 AND driver_since IS NULL");
const STATE: Sql = sql!("SELECT state, epoch FROM sessions WHERE id = $1");
const OPEN_CALL: Sql = sql!(
    "INSERT INTO calls (id, session, client_key, idempotency_key, params_digest, traceparent, first_event, created_at) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
);
const END_CALL: Sql = sql!("UPDATE calls SET last_event = $2, outcome = $3 WHERE id = $1");
const ADD_EVENT: Sql = sql!(
    "INSERT INTO events (id, session, number, epoch, call, client_key, kind, from_client, payload, created_at) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
);

/// Appends events of a turn.
pub(super) async fn turn(c: &mut Connection, append: &Append) -> Result<Vec<Arc<Event>>, Error> {
    let columns = GateColumns::after(append.end.as_ref());
    let key = append.events.last().map_or(KeyId([0; 16]), |event| event.key);
    let gate = append.open.as_ref().map(|open| open.gate);
    let update = match gate {
        None => &GO_ON,
        Some(GateFound::Free) => &OPEN_FREE,
        Some(GateFound::OwnPause) => &OPEN_OWN,
        Some(GateFound::ExpiredPause) => &OPEN_EXPIRED,
    };
    let update = c
        .query(update)
        .bind(append.session.0.as_slice())
        .bind(append.epoch)
        .bind(append.events.len() as i64)
        .bind(append.call.0.as_slice())
        .bind(columns.phase)
        .bind(columns.state.stored())
        .bind(columns.pause.map(|_| key.0.to_vec()))
        .bind(columns.pause.map(millis));
    let update = match &append.open {
        Some(open) if gate == Some(GateFound::OwnPause) => update.bind(open.key.0.as_slice()),
        Some(_) | None => update,
    };
    let row = update.optional().await?;
    let Some(row) = row else { return Err(refused(c, append.session, Some(append.epoch)).await?) };
    let (head, now) = (EventNumber(row.get("head")?), UnixMillis(row.get("now")?));
    let first = first_of(head, &append.events);
    if let Some(open) = &append.open {
        let (idempotency, digest) = open.idempotency.as_ref().map(|(key, digest)| (key, digest.to_vec())).unzip();
        c.query(&OPEN_CALL)
            .bind(append.call.0.as_slice())
            .bind(append.session.0.as_slice())
            .bind(open.key.0.as_slice())
            .bind(idempotency)
            .bind(digest)
            .bind(&open.traceparent)
            .bind(first.0)
            .bind(now.0)
            .execute()
            .await?;
    }
    let inserted = Inserted { session: append.session, epoch: Some(append.epoch), call: Some(append.call), first, now };
    let events = insert(c, inserted, &append.events, append.chain.as_ref()).await?;
    for reported in &append.reported {
        c.query(&FORGET).bind(reported.0.as_slice()).execute().await?;
    }
    if let Some(end) = &append.end {
        c.query(&END_CALL)
            .bind(append.call.0.as_slice())
            .bind(head.0)
            .bind(engine::json::encode(&end.outcome).get())
            .execute()
            .await?;
    }
    Ok(events)
}

/// Appends events that belong to no turn. Returns no events for a driver that is registered already.
pub(super) async fn free(
    c: &mut Connection,
    session: SessionId,
    key: KeyId,
    events: &[NewEvent],
    side: &Side,
) -> Result<Vec<Arc<Event>>, Error> {
    if matches!(side, Side::Register) && !register(c, session, key).await? {
        return Ok(Vec::new());
    }
    let (first, now) = advance(c, session, events, During::Open).await?;
    if let Side::Join { declarations, digest } = side {
        crate::log::clients::add_client(c, session, key, declarations, digest, now).await?;
    }
    insert(c, Inserted { session, epoch: None, call: None, first, now }, events, None).await
}

/// In which states a session takes an append that is no part of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::log) enum During {
    /// Only in an open one.
    Open,
    /// Also in one that is being closed: what the closing itself does to the session.
    OpenOrClosing,
}

/// Appends events that belong to no turn, inside a transaction that does something else as well. The list of events may
/// be empty.
pub(in crate::log) async fn append_events(
    c: &mut Connection,
    session: SessionId,
    events: &[NewEvent],
    during: During,
) -> Result<Vec<Arc<Event>>, Error> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let (first, now) = advance(c, session, events, during).await?;
    insert(c, Inserted { session, epoch: None, call: None, first, now }, events, None).await
}

/// Moves the session's head. Returns the number of the first of the new events, and the time.
async fn advance(
    c: &mut Connection,
    session: SessionId,
    events: &[NewEvent],
    during: During,
) -> Result<(EventNumber, UnixMillis), Error> {
    let statement = match during {
        During::Open => &FREE,
        During::OpenOrClosing => &FREE_OR_CLOSING,
    };
    let row = c.query(statement).bind(session.0.as_slice()).bind(events.len() as i64).optional().await?;
    let Some(row) = row else { return Err(refused(c, session, None).await?) };
    Ok((first_of(EventNumber(row.get("head")?), events), UnixMillis(row.get("now")?)))
}

/// The number of the first of these events, once the head is the number of the last.
fn first_of(head: EventNumber, events: &[NewEvent]) -> EventNumber {
    EventNumber(head.0 - events.len() as i64 + 1)
}

/// Marks the client as a driver. Returns false if it was one already.
async fn register(c: &mut Connection, session: SessionId, key: KeyId) -> Result<bool, Error> {
    let done = c.query(&REGISTER).bind(session.0.as_slice()).bind(key.0.as_slice()).execute().await?;
    Ok(done > 0)
}

/// Where events go in the log, and what their rows have in common.
#[derive(Clone, Copy)]
pub(in crate::log) struct Inserted {
    pub session: SessionId,
    pub epoch: Option<Epoch>,
    pub call: Option<CallId>,
    pub first: EventNumber,
    pub now: UnixMillis,
}

impl Inserted {
    /// An event with its number, as it was committed.
    pub(crate) fn committed(&self, number: EventNumber, event: NewEvent) -> Arc<Event> {
        let (session, call, created_at) = (self.session, self.call, self.now);
        Arc::new(Event { number, session, call, created_at, event })
    }
}

/// Inserts events at the numbers by which the head was just moved.
pub(in crate::log) async fn insert(
    c: &mut Connection,
    to: Inserted,
    events: &[NewEvent],
    chain: Option<&DeltaChain>,
) -> Result<Vec<Arc<Event>>, Error> {
    let mut committed = Vec::with_capacity(events.len());
    for (place, event) in events.iter().enumerate() {
        let number = to.first.plus(place);
        let stored;
        let payload = match &event.payload {
            Payload::Json(raw) => raw.get(),
            Payload::Request(request) => {
                stored = request.store(chain);
                &stored
            }
        };
        c.query(&ADD_EVENT)
            .bind(event.id.0.as_slice())
            .bind(to.session.0.as_slice())
            .bind(number.0)
            .bind(to.epoch)
            .bind(to.call.map(|call| call.0.to_vec()))
            .bind(event.key.0.as_slice())
            .bind(event.kind.as_str())
            .bind(event.from_client)
            .bind(payload)
            .bind(to.now.0)
            .execute()
            .await?;
        committed.push(to.committed(number, event.clone()));
    }
    Ok(committed)
}

async fn refused(c: &mut Connection, session: SessionId, epoch: Option<Epoch>) -> Result<Error, Error> {
    refusal(c.query(&STATE).bind(session.0.as_slice()).optional().await?, epoch)
}
