//! The cluster through Redis: leases, queues, inboxes, watch sets, heartbeats.
//!
//! Redis says who serves and who waits; it can be wiped at any moment with loss of liveness only. What is true is in the
//! database: epochs fence what a lost lease did not notice, and every node with waiting calls or watched sessions looks
//! every two seconds whether Redis still knows them. Standalone and Sentinel; not Redis Cluster.

mod claims;
mod connection;
mod endpoint;
mod frame;
mod leases;
mod nodes;
mod outbox;
mod queue;
mod scripts;
mod stop;
mod tasks;

pub use tasks::Tasks;

use frame::Frame;

use crate::Error;
use crate::cluster::session_table::SessionTable;
use crate::cluster::{Lease, Signal};
use crate::feed::Notifications;
use crate::log::Log;
use connection::Connection;
use engine::ids::{CallId, SessionId};
use leases::Held;
use outbox::{RETRIED_COMMANDS, RetriedCommand};
use redis::{FromRedisValue, RedisResult, Script, ScriptInvocation};
use scripts::Scripts;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// How the cluster is reached.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `redis://`, `rediss://`, or `sentinel://[user:password@]host:port[,host:port…]/service[/db][?sentinel=[user:]password]`
    /// (`sentinels://` for TLS to Sentinels and servers). May hold passwords.
    pub url: secrecy::SecretString,
    /// A PEM file with the authority that signs the servers' certificates; without one the public ones count.
    pub ca: Option<std::path::PathBuf>,
    /// In front of every key.
    pub prefix: String,
    /// How long a lease lives without renewal.
    pub lease: Duration,
}

/// Pause before it tries again.
const RETRY: Duration = Duration::from_millis(200);

/// The backend. Clones share it.
#[derive(Clone)]
pub struct Redis(Arc<Shared>);

struct Shared {
    table: SessionTable,
    connection: Connection,
    scripts: Scripts,
    settings: Settings,
    /// Unique for each start of a process.
    node: String,
    log: Log,
    leases: Mutex<HashMap<SessionId, Held>>,
    /// Sessions given up whose release is on its way, and whether one is wanted again: it is taken after that, never before.
    releasing: Mutex<HashMap<SessionId, bool>>,
    /// Counts releases, of many sessions each: an answer that was asked for before one may be older than it.
    released: [AtomicU64; 256],
    /// Places of the calls that wait here.
    places: Mutex<HashMap<CallId, u64>>,
    commands: mpsc::Sender<RetriedCommand>,
    /// Calls that are over and may still stand in a queue, because Redis was away: no call is claimed before it knows.
    owed: AtomicUsize,
    draining: AtomicBool,
    /// The first heartbeat was sent, whether or not it arrived.
    heartbeat_sent: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a node gets from its cluster.
pub struct Received {
    /// A lease for every session that has to be served here.
    pub leases: mpsc::UnboundedReceiver<Lease>,
    /// What other nodes tell this one.
    pub signals: mpsc::UnboundedReceiver<Signal>,
    /// What keeps the node in the cluster: to be run until the end.
    pub tasks: Tasks,
}

impl Redis {
    /// Joins a cluster. `notifications` are what the log's feeds have to tell other nodes; at most `limit` calls wait in a
    /// session.
    ///
    /// # Errors
    /// `Unusable` for settings that make no sense. Redis need not be reachable yet.
    pub fn new(
        settings: Settings,
        log: Log,
        notifications: Notifications,
        limit: usize,
    ) -> Result<(Self, Received), Error> {
        let connection = Connection::new(&settings).map_err(Error::Unusable)?;
        let (wanted, leases) = mpsc::unbounded_channel();
        let (commands, to_do) = mpsc::channel(RETRIED_COMMANDS);
        let (signal, signals) = mpsc::unbounded_channel();
        let shared = Shared {
            table: SessionTable::new(limit, wanted),
            connection,
            scripts: Scripts::new(),
            settings,
            node: crate::hex(&crate::fresh_id()),
            log,
            leases: Mutex::default(),
            releasing: Mutex::default(),
            released: std::array::from_fn(|_| AtomicU64::new(0)),
            places: Mutex::default(),
            commands,
            owed: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            heartbeat_sent: AtomicBool::new(false),
        };
        let redis = Self(Arc::new(shared));
        let tasks = Tasks::new(redis.clone(), notifications.0, to_do, signal);
        Ok((redis, Received { leases, signals, tasks }))
    }

    /// Keys of a session, in front of what each is for.
    fn keys(&self, session: SessionId) -> String {
        format!("{}{{{session}}}:", self.0.settings.prefix)
    }

    fn lease_ms(&self) -> u64 {
        self.0.settings.lease.as_millis() as u64
    }

    async fn call<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &str,
        args: impl for<'a, 'b> FnOnce(&'b mut ScriptInvocation<'a>) -> &'b mut ScriptInvocation<'a>,
    ) -> RedisResult<T> {
        let mut invocation = script.prepare_invoke();
        invocation.arg(&self.0.settings.prefix).arg(keys).arg(&self.0.node);
        args(&mut invocation);
        self.0.connection.run(invocation).await
    }
}

fn unavailable(error: redis::RedisError) -> Error {
    Error::CoordinationUnavailable(error.category().to_owned())
}
