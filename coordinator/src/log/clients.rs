//! The clients of a session: what each has declared, and the session keys it was given.
//!
//! Written inside the transaction that makes a session or lets a further client join it.

use crate::Error;
use crate::db::sql::{Connection, Sql, sql};
use engine::ids::{KeyId, SessionId};
use engine::time::UnixMillis;

const ADD_CLIENT: Sql = sql!(
    "INSERT INTO clients (session, client_key, declarations) VALUES ($1, $2, $3) \
     ON CONFLICT (session, client_key) DO UPDATE SET declarations = excluded.declarations"
);
const ADD_KEY: Sql = sql!("INSERT INTO session_keys (digest, session, client_key, created_at) VALUES ($1, $2, $3, $4)");

/// Adds a client: its declarations replace what it had declared before, its earlier session keys stay valid.
pub(super) async fn add_client(
    c: &mut Connection,
    session: SessionId,
    key: KeyId,
    declarations: &str,
    digest: &[u8; 32],
    now: UnixMillis,
) -> Result<(), Error> {
    c.query(&ADD_CLIENT).bind(session.0.as_slice()).bind(key.0.as_slice()).bind(declarations).execute().await?;
    c.query(&ADD_KEY)
        .bind(digest.as_slice())
        .bind(session.0.as_slice())
        .bind(key.0.as_slice())
        .bind(now.0)
        .execute()
        .await?;
    Ok(())
}
