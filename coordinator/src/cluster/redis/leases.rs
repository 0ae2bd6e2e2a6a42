//! The leases that this node holds: how they are taken, how long they are trusted, and how they are released.
//!
//! A lease is a hint; the epoch in the database decides. Two things must hold here. First, a lease that had expired in
//! Redis and was made again is trusted only after the database has shown that no other node owned the session
//! meanwhile. Second, releasing a lease never ends a later one of the same session: until the release has reached
//! Redis, this node does not take the session again, but notes that it is wanted.
//!
//! If Redis is emptied, the next renewal makes the leases again, and each is in doubt until the database was asked.

use super::outbox::RetriedCommand;
use super::{Redis, locked};
use crate::cluster::session_table::LocalSession;
use crate::cluster::{Cluster, Lease, Successor};
use crate::log::Epoch;
use crate::metrics::metrics;
use engine::ids::SessionId;
use redis::RedisResult;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A lease that this node holds, as far as it knows.
pub(super) struct Held {
    /// The lease certainly holds until then. Counted by this process's own clock from the moment before the renewal was
    /// sent.
    pub(super) until: Instant,
    /// Whether the lease had expired in Redis and was made again. Another node may have owned the session meanwhile,
    /// which the database knows.
    pub(super) doubt: bool,
    /// The epoch under which the owner acted last.
    pub(super) epoch: Option<Epoch>,
}

impl Redis {
    pub(crate) async fn ensure_owner(&self, session: SessionId) {
        let owned = self.0.table.with(session, |local| local.owned).unwrap_or(false);
        if owned || self.is_draining() {
            return;
        }
        loop {
            let (asked, since, lease) = (Instant::now(), self.since(session), self.lease_ms());
            let taken: RedisResult<u8> =
                self.call(&self.0.scripts.take, &self.keys(session), |s| s.arg(lease).arg("1")).await;
            if !matches!(taken, Ok(1)) || self.serve(session, asked, since) {
                return;
            }
        }
    }

    /// The number of releases so far, to be compared in `serve`. None while a release of this session is on its way.
    pub(super) fn since(&self, session: SessionId) -> Option<u64> {
        let releasing = locked(&self.0.releasing);
        (!releasing.contains_key(&session)).then(|| self.releases(session).load(Ordering::SeqCst))
    }

    fn releases(&self, session: SessionId) -> &AtomicU64 {
        &self.0.released[usize::from(session.0[15])]
    }

    /// Records that a release has reached Redis. Returns whether the session is wanted again.
    pub(super) fn released(&self, session: SessionId) -> bool {
        let mut releasing = locked(&self.0.releasing);
        self.releases(session).fetch_add(1, Ordering::SeqCst);
        releasing.remove(&session).unwrap_or(false)
    }

    /// Starts an owner for a session whose lease Redis says is this node's, or wakes the owner that there is. `asked`
    /// and `since` are from before the question to Redis. Returns false if the lease may have been released since then.
    pub(super) fn serve(&self, session: SessionId, asked: Instant, since: Option<u64>) -> bool {
        let mut sessions = self.0.table.lock();
        if let Some(local) = sessions.get(&session).filter(|local| local.owned) {
            local.wake.notify_one();
            return true;
        }
        {
            let mut releasing = locked(&self.0.releasing);
            if let Some(again) = releasing.get_mut(&session) {
                *again = true;
                return true;
            }
            if since != Some(self.releases(session).load(Ordering::SeqCst)) {
                return false;
            }
        }
        let local = sessions.entry(session).or_insert_with(LocalSession::new);
        let until = asked + self.0.settings.lease;
        locked(&self.0.leases).insert(session, Held { until, doubt: false, epoch: None });
        local.owned = true;
        metrics().lease_acquisitions.add(1, &[]);
        local.lost = CancellationToken::new();
        let (wake, stop, lost) = (Arc::clone(&local.wake), local.stop.clone(), local.lost.clone());
        let cluster = Cluster::Redis(self.clone());
        let taken = self.0.table.want(Lease { session, wake, stop, lost, held: true, cluster });
        drop(sessions);
        if !taken {
            self.let_go(session, Successor::Another);
        }
        true
    }

