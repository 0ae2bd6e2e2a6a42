//! Causes the faults of nodes and servers, one after the other, in rounds that contain every class once.
//!
//! A fault begins only while a turn runs, so that there is something to disturb, and the next one begins only after
//! every node is ready again. Where this module sleeps, it is for the length of a fault or for a random time between
//! two faults.

use super::rng::Rng;
use super::stats::{Class, Stats};
use crate::cluster::{Cluster, LEASE, Mode, Node};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// How long after a fault every node may take to be ready again.
const RECOVERY: Duration = Duration::from_secs(60);

/// The faults that this module causes. Those of clients, providers and tools are caused by the drivers and the model.
pub const FAULTS: &[Class] = &[
    Class::Killed,
    Class::Drained,
    Class::Frozen,
    Class::Dozed,
    Class::RedisHangs,
    Class::RedisCut,
    Class::DatabaseHangs,
    Class::DatabaseCut,
    Class::Isolated,
    Class::RedisEmptied,
    Class::RedisGone,
    Class::RedisPaused,
    Class::RedisFull,
    Class::DatabaseGone,
    Class::DatabaseDrops,
    Class::RowsLocked,
    Class::KilledInOutage,
];

/// The faults that affect every node.
const WHOLE: &[Class] = &[
    Class::RedisEmptied,
    Class::RedisGone,
    Class::RedisPaused,
    Class::RedisFull,
    Class::DatabaseGone,
    Class::DatabaseDrops,
    Class::RowsLocked,
];

/// Causes the faults of nodes and servers.
#[derive(Debug)]
pub(super) struct Faults<'a> {
    pub cluster: &'a mut Cluster,
    pub rng: Rng,
    pub stats: Arc<Stats>,
    /// The longest time for which Redis is stopped.
    pub outage: Duration,
}

