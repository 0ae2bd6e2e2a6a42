//! Who is in the cluster: the heartbeat, the living nodes, the drain.

use super::tasks::{BEAT, LOOKS_PER_LEASE, ticks};
use super::{Redis, away};
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
        let nodes: Vec<String> = self.call(&self.0.scripts.nodes, "", |s| s).await.map_err(away)?;
        let member = |text: &String| {
            let (node, state) = text.split_once(' ')?;
            Some(Member { node: node.to_owned(), draining: state == "draining", asked: node == self.0.node })
        };
        Ok(nodes.iter().filter_map(member).collect())
    }

    pub(crate) async fn complaints(&self) -> Vec<String> {
        match self.0.link.policy().await {
            Err(error) => vec![format!("redis is not reachable ({error}): new calls wait")],
            // A server that does not let us ask is not complained about.
            Ok(policy) if policy.is_empty() || policy == "noeviction" => Vec::new(),
            Ok(policy) => vec![format!("redis evicts keys (maxmemory-policy {policy}); set it to noeviction")],
        }
    }

    pub(crate) async fn owner(&self, session: SessionId) -> Result<Option<String>, Error> {
        let owner: String = self.call(&self.0.scripts.owner, &self.keys(session), |s| s).await.map_err(away)?;
        Ok(Some(owner).filter(|owner| !owner.is_empty()))
    }

    pub(crate) fn has_joined(&self) -> bool {
        self.0.beaten.load(Ordering::Relaxed)
    }

    pub(crate) fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }

    pub(super) async fn beat(&self) {
        // If no node was alive within a lease time, nobody owns anything: the world needs no time to settle.
        let alone = self.0.log.others_alive(self.0.settings.lease).await.is_ok_and(|others| !others);
        // Side by side: a database that hangs must not make the node look dead, nor Redis the cluster.
        tokio::join!(self.beat_in_redis(alone), self.beat_in_database());
    }

    async fn beat_in_redis(&self, mut alone: bool) {
        let mut ticks = self.beats();
        loop {
            ticks.tick().await;
            // Known for the first time only: others may come while Redis is away.
            match self.beat_once(std::mem::take(&mut alone)).await {
                Err(error) => tracing::debug!(error = %error, "a heartbeat did not reach Redis"),
                // Redis has forgotten who watches what.
                Ok(true) => self.0.log.feeds().notify_others(Notification::Watches),
                Ok(false) => {}
            }
            self.0.beaten.store(true, Ordering::Relaxed);
        }
    }

    async fn beat_in_database(&self) {
        let mut ticks = self.beats();
        loop {
            ticks.tick().await;
            if let Err(error) = self.0.log.beat().await {
                tracing::debug!(error = %error, "a heartbeat did not reach the database");
            }
        }
    }

    fn beats(&self) -> Interval {
        ticks(BEAT.min(self.0.settings.lease / LOOKS_PER_LEASE))
    }

    /// Says whether Redis did not know this node.
    async fn beat_once(&self, alone: bool) -> RedisResult<bool> {
        let lease = self.lease_ms();
        let (alone, draining) = (u8::from(alone), u8::from(self.is_draining()));
        self.call::<u8>(&self.0.scripts.beat, "", |s| s.arg(lease).arg(lease).arg(alone).arg(draining))
            .await
            .map(|new| new == 1)
    }
}
