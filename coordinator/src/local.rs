//! Ownership and queues within one process: who serves a session, who waits, who is told.
//!
//! Everything is behind one lock with tiny critical sections. What is lost with the process is only liveness: the database
//! knows which calls started and which pauses wait.

use crate::queue::{Call, Claim, Gate, Queue, Rejected};
use engine::ids::{CallId, KeyId, SessionId};
use engine::outcome::Outcome;
use engine::rpc::RpcError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc, watch};
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

struct Slot {
    queue: Queue,
    calls: HashMap<CallId, watch::Sender<Progress>>,
    owned: bool,
    wake: Arc<Notify>,
    stop: CancellationToken,
    released: Arc<Notify>,
}

struct Shared {
    slots: Mutex<HashMap<SessionId, Slot>>,
    wanted: mpsc::UnboundedSender<Lease>,
    limit: usize,
}

impl Shared {
    /// A panic inside the lock would leave a queue whose entries' clients time out; the state itself stays usable.
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process's sessions.
#[derive(Clone)]
pub struct Local(Arc<Shared>);

/// The right, and the duty, to serve one session until it is released. At any time there is at most one per session.
pub struct Lease {
    shared: Arc<Shared>,
    session: SessionId,
    wake: Arc<Notify>,
    /// Ends when the session is closed under its owner, or the node stops.
    pub stop: CancellationToken,
    held: bool,
}

/// A client's interest in a call. Dropping it is leaving.
pub struct Waiter {
    shared: Arc<Shared>,
    session: SessionId,
    call: CallId,
    progress: watch::Receiver<Progress>,
}

impl Local {
    /// No sessions yet; `limit` calls may wait in each. The receiver gets a lease for every session that has to be served.
    pub fn new(limit: usize) -> (Self, mpsc::UnboundedReceiver<Lease>) {
        let (wanted, leases) = mpsc::unbounded_channel();
        (Self(Arc::new(Shared { slots: Mutex::default(), wanted, limit })), leases)
    }

    /// Accepts a call: from here on it has its place. One with a known idempotency key joins the first.
    ///
    /// # Errors
    /// See [`Rejected`].
    pub fn enqueue(&self, session: SessionId, call: Call) -> Result<Waiter, Rejected> {
        let mut slots = self.0.lock();
        let slot = slots.entry(session).or_insert_with(Slot::new);
        let id = slot.queue.push(call, self.0.limit)?;
        let progress = slot.subscribe(id, Progress::Queued);
        slot.serve(&self.0, session);
        Ok(Waiter { shared: Arc::clone(&self.0), session, call: id, progress })
    }

    /// Has a session served although nobody waits: it has a call to carry on.
    pub fn adopt(&self, session: SessionId) {
        self.0.lock().entry(session).or_insert_with(Slot::new).serve(&self.0, session);
    }

    /// Follows a call that has started.
    pub fn follow(&self, session: SessionId, call: CallId) -> Waiter {
        let mut slots = self.0.lock();
        let slot = slots.entry(session).or_insert_with(Slot::new);
        let progress = slot.subscribe(call, Progress::Running);
        slot.serve(&self.0, session);
        Waiter { shared: Arc::clone(&self.0), session, call, progress }
    }

    /// Makes the owner look again: something it waits for has changed.
    pub fn wake(&self, session: SessionId) {
        if let Some(slot) = self.0.lock().get(&session) {
            slot.wake.notify_one();
        }
    }

    /// Drops the waiting calls of a client, in every session.
    pub fn drop_of(&self, key: KeyId, error: &RpcError) {
        for slot in self.0.lock().values_mut() {
            for call in slot.queue.drop_of(key) {
                slot.tell(call, Progress::Refused(error.clone()));
            }
        }
    }

    /// Stops serving a session and answers everybody who waits for it. Returns when its owner has let go.
    pub async fn stop(&self, session: SessionId, error: &RpcError) {
        loop {
            let released = {
                let mut slots = self.0.lock();
                let Some(slot) = slots.get_mut(&session) else { return };
                for call in slot.queue.drop_all() {
                    slot.tell(call, Progress::Refused(error.clone()));
                }
                if !slot.owned {
                    slot.refuse_rest(error);
                    slots.remove(&session);
                    return;
                }
                slot.stop.cancel();
                Arc::clone(&slot.released).notified_owned()
            };
            released.await;
        }
    }

    /// Calls that wait, in all sessions.
    pub fn waiting(&self) -> usize {
        self.0.lock().values().map(|slot| slot.queue.len()).sum()
    }
}

impl Slot {
    fn new() -> Self {
        Self {
            queue: Queue::default(),
            calls: HashMap::new(),
            owned: false,
            wake: Arc::default(),
            stop: CancellationToken::new(),
            released: Arc::default(),
        }
    }

