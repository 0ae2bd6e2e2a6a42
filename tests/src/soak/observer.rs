//! An observer of a session. It subscribes through any node, reads for a while, and goes on through another node after
//! the last event that it saw, until it has seen the end of the session. Where it sleeps, that is the pause before
//! another try.

use super::rng::Rng;
use crate::client::Session;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Reads the events after `first`, with those of clients if `clients`. Returns the ids of the events in the order in
/// which they came.
pub(super) async fn watch(views: Vec<Session>, first: String, clients: bool, mut rng: Rng) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    loop {
        let view = &views[rng.below(views.len())];
        let params = json!({"since_event_id": seen.last().unwrap_or(&first), "include_client_events": clients});
        let stay = if rng.percent(25) { rng.millis(20..800) } else { rng.millis(1000..8000) };
        let asked = timeout(Duration::from_secs(15), view.try_start("session.subscribe", params)).await;
        let Ok(Ok(mut frames)) = asked else {
            sleep(rng.millis(50..200)).await;
            continue;
        };
        let leave = Instant::now() + stay;
        while let Ok(Some(line)) = timeout_at(leave, frames.line()).await {
            let frame: Value = serde_json::from_str(&line).unwrap_or_default();
            let Some(id) = frame["params"]["id"].as_str() else { continue };
            seen.push(id.to_owned());
            if frame["params"]["event_type"] == "session.close" {
                return seen;
            }
        }
    }
}
