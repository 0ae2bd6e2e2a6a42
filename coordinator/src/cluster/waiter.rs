//! A caller that waits for a call. The HTTP request that made the call holds it.
//!
//! Dropping the waiter leaves the queue: a call that nobody waits for and that was not claimed never starts. A call
//! that was claimed runs on.

use super::{Cluster, Progress};
use engine::ids::{CallId, SessionId};
use tokio::sync::watch;

/// A caller that waits for a call. Dropping it means that the caller has left.
pub struct Waiter {
    pub(super) session: SessionId,
    pub(super) call: CallId,
    pub(super) progress: watch::Receiver<Progress>,
    pub(super) cluster: Cluster,
}

impl Waiter {
    /// The call that is waited for. It may be an earlier one with the same idempotency key.
    pub fn call(&self) -> CallId {
        self.call
    }

    /// How far the call is now.
    pub fn progress(&self) -> Progress {
        self.progress.borrow().clone()
    }

    /// Waits until the progress changes. Returns false when this process has forgotten the call; the database knows
    /// then how it ended.
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
