//! Decides what a failed statement means: that nothing was applied, or that the outcome is unknown.

use crate::Error;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

/// The error for a statement that commits by itself, or for a commit, after it may have been sent. An error that the
/// server answers means that nothing was applied, unless it only says that the server shuts down. Without an answer the
/// outcome is unknown.
pub(crate) fn of_write(error: sqlx::Error) -> Error {
    match &error {
        sqlx::Error::Database(database) => match database.code().as_deref() {
            Some(code) if code.starts_with("57P") || code.starts_with("08") || code == "40003" => unknown(&error),
            _ => error.into(),
        },
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
            unknown(&error)
        }
        _ => error.into(),
    }
}

fn unknown(error: &sqlx::Error) -> Error {
    tracing::warn!(%error, "the outcome of a write is unknown");
    Error::Unknown
}

/// Whether the connection that reported this can be used again: a refused statement leaves it as it was.
pub(crate) fn harmless(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    let fatal = database
        .try_downcast_ref::<PgDatabaseError>()
        .is_none_or(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic));
    let code = database.code();
    let class = code.as_deref().and_then(|code| code.get(..2));
    !fatal
        && (matches!(class, Some("22" | "23" | "40" | "53" | "P0"))
            || matches!(code.as_deref(), Some("55P03" | "57014")))
}