impl Faults<'_> {
    /// Causes these faults in a random order until `end`.
    pub(super) async fn run(&mut self, classes: &[Class], end: Instant) {
        loop {
            let mut round = classes.to_vec();
            self.rng.shuffle(&mut round);
            for class in round {
                sleep(self.rng.millis(500..2500)).await;
                if Instant::now() >= end {
                    return;
                }
                self.fault(class).await;
            }
        }
    }

    async fn fault(&mut self, class: Class) {
        let Some((node, here, all)) = self.target().await else {
            eprintln!("no turn runs to be hit when {}", class.what());
            return;
        };
        eprintln!("{} {} (node {node}, {here} of {all} running turns)", self.stats.clock(), class.what());
        self.stats.begin(class);
        self.strike(class, node).await;
        self.stats.hit(class, if WHOLE.contains(&class) { all } else { here });
        self.recover(class).await;
    }

    /// Causes a fault and ends it.
    async fn strike(&mut self, class: Class, node: usize) {
        let (freeze, hang) = (LEASE + self.rng.millis(500..4000), self.rng.millis(1000..8000));
        let outage = self.rng.millis(500..self.outage.as_millis() as u64);
        match class {
            Class::Killed => self.kill(node).await,
            Class::Drained => {
                self.stats.trouble(node);
                self.cluster.nodes[node].server.terminate();
                self.cluster.nodes[node].server.ended().await;
                self.cluster.nodes[node].start().await;
            }
            Class::Frozen => self.freeze(node, freeze).await,
            Class::Dozed => {
                let doze = self.rng.millis(100..1500);
                self.freeze(node, doze).await;
            }
            Class::RedisHangs => self.break_links(node, Mode::Stall, &[true], hang).await,
            Class::RedisCut => self.break_links(node, Mode::Cut, &[true], hang).await,
            Class::DatabaseHangs => self.break_links(node, Mode::Stall, &[false], hang).await,
            Class::DatabaseCut => self.break_links(node, Mode::Cut, &[false], hang).await,
            Class::Isolated => self.break_links(node, Mode::Cut, &[true, false], hang).await,
            Class::RedisEmptied => self.redis_cli(&["FLUSHALL"]),
            Class::RedisGone => {
                self.cluster.redis.as_mut().expect("its own Redis").stop();
                sleep(outage).await;
                self.cluster.redis.as_mut().expect("its own Redis").run();
            }
            Class::RedisPaused => {
                self.redis_cli(&["CLIENT", "PAUSE", &hang.as_millis().to_string(), "ALL"]);
                sleep(hang).await;
            }
            Class::RedisFull => {
                self.redis_cli(&["CONFIG", "SET", "maxmemory", "1"]);
                sleep(hang).await;
                self.redis_cli(&["CONFIG", "SET", "maxmemory", "0"]);
            }
            Class::DatabaseGone => {
                self.cluster.postgres.as_mut().expect("its own Postgres").stop();
                sleep(hang / 2).await;
                self.cluster.postgres.as_mut().expect("its own Postgres").run();
            }
            Class::DatabaseDrops => {
                let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                           WHERE datname = current_database() AND pid <> pg_backend_pid()";
                let _ = sqlx::query(sql).execute(&self.cluster.pool).await;
            }
            Class::RowsLocked => self.lock_rows(hang / 4).await,
            Class::KilledInOutage => {
                self.cluster.redis.as_mut().expect("its own Redis").stop();
                sleep(outage / 2).await;
                self.cluster.nodes[node].server.kill9();
                self.stats.trouble(node);
                sleep(outage / 2).await;
                self.cluster.redis.as_mut().expect("its own Redis").run();
                self.cluster.nodes[node].start().await;
            }
            _ => unreachable!("clients, providers and tools fail by themselves"),
        }
    }

    fn redis_cli(&self, words: &[&str]) {
        self.cluster.redis.as_ref().expect("its own Redis").redis_cli(words);
    }

    async fn kill(&mut self, node: usize) {
        self.stats.trouble(node);
        self.cluster.nodes[node].server.kill9();
        // The node is gone for longer than a lease, so that the other nodes take its sessions over before it comes
        // back.
        sleep(LEASE + self.rng.millis(0..3000)).await;
        self.cluster.nodes[node].start().await;
    }

    async fn freeze(&self, node: usize, time: Duration) {
        self.stats.trouble(node);
        self.cluster.nodes[node].server.freeze().await;
        sleep(time).await;
        self.cluster.nodes[node].server.thaw();
    }

    /// Breaks a node's connections to Redis (true), to the database (false) or to both for a time.
    async fn break_links(&self, node: usize, mode: Mode, links: &[bool], time: Duration) {
        self.stats.trouble(node);
        let Node { redis, postgres, .. } = &self.cluster.nodes[node];
        let set = |mode| {
            let proxies =
                links.iter().filter_map(|to_redis| if *to_redis { redis.as_ref() } else { postgres.as_ref() });
            proxies.for_each(|proxy| proxy.set(mode));
        };
        set(mode);
        sleep(time).await;
        set(Mode::Pass);
    }

    async fn lock_rows(&self, time: Duration) {
        let Ok(mut connection) = self.cluster.pool.acquire().await else { return };
        let Ok(mut lock) = sqlx::Connection::begin(&mut *connection).await else { return };
        let sql = "SELECT id FROM sessions WHERE phase = 'running' AND state = 'open' FOR UPDATE";
        if sqlx::query(sql).execute(&mut *lock).await.is_ok() {
            sleep(time).await;
        }
        let _ = lock.rollback().await;
    }

    /// Waits until a turn runs. Returns the node that owns the most running turns, how many it owns, and how many run
    /// in all.
    async fn target(&self) -> Option<(usize, usize, usize)> {
        let sql = "SELECT 'ses_' || encode(id, 'hex') FROM sessions WHERE phase = 'running' AND state = 'open'";
        for _ in 0..200 {
            let running: Vec<String> = sqlx::query_scalar(sql).fetch_all(&self.cluster.pool).await.unwrap_or_default();
            let mut owned = vec![0; self.cluster.nodes.len()];
            for session in &running {
                let path = format!("/admin/v1/sessions/{session}/owner");
                let reply = self.cluster.nodes[0].admin().get(&path).await;
                let owner: serde_json::Value = serde_json::from_str(&reply.body).unwrap_or_default();
                if let Some(node) = self.cluster.nodes.iter().position(|node| owner["node"] == node.name.as_str()) {
                    owned[node] += 1;
                }
            }
            let node = (0..owned.len()).max_by_key(|node| owned[*node]).filter(|node| owned[*node] > 0);
            if let Some(node) = node {
                return Some((node, owned[node], running.len()));
            }
            sleep(Duration::from_millis(50)).await;
        }
        None
    }

    /// Waits until every node is ready.
    async fn recover(&self, class: Class) {
        let end = Instant::now() + RECOVERY;
        for (number, node) in self.cluster.nodes.iter().enumerate() {
            loop {
                let asked = timeout(Duration::from_secs(5), node.api().request("GET", "/readyz").send()).await;
                let state = match asked {
                    Ok(Ok(answer)) if answer.status() == 200 => break,
                    Ok(Ok(answer)) => answer.text().await.unwrap_or_default(),
                    other => format!("{other:?}"),
                };
                if Instant::now() > end {
                    self.stats
                        .wrong(&format!("node {number}"), format!("is not ready after {}: {state}", class.what()));
                    break;
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
        self.stats.well();
        self.stats.end();
        eprintln!("{} all nodes are ready", self.stats.clock());
    }
}
