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
use crate::listen::{Certificate, Port};
use crate::retention;
use crate::sandboxes;
use crate::session;
use coordinator::Db;
use coordinator::cluster::Local;
use coordinator::cluster::redis::{Received, Redis, Tasks};
use coordinator::cluster::{Cluster, Lease, Signal};
use coordinator::feed::Feeds;
use coordinator::log::Log;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections to the admin port and to the metrics port at once.
const ADMIN_CONNECTIONS: usize = 256;
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
    /// With it, the client port and the admin port speak TLS.
    pub(crate) certificate: Option<Arc<Certificate>>,
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
/// When the parts of the node cannot be made.
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
    background.spawn(retention::run(Arc::clone(&app)));
    background.spawn(sandboxes::reconcile::run(Arc::clone(&app)));
    let (auth, stopped) = (app.auth.clone(), app.stop.clone());
    background.spawn(async move { auth.write_uses(stopped).await });
    background.spawn(export::observe(Arc::clone(&app)));
    if let Some(certificate) = &ports.certificate {
        background.spawn(Arc::clone(certificate).keep_current(app.stop.clone()));
    }
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
    let certificate = ports.certificate;
    // Only this machine reaches a loopback address, under names that no certificate of a service has.
    let admin_certificate = certificate.clone().filter(|_| !app.config.admin_addr.ip().to_canonical().is_loopback());
    let served = |listener, certificate, router, limit| {
        let port = Port { listener, certificate, limit };
        end_with(&app.halt, port.serve(router, app.halt.clone()))
    };
    let clients = served(ports.client, certificate.clone(), clients, client_connections(app.config.max_connections));
    let admin = served(ports.admin, admin_certificate, admin, ADMIN_CONNECTIONS);
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
    };
    let scraped = async {
        if let Some(listener) = ports.metrics {
            let port = Port { listener, certificate: None, limit: ADMIN_CONNECTIONS };
            end_with(&app.halt, port.serve(export.router(), app.halt.clone())).await;
        }
    };
    tokio::join!(clients, admin, scraped, drained);
    // Only now, because the cluster offers to other nodes what was given up until now.
    left.cancel();
    background.wait().await;
    app.mcp.shutdown().await;
    app.db.close().await;
    export.shutdown().await;
    Ok(())
}

/// Serves a port. Streams that are open at the halt may then still end by themselves for a short time: one of them would
/// delay the end of the node without limit.
async fn end_with(halt: &CancellationToken, serving: impl Future<Output = ()>) {
    tokio::select! {
        () = serving => {}
        () = async { halt.cancelled().await; tokio::time::sleep(LAST_GRACE).await } => {}
    }
}

/// How many connections the client port may have, so that files and sockets are left for what the node itself opens.
fn client_connections(configured: u32) -> usize {
    let files = rlimit::Resource::NOFILE.get_soft().unwrap_or(u64::MAX);
    usize::try_from(files / 4 * 3).unwrap_or(usize::MAX).min(configured as usize)
}
