//! Sessions served by this node: one task for each that has something to do.
//!
//! The task owns the session (a lease, and an epoch from the database) and is the only writer of its turns. It outlives the
//! clients' connections: a call that has started runs to its end whoever listens. It stops for a closing, a newer owner, or
//! the node's end; the log says then what the next owner has to carry on.

mod drive;
mod owner;

use crate::app::App;
use coordinator::Error;
use coordinator::cluster::{Lease, Signal};
use coordinator::log::State;
use engine::ids::{EventId, KeyId, SessionId};
use engine::rpc::RpcError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

pub use drive::NO_SANDBOX_DRIVER;

/// How long a closing waits for what runs.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often unfinished turns and closings without an owner are looked for, about: nodes do not look all at once.
const SWEEP: Duration = Duration::from_secs(1);

/// Serves every session that the coordinator hands over, until the node stops.
pub async fn serve_all(app: Arc<App>, mut leases: mpsc::UnboundedReceiver<Lease>) {
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

/// Looks for turns and closings that nobody serves, at once and then about every second: what a crash, or a database that was
/// away, has left. Returns when the node stops.
pub async fn sweep(app: Arc<App>) {
    loop {
        match app.log.unfinished().await {
            Ok(sessions) => {
                for (session, state) in sessions {
                    match state {
                        State::Open => app.cluster.adopt(session).await,
                        State::Closing => finish_closing(&app, session),
                        State::Closed | State::Error => {}
                    }
                }
            }
            Err(error) => tracing::warn!(error = %error, "unfinished sessions could not be looked for"),
        }
        // The last byte of an id is random: three quarters of the time, and up to as much again.
        let jitter = SWEEP * u32::from(coordinator::fresh_id()[15]) / 512;
        let pause = tokio::time::sleep(SWEEP * 3 / 4 + jitter);
        if app.stop.run_until_cancelled(pause).await.is_none() {
            return;
        }
    }
}

/// Closes a session: marks it, stops what runs, ends the log with `session.close` (architecture, I9). Goes on to its end
/// whether or not the caller waits.
///
/// # Errors
/// `NotOpen` when it is closed or failed already; the database's.
pub async fn close(app: &Arc<App>, session: SessionId, by: KeyId, reason: &'static str) -> Result<(), Error> {
    let app = Arc::clone(app);
    let closing = app.clone().tasks.spawn(async move {
        app.log.begin_close(session, by, reason).await?;
        app.closing(session);
        let closed = stop_and_close(&app, session).await;
        app.closed(session);
        closed
    });
    closing.await.unwrap_or(Err(Error::Unknown))
}

/// A closing whose node died is carried on.
fn finish_closing(app: &Arc<App>, session: SessionId) {
    if app.closing(session) {
        let app = Arc::clone(app);
        app.clone().tasks.spawn(async move {
            if let Err(error) = stop_and_close(&app, session).await {
                tracing::warn!(%session, error = %error, "a closing could not be finished; it is tried again");
            }
            app.closed(session);
        });
    }
}

async fn stop_and_close(app: &App, session: SessionId) -> Result<(), Error> {
    let closed = RpcError::not_open(State::Closed.shown());
    let stopped = async {
        app.cluster.stop(session, &closed).await;
        app.mcp.close(session).await;
    };
    if tokio::time::timeout(CLOSE_TIMEOUT, stopped).await.is_err() {
        tracing::warn!(%session, "what ran in a session did not stop in time; it is closed all the same");
    }
    app.log.finish_close(session, EventId(coordinator::fresh_id())).await
}

fn revoked_error() -> RpcError {
    RpcError::new(-32000, "the client key was revoked")
}

/// Does what other nodes tell this one, until the node stops.
pub async fn obey(app: Arc<App>, mut signals: mpsc::UnboundedReceiver<Signal>) {
    while let Some(Some(Signal::Revoked(key))) = app.halt.run_until_cancelled(signals.recv()).await {
        app.auth.forget(key);
        app.cluster.forget(key, &revoked_error());
        app.revoke(key);
    }
}

/// What follows a key's revocation: its queued calls are dropped, its pauses count as expired, and a session with no other
/// active key is closed (companion 10).
///
/// # Errors
/// The database's.
pub async fn key_revoked(app: &Arc<App>, key: KeyId) -> Result<(), Error> {
    app.cluster.revoked(key, &revoked_error()).await;
    app.revoke(key);
    for (session, shared) in app.log.forsake(key).await? {
        if shared {
            app.cluster.wake(session).await;
        } else {
            match close(app, session, key, "client_key_revoked").await {
                Ok(()) | Err(Error::NotOpen(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