    fn subscribe(&mut self, call: CallId, first: Progress) -> watch::Receiver<Progress> {
        self.calls.entry(call).or_insert_with(|| watch::Sender::new(first)).subscribe()
    }

    fn serve(&mut self, shared: &Arc<Shared>, session: SessionId) {
        if self.owned {
            self.wake.notify_one();
            return;
        }
        self.owned = true;
        let (wake, stop) = (Arc::clone(&self.wake), self.stop.clone());
        let lease = Lease { shared: Arc::clone(shared), session, wake, stop, held: true };
        if let Err(mpsc::error::SendError(mut lease)) = shared.wanted.send(lease) {
            // The node is shutting down and takes no more; what it does not serve waits in the database. Nothing is let go
            // here: the lock is held.
            lease.held = false;
        }
    }

    fn tell(&mut self, call: CallId, progress: Progress) {
        match progress {
            Progress::Queued | Progress::Running => {
                if let Some(sender) = self.calls.get(&call) {
                    sender.send_replace(progress);
                }
            }
            Progress::Ended(..) | Progress::Refused(_) | Progress::Follow(_) => {
                if let Some(sender) = self.calls.remove(&call) {
                    sender.send_replace(progress);
                }
            }
        }
    }

    fn refuse_rest(&mut self, error: &RpcError) {
        for (_, sender) in self.calls.drain() {
            sender.send_replace(Progress::Refused(error.clone()));
        }
    }

    fn idle(&self) -> bool {
        self.queue.is_empty()
    }
}

impl Lease {
    /// The session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    fn with<T>(&self, act: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        self.shared.lock().get_mut(&self.session).map(act)
    }

    /// Takes the call that goes next.
    pub fn claim(&self, gate: Gate) -> Claim {
        self.with(|slot| slot.queue.claim(gate)).unwrap_or(Claim::Wait)
    }

    /// The claimed call found the gate otherwise than it seemed.
    pub fn unclaim(&self) {
        self.with(|slot| slot.queue.unclaim());
    }

    /// Tells a call's waiters how far it is. A call that is over leaves the queue.
    pub fn tell(&self, call: CallId, progress: Progress) {
        self.with(|slot| {
            if !matches!(progress, Progress::Queued | Progress::Running) {
                slot.queue.ended();
            }
            slot.tell(call, progress);
        });
    }

    /// Answers a waiting call that [`Claim::Refuse`] has taken out.
    pub fn refuse(&self, call: CallId, error: RpcError) {
        self.with(|slot| slot.tell(call, Progress::Refused(error)));
    }

    /// Answers every call that waits.
    pub fn refuse_all(&self, error: &RpcError) {
        self.with(|slot| {
            for call in slot.queue.drop_all() {
                slot.tell(call, Progress::Refused(error.clone()));
            }
        });
    }

    /// Whether anybody waits.
    pub fn wanted(&self) -> bool {
        self.with(|slot| !slot.idle()).unwrap_or(false)
    }

    /// Returns when there may be something new to do.
    pub async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Gives the session up, unless somebody waits for it: then it is handed back.
    ///
    /// # Errors
    /// The lease, when there is a call to serve.
    pub fn release(mut self) -> Result<(), Lease> {
        let busy = self.with(|slot| !slot.idle()).unwrap_or(false);
        if busy && !self.stop.is_cancelled() {
            return Err(self);
        }
        self.let_go();
        Ok(())
    }

    fn let_go(&mut self) {
        if !std::mem::take(&mut self.held) {
            return;
        }
        let mut slots = self.shared.lock();
        if let Some(slot) = slots.get_mut(&self.session) {
            slot.owned = false;
            slot.queue.ended();
            slot.released.notify_waiters();
            if !slot.idle() && !slot.stop.is_cancelled() {
                // Calls came in between the owner's last look and now.
                slot.serve(&self.shared, self.session);
            } else if slot.idle() && slot.calls.is_empty() && !slot.stop.is_cancelled() {
                slots.remove(&self.session);
            }
        }
    }
}

impl Drop for Lease {
    /// An owner that panicked lets go, so that the session can be served again.
    fn drop(&mut self) {
        self.let_go();
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

    /// Waits for news. Ends at once when the process forgot the call; the database knows it then.
    pub async fn changed(&mut self) -> bool {
        self.progress.changed().await.is_ok()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut slots = self.shared.lock();
        let Some(slot) = slots.get_mut(&self.session) else { return };
        if slot.queue.leave(self.call) {
            slot.calls.remove(&self.call);
        }
        if !slot.owned && slot.idle() && slot.calls.values().all(|sender| sender.receiver_count() <= 1) {
            slots.remove(&self.session);
        }
    }
}
