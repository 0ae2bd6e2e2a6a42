//! The append on Postgres: one statement for one session or for several.
//!
//! For each session the statement moves the head if the conditions of its append hold, and inserts the call and the
//! events. It is applied as a whole or not at all. If it arrives late or twice, a condition or a unique id refuses it.
//! `group_commit` runs it.

use super::group_commit::GroupCommit;
use super::sqlite::Inserted;
use super::{Append, CallRow};
use crate::Error;
use crate::db::sql::{millis, word};
use crate::log::Epoch;
use crate::log::gate_columns::GateColumns;
use engine::event::{Event, EventNumber, NewEvent, Payload};
use engine::gate::GateFound;
use engine::ids::{CallId, KeyId, SessionId};
use engine::request::DeltaChain;
use engine::time::UnixMillis;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;
use std::sync::Arc;
use std::time::Duration;

/// What is appended to one session.
pub(crate) struct Entry {
    pub session: SessionId,
    /// Given where the events belong to a turn.
    pub turn: Option<Turn>,
    pub events: Vec<NewEvent>,
    /// For each event its stored form, if it is a `provider.request`.
    pub requests: Vec<Option<String>>,
}

/// The conditions of a turn's append, and what it changes.
pub(crate) struct Turn {
    pub epoch: Epoch,
    pub call: CallId,
    pub open: Option<CallRow>,
    pub phase: &'static str,
    pub state: &'static str,
    /// If the call ends in a pause: who keeps the gate, and for how long.
    pub pause: Option<(KeyId, Duration)>,
    pub outcome: Option<String>,
}

/// Where the events of an append are in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    /// The number of the first event.
    pub first: EventNumber,
    /// When they were written, by the database's clock.
    pub now: UnixMillis,
}

impl Entry {
    fn payload(&self, index: usize) -> &str {
        match (&self.events[index].payload, &self.requests[index]) {
            (_, Some(stored)) => stored,
            (Payload::Json(raw), None) => raw.get(),
            (Payload::Request(_), None) => "",
        }
    }

    /// How many bytes all payloads have together.
    pub(crate) fn size(&self) -> usize {
        (0..self.events.len()).map(|index| self.payload(index).len()).sum()
    }
}

/// The number by which the statement knows the condition of an append: 0 outside of turns, 1 for a call that goes on, 2
/// to 4 for one that opens.
fn gate(turn: Option<&Turn>) -> i64 {
    match turn.map(|turn| turn.open.as_ref().map(|open| open.gate)) {
        None => 0,
        Some(None) => 1,
        Some(Some(GateFound::Free)) => 2,
        Some(Some(GateFound::OwnPause)) => 3,
        Some(Some(GateFound::ExpiredPause)) => 4,
    }
}

