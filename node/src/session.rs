//! The sessions that this node owns. Each session that has something to do has one task.
//!
//! The task holds the session's lease and an epoch from the database, and only it writes the session's turns. It does
//! not depend on the clients' connections: a call that has started runs to its end even if nobody listens. The task
//! stops when the session is closed, when another node has taken the session, or when this node stops; the log then
//! tells the next owner what to carry on. What closing a session and revoking a key involve is in here too, for the
//! handlers of both ports.

pub(crate) mod close;
mod drive;
mod measure;
mod owned;
mod owner;
pub(crate) mod revocation;
pub(crate) mod sweep;

use crate::app::App;
use coordinator::cluster::Lease;
use std::sync::Arc;
use tokio::sync::mpsc;

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
