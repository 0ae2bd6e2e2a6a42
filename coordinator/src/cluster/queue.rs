//! The queue of one session: which calls wait for the gate, in which order, and which one runs next.
//!
//! This is a plain data structure without I/O or locks; the session table holds it behind its lock. So claiming a call
//! and leaving one exclude each other: a call is either dropped, and then never starts, or claimed, and then runs to
//! its end even if nobody listens any more (docs/api.md 3.3). With Redis the order of the cluster is kept by scripts
//! that follow the same rules (`cluster/redis/scripts.rs`), and this queue holds only the calls that this node has
//! accepted.

use engine::gate::Pause;
use engine::ids::{CallId, KeyId};
use engine::turn::Opening;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A call that waits for the gate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Call {
    /// Its id, which is the same on every node and in the log.
    pub id: CallId,
    /// The client key of its caller.
    pub key: KeyId,
    /// What it asks for: a message or a compaction.
    pub opening: Opening,
    /// Its idempotency key and the digest of its params.
    pub idempotency: Option<(String, [u8; 32])>,
    /// The caller's `traceparent` header.
    pub traceparent: Option<String>,
}

/// What an owner does next.
#[derive(Debug)]
pub enum Claim {
    /// Run this call.
    Run(Call),
    /// Tell the callers of these compactions that a turn is in progress, because a pause keeps the gate.
    Refuse(Vec<CallId>),
    /// No waiting call can run now.
    Wait,
}

#[derive(Debug)]
struct Entry {
    call: Call,
    waiters: usize,
}

/// Why a call was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    /// As many calls wait for the session as may.
    Full,
    /// A call with the same idempotency key has other params.
    OtherParams,
    /// Redis could not be reached for too long.
    CoordinationUnavailable,
}

/// The calls of one session that wait, in the order in which they came, and the one that runs.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Entry>,
    /// The call that was claimed and has not ended.
    running: Option<Entry>,
}

impl Queue {
    /// Adds a call at the end. A call with the idempotency key of one that is here joins that one. Returns the call to
    /// wait for.
    ///
    /// # Errors
    /// See [`Rejected`].
    pub(super) fn push(&mut self, call: Call, limit: usize) -> Result<CallId, Rejected> {
        if let Some(same) = self.same(&call) {
            return same;
        }
        if self.waiting.len() >= limit {
            return Err(Rejected::Full);
        }
        let id = call.id;
        self.waiting.push_back(Entry { call, waiters: 1 });
        Ok(id)
    }

    fn same(&mut self, call: &Call) -> Option<Result<CallId, Rejected>> {
        let (name, digest) = call.idempotency.as_ref()?;
        let is_same = |other: &Call| {
            other.key == call.key && other.idempotency.as_ref().is_some_and(|(other_name, _)| other_name == name)
        };
        let digest_of = |other: &Call| other.idempotency.as_ref().map(|(_, digest)| *digest);
        let verdict =
            |other: &Call| if digest_of(other) == Some(*digest) { Ok(other.id) } else { Err(Rejected::OtherParams) };
        let entry = self.running.iter_mut().chain(&mut self.waiting).find(|entry| is_same(&entry.call))?;
        let verdict = verdict(&entry.call);
        if verdict.is_ok() {
            entry.waiters += 1;
        }
        Some(verdict)
    }

    /// One waiter of a call has left. A call without waiters that was not claimed is dropped; returns whether it was.
    pub(super) fn leave(&mut self, call: CallId) -> bool {
        if let Some(running) = self.running.as_mut().filter(|entry| entry.call.id == call) {
            running.waiters = running.waiters.saturating_sub(1);
            return false;
        }
        let Some(place) = self.waiting.iter().position(|entry| entry.call.id == call) else { return false };
        let entry = &mut self.waiting[place];
        entry.waiters = entry.waiters.saturating_sub(1);
        let last = entry.waiters == 0;
        if last {
            self.waiting.remove(place);
        }
        last
    }

    /// Takes the call that runs next. While a pause keeps the gate, only a message of its owner can run and every
    /// compaction is refused. After it has expired, a message of its owner still goes before all others.
    pub(super) fn claim(&mut self, pause: Option<Pause>) -> Claim {
        let place = match pause {
            None => (!self.waiting.is_empty()).then_some(0),
            Some(pause) if pause.expired() => {
                self.first_of(pause.owner).or_else(|| (!self.waiting.is_empty()).then_some(0))
            }
            Some(Pause { owner, .. }) => {
                let compacts = self.drop_where(|call| matches!(call.opening, Opening::Compact(_)));
                if !compacts.is_empty() {
                    return Claim::Refuse(compacts);
                }
                self.first_of(owner)
            }
        };
        let Some(entry) = place.and_then(|place| self.waiting.remove(place)) else { return Claim::Wait };
        let call = entry.call.clone();
        self.running = Some(entry);
        Claim::Run(call)
    }

    /// The claimed call recorded nothing, because the gate was not as the claim assumed. It is the first in the queue
    /// again, or is dropped if nobody waits for it any more. Returns whether it was dropped.
    pub(super) fn unclaim(&mut self) -> bool {
        let Some(entry) = self.running.take() else { return false };
        let dropped = entry.waiters == 0;
        if !dropped {
            self.waiting.push_front(entry);
        }
        dropped
    }

    /// Removes a call that has ended or was refused, whether it was claimed or still waited.
    pub(super) fn ended(&mut self, call: CallId) {
        self.running.take_if(|entry| entry.call.id == call);
        self.waiting.retain(|entry| entry.call.id != call);
    }

    /// The owner that served the claimed call has given the session up.
    pub(super) fn give_up(&mut self) {
        self.running = None;
    }

