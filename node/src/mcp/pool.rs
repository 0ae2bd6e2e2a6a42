//! The live connections of a node: at most one for each session and server, limited in number, closed when idle.
//!
//! A slot counts towards the limit before its connection is made, so that the limit also holds when many calls come at
//! once. Slots with a lease are never evicted or closed for idleness. When a session ends, its slots are removed even
//! if they are leased; the lease still holds its connection, which is dropped when the lease ends.

use super::connection::{Connection, Connector, Fault};
use super::lock;
use super::server::ServerConfig;
use engine::ids::SessionId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

type Key = (SessionId, String);

/// The connections of a node, by session and server.
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
    cell: Arc<ConnectionCell>,
    leases: usize,
    idle_since: Instant,
}

/// The connection of a slot, which is replaced when it has died. `connecting` is held while a new one is made.
#[derive(Default)]
struct ConnectionCell {
    connecting: tokio::sync::Mutex<()>,
    current: Mutex<Option<Arc<Connection>>>,
}

impl ConnectionCell {
    fn live(&self) -> Option<Arc<Connection>> {
        lock(&self.current).as_ref().filter(|connection| connection.is_live()).cloned()
    }
}

/// The right to use one slot, which stays in the pool as long as a lease of it exists.
pub(super) struct Lease {
    pool: Arc<Pool>,
    key: Key,
    cell: Arc<ConnectionCell>,
}

impl Pool {
    pub(super) fn new(limit: usize) -> Self {
        Self { slots: Mutex::default(), limit }
    }

    /// Leases the slot of a session's server. At the limit, the slot that has been idle longest is evicted.
    pub(super) fn lease(self: &Arc<Self>, session: SessionId, server: &str) -> Result<Lease, Fault> {
        let key = (session, server.to_owned());
        let mut slots = lock(&self.slots);
        if slots.closed {
            return Err(Fault::Refused("the node is shutting down".to_owned()));
        }
        let mut evicted = None;
        if !slots.taken.contains_key(&key) && slots.taken.len() >= self.limit {
            let idle = slots.taken.iter().filter(|(_, slot)| slot.leases == 0);
            // Slots whose connection has died are evicted first.
            let idle = idle.min_by_key(|(_, slot)| (slot.cell.live().is_some(), slot.idle_since));
            let Some(oldest) = idle.map(|(key, _)| key.clone()) else {
                let limit = self.limit;
                return Err(Fault::Refused(format!(
                    "cannot connect: all {limit} MCP connections of this node are in use; try again later"
                )));
            };
            evicted = slots.taken.remove(&oldest);
        }
        let slot = slots.taken.entry(key.clone()).or_insert_with(|| Slot {
            cell: Arc::default(),
            leases: 0,
            idle_since: Instant::now(),
        });
        slot.leases += 1;
        let cell = slot.cell.clone();
        drop(slots);
        drop(evicted);
        Ok(Lease { pool: self.clone(), key, cell })
    }

    /// How many connections are live.
    pub(super) fn live(&self) -> usize {
        lock(&self.slots).taken.values().filter(|slot| slot.cell.live().is_some()).count()
    }

    /// Removes the slots without a lease that have been idle for this long or whose connection has died. Dropping a
    /// connection closes it.
    pub(super) fn sweep(&self, idle: Duration) {
        let stale = |slot: &Slot| slot.leases == 0 && (slot.idle_since.elapsed() >= idle || slot.cell.live().is_none());
        let swept: Vec<_> = lock(&self.slots).taken.extract_if(|_, slot| stale(slot)).collect();
        drop(swept);
    }

    /// Whether a connection of the session is live.
    pub(super) fn connected(&self, session: SessionId) -> bool {
        lock(&self.slots).taken.iter().any(|((owner, _), slot)| *owner == session && slot.cell.live().is_some())
    }

    /// Removes the slots of a session and returns their connections.
    pub(super) fn take(&self, session: SessionId) -> Vec<Arc<Connection>> {
        let taken: Vec<_> = lock(&self.slots).taken.extract_if(|(owner, _), _| *owner == session).collect();
        taken.into_iter().filter_map(|(_, slot)| lock(&slot.cell.current).take()).collect()
    }

    /// Removes all slots and returns their connections. Later leases are refused.
    pub(super) fn close(&self) -> Vec<Arc<Connection>> {
        let mut slots = lock(&self.slots);
        slots.closed = true;
        let taken: Vec<_> = slots.taken.drain().collect();
        drop(slots);
        taken.into_iter().filter_map(|(_, slot)| lock(&slot.cell.current).take()).collect()
    }
}

impl Lease {
    /// The slot's live connection; if there is none, makes one. Concurrent leases of a slot share it.
    pub(super) async fn connection(
        &self,
        connector: &Connector,
        server: &ServerConfig,
    ) -> Result<Arc<Connection>, Fault> {
        let _connecting = self.cell.connecting.lock().await;
        if let Some(connection) = self.cell.live() {
            return Ok(connection);
        }
        let connection = Arc::new(connector.connect(server).await?);
        let dead = lock(&self.cell.current).replace(connection.clone());
        drop(dead);
        Ok(connection)
    }

    /// Removes a failed connection from the slot, so that the next use makes a new one.
    pub(super) fn discard(&self, failed: &Arc<Connection>) {
        let mut current = lock(&self.cell.current);
        let failed = current.take_if(|current| Arc::ptr_eq(current, failed));
        drop(current);
        drop(failed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut slots = lock(&self.pool.slots);
        let Some(slot) = slots.taken.get_mut(&self.key).filter(|slot| Arc::ptr_eq(&slot.cell, &self.cell)) else {
            return;
        };
        slot.leases -= 1;
        slot.idle_since = Instant::now();
        // A slot without a live connection is removed, because it would count towards the limit.
        let empty = slot.leases == 0 && slot.cell.live().is_none();
        let removed = empty.then(|| slots.taken.remove(&self.key));
        drop(slots);
        drop(removed);
    }
}
