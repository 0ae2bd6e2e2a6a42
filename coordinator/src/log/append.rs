//! Appending: one write that moves the session's head under its conditions and inserts the events behind it.
//!
//! Inside a write transaction that is a statement for each row ([`sqlite`]); on Postgres one statement for all of it
//! ([`postgres`]), except for the rare appends that change a client's row as well.

mod group_commit;
mod postgres;
pub(super) mod sqlite;

pub(super) use group_commit::GroupCommit;

use super::{Epoch, Log, State};
use crate::Error;
use crate::db::sql::Row;
use crate::feed::LogStatus;
use engine::event::{Event, NewEvent};
use engine::gate::{End, GateAfter, GateFound};
use engine::ids::{CallId, KeyId, SessionId};
use engine::request::DeltaChain;
use std::sync::Arc;

/// An append of a turn.
#[derive(Debug, Clone)]
pub struct Append {
    /// Whose log.
    pub session: SessionId,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// The call whose events these are.
    pub call: CallId,
    /// Given by the append that opens the call.
    pub open: Option<CallRow>,
    /// The events, in order.
    pub events: Vec<NewEvent>,
    /// What a `provider.request` among them may refer to.
    pub chain: Option<DeltaChain>,
    /// Given by the append that ends the call; without it the call goes on.
    pub end: Option<End>,
}

/// What is recorded of a call when it opens, and the gate it found.
#[derive(Debug, Clone)]
pub struct CallRow {
    /// Whose call.
    pub key: KeyId,
    /// The idempotency key and the digest of the params it came with.
    pub idempotency: Option<(String, [u8; 32])>,
    /// The caller's trace.
    pub traceparent: Option<String>,
    /// Must still hold in the append; expiry is judged with the database's clock.
    pub gate: GateFound,
}

/// What an append outside of turns changes beside the log.
#[derive(Debug, Clone)]
pub enum Side {
    /// Nothing.
    Nothing,
    /// A client joins: its declarations and its session key's digest.
    Join {
        /// Stored declarations.
        declarations: String,
        /// Digest of the new session key.
        digest: [u8; 32],
    },
    /// A client registers as a driver; registered already means that nothing is appended.
    Register,
}

impl Log {
    /// Appends a turn's events and publishes them. Returns them as committed.
    ///
    /// # Errors
    /// `Fenced`, `NotOpen`; `PreconditionFailed` when the gate is not as the opening call found it; `Duplicate` when another
    /// call has its idempotency key; `Unavailable` with nothing applied; `Unknown` when it may still come: take the session
    /// anew, which fences it off, before anything else is written.
    pub async fn append(&self, append: Append) -> Result<Vec<Arc<Event>>, Error> {
        let feeds = Arc::clone(&self.feeds);
        let session = append.session;
        let status = match append.end.as_ref().map(|end| end.gate) {
            Some(GateAfter::Failed) => LogStatus::Ended,
            Some(GateAfter::Free | GateAfter::Paused(_)) | None => LogStatus::Open,
        };
        let outcome = append.end.as_ref().map(|end| end.outcome.clone());
        let publish = move |events: &Vec<Arc<Event>>| feeds.publish(session, events, status, outcome);
        match &self.group_commit {
            None => self.db.write(move |c| Box::pin(async move { sqlite::turn(c, &append).await }), publish).await,
            Some(group_commit) => postgres::submit(group_commit, postgres::turn(append), publish).await,
        }
    }

    /// Appends events that are no part of a turn, from any node, and publishes them.
    ///
    /// # Errors
    /// `NotOpen`, `NotFound`; `Unavailable` with nothing applied; `Unknown`.
    pub async fn append_free(
        &self,
        session: SessionId,
        key: KeyId,
        events: Vec<NewEvent>,
        side: Side,
    ) -> Result<Vec<Arc<Event>>, Error> {
        let feeds = Arc::clone(&self.feeds);
        let publish = move |events: &Vec<Arc<Event>>| feeds.publish(session, events, LogStatus::Open, None);
        match (&self.group_commit, side) {
            (Some(group_commit), Side::Nothing) => {
                postgres::submit(group_commit, postgres::free(session, events), publish).await
            }
            (_, side) => {
                let write = self.db.write(
                    move |c| Box::pin(async move { sqlite::free(c, session, key, &events, &side).await }),
                    publish,
                );
                write.await
            }
        }
    }
}

/// Why a conditional update found no row; `row` is the session's state and epoch.
fn refusal(row: Option<Row>, epoch: Option<Epoch>) -> Result<Error, Error> {
    let Some(row) = row else { return Ok(Error::NotFound) };
    let now: Epoch = row.get("epoch")?;
    Ok(match State::parse(row.get("state")?)? {
        State::Open if epoch.is_some_and(|epoch| now != epoch) => Error::Fenced,
        State::Open => Error::PreconditionFailed,
        other => Error::NotOpen(other.public_name()),
    })
}
