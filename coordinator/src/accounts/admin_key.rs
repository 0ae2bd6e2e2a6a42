//! The one admin key of the cluster.

use super::{Accounts, Digest, now};
use crate::Error;

const GET: &str = "SELECT digest FROM admin_key WHERE one = 1";
const SET_IF_ABSENT: &str = concat!(
    "INSERT INTO admin_key (one, digest, created_at) VALUES (1, $1, ",
    now!(),
    ") ON CONFLICT (one) DO NOTHING"
);
const REPLACE: &str = concat!(
    "INSERT INTO admin_key (one, digest, created_at) VALUES (1, $1, ",
    now!(),
    ") ON CONFLICT (one) DO UPDATE SET digest = excluded.digest, created_at = excluded.created_at"
);

impl Accounts {
    /// The digest of the admin key, if there is one.
    pub async fn admin_key(&self) -> Result<Option<Digest>, Error> {
        let row: Option<(Vec<u8>,)> = sqlx::query_as(GET).fetch_optional(self.db.reader()).await?;
        let digest = |column: Vec<u8>| {
            let bytes = column.try_into().map_err(|_| Error::Unreadable("the admin key's digest".into()))?;
            Ok(Digest(bytes))
        };
        row.map(|(column,)| digest(column)).transpose()
    }

    /// Makes this the admin key if there is none. Whether it did: of many nodes that try at once, one gets true.
    pub async fn set_first_admin_key(&self, digest: Digest) -> Result<bool, Error> {
        self.write(move |c| {
            Box::pin(async move {
                let done = sqlx::query(SET_IF_ABSENT).bind(digest.0.to_vec()).execute(c).await?;
                Ok(done.rows_affected() == 1)
            })
        })
        .await
    }

    /// Makes this the admin key, whatever was before.
    pub async fn replace_admin_key(&self, digest: Digest) -> Result<(), Error> {
        self.write(move |c| {
            Box::pin(async move {
                sqlx::query(REPLACE).bind(digest.0.to_vec()).execute(c).await?;
                Ok(())
            })
        })
        .await
    }
}
