//! What a cluster asks of the database: whether it lives, and how far watched sessions are.

use super::{Id, Log, State, now};
use crate::Error;
use engine::ids::SessionId;
use sqlx::Row as _;
use std::time::Duration;

/// Sessions of one comparison.
const BATCH: usize = 500;

impl Log {
    /// Notes that a node of this cluster lives.
    ///
    /// # Errors
    /// The database's.
    pub async fn beat(&self) -> Result<(), Error> {
        self.db
            .write(
                |c| {
                    Box::pin(async move {
                        sqlx::query(concat!(
                            "INSERT INTO cluster (one, beat_at) VALUES (1, ",
                            now!(),
                            ") ON CONFLICT (one) DO UPDATE SET beat_at = excluded.beat_at"
                        ))
                        .execute(c)
                        .await?;
                        Ok(())
                    })
                },
                |()| (),
            )
            .await
    }

    /// Whether a node of this cluster lived within that time.
    ///
    /// # Errors
    /// The database's.
    pub async fn others_alive(&self, within: Duration) -> Result<bool, Error> {
        let row = sqlx::query(concat!("SELECT beat_at > ", now!(), " - $1 AS alive FROM cluster"))
            .bind(within.as_millis() as i64)
            .fetch_optional(self.db.reader())
            .await?;
        Ok(row.map(|row| row.try_get("alive")).transpose()?.unwrap_or(false))
    }

    /// Moves the feeds of these sessions to where their logs are.
    ///
    /// # Errors
    /// The database's.
    pub(crate) async fn reconcile(&self, sessions: &[SessionId]) -> Result<(), Error> {
        for batch in sessions.chunks(BATCH) {
            let mut query = sqlx::QueryBuilder::new("SELECT id, head, state FROM sessions WHERE id IN (");
            let mut list = query.separated(", ");
            for session in batch {
                list.push_bind(session.0.as_slice());
            }
            query.push(")");
            for row in query.build().fetch_all(self.db.reader()).await? {
                let (head, state): (i64, &str) = (row.try_get("head")?, row.try_get("state")?);
                let ended = matches!(State::parse(state)?, State::Closed | State::Error);
                self.feeds.advance(SessionId::read(&row, "id")?, head as u64, ended);
            }
        }
        Ok(())
    }
}
