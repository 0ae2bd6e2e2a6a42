//! The state of a node: everything that requests, sessions and background tasks share.
//!
//! It owns the database, the configuration, the clients of model providers and MCP servers, the tokens that stop the
//! node, and the small tables that belong to nobody else. It starts nothing and imports no module that handles requests
//! or sessions; `lifecycle` makes it, and `api`, `admin` and `session` use it.

use crate::config::{Config, resolve};
use crate::http::auth::Auth;
use crate::mcp::{self, Mcp};
use crate::provider::Providers;
use crate::telemetry::metrics::Level;
use anyhow::Context;
use coordinator::Db;
use coordinator::accounts::Accounts;
use coordinator::cluster::Cluster;
use coordinator::log::Log;
use engine::ids::{KeyId, SessionId};
use sandbox::Sandboxes;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Bytes that the histories of all idle sessions may take together while they are kept for the next call.
const HISTORY_CACHE_BYTES: usize = 256 << 20;

/// The state of a node.
pub(crate) struct App {
    /// The database.
    pub db: Db,
    /// The configuration.
    pub config: Config,
    /// Authentication.
    pub auth: Auth,
    /// The sessions' log.
    pub log: Log,
    /// Coordination: which node serves a session, and which calls wait.
    pub cluster: Cluster,
    /// Model providers.
    pub providers: Arc<Providers>,
    /// Connections to MCP servers.
    pub mcp: Mcp,
    /// Where sandboxes and subagents run, if a driver is configured.
    pub sandboxes: Option<Sandboxes>,
    /// Tasks that must end before the database is closed.
    pub tasks: TaskTracker,
    /// Cancelled when the node starts nothing new any more; what runs goes on.
    pub stop: CancellationToken,
    /// Cancelled when running turns are given up and left to the next owner of their session.
    pub halt: CancellationToken,
    /// The calls that run here.
    pub running_turns: Level,
    /// The subscriptions and calls that stream from here.
    pub open_streams: Level,
    /// Keys that were revoked while this node ran; their streams end.
    revoked: watch::Sender<Arc<HashSet<KeyId>>>,
    /// Sessions that this node is closing just now.
    closing: Mutex<HashSet<SessionId>>,
    /// Bytes of the histories of idle sessions.
    cached_history: AtomicUsize,
    /// Owners that take their session at once: half as many as there are connections to the database, which running turns
    /// need too.
    pub takes: Semaphore,
}

/// The bytes of one idle session's history, counted for as long as this exists.
pub(crate) struct CachedHistory<'a>(&'a App, usize);

impl Drop for CachedHistory<'_> {
    fn drop(&mut self) {
        self.0.cached_history.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl App {
    /// The state of a node that has joined no cluster and serves nothing yet.
    ///
    /// # Errors
    /// When an HTTP client cannot be made, because TLS cannot be set up.
    pub(crate) fn new(
        config: Config,
        db: Db,
        log: Log,
        cluster: Cluster,
        sandboxes: Option<Sandboxes>,
    ) -> anyhow::Result<App> {
        let environment = Arc::clone(&config.environment);
        let inherited = mcp::INHERITED.iter().filter_map(|name| Some(((*name).into(), environment.get(name)?.into())));
        let settings = mcp::Settings {
            idle: config.mcp_idle,
            call_timeout: config.mcp_timeout,
            environment: inherited.collect(),
            ..mcp::Settings::default()
        };
        let resolver = move |text: &str| resolve(text, environment.as_ref()).map_err(|error| error.to_string());
        Ok(App {
            auth: Auth::new(Accounts::new(db.clone())),
            log,
            cluster,
            providers: Arc::new(Providers::new(&config).context("the HTTP client for providers cannot be made")?),
            mcp: Mcp::new(settings, Arc::new(resolver)).context("the HTTP client for MCP cannot be made")?,
            sandboxes,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            halt: CancellationToken::new(),
            running_turns: Level::default(),
            open_streams: Level::default(),
            revoked: watch::Sender::default(),
            closing: Mutex::default(),
            cached_history: AtomicUsize::new(0),
            takes: Semaphore::new((config.database_connections as usize / 2).max(1)),
            db,
            config,
        })
    }

    /// The accounts.
    pub(crate) fn accounts(&self) -> Accounts {
        Accounts::new(self.db.clone())
    }

    /// Ends the streams of a revoked key.
    pub(crate) fn revoke(&self, key: KeyId) {
        self.revoked.send_modify(|keys| {
            Arc::make_mut(keys).insert(key);
        });
    }

    /// The keys revoked so far, and notice of every further one.
    pub(crate) fn revocations(&self) -> watch::Receiver<Arc<HashSet<KeyId>>> {
        self.revoked.subscribe()
    }

    /// Notes that this node is closing a session. False if it is doing so already.
    pub(crate) fn closing(&self, session: SessionId) -> bool {
        self.locked_closing().insert(session)
    }

    /// Notes that the closing has ended, or was given up for now.
    pub(crate) fn closed(&self, session: SessionId) {
        self.locked_closing().remove(&session);
    }

    fn locked_closing(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the cache has no room for another history of that size.
    pub(crate) fn exceeds_history_cache(&self, bytes: usize) -> bool {
        self.cached_history.load(Ordering::Relaxed) + bytes > HISTORY_CACHE_BYTES
    }

    /// Counts a history that is kept in the cache, until the result is dropped.
    pub(crate) fn count_cached_history(&self, bytes: usize) -> CachedHistory<'_> {
        self.cached_history.fetch_add(bytes, Ordering::Relaxed);
        CachedHistory(self, bytes)
    }
}
