//! The callers' side of the queues: calls are accepted on this node, get a place in the queue that all nodes share, are
//! joined by others with the same idempotency key, and are left.
//!
//! The session table of this node has a call from its acceptance on. `places` has it once Redis has given it a place.
//! If its last caller leaves while Redis is being asked, the call is removed from the shared queue again. If Redis is
//! emptied, the node puts its calls back in their old places when it reconciles (`tasks`).

use super::outbox::RetriedCommand;
use super::{Frame, RETRY, Redis, locked};
use crate::cluster::Progress;
use crate::cluster::queue::{Call, Rejected};
use crate::cluster::session_table::LocalSession;
use engine::ids::{CallId, KeyId, SessionId};
use engine::rpc::RpcError;
use engine::turn::Opening;
use redis::RedisResult;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a call waits for Redis before its caller is told that it cannot be queued.
const PATIENCE: Duration = Duration::from_secs(10);

impl Redis {
    pub(crate) fn accept(
        &self,
        session: SessionId,
        call: Call,
    ) -> Result<(CallId, watch::Receiver<Progress>), Rejected> {
        self.0.table.accept(session, call)
    }

    /// Gives a call its place in the shared queue. If a call with the same idempotency key waits already, returns that
    /// one with its place.
    pub(crate) async fn enqueue(&self, session: SessionId, call: &Call) -> Result<Option<(CallId, u64)>, Rejected> {
        let queued = async {
            loop {
                match self.queue(session, call, 0).await {
                    Ok(result) => return result,
                    Err(error) => {
                        tracing::debug!(error = %error, "a call cannot be queued just now");
                        tokio::time::sleep(RETRY).await;
                    }
                }
            }
        };
        tokio::time::timeout(PATIENCE, queued).await.unwrap_or_else(|_| {
            tracing::error!(%session, "a call could not be queued: redis was away for too long");
            Err(Rejected::CoordinationUnavailable)
        })
    }

    /// Whether a call that waits here has its place in the shared queue.
    pub(crate) fn placed(&self, call: CallId) -> bool {
        locked(&self.0.places).contains_key(&call)
    }

    /// Records the place of a call if it still waits here. Returns whether it does.
    pub(super) fn place(&self, session: SessionId, call: CallId, place: u64) -> bool {
        let note = |local: &mut LocalSession| {
            let waits = local.queue.waiting().any(|waiting| waiting.id == call);
            if waits {
                locked(&self.0.places).insert(call, place);
            }
            waits
        };
        self.0.table.with(session, note).unwrap_or(false)
    }

    pub(super) async fn queue(
        &self,
        session: SessionId,
        call: &Call,
        place: u64,
    ) -> RedisResult<Result<Option<(CallId, u64)>, Rejected>> {
        let method = match call.opening {
            Opening::Message(_) => "message",
            Opening::Compact(_) => "compact",
        };
        let (name, digest) = match &call.idempotency {
            Some((name, digest)) => (format!("{}|{name}", call.key), crate::hex(digest)),
            None => (String::new(), String::new()),
        };
        let meta = format!("{method}|{}|{name}", call.key);
        let entry = engine::json::encode(&Entry { v: 1, call: call.clone() });
        let (asked, since) = (Instant::now(), self.since(session));
        let (limit, lease) = (self.0.table.limit(), self.lease_ms());
        let offer = if self.is_draining() { Frame::Offer(session).encode() } else { String::new() };
        let (status, first, place, owner): (String, String, u64, String) = self
            .call(&self.0.scripts.enqueue, &self.keys(session), |s| {
                s.arg(call.id.to_string()).arg(entry.get()).arg(&meta).arg(&name).arg(&digest);
                s.arg(limit).arg(lease).arg(place).arg(Frame::Wake(session).encode()).arg(offer)
            })
            .await?;
        Ok(match status.as_str() {
            "full" => Err(Rejected::Full),
            "other" => Err(Rejected::OtherParams),
            "joined" => Ok(first.parse().ok().map(|first| (first, place))),
            _ => {
                if !self.place(session, call.id, place) {
                    // Its last caller left, or the call started, while Redis was being asked.
                    self.leave_queue(session, call.id);
                }
                if owner == self.0.node && !self.serve(session, asked, since) {
                    self.ensure_owner(session).await;
                }
                Ok(None)
            }
        })
    }

    /// Makes the callers of a call wait for an earlier one with the same idempotency key, which another node accepted.
    pub(crate) fn join(
        &self,
        session: SessionId,
        call: &Call,
        (first, place): (CallId, u64),
    ) -> watch::Receiver<Progress> {
        let same = Call { id: first, ..call.clone() };
        match self.0.table.replace(session, call.id, same) {
            Ok(progress) => {
                self.place(session, first, place);
                progress
            }
            Err(_) => self.0.table.follow(session, first),
        }
    }

    pub(crate) fn follow(&self, session: SessionId, call: CallId) -> watch::Receiver<Progress> {
        self.0.table.follow(session, call)
    }

    /// Tells the waiters on this node how far a call is, and removes it from this node's queue: it no longer waits.
    pub(super) fn tell_waiters(&self, session: SessionId, call: CallId, progress: Progress) {
        self.0.table.with(session, |local| {
            local.queue.ended(call);
            local.tell(call, progress);
        });
        locked(&self.0.places).remove(&call);
    }

    pub(crate) fn leave(&self, session: SessionId, call: CallId) {
        if self.0.table.leave(session, call) {
            self.leave_queue(session, call);
        }
    }

    pub(super) fn leave_queue(&self, session: SessionId, call: CallId) {
        locked(&self.0.places).remove(&call);
        self.remember(RetriedCommand::Leave(session, call));
    }

    pub(crate) fn forget(&self, key: KeyId, error: &RpcError) {
        for (session, call) in self.0.table.drop_of(key, error) {
            self.leave_queue(session, call);
        }
    }

    pub(crate) fn owned(&self) -> usize {
        self.0.table.owned()
    }

    pub(crate) fn up(&self) -> bool {
        self.0.connection.up()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.0.table.waiting()
    }
}

/// A call as it is stored in Redis, with the version of its form.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct Entry {
    pub v: u8,
    pub call: Call,
}