    pub(crate) async fn confirm(&self, session: SessionId) -> bool {
        let (asked, lease) = (Instant::now(), self.lease_ms());
        let held: RedisResult<u8> = self.call(&self.0.scripts.confirm, &self.keys(session), |s| s.arg(lease)).await;
        let held = matches!(held, Ok(1));
        if held && let Some(held) = locked(&self.0.leases).get_mut(&session) {
            held.until = asked + self.0.settings.lease;
        }
        held
    }

    /// Renews leases, and makes those again that have expired. A lease that another node holds by now is lost.
    pub(super) async fn renew_now(&self, sessions: &[SessionId]) -> RedisResult<()> {
        let (asked, lease) = (Instant::now(), self.lease_ms());
        let held: Vec<u8> = self
            .call(&self.0.scripts.renew, "", |s| {
                s.arg(lease);
                for session in sessions {
                    s.arg(self.keys(*session));
                }
                s
            })
            .await?;
        for (session, held) in sessions.iter().zip(held) {
            if held == 0 {
                tracing::warn!(%session, "a lease was lost");
                self.lose(*session);
            } else if let Some(lease) = locked(&self.0.leases).get_mut(session) {
                lease.until = asked + self.0.settings.lease;
                lease.doubt |= held == 2;
            }
        }
        Ok(())
    }

    /// Whether an external act may begin. It may while the lease certainly holds. After that it may only while Redis
    /// cannot be reached and the database, asked now, still shows this epoch.
    pub(crate) async fn may_act(&self, session: SessionId, epoch: Epoch) -> bool {
        let (mut holds, mut doubt) = self.holds(session, epoch);
        if !holds && self.0.connection.up() {
            // Redis could not be reached for a lease time and is back. This asks now what the next renewal would ask.
            let _ = self.renew_now(&[session]).await;
            (holds, doubt) = self.holds(session, epoch);
        }
        match (holds, doubt) {
            (true, false) => true,
            (true, true) => self.still_ours(session, epoch).await,
            (false, _) => !self.0.connection.up() && self.0.log.row(session).await.is_ok_and(|row| row.epoch == epoch),
        }
    }

    /// Whether the lease certainly holds, and whether it is in doubt. Records the epoch under which the owner acts.
    fn holds(&self, session: SessionId, epoch: Epoch) -> (bool, bool) {
        locked(&self.0.leases).get_mut(&session).map_or((false, false), |held| {
            held.epoch = Some(epoch);
            (Instant::now() < held.until, held.doubt)
        })
    }

    /// Asks the database whether no other node owned the session while its lease had expired. If one did, the lease is
    /// lost.
    pub(super) async fn still_ours(&self, session: SessionId, epoch: Epoch) -> bool {
        match self.0.log.row(session).await {
            Ok(row) if row.epoch == epoch => {
                if let Some(held) = locked(&self.0.leases).get_mut(&session) {
                    held.doubt = false;
                }
                true
            }
            Ok(_) => {
                self.lose(session);
                false
            }
            Err(_) => false,
        }
    }

    /// Another node holds the lease: the owner here is told to stop.
    pub(super) fn lose(&self, session: SessionId) {
        locked(&self.0.leases).remove(&session);
        metrics().lease_losses.add(1, &[]);
        self.0.table.with(session, |local| local.lost.cancel());
    }

    pub(crate) fn let_go(&self, session: SessionId, successor: Successor) {
        let successor = match successor {
            Successor::Nobody if self.is_draining() => Successor::Caller,
            successor => successor,
        };
        let mut sessions = self.0.table.lock();
        // This happens under the table's lock, so that whoever wants the session from here on waits for the release.
        locked(&self.0.leases).remove(&session);
        locked(&self.0.releasing).insert(session, false);
        if let Some(local) = sessions.get_mut(&session) {
            local.owned = false;
            local.released.notify_waiters();
            if local.forgettable() {
                sessions.remove(&session);
            }
        }
        drop(sessions);
        self.remember(RetriedCommand::Release(session, successor));
    }
}
