//! The log: sessions and their events in the database, which decides what is true.
//!
//! - Events of a session are numbered 1, 2, 3 … with no hole, under the session's row (ARCHITECTURE.md, I4).
//! - A turn's append names its epoch and fails as a whole when the session has a newer owner (I1). Appends that are no
//!   part of a turn carry none and only need the session open.
//! - Events are published by the write itself, after its commit, so what anybody has seen is on disk (I3).

mod append;
mod calls;
mod clients;
mod duties;
mod epoch;
mod gate_columns;
mod heartbeat;
mod images;
mod lifecycle;
mod purge;
mod read;
mod requests;
mod sandboxes;
mod sessions;
mod statistics;
mod subagents;

pub use append::{Append, CallRow, Side};
pub use calls::CallRecord;
pub use epoch::Epoch;
pub use images::{ImageState, ImageStatus};
pub use lifecycle::{NewSession, RemainingClients};
pub use purge::{PURGE_BATCH, PurgeReason};
pub use read::Page;
pub use sandboxes::{BUSY, Sandbox, SandboxChange, SandboxState};
pub use sessions::{Admission, Record, Row, State};
pub use statistics::Statistics;
pub use subagents::{NewSubagent, Subagent, SubagentState};

use crate::feed::Feeds;
use crate::{Db, Error};
use engine::ids::{CallId, EventId, KeyId, ProfileId, SandboxId, SessionId, SubagentId};
use std::sync::Arc;

/// The log of all sessions. Clones share it.
#[derive(Clone)]
pub struct Log {
    db: Db,
    feeds: Arc<Feeds>,
    requests: Arc<requests::Requests>,
    /// Given where the database is Postgres.
    group_commit: Option<Arc<append::GroupCommit>>,
}

impl Log {
    /// The log in this database, telling these feeds what is committed.
    pub fn new(db: Db, feeds: Arc<Feeds>) -> Self {
        let group_commit = append::GroupCommit::new(&db);
        Self { db, feeds, requests: Arc::default(), group_commit }
    }

    /// The live feeds of the sessions that somebody watches here.
    pub fn feeds(&self) -> &Feeds {
        &self.feeds
    }
}

/// An id column.
trait Id: Sized {
    fn of(bytes: [u8; 16]) -> Self;

    fn bytes(&self) -> &[u8; 16];

    /// The column, which must hold 16 bytes.
    fn read(row: &crate::db::sql::Row, column: &str) -> Result<Self, Error> {
        Self::maybe(row, column)?.ok_or_else(|| Error::Unreadable(format!("{column} is null")))
    }

    /// The column, or none where it is null.
    fn maybe(row: &crate::db::sql::Row, column: &str) -> Result<Option<Self>, Error> {
        let bytes: Option<&[u8]> = row.get(column)?;
        let Some(bytes) = bytes else { return Ok(None) };
        let bytes = bytes.try_into().map_err(|_| Error::Unreadable(format!("{column} is not 16 bytes")))?;
        Ok(Some(Self::of(bytes)))
    }
}

/// Ids as a statement takes many of them: a JSON list of hexadecimal texts.
fn hex_list(ids: &[impl Id]) -> String {
    let texts: Vec<String> = ids.iter().map(|id| crate::hex(id.bytes())).collect();
    engine::json::encode(&texts).get().to_owned()
}

macro_rules! ids {
    ($($name:ident)*) => {
        $(impl Id for $name {
            fn of(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            fn bytes(&self) -> &[u8; 16] {
                &self.0
            }
        })*
    };
}
ids! { SessionId EventId KeyId ProfileId CallId SandboxId SubagentId }

/// The one of all values whose word this is, from a column that holds words.
fn of_word<T: Copy>(what: &str, all: &[T], word: impl Fn(T) -> &'static str, text: &str) -> Result<T, Error> {
    let unknown = || Error::Unreadable(format!("unknown {what} {text:?}; a newer version wrote it"));
    all.iter().copied().find(|value| word(*value) == text).ok_or_else(unknown)
}

/// A stored JSON text.
fn read_json<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::Unreadable(format!("{what}: {error}")))
}
