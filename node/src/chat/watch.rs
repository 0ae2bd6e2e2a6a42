//! The subscription: prints the events of all clients as they happen. After a broken connection it continues after the
//! last event that it has seen.

use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use tokio::time::Instant;

use super::api::{Failure, Frame, Session};
use super::backoff::Backoff;
use super::screen::Screen;

/// A connection that lasted so long resets the backoff, even if no event came.
const STABLE_AFTER: Duration = Duration::from_secs(5);
/// A stream that stayed open so long counts as connected.
const CONNECTED_AFTER: Duration = Duration::from_secs(1);

/// Prints the events after `since` until the session ends, the server refuses, or the backoff's limit is reached.
pub(super) async fn watch(
    session: &Session,
    screen: &Screen,
    mut since: Option<String>,
    mut backoff: Backoff,
) -> anyhow::Result<()> {
    loop {
        let begin = Instant::now();
        let why = match follow(session, screen, &mut since, &mut backoff).await {
            Failure::Lost(why) => why,
            failure => return Err(failure).context("the session cannot be watched"),
        };
        if screen.with(|transcript| transcript.ended()) {
            return Ok(());
        }
        if begin.elapsed() >= STABLE_AFTER {
            backoff.reset();
        }
        screen.connection_lost(&why);
        anyhow::ensure!(backoff.wait().await, "the server does not come back ({why})");
    }
}

/// Follows one connection to its end, and returns how it ended.
async fn follow(session: &Session, screen: &Screen, since: &mut Option<String>, backoff: &mut Backoff) -> Failure {
    let mut params = json!({"include_client_events": true});
    if let Some(since) = &since {
        params["since_event_id"] = json!(since);
    }
    let mut frames = match session.call("session.subscribe", &params).await {
        Ok(frames) => frames,
        Err(failure) => return failure,
    };
    // A server that is stopping ends streams right after it has opened them; that does not count as connected.
    let mut next = match frames.next_within(CONNECTED_AFTER).await {
        Ok(first) => first,
        Err(failure) => return failure,
    };
    screen.connection_restored();
    loop {
        if let Some(Frame::Event(event)) = next {
            backoff.reset();
            screen.event(&event);
            *since = Some(event.id);
        }
        next = match frames.next().await {
            Ok(frame) => Some(frame),
            Err(failure) => return failure,
        };
    }
}
