//! Appending events to a session's log.
//!
//! An append is one write. It moves the session's head, which is the number of its last event, and inserts the events
//! behind the old head. It names conditions, such as the epoch or the state of the gate, and if one of them does not
//! hold, nothing is written. After the commit the write publishes the events to the session's feed.
//!
//! On SQLite an append is a transaction with a statement for each row ([`sqlite`]). On Postgres it is a single
//! statement ([`postgres`]), except for the few appends that change the rows of clients or of subagents too: those use the
//! same transaction as SQLite.

mod group_commit;
mod postgres;
pub(super) mod sqlite;

pub(super) use group_commit::GroupCommit;

use super::{Epoch, Log, State};
use crate::Error;
use crate::db::sql::Row;
use crate::feed::LogStatus;
use crate::metrics::metrics;
use engine::event::{Event, NewEvent};
use engine::gate::{End, GateAfter, GateFound};
use engine::ids::{CallId, KeyId, SessionId, SubagentId};
use engine::request::DeltaChain;
use std::sync::Arc;
use std::time::Instant;

/// An append of events that belong to a turn.
#[derive(Debug, Clone)]
pub struct Append {
    /// The session whose log grows.
    pub session: SessionId,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// The call whose events these are.
    pub call: CallId,
    /// Given by the append that opens the call.
    pub open: Option<CallRow>,
    /// The events, in order.
    pub events: Vec<NewEvent>,
    /// The earlier requests that a `provider.request` among the events may be stored relative to.
    pub chain: Option<DeltaChain>,
    /// The subagents whose end the model is told by these events. Their rows are deleted, so that it is told once.
    pub reported: Vec<SubagentId>,
    /// Given by the append that ends the call. Without it the call goes on.
    pub end: Option<End>,
}

/// What is recorded of a call when it opens, and the state of the gate that it expects.
#[derive(Debug, Clone)]
pub struct CallRow {
    /// The client key of the caller.
    pub key: KeyId,
    /// The idempotency key and the digest of the params that came with it.
    pub idempotency: Option<(String, [u8; 32])>,
    /// The caller's `traceparent` header.
    pub traceparent: Option<String>,
    /// The state of the gate that the call expects. The append checks it; whether a pause has expired is judged by the
    /// database's clock.
    pub gate: GateFound,
}

/// What an append outside of turns changes besides the log.
#[derive(Debug, Clone)]
pub enum Side {
    /// Nothing.
    Nothing,
    /// A client joins the session.
    Join {
        /// The client's declarations in their stored form.
        declarations: String,
        /// Digest of the new session key.
        digest: [u8; 32],
    },
    /// A client registers as a driver. If it is registered already, nothing is appended.
    Register,
}

impl Log {
    /// Appends events of a turn and publishes them. Returns the events as they were committed.
    ///
    /// # Errors
    /// - `Fenced` when the session has a newer owner, `NotOpen` when it is not open.
    /// - `PreconditionFailed` when the gate is not as the call expects.
    /// - `Duplicate` when another call has the same idempotency key.
    /// - `Unavailable` when the database cannot be used; nothing was applied.
    /// - `Unknown` when the append may or may not have been applied, or may still be. Take the session again before
    ///   anything else is written: that moves the epoch, so that the append cannot be applied any more.
    pub async fn append(&self, append: Append) -> Result<Vec<Arc<Event>>, Error> {
        let feeds = Arc::clone(&self.feeds);
        let session = append.session;
        let status = match append.end.as_ref().map(|end| end.gate) {
            Some(GateAfter::Failed) => LogStatus::Ended,
            Some(GateAfter::Free | GateAfter::Paused(_)) | None => LogStatus::Open,
        };
        let outcome = append.end.as_ref().map(|end| end.outcome.clone());
        let publish = move |events: &Vec<Arc<Event>>| feeds.publish(session, events, status, outcome);
        let (begun, number) = (Instant::now(), append.events.len());
        let appended = match &self.group_commit {
            Some(group_commit) if append.reported.is_empty() => {
                postgres::submit(group_commit, postgres::turn(append), publish).await
            }
            Some(_) | None => {
                self.db.write(move |c| Box::pin(async move { sqlite::turn(c, &append).await }), publish).await
            }
        };
        match &appended {
            Ok(_) => {
                metrics().append_duration.since(begun);
                metrics().append_events.record(number);
            }
            Err(Error::Fenced) => metrics().fenced.add(1, &[]),
            Err(_) => {}
        }
        appended
    }

    /// Appends events that belong to no turn and publishes them. Any node may do so. Returns the events as they were
    /// committed.
    ///
    /// # Errors
    /// `NotOpen` or `NotFound` by the state of the session; `Unavailable` when nothing was applied; `Unknown` when the
    /// append may or may not have been applied.
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

/// Why a conditional update changed no row. `row` holds the session's state and epoch.
fn refusal(row: Option<Row>, epoch: Option<Epoch>) -> Result<Error, Error> {
    let Some(row) = row else { return Ok(Error::NotFound) };
    let now: Epoch = row.get("epoch")?;
    Ok(match State::parse(row.get("state")?)? {
        State::Open if epoch.is_some_and(|epoch| now != epoch) => Error::Fenced,
        State::Open => Error::PreconditionFailed,
        other => Error::NotOpen(other.public_name()),
    })
}
