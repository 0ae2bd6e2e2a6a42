//! The cluster of one process: its queues are the queues, and whoever asks first serves.

use crate::cluster::queue::{Call, Claim, Rejected};
use crate::cluster::session_table::{Desk, Slot};
use crate::cluster::{Cluster, Lease, Member, Progress};
use engine::gate::Pause;
use engine::ids::{CallId, KeyId, SessionId};
use engine::rpc::RpcError;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// The name of the only node.
const ALONE: &str = "single";

/// The process's sessions.
#[derive(Clone)]
pub struct Local(Arc<Desk>);

impl Local {
    /// No sessions yet; `limit` calls may wait in each. The receiver gets a lease for every session that has to be served.
    pub fn new(limit: usize) -> (Self, mpsc::UnboundedReceiver<Lease>) {
        let (wanted, leases) = mpsc::unbounded_channel();
        (Self(Arc::new(Desk::new(limit, wanted))), leases)
    }

    pub(crate) fn node(&self) -> &str {
        ALONE
    }

    pub(crate) fn member(&self) -> Member {
        Member { node: ALONE.to_owned(), draining: false, asked: true }
    }

    pub(crate) fn owner(&self, session: SessionId) -> Option<String> {
        self.0.with(session, |slot| slot.owned).unwrap_or(false).then(|| ALONE.to_owned())
    }

    pub(crate) fn enqueue(
        &self,
        session: SessionId,
        call: Call,
    ) -> Result<(CallId, watch::Receiver<Progress>), Rejected> {
        let accepted = self.0.accept(session, call)?;
        self.adopt(session);
        Ok(accepted)
    }

    pub(crate) fn adopt(&self, session: SessionId) {
        self.serve(session, self.0.lock().entry(session).or_insert_with(Slot::new));
    }

    pub(crate) fn follow(&self, session: SessionId, call: CallId) -> watch::Receiver<Progress> {
        let progress = self.0.follow(session, call);
        self.adopt(session);
        progress
    }

    /// Wakes the owner, or finds one.
    fn serve(&self, session: SessionId, slot: &mut Slot) {
        if slot.owned {
            slot.wake.notify_one();
            return;
        }
        slot.owned = true;
        let (wake, stop, lost) = (Arc::clone(&slot.wake), slot.stop.clone(), slot.lost.clone());
        let cluster = Cluster::Local(self.clone());
        self.0.want(Lease { session, wake, stop, lost, held: true, cluster });
    }

    pub(crate) fn wake(&self, session: SessionId) {
        self.0.with(session, |slot| slot.wake.notify_one());
    }

    pub(crate) fn drop_of(&self, key: KeyId, error: &RpcError) {
        self.0.drop_of(key, error);
    }

    pub(crate) async fn stop(&self, session: SessionId, error: &RpcError) {
        loop {
            let released = {
                let mut slots = self.0.lock();
                let Some(slot) = slots.get_mut(&session) else { return };
                slot.refuse_waiting(error);
                if !slot.owned {
                    slot.refuse_all(error);
                    slots.remove(&session);
                    return;
                }
                slot.stop.cancel();
                Arc::clone(&slot.released).notified_owned()
            };
            released.await;
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.0.waiting()
    }

    pub(crate) fn claim(&self, session: SessionId, pause: Option<Pause>) -> Claim {
        self.0.with(session, |slot| slot.queue.claim(pause)).unwrap_or(Claim::Wait)
    }

    pub(crate) fn unclaim(&self, session: SessionId) {
        self.0.with(session, |slot| slot.queue.unclaim());
    }

    pub(crate) fn tell(&self, session: SessionId, call: CallId, progress: Progress) {
        self.0.with(session, |slot| {
            if !matches!(progress, Progress::Queued | Progress::Running) {
                slot.queue.ended(call);
            }
            slot.tell(call, progress);
        });
    }

    pub(crate) fn refuse_all(&self, session: SessionId, error: &RpcError) {
        self.0.with(session, |slot| slot.refuse_waiting(error));
    }

    pub(crate) fn wanted(&self, session: SessionId) -> bool {
        self.0.with(session, |slot| !slot.queue.is_empty()).unwrap_or(false)
    }

    pub(crate) fn let_go(&self, session: SessionId) {
        let mut slots = self.0.lock();
        let Some(slot) = slots.get_mut(&session) else { return };
        slot.owned = false;
        slot.queue.give_up();
        slot.released.notify_waiters();
        if slot.stop.is_cancelled() {
            // Whoever closes the session answers who is left.
        } else if !slot.queue.is_empty() {
            // Calls came in between the owner's last look and now.
            self.serve(session, slot);
        } else if slot.forgettable() {
            slots.remove(&session);
        }
    }

    pub(crate) fn leave(&self, session: SessionId, call: CallId) {
        self.0.leave(session, call);
    }
}
