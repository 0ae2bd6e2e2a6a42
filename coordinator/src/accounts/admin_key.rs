//! The one admin key of the cluster: read, set by the node that starts first, replaced by an operator.

use super::{Accounts, Digest};
use crate::Error;
use crate::db::sql::{Sql, sql};

const GET: Sql = sql!("SELECT digest FROM admin_key WHERE one = 1");
const SET_IF_ABSENT: Sql =
    sql!("INSERT INTO admin_key (one, digest, created_at) VALUES (1, $1, ", now, ") ON CONFLICT (one) DO NOTHING");
const REPLACE: Sql = sql!(
    "INSERT INTO admin_key (one, digest, created_at) VALUES (1, $1, ",
    now,
    ") ON CONFLICT (one) DO UPDATE SET digest = excluded.digest, created_at = excluded.created_at"
);

impl Accounts {
    /// The digest of the admin key, if there is one.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn admin_key(&self) -> Result<Option<Digest>, Error> {
        let row: Option<(Vec<u8>,)> = self.db.read(&GET).optional_as().await?;
        let digest = |column: Vec<u8>| {
            let bytes = column.try_into().map_err(|_| Error::Unreadable("the admin key's digest".into()))?;
            Ok(Digest(bytes))
        };
        row.map(|(column,)| digest(column)).transpose()
    }

    /// Makes this the admin key if there is none, and returns whether it did. Of several nodes that try at the same
    /// time, one gets true.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn set_first_admin_key(&self, digest: Digest) -> Result<bool, Error> {
        self.write(move |c| {
            Box::pin(async move {
                let done = c.query(&SET_IF_ABSENT).bind(digest.0.to_vec()).execute().await?;
                Ok(done == 1)
            })
        })
        .await
    }

    /// Makes this the admin key, in place of the one that there may be.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn replace_admin_key(&self, digest: Digest) -> Result<(), Error> {
        self.write(move |c| {
            Box::pin(async move {
                c.query(&REPLACE).bind(digest.0.to_vec()).execute().await?;
                Ok(())
            })
        })
        .await
    }
}
