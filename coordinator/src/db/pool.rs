//! The pool of Postgres connections. `db::postgres` and the group commit of the log use it.
//!
//! It is written by hand because the pool of `sqlx` 0.9 differs in three points that matter here:
//!
//! - A connection whose answer was not awaited to its end is closed here, so that a reader that leaves never passes on
//!   an open transaction or a running statement. The pool of `sqlx` gives such a connection back.
//! - Nothing is sent here when a connection is given back. The pool of `sqlx` sends a ping each time, which costs a
//!   round trip for each append.
//! - Every wait here has a time limit. The ping of `sqlx` has none, so that a network that drops packets without an
//!   error can keep all its connections busy.
//!
//! It can go when the pool of `sqlx` closes interrupted connections and gives connections back without a ping, or with
//! one that has a time limit and costs no measurable time.

use super::failure;
use crate::Error;
use crate::metrics::metrics;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// A connection that was not used for longer than this is pinged before it is used. The ping may take as long, too.
const PING_AFTER: Duration = Duration::from_secs(1);
/// A connection that was not used for longer than this is closed.
const KEEP: Duration = Duration::from_secs(300);

/// Waits for a database call for at most `limit`. A call that takes longer fails with an I/O error.
pub(crate) async fn limited<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let late =
        |_| Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "the database does not answer")));
    tokio::time::timeout(limit, call).await.unwrap_or_else(late)
}

struct Idle {
    connection: PgConnection,
    since: Instant,
}

pub(crate) struct Pool {
    options: PgConnectOptions,
    permits: Arc<Semaphore>,
    size: u32,
    acquire: Duration,
    limit: Duration,
    idle: Mutex<Vec<Idle>>,
}

/// A connection in use. If it is dropped without [`Slot::give_back`], it is closed.
pub(crate) struct Lent {
    pub connection: PgConnection,
    pub slot: Slot,
}

/// The place that a connection in use takes up in the pool.
pub(crate) struct Slot {
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

impl Pool {
    pub(crate) fn new(options: PgConnectOptions, size: u32, acquire: Duration, limit: Duration) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(size as usize));
        Arc::new(Self { options, permits, size, acquire, limit, idle: Mutex::default() })
    }

    /// How long an answer of the database may take.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// How many connections are idle, and how many are used.
    pub(crate) fn connections(&self) -> (usize, usize) {
        (self.idle().len(), (self.size as usize).saturating_sub(self.permits.available_permits()))
    }

    /// Locks the list of idle connections. Poisoning is ignored, because no panic can leave the list half changed.
    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an idle connection or makes a new one.
    ///
    /// # Errors
    /// `Unavailable` when none was free in time or none could be made.
    pub(crate) async fn lend(self: &Arc<Self>) -> Result<Lent, Error> {
        let lend = async {
            let permit = Arc::clone(&self.permits).acquire_owned().await;
            let permit = permit.map_err(|_| sqlx::Error::PoolClosed)?;
            let connection = match self.reuse().await {
                Some(connection) => connection,
                None => self.options.connect().await?,
            };
            Ok((connection, permit))
        };
        let asked = std::time::Instant::now();
        let lent = tokio::time::timeout(self.acquire, lend).await.unwrap_or(Err(sqlx::Error::PoolTimedOut));
        metrics().database_wait.since(asked);
        let (connection, permit) = lent.map_err(Error::Unavailable)?;
        Ok(Lent { connection, slot: Slot { pool: Arc::clone(self), _permit: permit } })
    }

    /// Takes the idle connection that was used last and still answers.
    async fn reuse(&self) -> Option<PgConnection> {
        loop {
            let Idle { mut connection, since } = self.idle().pop()?;
            let unused = since.elapsed();
            if unused < PING_AFTER {
                return Some(connection);
            }
            if unused < KEEP && limited(PING_AFTER, connection.ping()).await.is_ok() {
                return Some(connection);
            }
        }
    }

    /// Closes the pool: waits a limited time for the connections in use, lends none any more, and closes those that are
    /// idle.
    pub(crate) async fn close(&self) {
        let everything = tokio::time::timeout(self.acquire, self.permits.acquire_many(self.size)).await;
        self.permits.close();
        drop(everything);
        let idle = std::mem::take(&mut *self.idle());
        for Idle { connection, .. } in idle {
            let _ = limited(PING_AFTER, connection.close()).await;
        }
    }
}

impl Lent {
    /// Gives the connection back after a statement outside of a transaction, unless the statement broke it.
    pub(crate) fn done<T>(self, result: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        if result.as_ref().map_or_else(failure::harmless, |_| true) {
            self.slot.give_back(self.connection);
        } else {
            self.slot.give_up();
        }
        result
    }
}

impl Slot {
    /// The connection broke. The idle ones have probably broken with it, so all are closed instead of being tried one
    /// by one.
    pub(crate) fn give_up(self) {
        self.pool.idle().clear();
    }

    /// Gives the connection back. It must have no open transaction, and every answer must have been read.
    pub(crate) fn give_back(self, connection: PgConnection) {
        if !self.pool.permits.is_closed() {
            self.pool.idle().push(Idle { connection, since: Instant::now() });
        }
    }
}
