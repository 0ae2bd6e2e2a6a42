//! The Postgres database: a pool of connections, and a task for each write.
//!
//! A write that has begun runs to its end, its answer is awaited, and what has to follow its commit runs, even if the
//! client leaves. A connection goes back to the pool only when its answer has been read whole, so no connection is lent
//! with an open transaction.

use super::exclusive_lock::ExclusiveLock;
use super::failure;
use super::pool::{Lent, Pool, limited};
use super::sql::{CommitBy, Connection};
use crate::Error;
use futures_util::future::BoxFuture;
use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::TaskTracker;

/// How long to wait for an answer beyond the statement's own time limit.
const GRACE: Duration = Duration::from_secs(2);
/// How long closing waits for writes that run.
const CLOSE: Duration = Duration::from_secs(15);
/// How long to wait while another node migrates the schema.
const MIGRATE: Duration = Duration::from_secs(120);

/// How to reach a Postgres database.
#[derive(Debug, Clone)]
pub struct PostgresSettings {
    /// `postgres://user:password@host:port/database?sslmode=…`; secret, because it may hold the password.
    pub url: SecretString,
    /// The most connections of this process.
    pub max_connections: u32,
    /// How long an operation waits for a connection.
    pub acquire_timeout: Duration,
    /// The longest time that a statement may run.
    pub statement_timeout: Duration,
    /// The longest time that a statement may wait for a lock.
    pub lock_timeout: Duration,
}

impl PostgresSettings {
    /// These settings with the default limits.
    pub fn new(url: SecretString) -> Self {
        Self {
            url,
            max_connections: 20,
            acquire_timeout: Duration::from_secs(3),
            statement_timeout: Duration::from_secs(10),
            lock_timeout: Duration::from_secs(5),
        }
    }

    fn options(&self) -> Result<PgConnectOptions, Error> {
        // The parser's own message is not shown, because it may contain the password.
        let options = PgConnectOptions::from_str(self.url.expose_secret()).map_err(|_| {
            Error::Unusable("the database URL is not of the form postgres://user:password@host:port/database".into())
        })?;
        Ok(options.application_name("baesrv").disable_statement_logging())
    }

    fn limits(&self) -> [(&'static str, String); 5] {
        [
            ("statement_timeout", self.statement_timeout.as_millis().to_string()),
            ("lock_timeout", self.lock_timeout.as_millis().to_string()),
            ("idle_in_transaction_session_timeout", self.statement_timeout.as_millis().to_string()),
            // Set here, whatever the server's default is, so that what is committed is on the disk.
            ("synchronous_commit", "on".to_owned()),
            // Every statement finds its rows through an index. Without this, a plan that was made while a table was
            // small would read the whole table for as long as the plan is kept.
            ("enable_seqscan", "off".to_owned()),
        ]
    }
}

/// The database, connected.
pub(crate) struct Postgres {
    pool: Arc<Pool>,
    max_connections: u32,
    statement_timeout: Duration,
    /// The writes that run. Closing waits for them.
    tasks: TaskTracker,
    exclusive_lock: ExclusiveLock,
}

impl Postgres {
    pub(crate) async fn connect(settings: &PostgresSettings) -> Result<Arc<Self>, Error> {
        let options = settings.options()?;
        let unusable = |what: &str, error: &dyn fmt::Display| {
            Error::Unusable(format!(
                "cannot {what} the Postgres database at {}:{}: {error}; check BAE_DATABASE_URL",
                options.get_host(),
                options.get_port()
            ))
        };
        // A migration may take any time; only the connections of the pool have time limits.
        let mut connection =
            limited(settings.acquire_timeout, options.connect()).await.map_err(|e| unusable("reach", &e))?;
        let mut migrations = sqlx::migrate!("../migrations/postgres");
        // During an upgrade, a node of the older version may start on a database that a newer one has migrated.
        migrations.set_ignore_missing(true);
        match tokio::time::timeout(MIGRATE, migrations.run(&mut connection)).await {
            Ok(migrated) => migrated.map_err(|e| unusable("migrate", &e))?,
            Err(late) => return Err(unusable("migrate", &late)),
        }
        limited(settings.acquire_timeout, connection.close()).await.map_err(|e| unusable("migrate", &e))?;
        let pool = Pool::new(
            options.clone().options(settings.limits()),
            settings.max_connections.max(2),
            settings.acquire_timeout,
            settings.statement_timeout + GRACE,
        );
        Ok(Arc::new(Self {
            pool,
            max_connections: settings.max_connections,
            statement_timeout: settings.statement_timeout,
            tasks: TaskTracker::new(),
            exclusive_lock: ExclusiveLock::new(options, settings.acquire_timeout),
        }))
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(crate) async fn lock_single_node(&self) -> Result<(), Error> {
        self.exclusive_lock.take().await
    }

    /// Runs a write in a task of its own.
    pub(crate) async fn write<T, W, A>(&self, commit_by: CommitBy, work: W, then: A) -> Result<T, Error>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut Connection) -> BoxFuture<'c, Result<T, Error>> + Send + 'static,
        A: FnOnce(&T) + Send + 'static,
    {
        let pool = Arc::clone(&self.pool);
        let run = async move {
            let value = transact(&pool, commit_by, work).await?;
            then(&value);
            Ok(value)
        };
        self.run(run).await
    }

    /// The most connections of this process.
    pub(crate) fn max_connections(&self) -> u32 {
        self.max_connections
    }

    /// The longest time that a statement may run.
    pub(crate) fn statement_timeout(&self) -> Duration {
        self.statement_timeout
    }

    /// Runs a write to its end in a task of its own, even if the caller stops waiting. [`Postgres::close`] waits for
    /// it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        run: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        if self.tasks.is_closed() {
            return Err(Error::Unavailable(sqlx::Error::PoolClosed));
        }
        self.tasks.spawn(run).await.unwrap_or(Err(Error::Unknown))
    }

    pub(crate) async fn close(&self) {
        self.tasks.close();
        if tokio::time::timeout(CLOSE, self.tasks.wait()).await.is_err() {
            tracing::warn!(running = self.tasks.len(), "writes still run at the end; their outcome is unknown");
        }
        self.exclusive_lock.release().await;
        self.pool.close().await;
    }
}

async fn transact<T, W>(pool: &Arc<Pool>, commit_by: CommitBy, work: W) -> Result<T, Error>
where
    W: for<'c> FnOnce(&'c mut Connection) -> BoxFuture<'c, Result<T, Error>>,
{
    let Lent { connection, slot } = pool.lend().await?;
    let mut connection = Connection::Postgres { connection, commit_by, limit: pool.limit() };
    if commit_by == CommitBy::Transaction
        && let Err(error) = connection.command("BEGIN").await
    {
        slot.give_up();
        return Err(Error::Unavailable(error));
    }
    let result = work(&mut connection).await;
    let usable = match &result {
        Ok(_) => {
            if commit_by == CommitBy::Transaction {
                connection.command("COMMIT").await.map_err(failure::of_write)?;
            }
            true
        }
        Err(_) if commit_by == CommitBy::Transaction => connection.command("ROLLBACK").await.is_ok(),
        Err(Error::Unavailable(error) | Error::Failed(error)) => failure::harmless(error),
        // Every other error was made from an answer of the database, after which the connection is usable.
        Err(error) => !matches!(error, Error::Unknown),
    };
    if usable && let Connection::Postgres { connection, .. } = connection {
        slot.give_back(connection);
    } else {
        slot.give_up();
    }
    result
}
