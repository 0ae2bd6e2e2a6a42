//! Retention: sessions that ended long ago are removed, where `BAE_RETENTION_DAYS` says how long they are kept.
//!
//! One node of the cluster looks at a time. The database checks what is removed, so two nodes that look at once do no
//! harm.

use crate::app::App;
use coordinator::Error;
use coordinator::log::{PURGE_BATCH, PurgeReason};
use engine::ids::SessionId;
use std::sync::Arc;
use std::time::Duration;

/// The shortest and the longest time between two looks. Between them it is a 24th of the age, so that sessions live only
/// a little longer than it.
const LOOK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));
/// How much longer than a look the node that has the duty may be silent before another one takes it.
const SILENCE: Duration = Duration::from_secs(60);

/// Removes old sessions until the node stops. Does nothing if they are kept for ever.
pub(crate) async fn run(app: Arc<App>) {
    let Some(age) = app.config.retention else { return };
    let look = (age / 24).clamp(LOOK.0, LOOK.1);
    while app.stop.run_until_cancelled(tokio::time::sleep(look)).await.is_some() {
        if let Some(Err(error)) = app.stop.run_until_cancelled(remove_old(&app, age, look)).await {
            tracing::warn!(%error, "old sessions could not be removed; it is tried again");
        }
    }
}

async fn remove_old(app: &App, age: Duration, look: Duration) -> Result<(), Error> {
    while app.log.take_duty("retention", app.cluster.node(), look + SILENCE).await? {
        let found = app.log.ended_before(age).await?;
        for session in &found {
            match purge(app, *session, PurgeReason::Age).await {
                // Another node, or an operator, was faster.
                Ok(()) | Err(Error::NotFound | Error::PreconditionFailed) => {}
                Err(error) => return Err(error),
            }
        }
        if found.len() < PURGE_BATCH as usize {
            break;
        }
    }
    Ok(())
}

/// Removes an ended session, and writes a line about it.
///
/// # Errors
/// Those of [`coordinator::log::Log::purge`].
pub(crate) async fn purge(app: &App, session: SessionId, reason: PurgeReason) -> Result<(), Error> {
    app.log.purge(session, reason).await?;
    tracing::info!(session.id = %session, reason = reason.as_str(), "session removed with its events");
    Ok(())
}
