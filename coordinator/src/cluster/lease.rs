//! The lease: the right, and the duty, to serve one session. The owner of a session in the node holds it and asks everything
//! that concerns its queue through it. Dropping it gives the session up, so an owner that panicked is replaced.

use super::queue::Claim;
use super::{Cluster, Progress};
use engine::gate::Pause;
use engine::ids::{CallId, SessionId};
use engine::rpc::RpcError;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The right, and the duty, to serve one session until it is released or lost. At any time at most one acts under it.
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

    /// Whether the lease still holds, asked of its backend: to be checked between reading the epoch and moving it on.
    pub async fn confirm(&self) -> bool {
        match &self.cluster {
            Cluster::Local(_) => true,
            Cluster::Redis(redis) => redis.confirm(self.session).await,
        }
    }

    /// Whether an external act may begin under this epoch (ARCHITECTURE.md, "One node and several").
    pub async fn may_act(&self, epoch: i64) -> bool {
        match &self.cluster {
            Cluster::Local(_) => true,
            Cluster::Redis(redis) => !self.lost.is_cancelled() && redis.may_act(self.session, epoch).await,
        }
    }

    /// Takes the call that goes next while the gate is free, or kept by this pause.
    pub async fn claim(&self, pause: Option<Pause>) -> Claim {
        match &self.cluster {
            Cluster::Local(local) => local.claim(self.session, pause),
            Cluster::Redis(redis) => redis.claim(self.session, pause).await,
        }
    }

    /// The claimed call found the gate otherwise than it seemed.
    pub async fn unclaim(&self, call: CallId) {
        match &self.cluster {
            Cluster::Local(local) => local.unclaim(self.session),
            Cluster::Redis(redis) => redis.unclaim(self.session, call).await,
        }
    }

    /// Tells a call's waiters how far it is. A call that is over leaves the queue.
    pub async fn tell(&self, call: CallId, progress: Progress) {
        match &self.cluster {
            Cluster::Local(local) => local.tell(self.session, call, progress),
            Cluster::Redis(redis) => redis.tell(self.session, call, progress).await,
        }
    }

    /// Answers every call that waits.
    pub async fn refuse_all(&self, error: &RpcError) {
        match &self.cluster {
            Cluster::Local(local) => local.refuse_all(self.session, error),
            Cluster::Redis(redis) => redis.refuse_all(self.session, error).await,
        }
    }

    /// Answers every call that waits on this node: it cannot serve the session just now, another may.
    pub fn refuse_here(&self, error: &RpcError) {
        match &self.cluster {
            Cluster::Local(local) => local.refuse_all(self.session, error),
            Cluster::Redis(redis) => redis.refuse_here(self.session, error),
        }
    }

    /// Whether anybody waits.
    pub async fn wanted(&self) -> bool {
        match &self.cluster {
            Cluster::Local(local) => local.wanted(self.session),
            Cluster::Redis(redis) => redis.wanted(self.session).await,
        }
    }

    /// Returns when there may be something new to do.
    pub async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Gives the session up, unless somebody waits for it: then it is handed back.
    ///
    /// # Errors
    /// The lease, when there is a call to serve.
    pub async fn release(mut self) -> Result<(), Lease> {
        if !self.stop.is_cancelled() && !self.lost.is_cancelled() && self.wanted().await {
            return Err(self);
        }
        let successor = if self.lost.is_cancelled() { Successor::Nobody } else { Successor::Caller };
        self.let_go(successor);
        Ok(())
    }

    /// Gives the session up although somebody may wait for it, because this node takes no more: then another is told at once.
    pub fn pass_on(mut self) {
        self.let_go(Successor::Caller);
    }

    /// Gives the session up in the middle of a turn to another node, which is told at once.
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

/// Who should go on with a session that is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Successor {
    /// Whoever needs it.
    Nobody,
    /// A node whose client waits, if one came in the last moment.
    Caller,
    /// Another node, now: this one ends.
    Another,
}

impl Drop for Lease {
    /// An owner that panicked lets go, so that the session can be served again.
    fn drop(&mut self) {
        self.let_go(Successor::Nobody);
    }
}
