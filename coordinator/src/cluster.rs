//! Which node serves a session, which calls wait for it, and who is told how far they are.
//!
//! [`Cluster`] is one interface over two backends: [`Local`] for a single process and [`Redis`] for several nodes.
//! Neither decides what is true. The database does, by the epoch of each session (ARCHITECTURE.md, I1), so that a
//! backend that loses all it knows costs time and never an event.
//!
//! The handlers of the `node` crate queue calls here and follow them through a [`Waiter`]. The task that owns a session
//! serves it through its [`Lease`].

mod lease;
mod local;
mod queue;
pub mod redis;
mod session_table;
mod waiter;

pub use lease::Lease;
pub use local::Local;
pub use queue::{Call, Claim, Rejected};
pub use waiter::Waiter;

use crate::Error;
use crate::log::{Log, Row};
use crate::reader::Reader;
use engine::event::EventNumber;
use engine::ids::{CallId, KeyId, SessionId};
use engine::outcome::Outcome;
use engine::rpc::RpcError;
use lease::Successor;
use redis::Redis;
use tokio::sync::watch;

/// How far a call has come.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// It waits for the gate.
    Queued,
    /// It has started: its events are in the log.
    Running,
    /// It has ended: the number of its last event, and what to tell its callers.
    Ended(EventNumber, Outcome),
    /// It recorded nothing in the log. Its callers are answered with this error.
    Refused(RpcError),
    /// Another call with the same idempotency key was recorded first. Its callers follow that one.
    Follow(CallId),
}

/// What another node tells this one about more than a single session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// A client key was revoked on another node.
    Revoked(KeyId),
}

/// A node of the cluster, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Unique for each start of a process.
    pub node: String,
    /// Whether it is shutting down and takes no more sessions.
    pub draining: bool,
    /// Whether it is the node that answers the question.
    pub asked: bool,
}

/// The way in which this node works with others.
#[derive(Clone)]
pub enum Cluster {
    /// This process is the cluster.
    Local(Local),
    /// Nodes find each other through Redis.
    Redis(Redis),
}

impl Cluster {
    fn waiter(&self, session: SessionId, call: CallId, progress: watch::Receiver<Progress>) -> Waiter {
        Waiter { session, call, progress, cluster: self.clone() }
    }

    /// The name of this node in lists of nodes and owners.
    pub fn node(&self) -> &str {
        match self {
            Cluster::Local(local) => local.node(),
            Cluster::Redis(redis) => redis.node(),
        }
    }

    /// Whether the node has announced itself to the others. With Redis that is so after the first heartbeat was sent,
    /// even if it did not arrive. A single process has nobody to announce itself to.
    pub fn has_joined(&self) -> bool {
        match self {
            Cluster::Local(_) => true,
            Cluster::Redis(redis) => redis.has_joined(),
        }
    }

    /// Whether other nodes can serve a call that this one has accepted.
    pub fn is_shared(&self) -> bool {
        matches!(self, Cluster::Redis(_))
    }

    /// Accepts a call: when this returns, it has its place in the session's queue. A call with the idempotency key of
    /// one that waits or runs joins that one. A session that nobody serves gets an owner.
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
                // The waiter exists before Redis is asked: a caller that leaves meanwhile drops it with this future,
                // and so leaves the queue.
                let waiter = self.waiter(session, accepted, progress);
                // The call that this one joins may still be on its way to Redis. Its caller may leave, or Redis may
                // refuse it, so this caller then asks for the place as well.
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

    /// Makes sure that nodes serve these sessions although no caller waits: each has an unfinished call in its log. Nodes
    /// that live share those that have no owner.
    pub async fn adopt(&self, sessions: &[SessionId]) {
        match self {
            Cluster::Local(local) => sessions.iter().for_each(|session| local.ensure_owner(*session)),
            Cluster::Redis(redis) => redis.adopt(sessions).await,
        }
    }

    /// Makes sure that the session has an owner: this node, unless another one serves it.
    pub async fn ensure_owner(&self, session: SessionId) {
        match self {
            Cluster::Local(local) => local.ensure_owner(session),
            Cluster::Redis(redis) => redis.ensure_owner(session).await,
        }
    }

