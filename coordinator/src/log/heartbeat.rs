//! What a cluster asks of the database: whether it lives, and how far watched sessions are.

use super::{Id, Log, State};
use crate::Error;
use crate::db::sql::{Sql, millis, sql};
use engine::event::EventNumber;
use engine::ids::SessionId;
use std::time::Duration;

/// Sessions, or calls, of one comparison.
pub(super) const BATCH: usize = 500;

const RECORD: Sql = sql!(
    "INSERT INTO cluster (one, beat_at) VALUES (1, ",
    now,
    ") ON CONFLICT (one) DO UPDATE SET beat_at = excluded.beat_at"
);
const AGE: Sql = sql!("SELECT ", now, " - beat_at AS age FROM cluster");
const HEADS: Sql = Sql {
    sqlite: "SELECT id, head, state FROM sessions WHERE id IN (SELECT unhex(value) FROM json_each($1))",
    postgres: "SELECT id, head, state FROM sessions \
               WHERE id IN (SELECT decode(value, 'hex') FROM json_array_elements_text($1::json))",
};

impl Log {
    /// Notes that a node of this cluster lives.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn record_heartbeat(&self) -> Result<(), Error> {
        self.db.execute(&RECORD, |q| q).await.map(drop)
    }

    /// Whether a node of this cluster lived within that time.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn others_alive(&self, within: Duration) -> Result<bool, Error> {
        let row = self.db.read(&AGE).optional().await?;
        let age: Option<i64> = row.map(|row| row.get("age")).transpose()?;
        Ok(age.is_some_and(|age| age < millis(within)))
    }

    /// Moves the feeds of these sessions to where their logs are.
    ///
    /// # Errors
    /// When the database fails.
    pub(crate) async fn reconcile(&self, sessions: &[SessionId]) -> Result<(), Error> {
        for batch in sessions.chunks(BATCH) {
            for row in self.db.read(&HEADS).bind(super::hex_list(batch)).all().await? {
                let (head, state) = (EventNumber(row.get("head")?), State::parse(row.get("state")?)?);
                self.feeds.advance(SessionId::read(&row, "id")?, head, state.log_status());
            }
        }
        Ok(())
    }
}
