//! Leases as this node holds them: taken, trusted up to a deadline, doubted, released.
//!
//! A lease is a hint; the epoch in the database is what counts. Two things must hold here. A lease that was gone is trusted
//! again only after the database has shown that nobody owned the session meanwhile. And the release of a lease never ends
//! the next one: while it is on its way the session is not taken again, only noted as wanted.

use super::outbox::RetriedCommand;
use super::{Redis, locked};
use crate::cluster::session_table::LocalSession;
use crate::cluster::{Cluster, Lease, Successor};
use crate::log::Epoch;
use engine::ids::SessionId;
use redis::RedisResult;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A lease, as far as this node knows.
pub(super) struct Held {
    /// Until when it surely holds, by this process's own clock, from before its renewal was sent.
    pub(super) until: Instant,
    /// It was gone and has been made again: another node may have owned the session meanwhile. The database knows.
    pub(super) doubt: bool,
    /// The epoch under which it was acted last.
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

    /// How many releases there were, unless one of this session is on its way.
    pub(super) fn since(&self, session: SessionId) -> Option<u64> {
        let releasing = locked(&self.0.releasing);
        (!releasing.contains_key(&session)).then(|| self.releases(session).load(Ordering::SeqCst))
    }

    fn releases(&self, session: SessionId) -> &AtomicU64 {
        &self.0.released[usize::from(session.0[15])]
    }

    /// A release has arrived. Says whether the session is wanted again.
    pub(super) fn released(&self, session: SessionId) -> bool {
        let mut releasing = locked(&self.0.releasing);
        self.releases(session).fetch_add(1, Ordering::SeqCst);
        releasing.remove(&session).unwrap_or(false)
    }

    /// The lease was this node's when it was asked: has the session served, or its owner woken. False when it may have been
    /// released since.
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

    /// Renews leases, or makes them again; those that are another's by now are lost.
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

    /// Before the lease's deadline: yes. After it only while Redis is away and the database, asked now, still shows our epoch.
    pub(crate) async fn may_act(&self, session: SessionId, epoch: Epoch) -> bool {
        let (mut holds, mut doubt) = self.holds(session, epoch);
        if !holds && self.0.connection.up() {
            // Redis was away for a lease time and is back: what the next renewal would find out is asked now.
            let _ = self.renew_now(&[session]).await;
            (holds, doubt) = self.holds(session, epoch);
        }
        match (holds, doubt) {
            (true, false) => true,
            (true, true) => self.still_ours(session, epoch).await,
            (false, _) => !self.0.connection.up() && self.0.log.row(session).await.is_ok_and(|row| row.epoch == epoch),
        }
    }

    /// Whether the lease surely holds, and whether it is in doubt; notes under which epoch it is acted.
    fn holds(&self, session: SessionId, epoch: Epoch) -> (bool, bool) {
        locked(&self.0.leases).get_mut(&session).map_or((false, false), |held| {
            held.epoch = Some(epoch);
            (Instant::now() < held.until, held.doubt)
        })
    }

    /// Whether nobody owned the session while its lease was gone.
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

    /// The lease is another's.
    pub(super) fn lose(&self, session: SessionId) {
        locked(&self.0.leases).remove(&session);
        self.0.table.with(session, |local| local.lost.cancel());
    }

    pub(crate) fn let_go(&self, session: SessionId, successor: Successor) {
        let successor = match successor {
            Successor::Nobody if self.is_draining() => Successor::Caller,
            successor => successor,
        };
        let mut sessions = self.0.table.lock();
        // Under the lock: whoever wants the session from here on waits for the release.
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
