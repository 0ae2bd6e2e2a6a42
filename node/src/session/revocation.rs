//! What has to be done when a client key is revoked, on the node that revoked it and on the nodes that it tells.
//!
//! The handler that revokes a key calls [`follow_up`], and one task of each node runs [`apply_signals`].

use super::close::close;
use crate::app::App;
use coordinator::Error;
use coordinator::cluster::Signal;
use coordinator::log::RemainingClients;
use engine::ids::KeyId;
use engine::rpc::RpcError;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Does what a revocation requires. This node has written it to the database already, and its authentication has
/// forgotten the key. This ends the key's queued calls and streams on all nodes, makes its pauses expire, and closes
/// the sessions that no other active key belongs to (docs/api.md 10).
///
/// # Errors
/// When the database fails.
pub(crate) async fn follow_up(app: &Arc<App>, key: KeyId) -> Result<(), Error> {
    app.cluster.revoked(key, &RpcError::client_key_revoked()).await;
    app.revoke(key);
    close_or_wake(app, key).await
}

/// Drops what this node holds for a key that another node has revoked. What has to be done once, in the database, is
/// done by that node.
fn heard_of(app: &App, key: KeyId) {
    app.auth.forget(key);
    app.cluster.forget(key, &RpcError::client_key_revoked());
    app.revoke(key);
}

/// Closes the sessions that no other active key belongs to, and wakes the others, whose pause for the revoked key has
/// ended.
async fn close_or_wake(app: &Arc<App>, key: KeyId) -> Result<(), Error> {
    for (session, remaining) in app.log.expire_pauses_of(key).await? {
        match remaining {
            RemainingClients::Some => app.cluster.wake(session).await,
            RemainingClients::None => match close(app, session, key, "client_key_revoked").await {
                Ok(()) | Err(Error::NotOpen(_)) => {}
                Err(error) => return Err(error),
            },
        }
    }
    Ok(())
}

/// Applies the signals that other nodes send, until running turns are given up or the coordinator ends.
pub(crate) async fn apply_signals(app: Arc<App>, mut signals: mpsc::UnboundedReceiver<Signal>) {
    while let Some(Some(Signal::Revoked(key))) = app.halt.run_until_cancelled(signals.recv()).await {
        heard_of(&app, key);
    }
}
