//! The node, put together: everything that requests and sessions share, and its life from start to drain.

use crate::config::{Config, resolve};
use crate::http::auth::Auth;
use crate::mcp::{self, Mcp};
use crate::provider::Providers;
use anyhow::Context;
use coordinator::Db;
use coordinator::accounts::Accounts;
use coordinator::cluster::Cluster;
use coordinator::log::Log;
use engine::ids::{KeyId, SessionId};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Bytes of history of idle sessions that are kept for the next call.
const HISTORY_CACHE_BYTES: usize = 256 << 20;

/// The node.
pub(crate) struct App {
    /// The database.
    pub db: Db,
    /// The configuration.
    pub config: Config,
    /// Authentication.
    pub auth: Auth,
    /// The sessions' log.
    pub log: Log,
    /// Who serves and who waits.
    pub cluster: Cluster,
    /// Model providers.
    pub providers: Arc<Providers>,
    /// Tools of MCP servers.
    pub mcp: Mcp,
    /// What must end by itself before the database closes.
    pub tasks: TaskTracker,
    /// The node takes nothing new; what runs goes on.
    pub stop: CancellationToken,
    /// Running turns are left to the next owner.
    pub halt: CancellationToken,
    /// Keys revoked while this node ran: their streams end.
    revoked: watch::Sender<Arc<HashSet<KeyId>>>,
    closing: Mutex<HashSet<SessionId>>,
    cached_history: AtomicUsize,
}

/// An idle session's share of the memory that all of them may use.
pub(crate) struct CachedHistory<'a>(&'a App, usize);

impl Drop for CachedHistory<'_> {
    fn drop(&mut self) {
        self.0.cached_history.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl App {
    /// The state of a node that has joined nothing and serves nothing yet.
    ///
    /// # Errors
    /// When there is no TLS for the HTTP clients.
    pub(crate) fn new(config: Config, db: Db, log: Log, cluster: Cluster) -> anyhow::Result<App> {
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
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            halt: CancellationToken::new(),
            revoked: watch::Sender::default(),
            closing: Mutex::default(),
            cached_history: AtomicUsize::new(0),
            db,
            config,
        })
    }

    /// The accounts.
    pub(crate) fn accounts(&self) -> Accounts {
        Accounts::new(self.db.clone())
    }

    /// Ends the streams of a key.
    pub(crate) fn revoke(&self, key: KeyId) {
        self.revoked.send_modify(|keys| {
            Arc::make_mut(keys).insert(key);
        });
    }

    /// Tells when keys are revoked.
    pub(crate) fn revocations(&self) -> watch::Receiver<Arc<HashSet<KeyId>>> {
        self.revoked.subscribe()
    }

    /// Notes that a session is being closed here; false if it was noted already.
    pub(crate) fn closing(&self, session: SessionId) -> bool {
        self.locked_closing().insert(session)
    }

    /// The closing is over, or given up for now.
    pub(crate) fn closed(&self, session: SessionId) {
        self.locked_closing().remove(&session);
    }

    fn locked_closing(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a history of that size is too much to keep beside those that are kept.
    pub(crate) fn exceeds_history_cache(&self, bytes: usize) -> bool {
        self.cached_history.load(Ordering::Relaxed) + bytes > HISTORY_CACHE_BYTES
    }

    /// Counts a kept history.
    pub(crate) fn count_cached_history(&self, bytes: usize) -> CachedHistory<'_> {
        self.cached_history.fetch_add(bytes, Ordering::Relaxed);
        CachedHistory(self, bytes)
    }
}
