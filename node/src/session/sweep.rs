//! The sweep: finds the sessions that have something unfinished and no owner.
//!
//! The log is the only thing it believes: whatever a crashed node, a lost message or an absent database left behind is in the
//! list that the database gives. One task for each node runs [`sweep`]; it is safe that all nodes do so at the same time.

use super::close::finish_closing;
use crate::app::App;
use coordinator::log::State;
use std::sync::Arc;
use std::time::Duration;

/// How often unfinished turns and closings without an owner are looked for, about: nodes do not look all at once.
const SWEEP: Duration = Duration::from_secs(1);

/// Looks for turns and closings that nobody serves, at once and then about every second: what a crash, or a database that was
/// away, has left. Returns when the node stops.
pub(crate) async fn sweep(app: Arc<App>) {
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
