//! The lock with which a node has a Postgres database for itself: an advisory lock, which is held as long as its
//! connection is open.

use super::pool::limited;
use crate::Error;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The number of the advisory lock within the database.
const LOCK: i64 = 0x6261_6573_7276;
/// How often the connection that holds the lock is checked.
const LOOK: Duration = Duration::from_secs(5);

pub(super) struct ExclusiveLock {
    options: PgConnectOptions,
    limit: Duration,
    stop: CancellationToken,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl ExclusiveLock {
    pub(super) fn new(options: PgConnectOptions, limit: Duration) -> Self {
        Self { options, limit, stop: CancellationToken::new(), keeper: Mutex::default() }
    }

    /// Takes the lock and keeps it until [`ExclusiveLock::release`].
    pub(super) async fn take(&self) -> Result<(), Error> {
        let taken = lock(&self.options, self.limit).await.map_err(Error::Unavailable)?;
        let Some(connection) = taken else {
            return Err(Error::Unusable(
                "another node uses this Postgres database, and without Redis only one can; stop it, give this node a \
                 database of its own, or set BAE_REDIS_URL on all nodes"
                    .into(),
            ));
        };
        let keeper = tokio::spawn(keep(self.options.clone(), self.limit, connection, self.stop.clone()));
        *self.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
        Ok(())
    }

    pub(super) async fn release(&self) {
        self.stop.cancel();
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            let _ = keeper.await;
        }
    }
}

/// Connects and takes the lock. None if another connection holds it.
async fn lock(options: &PgConnectOptions, limit: Duration) -> Result<Option<PgConnection>, sqlx::Error> {
    let attempt = async {
        let mut connection = options.connect().await?;
        let mine = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(LOCK).fetch_one(&mut connection).await?;
        Ok(if mine { Some(connection) } else { None })
    };
    limited(limit, attempt).await
}

/// Keeps the connection that holds the lock open. If the connection breaks, takes the lock again.
async fn keep(options: PgConnectOptions, limit: Duration, connection: PgConnection, stop: CancellationToken) {
    let mut held = Some(connection);
    while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
        if let Some(connection) = &mut held
            && limited(limit, connection.ping()).await.is_ok()
        {
            continue;
        }
        held = match lock(&options, limit).await {
            Ok(Some(connection)) => Some(connection),
            Ok(None) => {
                tracing::error!("another node has claimed this Postgres database; stop one of the two");
                None
            }
            Err(error) => {
                tracing::warn!(%error, "the claim on the database cannot be renewed just now");
                None
            }
        };
    }
    if let Some(connection) = held {
        let _ = limited(limit, connection.close()).await;
    }
}
