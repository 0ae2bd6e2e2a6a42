//! Client keys: they are created for a profile, listed and revoked, and their last use is recorded.

use super::{Accounts, Digest, Page, id_bytes, page};
use crate::db::sql::{Sql, millis, sql};
use crate::{Error, fresh_id};
use engine::ids::{KeyId, ProfileId};
use engine::time::UnixMillis;
use sqlx::FromRow;
use std::time::Duration;

/// A client key as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientKey {
    /// Its id, which events carry as their author.
    pub id: KeyId,
    /// The administrator's name for it.
    pub name: String,
    /// The first characters of the secret, by which people recognise it.
    pub prefix: String,
    /// Its profile, which never changes.
    pub profile: ProfileId,
    /// Unix milliseconds.
    pub created_at: UnixMillis,
    /// Unix milliseconds, exact to about a minute.
    pub last_used_at: Option<UnixMillis>,
}

#[derive(FromRow)]
struct Row {
    id: Vec<u8>,
    name: String,
    prefix: String,
    profile: Vec<u8>,
    created_at: i64,
    last_used_at: Option<i64>,
}

const INSERT: Sql = sql!(
    "INSERT INTO client_keys (id, name, prefix, digest, profile, created_at) SELECT $1, $2, $3, $4, id, ",
    now,
    " FROM profiles WHERE id = $5 AND deleted_at IS NULL",
    for_share,
    " RETURNING created_at"
);
const LIST: Sql = sql!(
    "SELECT id, name, prefix, profile, created_at, last_used_at FROM client_keys \
     WHERE revoked_at IS NULL AND id > $1 ORDER BY id LIMIT $2"
);
const REVOKE: Sql = sql!("UPDATE client_keys SET revoked_at = ", now, " WHERE id = $1 AND revoked_at IS NULL");
const EXISTS: Sql = sql!("SELECT 1 FROM client_keys WHERE id = $1");
const USED: Sql = sql!(
    "UPDATE client_keys SET last_used_at = ",
    now,
    " WHERE id = $1 AND (last_used_at IS NULL OR last_used_at <= ",
    now,
    " - $2)"
);

/// `last_used_at` is not written again within this time.
const USED_STEP: Duration = Duration::from_secs(60);

/// Whether a revocation changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revoked {
    /// The key was active until now.
    Now,
    /// It had been revoked before.
    Before,
}

impl Accounts {
    /// Creates a client key for a profile. `prefix` and `digest` are those of its secret.
    ///
    /// # Errors
    /// `NotFound` when the profile does not exist or was deleted.
    pub async fn create_key(
        &self,
        name: String,
        prefix: String,
        digest: Digest,
        profile: ProfileId,
    ) -> Result<ClientKey, Error> {
        let id = KeyId(fresh_id());
        self.write(move |c| {
            Box::pin(async move {
                let (created_at,): (i64,) = c
                    .query(&INSERT)
                    .bind(id.0.to_vec())
                    .bind(&name)
                    .bind(&prefix)
                    .bind(digest.0.to_vec())
                    .bind(profile.0.to_vec())
                    .one_as()
                    .await?;
                Ok(ClientKey { id, name, prefix, profile, created_at: UnixMillis(created_at), last_used_at: None })
            })
        })
        .await
    }

    /// A page of the active client keys, oldest first, beginning after the key `after`.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn keys(&self, after: Option<KeyId>, limit: u32) -> Result<Page<ClientKey, KeyId>, Error> {
        let after = after.map(|id| id.0.to_vec()).unwrap_or_default();
        let rows: Vec<Row> = self.db.read(&LIST).bind(after).bind(i64::from(limit) + 1).all_as().await?;
        let keys = rows.into_iter().map(Row::key).collect::<Result<_, _>>()?;
        Ok(page(keys, limit, |key: &ClientKey| key.id))
    }

    /// Revokes a client key, and with it every session key that was issued for it. `then` runs right after the commit,
    /// even if the caller stops waiting; it is the place to drop what is cached.
    ///
    /// # Errors
    /// `NotFound` when there never was such a key.
    pub async fn revoke_key(&self, id: KeyId, then: impl FnOnce() + Send + 'static) -> Result<Revoked, Error> {
        self.db
            .write_one(
                move |c| {
                    Box::pin(async move {
                        let done = c.query(&REVOKE).bind(id.0.to_vec()).execute().await?;
                        if done == 1 {
                            return Ok(Revoked::Now);
                        }
                        c.query(&EXISTS).bind(id.0.to_vec()).one().await?;
                        Ok(Revoked::Before)
                    })
                },
                move |_| then(),
            )
            .await
    }

    /// Records that these keys were used just now. A key whose use was recorded within the last minute keeps its time.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn keys_used(&self, mut keys: Vec<KeyId>) -> Result<(), Error> {
        // All nodes update the rows in the same order, so that two of them cannot block each other.
        keys.sort_unstable();
        self.db
            .write(
                move |c| {
                    Box::pin(async move {
                        for key in keys {
                            c.query(&USED).bind(key.0.to_vec()).bind(millis(USED_STEP)).execute().await?;
                        }
                        Ok(())
                    })
                },
                |()| (),
            )
            .await
    }
}

impl Row {
    fn key(self) -> Result<ClientKey, Error> {
        Ok(ClientKey {
            id: KeyId(id_bytes(self.id)?),
            name: self.name,
            prefix: self.prefix,
            profile: ProfileId(id_bytes(self.profile)?),
            created_at: UnixMillis(self.created_at),
            last_used_at: self.last_used_at.map(UnixMillis),
        })
    }
}
