//! The node, put together: everything that requests and sessions share, and its life from start to drain.

use crate::auth::Auth;
use crate::config::{Config, resolve};
use crate::mcp::{self, Mcp};
use crate::provider::Providers;
use crate::session;
use anyhow::Context;
use axum::Router;
use axum::serve::ListenerExt;
use coordinator::Db;
use coordinator::accounts::Accounts;
use coordinator::cluster::{Cluster, Lease, Signal};
use coordinator::feed::Feeds;
use coordinator::local::Local;
use coordinator::log::Log;
use coordinator::redis::{Received, Redis, Tasks};
use engine::ids::{KeyId, SessionId};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Bytes of history of idle sessions that are kept for the next call.
const WARM_BYTES: usize = 256 << 20;
/// Silence after which a peer is probed, and time between probes: a dead one is noticed although nothing is sent.
const TCP_KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// Time that tasks have to end once running turns were handed over.
const LAST_GRACE: Duration = Duration::from_secs(5);

/// The node.
pub struct App {
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
    warm: AtomicUsize,
}

/// The sockets to serve.
pub struct Ports {
    /// The client port.
    pub client: TcpListener,
    /// The admin port.
    pub admin: TcpListener,
}

/// What has to run for a node.
pub struct Work {
    leases: mpsc::UnboundedReceiver<Lease>,
    signals: Option<mpsc::UnboundedReceiver<Signal>>,
    membership: Option<Tasks>,
}

/// An idle session's share of the memory that all of them may use.
pub struct Held<'a>(&'a App, usize);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.warm.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl App {
    /// Puts a node together, and says what has to run for it.
    ///
    /// # Errors
    /// When there is no TLS, or Redis's URL makes no sense.
    pub fn new(config: Config, db: Db) -> anyhow::Result<(Arc<App>, Work)> {
        let log = Log::new(db.clone(), Arc::new(Feeds::default()));
        let limit = config.max_queued_calls as usize;
        let (cluster, work) = match &config.redis {
            None => {
                let (local, leases) = Local::new(limit);
                (Cluster::Local(local), Work { leases, signals: None, membership: None })
            }
            Some(settings) => {
                let (redis, received) = Redis::new(settings.clone(), log.clone(), limit)?;
                let Received { leases, signals, tasks } = received;
                (Cluster::Redis(redis), Work { leases, signals: Some(signals), membership: Some(tasks) })
            }
        };
        let environment = Arc::clone(&config.environment);
        let inherited = mcp::INHERITED.iter().filter_map(|name| Some(((*name).into(), environment.get(name)?.into())));
        let settings = mcp::Settings {
            idle: config.mcp_idle,
            call_timeout: config.mcp_timeout,
            environment: inherited.collect(),
            ..mcp::Settings::default()
        };
        let resolver = move |text: &str| resolve(text, environment.as_ref()).map_err(|error| error.to_string());
        let app = App {
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
            warm: AtomicUsize::new(0),
            db,
            config,
        };
        Ok((Arc::new(app), work))
    }

    /// The accounts.
    pub fn accounts(&self) -> Accounts {
        Accounts::new(self.db.clone())
    }

    /// Ends what a revoked key had on this node and in the database.
    ///
    /// # Errors
    /// The database's.
    pub async fn key_revoked(self: &Arc<Self>, key: KeyId) -> Result<(), coordinator::Error> {
        session::key_revoked(self, key).await
    }

    /// Ends the streams of a key.
    pub fn revoke(&self, key: KeyId) {
        self.revoked.send_modify(|keys| {
            Arc::make_mut(keys).insert(key);
        });
    }

    /// Tells when keys are revoked.
    pub fn revocations(&self) -> watch::Receiver<Arc<HashSet<KeyId>>> {
        self.revoked.subscribe()
    }

    /// Notes that a session is being closed here; false if it was noted already.
    pub fn closing(&self, session: SessionId) -> bool {
        self.locked_closing().insert(session)
    }

