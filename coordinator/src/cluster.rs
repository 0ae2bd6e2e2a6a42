//! The cluster as one session sees it: who serves it, who waits, who is told. One interface over two backends, in one process
//! or through Redis; neither decides what is true, the database does.

mod local;
mod queue;
pub mod redis;
mod session_table;

pub use local::Local;
pub use queue::{Call, Claim, Rejected};

use crate::Error;
use engine::gate::Pause;
use engine::ids::{CallId, KeyId, SessionId};
use engine::outcome::Outcome;
use engine::rpc::RpcError;
use redis::Redis;
use std::sync::Arc;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// How far a call is.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// It waits for the gate.
    Queued,
    /// It has started: its events are in the log.
    Running,
    /// It is over: its last event's number, and what to tell its callers.
    Ended(u64, Outcome),
    /// It recorded nothing; the error to answer.
    Refused(RpcError),
    /// Another call with its idempotency key was faster.
    Follow(CallId),
}

/// What other nodes tell a whole node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// A client key was revoked.
    Revoked(KeyId),
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Unique for each start of a process.
    pub node: String,
    /// Whether it takes no more sessions.
    pub draining: bool,
    /// Whether it is the one that was asked.
    pub asked: bool,
}

/// The backend.
#[derive(Clone)]
pub enum Cluster {
    /// This process is the cluster.
    Local(Local),
    /// Nodes find each other through Redis.
    Redis(Redis),
}

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

/// A client's interest in a call. Dropping it is leaving.
pub struct Waiter {
    session: SessionId,
    call: CallId,
    progress: watch::Receiver<Progress>,
    cluster: Cluster,
}

impl Cluster {
    fn waiter(&self, session: SessionId, call: CallId, progress: watch::Receiver<Progress>) -> Waiter {
        Waiter { session, call, progress, cluster: self.clone() }
    }

    /// What this node is called in lists of nodes and owners.
    pub fn node(&self) -> &str {
        match self {
            Cluster::Local(local) => local.node(),
            Cluster::Redis(redis) => redis.node(),
        }
    }

    /// Whether the node has made itself known.
    pub fn has_joined(&self) -> bool {
        match self {
            Cluster::Local(_) => true,
            Cluster::Redis(redis) => redis.has_joined(),
        }
    }

    /// Whether other nodes can serve what this one has accepted.
    pub fn is_shared(&self) -> bool {
        matches!(self, Cluster::Redis(_))
    }

    /// Accepts a call: from here on it has its place. One with a known idempotency key joins the first.
    ///
    /// # Errors
    /// See [`Rejected`].
    pub async fn enqueue(&self, session: SessionId, call: Call) -> Result<Waiter, Rejected> {
        match self {
            Cluster::Local(local) => {
                let (call, progress) = local.enqueue(session, call)?;
                Ok(self.waiter(session, call, progress))
            }
            Cluster::Redis(redis) => {
                let (accepted, progress) = redis.accept(session, call.clone())?;
                // From here on leaving is noticed, wherever this future is dropped.
                let waiter = self.waiter(session, accepted, progress);
                // One that joins a call which is only being queued asks for itself: the first may be turned away, or leave.
                if accepted != call.id && redis.placed(accepted) {
                    return Ok(waiter);
                }
                let call = Call { id: accepted, ..call };
                match redis.enqueue(session, &call).await? {
                    None => Ok(waiter),
                    Some(first) => Ok(self.waiter(session, first.0, redis.join(session, &call, first))),
                }
            }
        }
    }

    /// Has a session served although nobody waits here: it has a call to carry on.
    pub async fn adopt(&self, session: SessionId) {
        match self {
            Cluster::Local(local) => local.adopt(session),
            Cluster::Redis(redis) => redis.adopt(session).await,
        }
    }

    /// Follows a call that has started.
    pub fn follow(&self, session: SessionId, call: CallId) -> Waiter {
        let progress = match self {
            Cluster::Local(local) => local.follow(session, call),
            Cluster::Redis(redis) => redis.follow(session, call),
        };
        self.waiter(session, call, progress)
    }

    /// Makes the owner look again: something it waits for has changed.
    pub async fn wake(&self, session: SessionId) {
        match self {
            Cluster::Local(local) => local.wake(session),
            Cluster::Redis(redis) => redis.wake(session).await,
        }
    }

    /// A client key was revoked: its waiting calls are dropped, here at once and on every node; each gets the signal.
    pub async fn revoked(&self, key: KeyId, error: &RpcError) {
        match self {
            Cluster::Local(local) => local.drop_of(key, error),
            Cluster::Redis(redis) => redis.revoked(key, error).await,
        }
    }

    /// What a signal of another node asks of the queues here.
    pub fn forget(&self, key: KeyId, error: &RpcError) {
        match self {
            Cluster::Local(local) => local.drop_of(key, error),
            Cluster::Redis(redis) => redis.forget(key, error),
        }
    }

    /// Ends all subscriptions of a session on other nodes.
    pub fn cut(&self, session: SessionId) {
        if let Cluster::Redis(redis) = self {
            redis.cut(session);
        }
    }

    /// Stops serving a session, wherever it is served, and answers everybody who waits for it. Returns when its owner has
    /// let go.
    pub async fn stop(&self, session: SessionId, error: &RpcError) {
        match self {
            Cluster::Local(local) => local.stop(session, error).await,
            Cluster::Redis(redis) => redis.stop(session, error).await,
        }
    }

    /// The living nodes and what each says of itself.
    ///
    /// # Errors
    /// `Away` when Redis cannot be asked.
    pub async fn nodes(&self) -> Result<Vec<Member>, Error> {
        match self {
            Cluster::Local(local) => Ok(vec![local.member()]),
            Cluster::Redis(redis) => redis.nodes().await,
        }
    }

    /// The node that serves a session just now, if one does.
    ///
    /// # Errors
    /// `Away` when Redis cannot be asked.
    pub async fn owner(&self, session: SessionId) -> Result<Option<String>, Error> {
        match self {
            Cluster::Local(local) => Ok(local.owner(session)),
            Cluster::Redis(redis) => redis.owner(session).await,
        }
    }

    /// What an operator should know although the node works: why coordination is worse than it could be.
    pub async fn complaints(&self) -> Vec<String> {
        match self {
            Cluster::Local(_) => Vec::new(),
            Cluster::Redis(redis) => redis.complaints().await,
        }
    }

    /// Takes no more sessions; what is given up from now on is offered to other nodes.
    pub fn drain(&self) {
        if let Cluster::Redis(redis) = self {
            redis.drain();
        }
    }

    /// Calls accepted by this node that wait.
    pub fn waiting(&self) -> usize {
        match self {
            Cluster::Local(local) => local.waiting(),
            Cluster::Redis(redis) => redis.waiting(),
        }
    }
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

impl Waiter {
    /// The call that is waited for: the first one with the idempotency key.
    pub fn call(&self) -> CallId {
        self.call
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.progress.borrow().clone()
    }

    /// Waits for news. False when the process forgot the call; the database knows it then.
    pub async fn changed(&mut self) -> bool {
        self.progress.changed().await.is_ok()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        match &self.cluster {
            Cluster::Local(local) => local.leave(self.session, self.call),
            Cluster::Redis(redis) => redis.leave(self.session, self.call),
        }
    }
}
