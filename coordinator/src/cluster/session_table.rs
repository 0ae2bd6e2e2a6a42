//! What this process keeps in memory of each session that it serves or whose callers wait here: the waiting calls,
//! whether a task of this process owns the session, and the channels that tell callers how far their calls are.
//!
//! Everything is behind one lock that is held for a few lookups and never across an `await`. Nothing that is lost with
//! the process is needed for correctness: the database knows which calls have started and which sessions are paused.
//! Without Redis the queues here are the only ones; with Redis they hold the calls that this node has accepted. The two
//! backends of the cluster, `Local` and `Redis`, are the callers.

use crate::cluster::queue::{Call, Queue, Rejected};
use crate::cluster::{Lease, Progress};
use engine::ids::{CallId, KeyId, SessionId};
use engine::rpc::RpcError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

/// What this process knows of one session.
pub(crate) struct LocalSession {
    pub queue: Queue,
    calls: HashMap<CallId, watch::Sender<Progress>>,
    /// Whether a task of this process serves the session.
    pub owned: bool,
    pub wake: Arc<Notify>,
    /// Cancelled when the session is closed, to stop its owner.
    pub stop: CancellationToken,
    /// Cancelled when another node owns the session.
    pub lost: CancellationToken,
    pub released: Arc<Notify>,
}

/// All sessions that somebody waits for or serves in this process.
pub(crate) struct SessionTable {
    sessions: Mutex<HashMap<SessionId, LocalSession>>,
    wanted: mpsc::UnboundedSender<Lease>,
    limit: usize,
}

impl SessionTable {
    pub(super) fn new(limit: usize, wanted: mpsc::UnboundedSender<Lease>) -> Self {
        Self { sessions: Mutex::default(), wanted, limit }
    }

    /// Locks the table. Poisoning is ignored: after a panic the table is still usable, and at worst some waiting
    /// clients time out.
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, LocalSession>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn with<T>(&self, session: SessionId, act: impl FnOnce(&mut LocalSession) -> T) -> Option<T> {
        self.lock().get_mut(&session).map(act)
    }

    /// Puts a call at the end of the session's queue, or joins the one with its idempotency key. Returns the call to
    /// wait for.
    pub(super) fn accept(
        &self,
        session: SessionId,
        call: Call,
    ) -> Result<(CallId, watch::Receiver<Progress>), Rejected> {
        let mut sessions = self.lock();
        let local = sessions.entry(session).or_insert_with(LocalSession::new);
        let accepted = local.queue.push(call, self.limit).map(|id| (id, local.subscribe(id, Progress::Queued)));
        if accepted.is_err() && local.forgettable() {
            sessions.remove(&session);
        }
        accepted
    }

    /// Waits for a call that has started.
    pub(super) fn follow(&self, session: SessionId, call: CallId) -> watch::Receiver<Progress> {
        self.lock().entry(session).or_insert_with(LocalSession::new).subscribe(call, Progress::Running)
    }

    /// A waiter has left. Returns whether its call was dropped, because nobody here waits for it any more.
    pub(super) fn leave(&self, session: SessionId, call: CallId) -> bool {
        let mut sessions = self.lock();
        let Some(local) = sessions.get_mut(&session) else { return false };
        let dropped = local.queue.leave(call);
        // The waiter that leaves still holds its own receiver, which counts as one.
        if local.calls.get(&call).is_some_and(|sender| sender.receiver_count() <= 1) {
            local.calls.remove(&call);
        }
        if local.forgettable() {
            sessions.remove(&session);
        }
        dropped
    }

    /// Sends a lease to the task that starts owners. May be called while the table is locked. Returns false when the
    /// node is shutting down and starts no more owners: then the lease is marked as not held, because dropping a held
    /// one would lock the table again.
    pub(super) fn want(&self, lease: Lease) -> bool {
        match self.wanted.send(lease) {
            Ok(()) => true,
            Err(mpsc::error::SendError(mut lease)) => {
                lease.held = false;
                false
            }
        }
    }

    /// Drops the waiting calls of a client key in every session, answers them with `error` and returns them.
    pub(super) fn drop_of(&self, key: KeyId, error: &RpcError) -> Vec<(SessionId, CallId)> {
        let mut dropped = Vec::new();
        for (session, local) in self.lock().iter_mut() {
            for call in local.queue.drop_of(key) {
                local.tell(call, Progress::Refused(error.clone()));
                dropped.push((*session, call));
            }
        }
        dropped
    }

    /// How many calls may wait in a session.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// All calls that wait here.
    pub(super) fn waiting_calls(&self) -> Vec<(SessionId, Call)> {
        let sessions = self.lock();
        let calls =
            sessions.iter().flat_map(|(session, local)| local.queue.waiting().map(|call| (*session, call.clone())));
        calls.collect()
    }

    /// Replaces `call`, which was accepted here, by `same`, an earlier call with the same idempotency key.
    pub(super) fn replace(
        &self,
        session: SessionId,
        call: CallId,
        same: Call,
    ) -> Result<watch::Receiver<Progress>, Rejected> {
        let mut sessions = self.lock();
        let local = sessions.entry(session).or_insert_with(LocalSession::new);
        local.queue.ended(call);
        local.calls.remove(&call);
        let id = local.queue.push(same, self.limit)?;
        Ok(local.subscribe(id, Progress::Queued))
    }

    /// How many sessions a task of this process serves.
    pub(super) fn owned(&self) -> usize {
        self.lock().values().filter(|local| local.owned).count()
    }

    /// How many calls wait, in all sessions together.
    pub(super) fn waiting(&self) -> usize {
        self.lock().values().map(|local| local.queue.len()).sum()
    }
}

impl LocalSession {
    pub(super) fn new() -> Self {
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

    pub(super) fn subscribe(&mut self, call: CallId, first: Progress) -> watch::Receiver<Progress> {
        self.calls.entry(call).or_insert_with(|| watch::Sender::new(first)).subscribe()
    }

    pub(super) fn tell(&mut self, call: CallId, progress: Progress) {
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

    /// Answers everybody who waits for a call, queued or started, with this error.
    pub(super) fn refuse_all(&mut self, error: &RpcError) {
        self.queue.drop_all();
        for (_, sender) in self.calls.drain() {
            sender.send_replace(Progress::Refused(error.clone()));
        }
    }

    /// Answers every call that is queued with this error and returns them.
    pub(super) fn refuse_waiting(&mut self, error: &RpcError) -> Vec<CallId> {
        let calls = self.queue.drop_all();
        for call in &calls {
            self.tell(*call, Progress::Refused(error.clone()));
        }
        calls
    }

    /// Whether this entry can be removed from the table, because nothing here needs it.
    pub(super) fn forgettable(&self) -> bool {
        !self.owned && self.queue.is_empty() && self.calls.is_empty()
    }
}
