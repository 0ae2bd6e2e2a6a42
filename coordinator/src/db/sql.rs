//! Statements written once for both databases, and what runs them.
//!
//! A statement has one text; the few words that differ between the engines (the clock, the greater of two numbers, a
//! row lock) are tokens of [`sql!`]. Arguments are `$1`, `$2` … on both.

use super::failure;
use super::pool::{Pool, limited};
use crate::Error;
use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use sqlx::postgres::{PgArguments, PgConnection, PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqlitePool, SqliteRow};
use sqlx::{Connection as _, Decode, Encode, Executor as _, FromRow, Row as _, Type};
use std::sync::Arc;
use std::time::Duration;

/// One statement in the words of each engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sql {
    pub sqlite: &'static str,
    pub postgres: &'static str,
}

/// A statement made of literals and tokens. The tokens are `now` (the database's clock, in Unix milliseconds),
/// `greatest` (a function), and `for_update` and `for_share` (row locks, which SQLite does not need because it has a
/// single writer).
macro_rules! sql {
    ($($part:tt),+ $(,)?) => {
        $crate::db::sql::Sql {
            sqlite: concat!($($crate::db::sql::word!(sqlite $part)),+),
            postgres: concat!($($crate::db::sql::word!(postgres $part)),+),
        }
    };
}

macro_rules! word {
    (sqlite now) => {
        "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
    };
    (postgres now) => {
        "CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS BIGINT)"
    };
    (sqlite greatest) => {
        "max"
    };
    (postgres greatest) => {
        "greatest"
    };
    (sqlite for_update) => {
        ""
    };
    (postgres for_update) => {
        " FOR UPDATE"
    };
    (sqlite for_share) => {
        ""
    };
    (postgres for_share) => {
        " FOR SHARE"
    };
    ($engine:ident $text:literal) => {
        $text
    };
}
pub(crate) use {sql, word};

/// A duration as an argument of a statement: in milliseconds, like `now`.
pub(crate) fn millis(time: Duration) -> i64 {
    time.as_millis() as i64
}

/// What can be bound to a statement of either engine.
pub(crate) trait Argument<'q>:
    Encode<'q, Sqlite> + Type<Sqlite> + Encode<'q, Postgres> + Type<Postgres> + Send + 'q
{
}

impl<'q, T> Argument<'q> for T where
    T: Encode<'q, Sqlite> + Type<Sqlite> + Encode<'q, Postgres> + Type<Postgres> + Send + 'q
{
}

/// What can be read from a column of either engine.
pub(crate) trait Column<'r>: Decode<'r, Sqlite> + Type<Sqlite> + Decode<'r, Postgres> + Type<Postgres> {}

impl<'r, T> Column<'r> for T where T: Decode<'r, Sqlite> + Type<Sqlite> + Decode<'r, Postgres> + Type<Postgres> {}

/// A row of either engine.
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl Row {
    /// The column with that name.
    pub(crate) fn get<'r, T: Column<'r>>(&'r self, column: &str) -> Result<T, Error> {
        Ok(match self {
            Row::Sqlite(row) => row.try_get(column)?,
            Row::Postgres(row) => row.try_get(column)?,
        })
    }

    fn parse<T>(&self) -> Result<T, Error>
    where
        T: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow>,
    {
        Ok(match self {
            Row::Sqlite(row) => T::from_row(row)?,
            Row::Postgres(row) => T::from_row(row)?,
        })
    }
}

/// What commits a write on Postgres. On SQLite the writer task puts every write into a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitBy {
    /// A transaction around all statements.
    Transaction,
    /// Each statement commits by itself. If the connection breaks after a statement was sent, its outcome is unknown.
    Statement,
}

/// A connection that may write. It is inside a write transaction; on Postgres, each of its statements can also be a
/// transaction of its own.
pub(crate) enum Connection {
    /// The connection of the writer task, inside its transaction.
    Sqlite(SqliteConnection),
    /// A connection from the pool.
    Postgres {
        /// The connection.
        connection: PgConnection,
        /// What commits its statements.
        commit_by: CommitBy,
        /// How long to wait for an answer.
        limit: Duration,
    },
}

impl Connection {
    /// Runs a statement that begins, ends or divides a transaction.
    pub(crate) async fn command(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        match self {
            Connection::Sqlite(connection) => connection.execute(sql).await.map(drop),
            Connection::Postgres { connection, limit, .. } => limited(*limit, connection.execute(sql)).await.map(drop),
        }
    }

    /// Closes the connection after telling the server.
    pub(crate) async fn close(self) -> Result<(), sqlx::Error> {
        match self {
            Connection::Sqlite(connection) => connection.close().await,
            Connection::Postgres { connection, limit, .. } => limited(limit, connection.close()).await,
        }
    }

    /// Prepares a statement on this connection.
    pub(crate) fn query(&mut self, sql: &Sql) -> Query<'_> {
        match self {
            Connection::Sqlite(connection) => Query::Sqlite(sqlx::query(sql.sqlite), SqliteOn::Writer(connection)),
            Connection::Postgres { connection, commit_by, limit } => Query::Postgres(
                sqlx::query(sql.postgres),
                PgOn::Connection { connection, commit_by: *commit_by, limit: *limit },
            ),
        }
    }
}

