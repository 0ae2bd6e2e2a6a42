//! Removing ended sessions whole: by their age, or because an operator says so.
//!
//! A session that is open or being closed is never removed, nor one that sandboxes or subagents still belong to. Nobody
//! can read a session once its removal has begun: its keys go first, then its events in bounded batches, so that no
//! statement holds others up for long, and its row last. A removal that was interrupted is carried on by the next one.

use super::{Id, Log};
use crate::Error;
use crate::db::sql::{Connection, Sql, millis, sql};
use crate::metrics::metrics;
use engine::event::EventNumber;
use engine::ids::SessionId;
use opentelemetry::KeyValue;
use std::time::{Duration, SystemTime};

/// Sessions that one look for old ones finds.
pub const PURGE_BATCH: u32 = 100;
/// Events that one statement removes.
const EVENTS: i64 = 5000;
/// How much the clock of a node that made a session's id may differ from the database's.
const CLOCKS: Duration = Duration::from_secs(3600);

/// Why a session is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeReason {
    /// It has been ended for longer than sessions are kept.
    Age,
    /// An operator asked for it.
    Admin,
}

impl PurgeReason {
    /// The word in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            PurgeReason::Age => "age",
            PurgeReason::Admin => "admin",
        }
    }
}

// Ids begin with the time at which they were made, so those before $1 are the sessions that can be old enough at all.
// A failed session has no time of its end but that of its last event.
const OLD: Sql = sql!(
    "SELECT s.id FROM sessions s WHERE s.state IN ('closed', 'error') AND s.id < $1 AND COALESCE(s.closed_at, \
     (SELECT e.created_at FROM events e WHERE e.session = s.id AND e.number = s.head), s.created_at) < ",
    now,
    " - $2 AND NOT EXISTS (SELECT 1 FROM sandboxes b WHERE b.session = s.id) \
     AND NOT EXISTS (SELECT 1 FROM subagents a WHERE a.session = s.id) ORDER BY s.id LIMIT $3"
);
const STATE: Sql = sql!(
    "SELECT state, head, EXISTS (SELECT 1 FROM sandboxes b WHERE b.session = $1) \
     OR EXISTS (SELECT 1 FROM subagents a WHERE a.session = $1) AS used FROM sessions WHERE id = $1",
    for_update
);
const KEYS: Sql = sql!("DELETE FROM session_keys WHERE session = $1");
const CLIENTS: Sql = sql!("DELETE FROM clients WHERE session = $1");
const CALLS: Sql = sql!("DELETE FROM calls WHERE session = $1");
const SOME_EVENTS: Sql = sql!("DELETE FROM events WHERE session = $1 AND number <= $2");
const SESSION: Sql = sql!("DELETE FROM sessions WHERE id = $1 AND state IN ('closed', 'error')");

impl Log {
    /// At most [`PURGE_BATCH`] sessions that ended longer ago than `age`, oldest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn ended_before(&self, age: Duration) -> Result<Vec<SessionId>, Error> {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let cutoff = millis(since.saturating_sub(age) + CLOCKS).unsigned_abs();
        let first = cutoff.to_be_bytes()[2..].to_vec();
        let found = self.db.read(&OLD).bind(first).bind(millis(age)).bind(i64::from(PURGE_BATCH)).all().await?;
        found.iter().map(|row| SessionId::read(row, "id")).collect()
    }

    /// Removes an ended session with everything that belongs to it.
    ///
    /// # Errors
    /// `NotFound`; `PreconditionFailed` when it is not ended, or something still runs in it; an error of the database,
    /// after which a part may be gone and the same call can be made again.
    pub async fn purge(&self, session: SessionId, reason: PurgeReason) -> Result<(), Error> {
        let head = self.db.write(move |c| Box::pin(async move { lock_out(c, session).await }), |_| ()).await?;
        let mut upto = 0;
        while upto < head.0 {
            upto += EVENTS;
            self.db.execute(&SOME_EVENTS, move |q| q.bind(session.0.to_vec()).bind(upto)).await?;
        }
        let gone = self.db.execute(&SESSION, move |q| q.bind(session.0.to_vec())).await?;
        metrics().purged.add(gone, &[KeyValue::new("reason", reason.as_str())]);
        Ok(())
    }
}

/// Removes what lets clients in, if the session has ended. Returns the number of its last event.
async fn lock_out(c: &mut Connection, session: SessionId) -> Result<EventNumber, Error> {
    let row = c.query(&STATE).bind(session.0.as_slice()).optional().await?.ok_or(Error::NotFound)?;
    let (state, used): (String, bool) = (row.get("state")?, row.get("used")?);
    if used || !matches!(state.as_str(), "closed" | "error") {
        return Err(Error::PreconditionFailed);
    }
    for statement in [&KEYS, &CLIENTS, &CALLS] {
        c.query(statement).bind(session.0.as_slice()).execute().await?;
    }
    Ok(EventNumber(row.get("head")?))
}
