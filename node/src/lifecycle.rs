//! The life of a node: it is put together, its background tasks start, both ports serve, and at the end it drains.
//!
//! This is the top of the crate below the command line: it knows the handlers of both ports and the tasks of `session`, and
//! nothing but `cli` knows it. Whoever stops a node cancels the token that was given to [`run`].

use crate::app::App;
use crate::config::Config;
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

/// A peer that is silent for the first time is probed, again after each second time: a dead one is noticed although nothing
/// is sent to it.
const TCP_KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// Time that tasks have to end once running turns were handed over.
const LAST_GRACE: Duration = Duration::from_secs(5);

/// The sockets to serve.
pub(crate) struct Ports {
    /// The client port.
    pub(crate) client: TcpListener,
    /// The admin port.
    pub(crate) admin: TcpListener,
}

/// What the coordinator hands over when it is made: the receiving ends that a task of the node has to read.
struct Work {
    leases: mpsc::UnboundedReceiver<Lease>,
    signals: Option<mpsc::UnboundedReceiver<Signal>>,
    membership: Option<Tasks>,
}

/// Puts the node together around a database; Redis coordinates it where the settings name one.
fn assemble(config: Config, db: Db) -> anyhow::Result<(Arc<App>, Work)> {
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
    Ok((Arc::new(App::new(config, db, log, cluster)?), work))
}

/// Serves until `stop`, then drains: nothing new, running turns have `BAE_SHUTDOWN_TIMEOUT` to end, the rest is left to the
/// next start.
///
/// # Errors
/// When a port cannot be served.
pub(crate) async fn run(config: Config, db: Db, ports: Ports, stop: CancellationToken) -> anyhow::Result<()> {
    let (app, work) = assemble(config, db)?;
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