    /// The calls that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Call> {
        self.waiting.iter().map(|entry| &entry.call)
    }

    /// Drops the waiting calls of a client key and returns their ids.
    pub(super) fn drop_of(&mut self, key: KeyId) -> Vec<CallId> {
        self.drop_where(|call| call.key == key)
    }

    /// Drops all waiting calls and returns their ids.
    pub(super) fn drop_all(&mut self) -> Vec<CallId> {
        self.drop_where(|_| true)
    }

    /// Whether no call waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many calls wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    fn first_of(&self, owner: KeyId) -> Option<usize> {
        self.waiting.iter().position(|e| e.call.key == owner && matches!(e.call.opening, Opening::Message(_)))
    }

    fn drop_where(&mut self, dropped: impl Fn(&Call) -> bool) -> Vec<CallId> {
        let gone = self.waiting.iter().filter(|entry| dropped(&entry.call)).map(|entry| entry.call.id).collect();
        self.waiting.retain(|entry| !dropped(&entry.call));
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::json;
    use engine::params::SendMessage;
    use proptest::prelude::*;
    use std::time::Duration;

    fn message() -> Opening {
        let params = json::built(r#"{"message":{"content":"hi"}}"#.into());
        Opening::Message(SendMessage::parse(&params).expect("valid"))
    }

    fn call(n: u8, key: u8, opening: Opening) -> Call {
        let (id, key) = (CallId([n; 16]), KeyId([key; 16]));
        Call { id, key, opening, idempotency: None, traceparent: None }
    }

    fn push(queue: &mut Queue, n: u8, key: u8, opening: Opening) {
        queue.push(call(n, key, opening), 10).expect("room");
    }

    fn held(owner: KeyId) -> Option<Pause> {
        Some(Pause { owner, left: Duration::from_millis(1) })
    }

    fn expired(owner: KeyId) -> Option<Pause> {
        Some(Pause { owner, left: Duration::ZERO })
    }

    fn run(queue: &mut Queue, pause: Option<Pause>) -> Option<u8> {
        match queue.claim(pause) {
            Claim::Run(call) => Some(call.id.0[0]),
            Claim::Refuse(_) | Claim::Wait => None,
        }
    }

    #[test]
    fn a_pause_answers_compacts_and_keeps_messages_in_order() {
        let mut queue = Queue::default();
        push(&mut queue, 1, 2, message());
        push(&mut queue, 2, 2, Opening::Compact(None));
        push(&mut queue, 3, 1, message());
        push(&mut queue, 4, 1, Opening::Compact(None));
        let owner = KeyId([1; 16]);
        let Claim::Refuse(compacts) = queue.claim(held(owner)) else { panic!("compacts are answered first") };
        assert_eq!(compacts, [CallId([2; 16]), CallId([4; 16])]);
        assert_eq!(run(&mut queue, held(owner)), Some(3));
        assert_eq!(run(&mut queue, held(owner)), None);
        assert_eq!(run(&mut queue, None), Some(1));
    }

    #[test]
    fn an_owners_answer_beats_expiry() {
        let mut queue = Queue::default();
        push(&mut queue, 1, 2, message());
        push(&mut queue, 2, 1, message());
        assert_eq!(run(&mut queue, expired(KeyId([1; 16]))), Some(2));
        assert_eq!(run(&mut queue, expired(KeyId([1; 16]))), Some(1));
    }

    #[test]
    fn nothing_is_reclaimed_for_nobody() {
        let mut queue = Queue::default();
        push(&mut queue, 1, 2, message());
        assert_eq!(run(&mut queue, expired(KeyId([1; 16]))), Some(1));
        assert!(!queue.leave(CallId([1; 16])), "a claimed call is not dropped");
        assert!(queue.unclaim(), "but one that is given back with nobody waiting is");
        assert!(queue.is_empty());
    }

    #[test]
    fn a_retry_joins_and_keeps_the_place() {
        let mut queue = Queue::default();
        let keyed = |n: u8, digest: u8| Call { idempotency: Some(("k".into(), [digest; 32])), ..call(n, 1, message()) };
        assert_eq!(queue.push(keyed(1, 7), 10), Ok(CallId([1; 16])));
        push(&mut queue, 2, 1, message());
        assert_eq!(queue.push(keyed(3, 7), 10), Ok(CallId([1; 16])));
        assert_eq!(queue.push(keyed(4, 8), 10), Err(Rejected::OtherParams));
        assert!(!queue.leave(CallId([1; 16])), "the retry still waits");
        assert_eq!(run(&mut queue, None), Some(1));
        assert_eq!(queue.push(keyed(5, 7), 10), Ok(CallId([1; 16])), "also while it runs");
    }

    proptest! {
        /// Calls start in the order of their arrival, and one that was left never starts, whatever else happens.
        #[test]
        fn first_in_first_out(steps in proptest::collection::vec((0..3u8, any::<u8>()), 1..40)) {
            let (mut queue, mut model, mut next) = (Queue::default(), Vec::new(), 0);
            for (step, pick) in steps {
                match step {
                    0 => {
                        next += 1;
                        push(&mut queue, next, 1, message());
                        model.push(next);
                        if model.len() > 9 { prop_assert!(queue.push(call(99, 1, message()), model.len()).is_err()); }
                        if model.len() == 10 { model.clear(); queue.drop_all(); }
                    }
                    1 if !model.is_empty() => {
                        let gone = model.remove(pick as usize % model.len());
                        prop_assert!(queue.leave(CallId([gone; 16])));
                    }
                    _ => {
                        queue.give_up();
                        prop_assert_eq!(run(&mut queue, None), if model.is_empty() { None } else { Some(model.remove(0)) });
                    }
                }
            }
        }
    }
}
