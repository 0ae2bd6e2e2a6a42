//! The error of this crate. Its variants are what a caller can do something different about.

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database cannot be reached, is busy or is full. Nothing was applied, and the same call may be made again.
    #[error("the database is not available")]
    Unavailable(#[source] sqlx::Error),
    /// The database works but refuses this call, so that repeating it does not help. Nothing was applied.
    #[error("the database refused")]
    Failed(#[source] sqlx::Error),
    /// A write may or may not have been applied. Before saying that it failed, repeat it unchanged, or read what is
    /// stored.
    #[error("the outcome of a write is unknown")]
    Unknown,
    /// Redis cannot be asked.
    #[error("redis is not available: {0}")]
    CoordinationUnavailable(String),
    /// The session has a newer owner, so the caller must stop acting for it. Nothing was applied.
    #[error("the session has a newer owner")]
    Fenced,
    /// The session is not open, but in the state that is named. Nothing was applied.
    #[error("session is {0}, not open")]
    NotOpen(&'static str),
    /// A condition of the write did not hold. Nothing was applied.
    #[error("a condition of the write does not hold any more")]
    PreconditionFailed,
    /// A unique name or key is taken.
    #[error("already exists")]
    Duplicate,
    /// There is no such row.
    #[error("not found")]
    NotFound,
    /// A stored row is damaged or was written by a newer version.
    #[error("a stored row is not readable: {0}")]
    Unreadable(String),
    /// The settings, or the database that they name, cannot be used at all.
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

/// Whether a constraint, a trigger or the data itself is the reason. In SQLite that is primary code 19. In Postgres it
/// is one of the classes for data (22), constraints (23), rights and names (42), and errors that a trigger raises (P0).
fn refused(error: &dyn DatabaseError) -> bool {
    let code = error.code().unwrap_or_default();
    if error.try_downcast_ref::<PgDatabaseError>().is_some() {
        return matches!(code.get(..2), Some("22" | "23" | "42" | "P0"));
    }
    code.parse::<u32>().is_ok_and(|code| code & 0xff == 19)
}
