//! Calls that have started: what a retry with an idempotency key finds, and how each ended.

use super::heartbeat::BATCH;
use super::{Id, Log, read_json};
use crate::Error;
use crate::db::sql::{Row, Sql, sql};
use engine::event::EventNumber;
use engine::ids::{CallId, KeyId, SessionId};
use engine::outcome::Outcome;
use std::collections::HashSet;

/// What is recorded of a call.
#[derive(Debug, Clone)]
pub struct CallRecord {
    /// Its id.
    pub id: CallId,
    /// Digest of the params its idempotency key came with.
    pub params_digest: Option<Vec<u8>>,
    /// The caller's trace, as it opened the call.
    pub traceparent: Option<String>,
    /// Number of its first event.
    pub first: EventNumber,
    /// Number of its last event and its outcome, once it has ended.
    pub ended: Option<(EventNumber, Outcome)>,
}

impl CallRecord {
    fn read(row: &Row) -> Result<Self, Error> {
        let (last, outcome): (Option<i64>, Option<&str>) = (row.get("last_event")?, row.get("outcome")?);
        let ended = match (last, outcome) {
            (Some(last), Some(outcome)) => Some((EventNumber(last), read_json("a call's outcome", outcome)?)),
            _ => None,
        };
        Ok(Self {
            id: CallId::read(row, "id")?,
            params_digest: row.get("params_digest")?,
            traceparent: row.get("traceparent")?,
            first: EventNumber(row.get("first_event")?),
            ended,
        })
    }
}

const BY_KEY: Sql = sql!(
    "SELECT id, params_digest, traceparent, first_event, last_event, outcome FROM calls \
     WHERE session = $1 AND client_key = $2 AND idempotency_key = $3"
);
const BY_ID: Sql =
    sql!("SELECT id, params_digest, traceparent, first_event, last_event, outcome FROM calls WHERE id = $1");

const STARTED: Sql = Sql {
    sqlite: "SELECT id FROM calls WHERE id IN (SELECT unhex(value) FROM json_each($1))",
    postgres: "SELECT id FROM calls WHERE id IN (SELECT decode(value, 'hex') FROM json_array_elements_text($1::json))",
};

impl Log {
    /// Those of these calls that have started.
    ///
    /// # Errors
    /// When the database fails.
    pub(crate) async fn started(&self, calls: &[CallId]) -> Result<HashSet<CallId>, Error> {
        let mut started = HashSet::new();
        for batch in calls.chunks(BATCH) {
            for row in self.db.read(&STARTED).bind(super::hex_list(batch)).all().await? {
                started.insert(CallId::read(&row, "id")?);
            }
        }
        Ok(started)
    }

    /// The call that an idempotency key names.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn call_by_key(&self, session: SessionId, key: KeyId, name: &str) -> Result<Option<CallRecord>, Error> {
        let row = self.db.read(&BY_KEY).bind(session.0.as_slice()).bind(key.0.as_slice()).bind(name).optional().await?;
        row.as_ref().map(CallRecord::read).transpose()
    }

    /// A call, if it has started.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn call(&self, call: CallId) -> Result<Option<CallRecord>, Error> {
        let row = self.db.read(&BY_ID).bind(call.0.as_slice()).optional().await?;
        row.as_ref().map(CallRecord::read).transpose()
    }
}
