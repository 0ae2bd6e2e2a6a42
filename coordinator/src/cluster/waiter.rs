//! A client's interest in a call, held by the request that made it. Dropping it leaves the queue: a call that nobody waits for
//! and that has not been claimed never starts.

use super::{Cluster, Progress};
use engine::ids::{CallId, SessionId};
use tokio::sync::watch;

/// A client's interest in a call. Dropping it is leaving.
pub struct Waiter {
    pub(super) session: SessionId,
    pub(super) call: CallId,
    pub(super) progress: watch::Receiver<Progress>,
    pub(super) cluster: Cluster,
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

    /// Waits until it changes. False when the process forgot the call; the database knows it then.
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
