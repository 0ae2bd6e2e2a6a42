//! The backend for a single process. The queues in memory are the only ones, and a session that is needed gets an owner
//! in this process.
//!
//! All state is in the [`SessionTable`], and nothing here waits for anything but that table's lock, except `stop`,
//! which waits for the owner. [`Cluster`] and [`Lease`] call it.

use crate::cluster::queue::{Call, Claim, Rejected};
use crate::cluster::session_table::{LocalSession, SessionTable};
use crate::cluster::{Cluster, Lease, Member, Progress};
use crate::metrics::metrics;
use engine::gate::Pause;
use engine::ids::{CallId, KeyId, SessionId};
use engine::rpc::RpcError;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// The name of the only node, in lists of nodes and owners.
const ALONE: &str = "single";

/// The sessions that are waited for or served in this process.
#[derive(Clone)]
pub struct Local(Arc<SessionTable>);

impl Local {
    /// Begins with no sessions. At most `limit` calls wait in each. The receiver gets a lease for every session that
    /// has to be served.
    pub fn new(limit: usize) -> (Self, mpsc::UnboundedReceiver<Lease>) {
        let (wanted, leases) = mpsc::unbounded_channel();
        (Self(Arc::new(SessionTable::new(limit, wanted))), leases)
    }

    pub(crate) fn node(&self) -> &str {
        ALONE
    }

    pub(crate) fn member(&self) -> Member {
        Member { node: ALONE.to_owned(), draining: false, asked: true }
    }

    pub(crate) fn owner(&self, session: SessionId) -> Option<String> {
        self.0.with(session, |local| local.owned).unwrap_or(false).then(|| ALONE.to_owned())
    }

    pub(crate) fn enqueue(
        &self,
        session: SessionId,
        call: Call,
    ) -> Result<(CallId, watch::Receiver<Progress>), Rejected> {
        let accepted = self.0.accept(session, call)?;
        self.ensure_owner(session);
        Ok(accepted)
    }

    pub(crate) fn ensure_owner(&self, session: SessionId) {
        self.serve(session, self.0.lock().entry(session).or_insert_with(LocalSession::new));
    }

    pub(crate) fn follow(&self, session: SessionId, call: CallId) -> watch::Receiver<Progress> {
        let progress = self.0.follow(session, call);
        self.ensure_owner(session);
        progress
    }

    /// Wakes the owner. If there is none, asks for one by sending a lease.
    fn serve(&self, session: SessionId, local: &mut LocalSession) {
        if local.owned {
            local.wake.notify_one();
            return;
        }
        local.owned = true;
        metrics().lease_acquisitions.add(1, &[]);
        let (wake, stop, lost) = (Arc::clone(&local.wake), local.stop.clone(), local.lost.clone());
        let cluster = Cluster::Local(self.clone());
        self.0.want(Lease { session, wake, stop, lost, held: true, cluster });
    }

    pub(crate) fn wake(&self, session: SessionId) {
        self.0.with(session, |local| local.wake.notify_one());
    }

    pub(crate) fn drop_of(&self, key: KeyId, error: &RpcError) {
        self.0.drop_of(key, error);
    }

    pub(crate) async fn stop(&self, session: SessionId, error: &RpcError) {
        loop {
            let released = {
                let mut sessions = self.0.lock();
                let Some(local) = sessions.get_mut(&session) else { return };
                local.refuse_waiting(error);
                if !local.owned {
                    local.refuse_all(error);
                    sessions.remove(&session);
                    return;
                }
                local.stop.cancel();
                Arc::clone(&local.released).notified_owned()
            };
            released.await;
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.0.waiting()
    }

    pub(crate) fn owned(&self) -> usize {
        self.0.owned()
    }

    pub(crate) fn claim(&self, session: SessionId, pause: Option<Pause>) -> Claim {
        self.0.with(session, |local| local.queue.claim(pause)).unwrap_or(Claim::Wait)
    }

    pub(crate) fn unclaim(&self, session: SessionId) {
        self.0.with(session, |local| local.queue.unclaim());
    }

    pub(crate) fn tell(&self, session: SessionId, call: CallId, progress: Progress) {
        self.0.with(session, |local| {
            if !matches!(progress, Progress::Queued | Progress::Running) {
                local.queue.ended(call);
            }
            local.tell(call, progress);
        });
    }

    pub(crate) fn refuse_all(&self, session: SessionId, error: &RpcError) {
        self.0.with(session, |local| local.refuse_waiting(error));
    }

    pub(crate) fn wanted(&self, session: SessionId) -> bool {
        self.0.with(session, |local| !local.queue.is_empty()).unwrap_or(false)
    }

    pub(crate) fn let_go(&self, session: SessionId) {
        let mut sessions = self.0.lock();
        let Some(local) = sessions.get_mut(&session) else { return };
        local.owned = false;
        local.queue.give_up();
        local.released.notify_waiters();
        if local.stop.is_cancelled() {
            // The task that closes the session, in `stop`, answers those who still wait.
        } else if !local.queue.is_empty() {
            // A call was queued after the owner had looked at the queue for the last time.
            self.serve(session, local);
        } else if local.forgettable() {
            sessions.remove(&session);
        }
    }

    pub(crate) fn leave(&self, session: SessionId, call: CallId) {
        self.0.leave(session, call);
    }
}
