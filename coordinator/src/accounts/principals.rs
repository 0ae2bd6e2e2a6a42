//! Authentication: finds the client that a secret belongs to, by the digest of the secret.

use super::{Accounts, Digest, id_bytes};
use crate::Error;
use crate::db::sql::{Sql, sql};
use engine::ids::{KeyId, ProfileId, SessionId};

/// A client that was recognised by its client key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// The client key.
    pub key: KeyId,
    /// Its profile, which may have been deleted.
    pub profile: ProfileId,
}

/// A client that was recognised by a session key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionClient {
    /// The one session that the key is for.
    pub session: SessionId,
    /// The client key that it was issued for.
    pub key: KeyId,
}

const CLIENT: Sql = sql!("SELECT id, profile FROM client_keys WHERE digest = $1 AND revoked_at IS NULL");
const SESSION_CLIENT: Sql = sql!(
    "SELECT s.session, s.client_key FROM session_keys s JOIN client_keys k ON k.id = s.client_key \
     WHERE s.digest = $1 AND k.revoked_at IS NULL"
);
impl Accounts {
    /// The client with this client key, if the key is not revoked.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn client(&self, digest: Digest) -> Result<Option<Client>, Error> {
        let row: Option<(Vec<u8>, Vec<u8>)> = self.db.read(&CLIENT).bind(digest.0.to_vec()).optional_as().await?;
        let client = |(key, profile)| -> Result<_, Error> {
            Ok(Client { key: KeyId(id_bytes(key)?), profile: ProfileId(id_bytes(profile)?) })
        };
        row.map(client).transpose()
    }

    /// The client with this session key, if the client key that it was issued for is not revoked.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn session_client(&self, digest: Digest) -> Result<Option<SessionClient>, Error> {
        let row: Option<(Vec<u8>, Vec<u8>)> =
            self.db.read(&SESSION_CLIENT).bind(digest.0.to_vec()).optional_as().await?;
        let client = |(session, key)| -> Result<_, Error> {
            Ok(SessionClient { session: SessionId(id_bytes(session)?), key: KeyId(id_bytes(key)?) })
        };
        row.map(client).transpose()
    }
}
