//! What one process knows of the sessions it serves or whose callers it holds: who waits here, who owns here, who is told.
//!
//! Everything is behind one lock with tiny critical sections. What is lost with the process is only liveness: the database
//! knows which calls started and which pauses wait. In a cluster of one the queue here is the queue; with Redis it holds the
//! calls that this node has accepted.

use crate::cluster::queue::{Call, Queue, Rejected};
use crate::cluster::{Lease, Progress};
use engine::ids::{CallId, KeyId, SessionId};
use engine::rpc::RpcError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

/// One session's part.
pub(crate) struct Slot {
    pub queue: Queue,
    calls: HashMap<CallId, watch::Sender<Progress>>,
    /// A task of this process serves the session.
    pub owned: bool,
    pub wake: Arc<Notify>,
    /// The session is being closed under its owner.
    pub stop: CancellationToken,
    /// Another node owns the session now.
    pub lost: CancellationToken,
    pub released: Arc<Notify>,
}

/// All of them.
pub(crate) struct Desk {
    slots: Mutex<HashMap<SessionId, Slot>>,
    wanted: mpsc::UnboundedSender<Lease>,
    limit: usize,
}

impl Desk {
    pub fn new(limit: usize, wanted: mpsc::UnboundedSender<Lease>) -> Self {
        Self { slots: Mutex::default(), wanted, limit }
    }

    /// A panic inside the lock would leave a queue whose entries' clients time out; the state itself stays usable.
    pub fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn with<T>(&self, session: SessionId, act: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        self.lock().get_mut(&session).map(act)
    }

    /// Gives a call its place here, or joins the one with its idempotency key. Says which call to wait for.
    pub fn accept(&self, session: SessionId, call: Call) -> Result<(CallId, watch::Receiver<Progress>), Rejected> {
        let mut slots = self.lock();
        let slot = slots.entry(session).or_insert_with(Slot::new);
        let accepted = slot.queue.push(call, self.limit).map(|id| (id, slot.subscribe(id, Progress::Queued)));
        if accepted.is_err() && slot.forgettable() {
            slots.remove(&session);
        }
        accepted
    }

    /// Follows a call that has started.
    pub fn follow(&self, session: SessionId, call: CallId) -> watch::Receiver<Progress> {
        self.lock().entry(session).or_insert_with(Slot::new).subscribe(call, Progress::Running)
    }

    /// A waiter has gone. Says whether its call waits no more for anybody here.
    pub fn leave(&self, session: SessionId, call: CallId) -> bool {
        let mut slots = self.lock();
        let Some(slot) = slots.get_mut(&session) else { return false };
        let dropped = slot.queue.leave(call);
        // The waiter that leaves still holds its receiver.
        if slot.calls.get(&call).is_some_and(|sender| sender.receiver_count() <= 1) {
            slot.calls.remove(&call);
        }
        if slot.forgettable() {
            slots.remove(&session);
        }
        dropped
    }

    /// Hands a lease to whoever serves. May be called under the lock. False when the node is shutting down and takes no more:
    /// nothing is let go here, because the lock may be held.
    pub fn want(&self, lease: Lease) -> bool {
        match self.wanted.send(lease) {
            Ok(()) => true,
            Err(mpsc::error::SendError(mut lease)) => {
                lease.held = false;
                false
            }
        }
    }

    /// Drops the waiting calls of a client, in every session, and tells their waiters.
    pub fn drop_of(&self, key: KeyId, error: &RpcError) -> Vec<(SessionId, CallId)> {
        let mut dropped = Vec::new();
        for (session, slot) in self.lock().iter_mut() {
            for call in slot.queue.drop_of(key) {
                slot.tell(call, Progress::Refused(error.clone()));
                dropped.push((*session, call));
            }
        }
        dropped
    }

    /// How many calls may wait in a session.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The calls that wait here.
    pub fn waiting_calls(&self) -> Vec<(SessionId, Call)> {
        let slots = self.lock();
        let calls = slots.iter().flat_map(|(session, slot)| slot.queue.waiting().map(|call| (*session, call.clone())));
        calls.collect()
    }

    /// Waits for `same` in place of a call that was accepted here.
    pub fn replace(&self, session: SessionId, call: CallId, same: Call) -> Result<watch::Receiver<Progress>, Rejected> {
        let mut slots = self.lock();
        let slot = slots.entry(session).or_insert_with(Slot::new);
        slot.queue.ended(call);
        slot.calls.remove(&call);
        let id = slot.queue.push(same, self.limit)?;
        Ok(slot.subscribe(id, Progress::Queued))
    }

    /// Calls that wait, in all sessions.
    pub fn waiting(&self) -> usize {
        self.lock().values().map(|slot| slot.queue.len()).sum()
    }
}

impl Slot {
    pub fn new() -> Self {
        Self {
            queue: Queue::default(),
            calls: HashMap::new(),
            owned: false,
            wake: Arc::default(),
            stop: CancellationToken::new(),
            lost: CancellationToken::new(),
            released: Arc::default(),
        }
    }

    pub fn subscribe(&mut self, call: CallId, first: Progress) -> watch::Receiver<Progress> {
        self.calls.entry(call).or_insert_with(|| watch::Sender::new(first)).subscribe()
    }

    pub fn tell(&mut self, call: CallId, progress: Progress) {
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

    /// Answers everybody who waits for or follows a call.
    pub fn refuse_all(&mut self, error: &RpcError) {
        self.queue.drop_all();
        for (_, sender) in self.calls.drain() {
            sender.send_replace(Progress::Refused(error.clone()));
        }
    }

    /// Answers every call that waits; says which did.
    pub fn refuse_waiting(&mut self, error: &RpcError) -> Vec<CallId> {
        let calls = self.queue.drop_all();
        for call in &calls {
            self.tell(*call, Progress::Refused(error.clone()));
        }
        calls
    }

    /// Whether nothing here needs the slot.
    pub fn forgettable(&self) -> bool {
        !self.owned && self.queue.is_empty() && self.calls.is_empty()
    }
}
