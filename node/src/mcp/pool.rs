//! The live connections of a node: one for each session and server, bounded, closed when idle.
//!
//! A slot counts towards the bound from before its connection is made, so that the bound holds under bursts. Only slots
//! that nobody leases are evicted or closed for idleness. A lease of a slot that has been taken out still works on its
//! connection, which closes when the lease ends.

use super::connection::{Connection, Dialer, Fault};
use super::lock;
use super::server::ServerConfig;
use engine::ids::SessionId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

type Key = (SessionId, String);

/// The slots.
pub(super) struct Pool {
    slots: Mutex<Slots>,
    limit: usize,
}

#[derive(Default)]
struct Slots {
    taken: HashMap<Key, Slot>,
    closed: bool,
}

struct Slot {
    link: Arc<Link>,
    leases: usize,
    idle_since: Instant,
}

/// The connection of a slot, and the turn to make one.
#[derive(Default)]
struct Link {
    connecting: tokio::sync::Mutex<()>,
    current: Mutex<Option<Arc<Connection>>>,
}

impl Link {
    fn live(&self) -> Option<Arc<Connection>> {
        lock(&self.current).as_ref().filter(|connection| connection.is_live()).cloned()
    }
}

/// The use of one slot.
pub(super) struct Lease {
    pool: Arc<Pool>,
    key: Key,
    link: Arc<Link>,
}

impl Pool {
    pub(super) fn new(limit: usize) -> Self {
        Self { slots: Mutex::default(), limit }
    }

    /// The slot of a session's server. At the bound, the one that has been idle longest makes room.
    pub(super) fn lease(self: &Arc<Self>, session: SessionId, server: &str) -> Result<Lease, Fault> {
        let key = (session, server.to_owned());
        let mut slots = lock(&self.slots);
        if slots.closed {
            return Err(Fault::Refused("the node is shutting down".to_owned()));
        }
        let mut evicted = None;
        if !slots.taken.contains_key(&key) && slots.taken.len() >= self.limit {
            let idle = slots.taken.iter().filter(|(_, slot)| slot.leases == 0);
            // One that has died goes before any that lives.
            let idle = idle.min_by_key(|(_, slot)| (slot.link.live().is_some(), slot.idle_since));
            let Some(oldest) = idle.map(|(key, _)| key.clone()) else {
                let limit = self.limit;
                return Err(Fault::Refused(format!(
                    "cannot connect: all {limit} MCP connections of this node are in use; try again later"
                )));
            };
            evicted = slots.taken.remove(&oldest);
        }
        let slot = slots.taken.entry(key.clone()).or_insert_with(|| Slot {
            link: Arc::default(),
            leases: 0,
            idle_since: Instant::now(),
        });
        slot.leases += 1;
        let link = slot.link.clone();
        drop(slots);
        drop(evicted);
        Ok(Lease { pool: self.clone(), key, link })
    }

    /// How many connections are live.
    pub(super) fn live(&self) -> usize {
        lock(&self.slots).taken.values().filter(|slot| slot.link.live().is_some()).count()
    }

    /// Takes out what nobody uses and has been idle for that long, or is dead. Dropping the connections closes them.
    pub(super) fn sweep(&self, idle: Duration) {
        let stale = |slot: &Slot| slot.leases == 0 && (slot.idle_since.elapsed() >= idle || slot.link.live().is_none());
        let swept: Vec<_> = lock(&self.slots).taken.extract_if(|_, slot| stale(slot)).collect();
        drop(swept);
    }

    /// Whether a connection of the session is live.
    pub(super) fn connected(&self, session: SessionId) -> bool {
        lock(&self.slots).taken.iter().any(|((owner, _), slot)| *owner == session && slot.link.live().is_some())
    }

    /// Takes out all connections of a session.
    pub(super) fn take(&self, session: SessionId) -> Vec<Arc<Connection>> {
        let taken: Vec<_> = lock(&self.slots).taken.extract_if(|(owner, _), _| *owner == session).collect();
        taken.into_iter().filter_map(|(_, slot)| lock(&slot.link.current).take()).collect()
    }

    /// Takes out all connections; nothing can be leased any more.
    pub(super) fn close(&self) -> Vec<Arc<Connection>> {
        let mut slots = lock(&self.slots);
        slots.closed = true;
        let taken: Vec<_> = slots.taken.drain().collect();
        drop(slots);
        taken.into_iter().filter_map(|(_, slot)| lock(&slot.link.current).take()).collect()
    }
}

impl Lease {
    /// The live connection, or a new one. Concurrent leases of one slot share it.
    pub(super) async fn connection(&self, dialer: &Dialer, server: &ServerConfig) -> Result<Arc<Connection>, Fault> {
        let _turn = self.link.connecting.lock().await;
        if let Some(connection) = self.link.live() {
            return Ok(connection);
        }
        let connection = Arc::new(dialer.connect(server).await?);
        let dead = lock(&self.link.current).replace(connection.clone());
        drop(dead);
        Ok(connection)
    }

    /// Gives up a connection that has failed; the next use makes a new one.
    pub(super) fn discard(&self, failed: &Arc<Connection>) {
        let mut current = lock(&self.link.current);
        let failed = current.take_if(|current| Arc::ptr_eq(current, failed));
        drop(current);
        drop(failed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut slots = lock(&self.pool.slots);
        let Some(slot) = slots.taken.get_mut(&self.key).filter(|slot| Arc::ptr_eq(&slot.link, &self.link)) else {
            return;
        };
        slot.leases -= 1;
        slot.idle_since = Instant::now();
        // A failed connection must not hold a place that a sound one could use.
        let empty = slot.leases == 0 && slot.link.live().is_none();
        let removed = empty.then(|| slots.taken.remove(&self.key));
        drop(slots);
        drop(removed);
    }
}
