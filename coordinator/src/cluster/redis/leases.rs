//! The leases that this node holds: how they are taken, how long they are trusted, and how they are released.
//!
//! A lease is a hint; the epoch in the database decides. Two things must hold here. First, a lease that had expired in
//! Redis and was made again is trusted only after the database has shown that no other node owned the session
//! meanwhile. Second, releasing a lease never ends a later one of the same session: until the release has reached
//! Redis, this node does not take the session again, but notes that it is wanted.
//!
//! If Redis is emptied, the next renewal makes the leases again, and each is in doubt until the database was asked.

use super::outbox::RetriedCommand;
use super::{Frame, Redis, locked};
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

/// How many sessions Redis is asked about in one script. Each costs it a few microseconds, in which it does nothing else.
pub(super) const SESSIONS_AT_ONCE: usize = 300;
/// How many nodes look at each session that may need an owner. More than one, because a node that has died counts as
/// living for a while; not all, because the cost to Redis would grow with the square of the cluster.
const LOOKERS: usize = 3;
/// About how many sessions a node takes in one sweep, so that others can take part in the next one.
const ADOPTED_AT_ONCE: usize = 2_000;
/// The session id in a frame that scripts replace by the id of each session.
pub(super) const EACH: SessionId = SessionId([0; 16]);

/// Which nodes get sessions that have no owner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    /// This one.
    Alone,
    /// All living ones, each its part.
    All,
}

/// Whether the node of this rank is one of those that look at a session. All nodes agree on the ranks as soon as they
/// agree on who is alive.
fn looks_at(rank: usize, nodes: usize, session: SessionId) -> bool {
    let first = usize::from(u16::from_be_bytes([session.0[14], session.0[15]])) % nodes;
    (rank + nodes - first) % nodes < LOOKERS
}

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
        self.ensure_owners(&[session]).await;
    }

    /// Serves those of these sessions here that have no owner.
    pub(super) async fn ensure_owners(&self, sessions: &[SessionId]) {
        for batch in self.not_owned_here(sessions).chunks(SESSIONS_AT_ONCE) {
            if self.take(batch, Share::Alone).await.is_none() {
                return;
            }
        }
    }

    /// Gives owners to those of these sessions that have none: sessions with an unfinished turn, all that the database
    /// lists. This node takes its part of them and offers the others to the other living nodes. Each session is looked at
    /// by [`LOOKERS`] of the nodes.
    pub(crate) async fn adopt(&self, sessions: &[SessionId]) {
        let mut sessions = self.not_owned_here(sessions);
        if sessions.is_empty() {
            return;
        }
        let Ok(members) = self.nodes().await else { return };
        let mut nodes: Vec<_> = members.into_iter().filter(|m| !m.draining).map(|m| m.node).collect();
        nodes.sort_unstable();
        if let Some(rank) = nodes.iter().position(|node| *node == self.0.node) {
            sessions.retain(|session| looks_at(rank, nodes.len(), *session));
        }
        // Nodes begin at different places, so that two that look at once do not ask about the same sessions first.
        let start = usize::from(u16::from_be_bytes([crate::fresh_id()[14], crate::fresh_id()[15]]));
        let start = start % sessions.len().max(1);
        sessions.rotate_left(start);
        let mut taken = 0;
        for batch in sessions.chunks(SESSIONS_AT_ONCE) {
            match self.take(batch, Share::All).await {
                Some(more) => taken += more,
                None => return,
            }
            if taken >= ADOPTED_AT_ONCE {
                return;
            }
        }
    }

    fn not_owned_here(&self, sessions: &[SessionId]) -> Vec<SessionId> {
        if self.is_draining() {
            return Vec::new();
        }
        let table = self.0.table.lock();
        let owned = |session: &SessionId| table.get(session).is_some_and(|local| local.owned);
        sessions.iter().copied().filter(|session| !owned(session)).collect()
    }

    /// Asks Redis for the leases of sessions without an owner and serves those that this node gets. Returns how many
    /// there are, or none if Redis cannot be asked.
    async fn take(&self, sessions: &[SessionId], share: Share) -> Option<usize> {
        let mut taken = 0;
        let mut sessions = sessions.to_vec();
        while !sessions.is_empty() {
            let since: Vec<_> = sessions.iter().map(|session| self.since(*session)).collect();
            let (asked, lease) = (Instant::now(), self.lease_ms());
            let shared = if share == Share::All { "1" } else { "" };
            let held: RedisResult<Vec<usize>> = self
                .call(&self.0.scripts.take, "", |s| {
                    s.arg(lease).arg(shared).arg(Frame::Offer(EACH).encode()).arg(EACH.to_string());
                    for session in &sessions {
                        s.arg(self.keys(*session)).arg(session.to_string());
                    }
                    s
                })
                .await;
            let held = held.inspect_err(|error| tracing::debug!(%error, "no leases can be taken just now")).ok()?;
            // A lease that may have been released since then is asked for again.
            let again = held.into_iter().filter_map(|at| {
                let (session, since) = (*sessions.get(at)?, *since.get(at)?);
                taken += 1;
                (!self.serve(session, asked, since)).then_some(session)
            });
            sessions = again.collect();
            taken -= sessions.len();
        }
        Some(taken)
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
                continue;
            }
            let known = locked(&self.0.leases).get_mut(session).map(|lease| {
                lease.until = asked + self.0.settings.lease;
                lease.doubt |= held == 2;
            });
            if known.is_none() {
                self.release_again(*session);
            }
        }
        Ok(())
    }

    /// Releases a lease that this node had given up before it was renewed: the renewal may have reached Redis after the
    /// release, and made the lease of an owner that is gone.
    fn release_again(&self, session: SessionId) {
        let sessions = self.0.table.lock();
        let mut releasing = locked(&self.0.releasing);
        // An owner that was started since then has a lease of its own, and a release that is on its way is enough.
        if sessions.get(&session).is_some_and(|local| local.owned) || releasing.contains_key(&session) {
            return;
        }
        releasing.insert(session, false);
        drop(releasing);
        drop(sessions);
        self.remember(RetriedCommand::Release(session, Successor::Caller));
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
