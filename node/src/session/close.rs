//! Closing a session, because a client asks for it, its key was revoked, or a node was lost while closing it.
//!
//! Closing has three steps (ARCHITECTURE.md, I9): the session is marked in the database, what runs in it is stopped on
//! whichever node it runs, and `session.close` ends the log. If a node is lost after the first step, the sweep finds
//! the marked session and completes the other two.

use crate::app::App;
use crate::sandboxes;
use coordinator::Error;
use coordinator::log::State;
use engine::ids::{EventId, KeyId, SessionId};
use engine::rpc::RpcError;
use std::sync::Arc;
use std::time::Duration;

/// How long closing waits for running work to stop.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Closes a session in these three steps. They are completed even if the caller stops waiting.
///
/// # Errors
/// `NotOpen` when it is closed or failed already; or an error of the database.
pub(crate) async fn close(app: &Arc<App>, session: SessionId, by: KeyId, reason: &'static str) -> Result<(), Error> {
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

/// Completes the closing of a session that a lost node has begun, unless this node is doing so already.
pub(super) fn finish_closing(app: &Arc<App>, session: SessionId) {
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
    let closed = RpcError::not_open(State::Closed.public_name());
    let stopped = async {
        app.cluster.stop(session, &closed).await;
        app.mcp.close(session).await;
    };
    if tokio::time::timeout(CLOSE_TIMEOUT, stopped).await.is_err() {
        tracing::warn!(%session, "what ran in a session did not stop in time; it is closed all the same");
    }
    let ended = async {
        sandboxes::lifecycle::close(app, session).await?;
        sandboxes::subagents::close(app, session).await
    };
    match tokio::time::timeout(CLOSE_TIMEOUT, ended).await {
        Ok(ended) => ended?,
        Err(_) => tracing::warn!(%session, "the sandboxes of a session did not end in time; they are removed later"),
    }
    app.log.finish_close(session, EventId(coordinator::fresh_id())).await
}
