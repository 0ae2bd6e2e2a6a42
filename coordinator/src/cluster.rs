//! The cluster as one session sees it: who serves it, who waits, who is told. One interface over two backends, in one process
//! or through Redis; neither decides what is true, the database does.

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
use engine::ids::{CallId, KeyId, SessionId};
use engine::outcome::Outcome;
use engine::rpc::RpcError;
use lease::Successor;
use redis::Redis;
use tokio::sync::watch;

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
    pub async fn ensure_owner(&self, session: SessionId) {
        match self {
            Cluster::Local(local) => local.ensure_owner(session),
            Cluster::Redis(redis) => redis.ensure_owner(session).await,
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

    /// Opens a reader of a session's log and has other nodes tell this one from now on what they commit to it.
    ///
    /// # Errors
    /// `NotFound`; the database's.
    pub async fn open_reader(&self, log: &Log, session: SessionId) -> Result<(Reader, Row), Error> {
        let announced = async {
            if let Cluster::Redis(redis) = self {
                redis.watch(session).await;
            }
        };
        Reader::open(log, session, announced).await
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
    /// `CoordinationUnavailable` when Redis cannot be asked.
    pub async fn nodes(&self) -> Result<Vec<Member>, Error> {
        match self {
            Cluster::Local(local) => Ok(vec![local.member()]),
            Cluster::Redis(redis) => redis.nodes().await,
        }
    }

    /// The node that serves a session just now, if one does.
    ///
    /// # Errors
    /// `CoordinationUnavailable` when Redis cannot be asked.
    pub async fn owner(&self, session: SessionId) -> Result<Option<String>, Error> {
        match self {
            Cluster::Local(local) => Ok(local.owner(session)),
            Cluster::Redis(redis) => redis.owner(session).await,
        }
    }

    /// What an operator should know although the node works: why coordination is worse than it could be.
    pub async fn warnings(&self) -> Vec<String> {
        match self {
            Cluster::Local(_) => Vec::new(),
            Cluster::Redis(redis) => redis.warnings().await,
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
