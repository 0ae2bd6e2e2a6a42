//! Who may use the cluster: profiles, client keys, the session keys issued to their clients, and the admin key.
//!
//! This module gets digests of secrets and never the secrets. Revoking a client key also revokes every session key that
//! was issued for it, because a session key is looked up together with its client key. Deleted profiles and revoked
//! keys keep their rows, because events refer to them, but they are not listed. The admin API and the authentication in
//! the `node` crate are the callers.

mod admin_key;
mod keys;
mod principals;
mod profiles;
mod sessions;

pub use keys::{ClientKey, Revoked};
pub use principals::{Client, SessionClient};
pub use profiles::{Profile, ProfileFields};
pub use sessions::{ListedSession, State, UnknownState};

use crate::db::sql::Connection;
use crate::{Db, Error};
use futures_util::future::BoxFuture;
use std::fmt;

/// The SHA-256 digest of a secret, which is the only form in which secrets are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(…)")
    }
}

/// A page of a list: the items and, if there are more, the id after which the next page begins.
pub type Page<T, Id> = (Vec<T>, Option<Id>);

/// The accounts in the database. Clones use the same database.
#[derive(Clone)]
pub struct Accounts {
    db: Db,
}

impl Accounts {
    /// The accounts of this database.
    pub fn new(db: Db) -> Self {
        Self { db }
    }

    /// Runs a write of at most one statement with nothing to do after its commit.
    async fn write<T, W>(&self, work: W) -> Result<T, Error>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut Connection) -> BoxFuture<'c, Result<T, Error>> + Send + 'static,
    {
        self.db.write_one(work, |_| {}).await
    }
}

/// The 16 bytes of an id column.
fn id_bytes(column: Vec<u8>) -> Result<[u8; 16], Error> {
    column.try_into().map_err(|_| Error::Unreadable("an id is not 16 bytes long".into()))
}

/// Makes a page of at most `limit` items from a list that was read with one item more, which shows whether there is a
/// next page.
fn page<T, Id>(mut items: Vec<T>, limit: u32, id: impl Fn(&T) -> Id) -> Page<T, Id> {
    let limit = limit as usize;
    if items.len() <= limit {
        return (items, None);
    }
    items.truncate(limit);
    let next = items.last().map(id);
    (items, next)
}