/// The text of the statement. The conditions are written so that the planner always finds a session's row by its id,
/// even when its statistics are wrong. `$lock` selects the rows that may be updated, `$from` and `$only` join them.
macro_rules! statement {
    ($lock:literal, $from:literal, $only:literal) => {
        concat!(
            "WITH a AS (SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[], $6::text[], \
             $7::text[], $8::bytea[], $9::bigint[], $10::text[], $11::bytea[], $12::text[], $13::bytea[], $14::text[]) \
             WITH ORDINALITY AS a (session, n, epoch, gate, call, phase, state, owner, pause, outcome, client_key, \
             idempotency_key, params_digest, traceparent, i)), ",
            $lock,
            "s AS (UPDATE sessions AS t SET head = t.head + a.n, \
             phase = CASE a.gate WHEN 0 THEN t.phase ELSE a.phase END, \
             state = CASE a.gate WHEN 0 THEN t.state ELSE a.state END, \
             call = CASE a.gate WHEN 0 THEN t.call ELSE a.call END, \
             owner = CASE a.gate WHEN 0 THEN t.owner ELSE a.owner END, \
             deadline = CASE a.gate WHEN 0 THEN t.deadline ELSE ",
            word!(postgres now),
            " + a.pause END, \
             takeovers = CASE a.gate WHEN 0 THEN t.takeovers ELSE 0 END, \
             handed_over = CASE a.gate WHEN 0 THEN t.handed_over ELSE 0 END \
             FROM a",
            $from,
            " WHERE t.id = ANY($1) AND t.id = a.session",
            $only,
            " AND CASE WHEN t.state <> 'open' THEN false \
             WHEN a.gate = 0 THEN true \
             WHEN t.epoch <> a.epoch THEN false \
             ELSE CASE a.gate \
             WHEN 1 THEN t.phase = 'running' AND t.call = a.call \
             WHEN 2 THEN t.phase = 'idle' \
             WHEN 3 THEN t.phase = 'paused' AND t.owner = a.client_key \
             WHEN 4 THEN t.phase = 'paused' AND t.deadline <= ",
            word!(postgres now),
            " END END RETURNING a.*, t.head - a.n AS base, t.head, ",
            word!(postgres now),
            " AS now), \
             c AS (INSERT INTO calls (id, session, client_key, idempotency_key, params_digest, traceparent, first_event, \
             last_event, outcome, created_at) SELECT s.call, s.session, s.client_key, s.idempotency_key, s.params_digest, \
             s.traceparent, s.base + 1, CASE WHEN s.outcome IS NOT NULL THEN s.head END, s.outcome, s.now \
             FROM s WHERE s.gate > 1), \
             d AS (UPDATE calls SET last_event = s.head, outcome = s.outcome FROM s \
             WHERE calls.id = s.call AND s.gate = 1 AND s.outcome IS NOT NULL), \
             e AS (INSERT INTO events (id, session, number, epoch, call, client_key, kind, from_client, payload, created_at) \
             SELECT v.id, s.session, s.base + v.k, s.epoch, s.call, v.client_key, v.kind, v.from_client, v.payload, s.now \
             FROM s JOIN unnest($15::bigint[], $16::bigint[], $17::bytea[], $18::bytea[], $19::text[], $20::bool[], \
             $21::text[]) AS v (i, k, id, client_key, kind, from_client, payload) ON v.i = s.i) \
             SELECT i, base, now FROM s"
        )
    };
}

/// The statement for one session. It waits if the session's row is locked.
const ONE: &str = statement!("", "", "");
/// The statement for several sessions. It locks their rows in the order of their ids, so that two statements cannot
/// block each other, and leaves out the rows that are locked already.
const SEVERAL: &str = statement!(
    "l AS (SELECT id FROM sessions WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED), ",
    ", l",
    " AND t.id = l.id"
);

