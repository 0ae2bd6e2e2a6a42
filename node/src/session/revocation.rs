//! What follows the revocation of a client key, on the node that revoked it and on the nodes that are told of it.
//!
//! The handler that revokes a key calls [`apply`], and one task of each node runs [`apply_signals`].

use super::close::close;
use crate::app::App;
use coordinator::Error;
use coordinator::cluster::Signal;
use coordinator::log::RemainingClients;
use engine::ids::KeyId;
use engine::rpc::RpcError;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Where a key was revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// On this node, which tells the others and does what has to be done once in the database.
    ThisNode,
    /// On another node, which does so.
    OtherNode,
}

/// Drops what a revoked key had: what authentication remembers of it, its queued calls, its streams. On the node of origin
/// also its pauses count as expired, and a session with no other active key is closed (docs/api.md 10).
///
/// # Errors
/// The database's, only on the node of origin.
pub(crate) async fn apply(app: &Arc<App>, key: KeyId, origin: Origin) -> Result<(), Error> {
    let revoked = RpcError::client_key_revoked();
    app.auth.forget(key);
    match origin {
        Origin::ThisNode => app.cluster.revoked(key, &revoked).await,
        Origin::OtherNode => app.cluster.forget(key, &revoked),
    }
    app.revoke(key);
    match origin {
        Origin::ThisNode => close_or_wake(app, key).await,
        Origin::OtherNode => Ok(()),
    }
}

/// Closes the sessions that no other active key belongs to, and wakes the others, whose pause for the revoked key has ended.
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

/// Applies what other nodes tell this one, until running turns are given up or the coordinator ends.
pub(crate) async fn apply_signals(app: Arc<App>, mut signals: mpsc::UnboundedReceiver<Signal>) {
    while let Some(Some(Signal::Revoked(key))) = app.halt.run_until_cancelled(signals.recv()).await {
        if let Err(error) = apply(&app, key, Origin::OtherNode).await {
            tracing::warn!(key.id = %key, error = %error, "a revocation made by another node was not applied");
        }
    }
}
