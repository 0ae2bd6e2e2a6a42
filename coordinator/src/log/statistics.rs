//! How many sessions, clients, pauses, profiles, keys, sandboxes and subagents there are, for the metrics of the cluster.
//!
//! One node at a time asks, every few seconds, and only where metrics are read.

use super::Log;
use crate::Error;
use crate::db::sql::{Sql, sql};

/// What there is in the whole cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Open sessions.
    pub sessions: u64,
    /// Pauses of open sessions.
    pub pauses: u64,
    /// Registered drivers of open sessions.
    pub drivers: u64,
    /// Profiles that were not deleted.
    pub profiles: u64,
    /// Client keys that were not revoked.
    pub keys: u64,
    /// Sandboxes that start, run or are being stopped.
    pub sandboxes: u64,
    /// Subagents that start or run.
    pub subagents: u64,
}

const COUNT: Sql = sql!(
    "SELECT (SELECT count(*) FROM sessions WHERE state = 'open') AS sessions, \
     (SELECT count(*) FROM sessions WHERE state = 'open' AND phase = 'paused') AS pauses, \
     (SELECT count(*) FROM sessions s JOIN clients c ON c.session = s.id \
      WHERE s.state = 'open' AND c.driver_since IS NOT NULL) AS drivers, \
     (SELECT count(*) FROM profiles WHERE deleted_at IS NULL) AS profiles, \
     (SELECT count(*) FROM client_keys WHERE revoked_at IS NULL) AS keys, \
     (SELECT count(*) FROM sandboxes) AS sandboxes, \
     (SELECT count(*) FROM subagents WHERE state IN ('starting', 'running')) AS subagents"
);

impl Log {
    /// Counts what there is.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn statistics(&self) -> Result<Statistics, Error> {
        let row = self.db.read(&COUNT).one().await?;
        let count = |column: &str| -> Result<u64, Error> { Ok(row.get::<i64>(column)?.unsigned_abs()) };
        Ok(Statistics {
            sessions: count("sessions")?,
            pauses: count("pauses")?,
            drivers: count("drivers")?,
            profiles: count("profiles")?,
            keys: count("keys")?,
            sandboxes: count("sandboxes")?,
            subagents: count("subagents")?,
        })
    }
}
