//! The cluster backend for several nodes, which meet in Redis: leases, queues, inboxes, watch sets and heartbeats.
//!
//! Redis holds who serves each session and who waits for it. It can be emptied at any moment: that costs time, and
//! nothing that was recorded. What is true is in the database. A node that lost a lease without noticing cannot append,
//! because the database refuses its epoch; and every node checks every two seconds that Redis still knows its waiting
//! calls and its watched sessions. A single server and Sentinel are supported, Redis Cluster is not.
//!
//! ARCHITECTURE.md lists the keys ("What Redis holds"). The scripts in `scripts` are the only code that writes them,
//! apart from the trimming of this node's own inbox in `tasks`.

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

/// How Redis is reached, and how long a lease lasts.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `redis://`, `rediss://`, or
    /// `sentinel://[user:password@]host:port[,host:port…]/service[/db][?sentinel=[user:]password]` (`sentinels://` for
    /// TLS to Sentinels and servers). May hold passwords.
    pub url: secrecy::SecretString,
    /// A PEM file with the certificate of the authority that signs the servers' certificates. Without one the public
    /// authorities are trusted.
    pub ca: Option<std::path::PathBuf>,
    /// The beginning of every key.
    pub prefix: String,
    /// How long a lease lasts unless it is renewed.
    pub lease: Duration,
}

/// The pause before a command that failed is sent again.
const RETRY: Duration = Duration::from_millis(200);

/// The backend for several nodes. Clones share it.
#[derive(Clone)]
pub struct Redis(Arc<Shared>);

struct Shared {
    table: SessionTable,
    connection: Connection,
    scripts: Scripts,
    settings: Settings,
    /// The name of this node, which is new at each start of a process.
    node: String,
    log: Log,
    leases: Mutex<HashMap<SessionId, Held>>,
    /// Sessions that were given up and whose release has not reached Redis yet. True where the session is wanted again:
    /// then it is taken after the release, never before.
    releasing: Mutex<HashMap<SessionId, bool>>,
    /// Counts the releases that reached Redis. Sessions share 256 counters. If the counter of a session moved while
    /// Redis was asked for its lease, the answer may be older than the release and is not used.
    released: [AtomicU64; 256],
    /// The places in the queues of the calls that wait here.
    places: Mutex<HashMap<CallId, u64>>,
    commands: mpsc::Sender<RetriedCommand>,
    /// How many calls have ended although Redis could not be told. Redis may still have them in its queues, so this
    /// node claims no call until the number is zero again.
    owed: AtomicUsize,
    draining: AtomicBool,
    /// Whether the first heartbeat was sent, even if it did not arrive.
    heartbeat_sent: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a node gets from the cluster that it joins.
pub struct Received {
    /// A lease for every session that has to be served here.
    pub leases: mpsc::UnboundedReceiver<Lease>,
    /// What other nodes tell this one.
    pub signals: mpsc::UnboundedReceiver<Signal>,
    /// The tasks that keep the node in the cluster. They have to run until the node stops.
    pub tasks: Tasks,
}

impl Redis {
    /// Prepares to join a cluster; running [`Received::tasks`] joins it. `notifications` are what the log's feeds have
    /// to tell other nodes. At most `limit` calls wait for a session.
    ///
    /// # Errors
    /// `Unusable` for settings that cannot work. Redis need not be reachable yet.
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

    /// The beginning of all keys of a session.
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
