//! Which nodes are in the cluster: the heartbeats, the list of living nodes, and draining.
//!
//! If Redis is emptied, each node is listed again after its next heartbeat, which also says again what the node
//! watches.

use super::tasks::{CHECKS_PER_LEASE, HEARTBEAT, ticks};
use super::{Redis, unavailable};
use crate::Error;
use crate::cluster::Member;
use crate::feed::Notification;
use engine::ids::SessionId;
use redis::RedisResult;
use std::sync::atomic::Ordering;
use tokio::time::Interval;

impl Redis {
    pub(crate) fn node(&self) -> &str {
        &self.0.node
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<Member>, Error> {
        let nodes: Vec<String> = self.call(&self.0.scripts.nodes, "", |s| s).await.map_err(unavailable)?;
        let member = |text: &String| {
            let (node, state) = text.split_once(' ')?;
            Some(Member { node: node.to_owned(), draining: state == "draining", asked: node == self.0.node })
        };
        Ok(nodes.iter().filter_map(member).collect())
    }

    pub(crate) async fn warnings(&self) -> Vec<String> {
        match self.0.connection.policy().await {
            Err(error) => vec![format!("redis is not reachable ({error}): new calls wait")],
            // A server whose ACL forbids INFO gives no policy; that is no reason for a warning.
            Ok(policy) if policy.is_empty() || policy == "noeviction" => Vec::new(),
            Ok(policy) => vec![format!("redis evicts keys (maxmemory-policy {policy}); set it to noeviction")],
        }
    }

    pub(crate) async fn owner(&self, session: SessionId) -> Result<Option<String>, Error> {
        let owner: String = self.call(&self.0.scripts.owner, &self.keys(session), |s| s).await.map_err(unavailable)?;
        Ok(Some(owner).filter(|owner| !owner.is_empty()))
    }

    pub(crate) fn has_joined(&self) -> bool {
        self.0.heartbeat_sent.load(Ordering::Relaxed)
    }

    pub(crate) fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }

    pub(super) async fn send_heartbeats(&self) {
        // If no node was alive within a lease time, no session has an owner, and the grace period can be skipped.
        let alone = self.0.log.others_alive(self.0.settings.lease).await.is_ok_and(|others| !others);
        // Concurrently: a database that hangs must not make this node look dead to other nodes, and a Redis that hangs
        // must not make the whole cluster look dead.
        tokio::join!(self.heartbeat_in_redis(alone), self.heartbeat_in_database());
    }

    async fn heartbeat_in_redis(&self, mut alone: bool) {
        let mut ticks = self.heartbeat_interval();
        loop {
            ticks.tick().await;
            // `alone` holds for the first heartbeat only: other nodes may start while Redis cannot be reached.
            match self.heartbeat_once(std::mem::take(&mut alone)).await {
                Err(error) => tracing::debug!(error = %error, "a heartbeat did not reach Redis"),
                // Redis was emptied and no longer knows which sessions this node watches.
                Ok(true) => self.0.log.feeds().notify_others(Notification::Watches),
                Ok(false) => {}
            }
            self.0.heartbeat_sent.store(true, Ordering::Relaxed);
        }
    }

    async fn heartbeat_in_database(&self) {
        let mut ticks = self.heartbeat_interval();
        loop {
            ticks.tick().await;
            if let Err(error) = self.0.log.record_heartbeat().await {
                tracing::debug!(error = %error, "a heartbeat did not reach the database");
            }
        }
    }

    fn heartbeat_interval(&self) -> Interval {
        ticks(HEARTBEAT.min(self.0.settings.lease / CHECKS_PER_LEASE))
    }

    /// Returns whether Redis did not know this node.
    async fn heartbeat_once(&self, alone: bool) -> RedisResult<bool> {
        let lease = self.lease_ms();
        let (alone, draining) = (u8::from(alone), u8::from(self.is_draining()));
        self.call::<u8>(&self.0.scripts.heartbeat, "", |s| s.arg(lease).arg(lease).arg(alone).arg(draining))
            .await
            .map(|new| new == 1)
    }
}
