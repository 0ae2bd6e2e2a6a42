//! Calls that have started: what a retry with an idempotency key finds, and how each ended.

use super::{Id, Log, read_json};
use crate::Error;
use engine::ids::{CallId, KeyId, SessionId};
use engine::outcome::Outcome;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

/// What is recorded of a call.
#[derive(Debug, Clone)]
pub struct CallRecord {
    /// Its id.
    pub id: CallId,
    /// Digest of the params its idempotency key came with.
    pub params_digest: Option<Vec<u8>>,
    /// Number of its first event.
    pub first: u64,
    /// Number of its last event and its outcome, once it has ended.
    pub ended: Option<(u64, Outcome)>,
}

impl CallRecord {
    fn read(row: &SqliteRow) -> Result<Self, Error> {
        let (last, outcome): (Option<i64>, Option<&str>) = (row.try_get("last_event")?, row.try_get("outcome")?);
        let ended = match (last, outcome) {
            (Some(last), Some(outcome)) => Some((last as u64, read_json("a call's outcome", outcome)?)),
            _ => None,
        };
        let first: i64 = row.try_get("first_event")?;
        Ok(Self {
            id: CallId::read(row, "id")?,
            params_digest: row.try_get("params_digest")?,
            first: first as u64,
            ended,
        })
    }
}

const BY_KEY: &str = "SELECT id, params_digest, first_event, last_event, outcome FROM calls \
     WHERE session = $1 AND client_key = $2 AND idempotency_key = $3";
const BY_ID: &str = "SELECT id, params_digest, first_event, last_event, outcome FROM calls WHERE id = $1";

impl Log {
    /// The call that an idempotency key names.
    ///
    /// # Errors
    /// The database's.
    pub async fn call_by_key(&self, session: SessionId, key: KeyId, name: &str) -> Result<Option<CallRecord>, Error> {
        let row = sqlx::query(BY_KEY)
            .bind(session.0.as_slice())
            .bind(key.0.as_slice())
            .bind(name)
            .fetch_optional(self.db.reader())
            .await?;
        row.as_ref().map(CallRecord::read).transpose()
    }

    /// A call, if it has started.
    ///
    /// # Errors
    /// The database's.
    pub async fn call(&self, call: CallId) -> Result<Option<CallRecord>, Error> {
        let row = sqlx::query(BY_ID).bind(call.0.as_slice()).fetch_optional(self.db.reader()).await?;
        row.as_ref().map(CallRecord::read).transpose()
    }
}
