//! The life of a node: assembling its parts, starting its background tasks, serving both ports, and draining at the
//! end.
//!
//! It knows the handlers of both ports and the tasks of `session`; only the command line calls it. A node is stopped by
//! cancelling the token that was given to [`run`]. The order of the end matters: requests and sessions first, then the
//! cluster (which passes on what was given up), then the database.

use crate::app::App;
use crate::config::Config;
use crate::export::{self, Export};
use crate::http::measured::measured;
use crate::sandboxes;
use crate::session;
use axum::Router;
use axum::serve::ListenerExt;
use coordinator::Db;
use coordinator::cluster::Local;
use coordinator::cluster::redis::{Received, Redis, Tasks};
use coordinator::cluster::{Cluster, Lease, Signal};
use coordinator::feed::Feeds;
use coordinator::log::Log;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// When TCP probes a silent peer: after the first time, and then each time the second one has passed. So a dead peer is
/// noticed although nothing is sent to it.
const TCP_KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// How long tasks may take to end after running turns were given up.
const LAST_GRACE: Duration = Duration::from_secs(5);

/// The listening sockets of both ports.
pub(crate) struct Ports {
    /// The client port.
    pub(crate) client: TcpListener,
    /// The admin port.
    pub(crate) admin: TcpListener,
    /// The port on which metrics are read, if one is configured.
    pub(crate) metrics: Option<TcpListener>,
}

/// What comes with the coordination when it is made: channels that a task of the node must read, and a task that must
/// run.
struct Work {
    leases: mpsc::UnboundedReceiver<Lease>,
    signals: Option<mpsc::UnboundedReceiver<Signal>>,
    membership: Option<Tasks>,
}

/// Makes the state of a node. It is coordinated through Redis if the configuration names one, else it is alone.
async fn assemble(config: Config, db: Db) -> anyhow::Result<(Arc<App>, Work)> {
    let limit = config.max_queued_calls as usize;
    let (log, cluster, work) = match &config.redis {
        None => {
            let log = Log::new(db.clone(), Arc::new(Feeds::default()));
            let (local, leases) = Local::new(limit);
            (log, Cluster::Local(local), Work { leases, signals: None, membership: None })
        }
        Some(settings) => {
            let (feeds, notifications) = Feeds::clustered();
            let log = Log::new(db.clone(), Arc::new(feeds));
            let (redis, received) = Redis::new(settings.clone(), log.clone(), notifications, limit)?;
            let Received { leases, signals, tasks } = received;
            (log, Cluster::Redis(redis), Work { leases, signals: Some(signals), membership: Some(tasks) })
        }
    };
    let sandboxes = sandboxes::driver(&config, &log).await?;
    Ok((Arc::new(App::new(config, db, log, cluster, sandboxes)?), work))
}

/// Serves until `stop`, then drains: nothing new is started, running turns may take `BAE_SHUTDOWN_TIMEOUT` to end, and
/// those that do not are carried on by another node or at the next start.
///
/// # Errors
/// When a port cannot be served.
pub(crate) async fn run(
    config: Config,
    db: Db,
    ports: Ports,
    export: Export,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let (app, work) = assemble(config, db).await?;
    let background = TaskTracker::new();
    background.spawn(session::serve_all(Arc::clone(&app), work.leases));
    if let Some(signals) = work.signals {
        background.spawn(session::revocation::apply_signals(Arc::clone(&app), signals));
    }
    let left = CancellationToken::new();
    if let Some(membership) = work.membership {
        background.spawn(membership.run(left.clone()));
    }
    background.spawn(session::sweep::sweep(Arc::clone(&app)));
    background.spawn(sandboxes::reconcile::run(Arc::clone(&app)));
    let (auth, stopped) = (app.auth.clone(), app.stop.clone());
    background.spawn(async move { auth.write_uses(stopped).await });
    background.spawn(export::observe(Arc::clone(&app)));
    background.close();
    let address =
        |listener: &TcpListener| listener.local_addr().map_or_else(|e| e.to_string(), |addr| addr.to_string());
    tracing::info!(
        client.addr = address(&ports.client),
        admin.addr = address(&ports.admin),
        metrics.addr = ports.metrics.as_ref().map(address),
        database = %app.config.database,
        node = app.cluster.node(),
        "serving"
    );
    let measured = |router, port| {
        if app.config.has_metrics() || app.config.has_traces() { measured(router, port) } else { router }
    };
    let clients = measured(crate::api::router(Arc::clone(&app)), "client");
    let admin = measured(crate::admin::router(Arc::clone(&app)), "admin");
    let clients = serve(ports.client, clients, app.halt.clone());
    let admin = serve(ports.admin, admin, app.halt.clone());
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
    let scraped = async {
        match ports.metrics {
            Some(listener) => export.serve(listener, app.halt.clone()).await,
            None => Ok(()),
        }
    };
    tokio::try_join!(clients, admin, scraped, drained)?;
    // Only now, because the cluster offers to other nodes what was given up until now.
    left.cancel();
    background.wait().await;
    app.mcp.shutdown().await;
    app.db.close().await;
    export.shutdown().await;
    Ok(())
}

/// Serves a port until `halt`. Streams that are open then may still end by themselves for a short time.
async fn serve(listener: TcpListener, router: Router, halt: CancellationToken) -> anyhow::Result<()> {
    let listener = listener.tap_io(|socket| {
        if let Err(error) = tune(socket) {
            tracing::debug!(error = %error, "a socket could not be tuned");
        }
    });
    let serving = axum::serve(listener, router).with_graceful_shutdown(halt.clone().cancelled_owned()).into_future();
    tokio::select! {
        served = serving => Ok(served?),
        // An open stream would delay the end of the node without limit.
        () = async { halt.cancelled().await; tokio::time::sleep(LAST_GRACE).await } => Ok(()),
    }
}

/// Sends small answers at once instead of waiting for the peer's delayed acknowledgement, and lets dead peers be
/// noticed.
fn tune(socket: &TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let keepalive = socket2::TcpKeepalive::new().with_time(TCP_KEEPALIVE.0).with_interval(TCP_KEEPALIVE.1);
    socket2::SockRef::from(socket).set_tcp_keepalive(&keepalive)
}