    /// The closing is over, or given up for now.
    pub fn closed(&self, session: SessionId) {
        self.locked_closing().remove(&session);
    }

    fn locked_closing(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a history of that size is too much to keep beside those that are kept.
    pub fn too_warm(&self, bytes: usize) -> bool {
        self.warm.load(Ordering::Relaxed) + bytes > WARM_BYTES
    }

    /// Counts a kept history.
    pub fn hold(&self, bytes: usize) -> Held<'_> {
        self.warm.fetch_add(bytes, Ordering::Relaxed);
        Held(self, bytes)
    }
}

/// Serves until `stop`, then drains: nothing new, running turns have `BAE_SHUTDOWN_TIMEOUT` to end, the rest is left to the
/// next start.
///
/// # Errors
/// When a port cannot be served.
pub async fn run(config: Config, db: Db, ports: Ports, stop: CancellationToken) -> anyhow::Result<()> {
    let (app, work) = App::new(config, db)?;
    let background = TaskTracker::new();
    background.spawn(session::serve_all(Arc::clone(&app), work.leases));
    if let Some(signals) = work.signals {
        background.spawn(session::obey(Arc::clone(&app), signals));
    }
    let left = CancellationToken::new();
    if let Some(membership) = work.membership {
        background.spawn(membership.run(left.clone()));
    }
    background.spawn(session::sweep(Arc::clone(&app)));
    let (auth, stopped) = (app.auth.clone(), app.stop.clone());
    background.spawn(async move { auth.write_uses(stopped).await });
    background.close();
    let address =
        |listener: &TcpListener| listener.local_addr().map_or_else(|e| e.to_string(), |addr| addr.to_string());
    tracing::info!(
        client.addr = address(&ports.client),
        admin.addr = address(&ports.admin),
        database = %app.config.database,
        node = app.cluster.node(),
        "serving"
    );
    if app.config.telemetry.enabled {
        tracing::warn!("[telemetry] is enabled, but this version exports nothing yet");
    }
    let clients = serve(ports.client, crate::api::router(Arc::clone(&app)), app.halt.clone());
    let admin = serve(ports.admin, crate::admin::router(Arc::clone(&app)), app.halt.clone());
    let drained = async {
        stop.cancelled().await;
        tracing::info!("stopping: running turns have {} s to end", app.config.shutdown_timeout.as_secs());
        app.cluster.drain();
        app.stop.cancel();
        app.tasks.close();
        if tokio::time::timeout(app.config.shutdown_timeout, app.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = app.tasks.len(), "not everything ended in time; the next start carries it on");
        }
        app.halt.cancel();
        let _ = tokio::time::timeout(LAST_GRACE, app.tasks.wait()).await;
        Ok(())
    };
    tokio::try_join!(clients, admin, drained)?;
    // Last, because what was given up until now is offered to others through it.
    left.cancel();
    background.wait().await;
    app.mcp.shutdown().await;
    app.db.close().await;
    Ok(())
}

/// Serves a port until `halt`; streams that are still open then have a last moment.
async fn serve(listener: TcpListener, router: Router, halt: CancellationToken) -> anyhow::Result<()> {
    let listener = listener.tap_io(|socket| {
        if let Err(error) = tune(socket) {
            tracing::debug!(error = %error, "a socket could not be tuned");
        }
    });
    let serving = axum::serve(listener, router).with_graceful_shutdown(halt.clone().cancelled_owned()).into_future();
    tokio::select! {
        served = serving => Ok(served?),
        // An open stream would hold the shutdown up for ever.
        () = async { halt.cancelled().await; tokio::time::sleep(LAST_GRACE).await } => Ok(()),
    }
}

/// Answers are small: none waits for the peer's delayed acknowledgement. Dead peers are noticed.
fn tune(socket: &TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let keepalive = socket2::TcpKeepalive::new().with_time(TCP_KEEPALIVE.0).with_interval(TCP_KEEPALIVE.1);
    socket2::SockRef::from(socket).set_tcp_keepalive(&keepalive)
}
