//! The lease: the right, and the duty, to serve one session.
//!
//! The task that owns a session holds its lease and reaches the session's queue only through it. Dropping the lease
//! gives the session up, so that an owner that panicked is replaced. A lease is no proof of ownership: a node can lose
//! it without noticing. Every append of a turn therefore names its epoch, which the database checks (ARCHITECTURE.md,
//! I1).

use super::queue::Claim;
use super::{Cluster, Progress};
use crate::log::Epoch;
use engine::gate::Pause;
use engine::ids::{CallId, SessionId};
use engine::rpc::RpcError;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The right, and the duty, to serve one session until the lease is released or lost.
pub struct Lease {
    pub(crate) session: SessionId,
    pub(crate) wake: Arc<Notify>,
    /// Ends when the session is closed under its owner.
    pub stop: CancellationToken,
    /// Ends when another node owns the session.
    pub lost: CancellationToken,
    pub(crate) held: bool,
    pub(crate) cluster: Cluster,
}

impl Lease {
    /// The session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Asks the backend whether the lease still holds. The owner calls this after it has read the session's epoch and
    /// before it moves the epoch on, so that a node that was frozen in between does not push out its successor.
    pub async fn confirm(&self) -> bool {
        match &self.cluster {
            Cluster::Local(_) => true,
            Cluster::Redis(redis) => redis.confirm(self.session).await,
        }
    }

    /// Whether an external act, such as a tool call, may begin under this epoch (ARCHITECTURE.md, "One node and
    /// several").
    pub async fn may_act(&self, epoch: Epoch) -> bool {
        match &self.cluster {
            Cluster::Local(_) => true,
            Cluster::Redis(redis) => !self.lost.is_cancelled() && redis.may_act(self.session, epoch).await,
        }
    }

    /// Takes the call that runs next. `pause` is the pause that keeps the gate; without one the gate is free.
    pub async fn claim(&self, pause: Option<Pause>) -> Claim {
        match &self.cluster {
            Cluster::Local(local) => local.claim(self.session, pause),
            Cluster::Redis(redis) => redis.claim(self.session, pause).await,
        }
    }

    /// Gives the claimed call back to the queue, in its old place: the gate was not as the claim assumed.
    pub async fn unclaim(&self, call: CallId) {
        match &self.cluster {
            Cluster::Local(local) => local.unclaim(self.session),
            Cluster::Redis(redis) => redis.unclaim(self.session, call).await,
        }
    }

    /// Tells everybody who waits for a call how far it is. A call that has ended or was refused leaves the queue.
    pub async fn tell(&self, call: CallId, progress: Progress) {
        match &self.cluster {
            Cluster::Local(local) => local.tell(self.session, call, progress),
            Cluster::Redis(redis) => redis.tell(self.session, call, progress).await,
        }
    }

    /// Answers every call that waits for the session, on all nodes, with this error.
    pub async fn refuse_all(&self, error: &RpcError) {
        match &self.cluster {
            Cluster::Local(local) => local.refuse_all(self.session, error),
            Cluster::Redis(redis) => redis.refuse_all(self.session, error).await,
        }
    }

    /// Answers every call that waits on this node with this error, because this node cannot serve the session at
    /// present. Calls that wait on other nodes keep their places: another node may be able to serve them.
    pub fn refuse_here(&self, error: &RpcError) {
        match &self.cluster {
            Cluster::Local(local) => local.refuse_all(self.session, error),
            Cluster::Redis(redis) => redis.refuse_here(self.session, error),
        }
    }

    /// Whether any call waits.
    pub async fn wanted(&self) -> bool {
        match &self.cluster {
            Cluster::Local(local) => local.wanted(self.session),
            Cluster::Redis(redis) => redis.wanted(self.session).await,
        }
    }

    /// Returns when the owner was woken, because there may be something new to do.
    pub async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Gives the session up, unless a call waits for it.
    ///
    /// # Errors
    /// Returns the lease when there is a call to serve.
    pub async fn release(mut self) -> Result<(), Lease> {
        if !self.stop.is_cancelled() && !self.lost.is_cancelled() && self.wanted().await {
            return Err(self);
        }
        let successor = if self.lost.is_cancelled() { Successor::Nobody } else { Successor::Caller };
        self.let_go(successor);
        Ok(())
    }

    /// Gives the session up although calls may wait, because this node takes no more sessions. If a call waits, another
    /// node is told at once.
    pub fn pass_on(mut self) {
        self.let_go(Successor::Caller);
    }

    /// Gives the session up in the middle of a turn. Another node is told at once to carry the turn on.
    pub fn hand_over(mut self) {
        self.let_go(Successor::Another);
    }

    fn let_go(&mut self, successor: Successor) {
        if std::mem::take(&mut self.held) {
            match &self.cluster {
                Cluster::Local(local) => local.let_go(self.session),
                Cluster::Redis(redis) => redis.let_go(self.session, successor),
            }
        }
    }
}

/// Who is told of a session that is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Successor {
    /// Nobody: a node that needs the session takes it.
    Nobody,
    /// A node with a waiting client, in case a call was queued just before the session was given up.
    Caller,
    /// Another node, at once, because this one is shutting down.
    Another,
}

impl Drop for Lease {
    /// Gives up the session of an owner that panicked, so that it can be served again.
    fn drop(&mut self) {
        self.let_go(Successor::Nobody);
    }
}
