//! The subscription: everybody's events as they happen, and, after a cut, from where it was cut.

use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use tokio::time::Instant;

use super::api::{Failure, Frame, Session};
use super::patience::Patience;
use super::screen::Screen;

/// A connection that lived so long was a good one.
const GOOD: Duration = Duration::from_secs(5);
/// One that stayed open so long is one at all.
const SETTLED: Duration = Duration::from_secs(1);

/// Shows events after `since` until the session ends, the server refuses, or patience runs out.
pub async fn watch(
    session: &Session,
    screen: &Screen,
    mut since: Option<String>,
    mut patience: Patience,
) -> anyhow::Result<()> {
    loop {
        let begin = Instant::now();
        let why = match follow(session, screen, &mut since, &mut patience).await {
            Failure::Lost(why) => why,
            failure => return Err(failure).context("the session cannot be watched"),
        };
        if screen.with(|transcript| transcript.over()) {
            return Ok(());
        }
        if begin.elapsed() >= GOOD {
            patience.renew();
        }
        screen.lost(&why);
        anyhow::ensure!(patience.wait().await, "the server does not come back ({why})");
    }
}

/// One connection; returns how it ended.
async fn follow(session: &Session, screen: &Screen, since: &mut Option<String>, patience: &mut Patience) -> Failure {
    let mut params = json!({"include_client_events": true});
    if let Some(since) = &since {
        params["since_event_id"] = json!(since);
    }
    let mut frames = match session.call("session.subscribe", &params).await {
        Ok(frames) => frames,
        Err(failure) => return failure,
    };
    // A server that is stopping ends streams as soon as it opens them; that is no connection yet.
    let mut next = match frames.next_within(SETTLED).await {
        Ok(first) => first,
        Err(failure) => return failure,
    };
    screen.back();
    loop {
        if let Some(Frame::Event(event)) = next {
            patience.renew();
            screen.event(&event);
            *since = Some(event.id);
        }
        next = match frames.next().await {
            Ok(frame) => Some(frame),
            Err(failure) => return failure,
        };
    }
}
