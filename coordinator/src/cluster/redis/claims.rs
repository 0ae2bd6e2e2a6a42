//! The owner's side of the queues: it claims calls one by one, gives them back, tells their callers how far they are,
//! and refuses them. [`Lease`](crate::cluster::Lease) calls this module.
//!
//! Nothing is claimed while Redis may still list a call that has ended, or while the lease is in doubt. If Redis is
//! emptied, claiming waits for the grace period, in which the nodes put their calls back.

use super::outbox::RetriedCommand;
use super::queue::Entry;
use super::{Frame, Redis, locked};
use crate::cluster::Progress;
use crate::cluster::queue::Claim;
use engine::gate::Pause;
use engine::ids::{CallId, SessionId};
use engine::rpc::RpcError;
use redis::RedisResult;
use std::sync::atomic::Ordering;

impl Redis {
    pub(crate) async fn claim(&self, session: SessionId, pause: Option<Pause>) -> Claim {
        let (kind, holder) = match pause {
            None => ("free", String::new()),
            Some(pause) if pause.expired() => ("expired", pause.owner.to_string()),
            Some(pause) => ("held", pause.owner.to_string()),
        };
        if self.0.owed.load(Ordering::SeqCst) > 0 {
            return Claim::Wait;
        }
        let doubtful = locked(&self.0.leases).get(&session).filter(|held| held.doubt).map(|held| held.epoch);
        match doubtful {
            None => {}
            Some(Some(epoch)) if self.still_ours(session, epoch).await => {}
            Some(Some(_)) => return Claim::Wait,
            Some(None) => {
                // The owner has not acted yet, so there is no epoch to compare, and what it has in memory may be older
                // than the log. It gives the session up, and the next owner reads the log again.
                self.lose(session);
                return Claim::Wait;
            }
        }
        let lease = self.lease_ms();
        let claimed: RedisResult<Vec<String>> =
            self.call(&self.0.scripts.claim, &self.keys(session), |s| s.arg(kind).arg(holder).arg(lease)).await;
        let claimed = match claimed {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::debug!(error = %error, "the queue cannot be asked just now");
                return Claim::Wait;
            }
        };
        match claimed.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["run", call, entry] => match serde_json::from_str::<Entry>(entry) {
                Ok(Entry { v: 1, call }) => Claim::Run(call),
                Ok(_) | Err(_) => {
                    // A newer version of the program queued this call, so a node of that version has to serve it.
                    tracing::error!(%session, call, "a queued call is of a newer version; the session is given up");
                    self.lose(session);
                    Claim::Wait
                }
            },
            ["refuse", ref calls @ ..] => Claim::Refuse(calls.iter().filter_map(|call| call.parse().ok()).collect()),
            ["lost"] => {
                self.lose(session);
                Claim::Wait
            }
            _ => Claim::Wait,
        }
    }

    pub(crate) async fn unclaim(&self, session: SessionId, call: CallId) {
        let _: RedisResult<u8> =
            self.call(&self.0.scripts.unclaim, &self.keys(session), |s| s.arg(call.to_string())).await;
    }

    pub(crate) async fn tell(&self, session: SessionId, call: CallId, progress: Progress) {
        let frame = match &progress {
            Progress::Queued => return,
            Progress::Running | Progress::Ended(..) => None,
            Progress::Refused(error) => Some(Frame::Refused(session, call, error.clone())),
            Progress::Follow(winner) => Some(Frame::Follow(session, call, *winner)),
        };
        self.tell_waiters(session, call, progress);
        let over = RetriedCommand::Over(session, call, frame.map(|frame| frame.encode()));
        if !self.0.connection.up() || self.run_command(&over).await.is_err() {
            self.0.owed.fetch_add(1, Ordering::SeqCst);
            self.remember(over);
        }
    }

    pub(crate) async fn refuse_all(&self, session: SessionId, error: &RpcError) {
        let calls = self.0.table.with(session, |local| local.refuse_waiting(error));
        for call in calls.unwrap_or_default() {
            locked(&self.0.places).remove(&call);
        }
        // The script puts the id of each call in place of this one and sends the frame to the nodes that wait for the
        // call.
        let each = CallId([0; 16]);
        let frame = Frame::Refused(session, each, error.clone()).encode();
        let _: RedisResult<u8> =
            self.call(&self.0.scripts.refuse_all, &self.keys(session), |s| s.arg(frame).arg(each.to_string())).await;
    }

    /// Answers the calls that wait on this node, and no others.
    pub(crate) fn refuse_here(&self, session: SessionId, error: &RpcError) {
        let calls = self.0.table.with(session, |local| local.refuse_waiting(error));
        calls.unwrap_or_default().into_iter().for_each(|call| self.leave_queue(session, call));
    }

    pub(crate) async fn wanted(&self, session: SessionId) -> bool {
        let waiting: RedisResult<u64> = self.call(&self.0.scripts.waiting, &self.keys(session), |s| s).await;
        match waiting {
            Ok(waiting) => waiting > 0,
            Err(_) => self.0.table.with(session, |local| !local.queue.is_empty()).unwrap_or(false),
        }
    }
}
