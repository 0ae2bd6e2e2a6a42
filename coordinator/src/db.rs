//! The database, SQLite or Postgres: reads, and writes that run to their end even if the client leaves.

mod exclusive_lock;
mod failure;
mod pool;
mod postgres;
pub(crate) mod sql;
mod sqlite;

pub(crate) use failure::of_write;
pub(crate) use pool::{Pool, limited};
pub(crate) use postgres::Postgres;
pub use postgres::PostgresSettings;

use crate::Error;
use futures_util::future::BoxFuture;
use sql::{CommitBy, Connection, PgOn, Query, Sql, SqliteOn};
use sqlite::Sqlite;
use std::path::Path;
use std::sync::Arc;

/// An open database. Clones share it.
#[derive(Clone)]
pub struct Db(Engine);

#[derive(Clone)]
enum Engine {
    Sqlite(Sqlite),
    Postgres(Arc<Postgres>),
}

impl Db {
    /// Opens (makes, if it is missing) the SQLite file, brings its schema up to date and starts the writer.
    ///
    /// # Errors
    /// `Unusable` with what to change, when the file cannot be opened or another process uses it.
    pub async fn open(path: &Path) -> Result<Db, Error> {
        Sqlite::open(path).await.map(|sqlite| Db(Engine::Sqlite(sqlite)))
    }

    /// Connects to a Postgres database and brings its schema up to date.
    ///
    /// # Errors
    /// `Unusable` with what to change, when it cannot be reached or used.
    pub async fn connect(settings: &PostgresSettings) -> Result<Db, Error> {
        Postgres::connect(settings).await.map(|postgres| Db(Engine::Postgres(postgres)))
    }

    /// Makes sure that no other process uses the database, for a node that runs without Redis. An SQLite file is locked
    /// when it is opened; on Postgres this takes an advisory lock.
    ///
    /// # Errors
    /// `Unusable` when another node has it.
    pub async fn lock_single_node(&self) -> Result<(), Error> {
        match &self.0 {
            Engine::Sqlite(_) => Ok(()),
            Engine::Postgres(postgres) => postgres.lock_single_node().await,
        }
    }

    /// Waits for the writes that were accepted and closes the database, for all clones.
    pub async fn close(&self) {
        match &self.0 {
            Engine::Sqlite(sqlite) => sqlite.close().await,
            Engine::Postgres(postgres) => postgres.close().await,
        }
    }

    /// How many connections of this process are idle, and how many are used. On SQLite those that read are counted.
    pub fn connections(&self) -> (usize, usize) {
        match &self.0 {
            Engine::Sqlite(sqlite) => sqlite.connections(),
            Engine::Postgres(postgres) => postgres.pool().connections(),
        }
    }

    /// The Postgres database, if this is one.
    pub(crate) fn postgres(&self) -> Option<&Arc<Postgres>> {
        match &self.0 {
            Engine::Sqlite(_) => None,
            Engine::Postgres(postgres) => Some(postgres),
        }
    }

    /// A statement that only reads.
    pub(crate) fn read(&self, sql: &Sql) -> Query<'_> {
        match &self.0 {
            Engine::Sqlite(sqlite) => Query::Sqlite(sqlx::query(sql.sqlite), SqliteOn::Readers(sqlite.readers())),
            Engine::Postgres(postgres) => Query::Postgres(sqlx::query(sql.postgres), PgOn::Pool(postgres.pool())),
        }
    }

    /// Runs `work` inside a write transaction. If `work` fails, nothing that it did is applied. After the commit `then`
    /// runs, whether or not the caller still waits.
    ///
    /// # Errors
    /// Whatever `work` returned, or the failure of the commit; `Unknown` if the connection broke at the commit.
    pub(crate) async fn write<T, W, A>(&self, work: W, then: A) -> Result<T, Error>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut Connection) -> BoxFuture<'c, Result<T, Error>> + Send + 'static,
        A: FnOnce(&T) + Send + 'static,
    {
        match &self.0 {
            Engine::Sqlite(sqlite) => sqlite.write(work, then).await,
            Engine::Postgres(postgres) => postgres.write(CommitBy::Transaction, work, then).await,
        }
    }

    /// Runs one statement that writes, with the arguments that `bind` gives it. Returns how many rows it wrote.
    ///
    /// # Errors
    /// The statement's; `Unknown` if the connection broke after it was sent.
    pub(crate) async fn execute<B>(&self, sql: &'static Sql, bind: B) -> Result<u64, Error>
    where
        B: for<'c> FnOnce(Query<'c>) -> Query<'c> + Send + 'static,
    {
        self.write_one(move |c| Box::pin(bind(c.query(sql)).execute()), |_| ()).await
    }

    /// Like `write`, for work that writes with at most one statement. On Postgres that statement is a transaction of
    /// its own.
    ///
    /// # Errors
    /// Whatever `work` returned; `Unknown` if the connection broke after a statement was sent.
    pub(crate) async fn write_one<T, W, A>(&self, work: W, then: A) -> Result<T, Error>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut Connection) -> BoxFuture<'c, Result<T, Error>> + Send + 'static,
        A: FnOnce(&T) + Send + 'static,
    {
        match &self.0 {
            Engine::Sqlite(sqlite) => sqlite.write(work, then).await,
            Engine::Postgres(postgres) => postgres.write(CommitBy::Statement, work, then).await,
        }
    }
}
