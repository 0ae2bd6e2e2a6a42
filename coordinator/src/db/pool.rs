//! A pool of connections.
//!
//! Smaller than sqlx's, for three reasons: a connection whose answer was not awaited to its end is closed rather than given
//! back, so a reader that leaves cannot hand an open transaction or a running statement to the next; nothing is sent when
//! a connection is given back; and every wait has a limit, so a network that swallows packets cannot use the pool up.

use super::failure;
use crate::Error;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// A connection unused for longer is asked whether it still works before it is used.
const PING_AFTER: Duration = Duration::from_secs(1);
/// A connection unused for longer is closed.
const KEEP: Duration = Duration::from_secs(300);

/// Waits for a database call at most so long.
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

/// A connection that somebody uses. Dropped, it is closed; see [`Slot::give_back`].
pub(crate) struct Lent {
    pub connection: PgConnection,
    pub slot: Slot,
}

/// The place of a lent connection in the pool.
pub(crate) struct Slot {
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

impl Pool {
    pub(crate) fn new(options: PgConnectOptions, size: u32, acquire: Duration, limit: Duration) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(size as usize));
        Arc::new(Self { options, permits, size, acquire, limit, idle: Mutex::default() })
    }

    /// How long an answer is waited for.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// The list is whole whatever a panic did.
    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that works, as far as can be told.
    ///
    /// # Errors
    /// `Unavailable`: none was free in time, or none could be made.
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
        let lent = tokio::time::timeout(self.acquire, lend).await.unwrap_or(Err(sqlx::Error::PoolTimedOut));
        let (connection, permit) = lent.map_err(Error::Unavailable)?;
        Ok(Lent { connection, slot: Slot { pool: Arc::clone(self), _permit: permit } })
    }

    /// The connection used last, if it still answers.
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

    /// Closes what is idle and waits a moment for the rest; nothing is lent any more.
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
    /// Gives it back after a statement that committed by itself, unless that broke it.
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
    /// The connection broke: those that lie idle have probably met the same fate, and are not tried one by one.
    pub(crate) fn give_up(self) {
        self.pool.idle().clear();
    }

    /// Takes the connection back: every answer came, no transaction is open.
    pub(crate) fn give_back(self, connection: PgConnection) {
        if !self.pool.permits.is_closed() {
            self.pool.idle().push(Idle { connection, since: Instant::now() });
        }
    }
}