/// Appends to sessions that are all different. Returns where the events of each are. None for an append whose
/// conditions do not hold and, where there are several, for one whose row was locked.
pub(super) async fn append(c: &mut PgConnection, entries: &[&Entry]) -> Result<Vec<Option<Written>>, sqlx::Error> {
    macro_rules! each {
        (|$entry:ident| $value:expr) => {
            entries.iter().map(|$entry| $value).collect::<Vec<_>>()
        };
    }
    macro_rules! turns {
        (|$turn:ident| $value:expr) => {
            entries.iter().map(|entry| entry.turn.as_ref().and_then(|$turn| $value)).collect::<Vec<_>>()
        };
    }
    macro_rules! opens {
        (|$open:ident| $value:expr) => {
            turns!(|turn| turn.open.as_ref().and_then(|$open| $value))
        };
    }
    macro_rules! events {
        (|$entry:ident, $owner:ident, $index:ident| $value:expr) => {
            entries
                .iter()
                .enumerate()
                .flat_map(|($owner, $entry)| (0..$entry.events.len()).map(move |$index| $value))
                .collect::<Vec<_>>()
        };
    }
    let sql = if entries.len() == 1 { ONE } else { SEVERAL };
    let rows = sqlx::query(sql)
        .bind(each!(|entry| entry.session.0.as_slice()))
        .bind(each!(|entry| entry.events.len() as i64))
        .bind(turns!(|turn| Some(turn.epoch)))
        .bind(each!(|entry| gate(entry.turn.as_ref())))
        .bind(turns!(|turn| Some(turn.call.0.as_slice())))
        .bind(turns!(|turn| Some(turn.phase)))
        .bind(turns!(|turn| Some(turn.state)))
        .bind(turns!(|turn| turn.pause.as_ref().map(|(owner, _)| owner.0.as_slice())))
        .bind(turns!(|turn| turn.pause.map(|(_, time)| millis(time))))
        .bind(turns!(|turn| turn.outcome.as_deref()))
        .bind(opens!(|open| Some(open.key.0.as_slice())))
        .bind(opens!(|open| open.idempotency.as_ref().map(|(name, _)| name.as_str())))
        .bind(opens!(|open| open.idempotency.as_ref().map(|(_, digest)| digest.as_slice())))
        .bind(opens!(|open| open.traceparent.as_deref()))
        .bind(events!(|_entry, owner, _index| owner as i64 + 1))
        .bind(events!(|_entry, _owner, index| index as i64 + 1))
        .bind(events!(|entry, _owner, index| entry.events[index].id.0.as_slice()))
        .bind(events!(|entry, _owner, index| entry.events[index].key.0.as_slice()))
        .bind(events!(|entry, _owner, index| entry.events[index].kind.as_str()))
        .bind(events!(|entry, _owner, index| entry.events[index].from_client))
        .bind(events!(|entry, _owner, index| entry.payload(index)))
        .fetch_all(c)
        .await?;
    let mut written = vec![None; entries.len()];
    for row in rows {
        let (i, base): (i64, i64) = (row.try_get("i")?, row.try_get("base")?);
        let place = usize::try_from(i - 1).ok().and_then(|index| written.get_mut(index));
        let place = place.ok_or_else(|| sqlx::Error::Protocol(format!("an append that was not asked for: {i}")))?;
        *place = Some(Written { first: EventNumber(base).next(), now: UnixMillis(row.try_get("now")?) });
    }
    Ok(written)
}

/// The entry for an append of a turn.
pub(super) fn turn(append: Append) -> Entry {
    let columns = GateColumns::after(append.end.as_ref());
    let key = append.events.last().map_or(KeyId([0; 16]), |event| event.key);
    let turn = Turn {
        epoch: append.epoch,
        call: append.call,
        open: append.open,
        phase: columns.phase,
        state: columns.state.stored(),
        pause: columns.pause.map(|time| (key, time)),
        outcome: append.end.map(|end| engine::json::encode(&end.outcome).get().to_owned()),
    };
    let requests = requests(&append.events, append.chain.as_ref());
    Entry { session: append.session, turn: Some(turn), events: append.events, requests }
}

/// The entry for an append outside of turns.
pub(super) fn free(session: SessionId, events: Vec<NewEvent>) -> Entry {
    let requests = requests(&events, None);
    Entry { session, turn: None, events, requests }
}

fn requests(events: &[NewEvent], chain: Option<&DeltaChain>) -> Vec<Option<String>> {
    let stored = |event: &NewEvent| match &event.payload {
        Payload::Json(_) => None,
        Payload::Request(request) => Some(request.store(chain)),
    };
    events.iter().map(stored).collect()
}

/// Appends. `then` gets the committed events, even if the caller stops waiting.
pub(super) async fn submit(
    group_commit: &Arc<GroupCommit>,
    entry: Entry,
    then: impl FnOnce(&Vec<Arc<Event>>) + Send + 'static,
) -> Result<Vec<Arc<Event>>, Error> {
    let (session, turn) = (entry.session, entry.turn.as_ref().map(|turn| (turn.epoch, turn.call)));
    let (epoch, call) = turn.unzip();
    let events = entry.events.clone();
    group_commit
        .append(entry, move |written| {
            let to = Inserted { session, epoch, call, first: written.first, now: written.now };
            let numbered = events.into_iter().enumerate();
            let committed = numbered.map(|(place, event)| to.committed(to.first.plus(place), event)).collect();
            then(&committed);
            committed
        })
        .await
}
