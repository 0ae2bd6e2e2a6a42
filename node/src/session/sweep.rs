//! The sweep finds sessions that have something unfinished and that no node owns.
//!
//! It uses only the database, so it finds what a crashed node, a lost message or an unavailable database left
//! unfinished. Each node runs one task with [`sweep`]; several nodes may sweep at the same time.

use super::close::finish_closing;
use crate::app::App;
use coordinator::log::State;
use std::sync::Arc;
use std::time::Duration;

/// The mean time between two sweeps. Each wait differs, so that the nodes do not query the database at the same moment.
const SWEEP: Duration = Duration::from_secs(1);

/// Looks for turns and closings that no node works on: at once, and then about every second. Returns when the node
/// stops.
pub(crate) async fn sweep(app: Arc<App>) {
    loop {
        match app.log.unfinished().await {
            Ok(sessions) => {
                let of = |wanted: State| sessions.iter().filter(move |(_, state)| *state == wanted).map(|(id, _)| *id);
                app.cluster.adopt(&of(State::Open).collect::<Vec<_>>()).await;
                of(State::Closing).for_each(|session| finish_closing(&app, session));
            }
            Err(error) => tracing::warn!(error = %error, "unfinished sessions could not be looked for"),
        }
        // The last byte of an id is random. The pause is between three quarters and five quarters of the time.
        let jitter = SWEEP * u32::from(coordinator::fresh_id()[15]) / 512;
        let pause = tokio::time::sleep(SWEEP * 3 / 4 + jitter);
        if app.stop.run_until_cancelled(pause).await.is_none() {
            return;
        }
    }
}
