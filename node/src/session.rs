//! Sessions served by this node: one task for each that has something to do.
//!
//! The task owns the session (a lease, and an epoch from the database) and is the only writer of its turns. It outlives the
//! clients' connections: a call that has started runs to its end whoever listens. It stops for a closing, a newer owner, or
//! the node's end; the log says then what the next owner has to carry on.

pub(crate) mod close;
mod drive;
mod owner;
pub(crate) mod revocation;
pub(crate) mod sweep;

use crate::app::App;
use coordinator::cluster::Lease;
use engine::rpc::RpcError;
use std::sync::Arc;
use tokio::sync::mpsc;

/// What a node without sandboxes answers whenever one is wanted.
pub(crate) const NO_SANDBOX_DRIVER: &str = "no sandbox driver is configured";

/// `-32602`: an idempotency key came back with other params.
pub(crate) fn other_params() -> RpcError {
    RpcError::invalid_params("idempotency_key was used before with other params; use a new key for a new message")
}

/// Serves every session that the coordinator hands over, until the node stops.
pub(crate) async fn serve_all(app: Arc<App>, mut leases: mpsc::UnboundedReceiver<Lease>) {
    loop {
        tokio::select! {
            biased;
            () = app.stop.cancelled() => return,
            lease = leases.recv() => {
                let Some(lease) = lease else { return };
                let app = Arc::clone(&app);
                app.clone().tasks.spawn(async move { owner::serve(app, lease).await });
            }
        }
    }
}
