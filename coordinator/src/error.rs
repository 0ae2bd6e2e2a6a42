//! What can go wrong with the database, by what the caller does about it.

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing was applied; the database cannot be reached, is busy or full. The same call may be made again.
    #[error("the database is not available")]
    Unavailable(#[source] sqlx::Error),
    /// The database works and will not do this: repeating it does not help. Nothing was applied.
    #[error("the database refused")]
    Failed(#[source] sqlx::Error),
    /// A write may or may not have been applied. Repeat it word for word, or read, before saying that it failed.
    #[error("the outcome of a write is unknown")]
    Unknown,
    /// Redis cannot be asked; what it would say is not known.
    #[error("redis is not available: {0}")]
    CoordinationUnavailable(String),
    /// The session has a newer owner: stop acting for it.
    #[error("the session has a newer owner")]
    Fenced,
    /// The session is not open; nothing was applied.
    #[error("session is {0}, not open")]
    NotOpen(&'static str),
    /// A condition of the write did not hold: nothing was applied.
    #[error("a condition of the write does not hold any more")]
    PreconditionFailed,
    /// A unique name or key is taken.
    #[error("already exists")]
    Duplicate,
    /// There is no such row.
    #[error("not found")]
    NotFound,
    /// A row of a newer version, or one that was damaged.
    #[error("a stored row is not readable: {0}")]
    Unreadable(String),
    /// The database file cannot be used at all.
    #[error("{0}")]
    Unusable(String),
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::RowNotFound => Error::NotFound,
            sqlx::Error::Database(database) if database.is_unique_violation() => Error::Duplicate,
            sqlx::Error::Database(database) if refused(&**database) => Error::Failed(error),
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => Error::Unreadable(error.to_string()),
            _ => Error::Unavailable(error),
        }
    }
}

/// Whether a constraint, a trigger or the data itself stands against it: SQLite's primary code 19; the classes of Postgres for
/// data, constraints, rights and names, and what a trigger raises.
fn refused(error: &dyn DatabaseError) -> bool {
    let code = error.code().unwrap_or_default();
    if error.try_downcast_ref::<PgDatabaseError>().is_some() {
        return matches!(code.get(..2), Some("22" | "23" | "42" | "P0"));
    }
    code.parse::<u32>().is_ok_and(|code| code & 0xff == 19)
}