/// A statement, its arguments so far, and where it will run.
pub(crate) enum Query<'q> {
    Sqlite(sqlx::query::Query<'q, Sqlite, SqliteArguments>, SqliteOn<'q>),
    Postgres(sqlx::query::Query<'q, Postgres, PgArguments>, PgOn<'q>),
}

pub(crate) enum SqliteOn<'q> {
    Readers(&'q SqlitePool),
    Writer(&'q mut SqliteConnection),
}

pub(crate) enum PgOn<'q> {
    Pool(&'q Arc<Pool>),
    Connection { connection: &'q mut PgConnection, commit_by: CommitBy, limit: Duration },
}

/// Runs one of sqlx's fetching methods on the connection that the query is for.
macro_rules! run {
    ($query:expr, $method:ident, $row:expr) => {
        match $query {
            Query::Sqlite(query, SqliteOn::Readers(pool)) => Ok($row(query.$method(pool).await?, Row::Sqlite)),
            Query::Sqlite(query, SqliteOn::Writer(writer)) => Ok($row(query.$method(writer).await?, Row::Sqlite)),
            Query::Postgres(query, PgOn::Pool(pool)) => {
                let mut lent = pool.lend().await?;
                let result = limited(pool.limit(), query.$method(&mut lent.connection)).await;
                Ok($row(lent.done(result)?, Row::Postgres))
            }
            Query::Postgres(query, PgOn::Connection { connection, commit_by, limit }) => {
                match limited(limit, query.$method(connection)).await {
                    Ok(found) => Ok($row(found, Row::Postgres)),
                    Err(error) if commit_by == CommitBy::Statement => Err(failure::of_write(error)),
                    Err(error) => Err(error.into()),
                }
            }
        }
    };
}

impl<'q> Query<'q> {
    pub(crate) fn bind<T: Argument<'q>>(self, value: T) -> Self {
        match self {
            Query::Sqlite(query, on) => Query::Sqlite(query.bind(value), on),
            Query::Postgres(query, on) => Query::Postgres(query.bind(value), on),
        }
    }

    /// The first row, if there is one.
    pub(crate) async fn optional(self) -> Result<Option<Row>, Error> {
        fn row<R>(found: Option<R>, shape: fn(R) -> Row) -> Option<Row> {
            found.map(shape)
        }
        run!(self, fetch_optional, row)
    }

    /// All rows.
    pub(crate) async fn all(self) -> Result<Vec<Row>, Error> {
        fn rows<R>(found: Vec<R>, shape: fn(R) -> Row) -> Vec<Row> {
            found.into_iter().map(shape).collect()
        }
        run!(self, fetch_all, rows)
    }

    /// How many rows were written.
    pub(crate) async fn execute(self) -> Result<u64, Error> {
        trait Affected {
            fn affected(&self) -> u64;
        }
        impl Affected for sqlx::sqlite::SqliteQueryResult {
            fn affected(&self) -> u64 {
                self.rows_affected()
            }
        }
        impl Affected for sqlx::postgres::PgQueryResult {
            fn affected(&self) -> u64 {
                self.rows_affected()
            }
        }
        fn count<D: Affected, R>(done: D, _: fn(R) -> Row) -> u64 {
            done.affected()
        }
        run!(self, execute, count)
    }

    /// The first row; `NotFound` without one.
    pub(crate) async fn one(self) -> Result<Row, Error> {
        self.optional().await?.ok_or(Error::NotFound)
    }

    /// The first row as a value, if there is one.
    pub(crate) async fn optional_as<T>(self) -> Result<Option<T>, Error>
    where
        T: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow>,
    {
        self.optional().await?.as_ref().map(Row::parse).transpose()
    }

    /// The first row as a value; `NotFound` without one.
    pub(crate) async fn one_as<T>(self) -> Result<T, Error>
    where
        T: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow>,
    {
        self.one().await?.parse()
    }

    /// All rows as values.
    pub(crate) async fn all_as<T>(self) -> Result<Vec<T>, Error>
    where
        T: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow>,
    {
        self.all().await?.iter().map(Row::parse).collect()
    }

    /// The rows one by one. SQLite reads no further than asked; Postgres sends all of them, so such a statement bounds
    /// its answer itself.
    pub(crate) async fn rows(self) -> Result<Rows<'q>, Error> {
        match self {
            Query::Sqlite(query, SqliteOn::Readers(pool)) => Ok(Rows::Sqlite(query.fetch(pool))),
            other => Ok(Rows::All(other.all().await?.into_iter())),
        }
    }
}

/// Rows that are read one by one.
pub(crate) enum Rows<'q> {
    Sqlite(BoxStream<'q, Result<SqliteRow, sqlx::Error>>),
    All(std::vec::IntoIter<Row>),
}

impl Rows<'_> {
    pub(crate) async fn next(&mut self) -> Result<Option<Row>, Error> {
        match self {
            Rows::Sqlite(rows) => Ok(rows.try_next().await?.map(Row::Sqlite)),
            Rows::All(rows) => Ok(rows.next()),
        }
    }
}
