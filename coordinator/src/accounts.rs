//! Who may use the cluster: profiles, client keys, the session keys minted for them, the admin key.
//!
//! Only digests of secrets come in here, never a secret. A revoked client key takes every session key minted for it along,
//! because a session key is only found through its client key. Deleted profiles and revoked keys stay as rows, for the log's
//! sake, and are shown nowhere.

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

/// SHA-256 of a secret, the only form that is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(…)")
    }
}

/// A page of a list: the items, and where the next page begins (after that id), if there is one.
pub type Page<T, Id> = (Vec<T>, Option<Id>);

/// The accounts in the database. Clones share it.
#[derive(Clone)]
pub struct Accounts {
    db: Db,
}

impl Accounts {
    /// The accounts of this database.
    pub fn new(db: Db) -> Self {
        Self { db }
    }

    /// A write of one statement at most, with nothing to do after its commit.
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

/// Cuts a list that was read one longer than asked, and says where the next page begins.
fn page<T, Id>(mut items: Vec<T>, limit: u32, id: impl Fn(&T) -> Id) -> Page<T, Id> {
    let limit = limit as usize;
    if items.len() <= limit {
        return (items, None);
    }
    items.truncate(limit);
    let next = items.last().map(id);
    (items, next)
}
