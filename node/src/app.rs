//! The node, put together.

use crate::auth::Auth;
use crate::config::Config;
use coordinator::Db;
use engine::ids::{KeyId, SessionId};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The node.
pub struct App {
    /// The database.
    pub db: Db,
    /// The configuration.
    pub config: Config,
    /// Authentication.
    pub auth: Auth,
    /// What must end by itself before the database closes.
    pub tasks: TaskTracker,
}

/// The sockets to serve.
pub struct Ports {
    /// The client port.
    pub client: TcpListener,
    /// The admin port.
    pub admin: TcpListener,
}

impl App {
    /// Ends what a revoked key had.
    pub async fn key_revoked(&self, _key: KeyId) -> Result<(), coordinator::Error> {
        Ok(())
    }

    /// A page of a session's log.
    pub async fn events_page(
        &self,
        _session: SessionId,
        _cursor: u64,
        _limit: u32,
    ) -> Result<(Vec<String>, Option<u64>), coordinator::Error> {
        Err(coordinator::Error::NotFound)
    }
}

/// Serves until the stop.
pub async fn run(config: Config, db: Db, ports: Ports, stop: CancellationToken) -> anyhow::Result<()> {
    let auth = Auth::new(coordinator::accounts::Accounts::new(db.clone()));
    let app = Arc::new(App { db: db.clone(), config, auth, tasks: TaskTracker::new() });
    drop(ports.client);
    let router = crate::admin::router(app);
    axum::serve(ports.admin, router).with_graceful_shutdown(stop.cancelled_owned()).await?;
    db.close().await;
    Ok(())
}