    /// Waits for a call that has started, which the database knows.
    pub fn follow(&self, session: SessionId, call: CallId) -> Waiter {
        let progress = match self {
            Cluster::Local(local) => local.follow(session, call),
            Cluster::Redis(redis) => redis.follow(session, call),
        };
        self.waiter(session, call, progress)
    }

    /// Makes the session's owner check again what it can do, because something that it waits for has changed.
    pub async fn wake(&self, session: SessionId) {
        match self {
            Cluster::Local(local) => local.wake(session),
            Cluster::Redis(redis) => redis.wake(session).await,
        }
    }

    /// Drops the waiting calls of a client key that was revoked on this node and answers them with `error`. The other
    /// nodes get [`Signal::Revoked`] and do the same.
    pub async fn revoked(&self, key: KeyId, error: &RpcError) {
        match self {
            Cluster::Local(local) => local.drop_of(key, error),
            Cluster::Redis(redis) => redis.revoked(key, error).await,
        }
    }

    /// Drops the calls of a client key that wait on this node, because another node says that the key was revoked.
    pub fn forget(&self, key: KeyId, error: &RpcError) {
        match self {
            Cluster::Local(local) => local.drop_of(key, error),
            Cluster::Redis(redis) => redis.forget(key, error),
        }
    }

    /// Opens a reader of a session's log. From now on other nodes tell this one what they commit to that session.
    ///
    /// # Errors
    /// `NotFound` when there is no such session, and any error of the database.
    pub async fn open_reader(&self, log: &Log, session: SessionId) -> Result<(Reader, Row), Error> {
        let announced = async {
            if let Cluster::Redis(redis) = self {
                redis.watch(session).await;
            }
        };
        Reader::open(log, session, announced).await
    }

    /// Ends all subscriptions to a session on the other nodes.
    pub fn cut(&self, session: SessionId) {
        if let Cluster::Redis(redis) = self {
            redis.cut(session);
        }
    }

    /// Stops serving a session, wherever it is served, and answers everybody who waits for it with `error`. Returns
    /// when no owner serves it any more.
    pub async fn stop(&self, session: SessionId, error: &RpcError) {
        match self {
            Cluster::Local(local) => local.stop(session, error).await,
            Cluster::Redis(redis) => redis.stop(session, error).await,
        }
    }

    /// The living nodes, and what each says of itself.
    ///
    /// # Errors
    /// `CoordinationUnavailable` when Redis cannot be asked.
    pub async fn nodes(&self) -> Result<Vec<Member>, Error> {
        match self {
            Cluster::Local(local) => Ok(vec![local.member()]),
            Cluster::Redis(redis) => redis.nodes().await,
        }
    }

    /// The node that serves a session at this moment, if one does.
    ///
    /// # Errors
    /// `CoordinationUnavailable` when Redis cannot be asked.
    pub async fn owner(&self, session: SessionId) -> Result<Option<String>, Error> {
        match self {
            Cluster::Local(local) => Ok(local.owner(session)),
            Cluster::Redis(redis) => redis.owner(session).await,
        }
    }

    /// For operators: what is wrong with the coordination between nodes although this node works. Empty when all is
    /// well.
    pub async fn warnings(&self) -> Vec<String> {
        match self {
            Cluster::Local(_) => Vec::new(),
            Cluster::Redis(redis) => redis.warnings().await,
        }
    }

    /// From now on this node takes no more sessions and offers those that it gives up to other nodes. A single process
    /// has nobody to offer them to.
    pub fn drain(&self) {
        if let Cluster::Redis(redis) = self {
            redis.drain();
        }
    }

    /// How many sessions this node owns.
    pub fn owned(&self) -> usize {
        match self {
            Cluster::Local(local) => local.owned(),
            Cluster::Redis(redis) => redis.owned(),
        }
    }

    /// Whether Redis answers. None for a single process, which has none.
    pub fn redis_up(&self) -> Option<bool> {
        match self {
            Cluster::Local(_) => None,
            Cluster::Redis(redis) => Some(redis.up()),
        }
    }

    /// How many calls that this node has accepted still wait.
    pub fn waiting(&self) -> usize {
        match self {
            Cluster::Local(local) => local.waiting(),
            Cluster::Redis(redis) => redis.waiting(),
        }
    }
}
